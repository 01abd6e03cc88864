"""From sums to the loss in one small Triton kernel: value and slopes together, in float64.

`losses.py` says the same in torch, a dozen tiny operations a loss and twice as many backward. On a GPU, launching those
takes longer than the pass over the pixels; this kernel is what runs there instead. Tests hold the two together.
"""

from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from polydice.kernels.eager import FIELDS
from polydice.kernels.triton import on_device

MOST_ELEMENTS = 4096  # images x classes that one program takes
SERIES_TERMS = 40  # of the squared angle: 2^-40 of what is summed is left out


POLYNOMIAL, RATIO, OVERLAP, ENTROPY = (tl.constexpr(kind) for kind in range(4))
KINDS = ("polynomial", "ratio", "overlap", "entropy")


class Term(NamedTuple):
    """One loss of a weighted sum, in numbers."""

    kind: str  # one of KINDS
    numbers: tuple[float, float, float, float]  # what that kind takes, in the order the kernel reads it
    coefficients: tuple[float, ...] = ()  # of a polynomial
    factor: float = 1.0
    background: bool = True
    skip_absent: bool = False


@triton.jit
def _quotient(numerator, denominator):
    """0 where the denominator is 0."""
    return tl.where(denominator == 0, 0.0, numerator / tl.where(denominator == 0, 1.0, denominator))


@triton.jit
def _polynomial(
    a, b, e, smooth, DETACHED: tl.constexpr, COEFFICIENTS: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr,
    SERIES: tl.constexpr,
):  # fmt: skip
    """PolyDice: the loss, and its slopes in b and e. The names are those of geometry.py."""
    r = tl.sqrt(a * b)
    gap = _quotient((a - b) * (a - b), a + b + 2 * r)
    gap_b = _quotient(b - a, b + r)
    r_b = _quotient(a, 2 * r)
    lost = _quotient(gap, a + b + smooth)
    lost_b = _quotient(gap_b - lost, a + b + smooth)
    x = tl.where(r == 0, 0.0, _quotient(e - gap, 2 * r + smooth))
    x_e = tl.where(r == 0, 0.0, _quotient(1.0, 2 * r + smooth))
    x_b = -(gap_b + 2 * x * r_b) * x_e
    # t = 2 sum (2x)^k / (k^2 binomial(2k, k)): the k-th term is (k-1)^2 / (k (2k-1)) x of the one before.
    t = tl.zeros_like(x)
    t_x = tl.zeros_like(x)
    power = 2.0 + tl.zeros_like(x)
    for k in tl.static_range(1, SERIES + 1):
        t += power * x / k
        t_x += power
        power = power * x * (k / (2 * k + 1))
    q = tl.zeros_like(x)
    q_t = tl.zeros_like(x)
    for k in tl.static_range(LAST - FIRST):
        coefficient: tl.constexpr = COEFFICIENTS[LAST - 1 - k]
        q_t = q_t * t + q + coefficient
        q = (q + coefficient) * t
    slope = (1 - lost) * q_t * t_x
    return lost + (1 - lost) * q, lost_b * (1.0 if DETACHED else 1 - q) + slope * x_b, slope * x_e


@triton.jit
def _overlap(i, p, a, alpha, beta, smooth, EXPONENT: tl.constexpr):
    """Tversky and its kin: the loss, and its slopes in I and P."""
    wrong = alpha * (p - i) + beta * (a - i)
    whole = i + wrong + smooth
    loss = _quotient(wrong, whole)
    of_i = _quotient(-(alpha + beta) - loss * (1 - alpha - beta), whole)
    of_p = _quotient(alpha * (1 - loss), whole)
    if EXPONENT != 1:
        base = tl.where(loss <= 0, 1.0, loss)
        focal = tl.where(loss <= 0, 0.0, tl.exp2(EXPONENT * tl.log2(base)))
        bend = EXPONENT * focal / base
        return focal, bend * of_i, bend * of_p
    return loss, of_i, of_p


@triton.jit
def _read(sums, here, inside, step, FIELD: tl.constexpr):
    if FIELD < 0:
        return tl.zeros(here.shape, tl.float64)
    return tl.load(sums + FIELD * step + here, mask=inside, other=0.0)


@triton.jit
def _write(slopes, here, inside, step, slope, FIELD: tl.constexpr):
    if FIELD >= 0:
        tl.store(slopes + FIELD * step + here, slope, mask=inside)


@triton.jit(do_not_specialize=("batch", "classes"))
def _tail(
    sums, weights, loss, slopes, batch, classes,
    KIND: tl.constexpr, NUMBERS: tl.constexpr, COEFFICIENTS: tl.constexpr, BOUNDS: tl.constexpr,
    FACTOR: tl.constexpr, BACKGROUND: tl.constexpr, SKIP: tl.constexpr,
    MEAN: tl.constexpr, LABELS: tl.constexpr, SIGMOID: tl.constexpr, WEIGHTS: tl.constexpr,
    INTERSECTION: tl.constexpr, PREDICTION: tl.constexpr, PREDICTION_SQ: tl.constexpr, TARGET: tl.constexpr,
    TARGET_SQ: tl.constexpr, ERROR_SQ: tl.constexpr, CROSS_ENTROPY: tl.constexpr, PIXELS: tl.constexpr,
    SERIES: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """sums `[fields, B, C]`, weights `[terms, C]` -> the loss and its slopes, laid out as the sums."""
    image = tl.arange(0, BLOCK_B)[:, None]
    channel = tl.arange(0, BLOCK_C)[None, :]
    here = image * classes + channel
    inside = (image < batch) & (channel < classes)
    step = batch * classes
    i = _read(sums, here, inside, step, INTERSECTION)
    p = _read(sums, here, inside, step, PREDICTION)
    b = _read(sums, here, inside, step, PREDICTION_SQ)
    truth = _read(sums, here, inside, step, TARGET)
    a = _read(sums, here, inside, step, TARGET_SQ)
    e = _read(sums, here, inside, step, ERROR_SQ)
    entropy = _read(sums, here, inside, step, CROSS_ENTROPY)
    pixels = _read(sums, here, inside, step, PIXELS)
    value = tl.zeros((1, 1), tl.float64)
    of_i = tl.zeros_like(i)
    of_p = tl.zeros_like(i)
    of_b = tl.zeros_like(i)
    of_e = tl.zeros_like(i)
    of_entropy = tl.zeros_like(i)
    for n in tl.static_range(len(KIND)):
        counted = inside & (channel >= (0 if BACKGROUND[n] else 1))
        weight = counted.to(tl.float64)
        if WEIGHTS:
            weight = weight * tl.load(weights + n * classes + channel, mask=channel < classes, other=0.0)
        if SKIP[n]:
            weight = tl.where((truth if TARGET >= 0 else a) == 0, 0.0, weight)
        count = weight
        if KIND[n] == POLYNOMIAL:
            each, each_b, each_e = _polynomial(
                a, b, e, NUMBERS[4 * n], NUMBERS[4 * n + 1] != 0, COEFFICIENTS, BOUNDS[n], BOUNDS[n + 1], SERIES
            )
        elif KIND[n] == RATIO:
            each_e = _quotient(1.0, a + b + NUMBERS[4 * n])
            each = e * each_e
            each_b = -each * each_e
        elif KIND[n] == OVERLAP:
            each, each_i, each_p = _overlap(
                i, p, truth, NUMBERS[4 * n], NUMBERS[4 * n + 1], NUMBERS[4 * n + 2], NUMBERS[4 * n + 3],
            )  # fmt: skip
        else:
            each = entropy + NUMBERS[4 * n] * (truth - i + (p - i if SIGMOID else 0.0))
            if SIGMOID:
                count = tl.where(counted, pixels, 0.0)
            elif LABELS:
                count = weight * truth
            else:
                count = tl.where(inside & (channel == 0), pixels, 0.0)
        share = FACTOR[n] + tl.zeros((1, 1), tl.float64)
        if MEAN:
            share = _quotient(share, tl.sum(tl.sum(count, 1, keep_dims=True), 0, keep_dims=True))
        each = tl.where(weight == 0, 0.0, weight * each)
        value += share * tl.sum(tl.sum(each, 1, keep_dims=True), 0, keep_dims=True)
        weight = share * weight
        if KIND[n] <= RATIO:
            of_b += tl.where(weight == 0, 0.0, weight * each_b)
            of_e += tl.where(weight == 0, 0.0, weight * each_e)
        elif KIND[n] == OVERLAP:
            of_i += tl.where(weight == 0, 0.0, weight * each_i)
            of_p += tl.where(weight == 0, 0.0, weight * each_p)
        else:
            of_entropy += weight
            of_i -= weight * (NUMBERS[4 * n] * (2 if SIGMOID else 1))
            of_p += weight * (NUMBERS[4 * n] if SIGMOID else 0.0)
    tl.store(loss + tl.zeros((1, 1), tl.int32), value.to(tl.float32))
    nothing = tl.zeros_like(i)
    _write(slopes, here, inside, step, of_i, INTERSECTION)
    _write(slopes, here, inside, step, of_p, PREDICTION)
    _write(slopes, here, inside, step, of_b, PREDICTION_SQ)
    _write(slopes, here, inside, step, nothing, TARGET)
    _write(slopes, here, inside, step, nothing, TARGET_SQ)
    _write(slopes, here, inside, step, of_e, ERROR_SQ)
    _write(slopes, here, inside, step, of_entropy, CROSS_ENTROPY)
    _write(slopes, here, inside, step, nothing, PIXELS)


class Tail(torch.autograd.Function):
    """`apply(stacked, weights, want, terms, mean, labels, sigmoid)`: stacked `[fields, B, C]` float64 to a float32
    loss."""

    @staticmethod
    def forward(
        ctx: Any,
        stacked: Tensor,
        weights: Tensor | None,
        want: Sequence[str],
        terms: tuple[Term, ...],
        mean: bool,
        labels: bool,
        sigmoid: bool,
    ) -> Tensor:
        stacked = stacked.contiguous()
        _, batch, classes = stacked.shape
        loss = torch.empty((), dtype=torch.float32, device=stacked.device)
        slopes = torch.empty_like(stacked)
        with on_device(stacked.device):
            _tail[(1,)](
                stacked, stacked if weights is None else weights, loss, slopes, batch, classes,
                **_constants(terms, tuple(want)), MEAN=mean, LABELS=labels, SIGMOID=sigmoid,
                WEIGHTS=weights is not None, SERIES=SERIES_TERMS,
                BLOCK_B=triton.next_power_of_2(batch), BLOCK_C=triton.next_power_of_2(classes),
            )  # fmt: skip
        ctx.save_for_backward(slopes)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (slopes,) = ctx.saved_tensors
        return slopes * grad, None, None, None, None, None, None


@cache
def _constants(terms: tuple[Term, ...], want: tuple[str, ...]) -> dict[str, Any]:
    return {name.upper(): want.index(name) if name in want else -1 for name in FIELDS} | {
        "KIND": tuple(KINDS.index(term.kind) for term in terms),
        "NUMBERS": tuple(number for term in terms for number in term.numbers),
        "COEFFICIENTS": (*(value for term in terms for value in term.coefficients), 0.0),  # never empty
        "BOUNDS": tuple(accumulate((len(term.coefficients) for term in terms), initial=0)),
        "FACTOR": tuple(term.factor for term in terms),
        "BACKGROUND": tuple(int(term.background) for term in terms),
        "SKIP": tuple(int(term.skip_absent) for term in terms),
    }
