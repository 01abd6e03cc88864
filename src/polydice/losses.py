"""Every loss: a few lines each on the sums of `pixel_sums`, `[B, C]` tensors. Those of pixels are in `pixelwise.py`."""

import warnings
from collections.abc import Sequence
from typing import Any, Unpack

import torch
from torch import Tensor

from polydice.arguments import check_option, check_per_class, flag, not_negative, number, numbers, shares
from polydice.base import (
    DEFAULT_SMOOTH,
    AveragedLoss,
    AveragedOptions,
    Loss,
    RegionLoss,
    RegionOptions,
)
from polydice.geometry import (
    TINY,
    cosine_coefficients,
    lengths,
    misalignment,
    misdirection,
    mismatch,
    polynomial,
    ratio,
    squared_angle,
)
from polydice.kernels.fields import Form, PixelSums
from polydice.pixelwise import CrossEntropyLoss as CrossEntropyLoss
from polydice.pixelwise import FocalLoss as FocalLoss
from polydice.pixelwise import PolyCE1Loss as PolyCE1Loss

SCALES = ("coupled", "detached", "none")


class DiceLoss(RegionLoss):
    """L = Σ(y − ŷ)² / (Σy² + Σŷ² + δ), which is 1 − (2Σyŷ + δ)/(Σy² + Σŷ² + δ).

    >>> logits, labels = torch.randn(2, 3, 8, 8), torch.randint(3, (2, 8, 8))
    >>> DiceLoss()(logits, labels).shape
    torch.Size([])

    Args:
        squared: False takes Σy + Σŷ in place of the squares, as nnU-Net and smp do.
    """

    def __init__(self, *, squared: bool = True, **options: Unpack[RegionOptions]) -> None:
        super().__init__(**options)
        self.squared = flag("squared", squared)
        self.want = ("prediction_sq", "target_sq", "error_sq") if squared else ("intersection", "prediction", "target")

    def per_class(self, sums: PixelSums) -> Tensor:
        if self.squared:
            return ratio(sums.error_sq, sums.target_sq + sums.prediction_sq + self.smooth)
        volumes = sums.target + sums.prediction
        return ratio(volumes - 2 * sums.intersection, volumes + self.smooth)

    def fused_form(self) -> Form | None:
        if self.squared:
            return Form("ratio", (self.smooth, 0, 0, 0))
        return Form("overlap", (0.5, 0.5, self.smooth / 2, 1))


class PolyDiceLoss(RegionLoss):
    """L = (1 − s) + s·Σ_k coefficients[k−1]·θ^(2k), with the scale s and the angle θ between y and ŷ.

    >>> PolyDiceLoss((0.5, -1 / 24))  # DropDice of order 2
    PolyDiceLoss(coefficients=(0.5, -0.041666666666666664))

    Args:
        coefficients: of θ², θ⁴, …: at least one.
        scale: "coupled" is the formula; "detached" holds s fixed in the second term's gradient; "none" has s = 1: a
            loss of the angle alone, without δ.
    """

    def __init__(
        self, coefficients: Sequence[float], *, scale: str = "coupled", **options: Unpack[RegionOptions]
    ) -> None:
        super().__init__(**options)
        check_option("scale", scale, SCALES)
        if len(coefficients) == 0:
            raise ValueError("coefficients is empty: the loss would not depend on the angle")
        self.coefficients = tuple(number("coefficients", value) for value in coefficients)
        if scale == "none" and self.smooth != DEFAULT_SMOOTH:
            raise ValueError(f"scale='none' is a loss of the angle alone, which has no δ: smooth={self.smooth}")
        self.scale = scale
        self.want = ("prediction_sq", "target_sq", "error_sq") + (("intersection",) if scale == "none" else ())

    def per_class(self, sums: PixelSums) -> Tensor:
        a, b, e = sums.target_sq, sums.prediction_sq, sums.error_sq
        if self.scale == "none":
            return self._angular(squared_angle(misdirection(a, b, e, sums.intersection)))
        known = lengths(a, b)
        angular = self._angular(squared_angle(misalignment(a, b, e, self.smooth, known)))
        lost = mismatch(a, b, self.smooth, known)
        s = 1 - lost
        return lost + (s.detach() if self.scale == "detached" else s) * angular

    def _angular(self, t: Tensor) -> Tensor:
        """q, of t = θ²."""
        return polynomial(self.coefficients, t)

    def fused_form(self) -> Form | None:
        if self.scale == "none":
            return None
        return Form("polynomial", (self.smooth, self.scale == "detached", 0, 0), self.coefficients)


class DropDiceLoss(PolyDiceLoss):
    """Dice with the cosine's series cut after `order` terms: q = Σ_{k ≤ order} (−1)^(k−1) θ^(2k)/(2k)!.

    >>> DropDiceLoss(order=1)
    DropDiceLoss(order=1)

    Args:
        order: K of the paper, at least 1: how many terms stay.
    """

    def __init__(self, order: int, *, scale: str = "coupled", **options: Unpack[RegionOptions]) -> None:
        if not isinstance(order, int) or isinstance(order, bool):
            raise TypeError(f"order must be an integer: {order!r}")
        if order < 1:
            raise ValueError(f"order must be at least 1: {order}")
        super().__init__(cosine_coefficients(order), scale=scale, **options)
        self.order = order


class PolyDice1Loss(PolyDiceLoss):
    """Dice with only the leading term of the cosine's series, its coefficient moved: q = (½ + ε)·θ².

    `update_epsilon` sets ε anew.

    >>> PolyDice1Loss(epsilon=0.2) + 0.5 * CrossEntropyLoss()  # still one pass over the pixels
    PolyDice1Loss(epsilon=0.2) + 0.5 * CrossEntropyLoss()
    >>> loss = PolyDice1Loss(epsilon=0.0, follow=0.5)
    >>> loss.adapt([1.0, 0.5])
    >>> loss
    PolyDice1Loss(epsilon=[0.5, 0.25], follow=0.5)

    Args:
        epsilon: ε, one number or one per class, `[C]`; below −½ a perfect prediction is not the minimum.
        follow: E of an adaptive ε_c = E·Dice_c, set after every validation of a training, or whenever `adapt` is told
            Dice; before the first it is `epsilon`.
    """

    epsilon: Tensor

    def __init__(
        self,
        epsilon: float | Sequence[float] | Tensor,
        *,
        follow: float | None = None,
        scale: str = "coupled",
        **options: Unpack[RegionOptions],
    ) -> None:
        super().__init__((0.5,), scale=scale, **options)  # without ε, which may change
        self.register_buffer("epsilon", _convex(epsilon))
        self.follow = None if follow is None else number("follow", follow)

    def update_epsilon(self, epsilon: float | Sequence[float] | Tensor) -> None:
        """One number, or one per class, background included."""
        self.epsilon = _convex(epsilon).to(self.epsilon)

    @property
    def adaptive(self) -> bool:
        return self.follow is not None

    def adapt(self, dice_per_class: Sequence[float] | Tensor) -> None:
        if self.follow is not None:
            self.update_epsilon(self.follow * shares("dice_per_class", dice_per_class))

    def check_classes(self, logits: Tensor) -> None:
        super().check_classes(logits)
        check_per_class("epsilon", self.epsilon, logits)

    def _angular(self, t: Tensor) -> Tensor:
        return (0.5 + self.epsilon.to(t.dtype)) * t

    def fused_form(self) -> Form | None:
        form = super().fused_form()
        return form and form._replace(added="epsilon")

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        state_dict.setdefault(f"{prefix}epsilon", self.epsilon)  # a state of before, when ε was no part of it
        _make_room(self, "epsilon", state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)


def _convex(epsilon: float | Sequence[float] | Tensor) -> Tensor:
    found = numbers("epsilon", epsilon)
    if bool((found < -0.5).any()):
        warnings.warn(
            f"epsilon={found.tolist()} is below -1/2: the loss then falls with the angle, and a perfect prediction is "
            "not its minimum",
            stacklevel=3,
        )
    return found


def _make_room(loss: Loss, name: str, state_dict: dict[str, Any], prefix: str) -> None:
    """What was one number may have become one per class, or the other way round."""
    saved = state_dict.get(f"{prefix}{name}")
    if saved is not None:
        setattr(loss, name, getattr(loss, name).new_empty(saved.shape))


class TverskyLoss(RegionLoss):
    """L = (α·FP + β·FN) / (I + α·FP + β·FN + δ), FP = Σŷ − I, FN = Σy − I.

    Args:
        alpha: α, the weight of false positives.
        beta: β, the weight of misses.
    """

    want = ("intersection", "prediction", "target")

    def __init__(self, alpha: float = 0.3, beta: float = 0.7, **options: Unpack[RegionOptions]) -> None:
        super().__init__(**options)
        self.alpha = number("alpha", alpha, least=0)
        self.beta = number("beta", beta, least=0)

    def per_class(self, sums: PixelSums) -> Tensor:
        overlap = sums.intersection
        wrong = self.alpha * (sums.prediction - overlap) + self.beta * (sums.target - overlap)
        return ratio(wrong, overlap + wrong + self.smooth)

    def fused_form(self) -> Form | None:
        return Form("overlap", (self.alpha, self.beta, self.smooth, 1))


class FocalTverskyLoss(TverskyLoss):
    """L = T^(1/γ) of the Tversky loss T. The power has an infinite slope at T = 0: there it is taken as 0.

    Args:
        gamma: γ, above 0; above 1 what is nearly right counts more.
    """

    def __init__(
        self, alpha: float = 0.3, beta: float = 0.7, gamma: float = 4 / 3, **options: Unpack[RegionOptions]
    ) -> None:
        super().__init__(alpha, beta, **options)
        self.gamma = number("gamma", gamma)
        if self.gamma <= 0:
            raise ValueError(f"gamma must be positive: {gamma}")

    def per_class(self, sums: PixelSums) -> Tensor:
        base = super().per_class(sums)
        perfect = base < TINY
        return torch.where(perfect, 0, torch.where(perfect, 1, base) ** (1 / self.gamma))

    def fused_form(self) -> Form | None:
        return Form("overlap", (self.alpha, self.beta, self.smooth, 1 / self.gamma))


class TvMFDiceLoss(AveragedLoss):
    """L = (1 − φ)², φ = (1 + c)/(1 + κ(1 − c)) − 1, of the cosine c = Σyŷ / √(Σy²·Σŷ²): the t-vMF similarity of Kato
    and Hotta. A loss of the angle alone: it has no δ.

    `update_kappa` makes it the adaptive form: κ_c = 32·Dice_c, from the validation.

    >>> loss = TvMFDiceLoss(kappa=0)
    >>> loss.update_kappa([1.0, 0.5])
    >>> loss
    TvMFDiceLoss(kappa=[32.0, 16.0])

    Args:
        kappa: κ, one number or one per class, `[C]`, at least 0.
    """

    want = ("intersection", "prediction_sq", "target_sq", "error_sq")
    kappa: Tensor

    def __init__(self, kappa: float | Sequence[float] | Tensor, **options: Unpack[AveragedOptions]) -> None:
        super().__init__(**options)
        self.register_buffer("kappa", not_negative("kappa", kappa))

    def update_kappa(self, dice_per_class: Sequence[float] | Tensor) -> None:
        """Dice in [0, 1] of every class, background included, to κ = 32·Dice."""
        self.kappa = (32 * shares("dice_per_class", dice_per_class)).to(self.kappa)

    @property
    def adaptive(self) -> bool:
        return True

    def adapt(self, dice_per_class: Sequence[float] | Tensor) -> None:
        self.update_kappa(dice_per_class)

    def check_classes(self, logits: Tensor) -> None:
        super().check_classes(logits)
        check_per_class("kappa", self.kappa, logits)

    def per_class(self, sums: PixelSums) -> Tensor:
        x = misdirection(sums.target_sq, sums.prediction_sq, sums.error_sq, sums.intersection)
        kappa = self.kappa.to(x.dtype)
        return (x * (1 + 2 * kappa) / (1 + kappa * x)).square()  # 1 − φ, without its cancellation

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        _make_room(self, "kappa", state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)
