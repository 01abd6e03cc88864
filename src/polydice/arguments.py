"""The arguments of a loss: their checks, each with an error that shows what was given, and their names."""

import inspect
import math
from collections.abc import Iterable, Sequence
from functools import cache
from numbers import Real

import torch
from torch import Tensor, nn

from polydice.kernels.eager import sum_dtype


def check_option(name: str, value: object, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}={value!r} is none of {', '.join(map(repr, allowed))}")


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


def numbers(name: str, values: float | Sequence[float] | Tensor) -> Tensor:
    """One number or one per class, as a float64 tensor where there are such: exactly what was given."""
    if isinstance(values, str | Real):
        number(name, values)  # type: ignore[arg-type]
    dtype = sum_dtype(values.device) if isinstance(values, Tensor) else torch.float64
    try:
        tensor = torch.as_tensor(values, dtype=dtype).detach().clone()
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be one number or one per class: {values!r}") from None
    if tensor.ndim > 1 or tensor.numel() == 0 or not bool(tensor.isfinite().all()):
        raise ValueError(f"{name} must be finite, one number or one per class: {values}")
    return tensor


def not_negative(name: str, values: float | Sequence[float] | Tensor) -> Tensor:
    try:
        tensor = numbers(name, values)
    except ValueError:
        tensor = None
    if tensor is None or not bool((tensor >= 0).all()):
        raise ValueError(f"{name} must be finite and not negative, one per class: {values}")
    return tensor


def shares(name: str, values: Sequence[float] | Tensor) -> Tensor:
    """One number in [0, 1] per class."""
    tensor = not_negative(name, values)
    if tensor.ndim != 1 or tensor.max() > 1:
        raise ValueError(f"{name} must be one number in [0, 1] per class: {tensor.tolist()}")
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


def class_weights(weight: Sequence[float] | Tensor | None) -> Tensor | None:
    if weight is None:
        return None
    tensor = not_negative("weight", weight)
    if tensor.ndim == 0 or not bool(tensor.sum() > 0):
        raise ValueError(f"weight must hold one number per class, not all 0: {weight}")
    return tensor


def check_arguments(kind: type, given: Sequence[object], named: Iterable[str]) -> None:
    """Refuses what a loss does not take, and misses what it must have, and names what it does take."""
    problem = ""
    try:
        inspect.signature(kind.__init__).bind(None, *given, **dict.fromkeys(named))  # type: ignore[misc]
    except TypeError as error:
        problem = str(error)
    else:  # what `**options` takes in, a base must know
        for name in named:
            if name not in all_parameters(kind):
                problem = f"got an unexpected keyword argument {name!r}"
    if problem:
        raise TypeError(f"{kind.__name__}: {problem}; its options are {', '.join(parameters(kind))}")


@cache
def parameters(kind: type) -> dict[str, inspect.Parameter]:
    """The arguments of a loss: its own, then the keywords of its bases that it passes on."""
    found: dict[str, inspect.Parameter] = {}
    own = True
    for base in _with_arguments(kind):
        for name, parameter in _parameters_of(base).items():
            if own or parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                found.setdefault(name, parameter)
        own = False
        if inspect.getfullargspec(base.__init__).varkw is None:  # type: ignore[misc]
            break
    return found


@cache
def all_parameters(kind: type) -> frozenset[str]:
    """Also those that its bases have and it gives them itself."""
    return frozenset(name for base in _with_arguments(kind) for name in _parameters_of(base))


def _with_arguments(kind: type) -> list[type]:
    bases = kind.__mro__[: kind.__mro__.index(nn.Module)]
    return [base for base in bases if "__init__" in vars(base)]


def _parameters_of(base: type) -> dict[str, inspect.Parameter]:
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    _, *found = inspect.signature(base.__init__).parameters.values()  # type: ignore[misc]
    return {parameter.name: parameter for parameter in found if parameter.kind not in variable}
