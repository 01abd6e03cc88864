"""Archives that hold image and labels, as many repositories keep ACDC and Synapse: a volume or a slice in each."""

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from polydice.data.cases import Case, Finding, Sample
from polydice.data.files import ARCHIVES, UnreadableFile, ending, read_archive
from polydice.data.readers.layout import error, files_in, inside


def archived_cases(
    folder: Path, places: Iterable[str], names: re.Pattern[str], expected: str
) -> tuple[list[Case], list[Finding]]:
    """A case for each volume; where there are only its slices, they are put together. `names` finds `case`, `group` and
    `slice` in the name of a file, and no slice in that of a volume."""
    found: dict[tuple[str, str], dict[int | None, Path]] = {}
    findings = []
    for path in (path for place in places if (inner := inside(folder, place)) for path in files_in(inner)):
        if match := names.fullmatch(path.name):
            number = None if match["slice"] is None else int(match["slice"])
            found.setdefault((match["case"], match["group"]), {})[number] = path
        elif ending(path) in ARCHIVES:
            findings.append(error(folder, path, f"is not read: {expected} is expected here"))
    cases = []
    for (case, group), files in sorted(found.items()):
        volume = files.pop(None, None)  # some copies have a volume and its slices side by side
        numbers = sorted(number for number in files if number is not None)
        paths = (volume,) if volume else tuple(files[number] for number in numbers)
        cases.append(Case(case, group, paths, paths))
        if not volume and (missing := sorted(set(range(numbers[0], numbers[-1])) - set(numbers))):
            findings.append(Finding("warning", case, f"lacks slices in between: {', '.join(map(str, missing))}"))
    return cases, findings if cases else []


def read_archived(case: Case) -> Sample:
    """One volume, or slices put together as one."""
    pairs = [read_archive(path) for path in case.images]
    shapes = [(image.shape[1:], labels.shape) for image, labels in pairs]
    for path, shape in zip(case.images, shapes, strict=True):
        if shape != shapes[0]:
            raise UnreadableFile(path, f"image and labels are {shape}, but {shapes[0]} in {case.images[0].name}")
    image, labels = pairs[0]
    if len(pairs) > 1 or image.ndim == 3:
        image, labels = np.stack([image for image, _ in pairs], axis=1), np.stack([labels for _, labels in pairs])
    return Sample(image, labels, None)
