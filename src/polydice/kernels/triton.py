"""The pass over the pixels as one Triton kernel forward and one backward. `fused.py` launches them.

A program walks over tiles of all classes x a run of pixels of one image. The activation stays in registers, each wanted
sum is accumulated over the tiles and reduced once; unwanted ones are compiled out. Every program writes its partial
sums, which are then added up in a fixed order: no atomics, the same bits every time. Backward computes the
probabilities anew from the logits: one read, one write.
"""

import triton
import triton.language as tl

from polydice.kernels import eager
from polydice.kernels.logarithms import LN_2, cross_entropy, focal, others_of, surprise_of, with_requests
from polydice.kernels.pixels import (
    NONE,
    SIGMOID,
    SOFTMAX,
    begin,
    channels_of,
    first_pixel,
    inside_of,
    load,
    logit_at,
    power,
    probability,
)

LARGEST = tl.constexpr(eager.LARGEST)
INTERSECTION, PREDICTION, PREDICTION_SQ, TARGET, TARGET_SQ, ERROR_SQ, CROSS_ENTROPY, PIXELS, FOCAL, UNIFORM = (
    tl.constexpr(place)
    for place in range(10)  # as in SUMS
)


@triton.jit
def _add_pair(a, b, c, d):
    return a + c, b + d


@triton.jit
def _multiply(a, b):
    return a * b


@triton.jit
def _summand(
    FIELD: tl.constexpr, x, y, p, top, total, others, gamma, classes, valid, ACTIVATION: tl.constexpr,
    LABELS: tl.constexpr,
):  # fmt: skip
    """What each pixel adds to a sum."""
    if FIELD == INTERSECTION:
        return y * p
    if FIELD == PREDICTION:
        return p
    if FIELD == PREDICTION_SQ:
        return p * p
    if FIELD == TARGET:
        return y
    if FIELD == TARGET_SQ:
        return y if LABELS else y * y
    if FIELD == ERROR_SQ:
        return (y - p) * (y - p)
    if FIELD == CROSS_ENTROPY:
        return tl.where(valid, cross_entropy(x, y, top, total, ACTIVATION), 0.0)
    if FIELD == FOCAL:
        return tl.where(valid, focal(x, y, p, top, total, others, gamma, ACTIVATION), 0.0)
    if FIELD == UNIFORM:
        return tl.where(valid, surprise_of(x, p, top, total, others)[1] / classes, 0.0)
    return tl.broadcast_to(valid.to(tl.float32), p.shape)


@triton.jit
def _over_neighbours(values, p, weight, VECTOR: tl.constexpr, WEIGH: tl.constexpr):
    """A group's values, weighed, added up over neighbours that one thread holds: a smaller accumulator.

    p rides along so that values which do not come from memory, such as y, are laid out over the threads as it is;
    its sum is not used, and is not computed.
    """
    if WEIGH:
        values = values * weight
    shape: tl.constexpr = (p.shape[0], p.shape[1] // VECTOR, VECTOR)
    return tl.reduce((tl.reshape(values, shape), tl.reshape(p, shape)), 2, _add_pair)[0]


@triton.jit
def _truth_logit(
    xs, ys, logits, image, start, label, logits_b, logits_c, logits_n, WIDE: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The logit of each pixel's own class. Of many classes it is read again: the tile is still in the cache."""
    if xs[0].shape[0] > 1:
        truth = logit_at(logits, image, start, label, logits_b, logits_c, logits_n, WIDE, BLOCK_N)
    else:
        truth = xs[0]
        for group in tl.static_range(1, len(xs)):
            truth = tl.where(ys[group] > 0, xs[group], truth)
    return truth


@triton.jit
def _store_each(out, sums, poison, step, classes, GROUPS: tl.constexpr, BLOCK_C: tl.constexpr):
    """Many classes: one group of one sum after the other."""
    for index in tl.static_range(len(sums)):
        channel = index % GROUPS * BLOCK_C + tl.arange(0, BLOCK_C)
        tl.store(out + index // GROUPS * step + channel, tl.sum(sums[index], 1) + poison, mask=channel < classes)


@triton.jit
def _store_together(out, sums, poison, step, classes, PLACES: tl.constexpr, LEVELS: tl.constexpr):
    """Few classes: all sums of all of them are laid side by side, so that the threads add them up in one go."""
    for index in tl.static_range(PLACES, 1 << LEVELS):
        sums = sums + (sums[0],)  # a power of two of them
    for level in tl.static_range(LEVELS):
        pairs = ()
        for index in tl.static_range(1 << (LEVELS - 1 - level)):
            pairs = pairs + (tl.join(sums[index], sums[index + (1 << (LEVELS - 1 - level))]),)
        sums = pairs
    total = tl.sum(tl.reshape(sums[0], (sums[0].shape[1], 1 << LEVELS)), 0) + poison
    index = tl.arange(0, 1 << LEVELS)
    tl.store(out + (index // classes) * step + index % classes, total, mask=index < PLACES)


@triton.jit(do_not_specialize=("offset", "classes", "batch", "programs", "ignore_index"))
def pass_forward(
    logits, target, mask, partials, offset, classes, count, batch, programs, ignore_index,
    logits_b, logits_c, logits_n, target_b, target_c, target_n, mask_b, mask_n, gamma,
    ACTIVATION: tl.constexpr, LABELS: tl.constexpr, HAS_MASK: tl.constexpr, HAS_IGNORE: tl.constexpr,
    WANT: tl.constexpr, LUMP: tl.constexpr, EVEN: tl.constexpr, FULL: tl.constexpr, WIDE: tl.constexpr,
    GROUPS: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_N: tl.constexpr, VECTOR: tl.constexpr, STAGES: tl.constexpr,
    ON_REQUEST: tl.constexpr, LEVELS: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """partials, from the offset on, `[programs, sums, B, C]`, the sums that WANT names. ON_REQUEST: whether the focal
    or the uniform one is among them.

    LUMP: every class of a label weighs the same in the cross-entropy, so all of it goes to the first.
    """
    begin(AHEAD)
    image = (tl.program_id(0) // programs).to(tl.int64)
    program = tl.program_id(0) % programs
    zeros = tl.zeros((BLOCK_C, BLOCK_N // VECTOR), tl.float32)
    sums = ()
    for index in tl.static_range(len(WANT) * GROUPS):
        sums = sums + (zeros,)
    lump = tl.zeros((1, BLOCK_N // VECTOR), tl.float32)
    faults = tl.zeros((1, BLOCK_N), tl.int32)
    for start in tl.range(first_pixel(program, WIDE, BLOCK_N), count, programs * BLOCK_N, num_stages=STAGES):
        xs, ys, label, valid, weight, bad = load(
            logits, target, mask, image, start, classes, count, ignore_index,
            logits_b, logits_c, logits_n, target_b, target_c, target_n, mask_b, mask_n,
            ACTIVATION, LABELS, HAS_MASK, HAS_IGNORE, EVEN, FULL, WIDE, GROUPS, BLOCK_C, BLOCK_N, VECTOR,
        )  # fmt: skip
        ps, top, total, share = probability(xs, classes, valid, ACTIVATION, FULL)
        faults += bad
        others = top
        if ON_REQUEST:
            others = others_of(ps, classes, FULL)
        if LUMP:
            truth = _truth_logit(xs, ys, logits, image, start, label, logits_b, logits_c, logits_n, WIDE, BLOCK_N)
            lump += _over_neighbours(tl.where(label >= 0, top - truth, 0.0), top, weight, VECTOR, HAS_MASK)
            if HAS_MASK:
                lump += _over_neighbours(tl.log2(total) * LN_2, top, weight, VECTOR, True)
            else:  # logarithms are dear: one of a product
                product = tl.reduce(tl.reshape(total, (1, BLOCK_N // VECTOR, VECTOR)), 2, _multiply)
                lump += tl.log2(product) * LN_2
        grown = ()
        for place in tl.static_range(len(WANT)):
            for group in tl.static_range(GROUPS):
                each = sums[place * GROUPS + group]
                if not (LUMP and WANT[place] == CROSS_ENTROPY):
                    y, p = ys[group], ps[group]
                    values = _summand(
                        WANT[place], xs[group], y, p, top, total, others, gamma, classes, valid, ACTIVATION, LABELS
                    )
                    each += _over_neighbours(values, p, weight, VECTOR, HAS_MASK)
                grown = grown + (each,)
        sums = grown
    if LUMP:
        with_lump = ()
        for index in tl.static_range(len(WANT) * GROUPS):
            each = sums[index]
            if WANT[index // GROUPS] == CROSS_ENTROPY and index % GROUPS == 0:
                each += tl.where(tl.arange(0, BLOCK_C)[:, None] == 0, lump, 0.0)
            with_lump = with_lump + (each,)
        sums = with_lump
    # What is wrong makes the image's sums NaN: raising would mean to wait for the device.
    poison = tl.where(tl.sum(faults) > 0, float("nan"), 0.0)
    step = batch.to(tl.int64) * classes
    out = partials + offset + program * len(WANT) * step + image * classes
    if BLOCK_C == 1:
        _store_together(out, sums, poison, step, classes, len(WANT) * GROUPS, LEVELS)
    else:
        _store_each(out, sums, poison, step, classes, GROUPS, BLOCK_C)


@triton.jit
def bounded(slope):
    """As `eager.bounded`; NaN stays."""
    return tl.where(slope > LARGEST, LARGEST, tl.where(slope < -LARGEST, -LARGEST, slope))


@triton.jit
def _slope(grad, factor, image, channel, batch, classes, FIELD: tl.constexpr, WANT: tl.constexpr):
    """The gradient of one sum of an image in these classes, times the factor, bounded as `eager.bounded` does; 0 where
    the sum was not wanted, or there is no class."""
    slope = tl.zeros(channel.shape, tl.float32)
    for place in tl.static_range(len(WANT)):
        if WANT[place] == FIELD:
            here = grad + (place * batch + image) * classes + channel
            slope = tl.load(here, mask=(channel >= 0) & (channel < classes), other=0.0).to(tl.float32) * factor
            slope = bounded(slope)
    return slope


@triton.jit
def _of_target(slope, y, LABELS: tl.constexpr):
    """slope * y; for labels a choice, which is cheaper than a product."""
    return tl.where(y > 0, slope, 0.0) if LABELS else slope * y


@triton.jit(do_not_specialize=("classes", "batch", "programs", "ignore_index"))
def pass_backward(
    grad, scale, logits, target, mask, result, classes, count, batch, programs, ignore_index,
    logits_b, logits_c, logits_n, target_b, target_c, target_n, mask_b, mask_n, result_b, result_c, result_n, gamma,
    ACTIVATION: tl.constexpr, LABELS: tl.constexpr, HAS_MASK: tl.constexpr, HAS_IGNORE: tl.constexpr,
    WANT: tl.constexpr, LUMP: tl.constexpr, EVEN: tl.constexpr, FULL: tl.constexpr, WIDE: tl.constexpr,
    GROUPS: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_N: tl.constexpr, VECTOR: tl.constexpr, STAGES: tl.constexpr,
    ON_REQUEST: tl.constexpr, OFFSET: tl.constexpr, ENTROPY: tl.constexpr, HAS_SCALE: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """grad `[sums, B, C]`, times the number at `scale`, -> result `[B, C, N]`. OFFSET and ENTROPY: whether the sums
    of the prediction and the cross-entropy are among those that WANT names. ON_REQUEST as above."""
    begin(AHEAD)
    image = (tl.program_id(0) // programs).to(tl.int64)
    program = tl.program_id(0) % programs
    factor = tl.load(scale) if HAS_SCALE else 1.0
    # The gradient of a probability is slope * p + offset + overlap * y.
    slope = ()
    overlap = ()
    offset = ()
    of_entropy = ()
    for group in tl.static_range(GROUPS):
        channel = group * BLOCK_C + tl.arange(0, BLOCK_C)
        of_error_sq = 2 * _slope(grad, factor, image, channel, batch, classes, ERROR_SQ, WANT)
        of_square = 2 * _slope(grad, factor, image, channel, batch, classes, PREDICTION_SQ, WANT)
        of_product = _slope(grad, factor, image, channel, batch, classes, INTERSECTION, WANT)
        of_prediction = _slope(grad, factor, image, channel, batch, classes, PREDICTION, WANT)
        slope = slope + ((of_error_sq + of_square)[:, None],)
        overlap = overlap + ((of_product - of_error_sq)[:, None],)
        offset = offset + (of_prediction[:, None],)
        of_logarithm = _slope(grad, factor, image, channel, batch, classes, CROSS_ENTROPY, WANT)
        of_entropy = of_entropy + (of_logarithm[:, None],)
    of_focal = ()
    of_uniform = ()
    of_all = tl.zeros((1, 1), tl.float32)
    if ON_REQUEST:
        for group in tl.static_range(GROUPS):
            channel = group * BLOCK_C + tl.arange(0, BLOCK_C)
            of_focal = of_focal + (_slope(grad, factor, image, channel, batch, classes, FOCAL, WANT)[:, None],)
            each = _slope(grad, factor, image, channel, batch, classes, UNIFORM, WANT)[:, None] / classes
            of_uniform = of_uniform + (each,)
            of_all += tl.sum(each, 0, keep_dims=True)
    # Where cross-entropy joins many classes, what only the truth's class adds is worked out once a pixel: the registers
    # do not hold it for each.
    once: tl.constexpr = ACTIVATION == SOFTMAX and LABELS and ENTROPY and BLOCK_C > 1
    first = tl.where(tl.arange(0, BLOCK_C)[:, None] == 0, of_entropy[0], 0.0)
    of_any_class = tl.sum(first, 0, keep_dims=True)
    last = (count - 1) // BLOCK_N * BLOCK_N
    for walked in tl.range(first_pixel(program, WIDE, BLOCK_N), count, programs * BLOCK_N, num_stages=STAGES):
        start = last - walked  # the other way round: what was read last is still in the cache
        xs, ys, label, valid, weight, bad = load(
            logits, target, mask, image, start, classes, count, ignore_index,
            logits_b, logits_c, logits_n, target_b, target_c, target_n, mask_b, mask_n,
            ACTIVATION, LABELS, HAS_MASK, HAS_IGNORE, EVEN, FULL, WIDE, GROUPS, BLOCK_C, BLOCK_N, VECTOR,
        )  # fmt: skip
        ps, top, total, share = probability(xs, classes, valid, ACTIVATION, FULL)
        own = tl.zeros((1, BLOCK_N), tl.float32)
        if once:
            own = _slope(grad, factor, image, label, batch, classes, INTERSECTION, WANT)
            own -= 2 * _slope(grad, factor, image, label, batch, classes, ERROR_SQ, WANT)
            truth = logit_at(logits, image, start, label, logits_b, logits_c, logits_n, WIDE, BLOCK_N)
            own *= power(truth, top) * share
            if LUMP:
                own -= tl.where(valid, of_any_class, 0.0)
            else:
                own -= _slope(grad, factor, image, label, batch, classes, CROSS_ENTROPY, WANT)
        elif ENTROPY and LUMP:
            own -= tl.where(valid, of_any_class, 0.0)
        inners = tl.zeros_like(ps[0])
        hs = ()
        for group in tl.static_range(GROUPS):
            h = slope[group] * ps[group]
            if not once:
                h += _of_target(overlap[group], ys[group], LABELS)
            if OFFSET:
                h += offset[group]
            inners += ps[group] * h
            if ENTROPY and not LUMP and not once:
                inners -= _of_target(of_entropy[group], ys[group], LABELS)
            hs = hs + (h,)
        inner = tl.sum(inners, 0, keep_dims=True) + own
        gs = ()
        for group in tl.static_range(GROUPS):
            h, p = hs[group], ps[group]
            if ACTIVATION == SOFTMAX:
                h = p * (h - inner)
            elif ACTIVATION == SIGMOID:
                h = p * ((1 - p) * h + of_entropy[group])
            if once:
                h += tl.where(channels_of(group, WIDE, BLOCK_C) == label, own, 0.0)
            elif ENTROPY:  # its gradient needs no division by p: it joins after the activation
                h -= _of_target(of_any_class if LUMP else of_entropy[group], ys[group], LABELS)
            gs = gs + (h,)
        if ON_REQUEST:
            gs = with_requests(
                gs, xs, ys, ps, top, total, others_of(ps, classes, FULL), gamma, valid, of_focal, of_uniform, of_all,
                ACTIVATION,
            )  # fmt: skip
        pixel = tl.max_contiguous(tl.arange(0, BLOCK_N), VECTOR)[None, :]
        for group in tl.static_range(GROUPS):
            row = channels_of(group, WIDE, BLOCK_C)
            here = result + image * result_b + (row * result_c + (start + pixel) * result_n)
            h = gs[group]
            if HAS_MASK:
                h = h * weight
            if ACTIVATION == NONE:
                h = tl.where(valid, h, 0.0)
            inside = inside_of(row, classes, FULL or group < GROUPS - 1) & inside_of(pixel, count - start, EVEN)
            tl.store(here, h.to(result.dtype.element_ty), mask=inside)
