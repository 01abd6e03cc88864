"""A tile of the pass over the pixels: what is read of it, and its probabilities. `triton.py` adds them up.

A tile is a tuple of GROUPS tensors `[BLOCK_C, BLOCK_N]`. Few classes are groups of one: no row is padding, a thread
holds all classes of its pixels, and nothing is exchanged between threads. Many classes are groups of several, whose
rows are shared out over threads; the last group may have a few more than there are classes. What belongs to a pixel is
`[1, BLOCK_N]`.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice

from polydice.kernels import eager, plan

INTERPRETED = tl.constexpr(plan.INTERPRETED)
LOG2_E = tl.constexpr(1.4426950408889634)
TOLERANCE = tl.constexpr(eager.TOLERANCE)
HUGE = tl.constexpr(2.0**30)
SOFTMAX, SIGMOID, NONE = (tl.constexpr(place) for place in range(3))  # as in ACTIVATIONS
INTERSECTION, PREDICTION, PREDICTION_SQ, TARGET, TARGET_SQ, ERROR_SQ, CROSS_ENTROPY, PIXELS, FOCAL, UNIFORM = (
    tl.constexpr(place)
    for place in range(10)  # as in SUMS
)


@triton.jit
def begin(AHEAD: tl.constexpr):
    """Kernels that follow each other closely are launched ahead: one gets on the device while the one before it still
    runs, and waits here for what that one writes."""
    if AHEAD:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@triton.jit
def channels_of(group, WIDE: tl.constexpr, BLOCK_C: tl.constexpr):
    """Offsets within an image take 32 bits, half the registers, unless the image is too large for that."""
    channel = group * BLOCK_C + tl.arange(0, BLOCK_C)[:, None]
    return channel.to(tl.int64) if WIDE else channel


@triton.jit
def first_pixel(program, WIDE: tl.constexpr, BLOCK_N: tl.constexpr):
    return program.to(tl.int64) * BLOCK_N if WIDE else program * BLOCK_N


@triton.jit
def inside_of(index, limit, ALL: tl.constexpr):
    return index < limit if not ALL else tl.full(index.shape, True, tl.int1)


@triton.jit
def load(
    logits, target, mask, image, start, classes, count, ignore_index,
    logits_b, logits_c, logits_n, target_b, target_c, target_n, mask_b, mask_n,
    ACTIVATION: tl.constexpr, LABELS: tl.constexpr, HAS_MASK: tl.constexpr, HAS_IGNORE: tl.constexpr,
    PARTIAL: tl.constexpr, EVEN: tl.constexpr, FULL: tl.constexpr, WIDE: tl.constexpr, GROUPS: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_N: tl.constexpr, VECTOR: tl.constexpr, TRUSTED: tl.constexpr = False,
):  # fmt: skip
    """A tile's logits and targets (rows beyond the last class repeat it, and nothing comes of them), which pixels count
    and with what weight, the labels as channels (-1: of none), and how much is wrong with each pixel: a label that no
    class has, a weight below 0, what is no probability. PARTIAL: some classes are not annotated, and `merging.py` looks
    for what is no probability."""
    pixel = tl.max_contiguous(tl.arange(0, BLOCK_N), VECTOR)[None, :]
    inside = inside_of(pixel, count - start, EVEN)
    label, valid, weight, bad = counted(
        target, mask, image, start, classes, count, ignore_index, target_b, target_n, mask_b, mask_n, inside,
        LABELS, HAS_MASK, HAS_IGNORE, EVEN, BLOCK_N < 128, BLOCK_N, TRUSTED,
    )  # fmt: skip
    target += image * target_b
    logits += image * logits_b
    nothing: tl.constexpr = 0.0 if ACTIVATION == NONE else float("-inf")
    xs = ()
    ys = ()
    for group in tl.static_range(GROUPS):
        channel = channels_of(group, WIDE, BLOCK_C)
        row = channel if FULL or group < GROUPS - 1 else tl.minimum(channel, classes - 1)
        x = widened(tl.load(logits + (row * logits_c + (start + pixel) * logits_n), mask=inside, other=nothing))
        if HAS_MASK or HAS_IGNORE:
            x = tl.where(valid, x, nothing)
        if LABELS:
            y = (channel == label).to(tl.float32)
        else:
            y = tl.load(target + (row * target_c + (start + pixel) * target_n), mask=valid, other=0).to(tl.float32)
            if not PARTIAL:
                bad += improbable(y)
        if ACTIVATION == NONE and not PARTIAL:
            bad += improbable(x)
        xs = xs + (x,)
        ys = ys + (y,)
    return xs, ys, label, valid, weight, bad


@triton.jit
def counted(
    target, mask, image, start, classes, count, ignore_index, target_b, target_n, mask_b, mask_n, inside,
    LABELS: tl.constexpr, HAS_MASK: tl.constexpr, HAS_IGNORE: tl.constexpr, EVEN: tl.constexpr, FLAT: tl.constexpr,
    BLOCK_N: tl.constexpr, TRUSTED: tl.constexpr = False,
):  # fmt: skip
    """The labels of a tile as channels (-1: of none), which of its pixels count and with what weight, and what is wrong
    with each: a label that no class has, a weight below 0. TRUSTED: every pixel counts, and a label of no class is
    found otherwise, so it may stay as it is."""
    valid = inside
    weight = valid.to(tl.float32)
    if HAS_MASK:
        weight = _line(mask + image * mask_b, start, mask_n, count, EVEN, FLAT, BLOCK_N).to(tl.float32)
        valid = valid & (weight != 0)
    label = tl.zeros((1, BLOCK_N), tl.int32) - 1
    bad = (weight < 0).to(tl.int32)
    if LABELS:
        given = _line(target + image * target_b, start, target_n, count, EVEN, FLAT, BLOCK_N)
        given = given.to(tl.int64) if given.dtype.primitive_bitwidth > 16 else given.to(tl.int32)
        if HAS_IGNORE:
            valid = valid & (given != ignore_index)
        label = given.to(tl.int32)
        if not (TRUSTED and EVEN and given.dtype.primitive_bitwidth <= 32):
            known = (given >= 0) & (given < tl.maximum(classes, 2))
            bad += (valid & ~known).to(tl.int32)
            # Label 1 is the foreground of a single channel. A pixel that does not count belongs to no class.
            label = tl.where(valid & known, label - (classes == 1).to(tl.int32), -1)
    return label, valid, weight, bad


@triton.jit
def _line(here, start, stride, count, EVEN: tl.constexpr, FLAT: tl.constexpr, BLOCK_N: tl.constexpr):
    """What is given for each pixel. FLAT: it is read in one dimension, and then follows the layout of the tile over the
    threads, where otherwise the tile would follow its."""
    pixel = tl.arange(0, BLOCK_N)
    if not FLAT:
        pixel = pixel[None, :]
    given = tl.load(here + (start + pixel) * stride, mask=inside_of(pixel, count - start, EVEN), other=0)
    return given[None, :] if FLAT else given


@triton.jit
def widened(values):
    """In float32. A bfloat16 number is the upper half of one: a shift, or a mask where two are read together."""
    if values.dtype == tl.bfloat16 and not INTERPRETED:
        return (values.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    return values.to(tl.float32)


@triton.jit
def improbable(values):
    """How many of a pixel's values are outside [0, 1], by more than rounding."""
    return tl.sum(((values < -TOLERANCE) | (values > 1 + TOLERANCE)).to(tl.int32), 0, keep_dims=True)


@triton.jit
def logit_at(logits, image, start, label, logits_b, logits_c, logits_n, WIDE: tl.constexpr, BLOCK_N: tl.constexpr):
    """The logit of each pixel's own class: in the cache, since the tile was just read."""
    channel = label.to(tl.int64) if WIDE else label
    pixel = tl.arange(0, BLOCK_N)[None, :]
    here = logits + image * logits_b + start * logits_n + channel * logits_c + pixel * logits_n
    return tl.load(here, mask=label >= 0, other=0.0).to(tl.float32)


@triton.jit
def power(x, top):
    """exp(x - top) times a number near 1, the same for all classes of a pixel: what one multiply-add makes of it.

    The number is due to the rounding of top / ln 2, and cancels when the powers are divided by their sum. It would not
    be near 1 for logits that are huge; but then they differ by so much that it is all the same what is taken of 2^.
    """
    if INTERPRETED:  # whose multiply-add rounds twice
        return tl.exp2((x - top) * LOG2_E)
    unit = tl.where(tl.abs(top) < HUGE, LOG2_E, 1.0)
    return tl.exp2(tl.fma(x, unit, -(top * unit)))


@triton.jit
def inverse(total):
    """1 / total, of one that is neither huge nor tiny: two instructions. A division looks for those: eight."""
    if INTERPRETED:
        return 1.0 / total
    return libdevice.fast_dividef(1.0, total)


@triton.jit
def add_pair(a, b, c, d):
    return a + c, b + d


@triton.jit
def probability(
    xs, classes, valid, members, ACTIVATION: tl.constexpr, MERGED: tl.constexpr, NEAR_ONE: tl.constexpr,
    FULL: tl.constexpr,
):  # fmt: skip
    """The activation, 0 at pixels that do not count; for softmax also the largest logit, the sum of exponentials from
    there, and what `power` is divided by, 0 there too. MERGED: last the probability of the rows that are members, taken
    together; NEAR_ONE: exact there, for its logarithm."""
    top = tl.zeros_like(valid.to(tl.float32))
    total = top + 1.0
    share = total
    likely = total
    ps = ()
    if ACTIVATION == SOFTMAX:
        largest = xs[0]
        for group in tl.static_range(1, len(xs)):
            largest = tl.maximum(largest, xs[group])
        top = tl.where(valid, tl.max(largest, 0, keep_dims=True), 0.0)
        totals = tl.full(xs[0].shape, -0.0, tl.float32)  # unlike 0.0, it is gone when the first is added
        masses = tl.zeros_like(xs[0])
        powers = ()
        for group in tl.static_range(len(xs)):
            raised = power(xs[group], top)
            once = raised
            if not FULL and group == len(xs) - 1:
                channel = group * raised.shape[0] + tl.arange(0, raised.shape[0])[:, None]
                once = raised * (channel < classes).to(tl.float32)
            totals += once
            if MERGED:
                masses += raised * members[group]
            powers = powers + (raised,)
        if MERGED:
            total, mass = tl.reduce((totals, masses), 0, add_pair, keep_dims=True)
        else:
            total = tl.sum(totals, 0, keep_dims=True)
        share = tl.where(valid, inverse(total), 0.0)
        if MERGED:
            likely = mass * share
            if NEAR_ONE:
                likely = tl.where(likely > 0.5, 1.0 - (total - mass) * share, likely)
        total = tl.where(valid, total * inverse(power(top, top)), 1.0)
        for group in tl.static_range(len(xs)):
            ps = ps + (powers[group] * share,)
    elif ACTIVATION == SIGMOID:
        for group in tl.static_range(len(xs)):
            ps = ps + (1.0 / (1.0 + tl.exp2(-xs[group] * LOG2_E)),)
    else:
        ps = xs
    return ps, top, total, share, likely
