"""Classes that are not annotated in an image, in a tile of its pixels. What `annotation.py` is in torch.

Of a softmax they are members of the background, as class 0 is. Its row stands for all of them, the other members' rows
for nothing: their slopes are 0, and what is added up of them is dropped. Backward, each member gets its share.
"""

import triton
import triton.language as tl

from polydice.kernels.logarithms import LN_2
from polydice.kernels.pixels import (
    LOG2_E,
    NONE,
    SOFTMAX,
    TARGET,
    channels_of,
    first_pixel,
    improbable,
    inside_of,
    inverse,
    load,
    probability,
)
from polydice.kernels.slopes import of_probability, of_target

FAR = tl.constexpr(2.0**-92)  # a sum of powers this small, beside the largest, has lost digits, or all of them


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
def _first_of(values):
    first = tl.where(tl.arange(0, values[0].shape[0])[:, None] == 0, values[0], 0.0)
    return tl.sum(first, 0, keep_dims=True)


@triton.jit
def _is_far(likely, label, ys, valid, LABELS: tl.constexpr, ALWAYS: tl.constexpr):
    """Pixels where the background counts, or ALWAYS, but is too unlikely for its logarithm."""
    far = valid & (likely < FAR)
    if not ALWAYS:
        far = far & (label == 0 if LABELS else _first_of(ys) != 0)
    return far


@triton.jit
def merged(
    xs, ys, ps, label, valid, members, top, total, likely, LABELS: tl.constexpr, DEEP: tl.constexpr,
    ON_REQUEST: tl.constexpr,
):  # fmt: skip
    """Logits and probabilities with the background in the first row; each pixel's probability of it, to take the
    logarithm of, 1 where it is far; the totals of the first group, with 1 / that in the first row; and which pixels are
    far. DEEP: whether logarithms are wanted at all, ON_REQUEST: others than the cross-entropy, which want of the other
    members that they have no probability."""
    far = _is_far(likely, label, ys, valid, LABELS, ON_REQUEST) if DEEP else valid & (likely < 0)
    near = tl.where(far | (likely == 0), 1.0, likely)
    left = ()
    for group in tl.static_range(len(ps)):
        left = left + (ps[group] * (1.0 - members[group]) if ON_REQUEST else ps[group],)
    row = tl.arange(0, xs[0].shape[0])[:, None]
    return _with_first(xs, top), _with_first(left, likely), near, tl.where(row == 0, 1.0 / near, total), far


@triton.jit
def merged_gradient(
    ys, ps, before, members, likely, far, label, own, slopes, of_any_class, ONCE: tl.constexpr, LABELS: tl.constexpr,
    LUMP: tl.constexpr, WIDE: tl.constexpr, OFFSET: tl.constexpr, ENTROPY: tl.constexpr,
):  # fmt: skip
    """As `gradient_of` and `shared_out`, without what comes on request, and with one multiply-add more for each logit
    instead of a gradient of its own. `before`: the probabilities before the merge.

    A member's probability pulls as the background's does, and takes its share of what the background adds as the truth.
    The slopes of members as classes of their own are 0.
    """
    hs, inner = of_probability(ys, ps, own, slopes, ONCE, LABELS, LUMP, OFFSET, ENTROPY)
    pull = _first_of(hs)
    as_truth = tl.zeros_like(likely)
    if ONCE:
        as_truth = tl.where(label == 0, own, 0.0)
    elif ENTROPY:
        as_truth = -of_target(of_any_class if LUMP else _first_of(slopes[3]), _first_of(ys), LABELS)
    lift = pull
    if ENTROPY:
        lift += as_truth * inverse(tl.where(likely < FAR, 1.0, likely))
    found = ()
    for group in tl.static_range(len(ps)):
        row = channels_of(group, WIDE, ps[0].shape[0])
        h, y = hs[group], ys[group]
        if group == 0:
            h = tl.where(row == 0, 0.0, h)
        g = before[group] * (h + members[group] * lift - inner)
        if ONCE:
            g += tl.where((row == label) & (row > 0), own, 0.0)
        elif ENTROPY:
            of_truth = of_target(of_any_class if LUMP else slopes[3][group], y, LABELS)
            g -= tl.where(row > 0, of_truth, 0.0) if group == 0 else of_truth
        if group == 0:
            g = tl.where(far & (row == 0), likely * (pull - inner) + as_truth, g)
        found = found + (g,)
    return found


@triton.jit
def shared_out(gs, ps, members, likely, far):
    """The gradient of all logits from that of the merged ones, `ps` the probabilities before. Of what is far the first
    row keeps all of it, for `share_out_far`."""
    first = _first_of(gs)
    rate = tl.where(likely == 0, 0.0, first / tl.where(likely == 0, 1.0, likely))
    found = ()
    for group in tl.static_range(len(gs)):
        g = tl.where(members[group] != 0, ps[group] * rate, gs[group])
        if group == 0:
            g = tl.where(far & (tl.arange(0, g.shape[0])[:, None] == 0), first, g)
        found = found + (g,)
    return found


@triton.jit
def _apart(xs, members):
    """The largest logit of the members, and the sum of exponentials from there: 0 where all of them are ruled out."""
    largest = tl.where(members[0] != 0, xs[0], float("-inf"))
    for group in tl.static_range(1, len(xs)):
        largest = tl.maximum(largest, tl.where(members[group] != 0, xs[group], float("-inf")))
    top = tl.max(largest, 0, keep_dims=True)
    base = tl.where(top == float("-inf"), 0.0, top)
    powers = ()
    for group in tl.static_range(len(xs)):
        powers = powers + (tl.where(members[group] != 0, tl.exp2((xs[group] - base) * LOG2_E), 0.0),)
    return top, powers, _of_members(powers, members)


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
def add_far(
    logits, target, mask, known, members, image, program, end, classes, count, programs, ignore_index,
    logits_b, logits_c, logits_n, target_b, target_c, target_n, mask_b, mask_n,
    LABELS: tl.constexpr, HAS_MASK: tl.constexpr, HAS_IGNORE: tl.constexpr, EVEN: tl.constexpr, FULL: tl.constexpr,
    WIDE: tl.constexpr, GROUPS: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_N: tl.constexpr, VECTOR: tl.constexpr,
    ON_REQUEST: tl.constexpr,
):  # fmt: skip
    """What the pixels add that are far, to the sums of logarithms of the background: as its target says, and all."""
    as_said = tl.zeros((1, BLOCK_N), tl.float32)
    of_all = tl.zeros((1, BLOCK_N), tl.float32)
    for start in tl.range(first_pixel(program, WIDE, BLOCK_N), end, programs * BLOCK_N, num_stages=1):
        xs, ys, label, valid, weight, bad = load(
            logits, target, mask, image, start, classes, count, ignore_index,
            logits_b, logits_c, logits_n, target_b, target_c, target_n, mask_b, mask_n,
            SOFTMAX, LABELS, HAS_MASK, HAS_IGNORE, True, EVEN, FULL, WIDE, GROUPS, BLOCK_C, BLOCK_N, VECTOR,
        )  # fmt: skip
        ps, top, total, share, likely = probability(xs, classes, valid, members, SOFTMAX, True, FULL)
        ys, bad = known_target(xs, ys, known, members, SOFTMAX, LABELS)
        far = _is_far(likely, label, ys, valid, LABELS, ON_REQUEST)
        own_top, powers, own_total = _apart(xs, members)
        surprise = (top - own_top) + (tl.log2(total) - tl.log2(own_total)) * LN_2
        surprise = tl.where(far, surprise * weight if HAS_MASK else surprise, 0.0)
        y = _first_of(ys)
        as_said += tl.where(y == 0, 0.0, y * surprise)
        of_all += surprise
    shape: tl.constexpr = (1, BLOCK_N // VECTOR, VECTOR)
    return tl.sum(tl.reshape(as_said, shape), 2), tl.sum(tl.reshape(of_all, shape), 2)


@triton.jit
def share_out_far(
    logits, target, mask, result, known, members, image, program, end, classes, count, programs,
    ignore_index, logits_b, logits_c, logits_n, target_b, target_c, target_n, mask_b, mask_n,
    result_b, result_c, result_n,
    LABELS: tl.constexpr, HAS_MASK: tl.constexpr, HAS_IGNORE: tl.constexpr, EVEN: tl.constexpr, FULL: tl.constexpr,
    WIDE: tl.constexpr, GROUPS: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_N: tl.constexpr, VECTOR: tl.constexpr,
    ON_REQUEST: tl.constexpr,
):  # fmt: skip
    """The gradient of the background where it is far, which lies in its row, by the members' own powers."""
    last = (count - 1) // BLOCK_N * BLOCK_N
    result += image * result_b
    for walked in tl.range(first_pixel(program, WIDE, BLOCK_N), end, programs * BLOCK_N, num_stages=1):
        start = last - walked
        xs, ys, label, valid, weight, bad = load(
            logits, target, mask, image, start, classes, count, ignore_index,
            logits_b, logits_c, logits_n, target_b, target_c, target_n, mask_b, mask_n,
            SOFTMAX, LABELS, HAS_MASK, HAS_IGNORE, True, EVEN, FULL, WIDE, GROUPS, BLOCK_C, BLOCK_N, VECTOR,
        )  # fmt: skip
        ps, top, total, share, likely = probability(xs, classes, valid, members, SOFTMAX, True, FULL)
        ys, bad = known_target(xs, ys, known, members, SOFTMAX, LABELS)
        far = _is_far(likely, label, ys, valid, LABELS, ON_REQUEST)
        own_top, powers, own_total = _apart(xs, members)
        pixel = tl.arange(0, BLOCK_N)[None, :]
        tl.debug_barrier()  # other threads may have written it
        whole = tl.load(result + (start + pixel) * result_n, mask=far, other=0.0).to(tl.float32)
        tl.debug_barrier()  # and may write it again
        rate = tl.where(own_total == 0, 0.0, whole / tl.where(own_total == 0, 1.0, own_total))
        for group in tl.static_range(GROUPS):
            here = result + (channels_of(group, WIDE, BLOCK_C) * result_c + (start + pixel) * result_n)
            tl.store(here, (powers[group] * rate).to(result.dtype.element_ty), mask=(members[group] != 0) & far)


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
