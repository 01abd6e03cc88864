"""A picture of a few cases with the contours of their classes, to see that images and labels belong together."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from polydice.data.cases import CT_WINDOW, Dataset
from polydice.data.check import Facts, size
from polydice.data.files import tally

SHOWN, COLUMNS, WIDTH = 8, 4, 3.4  # pictures, and inches of each
# Bright colours that the colour-blind can tell apart (after Okabe and Ito), and that flesh and grey images do not have.
COLOURS = ("#56B4E9", "#F0E442", "#009E73", "#E69F00", "#CC79A7", "#0072B2", "#D55E00", "#FFFFFF")


class View(NamedTuple):
    """What is shown of a case."""

    title: str
    image: NDArray[Any]  # [y, x], or [y, x, 3]
    labels: NDArray[Any]  # [y, x]
    aspect: float  # height of a pixel over its width

    @property
    def tallness(self) -> float:
        height, width = self.labels.shape
        return float(self.aspect * height / width)


def overview(dataset: Dataset, facts: Sequence[Facts], path: Path) -> None:
    """Writes the picture of some of the cases."""
    views, names = [_view(dataset, about) for about in _choose(facts)], dataset.label_names
    rows = [views[start : start + COLUMNS] for start in range(0, len(views), COLUMNS)] or [[]]
    heights = [WIDTH * max((min(view.tallness, 1.5) for view in row), default=1.0) + 0.6 for row in rows]
    figure = Figure(figsize=(WIDTH * COLUMNS, sum(heights) + 1), layout="constrained")
    figure.suptitle(f"{dataset.name}: {len(views)} of {len(facts)} cases", fontsize=15)
    axes = figure.subplots(len(rows), COLUMNS, squeeze=False, height_ratios=heights).ravel()
    for axis in axes:
        axis.axis("off")
    for axis, view in zip(axes, views, strict=False):
        _draw(axis, view, len(names))
    lines = [Line2D([], [], color=_colour(label), linewidth=3) for label in range(1, len(names))]
    columns = -(-len(lines) // -(-len(lines) // 6))  # as even as they can be
    figure.legend(
        lines, names[1:], loc="outside lower center", ncols=columns, fontsize=12,
        facecolor="#444444", framealpha=1, labelcolor="white",
    )  # fmt: skip
    figure.savefig(path, dpi=110)


def _colour(label: int) -> str:
    return COLOURS[(label - 1) % len(COLOURS)]


def _choose(facts: Sequence[Facts]) -> list[Facts]:
    """Spread over the set, from the cases that have most classes."""
    most = max((np.count_nonzero(about.pixels) for about in facts), default=0)
    full = [about for about in facts if np.count_nonzero(about.pixels) == most]
    return [full[round(i)] for i in np.linspace(0, len(full) - 1, min(SHOWN, len(full)))]


def _view(dataset: Dataset, about: Facts) -> View:
    image, labels, spacing, _ = dataset.read(about.case)
    group = "" if about.case.group == about.case.id else f"{_short(about.case.group)}, "
    where = ""
    if labels.ndim == 3:
        best = max(range(len(labels)), key=lambda index: _worth(labels[index], len(dataset.label_names)))
        where = f"slice {best + 1} of {len(labels)}, "
        image, labels = image[:, best], labels[best]
    title = f"{_short(about.case.id)}\n{group}{where}{size(labels.shape)}"
    return View(title, _visible(image, dataset), labels, spacing[-2] / spacing[-1] if spacing else 1.0)


def _worth(plane: NDArray[Any], classes: int) -> tuple[int, int]:
    """The classes in a slice, and the pixels of the smallest of them."""
    pixels = [count for label, count in tally(plane).items() if 0 < label < classes]
    return len(pixels), min(pixels, default=0)


def _visible(image: NDArray[Any], dataset: Dataset) -> NDArray[Any]:
    """RGB, or a grey picture of the first channel with the darkest and brightest half percent cut off."""
    if dataset.intensity == "colour" and len(image) == 3:
        return np.moveaxis(image, 0, -1)
    grey = image[0].astype(np.float32)
    low, high = CT_WINDOW if dataset.intensity == "ct" else np.nanpercentile(grey, (0.5, 99.5))
    return np.asarray(((grey - low) / max(high - low, 1e-6)).clip(0, 1))


def _draw(axis: Any, view: View, classes: int) -> None:
    axis.imshow(view.image, cmap="gray", vmin=0, vmax=1, aspect=view.aspect, interpolation="nearest")
    x, y = (np.arange(-1, length + 1) for length in reversed(view.labels.shape))
    for label in range(1, classes):
        inside = np.pad(view.labels == label, 1)  # background all round closes the contour of what touches the edge
        if inside.any():
            axis.contour(x, y, inside, [0.5], colors=["black"], linewidths=3.5)
            axis.contour(x, y, inside, [0.5], colors=[_colour(label)], linewidths=2)
    axis.set_title(view.title, fontsize=11)
    axis.set_anchor("N")


def _short(name: str) -> str:
    return name if len(name) <= 34 else name[:33] + "…"
