"""The pass over the pixels from features, as one Triton kernel forward and one backward. `head_fused.py` launches them.

A program walks over tiles of some pixels of one image. The logits of a tile are a matrix product in registers, and what
follows is that of `triton.py`. Backward makes them anew, and of their gradient two more products: the gradient of the
tile's features, which is written, and that of the layer's weight, which is added up over the tiles of a program. Every
program writes its part of the sums, of the weight's gradient and of the bias's; they are added up in a fixed order.

A tile is one group `[BLOCK_C, BLOCK_N]`. Rows beyond the last class have logits of -inf (0 without activation), so that
nothing comes of them. A product leaves the pixels to the threads so that each holds pairs of them that lie NEAR apart,
and REPEATS of such pairs, BLOCK_N / REPEATS apart.
"""

import triton
import triton.language as tl

from polydice.kernels.logarithms import LN_2, others_of
from polydice.kernels.pixels import (
    CROSS_ENTROPY,
    ERROR_SQ,
    INTERPRETED,
    INTERSECTION,
    NONE,
    PIXELS,
    PREDICTION,
    SOFTMAX,
    TARGET,
    TARGET_SQ,
    add_pair,
    begin,
    counted,
    first_pixel,
    improbable,
    inside_of,
    probability,
)
from polydice.kernels.slopes import gradient_of, slope_of, slopes_of
from polydice.kernels.summing import summand


@triton.jit
def _weight(
    weight, classes, width, dtype: tl.constexpr, WHOLE: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_F: tl.constexpr
):
    """`[BLOCK_C, BLOCK_F]`. WHOLE: there are as many features."""
    channel = tl.arange(0, BLOCK_C)[:, None]
    feature = tl.arange(0, BLOCK_F)[None, :]
    inside = (channel < classes) & inside_of(feature, width, WHOLE)
    return tl.load(weight + channel * width + feature, mask=inside, other=0.0).to(dtype)


@triton.jit
def _bias(bias, classes, ACTIVATION: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK_C: tl.constexpr):
    """`[BLOCK_C, 1]`. Read for every tile, from the cache: the registers are for other things."""
    channel = tl.arange(0, BLOCK_C)
    nothing: tl.constexpr = 0.0 if ACTIVATION == NONE else float("-inf")
    if HAS_BIAS:
        b = tl.load(bias + channel, mask=channel < classes, other=nothing).to(tl.float32)
    else:
        b = tl.where(channel < classes, 0.0, nothing)
    return b[:, None]


@triton.jit
def _product(a, b, c):
    """a b + c, in float32: exact products, since float32 is not rounded to what the tensor cores take."""
    if INTERPRETED:  # which knows bfloat16 by its bits alone
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, c, input_precision="ieee")


@triton.jit
def _places(
    image, start, width, count, image_stride, feature_stride, pixel_stride, EVEN: tl.constexpr, WHOLE: tl.constexpr,
    WIDE: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Where the features of a tile are, `[BLOCK_N, BLOCK_F]`, and which of them there are."""
    pixel = tl.arange(0, BLOCK_N)[:, None]
    feature = tl.arange(0, BLOCK_F)[None, :]
    inside = inside_of(pixel, count - start, EVEN) & inside_of(feature, width, WHOLE)
    feature = feature.to(tl.int64) if WIDE else feature
    return image * image_stride + (feature * feature_stride + (start + pixel) * pixel_stride), inside


@triton.jit
def _tile(
    x, bias, target, mask, image, start, classes, count, ignore_index, target_b, target_c, target_n, mask_b, mask_n,
    ACTIVATION: tl.constexpr, LABELS: tl.constexpr, HAS_MASK: tl.constexpr, HAS_IGNORE: tl.constexpr,
    HAS_BIAS: tl.constexpr, EVEN: tl.constexpr, WIDE: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """What `pixels.load` reads, of logits that lack their bias."""
    pixel = tl.arange(0, BLOCK_N)[None, :]
    label, valid, weight, bad = counted(
        target, mask, image, start, classes, count, ignore_index, target_b, target_n, mask_b, mask_n,
        inside_of(pixel, count - start, EVEN), LABELS, HAS_MASK, HAS_IGNORE, EVEN, True, BLOCK_N,
    )  # fmt: skip
    x += _bias(bias, classes, ACTIVATION, HAS_BIAS, BLOCK_C)
    if HAS_MASK or HAS_IGNORE or not EVEN:
        x = tl.where(valid, x, 0.0 if ACTIVATION == NONE else float("-inf"))
    channel = tl.arange(0, BLOCK_C)[:, None]
    if LABELS:
        y = (channel == label).to(tl.float32)
    else:
        row = channel.to(tl.int64) if WIDE else channel
        here = target + image * target_b + (row * target_c + (start + pixel) * target_n)
        y = tl.load(here, mask=valid & (channel < classes), other=0).to(tl.float32)
        bad += improbable(y)
    if ACTIVATION == NONE:
        bad += improbable(x)
    return x, y, label, valid, weight, bad


@triton.jit
def _add(FIELD: tl.constexpr, total, values, p, weight, REPEATS: tl.constexpr, NEAR: tl.constexpr, WEIGH: tl.constexpr):
    """total plus a tile's values, weighed, of the pixels that one thread holds. p rides along where they do not come
    from the product, as in `triton.py`; otherwise the pixels of a pair are added one after the other, so that a product
    and its sum are one instruction."""
    if WEIGH:
        values = values * weight
    shape: tl.constexpr = (p.shape[0], REPEATS, p.shape[1] // (2 * NEAR * REPEATS), 2, NEAR)
    if FIELD == TARGET or FIELD == TARGET_SQ or FIELD == PIXELS or REPEATS > 1:
        pairs = tl.reduce((tl.reshape(values, shape), tl.reshape(p, shape)), 3, add_pair)
        total += tl.reduce(pairs, 1, add_pair)[0]
    else:
        first, second = tl.split(tl.permute(tl.reshape(values, shape), (0, 1, 2, 4, 3)))
        total += tl.reshape(first, total.shape)
        total += tl.reshape(second, total.shape)
    return total


@triton.jit
def _of_truth(values, label, BLOCK_C: tl.constexpr):
    """The value of each pixel's own class; 0 where it has none."""
    return tl.sum(tl.where(tl.arange(0, BLOCK_C)[:, None] == label, values, 0.0), 0, keep_dims=True)


@triton.jit(do_not_specialize=("offset", "classes", "batch", "programs", "ignore_index"))
def head_forward(
    features, weight, bias, target, mask, partials, offset, classes, width, count, batch, programs, ignore_index,
    features_b, features_f, features_n, target_b, target_c, target_n, mask_b, mask_n, gamma,
    ACTIVATION: tl.constexpr, LABELS: tl.constexpr, HAS_MASK: tl.constexpr, HAS_IGNORE: tl.constexpr,
    HAS_BIAS: tl.constexpr, WANT: tl.constexpr, LUMP: tl.constexpr, ON_REQUEST: tl.constexpr, EVEN: tl.constexpr,
    WHOLE: tl.constexpr, WIDE: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_N: tl.constexpr,
    REPEATS: tl.constexpr, NEAR: tl.constexpr, STAGES: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """features `[B, F, N]`, weight `[C, F]`, bias `[C]`; partials and the other constants as of `pass_forward`."""
    begin(AHEAD)
    image = (tl.program_id(0) // programs).to(tl.int64)
    program = tl.program_id(0) % programs
    w = tl.trans(_weight(weight, classes, width, features.dtype.element_ty, WHOLE, BLOCK_C, BLOCK_F))
    none = tl.zeros((BLOCK_N, BLOCK_C), tl.float32)
    zeros = tl.zeros((BLOCK_C, BLOCK_N // (2 * NEAR * REPEATS), NEAR), tl.float32)
    sums = ()
    for place in tl.static_range(len(WANT)):
        sums = sums + (zeros,)
    lump = tl.zeros((1, BLOCK_N), tl.float32)
    faults = tl.zeros((1, BLOCK_N), tl.int32)
    for start in tl.range(first_pixel(program, WIDE, BLOCK_N), count, programs * BLOCK_N, num_stages=STAGES):
        here, inside = _places(
            image, start, width, count, features_b, features_f, features_n, EVEN, WHOLE, WIDE, BLOCK_F, BLOCK_N
        )
        given = tl.load(features + here, mask=inside, other=0.0)
        x, y, label, valid, share, bad = _tile(
            tl.trans(_product(given, w, none)), bias, target, mask, image, start, classes, count,
            ignore_index, target_b, target_c, target_n, mask_b, mask_n,
            ACTIVATION, LABELS, HAS_MASK, HAS_IGNORE, HAS_BIAS, EVEN, WIDE, BLOCK_C, BLOCK_N,
        )  # fmt: skip
        ps, top, total, rate, likely = probability((x,), classes, valid, (), ACTIVATION, False, False, True)
        p = ps[0]
        faults += bad
        others = top
        if ON_REQUEST:
            others = others_of(ps, classes, True)
        if LUMP:
            surprise = tl.where(label >= 0, top - _of_truth(x, label, BLOCK_C) + tl.log2(total) * LN_2, 0.0)
            lump += surprise * share if HAS_MASK else surprise
        grown = ()
        for place in tl.static_range(len(WANT)):
            each = sums[place]
            if not (LUMP and WANT[place] == CROSS_ENTROPY):
                values = summand(WANT[place], x, y, p, top, total, others, gamma, classes, valid, ACTIVATION, LABELS)
                each = _add(WANT[place], each, values, p, share, REPEATS, NEAR, HAS_MASK)
            grown = grown + (each,)
        sums = grown
    poison = tl.where(tl.sum(faults) > 0, float("nan"), 0.0)  # as in `pass_forward`
    channel = tl.arange(0, BLOCK_C)
    step = batch.to(tl.int64) * classes
    out = partials + offset + program * len(WANT) * step + image * classes + channel
    for place in tl.static_range(len(WANT)):
        total = tl.sum(tl.sum(sums[place], 2), 1)
        if LUMP and WANT[place] == CROSS_ENTROPY:
            total = tl.where(channel == 0, tl.sum(lump), 0.0)
        tl.store(out + place * step, total + poison, mask=channel < classes)


@triton.jit(do_not_specialize=("classes", "batch", "programs", "ignore_index"))
def head_backward(
    grad, scale, features, weight, bias, target, mask, of_features, partials,
    classes, width, count, batch, programs, ignore_index, features_b, features_f, features_n,
    target_b, target_c, target_n, mask_b, mask_n, result_b, result_f, result_n, gamma,
    ACTIVATION: tl.constexpr, LABELS: tl.constexpr, HAS_MASK: tl.constexpr, HAS_IGNORE: tl.constexpr,
    HAS_BIAS: tl.constexpr, WANT: tl.constexpr, LUMP: tl.constexpr, ON_REQUEST: tl.constexpr, EVEN: tl.constexpr,
    WHOLE: tl.constexpr, WIDE: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_N: tl.constexpr,
    REPEATS: tl.constexpr, NEAR: tl.constexpr, STAGES: tl.constexpr, OFFSET: tl.constexpr, ENTROPY: tl.constexpr,
    HAS_SCALE: tl.constexpr, OF_FEATURES: tl.constexpr, OF_WEIGHT: tl.constexpr, OF_BIAS: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    """grad `[sums, B, C]`, times the number at `scale`, -> of_features `[B, F, N]` and, each program's, the gradients
    of weight and bias in a row of `C * F + C` numbers. Those that are not needed (OF_…) are not made."""
    begin(AHEAD)
    image = (tl.program_id(0) // programs).to(tl.int64)
    program = tl.program_id(0) % programs
    factor = tl.load(scale) if HAS_SCALE else 1.0
    w = _weight(weight, classes, width, features.dtype.element_ty, WHOLE, BLOCK_C, BLOCK_F)
    slopes, of_any_class = slopes_of(grad, factor, image, batch, classes, WANT, False, 1, BLOCK_C, ON_REQUEST)
    once: tl.constexpr = ACTIVATION == SOFTMAX and LABELS and ENTROPY  # as in `pass_backward`
    none = tl.zeros((BLOCK_N, BLOCK_C), tl.float32)
    of_weight = tl.zeros((BLOCK_C, BLOCK_F), tl.float32)
    of_bias = tl.zeros((BLOCK_C, BLOCK_N // (2 * NEAR * REPEATS), NEAR), tl.float32)
    last = (count - 1) // BLOCK_N * BLOCK_N
    for walked in tl.range(first_pixel(program, WIDE, BLOCK_N), count, programs * BLOCK_N, num_stages=STAGES):
        start = last - walked
        here, inside = _places(
            image, start, width, count, features_b, features_f, features_n, EVEN, WHOLE, WIDE, BLOCK_F, BLOCK_N
        )
        given = tl.load(features + here, mask=inside, other=0.0)
        x, y, label, valid, share, bad = _tile(
            tl.trans(_product(given, tl.trans(w), none)), bias, target, mask, image, start, classes, count,
            ignore_index, target_b, target_c, target_n, mask_b, mask_n,
            ACTIVATION, LABELS, HAS_MASK, HAS_IGNORE, HAS_BIAS, EVEN, WIDE, BLOCK_C, BLOCK_N,
        )  # fmt: skip
        ps, top, total, rate, likely = probability((x,), classes, valid, (), ACTIVATION, False, False, True)
        own = tl.zeros((1, BLOCK_N), tl.float32)
        if once:
            own = slope_of(grad, factor, image, label, batch, classes, INTERSECTION, WANT)
            own -= 2 * slope_of(grad, factor, image, label, batch, classes, ERROR_SQ, WANT)
            own *= _of_truth(ps[0], label, BLOCK_C)
            if LUMP:
                own -= tl.where(label >= 0, of_any_class, 0.0)
            else:
                own -= slope_of(grad, factor, image, label, batch, classes, CROSS_ENTROPY, WANT)
        gs = gradient_of(
            (x,), (y,), ps, top, total, total, label, valid, own, gamma, classes, slopes, of_any_class, once,
            ACTIVATION, LABELS, LUMP, True, WIDE, ON_REQUEST, OFFSET, ENTROPY,
        )  # fmt: skip
        g = gs[0]
        if HAS_MASK:
            g = g * share
        if ACTIVATION == NONE:
            g = tl.where(valid, g, 0.0)
        if OF_BIAS:
            of_bias = _add(PREDICTION, of_bias, g, g, share, REPEATS, NEAR, False)
        g = g.to(features.dtype.element_ty)
        if OF_FEATURES:
            found = _product(tl.trans(g), w, tl.zeros((BLOCK_N, BLOCK_F), tl.float32))
            there, inside = _places(
                image, start, width, count, result_b, result_f, result_n, EVEN, WHOLE, WIDE, BLOCK_F, BLOCK_N
            )
            tl.store(of_features + there, found.to(of_features.dtype.element_ty), mask=inside)
        if OF_WEIGHT:
            of_weight = _product(g, given, of_weight)
    channel = tl.arange(0, BLOCK_C)
    row = partials + tl.program_id(0).to(tl.int64) * classes * (width + 1)
    if OF_WEIGHT:
        feature = tl.arange(0, BLOCK_F)[None, :]
        inside = (channel < classes)[:, None] & inside_of(feature, width, WHOLE)
        tl.store(row + channel[:, None] * width + feature, of_weight, mask=inside)
    if OF_BIAS:
        tl.store(row + classes * width + channel, tl.sum(tl.sum(of_bias, 2), 1), mask=channel < classes)


@triton.jit(do_not_specialize=("cut", "count", "programs"))
def head_collect(
    rows, of_weight, of_bias, cut, count, programs, OF_WEIGHT: tl.constexpr, OF_BIAS: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_J: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """The gradients of weight, the first `cut` numbers of a program's row, and of bias, the others, of all programs."""
    begin(AHEAD)
    index = tl.program_id(0) * BLOCK_J + tl.arange(0, BLOCK_J)
    program = tl.arange(0, BLOCK_P)[:, None]
    total = tl.zeros((BLOCK_J,), tl.float64)
    for first in range(0, programs, BLOCK_P):
        inside = (first + program < programs) & (index < count)[None, :]
        here = rows + (first + program).to(tl.int64) * count + index[None, :]
        total += tl.sum(tl.load(here, mask=inside, other=0.0).to(tl.float64), 0)
    found = total.to(tl.float32)
    if OF_WEIGHT:
        tl.store(of_weight + index, found.to(of_weight.dtype.element_ty), mask=index < cut)
    if OF_BIAS:
        tl.store(of_bias + index - cut, found.to(of_bias.dtype.element_ty), mask=(index >= cut) & (index < count))
