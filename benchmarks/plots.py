"""Time against pixels and against classes, both axes logarithmic, one line per provider."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.report import FLOOR, Row

# The colours of Okabe and Ito, told apart by the colour-blind; ours are the blues.
STYLES = {
    "polydice graph": ("#0072B2", "s", "--"),
    "polydice fused": ("#0072B2", "o", "-"),
    "polydice compiled": ("#0072B2", "^", ":"),
    "polydice eager": ("#56B4E9", "o", "-"),
    "polydice + ce": ("#56B4E9", "D", "--"),
    "cross_entropy": ("#000000", "v", "-"),
    "nnunet": ("#E69F00", "P", "-"),
    "monai": ("#D55E00", "X", "-"),
    "smp": ("#CC79A7", "d", "-"),
    "kornia": ("#009E73", "<", "-"),
    FLOOR: ("#999999", "", "-"),
    "HeadLoss": ("#0072B2", "o", "-"),
    "polydice": ("#56B4E9", "o", "-"),
}


def draw(rows: Sequence[Row], out: Path) -> None:
    timed = _of(rows, "ms")
    _plot(timed, "pixels", "classes", "forward + backward, ms", out / "time-pixels.png")
    _plot(timed, "classes", "pixels", "forward + backward, ms", out / "time-classes.png")


def draw_heads(rows: Sequence[Row], out: Path) -> None:
    _plot(_of(rows, "ms"), "classes", "pixels", "forward + backward, ms", out / "time-classes.png")
    _plot(_of(rows, "extra_bytes"), "classes", "pixels", "extra memory, bytes", out / "memory-classes.png")


def _of(rows: Sequence[Row], metric: str) -> list[Row]:
    return [row for row in rows if (row.mode, row.metric) == ("both", metric) and row.median is not None]


def _plot(rows: Sequence[Row], along: str, fixed: str, what: str, path: Path) -> None:
    """The longest series of sizes that differ in `along` alone."""
    series: dict[tuple[int, str], set[int]] = {}
    for row in rows:
        series.setdefault((getattr(row, fixed), row.dtype), set()).add(getattr(row, along))
    longest = count, dtype = max(series, key=lambda kind: len(series[kind]))
    lines: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        if (getattr(row, fixed), row.dtype) == longest and row.median is not None:
            lines.setdefault(row.provider, []).append((getattr(row, along), row.median))
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.set_ylabel(what)
    _draw_lines(axes, {name: sorted(points) for name, points in lines.items()})
    axes.set_xscale("log")
    if along == "classes":  # few, and known by their number
        ticks = sorted(series[longest])
        axes.set_xticks(ticks, labels=map(str, ticks))
        axes.minorticks_off()
    axes.set_xlabel(f"{along} ({count:,} {fixed}, {dtype})")
    axes.set_title(rows[0].device, fontsize="medium")
    figure.savefig(path, dpi=150)


def _draw_lines(axes: Axes, lines: dict[str, list[tuple[int, float]]]) -> None:
    for name in sorted(lines, key=lambda name: -lines[name][-1][1]):  # the legend in the order of the lines' ends
        colour, marker, dashes = STYLES[name]
        x, y = zip(*lines[name], strict=True)
        axes.plot(x, y, color=colour, marker=marker, linestyle=dashes, markersize=5, label=name)
    axes.set_yscale("log")
    axes.grid(which="major", color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
