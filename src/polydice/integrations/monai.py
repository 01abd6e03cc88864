"""Our losses where MONAI takes one, and our equals of MONAI's own."""

from typing import Any, NoReturn

import torch
from monai.data.meta_tensor import MetaTensor
from monai.losses.dice import DiceCELoss, DiceLoss, MaskedDiceLoss
from monai.losses.focal_loss import FocalLoss
from monai.losses.tversky import TverskyLoss
from torch import Tensor, nn

import polydice
from polydice.base import Loss, LossSum


class MonaiLoss(nn.Module):
    """A loss of ours that takes what MONAI's pipelines make: labels `[B, 1, *spatial]` of any type, or masks of the
    input's shape; a mask `[B, 1, *spatial]` or `[1, 1, *spatial]`; each a tensor or a `MetaTensor`. `annotated` is that
    of our losses: MONAI has no such argument.

    >>> loss = MonaiLoss(polydice.PolyDice1Loss(epsilon=0.2) + polydice.CrossEntropyLoss())
    >>> logits, label = torch.randn(2, 3, 8, 8), MetaTensor(torch.randint(3, (2, 1, 8, 8)).float())
    >>> loss(logits, label).shape
    torch.Size([])
    """

    def __init__(self, loss: Loss | LossSum) -> None:
        super().__init__()
        self.loss = loss

    def forward(
        self, input: Tensor, target: Tensor, mask: Tensor | None = None, annotated: Tensor | None = None
    ) -> Tensor:
        input, target = _plain(input), _plain(target)
        if input.ndim == target.ndim and target.shape[1] == 1 < input.shape[1]:
            target = target.long()
        if mask is not None:
            mask = _plain(mask).expand(len(input), *mask.shape[1:])
            mask = mask if mask.is_floating_point() else mask.bool()
        value: Tensor = self.loss(input, target, mask, annotated)
        return value


def from_monai(loss: nn.Module) -> MonaiLoss:
    """Our equal of a loss of MONAI's: the same value and gradient for the same input and target.

    Knows `DiceLoss`, `MaskedDiceLoss`, `DiceCELoss`, `TverskyLoss` and `FocalLoss`. What has no equal here raises
    `ValueError`.

    >>> from_monai(DiceCELoss(to_onehot_y=True, softmax=True)).loss
    DiceLoss(squared=False, smooth=1e-05) + CrossEntropyLoss()
    """
    if isinstance(loss, type):
        raise TypeError(f"from_monai takes a loss that is made, with its options: {loss.__name__}(...)")
    translate = TRANSLATIONS.get(type(loss))  # not isinstance: a subclass may compute something else
    if translate is None:
        kind = type(loss)
        known = ", ".join(translated.__name__ for translated in TRANSLATIONS)
        advice = ADVICE.get(kind.__name__, f"from_monai knows MONAI's {known}")
        raise ValueError(f"{kind.__module__}.{kind.__name__} has no equal in polydice: {advice}")
    return translate(loss)


ADVICE = {
    "MaskedLoss": "it masks logits, so that a masked voxel still counts as an undecided one; "
    "give `from_monai` the loss inside, and call what it returns with (input, target, mask)",
    "DeepSupervisionLoss": "it takes any loss; write DeepSupervisionLoss(from_monai(...)) of the loss inside",
    "DiceFocalLoss": "its focal half is that of a sigmoid, also beside the Dice of a softmax; add up "
    "from_monai(loss.dice) and from_monai(loss.focal), times its lambdas, or take MonaiLoss(DiceLoss() + FocalLoss())",
    "GeneralizedDiceLoss": "it adds up the classes before it divides; DiceLoss(weight=...) weighs them after",
}


def _dice(loss: Any) -> MonaiLoss:
    return _shaped(LossSum([_dice_term(loss)]), loss, trailing=True)


def _masked_dice(loss: Any) -> MonaiLoss:
    if loss.to_onehot_y and loss.include_background:
        _refuse(loss, "to_onehot_y=True with include_background=True", "MONAI counts masked voxels as background that "
                "was missed; one-hot targets, or MonaiLoss(polydice.DiceLoss(...)), leave them out")  # fmt: skip
    return _dice(loss)


def _tversky(loss: Any) -> MonaiLoss:
    return _shaped(polydice.TverskyLoss(loss.alpha, loss.beta, **_region_options(loss)), loss, trailing=False)


def _dice_cross_entropy(loss: Any) -> MonaiLoss:
    factor, dice = _dice_term(loss.dice)
    weight = loss.cross_entropy.weight
    if dice.activation == "none":
        _refuse(loss, "neither sigmoid nor softmax", "the cross-entropy takes logits, so must the Dice loss")
    if dice.activation == "sigmoid" and weight is not None:
        _refuse(loss, "weight with sigmoid=True", "there MONAI weighs the foreground's pixels, pos_weight of torch")
    entropy = polydice.CrossEntropyLoss(
        label_smoothing=loss.cross_entropy.label_smoothing if dice.activation == "softmax" else 0.0,
        activation=dice.activation, weight=weight, reduction=dice.reduction,
    )  # fmt: skip
    both = loss.lambda_dice * factor * dice + loss.lambda_ce * entropy
    return MonaiLoss(both) if dice.activation == "softmax" else _OneChannelLoss(both)


def _focal(loss: Any) -> MonaiLoss:
    softmax, weight, alpha = loss.use_softmax, loss.class_weight, loss.alpha
    if loss.reduction == "none":
        _refuse(loss, "reduction='none'", "it is a loss for each voxel, and ours are made of sums over the voxels")
    if softmax and not loss.include_background:
        _refuse(loss, "use_softmax=True with include_background=False", "MONAI takes the softmax of the other classes "
                "alone; FocalLoss(include_background=False) takes that of all, and leaves the background's pixels "
                "out")  # fmt: skip
    if not softmax and alpha is not None:
        _refuse(loss, f"alpha={alpha} without use_softmax", "there it weighs a channel's foreground against its "
                "background; with a channel for the background and use_softmax=True, it weighs classes")  # fmt: skip
    _refuse_ignored_masks(loss)
    factor = 1.0
    if weight is not None and weight.ndim == 0:
        factor, weight = float(weight), None
    elif weight is not None and not loss.include_background:
        weight = torch.cat([weight.new_zeros(1), weight])
    if isinstance(alpha, Tensor):
        alpha, weight = None, alpha if weight is None else alpha * weight
    ours = polydice.FocalLoss(
        loss.gamma, activation="softmax" if softmax else "sigmoid", include_background=loss.include_background,
        weight=weight, ignore_index=getattr(loss, "ignore_index", None), reduction="none",
    )  # fmt: skip
    return _FocalLoss(ours, factor, alpha, loss.reduction)


TRANSLATIONS = {
    DiceLoss: _dice,
    MaskedDiceLoss: _masked_dice,
    DiceCELoss: _dice_cross_entropy,
    TverskyLoss: _tversky,
    FocalLoss: _focal,
}


def _dice_term(loss: Any) -> tuple[float, polydice.DiceLoss]:
    """A factor and our Dice loss: MONAI's mean of w·L is over the number of classes, ours over the sum of the w."""
    if loss.jaccard:
        _refuse(loss, "jaccard=True", "the README's 'Your own loss' writes it with pixel_sums")
    factor, weight = 1.0, loss.class_weight
    if weight is not None:
        if weight.ndim == 0:
            _refuse(loss, "weight of one number", "multiply the loss by it, or give one for each class")
        if loss.reduction == "mean":
            factor = float(weight.double().mean())
        if len(weight) == 1:  # of a single class, where MONAI does not apply it
            factor, weight = 1.0, None
        elif not loss.include_background:
            weight = torch.cat([weight.new_zeros(1), weight])
    return factor, polydice.DiceLoss(squared=loss.squared_pred, weight=weight, **_region_options(loss))


def _region_options(loss: Any) -> dict[str, Any]:
    """The options that MONAI's Dice and Tversky losses share, as ours take them."""
    masked = isinstance(loss, MaskedDiceLoss)  # which applies the activation itself
    if masked and not hasattr(loss, "pre_softmax"):
        _refuse(loss, "MONAI before 1.6", "there it masks the logits, before the activation")
    sigmoid, softmax, other = (
        getattr(loss, f"pre_{name}" if masked else name) for name in ("sigmoid", "softmax", "other_act")
    )
    ignore_index = getattr(loss, "ignore_index", None)
    if other is not None:
        _refuse(loss, f"other_act={other!r}", "make it the last layer of the network, and the loss one without it")
    if loss.smooth_nr != loss.smooth_dr:
        _refuse(loss, f"smooth_nr={loss.smooth_nr} with smooth_dr={loss.smooth_dr}", "both must be the same, δ")
    if getattr(loss, "soft_label", False) and not getattr(loss, "squared_pred", False):
        _refuse(loss, "soft_label=True", "squared_pred=True is right for soft labels; hard ones do not need it")
    _refuse_ignored_masks(loss)
    return {
        "activation": "sigmoid" if sigmoid else "softmax" if softmax else "none",
        "include_background": loss.include_background,
        "batch": loss.batch,
        "smooth": loss.smooth_nr,
        "ignore_index": ignore_index,
        "reduction": loss.reduction,
    }


def _refuse_ignored_masks(loss: Any) -> None:
    ignore_index = getattr(loss, "ignore_index", None)
    if ignore_index is not None and not loss.to_onehot_y:
        _refuse(loss, f"ignore_index={ignore_index} with to_onehot_y=False", "only label maps have such a label; "
                "pixels of masks are left out by a mask, the third argument of MonaiLoss")  # fmt: skip


def _refuse(loss: nn.Module, what: str, advice: str) -> NoReturn:
    raise ValueError(f"MONAI's {type(loss).__name__} with {what} has no equal in polydice: {advice}")


def _shaped(ours: Loss | LossSum, loss: Any, trailing: bool) -> MonaiLoss:
    return MonaiLoss(ours) if loss.reduction != "none" else _PerClassLoss(ours, loss, trailing)


class _PerClassLoss(MonaiLoss):
    """`reduction="none"` in MONAI's shape: without a background that is left out, `[B, C]`, or `[C]` over the batch,
    and for Dice an axis of length 1 for each axis in space."""

    def __init__(self, ours: Loss | LossSum, loss: Any, trailing: bool) -> None:
        super().__init__(ours)
        self.first = 0 if loss.include_background else 1
        self.batch = loss.batch
        self.trailing = trailing

    def forward(
        self, input: Tensor, target: Tensor, mask: Tensor | None = None, annotated: Tensor | None = None
    ) -> Tensor:
        losses = super().forward(input, target, mask, annotated)[:, self.first :]
        losses = losses[0] if self.batch else losses
        return losses.reshape(*losses.shape, *[1] * (input.ndim - 2)) if self.trailing else losses


class _FocalLoss(MonaiLoss):
    """MONAI's means of a focal loss: over voxels and channels or, with an `ignore_index`, over the voxels that count;
    `"sum"` is over images and channels, of the means over voxels. `alpha` weighs all classes but the background, which
    has 1 − alpha."""

    def __init__(self, ours: polydice.FocalLoss, factor: float, alpha: float | None, reduction: str) -> None:
        super().__init__(ours)
        self.factor, self.alpha, self.reduction, self.ignored = factor, alpha, reduction, ours.ignore_index
        self.first = 0 if ours.include_background else 1

    def forward(
        self, input: Tensor, target: Tensor, mask: Tensor | None = None, annotated: Tensor | None = None
    ) -> Tensor:
        if annotated is not None:
            raise ValueError(
                "the mean of MONAI's FocalLoss is over all channels, annotated or not: "
                "MonaiLoss(polydice.FocalLoss(...)) has one over what is annotated"
            )
        target = target if self.ignored is None else target.long()  # of a single channel too
        losses = super().forward(input, target, mask)
        if self.alpha is not None:
            losses = torch.cat([(1 - self.alpha) * losses[:, :1], self.alpha * losses[:, 1:]], 1)
        voxels = self._voxels(target, mask)
        if self.reduction == "sum":
            return self.factor * (losses.sum(1) / voxels).sum()
        channels = input.shape[1] - self.first if self.ignored is None else 1
        return self.factor * losses.sum() / (voxels.sum() * channels)

    def _voxels(self, target: Tensor, mask: Tensor | None) -> Tensor:
        """`[B]`: those that count, of each image."""
        counted = torch.ones_like(target[:, :1]) if self.ignored is None else target != self.ignored
        counted = counted if mask is None else counted * _plain(mask)
        return _plain(counted).flatten(1).sum(1).clamp(min=1)


class _OneChannelLoss(MonaiLoss):
    """Sigmoid Dice and binary cross-entropy: of more channels than one MONAI takes the cross-entropy of a softmax."""

    def forward(
        self, input: Tensor, target: Tensor, mask: Tensor | None = None, annotated: Tensor | None = None
    ) -> Tensor:
        if input.shape[1] != 1:
            raise ValueError(
                f"MONAI's DiceCELoss(sigmoid=True) of {input.shape[1]} channels adds the cross-entropy of a softmax to "
                "the Dice of a sigmoid, which has no equal in polydice: use softmax=True for classes that exclude each "
                "other, MonaiLoss(DiceLoss(activation='sigmoid') + CrossEntropyLoss(activation='sigmoid')) for others"
            )
        return super().forward(input, target, mask, annotated)


def _plain(tensor: Tensor) -> Tensor:
    return tensor.as_tensor() if isinstance(tensor, MetaTensor) else tensor
