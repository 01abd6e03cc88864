"""Anybody's own folder of images and masks."""

from collections.abc import Sequence
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np

from polydice.data.cases import WHOLE, Case, DataError, Dataset, Finding, Intensity
from polydice.data.files import FORMATS, PICTURES, UNREAD, UnreadableFile, ending, read_image, read_mask, tally
from polydice.data.parallel import in_parallel
from polydice.data.readers.layout import Layout, inside
from polydice.data.readers.pairs import BLACK, READ, WHITE, labels_and_void, read_labels, read_two_classes, same_names

IMAGES = ("images", "image", "imgs", "img")
MASKS = ("masks", "mask", "labels", "label", "gt")
MOST_LABELS = 64  # a picture with more values is none of labels
MANY = 8  # classes, and more: who has them gives them names
OBJECTS = 4  # in one mask, and more: if they are numbered, they look like classes


def find_folder(folder: Path, masks: str | None = None, ignore: int | None = None) -> Dataset | None:
    """`masks` names the folder of masks, where it is not one of MASKS or not the only one that fits the images."""
    places = folders_of(folder, masks)
    if not places:
        return None
    if masks is None:
        _refuse_rivals(folder, *places)
    cases, findings = same_names(folder, *places)
    if not cases and not findings:
        return None
    tallies = _tallies([case.masks[0] for case in cases], ignore)
    black_and_white = 2 * sum(map(_is_black_and_white, tallies)) > len(tallies)
    named = _named_classes(folder)
    classes = named or (("background", "foreground") if black_and_white else _classes_found(tallies))
    if not named and not black_and_white and _number_objects(tallies):
        what = (
            f"has masks that number objects, not classes (1 to {max(map(max, tallies))}, and each mask its own count): "
        )
        findings.append(Finding("error", WHOLE, what + "make every number above 0 a 1, or name them in classes.txt"))
    elif not named and len(classes) - 1 > MANY:
        what = f"has {len(classes) - 1} classes without names: if they number objects, make every number above 0 a 1; "
        findings.append(Finding("warning", WHOLE, what + "if they are classes, name them in classes.txt"))
    read = read_two_classes if black_and_white and len(classes) == 2 else read_labels
    name = folder.resolve().name
    return Dataset(name, folder, classes, _intensity(cases), tuple(cases), read, tuple(findings))


def folders_of(folder: Path, masks: str | None = None) -> tuple[Path, Path] | None:
    """Those of the images and of the masks."""
    images, found = inside(folder, *IMAGES), inside(folder, *([masks] if masks else MASKS))
    if images and masks and not found:
        others = ", ".join(sorted(path.name for path in folder.iterdir() if path.is_dir() and path != images))
        raise DataError(f"{folder} has no folder {masks!r} for --masks; beside {images.name} it has {others or 'none'}")
    return (images, found) if images and found else None


def _refuse_rivals(folder: Path, images: Path, masks: Path) -> None:
    """Sets of retinal vessels have the field of view in mask/, beside the truth. Only the user knows which is which."""
    kinds = (*READ, *UNREAD)  # what is of no use today may be tomorrow
    count = len(same_names(folder, images, masks, kinds)[0])
    rivals = [masks.name]
    for other in sorted(path for path in folder.iterdir() if path.is_dir() and path not in (images, masks)):
        cases = same_names(folder, images, other, kinds)[0]
        if len(cases) >= max(1, count) and _may_be_mask(cases[0].masks[0]):
            rivals.append(other.name)
    if len(rivals) > 1:
        raise DataError(
            f"{folder} has {len(rivals)} folders that fit the images: {', '.join(rivals)}. "
            'Say which one holds the truth: --masks NAME, or masks = "NAME" in a recipe'
        )


def _may_be_mask(file: Path) -> bool:
    values = _values(file, None)
    return 0 < len(values) <= MOST_LABELS or _is_black_and_white(values)


def _named_classes(folder: Path) -> tuple[str, ...]:
    """The lines of classes.txt, the background first."""
    names = folder / "classes.txt"
    if not names.exists():
        return ()
    classes = tuple(line.strip() for line in names.read_text(encoding="utf-8-sig").splitlines() if line.strip())
    if len(classes) < 2:
        raise DataError(f"{names} must name a class per line, the background first and at least one more: {classes}")
    return classes


def _tallies(masks: Sequence[Path], ignore: int | None) -> list[dict[int, int]]:
    """The values of each mask, and how many pixels have them. Masks with one value do not count. If all are so, those
    count that are not empty, since a mask that is all white is foreground."""
    found = list(in_parallel(partial(_values, ignore=ignore), masks, "looking for classes"))
    return [values for values in found if len(values) > 1] or [values for values in found if any(values)]


def _classes_found(tallies: Sequence[dict[int, int]]) -> tuple[str, ...]:
    """The labels that follow each other from 0 on: so a stray 7 in a set of 0, 1 and 2 is no class, and is found."""
    labels = {label for found in tallies for label in found}
    highest = next(label for label in count() if label + 1 not in labels)
    return ("background", *(f"class {label}" for label in range(1, max(highest, 1) + 1)))


def _number_objects(tallies: Sequence[dict[int, int]]) -> bool:
    """Labels 1 to n in most masks, with many different n: objects that were counted. Classes differ in which of them a
    mask has, or do not differ."""
    highest = [max(found) for found in tallies]
    in_order = sum(set(found) | {0} == {*range(high + 1)} for found, high in zip(tallies, highest, strict=True))
    return len(set(highest)) > 2 and max(highest) > OBJECTS and 4 * in_order >= 3 * len(tallies)


def _values(mask: Path, ignore: int | None) -> dict[int, int]:
    try:
        return {value: pixels for value, pixels in tally(read_mask(mask)).items() if value != ignore}
    except UnreadableFile:  # the check will say so
        return {}


def _is_black_and_white(values: dict[int, int]) -> bool:
    """Most of what is not black is white, and 255 is not what is left of labels."""
    bright = sum(pixels for value, pixels in values.items() if WHITE <= value <= 255)
    black = BLACK if 2 * values.get(255, 0) < bright else min(BLACK, *values) if values else 0
    grey = sum(pixels for value, pixels in values.items() if black < value < WHITE or value > 255)
    return not labels_and_void(values) and bright > grey


def _intensity(cases: list[Case]) -> Intensity:
    """Colours, or greys of 8 bits, where the first image is a picture of them."""
    for case in cases:
        try:
            picture = ending(case.images[0]) in PICTURES
            return "colour" if picture and read_image(case.images[0])[0].dtype == np.uint8 else "mr"
        except UnreadableFile:
            continue
    return "mr"


FOLDER = Layout(
    "folder",
    f"images/ and masks/, or the folder that --masks names, with files of the same names ({FORMATS})",
    find_folder,
)
