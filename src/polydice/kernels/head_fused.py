"""Launches the kernels of `head_pass.py`: the sums and gradients for the operator, and a whole loss from features.

As `fused.py`, whose last steps it shares: what depends on shapes and options alone is worked out once and kept.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from polydice.kernels.eager import sum_dtype
from polydice.kernels.fields import ACTIVATIONS, ON_REQUEST, SUMS, Formula, Options
from polydice.kernels.fused import MOST_ELEMENTS, Ending, end, lumps, room_of, spec
from polydice.kernels.head_pass import head_backward, head_forward
from polydice.kernels.head_tiles import HeadTile, head_programs, head_tile
from polydice.kernels.launch import Launch, current_stream

Needed = tuple[bool, bool, bool]  # which gradients: of features, weight, bias


class Inputs(NamedTuple):
    """features `[B, F, N]`, weight `[C, F]`, bias `[C]`, target `[B, N]` or `[B, C, N]`, mask `[B, N]`: the tensors, or
    their `TensorSpec`."""

    features: Any
    weight: Any
    bias: Any
    target: Any
    mask: Any

    def specs(self) -> "Inputs":
        return Inputs(*(tensor if tensor is None else spec(tensor) for tensor in self))

    def pointers(self) -> list[Tensor]:
        """As the kernels take them: something in place of what is not there."""
        return [self.features if tensor is None else tensor for tensor in self]


class HeadLaunches(NamedTuple):
    """All launches of a loss from features, for tensors of certain shapes and types."""

    forward: Launch
    ending: Ending
    space: int  # numbers to work in, laid out as `tail` says
    options: Options
    lump: bool

    def __call__(self, inputs: Sequence[Tensor | None], weights: Tensor | None, added: Tensor | None) -> Tensor:
        """The inputs as `Inputs` says."""
        loss: Tensor = FusedHead.apply(*inputs, weights, added, self)  # type: ignore[no-untyped-call]
        return loss


def head_launches(formula: Formula, options: Options, labels: bool, inputs: Inputs) -> HeadLaunches | None:
    """None where there are more images and classes than the last step takes."""
    batch, classes = inputs.features.shape[0], inputs.weight.shape[0]
    if batch * classes > MOST_ELEMENTS:
        return None
    lump = lumps(formula, options, labels)
    forward = _launch(inputs, options, 3 * room_of(options, batch, classes), lump)
    programs = forward.grid[0] // batch
    ending, space = end(formula, options, labels, batch, classes, programs, inputs.features.device)
    return HeadLaunches(forward, ending, space, options, lump)


def sums(inputs: Inputs, options: Options) -> Tensor:
    """As `head.py` makes them by slabs."""
    features, batch, classes = inputs.features, inputs.features.shape[0], inputs.weight.shape[0]
    launch = _launch(inputs.specs(), options)
    shape = launch.grid[0] // batch, len(options.want), batch, classes
    partials = torch.empty(shape, dtype=torch.float32, device=features.device)
    with current_stream(features.device) as stream:
        launch(stream, *inputs.pointers(), partials)
    return partials.sum(0, dtype=sum_dtype(features.device))


def gradients(
    grad: Tensor, needed: Needed, inputs: Inputs, options: Options, lump: bool = False, scale: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Of features, weight and bias, from that of the sums, times `scale`; nothing of those that are not needed."""
    features, weight = inputs.features, inputs.weight
    classes, width = weight.shape
    of_features = torch.empty_like(features) if needed[0] else features.new_empty(0)
    launch = _launch(inputs.specs(), options, lump=lump, scaled=scale is not None, needed=needed)
    rows = torch.empty((launch.grid[0], classes * (width + 1)), dtype=torch.float32, device=features.device)
    grad = grad.contiguous()
    with current_stream(features.device) as stream:
        launch(stream, grad, grad if scale is None else scale, *inputs.pointers(), of_features, rows)
    cut = classes * width
    total = rows.sum(0, dtype=sum_dtype(features.device))  # with what is not needed: one kernel less
    of_weight = total[:cut].view(weight.shape) if needed[1] else total[:0]
    of_bias = total[cut:] if needed[2] else total[:0]
    return of_features, of_weight.to(weight.dtype), of_bias.to(weight.dtype)


class FusedHead(torch.autograd.Function):
    """A weighted sum of losses from features, by launches that were made for tensors of just these shapes and types."""

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, mask: Tensor | None,
        weights: Tensor | None, added: Tensor | None, launches: HeadLaunches,
    ) -> Tensor:  # fmt: skip
        inputs = Inputs(features, weight, bias, target, mask)
        space = torch.empty(launches.space, dtype=torch.float32, device=features.device)
        with current_stream(features.device) as stream:
            launches.forward(stream, *inputs.pointers(), space)
            loss = launches.ending(stream, space, weights, added)
        ctx.launches = launches
        ctx.save_for_backward(*inputs, space)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True: a second derivative would silently be 0
            raise RuntimeError("polydice's losses can be differentiated once, not twice")
        *saved, space = ctx.saved_tensors
        inputs, options, needed = Inputs(*saved), ctx.launches.options, tuple(ctx.needs_input_grad[:3])
        devices = [tensor.device for tensor in (grad, space, *inputs) if tensor is not None]
        if len(set(devices)) > 1:
            raise RuntimeError(f"features, target or mask changed their device between forward and backward: {devices}")
        slopes = space[: len(options.want) * inputs.features.shape[0] * inputs.weight.shape[0]]
        found = gradients(slopes, needed, inputs, options, ctx.launches.lump, grad)
        return *(each if need else None for each, need in zip(found, needed, strict=True)), *[None] * 5


@lru_cache(maxsize=1024)
def _launch(
    inputs: Inputs, options: Options, offset: int = 0, lump: bool = False, scaled: bool = False,
    needed: Needed | None = None,
) -> Launch:  # fmt: skip
    """The launch forward; backward, if it is said which gradients are needed."""
    features, weight, _, target, mask = inputs
    batch, width, count = features.shape
    block = head_tile(weight.shape[0], width, features.dtype, backward=needed is not None)
    programs = min(triton.cdiv(count, block.pixels), max(1, head_programs(features.device, block) // batch))
    image, *channel, pixel = target.strides
    numbers = (
        weight.shape[0], width, count, batch, programs, options.ignore_index or 0, *features.strides,
        image, channel[0] if channel else 0, pixel, *((0, 0) if mask is None else mask.strides),
    )  # fmt: skip
    constants = _constants(inputs, options, lump, block)
    if needed is None:
        kernel, numbers = head_forward, (offset, *numbers, options.gamma)
    else:
        result = torch.empty_like(torch.empty_strided(*features[:2], device="meta")).stride()
        kernel, numbers = head_backward, (*numbers, *result, options.gamma)
        constants |= {
            "OFFSET": "prediction" in options.want,
            "ENTROPY": "cross_entropy" in options.want,
            "HAS_SCALE": scaled,
            **dict(zip(("OF_FEATURES", "OF_WEIGHT", "OF_BIAS"), needed, strict=True)),
        }
    return Launch(
        kernel, batch * programs, numbers, constants, features.device,
        num_warps=block.warps, maxnreg=block.registers,
    )  # fmt: skip


def _constants(inputs: Inputs, options: Options, lump: bool, block: HeadTile) -> dict[str, Any]:
    features, target = inputs.features, inputs.target
    _, width, count = features.shape
    _, *channel, pixel = target.strides
    reach = max(
        block.features * features.strides[1] + count * features.strides[2],
        block.classes * sum(channel) + count * pixel,
    )
    return {
        "ACTIVATION": ACTIVATIONS.index(options.activation),
        "LABELS": not channel,
        "HAS_MASK": inputs.mask is not None,
        "HAS_IGNORE": options.ignore_index is not None,
        "HAS_BIAS": inputs.bias is not None,
        "WANT": tuple(SUMS.index(name) for name in options.want),
        "LUMP": lump,
        "ON_REQUEST": not set(ON_REQUEST).isdisjoint(options.want),
        "EVEN": count % block.pixels == 0,
        "WHOLE": width == block.features,
        "WIDE": reach >= 2**31,
        "BLOCK_C": block.classes,
        "BLOCK_F": block.features,
        "BLOCK_N": block.pixels,
        "REPEATS": block.repeats,
        "NEAR": block.near,
        "STAGES": block.stages,
    }
