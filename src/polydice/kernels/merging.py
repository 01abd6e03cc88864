"""Classes that are not annotated in an image, in a tile of its pixels. What `annotation.py` is in torch.

Of a softmax they are members of the background, as class 0 is. Its row stands for all of them, the other members' rows
for nothing: their slopes are 0, and what is added up of them is dropped. Backward, each member gets its share.
"""

import triton
import triton.language as tl

from polydice.kernels.pixels import (
    NONE,
    SOFTMAX,
    TARGET,
    channels_of,
    first_pixel,
    improbable,
    inside_of,
    inverse,
)
from polydice.kernels.slopes import of_probability, of_target
from polydice.kernels.summing import multiply

# Where the background is less likely than FAR, about e^-42, its pixel is looked at anew: the sum of its powers loses
# digits below 2^-92, and a product of two would leave float32.
BITS = tl.constexpr(60.0)
FAR = tl.constexpr(2.0**-BITS.value)
FARTHEST = tl.constexpr(2.0**BITS.value)


@triton.jit
def annotation(annotated, image, classes, ACTIVATION: tl.constexpr, GROUPS: tl.constexpr, BLOCK_C: tl.constexpr):
    """Of one image: the rows that are annotated, 1 for each that is a member of the background, the number of annotated
    classes, and whether class 0 must be one of them and is not."""
    known = ()
    members = ()
    number = tl.zeros((1, 1), tl.int32)
    for group in tl.static_range(GROUPS):
        channel = group * BLOCK_C + tl.arange(0, BLOCK_C)[:, None]
        given = tl.load(annotated + image * classes + channel, mask=channel < classes, other=0) != 0
        number += tl.sum(given.to(tl.int32), 0, keep_dims=True)
        known = known + (given,)
        member = ((channel == 0) | ~given) & (channel < classes)
        members = members + (member.to(tl.float32),)
    number = tl.sum(number)
    headless = False
    if ACTIVATION == SOFTMAX:
        headless = (number > 0) & (tl.load(annotated + image * classes) == 0)
    return known, members, number, headless


@triton.jit
def strays(annotated, image, classes, label):
    """Labels of a class that is not annotated."""
    return (tl.load(annotated + image * classes + label, mask=label >= 0, other=1) == 0).to(tl.int32)


@triton.jit
def _with_first(values, first):
    """The tile with another first row."""
    found = ()
    for group in tl.static_range(len(values)):
        each = values[group]
        if group == 0:
            each = tl.where(tl.arange(0, each.shape[0])[:, None] == 0, first, each)
        found = found + (each,)
    return found


@triton.jit
def where_known(values, known):
    found = ()
    for group in tl.static_range(len(values)):
        found = found + (tl.where(known[group], values[group], 0.0),)
    return found


@triton.jit
def known_slopes(slopes, known, classes, number, ON_REQUEST: tl.constexpr):
    """Those of what is annotated: the uniform sum is over so many classes."""
    slope, overlap, offset, of_entropy, of_focal, of_uniform, of_all = slopes
    if ON_REQUEST:
        of_focal = where_known(of_focal, known)
        of_all = tl.zeros_like(of_all)
        shares = ()
        for group in tl.static_range(len(of_uniform)):
            each = tl.where(known[group], of_uniform[group] * (classes / number), 0.0)
            of_all += tl.sum(each, 0, keep_dims=True)
            shares = shares + (each,)
        of_uniform = shares
    slope, overlap = where_known(slope, known), where_known(overlap, known)
    offset, of_entropy = where_known(offset, known), where_known(of_entropy, known)
    return slope, overlap, offset, of_entropy, of_focal, of_uniform, of_all


@triton.jit
def _of_members(values, members):
    """The sum over the members, each pixel's."""
    found = tl.zeros_like(values[0])
    for group in tl.static_range(len(values)):
        found += values[group] * members[group]
    return tl.sum(found, 0, keep_dims=True)


@triton.jit
def known_target(xs, ys, known, members, ACTIVATION: tl.constexpr, LABELS: tl.constexpr):
    """The masks, merged, and how much is wrong with each pixel of what is annotated."""
    bad = tl.zeros((1, ys[0].shape[1]), tl.int32)
    if not LABELS:
        if ACTIVATION == SOFTMAX:
            ys = _with_first(ys, _of_members(ys, members))
        for group in tl.static_range(len(ys)):
            bad += improbable(tl.where(known[group], ys[group], 0.0))
    if ACTIVATION == NONE:
        for group in tl.static_range(len(xs)):
            bad += improbable(tl.where(known[group], xs[group], 0.0))
    return ys, bad


@triton.jit
def first_of(values):
    first = tl.where(tl.arange(0, values[0].shape[0])[:, None] == 0, values[0], 0.0)
    return tl.sum(first, 0, keep_dims=True)


@triton.jit
def if_it_counts(values, otherwise, label, ys, valid, LABELS: tl.constexpr, ALWAYS: tl.constexpr):
    """The values of pixels where the background counts, as the truth or ALWAYS."""
    counts = valid
    if not ALWAYS:  # a pixel that does not count has no label, and no masks
        counts = label == 0 if LABELS else first_of(ys) != 0
    return tl.where(counts, values, otherwise)


@triton.jit
def clamped(likely):
    """The probability to take a logarithm of: what is farther is added later. NaN stays."""
    return tl.maximum(likely, FAR, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def merged(xs, ps, members, top, total, likely, ON_REQUEST: tl.constexpr):
    """Logits and probabilities with the background in the first row, and the totals of the first group, with 1 / the
    background's probability in the first row. ON_REQUEST: there are other logarithms than the cross-entropy, which want
    of the other members that they have no probability."""
    left = ()
    for group in tl.static_range(len(ps)):
        left = left + (ps[group] * (1.0 - members[group]) if ON_REQUEST else ps[group],)
    row = tl.arange(0, xs[0].shape[0])[:, None]
    return _with_first(xs, top), _with_first(left, likely), tl.where(row == 0, 1.0 / clamped(likely), total)


@triton.jit
def _multiply_far(a, more, b, more_b):
    """The product of two numbers from FAR^2 to 1, times a power of two where it would be less; and what that takes off
    its logarithm, with what was taken off theirs."""
    product = a * b
    tiny = product < FAR * FAR
    again = a * (FARTHEST * FARTHEST) * b
    return tl.where(tiny, again, product), more + more_b + tl.where(tiny, 2 * BITS, 0.0)


@triton.jit
def log2_of_product(values, VECTOR: tl.constexpr):
    """log2 of the product of VECTOR neighbours from FAR to 1. Logarithms are dear."""
    pairs = tl.reduce(tl.reshape(values, (1, values.shape[1] // 2, 2)), 2, multiply)
    pairs = tl.reshape(pairs, (1, values.shape[1] // VECTOR, VECTOR // 2))
    product, more = tl.reduce((pairs, tl.zeros_like(pairs)), 2, _multiply_far)
    return tl.log2(product) - more


@triton.jit
def lowest(found, values, VECTOR: tl.constexpr):
    return tl.minimum(found, tl.min(tl.reshape(values, (1, values.shape[1] // VECTOR, VECTOR)), 2))


@triton.jit
def highest(found, values, VECTOR: tl.constexpr):
    return tl.maximum(found, tl.max(tl.reshape(values, (1, values.shape[1] // VECTOR, VECTOR)), 2))


@triton.jit
def rarity_of(likely, label, ys, valid, LABELS: tl.constexpr, ALWAYS: tl.constexpr):
    """1 / the background's probability where that counts, else 0; FARTHEST at most."""
    return if_it_counts(tl.minimum(inverse(likely), FARTHEST), 0.0, label, ys, valid, LABELS, ALWAYS)


@triton.jit
def _pull(hs, likely, y, slopes, ONCE: tl.constexpr, LABELS: tl.constexpr, OFFSET: tl.constexpr):
    """The gradient of the background's probability: in the first row, or where another thread may have that, anew."""
    if hs[0].shape[0] == 1:
        return hs[0]
    slope, overlap, offset, of_entropy, of_focal, of_uniform, of_all = slopes
    pull = first_of(slope) * likely
    if not ONCE:
        pull += of_target(first_of(overlap), y, LABELS)
    return pull + first_of(offset) if OFFSET else pull


@triton.jit
def merged_gradient(
    ys, ps, before, members, likely, rarity, label, own, slopes, of_any_class, ONCE: tl.constexpr, LABELS: tl.constexpr,
    LUMP: tl.constexpr, WIDE: tl.constexpr, OFFSET: tl.constexpr, ENTROPY: tl.constexpr,
):  # fmt: skip
    """As `gradient_of` and `shared_out`, without what comes on request, and with one multiply-add more for each logit
    instead of a gradient of its own. `before`: the probabilities before the merge.

    A member's probability pulls as the background's does, and takes its share of what the background adds as the truth.
    The slopes of members as classes of their own are 0.
    """
    of_entropy = slopes[3]
    hs, inner = of_probability(ys, ps, own, slopes, ONCE, LABELS, LUMP, OFFSET, ENTROPY)
    y = (label == 0).to(tl.float32) if LABELS else first_of(ys)
    lift = _pull(hs, likely, y, slopes, ONCE, LABELS, OFFSET)
    if ONCE:
        lift += own * rarity
    elif ENTROPY:
        lift -= (of_any_class if LUMP else first_of(of_entropy)) * (rarity if LABELS else rarity * y)
    found = ()
    for group in tl.static_range(len(ps)):
        row = channels_of(group, WIDE, ps[0].shape[0])
        h = hs[group]
        if group == 0:
            h = tl.where(row == 0, 0.0, h)
        g = before[group] * (h + members[group] * lift - inner)
        if ONCE:
            g += tl.where((row == label) & (row > 0), own, 0.0)
        elif ENTROPY:
            of_truth = of_target(of_any_class if LUMP else of_entropy[group], ys[group], LABELS)
            g -= tl.where(row > 0, of_truth, 0.0) if group == 0 else of_truth
        found = found + (g,)
    return found


@triton.jit
def shared_out(gs, ps, members, likely):
    """The gradient of all logits from that of the merged ones, `ps` the probabilities before."""
    first = first_of(gs)
    rate = tl.where(likely == 0, 0.0, first / tl.where(likely == 0, 1.0, likely))
    found = ()
    for group in tl.static_range(len(gs)):
        found = found + (tl.where(members[group] != 0, ps[group] * rate, gs[group]),)
    return found


@triton.jit
def to_the_first(sums, more, FIELD: tl.constexpr, WANT: tl.constexpr, GROUPS: tl.constexpr):
    """The accumulators with `more` in one sum of the first class."""
    found = ()
    for index in tl.static_range(len(WANT) * GROUPS):
        each = sums[index]
        if WANT[index // GROUPS] == FIELD and index % GROUPS == 0:
            each += tl.where(tl.arange(0, each.shape[0])[:, None] == 0, more, 0.0)
        found = found + (each,)
    return found


@triton.jit
def stray_sum(sums, known, classes, WANT: tl.constexpr, GROUPS: tl.constexpr, BLOCK_C: tl.constexpr):
    """The targets of classes that are not annotated."""
    found = tl.zeros_like(sums[0])
    for index in tl.static_range(len(WANT) * GROUPS):
        if WANT[index // GROUPS] == TARGET:
            channel = index % GROUPS * BLOCK_C + tl.arange(0, BLOCK_C)[:, None]
            found += tl.where(known[index % GROUPS] | (channel >= classes), 0.0, sums[index])
    return tl.sum(found)


@triton.jit
def clear(
    result, image, program, end, classes, count, programs, result_b, result_c, result_n,
    EVEN: tl.constexpr, FULL: tl.constexpr, WIDE: tl.constexpr, GROUPS: tl.constexpr, BLOCK_C: tl.constexpr,
    BLOCK_N: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """An image in which nothing is annotated is not read: its gradient is 0."""
    result += image * result_b
    pixel = tl.max_contiguous(tl.arange(0, BLOCK_N), VECTOR)[None, :]
    nothing = tl.zeros((BLOCK_C, BLOCK_N), result.dtype.element_ty)
    for start in tl.range(first_pixel(program, WIDE, BLOCK_N), end, programs * BLOCK_N, num_stages=1):
        for group in tl.static_range(GROUPS):
            row = channels_of(group, WIDE, BLOCK_C)
            inside = inside_of(row, classes, FULL or group < GROUPS - 1) & inside_of(pixel, count - start, EVEN)
            tl.store(result + (row * result_c + (start + pixel) * result_n), nothing, mask=inside)
