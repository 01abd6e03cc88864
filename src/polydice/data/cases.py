"""What a data set is: cases, each with an image, labels and the group (patient, video sequence) it must stay with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

# What the numbers of an image mean: 0 ... 255; any scale, so minimum and maximum of a case count; Hounsfield units;
# or already between 0 and 1, to be left alone.
Intensity = Literal["colour", "mr", "ct", "unit"]

CT_WINDOW = (-125.0, 275.0)  # the Hounsfield units of CT that become 0 and 1, unless a preparation has others
VOID = 255  # the label, once a set is prepared, of pixels that have none: neither trained on nor scored
WHOLE = "the whole set"  # where a finding is that concerns no single file


class DataError(ValueError):
    """A folder or file cannot be used; the message is for the person who brought it."""


class Sample(NamedTuple):
    """A case as its files hold it; nothing resized, nothing normalised."""

    image: NDArray[np.generic]  # [channels, *spatial]: two spatial axes, or three with the slices first
    labels: NDArray[np.integer]  # [*spatial]: 0 background, 1 ... as in Dataset.label_names, or Dataset.ignore
    spacing: tuple[float, ...] | None  # millimetres along each spatial axis; None where the files do not say
    remark: str = ""  # what had to be decided on the way, such as a threshold


@dataclass(frozen=True)
class Case:
    id: str
    group: str  # never split over two parts
    images: tuple[Path, ...]  # the modalities of one image, or the slices of one volume
    masks: tuple[Path, ...]  # like `images` where a slice is a file; the same files where both are in one
    annotated: tuple[int, ...] | None = None  # the classes that somebody looked for, the background first; None: all

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys(self.images + self.masks))


class Regions(NamedTuple):
    """Classes that overlap, each of several labels. A network has a channel for each but the background."""

    members: tuple[tuple[int, ...], ...]  # the labels of each class, the background's first: ((0,), (1, 2), (2,))
    order: tuple[int, ...]  # the label to write where each class but the background is found, over those before it

    def label_names(self, classes: Sequence[str]) -> tuple[str, ...]:
        """Each label by the names of the classes that have it.

        >>> Regions(((0,), (1, 2), (2,)), (1, 2)).label_names(("background", "tumour", "core"))
        ('background', 'tumour', 'tumour + core')
        """
        labels = range(1 + max(label for each in self.members for label in each))
        having = [[name for name, each in zip(classes, self.members, strict=True) if label in each] for label in labels]
        return tuple(map(" + ".join, having))


class Finding(NamedTuple):
    """What is wrong (error: training would be wrong too) or odd (warning) with one file or case."""

    level: Literal["error", "warning"]
    where: str  # the file below the set's folder, or the case, or WHOLE
    what: str


@dataclass(frozen=True)
class Dataset:
    name: str
    folder: Path
    classes: tuple[str, ...]  # the background first
    intensity: Intensity
    cases: tuple[Case, ...]  # in lexicographic order of their ids
    read: Callable[[Case], Sample]  # a function of a module, so that other processes can be sent it
    findings: tuple[Finding, ...] = ()  # what the list of files shows already: partners that are missing
    listed: int = 0  # cases that the files speak of, those of no use too; 0 if these are the `cases`
    ignore: int | None = None  # the label of pixels that have none
    regions: Regions | None = None  # where classes overlap; else the label of a class is its place in `classes`

    @property
    def groups(self) -> int:
        return len({case.group for case in self.cases})

    @property
    def label_names(self) -> tuple[str, ...]:
        """By label: the classes, unless these are regions."""
        return self.regions.label_names(self.classes) if self.regions else self.classes

    @property
    def partly(self) -> dict[str, list[str]]:
        """The annotated classes of the cases in which not all are."""
        return {case.id: [self.classes[label] for label in case.annotated] for case in self.cases if case.annotated}
