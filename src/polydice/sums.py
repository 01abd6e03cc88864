"""The pass over the pixels: `(logits, target)` to a few sums per image and class. It checks what it is given."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polydice.kernels import eager, op

ACTIVATIONS = eager.ACTIVATIONS
IMPLEMENTATIONS = ("auto", "fused", "eager")


_UNWANTED: Any = None


class PixelSums(NamedTuple):
    """Sums over the pixels of one image, for each class: `[B, C]` each, `None` where not wanted. ŷ is the prediction
    after the activation, y the target; a float mask weighs every pixel's part."""

    intersection: Tensor = _UNWANTED  # Σ y·ŷ
    prediction: Tensor = _UNWANTED  # Σ ŷ
    prediction_sq: Tensor = _UNWANTED  # Σ ŷ²
    target: Tensor = _UNWANTED  # Σ y
    target_sq: Tensor = _UNWANTED  # Σ y²
    error_sq: Tensor = _UNWANTED  # Σ (y − ŷ)²
    cross_entropy: Tensor = _UNWANTED  # Σ −y·log ŷ (softmax), Σ of the binary one (sigmoid)
    pixels: Tensor = _UNWANTED  # pixels not ignored
    labels: bool = True  # whether the target was class labels (else masks)


FIELDS = eager.FIELDS


def pixel_sums(
    logits: Tensor,
    target: Tensor,
    *,
    activation: str = "softmax",
    ignore_index: int | None = None,
    mask: Tensor | None = None,
    want: Sequence[str] | None = None,
    impl: str = "auto",
) -> PixelSums:
    """One differentiable pass over the pixels, and all that any loss here is made of.

    logits `[B, C, *spatial]`; target `[B, *spatial]` or `[B, 1, *spatial]` class labels, or masks of the logits' own
    shape; mask `[B, *spatial]` or `[B, 1, *spatial]`, boolean or float weights, applied after the activation. Sums are
    float32, float64 for float64 logits. Wanted by default: every sum the activation allows.

    >>> logits = torch.tensor([[[2.0, -1.0], [0.0, 1.0]]])  # one image, two classes, two pixels
    >>> sums = pixel_sums(logits, torch.tensor([[0, 1]]), want=["intersection", "target"])
    >>> sums.intersection
    tensor([[0.8808, 0.8808]])
    """
    if want is None:
        want = [name for name in FIELDS if name != "cross_entropy" or activation != "none"]
    check_option("activation", activation, ACTIVATIONS)
    check_option("impl", impl, IMPLEMENTATIONS)
    _check_want(want, activation)
    given = prepare(logits, target, mask, eager.Options(activation, ignore_index, tuple(want)), impl)
    return unstack(given.stacked().to(result_dtype(logits)), given.options.want, given.labels)


def result_dtype(logits: Tensor) -> torch.dtype:
    return torch.float64 if logits.dtype == torch.float64 else torch.float32


def unstack(stacked: Tensor, want: Sequence[str], labels: bool) -> PixelSums:
    return PixelSums(**dict(zip(want, stacked.unbind(), strict=True)), labels=labels)


class Pass(NamedTuple):
    """A pass that has been checked."""

    logits: Tensor
    target: Tensor
    mask: Tensor | None
    options: eager.Options
    labels: bool
    fused: bool

    def stacked(self) -> Tensor:
        """The wanted sums, `[len(want), B, C]`, in the type they were accumulated in."""
        activation, ignore_index, want = self.options
        flat = eager.flatten(self.logits, self.target, self.mask, self.labels)
        sums: Tensor = op.pixel_sums(*flat, activation, ignore_index, list(want), self.fused)
        return sums


def prepare(logits: Tensor, target: Tensor, mask: Tensor | None, options: eager.Options, impl: str) -> Pass:
    """Checks the tensors, but for their values."""
    labels = _check(logits, target, mask, options)
    obstacle = op.fused_obstacle(logits)
    if impl == "auto" and logits.is_cuda and not torch.compiler.is_compiling():
        op.warn_without_triton()
    if impl == "fused" and obstacle:
        raise ValueError(f"impl='fused' is not possible here: {obstacle}")
    return Pass(logits, target, mask, options, labels, impl != "eager" and not obstacle)


def check_option(name: str, value: object, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}={value!r} is none of {', '.join(map(repr, allowed))}")


def _check_want(want: Sequence[str], activation: str) -> None:
    for name in want:
        check_option("want", name, FIELDS)
    if len(set(want)) != len(want) or not want:
        raise ValueError(f"want must name each sum once, and at least one: {tuple(want)}")
    if "cross_entropy" in want and activation == "none":
        raise ValueError("cross-entropy is computed from logits: activation='none' has none to offer")


def _check(logits: Tensor, target: Tensor, mask: Tensor | None, options: eager.Options) -> bool:
    """Whether the target is labels, decided by shape and type alone. Raises on what is neither labels nor masks."""
    for name, value in (("logits", logits), ("target", target)):
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a tensor: {type(value).__name__}")
    if mask is not None and not isinstance(mask, Tensor):
        raise ValueError(f"mask must be a tensor: {type(mask).__name__}; torch.as_tensor makes one")
    if not logits.is_floating_point():
        raise TypeError(f"logits must be floating: {_show(logits, target)}")
    if logits.ndim < 2:
        raise ValueError(f"logits must be [B, C, *spatial]: {_show(logits, target)}")
    if target.device != logits.device or (mask is not None and mask.device != logits.device):
        others = f"target on {target.device}" + ("" if mask is None else f", mask on {mask.device}")
        raise ValueError(f"logits are on {logits.device}, {others}")
    batch, classes, *spatial = logits.shape
    if classes == 0:
        raise ValueError(f"logits have no channel: {_show(logits, target)}")
    if options.activation == "softmax" and classes == 1:
        raise ValueError(f"a softmax over one channel is always 1; use activation='sigmoid': {_show(logits, target)}")
    integer = eager.is_integer(target)
    plane = ([batch, *spatial], [batch, 1, *spatial])
    labels = integer and list(target.shape) in plane and (classes == 1 or target.shape != logits.shape)
    if not labels and (target.shape != logits.shape or target.is_complex()):
        hint = "" if integer or list(target.shape) not in plane else "; class labels must be integers: target.long()"
        raise ValueError(
            f"target must be integer labels [B, *spatial] or [B, 1, *spatial], or masks of the logits' shape: "
            f"{_show(logits, target)}{hint}"
        )
    if not labels and options.ignore_index is not None:
        raise ValueError(
            f"ignore_index={options.ignore_index} needs labels; pass mask= to leave out pixels of masks: "
            f"{_show(logits, target)}"
        )
    if mask is not None and mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(f"mask must be boolean, or floating to weigh pixels: {_show(logits, target, mask)}")
    if mask is not None and list(mask.shape) not in plane:
        raise ValueError(f"mask must be [B, *spatial] or [B, 1, *spatial]: {_show(logits, target, mask)}")
    return labels


def _show(logits: Tensor, target: Tensor, mask: Tensor | None = None) -> str:
    given = {"logits": logits, "target": target} | ({} if mask is None else {"mask": mask})
    return ", ".join(f"{name} {list(t.shape)} {str(t.dtype).removeprefix('torch.')}" for name, t in given.items())
