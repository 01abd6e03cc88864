"""The pass over the pixels in plain torch: any device, any floating type. `reference.py` says what it computes.

The pixels are visited in blocks (`blocks.py`). The sums leave in float64 where the device has it: they are a few
numbers, and what the geometry forms of them cancels.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from polydice.kernels.annotation import refuse_strays, refuse_without_background, unmerged
from polydice.kernels.blocks import RUN, Block, is_integer, make_pass, pixel_dtype, visit
from polydice.kernels.entropy import cross_entropy, focal, focal_gradient, surprise_of
from polydice.kernels.fields import Options

TOLERANCE = 1e-3  # by which a probability may be beyond 0 or 1: more than any rounding, less than any mistake
PROBABLE = -TOLERANCE, 1 + TOLERANCE
LARGEST = 2.0**120  # slope of a sum: a few of them can be added up in float32


def sum_dtype(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64


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
    over = make_pass(logits, target, mask, options, annotated)
    # Each block has its own part: added up in their order they give the same bits, whichever thread made them.
    parts = torch.zeros(max(1, over.runs), len(options.want), batch, classes, dtype=dtype, device=logits.device)
    if annotated is not None and options.activation == "softmax":
        refuse_without_background(annotated, parts[0])
    most = 2 if target.ndim == 3 else max(classes, 2)

    def sum_up(block: Block, part: Tensor, images: Tensor) -> None:
        _refuse_bad_values(block, options.activation, part)
        runs = {name: _runs(values, block) for name, values in _summands(block, options)}
        part += torch.stack([runs[name] for name in options.want]).sum(3, dtype=dtype)
        if is_integer(target) and (target.ndim == 2 or annotated is None):
            _refuse_bad_labels(block, most, part)
        if block.annotated is not None and target.ndim == 2:
            refuse_strays(block.target, block.annotated, block.weight, part, images)

    if logits.numel():
        numbers = over.cut_images(torch.arange(batch, device="cpu"))
        visit(sum_up, over, [part for some in parts.split(over.images, 2) for part in some.unbind()], numbers)
    sums = parts.sum(0)
    return sums if annotated is None else sums.masked_fill_(~annotated, 0)


def backward(
    grad: Tensor, logits: Tensor, target: Tensor, mask: Tensor | None, options: Options, annotated: Tensor | None = None
) -> Tensor:
    """The gradient of the logits from that of the sums; the probabilities are computed anew, block by block."""
    result = torch.empty_like(logits)
    slopes = bounded(grad, pixel_dtype(logits)).unsqueeze(-1)
    if annotated is not None:
        slopes = slopes.masked_fill(~annotated.unsqueeze(-1), 0)
    over = make_pass(logits, target, mask, options, annotated)

    def differentiate(block: Block, out: Tensor, slopes: Tensor) -> None:
        _logit_gradient(block, dict(zip(options.want, slopes.unbind(), strict=True)), options, out)

    if logits.numel():
        visit(differentiate, over, over.cut(result), over.cut_images(slopes, 1))
    return result


def bounded(grad: Tensor, dtype: torch.dtype) -> Tensor:
    """The slopes of the sums in the type of the pixels. That of b goes as 1/b, and a scaler of gradients multiplies it:
    beyond float32 it would be infinite, and NaN where it meets a probability that is 0."""
    return grad if dtype == torch.float64 else grad.clamp(-LARGEST, LARGEST).to(dtype)


def _refuse_bad_labels(block: Block, limit: int, sums: Tensor) -> None:
    """An integer outside [0, limit) raises on a CPU. Elsewhere raising would mean to wait for the device: there the
    image's sums become NaN, and with them its loss."""
    target = block.target
    if target.device.type != "cpu":
        sums.masked_fill_(((target < 0) | (target >= limit)).flatten(1).any(1).unsqueeze(1), torch.nan)
        return
    # Labels as floats are searched several times faster.
    low, high = map(float, (block.line if target.ndim == 2 else target).aminmax())
    if low < 0 or high >= limit:
        low, high = (int(value) for value in target.aminmax())
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
    least, most = map(float, values.aminmax())
    if math.isnan(least):  # of one that is NaN: what else is there?
        least, most = map(float, values.nan_to_num(0).aminmax())
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
    batch, classes, pixels = values.shape
    whole = pixels // RUN * RUN
    if whole == pixels:
        return values.view(batch, classes, -1, RUN).sum(3)
    runs = values[..., :whole].unflatten(2, (-1, RUN)).sum(3)
    return torch.cat([runs, values[..., whole:].sum(2, keepdim=True)], 2)


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
        if more is None and weight is None and block.annotated is None and out.dtype == h.dtype:
            torch.addcmul(h, p, inner, value=-1, out=out)
            return
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
