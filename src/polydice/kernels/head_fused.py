"""Launches the kernels of `head_pass.py`: the sums and gradients for the operator, and a whole loss from features.

As `fused.py`, whose last steps it shares: what depends on shapes and options alone is worked out once and kept.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from polydice.kernels.eager import sum_dtype
from polydice.kernels.ending import MOST_ELEMENTS, Ending, end, lumps, room_of
from polydice.kernels.fields import ACTIVATIONS, ON_REQUEST, SUMS, Formula, Options
from polydice.kernels.fused import TensorSpec, spec
from polydice.kernels.head_pass import head_backward, head_collect, head_forward
from polydice.kernels.head_tiles import HeadTile, fits, head_programs, head_tile
from polydice.kernels.inputs import places
from polydice.kernels.launch import Launch, current_stream

Needed = tuple[bool, bool, bool]  # which gradients: of features, weight, bias
COLLECTED = 128, 32  # programs' parts, and numbers of each, that are added up at a time


class Inputs(NamedTuple):
    """features `[B, F, *spatial]`, weight `[C, F]` and ones, bias `[C]`, target `[B, *spatial]` or `[B, C, *spatial]`,
    mask `[B, *spatial]`: the tensors, or their `TensorSpec`."""

    features: Any
    weight: Any
    bias: Any
    target: Any
    mask: Any

    def specs(self) -> "Inputs":
        return Inputs(*[tensor if tensor is None else spec(tensor) for tensor in self])

    def pointers(self) -> list[Tensor]:
        """As the kernels take them: something in place of what is not there."""
        return [self.features if tensor is None else tensor for tensor in self]

    def flat(self, labels: bool) -> "Inputs | None":
        """Of specs: with all pixels along one axis; None where the kernels could not address them as they lie."""
        features, weight, bias, target, mask = self
        batch, width, *spatial = features.shape
        classes, count = weight.shape[0], math.prod(spatial)
        found = Inputs(
            features.flat(batch, width, count),
            weight.flat(classes, width),
            bias,
            target.flat(batch, count) if labels else target.flat(batch, classes, count),
            mask and mask.flat(batch, count),
        )
        if None in (found.features, found.weight, found.target) or (mask and not found.mask):
            return None
        in_a_row = found.weight.strides == (width, 1) and (bias is None or bias.strides == (1,))
        return found if in_a_row else None


class Gradients(NamedTuple):
    """The launches that make the gradients of features, weight and bias, those that are needed."""

    needed: Needed
    over_pixels: Launch
    collect: Launch
    rows: int  # numbers in all programs' parts of the gradients of weight and bias

    def __call__(self, slopes: Tensor, scale: Tensor, inputs: Inputs) -> list[Tensor | None]:
        """From the slopes of the sums, times `scale`."""
        found = [torch.empty_like(tensor) if need else None for tensor, need in zip(inputs, self.needed, strict=False)]
        features = inputs.features
        rows = torch.empty(self.rows, dtype=torch.float32, device=features.device)
        of_features, of_weight, of_bias = [rows if each is None else each for each in found]
        with current_stream(features.device) as stream:
            self.over_pixels(stream, slopes, scale, *inputs.pointers(), of_features, rows)
            if self.needed[1] or self.needed[2]:
                self.collect(stream, rows, of_weight, of_bias)
        return found


class HeadLaunches(NamedTuple):
    """All launches of a loss from features, for tensors of certain shapes and types."""

    forward: Launch
    ending: Ending
    space: int  # numbers to work in, laid out as `tail` says
    backward: dict[Needed, Gradients]  # as far as they were asked for
    inputs: Inputs  # their specs, flat, and the strides of the gradient of the features
    result: tuple[int, ...]
    options: Options
    lump: bool

    def __call__(self, inputs: Sequence[Tensor | None], weights: Tensor | None, added: Tensor | None) -> Tensor:
        """The inputs as `Inputs` says."""
        loss: Tensor = FusedHead.apply(*inputs, weights, added, self)  # type: ignore[no-untyped-call]
        return loss

    def gradients(self, needed: Needed) -> Gradients:
        found = self.backward.get(needed)
        if found is None:
            found = _gradients(self.inputs, self.result, self.options, needed, self.lump, scaled=True)
            self.backward[needed] = found
        return found


def head_launches(formula: Formula, options: Options, labels: bool, inputs: Inputs) -> HeadLaunches | None:
    """None where the inputs cannot be addressed as they lie, where one kernel cannot take the head, and where there are
    more images and classes than the last step takes."""
    batch, classes, device = inputs.features.shape[0], inputs.weight.shape[0], inputs.features.device
    flat = inputs.flat(labels)
    result = flat and _like(inputs.features).flat(*flat.features.shape)
    if (
        flat is None
        or result is None
        or not fits(flat.weight.shape, flat.features.dtype, device)
        or batch * classes > MOST_ELEMENTS
    ):
        return None
    lump = lumps(formula, options, labels)
    forward = _launch(flat, options, 3 * room_of(options, batch, classes), lump)
    ending, space = end(formula, options, labels, batch, classes, forward.grid[0] // batch, device)
    return HeadLaunches(forward, ending, space, {}, flat, result.strides, options, lump)


def sums(inputs: Inputs, options: Options) -> Tensor:
    """As `head.py` makes them by slabs, of flat inputs."""
    features, batch, classes = inputs.features, inputs.features.shape[0], inputs.weight.shape[0]
    launch = _launch(inputs.specs(), options)
    shape = launch.grid[0] // batch, len(options.want), batch, classes
    partials = torch.empty(shape, dtype=torch.float32, device=features.device)
    with current_stream(features.device) as stream:
        launch(stream, *inputs.pointers(), partials)
    return partials.sum(0, dtype=sum_dtype(features.device))


def gradients(
    grad: Tensor, needed: Needed, inputs: Inputs, options: Options, lump: bool = False, scale: Tensor | None = None
) -> list[Tensor | None]:
    """Of features, weight and bias, those that are needed, from that of the sums, times `scale`, of flat inputs."""
    specs, grad = inputs.specs(), grad.contiguous()
    made = _gradients(specs, _like(specs.features).strides, options, needed, lump, scale is not None)
    return made(grad, grad if scale is None else scale, inputs)


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
        ctx.launches, ctx.places = launches, places(*inputs)
        ctx.save_for_backward(*inputs, space)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True: a second derivative would silently be 0
            raise RuntimeError("polydice's losses can be differentiated once, not twice")
        *saved, space = ctx.saved_tensors
        inputs, launches, needed = Inputs(*saved), ctx.launches, ctx.needs_input_grad[:3]
        if ctx.places == places(*inputs):
            found = launches.gradients(needed)(space, grad, inputs)
        else:
            found = _gradients_of_copies(launches, needed, space, grad, inputs)
        return *found, None, None, None, None, None


def _gradients_of_copies(
    launches: HeadLaunches, needed: Needed, space: Tensor, grad: Tensor, inputs: Inputs
) -> list[Tensor | None]:
    """For saved tensors that came back as copies, from the host's memory for one: their strides may be others."""
    devices = [tensor.device for tensor in (grad, space, *inputs) if tensor is not None]
    if len(set(devices)) > 1:
        raise RuntimeError(f"features, target or mask changed their device between forward and backward: {devices}")
    features, weight, bias, target, mask = inputs
    target = target.flatten(len(launches.inputs.target.shape) - 1)
    flat = Inputs(
        features.flatten(2), weight.flatten(1).contiguous(), bias, target, mask if mask is None else mask.flatten(1)
    )
    found = gradients(space, needed, flat, launches.options, launches.lump, grad)
    return [each if each is None else each.view(given.shape) for each, given in zip(found, inputs, strict=False)]


def _like(features: TensorSpec) -> TensorSpec:
    """What `empty_like` makes of them."""
    return spec(torch.empty_like(torch.empty_strided(*features[:2], dtype=features.dtype, device="meta")))


@lru_cache(maxsize=1024)
def _gradients(
    inputs: Inputs, result: tuple[int, ...], options: Options, needed: Needed, lump: bool, scaled: bool
) -> Gradients:
    """Of flat inputs, and the strides of the features' gradient."""
    over_pixels = _launch(inputs, options, lump=lump, scaled=scaled, needed=needed, result=result)
    (classes, width), programs = inputs.weight.shape, over_pixels.grid[0]
    cut, count = classes * width, classes * (width + 1)
    constants = {"OF_WEIGHT": needed[1], "OF_BIAS": needed[2], "BLOCK_P": COLLECTED[0], "BLOCK_J": COLLECTED[1]}
    collect = Launch(
        head_collect, (triton.cdiv(count, COLLECTED[1]), 1), (cut, count, programs), constants, inputs.features.device,
        num_warps=4,
    )  # fmt: skip
    return Gradients(needed, over_pixels, collect, programs * count)


@lru_cache(maxsize=1024)
def _launch(
    inputs: Inputs, options: Options, offset: int = 0, lump: bool = False, scaled: bool = False,
    needed: Needed | None = None, result: tuple[int, ...] = (),
) -> Launch:  # fmt: skip
    """The launch forward; backward, if it is said which gradients are needed, and how that of the features lies."""
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
        kernel, numbers = head_backward, (*numbers, *result, options.gamma)
        constants |= {
            "OFFSET": "prediction" in options.want,
            "ENTROPY": "cross_entropy" in options.want,
            "HAS_SCALE": scaled,
            **dict(zip(("OF_FEATURES", "OF_WEIGHT", "OF_BIAS"), needed, strict=True)),
        }
    return Launch(
        kernel, (batch * programs, 1), numbers, constants, features.device,
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
