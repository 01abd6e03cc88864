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
