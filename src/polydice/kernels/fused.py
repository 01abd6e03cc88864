"""Launches the Triton kernels: the pass over the pixels for the operator, and a whole loss in three launches.

At 2D sizes the kernels take less time than a host needs to launch them, so what depends on shapes and options alone is
worked out once and kept: a call makes its key, allocates, and hands over pointers.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from polydice.kernels.eager import ACTIVATIONS, FIELDS, Options, flatten, sum_dtype
from polydice.kernels.tail import tail
from polydice.kernels.triton import pass_backward, pass_forward

KINDS = ("polynomial", "ratio", "overlap", "entropy")
MOST_ELEMENTS = 4096  # images x classes that the tail's one program takes
GATHERED = 8192  # partial sums that it adds up at a time
SERIES_TERMS = 40  # of the squared angle: the rest is below 2^-40 of it
SHARED_MEMORY = 99 * 1024  # of a multiprocessor that does not say: the least of those in use
INTERPRETED_PROGRAMS = 6  # where there is no device to fill: few, but several


class Term(NamedTuple):
    """One loss of a weighted sum, in numbers."""

    kind: str  # one of KINDS
    numbers: tuple[float, ...]  # four, in the order in which the tail reads them
    coefficients: tuple[float, ...]  # of a polynomial
    factor: float
    background: bool
    skip_absent: bool


def needed(terms: Sequence[Term], labels: bool, sigmoid: bool) -> tuple[str, ...]:
    """The sums that these terms are made of. The squares of labels are the labels: one sum does for both."""
    found: set[str] = set()
    for term in terms:
        if term.kind == "overlap":
            found |= {"intersection", "prediction", "target"}
        elif term.kind == "entropy":
            found |= {"cross_entropy", "target" if labels and not sigmoid else "pixels"}
            if term.numbers[0]:
                found |= {"intersection", "target", *(["prediction"] if sigmoid else [])}
        else:
            found |= {"prediction_sq", "error_sq", "target" if labels else "target_sq"}
    return tuple(name for name in FIELDS if name in found)


class Launch:
    """A kernel with all of its arguments but the tensors, which come first."""

    def __init__(self, kernel: Any, programs: int, numbers: Sequence[int], constants: dict[str, Any],
                 **options: int) -> None:  # fmt: skip
        self.kernel, self.grid = kernel, (programs, 1, 1)
        self.numbers, self.constants, self.options = tuple(numbers), constants, options
        self.compiled: dict[tuple[bool, ...], Any] = {}

    def __call__(self, *tensors: Tensor) -> None:
        pointers = [tensor.data_ptr() for tensor in tensors]
        aligned = tuple(pointer % 16 == 0 for pointer in pointers)
        ready = self.compiled.get(aligned)
        if ready is not None:
            # Past Triton's own argument handling, whose outcome depends on nothing else.
            ready(*pointers, *self.numbers, *self.constants.values())
            return
        ready = self.kernel[self.grid](*tensors, *self.numbers, **self.constants, **self.options)
        if ready is not None:  # the interpreter compiles nothing
            self.compiled[aligned] = ready[self.grid]


class Plan(NamedTuple):
    programs: int
    forward: Launch
    backward: Launch


class Tile(NamedTuple):
    """So many classes (a power of two) x pixels; the neighbours that one thread holds; warps, and the stages of
    loading ahead; programs on a multiprocessor at a time."""

    classes: int
    pixels: int
    vector: int
    warps: int
    stages: int
    resident: int


def tile(classes: int, pixels: int) -> Tile:
    """Measured on an H200. Up to 16 classes stay within a thread; more are shared out over lanes and warps."""
    block = triton.next_power_of_2(classes)
    if block > 256:  # a tile of these classes leaves no room to load ahead
        return Tile(block, 16, vector=4, warps=16, stages=1, resident=4)
    if block > 16:
        return Tile(block, 64 if block <= 128 else 32, vector=4, warps=max(2, block // 32), stages=3, resident=4)
    wide = max(1, 8 // block)
    if pixels < 1 << 18:
        return Tile(block, 128 * wide, vector=4, warps=1, stages=2, resident=8)
    return Tile(block, 256 * wide, vector=4, warps=2, stages=3, resident=4)


def forward(logits: Tensor, target: Tensor, mask: Tensor | None, options: Options) -> Tensor:
    """As `eager.forward`, for CUDA tensors."""
    if logits.numel() == 0:
        return torch.zeros(len(options.want), *logits.shape[:2], dtype=sum_dtype(logits.device), device=logits.device)
    plan = _plan_for(logits, target, mask, options)
    return _partials(plan, logits, target, mask, options).sum(1, dtype=sum_dtype(logits.device))


def backward(grad: Tensor, logits: Tensor, target: Tensor, mask: Tensor | None, options: Options) -> Tensor:
    """As `eager.backward`, for CUDA tensors."""
    if logits.numel() == 0:
        return torch.empty_like(logits)
    grad = grad.contiguous()
    return _gradient(_plan_for(logits, target, mask, options), grad, grad, logits, target, mask)


class FusedLoss(torch.autograd.Function):
    """A weighted sum of losses, from tensors with all of their axes."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, target: Tensor, mask: Tensor | None, weights: Tensor | None, labels: bool,
        activation: str, ignore_index: int | None, terms: tuple[Term, ...], mean: bool, over_batch: bool,
    ) -> Tensor:  # fmt: skip
        ctx.shape = logits.shape
        logits, target, mask = flatten(logits, target, mask, labels)
        batch, classes, _ = logits.shape
        sigmoid = activation == "sigmoid"
        options = Options(activation, ignore_index, needed(terms, labels, sigmoid))
        lump = (
            "cross_entropy" in options.want
            and labels
            and not sigmoid
            and weights is None
            and all(term.background for term in terms)
        )
        ctx.plan = _plan_for(logits, target, mask, options, scaled=True, lump=lump)
        partials = _partials(ctx.plan, logits, target, mask, options)
        loss = torch.empty((), dtype=torch.float32, device=logits.device)
        slopes = torch.empty((len(options.want), batch, classes), dtype=torch.float64, device=logits.device)
        tail = _plan_tail(
            batch, classes, ctx.plan.programs, options, terms, mean, over_batch, labels, weights is not None
        )
        with _current(logits.device):
            tail(partials, partials if weights is None else weights, loss, slopes)
        ctx.save_for_backward(logits, target, mask, slopes)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True: a second derivative would silently be 0
            raise RuntimeError("polydice's losses can be differentiated once, not twice")
        logits, target, mask, slopes = ctx.saved_tensors
        gradient = _gradient(ctx.plan, slopes, grad, logits, target, mask)
        return gradient.view(ctx.shape), *(None,) * 9


def _partials(plan: Plan, logits: Tensor, target: Tensor, mask: Tensor | None, options: Options) -> Tensor:
    """The sums of each program, `[len(want), programs, B, C]`."""
    shape = len(options.want), plan.programs, *logits.shape[:2]
    partials = torch.empty(shape, dtype=torch.float32, device=logits.device)
    with _current(logits.device):
        plan.forward(logits, _bytes(target), logits if mask is None else _bytes(mask), partials)
    return partials


def _gradient(plan: Plan, slopes: Tensor, scale: Tensor, logits: Tensor, target: Tensor,
              mask: Tensor | None) -> Tensor:  # fmt: skip
    result = torch.empty_like(logits)
    with _current(logits.device):
        plan.backward(slopes, scale, logits, _bytes(target), logits if mask is None else _bytes(mask), result)
    return result


def _plan_for(
    logits: Tensor, target: Tensor, mask: Tensor | None, options: Options, scaled: bool = False, lump: bool = False
) -> Plan:
    given = None if mask is None else (mask.dtype, mask.stride())
    return _plan(logits.device, logits.dtype, logits.shape, logits.stride(), target.dtype, target.stride(), given,
                 options, scaled, lump)  # fmt: skip


@lru_cache(maxsize=1024)
def _plan(
    device: torch.device, dtype: torch.dtype, shape: tuple[int, int, int], strides: tuple[int, ...],
    target_dtype: torch.dtype, target_strides: tuple[int, ...], mask: tuple[torch.dtype, tuple[int, ...]] | None,
    options: Options, scaled: bool, lump: bool,
) -> Plan:  # fmt: skip
    """One plan for every combination of shapes, strides, types and options: all that compilation depends on, but for
    the alignment of the pointers."""
    batch, classes, count = shape
    image, *channel, pixel = target_strides
    bytes_each = dtype.itemsize + (target_dtype.itemsize if channel else 0)
    block = _fitting(tile(classes, count), bytes_each, device)
    programs = min(triton.cdiv(count, block.pixels), triton.cdiv(_resident(device, block), batch))
    numbers = (
        classes, count, batch, programs, options.ignore_index or 0, *strides,
        image, channel[0] if channel else 0, pixel, *((0, 0) if mask is None else mask[1]),
    )  # fmt: skip
    reach = block.classes * max(strides[1], *channel, 0) + block.pixels * max(strides[2], pixel)
    constants = {
        "ACTIVATION": ACTIVATIONS.index(options.activation),
        "LABELS": not channel,
        "HAS_MASK": mask is not None,
        "HAS_IGNORE": options.ignore_index is not None,
        **_places(options.want),
        "EVEN": classes == block.classes and count % block.pixels == 0,
        "WIDE": reach >= 2**31,
        "BLOCK_C": block.classes,
        "BLOCK_N": block.pixels,
        "VECTOR": block.vector,
        "STAGES": block.stages,
        "LUMP": lump,
    }
    result = torch.empty_like(torch.empty_strided(shape, strides, dtype=dtype, device="meta"))
    return Plan(
        programs,
        Launch(pass_forward, batch * programs, numbers, constants, num_warps=block.warps),
        Launch(
            pass_backward, batch * programs, (*numbers, *result.stride()),
            constants | {"HAS_SCALE": scaled}, num_warps=block.warps,
        ),
    )  # fmt: skip


@lru_cache(maxsize=1024)
def _plan_tail(
    batch: int, classes: int, programs: int, options: Options, terms: tuple[Term, ...], mean: bool, over_batch: bool,
    labels: bool, weighted: bool,
) -> Launch:  # fmt: skip
    rows, columns = triton.next_power_of_2(batch), triton.next_power_of_2(classes)
    cells = triton.next_power_of_2(len(options.want) * batch * classes)
    constants = {
        "KIND": tuple(KINDS.index(term.kind) for term in terms),
        "NUMBERS": tuple(float(number) for term in terms for number in term.numbers),
        "COEFFICIENTS": (*(value for term in terms for value in term.coefficients), 0.0),  # never empty
        "BOUNDS": tuple(accumulate((len(term.coefficients) for term in terms), initial=0)),
        "FACTOR": tuple(term.factor for term in terms),
        "BACKGROUND": tuple(int(term.background) for term in terms),
        "SKIP": tuple(int(term.skip_absent) for term in terms),
        "MEAN": mean,
        "LABELS": labels,
        "SIGMOID": options.activation == "sigmoid",
        "WEIGHTS": weighted,
        "OVER_BATCH": over_batch,
        **_places(options.want),
        "SERIES": SERIES_TERMS,
        "FIELDS": len(options.want),
        "BLOCK_P": min(triton.next_power_of_2(programs), max(1, GATHERED // cells)),
        "BLOCK_J": cells,
        "BLOCK_B": rows,
        "BLOCK_C": columns,
    }
    return Launch(tail, 1, (batch, classes, programs), constants, num_warps=16)


def _places(want: tuple[str, ...]) -> dict[str, int]:
    return {name.upper(): want.index(name) if name in want else -1 for name in FIELDS}


def _fitting(block: Tile, bytes_each: int, device: torch.device) -> Tile:
    """Without loading ahead where the device's shared memory does not hold the tiles that wait."""
    if device.type != "cuda":
        return block
    room = getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", SHARED_MEMORY)
    waiting = (block.stages - 1) * block.classes * block.pixels * bytes_each
    return block if waiting <= 0.9 * room else block._replace(stages=1)


def _resident(device: torch.device, block: Tile) -> int:
    if device.type != "cuda":
        return INTERPRETED_PROGRAMS
    return block.resident * torch.cuda.get_device_properties(device).multi_processor_count


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Triton launches on the current device; the tensors may be on another."""
    if device.type != "cuda" or torch.cuda.current_device() == device.index:
        return nullcontext()
    return torch.cuda.device(device)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor
