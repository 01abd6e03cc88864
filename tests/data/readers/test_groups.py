from pathlib import Path

import numpy as np
import pytest

from polydice.cli import main
from polydice.data.cases import DataError
from polydice.data.prepare import Preparation, prepare
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
        ("error", "groups.csv", "has two rows for a: anna and paul"),
        ("error", "groups.csv", "gives a group to x, which is no case"),
        ("error", "images/c.png", "has no group in groups.csv: add a row for it"),
        ("error", "images/d.png", "has no group in groups.csv: add a row for it"),
    )
    (folder / "groups.csv").write_bytes("case,group\na,Jürgen\n".encode("latin-1"))
    with pytest.raises(DataError, match="no table in UTF-8"):
        open_dataset(folder)
    (folder / "groups.csv").write_text("name,patient\na,anna\n")
    with pytest.raises(DataError, match="columns case and group, separated by commas, but has name, patient"):
        open_dataset(folder)
    (folder / "groups.csv").write_text("")
    with pytest.raises(DataError, match="but has nothing"):
        open_dataset(folder)


def test_a_case_named_twice_and_one_without_a_name_are_errors(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "a", "b")
    (folder / "groups.csv").write_text("case,group\na,anna\nb,anna\na,anna\n,paul\n")
    assert open_dataset(folder).findings == (
        ("error", "groups.csv", "has two rows for a: remove one"),
        ("error", "groups.csv", "gives a group to a case without a name, which is no case"),
    )


def test_spaces_and_other_columns_do_not_matter(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "a", "b", "c")
    (folder / "groups.csv").write_text("case, age, group\na, 70, anna\nb,70 ,anna \nc,50,paul\n")
    assert groups(folder) == ["anna", "anna", "paul"]
    assert open_dataset(folder).findings == ()


def test_a_table_goes_before_what_the_reader_knows(tmp_path: Path) -> None:
    """Also where that is right: who gives groups gives all of them."""
    for patient in ("patient074", "patient076"):
        write.volume(tmp_path / patient / f"{patient}_frame01.nii.gz", SCAN)
        write.volume(tmp_path / patient / f"{patient}_frame01_gt.nii.gz", SCAN % 4)
    assert groups(tmp_path) == ["patient074+076"] * 2
    (tmp_path / "groups.csv").write_text("case,group\npatient074_frame01,a\npatient076_frame01,b\n")
    assert groups(tmp_path) == ["a", "b"]
    assert groups(tmp_path, r"patient\d+") == ["patient074", "patient076"]


@pytest.mark.parametrize("rows", ["a,x\nb,x\n", "a,x\nb,x\nc,y\nd,z\n", "a,x\nb,x\nc,y\nc,y\n", "a,x\nb,x\nc,y\nc,z\n"])
def test_what_is_wrong_with_a_table_is_said_before_anything_is_trained(
    rows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(tmp_path / "set", "a", "b", "c")
    (folder / "groups.csv").write_text("case,group\n" + rows)
    run = tmp_path / "run"
    assert main(["train", "--data", str(folder), "--out", str(run), "--cache", str(tmp_path / "cache")]) == 1
    assert "has 1 error and is not trained on" in capsys.readouterr().err
    assert not list(tmp_path.rglob("checkpoint-*"))
    assert not list(tmp_path.rglob("history.jsonl"))


def test_other_groups_are_another_prepared_set(tmp_path: Path) -> None:
    """Groups are part of what folds and results are made of: the cache must not hand out those of before."""
    folder, found = folder_of(tmp_path / "set", "a", "b", "c"), []
    for rows in ("", "a,x\nb,x\nc,y\n", "a,x\nb,y\nc,y\n", "a,x\nb,x\nc,y\n"):
        if rows:
            (folder / "groups.csv").write_text("case,group\n" + rows)
        found.append(prepare(open_dataset(folder), Preparation(size=8), tmp_path / "cache"))
    assert [[case.group for case in prepared.cases] for prepared in found] == [
        ["a", "b", "c"], ["x", "x", "y"], ["x", "y", "y"], ["x", "x", "y"]
    ]  # fmt: skip
    names = [prepared.folder.name for prepared in found]
    assert len(set(names[:3])) == 3
    assert names[1] == names[3]


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
