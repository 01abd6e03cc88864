"""The pass over the pixels in plain torch: any device, any floating type. `reference.py` says what it computes.

The pixels are visited in blocks. Each block is activated, compared with its target and summed while it is in cache,
so nothing of the logits' size is made, forward or backward. The sums leave in float64 where the device has it:
they are a few numbers, and what the geometry forms of them cancels.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from polydice.kernels.annotation import merged, refuse_strays, refuse_without_background, unmerged
from polydice.kernels.entropy import cross_entropy, focal, focal_gradient, surprise_of
from polydice.kernels.fields import ON_REQUEST, Options

# Elements (images x classes x pixels) of a block. On a CPU the two buffers of a float32 block take 2 MiB, about the
# L2 caches; on an accelerator a block only bounds the memory, and wants to fill the device.
CPU_BLOCK = 1 << 18
ACCELERATOR_BLOCK = 1 << 24
# Up to so many elements a CPU computes in float64: there rounding does not average out, and time does not matter.
SMALL = 1 << 16
TOLERANCE = 1e-3  # by which a probability may be beyond 0 or 1: more than any rounding, less than any mistake
PROBABLE = -TOLERANCE, 1 + TOLERANCE
LARGEST = 2.0**120  # slope of a sum: a few of them can be added up in float32
# Pixels that are summed in their own type before float64 takes over: ten times as exact as one float32 sum, and
# without the float64 copy of everything that `sum(dtype=...)` makes.
RUN = 256

IN_PLACE = {"prediction", "prediction_sq", "target", "target_sq", "error_sq"}


class Block(NamedTuple):
    """Some pixels of some images: logits `x`, target `y`, probabilities `p`, each `[b, C, n]`. `y` and `p` lie in
    buffers that the caller may overwrite; `spare` are three more, or none where nothing needs them."""

    images: slice
    pixels: slice
    target: Tensor  # as given, with 0 at pixels that do not count
    x: Tensor
    y: Tensor
    p: Tensor
    weight: Tensor | None  # [b, 1, n]
    spare: list[Tensor]
    line: Tensor  # [b, 1, n], free
    annotated: Tensor | None  # [b, C, 1]; all of an image of which nothing is: none of its pixels counts
    given: Tensor  # the logits before classes were merged


def sum_dtype(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64


def pixel_dtype(logits: Tensor) -> torch.dtype:
    small = logits.device.type == "cpu" and logits.numel() <= SMALL
    return torch.float64 if small or logits.dtype == torch.float64 else torch.float32


def is_integer(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def flatten(logits: Tensor, target: Tensor, mask: Tensor | None, labels: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """To `[B, C, N]`, `[B, N]` or `[B, C, N]`, and `[B, N]`."""
    batch, classes = logits.shape[:2]
    pixels = math.prod(logits.shape[2:])
    return (
        logits.reshape(batch, classes, pixels),
        target.reshape((batch, pixels) if labels else (batch, classes, pixels)),
        None if mask is None else mask.reshape(batch, pixels),
    )


def forward(
    logits: Tensor, target: Tensor, mask: Tensor | None, options: Options, annotated: Tensor | None = None
) -> Tensor:
    """logits `[B, C, N]`, target `[B, N]` labels or `[B, C, N]` masks, mask `[B, N]`, annotated `[B, C]`
    -> sums `[len(want), B, C]`."""
    batch, classes, _ = logits.shape
    dtype = sum_dtype(logits.device)
    sums = torch.zeros(len(options.want), batch, classes, dtype=dtype, device=logits.device)
    if annotated is not None and options.activation == "softmax":
        refuse_without_background(annotated, sums)
    for block in _blocks(logits, target, mask, options, annotated):
        here = sums[:, block.images]
        _refuse_bad_values(block, options.activation, here)
        runs = {name: _runs(values, block) for name, values in _summands(block, options)}
        here += torch.stack([runs[name] for name in options.want]).sum(3, dtype=dtype)
        if is_integer(target) and (target.ndim == 2 or annotated is None):
            _refuse_bad_labels(block.target, max(classes, 2) if target.ndim == 2 else 2, here)
        if block.annotated is not None and target.ndim == 2:
            refuse_strays(block.target, block.annotated, block.weight, here)
    return sums if annotated is None else sums.masked_fill_(~annotated, 0)


def backward(
    grad: Tensor, logits: Tensor, target: Tensor, mask: Tensor | None, options: Options, annotated: Tensor | None = None
) -> Tensor:
    """The gradient of the logits from that of the sums; the probabilities are computed anew, block by block."""
    result = torch.empty_like(logits)
    slopes = bounded(grad, pixel_dtype(logits)).unsqueeze(-1)
    if annotated is not None:
        slopes = slopes.masked_fill(~annotated.unsqueeze(-1), 0)
    for block in _blocks(logits, target, mask, options, annotated):
        slope = dict(zip(options.want, slopes[:, block.images].unbind(), strict=True))
        _logit_gradient(block, slope, options, out=result[block.images, :, block.pixels])
    return result


def bounded(grad: Tensor, dtype: torch.dtype) -> Tensor:
    """The slopes of the sums in the type of the pixels. That of b goes as 1/b, and a scaler of gradients multiplies it:
    beyond float32 it would be infinite, and NaN where it meets a probability that is 0."""
    return grad if dtype == torch.float64 else grad.clamp(-LARGEST, LARGEST).to(dtype)


def _blocks(
    logits: Tensor, target: Tensor, mask: Tensor | None, options: Options, annotated: Tensor | None
) -> Iterator[Block]:
    batch, classes, count = logits.shape
    if logits.numel() == 0:
        return
    size = most_elements(logits.device)
    # Memory is taken once: fresh pages for every block would cost more than the arithmetic.
    lean = (
        mask is None
        and annotated is None
        and options.ignore_index is None
        and target.ndim == 2
        and IN_PLACE.issuperset(options.want)
    )
    if annotated is not None or not set(ON_REQUEST).isdisjoint(options.want):  # more buffers, made when needed
        size = size // 8
    elif not lean:
        size = size * 3 // 8
    images, pixels = block_size(batch, classes, count, size)
    buffers = torch.empty(2 if lean else 5, images * classes * pixels, dtype=pixel_dtype(logits), device=logits.device)
    line = buffers.new_empty(images * pixels)
    # Label 1 is the foreground of a single channel, label c belongs to channel c of several.
    first_label = 1 if classes == 1 else 0
    labels = torch.arange(first_label, first_label + classes, dtype=buffers.dtype, device=buffers.device)
    labels = labels.unsqueeze(1)
    for first in range(0, batch, images):
        for start in range(0, count, pixels):
            here = slice(first, first + images), slice(start, start + pixels)
            yield _block(*here, logits, target, mask, options, annotated, buffers, line, labels)


def most_elements(device: torch.device) -> int:
    return CPU_BLOCK if device.type == "cpu" else ACCELERATOR_BLOCK


def block_size(batch: int, classes: int, count: int, size: int) -> tuple[int, int]:
    """Images and pixels of blocks with about `size` elements each, whole runs of pixels."""
    pixels = min(count, -(-_even_share(count, max(1, size // classes)) // RUN) * RUN)
    return _even_share(batch, max(1, size // (classes * pixels))), pixels


def _even_share(count: int, most: int) -> int:
    """Blocks of one size, none larger than `most`, instead of a short last one."""
    return -(-count // -(-count // most))


def _block(images: slice, pixels: slice, logits: Tensor, target: Tensor, mask: Tensor | None, options: Options,
           annotated: Tensor | None, buffers: Tensor, line: Tensor, labels: Tensor) -> Block:  # fmt: skip
    x, target = logits[images, :, pixels], target[images, ..., pixels]
    if is_integer(target):
        target = target.long()  # an ignored label need not fit the type of the labels
    weight, valid = None, None if mask is None else mask[images, pixels] != 0
    if options.ignore_index is not None:
        labelled = target != options.ignore_index
        valid = labelled if valid is None else valid & labelled
    if annotated is not None:
        annotated = annotated[images].unsqueeze(2)
        something = annotated.any(1)  # [b, 1]
        valid = something.expand(-1, x.shape[2]) if valid is None else valid & something
        annotated = annotated | ~something.unsqueeze(1)
    y, p, *spare = (buffer[: x.numel()].view(x.shape) for buffer in buffers)
    line = line[: x.numel() // x.shape[1]].view(x.shape[0], 1, -1)
    if valid is not None:
        weight = (valid if mask is None else valid * mask[images, pixels]).to(y.dtype).unsqueeze(1)
        hidden = ~valid
        target = target.masked_fill(hidden if target.ndim == 2 else hidden.unsqueeze(1), 0)
        x = spare[2].copy_(x).masked_fill_(hidden.unsqueeze(1), 0)
    given = x
    if annotated is not None:
        given = x.to(y.dtype, copy=True)
        x = merged(given, annotated, options.activation)
    _activate(y.copy_(x), options.activation, out=p)
    if target.ndim == 2:
        # Floats compared into floats: several times faster than a boolean result, or than scattering ones.
        torch.eq(line.copy_(target.unsqueeze(1)), labels, out=y)
    else:
        y.copy_(target)
        if annotated is not None and options.activation == "softmax":
            y[:, 0] += y.masked_fill(annotated, 0).sum(1)
    if annotated is not None:
        y.masked_fill_(~annotated, 0)
    return Block(images, pixels, target, x, y, p, weight, spare, line, annotated, given)


def _activate(x: Tensor, activation: str, out: Tensor) -> None:
    if activation == "softmax":
        torch.softmax(x, 1, out=out)
    elif activation == "sigmoid":
        torch.sigmoid(x, out=out)
    else:
        out.copy_(x)


def _refuse_bad_labels(target: Tensor, limit: int, sums: Tensor) -> None:
    """An integer outside [0, limit) raises on a CPU. Elsewhere raising would mean to wait for the device: there the
    image's sums become NaN, and with them its loss."""
    if target.device.type != "cpu":
        sums.masked_fill_(((target < 0) | (target >= limit)).flatten(1).any(1).unsqueeze(1), torch.nan)
        return
    low, high = (int(value) for value in target.aminmax())
    if low < 0 or high >= limit:
        kind = "label" if target.ndim == 2 else "mask value"
        raise ValueError(f"{kind} {low if low < 0 else high} is not in [0, {limit}), and is not ignored either")


def _refuse_bad_values(block: Block, activation: str, sums: Tensor) -> None:
    """What is no probability though it should be, and weights below 0: as bad labels. NaN is seen in the loss."""
    if block.target.is_floating_point() or (block.annotated is not None and block.target.ndim == 3):
        advice = "0/255 is divided by 255 first" + ("" if block.annotated is None else ", merged ones must not overlap")
        _refuse_beyond(block.y, *PROBABLE, sums, "masks must lie in [0, 1]", advice)
    if activation == "none":
        advice = "for logits there are 'softmax' and 'sigmoid'"
        _refuse_beyond(block.p, *PROBABLE, sums, "activation='none' takes probabilities, in [0, 1]", advice)
    if block.weight is not None:
        rule = "the weights in a mask must not be negative"
        _refuse_beyond(block.weight, 0, math.inf, sums, rule, "0 leaves a pixel out")


def _refuse_beyond(values: Tensor, low: float, high: float, sums: Tensor, rule: str, advice: str) -> None:
    if values.device.type != "cpu":
        each = values.flatten(1)
        sums.masked_fill_(((each.amin(1) < low) | (each.amax(1) > high)).unsqueeze(1), torch.nan)
        return
    least, most = (float(value) for value in values.aminmax())
    if least < low or most > high:
        raise ValueError(f"{rule}: they are from {least:.6g} to {most:.6g}; {advice}")


def _summands(block: Block, options: Options) -> Iterator[tuple[str, Tensor]]:
    """What each pixel adds to each wanted sum. The last two are formed in place: they destroy `y` and `p`."""
    y, p, want = block.y, block.p, options.want
    if "pixels" in want:
        yield "pixels", torch.ones_like(p)
    if "target" in want:
        yield "target", y
    if "target_sq" in want:
        yield "target_sq", y if block.target.ndim == 2 else torch.mul(y, y, out=block.spare[0])
    if "prediction" in want:
        yield "prediction", p
    if "intersection" in want:
        yield "intersection", torch.mul(y, p, out=block.spare[0])
    if "cross_entropy" in want:
        yield "cross_entropy", cross_entropy(block.x, y, p, options.activation, block.spare)
    if "focal" in want:
        yield "focal", focal(block.x, y, p, options)
    if "uniform" in want:
        yield "uniform", surprise_of(block.x, p)[1].div_(_classes(block))
    if "error_sq" in want:
        yield "error_sq", y.sub_(p).square_()
    if "prediction_sq" in want:
        yield "prediction_sq", p.square_()


def _runs(values: Tensor, block: Block) -> Tensor:
    """Sums over `RUN` pixels each, `[b, C, ceil(n / RUN)]`."""
    if block.weight is not None:
        values = torch.mul(values, block.weight, out=block.spare[1])
    whole = values.shape[2] // RUN * RUN
    runs = values[..., :whole].unflatten(2, (-1, RUN)).sum(3)
    return runs if whole == values.shape[2] else torch.cat([runs, values[..., whole:].sum(2, keepdim=True)], 2)


def _classes(block: Block) -> Tensor | int:
    return block.p.shape[1] if block.annotated is None else block.annotated.sum(1, keepdim=True)


def _gradient_on_request(block: Block, slope: dict[str, Tensor], options: Options) -> Tensor | None:
    found = None
    if "focal" in slope:
        found = focal_gradient(block.x, block.y, block.p, slope["focal"], options)
    if "uniform" in slope:
        each = slope["uniform"] / _classes(block)
        uniform = block.p * each.sum(1, keepdim=True) - each
        found = uniform if found is None else found.add_(uniform)
    return found


def _logit_gradient(block: Block, slope: dict[str, Tensor], options: Options, out: Tensor) -> None:
    """The gradient of the logits, given the slope of the loss in every sum, `[b, C, 1]` each."""
    p, weight, activation = block.p, block.weight, options.activation
    more = _gradient_on_request(block, slope, options)
    # The gradient of cross-entropy joins after the activation: there it needs no division by p.
    wanted = None
    if "cross_entropy" in slope:
        wanted = torch.mul(block.y, slope["cross_entropy"], out=block.spare[0])
    h = _probability_gradient(block, slope)
    if activation == "softmax":
        inner = torch.sum(h.mul_(p), 1, keepdim=True, out=block.line)
        if wanted is not None:
            inner -= wanted.sum(1, keepdim=True)
            h.sub_(wanted)
        h.addcmul_(p, inner, value=-1)
    elif activation == "sigmoid":
        if wanted is not None:
            wanted.addcmul_(p, slope["cross_entropy"], value=-1)
        h.mul_(p).mul_(p.neg_().add_(1))
        if wanted is not None:
            h.sub_(wanted)
    if more is not None:
        h.add_(more)
    if block.annotated is not None:
        h = unmerged(h, block.x, block.given, block.annotated, activation)
    out.copy_(h if weight is None else h.mul_(weight))


def _probability_gradient(block: Block, slope: dict[str, Tensor]) -> Tensor:
    """The gradient of the probabilities, in place of `y`."""
    y, p = block.y, block.p
    overlap = torch.mul(y, slope["intersection"], out=block.spare[1]) if "intersection" in slope else None
    h = y.sub_(p).mul_(-2 * slope["error_sq"]) if "error_sq" in slope else y.zero_()
    if "prediction_sq" in slope:
        h.addcmul_(p, slope["prediction_sq"], value=2)
    if "prediction" in slope:
        h.add_(slope["prediction"])
    return h if overlap is None else h.add_(overlap)
