from pathlib import Path

import numpy as np
import pytest

from polydice.data.cases import DataError
from polydice.data.readers import open_dataset
from tests.data import write

NUMBERS = np.random.default_rng(0)
PHOTO = NUMBERS.integers(0, 256, (6, 8, 3), dtype=np.uint8)


def labels(*values: int) -> np.ndarray:
    return np.resize(np.array(values, np.uint8), (6, 8))


def folder_of(folder: Path, masks: dict[str, np.ndarray], images: str = "images", where: str = "masks") -> Path:
    for name, mask in masks.items():
        write.picture(folder / images / f"{name}.png", PHOTO)
        write.picture(folder / where / f"{name}.png", mask)
    return folder


@pytest.mark.parametrize("white", [255, 1])
def test_two_classes_whatever_white_is(white: int, tmp_path: Path) -> None:
    dataset = open_dataset(folder_of(tmp_path / "mine", {"a": labels(0, white), "b": labels(0), "c": labels(white, 0)}))
    assert (dataset.name, dataset.intensity, len(dataset.cases)) == ("mine", "colour", 3)
    assert len(dataset.classes) == 2
    for case in dataset.cases:
        assert dataset.read(case).labels.max() <= 1
    assert [case.group for case in dataset.cases] == ["a", "b", "c"], "each its own"


@pytest.mark.parametrize(("images", "masks"), [("Images", "Labels"), ("imgs", "GT"), ("image", "mask")])
def test_other_names_of_the_folders(images: str, masks: str, tmp_path: Path) -> None:
    dataset = open_dataset(folder_of(tmp_path, {"a": labels(0, 1, 2)}, images, masks))
    assert dataset.classes == ("background", "class 1", "class 2")


def test_a_stray_label_is_no_class(tmp_path: Path) -> None:
    """Labels follow each other: of 0, 1, 2 and 7 the last is reported, not counted."""
    dataset = open_dataset(folder_of(tmp_path, {"a": labels(0, 1, 2), "b": labels(0, 1, 7)}))
    assert len(dataset.classes) == 3
    assert dataset.read(dataset.cases[1]).labels.max() == 7


def test_a_stray_black_and_white_mask_does_not_decide(tmp_path: Path) -> None:
    masks = {"a": labels(0, 1, 2), "b": labels(0, 1, 2), "c": labels(0, 255)}
    assert len(open_dataset(folder_of(tmp_path / "labels", masks)).classes) == 3
    masks = {"a": labels(0, 255), "b": labels(0, 255), "c": labels(0, 1, 2)}
    assert len(open_dataset(folder_of(tmp_path / "white", masks)).classes) == 2


def test_classes_can_be_named(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"a": labels(0, 1)})
    (folder / "classes.txt").write_text("background\ncup\ndisc\n")
    assert open_dataset(folder).classes == ("background", "cup", "disc")
    (folder / "classes.txt").write_text("cup\n")
    with pytest.raises(DataError, match=r"classes\.txt"):
        open_dataset(folder)


def test_groups_can_be_given(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"a": labels(0, 1), "b": labels(0, 1), "c": labels(0, 1)})
    (folder / "groups.csv").write_text("case,group\na,anna\nb,anna\nx,paul\n")
    dataset = open_dataset(folder)
    assert [case.group for case in dataset.cases] == ["anna", "anna", "c"]
    assert [finding.what for finding in dataset.findings] == [
        "gives a group to x, which is no case",
        "gives no group to c",
    ]
    (folder / "groups.csv").write_text("name,patient\na,anna\n")
    with pytest.raises(DataError, match="columns case and group"):
        open_dataset(folder)


def test_volumes(tmp_path: Path) -> None:
    scan = NUMBERS.normal(size=(3, 6, 8)).astype(np.float32)
    write.volume(tmp_path / "images" / "a.nii.gz", scan, spacing=(5, 1, 1))
    write.volume(tmp_path / "labels" / "a_seg.nii.gz", np.resize(np.arange(4, dtype=np.uint8), (3, 6, 8)))
    dataset = open_dataset(tmp_path)
    assert (dataset.intensity, len(dataset.classes)) == ("mr", 4)
    sample = dataset.read(dataset.cases[0])
    np.testing.assert_array_equal(sample.image, scan[None])
    assert sample.spacing == (5, 1, 1)


def test_sixteen_bits_are_no_colours(tmp_path: Path) -> None:
    write.picture(tmp_path / "images" / "a.png", labels(0, 200).astype(np.uint16) * 200)
    write.picture(tmp_path / "masks" / "a.png", labels(0, 1))
    assert open_dataset(tmp_path).intensity == "mr"


def test_what_cannot_be_read_is_left_to_the_check(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"a": labels(0, 1), "b": labels(0, 1, 2)})
    for name in ("images/a.png", "masks/a.png"):
        (folder / name).write_bytes(b"")
    dataset = open_dataset(folder)
    assert (len(dataset.cases), len(dataset.classes), dataset.intensity) == (2, 3, "colour")
