"""Pixels whose background is too unlikely for the loops over the tiles, of classes that are not annotated: `merging.py`
says when. A program that has met one walks over its pixels once more.

It does so class by class, which is slow: it is rare, and takes no registers from the loops that are not.
"""

import triton
import triton.language as tl

from polydice.kernels.logarithms import LN_2
from polydice.kernels.merging import BITS, first_of
from polydice.kernels.pixels import LOG2_E, counted, first_pixel, inside_of, logit_at


@triton.jit
def _logit_of(
    channel, logits, image, start, valid, logits_b, logits_c, logits_n, WIDE: tl.constexpr, BLOCK_N: tl.constexpr
):
    """One class's logits, 0 at pixels that do not count."""
    label = tl.where(valid, channel, -1)
    return logit_at(logits, image, start, label, logits_b, logits_c, logits_n, WIDE, BLOCK_N)


@triton.jit
def _row(channel, WIDE: tl.constexpr):
    return tl.full((1, 1), 0, tl.int64 if WIDE else tl.int32) + channel


@triton.jit
def _is_member(annotated, image, classes, channel):
    return (channel == 0) | (tl.load(annotated + image * classes + channel) == 0)


@triton.jit
def _apart(
    logits, target, annotated, image, start, label, valid, classes,
    logits_b, logits_c, logits_n, target_b, target_c, target_n,
    LABELS: tl.constexpr, WIDE: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Of each pixel: the largest logit of the background's members, 0 where all of them are ruled out, the sum of
    exponentials from there, how much farther than FAR the background is, as a logarithm, and its target."""
    pixel = tl.arange(0, BLOCK_N)[None, :]
    top = tl.full((1, BLOCK_N), float("-inf"), tl.float32)
    own_top = top
    y = (label == 0).to(tl.float32) if LABELS else tl.zeros_like(top)
    for channel in tl.range(0, classes, num_stages=1):
        x = _logit_of(channel, logits, image, start, valid, logits_b, logits_c, logits_n, WIDE, BLOCK_N)
        member = _is_member(annotated, image, classes, channel)
        top = tl.maximum(top, x)
        own_top = tl.where(member, tl.maximum(own_top, x), own_top)
        if not LABELS:
            here = target + image * target_b + (_row(channel, WIDE) * target_c + (start + pixel) * target_n)
            y += tl.load(here, mask=valid & member, other=0).to(tl.float32)
    base = tl.where(own_top == float("-inf"), 0.0, own_top)
    total = tl.zeros_like(top)
    own_total = tl.zeros_like(top)
    for channel in tl.range(0, classes, num_stages=1):
        x = _logit_of(channel, logits, image, start, valid, logits_b, logits_c, logits_n, WIDE, BLOCK_N)
        total += tl.exp2((x - top) * LOG2_E)
        raised = tl.exp2((x - base) * LOG2_E)
        own_total += tl.where(_is_member(annotated, image, classes, channel), raised, 0.0)
    beyond = (top - own_top) + (tl.log2(total) - tl.log2(own_total) - BITS) * LN_2
    return base, own_total, tl.where(valid, tl.maximum(beyond, 0.0), 0.0), y


@triton.jit
def add_far(
    logits, target, mask, annotated, image, program, end, classes, count, programs, ignore_index,
    logits_b, logits_c, logits_n, target_b, target_c, target_n, mask_b, mask_n,
    LABELS: tl.constexpr, HAS_MASK: tl.constexpr, HAS_IGNORE: tl.constexpr, EVEN: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_N: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """What pixels add that are farther than `clamped` takes them for, to the sums of logarithms of the background: as
    its target says, and all."""
    as_said = tl.zeros((1, BLOCK_N), tl.float32)
    of_all = tl.zeros((1, BLOCK_N), tl.float32)
    for start in tl.range(first_pixel(program, WIDE, BLOCK_N), end, programs * BLOCK_N, num_stages=1):
        inside = inside_of(tl.arange(0, BLOCK_N)[None, :], count - start, EVEN)
        label, valid, weight, bad = counted(
            target, mask, image, start, classes, count, ignore_index, target_b, target_n, mask_b, mask_n, inside,
            LABELS, HAS_MASK, HAS_IGNORE, EVEN, False, BLOCK_N,
        )  # fmt: skip
        base, own_total, beyond, y = _apart(
            logits, target, annotated, image, start, label, valid, classes,
            logits_b, logits_c, logits_n, target_b, target_c, target_n, LABELS, WIDE, BLOCK_N,
        )  # fmt: skip
        if HAS_MASK:
            beyond = tl.where(valid, beyond * weight, 0.0)
        as_said += tl.where(y == 0, 0.0, y * beyond)
        of_all += beyond
    shape: tl.constexpr = (1, BLOCK_N // VECTOR, VECTOR)
    return tl.sum(tl.reshape(as_said, shape), 2), tl.sum(tl.reshape(of_all, shape), 2)


@triton.jit
def share_out_far(
    logits, target, mask, result, annotated, slopes, image, program, end, classes, count, programs,
    ignore_index, logits_b, logits_c, logits_n, target_b, target_c, target_n, mask_b, mask_n,
    result_b, result_c, result_n,
    LABELS: tl.constexpr, HAS_MASK: tl.constexpr, HAS_IGNORE: tl.constexpr, EVEN: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_N: tl.constexpr, ON_REQUEST: tl.constexpr,
):  # fmt: skip
    """The gradient of the background where it is far: all that it adds as the truth, shared out by the members' own
    powers. What it adds as a probability is nothing beside that."""
    slope, overlap, offset, of_entropy, of_focal, of_uniform, of_all = slopes
    as_truth = first_of(of_entropy) + (first_of(of_focal) if ON_REQUEST else 0.0)
    last = (count - 1) // BLOCK_N * BLOCK_N
    pixel = tl.arange(0, BLOCK_N)[None, :]
    result += image * result_b
    tl.debug_barrier()  # other threads may have written there before
    for walked in tl.range(first_pixel(program, WIDE, BLOCK_N), end, programs * BLOCK_N, num_stages=1):
        start = last - walked
        label, valid, weight, bad = counted(
            target, mask, image, start, classes, count, ignore_index, target_b, target_n, mask_b, mask_n,
            inside_of(pixel, count - start, EVEN), LABELS, HAS_MASK, HAS_IGNORE, EVEN, False, BLOCK_N,
        )  # fmt: skip
        base, own_total, beyond, y = _apart(
            logits, target, annotated, image, start, label, valid, classes,
            logits_b, logits_c, logits_n, target_b, target_c, target_n, LABELS, WIDE, BLOCK_N,
        )  # fmt: skip
        whole = -as_truth * y
        if ON_REQUEST:
            whole -= first_of(of_uniform)
        if HAS_MASK:
            whole *= weight
        rate = tl.where(own_total == 0, 0.0, whole / tl.where(own_total == 0, 1.0, own_total))
        far = (beyond > 0) & (ON_REQUEST | (y != 0))
        for channel in tl.range(0, classes, num_stages=1):
            x = _logit_of(channel, logits, image, start, valid, logits_b, logits_c, logits_n, WIDE, BLOCK_N)
            share = tl.exp2((x - base) * LOG2_E) * rate
            here = result + (_row(channel, WIDE) * result_c + (start + pixel) * result_n)
            member = _is_member(annotated, image, classes, channel)
            tl.store(here, share.to(result.dtype.element_ty), mask=far & member)
