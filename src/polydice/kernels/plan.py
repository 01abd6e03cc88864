"""Decides how a loss is computed: the one place that says "fused or not", and which tensors are taken.

All of it follows from options, shapes and types alone. So it is decided at the first call of a kind and looked up at
the next ones: a GPU needs less time for the pixels of 2D images than the host needs to decide.
"""

import os
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from polydice.kernels import op
from polydice.kernels.eager import flatten
from polydice.kernels.fields import SUMS, Form, Formula, FormulaTerm, Options, PixelSums
from polydice.kernels.inputs import check_annotated, check_inputs, is_lazy
from polydice.kernels.native import NativeLaunches, is_watched, native_launches

if TYPE_CHECKING:
    from polydice.kernels.fused import LossLaunches
    from polydice.kernels.head_fused import HeadLaunches

OLDEST_TRITON = (3, 6)
FUSED_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton's interpreter runs the kernels on a CPU, for tests
MOST_PLANS = 1024
_PLANS: dict[Any, "Plan"] = {}
_PLAIN = frozenset({Tensor, torch.nn.Parameter})
_NO_BUFFER = torch.empty(0)  # somebody has made it a parameter
_COPIES: WeakKeyDictionary[Any, tuple[Tensor, int, Tensor]] = WeakKeyDictionary()  # of a loss: see `_on`


class Term(NamedTuple):
    """All of a loss that its plan depends on, but for its buffers."""

    want: tuple[str, ...]  # the sums it reads
    form: Form | None  # as kernels/tail.py computes it; None if only torch can
    activation: str
    ignore_index: int | None
    reduction: str
    impl: str
    group: int | None  # the id of its process group, if it has one
    batch: bool | None  # None: from each image's sums it is the same as from their total
    background: bool
    skip_absent: bool
    gamma: float | None  # of the focal sum, if it reads that


class LossLike(Protocol):
    """What is read of a loss here."""

    want: tuple[str, ...]
    activation: str
    ignore_index: int | None
    impl: str
    gamma: float
    weight: Tensor | None
    _buffers: dict[str, Tensor | None]

    def term(self) -> Term: ...

    def check_classes(self, logits: Tensor) -> None: ...


Terms = Sequence[tuple[float, LossLike]]


class Plan(NamedTuple):
    """How to compute a call with tensors of certain shapes and types."""

    options: Options
    labels: bool  # whether the target is class labels, else masks
    dtype: torch.dtype  # of the result
    fused: bool  # whether the fused kernels make the sums
    launches: "LossLaunches | NativeLaunches | None" = None  # where they, or compiled C, make the whole loss
    head_launches: "HeadLaunches | None" = None  # or that of features

    def sums(self, logits: Tensor, target: Tensor, mask: Tensor | None, annotated: Tensor | None = None) -> Tensor:
        """The wanted sums, `[len(want), B, C]`, in the type they were accumulated in, `with_annotated`."""
        activation, ignore_index, want, gamma = self.options
        flat = flatten(logits, target, mask, self.labels)
        sums = op.pixel_sums(*flat, activation, ignore_index, list(want), self.fused, gamma, annotated)
        return with_annotated(sums, annotated)

    def unstack(self, stacked: Tensor) -> PixelSums:
        want, rows = self.options.want, stacked.unbind()
        annotated = rows[-1] > 0 if len(rows) > len(want) else None
        return PixelSums(**dict(zip(want, rows, strict=False)), annotated=annotated, labels=self.labels)


def with_annotated(sums: Tensor, annotated: Tensor | None) -> Tensor:
    """Last, where that is given, 1 for each class that is annotated: it is added up like the sums."""
    return sums if annotated is None else torch.cat([sums, annotated.to(sums.dtype).unsqueeze(0)])


def plan_loss(
    terms: Terms, logits: Tensor, target: Tensor, mask: Tensor | None, annotated: Tensor | None = None
) -> Plan:
    """How to compute a weighted sum of losses. Raises where it cannot be computed of such tensors."""
    inputs = logits, target, mask, annotated
    if not are_plain(*inputs):
        return plan_terms(terms, *inputs)
    known = None if annotated is None else (annotated.shape, annotated.dtype, annotated.device)
    return planned(terms, (seen(logits), seen(target), seen(mask), known), lambda: _plan_whole(terms, *inputs))


def planned(terms: Terms, tensors: Any, make: Callable[[], Plan]) -> Plan:
    """The plan for losses and tensors of this kind, which is made once."""
    asked = [(factor, loss.term(), _kind(_weight(loss)), _kind(_added(loss))) for factor, loss in terms]
    key = tensors, *asked
    plan = _PLANS.get(key)
    if plan is None:
        plan = make()
        if len(_PLANS) >= MOST_PLANS:
            _PLANS.clear()
        _PLANS[key] = plan
    return plan


def seen(tensor: Tensor | None) -> tuple[Any, ...] | None:
    """All of a tensor that its plan depends on."""
    return None if tensor is None else (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)


def _plan_whole(terms: Terms, logits: Tensor, target: Tensor, mask: Tensor | None, annotated: Tensor | None) -> Plan:
    plan = plan_terms(terms, logits, target, mask, annotated)
    return plan._replace(launches=_launches(terms, plan, logits, target, mask, annotated))


def plan_terms(
    terms: Terms, logits: Tensor, target: Tensor, mask: Tensor | None, annotated: Tensor | None = None
) -> Plan:
    """How to make the sums that these losses read. Raises where they cannot be made of such tensors."""
    losses = [loss for _, loss in terms]
    check_agreement(("impl", "process_group"), losses)
    wanted = {name for loss in losses for name in loss.want}
    want = tuple(name for name in SUMS if name in wanted)
    first, (gamma, *_) = losses[0], [*focal_gammas(losses), 0.0]
    options = Options(first.activation, first.ignore_index, want, gamma)
    return plan_sums(logits, target, mask, options, first.impl, annotated)


def plan_sums(
    logits: Tensor, target: Tensor, mask: Tensor | None, options: Options, impl: str, annotated: Tensor | None = None
) -> Plan:
    """How to make the sums alone. Raises where they cannot be made of such tensors."""
    labels = check_inputs(logits, target, mask, options)
    if annotated is not None:
        check_annotated(annotated, logits)
    obstacle = fused_obstacle(logits)
    if impl == "auto" and logits.is_cuda and not torch.compiler.is_compiling():
        warn_without_triton()
    if impl == "fused" and obstacle:
        raise ValueError(f"impl='fused' is not possible here: {obstacle}")
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    return Plan(options, labels, dtype, impl != "eager" and not obstacle)


def _triton_obstacle() -> str:
    try:
        version = metadata.version("triton")
    except metadata.PackageNotFoundError:
        return "Triton is not installed"
    if tuple(map(int, version.split(".")[:2])) < OLDEST_TRITON:
        return f"Triton {version} is older than {'.'.join(map(str, OLDEST_TRITON))}"
    return ""


_TRITON_OBSTACLE = _triton_obstacle()


def _has_kernels(tensor: Tensor) -> bool:
    return tensor.is_cuda or (INTERPRETED and tensor.device.type == "cpu")


def fused_obstacle(logits: Tensor) -> str:
    """Why the fused kernels cannot run on these logits; nothing if they can."""
    if _TRITON_OBSTACLE:
        return _TRITON_OBSTACLE
    if not _has_kernels(logits):
        return f"the logits are on {logits.device}, not on a CUDA device"
    return "" if logits.dtype in FUSED_DTYPES else f"it computes in float32, the logits are {logits.dtype}"


@cache
def warn_without_triton() -> None:
    """Says once why CUDA tensors take the plain pass: it is right, and several times slower."""
    if _TRITON_OBSTACLE:
        warnings.warn(
            f"polydice's fused kernels are not used: {_TRITON_OBSTACLE}. The losses take the plain pass, with the same "
            "result; impl='eager' does so without this warning",
            stacklevel=2,
        )


def check_agreement(options: Sequence[str], losses: Sequence[object]) -> None:
    for option in options:
        values = [getattr(loss, option) for loss in losses]
        if any(value is not values[0] and value != values[0] for value in values):
            raise ValueError(f"the terms of a sum must agree in {option}: {values}")


def focal_gammas(losses: Sequence[LossLike]) -> list[float]:
    """The γ of the focal sum, if any loss reads it. A pass makes one such sum."""
    found = sorted({loss.gamma for loss in losses if "focal" in loss.want})
    if len(found) > 1:
        raise ValueError(f"the focal losses of a sum must agree in gamma: {found}")
    return found


def stacked_weights(terms: Terms) -> Tensor | None:
    """What the launches take as weights, `[terms, C]` in float64, ones for a loss without; None if no loss has any."""
    weights = [_weight(loss) for _, loss in terms]
    given = [weight for weight in weights if weight is not None]
    if len(weights) == 1 or not given:
        return given[0].to(torch.float64).contiguous() if given else None
    each = [torch.ones_like(given[0]) if weight is None else weight for weight in weights]
    return torch.stack([weight.to(torch.float64) for weight in each])


def added_numbers(terms: Terms, device: torch.device) -> Tensor | None:
    """What is added to coefficients of the terms, those that have something to add: `[terms, C]` in float64, or
    `[terms]` where each is one number."""
    found = [_on(device, loss, added) for _, loss in terms if (added := _added(loss)) is not None]
    if len(found) < 2:
        return found[0] if found else None
    return torch.stack(torch.broadcast_tensors(*found))


def _on(device: torch.device, loss: LossLike, added: Tensor) -> Tensor:
    """What a loss adds, on this device. A number that is elsewhere, since nobody has moved the loss, is copied there
    once, and again when it has changed: every copy would wait for the device."""
    if added.device == device:
        fits = added.dtype is torch.float64 and added.is_contiguous()
        return added if fits else added.to(torch.float64).contiguous()
    origin, version, copy = _COPIES.get(loss, (None, 0, _NO_BUFFER))
    now = 0 if added.is_inference() else added._version
    if origin is not added or version != now or copy.device != device:
        copy = added.to(device, torch.float64)
        _COPIES[loss] = added, now, copy
    return copy


def _added(loss: LossLike) -> Tensor | None:
    form = loss.term().form
    return None if form is None or not form.added else _buffer(loss, form.added)


def _weight(loss: LossLike) -> Tensor | None:
    return _buffer(loss, "weight")


def _buffer(loss: LossLike, name: str) -> Tensor | None:
    """An attribute. nn.Module's own lookup of a buffer takes longer than that of a plan."""
    found = loss._buffers.get(name, _NO_BUFFER)
    return getattr(loss, name) if found is _NO_BUFFER else found


def _kind(numbers: Tensor | None) -> tuple[torch.Size, torch.device, bool] | None:
    return None if numbers is None else (numbers.shape, numbers.device, numbers.requires_grad)


def are_plain(*tensors: Any) -> bool:
    """Whether these are tensors with memory of their own: their plan can be kept, and kernels can take their pointers.

    Not so those of a tracer, a subclass or a transform of `torch.func`, whose memory is elsewhere or nowhere, nor those
    that are lazy. Nor any while somebody looks at what is done with them.
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active() or is_watched():
        return False
    return all(tensor is None or (type(tensor) in _PLAIN and not is_lazy(tensor)) for tensor in tensors)


def _launches(
    terms: Terms, plan: Plan, logits: Tensor, target: Tensor, mask: Tensor | None, annotated: Tensor | None
) -> "LossLaunches | NativeLaunches | None":
    """The launches that make the whole loss; None where torch must make it of the sums. `loss_launches` refuses tensors
    that the kernels cannot address as they lie, and more classes than their last step takes; `native_launches` all but
    what is usual."""
    formula = formula_of(terms, logits)
    if formula is None:
        return None
    if not plan.fused:
        if any(loss.impl == "eager" for _, loss in terms):
            return None
        return native_launches(formula, plan.options, plan.labels, logits, target, mask, annotated)
    from polydice.kernels.fused import loss_launches, spec

    each = spec(logits), spec(target), mask if mask is None else spec(mask)
    return loss_launches(formula, distinct(plan.options, plan.labels), plan.labels, *each, annotated is not None)


def formula_of(terms: Terms, logits: Tensor) -> Formula | None:
    """What is made of the sums beside the pass over the pixels; None where torch must make it."""
    each = [loss.term() for _, loss in terms]
    weights = [_weight(loss) for _, loss in terms]
    added = [_added(loss) for _, loss in terms]
    forms = [term.form for term in each if term.form is not None]
    batch = {term.batch for term in each} - {None}
    first = each[0]
    if (
        len(forms) < len(each)
        or len(batch) > 1
        or first.reduction == "none"
        or first.activation == "none"
        or first.group is not None
        or logits.numel() == 0
        or any(numbers is not None and numbers.requires_grad for numbers in weights + added)
    ):
        return None
    for _, loss in terms:
        loss.check_classes(logits)
    return Formula(
        tuple(
            FormulaTerm(form, factor, term.background, term.skip_absent)
            for (factor, _), term, form in zip(terms, each, forms, strict=True)
        ),
        mean=first.reduction == "mean",
        over_batch=True in batch,
        weighted=any(weight is not None for weight in weights),
        each_added=any(numbers is not None and numbers.ndim > 0 for numbers in added),
    )


def distinct(options: Options, labels: bool) -> Options:
    """Without those of the wanted sums that labels make redundant: y² is y; and under a softmax each pixel that counts
    has one class, so Σ y of all classes is the number of pixels."""
    if not labels:
        return options
    found = {"target" if name == "target_sq" else name for name in options.want}
    if options.activation == "softmax" and "target" in found:
        found -= {"pixels"}
    return options._replace(want=tuple(name for name in SUMS if name in found))
