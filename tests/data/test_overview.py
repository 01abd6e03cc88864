from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from polydice.data.check import check
from polydice.data.overview import COLOURS, overview
from polydice.data.readers import open_dataset
from tests.data import write
from tests.data.conftest import RealSet

NUMBERS = np.random.default_rng(0)


def colours(path: Path) -> set[str]:
    """Those that cover a visible part of the picture."""
    pixels, counts = np.unique(np.asarray(Image.open(path).convert("RGB")).reshape(-1, 3), axis=0, return_counts=True)
    return {"#{:02X}{:02X}{:02X}".format(*pixel) for pixel, count in zip(pixels, counts, strict=True) if count > 100}


@pytest.mark.parametrize("name", ["cvc-clinicdb", "kvasir-seg", "acdc", "Task04_Hippocampus"])
def test_every_class_of_a_real_set_is_drawn(name: str, real_set: RealSet, tmp_path: Path) -> None:
    dataset = open_dataset(real_set(name))
    some = type(dataset)(**{**vars(dataset), "cases": dataset.cases[::40]})
    overview(some, check(some).facts, tmp_path / "overview.png")
    assert set(COLOURS[: len(dataset.classes) - 1]) <= colours(tmp_path / "overview.png")


def test_the_slice_with_most_classes_is_shown(tmp_path: Path) -> None:
    """Two classes are in one slice only, a large third one is in another."""
    labels = np.zeros((5, 40, 40), np.uint8)
    labels[1] = 3
    labels[3, 5:15, 5:15], labels[3, 20:35, 20:35] = 1, 2
    write.volume(tmp_path / "images" / "a.nii.gz", NUMBERS.normal(size=labels.shape), spacing=(5, 2, 1))
    write.volume(tmp_path / "labels" / "a.nii.gz", labels, spacing=(5, 2, 1))
    dataset = open_dataset(tmp_path)
    overview(dataset, check(dataset).facts, tmp_path / "overview.png")
    assert {COLOURS[0], COLOURS[1]} <= colours(tmp_path / "overview.png")


def test_a_mask_without_background_and_a_set_without_cases(tmp_path: Path) -> None:
    write.picture(tmp_path / "images" / ("long" * 30 + ".png"), NUMBERS.integers(0, 256, (20, 30), dtype=np.uint8))
    write.picture(tmp_path / "masks" / ("long" * 30 + ".png"), np.ones((20, 30), np.uint8))
    dataset = open_dataset(tmp_path)
    overview(dataset, check(dataset).facts, tmp_path / "overview.png")
    assert COLOURS[0] in colours(tmp_path / "overview.png"), "its contour is the edge"
    overview(dataset, [], tmp_path / "empty.png")
    assert (tmp_path / "empty.png").exists()
