from pathlib import Path

import numpy as np
import pytest

from polydice.data.cases import DataError
from polydice.data.readers import LAYOUTS, open_dataset
from tests.data import write


def test_an_unknown_folder_is_told_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "holiday").mkdir()
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(DataError) as problem:
        open_dataset(tmp_path)
    for layout in LAYOUTS:
        assert f"{layout.name} " in str(problem.value)
        assert layout.looks_for in str(problem.value)
    assert str(problem.value).endswith("but holds holiday/, notes.txt")


def test_no_folder_and_no_such_layout(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere is not a folder"):
        open_dataset(tmp_path / "nowhere")
    with pytest.raises(DataError, match="layout 'cifar' is none of cvc-clinicdb, kvasir-seg"):
        open_dataset(tmp_path, layout="cifar")


def test_a_layout_that_is_asked_for_is_the_only_one_tried(tmp_path: Path) -> None:
    mask = np.array([[0, 255]], np.uint8)
    write.picture(tmp_path / "kvasir" / "images" / "a.png", mask)
    write.picture(tmp_path / "kvasir" / "masks" / "a.png", mask)
    assert open_dataset(tmp_path / "kvasir").name == "Kvasir-SEG"
    assert open_dataset(tmp_path / "kvasir", layout="folder").name == "kvasir"
    with pytest.raises(DataError, match="acdc") as problem:
        open_dataset(tmp_path / "kvasir", layout="acdc")
    assert "synapse" not in str(problem.value)


def test_a_set_one_folder_below_is_named(tmp_path: Path) -> None:
    mask = np.array([[0, 255]], np.uint8)
    write.picture(tmp_path / "training" / "images" / "a.png", mask)
    write.picture(tmp_path / "training" / "masks" / "a.png", mask)
    write.volume(tmp_path / "hearts" / "patient001" / "patient001_frame01.nii.gz", mask[None])
    (tmp_path / "notes").mkdir()
    with pytest.raises(DataError) as problem:
        open_dataset(tmp_path)
    told = str(problem.value).splitlines()
    assert told[-2:] == [f"{tmp_path / name} holds one: give that folder" for name in ("hearts", "training")]


def test_the_label_that_is_ignored_is_none_of_the_classes(tmp_path: Path) -> None:
    write.picture(tmp_path / "images" / "a.png", np.arange(4, dtype=np.uint8)[None])
    write.picture(tmp_path / "masks" / "a.png", np.array([[0, 1, 2, 2]], np.uint8))
    assert open_dataset(tmp_path, ignore=2).classes == ("background", "class 1")
    for label, name in ((0, "background"), (1, "class 1")):
        with pytest.raises(DataError, match=f"--ignore {label} is the class '{name}'"):
            open_dataset(tmp_path, ignore=label)


def test_masks_are_chosen_in_a_plain_folder_alone(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="--masks is for a plain folder, and the layout is to be acdc"):
        open_dataset(tmp_path, "acdc", masks="truth")
