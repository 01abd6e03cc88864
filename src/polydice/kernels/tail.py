"""From sums to the loss in one small Triton kernel: value and slopes together, in float64.

`losses.py` says the same in torch, a dozen tiny operations a loss and twice as many backward. On a GPU, launching those
takes longer than the pass over the pixels; this kernel is what runs there instead. Tests hold the two together.
"""

import triton
import triton.language as tl

from polydice import geometry
from polydice.kernels.pixels import begin
from polydice.kernels.slopes import bounded

POLYNOMIAL, RATIO, OVERLAP, ENTROPY, FOCUSED = (tl.constexpr(kind) for kind in range(5))  # as in ending.KINDS


TINY = tl.constexpr(geometry.TINY)
VANISHING = tl.constexpr(geometry.VANISHING)


@triton.jit
def _inverse(number):
    """1 / number, 0 where the number is 0: one of float32, made exact by Newton's steps. A division in float64 takes
    many times as long, and one waits for the other here."""
    empty = tl.abs(number) < TINY
    number = tl.where(empty, 1.0, number)
    found = (1.0 / number.to(tl.float32)).to(tl.float64)
    for _ in tl.static_range(2):
        found = found * (2 - number * found)
    return tl.where(empty, 0.0, found)


@triton.jit
def _inverse_root(square):
    """1 / sqrt(square), likewise."""
    empty = square < TINY
    square = tl.where(empty, 1.0, square)
    found = (1.0 / tl.sqrt(square.to(tl.float32))).to(tl.float64)
    for _ in tl.static_range(2):
        found = found * (1.5 - 0.5 * square * found * found)
    return tl.where(empty, 0.0, found)


@triton.jit
def _polynomial(
    a, b, e, smooth, added, DETACHED: tl.constexpr, COEFFICIENTS: tl.constexpr, FIRST: tl.constexpr,
    LAST: tl.constexpr, ADDED: tl.constexpr, SERIES: tl.constexpr,
):  # fmt: skip
    """PolyDice: the loss, and its slopes in b and e. The names are those of geometry.py. ADDED: the first coefficient
    is larger by `added`, which comes with every call."""
    root_a = a * _inverse_root(a)
    of_root = _inverse_root(b)
    root_b = b * of_root
    whole = _inverse(a + b + smooth)
    r = root_a * root_b
    d = (a - b) * _inverse(root_a + root_b)
    gap = d * d
    gap_b = -d * of_root
    lost = gap * whole
    lost_b = (gap_b - lost) * whole
    x_e = tl.where(r == 0, 0.0, _inverse(2 * r + smooth))
    twice = e - gap
    held = tl.where(twice < 0, 0.0, tl.where(twice > 2 * r, 2 * r, twice))
    x = tl.where(r < e * VANISHING, held, twice) * x_e
    x_b = -(gap_b + x * root_a * of_root) * x_e
    # The angle is twice that of u = 1 - cos(angle / 2), where its series converges three times as fast:
    # t = 4 sum 2 (2u)^k / (k^2 binomial(2k, k)), by Horner's rule; its slope in u is 4 of what is in t_x.
    of_half_cosine = _inverse_root(1 - x / 2)
    u = x * _inverse(2 + (2 - x) * of_half_cosine)
    t = tl.zeros_like(x)
    t_x = tl.zeros_like(x)
    for k in tl.static_range(len(SERIES)):
        t_x = t_x * u + t
        t = t * u + SERIES[len(SERIES) - 1 - k]
    t_x = t_x * u + t
    t = 4 * t * u
    t_x = t_x * of_half_cosine
    q = tl.zeros_like(x)
    q_t = tl.zeros_like(x)
    for k in tl.static_range(LAST - FIRST):
        q_t = q_t * t + q + COEFFICIENTS[LAST - 1 - k]
        q = (q + COEFFICIENTS[LAST - 1 - k]) * t
    if ADDED:
        q += added * t
        q_t += added
    slope = (1 - lost) * q_t * t_x
    return lost + (1 - lost) * q, lost_b * (1.0 if DETACHED else 1 - q) + slope * x_b, slope * x_e


@triton.jit
def _overlap(i, p, a, alpha, beta, smooth, EXPONENT: tl.constexpr):
    """Tversky and its kin: the loss, and its slopes in I and P."""
    wrong = alpha * (p - i) + beta * (a - i)
    whole = i + wrong + smooth
    of_whole = _inverse(whole)
    loss = wrong * of_whole
    of_i = (-(alpha + beta) - loss * (1 - alpha - beta)) * of_whole
    of_p = alpha * (1 - loss) * of_whole
    if EXPONENT != 1:
        perfect = loss < TINY
        base = tl.where(perfect, 1.0, loss)
        focal = tl.where(perfect, 0.0, tl.exp2(EXPONENT * tl.log2(base)))
        bend = EXPONENT * focal / base
        return focal, bend * of_i, bend * of_p
    return loss, of_i, of_p


@triton.jit(do_not_specialize=("room", "count", "programs"))
def gather(space, room, count, programs, BLOCK_P: tl.constexpr, BLOCK_J: tl.constexpr, AHEAD: tl.constexpr):
    """The sums in `space`, laid out as `tail` says, of many partial sums: more than one multiprocessor should read.
    Four at a time are added up in float32, which loses nothing that counts: conversions are slow."""
    begin(AHEAD)
    sums, partials = (space + room).to(tl.pointer_type(tl.float64), bitcast=True), space + 3 * room
    start, part = tl.program_id(0) * BLOCK_J, tl.arange(0, BLOCK_P)[:, None]
    index = start + tl.arange(0, BLOCK_J)
    here = partials + part * count + index[None, :]
    total = tl.zeros((BLOCK_J,), tl.float64)
    for first in range(0, programs, BLOCK_P):
        inside = (part < programs - first) & (index < count)[None, :]
        found = tl.load(here + first * count, mask=inside, other=0.0)
        total += tl.sum(tl.sum(tl.reshape(found, (4, BLOCK_P // 4, BLOCK_J)), 0).to(tl.float64), 0)
    tl.store(sums + index, total, mask=index < count)


@triton.jit
def _four(
    here, index, inside, first, rows, inner, images, FOUR: tl.constexpr, FIELD: tl.constexpr, FIELDS: tl.constexpr,
    OVER_BATCH: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """One of the sums over four rows, SPLIT apart. In float32, as `gather` does."""
    found = tl.zeros((SPLIT, index.shape[0]), tl.float32)
    for one in tl.static_range(4):
        row = first + (4 * FOUR + one) * SPLIT + tl.arange(0, SPLIT)[:, None]
        line = row * FIELDS + FIELD
        if OVER_BATCH:
            line = (row // images * FIELDS + FIELD) * images + row % images
        found += tl.load(here + line * inner + index[None, :], mask=(row < rows) & inside[None, :], other=0.0)
    return found.to(tl.float64)


@triton.jit
def _sums(
    here, index, inside, rows, inner, images, FIELDS: tl.constexpr, OVER_BATCH: tl.constexpr, SPLIT: tl.constexpr,
    AT_ONCE: tl.constexpr,
):  # fmt: skip
    """All sums, over the programs, of what `index` says: an image and a class, or OVER_BATCH a class, over so many
    images too. They stay in registers: SPLIT threads share out the rows that are added up for each, and AT_ONCE times
    four rows of a thread are on their way together."""
    totals = ()
    for _ in tl.static_range(FIELDS):
        totals = totals + (tl.zeros((SPLIT, index.shape[0]), tl.float64),)
    for first in range(0, rows, SPLIT * 4 * AT_ONCE):
        grown = ()
        for field in tl.static_range(FIELDS):
            total = totals[field]
            for four in tl.static_range(AT_ONCE):
                total += _four(here, index, inside, first, rows, inner, images, four, field, FIELDS, OVER_BATCH, SPLIT)
            grown = grown + (total,)
        totals = grown
    sums = ()
    for field in tl.static_range(FIELDS):
        sums = sums + (tl.sum(totals[field], 0),)
    return sums


@triton.jit
def _of(sums, index, FIELD: tl.constexpr):
    return sums[FIELD] if FIELD >= 0 else tl.zeros(index.shape, tl.float64)


@triton.jit
def _write(
    slopes, slope, index, inside, batch, inner, FIELD: tl.constexpr, OVER_BATCH: tl.constexpr, BLOCK_B: tl.constexpr
):
    """A slope of a class OVER_BATCH is that of the class in every image."""
    if FIELD >= 0:
        slope = bounded(slope.to(tl.float32))
        if OVER_BATCH:
            image = tl.arange(0, BLOCK_B)[:, None]
            here = slopes + (FIELD * batch + image) * inner + index[None, :]
            tl.store(here, tl.broadcast_to(slope[None, :], here.shape), mask=(image < batch) & inside[None, :])
        else:
            tl.store(slopes + FIELD * inner + index, slope, mask=inside)


@triton.jit(do_not_specialize=("room", "batch", "classes", "programs"))
def tail(
    space, weights, added, loss, annotated, room, batch, classes, programs,
    KIND: tl.constexpr, NUMBERS: tl.constexpr, COEFFICIENTS: tl.constexpr, BOUNDS: tl.constexpr,
    ADDED: tl.constexpr, EACH_ADDED: tl.constexpr,
    FACTOR: tl.constexpr, BACKGROUND: tl.constexpr, SKIP: tl.constexpr,
    MEAN: tl.constexpr, LABELS: tl.constexpr, SIGMOID: tl.constexpr, WEIGHTS: tl.constexpr, OVER_BATCH: tl.constexpr,
    INTERSECTION: tl.constexpr, PREDICTION: tl.constexpr, PREDICTION_SQ: tl.constexpr, TARGET: tl.constexpr,
    TARGET_SQ: tl.constexpr, ERROR_SQ: tl.constexpr, CROSS_ENTROPY: tl.constexpr, PIXELS: tl.constexpr,
    FOCAL: tl.constexpr, UNIFORM: tl.constexpr,
    PARTIAL: tl.constexpr, SERIES: tl.constexpr, FIELDS: tl.constexpr, GATHERED: tl.constexpr,
    BLOCK: tl.constexpr, SPLIT: tl.constexpr, AT_ONCE: tl.constexpr, BLOCK_B: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """weights `[terms, C]`, what is added to first coefficients, and, in `space`, partial sums (GATHERED: sums) ->
    the loss and, in `space`, its slopes.

    The space holds the slopes `[fields, B, C]`, from `room` on as many sums in float64, and from three times `room` on
    the partial sums `[programs, fields, B, C]`; all but the sums are float32.

    KIND, NUMBERS (four each), COEFFICIENTS (those from BOUNDS[n] to BOUNDS[n + 1]), FACTOR, BACKGROUND and SKIP
    describe the terms of a weighted sum of losses. ADDED is the place of each term in `added` `[terms, C]`, or
    `[terms]` if not EACH_ADDED; -1: it has none. PARTIAL: only what is annotated, `[B, C]`, counts.
    """
    begin(AHEAD)
    inner, rows = batch * classes, programs
    if OVER_BATCH:
        inner, rows = classes, programs * batch
    index = tl.arange(0, BLOCK)
    within = index < inner
    if GATHERED:
        sums = (space + room).to(tl.pointer_type(tl.float64), bitcast=True)
        found = _sums(sums, index, within, rows, inner, batch, FIELDS, OVER_BATCH, SPLIT, AT_ONCE)
    else:
        found = _sums(space + 3 * room, index, within, rows, inner, batch, FIELDS, OVER_BATCH, SPLIT, AT_ONCE)
    # What is not among the sums is 0.
    i = _of(found, index, INTERSECTION)
    p = _of(found, index, PREDICTION)
    b = _of(found, index, PREDICTION_SQ)
    truth = _of(found, index, TARGET)
    a = _of(found, index, TARGET if LABELS else TARGET_SQ)  # the squares of labels are the labels
    e = _of(found, index, ERROR_SQ)
    entropy = _of(found, index, CROSS_ENTROPY)
    pixels = _of(found, index, PIXELS)
    focal = _of(found, index, FOCAL)
    uniform = _of(found, index, UNIFORM)
    channel = index % classes
    inside = within
    if PARTIAL:
        if OVER_BATCH:
            image = tl.arange(0, BLOCK_B)[:, None]
            here = annotated + image * classes + index[None, :]
            known = tl.load(here, mask=(image < batch) & within[None, :], other=0) != 0
            inside = tl.max(known.to(tl.int32), 0) > 0
        else:
            inside = tl.load(annotated + index, mask=within, other=0) != 0
    value = tl.zeros((1,), tl.float64)
    of_i = tl.zeros_like(i)
    of_p = tl.zeros_like(i)
    of_b = tl.zeros_like(i)
    of_e = tl.zeros_like(i)
    of_entropy = tl.zeros_like(i)
    of_focal = tl.zeros_like(i)
    of_uniform = tl.zeros_like(i)
    for n in tl.static_range(len(KIND)):
        counted = inside & (channel >= (0 if BACKGROUND[n] else 1))
        weight = counted.to(tl.float64)
        if WEIGHTS:
            weight = weight * tl.load(weights + n * classes + channel, mask=within, other=0.0).to(tl.float64)
        if SKIP[n]:
            weight = tl.where((truth if TARGET >= 0 else a) < TINY, 0.0, weight)
        count = weight
        if KIND[n] == POLYNOMIAL:
            more = tl.zeros(index.shape, tl.float64)
            if ADDED[n] >= 0:
                if EACH_ADDED:
                    more = tl.load(added + ADDED[n] * classes + channel, mask=within, other=0.0)
                else:
                    more += tl.load(added + ADDED[n])
            each, each_b, each_e = _polynomial(
                a, b, e, NUMBERS[4 * n], more, NUMBERS[4 * n + 1] != 0, COEFFICIENTS, BOUNDS[n], BOUNDS[n + 1],
                ADDED[n] >= 0, SERIES,
            )  # fmt: skip
        elif KIND[n] == RATIO:
            each_e = _inverse(a + b + NUMBERS[4 * n])
            each = e * each_e
            each_b = -each * each_e
        elif KIND[n] == OVERLAP:
            each, each_i, each_p = _overlap(
                i, p, truth, NUMBERS[4 * n], NUMBERS[4 * n + 1], NUMBERS[4 * n + 2], NUMBERS[4 * n + 3],
            )  # fmt: skip
        else:
            if KIND[n] == FOCUSED:
                each = focal
            elif NUMBERS[4 * n + 1] != 0:
                each = (1 - NUMBERS[4 * n + 1]) * entropy + NUMBERS[4 * n + 1] * uniform
            else:
                each = entropy + NUMBERS[4 * n] * (truth - i + (p - i if SIGMOID else 0.0))
            if SIGMOID:
                count = tl.where(counted, pixels, 0.0)
            elif LABELS:
                count = weight * truth
            else:
                count = tl.where(inside & (channel == 0), pixels, 0.0)
        share = FACTOR[n] + tl.zeros((1,), tl.float64)
        if MEAN and KIND[n] <= OVERLAP and not (WEIGHTS or SKIP[n] or PARTIAL):
            # All count: their number is known, and nothing waits for a sum over the threads.
            number = inner - (0 if BACKGROUND[n] else inner // classes)
            share = share * _inverse(tl.zeros((1,), tl.float64) + number)
        elif MEAN:
            share = share * _inverse(tl.sum(count, 0, keep_dims=True))
        each = tl.where(weight == 0, 0.0, weight * each)
        value += share * tl.sum(each, 0, keep_dims=True)
        weight = share * weight
        if KIND[n] <= RATIO:
            of_b += tl.where(weight == 0, 0.0, weight * each_b)
            of_e += tl.where(weight == 0, 0.0, weight * each_e)
        elif KIND[n] == OVERLAP:
            of_i += tl.where(weight == 0, 0.0, weight * each_i)
            of_p += tl.where(weight == 0, 0.0, weight * each_p)
        elif KIND[n] == FOCUSED:
            of_focal += weight
        elif NUMBERS[4 * n + 1] != 0:
            of_entropy += weight * (1 - NUMBERS[4 * n + 1])
            of_uniform += weight * NUMBERS[4 * n + 1]
        else:
            of_entropy += weight
            of_i -= weight * (NUMBERS[4 * n] * (2 if SIGMOID else 1))
            of_p += weight * (NUMBERS[4 * n] if SIGMOID else 0.0)
    tl.store(loss + tl.zeros((1,), tl.int32), value.to(tl.float32))
    nothing = tl.zeros_like(i)
    _write(space, of_i, index, within, batch, inner, INTERSECTION, OVER_BATCH, BLOCK_B)
    _write(space, of_p, index, within, batch, inner, PREDICTION, OVER_BATCH, BLOCK_B)
    _write(space, of_b, index, within, batch, inner, PREDICTION_SQ, OVER_BATCH, BLOCK_B)
    _write(space, nothing, index, within, batch, inner, TARGET, OVER_BATCH, BLOCK_B)
    _write(space, nothing, index, within, batch, inner, TARGET_SQ, OVER_BATCH, BLOCK_B)
    _write(space, of_e, index, within, batch, inner, ERROR_SQ, OVER_BATCH, BLOCK_B)
    _write(space, of_entropy, index, within, batch, inner, CROSS_ENTROPY, OVER_BATCH, BLOCK_B)
    _write(space, nothing, index, within, batch, inner, PIXELS, OVER_BATCH, BLOCK_B)
    _write(space, of_focal, index, within, batch, inner, FOCAL, OVER_BATCH, BLOCK_B)
    _write(space, of_uniform, index, within, batch, inner, UNIFORM, OVER_BATCH, BLOCK_B)
