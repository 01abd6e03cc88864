"""A loss as a function of the scale s and the angle θ: its value and slopes at any point, by the loss itself."""

import torch
from torch import Tensor

from polydice.base import AveragedLoss, RegionOptions
from polydice.sums import PixelSums

# Of a loss with δ that is evaluated here. δ = 0 as in the paper's figures: only then are s and θ those of the vectors.
OPTIONS: RegionOptions = {"smooth": 0.0}


def at(loss: AveragedLoss, s: Tensor | float, theta: Tensor) -> Tensor:
    """L(s, θ), for scales and angles that broadcast.

    It is the loss of two pixels: the mask y = (1, 0) and the prediction ŷ = ρ·(cos θ, sin θ), ρ ≤ 1, have the angle θ
    between them, and the scale s = 2ρ/(1 + ρ²). Beyond π/2, where the paper's figures go on, ŷ is no prediction: the
    loss is given the sums.

    >>> from polydice import DiceLoss
    >>> at(DiceLoss(**OPTIONS), 0.5, torch.tensor([0.0, torch.pi / 2], dtype=torch.float64))
    tensor([0.5000, 1.0000], dtype=torch.float64)
    """
    scale, theta = torch.broadcast_tensors(torch.as_tensor(s, dtype=theta.dtype), theta)
    rho = scale / (1 + (1 - scale.square()).sqrt())
    p = torch.stack([rho * theta.cos(), rho * theta.sin()]).reshape(2, -1, 1)
    y = p.new_tensor([1, 0]).view(2, 1, 1).expand_as(p)
    sums = PixelSums(
        intersection=(y * p).sum(0),
        prediction=p.sum(0),
        prediction_sq=p.square().sum(0),
        target=y.sum(0),
        target_sq=y.square().sum(0),
        error_sq=(y - p).square().sum(0),
    )
    return loss.per_class(sums).reshape(theta.shape)


def slopes(loss: AveragedLoss, s: Tensor | float, theta: Tensor) -> tuple[Tensor, Tensor]:
    """∂L/∂s and ∂L/∂θ by autograd, for s below 1 and θ below π: ρ(s) has no slope at 1, arccos none at −1."""
    points = torch.broadcast_tensors(torch.as_tensor(s, dtype=theta.dtype), theta)
    scale, angle = (part.clone().requires_grad_() for part in points)
    by_s, by_theta = torch.autograd.grad(at(loss, scale, angle).sum(), (scale, angle))
    return by_s, by_theta
