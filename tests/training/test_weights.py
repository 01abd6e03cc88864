import json
from pathlib import Path
from typing import Any

import pytest

from polydice.training.checkpoint import CheckpointError
from polydice.training.loop import train
from polydice.training.predict import load
from polydice.training.scoring import validation
from polydice.training.weights import counted, counting_file
from tests.training.runs import small, weights

RESULT: dict[str, Any] = {
    "settings": {"weights": "last", "score": "dice_foreground"},
    "best_epoch": 3, "validation_dice_foreground": 0.9, "test": {"dice_foreground": 0.6}, "cases": ["best"],
    "last": {"best_epoch": 5, "validation_dice_foreground": 0.8, "test": {"dice_foreground": 0.7}, "cases": ["last"]},
    "seconds": 1.0,
}  # fmt: skip


def test_a_result_is_of_the_weights_that_count() -> None:
    last = counted(RESULT)
    assert (last["best_epoch"], last["test"], last["cases"], last["seconds"]) == (
        5,
        RESULT["last"]["test"],
        ["last"],
        1,
    )
    assert counted(last) == last
    best = counted(RESULT | {"settings": {"weights": "best"}})
    assert (best["best_epoch"], best["test"], best["cases"]) == (3, RESULT["test"], ["best"])
    assert "last" not in best
    assert counted(RESULT, "best")["cases"] == ["best"]
    assert counted(RESULT, "last") == last


def test_a_result_of_before_means_the_best() -> None:
    before = RESULT | {"settings": {"score": "dice_foreground"}}
    assert counted(before)["cases"] == ["best"]
    assert counted({name: value for name, value in before.items() if name != "settings"})["cases"] == ["best"]


def test_a_choice_on_validation_is_made_by_the_weights_that_count() -> None:
    assert validation(counted(RESULT)) == 0.8
    assert validation(counted(RESULT | {"settings": {"weights": "best", "score": "dice_foreground"}})) == 0.9
    assert [validation(counted(RESULT, kind)) for kind in ("last", "best")] == [0.8, 0.9]


def test_the_network_of_a_run_is_the_one_that_counts(images: Path, tmp_path: Path) -> None:
    """A run of three epochs whose validation was best after the first, if it was: each kind is what its file holds."""
    run = tmp_path / "run"
    train(small(images, run, epochs=3, rate=0.3))
    said = json.loads((run / "settings.json").read_text())
    assert said["weights"] == "last"
    (run / "best.safetensors").write_bytes(_other_weights(images, tmp_path))  # the two surely differ
    assert not weights(run, "best").equal(weights(run, "last"))
    for kind, settings in (("last", said), ("best", said | {"weights": "best"}), ("best", without(said))):
        (run / "settings.json").write_text(json.dumps(settings))
        assert counting_file(run) == run / f"{kind}.safetensors"
        state = load(run, device="cpu").network.module.state_dict()
        found = [state[name].flatten().double() for name in sorted(state)]
        assert [value for each in found for value in each.tolist()] == weights(run, kind).tolist()
    (run / "settings.json").unlink()  # the weights alone were brought along
    assert counting_file(run) == run / "best.safetensors"


def without(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name != "weights"}


def _other_weights(images: Path, tmp_path: Path) -> bytes:
    train(small(images, tmp_path / "other", epochs=1, seed=1))
    return (tmp_path / "other" / "last.safetensors").read_bytes()


@pytest.mark.parametrize("text", ["{", "[]", '{"weights": "first"}'])
def test_settings_that_cannot_be_read_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "settings.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"settings\.json is damaged \(.*\): name the file of weights itself"):
        counting_file(tmp_path)
