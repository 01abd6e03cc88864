"""Synapse multi-organ CT (BTCV), as its owner or TransUNet's authors give it: nine classes, in TransUNet's order."""

import re
from pathlib import Path

import numpy as np

from polydice.data.cases import Case, Dataset, Sample
from polydice.data.readers.archives import archived_cases, read_archived
from polydice.data.readers.layout import Layout, by_case, files_in, inside, pair_up
from polydice.data.readers.pairs import read_labels

CLASSES = (
    "background", "aorta", "gallbladder", "left kidney", "right kidney", "liver", "pancreas", "spleen", "stomach",
)  # fmt: skip
# The owner's 0 ... 13: background, spleen, right kidney, left kidney, gallbladder, oesophagus, liver, stomach, aorta,
# inferior vena cava, portal and splenic veins, pancreas, right and left adrenal.
OURS = np.array([0, 7, 4, 3, 2, 0, 5, 8, 1, 0, 0, 6, 0, 0], np.uint8)

RAW = ("", "Training", "RawData/Training", "Abdomen/RawData/Training")
IMAGE, MASK = re.compile(r"img(\d{4})\.nii(\.gz)?"), re.compile(r"label(\d{4})\.nii(\.gz)?")

ARCHIVES = ("", "train_npz", "test_vol_h5")
ARCHIVE = re.compile(r"(?P<case>(?P<group>case\d{4}))(_slice(?P<slice>\d+)\.npz|\.npy\.h5)")


def find_synapse(folder: Path) -> Dataset | None:
    for place in RAW:
        images, masks = inside(folder, f"{place}/img"), inside(folder, f"{place}/label")
        if images and masks and any(IMAGE.fullmatch(path.name) for path in files_in(images)):
            cases, findings = pair_up(
                folder,
                by_case(folder, files_in(images), lambda path: _case(IMAGE, path), "imgNNNN.nii.gz"),
                by_case(folder, files_in(masks), lambda path: _case(MASK, path), "labelNNNN.nii.gz"),
                group=str,
            )
            return Dataset("Synapse", folder, CLASSES, "ct", tuple(cases), read_raw, tuple(findings))
    cases, findings = archived_cases(folder, ARCHIVES, ARCHIVE, "caseNNNN_sliceKKK.npz or caseNNNN.npy.h5")
    if not cases:
        return None
    # TransUNet's files are clipped to the Hounsfield units of CT_WINDOW and scaled to [0, 1] already.
    return Dataset("Synapse", folder, CLASSES, "unit", tuple(cases), read_archived, tuple(findings))


def _case(name: re.Pattern[str], path: Path) -> str | None:
    match = name.fullmatch(path.name)
    return f"case{match[1]}" if match else None  # as TransUNet calls it


def read_raw(case: Case) -> Sample:
    """The owner's labels, renumbered. Labels that the owner does not have stay as they are: outside our classes."""
    image, labels, spacing, _ = read_labels(case)
    known = (labels >= 0) & (labels < len(OURS))
    return Sample(image, np.where(known, OURS[np.where(known, labels, 0)], labels), spacing)


SYNAPSE = Layout(
    "synapse",
    "RawData/Training/img/imgNNNN.nii.gz and label/labelNNNN.nii.gz, from any of these folders;"
    " or train_npz/caseNNNN_sliceKKK.npz and test_vol_h5/caseNNNN.npy.h5",
    find_synapse,
)
