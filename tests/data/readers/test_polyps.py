import csv
from pathlib import Path

import numpy as np
import pytest

from polydice.data.readers import open_dataset
from polydice.data.readers.polyps import sequence
from tests.data import write
from tests.data.conftest import RealSet

FRAME = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
MASK = np.where(FRAME[..., 0] > 100, 255, 0).astype(np.uint8)


def test_cvc_has_612_pairs_in_29_sequences(real_set: RealSet) -> None:
    folder = real_set("cvc-clinicdb")
    for inside in (folder, folder / "PNG"):
        cvc = open_dataset(inside)
        assert (cvc.name, len(cvc.cases), cvc.findings) == ("CVC-ClinicDB", 612, ())
        assert len({case.group for case in cvc.cases}) == 29
        assert [case.id for case in cvc.cases[:4]] == ["1", "10", "100", "101"], "in lexicographic order"


def test_the_table_of_sequences_is_the_owners(real_set: RealSet) -> None:
    with (real_set("cvc-clinicdb") / "frame_sequence.csv").open() as file:
        for row in csv.DictReader(file):
            assert sequence(row["frame"]) == f"sequence{int(row['sequence']):02d}"


@pytest.mark.parametrize("place", ["", "TIF/"])
@pytest.mark.parametrize("ending", ["tif", "png"])
def test_cvc_without_the_png_folder(place: str, ending: str, tmp_path: Path) -> None:
    for frame in (1, 25, 26, 612):
        write.picture(tmp_path / f"{place}Original" / f"{frame}.{ending}", FRAME)
        write.picture(tmp_path / f"{place}Ground Truth" / f"{frame}.{ending}", MASK)
    cvc = open_dataset(tmp_path)
    assert cvc.name == "CVC-ClinicDB"
    assert {case.id: case.group for case in cvc.cases} == {
        "1": "sequence01", "25": "sequence01", "26": "sequence02", "612": "sequence29"
    }  # fmt: skip
    image, labels, spacing, remark = cvc.read(cvc.cases[0])
    np.testing.assert_array_equal(image, FRAME.transpose(2, 0, 1))
    np.testing.assert_array_equal(labels, MASK > 0)
    assert (spacing, remark) == (None, "")


def test_a_frame_that_cvc_does_not_have(tmp_path: Path) -> None:
    for frame in (1, 2, 613):
        write.picture(tmp_path / "Original" / f"{frame}.png", FRAME)
        write.picture(tmp_path / "Ground Truth" / f"{frame}.png", MASK)
    cvc = open_dataset(tmp_path)
    assert [(finding.level, finding.where) for finding in cvc.findings] == [("warning", "Original/613.png")]
    assert {case.group for case in cvc.cases} == {"sequence01", "613"}


def test_kvasir_has_1000_pairs(real_set: RealSet) -> None:
    kvasir = open_dataset(real_set("kvasir-seg"))
    assert (kvasir.name, len(kvasir.cases), kvasir.findings) == ("Kvasir-SEG", 1000, ())
    sample = kvasir.read(kvasir.cases[0])
    assert sample.remark == "is smeared by JPEG: foreground is > 127"
    assert np.unique(sample.labels).tolist() == [0, 1]


@pytest.mark.parametrize("sign", ["folder", "boxes", "names"])
def test_kvasir_is_known_by_its_folder_its_boxes_or_its_names(sign: str, tmp_path: Path) -> None:
    folder = tmp_path / ("Kvasir-SEG" if sign == "folder" else "polyps")
    name = "cju0qkwl35piu0993l0dewei2" if sign == "names" else "a"
    write.picture(folder / "images" / f"{name}.jpg", FRAME)
    write.picture(folder / "masks" / f"{name}.jpg", MASK)
    assert open_dataset(folder).name == ("Kvasir-SEG" if sign != "boxes" else "polyps")
    (folder / "kavsir_bboxes.json").write_text("{}")
    assert open_dataset(folder).name == "Kvasir-SEG"
