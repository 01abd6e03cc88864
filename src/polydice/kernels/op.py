"""`torch.ops.polydice.pixel_sums`: the pass over the pixels as one torch operator.

An operator, so that a tracer sees one node: the loop over blocks is not unrolled, and the checks of label values,
which depend on data, do not break the graph. Backward is an operator of its own that keeps nothing but the inputs.
"""

from collections.abc import Callable, Sequence
from functools import partial
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
_PLAIN = frozenset({Tensor, torch.nn.Parameter})
library = torch.library.Library("polydice", "DEF")
library.define(f"pixel_sums({_INPUTS}) -> Tensor")
library.define(f"pixel_sums_backward(Tensor grad, {_INPUTS}) -> Tensor")


def _forward(logits: Tensor, target: Tensor, mask: Tensor | None, activation: str, ignore_index: int | None,
             want: Sequence[str], fused: bool, gamma: float = 0.0,
             annotated: Tensor | None = None) -> Tensor:  # fmt: skip
    return forward(fused, logits, target, mask, Options(activation, ignore_index, tuple(want), gamma), annotated)


def _backward(grad: Tensor, logits: Tensor, target: Tensor, mask: Tensor | None, activation: str,
              ignore_index: int | None, want: Sequence[str], fused: bool, gamma: float = 0.0,
              annotated: Tensor | None = None) -> Tensor:  # fmt: skip
    options = Options(activation, ignore_index, tuple(want), gamma)
    return backward(fused, grad, logits, target, mask, options, annotated)


def forward(fused: bool, *inputs: Any) -> Tensor:
    """`eager.forward`, or the fused one of the same inputs."""
    if not fused:
        return eager.forward(*inputs)
    from polydice.kernels import fused as kernels

    return kernels.forward(*inputs)


def backward(fused: bool, *inputs: Any) -> Tensor:
    if not fused:
        return eager.backward(*inputs)
    from polydice.kernels import fused as kernels

    return kernels.backward(*inputs)


def _fake_forward(logits: Tensor, target: Tensor, mask: Tensor | None, activation: str, ignore_index: int | None,
                  want: Sequence[str], fused: bool, gamma: float = 0.0,
                  annotated: Tensor | None = None) -> Tensor:  # fmt: skip
    return logits.new_empty((len(want), *logits.shape[:2]), dtype=eager.sum_dtype(logits.device))


def _fake_backward(grad: Tensor, logits: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(logits)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    logits, target, mask, *ctx.options, annotated = inputs
    ctx.save_for_backward(logits, target, mask, annotated)


def _gradients(backward: Callable[..., Tensor], ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    *tensors, annotated = ctx.saved_tensors
    return backward(grad, *tensors, *ctx.options, annotated), *[None] * (3 + len(ctx.options))


def _refuse(ctx: Any, *_: Any) -> Any:
    raise RuntimeError("polydice's losses can be differentiated once, backwards: not twice, and not forwards")


def register(name: str, forward: Callable[..., Any], backward: Callable[..., Any], fakes: Sequence[Callable[..., Any]],
             save: Callable[..., None], gradients: Callable[..., Any]) -> Callable[..., Tensor]:  # fmt: skip
    """Makes the operator `name`, and `name_backward`, of what they compute. `save` keeps its inputs, and `gradients`
    calls the operator that it is given to make the inputs' gradients.

    What is returned is the operator. Under `torch.func.grad` and `vmap` it is differentiable too, and refuses forward
    mode, which would silently take it for a constant.
    """
    for operator, real, fake in zip((name, f"{name}_backward"), (forward, backward), fakes, strict=True):
        library.impl(operator, real, "CompositeExplicitAutograd")
        torch.library.register_fake(f"polydice::{operator}", fake, lib=library)
    there, back = getattr(torch.ops.polydice, name), getattr(torch.ops.polydice, f"{name}_backward")
    differentiate = partial(gradients, back)
    torch.library.register_autograd(f"polydice::{name}", differentiate, setup_context=save, lib=library)
    torch.library.register_autograd(f"polydice::{name}_backward", _refuse, lib=library)

    class Gradient(torch.autograd.Function):
        generate_vmap_rule = True
        forward = staticmethod(lambda *inputs: back(*inputs))
        backward = jvp = staticmethod(_refuse)
        setup_context = staticmethod(lambda ctx, inputs, output: None)

    class Sums(torch.autograd.Function):
        """The operator for the transforms of `torch.func`, which do not see through its own registration."""

        generate_vmap_rule = True
        forward = staticmethod(lambda *inputs: there(*inputs))
        backward = staticmethod(partial(gradients, Gradient.apply))
        setup_context = staticmethod(save)
        jvp = staticmethod(_refuse)

    class Direct(torch.autograd.Function):
        """The same without the operator, whose own way takes a quarter of a millisecond: nobody is looking."""

        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            output = forward(*inputs)
            save(ctx, inputs, output)
            return output

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            return gradients(Gradient.apply if torch.is_grad_enabled() else backward, ctx, grad)

    def call(*inputs: Any) -> Tensor:
        if torch.compiler.is_compiling():
            return there(*inputs)  # type: ignore[no-any-return]
        if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
            return Sums.apply(*inputs)  # type: ignore[no-any-return, no-untyped-call]
        seen = torch._C._len_torch_dispatch_stack() or any(
            isinstance(given, Tensor) and (type(given) not in _PLAIN or given.is_meta) for given in inputs
        )
        return there(*inputs) if seen else Direct.apply(*inputs)  # type: ignore[no-any-return, no-untyped-call]

    return call


def gradient(grad: Tensor, logits: Tensor, target: Tensor, mask: Tensor | None, annotated: Tensor | None,
             options: Options, labels: bool, fused: bool) -> Tensor:  # fmt: skip
    """Of the logits, from that of the sums, by the operator: for a loss whose own way is not open, since saved tensors
    came back as copies, maybe with other strides, or since somebody looks at operators."""
    activation, ignore_index, want, gamma = options
    flat = eager.flatten(logits, target, mask, labels)
    found = torch.ops.polydice.pixel_sums_backward(
        grad, *flat, activation, ignore_index, list(want), fused, gamma, annotated
    )
    return found.view_as(logits)  # type: ignore[no-any-return]


pixel_sums = register("pixel_sums", _forward, _backward, (_fake_forward, _fake_backward), _save, _gradients)
