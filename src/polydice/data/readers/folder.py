"""Anybody's own folder of images and masks."""

import csv
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np

from polydice.data.cases import Case, DataError, Dataset, Finding, Intensity
from polydice.data.files import PICTURES, UnreadableFile, ending, read_image, read_mask, tally
from polydice.data.parallel import in_parallel
from polydice.data.readers.layout import Layout, error, inside
from polydice.data.readers.pairs import WHITE, read_labels, read_two_classes, same_names

IMAGES = ("images", "image", "imgs", "img")
MASKS = ("masks", "mask", "labels", "label", "gt")


def find_folder(folder: Path) -> Dataset | None:
    images, masks = inside(folder, *IMAGES), inside(folder, *MASKS)
    if not images or not masks:
        return None
    cases, findings = same_names(folder, images, masks)
    if not cases and not findings:
        return None
    cases, about_groups = _grouped(folder, cases)
    classes = _named_classes(folder) or _classes_found([case.masks[0] for case in cases])
    read = read_two_classes if len(classes) == 2 else read_labels
    name = folder.resolve().name
    return Dataset(name, folder, classes, _intensity(cases), tuple(cases), read, (*findings, *about_groups))


def _grouped(folder: Path, cases: list[Case]) -> tuple[list[Case], list[Finding]]:
    """The cases with the groups of groups.csv, where there is one."""
    table = folder / "groups.csv"
    if not table.exists():
        return cases, []
    with table.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(file)
        if not {"case", "group"} <= set(rows.fieldnames or ()):
            raise DataError(f"{table} must have the columns case and group, but has {', '.join(rows.fieldnames or ())}")
        groups = {row["case"]: row["group"] for row in rows}
    ids = {case.id for case in cases}
    findings = [
        error(folder, table, f"gives a group to {name}, which is no case") for name in sorted(groups.keys() - ids)
    ]
    findings += [error(folder, table, f"gives no group to {name}") for name in sorted(ids - groups.keys())]
    return [replace(case, group=groups.get(case.id, case.id)) for case in cases], findings


def _named_classes(folder: Path) -> tuple[str, ...]:
    """The lines of classes.txt, the background first."""
    names = folder / "classes.txt"
    if not names.exists():
        return ()
    classes = tuple(line.strip() for line in names.read_text(encoding="utf-8-sig").splitlines() if line.strip())
    if len(classes) < 2:
        raise DataError(f"{names} must name a class per line, the background first and at least one more: {classes}")
    return classes


def _classes_found(masks: Sequence[Path]) -> tuple[str, ...]:
    """Black and white masks have two classes. Of labels those count that follow each other from 0 on, so that a stray
    7 in a set of 0, 1 and 2 is found to be one."""
    tallies = [found for found in in_parallel(_values, masks, "looking for classes") if len(found) > 1]
    if 2 * sum(map(_is_black_and_white, tallies)) > len(tallies):
        return ("background", "foreground")
    labels = {label for found in tallies for label in found}
    highest = next(label for label in count() if label + 1 not in labels)
    return ("background", *(f"class {label}" for label in range(1, max(highest, 1) + 1)))


def _values(mask: Path) -> dict[int, int]:
    try:
        return tally(read_mask(mask))
    except UnreadableFile:  # the check will say so
        return {}


def _is_black_and_white(values: dict[int, int]) -> bool:
    """Most of what is not black is white."""
    bright = sum(pixels for value, pixels in values.items() if WHITE <= value <= 255)
    return 2 * bright > sum(pixels for value, pixels in values.items() if value != 0)


def _intensity(cases: list[Case]) -> Intensity:
    """Colours, or greys of 8 bits, where the first image is a picture of them."""
    for case in cases:
        try:
            picture = ending(case.images[0]) in PICTURES
            return "colour" if picture and read_image(case.images[0])[0].dtype == np.uint8 else "mr"
        except UnreadableFile:
            continue
    return "mr"


FOLDER = Layout("folder", "images/ and masks/ with files of the same names (PNG, JPEG, TIFF, BMP, NIfTI)", find_folder)
