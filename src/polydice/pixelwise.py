"""The losses of pixels, cross-entropy and what is made of it: a few lines each on the sums of `pixel_sums`."""

from abc import abstractmethod
from typing import Unpack

import torch
from torch import Tensor

from polydice.arguments import number
from polydice.base import Loss, LossOptions
from polydice.geometry import ratio
from polydice.kernels.fields import Form, PixelSums


class PixelLoss(Loss):
    """A mean over pixels: Σ w·L / what torch divides by, of the losses L that the pixels of each class have in all.
    Without a pixel that counts it is 0, where torch gives NaN.

    `reduction="none"` gives w_c·L_c per image and class, and `"sum"` their sum.
    """

    def __init__(self, **options: Unpack[LossOptions]) -> None:
        super().__init__(**options)
        if self.activation == "none":
            raise ValueError("cross-entropy is computed from logits: activation='none' has none to offer")
        if self.process_group is not None and self.reduction == "none":
            raise ValueError("process_group adds up sums over the batch: reduction='none' has none")
        self.want = ("pixels",) + (("target",) if self.activation == "softmax" else ())

    @property
    def over_batch(self) -> bool:
        return self.reduction != "none"

    @abstractmethod
    def per_class(self, sums: PixelSums) -> Tensor:
        """L, `[B, C]`, or `[1, C]` over the batch."""

    def evaluate(self, sums: PixelSums) -> Tensor:
        losses = self.per_class(sums)
        weight = self.class_weights(losses)
        losses = torch.where(weight == 0, 0, weight * losses)
        if self.reduction == "none":
            return losses
        return losses.sum() if self.reduction == "sum" else ratio(losses.sum(), self._count(sums, weight))

    def _count(self, sums: PixelSums, weight: Tensor) -> Tensor:
        """What torch divides by: the labelled pixels' weights; for masks the pixels; for sigmoid each channel's."""
        if self.activation == "sigmoid":
            return (sums.pixels if self.include_background else sums.pixels[:, 1:]).sum()
        return (weight * sums.target).sum() if sums.labels else sums.pixels[:, 0].sum()


class CrossEntropyLoss(PixelLoss):
    """`F.cross_entropy` (softmax) or `F.binary_cross_entropy_with_logits` (sigmoid), weights, ignored pixels and label
    smoothing included, from the sums E_c = Σ −y·log ŷ.

    >>> logits, labels = torch.randn(2, 3, 8, 8), torch.randint(3, (2, 8, 8))
    >>> torch.allclose(CrossEntropyLoss()(logits, labels), torch.nn.functional.cross_entropy(logits, labels))
    True

    Args:
        label_smoothing: as of `F.cross_entropy`, in [0, 1]; of a softmax only.
    """

    def __init__(self, *, label_smoothing: float = 0.0, **options: Unpack[LossOptions]) -> None:
        super().__init__(**options)
        self.label_smoothing = number("label_smoothing", label_smoothing, least=0)
        if self.label_smoothing > 1:
            raise ValueError(f"label_smoothing must be in [0, 1]: {label_smoothing}")
        if self.label_smoothing > 0 and self.activation != "softmax":
            raise ValueError("label_smoothing is that of F.cross_entropy, of a softmax: for sigmoid, smooth the masks")
        self.want += ("cross_entropy",) + (("uniform",) if self.label_smoothing > 0 else ())

    def per_class(self, sums: PixelSums) -> Tensor:
        if self.label_smoothing == 0:
            return sums.cross_entropy
        return (1 - self.label_smoothing) * sums.cross_entropy + self.label_smoothing * sums.uniform

    def fused_form(self) -> Form | None:
        return Form("entropy", (0, self.label_smoothing, 0, 0))


class FocalLoss(PixelLoss):
    """Cross-entropy of which each pixel counts (1 − p_t)^γ times, p_t the probability of the truth: those that are
    right already hardly count. γ = 0 is cross-entropy. The mean is that of cross-entropy: over all pixels.

    Losses of a sum share the pass, so those that are focal must have the same γ.

    >>> logits, labels = torch.randn(2, 3, 8, 8), torch.randint(3, (2, 8, 8))
    >>> torch.allclose(FocalLoss(gamma=0)(logits, labels), torch.nn.functional.cross_entropy(logits, labels))
    True

    Args:
        gamma: γ, at least 0.
    """

    def __init__(self, gamma: float = 2.0, **options: Unpack[LossOptions]) -> None:
        super().__init__(**options)
        self.gamma = number("gamma", gamma, least=0)
        self.want += ("focal",)

    def per_class(self, sums: PixelSums) -> Tensor:
        return sums.focal

    def fused_form(self) -> Form | None:
        return Form("focal", (0, 0, 0, 0))


class PolyCE1Loss(PixelLoss):
    """Cross-entropy + ε·(1 − p_t), p_t the probability of the truth, pixel by pixel: PolyLoss of order 1.

    Args:
        epsilon: ε.
    """

    def __init__(self, epsilon: float = 1.0, **options: Unpack[LossOptions]) -> None:
        super().__init__(**options)
        self.epsilon = number("epsilon", epsilon)
        self.want += ("cross_entropy", "intersection")
        if self.activation == "sigmoid":
            self.want += ("target", "prediction")

    def per_class(self, sums: PixelSums) -> Tensor:
        missed = sums.target - sums.intersection
        if self.activation == "sigmoid":  # p_t is 1 − ŷ where y = 0
            missed = missed + sums.prediction - sums.intersection
        return sums.cross_entropy + self.epsilon * missed

    def fused_form(self) -> Form | None:
        return Form("entropy", (self.epsilon, 0, 0, 0))
