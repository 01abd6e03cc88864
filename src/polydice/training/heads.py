"""Networks that end in a 1×1 convolution: what they are, and when their loss takes the features before it.

Such a network has `features(images)`, which returns what comes before the last convolution, and `heads`, an
`nn.ModuleList` of that convolution: `heads[0](features(images))` are its logits. Where `forward` returns a list, of
several resolutions, so does `features`, and each has its own of the heads.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from polydice.base import Summand
from polydice.head import HeadLoss, check_convolution
from polydice.kernels.head_plan import in_one_kernel
from polydice.training.config import Head

LEAST_CLASSES = {"cuda": 16, "cpu": 64}  # from which on "auto" leaves the head to the loss

LevelLoss = Callable[..., Tensor]  # of the features of one resolution, and all that a loss is given


class Body(nn.Module):
    """A network without its heads. The parameters are all of the network's."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Any:
        return self.network.features(images)  # type: ignore[operator]


def heads_of(network: nn.Module) -> list[nn.Conv2d | nn.Conv3d]:
    """The 1×1 convolutions that a network ends in, the one at full resolution first. Raises where it has none."""
    found, name = getattr(network, "heads", None), type(network).__name__
    if not callable(getattr(network, "features", None)) or not isinstance(found, nn.ModuleList) or not len(found):
        raise ValueError(f"{name} does not end in a 1×1 convolution that it names: it has no `features` and `heads`")
    for each in found:
        check_convolution(each)
    return list(found)  # type: ignore[arg-type]


def late_head(network: nn.Module) -> nn.Conv2d | nn.Conv3d | None:
    """The head, if it makes more logits than there are features: then it comes after all that is linear."""
    try:
        head = heads_of(network)[0]
    except (TypeError, ValueError):
        return None
    return head if head.out_channels > head.in_channels else None


def check_loss(wanted: Head, loss: nn.Module) -> None:
    """Raises where the loss is to take features and cannot."""
    if wanted == "fused" and not isinstance(loss, Summand):
        raise ValueError(
            f"head fused: losses that are not polydice's own take logits: {loss!r}; take head auto or plain"
        )


def head_losses(
    wanted: Head, loss: nn.Module, network: nn.Module, half: bool, partly: bool = False
) -> list[LevelLoss] | None:
    """The losses of the features, one for each head; None if the loss is to have logits. `half`: whether the network
    computes in bfloat16; `partly`: whether the loss is told what is annotated."""
    check_loss(wanted, loss)
    if wanted == "plain" or not isinstance(loss, Summand):
        return None
    try:
        heads = heads_of(network)
    except (TypeError, ValueError) as error:
        if wanted == "fused":
            raise ValueError(f"head fused: {error}; take head auto or plain") from error
        return None
    if wanted == "auto" and not pays(heads[0], half, partly):  # the others have an eighth of its pixels, or a quarter
        return None
    return [partial(_computed, half, HeadLoss(loss, head)) for head in heads]


def pays(head: nn.Conv2d | nn.Conv3d, half: bool, partly: bool) -> bool:
    """The rule of auto, by what was measured (docs/head.md). On a GPU one kernel that takes the head is faster than
    logits and loss in bfloat16, and slower in float32; with few classes a step has little to gain by it. On a CPU to
    make the logits anew takes up to 1.5 times as long, and with many classes 0.7 to 1.1 times as long."""
    device = head.weight.device.type
    if head.out_channels < LEAST_CLASSES.get(device, math.inf):
        return False
    return device == "cpu" or (half and not partly and in_one_kernel(head.weight, torch.bfloat16))


def _computed(half: bool, loss: HeadLoss, features: Tensor, *others: Tensor | None) -> Tensor:
    """In the precision of the network, as its own head would be."""
    with torch.autocast(features.device.type, torch.bfloat16, enabled=half):
        value: Tensor = loss(features, *others)
    return value
