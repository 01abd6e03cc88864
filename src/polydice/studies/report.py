"""The report of a study, written into its folder: tables, figures and a page.

Nothing in it depends on when, where or in how many parts the runs were made: a study that was stopped and gone on with
has the same report as one that was not, to the last byte; but for the minutes that more replicates would take, which
are those of the runs.
"""

import shlex
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from matplotlib import rc_context

from polydice import __version__
from polydice.data.usable import in_words
from polydice.studies import formats, plots, tables
from polydice.studies.comparison import Comparison, compare
from polydice.studies.families import colours
from polydice.studies.figures import PLAIN, drawn
from polydice.studies.page import Section, page
from polydice.studies.plateau import score_against
from polydice.studies.plots import Plot
from polydice.studies.pool import Pool
from polydice.studies.qualitative import NotHereError, qualitative
from polydice.studies.recipe import Planned
from polydice.studies.study import Finished, State, Study
from polydice.studies.style import save
from polydice.training import scoring
from polydice.training.checkpoint import write_text

WAITING: dict[State, str] = {"waiting": "not run", "no data": "not run, since the data set is not here"}


def write_report(study: Study, comparisons: Sequence[Comparison] | None = None) -> Path:
    """Writes the report of what is finished; returns the path of its page. `comparisons` are the study's, if known."""
    comparisons = compare(study) if comparisons is None else comparisons
    out, recipe = study.report_folder, study.recipe
    finished = list(study.finished())  # once: to read and check all results takes most of a report's time
    used = _used(finished)
    shared, sections = _drawn(study, comparisons, out / "figures")
    by_dataset = [tables.by_dataset(comparisons, model) for model in recipe.models] if len(recipe.datasets) > 1 else []
    own = [table for section in sections for table in section.tables]
    every, told, missing = [*by_dataset, *own], remarks(finished, recipe.outer), list(_missing(study, comparisons))

    listed = [*(f"trained on {line}" for line in used), *missing]
    told_weights = {"last": "weights of the last epoch", "best": "weights that were best on validation"}
    about = [] if study.weights == recipe.weights else [told_weights[study.weights]]
    about += [] if study.against is None else [f"compared with {study.against}"]
    title = f"{recipe.title} ({', '.join(about)})" if about else recipe.title
    write_text(out / "tables.csv", tables.csv_text(comparisons))
    write_text(out / "tables.tex", "\n".join(["% Takes \\usepackage{booktabs}.", *map(formats.latex, every)]))
    write_text(out / "tables.md", tables.document(title, recipe.about, comparisons, every, listed, told))
    content = page(
        title=title, about=recipe.about.strip(), facts=[*_facts(study), *used], shared=shared,
        by_dataset=by_dataset, sections=sections, remarks=told, missing=missing, notes=tables.notes(comparisons),
        versions=_versions(finished),
        commands=_commands(study),
        recipe=(study.folder / "recipe.toml").read_text(encoding="utf-8"),
    )  # fmt: skip
    write_text(out / "report.html", content)
    return out / "report.html"


def remarks(finished: Iterable[Finished], outer: str) -> list[str]:
    """What a reader must know of single runs before a mean is believed: a line for each loss, which names its runs."""
    folds: defaultdict[str, defaultdict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for each in finished:
        for what in scoring.remarks(each.result):
            folds[f"{_named(each.run)}: {what}"][each.run.replicate].append(str(each.run.fold))
    lines = []
    for what, by_replicate in folds.items():
        places = (f"{outer} {one}, fold {', '.join(those)}" for one, those in by_replicate.items())
        lines.append(f"{what} ({'; '.join(places)})")
    return lines


def _named(run: Planned) -> str:
    return f"{run.dataset}, {run.model}, {run.loss}{f', {run.value}' if run.value else ''}"


def _drawn(study: Study, comparisons: Sequence[Comparison], folder: Path) -> tuple[list[Plot], list[Section]]:
    """The figures, written into files: those that compare data sets, and those of each data set and network."""
    colour = colours(study.recipe)
    shutil.rmtree(folder, ignore_errors=True)  # an earlier report's that this one has not would be taken for its own
    folder.mkdir(parents=True)

    def written(some: Iterable[Plot | None]) -> list[Plot]:
        found = [plot for plot in some if plot]
        for plot in found:
            save(drawn(plot), folder / plot.name)
        return found

    sections = [
        Section(
            each,
            written(make(study, each, colour) for make in plots.EACH),
            _pictures(study, each, folder),
            written(_tuned(each, colour)),
        )
        for each in comparisons
    ]
    return written(plots.shared(study, comparisons, colour)), sections


def _tuned(comparison: Comparison, colour: Mapping[str, str]) -> Iterator[Plot | None]:
    """The score against each setting of which several values were tried."""
    for setting in dict.fromkeys(each.setting for each in comparison.responses):
        own = {each.loss: each for each in comparison.responses if each.setting == setting}
        tried, chosen = ({loss: getattr(each, name) for loss, each in own.items()} for name in ("tried", "chosen"))
        name, title = f"tuned-{setting}-{comparison.slug}", f"Score against {setting}: {comparison.title}"
        yield score_against(setting, tried, chosen, comparison.margin, colour, name=name, title=title)


def _pictures(study: Study, comparison: Comparison, folder: Path) -> Path | str:
    try:
        with rc_context(PLAIN):
            return save(qualitative(study, comparison), folder / f"cases-{comparison.slug}")[1]
    except NotHereError as reason:
        return str(reason)


def _commands(study: Study) -> str:
    options = "" if study.weights == study.recipe.weights else f" --weights {study.weights}"
    options += "" if study.against is None else f" --baseline={shlex.quote(study.against)}"
    more = "".join(f" {shlex.quote(part.folder.name)}" for part in study.parts[1:]) if isinstance(study, Pool) else ""
    return f"polydice study recipe.toml --data DATA --out DIR\npolydice report DIR{more}{options}"


def _facts(study: Study) -> Iterator[str]:
    states = Counter(map(study.state, study.runs))
    yield f"{states['done']} of {formats.count(len(study.runs), 'run')} done"
    if states["failed"]:
        yield f"{states['failed']} failed"
    yield formats.count(len(study.recipe.folds), "fold")
    yield formats.count(len(study.recipe.replicates), study.recipe.outer)
    yield f"baseline: {', '.join(study.recipe.baselines)}"
    yield f"score: {study.recipe.score}"
    yield f"weights: {study.weights}"


def _used(finished: Iterable[Finished]) -> list[str]:
    """What was trained on; several lines of a data set that has changed between its runs."""
    return sorted({f"{run.dataset}: {in_words(result['used'])}" for run, result in finished if "used" in result})


def _missing(study: Study, comparisons: Sequence[Comparison]) -> Iterator[str]:
    """A line for each run that failed, with why, and for each loss that has runs left."""
    for run in study.runs:
        if study.state(run) == "failed":
            why = study.error(run).strip().partition("\n")[0].replace(str(study.folder), "DIR")
            yield f"{_named(run)}, fold {run.fold}, {study.recipe.outer} {run.replicate}: failed: {why}"
    for each in comparisons:
        for row in each.rows:
            score, found = row.scores.get(each.score), row.differences.get(each.score)
            over = f"; its mean is over {formats.count(score.runs, 'run')}" if score else ""
            over += f", its difference over {formats.count(found.replicates * found.folds, 'pair')}" if found else ""
            for state, why in WAITING.items():
                if row.states[state]:
                    runs = f"{row.states[state]} of {formats.count(row.planned, 'run')}"
                    yield f"{each.title}, {row.loss}: {runs} {why}{over}"


def _versions(finished: Iterable[Finished]) -> str:
    """What trained the runs; several where a study went on elsewhere."""
    found: Counter[str] = Counter()
    for each in finished:
        versions = ", ".join(f"{name} {version}" for name, version in each.result["versions"].items())
        found[f"{versions}, on {each.result['device']}"] += 1
    told = "; ".join(f"{formats.count(count, 'run')} with {what}" for what, count in sorted(found.items()))
    return f"{told}. Report by polydice {__version__}." if told else f"Report by polydice {__version__}."
