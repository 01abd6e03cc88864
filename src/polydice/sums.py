"""The pass over the pixels, as anybody may use it: `(logits, target)` to a few sums per image and class."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch import distributed as dist

from polydice.arguments import check_option, number
from polydice.kernels.fields import ACTIVATIONS, FIELDS, FROM_LOGITS, IMPLEMENTATIONS, SUMS, Options, PixelSums
from polydice.kernels.plan import plan_sums

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup  # absent from builds without torch.distributed

__all__ = ["PixelSums", "pixel_sums"]


def pixel_sums(
    logits: Tensor,
    target: Tensor,
    *,
    activation: str = "softmax",
    ignore_index: int | None = None,
    mask: Tensor | None = None,
    annotated: Tensor | None = None,
    gamma: float | None = None,
    want: Sequence[str] | None = None,
    impl: str = "auto",
) -> PixelSums:
    """One differentiable pass over the pixels, and all that any loss here is made of.

    Sums are float32, float64 for float64 logits.

    >>> logits = torch.tensor([[[2.0, -1.0], [0.0, 1.0]]])  # one image, two classes, two pixels
    >>> sums = pixel_sums(logits, torch.tensor([[0, 1]]), want=["intersection", "target"])
    >>> sums.intersection
    tensor([[0.8808, 0.8808]])

    Args:
        logits: `[B, C, *spatial]`.
        target: `[B, *spatial]` or `[B, 1, *spatial]` class labels, or masks of the logits' own shape.
        activation: "softmax", "sigmoid" (channels that overlap), or "none" where the network gives probabilities.
        ignore_index: label of pixels that do not count.
        mask: `[B, *spatial]` or `[B, 1, *spatial]`, boolean or float weights, applied after the activation.
        annotated: `[B, C]`, booleans: a class that is not annotated in an image has no sums there, and with softmax is
            background.
        gamma: γ of the sum `focal`, at least 0.
        want: names of the sums; if not given, every one that the activation allows, but not `uniform`, and `focal` only
            if its γ is given.
        impl: "fused" (Triton, on CUDA), "eager" (torch), or "auto": fused where that can be.
    """
    if want is None:
        want = [name for name in FIELDS if name not in FROM_LOGITS or activation != "none"]
        want += [] if gamma is None else ["focal"]
    check_option("activation", activation, ACTIVATIONS)
    check_option("impl", impl, IMPLEMENTATIONS)
    _check_want(want, activation)
    if "focal" in want and gamma is None:
        raise ValueError("the sum 'focal' needs its γ: gamma=...")
    exponent = 0.0 if gamma is None else number("gamma", gamma, least=0)
    options = Options(activation, ignore_index, tuple(want), exponent)
    plan = plan_sums(logits, target, mask, options, impl, annotated)
    return plan.unstack(plan.sums(logits, target, mask, annotated).to(plan.dtype))


def over_processes(sums: Tensor, group: "ProcessGroup") -> Tensor:
    total: Tensor = _AllReduce.apply(sums, group)  # type: ignore[no-untyped-call]
    return total


class _AllReduce(torch.autograd.Function):
    """The sum over the processes. Each process's loss depends on every process's pixels, so the gradients are summed
    too: they are the world size times those of one process, which is what DDP's mean divides by."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: "ProcessGroup") -> Tensor:
        ctx.group = group
        total = tensor.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _AllReduce.apply(grad, ctx.group), None  # type: ignore[no-untyped-call]


def _check_want(want: Sequence[str], activation: str) -> None:
    for name in want:
        check_option("want", name, SUMS)
    if len(set(want)) != len(want) or not want:
        raise ValueError(f"want must name each sum once, and at least one: {tuple(want)}")
    if activation == "none" and not set(FROM_LOGITS).isdisjoint(want):
        raise ValueError("cross-entropy is computed from logits: activation='none' has none to offer")
    if "uniform" in want and activation != "softmax":
        raise ValueError(f"the sum 'uniform' is that of a softmax, not of activation={activation!r}")
