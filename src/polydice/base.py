"""What every loss has: its options, how it reads the sums, how it weighs classes, and `+` and `*`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from numbers import Real
from typing import TYPE_CHECKING, Any, Self, Unpack

import torch
from torch import Tensor, nn

from polydice.arguments import (
    all_parameters,
    check_arguments,
    check_option,
    check_per_class,
    class_weights,
    flag,
    number,
    parameters,
)
from polydice.geometry import TINY, ratio
from polydice.kernels.fields import ACTIVATIONS, IMPLEMENTATIONS, Form, PixelSums
from polydice.kernels.plan import Plan, Term, added_numbers, check_agreement, focal_gammas, plan_loss, stacked_weights
from polydice.options import AveragedOptions as AveragedOptions
from polydice.options import LossOptions as LossOptions
from polydice.options import RegionOptions as RegionOptions
from polydice.options import describe
from polydice.sums import over_processes

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup  # absent from builds without torch.distributed

REDUCTIONS = ("mean", "sum", "none")
DEFAULT_SMOOTH = 1.0
# Options that say where and how a loss is computed, not what it is.
CHANGEABLE = ("impl", "process_group")
SHARED = ("activation", "ignore_index", "process_group", "impl", "reduction")  # by the terms of a sum


class Summand(nn.Module, ABC):
    """A loss or a weighted sum of losses: what `+` and `*` take, and what is called with logits and target."""

    @property
    @abstractmethod
    def terms(self) -> "list[tuple[float, Loss]]":
        """The losses, each with its factor."""

    def forward(
        self, logits: Tensor, target: Tensor, mask: Tensor | None = None, annotated: Tensor | None = None
    ) -> Tensor:
        """logits `[B, C, *spatial]`; target `[B, *spatial]` labels or masks like the logits; mask `[B, *spatial]`;
        annotated `[B, C]` booleans, the classes that are annotated in each image."""
        terms = self.terms
        plan = plan_loss(terms, logits, target, mask, annotated)
        if plan.launches is not None:
            numbers = stacked_weights(terms), added_numbers(terms, logits.device)
            return plan.launches(logits, target, mask, *numbers, annotated)
        for _, loss in terms:
            loss.check_classes(logits)
        return self.from_sums(plan, plan.sums(logits, target, mask, annotated))

    def from_sums(self, plan: Plan, stacked: Tensor) -> Tensor:
        """The value from the sums that the plan makes."""
        terms = self.terms
        per_image = over_batch = plan.unstack(stacked)
        if any(loss.over_batch for _, loss in terms):
            total, group = stacked.sum(1, keepdim=True), terms[0][1].process_group
            over_batch = plan.unstack(total if group is None else over_processes(total, group))
        values = [loss.evaluate(over_batch if loss.over_batch else per_image) for _, loss in terms]
        return _weighted_sum(terms, values).to(plan.dtype)

    def __add__(self, other: "Summand") -> "LossSum":
        return LossSum(self.terms + other.terms) if isinstance(other, Summand) else NotImplemented

    def __radd__(self, other: object) -> "LossSum":
        return LossSum(self.terms) if other == 0 else NotImplemented  # sum() starts from 0

    def __mul__(self, factor: float) -> "LossSum":
        if not isinstance(factor, Real) or isinstance(factor, bool):
            return NotImplemented
        return LossSum([(number("factor", factor) * own, loss) for own, loss in self.terms])

    __rmul__ = __mul__


class Loss(Summand):
    """What every loss has: how it reads logits and target, how it weighs classes.

    A subclass names the sums it wants and turns them into a value with `evaluate`.

    Args:
        activation: "softmax", "sigmoid" (channels that overlap), or "none" where the network gives probabilities.
        include_background: whether class 0 counts.
        weight: one number per class, `[C]`, background included.
        ignore_index: label of pixels that do not count.
        reduction: "mean", "sum" or "none".
        process_group: processes over which the sums are added up, for a batch that is spread over them.
        impl: "fused" (Triton, on CUDA), "eager" (torch), or "auto": fused where that can be.
    """

    want: tuple[str, ...]
    weight: Tensor | None
    batch: bool | None = None  # of losses that have no such option
    absent: str = "keep"
    gamma: float = 0.0

    def __init__(
        self,
        *,
        activation: str = "softmax",
        include_background: bool = True,
        weight: Sequence[float] | Tensor | None = None,
        ignore_index: int | None = None,
        reduction: str = "mean",
        process_group: "ProcessGroup | None" = None,
        impl: str = "auto",
    ) -> None:
        super().__init__()
        check_option("activation", activation, ACTIVATIONS)
        check_option("reduction", reduction, REDUCTIONS)
        if ignore_index is not None and (not isinstance(ignore_index, int) or isinstance(ignore_index, bool)):
            raise TypeError(f"ignore_index must be an integer or None: {ignore_index!r}")
        self.activation = activation
        self.include_background = flag("include_background", include_background)
        self.register_buffer("weight", class_weights(weight))
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.process_group = process_group
        self.impl = impl

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        describe(cls)

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        if arguments or options:  # a copy is made without
            check_arguments(cls, arguments, options)
        return super().__new__(cls)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "impl":
            check_option("impl", value, IMPLEMENTATIONS)
        if name == "weight" and type(value) is Tensor and not value.is_meta:  # one that has values
            class_weights(value)
        if name in vars(self) and name not in CHANGEABLE and name in all_parameters(type(self)):
            kind = type(self).__name__
            raise AttributeError(
                f"{name} of a {kind} is fixed when it is made: make a new {kind}, with {name}={value!r}"
            )
        vars(self).pop("_term", None)
        super().__setattr__(name, value)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Moves the buffers, which are float64, also to a device that does not have it (mps)."""

        def fitting(tensor: Tensor) -> Tensor:
            try:
                moved = fn(tensor)
            except (TypeError, RuntimeError):
                if tensor.dtype != torch.float64:
                    raise
                return fn(tensor.float())
            # In a model of half precision, the numbers of its loss keep the digits they were given with.
            return tensor.to(moved.device) if moved.itemsize < tensor.itemsize else moved

        super()._apply(fitting, recurse)  # type: ignore[no-untyped-call]
        return self

    @property
    def terms(self) -> "list[tuple[float, Loss]]":
        return [(1.0, self)]

    @property
    @abstractmethod
    def over_batch(self) -> bool:
        """Whether the sums are taken over the whole batch before anything is formed of them."""

    @abstractmethod
    def evaluate(self, sums: PixelSums) -> Tensor:
        """The value, reduced as asked, from sums that are taken over each image or over the batch."""

    @property
    def adaptive(self) -> bool:
        """Whether `adapt` changes anything."""
        return False

    def adapt(self, dice_per_class: Sequence[float] | Tensor) -> None:
        """What follows the validation is set anew: Dice in [0, 1] of every class, background included."""

    def fused_form(self) -> Form | None:
        """This loss as `kernels/tail.py` computes it, if it can."""
        return None

    def term(self) -> Term:
        """What `kernels/plan.py` needs to know of this loss at every call. It is kept until an attribute is set."""
        found: Term | None = vars(self).get("_term")
        if found is None:
            found = vars(self)["_term"] = Term(
                want=tuple(self.want),
                form=self.fused_form() if _has_own_form(type(self)) else None,
                activation=self.activation,
                ignore_index=self.ignore_index,
                reduction=self.reduction,
                impl=self.impl,
                group=None if self.process_group is None else id(self.process_group),
                batch=self.batch,
                background=self.include_background,
                skip_absent=self.absent == "skip",
                gamma=self.gamma if "focal" in self.want else None,
            )
        return found

    def class_weights(self, like: Tensor) -> Tensor:
        """`[C]`: the weights given, or ones; 0 for a background that is left out."""
        weight = like.new_ones(like.shape[-1]) if self.weight is None else self.weight.to(like.dtype)
        return weight if self.include_background else torch.cat([weight.new_zeros(1), weight[1:]])

    def check_classes(self, logits: Tensor) -> None:
        classes = logits.shape[1]
        check_per_class("weight", self.weight, logits)
        if classes == 1 and not self.include_background:
            raise ValueError("include_background=False leaves no class of a single channel, which is the foreground")

    def __repr__(self) -> str:
        shown = []
        for name, parameter in parameters(type(self)).items():
            value = getattr(self, name, parameter.default)
            if isinstance(value, Tensor):
                value = value.tolist()
            if value != parameter.default:  # one without a default differs from the mark that says so
                shown.append(f"{name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"


class LossSum(Summand):
    """A weighted sum of losses, made by `+` and `*`: one pass over the pixels for all of them.

    >>> from polydice import CrossEntropyLoss, DiceLoss
    >>> 2 * DiceLoss() + CrossEntropyLoss()
    2.0 * DiceLoss() + CrossEntropyLoss()
    """

    def __init__(self, terms: Sequence[tuple[float, Loss]]) -> None:
        super().__init__()
        self.factors = tuple(factor for factor, _ in terms)
        self.losses = nn.ModuleList(loss for _, loss in terms)
        check_agreement(SHARED, [loss for _, loss in terms])
        focal_gammas([loss for _, loss in terms])

    @property
    def terms(self) -> list[tuple[float, Loss]]:
        return list(zip(self.factors, self.losses, strict=True))  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return " + ".join(f"{factor!r} * {loss!r}" if factor != 1 else repr(loss) for factor, loss in self.terms)


def _weighted_sum(terms: list[tuple[float, Loss]], values: list[Tensor]) -> Tensor:
    if len({value.shape for value in values}) > 1:
        shapes = [f"{type(loss).__name__} {list(value.shape)}" for (_, loss), value in zip(terms, values, strict=True)]
        raise ValueError(f"reduction='none' cannot add terms of different shapes: {', '.join(shapes)}")
    total, *others = [factor * value for (factor, _), value in zip(terms, values, strict=True)]
    for other in others:
        total = total + other
    return total


@cache
def _has_own_form(kind: type[Loss]) -> bool:
    """Whether `fused_form` speaks of this very loss: not if a subclass has changed what it computes."""
    for base in kind.__mro__:
        if "fused_form" in vars(base):
            return True
        if not {"per_class", "evaluate", "class_weights", "over_batch", "from_sums"}.isdisjoint(vars(base)):
            return False
    return False


class AveragedLoss(Loss):
    """A loss per image and class, `per_class`, averaged: Σ w·L / Σ w over the classes that count.

    Args:
        batch: sums over the whole batch instead of over each image.
        absent: "keep" or "skip" a class without target pixels in the image (the batch, with `batch=True`).
    """

    def __init__(self, *, batch: bool = False, absent: str = "keep", **options: Unpack[LossOptions]) -> None:
        super().__init__(**options)
        check_option("absent", absent, ("keep", "skip"))
        if self.process_group is not None and not batch:
            raise ValueError("process_group adds up sums over the batch: it needs batch=True")
        self.batch: bool = flag("batch", batch)
        self.absent = absent

    @property
    def over_batch(self) -> bool:
        return self.batch

    @abstractmethod
    def per_class(self, sums: PixelSums) -> Tensor:
        """`[B, C]`, or `[1, C]` with `batch=True`."""

    def evaluate(self, sums: PixelSums) -> Tensor:
        losses = self.per_class(sums)
        annotated = sums.annotated
        if self.weight is None and self.include_background and self.absent == "keep" and annotated is None:
            if self.reduction == "none":
                return losses
            return losses.sum() / (max(1, losses.numel()) if self.reduction == "mean" else 1)
        weight = self.class_weights(losses).expand_as(losses)
        if self.absent == "skip":
            present = sums.target if sums.target is not None else sums.target_sq
            weight = torch.where(present < TINY, 0, weight)
        if annotated is not None:
            weight = torch.where(annotated, weight, 0)
        losses = torch.where(weight == 0, 0, weight * losses)
        if self.reduction == "none":
            return losses
        return losses.sum() if self.reduction == "sum" else ratio(losses.sum(), weight.sum())


class RegionLoss(AveragedLoss):
    """An averaged loss with δ, which says what it is where a class or its prediction is empty.

    Args:
        smooth: δ, at least 0, in pixels.
    """

    def __init__(
        self,
        *,
        batch: bool = False,
        smooth: float = DEFAULT_SMOOTH,
        absent: str = "keep",
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(batch=batch, absent=absent, **options)
        self.smooth = number("smooth", smooth, least=0)
