import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polydice.data.cases import DataError
from polydice.data.files import UnreadableFile
from polydice.data.folds import split
from polydice.data.readers import open_dataset
from tests.data import write
from tests.data.conftest import RealSet

NUMBERS = np.random.default_rng(0)
SCANS = NUMBERS.normal(size=(2, 3, 6, 8)).astype(np.float32)  # two modalities
LABELS = NUMBERS.integers(0, 3, (3, 6, 8)).astype(np.uint8)
DECATHLON = {
    "name": "Prostate",
    "modality": {"0": "T2", "1": "ADC"},
    "labels": {"0": "background", "1": "PZ", "2": "TZ"},
}
NNUNET = {
    "channel_names": {"0": "T2", "1": "ADC"}, "labels": {"background": 0, "PZ": 1, "TZ": 2}, "file_ending": ".nii.gz"
}  # fmt: skip


def describe(folder: Path, about: dict[str, Any], *listed: str) -> Path:
    training = [{"image": f"./imagesTr/{name}.nii.gz", "label": f"./labelsTr/{name}.nii.gz"} for name in listed]
    (folder / "dataset.json").write_text(json.dumps(about | ({"training": training} if listed else {})))
    return folder


def nnunet(folder: Path, *names: str) -> None:
    for name in names:
        for channel, scan in enumerate(SCANS):
            write.volume(folder / "imagesTr" / f"{name}_{channel:04d}.nii.gz", scan, spacing=(3, 1, 1))
        write.volume(folder / "labelsTr" / f"{name}.nii.gz", LABELS)


def test_hippocampus_has_260_volumes(real_set: RealSet) -> None:
    hippocampus = open_dataset(real_set("Task04_Hippocampus"))
    assert (hippocampus.name, hippocampus.intensity, len(hippocampus.cases)) == ("Hippocampus", "mr", 260)
    assert hippocampus.classes == ("background", "Anterior", "Posterior")
    assert hippocampus.findings == ()
    assert hippocampus.read(hippocampus.cases[0]).spacing == (1, 1, 1)


def step(image: np.ndarray) -> float | None:
    """The number that all grey values are multiples of, where a scan was scaled by it; None for whole numbers."""
    return None if image.dtype.kind != "f" else float(np.median(np.diff(np.unique(image).astype(float))))


def test_the_two_hippocampi_of_a_person_are_one_group(real_set: RealSet) -> None:
    """Volumes 2k - 1 and 2k share their intensity step wherever there is one; no other neighbours do."""
    dataset = open_dataset(real_set("Task04_Hippocampus"))
    assert dataset.groups == 170
    steps = {case.id: step(dataset.read(case).image) for case in dataset.cases}
    shared: dict[bool, list[bool]] = {True: [], False: []}
    for one, other in pairwise(dataset.cases):
        first, second = steps[one.id], steps[other.id]
        if int(other.id[-3:]) == int(one.id[-3:]) + 1:
            assert (first is None) == (second is None) or one.group != other.group
            if first is not None and second is not None:
                shared[one.group == other.group].append(abs(first - second) < 1e-4 * first)
    assert (len(shared[True]), all(shared[True])) == (71, True)
    assert (len(shared[False]), any(shared[False])) == (60, False)
    pairs = [group for group, count in Counter(case.group for case in dataset.cases).items() if count == 2]
    assert len(pairs) == 90
    for fold in split(dataset.cases):
        parts = [{dataset.cases[place].group for place in part} for part in fold]
        assert sum(map(len, parts)) == dataset.groups


@pytest.mark.parametrize("name", ["Hippocampus", "Prostate"])
def test_names_of_hippocampi_mean_sides_in_that_set_alone(name: str, tmp_path: Path) -> None:
    cases = ["hippocampus_001", "hippocampus_002", "scan"]
    nnunet(describe(tmp_path, NNUNET | {"name": name}), *cases)
    expected = ["person001", "person001", "scan"] if name == "Hippocampus" else cases
    assert [case.group for case in open_dataset(tmp_path).cases] == expected


def test_the_decathlon_has_all_modalities_in_one_file(tmp_path: Path) -> None:
    for name in ("prostate_00", "prostate_01"):
        write.volume(tmp_path / "imagesTr" / f"{name}.nii.gz", SCANS, spacing=(3, 1, 1))
        write.volume(tmp_path / "imagesTr" / f"._{name}.nii.gz", SCANS)  # as macOS leaves them
        write.volume(tmp_path / "labelsTr" / f"{name}.nii.gz", LABELS)
    dataset = open_dataset(describe(tmp_path, DECATHLON, "prostate_01", "prostate_00"))
    assert (dataset.name, dataset.classes, dataset.findings) == ("Prostate", ("background", "PZ", "TZ"), ())
    assert [case.id for case in dataset.cases] == ["prostate_00", "prostate_01"]
    image, labels, spacing, _ = dataset.read(dataset.cases[0])
    np.testing.assert_array_equal(image, SCANS)
    np.testing.assert_array_equal(labels, LABELS)
    assert spacing == (3, 1, 1)


@pytest.mark.parametrize(("about", "listed"), [(DECATHLON, ("a", "b_0001")), (NNUNET, ())])
def test_nnunet_has_a_file_for_each(about: dict[str, Any], listed: tuple[str, ...], tmp_path: Path) -> None:
    """Version 1 lists its cases, version 2 does not."""
    nnunet(tmp_path, "a", "b_0001")
    dataset = open_dataset(describe(tmp_path, about, *listed))
    assert dataset.findings == ()
    assert dataset.classes == ("background", "PZ", "TZ")
    assert [case.id for case in dataset.cases] == ["a", "b_0001"]
    for case in dataset.cases:
        np.testing.assert_array_equal(dataset.read(case).image, SCANS)


def test_pictures(tmp_path: Path) -> None:
    """Red, green and blue are one file, although they are three channels."""
    photo = NUMBERS.integers(0, 256, (6, 8, 3), dtype=np.uint8)
    write.picture(tmp_path / "imagesTr" / "road-1_0000.png", photo)
    write.picture(tmp_path / "labelsTr" / "road-1.png", LABELS[0])
    about = NNUNET | {"channel_names": {"0": "R", "1": "G", "2": "B"}, "file_ending": ".png"}
    dataset = open_dataset(describe(tmp_path, about))
    assert (dataset.intensity, dataset.findings) == ("colour", ())
    np.testing.assert_array_equal(dataset.read(dataset.cases[0]).image, photo.transpose(2, 0, 1))


@pytest.mark.parametrize(
    ("channels", "intensity"),
    [(["CT"], "ct"), (["MRI"], "mr"), (["FLAIR", "T1w"], "mr"), (["rgb"], "colour"), (["CT", "PET"], "mr")],
)
def test_channels_say_what_the_numbers_mean(channels: list[str], intensity: str, tmp_path: Path) -> None:
    nnunet(tmp_path, "a")
    dataset = open_dataset(describe(tmp_path, NNUNET | {"channel_names": dict(enumerate(channels))}))
    assert dataset.intensity == intensity
    assert any("mixes CT" in finding.what for finding in dataset.findings) == (channels == ["CT", "PET"])


def test_files_that_are_missing_and_files_that_are_not_listed(tmp_path: Path) -> None:
    nnunet(tmp_path, "a", "b", "c")
    describe(tmp_path, DECATHLON, "a", "b", "c")
    (tmp_path / "imagesTr" / "b_0001.nii.gz").unlink()
    for channel in (0, 1):
        (tmp_path / "imagesTr" / f"c_000{channel}.nii.gz").rename(tmp_path / "imagesTr" / f"d_000{channel}.nii.gz")
    dataset = open_dataset(tmp_path)
    assert [case.id for case in dataset.cases] == ["a"]
    assert set(dataset.findings) == {
        ("error", "imagesTr/b_0001.nii.gz", "is not there, but dataset.json lists it"),
        ("error", "imagesTr/c.nii.gz", "is not there, but dataset.json lists it"),
        ("error", "imagesTr/d_0000.nii.gz", "is not listed in dataset.json"),
        ("error", "imagesTr/d_0001.nii.gz", "is not listed in dataset.json"),
    }


def test_without_a_list_each_file_asks_for_the_others(tmp_path: Path) -> None:
    nnunet(tmp_path, "a", "b", "c")
    describe(tmp_path, NNUNET)
    (tmp_path / "imagesTr" / "b_0001.nii.gz").unlink()
    (tmp_path / "labelsTr" / "c.nii.gz").unlink()
    write.volume(tmp_path / "imagesTr" / "a_0002.nii.gz", SCANS[0])
    dataset = open_dataset(tmp_path)
    assert [case.id for case in dataset.cases] == ["a"]
    assert set(dataset.findings) == {
        ("error", "imagesTr/a_0002.nii.gz", "is no channel that dataset.json names"),
        ("error", "imagesTr/b_0001.nii.gz", "is not there, but other files of its case are"),
        ("error", "labelsTr/c.nii.gz", "is not there, but other files of its case are"),
    }


def test_files_outside_the_folder_are_not_read(tmp_path: Path) -> None:
    """A list that somebody else has written may name any file of this machine."""
    folder = tmp_path / "set"
    for name in ("a", "b", "c", "d"):
        write.volume(folder / "imagesTr" / f"{name}.nii.gz", SCANS)
        write.volume(folder / "labelsTr" / f"{name}.nii.gz", LABELS)
    write.volume(tmp_path / "private.nii.gz", SCANS)
    (folder / "imagesTr" / "d.nii.gz").unlink()
    (folder / "imagesTr" / "d.nii.gz").symlink_to(tmp_path / "private.nii.gz")
    images = ("imagesTr/a.nii.gz", "../private.nii.gz", str(tmp_path / "private.nii.gz"), "imagesTr/d.nii.gz")
    training = [
        {"image": image, "label": f"labelsTr/{name}.nii.gz"} for name, image in zip("abcd", images, strict=True)
    ]
    (folder / "dataset.json").write_text(json.dumps(DECATHLON | {"training": training}))
    dataset = open_dataset(folder)
    assert [case.id for case in dataset.cases] == ["a", "d"]
    refused = [(each.level, each.where) for each in dataset.findings if "lies outside its folder" in each.what]
    assert refused == [("error", "../private.nii.gz")] * 2
    assert ("warning", "imagesTr/d.nii.gz", "is a link to a file outside the folder") in dataset.findings


def test_channels_of_different_sizes(tmp_path: Path) -> None:
    nnunet(tmp_path, "a")
    write.volume(tmp_path / "imagesTr" / "a_0001.nii.gz", SCANS[0, :2])
    dataset = open_dataset(describe(tmp_path, NNUNET))
    with pytest.raises(UnreadableFile, match=r"a_0001\.nii\.gz: .*a_0000\.nii\.gz"):
        dataset.read(dataset.cases[0])


@pytest.mark.parametrize(
    ("about", "told"),
    [
        ({"labels": {"background": 0, "whole tumour": [1, 2], "core": 2}}, "regions need regions_class_order"),
        ({"labels": {"background": 0, "tumour": 2}}, "numbered 0, 1, 2"),
        ({"labels": {"background": "none"}}, "is not as the Decathlon or nnU-Net write it"),
        ({"labels": None}, "is not as the Decathlon or nnU-Net write it"),
    ],
)
def test_what_is_not_supported_is_said(about: dict[str, Any], told: str, tmp_path: Path) -> None:
    nnunet(tmp_path, "a")
    with pytest.raises(DataError, match=rf"dataset\.json.*{told}"):
        open_dataset(describe(tmp_path, NNUNET | about))


@pytest.mark.parametrize(
    "labels", [{"background": 0, "tumour": 1, "ignore": 2}, {"0": "background", "1": "tumour", "255": "ignore"}]
)
def test_an_ignore_label_is_no_class(labels: dict[str, Any], tmp_path: Path) -> None:
    nnunet(tmp_path, "a")
    dataset = open_dataset(describe(tmp_path, NNUNET | {"labels": labels}))
    assert (dataset.classes, dataset.ignore) == (("background", "tumour"), 2 if "ignore" in labels else 255)


def test_a_description_that_is_no_json(tmp_path: Path) -> None:
    nnunet(tmp_path, "a")
    (tmp_path / "dataset.json").write_text("{")
    with pytest.raises(DataError, match=r"dataset\.json"):
        open_dataset(tmp_path)
