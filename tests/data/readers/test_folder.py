from pathlib import Path

import numpy as np
import pytest

from polydice.data.cases import DataError
from polydice.data.files import read_mask
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


def vessels(folder: Path, ending: str) -> Path:
    """As sets of retinal vessels are laid out: the field of view in mask/, the truth beside it."""
    for number in range(21, 25):
        write.picture(folder / "images" / f"{number}_training.tif", PHOTO)
        write.picture(folder / "mask" / f"{number}_training_mask.{ending}", labels(0, 255, 255))
        write.picture(folder / "1st_manual" / f"{number}_manual1.{ending}", labels(0, 0, 0, 255))
        write.picture(folder / "preview" / f"{number}_training.png", PHOTO)
    return folder


@pytest.mark.parametrize("ending", ["png", "gif"])
def test_a_rival_of_the_masks_is_asked_about(ending: str, tmp_path: Path) -> None:
    """Whatever their files are; a preview, which is coloured, is none."""
    folder = vessels(tmp_path, ending)
    with pytest.raises(DataError, match=r"2 folders that fit the images: mask, 1st_manual.* --masks NAME"):
        open_dataset(folder)


@pytest.mark.parametrize("ending", ["png", "gif"])
def test_the_masks_can_be_chosen(ending: str, tmp_path: Path) -> None:
    """The names begin with the same numbers, and that is all they share."""
    folder = vessels(tmp_path, ending)
    share = {}
    for masks in ("1st_manual", "MASK"):
        dataset = open_dataset(folder, masks=masks)
        assert (len(dataset.cases), dataset.findings) == (4, ())
        share[masks] = np.mean([dataset.read(case).labels.mean() for case in dataset.cases])
    assert share == {"1st_manual": 0.25, "MASK": pytest.approx(2 / 3)}
    with pytest.raises(
        DataError, match="no folder 'truth' for --masks; beside images it has 1st_manual, mask, preview"
    ):
        open_dataset(folder, masks="truth")


def test_a_folder_that_fits_fewer_images_is_no_rival(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"a": labels(0, 1), "b": labels(0, 1)})
    write.picture(folder / "second reader" / "a.png", labels(0, 1))
    assert len(open_dataset(folder).cases) == 2


VOID = np.repeat(np.repeat(labels(0, 0, 1, 255, 255, 255, 255, 255), 4, axis=0), 4, axis=1)


@pytest.mark.parametrize("others", [{}, {"b": labels(0, 1)}, {"b": labels(0, 255)}])
def test_a_void_is_neither_foreground_nor_cut_away(others: dict[str, np.ndarray], tmp_path: Path) -> None:
    """Labels 0, 1 and 255: more void than class, and it must not become the class."""
    folder = folder_of(tmp_path, {"a": VOID, **others})
    dataset = open_dataset(folder)
    assert len(dataset.classes) == 2
    np.testing.assert_array_equal(dataset.read(dataset.cases[0]).labels, VOID)
    ignoring = open_dataset(folder, ignore=255)
    assert (ignoring.classes, ignoring.ignore) == (("background", "class 1"), 255)
    for case in ignoring.cases:
        np.testing.assert_array_equal(ignoring.read(case).labels, read_mask(case.masks[0]))


@pytest.mark.parametrize("ignore", [128, 300, -1])
def test_a_void_in_black_and_white_masks(ignore: int, tmp_path: Path) -> None:
    """Black and white stay two classes, whether the void occurs or not."""
    masks = {"a": labels(0, 255, 255), "b": labels(255, 0)}
    if ignore == 128:
        masks |= {"b": np.repeat(labels(0, 128, 255, 255), 8, axis=0), "c": labels(128)}
    dataset = open_dataset(folder_of(tmp_path, masks), ignore=ignore)
    assert (dataset.classes, dataset.ignore) == (("background", "foreground"), ignore)
    for case in dataset.cases:
        expected = np.where(masks[case.id] == 255, 1, masks[case.id])
        np.testing.assert_array_equal(dataset.read(case).labels, expected)
        assert dataset.read(case).remark == ""


def test_many_classes_and_a_void(tmp_path: Path) -> None:
    assert len(open_dataset(folder_of(tmp_path, {"a": labels(0, 1, 2, 3, 255)}), ignore=255).classes) == 4


def numbered(*counts: int) -> dict[str, np.ndarray]:
    return {f"{place}": labels(*range(count + 1)) for place, count in enumerate(counts)}


def test_masks_that_number_objects_are_no_classes(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, numbered(3, 16, 7, 5))
    (finding,) = open_dataset(folder).findings
    assert (finding.level, finding.where) == ("error", "the whole set")
    assert "number objects, not classes (1 to 16, and each mask its own count)" in finding.what
    (folder / "classes.txt").write_text("".join(f"class {label}\n" for label in range(17)))
    assert open_dataset(folder).findings == ()


@pytest.mark.parametrize(
    "masks",
    [
        numbered(6, 6, 6, 6),
        {"a": labels(0, 1, 2, 3, 4, 5, 6), "b": labels(0, 2, 5), "c": labels(0, 4), "d": labels(0, 1, 2)},
        numbered(1, 2, 3, 4),
    ],
)
def test_classes_are_no_numbers_of_objects(masks: dict[str, np.ndarray], tmp_path: Path) -> None:
    """All in every mask, some of them in each, or few."""
    assert open_dataset(folder_of(tmp_path, masks)).findings == ()


def test_many_classes_without_names_may_be_objects(tmp_path: Path) -> None:
    """The same number of objects in every mask tells nothing."""
    assert open_dataset(folder_of(tmp_path / "8", numbered(*[8] * 4))).findings == ()
    folder = folder_of(tmp_path / "16", numbered(*[16] * 10))
    (finding,) = open_dataset(folder).findings
    assert (finding.level, finding.where) == ("warning", "the whole set")
    assert "has 16 classes without names: if they number objects" in finding.what
    (folder / "classes.txt").write_text("".join(f"organ {label}\n" for label in range(17)))
    assert open_dataset(folder).findings == ()
