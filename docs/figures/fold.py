"""Draws docs/figures/fold.png from the losses themselves: `python docs/figures/fold.py`.

An "image" of two pixels is enough: the mask y = (1, 0) and the prediction ŷ = ρ·(cos θ, sin θ) have the angle θ
between them, and without smoothing the scale s = 2ρ/(1 + ρ²).
"""

from pathlib import Path

import matplotlib as mpl
import torch
from torch import Tensor

from polydice import DiceLoss, PolyDice1Loss
from polydice.base import RegionLoss

mpl.use("Agg")
from matplotlib import pyplot as plt

BLUE, VERMILION, GREEN, BLACK = "#0072B2", "#D55E00", "#009E73", "#000000"  # Okabe and Ito's palette
THETA = torch.linspace(0, torch.pi / 2, 400, dtype=torch.float64)
OPTIONS = {"activation": "none", "smooth": 0.0, "reduction": "none"}


def value_and_slope(loss: RegionLoss, s: float) -> tuple[Tensor, Tensor]:
    """L and ∂L/∂s at every θ, the slope by way of ρ: autograd's ∂L/∂ρ over ∂s/∂ρ."""
    rho = torch.full_like(THETA, (1 - (1 - s * s) ** 0.5) / s).requires_grad_()
    prediction = rho * torch.stack([THETA.cos(), THETA.sin()])  # [2, angles]
    target = torch.tensor([1.0, 0.0], dtype=torch.float64).expand(len(THETA), 1, 2)
    value = loss(prediction.T.unsqueeze(1), target).squeeze(1)
    (by_rho,) = torch.autograd.grad(value.sum(), rho)
    rho = rho.detach()
    return value.detach(), by_rho / (2 * (1 - rho**2) / (1 + rho**2) ** 2)


def draw_values(axes: plt.Axes) -> None:
    loss = PolyDice1Loss(epsilon=0.5, **OPTIONS)
    shades = mpl.colormaps["viridis"]
    for s, shade in ((1.0, 0.0), (0.75, 0.28), (0.5, 0.55), (0.25, 0.72)):
        value, _ = value_and_slope(loss, s)
        axes.plot(THETA, value, color=shades(shade), linewidth=2)
        axes.text(torch.pi / 2 + 0.03, value[-1], f"s = {s:g}", va="center", color=shades(shade))
    axes.axvspan(1, torch.pi / 2, color="0.93", zorder=0)
    axes.plot(1, 1, "o", color=BLACK, zorder=5)
    axes.annotate("θ = 1: q = 1, every s gives L = 1", (1, 1), (0.05, 1.62), arrowprops={"arrowstyle": "-"})
    axes.text(1.285, 0.12, "the fold:\nlarger s,\nlarger loss", ha="center")
    axes.set(xlim=(0, torch.pi / 2), ylim=(0, 2.6), ylabel="loss L")
    axes.set_title("PolyDice-1, ε = 0.5: the loss at four scales")


def draw_slopes(axes: plt.Axes) -> None:
    curves = (
        ("ε = 0.5", PolyDice1Loss(epsilon=0.5, **OPTIONS), VERMILION, "-"),
        ("ε = 0", PolyDice1Loss(epsilon=0.0, **OPTIONS), BLUE, "-"),
        ("Dice", DiceLoss(**OPTIONS), BLACK, "--"),
        ("ε = 0.5, detached", PolyDice1Loss(epsilon=0.5, scale="detached", **OPTIONS), GREEN, "-."),
    )
    for name, loss, colour, style in curves:
        _, slope = value_and_slope(loss, 0.5)
        axes.plot(THETA, slope, color=colour, linestyle=style, linewidth=2, label=name)
    axes.axhspan(0, 1.6, color="0.93", zorder=0)
    axes.axhline(0, color="0.4", linewidth=0.8)
    for theta, name, colour in ((1, "θ = 1", VERMILION), (2**0.5, "θ = √2", BLUE)):
        axes.plot(theta, 0, "o", color=colour, zorder=5)
        axes.annotate(name, (theta, 0), (theta - 0.05, 0.1), ha="right", color=colour)
    axes.text(0.03, 0.05, "a volume mismatch\nlowers the loss", va="bottom")
    axes.text(0.03, -0.05, "a volume mismatch\nraises the loss", va="top")
    axes.set(xlim=(0, torch.pi / 2), ylim=(-1.1, 1.6), ylabel="slope of the loss in the scale, ∂L/∂s")
    axes.legend(loc="upper left", frameon=False)
    axes.set_title("Where the slope in s changes sign")


def main() -> None:
    plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False})
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    draw_values(left)
    draw_slopes(right)
    for axes in (left, right):
        axes.set_xlabel("angle θ between mask and prediction")
        axes.set_xticks([0, 0.5, 1, torch.pi / 2], ["0", "0.5", "1", "π/2"])
    figure.get_layout_engine().set(wspace=0.08)
    figure.savefig(Path(__file__).with_name("fold.png"), dpi=150)


if __name__ == "__main__":
    main()
