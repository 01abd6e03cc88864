"""What a tile adds to the sums, and what a program makes of them in the end."""

import triton
import triton.language as tl

from polydice.kernels.logarithms import cross_entropy, focal, surprise_of
from polydice.kernels.pixels import (
    CROSS_ENTROPY,
    ERROR_SQ,
    FOCAL,
    INTERSECTION,
    PREDICTION,
    PREDICTION_SQ,
    TARGET,
    TARGET_SQ,
    UNIFORM,
    logit_at,
)


@triton.jit
def multiply(a, b):
    return a * b


@triton.jit
def summand(
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
def _halves(part):
    """The neighbours of even and those of odd place."""
    shape: tl.constexpr = (part.shape[0], part.shape[1], part.shape[2] // 2, 2)
    one, other = tl.split(tl.reshape(part, shape))
    return one, other


@triton.jit
def add(total, values, weight, VECTOR: tl.constexpr, WEIGH: tl.constexpr):
    """The accumulator and a group's values, weighed. It has one number for VECTOR neighbours (8 at most), which one
    thread holds: they are added one after the other, so that a product and its sum are one instruction."""
    if WEIGH:
        values = values * weight
    parts = (tl.reshape(values, (values.shape[0], values.shape[1] // VECTOR, VECTOR)),)
    for _ in tl.static_range((VECTOR > 1) + (VECTOR > 2) + (VECTOR > 4)):
        halves = ()
        for index in tl.static_range(len(parts)):
            halves = halves + _halves(parts[index])
        parts = halves
    for index in tl.static_range(len(parts)):
        total += tl.reshape(parts[index], total.shape)
    return total


@triton.jit
def labelled(sums, WANT: tl.constexpr, GROUPS: tl.constexpr):
    """How many pixels are of some class. Each thread counts its own in float32: exact below 2^24."""
    found = tl.zeros_like(sums[0])
    for index in tl.static_range(len(WANT) * GROUPS):
        if WANT[index // GROUPS] == TARGET:
            found += sums[index]
    return tl.sum(found.to(tl.int32))


@triton.jit
def walked_over(program, rounds, count, programs, EVEN: tl.constexpr, BLOCK_N: tl.constexpr):
    """How many pixels a program has walked over, in so many rounds."""
    walked = rounds * BLOCK_N
    if not EVEN:
        beyond = (program + (rounds - 1).to(tl.int64) * programs + 1) * BLOCK_N - count
        walked -= tl.where(rounds > 0, tl.maximum(beyond, 0), 0).to(tl.int32)
    return walked


@triton.jit
def truth_logit(
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
def store_each(
    out, sums, poison, step, classes, annotated, GROUPS: tl.constexpr, BLOCK_C: tl.constexpr, PARTIAL: tl.constexpr
):
    """Many classes: one group of one sum after the other. Nothing of those that are not annotated."""
    for index in tl.static_range(len(sums)):
        channel = index % GROUPS * BLOCK_C + tl.arange(0, BLOCK_C)
        inside = channel < classes
        here = out + index // GROUPS * step + channel
        total = tl.sum(sums[index], 1) + poison
        if PARTIAL:
            total = tl.where(tl.load(annotated + channel, mask=inside, other=0) != 0, total, 0.0)
        tl.store(here, total, mask=inside)


@triton.jit
def store_together(
    out, sums, poison, step, annotated, PLACES: tl.constexpr, GROUPS: tl.constexpr, LEVELS: tl.constexpr,
    PARTIAL: tl.constexpr,
):  # fmt: skip
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
    field, channel = index // GROUPS, index % GROUPS
    if PARTIAL:
        total = tl.where(tl.load(annotated + channel) != 0, total, 0.0)
    tl.store(out + field * step + channel, total, mask=index < PLACES)
