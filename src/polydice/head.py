"""`HeadLoss`: a loss from the features before a network's last convolution, without its logits."""

from typing import Any

import torch
from torch import Tensor, nn

from polydice.base import Summand
from polydice.kernels.eager import flatten
from polydice.kernels.head import head_sums
from polydice.kernels.head_plan import plan_head, unmade_logits
from polydice.kernels.plan import added_numbers, stacked_weights, with_annotated

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class HeadLoss(nn.Module):
    """loss(conv(features), target), of any loss or sum of losses and a network's last, 1×1 convolution.

    The logits are made and used some pixels at a time, forward and backward: they never exist as a whole. The
    parameters are the convolution's own. A network that has it saves it: a `state_dict` of both holds it once.

    >>> from polydice import CrossEntropyLoss, DiceLoss
    >>> conv = nn.Conv3d(8, 20, 1)
    >>> loss = HeadLoss(DiceLoss() + CrossEntropyLoss(), conv)
    >>> loss(torch.randn(2, 8, 6, 6, 6), torch.randint(20, (2, 6, 6, 6))).shape
    torch.Size([])

    Args:
        loss: a loss of polydice, or a sum of them, with all its options.
        conv: `nn.Conv1d`, `Conv2d` or `Conv3d` of F features to C classes, 1×1, without stride, padding and groups.

    Call:
        `loss(features, target, mask=None, annotated=None)`, with features `[B, F, *spatial]`, as the convolution takes
        them; all else as the loss takes it, and gives it.
    """

    def __init__(self, loss: Summand, conv: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> None:
        super().__init__()
        if not isinstance(loss, Summand):
            raise TypeError(f"HeadLoss takes a loss of polydice, or a sum of them: {_name(loss)}")
        check_convolution(conv)
        self.loss = loss
        self.conv = conv

    def forward(
        self, features: Tensor, target: Tensor, mask: Tensor | None = None, annotated: Tensor | None = None
    ) -> Tensor:
        weight, bias = self.conv.weight, self.conv.bias
        features = self._fitting(features, weight)
        head, terms = (features, weight, bias), self.loss.terms
        plan = plan_head(terms, head, target, mask, annotated)
        if plan.head_launches is not None:
            numbers = stacked_weights(terms), added_numbers(terms, features.device)
            return plan.head_launches((*head, target, mask), *numbers)
        logits = unmade_logits(head)
        for _, loss in terms:
            loss.check_classes(logits)
        _, target, mask = flatten(logits, target, mask, plan.labels)
        activation, ignore_index, want, gamma = plan.options
        options = activation, ignore_index, list(want), plan.fused, gamma
        flat = features.flatten(2), weight.flatten(1).contiguous(), bias if bias is None else bias.contiguous()
        sums = head_sums(*flat, target, mask, *options, annotated)
        return self.loss.from_sums(plan, with_annotated(sums, annotated))

    def _fitting(self, features: Tensor, weight: Tensor) -> Tensor:
        """In the type that the convolution would compute in. Raises where it could not compute."""
        if not isinstance(features, Tensor):
            raise TypeError(f"features must be a tensor: {type(features).__name__}")
        if not features.is_floating_point():
            raise TypeError(f"features must be floating: {_given(features)}")
        if features.ndim != weight.ndim or features.shape[1] != weight.shape[1]:
            spatial = ", *spatial" if weight.ndim > 3 else ", N"
            axes = f"{weight.ndim - 2} spatial axes" if weight.ndim > 3 else "one spatial axis"
            wanted = f"features [B, {weight.shape[1]}{spatial}] with {axes}"
            raise ValueError(f"the convolution takes {wanted}: {_given(features)}, {self.conv}")
        if features.device != weight.device:
            raise ValueError(f"features are on {features.device}, the convolution is on {weight.device}")
        kind = features.device.type
        casts = not features.is_meta and torch.is_autocast_enabled(kind)  # a meta tensor's device has no autocast
        if casts and features.dtype != torch.float64:
            return features.to(torch.get_autocast_dtype(kind))
        if features.dtype != weight.dtype:
            raise ValueError(f"the convolution is {weight.dtype}: {_given(features)}; torch.autocast takes both")
        return features

    def state_dict(self, *args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        """As of any module, but without the convolution where that is in `destination` already: what holds a network
        and its loss saves the convolution once, with the network."""
        known = [] if destination is None else [_storage(tensor) for tensor in destination.values()]
        saved = super().state_dict(*args, destination=destination, prefix=prefix, keep_vars=keep_vars)
        for name, tensor in self._saved_convolution(prefix).items():
            if _storage(tensor) in known:
                del saved[name]
        return saved

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if prefix:  # a part of something that has saved the convolution elsewhere, and loads it there
            state_dict.update(self._saved_convolution(prefix) | state_dict)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _saved_convolution(self, prefix: str) -> dict[str, Tensor]:
        return self.conv.state_dict(prefix=f"{prefix}conv.")


def check_convolution(conv: object) -> None:
    if not isinstance(conv, CONVOLUTIONS):
        raise TypeError(f"HeadLoss takes the network's last layer, an nn.Conv1d, Conv2d or Conv3d: {_name(conv)}")
    if type(conv).forward not in [kind.forward for kind in CONVOLUTIONS]:
        raise TypeError(f"{_name(conv)} has a forward of its own, which HeadLoss would not call")
    one = (1,) * len(conv.kernel_size)
    padding = conv.padding if isinstance(conv.padding, tuple) else (0,)  # "same" and "valid" add nothing here
    if (conv.kernel_size, conv.stride, conv.dilation, conv.groups) != (one, one, one, 1) or any(padding):
        raise ValueError(f"HeadLoss takes a 1×1 convolution without stride, padding, dilation and groups: {conv}")


def _given(features: Tensor) -> str:
    return f"features {list(features.shape)} {str(features.dtype).removeprefix('torch.')}"


def _name(thing: object) -> str:
    return type(thing).__name__


def _storage(tensor: Any) -> int | None:
    return tensor.untyped_storage()._cdata if isinstance(tensor, Tensor) else None
