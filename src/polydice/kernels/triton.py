"""The pass over the pixels as one Triton kernel forward and one backward. `fused.py` launches them.

A program walks over tiles of all classes x a run of pixels of one image. The activation stays in registers, each wanted
sum is accumulated over the tiles and reduced once; unwanted ones are compiled out. Every program writes its partial
sums, which are then added up in a fixed order: no atomics, the same bits every time. Backward computes the
probabilities anew from the logits: one read, one write.
"""

import triton
import triton.language as tl

from polydice.kernels.far import add_far, share_out_far
from polydice.kernels.logarithms import LN_2, others_of
from polydice.kernels.merging import (
    FAR,
    FARTHEST,
    annotation,
    clamped,
    clear,
    highest,
    if_it_counts,
    known_slopes,
    known_target,
    log2_of_product,
    lowest,
    merged,
    merged_gradient,
    rarity_of,
    shared_out,
    stray_sum,
    strays,
    to_the_first,
    where_known,
)
from polydice.kernels.pixels import (
    CROSS_ENTROPY,
    ERROR_SQ,
    FOCAL,
    INTERSECTION,
    NONE,
    SOFTMAX,
    UNIFORM,
    begin,
    channels_of,
    first_pixel,
    inside_of,
    load,
    logit_at,
    power,
    probability,
)
from polydice.kernels.slopes import gradient_of, slope_of, slopes_of
from polydice.kernels.summing import (
    add,
    labelled,
    multiply,
    store_each,
    store_together,
    summand,
    truth_logit,
    walked_over,
)


@triton.jit(do_not_specialize=("offset", "classes", "batch", "programs", "ignore_index"))
def pass_forward(
    logits, target, mask, partials, annotated, offset, classes, count, batch, programs, ignore_index,
    logits_b, logits_c, logits_n, target_b, target_c, target_n, mask_b, mask_n, gamma,
    ACTIVATION: tl.constexpr, LABELS: tl.constexpr, HAS_MASK: tl.constexpr, HAS_IGNORE: tl.constexpr,
    WANT: tl.constexpr, LUMP: tl.constexpr, EVEN: tl.constexpr, FULL: tl.constexpr, WIDE: tl.constexpr,
    GROUPS: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_N: tl.constexpr, VECTOR: tl.constexpr, STAGES: tl.constexpr,
    ON_REQUEST: tl.constexpr, ENTROPY: tl.constexpr, PARTIAL: tl.constexpr, TALLY: tl.constexpr, LEVELS: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    """partials, from the offset on, `[programs, sums, B, C]`, the sums that WANT names. ENTROPY: whether the
    cross-entropy is among them, ON_REQUEST: whether the focal or the uniform one is. PARTIAL: whether there is
    annotated, `[B, C]`, TALLY: whether labels of other classes show in the sum of targets.

    LUMP: every class of a label weighs the same in the cross-entropy, so all of it goes to the first.
    """
    begin(AHEAD)
    image, program = tl.program_id(0).to(tl.int64), tl.program_id(1)
    zeros = tl.zeros((BLOCK_C, BLOCK_N // VECTOR), tl.float32)
    sums = ()
    for index in tl.static_range(len(WANT) * GROUPS):
        sums = sums + (zeros,)
    lump = tl.zeros((1, BLOCK_N // VECTOR), tl.float32)
    faults = tl.zeros((1, BLOCK_N), tl.int32)
    merges: tl.constexpr = PARTIAL and ACTIVATION == SOFTMAX
    deep: tl.constexpr = merges and (ENTROPY or ON_REQUEST)
    known, members, among, end = (), (), classes, count
    if PARTIAL:
        known, members, among, headless = annotation(annotated, image, classes, ACTIVATION, GROUPS, BLOCK_C)
        end = tl.where(among > 0, count, 0)
    least = tl.full((1, BLOCK_N // VECTOR), 1.0, tl.float32)
    # Where every pixel counts, a label that no class has is missing from the sum of targets: no need to look for it.
    every: tl.constexpr = TALLY and not (HAS_MASK or HAS_IGNORE or ACTIVATION == NONE) and GROUPS > 1 and BLOCK_C == 1
    rounds = 0
    for start in tl.range(first_pixel(program, WIDE, BLOCK_N), end, programs * BLOCK_N, num_stages=STAGES):
        xs, ys, label, valid, weight, bad = load(
            logits, target, mask, image, start, classes, count, ignore_index,
            logits_b, logits_c, logits_n, target_b, target_c, target_n, mask_b, mask_n,
            ACTIVATION, LABELS, HAS_MASK, HAS_IGNORE, PARTIAL, EVEN, FULL, WIDE, GROUPS, BLOCK_C, BLOCK_N, VECTOR,
            every and not LUMP,
        )  # fmt: skip
        rounds += 1
        ps, top, total, share, likely = probability(xs, classes, valid, members, ACTIVATION, merges, deep, FULL)
        if not every:
            faults += bad
        first_total = total
        if PARTIAL:
            ys, more = known_target(xs, ys, known, members, ACTIVATION, LABELS)
            if not every:
                faults += more
            if LABELS and not TALLY:
                faults += strays(annotated, image, classes, label)
        if merges:
            xs, ps, first_total = merged(xs, ps, members, top, total, likely, ON_REQUEST)
        if deep:
            largest = tl.where(valid, power(top, top) * share, 1.0) if LUMP else tl.full(top.shape, 1.0, tl.float32)
            least = lowest(least, if_it_counts(likely, largest, label, ys, valid, LABELS, ON_REQUEST), VECTOR)
            likely = if_it_counts(likely, largest, label, ys, valid, LABELS, False)
        others = top
        if ON_REQUEST:
            others = others_of(ps, classes, FULL)
        if LUMP:
            truth = truth_logit(xs, ys, logits, image, start, label, logits_b, logits_c, logits_n, WIDE, BLOCK_N)
            lump = add(lump, tl.where(label > 0 if merges else label >= 0, top - truth, 0.0), weight, VECTOR, HAS_MASK)
            if merges and HAS_MASK:
                lump = add(lump, tl.log2(clamped(likely)) * -LN_2, weight, VECTOR, True)
            elif merges:
                lump -= log2_of_product(clamped(likely), VECTOR) * LN_2
            elif HAS_MASK:
                lump = add(lump, tl.log2(total) * LN_2, weight, VECTOR, True)
            else:  # logarithms are dear: one of a product
                product = tl.reduce(tl.reshape(total, (1, BLOCK_N // VECTOR, VECTOR)), 2, multiply)
                lump += tl.log2(product) * LN_2
        grown = ()
        for place in tl.static_range(len(WANT)):
            for group in tl.static_range(GROUPS):
                each = sums[place * GROUPS + group]
                if not (LUMP and WANT[place] == CROSS_ENTROPY):
                    y, p = ys[group], ps[group]
                    if merges and LABELS:  # anew: kept from before the logarithms, they would be packed into bits
                        y = (channels_of(group, WIDE, BLOCK_C) == label).to(tl.float32)
                    values = summand(
                        WANT[place], xs[group], y, p, top, first_total if group == 0 else total, others, gamma, among,
                        valid, ACTIVATION, LABELS,
                    )  # fmt: skip
                    each = add(each, values, weight, VECTOR, HAS_MASK)
                grown = grown + (each,)
        sums = grown
    if LUMP:
        sums = to_the_first(sums, lump, CROSS_ENTROPY, WANT, GROUPS)
    if deep:
        end = tl.where(tl.min(least) < FAR, end, 0)
        as_said, of_all = add_far(
            logits, target, mask, annotated, image, program, end, classes, count, programs, ignore_index,
            logits_b, logits_c, logits_n, target_b, target_c, target_n, mask_b, mask_n,
            LABELS, HAS_MASK, HAS_IGNORE, EVEN, WIDE, BLOCK_N, VECTOR,
        )  # fmt: skip
        sums = to_the_first(sums, as_said, CROSS_ENTROPY, WANT, GROUPS)
        sums = to_the_first(sums, as_said, FOCAL, WANT, GROUPS)
        sums = to_the_first(sums, of_all / among, UNIFORM, WANT, GROUPS)
    # What is wrong makes the image's sums NaN: raising would mean to wait for the device.
    if every:
        wrong = labelled(sums, WANT, GROUPS) != walked_over(program, rounds, count, programs, EVEN, BLOCK_N)
    else:
        wrong = tl.sum(faults) > 0
    if PARTIAL:
        wrong = wrong | headless
        if TALLY:
            wrong = wrong | (stray_sum(sums, known, classes, WANT, GROUPS, BLOCK_C) > 0)
    poison = tl.where(wrong, float("nan"), 0.0)
    step = batch.to(tl.int64) * classes
    out = partials + offset + program * len(WANT) * step + image * classes
    here = annotated + image * classes if PARTIAL else annotated
    if BLOCK_C == 1:
        store_together(out, sums, poison, step, here, len(WANT) * GROUPS, GROUPS, LEVELS, PARTIAL)
    else:
        store_each(out, sums, poison, step, classes, here, GROUPS, BLOCK_C, PARTIAL)


@triton.jit(do_not_specialize=("classes", "batch", "programs", "ignore_index"))
def pass_backward(
    grad, scale, logits, target, mask, result, annotated, classes, count, batch, programs, ignore_index,
    logits_b, logits_c, logits_n, target_b, target_c, target_n, mask_b, mask_n, result_b, result_c, result_n, gamma,
    ACTIVATION: tl.constexpr, LABELS: tl.constexpr, HAS_MASK: tl.constexpr, HAS_IGNORE: tl.constexpr,
    WANT: tl.constexpr, LUMP: tl.constexpr, EVEN: tl.constexpr, FULL: tl.constexpr, WIDE: tl.constexpr,
    GROUPS: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_N: tl.constexpr, VECTOR: tl.constexpr, STAGES: tl.constexpr,
    ON_REQUEST: tl.constexpr, ENTROPY: tl.constexpr, PARTIAL: tl.constexpr, OFFSET: tl.constexpr,
    HAS_SCALE: tl.constexpr, SINGLE: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """grad `[sums, B, C]`, times the number at `scale`, -> result `[B, C, N]`. OFFSET: whether the sum of predictions
    is among those that WANT names. SINGLE: every program has one tile, and loads it before the slopes, so that both are
    on their way together. ON_REQUEST, ENTROPY and PARTIAL as above."""
    begin(AHEAD)
    image, program = tl.program_id(0).to(tl.int64), tl.program_id(1)
    factor = tl.load(scale) if HAS_SCALE else 1.0
    merges: tl.constexpr = PARTIAL and ACTIVATION == SOFTMAX
    deep: tl.constexpr = merges and (ENTROPY or ON_REQUEST)
    known, members, end = (), (), count
    if not SINGLE:
        slopes, of_any_class = slopes_of(grad, factor, image, batch, classes, WANT, FULL, GROUPS, BLOCK_C, ON_REQUEST)
    if PARTIAL:
        known, members, among, headless = annotation(annotated, image, classes, ACTIVATION, GROUPS, BLOCK_C)
        slopes = known_slopes(slopes, known, classes, among, ON_REQUEST)
        end = tl.where(among > 0, count, 0)
    # Where cross-entropy joins many classes, what only the truth's class adds is worked out once a pixel: the registers
    # do not hold it for each.
    once: tl.constexpr = ACTIVATION == SOFTMAX and LABELS and ENTROPY and BLOCK_C > 1
    last = (count - 1) // BLOCK_N * BLOCK_N
    rarest = tl.zeros((1, BLOCK_N // VECTOR), tl.float32)
    for walked in tl.range(first_pixel(program, WIDE, BLOCK_N), end, programs * BLOCK_N, num_stages=STAGES):
        start = last - walked  # the other way round: what was read last is still in the cache
        xs, ys, label, valid, weight, bad = load(
            logits, target, mask, image, start, classes, count, ignore_index,
            logits_b, logits_c, logits_n, target_b, target_c, target_n, mask_b, mask_n,
            ACTIVATION, LABELS, HAS_MASK, HAS_IGNORE, PARTIAL, EVEN, FULL, WIDE, GROUPS, BLOCK_C, BLOCK_N, VECTOR,
            not (once or HAS_MASK or HAS_IGNORE) and GROUPS * BLOCK_C > 1,
        )  # fmt: skip
        if SINGLE:
            slopes, of_any_class = slopes_of(
                grad, factor, image, batch, classes, WANT, FULL, GROUPS, BLOCK_C, ON_REQUEST
            )
        ps, top, total, share, likely = probability(xs, classes, valid, members, ACTIVATION, merges, ON_REQUEST, FULL)
        first_total, before = total, ps
        if merges:
            ys, bad = known_target(xs, ys, known, members, ACTIVATION, LABELS)
            xs, ps, first_total = merged(xs, ps, members, top, total, likely, ON_REQUEST)
        rarity = likely
        if deep:
            rarity = rarity_of(likely, label, ys, valid, LABELS, ON_REQUEST)
            rarest = highest(rarest, rarity, VECTOR)
        own = tl.zeros((1, BLOCK_N), tl.float32)
        if once:
            own = slope_of(grad, factor, image, label, batch, classes, INTERSECTION, WANT)
            own -= 2 * slope_of(grad, factor, image, label, batch, classes, ERROR_SQ, WANT)
            truth = logit_at(logits, image, start, label, logits_b, logits_c, logits_n, WIDE, BLOCK_N)
            of_truth = power(truth, top) * share
            if merges:
                of_truth = tl.where(label == 0, likely, of_truth)
            own *= of_truth
            if LUMP:
                own -= tl.where(valid, of_any_class, 0.0)
            else:
                own -= slope_of(grad, factor, image, label, batch, classes, CROSS_ENTROPY, WANT)
        elif ENTROPY and LUMP:
            own -= tl.where(valid, of_any_class, 0.0)
        if merges and not ON_REQUEST:
            gs = merged_gradient(
                ys, ps, before, members, likely, rarity, label, own, slopes, of_any_class, once, LABELS, LUMP, WIDE,
                OFFSET, ENTROPY,
            )  # fmt: skip
        else:
            gs = gradient_of(
                xs, ys, ps, top, first_total, total, label, valid, own, gamma, classes, slopes, of_any_class, once,
                ACTIVATION, LABELS, LUMP, FULL, WIDE, ON_REQUEST, OFFSET, ENTROPY,
            )  # fmt: skip
            if merges:
                gs = shared_out(gs, before, members, likely)
            elif PARTIAL:
                gs = where_known(gs, known)
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
    if PARTIAL:
        clear(
            result, image, program, count - end, classes, count, programs, result_b, result_c, result_n,
            EVEN, FULL, WIDE, GROUPS, BLOCK_C, BLOCK_N, VECTOR,
        )  # fmt: skip
    if deep:
        end = tl.where(tl.max(rarest) >= FARTHEST, end, 0)
        share_out_far(
            logits, target, mask, result, annotated, slopes, image, program, end, classes, count, programs,
            ignore_index, logits_b, logits_c, logits_n, target_b, target_c, target_n, mask_b, mask_n,
            result_b, result_c, result_n, LABELS, HAS_MASK, HAS_IGNORE, EVEN, WIDE, BLOCK_N, ON_REQUEST,
        )  # fmt: skip
