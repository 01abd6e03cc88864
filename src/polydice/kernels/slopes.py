"""From the slopes of the sums to the gradient of a tile's logits: what the passes backward have in common."""

import triton
import triton.language as tl

from polydice.kernels import eager
from polydice.kernels.logarithms import others_of, with_requests
from polydice.kernels.pixels import (
    CROSS_ENTROPY,
    ERROR_SQ,
    FOCAL,
    INTERSECTION,
    PREDICTION,
    PREDICTION_SQ,
    SIGMOID,
    SOFTMAX,
    UNIFORM,
    channels_of,
)

LARGEST = tl.constexpr(eager.LARGEST)


@triton.jit
def bounded(slope):
    """As `eager.bounded`; NaN stays."""
    return tl.clamp(slope, -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def slope_of(
    grad, factor, image, channel, batch, classes, FIELD: tl.constexpr, WANT: tl.constexpr, ALL: tl.constexpr = False
):
    """The gradient of one sum of an image in these classes, times the factor, bounded as `eager.bounded` does; 0 where
    the sum was not wanted, or there is no class (ALL: there are all of these)."""
    slope = tl.zeros(channel.shape, tl.float32)
    for place in tl.static_range(len(WANT)):
        if WANT[place] == FIELD:
            here = grad + (place * batch + image) * classes + channel
            there = tl.full(channel.shape, True, tl.int1) if ALL else (channel >= 0) & (channel < classes)
            slope = bounded(tl.load(here, mask=there, other=0.0).to(tl.float32) * factor)
    return slope


@triton.jit
def of_target(slope, y, LABELS: tl.constexpr):
    """slope * y; for labels a choice, which is cheaper than a product."""
    return tl.where(y > 0, slope, 0.0) if LABELS else slope * y


@triton.jit
def slopes_of(
    grad, factor, image, batch, classes, WANT: tl.constexpr, FULL: tl.constexpr, GROUPS: tl.constexpr,
    BLOCK_C: tl.constexpr, ON_REQUEST: tl.constexpr,
):  # fmt: skip
    """What `gradient_of` needs of an image's slopes: tensors `[BLOCK_C, 1]`, one for each group of classes, and the
    cross-entropy's where it is the same for all of them."""
    # The gradient of a probability is slope * p + offset + overlap * y.
    slope = ()
    overlap = ()
    offset = ()
    of_entropy = ()
    for group in tl.static_range(GROUPS):
        channel = group * BLOCK_C + tl.arange(0, BLOCK_C)
        of_error_sq = 2 * slope_of(grad, factor, image, channel, batch, classes, ERROR_SQ, WANT, FULL)
        of_square = 2 * slope_of(grad, factor, image, channel, batch, classes, PREDICTION_SQ, WANT, FULL)
        of_product = slope_of(grad, factor, image, channel, batch, classes, INTERSECTION, WANT, FULL)
        of_prediction = slope_of(grad, factor, image, channel, batch, classes, PREDICTION, WANT, FULL)
        slope = slope + ((of_error_sq + of_square)[:, None],)
        overlap = overlap + ((of_product - of_error_sq)[:, None],)
        offset = offset + (of_prediction[:, None],)
        of_logarithm = slope_of(grad, factor, image, channel, batch, classes, CROSS_ENTROPY, WANT, FULL)
        of_entropy = of_entropy + (of_logarithm[:, None],)
    of_focal = ()
    of_uniform = ()
    of_all = tl.zeros((1, 1), tl.float32)
    if ON_REQUEST:
        for group in tl.static_range(GROUPS):
            channel = group * BLOCK_C + tl.arange(0, BLOCK_C)
            of_focal = of_focal + (slope_of(grad, factor, image, channel, batch, classes, FOCAL, WANT, FULL)[:, None],)
            each = slope_of(grad, factor, image, channel, batch, classes, UNIFORM, WANT, FULL)[:, None] / classes
            of_uniform = of_uniform + (each,)
            of_all += tl.sum(each, 0, keep_dims=True)
    first = tl.where(tl.arange(0, BLOCK_C)[:, None] == 0, of_entropy[0], 0.0)
    of_any_class = tl.sum(first, 0, keep_dims=True)
    return (slope, overlap, offset, of_entropy, of_focal, of_uniform, of_all), of_any_class


@triton.jit
def of_probability(
    ys, ps, own, slopes, ONCE: tl.constexpr, LABELS: tl.constexpr, LUMP: tl.constexpr, OFFSET: tl.constexpr,
    ENTROPY: tl.constexpr,
):  # fmt: skip
    """A tile's gradient of its probabilities, and what a softmax takes off it, each pixel's."""
    slope, overlap, offset, of_entropy, of_focal, of_uniform, of_all = slopes
    inners = tl.zeros_like(ps[0])
    hs = ()
    for group in tl.static_range(len(ps)):
        h = slope[group] * ps[group]
        if not ONCE:
            h += of_target(overlap[group], ys[group], LABELS)
        if OFFSET:
            h += offset[group]
        inners += ps[group] * h
        if ENTROPY and not LUMP and not ONCE:
            inners -= of_target(of_entropy[group], ys[group], LABELS)
        hs = hs + (h,)
    return hs, tl.sum(inners, 0, keep_dims=True) + own


@triton.jit
def gradient_of(
    xs, ys, ps, top, first_total, total, label, valid, own, gamma, classes, slopes, of_any_class, ONCE: tl.constexpr,
    ACTIVATION: tl.constexpr, LABELS: tl.constexpr, LUMP: tl.constexpr, FULL: tl.constexpr, WIDE: tl.constexpr,
    ON_REQUEST: tl.constexpr, OFFSET: tl.constexpr, ENTROPY: tl.constexpr,
):  # fmt: skip
    """A tile's gradient of the logits, before its pixels are weighed. `first_total` is the total of the first group.
    ONCE: what only the truth's class adds is in `own`, each pixel's."""
    slope, overlap, offset, of_entropy, of_focal, of_uniform, of_all = slopes
    hs, inner = of_probability(ys, ps, own, slopes, ONCE, LABELS, LUMP, OFFSET, ENTROPY)
    gs = ()
    for group in tl.static_range(len(ps)):
        h, p = hs[group], ps[group]
        if ACTIVATION == SOFTMAX:
            h = p * (h - inner)
        elif ACTIVATION == SIGMOID:
            h = p * ((1 - p) * h + of_entropy[group])
        if ONCE:
            h += tl.where(channels_of(group, WIDE, ps[0].shape[0]) == label, own, 0.0)
        elif ENTROPY:  # its gradient needs no division by p: it joins after the activation
            h -= of_target(of_any_class if LUMP else of_entropy[group], ys[group], LABELS)
        gs = gs + (h,)
    if ON_REQUEST:
        gs = with_requests(
            gs, xs, ys, ps, top, first_total, total, others_of(ps, classes, FULL), gamma, valid, of_focal, of_uniform,
            of_all, ACTIVATION,
        )  # fmt: skip
    return gs
