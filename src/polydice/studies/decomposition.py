"""The idea in one picture: a mask and a prediction as vectors, Dice as scale and angle, the angle as a polynomial."""

import math
from typing import Any

import torch
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.offsetbox import AnnotationBbox, HPacker, TextArea
from matplotlib.patches import Arc
from torch import Tensor

from polydice.geometry import misdirection, mismatch, squared_angle
from polydice.losses import DiceLoss, DropDiceLoss, PolyDice1Loss
from polydice.studies.plane import OPTIONS, at
from polydice.studies.style import COLOURS, GREY, INK, mixed
from polydice.sums import pixel_sums

SCALE, ANGLE = "#009E73", "#99447A"  # of s and θ, wherever they stand
DICE, DROPDICE, POLYDICE1 = (COLOURS[name] for name in ("DiceLoss", "DropDiceLoss", "PolyDice1Loss"))
COLUMNS = 0.02, 0.405, 0.70
Y, Y_HAT = r"$\mathbf{y}$", r"$\mathbf{\hat{y}}$"


def decomposition() -> Figure:
    """The paper's Figure 1, in our own drawing: its lengths and numbers are those of the two masks in it."""
    target, prediction = _masks()
    sums = pixel_sums(prediction[None, None], target[None, None], activation="none")
    a, b = sums.target_sq, sums.prediction_sq
    scale = float(1 - mismatch(a, b, 0))
    angle = float(squared_angle(misdirection(a, b, sums.error_sq, sums.intersection)).sqrt())
    figure = Figure(figsize=(12, 4.9))
    titles = "A mask and a prediction are two vectors", "Dice is scale times direction", "What replaces 1 − cos θ"
    for left, title in zip(COLUMNS, titles, strict=True):
        figure.text(left, 0.93, title, fontsize=12, weight="bold", color=INK)
    _draw_mask(figure.add_axes((0.02, 0.57, 0.113, 0.276)), target, f"mask {Y}")
    _draw_mask(figure.add_axes((0.02, 0.225, 0.113, 0.276)), prediction, f"prediction {Y_HAT}")
    _draw_vectors(figure.add_axes((0.145, 0.22, 0.235, 0.64)), math.sqrt(a), math.sqrt(b), angle)
    _write_parts(figure, scale, angle)
    _draw_polynomials(figure.add_axes((0.735, 0.34, 0.185, 0.51)), angle)
    _write_losses(figure)
    return figure


def _masks() -> tuple[Tensor, Tensor]:
    """A disc, and a soft and smaller one beside it."""
    row, column = torch.meshgrid(*[torch.arange(14, dtype=torch.float64)] * 2, indexing="ij")
    target = torch.hypot(row - 6.5, column - 5.5) < 4.6
    return target.to(torch.float64), torch.sigmoid(2 * (3 - torch.hypot(row - 5.5, column - 8.7)))


def _draw_mask(axes: Axes, mask: Tensor, name: str) -> None:
    axes.pcolormesh(mask.flip(0), cmap="Greys", vmin=0, vmax=1.25, edgecolors="#DDDDDD", linewidth=0.3)
    axes.set(xticks=[], yticks=[], aspect="equal")
    axes.set_title(name, loc="center", pad=4, fontsize=10)
    for spine in axes.spines.values():
        spine.set(visible=True, color="#AAAAAA")


def _draw_vectors(axes: Axes, target: float, prediction: float, angle: float) -> None:
    axes.set(xlim=(-0.5, target + 0.9), ylim=(-0.2, prediction + 0.7), aspect="equal", anchor="W")
    axes.axis("off")
    tilt = 0.1  # a vector that lies flat looks like an axis
    arrow = {"arrowstyle": "-|>,head_width=0.35,head_length=0.8", "linewidth": 2.2, "color": INK}
    centred: dict[str, Any] = {"ha": "center", "va": "center"}
    for length, turn, side, name in ((target, tilt, -1, Y), (prediction, tilt + angle, 1, Y_HAT)):
        axes.annotate("", _point(length, turn), (0, 0), arrowprops={**arrow, "shrinkA": 0, "shrinkB": 0})
        axes.text(*_point(length + 0.4, turn), name, fontsize=16, **centred)
        beside = _point(math.hypot(length / 2, 0.4), turn + side * math.atan2(0.4, length / 2))
        along = {**centred, "rotation": math.degrees(turn), "rotation_mode": "anchor"}
        axes.text(*beside, f"‖{name}‖ = {length:.1f}", color=SCALE, **along)
    ends = math.degrees(tilt), math.degrees(tilt + angle)
    axes.add_patch(Arc((0, 0), 3, 3, theta1=ends[0], theta2=ends[1], color=ANGLE, linewidth=2.2))
    axes.text(*_point(1.9, tilt + angle / 2), "θ", color=ANGLE, fontsize=15, **centred)


def _point(length: float, turn: float) -> tuple[float, float]:
    return length * math.cos(turn), length * math.sin(turn)


def _write_parts(figure: Figure, scale: float, angle: float) -> None:
    y, y_hat = r"\Vert\mathbf{y}\Vert", r"\Vert\mathbf{\hat{y}}\Vert"
    s = rf"s=\dfrac{{2\,{y}\,{y_hat}}}{{{y}^2+{y_hat}^2}}={scale:.2f}"
    cosine = (
        rf"\cos\theta=\dfrac{{\langle\mathbf{{y}},\,\mathbf{{\hat{{y}}}}\rangle}}{{{y}\,{y_hat}}}={math.cos(angle):.2f}"
    )
    for height, colour, question, formula in (
        (0.82, SCALE, "scale: do the volumes agree?", s),
        (0.52, ANGLE, "direction: do the places agree?", cosine),
    ):
        figure.text(COLUMNS[1], height, question, color=GREY)
        figure.text(COLUMNS[1], height - 0.1, f"${formula}$", fontsize=15, va="center", color=colour)


def _draw_polynomials(axes: Axes, angle: float) -> None:
    """The losses of vectors of equal length, L = q(θ), over the angles that occur."""
    theta = torch.linspace(0, math.pi / 2, 200, dtype=torch.float64)
    low, high = (at(PolyDice1Loss(epsilon, **OPTIONS), 1, theta) for epsilon in (-0.3, 0.5))
    axes.fill_between(theta, low, high, color=mixed(POLYDICE1, "white", 0.85), linewidth=0)
    for value, above, name, colour, dashes in (
        (high, 0, "ε = 0.5", POLYDICE1, "-"),
        (at(DropDiceLoss(1, **OPTIONS), 1, theta), 0.05, "K = 1, ε = 0", DROPDICE, "-"),
        (at(DropDiceLoss(2, **OPTIONS), 1, theta), -0.1, "K = 2", DROPDICE, "-"),
        (at(DiceLoss(**OPTIONS), 1, theta), 0.05, "Dice", DICE, "--"),
        (low, 0, "ε = −0.3", POLYDICE1, "-"),
    ):
        axes.plot(theta, value, color=colour, linestyle=dashes)
        axes.text(math.pi / 2 + 0.05, float(value[-1]) + above, name, color=colour, va="center", fontsize=9)
    axes.axvline(angle, color=ANGLE, linewidth=1)
    axes.text(angle, 2.54, "these masks", color=ANGLE, ha="center", fontsize=9)
    axes.set(xlim=(0, math.pi / 2), ylim=(0, 2.5), xlabel="angle θ", ylabel="$q(θ)$", yticks=[0, 1, 2])
    axes.set_xticks([0, math.pi / 4, math.pi / 2], ["0", "π/4", "π/2"])


def _write_losses(figure: Figure) -> None:
    figure.add_artist(Line2D([0.02, 0.98], [0.2, 0.2], color="#DDDDDD", linewidth=0.8))
    dice = [("$1-$", INK), ("$s$", SCALE), (r"$\,\cos\theta$", ANGLE), (r"$\;=\;$", INK)]
    start = [("$(1-$", INK), ("$s$", SCALE), (r"$)+$", INK), ("$s$", SCALE)]
    series = r"$\,\left(\frac{\theta^2}{2!}-\frac{\theta^4}{4!}+\frac{\theta^6}{6!}-\cdots\right)$"
    cut = r"$\,\sum_{k=1}^{K}\frac{(-1)^{k-1}}{(2k)!}\,\theta^{2k}$"
    leading = r"$\,(\frac{1}{2}+\epsilon)\,\theta^2$"
    formulas = (
        ("Dice", DICE, [*dice, *start, (series, ANGLE)]),
        ("DropDice: the series, cut after K terms", DROPDICE, [*start, (cut, ANGLE)]),
        ("PolyDice-1: one term, its weight moved by ε", POLYDICE1, [*start, (leading, ANGLE)]),
    )
    for left, (name, colour, parts) in zip(COLUMNS, formulas, strict=True):
        figure.text(left, 0.14, name, color=colour)
        pieces: list[Artist] = [TextArea(text, textprops={"color": shade, "fontsize": 15}) for text, shade in parts]
        row = HPacker(children=pieces, pad=0, sep=0, align="baseline")
        place: dict[str, Any] = {"xycoords": "figure fraction", "box_alignment": (0, 0.5)}
        figure.add_artist(AnnotationBbox(row, (left, 0.062), frameon=False, pad=0, **place))
