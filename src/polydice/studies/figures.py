"""Plots drawn with matplotlib, for files."""

import math
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from polydice.studies.formats import signed
from polydice.studies.plots import Panel, Plot, Series
from polydice.studies.style import GREY, RC

PLAIN: dict[Any, Any] = RC | {"text.parse_math": False}  # a name with two $ in it is not a formula
WIDTH, HEIGHT, ROW = 4.6, 3.4, 0.42  # inches of a panel, and of a line of an interval plot
BESIDE, LETTER = 3.0, 0.075  # inches that an interval plot keeps beside its names, and of a letter of a name
APART = 0.04  # between series over the same name, in the distance of two names


def drawn(plot: Plot) -> Figure:
    """The figure: its panels in rows of two, with one legend below."""
    columns = min(2, len(plot.panels))
    rows = math.ceil(len(plot.panels) / columns)
    width = columns * (max(map(_width, plot.panels)) if plot.kind == "intervals" else WIDTH) + 0.4
    names = (
        [] if plot.kind == "intervals" else dict.fromkeys(each.name for panel in plot.panels for each in panel.series)
    )
    in_line = max(1, int(width / (0.75 + LETTER * max(map(len, names), default=1))))
    legend_lines = math.ceil(len(names) / in_line)
    ticks = max(len(panel.ticks) for panel in plot.panels)
    height = rows * (ROW * ticks + 1.1 if plot.kind == "intervals" else HEIGHT) + 0.5 + 0.2 * legend_lines
    with rc_context(PLAIN):
        figure = Figure(figsize=(width, height), layout="constrained")
        figure.suptitle(plot.title, x=0.01, ha="left", fontsize=12)
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes, panel in zip(grid, plot.panels, strict=False):
            if plot.kind == "intervals":
                _intervals(axes, panel)
            else:
                _lines(axes, panel, plot.kind)
        for axes in grid[len(plot.panels) :]:
            axes.set_visible(False)
        if names:
            handles, labels = _legend(grid)
            even = math.ceil(len(names) / legend_lines)
            figure.legend(handles, labels, loc="outside lower center", ncols=even, fontsize=9, handlelength=3)
    return figure


def _width(panel: Panel) -> float:
    """Inches of an interval panel: its names stand to the left of it, its title above and what it measures below."""
    beside = max(BESIDE, LETTER * len(panel.y), 1.1 * LETTER * len(panel.title))
    return max(WIDTH, LETTER * max(map(len, panel.ticks)) + beside)


def _lines(axes: Axes, panel: Panel, kind: str) -> None:
    for number, series in enumerate(panel.series):
        aside = APART * (number - (len(panel.series) - 1) / 2) if panel.ticks else 0  # bars do not hide each other
        places, y, low, high = zip(*series.points, strict=True)
        x = [place + aside for place in places]
        line = "none" if kind == "scatter" else "--" if series.dashed else "-"
        mark = "" if kind == "curves" else "o"
        axes.plot(
            x, y, linestyle=line, marker=mark, label=series.name, color=series.colour, linewidth=1.6, markersize=4
        )
        if kind == "curves":
            axes.fill_between(x, low, high, color=series.colour, alpha=0.12, linewidth=0)
        elif low != high:
            axes.errorbar(x, y, _reach(series), fmt="none", color=series.colour, capsize=2, linewidth=1.2)
    if panel.ticks:
        axes.set_xticks(range(len(panel.ticks)), panel.ticks)
        axes.margins(x=0.08)
    elif kind in ("curves", "scatter"):  # over epochs
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)
    axes.grid(axis="y", color="#E6E6E6", linewidth=0.8)


def _intervals(axes: Axes, panel: Panel) -> None:
    axes.axvline(0, color=GREY, linewidth=1)
    if panel.cut:
        axes.set_xlim(panel.cut)
    for series in panel.series:
        place, value = series.points[0].x, series.points[0].y
        axes.errorbar(value, place, xerr=_reach(series), fmt="o", color=series.colour, markersize=6, capsize=4)
        if panel.cut:
            _arrows(axes, series, panel.cut)
    axes.set_yticks(range(len(panel.ticks)), panel.ticks)
    axes.set_ylim(len(panel.ticks) - 0.5, -0.5)
    # Left alone they would be as many as fit, and the layout, in fitting them, would make room for one more and cut it.
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.set(title=panel.title, xlabel=panel.y)
    axes.grid(axis="x", color="#E6E6E6", linewidth=0.8)


def _arrows(axes: Axes, series: Series, cut: tuple[float, float]) -> None:
    """Where the interval of the series goes on beyond the edges, and its value, if that is beyond, too."""
    (place, value, low, high), (first, last) = series.points[0], cut
    for end, edge, sign, mark, side in ((low, first, -1, "<", "left"), (high, last, 1, ">", "right")):
        if sign * end > sign * edge:
            axes.plot(edge, place, mark, color=series.colour, markersize=8, clip_on=False)
        if sign * value > sign * edge:
            away = (-10 * sign, 7)
            axes.annotate(signed(value), (edge, place), away, textcoords="offset points", ha=side, fontsize=9)


def _reach(series: Series) -> list[list[float]]:
    """How far the bars go down and up from the points."""
    below = [point.y - point.low for point in series.points]
    return [below, [point.high - point.y for point in series.points]]


def _legend(grid: Any) -> tuple[list[Any], list[str]]:
    """Each name once, though it stands in several panels."""
    found: dict[str, Any] = {}
    for axes in grid:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return list(found.values()), list(found)
