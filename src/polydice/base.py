"""What every loss has: its options, how it reads the sums, how it weighs classes, and `+` and `*`."""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from numbers import Real
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

import torch
from torch import Tensor, nn
from torch import distributed as dist

from polydice.geometry import TINY, ratio
from polydice.kernels import op
from polydice.kernels.eager import Options, sum_dtype
from polydice.sums import (
    ACTIVATIONS,
    FIELDS,
    IMPLEMENTATIONS,
    Pass,
    PixelSums,
    check_option,
    prepare,
    result_dtype,
    unstack,
)

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup  # absent from builds without torch.distributed

    from polydice.kernels.fused import Plan

REDUCTIONS = ("mean", "sum", "none")
DEFAULT_SMOOTH = 1.0
# Options that say where and how a loss is computed, not what it is.
CHANGEABLE = ("impl", "process_group")
SHARED = ("activation", "ignore_index", "process_group", "impl", "reduction")  # by the terms of a sum


class LossOptions(TypedDict, total=False):
    """Keyword options of every loss."""

    activation: str  # "softmax", "sigmoid" or "none" (the network's output is probabilities)
    include_background: bool  # whether class 0 counts
    weight: Sequence[float] | Tensor | None  # one per class, background included
    ignore_index: int | None  # label of pixels that do not count
    reduction: str  # "mean", "sum" or "none"
    process_group: "ProcessGroup | None"  # processes over which the sums are added up
    impl: str  # "auto", "fused" or "eager"


class AveragedOptions(LossOptions, total=False):
    """Keyword options of the losses that are a mean over classes: all but the cross-entropies."""

    batch: bool  # sums over the whole batch instead of over each image
    absent: str  # "keep" or "skip" a class without target pixels


class RegionOptions(AveragedOptions, total=False):
    """Keyword options of the losses that compare regions, by volume and place: all but those of the angle alone."""

    smooth: float  # δ


class Loss(nn.Module, ABC):
    """What every loss has: how it reads logits and target, how it weighs classes, and `+` and `*`.

    A subclass names the sums it wants and turns them into a value with `evaluate`.
    """

    want: tuple[str, ...]
    weight: Tensor | None
    batch: bool | None = None  # of losses that have no such option
    absent: str = "keep"

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
        **unknown: object,
    ) -> None:
        super().__init__()
        if unknown:
            kind, name = type(self), next(iter(unknown))
            raise TypeError(f"{kind.__name__} got an unexpected keyword argument {name!r}; {_usage(kind)}")
        check_option("activation", activation, ACTIVATIONS)
        check_option("reduction", reduction, REDUCTIONS)
        if ignore_index is not None and (not isinstance(ignore_index, int) or isinstance(ignore_index, bool)):
            raise TypeError(f"ignore_index must be an integer or None: {ignore_index!r}")
        self.activation = activation
        self.include_background = flag("include_background", include_background)
        self.register_buffer("weight", _class_weights(weight))
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.process_group = process_group
        self.impl = impl

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        if arguments or options:  # a copy is made without
            try:
                inspect.signature(cls.__init__).bind(None, *arguments, **options)
            except TypeError as error:
                raise TypeError(f"{cls.__name__}: {error}; {_usage(cls)}") from None
        return super().__new__(cls)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "impl":
            check_option("impl", value, IMPLEMENTATIONS)
        if name in vars(self) and name not in CHANGEABLE and name in _all_parameters(type(self)):
            kind = type(self).__name__
            raise AttributeError(
                f"{name} of a {kind} is fixed when it is made: make a new {kind}, with {name}={value!r}"
            )
        super().__setattr__(name, value)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Moves and converts the buffers, which are float64, also to a device that does not have it (mps)."""

        def fitting(tensor: Tensor) -> Tensor:
            try:
                return fn(tensor)
            except (TypeError, RuntimeError):
                if tensor.dtype != torch.float64:
                    raise
            return fn(tensor.float())

        super()._apply(fitting, recurse)  # type: ignore[no-untyped-call]
        return self

    @property
    @abstractmethod
    def over_batch(self) -> bool:
        """Whether the sums are taken over the whole batch before anything is formed of them."""

    @abstractmethod
    def evaluate(self, sums: PixelSums) -> Tensor:
        """The value, reduced as asked, from sums that are taken over each image or over the batch."""

    def fused_form(self) -> tuple[str, tuple[float, ...], tuple[float, ...]] | None:
        """The kind of loss, its numbers and its coefficients as `kernels/tail.py` takes them, if it knows this one."""
        return None

    def forward(self, logits: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        """logits `[B, C, *spatial]`; target `[B, *spatial]` labels or masks like the logits; mask `[B, *spatial]`."""
        return _evaluate([(1.0, self)], logits, target, mask)

    def class_weights(self, like: Tensor) -> Tensor:
        """`[C]`: the weights given, or ones; 0 for a background that is left out."""
        weight = like.new_ones(like.shape[-1]) if self.weight is None else self.weight.to(like.dtype)
        return weight if self.include_background else torch.cat([weight.new_zeros(1), weight[1:]])

    def check_classes(self, logits: Tensor) -> None:
        classes = logits.shape[1]
        check_per_class("weight", self.weight, logits)
        if classes == 1 and not self.include_background:
            raise ValueError("include_background=False leaves no class of a single channel, which is the foreground")

    def __add__(self, other: "Loss | LossSum") -> "LossSum":
        return LossSum([(1.0, self)]) + other

    def __radd__(self, other: object) -> "LossSum":
        return LossSum([(1.0, self)]).__radd__(other)

    def __mul__(self, factor: float) -> "LossSum":
        return LossSum([(1.0, self)]) * factor

    __rmul__ = __mul__

    def __repr__(self) -> str:
        shown = []
        for name, parameter in _parameters(type(self)).items():
            value = getattr(self, name)
            if isinstance(value, Tensor):
                value = value.tolist()
            if value != parameter.default:  # one without a default differs from the mark that says so
                shown.append(f"{name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"


class LossSum(nn.Module):
    """A weighted sum of losses, made by `+` and `*`: one pass over the pixels for all of them.

    >>> from polydice import CrossEntropyLoss, DiceLoss
    >>> 2 * DiceLoss() + CrossEntropyLoss()
    2.0 * DiceLoss() + CrossEntropyLoss()
    """

    def __init__(self, terms: Sequence[tuple[float, Loss]]) -> None:
        super().__init__()
        self.factors = tuple(factor for factor, _ in terms)
        self.losses = nn.ModuleList(loss for _, loss in terms)
        _check_agreement(SHARED, [loss for _, loss in terms])

    @property
    def terms(self) -> list[tuple[float, Loss]]:
        return list(zip(self.factors, self.losses, strict=True))  # type: ignore[arg-type]

    def forward(self, logits: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        return _evaluate(self.terms, logits, target, mask)

    def __add__(self, other: "Loss | LossSum") -> "LossSum":
        if not isinstance(other, Loss | LossSum):
            return NotImplemented
        return LossSum(self.terms + (other.terms if isinstance(other, LossSum) else [(1.0, other)]))

    def __radd__(self, other: object) -> "LossSum":
        return self if other == 0 else NotImplemented  # sum() starts from 0

    def __mul__(self, factor: float) -> "LossSum":
        if not isinstance(factor, Real) or isinstance(factor, bool):
            return NotImplemented
        return LossSum([(number("factor", factor) * own, loss) for own, loss in self.terms])

    __rmul__ = __mul__

    def __repr__(self) -> str:
        return " + ".join(f"{factor!r} * {loss!r}" if factor != 1 else repr(loss) for factor, loss in self.terms)


def _check_agreement(options: Sequence[str], losses: Sequence[Loss]) -> None:
    for option in options:
        values = [getattr(loss, option) for loss in losses]
        if any(value is not values[0] and value != values[0] for value in values):
            raise ValueError(f"the terms of a sum must agree in {option}: {values}")


def _evaluate(terms: list[tuple[float, Loss]], logits: Tensor, target: Tensor, mask: Tensor | None) -> Tensor:
    if op.may_fuse(logits, target, mask):
        plan = _plan(terms, logits, target, mask)
        if plan is not None:
            return plan(logits, target, mask, _stacked_weights(terms, logits))
    loss = terms[0][1]
    given = _checked(terms, logits, target, mask)
    want = given.options.want
    stacked = given.stacked()
    per_image = over_batch = unstack(stacked, want, given.labels)
    if any(term.over_batch for _, term in terms):
        total = stacked.sum(1, keepdim=True)
        if loss.process_group is not None:
            total = _AllReduce.apply(total, loss.process_group)  # type: ignore[no-untyped-call]
        over_batch = unstack(total, want, given.labels)
    values = [(factor, term, term.evaluate(over_batch if term.over_batch else per_image)) for factor, term in terms]
    if len({value.shape for _, _, value in values}) > 1:
        shapes = ", ".join(f"{type(term).__name__} {list(value.shape)}" for _, term, value in values)
        raise ValueError(f"reduction='none' cannot add terms of different shapes: {shapes}")
    (factor, _, value), *others = values
    value = factor * value
    for factor, _, other in others:
        value = value + factor * other
    return value.to(result_dtype(logits))


def _checked(terms: list[tuple[float, Loss]], logits: Tensor, target: Tensor, mask: Tensor | None) -> Pass:
    loss = terms[0][1]
    _check_agreement(CHANGEABLE, [term for _, term in terms])
    wanted = {name for _, term in terms for name in term.want}
    want = tuple(name for name in FIELDS if name in wanted)
    given = prepare(logits, target, mask, Options(loss.activation, loss.ignore_index, want), loss.impl)
    for _, term in terms:
        term.check_classes(logits)
    return given


def _plan(terms: list[tuple[float, Loss]], logits: Tensor, target: Tensor, mask: Tensor | None) -> "Plan | None":
    """How to compute the loss in three launches; None where that cannot be.

    Launching takes the host longer than the pixels of 2D images take the device. So all that follows from options,
    shapes and types alone, the checks of the input included, is done once and kept.
    """
    first = terms[0][1]
    key = (
        first.activation, first.ignore_index, first.reduction,
        logits.shape, logits.stride(), logits.dtype, logits.device, target.shape, target.stride(), target.dtype,
        target.device, None if mask is None else (mask.shape, mask.stride(), mask.dtype, mask.device),
        *[
            (factor, type(loss), loss.fused_form(), loss.impl, loss.process_group is None, loss.batch, loss.absent,
             loss.include_background, None if loss.weight is None else (len(loss.weight), loss.weight.device))
            for factor, loss in terms
        ],
    )  # fmt: skip
    try:
        return _PLANS[key]
    except KeyError:
        if len(_PLANS) >= MOST_PLANS:
            _PLANS.clear()
        _PLANS[key] = plan = _new_plan(terms, _checked(terms, logits, target, mask))
        return plan


MOST_PLANS = 1024
_PLANS: dict[Any, "Plan | None"] = {}


def _new_plan(terms: list[tuple[float, Loss]], given: Pass) -> "Plan | None":
    from polydice.kernels.fused import Term, layout, plan_loss

    first = terms[0][1]
    described = tuple(
        Term(*form, factor, loss.include_background, loss.absent == "skip")
        for factor, loss in terms
        if _has_own_form(type(loss)) and (form := loss.fused_form())
    )
    # A cross-entropy is the same from each image's sums as from their total.
    batch = {loss.batch for _, loss in terms} - {None}
    if (
        not given.fused
        or first.reduction == "none"
        or first.activation == "none"
        or first.process_group is not None
        or given.logits.numel() == 0
        or len(described) < len(terms)
        or len(batch) > 1
    ):
        return None
    return plan_loss(
        described, layout(given.logits), layout(given.target), None if given.mask is None else layout(given.mask),
        given.labels, first.activation, first.ignore_index, first.reduction == "mean", True in batch,
        any(loss.weight is not None for _, loss in terms),
    )  # fmt: skip


def _stacked_weights(terms: list[tuple[float, Loss]], logits: Tensor) -> Tensor | None:
    for _, loss in terms:
        if loss.weight is not None:
            like = torch.empty(logits.shape[1], dtype=torch.float64, device=logits.device)
            return torch.stack([other.class_weights(like) for _, other in terms])
    return None


@cache
def _has_own_form(kind: type[Loss]) -> bool:
    """Whether `fused_form` speaks of this very loss: not if a subclass has changed what it computes."""
    for base in kind.__mro__:
        if "fused_form" in vars(base):
            return True
        if "per_class" in vars(base) or "evaluate" in vars(base):
            return False
    return False


class _AllReduce(torch.autograd.Function):
    """The sum over the processes. Each process's loss depends on every process's pixels, so the gradients are summed
    too: they are the world size times those of one process, which is what DDP's mean divides by."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: "ProcessGroup") -> Tensor:
        ctx.group = group
        total = tensor.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _AllReduce.apply(grad, ctx.group), None  # type: ignore[no-untyped-call]


class AveragedLoss(Loss):
    """A loss per image and class, `per_class`, averaged: Σ w·L / Σ w over the classes that count."""

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
        if self.weight is None and self.include_background and self.absent == "keep":
            if self.reduction == "none":
                return losses
            return losses.sum() / (max(1, losses.numel()) if self.reduction == "mean" else 1)
        weight = self.class_weights(losses).expand_as(losses)
        if self.absent == "skip":
            present = sums.target if sums.target is not None else sums.target_sq
            weight = torch.where(present < TINY, 0, weight)
        losses = torch.where(weight == 0, 0, weight * losses)
        if self.reduction == "none":
            return losses
        return losses.sum() if self.reduction == "sum" else ratio(losses.sum(), weight.sum())


class RegionLoss(AveragedLoss):
    """An averaged loss with δ, `smooth`: what it says where a class or its prediction is empty."""

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


def _parameters(kind: type) -> dict[str, inspect.Parameter]:
    """The arguments of a loss, its own before those it passes on."""
    found: dict[str, inspect.Parameter] = {}
    own = True
    for base in kind.__mro__:
        if "__init__" not in vars(base) or not issubclass(base, Loss):
            continue
        for name, parameter in list(inspect.signature(base.__init__).parameters.items())[1:]:
            inherited_only = not own and parameter.kind is not inspect.Parameter.KEYWORD_ONLY
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD and not inherited_only:
                found.setdefault(name, parameter)
        own = False
    return found


def _usage(kind: type) -> str:
    return f"its options are {', '.join(_parameters(kind))}"


@cache
def _all_parameters(kind: type) -> frozenset[str]:
    """Those of its bases too, which it may have given itself."""
    kinds = [base for base in kind.__mro__ if issubclass(base, Loss)]
    return frozenset(name for base in kinds for name in _parameters(base))


def number(name: str, value: float, least: float = -math.inf) -> float:
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number: {value!r}")
    if not math.isfinite(value) or value < least:
        raise ValueError(f"{name} must be finite{'' if least == -math.inf else f' and at least {least}'}: {value}")
    return float(value)


def flag(name: str, value: bool) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False: {value!r}")
    return value


def not_negative(name: str, values: float | Sequence[float] | Tensor) -> Tensor:
    """One number or one per class, as a float64 tensor where there are such: exactly what was given."""
    dtype = sum_dtype(values.device) if isinstance(values, Tensor) else torch.float64
    tensor = torch.as_tensor(values, dtype=dtype).detach().clone()
    if tensor.ndim > 1 or tensor.numel() == 0 or not bool((tensor.isfinite() & (tensor >= 0)).all()):
        raise ValueError(f"{name} must be finite and not negative, one per class: {values}")
    return tensor


def check_per_class(name: str, values: Tensor | None, logits: Tensor) -> None:
    """One number per class must have as many as there are classes, and lie where the logits are."""
    if values is None or values.ndim == 0:
        return
    if len(values) != logits.shape[1]:
        raise ValueError(f"{name} has {len(values)} entries, the logits have {logits.shape[1]} classes")
    if values.device != logits.device:
        raise ValueError(
            f"{name} is on {values.device}, the logits are on {logits.device}: move the loss there, "
            f"loss.to({str(logits.device)!r})"
        )


def _class_weights(weight: Sequence[float] | Tensor | None) -> Tensor | None:
    if weight is None:
        return None
    tensor = not_negative("weight", weight)
    if tensor.ndim == 0 or not bool(tensor.sum() > 0):
        raise ValueError(f"weight must hold one number per class, not all 0: {weight}")
    return tensor
