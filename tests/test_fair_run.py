"""results/fair/run.py: the plan's rule for a best rate at an end of the list."""

import runpy
import sys
from pathlib import Path

import pytest

FAIR = Path(__file__).parents[1] / "results" / "fair"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> dict:
    monkeypatch.setattr(sys, "path", [str(FAIR), *sys.path])  # beside it lies check.py, which it uses
    return runpy.run_path(str(FAIR / "run.py"))


def choices(*rates: str) -> list[dict]:
    return [{"value": f"rate={rate}"} for rate in rates]


@pytest.mark.parametrize(
    ("chosen", "sides", "grown"),
    [
        (("0.01", "0.04"), set(), "0.0025, 0.01, 0.04, 0.16"),
        (("0.01", "0.16"), {"high"}, "0.0025, 0.01, 0.04, 0.16, 0.64"),
        (("0.0025", "0.16"), {"low", "high"}, "0.000625, 0.0025, 0.01, 0.04, 0.16, 0.64"),
    ],
)
def test_a_list_grows_where_a_best_rate_is_at_its_end(
    run: dict, chosen: tuple[str, ...], sides: set[str], grown: str
) -> None:
    recipe = (FAIR / "acdc.toml").read_text(encoding="utf-8")
    recipe = run["RATES"].sub("rate = [0.0025, 0.01, 0.04, 0.16]", recipe)
    rates = run["rates_in"](recipe)
    assert rates == ["0.0025", "0.01", "0.04", "0.16"]
    assert run["ends"](rates, choices(*chosen)) == sides
    assert run["longer"](recipe, sides) == recipe.replace(", ".join(rates), grown)


def test_a_list_grows_once_on_either_side(run: dict) -> None:
    planned = run["PLANNED"]
    for name, ends in planned.items():
        rates = run["rates_in"]((FAIR / f"{name}.toml").read_text(encoding="utf-8"))
        assert run["grown"](rates, ends) == ({"low", "high"} if name == "acdc" else {"high"})
    assert run["grown"](["0.000625", "0.0025", "0.16"], planned["kvasir"]) == {"low"}


def test_small_rates_are_found_by_their_value(run: dict) -> None:
    """A choice says 2e-05 where the recipe says 0.00002."""
    assert run["ends"](["0.00002", "0.00008"], choices("2e-05")) == {"low"}


def test_a_recipe_without_choices_has_no_rates(run: dict) -> None:
    assert run["rates_in"]((FAIR / "graft.toml").read_text(encoding="utf-8")) == []
