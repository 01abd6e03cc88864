"""Classes that are not annotated in some images. With softmax they are background there, else they count nowhere.

annotated is `[b, C, 1]` beside the logits of some pixels, `[b, C, n]`. What contradicts it raises on a CPU, and makes
the image's sums NaN elsewhere, as in `eager.py`.
"""

import torch
from torch import Tensor


def merged(x: Tensor, annotated: Tensor, activation: str) -> Tensor:
    """The logits with classes that are not annotated: of a softmax they are background, whose probability is theirs and
    its own, so that its logit is the logarithm of the sum of exponentials; else they are 0, and count nowhere."""
    if activation != "softmax":
        return x.masked_fill(~annotated, 0)
    merged = x.masked_fill(~annotated, -torch.inf)
    merged[:, 0] = x.masked_fill(_foreground(annotated), -torch.inf).logsumexp(1)
    return merged


def _foreground(annotated: Tensor) -> Tensor:
    """The classes that are not merged."""
    return torch.cat([torch.zeros_like(annotated[:, :1]), annotated[:, 1:]], 1)


def unmerged(h: Tensor, x: Tensor, given: Tensor, annotated: Tensor, activation: str) -> Tensor:
    """The gradient of the logits as given from that of the merged ones, `x`: each class of the background has its
    share."""
    if activation != "softmax":
        return h.masked_fill_(~annotated, 0)
    background = x[:, :1]
    share = (given - background).exp_().masked_fill_(background == -torch.inf, 0)
    return torch.where(_foreground(annotated), h, h[:, :1] * share)


def refuse_without_background(annotated: Tensor, sums: Tensor) -> None:
    bad = annotated.any(1) & ~annotated[:, 0]
    if annotated.device.type != "cpu":
        sums.masked_fill_(bad.unsqueeze(1), torch.nan)
    elif bad.any():
        raise ValueError(
            f"annotated lacks class 0 in image {int(bad.nonzero()[0])}, {annotated[bad][0].tolist()}: with softmax, "
            "classes that are not annotated are background, so the background must be; an image without any annotation "
            "has none at all"
        )


def refuse_strays(target: Tensor, annotated: Tensor, weight: Tensor | None, sums: Tensor, images: Tensor) -> None:
    """Labels of a class that is said not to be annotated. `images`: the places of these images in the batch."""
    known = annotated.squeeze(2)
    channel = target - (1 if known.shape[1] == 1 else 0)
    stray = ~known.gather(1, channel.clamp(0, known.shape[1] - 1)) & (channel >= 0)
    if weight is not None:
        stray &= weight.squeeze(1) != 0
    if stray.device.type != "cpu":
        sums.masked_fill_(stray.any(1).unsqueeze(1), torch.nan)
    elif stray.any():
        image, pixel = stray.nonzero()[0].tolist()
        raise ValueError(
            f"image {int(images[image])} has the label {int(target[image, pixel])}, a class that is not annotated "
            f"there: annotated is {known[image].tolist()}"
        )
