"""Scale, cosine and squared angle of a mask y and a prediction ŷ, from a = Σy², b = Σŷ², e = Σ(y − ŷ)², I = Σyŷ.

With r = √(ab) and δ = `smooth`: scale s = (2r + δ)/(a + b + δ), cosine c = (2I + δ)/(2r + δ), or I/r of the angle
alone. They are returned as 1 − s and 1 − c, formed without cancellation: both vanish for a perfect prediction.
docs/theory.md has the proofs.
"""

from typing import Any

import torch
from torch import Tensor

# What is smaller counts as 0: the inverse of a smaller number is infinite in float32, in which the pixels are.
TINY = torch.finfo(torch.float32).tiny
VANISHING = 1e-4  # r of an error e: the rounding of a float32 sum is then below a thousandth of r


def ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """numerator / denominator, and 0 with slope 0 where the denominator is 0: nothing is known there."""
    empty = denominator.abs() < TINY
    return torch.where(empty, 0, numerator / torch.where(empty, 1, denominator))


def root(square: Tensor) -> Tensor:
    """√square with slope 0, not ∞, where it vanishes: a mask or prediction that is exactly zero."""
    empty = square < TINY
    return torch.where(empty, 0, torch.where(empty, 1, square).sqrt())


def lengths(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """r = √a·√b and (√a − √b)², of which scale and cosine are made."""
    r = root(a) * root(b)  # not √(a·b), which may be 0 where neither is
    gap = a - b
    return r, gap * ratio(gap, a + b + 2 * r)  # as a square its slope could be ∞·0


def mismatch(a: Tensor, b: Tensor, smooth: float, known: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """1 − s = (√a − √b)² / (a + b + δ): how far the two volumes differ. `known`: their `lengths`, if at hand."""
    _, gap_sq = known or lengths(a, b)
    return ratio(gap_sq, a + b + smooth)


def misalignment(a: Tensor, b: Tensor, e: Tensor, smooth: float, known: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """x = 1 − c = (e − (√a − √b)²) / (2r + δ), 0 where y or ŷ is zero: there s or δ says it all.

    That form keeps its digits near a perfect prediction, where 2(r − I) / (2r + δ), the same number, has lost them. Of
    a prediction that all but vanishes it is the other way round. There s makes up for it, but the rounding of e may be
    many times r: so the numerator is held between 0 and 2r, where it belongs. Its slope is not.
    """
    r, gap_sq = known or lengths(a, b)
    twice = e - gap_sq
    held = torch.where(r < VANISHING * e, torch.minimum(twice.clamp(min=0), 2 * r), twice)
    twice = twice + (held - twice).detach()
    return ratio(torch.where(r == 0, 0, twice), 2 * r + smooth)


def misdirection(a: Tensor, b: Tensor, e: Tensor, intersection: Tensor) -> Tensor:
    """x = 1 − I/r, of the angle alone: 0 for an absent class, which has no direction, and 1 for one that is present and
    predicted by exactly nothing. With δ in it, "nothing" would be nearly free.

    Not multiplied by s, the form of `misalignment` loses digits where the volumes differ much: there it is 2(r − I).
    """
    r, gap_sq = lengths(a, b)
    twice = torch.where(e < r, e - gap_sq, 2 * (r - intersection))
    return torch.where((a >= TINY) & (b < TINY), 1, ratio(twice, 2 * r))


def squared_angle(x: Tensor) -> Tensor:
    """t = θ² = arccos²(1 − x), smooth at x = 0 where θ itself is not: t = 2x + x²/3 + 4x³/45 + …

    >>> squared_angle(torch.tensor([0.0, 1.0], dtype=torch.float64)).sqrt()
    tensor([0.0000, 1.5708], dtype=torch.float64)
    """
    angle: Tensor = _SquaredAngle.apply(x)[0]  # type: ignore[no-untyped-call]
    return angle


class _SquaredAngle(torch.autograd.Function):
    """With z = √(x/2) and g = arcsin(z)/z: t = 2x·g² and dt/dx = 2g/√(1 − x/2), both exact to the last digits from
    x = 0 on. Rounding can make x slightly negative: there arcsin goes on as arsinh, and so does t."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        z = (x / 2).abs().sqrt()
        g = torch.where(z == 0, 1, torch.where(x < 0, z.asinh(), z.asin()) / torch.where(z == 0, 1, z))
        return 2 * x * g.square(), 2 * g / (1 - x / 2).sqrt()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> Tensor:
        slope: Tensor = ctx.saved_tensors[0]
        return grad * slope


def cosine_coefficients(order: int) -> tuple[float, ...]:
    """α_k = (−1)^(k−1)/(2k)!, k = 1 … order: 1 − cos θ = Σ α_k θ^(2k).

    >>> cosine_coefficients(2)
    (0.5, -0.041666666666666664)
    """
    coefficients, alpha = [], -1.0
    for k in range(1, order + 1):
        alpha /= -(2 * k - 1) * (2 * k)
        if alpha == 0:  # below the smallest float
            break
        coefficients.append(alpha)
    return tuple(coefficients)


def polynomial(coefficients: tuple[float, ...], t: Tensor) -> Tensor:
    """Σ coefficients[k−1]·t^k."""
    value = torch.zeros_like(t)
    for coefficient in reversed(coefficients):
        value = (value + coefficient) * t
    return value
