"""Small networks on real images learn what they are shown, within minutes on a CPU; an untrained one has not."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from polydice.training.config import Settings
from polydice.training.loop import train
from tests.data.conftest import RealSet

COMMON = {"folds": 3, "surfaces": False, "loss": "DiceLoss(batch=True) + CrossEntropyLoss()"}


@pytest.fixture(scope="module")
def polyps(tmp_path_factory: pytest.TempPathFactory, real_set: RealSet) -> Settings:
    """180 images of Kvasir-SEG: 60 to train on, 60 to validate, 60 held out."""
    source, folder = real_set("kvasir-seg"), tmp_path_factory.mktemp("polyps")
    for kind in ("images", "masks"):
        (folder / "data" / kind).mkdir(parents=True)
        for file in sorted((source / kind).iterdir())[:180]:
            (folder / "data" / kind / file.name).symlink_to(file)
    return Settings(
        data=folder / "data", out=folder / "run", cache=folder / "cache", size=96, width=8, batch=4, epochs=80,
        rate=0.05, rotation=20.0, validate_every=10, **COMMON,
    )  # fmt: skip


@pytest.fixture(scope="module")
def hippocampi(tmp_path_factory: pytest.TempPathFactory, real_set: RealSet) -> Settings:
    """120 volumes of the Decathlon's hippocampus set: 40 to train on, 40 to validate, 40 held out."""
    source, folder = real_set("Task04_Hippocampus"), tmp_path_factory.mktemp("hippocampi")
    listed = json.loads((source / "dataset.json").read_text())
    listed["training"] = listed["training"][:120]
    for kind in ("imagesTr", "labelsTr"):
        (folder / "data" / kind).mkdir(parents=True)
    for pair in listed["training"]:
        for file in pair.values():
            (folder / "data" / file).symlink_to((source / file).resolve())
    (folder / "data" / "dataset.json").write_text(json.dumps(listed))
    return Settings(
        data=folder / "data", out=folder / "run", cache=folder / "cache", model="unet3d", width=8, depth=3, batch=4,
        epochs=20, patch=(40, 56, 40), rate=0.1, validate_every=20, **COMMON,
    )  # fmt: skip


def foreground_dice(settings: Settings) -> float:
    """Mean of the foreground classes' Dice over all pixels of the cases held out."""
    test = train(settings)["test"]
    assert test["cases"] >= 40
    classes = test["dice_global_per_class"][1:]
    return float(sum(classes) / len(classes))


def untrained(settings: Settings) -> Settings:
    return replace(settings, out=Path(f"{settings.out}-untrained"), epochs=1, rate=1e-12, validate_every=1)


def test_a_small_unet_learns_polyps(polyps: Settings) -> None:
    assert foreground_dice(untrained(polyps)) < 0.5 < foreground_dice(polyps)


def test_a_small_3d_unet_learns_hippocampi(hippocampi: Settings) -> None:
    assert foreground_dice(untrained(hippocampi)) < 0.6 < foreground_dice(hippocampi)
