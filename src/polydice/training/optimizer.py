"""The optimiser of a run, and how its rate falls."""

from collections.abc import Iterable

import torch
from torch import nn

from polydice.training.config import Settings


def make_optimizer(settings: Settings, parameters: Iterable[nn.Parameter], fused: bool) -> torch.optim.Optimizer:
    """SGD adds `decay` times the weights to the gradient, so that the momentum has it too. AdamW keeps it out of its
    moments: each step takes `rate · decay` times the weights from them."""
    given = settings.optimization
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(parameters, given["rate"], weight_decay=given["decay"], fused=fused)
    return torch.optim.SGD(
        parameters, given["rate"], given["momentum"], weight_decay=given["decay"], nesterov=settings.nesterov,
        fused=fused,
    )  # fmt: skip


def set_rate(optimizer: torch.optim.Optimizer, settings: Settings, step: int, steps: int) -> None:
    """The rate of a step, counted from 0: it falls as a polynomial, from the settings' rate to 0 after all `steps`."""
    for group in optimizer.param_groups:
        group["lr"] = settings.optimization["rate"] * (1 - step / steps) ** settings.power
