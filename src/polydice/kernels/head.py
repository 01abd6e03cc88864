"""`torch.ops.polydice.head_sums`: the pass over the pixels from the features before a network's last layer.

The layer is a 1×1 convolution, so the logits of some pixels are one small matrix product. On a CUDA device one kernel
makes and uses them (`head_fused.py`), where head and tile fit. Otherwise they are made slab by slab, handed to the pass
there is (`eager.py` or `fused.py`) and dropped: never are there more logits than those of a slab, neither forward nor
backward, which makes them anew. An operator of its own for the reasons that `op.py` gives.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from polydice.kernels import blocks, eager, op
from polydice.kernels.fields import Options

_INPUTS = (
    "Tensor features, Tensor weight, Tensor? bias, Tensor target, Tensor? mask, str activation, int? ignore_index, "
    "str[] want, bool fused, float gamma=0.0, Tensor? annotated=None"
)
op.library.define(f"head_sums({_INPUTS}) -> Tensor")
op.library.define(f"head_sums_backward(Tensor grad, bool[] needed, {_INPUTS}) -> (Tensor, Tensor, Tensor)")


def _forward(features: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, mask: Tensor | None,
             activation: str, ignore_index: int | None, want: Sequence[str], fused: bool, gamma: float = 0.0,
             annotated: Tensor | None = None) -> Tensor:  # fmt: skip
    """features `[B, F, N]`, weight `[C, F]`, bias `[C]`, the rest as for `eager.forward`: sums `[len(want), B, C]`."""
    options = Options(activation, ignore_index, tuple(want), gamma)
    if _fits(fused, features, weight, annotated):
        from polydice.kernels import head_fused

        return head_fused.sums(head_fused.Inputs(features, weight.contiguous(), bias, target, mask), options)
    sums = torch.zeros(
        len(want), len(features), len(weight), dtype=eager.sum_dtype(features.device), device=features.device
    )
    with torch.autocast(features.device.type, enabled=False):  # every type is decided here
        for images, pixels, x in _slabs(features, len(weight)):
            part = _part(target, mask, images, pixels)
            known = None if annotated is None else annotated[images]
            sums[:, images] += op.forward(fused, _logits(x, weight, bias), *part, options, known)
    return sums


def _backward(grad: Tensor, needed: Sequence[bool], features: Tensor, weight: Tensor, bias: Tensor | None,
              target: Tensor, mask: Tensor | None, activation: str, ignore_index: int | None, want: Sequence[str],
              fused: bool, gamma: float = 0.0,
              annotated: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of features, weight and bias from that of the sums; nothing of those that are not needed. Weight's
    and bias's are added up slab after slab in the type of the sums."""
    options = Options(activation, ignore_index, tuple(want), gamma)
    if _fits(fused, features, weight, annotated):
        from polydice.kernels import head_fused

        inputs = head_fused.Inputs(features, weight.contiguous(), bias, target, mask)
        wanted = needed[0], needed[1], needed[2]
        of_features, of_weight, of_bias = head_fused.gradients(grad, wanted, inputs, options)
        return (
            features.new_empty(0) if of_features is None else of_features,
            weight.new_empty(0) if of_weight is None else of_weight,
            weight.new_empty(0) if of_bias is None else of_bias,
        )
    of_features = torch.empty_like(features) if needed[0] else features.new_empty(0)
    of_weight = grad.new_zeros(weight.shape if needed[1] else 0)
    of_bias = grad.new_zeros(len(weight) if needed[2] else 0)
    with torch.autocast(features.device.type, enabled=False):
        for images, pixels, x in _slabs(features, len(weight)):
            part = _part(target, mask, images, pixels)
            known = None if annotated is None else annotated[images]
            slope = op.backward(fused, grad[:, images], _logits(x, weight, bias), *part, options, known)  # [b, C, n]
            if needed[0]:
                of_features[images, :, pixels] = torch.bmm(weight.to(x.dtype).T.expand(len(x), -1, -1), slope)
            if needed[1]:
                of_weight += torch.bmm(slope, x.mT).sum(0, dtype=grad.dtype)
            if needed[2]:
                of_bias += slope.sum(2, dtype=torch.promote_types(x.dtype, torch.float32)).sum(0, dtype=grad.dtype)
    return of_features, of_weight.to(weight.dtype), of_bias.to(weight.dtype)


def _fits(fused: bool, features: Tensor, weight: Tensor, annotated: Tensor | None) -> bool:
    """Whether one kernel makes it all."""
    if not fused or annotated is not None or features.numel() == 0:
        return False
    from polydice.kernels.head_tiles import fits

    return fits(weight.shape, features.dtype, features.device)


def _slabs(features: Tensor, classes: int) -> Iterator[tuple[slice, slice, Tensor]]:
    """Images, pixels, and their features `[b, F, n]`: on a CPU float32 at least, in which the pass computes anyway,
    elsewhere of their own type, which the convolution's logits would be of. A slab has as many logits as a block of the
    pass; fewer where there are few classes, so that the gradient of its features is not much larger."""
    batch, width, count = features.shape
    if batch * count == 0:
        return
    at_least = torch.float32 if features.device.type == "cpu" else features.dtype
    dtype = torch.promote_types(features.dtype, at_least)
    step, length = blocks.block_size(batch, max(classes, width // 4), count, blocks.most_elements(features.device))
    for first in range(0, batch, step):
        for start in range(0, count, length):
            images, pixels = slice(first, first + step), slice(start, start + length)
            yield images, pixels, features[images, :, pixels].to(dtype)


def _logits(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    head = weight.to(x.dtype).expand(len(x), -1, -1)
    return torch.bmm(head, x) if bias is None else torch.baddbmm(bias.to(x.dtype).unsqueeze(1), head, x)


def _part(target: Tensor, mask: Tensor | None, images: slice, pixels: slice) -> tuple[Tensor, Tensor | None]:
    return target[images, ..., pixels], None if mask is None else mask[images, pixels]


def _fake_forward(features: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, mask: Tensor | None,
                  activation: str, ignore_index: int | None, want: Sequence[str], *_: Any) -> Tensor:  # fmt: skip
    shape = len(want), features.shape[0], weight.shape[0]
    return features.new_empty(shape, dtype=eager.sum_dtype(features.device))


def _fake_backward(grad: Tensor, needed: Sequence[bool], features: Tensor, weight: Tensor,
                   *_: Any) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return (
        torch.empty_like(features) if needed[0] else features.new_empty(0),
        weight.new_empty(weight.shape if needed[1] else 0),
        weight.new_empty(weight.shape[0] if needed[2] else 0),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    features, weight, bias, target, mask, *ctx.options, annotated = inputs
    ctx.save_for_backward(features, weight, bias, target, mask, annotated)


def _gradients(backward: Callable[..., Any], ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    needed = list(ctx.needs_input_grad[:3])
    *tensors, annotated = ctx.saved_tensors
    found = backward(grad, needed, *tensors, *ctx.options, annotated)
    return *(each if need else None for each, need in zip(found, needed, strict=True)), *[None] * (3 + len(ctx.options))


head_sums = op.register("head_sums", _forward, _backward, (_fake_forward, _fake_backward), _save, _gradients)
