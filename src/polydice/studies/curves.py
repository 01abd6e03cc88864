"""The losses drawn: the paper's Figures 2 and 3, what they leave out, and all figures as files."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from shutil import copyfile
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from torch import Tensor

from polydice.base import AveragedLoss, AveragedOptions, Loss
from polydice.losses import (
    CrossEntropyLoss,
    DiceLoss,
    DropDiceLoss,
    FocalLoss,
    FocalTverskyLoss,
    PolyCE1Loss,
    PolyDice1Loss,
    PolyDiceLoss,
    TverskyLoss,
    TvMFDiceLoss,
)
from polydice.studies.decomposition import decomposition
from polydice.studies.plane import OPTIONS, at, slopes
from polydice.studies.style import COLOURS, FAINT, GREY, INK, RC, mixed, save, shades

ORDERS = (1, 2, 3, 10)
EPSILONS = (-0.3, -0.1, 0.0, 0.1, 0.3, 0.5)
SCALE = 0.1  # that of the paper's figures
REACH = math.pi / 2  # y and ŷ are never negative
THETA = torch.linspace(0, math.pi - 1e-3, 400, dtype=torch.float64)  # not π itself: arccos has no slope there


class Curve(NamedTuple):
    name: str
    loss: AveragedLoss
    colour: str
    dashes: str = "-"


DICE = Curve("Dice", DiceLoss(**OPTIONS), COLOURS["DiceLoss"], "--")
DROPDICE = [
    Curve(f"K = {order}", DropDiceLoss(order, **OPTIONS), colour)
    for order, colour in zip(ORDERS, reversed(shades(COLOURS["DropDiceLoss"], len(ORDERS))), strict=True)
]
POLYDICE1 = [
    Curve(f"ε = {epsilon:g}".replace("-", "−"), PolyDice1Loss(epsilon, **OPTIONS), colour)
    for epsilon, colour in zip(EPSILONS, shades(COLOURS["PolyDice1Loss"], len(EPSILONS)), strict=True)
]


def dropdice() -> Figure:
    """The paper's Figure 2: DropDice against θ at s = 0.1."""
    return _against_angle("DropDice", [*DROPDICE, DICE])


def polydice1() -> Figure:
    """The paper's Figure 3: PolyDice-1 against θ at s = 0.1."""
    return _against_angle("PolyDice-1", [*POLYDICE1, DICE])


def _against_angle(title: str, curves: Sequence[Curve]) -> Figure:
    figure = Figure(figsize=(5.6, 4), layout="constrained")
    axes = figure.subplots()
    _draw(axes, curves, [at(curve.loss, SCALE, THETA) for curve in curves])
    axes.set(title=f"{title} at s = {SCALE:g}", ylabel="loss")
    _name_ends(axes)
    return figure


def gradients() -> Figure:
    """∂L/∂θ of both: how strongly the optimiser turns the prediction."""
    figure = Figure(figsize=(10.4, 4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, title, family in ((left, "DropDice", DROPDICE), (right, "PolyDice-1", POLYDICE1)):
        curves = [*family, DICE]
        _draw(axes, curves, [slopes(curve.loss, SCALE, THETA)[1] for curve in curves])
        axes.set(title=f"{title} at s = {SCALE:g}")
    left.set(ylabel="slope of the loss in the angle, ∂L/∂θ")
    _name_ends(left)
    _name_ends(right)
    return figure


def _draw(axes: Axes, curves: Sequence[Curve], values: Sequence[Tensor]) -> None:
    """Curves over 0 … π, with the part that predictions reach told from the rest."""
    for curve, value in zip(curves, values, strict=True):
        axes.plot(THETA, value, color=curve.colour, linestyle=curve.dashes, label=curve.name)
    axes.axvspan(REACH, math.pi, color=FAINT, zorder=0)
    for place, name in ((0.25, "reachable: θ ≤ π/2"), (0.75, "never reached")):
        axes.text(place, 0.97, name, color=GREY, ha="center", va="top", transform=axes.transAxes)
    axes.set(xlim=(0, math.pi), xlabel="angle θ between mask and prediction")
    axes.set_xticks([0, math.pi / 4, REACH, 3 * math.pi / 4, math.pi], ["0", "π/4", "π/2", "3π/4", "π"])
    axes.margins(y=0.12)


def _name_ends(axes: Axes) -> None:
    """Names the curves where they end, instead of in a legend."""
    low, high = axes.get_ylim()
    places = _apart([float(np.asarray(line.get_ydata())[-1]) for line in axes.lines], 0.06 * (high - low))
    for line, place in zip(axes.lines, places, strict=True):
        axes.text(math.pi * 1.02, place, str(line.get_label()), color=line.get_color(), va="center")


def _apart(places: Sequence[float], gap: float) -> list[float]:
    """The places moved as little as it takes to have them a gap apart, so that labels do not cover each other.

    >>> _apart([0.0, 5.0, 0.0], 1.0)
    [-0.5, 5.0, 0.5]
    """
    order = sorted(range(len(places)), key=lambda index: places[index])
    groups: list[list[int]] = []  # of names that would touch: a group is centred on the mean of its places

    def start(group: list[int]) -> float:
        return sum(places[index] for index in group) / len(group) - gap * (len(group) - 1) / 2

    for index in order:
        groups.append([index])
        while len(groups) > 1 and start(groups[-2]) + gap * len(groups[-2]) > start(groups[-1]):
            groups[-2:] = [groups[-2] + groups[-1]]
    moved = {index: start(group) + gap * rank for group in groups for rank, index in enumerate(group)}
    return [moved[index] for index in range(len(places))]


def fold() -> Figure:
    """L over the plane of s and θ, the way down, and where that way leads to smaller s: ∂L/∂s > 0."""
    figure = Figure(figsize=(12, 4.2), layout=ConstrainedLayoutEngine(wspace=0.04))
    shown = {
        "Dice": DICE.loss,
        "PolyDice-1, ε = 0": PolyDice1Loss(0.0, **OPTIONS),
        "PolyDice-1, ε = 0.5": PolyDice1Loss(0.5, **OPTIONS),
        'ε = 0.5, scale="detached"': PolyDice1Loss(0.5, scale="detached", **OPTIONS),
    }
    s = torch.linspace(0.001, 0.999, 200, dtype=torch.float64)
    theta = torch.linspace(0, REACH, 200, dtype=torch.float64)
    folded, level = mixed(COLOURS["PolyDice1Loss"], "white", 0.75), "#AAAAAA"
    for axes, (title, loss) in zip(figure.subplots(1, 4, sharey=True), shown.items(), strict=True):
        by_s, _ = slopes(loss, s, theta[:, None])
        axes.contourf(s, theta, by_s, [1e-12, math.inf], colors=[folded])  # rounding makes Dice's 0 at π/2 a bit more
        axes.contour(s, theta, at(loss, s, theta[:, None]), [k / 10 for k in range(25)], colors=level, linewidths=0.8)
        _draw_descent(axes, loss)
        axes.set(title=title, xlabel="scale s", xlim=(0, 1), ylim=(0, REACH))
    figure.axes[0].set_ylabel("angle θ")
    figure.axes[0].set_yticks([0, 0.5, 1, math.sqrt(2), REACH], ["0", "0.5", "1", "√2", "π/2"])
    meaning = {
        "the fold, ∂L/∂s > 0: a volume mismatch lowers the loss": Patch(color=folded),
        "equal loss, in steps of 0.1": Line2D([], [], color=level, linewidth=0.8),
        "the way down, −∇L": Line2D([], [], color=INK, linestyle="", marker=r"$\rightarrow$", markersize=12),
    }
    figure.legend(meaning.values(), meaning.keys(), loc="outside lower center", ncols=3)
    return figure


def _draw_descent(axes: Axes, loss: AveragedLoss) -> None:
    s = torch.linspace(0.1, 0.9, 5, dtype=torch.float64)
    theta = torch.linspace(0.1, 1.5, 8, dtype=torch.float64)
    by_s, by_theta = slopes(loss, s, theta[:, None])
    length = torch.hypot(by_s, by_theta)
    axes.quiver(
        s, theta, -by_s / length, -by_theta / length,
        angles="xy", scale=14, width=0.006, color=INK, pivot="middle",
    )  # fmt: skip


PIXELS, MASK = 300, 50  # of the image in which regions overlap, and of the mask
SURE = math.log(99.0)  # the logit of 99 %
_SIGMOID: AveragedOptions = {"activation": "sigmoid"}
LOSSES: dict[str, Loss] = {
    "Dice": DiceLoss(**_SIGMOID),
    "Tversky, 0.3 and 0.7": TverskyLoss(**_SIGMOID),
    "Focal Tversky, γ = 4/3": FocalTverskyLoss(**_SIGMOID),
    "DropDice, K = 1": DropDiceLoss(1, **_SIGMOID),
    "DropDice, K = 2": DropDiceLoss(2, **_SIGMOID),
    "PolyDice-1, ε = −0.3": PolyDice1Loss(-0.3, **_SIGMOID),
    "PolyDice-1, ε = 0.5": PolyDice1Loss(0.5, **_SIGMOID),
    "PolyDice, coefficients (0, ½)": PolyDiceLoss((0.0, 0.5), **_SIGMOID),
    "t-vMF Dice, κ = 2": TvMFDiceLoss(2, **_SIGMOID),
    "Cross-entropy": CrossEntropyLoss(activation="sigmoid"),
    "Focal loss, γ = 2": FocalLoss(activation="sigmoid"),
    "PolyCE-1, ε = 1": PolyCE1Loss(activation="sigmoid"),
}


def losses() -> Figure:
    """All losses against the overlap of a mask and a prediction that is as large, half or twice as large."""
    figure = Figure(figsize=(10.4, 7.8), layout="constrained")
    grid = figure.subplots(3, 4, sharex=True, sharey="row")
    dice = _against_overlap(LOSSES["Dice"], MASK)
    for axes, (title, loss) in zip(grid.flat, LOSSES.items(), strict=True):
        colour = COLOURS[type(loss).__name__]
        axes.plot(*dice, color=GREY, linewidth=0.8)
        axes.plot(*_against_overlap(loss, MASK // 2), color=mixed(colour, "white", 0.6), linewidth=5)
        axes.plot(*_against_overlap(loss, MASK), color=colour)
        axes.plot(*_against_overlap(loss, MASK * 2), color=colour, linestyle=(0, (4, 2)), linewidth=1.5)
        axes.set_title(title)
    grid[0, 0].set(xlim=(0, 1))
    for row in grid:
        row[0].set(ylim=(0, None), ylabel="loss")
    figure.supxlabel(
        "overlap of mask and prediction, as a share of the smaller one\n"
        f"(a mask of {MASK} of {PIXELS} pixels, predictions that are 99 % sure of every pixel, δ = 1)",
        fontsize=10,
    )
    lines: dict[str, dict[str, Any]] = {
        "prediction half as large as the mask": {"color": "#B8B8B8", "linewidth": 5},
        "as large": {"color": INK},
        "twice as large": {"color": INK, "linestyle": (0, (4, 2)), "linewidth": 1.5},
        "Dice, as large": {"color": GREY, "linewidth": 0.8},
    }
    handles = [Line2D([], [], **look) for look in lines.values()]
    figure.legend(handles, lines.keys(), loc="outside upper center", ncols=4)
    return figure


def _against_overlap(loss: Loss, volume: int) -> tuple[Tensor, Tensor]:
    """Overlap |y ∩ ŷ| / min(|y|, |ŷ|) from 0 to 1 and the loss at each, for a prediction of so many pixels."""
    common = torch.arange(min(volume, MASK) + 1)
    pixel = torch.arange(PIXELS)
    start = MASK - common[:, None]  # the mask is the first pixels, the prediction covers the end of it
    inside = (pixel >= start) & (pixel < start + volume)
    logits = torch.where(inside, SURE, -SURE).to(torch.float64)[:, None, None]  # [overlaps, 1, 1, pixels]
    target = (pixel < MASK).to(torch.float64).expand_as(logits[0])
    return common / min(volume, MASK), torch.stack([loss(image, target) for image in logits])


FIGURES: dict[str, Callable[[], Figure]] = {
    "overview": decomposition,
    "dropdice": dropdice,
    "polydice1": polydice1,
    "gradients": gradients,
    "fold": fold,
    "losses": losses,
}


def write(out: Path) -> list[Path]:
    """Every figure as SVG and PNG, and the interactive page, into a folder."""
    out.mkdir(parents=True, exist_ok=True)
    page = out / "explore.html"
    copyfile(Path(__file__).with_name("explore.html"), page)
    with rc_context(RC):
        return [path for name, draw in FIGURES.items() for path in save(draw(), out / name)] + [page]
