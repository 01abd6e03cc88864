"""How forgiving a loss is: its score against a tuned setting, and the plateau of values about as good as the best.

All scores are Dice in percent.
"""

from collections.abc import Mapping, Sequence
from math import floor

from polydice.studies.answer import Tried, Value, are_names, ordered, plateau
from polydice.studies.formats import count
from polydice.studies.plots import Panel, Plot, Point, Series

WIDE = 8  # times the least value: from there on a setting is drawn by its logarithm
DEEP = 6  # margins below the best of the worst loss: what is lower would make all that matters look flat


def score_against(
    setting: str, tried: Mapping[str, Sequence[Tried]], chosen: Mapping[str, Value], margin: float,
    colour: Mapping[str, str], *, name: str, title: str,
) -> Plot | None:  # fmt: skip
    """A curve for each loss of which several values were tried, with its plateau; None where there is no such loss.

    `tried`, `chosen` and `colour` are by loss. Numbers lie on an axis, of logarithms if they differ much; names, as of
    optimisers, stand side by side.
    """
    curves = {loss: ordered(each) for loss, each in tried.items() if len(each) > 1}
    every = ordered([each for curve in curves.values() for each in curve])
    values = list(dict.fromkeys(each.value for each in every))
    if len(values) < 2:
        return None
    named = are_names(every)
    x = {value: float(place if named else value) for place, value in enumerate(values)}
    series = []
    for loss, curve in curves.items():
        points = [
            Point(x[value], mean, mean if low is None else low, mean if high is None else high)
            for value, mean, low, high in curve
        ]
        flat = tuple(x[value] for value in plateau(curve, margin))
        series.append(Series(loss, colour[loss], tuple(points), plateau=flat, chosen=x.get(chosen.get(loss, ""))))
    within = f"within {count(margin, 'point')} of its best"
    ticks = tuple(map(str, values)) if named else ()
    log = not named and min(x.values()) > 0 and max(x.values()) >= WIDE * min(x.values())
    cut = _cut(series, DEEP * margin)
    panel = Panel("", setting, "validation Dice, %", tuple(series), ticks, cut, log=log, plateaus=within)
    caption = (
        f"Mean and range of the runs with each {setting}{f', from {cut[0]:g} % on' if cut else ''}. A bar: the values "
        f"{within}, the chosen one a ring. The longer its bar, the more forgiving the loss."
    )
    return Plot(name, title, caption, "points", (panel,))


def _cut(series: Sequence[Series], depth: float) -> tuple[float, float] | None:
    """The range that is shown, where there are scores far below the best ones."""
    points = [point for each in series for point in each.points]
    low = floor(min(max(point.y for point in each.points) for each in series) - depth)
    high = max(point.high for point in points)
    return (low, high + 0.05 * (high - low)) if min(point.low for point in points) < low else None
