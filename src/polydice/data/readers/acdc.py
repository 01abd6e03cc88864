"""ACDC: cardiac MRI, an end-diastolic and an end-systolic frame of each patient."""

import re
from dataclasses import replace
from pathlib import Path

from polydice.data.cases import Case, Dataset, Finding
from polydice.data.files import stem
from polydice.data.readers.archives import archived_cases, read_archived
from polydice.data.readers.layout import Layout, by_case, error, files_in, inside, pair_up
from polydice.data.readers.pairs import read_labels

CLASSES = ("background", "right ventricle", "myocardium", "left ventricle")

PATIENTS = ("", "training", "testing", "database/training", "database/testing")
PATIENT = re.compile(r"patient\d{3}")
FRAME = re.compile(r"(patient\d{3}_frame\d{2})(_gt)?\.nii(\.gz)?")
BESIDE = re.compile(r"patient\d{3}_4d\.nii(\.gz)?|Info\.cfg|MANDATORY_CITATION\.md")  # the owner's, but not needed

# One image, annotated twice: trained on the one and tested on the other, a network would be tested on what it has seen.
TWICE = ("patient074", "patient076")

ARCHIVES = ("", "slices", "data", "data/slices")
ARCHIVE = re.compile(r"(?P<case>(?P<group>patient\d{3})_frame\d{2})(_slice_(?P<slice>\d+))?\.h5")


def find_acdc(folder: Path) -> Dataset | None:
    read = read_labels
    cases, findings = _frames(folder)
    if not cases and not findings:
        read = read_archived
        cases, findings = archived_cases(folder, ARCHIVES, ARCHIVE, "patientNNN_frameMM_slice_K.h5")
    if not cases and not findings:
        return None
    cases = [replace(case, group="patient074+076") if case.group in TWICE else case for case in cases]
    return Dataset("ACDC", folder, CLASSES, "mr", tuple(cases), read, tuple(findings))


def _frames(folder: Path) -> tuple[list[Case], list[Finding]]:
    """The owner's files: a folder for each patient."""
    places = filter(None, (inside(folder, place) for place in PATIENTS))
    patients = [path for place in places for path in place.iterdir() if PATIENT.fullmatch(path.name) and path.is_dir()]
    files = {patient: [path for path in files_in(patient) if not BESIDE.fullmatch(path.name)] for patient in patients}
    images = [path for paths in files.values() for path in paths if not stem(path).endswith("_gt")]
    masks = [path for paths in files.values() for path in paths if stem(path).endswith("_gt")]

    def case(path: Path) -> str | None:
        match = FRAME.fullmatch(path.name)
        return match[1] if match else None

    cases, findings = pair_up(
        folder,
        by_case(folder, images, case, "patientNNN_frameMM.nii.gz"),
        by_case(folder, masks, case, "patientNNN_frameMM_gt.nii.gz"),
        group=lambda name: name.partition("_")[0],
    )
    return cases, findings + [error(folder, patient, "holds no frames") for patient in patients if not files[patient]]


ACDC = Layout(
    "acdc",
    "patientNNN/patientNNN_frameMM.nii.gz and _gt.nii.gz, below training/ and testing/ or not;"
    " or patientNNN_frameMM_slice_K.h5 and patientNNN_frameMM.h5, below data/ and slices/ or not",
    find_acdc,
)
