"""Time against pixels and against classes, both axes logarithmic, one line per provider."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.report import FLOOR, Row

# The colours of Okabe and Ito, told apart by the colour-blind; ours are the blues.
STYLES = {
    "polydice graph": ("#0072B2", "s", "--"),
    "polydice": ("#0072B2", "o", "-"),  # as called on a CPU
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
    "HeadLoss, CUDA graph": ("#0072B2", "s", "--"),
    "logits + polydice": ("#56B4E9", "o", "-"),
    "logits + polydice, CUDA graph": ("#56B4E9", "s", "--"),
    "logits + cross-entropy": ("#000000", "v", "-"),
    "logits + nnU-Net": ("#E69F00", "P", "-"),
    "logits + MONAI": ("#D55E00", "X", "-"),
}
HEADS = {  # of the plots against classes: what is called how there; logits are made in the fastest way
    "monai": "logits + MONAI",
    "nnunet": "logits + nnU-Net",
    "cross_entropy": "logits + cross-entropy",
    "polydice": "logits + polydice",
    "polydice graph, uint8": "logits + polydice, CUDA graph",
    "HeadLoss": "HeadLoss",
    "HeadLoss graph, uint8": "HeadLoss, CUDA graph",
    FLOOR: FLOOR,
}


def draw(rows: Sequence[Row], out: Path) -> None:
    timed = _of(rows, "ms")
    _plot(timed, "pixels", "classes", "forward + backward, ms", out / "time-pixels.png")
    _plot(timed, "classes", "pixels", "forward + backward, ms", out / "time-classes.png")


def draw_heads(rows: Sequence[Row], out: Path) -> None:
    """Of the sizes at which everything was measured; in a graph, its time alone."""
    sizes = {row.shape for row in rows if row.provider == "HeadLoss"}
    named = [replace(row, provider=HEADS[row.provider]) for row in rows if row.shape in sizes and row.provider in HEADS]
    _plot(_of(named, "ms"), "classes", "pixels", "forward + backward, ms", out / "time-classes.png")
    memory = [
        replace(row, median=(row.median or 0) / 2**20)
        for row in _of(named, "extra_bytes")
        if not row.provider.endswith("graph")
    ]
    _plot(memory, "classes", "pixels", "memory beyond inputs and gradients, MiB", out / "memory-classes.png")


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
    figure = Figure(figsize=(8, 4.5), layout="constrained")
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
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(which="major", color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
