"""Launches the Triton kernels: the pass over the pixels for the operator, and a whole loss in three launches.

At 2D sizes the kernels take less time than a host needs to launch them, so what depends on shapes and options alone is
worked out once and kept: a call makes its key, allocates, and hands over pointers.
"""

import functools
import math
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.runtime import driver

from polydice.kernels import op
from polydice.kernels.eager import sum_dtype
from polydice.kernels.ending import MOST_ELEMENTS, Ending, absent, end, lumps, room_of
from polydice.kernels.fields import ACTIVATIONS, FROM_LOGITS, ON_REQUEST, SUMS, Formula, Options
from polydice.kernels.inputs import is_lazy, places
from polydice.kernels.launch import Launch, current_stream, driver_of
from polydice.kernels.node import Node
from polydice.kernels.tiles import fitting, resident, tile
from polydice.kernels.triton import pass_backward, pass_forward


class PixelLaunches(NamedTuple):
    """The two launches over the pixels, and the programs that each image has in them."""

    programs: int
    forward: Launch
    backward: Launch


class LossLaunches(NamedTuple):
    """All launches of a loss, forward and backward, for tensors of certain shapes and types."""

    over_pixels: PixelLaunches
    ending: Ending
    space: int  # numbers to work in, laid out as `tail` says
    options: Options
    labels: bool
    node: Node

    def __call__(
        self, logits: Tensor, target: Tensor, mask: Tensor | None, weights: Tensor | None, added: Tensor | None,
        annotated: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        others = target, mask, weights, added, annotated if annotated is None else annotated.contiguous()
        if logits.is_cuda and torch.version.cuda:
            made = self.node(driver.active.get_current_stream(logits.device.index), logits, *others)
            if made is not None:
                return made
        loss: Tensor = FusedLoss.apply(logits, others, self)  # type: ignore[no-untyped-call]
        return loss


def forward(
    logits: Tensor, target: Tensor, mask: Tensor | None, options: Options, annotated: Tensor | None = None
) -> Tensor:
    """As `eager.forward`, for CUDA tensors."""
    batch, classes, _ = logits.shape
    fields = len(options.want)
    if logits.numel() == 0:
        return torch.zeros(fields, batch, classes, dtype=sum_dtype(logits.device), device=logits.device)
    launches = _plain_pass(logits, target, mask, options, annotated is not None)
    partials = torch.empty((launches.programs, fields, batch, classes), dtype=torch.float32, device=logits.device)
    with current_stream(logits.device) as stream:
        launches.forward(stream, logits, target, logits if mask is None else mask, partials, *_given(annotated))
    return partials.sum(0, dtype=sum_dtype(logits.device))


def backward(
    grad: Tensor, logits: Tensor, target: Tensor, mask: Tensor | None, options: Options, annotated: Tensor | None = None
) -> Tensor:
    """As `eager.backward`, for CUDA tensors."""
    result = torch.empty_like(logits)
    if logits.numel() == 0:
        return result
    launches = _plain_pass(logits, target, mask, options, annotated is not None)
    grad, mask = grad.contiguous(), logits if mask is None else mask
    with current_stream(logits.device) as stream:
        launches.backward(stream, grad, grad, logits, target, mask, result, *_given(annotated))
    return result


def _plain_pass(
    logits: Tensor, target: Tensor, mask: Tensor | None, options: Options, partial: bool
) -> PixelLaunches:  # fmt: skip
    result = spec(torch.empty_like(logits, device="meta"))
    return _pass(spec(logits), spec(target), None if mask is None else spec(mask), result, options, partial)


def _given(annotated: Tensor | None) -> tuple[Tensor, ...]:
    return () if annotated is None else (annotated.contiguous(),)


class FusedLoss(torch.autograd.Function):
    """A weighted sum of losses, by launches that were made for tensors of just these shapes and types. All that has no
    gradient comes as one argument: each takes torch a while."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, others: tuple[Any, ...], launches: LossLaunches) -> Tensor:
        target, mask, weights, added, annotated = others
        given = () if annotated is None else (annotated,)
        space = torch.empty(launches.space, dtype=torch.float32, device=logits.device)
        with current_stream(logits.device) as stream:
            launches.over_pixels.forward(stream, logits, target, logits if mask is None else mask, space, *given)
            loss = launches.ending(stream, space, weights, added, *given)
        # What a checkpoint sees saved is the same by `node.cpp`, which may make the loss when it is computed again.
        ctx.launches, ctx.places, ctx.space = launches, places(logits, target, mask), space
        ctx.save_for_backward(logits, target, mask, annotated)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True: a second derivative would silently be 0
            raise RuntimeError("polydice's losses can be differentiated once, not twice")
        logits, target, mask, annotated = ctx.saved_tensors
        space = ctx.space
        if ctx.places != places(logits, target, mask) or is_lazy(grad):
            options, labels = ctx.launches.options, ctx.launches.labels
            return _backward_by_torch(options, labels, grad, logits, target, mask, annotated, space), None, None
        result = torch.empty_like(logits)
        mask, given = logits if mask is None else mask, () if annotated is None else (annotated,)
        with current_stream(logits.device) as stream:
            ctx.launches.over_pixels.backward(stream, space, grad, logits, target, mask, result, *given)
        return result, None, None


def _backward_by_torch(
    options: Options, labels: bool, grad: Tensor, logits: Tensor, target: Tensor, mask: Tensor | None,
    annotated: Tensor | None, space: Tensor,
) -> Tensor:  # fmt: skip
    devices = [tensor.device for tensor in (grad, logits, target, mask, annotated, space) if tensor is not None]
    if len(set(devices)) > 1:
        raise RuntimeError(f"logits, target or mask changed their device between forward and backward: {devices}")
    batch, classes = logits.shape[:2]
    slopes = space[: len(options.want) * batch * classes].view(-1, batch, classes)
    return op.gradient(grad * slopes, logits, target, mask, annotated, options, labels, fused=True)


class TensorSpec(NamedTuple):
    """All of a tensor that compilation depends on, but for the alignment of its pointer."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def flat(self, *shape: int) -> "TensorSpec | None":
        """As if it were viewed in another shape; None where that would take a copy."""
        meta = torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device="meta")
        try:
            return self._replace(shape=shape, strides=meta.view(shape).stride())
        except RuntimeError:
            return None


def spec(tensor: Tensor) -> TensorSpec:
    return TensorSpec(tensor.shape, tensor.stride(), tensor.dtype, tensor.device)


def loss_launches(
    formula: Formula, options: Options, labels: bool, logits: TensorSpec, target: TensorSpec, mask: TensorSpec | None,
    partial: bool = False,
) -> LossLaunches | None:  # fmt: skip
    """None where the tensors cannot be addressed as `[B, C, N]` and `[B, N]` as they lie, or have too many classes.
    `partial`: whether calls say what is annotated."""
    batch, classes, *spatial = logits.shape
    count = math.prod(spatial)
    result = spec(torch.empty_like(torch.empty_strided(*logits[:2], dtype=logits.dtype, device="meta")))
    flat = [
        logits.flat(batch, classes, count),
        target.flat(batch, count) if labels else target.flat(batch, classes, count),
        mask and mask.flat(batch, count),
        result.flat(batch, classes, count),
    ]
    if batch * classes > MOST_ELEMENTS or None in (flat[0], flat[1], flat[3]) or (mask and not flat[2]):
        return None
    room = room_of(options, batch, classes)
    over_pixels = _pass(*flat, options, partial, 3 * room, lumps(formula, options, labels), scaled=True)
    ending, space = end(formula, options, labels, batch, classes, over_pixels.programs, logits.device, partial)

    def describe(module: Any) -> Any:
        each = [launch for launch in (over_pixels.forward, *ending, over_pixels.backward) if launch is not None]
        if any(launch.of_aligned is None for launch in each):  # not all of them have been compiled yet
            return None
        by_torch = functools.partial(_backward_by_torch, options, labels)
        kernels = tuple(launch.described() for launch in each)
        return module.launches(by_torch, space, driver_of(logits.device), kernels)

    return LossLaunches(over_pixels, ending, space, options, labels, Node(describe))


@functools.lru_cache(maxsize=1024)
def _pass(
    logits: TensorSpec, target: TensorSpec, mask: TensorSpec | None, result: TensorSpec, options: Options,
    partial: bool, offset: int = 0, lump: bool = False, scaled: bool = False,
) -> PixelLaunches:  # fmt: skip
    launches = [
        _launch(logits, target, mask, result, options, partial, offset, lump, scaled, backward)
        for backward in (False, True)
    ]
    return PixelLaunches(launches[0].grid[1], *launches)


def _launch(
    logits: TensorSpec, target: TensorSpec, mask: TensorSpec | None, result: TensorSpec, options: Options,
    partial: bool, offset: int, lump: bool, scaled: bool, backward: bool,
) -> Launch:  # fmt: skip
    batch, classes, count = logits.shape
    image, *channel, pixel = target.strides
    bytes_each = logits.dtype.itemsize + (target.dtype.itemsize if channel else 0)
    half, channels_last = logits.dtype.itemsize == 2, logits.strides[1] == 1
    logarithms, on_request = (not set(names).isdisjoint(options.want) for names in (FROM_LOGITS, ON_REQUEST))
    limited = partial and not channel and not on_request  # masks, and what is on request, take more registers
    shape = tile(classes, count, half, channels_last, logarithms, backward, limited)
    block = fitting(shape, bytes_each, logits.device)
    programs = min(triton.cdiv(count, block.pixels), max(1, resident(logits.device, block) // batch))
    alone = programs * block.pixels >= count  # every program has one tile: there is none to load ahead
    numbers = (
        classes, count, batch, programs, options.ignore_index or 0, *logits.strides,
        image, channel[0] if channel else 0, pixel, *((0, 0) if mask is None else mask.strides),
    )  # fmt: skip
    reach = block.groups * block.classes * max(logits.strides[1], *channel, 0) + count * max(logits.strides[2], pixel)
    constants = {
        "ACTIVATION": ACTIVATIONS.index(options.activation),
        "LABELS": not channel,
        "HAS_MASK": mask is not None,
        "HAS_IGNORE": options.ignore_index is not None,
        "WANT": tuple(SUMS.index(name) for name in options.want),
        "LUMP": lump,
        "EVEN": count % block.pixels == 0,
        "FULL": classes == block.groups * block.classes,
        "WIDE": reach >= 2**31,
        "GROUPS": block.groups,
        "BLOCK_C": block.classes,
        "BLOCK_N": block.pixels,
        "VECTOR": block.vector,
        "STAGES": 1 if alone else block.stages,
        "ON_REQUEST": on_request,
        "ENTROPY": "cross_entropy" in options.want,
        "PARTIAL": partial,
    }
    registers = {"num_warps": block.warps, "maxnreg": block.registers}
    if backward:
        wanted = {"OFFSET": "prediction" in options.want, "HAS_SCALE": scaled, "SINGLE": alone and not partial}
        numbers = (*absent(partial), *numbers, *result.strides, options.gamma)
        return Launch(pass_backward, (batch, programs), numbers, constants | wanted, logits.device, **registers)
    levels = (len(options.want) * block.groups - 1).bit_length()
    constants |= {"TALLY": not channel and "target" in options.want, "LEVELS": levels}
    numbers = (*absent(partial), offset, *numbers, options.gamma)
    return Launch(pass_forward, (batch, programs), numbers, constants, logits.device, **registers)
