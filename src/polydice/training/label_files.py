"""From input files to the files of their label maps: what belongs together, what it will be called, how it is written.

A label map has its input's format and geometry: NIfTI stays NIfTI with the same matrices and units, TIFF stays TIFF
with the same pages, and what is PNG, JPEG, BMP or GIF becomes an 8-bit PNG. Its values are the classes' numbers.
"""

import gzip
from collections.abc import Container, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import nibabel as nib
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from polydice.data.cases import DataError
from polydice.data.files import (
    FORMATS,
    PICTURES,
    UNREAD,
    VOLUMES,
    Array,
    Spacing,
    UnreadableFile,
    ending,
    read_images,
    stem,
)
from polydice.data.readers.decathlon import CHANNEL, images_to_predict
from polydice.data.readers.layout import files_in
from polydice.durable import replace_file

READ = PICTURES + VOLUMES
TIFF = (".tif", ".tiff")
LEVEL = 6  # of gzip; level 9 takes several times as long and saves one percent


class Job(NamedTuple):
    """One image and where its label map goes."""

    files: tuple[Path, ...]  # one, or one for each channel
    target: Path

    @property
    def overlay(self) -> Path:
        return self.target.with_name(f"{stem(self.target)}_overlay.png")


def jobs(inputs: Sequence[Path], out: Path, by_channel: bool, overlay: bool) -> list[Job]:
    """What is to be done for files, and for folders of them.

    With `by_channel`, CASE_0000, CASE_0001, … are the channels of one image, and its label map is called CASE. Of a
    data set with a dataset.json, whatever its channels are, it is the same, and the images are those in imagesTs. Names
    that two label maps would share, and label maps that would replace an input, are refused before anything is done.
    """
    files: dict[Path, None] = {}  # each once
    cases: dict[Path, list[Path]] = {}
    for path in inputs:
        of_set = images_to_predict(path) if path.is_dir() else None
        cases |= of_set or {}
        if of_set is None:
            files |= dict.fromkeys(_images_in(path) if path.is_dir() else [path])
    for file in files:
        cases.setdefault(_case(file, files) if by_channel else file, []).append(file)
    if not cases:
        raise DataError("no image was given: name files, or folders of them")
    found = [Job(tuple(sorted(parts)), out / _name(case)) for case, parts in cases.items()]
    _check_targets(found, overlay)
    return found


def _images_in(folder: Path) -> list[Path]:
    images = [path for path in files_in(folder) if ending(path) in (*READ, *UNREAD)]  # the latter are named as such
    if not any(ending(path) in READ for path in images):
        more = ", and no imagesTs beside its dataset.json" if (folder / "dataset.json").exists() else ""
        raise DataError(f"{folder} holds no images: {FORMATS}{more}")
    return images


def _case(file: Path, files: Container[Path]) -> Path:
    """The case that a channel belongs to, if its first channel is there too; else the file itself."""
    channel, kind = CHANNEL.fullmatch(stem(file)), file.name.removeprefix(stem(file))
    whole = channel and file.with_name(f"{channel[1]}_0000{kind}") in files
    return file.with_name(channel[1] + kind) if channel and whole else file


def _name(image: Path) -> str:
    kept = ending(image) if ending(image) in (*VOLUMES, *TIFF) else ".png"
    return stem(image) + kept


def _check_targets(found: Sequence[Job], overlay: bool) -> None:
    inputs = {file.resolve() for job in found for file in job.files}
    owner: dict[Path, Path] = {}
    for job in found:
        for target in (job.target, job.overlay) if overlay else (job.target,):
            if target in owner:
                raise DataError(
                    f"{owner[target]} and {job.files[0]} would both be written to {target}: do one at a time"
                )
            if target.resolve() in inputs:
                raise DataError(f"{target} is an input and would be replaced: choose another folder for --out")
            owner[target] = job.files[0]


def read(job: Job) -> tuple[Array, Spacing]:
    """The image `[channels, *spatial]` and its spacing; the channels of several files follow each other."""
    for number, file in enumerate(job.files):
        if ending(file) not in READ and file.exists():
            raise UnreadableFile(file, f"is not {FORMATS}")
        if len(job.files) > 1 and not stem(file).endswith(f"_{number:04d}"):
            raise UnreadableFile(file, f"cannot be used: channel _{number:04d} of its case is missing")
    return read_images(job.files)


def write(labels: NDArray[np.uint8], job: Job) -> None:
    """Writes the label map `[*spatial]` of an image as a file of the image's own kind."""
    kind = ending(job.target)
    if kind in VOLUMES:
        replace(job.target, _nifti(labels, job.files[0]))
    else:
        pages = [Image.fromarray(page) for page in labels.reshape(-1, *labels.shape[-2:])]
        options = {"save_all": True, "append_images": pages[1:], "compression": "tiff_deflate"}
        replace(job.target, encoded(pages[0], "TIFF", **options) if kind in TIFF else encoded(pages[0], "PNG"))


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def _nifti(labels: NDArray[np.uint8], like: Path) -> bytes:
    """With the header of the image: both matrices, their codes, voxel sizes and units stay as they are."""
    image: Any = nib.load(like)
    header = image.header.copy()
    header.set_data_dtype(np.uint8)
    header.set_slope_inter(1, 0)
    header.set_intent("none")
    header["cal_min"] = header["cal_max"] = 0  # the range of grey values to show: that of the image
    content: bytes = type(image)(labels.T, image.affine, header).to_bytes()
    return gzip.compress(content, LEVEL, mtime=0) if ending(like) == ".nii.gz" else content


def replace(path: Path, content: bytes) -> None:
    """Makes or replaces a file in one step: nobody ever sees half of it."""
    try:
        replace_file(path, content)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}") from error
