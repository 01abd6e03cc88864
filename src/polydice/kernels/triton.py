"""The pass over the pixels as one Triton kernel forward and one backward. `fused.py` launches them.

A program walks over tiles of all classes x a run of pixels of one image. The activation stays in registers, each wanted
sum is accumulated over the tiles and reduced once; unwanted ones are compiled out. Every program writes its partial
sums, which are then added up in a fixed order: no atomics, the same bits every time. Backward computes the
probabilities anew from the logits: one read, one write.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
IN_A_THREAD = tl.constexpr(16)  # classes; more are spread over threads, and to add them up these wait for each other
TOLERANCE = tl.constexpr(1e-3)  # as eager.TOLERANCE
LARGEST = tl.constexpr(2.0**120)  # as eager.LARGEST
SOFTMAX, SIGMOID, NONE = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def _load(
    logits, target, mask, image, start, classes, count, ignore_index,
    logits_b, logits_c, logits_n, target_b, target_c, target_n, mask_b, mask_n,
    ACTIVATION: tl.constexpr, LABELS: tl.constexpr, HAS_MASK: tl.constexpr, HAS_IGNORE: tl.constexpr,
    EVEN: tl.constexpr, WIDE: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_N: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """A tile's logits and targets, which pixels count and with what weight, the labels as channels (-1: of none), and
    how much is wrong with each pixel: a label that no class has, a weight below 0, what is no probability."""
    channel = _channels(WIDE, BLOCK_C)
    pixel = tl.max_contiguous(tl.arange(0, BLOCK_N), VECTOR)
    inside = pixel < count - start
    valid = inside
    weight = valid.to(tl.float32)
    if HAS_MASK:
        here = mask + image * mask_b + start * mask_n + pixel * mask_n
        weight = tl.load(here, mask=inside, other=0).to(tl.float32)
        valid = valid & (weight != 0)
    target += image * target_b + start * target_n
    if LABELS:
        label = tl.load(target + pixel * target_n, mask=inside, other=0).to(tl.int64)
        if HAS_IGNORE:
            valid = valid & (label != ignore_index)
        bad = (valid & ((label < 0) | (label >= tl.maximum(classes, 2)))).to(tl.int32)
        # Label 1 is the foreground of a single channel. A pixel that does not count belongs to no class.
        label = tl.where(valid, label - (classes == 1).to(tl.int64), -1).to(tl.int32)
        y = (channel == label[None, :]).to(tl.float32)
    else:
        here = target + channel * target_c + (pixel * target_n)[None, :]
        y = tl.load(here, mask=(channel < classes) & valid[None, :], other=0).to(tl.float32)
        label = tl.zeros_like(pixel) - 1
        bad = _improbable(y)
    here = logits + image * logits_b + start * logits_n + (channel * logits_c + (pixel * logits_n)[None, :])
    nothing: tl.constexpr = 0.0 if ACTIVATION == NONE else float("-inf")
    if EVEN:
        x = tl.load(here).to(tl.float32)
    else:
        x = tl.load(here, mask=(channel < classes) & inside[None, :], other=nothing).to(tl.float32)
    if HAS_MASK or HAS_IGNORE:
        x = tl.where(valid[None, :], x, nothing)
    if HAS_MASK:
        bad += (valid & (weight < 0)).to(tl.int32)
    if ACTIVATION == NONE:
        bad += _improbable(x)
    return x, y, label, valid, weight, bad


@triton.jit
def _improbable(values):
    """How many of a pixel's values are outside [0, 1], by more than rounding."""
    return tl.sum(((values < -TOLERANCE) | (values > 1 + TOLERANCE)).to(tl.int32), 0)


@triton.jit
def _channels(WIDE: tl.constexpr, BLOCK_C: tl.constexpr):
    """Offsets within an image take 32 bits, half the registers, unless the image is too large for that."""
    channel = tl.arange(0, BLOCK_C)[:, None]
    return channel.to(tl.int64) if WIDE else channel


@triton.jit
def _at(logits, image, start, pixel, label, classes, logits_b, logits_c, logits_n, WIDE: tl.constexpr):
    """The logit of each pixel's own class: in the cache, since the tile was just read."""
    channel = label.to(tl.int64) if WIDE else label
    here = logits + image * logits_b + start * logits_n + channel * logits_c + pixel * logits_n
    return tl.load(here, mask=(label >= 0) & (label < classes), other=0.0).to(tl.float32)


@triton.jit
def _add_pair(a, b, c, d):
    return a + c, b + d


@triton.jit
def _multiply(a, b):
    return a * b


@triton.jit
def _probability(x, valid, ACTIVATION: tl.constexpr):
    """The activation, 0 at pixels that do not count; for softmax also the largest logit, the sum of exponentials from
    there, and its inverse, which is 0 there too."""
    top = tl.zeros_like(valid.to(tl.float32))
    total = top + 1.0
    share = total
    if ACTIVATION == SOFTMAX:
        top = tl.where(valid, tl.max(x, 0), 0.0)
        # Not one multiply-add: its rounding grows with the logits, and from 1e10 on it overflows.
        p = tl.exp2((x - top[None, :]) * LOG2_E)
        total = tl.where(valid, tl.sum(p, 0), 1.0)
        share = tl.where(valid, 1.0 / total, 0.0)
        p = p * share[None, :]
    elif ACTIVATION == SIGMOID:
        p = 1.0 / (1.0 + tl.exp2(-x * LOG2_E))
    else:
        p = x
    return p, top, total, share


@triton.jit
def _cross_entropy(x, y, top, total, ACTIVATION: tl.constexpr):
    if ACTIVATION == SOFTMAX:
        return tl.where(y == 0, 0.0, y * ((top[None, :] - x) + (tl.log2(total) * LN_2)[None, :]))
    # log(1 + u), exact for the smallest u: the rounding of 1 + u is divided out again.
    u = tl.exp2(-tl.abs(x) * LOG2_E)
    above = (1.0 + u) - 1.0
    log1p = tl.where(above == 0, u, tl.log2(1.0 + u) * LN_2 * (u / tl.where(above == 0, 1.0, above)))
    share = tl.where(x > 0, 1.0 - y, y)  # of |x|; an infinite one counts only where it has a share
    return log1p + tl.where(share == 0, 0.0, share * tl.abs(x))


@triton.jit
def _fold(values, p, weight, BLOCK_C: tl.constexpr, BLOCK_N: tl.constexpr, VECTOR: tl.constexpr, WEIGH: tl.constexpr):
    """A tile's values, weighed, added up over neighbours that one thread holds: a smaller accumulator.

    p rides along so that values which do not come from memory, such as y, are laid out over the threads as it is;
    its sum is not used, and is not computed.
    """
    if WEIGH:
        values = values * weight[None, :]
    pair = (
        tl.reshape(values, (BLOCK_C, BLOCK_N // VECTOR, VECTOR)),
        tl.reshape(p, (BLOCK_C, BLOCK_N // VECTOR, VECTOR)),
    )
    return tl.reduce(pair, 2, _add_pair)[0]


@triton.jit(do_not_specialize=("offset", "classes", "batch", "programs", "ignore_index"))
def pass_forward(
    logits, target, mask, partials, offset, classes, count, batch, programs, ignore_index,
    logits_b, logits_c, logits_n, target_b, target_c, target_n, mask_b, mask_n,
    ACTIVATION: tl.constexpr, LABELS: tl.constexpr, HAS_MASK: tl.constexpr, HAS_IGNORE: tl.constexpr,
    INTERSECTION: tl.constexpr, PREDICTION: tl.constexpr, PREDICTION_SQ: tl.constexpr, TARGET: tl.constexpr,
    TARGET_SQ: tl.constexpr, ERROR_SQ: tl.constexpr, CROSS_ENTROPY: tl.constexpr, PIXELS: tl.constexpr,
    EVEN: tl.constexpr, WIDE: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_N: tl.constexpr, VECTOR: tl.constexpr,
    STAGES: tl.constexpr, LUMP: tl.constexpr,
):  # fmt: skip
    """partials, from the offset on, `[sums, programs, B, C]`. A field's constant is its place among the sums, -1 where
    it is not wanted.

    LUMP: every class of a label weighs the same in the cross-entropy, so all of it goes to the first.
    """
    image = (tl.program_id(0) // programs).to(tl.int64)
    program = tl.program_id(0) % programs
    pixel = tl.max_contiguous(tl.arange(0, BLOCK_N), VECTOR)
    zeros = tl.zeros((BLOCK_C, BLOCK_N // VECTOR), tl.float32)
    intersection = zeros
    prediction = zeros
    prediction_sq = zeros
    truth = zeros
    truth_sq = zeros
    error_sq = zeros
    entropy = zeros
    pixels = zeros
    lump = tl.zeros((BLOCK_N,), tl.float32)
    logarithms = tl.zeros((BLOCK_N // VECTOR,), tl.float32)
    faults = tl.zeros((BLOCK_N,), tl.int32)
    for start in tl.range(program.to(tl.int64) * BLOCK_N, count, programs * BLOCK_N, num_stages=STAGES):
        x, y, label, valid, weight, bad = _load(
            logits, target, mask, image, start, classes, count, ignore_index,
            logits_b, logits_c, logits_n, target_b, target_c, target_n, mask_b, mask_n,
            ACTIVATION, LABELS, HAS_MASK, HAS_IGNORE, EVEN, WIDE, BLOCK_C, BLOCK_N, VECTOR,
        )  # fmt: skip
        p, top, total, _ = _probability(x, valid, ACTIVATION)
        faults += bad
        if INTERSECTION >= 0:
            intersection += _fold(y * p, p, weight, BLOCK_C, BLOCK_N, VECTOR, HAS_MASK)
        if PREDICTION >= 0:
            prediction += _fold(p, p, weight, BLOCK_C, BLOCK_N, VECTOR, HAS_MASK)
        if PREDICTION_SQ >= 0:
            prediction_sq += _fold(p * p, p, weight, BLOCK_C, BLOCK_N, VECTOR, HAS_MASK)
        if TARGET >= 0:
            truth += _fold(y, p, weight, BLOCK_C, BLOCK_N, VECTOR, HAS_MASK)
        if TARGET_SQ >= 0:
            truth_sq += _fold(y if LABELS else y * y, p, weight, BLOCK_C, BLOCK_N, VECTOR, HAS_MASK)
        if ERROR_SQ >= 0:
            error_sq += _fold((y - p) * (y - p), p, weight, BLOCK_C, BLOCK_N, VECTOR, HAS_MASK)
        if CROSS_ENTROPY >= 0 and LUMP:
            if BLOCK_C > IN_A_THREAD:
                truth_logit = _at(logits, image, start, pixel, label, classes, logits_b, logits_c, logits_n, WIDE)
            else:
                truth_logit = tl.max(tl.where(y > 0, x, float("-inf")), 0)
            lump += tl.where(valid, top - truth_logit, 0.0) * weight
            if HAS_MASK:
                lump += tl.log2(total) * LN_2 * weight
            else:  # logarithms are dear: one of a product
                product = tl.reduce(tl.reshape(total, (BLOCK_N // VECTOR, VECTOR)), 1, _multiply)
                logarithms += tl.log2(product) * LN_2
        elif CROSS_ENTROPY >= 0:
            each = tl.where(valid[None, :], _cross_entropy(x, y, top, total, ACTIVATION), 0.0)
            entropy += _fold(each, p, weight, BLOCK_C, BLOCK_N, VECTOR, HAS_MASK)
        if PIXELS >= 0:
            counted = tl.broadcast_to(valid.to(tl.float32)[None, :], (BLOCK_C, BLOCK_N))
            pixels += _fold(counted, p, weight, BLOCK_C, BLOCK_N, VECTOR, HAS_MASK)
    # What is wrong makes the image's sums NaN: raising would mean to wait for the device.
    poison = tl.where(tl.sum(faults) > 0, float("nan"), 0.0)
    first = tl.arange(0, BLOCK_C)
    out = partials + offset + (program * batch + image) * classes + first
    step = programs.to(tl.int64) * batch * classes
    inside = first < classes
    if INTERSECTION >= 0:
        tl.store(out + INTERSECTION * step, tl.sum(intersection, 1) + poison, mask=inside)
    if PREDICTION >= 0:
        tl.store(out + PREDICTION * step, tl.sum(prediction, 1) + poison, mask=inside)
    if PREDICTION_SQ >= 0:
        tl.store(out + PREDICTION_SQ * step, tl.sum(prediction_sq, 1) + poison, mask=inside)
    if TARGET >= 0:
        tl.store(out + TARGET * step, tl.sum(truth, 1) + poison, mask=inside)
    if TARGET_SQ >= 0:
        tl.store(out + TARGET_SQ * step, tl.sum(truth_sq, 1) + poison, mask=inside)
    if ERROR_SQ >= 0:
        tl.store(out + ERROR_SQ * step, tl.sum(error_sq, 1) + poison, mask=inside)
    if CROSS_ENTROPY >= 0:
        entropies = tl.where(first == 0, tl.sum(lump) + tl.sum(logarithms), 0.0) if LUMP else tl.sum(entropy, 1)
        tl.store(out + CROSS_ENTROPY * step, entropies + poison, mask=inside)
    if PIXELS >= 0:
        tl.store(out + PIXELS * step, tl.sum(pixels, 1) + poison, mask=inside)


@triton.jit
def _bounded(slope):
    """As `eager.bounded`; NaN stays."""
    return tl.where(slope > LARGEST, LARGEST, tl.where(slope < -LARGEST, -LARGEST, slope))


@triton.jit
def _slope(grad, factor, image, batch, classes, FIELD: tl.constexpr, BLOCK_C: tl.constexpr):
    """The gradient of one sum in every class of an image, times the factor, `[C, 1]`; 0 where it was not wanted."""
    channel = tl.arange(0, BLOCK_C)
    slope = tl.zeros((BLOCK_C,), tl.float32)
    if FIELD >= 0:
        here = grad + (FIELD * batch + image) * classes + channel
        slope = _bounded(tl.load(here, mask=channel < classes, other=0.0).to(tl.float32) * factor)
    return slope[:, None]


@triton.jit
def _slope_at(grad, factor, image, batch, classes, label, FIELD: tl.constexpr):
    """The same for each pixel's own class."""
    slope = tl.zeros_like(label).to(tl.float32)
    if FIELD >= 0:
        here = grad + (FIELD * batch + image) * classes + label
        slope = tl.load(here, mask=(label >= 0) & (label < classes), other=0.0).to(tl.float32)
        slope = _bounded(slope * factor)
    return slope


@triton.jit
def _of_target(slope, y, LABELS: tl.constexpr):
    """slope * y; for labels a choice, which is cheaper than a product."""
    return tl.where(y > 0, slope, 0.0) if LABELS else slope * y


@triton.jit(do_not_specialize=("classes", "batch", "programs", "ignore_index"))
def pass_backward(
    grad, scale, logits, target, mask, result, classes, count, batch, programs, ignore_index,
    logits_b, logits_c, logits_n, target_b, target_c, target_n, mask_b, mask_n, result_b, result_c, result_n,
    ACTIVATION: tl.constexpr, LABELS: tl.constexpr, HAS_MASK: tl.constexpr, HAS_IGNORE: tl.constexpr,
    INTERSECTION: tl.constexpr, PREDICTION: tl.constexpr, PREDICTION_SQ: tl.constexpr, TARGET: tl.constexpr,
    TARGET_SQ: tl.constexpr, ERROR_SQ: tl.constexpr, CROSS_ENTROPY: tl.constexpr, PIXELS: tl.constexpr,
    EVEN: tl.constexpr, WIDE: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_N: tl.constexpr, VECTOR: tl.constexpr,
    STAGES: tl.constexpr, LUMP: tl.constexpr, HAS_SCALE: tl.constexpr,
):  # fmt: skip
    """grad `[sums, B, C]`, times the number at `scale`, -> result `[B, C, N]`."""
    image = (tl.program_id(0) // programs).to(tl.int64)
    program = tl.program_id(0) % programs
    channel = _channels(WIDE, BLOCK_C)
    pixel = tl.max_contiguous(tl.arange(0, BLOCK_N), VECTOR)
    factor = tl.load(scale) if HAS_SCALE else 1.0
    # The gradient of a probability is slope * p + offset + overlap * y.
    of_error_sq = 2 * _slope(grad, factor, image, batch, classes, ERROR_SQ, BLOCK_C)
    slope = of_error_sq + 2 * _slope(grad, factor, image, batch, classes, PREDICTION_SQ, BLOCK_C)
    overlap = _slope(grad, factor, image, batch, classes, INTERSECTION, BLOCK_C) - of_error_sq
    offset = _slope(grad, factor, image, batch, classes, PREDICTION, BLOCK_C)
    of_entropy = _slope(grad, factor, image, batch, classes, CROSS_ENTROPY, BLOCK_C)
    # Where cross-entropy joins many classes, what only the truth's class adds is worked out once a pixel: the registers
    # do not hold it for each.
    once: tl.constexpr = ACTIVATION == SOFTMAX and LABELS and CROSS_ENTROPY >= 0 and BLOCK_C > IN_A_THREAD
    of_any_class = tl.sum(tl.where(channel == 0, of_entropy, 0.0))
    for start in tl.range(program.to(tl.int64) * BLOCK_N, count, programs * BLOCK_N, num_stages=STAGES):
        x, y, label, valid, weight, _ = _load(
            logits, target, mask, image, start, classes, count, ignore_index,
            logits_b, logits_c, logits_n, target_b, target_c, target_n, mask_b, mask_n,
            ACTIVATION, LABELS, HAS_MASK, HAS_IGNORE, EVEN, WIDE, BLOCK_C, BLOCK_N, VECTOR,
        )  # fmt: skip
        if once:
            truth_logit = _at(logits, image, start, pixel, label, classes, logits_b, logits_c, logits_n, WIDE)
            own = _slope_at(grad, factor, image, batch, classes, label, INTERSECTION)
            own -= 2 * _slope_at(grad, factor, image, batch, classes, label, ERROR_SQ)
            own_entropy = of_any_class
            if not LUMP:
                own_entropy = _slope_at(grad, factor, image, batch, classes, label, CROSS_ENTROPY)
        p, top, _, share = _probability(x, valid, ACTIVATION)
        if once:
            own = own * (tl.exp2((truth_logit - top) * LOG2_E) * share) - tl.where(valid, own_entropy, 0.0)
            h = slope * p
            if PREDICTION >= 0:
                h += offset
            inner = tl.sum(p * h, 0) + own
            h = p * (h - inner[None, :]) + tl.where(channel == label[None, :], own[None, :], 0.0)
        else:
            h = slope * p + _of_target(overlap, y, LABELS)
            if PREDICTION >= 0:
                h += offset
            # The gradient of cross-entropy needs no division by p: it joins after the activation.
            wanted = _of_target(of_any_class if LUMP else of_entropy, y, LABELS)
            if ACTIVATION == SOFTMAX:
                inner = tl.sum(p * h, 0)
                if CROSS_ENTROPY >= 0:
                    inner -= tl.where(valid, of_any_class, 0.0) if LUMP else tl.sum(wanted, 0)
                h = p * (h - inner[None, :])
            elif ACTIVATION == SIGMOID:
                h = p * ((1 - p) * h + of_entropy)
            if CROSS_ENTROPY >= 0:
                h -= wanted
        if HAS_MASK:
            h = h * weight[None, :]
        if ACTIVATION == NONE:
            h = tl.where(valid[None, :], h, 0.0)
        here = result + image * result_b + start * result_n + (channel * result_c + (pixel * result_n)[None, :])
        h = h.to(result.dtype.element_ty)
        if EVEN:
            tl.store(here, h)
        else:
            tl.store(here, h, mask=(channel < classes) & (pixel < count - start)[None, :])
