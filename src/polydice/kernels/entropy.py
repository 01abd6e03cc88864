"""Of some pixels `[b, C, n]`: their part of the sums that take logarithms, and its gradient. In plain torch."""

import torch
from torch import Tensor
from torch.nn import functional as F

from polydice.kernels.fields import Options


def cross_entropy(x: Tensor, y: Tensor, p: Tensor, activation: str, spare: list[Tensor]) -> Tensor:
    """-y log p (softmax) or the binary one (sigmoid), from the logits: exact where p underflows. `spare` are
    three buffers to work in."""
    entropy, positive, other = spare
    x = x if x.dtype == y.dtype else other.copy_(x)
    if activation == "softmax":
        # The largest p is 1 / sum exp(x - max x): the logarithm of the sum needs no second exponential.
        torch.sub(x.amax(1, keepdim=True), x, out=entropy).sub_(p.amax(1, keepdim=True).log_())
        infinite = _perhaps_infinite(entropy)
        entropy.mul_(y)
        return entropy.masked_fill_(y == 0, 0) if infinite else entropy
    if _perhaps_infinite(torch.abs(x, out=entropy)):
        share = torch.where(x > 0, 1 - y, y)  # of |x|
        return (entropy * share).masked_fill_(share == 0, 0).add_(entropy.neg_().exp_().log1p_())
    # max(x, 0) - xy first: it is often 0, and the logarithm then keeps its digits.
    torch.clamp(x, min=0, out=positive).addcmul_(x, y, value=-1)
    return entropy.neg_().exp_().log1p_().add_(positive)


def surprise_of(x: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """1 - p and -log p of a softmax, both exact near p = 1: there 1 - p is what the other classes have."""
    x, likely = x.to(p.dtype), p > 0.5
    others = p.masked_fill(likely, 0).sum(1, keepdim=True)
    surprise = (x.amax(1, keepdim=True) - x).sub_(p.amax(1, keepdim=True).log_())
    return torch.where(likely, others, 1 - p), torch.where(likely, -torch.log1p(-others), surprise)


def _share(y: Tensor, values: Tensor) -> Tensor:
    """y·values, 0 where y is 0 and the value perhaps infinite."""
    return (y * values).masked_fill_(y == 0, 0)


def focal(x: Tensor, y: Tensor, p: Tensor, options: Options) -> Tensor:
    if options.activation == "softmax":
        missed, surprise = surprise_of(x, p)
        return _share(y, missed.pow_(options.gamma).mul_(surprise))
    x = x.to(y.dtype)
    found, spared = ((-z).sigmoid_().pow_(options.gamma).mul_(-F.logsigmoid(z)) for z in (x, -x))
    return _share(y, found).add_(_share(1 - y, spared))


def focal_gradient(x: Tensor, y: Tensor, p: Tensor, slope: Tensor, options: Options) -> Tensor:
    """With m = 1 - p and l = -log p, that of m^g l is m^g (1 + g p l/m) times that of l, which is -m in the class's own
    logit and p in the others: nothing cancels."""
    gamma = options.gamma
    if options.activation == "softmax":
        m, surprise = surprise_of(x, p)
        bend = torch.where(m == 0, 1, surprise / m).mul_(p).masked_fill_(p == 0, 0)
        pull = m.pow(gamma).mul_(bend.mul_(gamma).add_(1)).mul_(y * slope)
        return p * (pull.sum(1, keepdim=True) - pull) - pull * m
    x = x.to(y.dtype)
    pulls = []
    for z, share in ((x, y), (-x, 1 - y)):
        m, q = (-z).sigmoid(), z.sigmoid()
        pulls.append(share * m.pow(gamma) * (m + gamma * _share(q, -F.logsigmoid(z))))
    return (pulls[1] - pulls[0]).mul_(slope)


def _perhaps_infinite(values: Tensor) -> bool:
    """Whether a product with 0 may not be 0. On a CPU that is looked up, elsewhere it would mean to wait."""
    return values.device.type != "cpu" or bool(values.amax() == torch.inf)
