"""Draws the figures of this page and writes its tables, from the records and by the report's own functions:

    python results/fair/figures.py [DIR]    # else the folder of this file

DIR holds a folder for each study (recipe.toml, runs.jsonl.gz, chosen.json, study.json), nnunet/records.jsonl where
nnU-Net was trained, and README.md and DETAILS.md, in which the parts between <!-- NAME --> and <!-- end NAME --> are
replaced. Written are score-rate.png and forest.png. What is not there is left out; no number depends on this script:
check.py recomputes them without polydice.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import hypotheses
import nnunet
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import blended_transform_factory

from polydice.studies.answer import Response, Value
from polydice.studies.comparison import Comparison, Row, compare
from polydice.studies.families import colours
from polydice.studies.figures import GRID, PLAIN, drawn
from polydice.studies.formats import Cell, Table, count, markdown, signed
from polydice.studies.grids import for_mean
from polydice.studies.plateau import score_against
from polydice.studies.plots import Plot
from polydice.studies.study import open_study
from polydice.studies.style import FAINT, GREY, INK
from polydice.studies.verdicts import Verdict

STUDIES = ("hippocampus-sgd", "hippocampus-adamw", "acdc", "kvasir")  # that ask which loss, in the plan's order
PAGES = ("README.md", "DETAILS.md")
BASELINES = ("Dice", "Dice + cross-entropy")
SETS = {"hippocampus": "Hippocampus", "acdc": "ACDC", "kvasir-seg": "Kvasir-SEG"}
OPTIMISERS = {"sgd": "SGD", "adamw": "AdamW"}
LINE, LABELS, WIDTH = 0.25, 2.75, 9.6  # inches: of a line of the forest, of its labels, and of a figure
TRAINERS = {  # as the losses are called elsewhere
    "": "its own: Dice + cross-entropy",
    "PolyDice_epsilon0.5_detached": "PolyDice-1 detached",
    "PolyDice_epsilon0_follow4_detached": "Adaptive PolyDice-1",
}
RISING = "validation is best at the end"  # a warning that all studies have: the page gives it once
FARTHEST = 4  # margins from 0: what goes beyond has an arrow


class Kept(NamedTuple):
    """A study whose records are there."""

    title: str
    comparison: Comparison
    colour: Mapping[str, str]


class Line(NamedTuple):
    """Of the forest: what one loss differs by, in points."""

    label: str
    colour: str = INK
    differences: Mapping[str, tuple[float, float | None, float | None]] = {}  # by baseline: mean, low, high
    decided: Mapping[str, bool] = {}
    folds: tuple[float, ...] = ()  # nnU-Net's, one training of each
    heading: bool = False


def kept(folder: Path) -> dict[str, Kept]:
    found = {}
    for name in STUDIES:
        if (folder / name / "runs.jsonl.gz").is_file():
            study = open_study(folder / name)
            recipe = study.recipe
            (comparison,) = compare(study)
            place = comparison.dataset, comparison.model
            if any(recipe.is_tuned(loss) and not study.choice(*place, loss) for loss in recipe.losses):
                print(f"{name} is left out: not all of its rates are chosen", file=sys.stderr)
                continue
            dataset, optimiser = comparison.dataset, str(recipe.train["optimizer"])
            title = f"{SETS.get(dataset, dataset)}, {OPTIMISERS[optimiser]}"
            found[name] = Kept(title, comparison, colours(recipe))
    # One colour for a loss wherever it stands: that of the study with the most losses.
    every: dict[str, str] = {}
    for each in sorted(found.values(), key=lambda each: len(each.colour), reverse=True):
        every = {**each.colour, **every}
    return {name: each._replace(colour=every) for name, each in found.items()}


def score_rate(studies: Mapping[str, Kept]) -> Figure | None:
    """Score against rate, a panel for each study, with the plateaus below."""
    panels = []
    for each in studies.values():
        own = {found.loss: found for found in each.comparison.responses if found.setting == "rate"}
        tried, chosen = (
            {loss: found.tried for loss, found in own.items()},
            {loss: found.chosen for loss, found in own.items()},
        )
        plot = score_against("rate", tried, chosen, each.comparison.margin, each.colour, name="score-rate", title="")
        panels += [replace(panel, title=each.title) for panel in (plot.panels if plot else ())]
    if not panels:
        return None
    return drawn(Plot("score-rate", "Score against rate", "", "points", tuple(panels)))


def lines(studies: Mapping[str, Kept], trained: Mapping[tuple[str, int], float]) -> Iterator[Line]:
    for each in studies.values():
        compared = [row for row in each.comparison.rows if _differences(each.comparison, row)]
        if compared:
            yield Line(each.title, heading=True)
        for row in compared:
            decided = {name: verdict.sure for name, verdict in row.verdicts.items()}
            yield Line(row.loss, each.colour[row.loss], _differences(each.comparison, row), decided)
    others = differences(trained)
    if others:
        yield Line("Inside nnU-Net, Hippocampus", heading=True)
    for trainer, apart in others.items():
        yield Line(short(trainer), differences={BASELINES[1]: (fmean(apart), None, None)}, folds=tuple(apart))


def _differences(found: Comparison, row: Row) -> dict[str, tuple[float, float | None, float | None]]:
    told = {}
    for name, paired in row.compared.items():
        if found.score in paired.differences:
            apart = paired.differences[found.score]
            low, high = apart.interval or (None, None)
            told[name] = (100 * apart.mean, low and 100 * low, high and 100 * high)
    return told


def differences(trained: Mapping[tuple[str, int], float]) -> dict[str, list[float]]:
    """Of each trainer but the first, nnU-Net's own, fold by fold."""
    first, *others = dict.fromkeys(trainer for trainer, _ in trained) or [""]
    folds = [fold for trainer, fold in trained if trainer == first]
    return {trainer: [trained[trainer, fold] - trained[first, fold] for fold in folds] for trainer in others}


def whole(trained: Mapping[tuple[str, int], float]) -> dict[tuple[str, int], float]:
    """Of the folds that all trainers have."""
    trainers = {trainer for trainer, _ in trained}
    return {run: value for run, value in trained.items() if all((each, run[1]) in trained for each in trainers)}


def short(trainer: str) -> str:
    name = trainer.removeprefix(nnunet.OWN)
    return TRAINERS.get(name, name)


def runs(found: Comparison) -> str:
    """Which replicates and folds the means are over, and the differences, where these are others."""
    own = [[len(set(axis)) for axis in zip(*for_mean(row.counting), strict=True)] for row in found.rows if row.counting]
    paired = [told.differences.get(found.score) for row in found.rows for told in row.compared.values()]
    means = dict.fromkeys(_shape(*each) for each in own)
    apart = dict.fromkeys(_shape(each.replicates, each.folds) for each in paired if each)
    said = f"Over {' or '.join(means)}"
    return said if apart.keys() <= means.keys() else f"{said}; differences over {' or '.join(apart)}"


def _shape(replicates: int, folds: int) -> str:
    return f"{count(replicates, 'replicate')} of {count(folds, 'fold')}"


def forest(studies: Mapping[str, Kept], trained: Mapping[tuple[str, int], float]) -> Figure | None:
    """The difference of each loss to both baselines; filled where there is a verdict."""
    every = list(lines(studies, trained))
    if not every:
        return None
    margin = next((each.comparison.margin for each in studies.values()), 1.0)
    ends = [abs(end) for each in every for told in each.differences.values() for end in told if end is not None]
    ends += [abs(end) for each in every for end in each.folds]
    edge = min(FARTHEST * margin, 1.1 * max(1.5 * margin, *ends))
    height = LINE * len(every) + 0.7
    with rc_context(PLAIN):
        figure = Figure(figsize=(WIDTH, height))
        figure.subplots_adjust(left=LABELS / WIDTH, right=0.985, bottom=0.6 / height, top=1 - 0.1 / height, wspace=0.08)
        pair = figure.subplots(1, 2, sharex=True, sharey=True)
        for axes, baseline in zip(pair, BASELINES, strict=True):
            _side(axes, every, baseline, margin, edge)
        beside = blended_transform_factory(figure.transFigure, pair[0].transData)
        for place, each in enumerate(every):
            look = {"weight": "bold"} if each.heading else {}
            pair[0].text(0.01 if each.heading else 0.025, place, each.label, transform=beside, va="center", **look)
        pair[0].set(ylim=(len(every) - 0.4, -0.6), xlim=(-edge, edge), yticks=[])
    return figure


def _side(axes: Axes, every: list[Line], baseline: str, margin: float, edge: float) -> None:
    axes.axvspan(-margin, margin, color=FAINT, linewidth=0)
    axes.axvline(0, color=GREY, linewidth=1)
    for place, each in enumerate(every):
        if baseline not in each.differences:
            continue
        mean, low, high = each.differences[baseline]
        axes.plot(each.folds, [place] * len(each.folds), "|", markersize=11, color=GREY, zorder=3)  # above the mean
        if low is not None and high is not None:
            axes.hlines(place, low, high, color=each.colour, linewidth=1.8)
        for end, sign, mark in ((low, -1, "<"), (high, 1, ">"), (mean, -1, "<"), (mean, 1, ">")):
            if end is not None and sign * end > edge:
                axes.plot(sign * edge, place, mark, markersize=7, color=each.colour, clip_on=False)
        face = each.colour if each.decided.get(baseline) else "white"
        axes.plot(mean, place, "D" if each.folds else "o", markersize=6, color=each.colour, markerfacecolor=face)
    axes.set_xlabel(f"points above {baseline}")
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x", color=GRID, linewidth=0.8)


def results(each: Kept) -> Table:
    """Loss, best rate, score, differences, plateau."""
    found = each.comparison
    rates = {told.loss: told for told in found.responses if told.setting == "rate"}
    listed = sorted({each.value for told in rates.values() for each in told.tried})
    ends = listed[:1] + listed[-1:]  # with a longer list a plateau that reaches them might be longer
    best = found.highest if all(row.scores for row in found.rows) else ""
    if not any(row.counting for row in found.rows):  # the rates are all there is
        chosen = [(row.loss, _rate(rates.get(row.loss)), _plateau(rates.get(row.loss), ends)) for row in found.rows]
        return Table(each.title, ("loss", "best rate", "plateau"), tuple(tuple(map(Cell, row)) for row in chosen))
    rows = []
    for row in found.rows:
        score = row.scores.get(found.score)
        cells = [row.loss, _rate(rates.get(row.loss)), f"{100 * score.mean:.2f}" if score else "not run"]
        cells += [_told(row.verdicts.get(name)) for name in BASELINES]
        cells.append(_plateau(rates.get(row.loss), ends))
        rows.append(tuple(Cell(text, bold=row.loss == best and place == 2) for place, text in enumerate(cells)))
    header = ("loss", "best rate", "score", *(f"difference to {name}" for name in BASELINES), "plateau")
    return Table(each.title, header, tuple(rows))


def _rate(told: Response | None) -> str:
    if told is None:
        return "–"
    return f"{told.chosen:g}{' (at the end of the list)' if told.at_end else ''}"


def _plateau(told: Response | None, ends: Sequence[Value]) -> str:
    if told is None or told.span is None:
        return "–"
    return " … ".join(dict.fromkeys(f"{end:g}{'+' if end in ends else ''}" for end in told.span))


def _told(verdict: Verdict | None) -> str:
    if verdict is None:
        return ""
    interval = ""
    if verdict.low is not None and verdict.high is not None:
        interval = f" [{verdict.low:.2f}, {verdict.high:.2f}]".replace("-", "−")
    return f"{signed(verdict.mean)}{interval} {verdict.kind}"


def own_training(trained: Mapping[tuple[str, int], float]) -> Table:
    """nnU-Net's trainers: score, and what each fold differs by."""
    rows = []
    for trainer in dict.fromkeys(trainer for trainer, _ in trained):
        apart = differences(trained).get(trainer, [])
        scores = [value for (name, _), value in trained.items() if name == trainer]
        told = (signed(fmean(apart)), ", ".join(map(signed, apart))) if apart else ("", "")
        rows.append((Cell(short(trainer)), Cell(f"{fmean(scores):.2f}"), *map(Cell, told)))
    return Table(
        "Inside nnU-Net: Hippocampus", ("trainer", "score", "difference to its own", "fold by fold"), tuple(rows)
    )


def grafting(folder: Path) -> Table | None:
    """Direction and size of the gradient: score, and difference to Dice."""
    if not (folder / "graft" / "runs.jsonl.gz").is_file():
        return None
    study = open_study(folder / "graft")
    (found,) = compare(study)
    rows = []
    for row in found.rows:
        ((_, rate),) = study.recipe.losses[row.loss][0].settings
        cells = (row.loss, f"{rate:g}", f"{100 * row.scores[found.score].mean:.2f}", _told(row.verdicts.get("Dice")))
        rows.append(tuple(map(Cell, cells)))
    return Table("", ("gradient", "rate", "score", "difference to Dice"), tuple(rows))


def parts(studies: Mapping[str, Kept], trained: Mapping[tuple[str, int], float]) -> dict[str, str]:
    """The parts of README.md, by their marks."""
    blocks = []
    for each in studies.values():
        finished = any(row.counting for row in each.comparison.rows)
        about = f"{runs(each.comparison)}." if finished else "Rates are chosen; the comparison is not run."
        own = [told for told in each.comparison.warnings if RISING not in told]
        blocks.append("\n".join([markdown(results(each)), " ".join([about, *own])]))
    if trained:
        folds = count(len({fold for _, fold in trained}), "fold")
        blocks.append(f"{markdown(own_training(trained))}\nOver {folds}, one training of each: there is no verdict.")
    titles = {name: each.title for name, each in studies.items()}
    came_to = markdown(hypotheses.table({name: each.comparison for name, each in studies.items()}, titles))
    return {"tables": "\n\n".join(blocks), "hypotheses": came_to.partition("\n\n")[2].strip()}


def fill(pages: Sequence[Path], found: Mapping[str, str]) -> None:
    """Writes each part between its marks, which one of the pages has."""
    texts = {page: page.read_text(encoding="utf-8") for page in pages}
    for name, text in found.items():
        marks = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
        marked = [page for page, written in texts.items() for _ in marks.findall(written)]
        if len(marked) != 1:
            sys.exit(f"{' or '.join(PAGES)} needs <!-- {name} --> and <!-- end {name} -->, once")
        texts[marked[0]] = marks.sub(lambda match, text=text: f"{match[1]}\n{text}\n\n{match[2]}", texts[marked[0]])
    for page, written in texts.items():
        page.write_text(written, encoding="utf-8")
        print(page)


def main(folder: Path) -> None:
    studies, records = kept(folder), nnunet.recorded(folder / "nnunet" / "records.jsonl")
    trained = whole(nnunet.scored(records, "dice_foreground"))
    for name, figure in (("score-rate", score_rate(studies)), ("forest", forest(studies, trained))):
        if figure is not None:
            with rc_context(PLAIN):
                figure.savefig(folder / f"{name}.png", metadata={"Software": None}, dpi=200)
            print(folder / f"{name}.png")
    found, grafted = parts(studies, trained), grafting(folder)
    if grafted:
        found["grafting"] = markdown(grafted).partition("\n\n")[2].strip()
    pages = [folder / name for name in PAGES if (folder / name).exists()]
    if pages:
        fill(pages, found)
    else:
        print("\n\n".join(found.values()))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
