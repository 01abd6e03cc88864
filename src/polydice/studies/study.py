"""A study on disk: a recipe and the folders of its runs.

DIR/recipe.toml            what is trained
DIR/study.json             where the data sets are, what the recipe means where it says nothing, whether cases with
                           errors are left out, and where the modules are that the recipe names
DIR/chosen.json            the values that were chosen once for all folds and replicates
DIR/runs/…/fold-0/replicate-0/  one run: result.json once it is finished, error.txt if it failed; with `seeds` it is in
                           seed-0, and if it is there for the choice of a value alone, in tuning
DIR/runs.jsonl.gz          the record of runs (see record.py): a run that is in it needs no folder; what a folder says
                           goes before it
DIR/report/                what `polydice report` writes; DIR/report-last/ or report-best/ if it is about the weights
                           that do not count, DIR/report-to-LOSS/ if it compares with another loss
"""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from polydice import foreign
from polydice.data.cases import DataError
from polydice.data.generate import generated_folder
from polydice.studies.auto import completed
from polydice.studies.files import (
    Choice,
    Where,
    read_choices,
    read_history,
    read_result,
    read_settings,
    read_where,
)
from polydice.studies.recipe import Planned, Recipe, RecipeError, read, slug, text_of
from polydice.studies.record import RECORD, Kept, read_record
from polydice.studies.unsaid import BEGUN_BEFORE, NEW, OPTIMIZER, RATES, Unsaid
from polydice.training.checkpoint import write_text
from polydice.training.config import BEFORE, CountingWeights, Settings

CHOSEN = "chosen.json"

State = Literal["done", "failed", "waiting", "no data"]


class Finished(NamedTuple):
    """A run with its result."""

    run: Planned
    result: dict[str, Any]


@dataclass(frozen=True)
class Study:
    folder: Path
    recipe: Recipe
    data: Path  # below it lie the data sets
    cache: Path
    weights: CountingWeights  # those that count: the recipe's, if nobody asks for the others
    against: str | None = None  # the baseline, where it is not the one of recipe.toml
    skip_errors: bool = False  # cases with errors are left out of all data sets
    choices: tuple[Choice, ...] = ()  # the values that were chosen once for all folds and replicates

    @cached_property
    def runs(self) -> tuple[Planned, ...]:
        """The runs that are compared, with the values that were chosen so far."""
        return tuple(map(self.settled, self.recipe.runs()))

    @cached_property
    def tuning(self) -> tuple[Planned, ...]:
        """The runs that are there for the choice of a value alone."""
        return tuple(self.recipe.tuning())

    def tuning_of(self, dataset: str, model: str, loss: str) -> list[Planned]:
        return [run for run in self.tuning if (run.dataset, run.model, run.loss) == (dataset, model, loss)]

    def choice(self, dataset: str, model: str, loss: str) -> Choice | None:
        """The value that was chosen once for a loss, and from what."""
        wanted = dataset, model, loss
        return next((each for each in self.choices if (each["dataset"], each["model"], each["loss"]) == wanted), None)

    def settled(self, run: Planned) -> Planned:
        """The run with the value that was chosen for it; itself if it has one, or none is chosen yet."""
        found = self.choice(run.dataset, run.model, run.loss) if run.open else None
        if found is None:
            return run
        variant = next(each for each in self.recipe.losses[run.loss] if each.value == found["value"])
        return replace(run, value=variant.value, expression=variant.expression, settings=variant.settings, open=False)

    def with_choice(self, choice: Choice) -> "Study":
        """The study once the choice is written down."""
        study = replace(self, choices=(*self.choices, choice))
        _write_choices(self.folder, study.choices)
        return study

    @property
    def report_folder(self) -> Path:
        to = "" if self.against is None else f"-to-{slug(self.against)}"
        return self.folder / f"report{'' if self.weights == self.recipe.weights else f'-{self.weights}'}{to}"

    def run_folder(self, run: Planned) -> Path:
        return self.folder / "runs" / run.place

    @cached_property
    def record(self) -> dict[str, Kept]:
        return read_record(self.folder / RECORD)

    def recorded(self, run: Planned) -> Kept | None:
        """What the record has of a run."""
        return self.record.get(run.place.as_posix())

    def is_done(self, run: Planned) -> bool:
        kept = self.recorded(run)
        return (self.run_folder(run) / "result.json").exists() or (kept is not None and not kept.error)

    def state(self, run: Planned) -> State:
        if self.is_done(run):
            return "done"
        if self.error(run):
            return "failed"
        return "waiting" if self.dataset_folder(run.dataset).is_dir() else "no data"

    def error(self, run: Planned) -> str:
        path, kept = self.run_folder(run) / "error.txt", self.recorded(run)
        if path.exists():
            return path.read_text(encoding="utf-8", errors="replace")
        return "" if kept is None else kept.error

    def note_error(self, run: Planned, problem: str) -> None:
        folder = self.run_folder(run)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "error.txt").write_text(problem + "\n", encoding="utf-8")

    def dataset_folder(self, name: str) -> Path:
        """Where a data set is; one that is generated is made at the first call."""
        dataset = self.recipe.datasets[name]
        if "path" in dataset:
            return self.data / str(dataset["path"])
        options = dict(dataset["generate"])
        return generated_folder(self.folder / "generated", options.pop("count"), **options)

    def settings(self, run: Planned, device: str | None = None) -> Settings:
        folder = self.dataset_folder(run.dataset)
        settings = self.recipe.settings(run, folder, self.run_folder(run), cache=self.cache, device=device)
        return replace(settings, skip_errors=True) if self.skip_errors else settings

    def finished(self, tuning: bool = False) -> Iterator[Finished]:
        """The runs that are compared, or those for the choice of a value, as far as they have a result."""
        for run in self.tuning if tuning else self.runs:
            if self.is_done(run):
                yield Finished(run, self.result(run))

    def result(self, run: Planned) -> dict[str, Any]:
        path, kept = self.run_folder(run) / "result.json", self.recorded(run)
        return read_result(path, self.weights) if path.exists() or kept is None else kept.result(self.weights)

    def history(self, run: Planned) -> list[dict[str, Any]]:
        """The epochs of a run; empty where they were not brought along with the result."""
        path, kept = self.run_folder(run) / "history.jsonl", self.recorded(run)
        if path.exists():
            return read_history(path)
        return [] if kept is None else kept.history()


def create(
    recipe: str | Path, folder: Path, data: Path, cache: Path, skip_errors: bool = False, changes: Sequence[str] = ()
) -> Study:
    """The study in `folder`, made of a recipe, or the one that is there already: it goes on, and it grows if the recipe
    has more losses, values, replicates, folds or data sets than before. One that has not begun to train is made new.
    `changes` are those of the command to the recipe: epochs=20."""
    kept, place = folder / "recipe.toml", folder / "study.json"
    known: Where | dict[str, Any] = {}
    with suppress(OSError, DataError):  # it is not there, or damaged, and is written below
        known = read_where(place)
    unsaid = _unsaid(folder, known)
    _look_in(folder, known)
    begun = kept.exists() and (any(folder.glob("runs/*")) or (folder / RECORD).exists())
    text, chosen = completed(text_of(recipe), data, text_of(kept) if begun else None, changes)
    wanted = read(recipe, unsaid, text)
    before = read(kept, unsaid) if begun else None
    if before is not None and not wanted.extends(before):
        raise RecipeError(
            f"{folder} holds a study with another recipe: take another folder, or go on with {kept}; a study can only "
            "grow, by losses, values, replicates, seeds, folds or data sets"
        )
    choices = _still_true(folder, wanted) if before else []
    if before not in (None, wanted):
        count = len({*wanted.runs(), *wanted.tuning()} - {*before.runs(), *before.tuning()})
        print(f"{folder} holds a study with another recipe, which this one extends by {count} runs", file=sys.stderr)
    if chosen:
        print(chosen, file=sys.stderr)
    where: dict[str, Any] = {"data": str(data.resolve()), "cache": str(cache.resolve())}
    where |= {name: value for name, value in asdict(unsaid).items() if value is not None}
    more = {"skip_errors": skip_errors, "code": foreign.folders(text)}
    write_text(place, json.dumps(where | {name: value for name, value in more.items() if value}) + "\n")
    _write_choices(folder, choices)
    if before != wanted:
        write_text(kept, text)
    return open_study(folder)


def portable(folder: Path, out: Path) -> dict[str, Any]:
    """What the study.json of a study says, as it is to be said in `out` on any machine: without folders of this one."""
    where = read_where(folder / "study.json")
    said: dict[str, Any] = {"data": "data", "cache": "runs/cache"}
    said |= {name: value for name, value in asdict(_unsaid(folder, where)).items() if value is not None}
    said |= {"skip_errors": True} if where.get("skip_errors") else {}
    code = [os.path.relpath(folder / each, out) for each in where.get("code", ())]
    return said | ({"code": code} if code else {})


def open_study(folder: Path, weights: CountingWeights | None = None, baseline: str | None = None) -> Study:
    """The study that a folder holds, with the recipe's weights and baseline or with others."""
    try:
        where = read_where(folder / "study.json")
    except OSError as error:
        raise DataError(f"{folder} holds no study: {error}") from error
    _look_in(folder, where)
    recipe = read(folder / "recipe.toml", _unsaid(folder, where))
    if baseline is not None and baseline not in recipe.losses:
        raise RecipeError(f"no loss of the study is called {baseline!r}; its losses: {' | '.join(recipe.losses)}")
    against = None if baseline == recipe.baseline else baseline
    if against is not None:
        recipe = replace(recipe, baselines=(against,))
    skip_errors, choices = where.get("skip_errors", False), tuple(read_choices(folder / CHOSEN))
    data, cache = Path(where["data"]), Path(where["cache"])
    return Study(folder, recipe, data, cache, weights or recipe.weights, against, skip_errors, choices)


def _look_in(folder: Path, where: Where | dict[str, Any]) -> None:
    """Modules that the recipe names are found where they were when the study began."""
    for place in where.get("code", ()):
        foreign.look_in(folder / place)


def _unsaid(folder: Path, where: Where | dict[str, Any]) -> Unsaid:
    """What the recipe of a study means where it says nothing: what its study.json says, or else what its runs were
    trained by, which was the paper's way when there was no other. So it means what it meant, and what is added to it is
    trained as the rest was."""
    if {"score", "weights", "nested"} <= where.keys():
        seeds = tuple(where["seeds"]) if "seeds" in where else None
        steps = where.get("optimizer", OPTIMIZER), where.get("rates", RATES)
        return Unsaid(where["score"], where["weights"], seeds, where["nested"], *steps)
    settings = _trained_by(folder)
    if settings is None:
        return replace(NEW, score=where.get("score", NEW.score))
    meant = NEW if "weights" in settings else BEGUN_BEFORE
    settings = BEFORE | settings
    return replace(meant, score=where.get("score", settings["score"]), weights=settings["weights"])


def _trained_by(folder: Path) -> dict[str, Any] | None:
    """The settings of any run that is there."""
    for name in ("settings.json", "result.json"):
        for path in folder.glob(f"runs/**/{name}"):
            return read_settings(path)
    finished = (each for each in read_record(folder / RECORD).values() if not each.error)
    return next((each.settings() for each in finished), None)


def _still_true(folder: Path, recipe: Recipe) -> list[Choice]:
    """The choices of a study that the recipe leaves as they are. One from other values is made anew, as long as no run
    was trained with it."""
    kept = []
    for each in read_choices(folder / CHOSEN):
        loss, listed = each["loss"], [variant.value for variant in recipe.losses[each["loss"]]]
        if set(listed) == each["validation"].keys() and set(recipe.tune.folds) == set(each["folds"]):
            kept.append(each)
            continue
        trained = Path(slug(each["dataset"]), slug(each["model"]), f"{slug(loss)}-{slug(each['value'])}")
        places = [*(folder / "runs" / trained).glob("fold-*/*")]
        places += [path for path in map(Path, read_record(folder / RECORD)) if path.parents[1] == trained]
        if any(path.name != "tuning" for path in places):
            raise RecipeError(
                f"{folder}: {loss} on {each['dataset']} with {each['model']} is trained with {each['value']}, which "
                f"was chosen among {'; '.join(each['validation'])} on folds {each['folds']}, and the recipe lists "
                f"{'; '.join(listed)} on folds {[*recipe.tune.folds]}: another value would make these runs another "
                "study; go on with the list as it was, or take another folder"
            )
    return kept


def _write_choices(folder: Path, choices: Sequence[Choice]) -> None:
    if choices or (folder / CHOSEN).exists():
        write_text(folder / CHOSEN, json.dumps(choices, indent=1) + "\n")
