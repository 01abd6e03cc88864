from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from polydice.data.cases import Case
from polydice.data.readers import open_dataset
from polydice.data.readers.pairs import read_two_classes, same_names, two_classes
from tests.data import write
from tests.data.conftest import RealSet

NUMBERS = np.random.default_rng(0)
IMAGE = NUMBERS.integers(60, 200, (3, 48, 64), dtype=np.uint8)
GREY = np.zeros((48, 64), np.uint8)


def square(value: int, mask: np.ndarray = GREY) -> np.ndarray:
    mask = mask.copy()
    mask[10:20, 30:45] = value
    return mask


def test_black_and_white_is_labels() -> None:
    labels, cut = two_classes(square(255), IMAGE, jpeg=False)
    assert not cut
    np.testing.assert_array_equal(labels, square(1))


@pytest.mark.parametrize("labels", [square(1), square(7), GREY])
def test_labels_stay_labels(labels: np.ndarray) -> None:
    same, cut = two_classes(labels, IMAGE, jpeg=False)
    assert not cut
    np.testing.assert_array_equal(same, labels)


@pytest.mark.parametrize("quality", [20, 50, 75, 95])
def test_a_smeared_mask_is_cut_and_said(quality: int, tmp_path: Path) -> None:
    image = write.picture(tmp_path / "image.png", IMAGE[0])
    mask = write.picture(tmp_path / "mask.jpg", square(255), quality=quality)
    sample = read_two_classes(Case("a", "a", (image,), (mask,)))
    assert sample.remark == "is smeared by JPEG: foreground is > 127"
    np.testing.assert_array_equal(sample.labels, square(1))


def test_a_patch_of_a_foreign_value_stays_what_it_is() -> None:
    mask = square(255)
    mask[30:33, 5:8] = 7
    labels, cut = two_classes(mask, IMAGE, jpeg=False)
    assert not cut
    np.testing.assert_array_equal(labels, np.where(mask == 7, 7, mask > 0))
    mask[0, 0] = 100  # no patch: an edge that somebody has smoothed
    labels, cut = two_classes(mask, IMAGE, jpeg=False)
    assert cut
    assert labels[0, 0] == 0


@pytest.mark.parametrize("quality", [75, 90, 95, 100])
@pytest.mark.parametrize("corner", [0, 3, 35])
def test_a_smeared_patch_of_a_foreign_value_is_found_too(quality: int, corner: int, tmp_path: Path) -> None:
    mask = square(255)
    mask[corner : corner + 10, corner : corner + 10] = 7
    smeared = np.asarray(Image.open(write.picture(tmp_path / "mask.jpg", mask, quality=quality)))
    labels, cut = two_classes(smeared, IMAGE, jpeg=True)
    assert cut
    *two, foreign = np.unique(labels)
    assert two == [0, 1]
    assert abs(int(foreign) - 7) <= 1, "what JPEG has left of it"


def test_labels_and_a_void_are_left_alone() -> None:
    """White is something else where 1 is a class: in patches, or in lines too thin for one."""
    for mask in (square(1, np.full_like(GREY, 255)), np.where(np.eye(48, 64) > 0, 1, square(255)).astype(np.uint8)):
        mask[:5] = 0
        labels, cut = two_classes(mask, IMAGE, jpeg=False)
        assert not cut
        np.testing.assert_array_equal(labels, mask)


@pytest.mark.parametrize("noise", [(3, 3), (0, 3)])
def test_black_and_white_that_is_a_little_off_is_black_and_white(noise: tuple[int, int], tmp_path: Path) -> None:
    """3 and 252, or whatever is near 0 and 255: nothing else is said."""
    off = NUMBERS.integers(noise[0], noise[1] + 1, GREY.shape)
    mask = np.where(square(1) > 0, 255 - off, off).astype(np.uint8)
    for name in ("images/a.png", "masks/a.png"):
        write.picture(tmp_path / name, IMAGE[0] if name.startswith("images") else mask)
    dataset = open_dataset(tmp_path)
    sample = dataset.read(dataset.cases[0])
    assert dataset.classes == ("background", "foreground")
    assert sample.remark == "is black and white, but not 0 and 255: foreground is > 127"
    np.testing.assert_array_equal(sample.labels, square(1))


def test_an_image_that_shines_through_its_mask_is_no_label() -> None:
    image = IMAGE.copy()
    image[:, 30:40, :12] = 11
    mask = square(255)
    mask[30:40, :12] = 11
    labels, cut = two_classes(mask, image, jpeg=False)
    assert cut
    np.testing.assert_array_equal(labels, square(1))


def test_of_real_masks_none_has_a_foreign_value(real_set: RealSet) -> None:
    """138 of CVC-ClinicDB's hold values between 0 and 255, 49 of these in patches where the image shines through."""
    cvc = open_dataset(real_set("cvc-clinicdb"))
    samples = [cvc.read(case) for case in cvc.cases]
    assert sum(sample.remark != "" for sample in samples) == 138
    assert all(np.array_equal(np.unique(sample.labels), [0, 1]) for sample in samples)


def test_masks_may_have_a_suffix_and_another_ending(tmp_path: Path) -> None:
    for name in ("a", "b", "c_gt", "d"):
        write.picture(tmp_path / "images" / f"{name}.jpg", GREY)
    for name in ("a_segmentation", "b_Mask", "c_gt", "d"):
        write.picture(tmp_path / "masks" / f"{name}.png", GREY)
    cases, findings = same_names(tmp_path, tmp_path / "images", tmp_path / "masks")
    assert [case.id for case in cases] == ["a", "b", "c_gt", "d"]
    assert findings == []


def test_files_without_a_partner_a_double_and_others(tmp_path: Path) -> None:
    for name in ("images/a.png", "images/b.png", "images/b.tif", "masks/b.png", "masks/c.png", "masks/.hidden.png"):
        write.picture(tmp_path / name, GREY)
    (tmp_path / "images" / "notes.txt").write_text("")
    (tmp_path / "images" / "Thumbs.db").write_text("")
    cases, findings = same_names(tmp_path, tmp_path / "images", tmp_path / "masks")
    assert cases == [], "nobody knows which image the mask of b belongs to"
    assert sorted(findings) == [
        ("error", "images/a.png", "has no mask"),
        ("error", "images/b.tif", "belongs to the same case as b.png: which one is meant?"),
        ("error", "masks/c.png", "has no image"),
        ("warning", "images/notes.txt", "is not read: PNG, JPEG, TIFF, BMP, GIF or NIfTI is expected here"),
    ]
