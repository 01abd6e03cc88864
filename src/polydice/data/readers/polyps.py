"""CVC-ClinicDB and Kvasir-SEG: colonoscopy frames with black and white masks."""

import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from polydice.data.cases import Case, Dataset, Finding
from polydice.data.files import stem
from polydice.data.readers.layout import Layout, files_in, inside, warning
from polydice.data.readers.pairs import read_two_classes, same_names

# CVC-ClinicDB: the first frame of each of its 29 video sequences.
FIRST_FRAMES = (
    1, 26, 51, 68, 79, 104, 127, 152, 178, 200, 206, 228, 253, 278, 298,
    318, 343, 364, 384, 409, 429, 448, 467, 479, 504, 529, 547, 572, 592,
)  # fmt: skip
FRAMES = 612

KVASIR_NAME = re.compile(r"c[jk][0-9a-z]{23}")
KVASIR_BOXES = "kavsir_bboxes.json"  # the owner's spelling


def find_cvc(folder: Path) -> Dataset | None:
    for place in ("PNG", "", "TIF"):
        images, masks = inside(folder, f"{place}/Original"), inside(folder, f"{place}/Ground Truth")
        if images and masks and _mostly(images, lambda name: sequence(name) is not None):
            cases, findings = same_names(folder, images, masks)
            for case in cases:
                if sequence(case.id) is None:
                    what = f"is none of the frames 1 to {FRAMES}: taken for a sequence of its own"
                    findings.append(warning(folder, case.images[0], what))
            cases = [replace(case, group=sequence(case.id) or case.id) for case in cases]
            return _polyps("CVC-ClinicDB", folder, cases, findings)
    return None


def sequence(frame: str) -> str | None:
    """The video sequence of a frame of CVC-ClinicDB.

    >>> sequence("25"), sequence("26"), sequence("612"), sequence("613")
    ('sequence01', 'sequence02', 'sequence29', None)
    """
    if not frame.isdecimal() or not 1 <= int(frame) <= FRAMES:
        return None
    return f"sequence{bisect_right(FIRST_FRAMES, int(frame)):02d}"


def find_kvasir(folder: Path) -> Dataset | None:
    images, masks = inside(folder, "images"), inside(folder, "masks")
    if not images or not masks:
        return None
    named = "kvasir" in folder.resolve().name.lower() or (folder / KVASIR_BOXES).exists()
    if not named and not _mostly(images, lambda name: KVASIR_NAME.fullmatch(name) is not None):
        return None
    return _polyps("Kvasir-SEG", folder, *same_names(folder, images, masks))


def _mostly(images: Path, known: Callable[[str], bool]) -> bool:
    names = [known(stem(path)) for path in files_in(images)]
    return 2 * sum(names) > len(names)


def _polyps(name: str, folder: Path, cases: list[Case], findings: list[Finding]) -> Dataset:
    return Dataset(name, folder, ("background", "polyp"), "colour", tuple(cases), read_two_classes, tuple(findings))


CVC = Layout(
    "cvc-clinicdb", "Original/N.png and Ground Truth/N.png (or .tif), N from 1 to 612, below PNG/ or not", find_cvc
)
KVASIR = Layout(
    "kvasir-seg", "images/ and masks/, and kvasir in the folder's name or Kvasir-SEG's names of images", find_kvasir
)
