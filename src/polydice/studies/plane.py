"""A loss as a function of the scale s and the angle θ: its value and slopes at any point, by the loss itself."""

import torch
from torch import Tensor

from polydice.base import RegionLoss, RegionOptions

# Of a loss that is evaluated here. δ = 0 as in the paper's figures: only then are s and θ those of the vectors alone.
OPTIONS: RegionOptions = {"activation": "none", "reduction": "none", "smooth": 0.0}


def at(loss: RegionLoss, s: Tensor | float, theta: Tensor) -> Tensor:
    """L(s, θ), for scales and angles that broadcast.

    An image of two pixels is enough: the mask y = (1, 0) and the prediction ŷ = ρ·(cos θ, sin θ), ρ ≤ 1, have the
    angle θ between them, and the scale s = 2ρ/(1 + ρ²).

    >>> from polydice import DiceLoss
    >>> at(DiceLoss(**OPTIONS), 0.5, torch.tensor([0.0, torch.pi / 2], dtype=torch.float64))
    tensor([0.5000, 1.0000], dtype=torch.float64)
    """
    scale, theta = torch.broadcast_tensors(torch.as_tensor(s, dtype=theta.dtype), theta)
    rho = scale / (1 + (1 - scale.square()).sqrt())
    prediction = torch.stack([rho * theta.cos(), rho * theta.sin()], dim=-1).reshape(-1, 1, 2)
    target = prediction.new_tensor([1, 0]).expand_as(prediction)
    value: Tensor = loss(prediction, target)
    return value.reshape(theta.shape)


def slopes(loss: RegionLoss, s: Tensor | float, theta: Tensor) -> tuple[Tensor, Tensor]:
    """∂L/∂s and ∂L/∂θ by autograd, for s below 1 and θ below π: ρ(s) has no slope at 1, arccos none at −1."""
    points = torch.broadcast_tensors(torch.as_tensor(s, dtype=theta.dtype), theta)
    scale, angle = (part.clone().requires_grad_() for part in points)
    by_s, by_theta = torch.autograd.grad(at(loss, scale, angle).sum(), (scale, angle))
    return by_s, by_theta
