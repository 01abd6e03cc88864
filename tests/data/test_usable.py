from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from polydice.data.cases import Case, DataError, Dataset, Sample
from polydice.data.check import check
from polydice.data.prepare import Preparation, prepare
from polydice.data.readers import open_dataset
from polydice.data.readers.pairs import read_labels
from polydice.data.usable import described, usable, used
from tests.data import write

NUMBERS = np.random.default_rng(0)
MASK = np.eye(6, 8, dtype=np.uint8)
SMALL = Preparation(size=8)
READ: Counter[str] = Counter()


def counting(case: Case) -> Sample:
    READ[case.id] += 1
    return read_labels(case)


def pictures(folder: Path, count: int) -> Path:
    for number in range(count):
        write.picture(folder / "images" / f"{number}.png", NUMBERS.integers(0, 256, (6, 8, 3), dtype=np.uint8))
        write.picture(folder / "masks" / f"{number}.png", MASK)
    return folder


def counted(folder: Path) -> Dataset:
    READ.clear()
    return replace(open_dataset(folder), read=counting)


def ids(dataset: Dataset) -> list[str]:
    return [case.id for case in dataset.cases]


def test_a_set_without_errors_is_read_once_and_then_never(tmp_path: Path) -> None:
    """The check looks at what is read to be prepared."""
    folder = pictures(tmp_path / "set", 4)
    dataset, prepared = usable(counted(folder), SMALL, tmp_path / "cache")
    assert set(READ.values()) == {1}
    assert ids(dataset) == [case.id for case in prepared.cases] == ["0", "1", "2", "3"]
    assert prepare(open_dataset(folder), SMALL, tmp_path / "other").labels.tolist() == prepared.labels.tolist()
    usable(counted(folder), SMALL, tmp_path / "cache")
    assert READ == {}
    usable(counted(folder), Preparation(size=4), tmp_path / "cache")
    assert set(READ.values()) == {1}, "the same files in another size need no other check"


def test_what_was_prepared_before_is_checked_all_the_same(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "set", 3)
    for number in range(3):
        write.picture(folder / "masks" / f"{number}.png", np.zeros_like(MASK))
    prepare(counted(folder), SMALL, tmp_path / "cache")
    with pytest.raises(DataError, match="every mask is empty"):
        usable(counted(folder), SMALL, tmp_path / "cache")
    assert set(READ.values()) == {1}


def test_errors_are_refused_with_the_command_and_the_way_on(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "set", 6)
    write.picture(folder / "masks" / "1.png", np.where(MASK > 0, 7, 0).astype(np.uint8))
    write.picture(folder / "masks" / "2.png", MASK[:-1])
    (folder / "images" / "3.png").write_bytes(b"")
    with pytest.raises(DataError) as refused:
        usable(open_dataset(folder), SMALL, tmp_path / "cache", options=["--ignore", "9"])
    assert str(refused.value).splitlines() == [
        f"{folder} has 3 errors and is not trained on:",
        "error    images/3.png  is empty",
        "error    masks/1.png   has label 7, outside the classes 0 to 1 (6 pixels)",
        "error    masks/2.png   is 8×5, but its image 8×6",
        f"`polydice data {folder} --ignore 9` says everything about it; "
        "--skip-errors goes on with the other 3 of 6 cases",
    ]


def test_black_and_white_masks_with_a_void_are_prepared(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "set", 3)
    mask = np.array([[0, 0, 0, 0, 128, 128, 255, 255]] * 8, np.uint8)
    for number in range(3):
        write.picture(folder / "images" / f"{number}.png", NUMBERS.integers(0, 256, (8, 8, 3), dtype=np.uint8))
        write.picture(folder / "masks" / f"{number}.png", mask)
    _, prepared = usable(open_dataset(folder, ignore=128), SMALL, tmp_path / "cache")
    expected = np.select([mask == 128, mask == 255], [255, 1], 0)
    np.testing.assert_array_equal(prepared.item(0)[1], expected)


@pytest.mark.parametrize("grey", ["0", "2"])
def test_a_grey_picture_among_coloured_ones_is_made_one_of_them(grey: str, tmp_path: Path) -> None:
    """Whether it is met first or later; where most are grey, a colour is an error."""
    folder = pictures(tmp_path / "set", 4)
    picture = NUMBERS.integers(0, 256, (8, 8), dtype=np.uint8)
    write.picture(folder / "images" / f"{grey}.png", picture)
    write.picture(folder / "masks" / f"{grey}.png", np.eye(8, dtype=np.uint8))
    dataset = open_dataset(folder)
    told = "is grey, where most images are coloured: its grey is red, green and blue"
    assert ("warning", f"images/{grey}.png", told) in check(dataset, workers=1).findings
    _, prepared = usable(dataset, SMALL, tmp_path / "cache")
    assert prepared.channels == 3
    np.testing.assert_array_equal(prepared.item(int(grey))[0], np.stack([picture] * 3))
    for number in {"0", "1", "2", "3"} - {grey, "1"}:
        write.picture(folder / "images" / f"{number}.png", picture + np.uint8(number))
        write.picture(folder / "masks" / f"{number}.png", np.eye(8, dtype=np.uint8))
    with pytest.raises(DataError, match=r"images/1\.png +has 3 channels in 2D, where most images have 1 channel"):
        usable(open_dataset(folder), SMALL, tmp_path / "cache")


def test_errors_are_left_out_and_remembered(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "set", 6)
    write.picture(folder / "masks" / "1.png", np.where(MASK > 0, 7, 0).astype(np.uint8))
    (folder / "masks" / "4.png").unlink()
    dataset, prepared = usable(counted(folder), SMALL, tmp_path / "cache", skip_errors=True)
    assert ids(dataset) == [case.id for case in prepared.cases] == ["0", "2", "3", "5"]
    assert described(dataset) == "set: 4 of 6 cases, 4 groups, 2 classes: background, class 1"
    again, same = usable(counted(folder), SMALL, tmp_path / "cache", skip_errors=True)
    assert (ids(again), same.folder) == (ids(dataset), prepared.folder)
    assert READ == {}
    write.picture(folder / "masks" / "1.png", MASK)
    write.picture(folder / "masks" / "4.png", MASK)
    assert len(usable(counted(folder), SMALL, tmp_path / "cache")[0].cases) == 6, "mended"


def test_what_the_list_of_files_shows_is_refused_before_a_file_is_opened(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "set", 4)
    (folder / "masks" / "3.png").rename(folder / "masks" / "three.png")
    with pytest.raises(DataError, match=r"has no mask(.|\n)*goes on with the other 3 of 4 cases"):
        usable(counted(folder), SMALL, tmp_path / "cache")
    assert READ == {}


def test_of_two_images_for_one_mask_none_is_picked(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "set", 3)
    write.picture(folder / "images" / "2.tif", NUMBERS.integers(0, 256, (6, 8, 3), dtype=np.uint8))
    with pytest.raises(DataError, match=r"images/2\.tif  belongs to the same case as 2\.png: which one is meant\?"):
        usable(open_dataset(folder), SMALL, tmp_path / "cache")
    dataset, _ = usable(open_dataset(folder), SMALL, tmp_path / "cache", skip_errors=True)
    assert (ids(dataset), used(dataset)["of"]) == (["0", "1"], 3)


def test_a_case_without_a_group_is_left_out(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "set", 3)
    (folder / "groups.csv").write_text("case,group\n0,a\n1,a\n")
    dataset, _ = usable(open_dataset(folder), SMALL, tmp_path / "cache", skip_errors=True)
    assert used(dataset) == {
        "cases": 2, "of": 3, "groups": 1, "classes": ["background", "class 1"], "ignore": None
    }  # fmt: skip


def test_what_concerns_the_whole_set_cannot_be_skipped(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "set", 3)
    for number in range(3):
        write.picture(folder / "masks" / f"{number}.png", np.zeros_like(MASK))
    with pytest.raises(DataError, match="every mask is empty") as refused:
        usable(open_dataset(folder), SMALL, tmp_path / "cache", skip_errors=True)
    assert "--skip-errors" not in str(refused.value)


def test_a_cache_that_cannot_be_written_does_no_harm_to_the_check(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "set", 3)
    prepare(open_dataset(folder), SMALL, tmp_path / "cache")
    (tmp_path / "cache" / "checks").touch()  # where a folder is wanted
    assert len(usable(open_dataset(folder), SMALL, tmp_path / "cache")[1]) == 3


def test_many_errors_are_a_few_rows(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "set", 15)
    for number in range(15):
        write.picture(folder / "masks" / f"{number}.png", MASK[: 5 - number % 3])
    with pytest.raises(DataError) as refused:
        usable(open_dataset(folder), SMALL, tmp_path / "cache")
    told = str(refused.value).splitlines()
    assert len(told) == 13
    assert told[-2] == "... and 5 more"


def test_what_is_odd_about_the_whole_set_is_told(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "set", 0)
    for name in ("anna-1", "anna-2", "paul-1"):
        write.picture(folder / "images" / f"{name}.png", NUMBERS.integers(0, 256, (6, 8, 3), dtype=np.uint8))
        write.picture(folder / "masks" / f"{name}.png", MASK)
    told = described(usable(open_dataset(folder), SMALL, tmp_path / "cache")[0]).splitlines()
    assert told[0] == "set: 3 of 3 cases, 3 groups, 2 classes: background, class 1"
    assert told[1].startswith("warning: set has names that speak of 2 patients or sequences")
