from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest

from polydice.values import LARGEST, Count, NotNegative, Positive, Range, Seed, check


class Case(TypedDict):
    id: str
    score: NotRequired[float | None]


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (1, Count),
        (LARGEST, Seed),
        (3, Positive),  # a whole number is a number
        (0, NotNegative),
        (None, Count | None),
        (1.0, Annotated[float, Range(0, 1)]),
        ("a", Path),
        (Path("a"), Path | None),
        (2, Literal[2, 3]),
        ("x", Count | str),
        ((1, 2.5), tuple[Count, Positive]),
        ((), tuple[Count, ...]),
        ([{"id": "a", "score": None}, {"id": "b", "more": 1}], list[Case]),
        ({"a": [1]}, dict[str, list[int]]),
        (float("nan"), Any),
    ],
)
def test_what_is_allowed(value: Any, hint: Any) -> None:
    check("it", value, hint)


@pytest.mark.parametrize(
    ("value", "hint", "problem"),
    [
        (0, Count, "it must be at least 1: 0"),
        (True, Count, "it must be a whole number and must be at least 1: True"),
        (LARGEST + 1, Seed, f"it must be at most {LARGEST}: {LARGEST + 1}"),
        (-LARGEST - 1, int, f"it must be at most {LARGEST}: {-LARGEST - 1}"),
        (0.0, Positive, "it must be positive: 0.0"),
        (-0.5, NotNegative, "it must not be negative: -0.5"),
        (float("nan"), float, "it must be finite: nan"),
        (float("-inf"), float | None, "it must be finite: -inf"),
        (10**400, float, f"it must be finite: 1{'0' * 56}..."),
        (100.0, Annotated[float, Range(0, 100, True, " percent")], "it must lie between 0 and 100 percent: 100.0"),
        ("1", Annotated[float, Range(0, 1)], "it must be a number and must lie between 0 and 1: '1'"),
        (2, Annotated[float, Range(0, open=True), Range(0, 1)], "it must be at most 1: 2"),
        (0, Annotated[float, Range(0, open=True), Range(0, 1)], "it must be positive: 0"),
        (True, Literal[1, 2], "it must be one of 1, 2: True"),
        (None, Count, "it must be a whole number and must be at least 1: None"),
        (1, str, "it must be a text: 1"),
        (3, Path, "it must be a path: 3"),
        ([1, 2], tuple[int, int], "it must be a list: [1, 2]"),
        ((1,), tuple[int, int], "it must be 2 values: (1,)"),
        ([[1], ["1"]], list[list[int]], "it[1][0] must be a whole number: '1'"),
        ([], dict[str, int], "it must be a table: []"),
        ({"a": 0.5}, dict[str, int], "it.a must be a whole number: 0.5"),
        ({"score": 1.0}, Case, "it.id is missing"),
        ([{"id": "a", "score": "b"}], list[Case], "it[0].score must be a number: 'b'"),
    ],
)
def test_what_is_not_allowed_is_named_with_what_is(value: Any, hint: Any, problem: str) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011, the whole message is compared
        check("it", value, hint)
    assert str(raised.value) == problem
