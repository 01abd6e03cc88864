"""What is measured of a loss, the same on every device."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from benchmarks.providers import LossFunction, Provider, reason

T = TypeVar("T")
Candidates = Sequence[tuple[Provider, LossFunction]]


class Effort(NamedTuple):
    """How long to measure: on a GPU each function by itself, on a CPU all of them in rounds."""

    gpu_ms: int = 60
    cpu_seconds: float = 10
    least_rounds: int = 7


class Spread(NamedTuple):
    """Milliseconds; no quantiles where the value is a difference of two others."""

    median: float
    q10: float | None = None
    q90: float | None = None


class Figures(NamedTuple):
    """`extra_bytes`: the most that forward and backward held at once, beyond the inputs and the gradient."""

    forward: Spread
    backward: Spread
    both: Spread
    extra_bytes: int
    note: str = ""


Outcome = Iterator[tuple[str, Figures | str]]  # a provider's figures, or why it has none


def attempt(measurement: Callable[[], T]) -> T | str:
    """The result, or the reason why there is none: too little memory, a shape that the peer does not take."""
    try:
        return measurement()
    except Exception as error:
        return reason(error)


def gradient(loss: LossFunction, logits: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    """Forward and backward. `autograd.grad` and not `backward`, which would add up gradients from call to call."""
    return torch.autograd.grad(loss(logits, target), learnt(loss, logits))


def learnt(loss: LossFunction, logits: Tensor) -> list[Tensor]:
    """What a gradient is made of: the logits, or the features and the head that the loss has."""
    return [logits, *loss.parameters()] if isinstance(loss, nn.Module) else [logits]
