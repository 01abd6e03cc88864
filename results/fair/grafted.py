"""The direction of one loss's gradient with the size of another's: is it the step or the shape that helps?

In a recipe beside this file: `grafted:Grafted("DiceLoss(batch=True)", "TvMFDiceLoss(0.0, batch=True)")`.
"""

from typing import Any

import torch
from torch import Tensor, nn

from polydice.training.expression import parse_loss


class Grafted(nn.Module):
    """The value of `direction`; its gradient g at the logits becomes g·‖h‖/‖g‖, h being that of `size`.

    The norms are over the whole batch. Where g is 0 it stays 0.

    >>> loss = Grafted("DiceLoss()", "2 * DiceLoss()")  # twice Dice, but for the value
    """

    def __init__(self, direction: str, size: str) -> None:
        super().__init__()
        self.direction, self.size = parse_loss(direction), parse_loss(size)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        leaf = logits.detach().requires_grad_()
        value, gradient = _value_and_gradient(self.direction, leaf, target)
        _, other = _value_and_gradient(self.size, leaf, target)
        norm = gradient.norm()
        factor = torch.where(norm > 0, other.norm() / norm, 0)
        return _WithGradient.apply(logits, value, factor * gradient)


def _value_and_gradient(loss: nn.Module, leaf: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        value = loss(leaf, target)
    return value.detach(), torch.autograd.grad(value, leaf)[0]


class _WithGradient(torch.autograd.Function):
    """A value whose gradient is the one that is given."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return incoming * gradient, None, None
