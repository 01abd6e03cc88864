"""Time against pixels and against classes, both axes logarithmic, one line per provider."""

from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # files only: no display is needed

from matplotlib import pyplot as plt  # noqa: E402

from benchmarks.report import FLOOR, Row  # noqa: E402

# The colours of Okabe and Ito, told apart by the colour-blind; ours are the blues.
STYLES = {
    "polydice graph": ("#0072B2", "s", "--"),
    "polydice fused": ("#0072B2", "o", "-"),
    "polydice compiled": ("#0072B2", "^", ":"),
    "polydice + ce": ("#56B4E9", "D", "--"),
    "polydice eager": ("#56B4E9", "o", "-"),
    "cross_entropy": ("#000000", "v", "-"),
    "nnunet": ("#E69F00", "P", "-"),
    "monai": ("#D55E00", "X", "-"),
    "smp": ("#CC79A7", "d", "-"),
    "kornia": ("#009E73", "<", "-"),
    FLOOR: ("#999999", "", "-"),
}


def draw(rows: Sequence[Row], out: Path) -> None:
    _plot(rows, "pixels", "classes", out / "time-pixels.png")
    _plot(rows, "classes", "pixels", out / "time-classes.png")


def _plot(rows: Sequence[Row], along: str, fixed: str, path: Path) -> None:
    """The longest series of sizes that differ in `along` alone."""
    rows = [row for row in rows if (row.mode, row.metric) == ("both", "ms") and row.median is not None]
    series: dict[tuple[int, str], set[int]] = {}
    for row in rows:
        series.setdefault((getattr(row, fixed), row.dtype), set()).add(getattr(row, along))
    count, dtype = max(series, key=lambda kind: len(series[kind]))
    rows = sorted((row for row in rows if (getattr(row, fixed), row.dtype) == (count, dtype)), key=attrgetter(along))
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for name, (colour, marker, line) in STYLES.items():
        points = [(getattr(row, along), row.median) for row in rows if row.provider == name]
        if points:
            axes.plot(*zip(*points, strict=True), line, color=colour, marker=marker, markersize=5, label=name)
    axes.set_xscale("log", base=10 if along == "pixels" else 2)
    axes.set_yscale("log")
    axes.set_xlabel(f"{along} ({count:,} {fixed}, {dtype})")
    axes.set_ylabel("forward + backward, ms")
    axes.set_title(rows[0].device, fontsize="medium")
    axes.grid(which="major", color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    slowest_first = sorted(range(len(labels)), key=lambda i: handles[i].get_ydata()[-1], reverse=True)
    axes.legend(
        [handles[i] for i in slowest_first], [labels[i] for i in slowest_first],
        loc="center left", bbox_to_anchor=(1, 0.5), frameon=False,
    )  # fmt: skip
    figure.savefig(path, dpi=150)
    plt.close(figure)
