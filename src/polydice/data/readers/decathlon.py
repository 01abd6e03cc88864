"""Medical Segmentation Decathlon and nnU-Net: a folder with dataset.json, imagesTr and labelsTr.

The Decathlon has one file for all channels of a case, and a list of its cases. Version 1 of nnU-Net has the list, and a
file for each channel, CASE_0000 and so on. Version 2 has no list.
"""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from os.path import abspath
from pathlib import Path
from typing import Any

from polydice.data.cases import Case, DataError, Dataset, Finding, Intensity, Sample
from polydice.data.files import FORMATS, PICTURES, VOLUMES, ending, read_images, read_mask, stem
from polydice.data.readers.annotations import KEY, stated
from polydice.data.readers.labels import described
from polydice.data.readers.layout import IMAGES, Layout, error, files_in, inside, warning

HIPPOCAMPUS = re.compile(r"hippocampus_(\d{3})")
CHANNEL = re.compile(r"(.+)_\d{4}")  # as nnU-Net names the channels of a case
OUTSIDE = "is listed in dataset.json, but lies outside its folder, and is not read: copy it into the folder"
LINK = "is a link to a file outside the folder"  # which somebody has put there, as in a set that shares its files
COLOURS = {"r", "g", "b", "red", "green", "blue", "rgb", "rgb_to_0_1", "colour", "color", "photo"}


def find_decathlon(folder: Path) -> Dataset | None:
    images, masks, description = inside(folder, "imagesTr"), inside(folder, "labelsTr"), folder / "dataset.json"
    if not images or not masks or not description.exists():
        return None
    with _reading(description):
        about = json.loads(description.read_text(encoding="utf-8-sig"))
        classes, ignore, regions = described(about["labels"], about.get("regions_class_order"))
        channels = _channels(about)
        listed = [(folder / case["image"], folder / case["label"]) for case in about.get("training", ())]
    intensity = _intensity(channels)
    cases, findings = _cases(folder, images, masks, listed, channels)
    if intensity != "ct" and "ct" in channels:
        what = f"mixes CT with other channels ({', '.join(channels)}): all are scaled by their minimum and maximum"
        findings.append(warning(folder, description, what))
    name = str(about.get("name") or folder.resolve().name)
    if "hippocampus" in name.lower():
        cases = [replace(case, group=_person(case.id) or case.id) for case in cases]
    found = Dataset(
        name, folder, classes, intensity, tuple(cases), read_channels, tuple(findings), len(listed), ignore, regions
    )  # fmt: skip
    return stated(found, about.get(KEY, {}), description)


def images_to_predict(folder: Path) -> dict[Path, list[Path]] | None:
    """The files of each image in imagesTs, by the name that it would have as one file. None without such a folder."""
    images, description = inside(folder, "imagesTs"), folder / "dataset.json"
    if not images or not description.exists():
        return None
    with _reading(description):
        channels = _channels(json.loads(description.read_text(encoding="utf-8-sig")))
    found: dict[Path, list[Path]] = {}
    files = [path for path in files_in(images) if ending(path) in PICTURES + VOLUMES]
    if not files:
        raise DataError(f"{images} holds no images: {FORMATS}")
    for path in files:
        channel, kind = CHANNEL.fullmatch(stem(path)), path.name.removeprefix(stem(path))
        found.setdefault(images / (channel[1] + kind) if channel else path, []).append(path)
    count = _files_each(channels, files)
    of_channels = {case: paths for case, paths in found.items() if tuple(paths) == _parts(case, count)}
    others = {path: [path] for case, paths in found.items() if case not in of_channels for path in paths}
    return of_channels | others


@contextmanager
def _reading(description: Path) -> Iterator[None]:
    try:
        yield
    except DataError as problem:
        raise DataError(f"{description}: {problem}") from problem
    except (ValueError, TypeError, LookupError, AttributeError) as problem:
        raise DataError(f"{description} is not as the Decathlon or nnU-Net write it: {problem!r}") from problem


def _channels(about: dict[str, Any]) -> list[str]:
    return [str(name).lower() for name in (about.get("channel_names") or about["modality"]).values()]


def read_channels(case: Case) -> Sample:
    """The channels of an image, from one file or a file each, and its labels."""
    image, spacing = read_images(case.images)
    return Sample(image, read_mask(case.masks[0]), spacing)


def _person(case: str) -> str | None:
    """Of the Decathlon's hippocampi, volumes 2k - 1 and 2k are the two sides of one person: the grey values of both are
    multiples of one number, as one image was scaled before it was cut in two.

    >>> _person("hippocampus_003"), _person("hippocampus_004"), _person("hippocampus_005"), _person("mine")
    ('person002', 'person002', 'person003', None)
    """
    match = HIPPOCAMPUS.fullmatch(case)
    return f"person{(int(match[1]) + 1) // 2:03d}" if match else None


def _intensity(channels: list[str]) -> Intensity:
    if set(channels) == {"ct"}:
        return "ct"
    return "colour" if set(channels) <= COLOURS else "mr"


def _cases(
    folder: Path, images: Path, masks: Path, listed: list[tuple[Path, Path]], channels: list[str]
) -> tuple[list[Case], list[Finding]]:
    files = {path for place in (images, masks) for path in files_in(place) if ending(path) in IMAGES}
    count = _files_each(channels, files)
    why = "dataset.json lists it" if listed else "other files of its case are"
    cases, findings, used, home = [], [], set(), folder.resolve()
    for image, mask in listed or _on_disk(images, masks):
        needed = _parts(image, count)
        used |= {*needed, mask}
        away = [path for path in (*needed, mask) if listed and not path.resolve().is_relative_to(home)]
        outside = [path for path in away if not Path(abspath(path)).is_relative_to(abspath(folder))]
        findings += [error(folder, path, OUTSIDE) if path in outside else warning(folder, path, LINK) for path in away]
        missing = [path for path in (*needed, mask) if path not in outside and not path.exists()]
        findings += [error(folder, path, f"is not there, but {why}") for path in missing]
        if not missing and not outside:
            cases.append(Case(stem(mask), stem(mask), needed, (mask,)))
    extra = "is not listed in dataset.json" if listed else "is no channel that dataset.json names"
    findings += [error(folder, path, extra) for path in sorted(files - used)]
    return sorted(cases, key=lambda case: case.id), findings


def _files_each(channels: list[str], files: Iterable[Path]) -> int:
    """A colour picture is one file, whatever dataset.json calls its channels."""
    one = _intensity(channels) == "colour" and not any(stem(path).endswith("_0001") for path in files)
    return 1 if one else len(channels)


def _parts(image: Path, channels: int) -> tuple[Path, ...]:
    """The files of an image: itself, or one for each channel."""
    kind = image.name.removeprefix(stem(image))
    parts = tuple(image.with_name(f"{stem(image)}_{channel:04d}{kind}") for channel in range(channels))
    return (image,) if image.exists() or not any(part.exists() for part in parts) else parts


def _on_disk(images: Path, masks: Path) -> list[tuple[Path, Path]]:
    """The cases that images or masks speak of, as a list would have them."""
    kinds = {stem(path): path.name.removeprefix(stem(path)) for path in files_in(masks) if ending(path) in IMAGES}
    for path in files_in(images):
        channel = CHANNEL.fullmatch(stem(path))
        if ending(path) in IMAGES and stem(path) not in kinds:
            kinds.setdefault(channel[1] if channel else stem(path), path.name.removeprefix(stem(path)))
    return [(images / (case + kind), masks / (case + kind)) for case, kind in sorted(kinds.items())]


DECATHLON = Layout(
    "decathlon",
    "dataset.json, imagesTr/ and labelsTr/, of the Medical Segmentation Decathlon or nnU-Net",
    find_decathlon,
)
