"""Launches the Triton kernels: the pass over the pixels for the operator, and a whole loss in three launches.

At 2D sizes the kernels take less time than a host needs to launch them, so what depends on shapes and options alone is
worked out once and kept: a call makes its key, allocates, and hands over pointers.
"""

import math
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from polydice.kernels.eager import flatten, sum_dtype
from polydice.kernels.fields import ACTIVATIONS, FROM_LOGITS, ON_REQUEST, SUMS, Formula, Options
from polydice.kernels.launch import Launch, current_stream
from polydice.kernels.tail import gather, tail
from polydice.kernels.tiles import fitting, resident, tile
from polydice.kernels.triton import pass_backward, pass_forward

KINDS = ("polynomial", "ratio", "overlap", "entropy", "focal")
MOST_ELEMENTS = 4096  # images x classes that the tail's one program takes
MOST_PARTIALS = 1 << 14  # that it adds up by itself
TAIL_WARPS = 8
# Of the squared angle, by halves: 2^(k+1) / (k^2 binomial(2k, k)). The rest is below 2^-44 of it.
SERIES = tuple(2.0 ** (k + 1) / (k * k * math.comb(2 * k, k)) for k in range(1, 17))


class PixelLaunches(NamedTuple):
    """The two launches over the pixels, and the programs that each image has in them."""

    programs: int
    forward: Launch
    backward: Launch


class Ending(NamedTuple):
    """The launches that make a loss and its slopes of partial sums."""

    gather: Launch | None
    tail: Launch

    def __call__(
        self, stream: int, space: Tensor, weights: Tensor | None, added: Tensor | None, *annotated: Tensor
    ) -> Tensor:
        device = space.device
        if weights is not None and (weights.device != device or weights.dtype != torch.float64):
            raise ValueError(f"weights for logits on {device} must be float64 there: {weights.dtype}, {weights.device}")
        loss = torch.empty((), dtype=torch.float32, device=device)
        if self.gather is not None:
            self.gather(stream, space)
        nothing = space
        numbers = nothing if weights is None else weights, nothing if added is None else added
        self.tail(stream, space, *numbers, loss, *annotated)
        return loss


class LossLaunches(NamedTuple):
    """All launches of a loss, forward and backward, for tensors of certain shapes and types."""

    over_pixels: PixelLaunches
    ending: Ending
    space: int  # numbers to work in, laid out as `tail` says
    options: Options
    labels: bool

    def __call__(
        self, logits: Tensor, target: Tensor, mask: Tensor | None, weights: Tensor | None, added: Tensor | None,
        annotated: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        others = target, mask, weights, added, annotated if annotated is None else annotated.contiguous()
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
        ctx.launches, ctx.memory = launches, _memory(logits, target, mask)
        ctx.save_for_backward(logits, target, mask, annotated, space)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True: a second derivative would silently be 0
            raise RuntimeError("polydice's losses can be differentiated once, not twice")
        logits, target, mask, annotated, space = ctx.saved_tensors
        if ctx.memory != _memory(logits, target, mask):
            return _backward_of_copies(ctx.launches, grad, logits, target, mask, annotated, space), None, None
        result = torch.empty_like(logits)
        mask, given = logits if mask is None else mask, () if annotated is None else (annotated,)
        with current_stream(logits.device) as stream:
            ctx.launches.over_pixels.backward(stream, space, grad, logits, target, mask, result, *given)
        return result, None, None


def _memory(logits: Tensor, target: Tensor, mask: Tensor | None) -> tuple[int, ...]:
    return logits.data_ptr(), target.data_ptr(), 0 if mask is None else mask.data_ptr()


def _backward_of_copies(
    launches: LossLaunches, grad: Tensor, logits: Tensor, target: Tensor, mask: Tensor | None,
    annotated: Tensor | None, space: Tensor,
) -> Tensor:  # fmt: skip
    """For saved tensors that came back as copies, from the host's memory for one: their strides may be others."""
    devices = [tensor.device for tensor in (grad, logits, target, mask, annotated, space) if tensor is not None]
    if len(set(devices)) > 1:
        raise RuntimeError(f"logits, target or mask changed their device between forward and backward: {devices}")
    batch, classes = logits.shape[:2]
    slopes = space[: len(launches.options.want) * batch * classes].view(-1, batch, classes)
    flat = flatten(logits, target, mask, launches.labels)
    return backward(grad * slopes, *flat, launches.options, annotated).view_as(logits)


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
    return LossLaunches(over_pixels, ending, space, options, labels)


def lumps(formula: Formula, options: Options, labels: bool) -> bool:
    """Whether every class of a label weighs the same in the cross-entropy."""
    same_weights = not formula.weighted and all(term.background for term in formula.terms)
    return labels and options.activation == "softmax" and same_weights and "cross_entropy" in options.want


def room_of(options: Options, batch: int, classes: int) -> int:
    """Numbers that the slopes take in the space of `tail`: an even one, since float64 numbers begin at even places."""
    slopes = len(options.want) * batch * classes
    return slopes + slopes % 2


def end(
    formula: Formula, options: Options, labels: bool, batch: int, classes: int, programs: int, device: torch.device,
    partial: bool = False,
) -> tuple[Ending, int]:  # fmt: skip
    """What follows a pass of so many programs for each image, and the numbers in the space of all."""
    slopes, room = len(options.want) * batch * classes, room_of(options, batch, classes)
    many = slopes * programs > MOST_PARTIALS
    gathering = _gather(room, slopes, programs, device) if many else None
    ending = _tail(formula, options, labels, partial, room, batch, classes, 0 if many else programs, device)
    return Ending(gathering, ending), 3 * room + slopes * programs


@lru_cache(maxsize=1024)
def _pass(
    logits: TensorSpec, target: TensorSpec, mask: TensorSpec | None, result: TensorSpec, options: Options,
    partial: bool, offset: int = 0, lump: bool = False, scaled: bool = False,
) -> PixelLaunches:  # fmt: skip
    launches = [
        _launch(logits, target, mask, result, options, partial, offset, lump, scaled, backward)
        for backward in (False, True)
    ]
    return PixelLaunches(launches[0].grid[0] // logits.shape[0], *launches)


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
        "STAGES": block.stages,
        "ON_REQUEST": on_request,
        "ENTROPY": "cross_entropy" in options.want,
        "PARTIAL": partial,
    }
    registers = {"num_warps": block.warps, "maxnreg": block.registers}
    if backward:
        wanted = {"OFFSET": "prediction" in options.want, "HAS_SCALE": scaled}
        numbers = (*_absent(partial), *numbers, *result.strides, options.gamma)
        return Launch(pass_backward, batch * programs, numbers, constants | wanted, logits.device, **registers)
    levels = (len(options.want) * block.groups - 1).bit_length()
    constants |= {"TALLY": not channel and "target" in options.want, "LEVELS": levels}
    numbers = (*_absent(partial), offset, *numbers, options.gamma)
    return Launch(pass_forward, batch * programs, numbers, constants, logits.device, **registers)


def _absent(partial: bool) -> tuple[None, ...]:
    """`annotated`, the last of a kernel's tensors, where it is no tensor."""
    return () if partial else (None,)


def _gather(room: int, sums: int, programs: int, device: torch.device) -> Launch:
    blocks = {"BLOCK_P": 128, "BLOCK_J": 32}
    return Launch(gather, triton.cdiv(sums, 32), (room, sums, programs), blocks, device, num_warps=4)


def _tail(
    formula: Formula, options: Options, labels: bool, partial: bool, room: int, batch: int, classes: int,
    programs: int, device: torch.device,
) -> Launch:  # fmt: skip
    terms, forms = formula.terms, [term.form for term in formula.terms]
    rows_added = list(accumulate(bool(form.added) for form in forms))
    images = batch if formula.over_batch else 1
    rows, block = max(1, programs) * images, triton.next_power_of_2(batch * classes // images)
    split = min(max(1, 32 * TAIL_WARPS // block), triton.next_power_of_2(rows))
    constants = {
        "KIND": tuple(KINDS.index(form.kind) for form in forms),
        "NUMBERS": tuple(float(number) for form in forms for number in form.numbers),
        "COEFFICIENTS": (*(value for form in forms for value in form.coefficients), 0.0),  # never empty
        "BOUNDS": tuple(accumulate((len(form.coefficients) for form in forms), initial=0)),
        "ADDED": tuple(row - 1 if form.added else -1 for form, row in zip(forms, rows_added, strict=True)),
        "EACH_ADDED": formula.each_added,
        "FACTOR": tuple(term.factor for term in terms),
        "BACKGROUND": tuple(int(term.background) for term in terms),
        "SKIP": tuple(int(term.skip_absent) for term in terms),
        "MEAN": formula.mean,
        "LABELS": labels,
        "SIGMOID": options.activation == "sigmoid",
        "WEIGHTS": formula.weighted,
        "OVER_BATCH": formula.over_batch,
        **_places(options.want),
        "PARTIAL": partial,
        "SERIES": SERIES,
        "FIELDS": len(options.want),
        "GATHERED": programs == 0,
        "BLOCK": block,
        "SPLIT": split,
        "AT_ONCE": min(4, triton.cdiv(rows, 4 * split)),
        "BLOCK_B": triton.next_power_of_2(batch),
    }
    numbers = (*_absent(partial), room, batch, classes, max(1, programs))
    return Launch(tail, 1, numbers, constants, device, num_warps=TAIL_WARPS)


def _places(want: tuple[str, ...]) -> dict[str, int]:
    return {name.upper(): want.index(name) if name in want else -1 for name in SUMS}
