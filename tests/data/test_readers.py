import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import polydice
from polydice.data.cases import DataError
from polydice.data.readers import LAYOUTS, open_dataset
from tests.data import write
from tests.test_docs import ROOT, blocks


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


def test_a_reader_is_added_as_the_page_says(tmp_path: Path) -> None:
    """In a copy of the package: the file of the page, and the line that it names in `LAYOUTS`; nothing else."""
    page = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    (reader,) = [block for block in blocks("docs/data.md") if "Layout(" in block]
    copy = Path(shutil.copytree(Path(polydice.__file__).parent, tmp_path / "src" / "polydice"))
    (copy / "data" / "readers" / "skin.py").write_text(reader)
    listed = copy / "data" / "readers" / "__init__.py"
    line = "from polydice.data.readers.skin import SKIN"
    assert f"`{line}`, and `SKIN` in `LAYOUTS`, before `FOLDER`" in page
    listed.write_text(
        listed.read_text().replace("\nLAYOUTS = (", f"\n{line}\n\nLAYOUTS = (").replace(", FOLDER)", ", SKIN, FOLDER)")
    )

    for patient in ("anna", "paul", "zoe"):
        for number in range(2):
            image = np.random.default_rng(ord(patient[0]) + number).integers(0, 255, (20, 30, 3)).astype(np.uint8)
            write.picture(tmp_path / "set" / "photos" / f"{patient}_{number}.png", image)
            write.picture(
                tmp_path / "set" / "lesions" / f"{patient}_{number}_lesion.png", np.eye(20, 30, dtype=np.uint8)
            )
    (tmp_path / "nothing").mkdir()

    def polydice_data(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PYTHONPATH": str(tmp_path / "src")}
        command = [sys.executable, "-m", "polydice", "data", *arguments]
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120)

    known = polydice_data("set")
    assert known.returncode == 0, known.stderr
    assert known.stdout.startswith("Skin, set\n6 cases in 3 groups, 30×20, 3 channels\n")
    (tmp_path / "set" / "lesions" / "zoe_1_lesion.png").unlink()
    lacking = polydice_data("set", "--layout", "skin")
    assert lacking.returncode == 1
    assert "photos/zoe_1.png  has no mask" in lacking.stdout
    assert "photos/PATIENT_N.png and lesions/PATIENT_N_lesion.png" in polydice_data("nothing").stderr
    assert "skin, folder" in " ".join(polydice_data("--help").stdout.split())
