"""A folder of images and a folder of masks: which belong together, and how black and white masks become labels."""

import re
from collections.abc import Collection
from pathlib import Path

import numpy as np
from scipy import ndimage

from polydice.data.cases import Case, Finding, Sample
from polydice.data.files import FORMATS, PICTURES, VOLUMES, Array, Labels, ending, read_image, read_mask, stem, tally
from polydice.data.readers.layout import by_case, files_in, pair_up

MASK_SUFFIX = re.compile(r"[_-](mask|segmentation|seg|label|gt)$", re.IGNORECASE)
READ = PICTURES + VOLUMES
NUMBER = re.compile(r"\d+")
BLACK, THRESHOLD, WHITE = 16, 127, 239  # compression makes 0 a little brighter, and 255 a little darker
LIKENESS = 3  # grey levels


def same_names(
    folder: Path, images: Path, masks: Path, kinds: Collection[str] = READ
) -> tuple[list[Case], list[Finding]]:
    """Images and masks of the same name, but for a suffix of the mask's; each case is a group of its own.

    Where no name is the same, but each image's begins with a number of its own, that number counts: 21_training.tif
    and 21_manual1.png. `kinds` are the endings of files that count.
    """

    def image_case(path: Path) -> str | None:
        return stem(path) if ending(path) in kinds else None

    def mask_case(path: Path) -> str | None:
        name = image_case(path)
        return name if name is None or name in found.of else MASK_SUFFIX.sub("", name)

    def numbered_case(path: Path) -> str | None:
        name = image_case(path)
        return name if name is None else numbers.get(_number(name), name)

    found = by_case(folder, files_in(images), image_case, FORMATS)
    partners = by_case(folder, files_in(masks), mask_case, FORMATS)
    numbers = {_number(name): name for name in found.of}
    if not found.of.keys() & partners.of.keys() and len(numbers) == len(found.of) and None not in numbers:
        partners = by_case(folder, files_in(masks), numbered_case, FORMATS)
    return pair_up(folder, found, partners, group=str)


def _number(name: str) -> int | None:
    match = NUMBER.match(name)
    return int(match[0]) if match else None


def read_labels(case: Case) -> Sample:
    """An image file and a mask file that holds labels."""
    image, spacing = read_image(case.images[0])
    return Sample(image, read_mask(case.masks[0]), spacing)


def read_two_classes(case: Case, ignore: int | None = None) -> Sample:
    """An image file and a mask file that is black and white, or holds labels 0 and 1; `ignore` stays as it is."""
    image, held, spacing, _ = read_labels(case)
    void = np.zeros(held.shape, bool) if ignore is None else held == ignore
    if void.all():
        return Sample(image, held, spacing)
    jpeg = ending(case.masks[0]) in (".jpg", ".jpeg")
    mask = np.where(void, held[~void].min(), held)  # so that no threshold sees the void
    labels, cut = two_classes(mask, image, jpeg)
    why = "is smeared by JPEG" if jpeg else "has values between 0 and 255"
    if not jpeg and not ((mask > BLACK) & (mask < WHITE)).any():
        why = "is black and white, but not 0 and 255"
    return Sample(image, np.where(void, held, labels), spacing, f"{why}: foreground is > {THRESHOLD}" if cut else "")


def two_classes(mask: Labels, image: Array, jpeg: bool) -> tuple[Labels, bool]:
    """A mask of 0 and 255 to labels 0 and 1, and whether values in between were cut at the threshold; `image`
    `[channels, *spatial]`. A mask that stays at or below the threshold holds labels already, and so does one of labels
    and 255, which then marks pixels that have none.

    A patch of some other value is not cut, but keeps it as a label, for the check to find: neither compression nor soft
    edges make such patches. An image that shines through its mask does, as in the dark margins of CVC-ClinicDB; but
    then the value is about the image's own.
    """
    if mask.max() <= THRESHOLD or (not jpeg and labels_and_void(tally(mask))):
        return mask, False
    labels = (mask > THRESHOLD).astype(mask.dtype)
    between = (mask > 0) & (mask < 255)
    if not between.any():
        return labels, False
    width, spread = (5, 4) if jpeg else (3, 0)
    low, high = ndimage.minimum_filter(mask, width), ndimage.maximum_filter(mask, width)
    flat = (low > _black(mask, jpeg)) & (high < WHITE) & (high - low <= spread)
    patches, count = ndimage.label(ndimage.binary_dilation(flat, np.ones((width,) * mask.ndim)))
    if count:
        grey = image.mean(0) if image.shape[1:] == mask.shape else np.inf
        cores, every = np.where(flat, patches, 0), np.arange(1, count + 1)
        unlike = ndimage.median(np.abs(grey - mask), patches, every) > LIKENESS
        foreign = np.concatenate([[0], np.where(unlike, ndimage.median(mask, cores, every), 0)])[patches]
        if (foreign == 1).any():
            return mask, False  # a class, so that white is something else
        labels = np.where(foreign > 0, foreign, labels).astype(mask.dtype)
    return labels, bool((between & (labels <= 1)).any())


def labels_and_void(values: Collection[int]) -> bool:
    """Whether the values of a mask are labels that follow each other from 0 on, at least two, and 255.

    >>> labels_and_void([0, 1, 255]), labels_and_void([0, 255]), labels_and_void([0, 1, 254, 255])
    (True, False, False)
    """
    labels = sorted(set(values) - {255})
    return 255 in values and len(labels) > 1 and labels[-1] <= THRESHOLD and labels == [*range(len(labels))]


def _black(mask: Labels, jpeg: bool) -> int:
    """Up to which value black goes: the darkest there is or, where white is not 255, about as far from 0 as that."""
    if 2 * np.count_nonzero(mask == 255) < np.count_nonzero(mask >= WHITE):
        return BLACK
    return max(int(jpeg), int(mask.min()))
