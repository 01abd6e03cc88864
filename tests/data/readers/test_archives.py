from pathlib import Path

import numpy as np
import pytest

from polydice.data.files import UnreadableFile
from polydice.data.readers import open_dataset
from tests.data import write


def test_a_hole_between_slices_is_said(tmp_path: Path) -> None:
    for number in (2, 3, 5, 8):
        flat = np.full((4, 5), number)
        write.archive(tmp_path / f"patient001_frame01_slice_{number}.h5", image=flat, label=flat * 0)
    acdc = open_dataset(tmp_path)
    assert acdc.findings == (("warning", "patient001_frame01", "lacks slices in between: 4, 6, 7"),)
    assert acdc.read(acdc.cases[0]).image[0, :, 0, 0].tolist() == [2, 3, 5, 8]


def test_a_slice_of_another_size_is_named(tmp_path: Path) -> None:
    for number, width in ((1, 5), (2, 5), (3, 6)):
        flat = np.zeros((4, width), np.uint8)
        write.archive(tmp_path / f"patient001_frame01_slice_{number}.h5", image=flat, label=flat)
    acdc = open_dataset(tmp_path)
    with pytest.raises(UnreadableFile, match=r"slice_3\.h5"):
        acdc.read(acdc.cases[0])


def test_a_renamed_slice_is_named(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        flat = np.full((4, 5), number)
        write.archive(tmp_path / f"patient001_frame01_slice_{number}.h5", image=flat, label=flat * 0)
    (tmp_path / "patient001_frame01_slice_2.h5").rename(tmp_path / "heart.h5")
    assert set(open_dataset(tmp_path).findings) == {
        ("error", "heart.h5", "is not read: patientNNN_frameMM_slice_K.h5 is expected here"),
        ("warning", "patient001_frame01", "lacks slices in between: 2"),
    }
