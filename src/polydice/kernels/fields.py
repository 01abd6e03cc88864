"""The sums of a pass over the pixels, by name; what a pass is asked for; and how its tensors are read."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

_UNWANTED: Any = None


class PixelSums(NamedTuple):
    """Sums over the pixels of one image, for each class: `[B, C]` each, `None` where not wanted. ŷ is the prediction
    after the activation, y the target; a float mask weighs every pixel's part. `kernels/reference.py` defines them."""

    intersection: Tensor = _UNWANTED  # Σ y·ŷ
    prediction: Tensor = _UNWANTED  # Σ ŷ
    prediction_sq: Tensor = _UNWANTED  # Σ ŷ²
    target: Tensor = _UNWANTED  # Σ y
    target_sq: Tensor = _UNWANTED  # Σ y²
    error_sq: Tensor = _UNWANTED  # Σ (y − ŷ)²
    cross_entropy: Tensor = _UNWANTED  # Σ −y·log ŷ (softmax), Σ of the binary one (sigmoid)
    pixels: Tensor = _UNWANTED  # pixels not ignored
    labels: bool = True  # whether the target was class labels (else masks)


FIELDS = PixelSums._fields[:-1]  # the sums; kernels number them in this order
ACTIVATIONS = ("softmax", "sigmoid", "none")  # kernels number these too
IMPLEMENTATIONS = ("auto", "fused", "eager")


class Options(NamedTuple):
    """What the pass is asked for. `want` names the sums, in the order in which they come out."""

    activation: str
    ignore_index: int | None
    want: tuple[str, ...]


class Form(NamedTuple):
    """A loss as `kernels/tail.py` computes it: which of its formulas, and with which numbers."""

    kind: str  # one of fused.KINDS
    numbers: tuple[float, ...]  # four, in the order in which the formula reads them
    coefficients: tuple[float, ...] = ()  # of a polynomial


def sum_dtype(device: torch.device) -> torch.dtype:
    """Of the sums: float64 where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def is_integer(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def flatten(logits: Tensor, target: Tensor, mask: Tensor | None, labels: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """To `[B, C, N]`, `[B, N]` or `[B, C, N]`, and `[B, N]`."""
    batch, classes = logits.shape[:2]
    pixels = math.prod(logits.shape[2:])
    return (
        logits.reshape(batch, classes, pixels),
        target.reshape((batch, pixels) if labels else (batch, classes, pixels)),
        None if mask is None else mask.reshape(batch, pixels),
    )
