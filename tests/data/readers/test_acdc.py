from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from polydice.data.folds import split
from polydice.data.readers import open_dataset
from tests.data import write
from tests.data.conftest import RealSet

NUMBERS = np.random.default_rng(0)
SCAN = NUMBERS.integers(0, 500, (11, 6, 8)).astype(np.int16)
LABELS = NUMBERS.integers(0, 4, (11, 6, 8)).astype(np.uint8)


def test_acdc_has_200_volumes_and_1902_slices_of_100_patients(real_set: RealSet) -> None:
    acdc = open_dataset(real_set("acdc"))
    assert (acdc.name, acdc.intensity, len(acdc.cases), acdc.findings) == ("ACDC", "mr", 200, ())
    assert len({case.group for case in acdc.cases}) == 99
    samples = [acdc.read(case) for case in acdc.cases]
    assert sum(len(sample.labels) for sample in samples) == 1902
    assert all(sample.spacing is None for sample in samples), "voxel sizes are lost in this copy"


def test_patients_074_and_076_are_one_image_and_one_group(real_set: RealSet) -> None:
    """No other two patients share an image: all other groups are one patient."""
    acdc = open_dataset(real_set("acdc"))
    groups = defaultdict(set)
    for case in acdc.cases:
        groups[case.group].add(case.id.partition("_")[0])
    assert [patients for patients in groups.values() if len(patients) > 1] == [{"patient074", "patient076"}]
    cases = {case.id: case for case in acdc.cases}
    for frame in ("frame01", "frame02"):
        one, other = (acdc.read(cases[f"{patient}_{frame}"]) for patient in ("patient074", "patient076"))
        np.testing.assert_array_equal(one.image, other.image)
        assert (one.labels != other.labels).any()
    for fold in split(acdc.cases):
        held = [any(acdc.cases[place].group == "patient074+076" for place in part) for part in fold]
        assert sum(held) == 1


def test_archives_know_them_too(tmp_path: Path) -> None:
    for patient in ("patient074", "patient075", "patient076"):
        write.archive(tmp_path / f"{patient}_frame01.h5", image=SCAN, label=LABELS)
    assert [case.group for case in open_dataset(tmp_path).cases] == ["patient074+076", "patient075", "patient074+076"]


@pytest.mark.parametrize("places", [("", ""), ("training/", "testing/"), ("database/training/", "database/testing/")])
def test_the_owners_folders(places: tuple[str, str], tmp_path: Path) -> None:
    for place, patient, frames in ((places[0], "patient001", (1, 12)), (places[1], "patient101", (1, 9))):
        folder = tmp_path / f"{place}{patient}"
        for frame in frames:
            write.volume(folder / f"{patient}_frame{frame:02d}.nii.gz", SCAN, spacing=(10, 1.5, 1.5))
            write.volume(folder / f"{patient}_frame{frame:02d}_gt.nii.gz", LABELS, spacing=(10, 1.5, 1.5))
        write.volume(folder / f"{patient}_4d.nii.gz", np.stack([SCAN, SCAN]))
        (folder / "Info.cfg").write_text("ED: 1\n")
    acdc = open_dataset(tmp_path)
    assert acdc.findings == ()
    assert [(case.id, case.group) for case in acdc.cases] == [
        ("patient001_frame01", "patient001"), ("patient001_frame12", "patient001"),
        ("patient101_frame01", "patient101"), ("patient101_frame09", "patient101"),
    ]  # fmt: skip
    image, labels, spacing, _ = acdc.read(acdc.cases[1])
    np.testing.assert_array_equal(image, SCAN[None])
    np.testing.assert_array_equal(labels, LABELS)
    assert spacing == (10, 1.5, 1.5)


def test_a_patient_with_nothing_and_one_with_too_much(tmp_path: Path) -> None:
    write.volume(tmp_path / "patient001" / "patient001_frame01.nii.gz", SCAN)
    write.volume(tmp_path / "patient001" / "patient001_frame02_gt.nii.gz", LABELS)
    write.volume(tmp_path / "patient001" / "heart.nii.gz", SCAN)
    (tmp_path / "patient002").mkdir()
    acdc = open_dataset(tmp_path)
    assert acdc.cases == ()
    assert {(finding.where, finding.what) for finding in acdc.findings} == {
        ("patient001/patient001_frame01.nii.gz", "has no mask"),
        ("patient001/patient001_frame02_gt.nii.gz", "has no image"),
        ("patient001/heart.nii.gz", "is not read: patientNNN_frameMM.nii.gz is expected here"),
        ("patient002", "holds no frames"),
    }


@pytest.mark.parametrize("place", ["", "data/slices/"])
def test_slices_are_put_together_in_the_order_of_their_numbers(place: str, tmp_path: Path) -> None:
    for number, (image, labels) in enumerate(zip(SCAN / 500, LABELS, strict=True), start=1):
        write.archive(tmp_path / f"{place}patient001_frame01_slice_{number}.h5", image=image, label=labels)
    acdc = open_dataset(tmp_path)
    assert [(case.id, case.group, len(case.files)) for case in acdc.cases] == [("patient001_frame01", "patient001", 11)]
    image, labels, spacing, _ = acdc.read(acdc.cases[0])
    np.testing.assert_array_equal(image, SCAN[None] / 500)
    np.testing.assert_array_equal(labels, LABELS)
    assert spacing is None


def test_a_volume_beside_its_slices_is_read_once(tmp_path: Path) -> None:
    write.archive(tmp_path / "data" / "patient001_frame01.h5", image=SCAN, label=LABELS)
    write.archive(tmp_path / "data" / "slices" / "patient001_frame01_slice_1.h5", image=SCAN[0], label=LABELS[0])
    write.archive(tmp_path / "data" / "slices" / "patient002_frame01_slice_1.h5", image=SCAN[0], label=LABELS[0])
    acdc = open_dataset(tmp_path)
    assert [acdc.read(case).image.shape for case in acdc.cases] == [(1, 11, 6, 8), (1, 1, 6, 8)]
