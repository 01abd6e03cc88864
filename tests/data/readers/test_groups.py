from pathlib import Path

import numpy as np
import pytest

from polydice.data.cases import DataError
from polydice.data.readers import open_dataset
from tests.data import write

SCAN = np.arange(48, dtype=np.int16).reshape(3, 4, 4)


def folder_of(folder: Path, *names: str) -> Path:
    for name in names:
        write.picture(folder / "images" / f"{name}.png", SCAN[0].astype(np.uint8))
        write.picture(folder / "masks" / f"{name}.png", np.eye(4, dtype=np.uint8))
    return folder


def groups(folder: Path, pattern: str | None = None) -> list[str]:
    return [case.group for case in open_dataset(folder, group=pattern).cases]


def test_a_table(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "a", "b", "c", "d")
    (folder / "groups.csv").write_text("case,group\na,anna\nb,anna\nd,\nx,paul\na,paul\n")
    assert groups(folder) == ["anna", "anna", "c", "d"]
    assert open_dataset(folder).findings == (
        ("error", "groups.csv", "gives two groups to a: anna and paul"),
        ("error", "groups.csv", "gives a group to x, which is no case"),
        ("error", "images/c.png", "has no group in groups.csv: add a row for it"),
        ("error", "images/d.png", "has no group in groups.csv: add a row for it"),
    )
    (folder / "groups.csv").write_bytes("case,group\na,Jürgen\n".encode("latin-1"))
    with pytest.raises(DataError, match="no table in UTF-8"):
        open_dataset(folder)
    (folder / "groups.csv").write_text("name,patient\na,anna\n")
    with pytest.raises(DataError, match="columns case and group, but has name, patient"):
        open_dataset(folder)


@pytest.mark.parametrize("pattern", ["[^_]+", r"(patient\d+)_slice", r"^(.+)_slice(\d+)$"])
def test_a_part_of_the_names(pattern: str, tmp_path: Path) -> None:
    """All that is matched or, if something stands in brackets, the first of it."""
    folder = folder_of(
        tmp_path, *(f"patient{patient:02d}_slice{number:02d}" for patient in (0, 1) for number in (0, 1))
    )
    assert groups(folder, pattern) == ["patient00", "patient00", "patient01", "patient01"]
    assert open_dataset(folder, group=pattern).findings == ()


def test_a_pattern_that_finds_nothing_or_is_none(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "a_1", "b")
    (finding,) = open_dataset(folder, group="(.+)_").findings
    assert finding == ("error", "images/b.png", "has no group: --group '(.+)_' finds nothing in its name")
    with pytest.raises(DataError, match=r"--group '\(' is no regular expression"):
        open_dataset(folder, group="(")


def test_a_pattern_goes_before_a_table(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "a_1", "b_1")
    (folder / "groups.csv").write_text("case,group\na_1,x\nb_1,x\n")
    assert groups(folder) == ["x", "x"]
    assert groups(folder, "[^_]+") == ["a", "b"]
    assert open_dataset(folder, group="[^_]+").findings == (
        ("warning", "groups.csv", "is not read, since --group is given"),
    )


def test_groups_are_for_every_layout(tmp_path: Path) -> None:
    for patient in ("patient001", "patient002"):
        write.volume(tmp_path / patient / f"{patient}_frame01.nii.gz", SCAN)
        write.volume(tmp_path / patient / f"{patient}_frame01_gt.nii.gz", SCAN % 4)
    assert groups(tmp_path) == ["patient001", "patient002"]
    (tmp_path / "groups.csv").write_text("case,group\npatient001_frame01,one\npatient002_frame01,one\n")
    assert groups(tmp_path) == ["one", "one"]
