"""`polydice study`: all runs of a recipe, and the report."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from shutil import get_terminal_size
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from polydice.training.config import CACHE
from polydice.values import Count, Range

if TYPE_CHECKING:
    from polydice.data.prepare import Prepared
    from polydice.studies.agenda import Agenda
    from polydice.studies.recipe import Planned
    from polydice.studies.study import Study

Share = Annotated[float, Range(0, open=True), Range(0, 1)]


def study(
    recipe: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")] = None,
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None,
    data: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("data"),
    cache: Annotated[Path, tyro.conf.arg(metavar="DIR")] = CACHE,
    engine: Literal["local", "ray"] = "local",
    jobs: Count | None = None,
    per_gpu: Count = 1,
    address: str | None = None,
    gpu_share: Share = 1.0,
    skip_errors: bool = False,
    changes: Annotated[tuple[str, ...], tyro.conf.arg(name="set", metavar="NAME=VALUE")] = (),
    list: bool = False,
    json_output: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> int:
    """Trains every network of a recipe, compares the losses and writes a report.

    A study can be stopped at any time: the same command goes on with it. Runs that failed are tried again. The exit
    status is 1 if runs failed, 2 if the study could not begin, for lack of data say, and else 0.

    Example: polydice study demo --out runs/demo

    Example: polydice study compare --data DIR --out runs/mine

    Example: polydice study paper-unet --data /data --out runs/paper-unet --per-gpu 2

    Example: polydice study my-recipe.toml --out runs/mine --engine ray --address auto --gpu-share 0.5

    Args:
        recipe: a packaged recipe (--list names them) or a TOML file.
        out: folder of the study. If not given, runs/ and the recipe's name, or that of its folder for a recipe.toml.
        data: folder that holds the recipe's data sets; for compare, the data set itself.
        cache: where prepared data sets are kept.
        engine: processes of this machine, or a Ray cluster whose nodes share the study's folder.
        jobs: runs at a time on this machine. If not given, as many as it has GPUs or cores.
        per_gpu: runs at a time on one GPU.
        address: of a Ray cluster; auto finds one that runs here. If not given, one is started here.
        gpu_share: the part of a GPU that a run takes on a Ray cluster.
        skip_errors: leave out cases in which `polydice data` finds errors, instead of refusing to train.
        changes: settings or keys of the recipe that are to be others, such as epochs=20 or replicates=5; a list,
            rate=[0.01,0.04], is chosen from.
        list: name the packaged recipes and end.
        json_output: print the state of the study as JSON at the end.
    """
    from polydice.data.cases import DataError
    from polydice.studies.recipe import RecipeError
    from polydice.studies.study import create
    from polydice.training.checkpoint import CheckpointError

    if list:
        _list()
        return 0
    try:
        if recipe is None:
            raise RecipeError("name a recipe, or see --list")
        study = create(recipe, out or _named(recipe), data, cache, skip_errors, changes)
        return _run(study, engine, jobs, per_gpu, address, gpu_share, json_output)
    except (DataError, CheckpointError, OSError, RuntimeError, ValueError) as problem:
        print(f"polydice study: {problem}", file=sys.stderr)
        return 2


def _list() -> None:
    from polydice.studies.recipe import packaged, read

    names = packaged()
    width = max(map(len, names))
    for name in names:
        recipe = read(name)
        runs = sum(1 for _ in (*recipe.tuning(), *recipe.runs()))
        print(f"{name:<{width}}  {recipe.title} ({runs} runs)")


def _named(recipe: str) -> Path:
    """Where a study goes: a file that is called as every study's is says nothing, but its folder does."""
    path = Path(recipe)
    return Path("runs", path.resolve().parent.name if path.name == "recipe.toml" else path.stem)


def _run(
    study: "Study", engine: str, jobs: int | None, per_gpu: int, address: str | None, gpu_share: float,
    json_output: bool,
) -> int:  # fmt: skip
    from polydice.studies.agenda import Agenda
    from polydice.studies.engine import devices, run_local
    from polydice.studies.estimate import plan
    from polydice.studies.live import Live
    from polydice.studies.ray_engine import run_ray

    _name_missing_data(study)
    agenda = Agenda(study)
    ready, at_once = agenda.ready(), devices(jobs, per_gpu)
    prepared = _prepared(agenda.study, ready)
    if ready:
        print(plan(agenda, len(at_once) if engine == "local" else None, prepared), file=sys.stderr, flush=True)
    live = Live(agenda.study)
    agenda.say = live.say
    try:
        if ready and engine == "ray":
            run_ray(study, ready, live, address, gpu_share, agenda.then)
        elif ready:
            run_local(study, ready, live, at_once, live.say, live.draw, agenda.then)
    except KeyboardInterrupt:
        print(f"\nstopped; the same command goes on with {study.folder}", file=sys.stderr)
        return 130
    return _conclude(agenda, json_output)


def _name_missing_data(study: "Study") -> None:
    """Says which data sets are not there; if none is, there is nothing to do."""
    from polydice.studies.recipe import RecipeError

    states = {run: study.state(run) for run in study.runs}
    missing = dict.fromkeys(run.dataset for run, state in states.items() if state == "no data")
    if set(states.values()) == {"no data"}:
        folders = ", ".join(str(study.dataset_folder(name)) for name in missing)
        raise RecipeError(
            f"no data set of the recipe is there ({folders}): --data names the folder that holds them; for compare, "
            "the data set itself"
        )
    for name in missing:
        print(f"{name}: {study.dataset_folder(name)} is not there; its runs are left out", file=sys.stderr)


def _prepared(study: "Study", runs: Sequence["Planned"]) -> dict[tuple[str, str], "Prepared"]:
    """Each data set made ready for each network, once for all runs and before the first: what cannot be trained is
    refused, and what is trained on is said."""
    from polydice.data.usable import described
    from polydice.studies.cuts import refuse_another_cut, refuse_other_annotations
    from polydice.training.loop import opened
    from polydice.training.rehearsal import try_loss, try_network

    found: dict[tuple[str, str], Prepared] = {}
    told: dict[str, None] = {}  # each line once, in the order in which they come
    for run in {(run.dataset, run.model, run.expression): run for run in runs}.values():
        settings, pair = study.settings(run), (run.dataset, run.model)
        if pair not in found:
            dataset, found[pair] = opened(settings)
            told[described(dataset)] = None
            refuse_another_cut(study, run.dataset, found[pair].cases)
            refuse_other_annotations(study, run.dataset, dataset)
            try_network(settings, found[pair])
        try_loss(settings, found[pair])
    for line in told:
        print(line, file=sys.stderr)
    return found


def _conclude(agenda: "Agenda", json_output: bool) -> int:
    """Writes the report, and says what it says; the exit status."""
    from polydice.studies.comparison import compare
    from polydice.studies.formats import terminal
    from polydice.studies.report import remarks, write_report
    from polydice.studies.tables import results

    study, failed = agenda.study, agenda.failed()
    comparisons = compare(study)
    report = write_report(study, comparisons)
    for run in failed:
        print(f"failed: {study.run_folder(run)}: {study.error(run).partition(chr(10))[0]}", file=sys.stderr)
    told = [*agenda.undecided(), *remarks(study.finished(), study.recipe.outer)]
    if not json_output:
        width = get_terminal_size().columns if sys.stdout.isatty() else None
        for each in comparisons:
            print("\n" + terminal(results(each), width))
            said = [*(row.verdict for row in each.rows if row.verdict), *each.warnings, each.answer]
            print("".join(fill(line, width or 120) + "\n" for line in said), flush=True)
    for line in told:
        print(line, file=sys.stderr)
    if json_output:
        counts = {
            state: sum(study.state(run) == state for run in study.runs) for state in ("done", "failed", "no data")
        }
        print(json.dumps({"study": str(study.folder), "report": str(report), "runs": counts, "remarks": told}))
    else:
        print(report)
    return 1 if failed else 0
