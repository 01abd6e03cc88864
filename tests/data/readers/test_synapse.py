from pathlib import Path

import numpy as np
import pytest

from polydice.data.readers import open_dataset
from tests.data import write

OWNERS = (
    "background", "spleen", "right kidney", "left kidney", "gallbladder", "oesophagus", "liver", "stomach", "aorta",
    "inferior vena cava", "portal and splenic veins", "pancreas", "right adrenal", "left adrenal",
)  # fmt: skip
PAPERS = {
    "aorta": 1, "gallbladder": 2, "left kidney": 3, "right kidney": 4, "liver": 5, "pancreas": 6, "spleen": 7,
    "stomach": 8,
}  # fmt: skip
LABELS = np.resize(np.arange(14, dtype=np.uint8), (3, 6, 8))
SCAN = np.resize(np.arange(-1000, 1000, 50, dtype=np.int16), (3, 6, 8))


@pytest.mark.parametrize("inside", ["", "RawData", "RawData/Training"])
def test_the_owners_labels_become_the_papers_nine_classes(inside: str, tmp_path: Path) -> None:
    raw = tmp_path / "RawData" / "Training"
    for number in (1, 40):
        write.volume(raw / "img" / f"img{number:04d}.nii.gz", SCAN, spacing=(3, 0.7, 0.7))
        write.volume(raw / "label" / f"label{number:04d}.nii.gz", LABELS, spacing=(3, 0.7, 0.7))
    synapse = open_dataset(tmp_path / inside)
    assert (synapse.name, synapse.intensity, synapse.findings) == ("Synapse", "ct", ())
    assert [(case.id, case.group) for case in synapse.cases] == [("case0001", "case0001"), ("case0040", "case0040")]
    image, labels, spacing, _ = synapse.read(synapse.cases[0])
    np.testing.assert_array_equal(image, SCAN[None])
    assert spacing == pytest.approx((3, 0.7, 0.7))
    for label, organ in enumerate(OWNERS):
        assert set(labels[label == LABELS].tolist()) == {PAPERS.get(organ, 0)}
        assert organ not in PAPERS or synapse.classes[PAPERS[organ]] == organ


def test_a_label_that_the_owner_does_not_have_stays_outside(tmp_path: Path) -> None:
    foreign = LABELS.astype(np.int16)
    foreign[0, 0, :3] = 14, 99, -3
    write.volume(tmp_path / "img" / "img0001.nii.gz", SCAN)
    write.volume(tmp_path / "label" / "label0001.nii.gz", foreign)
    synapse = open_dataset(tmp_path)
    assert synapse.read(synapse.cases[0]).labels[0, 0, :3].tolist() == [14, 99, -3]


def test_partners_and_other_names(tmp_path: Path) -> None:
    write.volume(tmp_path / "img" / "img0001.nii.gz", SCAN)
    write.volume(tmp_path / "img" / "scan.nii.gz", SCAN)
    write.volume(tmp_path / "label" / "label0002.nii.gz", LABELS)
    assert {(finding.where, finding.what) for finding in open_dataset(tmp_path).findings} == {
        ("img/img0001.nii.gz", "has no mask"),
        ("img/scan.nii.gz", "is not read: imgNNNN.nii.gz is expected here"),
        ("label/label0002.nii.gz", "has no image"),
    }


def test_transunets_files_are_left_as_they_are(tmp_path: Path) -> None:
    """Windowed and scaled to [0, 1] already, with the paper's own nine classes."""
    image, labels = np.linspace(0, 1, 144, dtype=np.float32).reshape(3, 6, 8), LABELS % 9
    for number in range(3):
        name = f"train_npz/case0005_slice{number:03d}.npz"
        write.archive(tmp_path / name, image=image[number], label=labels[number].astype(np.float32))
    write.archive(tmp_path / "test_vol_h5" / "case0001.npy.h5", image=image, label=labels)
    synapse = open_dataset(tmp_path)
    assert (synapse.intensity, len(synapse.classes), synapse.findings) == ("unit", 9, ())
    assert [case.id for case in synapse.cases] == ["case0001", "case0005"]
    for case in synapse.cases:
        sample = synapse.read(case)
        np.testing.assert_array_equal(sample.image, image[None])
        np.testing.assert_array_equal(sample.labels, labels)
