"""What a report plots, as numbers: `figures` draws it, for files and for the page.

Every Dice is in percent. Losses and values of a parameter are compared over the same runs, and the error bars are
standard errors after the differences between these runs, which all of them share, are taken out.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, NamedTuple

import numpy as np

from polydice.studies.comparison import Comparison
from polydice.studies.families import SYMBOLS, line_title, lines, member
from polydice.studies.grids import Runs
from polydice.studies.outcomes import Score
from polydice.studies.recipe import Variant, slug
from polydice.studies.study import Finished, Study
from polydice.training.metrics import STRATA
from polydice.training.scoring import validation

MOST_RANGES = 6  # more of them lie on top of each other and hide the means
FAR = 4  # times as far from 0 as the median: at the scale of such an interval all others would look like points


class Point(NamedTuple):
    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True)
class Series:
    name: str
    colour: str
    points: tuple[Point, ...]
    dashed: bool = False
    plateau: tuple[float, ...] = ()  # the x that do about as well as the best
    chosen: float | None = None  # the x that was chosen


@dataclass(frozen=True)
class Panel:
    title: str
    x: str  # what the axes show
    y: str
    series: tuple[Series, ...]
    ticks: tuple[str, ...] = ()  # the names of x = 0, 1, ...; none where x is a number
    cut: tuple[float, float] | None = None  # the range that is shown, where a loss far from the others goes beyond it
    log: bool = False  # x is drawn by its logarithm
    plateaus: str = ""  # what a plateau is; it is drawn below the curves, where there is any


@dataclass(frozen=True)
class Plot:
    name: str  # of its files
    title: str
    caption: str
    # Lines with bands, lines with error bars, points alone, or bars that lie beside a line at 0.
    kind: Literal["curves", "points", "scatter", "intervals"]
    panels: tuple[Panel, ...]

    @property
    def legend(self) -> dict[str, Series]:
        """Each name once, though it stands in several panels, and the first series that has it."""
        found: dict[str, Series] = {}
        for series in (series for panel in self.panels for series in panel.series):
            found.setdefault(series.name, series)
        return found


def intervals(comparisons: Sequence[Comparison], colour: Mapping[str, str]) -> Plot | None:
    """The difference of each loss to the baseline, with its 95 % interval: a panel for each data set and network."""
    panels = []
    for each in comparisons:
        found = {row.loss: row.differences[each.score] for row in each.rows if each.score in row.differences}
        spans = {loss: (apart, apart.interval) for loss, apart in found.items() if apart.interval}
        series = []
        for place, (loss, (apart, (low, high))) in enumerate(spans.items()):
            series.append(Series(loss, colour[loss], (Point(place, 100 * apart.mean, 100 * low, 100 * high),)))
        if series:
            axis = f"percentage points above {each.baseline}"
            names = tuple(spans)
            panels.append(Panel(each.title, "", axis, tuple(series), names, _cut([one.points[0] for one in series])))
    caption = "An interval that holds 0 means that these runs cannot tell the loss from the baseline."
    if any(panel.cut for panel in panels):
        caption += " One with an arrow goes on, beyond the edge."
    return Plot("intervals", "Difference to the baseline", caption, "intervals", tuple(panels)) if panels else None


def _cut(points: Sequence[Point]) -> tuple[float, float] | None:
    """The range of the other intervals, and a little more, if some reach much farther than most. None if no interval
    does, and if there are only two: nobody can say which of them is the odd one."""
    most = FAR * median(max(-point.low, point.high) for point in points)
    near = [point for point in points if max(-point.low, point.high) <= most]
    if most == 0 or len(near) == len(points):
        return None
    low, high = min(0, *(point.low for point in near)), max(0, *(point.high for point in near))
    room = 0.2 * (high - low)  # for the arrow and its number
    return low - room, high + room


def _view(series: Sequence[Series]) -> tuple[float, float] | None:
    """The range of most series, where others, each as a whole, are so far away that no difference could be seen."""
    levels = [_mean([point.y for point in each.points]) for each in series]
    away = [abs(level - median(levels)) for level in levels]
    near = [each for each, distance in zip(series, away, strict=True) if distance <= FAR * median(away)]
    (low, high), (lowest, highest) = _ends(near), _ends(series)
    if low == high or highest - lowest < FAR * (high - low):
        return None
    return low - 0.1 * (high - low), high + 0.1 * (high - low)


def _ends(series: Sequence[Series]) -> tuple[float, float]:
    points = [point for each in series for point in each.points]
    return min(point.low for point in points), max(point.high for point in points)


def training(study: Study, comparison: Comparison, colour: Mapping[str, str]) -> Plot | None:
    """Loss and validation Dice against the epoch: the mean of the runs that count and, of few losses, their range."""
    epochs = {
        row.loss: [line for each in row.counting.values() for line in study.history(each.run)]
        for row in comparison.rows
    }
    ranges = len(epochs) <= MOST_RANGES
    panels = []
    for key, factor, title in (("loss", 1, "Training loss"), (comparison.score, 100, "Validation Dice, %")):
        series = []
        for loss, rows in epochs.items():
            by_epoch: defaultdict[int, list[float]] = defaultdict(list)
            for row in rows:
                if row.get(key) is not None:
                    by_epoch[row["epoch"]].append(factor * row[key])
            points = [_range(epoch, seen if ranges else [_mean(seen)]) for epoch, seen in sorted(by_epoch.items())]
            if len(points) > 1:
                series.append(Series(loss, colour[loss], tuple(points)))
        if series:
            panels.append(Panel(title, "epoch", "", tuple(series)))
    shown = "Mean of the runs, and their range." if ranges else "Mean of the runs."
    caption = f"{shown} The losses measure different things: only their course compares."
    name = f"training-{comparison.slug}"
    return Plot(name, f"Training: {comparison.title}", caption, "curves", tuple(panels)) if panels else None


def epochs(study: Study, comparison: Comparison, colour: Mapping[str, str]) -> Plot | None:
    """Test Dice against the epoch that validation chose, a point for each run."""
    by_fold: defaultdict[int, list[float]] = defaultdict(list)
    for row in comparison.rows:
        for each in row.counting.values():
            by_fold[each.run.fold].append(_test_dice(each, comparison.score))
    usual = {fold: _mean(scores) for fold, scores in by_fold.items()}
    series = []
    for row in comparison.rows:
        points = []
        for each in row.counting.values():
            above = _test_dice(each, comparison.score) - usual[each.run.fold]
            points.append(_bar(each.result["best_epoch"], above, 0))
        if points:
            series.append(Series(row.loss, colour[row.loss], tuple(sorted(points))))
    if len({point.x for each in series for point in each.points}) < 2:
        return None
    axis = "points of Dice above the fold's mean"
    panel = Panel("", "epoch that was chosen", axis, tuple(series), cut=_view(series))
    caption = (
        "A point is a run: the epoch whose weights did best on validation, and its test Dice less the mean of all runs "
        "of its fold. A slope says that runs differ by when validation was at its highest, whatever the loss."
    )
    return Plot(f"epochs-{comparison.slug}", f"Chosen epoch: {comparison.title}", caption, "scatter", (panel,))


def sizes(study: Study, comparison: Comparison, colour: Mapping[str, str]) -> Plot | None:
    """Dice of a case against how much foreground it has, by the quarters of the test cases."""
    shown = [row for row in comparison.rows if row.counting]
    pairs = _shared(row.counting for row in shown) if shown else []
    points: defaultdict[str, list[Point]] = defaultdict(list)
    for place, stratum in enumerate(STRATA):
        scores = [[_stratum_dice(row.counting[pair], stratum) for row in shown] for pair in pairs]
        scores = [run for run in scores if not any(map(math.isnan, run))]
        for row, (mean, error) in zip(shown, _compared(scores) if scores else (), strict=False):
            points[row.loss].append(_bar(place, mean, error))
    if not points:
        return None
    series = tuple(Series(loss, colour[loss], tuple(each)) for loss, each in points.items())
    panel = Panel("", "foreground of the case", "Dice per case, %", series, STRATA, _view(series))
    caption = (
        "The test cases of a fold in quarters, by their share of foreground. Mean over the folds and "
        f"{study.recipe.outer}s that all of these losses have, ± standard error as of independent runs: what a "
        f"{study.recipe.outer} does to all folds is not in it."
    )
    title = f"Dice against foreground size: {comparison.title}"
    return Plot(f"sizes-{comparison.slug}", title, caption, "points", (panel,))


def effects(study: Study, comparisons: Sequence[Comparison], colour: Mapping[str, str]) -> Iterator[Plot]:
    """Test and validation Dice against each parameter that has several values, as in the paper's last two figures."""
    every: defaultdict[tuple[str, str], dict[Variant, Runs]] = defaultdict(lambda: defaultdict(dict))
    for each in study.finished():
        run, tested = each.run, each.result["test"][study.recipe.score]
        if tested is not None and validation(each.result) is not None:
            found = every[run.dataset, run.model][Variant(run.loss, "", run.expression)]
            pair = run.replicate, run.fold
            # It may be trained with several settings, such as rates: the run that is best on validation counts.
            found[pair] = max(found.get(pair, each), each, key=lambda one: validation(one.result) or 0)
    for parameter, by_line in lines(study.recipe).items():
        for model in study.recipe.models:
            panels = [
                _effect(each, parameter, by_line, every[each.dataset, model], colour)
                for each in comparisons
                if each.model == model
            ]
            caption = (
                f"Mean over the folds and {study.recipe.outer}s in which every value is trained, ± standard error. "
                "Dashed: the same on the validation part."
            )
            if any(panels):
                name, title = f"effect-{parameter}-{slug(model)}", f"Effect of {SYMBOLS[parameter]}: {model}"
                yield Plot(name, title, caption, "points", tuple(panel for panel in panels if panel))


def _effect(
    comparison: Comparison, parameter: str, by_line: Mapping[str, Sequence[Variant]], runs: Mapping[Variant, Runs],
    colour: Mapping[str, str],
) -> Panel | None:  # fmt: skip
    variants = [variant for line in by_line.values() for variant in line]
    pairs = _shared(runs.get(variant, {}) for variant in variants)
    if not pairs:
        return None
    tested = [[_test_dice(runs[variant][pair], comparison.score) for variant in variants] for pair in pairs]
    seen = [[100 * (validation(runs[variant][pair].result) or 0) for variant in variants] for pair in pairs]
    test, validated = (dict(zip(variants, _compared(scores), strict=True)) for scores in (tested, seen))

    values = sorted({member(variant).value for variant in variants})
    named = parameter == "order"  # 1, 2, 3 and 10 stand side by side
    places = {value: float(number) if named else value for number, value in enumerate(values)}
    series = []
    for line in by_line.values():
        name, tint = line_title(line), colour[line[len(line) // 2].loss]
        at = {variant: places[member(variant).value] for variant in line}
        series.append(Series(name, tint, tuple(_bar(at[variant], *test[variant]) for variant in line)))
        points = tuple(_bar(at[variant], validated[variant][0], 0) for variant in line)
        series.append(Series(f"{name}, validation", tint, points, dashed=True))
    baseline = next(row.counting for row in comparison.rows if row.loss == comparison.baseline)
    own = comparison.baseline in {variant.loss for variant in variants}  # then it is one of the lines
    if set(pairs) <= set(baseline) and not own:
        level = _mean([_test_dice(baseline[pair], comparison.score) for pair in pairs])
        points = tuple(_bar(place, level, 0) for place in places.values())
        series.append(Series(comparison.baseline, colour[comparison.baseline], points))
    ticks = tuple(f"{value:g}" for value in values) if named else ()
    return Panel(comparison.dataset, SYMBOLS[parameter], "Dice, %", tuple(series), ticks)


# The figures of a data set and network, in the order of the page.
EACH: tuple[Callable[[Study, Comparison, Mapping[str, str]], Plot | None], ...] = (training, epochs, sizes)


def shared(study: Study, comparisons: Sequence[Comparison], colour: Mapping[str, str]) -> list[Plot | None]:
    """The figures that compare data sets."""
    return [intervals(comparisons, colour), *effects(study, comparisons, colour)]


def _range(x: float, values: Sequence[float]) -> Point:
    return Point(x, _mean(values), min(values), max(values))


def _bar(x: float, mean: float, error: float) -> Point:
    return Point(x, mean, mean - error, mean + error)


def _compared(scores: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """Of scores `[runs, columns]` the mean of each column, and its standard error without the runs' own differences;
    0 where a single run or column cannot tell it."""
    table = np.array(scores)
    runs, columns = table.shape
    centred = table - table.mean(axis=1, keepdims=True)
    errors = np.zeros(columns)
    if runs > 1 and columns > 1:
        errors = centred.std(axis=0, ddof=1) / math.sqrt(runs)
        errors *= math.sqrt(columns / (columns - 1))  # the part of the variance that centring has taken
    return list(zip(table.mean(axis=0).tolist(), errors.tolist(), strict=True))


def _shared(runs: Iterable[Runs]) -> list[tuple[int, int]]:
    """The seeds and folds that all have."""
    return sorted(set.intersection(*(set(each) for each in runs)))


def _test_dice(each: Finished, score: Score) -> float:
    return 100 * float(each.result["test"][score])


def _stratum_dice(each: Finished, stratum: str) -> float:
    found = each.result["test"]["strata"].get(stratum, {}).get("dice_case")
    return math.nan if found is None else 100 * found


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
