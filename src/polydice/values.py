"""Whether a value is what its annotation says: of its type, finite if it is a number, and within its range.

This is the one rule for what people write, on a command line, in a recipe or in Python, and for what is read back from
files that may be damaged.
"""

from functools import cache
from pathlib import Path
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

LARGEST = 2**64 - 1  # whole number, which torch takes for a seed
FINITE = (2 - 2**-23) * 2.0**127  # the largest float32: what is larger is infinite for a network
CALLED = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", Path: "a path"}
CALLED |= {list: "a list", tuple: "a list", dict: "a table"}


class Range(NamedTuple):
    """What a number may be: `Annotated[int, Range(1)]`. Its ends are not, if it is `open`."""

    low: float
    high: float | None = None
    open: bool = False
    unit: str = ""

    def __str__(self) -> str:
        if self.high is not None:
            return f"lie between {self.low} and {self.high}{self.unit}"
        if self.low == 0:
            return "be positive" if self.open else "not be negative"
        return f"be at least {self.low}"

    def problem(self, value: float) -> str:
        """What the number must do to lie within; nothing if it does."""
        if not (value > self.low if self.open else value >= self.low):  # so is NaN
            return str(self) if self.open else str(self._replace(high=None))
        if self.high is not None and not (value < self.high if self.open else value <= self.high):
            return str(self) if self.open else f"be at most {self.high}{self.unit}"
        return ""


Count = Annotated[int, Range(1)]
Seed = Annotated[int, Range(0)]
Positive = Annotated[float, Range(0, open=True)]
NotNegative = Annotated[float, Range(0)]


def check(name: str, value: Any, hint: Any) -> None:
    """Raises a `ValueError` that names the value, says what is allowed and shows what was given.

    >>> check("epochs", "6", Count)
    Traceback (most recent call last):
    ValueError: epochs must be a whole number and must be at least 1: '6'
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        ranges = [each for each in arguments[1:] if isinstance(each, Range)]
        if ranges:
            _check_number(name, value, arguments[0], ranges)
        else:
            check(name, value, arguments[0])
    elif origin in (Required, NotRequired):
        check(name, value, arguments[0])
    elif origin in (Union, UnionType):
        _check_any(name, value, arguments)
    elif origin is Literal:
        if value not in [each for each in arguments if type(each) is type(value)]:
            raise ValueError(f"{name} must be one of {', '.join(map(str, arguments))}: {_short(str(value))}")
    elif origin in (tuple, list):
        _check_items(name, value, origin, arguments)
    elif origin is dict:
        _check_is(name, value, dict)
        for key, item in value.items():
            check(f"{name}.{key}", item, arguments[1])
    elif is_typeddict(hint):
        _check_is(name, value, dict)
        for key in sorted(hint.__required_keys__ - value.keys()):
            raise ValueError(f"{name}.{key} is missing")
        for key, each in _hints(hint).items():
            if key in value:
                check(f"{name}.{key}", value[key], each)
    elif hint in (int, float):
        _check_number(name, value, hint, [])
    elif hint is not Any:
        _check_is(name, value, hint)


@cache
def _hints(table: type) -> dict[str, Any]:
    return get_type_hints(table, include_extras=True)


def _check_is(name: str, value: Any, kind: Any, more: str = "") -> None:
    """A whole number is a number too, a truth value is none, and a path may be given as text."""
    kinds = {float: (int, float), Path: (str, Path)}.get(kind, kind)
    if not isinstance(value, kinds) or (isinstance(value, bool) and kind is not bool):
        called = CALLED.get(kind) or getattr(kind, "__name__", str(kind))
        raise ValueError(f"{name} must be {called}{more}: {_short(repr(value))}")


def _check_number(name: str, value: Any, kind: Any, ranges: list[Range]) -> None:
    _check_is(name, value, kind, "".join(f" and must {each}" for each in ranges))
    problems = [problem for each in ranges if (problem := each.problem(value))]
    if kind is int and abs(value) > LARGEST:
        problems.append(f"be at most {LARGEST}")
    if kind is float and not abs(value) <= FINITE:
        problems.append("be finite")
    for problem in problems:
        raise ValueError(f"{name} must {problem}: {_short(str(value))}")


def _check_any(name: str, value: Any, hints: tuple[Any, ...]) -> None:
    """What is wrong is said of the first: the others are mostly nothing at all."""
    problems = []
    for hint in hints:
        try:
            check(name, value, hint)
            return
        except ValueError as problem:
            problems.append(problem)
    raise problems[0]


def _check_items(name: str, value: Any, kind: type, hints: tuple[Any, ...]) -> None:
    _check_is(name, value, kind)
    if kind is list or hints[-1] is ...:
        hints = (hints[0],) * len(value)
    if len(value) != len(hints):
        raise ValueError(f"{name} must be {len(hints)} values: {_short(repr(value))}")
    for place, (item, hint) in enumerate(zip(value, hints, strict=True)):
        check(f"{name}[{place}]", item, hint)


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def as_tuple(value: Any) -> Any:
    """Lists as tuples, which can be compared and kept as they are, in tables too; JSON and TOML have lists alone.

    >>> as_tuple({"patch": [32, 32, 32]})
    {'patch': (32, 32, 32)}
    """
    if isinstance(value, dict):
        return {name: as_tuple(each) for name, each in value.items()}
    return tuple(map(as_tuple, value)) if isinstance(value, list) else value
