"""Of a tile of pixels: their part of the sums that take logarithms, and its gradient. What `entropy.py` is in torch."""

import triton
import triton.language as tl

from polydice.kernels.pixels import LOG2_E, SOFTMAX

LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _log1p(u):
    """log(1 + u), exact for the smallest u: the rounding of 1 + u is divided out again."""
    above = (1.0 + u) - 1.0
    return tl.where(above == 0, u, tl.log2(1.0 + u) * LN_2 * (u / tl.where(above == 0, 1.0, above)))


@triton.jit
def cross_entropy(x, y, top, total, ACTIVATION: tl.constexpr):
    if ACTIVATION == SOFTMAX:
        return tl.where(y == 0, 0.0, y * ((top - x) + tl.log2(total) * LN_2))
    log1p = _log1p(tl.exp2(-tl.abs(x) * LOG2_E))
    share = tl.where(x > 0, 1.0 - y, y)  # of |x|; an infinite one counts only where it has a share
    return log1p + tl.where(share == 0, 0.0, share * tl.abs(x))


@triton.jit
def others_of(ps, classes, FULL: tl.constexpr):
    """What the classes have that are not likely, each pixel's: 1 - p of the one that is, without its cancellation."""
    others = tl.zeros_like(ps[0])
    for group in tl.static_range(len(ps)):
        p = ps[group]
        unlikely = p <= 0.5
        if not FULL and group == len(ps) - 1:
            unlikely = unlikely & (group * p.shape[0] + tl.arange(0, p.shape[0])[:, None] < classes)
        others += tl.where(unlikely, p, 0.0)
    return tl.sum(others, 0, keep_dims=True)


@triton.jit
def surprise_of(x, p, top, total, others):
    """As in entropy.py: 1 - p and -log p of a softmax, exact near p = 1."""
    likely = p > 0.5
    missed = tl.where(likely, others, 1.0 - p)
    return missed, tl.where(likely, -_log1p(-tl.where(likely, missed, 0.0)), (top - x) + tl.log2(total) * LN_2)


@triton.jit
def _raised(base, gamma):
    """base^gamma, of a base in [0, 1]."""
    return tl.where(base == 0, tl.where(gamma == 0, 1.0, 0.0), tl.exp2(gamma * tl.log2(tl.where(base == 0, 1.0, base))))


@triton.jit
def _towards(x):
    """Of a sigmoid towards 1: p, 1 - p and -log p."""
    u = tl.exp2(-tl.abs(x) * LOG2_E)
    rare = u / (1.0 + u)
    p = tl.where(x > 0, 1.0 - rare, rare)
    return p, tl.where(x > 0, rare, 1.0 - rare), tl.maximum(-x, 0.0) + _log1p(u)


@triton.jit
def _share(y, values):
    """y * values, 0 where y is 0 and the value perhaps infinite."""
    return tl.where(y == 0, 0.0, y * values)


@triton.jit
def focal(x, y, p, top, total, others, gamma, ACTIVATION: tl.constexpr):
    if ACTIVATION == SOFTMAX:
        missed, surprise = surprise_of(x, p, top, total, others)
        return _share(y, _raised(missed, gamma) * surprise)
    yes, no, found = _towards(x)
    also_no, also_yes, spared = _towards(-x)
    return _share(y, _raised(no, gamma) * found) + _share(1.0 - y, _raised(also_yes, gamma) * spared)


@triton.jit
def _focal_pull(x, y, p, top, total, others, gamma, ACTIVATION: tl.constexpr):
    """As `entropy.focal_gradient`: of a softmax its `pull`, of a sigmoid the gradient."""
    if ACTIVATION == SOFTMAX:
        m, surprise = surprise_of(x, p, top, total, others)
        bend = tl.where(m == 0, 1.0, surprise / tl.where(m == 0, 1.0, m))
        return y * _raised(m, gamma) * (1.0 + gamma * _share(p, bend))
    yes, no, found = _towards(x)
    also_no, also_yes, spared = _towards(-x)
    towards = y * _raised(no, gamma) * (no + gamma * _share(yes, found))
    return (1.0 - y) * _raised(also_yes, gamma) * (also_yes + gamma * _share(also_no, spared)) - towards


@triton.jit
def with_requests(
    gs, xs, ys, ps, top, first, total, others, gamma, valid, of_focal, of_uniform, of_all, ACTIVATION: tl.constexpr
):
    """The gradient of the logits with that of the focal and the uniform sum. `first`: the total of the first group."""
    pulls = ()
    whole = tl.zeros_like(ps[0])
    for group in tl.static_range(len(gs)):
        here = first if group == 0 else total
        pull = _focal_pull(xs[group], ys[group], ps[group], top, here, others, gamma, ACTIVATION)
        pull = tl.where(valid, of_focal[group] * pull, 0.0)
        whole += pull
        pulls = pulls + (pull,)
    inner = tl.sum(whole, 0, keep_dims=True)
    found = ()
    for group in tl.static_range(len(gs)):
        g, p, pull = gs[group], ps[group], pulls[group]
        if ACTIVATION == SOFTMAX:
            missed = tl.where(p > 0.5, others, 1.0 - p)
            g += p * (inner - pull) - pull * missed
            g += p * of_all - tl.where(valid, of_uniform[group], 0.0)
        else:
            g += pull
        found = found + (g,)
    return found
