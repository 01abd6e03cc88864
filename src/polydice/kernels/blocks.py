"""Some pixels of some images at a time, for the pass in plain torch: activated, beside their target.

A block is read, activated, compared and summed while it is in cache, so nothing of the logits' size is made. On a CPU
each thread takes blocks of its own.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polydice.kernels.annotation import merged
from polydice.kernels.fields import ON_REQUEST, Options
from polydice.kernels.threads import on_threads

# Elements (images x classes x pixels) of a block. On a CPU the two buffers of a float32 block take 1 MiB, about the
# L2 cache of a core; on an accelerator a block only bounds the memory, and wants to fill the device.
CPU_BLOCK = 1 << 17
ACCELERATOR_BLOCK = 1 << 24
SMALLEST_BLOCK = 1 << 15  # smaller ones are mostly overhead
FOR_A_THREAD = 1 << 17  # elements for which a thread is worth starting
# Up to so many elements a CPU computes in float64: there rounding does not average out, and time does not matter.
SMALL = 1 << 16
# Pixels that are summed in their own type before float64 takes over: ten times as exact as one float32 sum, and
# without the float64 copy of everything that `sum(dtype=...)` makes.
RUN = 256

IN_PLACE = {"prediction", "prediction_sq", "target", "target_sq", "error_sq"}


class Block(NamedTuple):
    """Logits `x`, target `y`, probabilities `p`, each `[b, C, n]`. `y` and `p` lie in buffers that the caller may
    overwrite; `spare` are three more, or none where nothing needs them."""

    target: Tensor  # as given, with 0 at pixels that do not count
    x: Tensor
    y: Tensor
    p: Tensor
    weight: Tensor | None  # [b, 1, n]
    spare: list[Tensor]
    line: Tensor  # [b, 1, n]: the labels, and free
    annotated: Tensor | None  # [b, C, 1]; all of an image of which nothing is: none of its pixels counts
    given: Tensor  # the logits before classes were merged


class Pass(NamedTuple):
    """All that a pass reads, and the images and pixels of its blocks, but for the last ones."""

    logits: Tensor  # [B, C, N]
    target: Tensor  # [B, N] labels or [B, C, N] masks
    mask: Tensor | None  # [B, N]
    options: Options
    annotated: Tensor | None  # [B, C]
    images: int
    pixels: int
    lean: bool  # whether two buffers are enough

    @property
    def runs(self) -> int:
        """Blocks of the same images."""
        return -(-self.logits.shape[2] // self.pixels)

    def cut(self, tensor: Tensor) -> list[Tensor]:
        """A tensor `[B, ..., N]` in parts, one for each block."""
        if self.images == len(tensor) and self.runs == 1:
            return [tensor]
        return [part for some in tensor.split(self.images) for part in some.split(self.pixels, -1)]

    def cut_images(self, tensor: Tensor, axis: int = 0) -> list[Tensor]:
        """A tensor without pixels likewise."""
        return [part for part in tensor.split(self.images, axis) for _ in range(self.runs)]


def make_pass(logits: Tensor, target: Tensor, mask: Tensor | None, options: Options, annotated: Tensor | None) -> Pass:
    """The blocks depend on shapes and options alone, not on the number of threads."""
    batch, classes, count = logits.shape
    unweighted = mask is None and annotated is None and options.ignore_index is None
    lean = unweighted and target.ndim == 2 and IN_PLACE.issuperset(options.want)
    size = ACCELERATOR_BLOCK
    if logits.device.type == "cpu":
        size = min(CPU_BLOCK, max(logits.numel() // 4, SMALLEST_BLOCK))
    if annotated is not None or not set(ON_REQUEST).isdisjoint(options.want):  # more buffers, made when needed
        size = size // 8
    elif not lean:
        size = size * 3 // 8
    return Pass(logits, target, mask, options, annotated, *block_size(batch, classes, count, size), lean)


def most_elements(device: torch.device) -> int:
    """Of a tensor that is made to be visited at once: two blocks on a CPU, so that two threads have work."""
    return 2 * CPU_BLOCK if device.type == "cpu" else ACCELERATOR_BLOCK


def block_size(batch: int, classes: int, count: int, size: int) -> tuple[int, int]:
    """Images and pixels of blocks with about `size` elements each, whole runs of pixels. An odd number of runs: the
    classes of a pixel, a multiple of 4 KiB apart, would crowd each other out of the nearest cache."""
    runs = -(-_even_share(count, max(1, size // classes)) // RUN) | 1
    pixels = max(1, min(count, runs * RUN))
    return _even_share(batch, max(1, size // (classes * pixels))), pixels


def _even_share(count: int, most: int) -> int:
    """Blocks of one size, none larger than `most`, instead of a short last one."""
    return max(1, -(-count // max(1, -(-count // most))))


def pixel_dtype(logits: Tensor) -> torch.dtype:
    small = logits.device.type == "cpu" and logits.numel() <= SMALL
    return torch.float64 if small or logits.dtype == torch.float64 else torch.float32


def is_integer(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def visit(work: Callable[..., None], over: Pass, *own: Sequence[Any]) -> None:
    """Calls `work` with each block and what it has of its own, one of each sequence."""
    masks = repeat(None) if over.mask is None else over.cut(over.mask)
    annotated = repeat(None) if over.annotated is None else over.cut_images(over.annotated.unsqueeze(2))
    pieces = list(zip(over.cut(over.logits), over.cut(over.target), masks, annotated, *own, strict=False))

    def each(pieces: Iterator[tuple[Any, ...]]) -> None:
        for block, its_own in _blocks(pieces, over):
            work(block, *its_own)

    if over.logits.device.type == "cpu":
        on_threads(each, pieces, most=max(1, over.logits.numel() // FOR_A_THREAD))
    else:
        each(iter(pieces))


def _blocks(pieces: Iterator[tuple[Any, ...]], over: Pass) -> Iterator[tuple[Block, list[Any]]]:
    classes, shape = over.logits.shape[1], None
    for x, target, mask, annotated, *its_own in pieces:
        if shape is None:
            # Memory is taken once: fresh pages for every block would cost more than the arithmetic.
            size, kind = over.images * over.pixels, pixel_dtype(over.logits)
            buffers = torch.empty(2 if over.lean else 5, size * classes, dtype=kind, device=x.device)
            lines = buffers.new_empty(size)
            # Label 1 is the foreground of a single channel, label c belongs to channel c of several.
            first = 1 if classes == 1 else 0
            labels = torch.arange(first, first + classes, dtype=kind, device=x.device).unsqueeze(1)
        if x.shape != shape:
            shape = x.shape
            room = list(buffers[:, : x.numel()].view(-1, *shape).unbind())
            line = lines[: x.numel() // classes].view(shape[0], 1, -1)
        yield _block(x, target, mask, annotated, over.options, room, line, labels), its_own


def _block(x: Tensor, target: Tensor, mask: Tensor | None, annotated: Tensor | None, options: Options,
           room: list[Tensor], line: Tensor, labels: Tensor) -> Block:  # fmt: skip
    if (options.ignore_index is not None or annotated is not None) and is_integer(target):
        target = target.long()  # an ignored label need not fit the type of the labels
    weight, valid = None, None if mask is None else mask != 0
    if options.ignore_index is not None:
        labelled = target != options.ignore_index
        valid = labelled if valid is None else valid & labelled
    if annotated is not None:
        something = annotated.any(1)  # [b, 1]
        valid = something.expand(-1, x.shape[2]) if valid is None else valid & something
        annotated = annotated | ~something.unsqueeze(1)
    y, p, *spare = room
    if valid is not None:
        weight = (valid if mask is None else valid * mask).to(y.dtype).unsqueeze(1)
        hidden = ~valid
        target = target.masked_fill(hidden if target.ndim == 2 else hidden.unsqueeze(1), 0)
        x = spare[2].copy_(x).masked_fill_(hidden.unsqueeze(1), 0)
    given = x
    if annotated is not None:
        given = x.to(y.dtype, copy=True)
        if options.activation == "softmax":
            given -= given.amax(1, keepdim=True)  # a softmax does not see it; the logarithm of a sum keeps its digits
        x = merged(given, annotated, options.activation)
    _activate(x if x.dtype == y.dtype and x.is_contiguous() else y.copy_(x), options.activation, out=p)
    if target.ndim == 2:
        # Floats compared into floats: several times faster than a boolean result, or than scattering ones.
        torch.eq(line.copy_(target.unsqueeze(1)), labels, out=y)
    else:
        y.copy_(target)
        if annotated is not None and options.activation == "softmax":
            y[:, 0] += y.masked_fill(annotated, 0).sum(1)
    if annotated is not None:
        y.masked_fill_(~annotated, 0)
    return Block(target, x, y, p, weight, spare, line, annotated, given)


def _activate(x: Tensor, activation: str, out: Tensor) -> None:
    if activation == "softmax":
        torch.softmax(x, 1, out=out)
    elif activation == "sigmoid":
        torch.sigmoid(x, out=out)
    else:
        out.copy_(x)
