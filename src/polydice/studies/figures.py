"""Plots drawn with matplotlib: whole, for files, and panel by panel for the page, where a script makes them answer."""

import io
import math
import re
from collections import defaultdict
from collections.abc import Callable
from textwrap import fill
from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from polydice.studies.formats import Cell, Table, signed
from polydice.studies.plots import Panel, Plot, Point, Series
from polydice.studies.style import GREY, RC

GRID = "#E6E6E6"
PLAIN: dict[Any, Any] = RC | {"text.parse_math": False}  # a name with two $ in it is not a formula
PLAIN |= dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), GREY)
WIDTH, HEIGHT, ROW = 4.6, 3.1, 0.42  # inches of a panel, and of a line of an interval plot
LETTER, LINE = 0.075, 52  # inches of a letter of a legend, and letters that fit into the width of a panel
ROUND = [1, 2, 5, 10]  # steps between ticks, and ten, a hundred, a tenth ... times these
LANE = 0.07  # between two plateaus, in the height of the curves
APART = 0.04  # between series over the same name, in the distance of two names
MANY = 12  # series, that colours tell apart; more have signs of their own, too
MARKS = {"o": "●", "s": "■", "^": "▲", "D": "◆", "v": "▼", "P": "✚", "X": "✖"}
DASHES = {"-": "——", "--": "– –", ":": "···", "-.": "–·–"}
PAPER = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}  # behind a text that lines would cross
# The colours of the page, which can be dark, for what is not in the colour of a loss; black must be seen best.
THEME = {"#000000": "var(--ink)", GREY: "var(--soft)", GRID.lower(): "var(--line)", "#ffffff": "var(--paper)"}


class Place(NamedTuple):
    """What a pointer finds at a share of the drawing's width or, of intervals, of its height."""

    share: float
    title: str
    values: list[tuple[int, str]]  # and the number of the series of each


class Drawing(NamedTuple):
    """A panel for the page: the parts of a series have its number among the plot's names as `data-series`."""

    title: str
    svg: str
    places: list[Place]


def drawn(plot: Plot) -> Figure:
    """The figure: its panels in rows of two, with one legend below."""
    columns = min(2, len(plot.panels))
    rows = math.ceil(len(plot.panels) / columns)
    names = [] if plot.kind == "intervals" else list(plot.legend)
    width = columns * WIDTH + 0.4
    in_line = max(1, int(width / (0.75 + LETTER * max(map(len, names), default=1))))
    legend_lines = math.ceil(len(names) / in_line)
    height = rows * (0.3 + max(_height(plot, panel) for panel in plot.panels)) + 0.5 + 0.2 * legend_lines
    with rc_context(PLAIN):
        figure = Figure(figsize=(width, height), layout="constrained")
        figure.suptitle(plot.title, x=0.01, ha="left", fontsize=12)
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes, panel in zip(grid, plot.panels, strict=False):
            KINDS[plot.kind](axes, plot, panel)
            axes.set_title(fill(panel.title, LINE))
        for axes in grid[len(plot.panels) :]:
            axes.set_visible(False)
        if names:
            handles: dict[object, Artist] = {}
            for axes in grid:
                handles |= {handle.get_label(): handle for handle in axes.get_legend_handles_labels()[0]}
            even = math.ceil(len(names) / legend_lines)
            figure.legend(
                list(handles.values()), names, loc="outside lower center", ncols=even, fontsize=9, handlelength=3
            )
    return figure


def drawings(plot: Plot) -> list[Drawing]:
    """The panels, each as an SVG that is a part of the page: it has the page's colours and fonts, and no title."""
    found = []
    for number, panel in enumerate(plot.panels):
        text = io.StringIO()
        # The names inside the file are made from the salt: panels that stand on one page must not share them.
        with rc_context(PLAIN | {"svg.fonttype": "none", "svg.hashsalt": f"{plot.name} {number}"}):
            figure = Figure(figsize=(WIDTH, _height(plot, panel)), layout="constrained")
            axes = figure.subplots()
            KINDS[plot.kind](axes, plot, panel)
            figure.savefig(text, format="svg", metadata={"Date": None}, transparent=True)
        found.append(Drawing(panel.title, _inline(text.getvalue()), _places(axes, plot, panel)))
    return found


def _height(plot: Plot, panel: Panel) -> float:
    if plot.kind == "intervals":
        return ROW * len(panel.ticks) + 0.6
    lanes = max(0, len(panel.series) - 4) if panel.plateaus else 0  # that would leave the curves too little
    return HEIGHT * (1 + LANE * lanes)


def _lines(axes: Axes, plot: Plot, panel: Panel) -> None:
    every = sorted({point.x for series in panel.series for point in series.points})
    for place, series in enumerate(panel.series):
        aside = APART * (place - (len(panel.series) - 1) / 2) if panel.ticks or panel.log else 0  # hide no other's bar
        places, y, low, high = zip(*series.points, strict=True)
        x = [at * (every[1] / every[0]) ** aside if panel.log else at + aside for at in places]
        line = "none" if plot.kind == "scatter" else "--" if series.dashed else "-"
        mark = "" if plot.kind == "curves" else "o"
        if own := _own(plot, series):
            line, mark = (own, "") if plot.kind == "curves" else (line, own)
        look = _look(plot, series)
        axes.plot(x, y, linestyle=line, marker=mark, label=series.name, linewidth=1.6, markersize=4, **look)
        if plot.kind == "curves":
            axes.fill_between(x, low, high, alpha=0.12, linewidth=0, **look)
        elif low != high:
            axes.vlines(x, low, high, linewidth=1.2, **look)
    if panel.ticks:
        axes.set_xticks(range(len(panel.ticks)), panel.ticks)
        axes.margins(x=0.08)
    elif panel.plateaus:
        axes.set_xscale("log" if panel.log else "linear")
        axes.set_xticks(every, [f"{x:g}".replace("-", "−") for x in every])
        axes.minorticks_off()
    else:
        epochs = plot.kind in ("curves", "scatter")
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=ROUND, integer=epochs))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=ROUND))
    if panel.cut:
        axes.set_ylim(panel.cut)
        _name_unseen(axes, plot, panel, panel.cut)
    if panel.plateaus:
        _plateaus(axes, plot, panel)
    axes.set(xlabel=panel.x, ylabel=panel.y)
    axes.grid(axis="y", color=GRID, linewidth=0.8)


def _name_unseen(axes: Axes, plot: Plot, panel: Panel, cut: tuple[float, float]) -> None:
    """At the edge beyond which they are, the series of which nothing is seen, and their range."""
    for edge, sign, mark in ((0, -1, "▼"), (1, 1, "▲")):
        beyond = [each for each in panel.series if all(sign * point.y > sign * cut[edge] for point in each.points)]
        for number, series in enumerate(beyond):
            ends = [pick(point.y for point in series.points) for pick in (min, max)]
            text = f"{mark} {series.name}: {' to '.join(map(_short, ends))}"
            away = (4, -sign * (4 + 12 * number))
            axes.annotate(
                text, (0, edge), away, xycoords="axes fraction", textcoords="offset points",
                va="top" if edge else "bottom", fontsize=9, bbox=PAPER, **_look(plot, series),
            )  # fmt: skip


def _plateaus(axes: Axes, plot: Plot, panel: Panel) -> None:
    """Below the curves a line for each series: its plateau, and a ring at what was chosen."""
    low, high = axes.get_ylim()
    ticks = [tick for tick in axes.get_yticks() if low <= tick <= high]
    step = LANE * (high - low)
    frame = Rectangle((0, low), 1, high - low, transform=axes.get_yaxis_transform())
    for curve in (*axes.lines, *axes.collections):
        curve.set_clip_path(frame)  # one that leaves the range shown does not cross the plateaus
    axes.axhline(low, color=GREY, linewidth=0.8)
    beside = axes.get_yaxis_transform()
    axes.text(0.01, low - 0.2 * step, panel.plateaus, transform=beside, va="top", fontsize=8, color=GREY)
    for place, series in enumerate(panel.series):
        look, height = _look(plot, series), low - step * (place + 2)
        line = "none" if panel.ticks else "-"  # there is nothing between two names
        heights = [height] * len(series.plateau)
        axes.plot(series.plateau, heights, linestyle=line, marker="o", linewidth=4, markersize=5, **look)
        if series.chosen is not None:
            axes.plot(series.chosen, height, "o", markersize=7, markerfacecolor="white", markeredgewidth=2, **look)
    axes.set_yticks(ticks)
    axes.set_ylim(low - step * (len(panel.series) + 1.6), high)


def _intervals(axes: Axes, plot: Plot, panel: Panel) -> None:
    """A line for each series: its name, and below that its interval. So a long name has room on a small screen too."""
    axes.axvline(0, color=GREY, linewidth=1)
    beside = axes.get_yaxis_transform()  # from the left edge, at the height of a line
    axes.set_ylim(len(panel.ticks) - 0.5, -0.6)
    if panel.cut:
        axes.set_xlim(panel.cut)
    for series in panel.series:
        place, value, low, high = series.points[0]
        look = _look(plot, series)
        axes.hlines(place, low, high, linewidth=1.8, **look)
        axes.plot(value, place, "o", markersize=6, **look)
        axes.text(0, place - 0.2, fill(series.name, LINE), transform=beside, va="bottom", fontsize=9, bbox=PAPER)
        if panel.cut:
            _arrows(axes, series, panel.cut, look)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=ROUND))
    axes.set_xlabel(fill(panel.y, LINE))
    axes.grid(axis="x", color=GRID, linewidth=0.8)


def _arrows(axes: Axes, series: Series, cut: tuple[float, float], look: dict[str, Any]) -> None:
    """Where the interval of the series goes on beyond the edges, and its value, if that is beyond, too."""
    (place, value, low, high), (first, last) = series.points[0], cut
    for end, edge, sign, mark, side in ((low, first, -1, "<", "left"), (high, last, 1, ">", "right")):
        if sign * end > sign * edge:
            axes.plot(edge, place, mark, markersize=8, clip_on=False, **look)
        if sign * value > sign * edge:
            axes.annotate(
                signed(value), (edge, place), (-9 * sign, 0), textcoords="offset points", ha=side, va="center",
                fontsize=9, bbox=PAPER,
            )  # fmt: skip


# How the panel of a kind of plot is drawn into its axes.
KINDS: dict[str, Callable[[Axes, Plot, Panel], None]] = {
    "curves": _lines,
    "points": _lines,
    "scatter": _lines,
    "intervals": _intervals,
}


def _own(plot: Plot, series: Series) -> str:
    """How the lines of curves are dashed, or what points look like, where there are too many colours."""
    signs = list(DASHES if plot.kind == "curves" else MARKS)
    return signs[list(plot.legend).index(series.name) % len(signs)] if len(plot.legend) > MANY else ""


def sign(plot: Plot, series: Series) -> str:
    """The same in a legend of text."""
    return (DASHES | MARKS).get(_own(plot, series), "")


def _look(plot: Plot, series: Series) -> dict[str, Any]:
    """What all parts of a series have: its colour and its number."""
    return {"color": series.colour, "gid": f"series-{list(plot.legend).index(series.name)}"}


def _places(axes: Axes, plot: Plot, panel: Panel) -> list[Place]:
    """Every place on the axis that has points, in the order of the axis."""
    down = plot.kind == "intervals"
    numbers = {name: number for number, name in enumerate(plot.legend)}
    found: defaultdict[float, list[tuple[int, str]]] = defaultdict(list)
    for series in panel.series:
        for point in series.points:
            found[point.x].append((numbers[series.name], _told(point)))
    places = []
    for x, values in sorted(found.items()):
        at = axes.transData.transform((0, x) if down else (x, 0))
        across, up = axes.figure.transFigure.inverted().transform(at)
        share, title = (1 - up, "") if down else (across, f"{panel.x} {_named(panel, x)}")
        places.append(Place(round(share, 4), title, values))
    return places


def values(panel: Panel, plot: Plot) -> Table:
    """What a panel shows, in a table: a line for each place or, of intervals, for each series."""
    title = panel.title or plot.title
    if plot.kind == "intervals":
        lines = [(Cell(series.name), Cell(_told(series.points[0]))) for series in panel.series]
        return Table(title, ("", panel.y), tuple(lines))
    found: defaultdict[float, defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for series in panel.series:
        for point in series.points:
            found[point.x][series.name].append(_told(point))
    names = [series.name for series in panel.series]
    rows = (
        (Cell(_named(panel, x)), *(Cell(", ".join(told[name]) or "–") for name in names))
        for x, told in sorted(found.items())
    )
    return Table(title, (panel.x, *names), tuple(rows))


def _named(panel: Panel, x: float) -> str:
    return panel.ticks[int(x)] if panel.ticks else _short(x)


def _told(point: Point) -> str:
    return _short(point.y) + (f" ({_short(point.low)} to {_short(point.high)})" if point.low != point.high else "")


def _short(value: float) -> str:
    return f"{value:.4g}".replace("-", "−")


def _inline(svg: str) -> str:
    """A file of matplotlib's as an element of a page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' (xmlns(:\w+)?|version|width|height)="[^"]*"', "", svg, count=5)
    svg = re.sub(r' id="series-(\d+)"', r' data-series="\1"', svg)
    svg = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", svg)  # nothing refers to these
    return re.sub(r"(?<=: )#[0-9a-f]{6}(?=[;\"])", lambda colour: themed(colour[0]), svg)


def themed(colour: str) -> str:
    """A colour as the page has it, which says how much of it is its own on its ground."""
    return THEME.get(colour.lower(), f"color-mix(in srgb, {colour} var(--own), white)")
