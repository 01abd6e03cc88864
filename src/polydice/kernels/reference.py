"""What the pass over the pixels computes: the definition of every sum, as one would write it down.

Plain torch on dense tensors, differentiated by torch. `eager.py` and `fused.py` make the same sums and gradients, and
no other tensor of the logits' size. Tests hold both to this file.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from polydice.kernels.fields import PixelSums


def pixel_sums(
    logits: Tensor,
    target: Tensor,
    *,
    activation: str = "softmax",
    ignore_index: int | None = None,
    mask: Tensor | None = None,
    gamma: float | None = None,
) -> PixelSums:
    """As `polydice.pixel_sums`: all sums that the activation allows, in the type of the logits; with γ also those that
    are made on request.

    >>> logits = torch.tensor([[[2.0, -1.0], [0.0, 1.0]]])  # one image, two classes, two pixels
    >>> pixel_sums(logits, torch.tensor([[0, 1]])).intersection
    tensor([[0.8808, 0.8808]])
    """
    batch, classes = logits.shape[:2]
    integer = not (target.is_floating_point() or target.dtype == torch.bool)
    labels = integer and (classes == 1 or target.shape != logits.shape)
    x = logits.reshape(batch, classes, -1)  # [B, C, N]
    given = target.reshape(batch, 1 if labels else classes, -1)  # [B, 1, N] labels or [B, C, N] masks

    # What each pixel weighs, [B, 1, N]. Nothing is read of a pixel that weighs nothing: it may be NaN.
    weight = torch.ones_like(x[:, :1]) if mask is None else mask.reshape(batch, 1, -1).to(x.dtype)
    if ignore_index is not None:
        weight = weight * (given != ignore_index)
    x = torch.where(weight == 0, 0, x)

    # The target as one mask for each class. Label 1 is the foreground of a single channel.
    if labels:
        channels = torch.arange(classes, device=x.device) + (1 if classes == 1 else 0)
        given = given == channels.unsqueeze(1)
    y = torch.where(weight == 0, 0, given.to(x.dtype))

    def total(each: Tensor) -> Tensor:
        return (weight * each).sum(2)

    sums = PixelSums(labels=labels)
    if activation == "softmax":
        p, log_p = x.softmax(1), x.log_softmax(1)
        sums = sums._replace(cross_entropy=total(torch.where(y == 0, 0, -y * log_p)))
        if gamma is not None:
            focal = torch.where(y == 0, 0, -y * (1 - p) ** gamma * log_p)
            sums = sums._replace(focal=total(focal), uniform=total(-log_p / classes))
    elif activation == "sigmoid":
        p = x.sigmoid()
        sums = sums._replace(cross_entropy=total(F.binary_cross_entropy_with_logits(x, y, reduction="none")))
        if gamma is not None:
            found = torch.where(y == 0, 0, -y * (1 - p) ** gamma * F.logsigmoid(x))
            spared = torch.where(y == 1, 0, -(1 - y) * p**gamma * F.logsigmoid(-x))
            sums = sums._replace(focal=total(found + spared))
    else:
        p = x
    return sums._replace(
        intersection=total(y * p),
        prediction=total(p),
        prediction_sq=total(p**2),
        target=total(y),
        target_sq=total(y**2),
        error_sq=total((y - p) ** 2),
        pixels=total(torch.ones_like(p)),
    )
