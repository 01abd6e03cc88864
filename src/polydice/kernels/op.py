"""`torch.ops.polydice.pixel_sums`: the pass over the pixels as one torch operator.

An operator, so that a tracer sees one node: the loop over blocks is not unrolled, and the checks of label values,
which depend on data, do not break the graph. Backward is an operator of its own that keeps nothing but the inputs.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from polydice.kernels import eager
from polydice.kernels.fields import Options

_INPUTS = (
    "Tensor logits, Tensor target, Tensor? mask, str activation, int? ignore_index, str[] want, bool fused, "
    "float gamma=0.0, Tensor? annotated=None"
)
_library = torch.library.Library("polydice", "DEF")
_library.define(f"pixel_sums({_INPUTS}) -> Tensor")
_library.define(f"pixel_sums_backward(Tensor grad, {_INPUTS}) -> Tensor")


def _forward(logits: Tensor, target: Tensor, mask: Tensor | None, activation: str, ignore_index: int | None,
             want: Sequence[str], fused: bool, gamma: float = 0.0,
             annotated: Tensor | None = None) -> Tensor:  # fmt: skip
    options = Options(activation, ignore_index, tuple(want), gamma)
    if annotated is not None:  # the fused kernels do not know of it
        return eager.forward(logits, target, mask, options, annotated)
    sums: Tensor = _kernels(fused).forward(logits, target, mask, options)
    return sums


def _backward(grad: Tensor, logits: Tensor, target: Tensor, mask: Tensor | None, activation: str,
              ignore_index: int | None, want: Sequence[str], fused: bool, gamma: float = 0.0,
              annotated: Tensor | None = None) -> Tensor:  # fmt: skip
    options = Options(activation, ignore_index, tuple(want), gamma)
    if annotated is not None:
        return eager.backward(grad, logits, target, mask, options, annotated)
    gradient: Tensor = _kernels(fused).backward(grad, logits, target, mask, options)
    return gradient


def _kernels(fused: bool) -> Any:
    if fused:
        from polydice.kernels import fused as kernels

        return kernels
    return eager


def _fake_forward(logits: Tensor, target: Tensor, mask: Tensor | None, activation: str, ignore_index: int | None,
                  want: Sequence[str], fused: bool, gamma: float = 0.0,
                  annotated: Tensor | None = None) -> Tensor:  # fmt: skip
    return logits.new_empty((len(want), *logits.shape[:2]), dtype=eager.sum_dtype(logits.device))


def _fake_backward(grad: Tensor, logits: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(logits)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    logits, target, mask, *ctx.options, annotated = inputs
    ctx.save_for_backward(logits, target, mask, annotated)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    *flat, annotated = ctx.saved_tensors
    gradient = torch.ops.polydice.pixel_sums_backward(grad, *flat, *ctx.options, annotated)
    return gradient, *[None] * (3 + len(ctx.options))


def _refuse(ctx: Any, *_: Any) -> Any:
    raise RuntimeError("polydice's losses can be differentiated once, backwards: not twice, and not forwards")


class _Sums(torch.autograd.Function):
    """The operator for the transforms of `torch.func`, which do not see through its own registration."""

    generate_vmap_rule = True
    setup_context = staticmethod(_save)
    jvp = staticmethod(_refuse)

    @staticmethod
    def forward(*inputs: Any) -> Tensor:
        return torch.ops.polydice.pixel_sums(*inputs)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *flat, annotated = ctx.saved_tensors
        gradient = _Gradient.apply(grad, *flat, *ctx.options, annotated)  # type: ignore[no-untyped-call]
        return gradient, *[None] * (3 + len(ctx.options))


class _Gradient(torch.autograd.Function):
    generate_vmap_rule = True
    backward = jvp = staticmethod(_refuse)

    @staticmethod
    def forward(*inputs: Any) -> Tensor:
        return torch.ops.polydice.pixel_sums_backward(*inputs)  # type: ignore[no-any-return]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass


def pixel_sums(*inputs: Any) -> Tensor:
    """The operator. Under `torch.func.grad` and `vmap` it is differentiable too, and refuses forward mode, which would
    silently take it for a constant."""
    if not torch.compiler.is_compiling() and (
        torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    ):
        return _Sums.apply(*inputs)  # type: ignore[no-any-return, no-untyped-call]
    return torch.ops.polydice.pixel_sums(*inputs)  # type: ignore[no-any-return]


for _name, _real, _fake in (
    ("pixel_sums", _forward, _fake_forward),
    ("pixel_sums_backward", _backward, _fake_backward),
):
    _library.impl(_name, _real, "CompositeExplicitAutograd")
    torch.library.register_fake(f"polydice::{_name}", _fake, lib=_library)
torch.library.register_autograd("polydice::pixel_sums", _differentiate, setup_context=_save, lib=_library)
torch.library.register_autograd("polydice::pixel_sums_backward", _refuse, lib=_library)
