"""Where to start is said once, in recommended.py: commands, recipes, nnU-Net's trainers and docs say the same."""

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

from polydice.base import Loss
from polydice.cli import main
from polydice.integrations.nnunet_names import EXPLAINED, read
from polydice.recommended import START
from polydice.studies.recipe import read as read_recipe
from polydice.training.config import Settings
from polydice.training.expression import parse_loss
from tests.data import write

ROOT = Path(__file__).parents[1]
SGD, ADAMW = (f"{START.rate[name]:g}" for name in ("sgd", "adamw"))


def listed(optimizer: str) -> str:
    *most, last = (f"{rate:.5f}".rstrip("0") for rate in START.tried[optimizer])
    return f"{', '.join(most)} and {last}"


SAID = {
    "docs/which-loss.md": [
        f"Start with `{START.loss}`",
        f"begin with {SGD} for SGD, {ADAMW} for AdamW",
        f"`{START.trainer}`",
    ],
    "docs/protocol.md": [f"| `rate`, if not given | {SGD} | {ADAMW} |"],
    "README.md": [f"Start with `{START.loss}`", f"loss = {START.loss}"],
    "docs/getting-started.md": [f"loss = {START.loss}", f"lr={SGD}"],
    "docs/index.md": [f"loss = {START.loss}"],
    "docs/studies.md": [f"{listed('sgd')} for SGD, {listed('adamw')} for AdamW"],
    "docs/integrations.md": [f"To start with, take `{START.trainer}`"],
    "src/polydice/training/config.py": [f"If not given {SGD} for sgd, {ADAMW} for adamw."],
}
NUMBERS = ("order", "epsilon", "follow", "scale", "alpha", "beta", "gamma", "kappa")


@pytest.mark.parametrize("page", SAID)
def test_the_docs_say_it(page: str) -> None:
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert [sentence for sentence in SAID[page] if sentence not in text] == []


def test_a_training_that_is_told_nothing_starts_there() -> None:
    settings = Settings(Path("data"), Path("out"))
    assert (settings.loss, settings.optimizer) == (START.loss, START.optimizer)
    for name, rate in START.rate.items():
        assert Settings(Path("data"), Path("out"), optimizer=name).rate == rate


@pytest.mark.parametrize("head", ["plain", "fused"])
def test_a_training_that_is_told_nothing_learns_regions_too(head: str, tmp_path: Path) -> None:
    short = "--epochs 60 --folds 3 --batch 2 --size 24 --width 4 --depth 2 --device cpu --no-surfaces"
    places = ["--data", str(write.regions(tmp_path / "set", 2)), "--cache", str(tmp_path / "cache")]
    assert main(["train", *places, "--out", str(tmp_path / "run"), "--head", head, *short.split()]) == 0
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["settings"]["loss"] == START.loss
    assert min(result["test"]["dice_case_per_class"]) > 0.85


def test_compare_has_the_loss_and_tries_rates_around_its_own() -> None:
    compare = read_recipe("compare")
    assert repr(parse_loss(START.loss)) in {
        repr(parse_loss(variants[0].expression)) for variants in compare.losses.values()
    }
    assert compare.tune.lists["rate"] == START.tried[START.optimizer]
    assert START.rate.keys() == START.tried.keys()
    for name, rates in START.tried.items():
        assert rates[0] < START.rate[name] < rates[-1]
        assert [later / rate for rate, later in pairwise(rates)] == pytest.approx([4] * (len(rates) - 1))


def described(loss: Loss) -> tuple[str, list[str]]:
    """Its kind and its numbers, without what nnU-Net decides for itself: squares, δ, the background, the batch."""
    return type(loss).__name__, [f"{name}={getattr(loss, name)}" for name in NUMBERS if hasattr(loss, name)]


def test_the_trainer_has_the_loss() -> None:
    named = read(START.trainer)
    assert named is not None
    own = [named.dice(), *([named.plus()] if named.plus else [])]
    assert [described(each) for each in own] == [described(each) for _, each in parse_loss(START.loss).terms]
    assert re.search(rf"To start with, take\s{START.trainer}", EXPLAINED)
