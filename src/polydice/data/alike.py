"""Images of different groups that are the same or nearly so, and names that follow each other for a reason: what is
trained on would then be tested on. docs/data.md says how these were measured.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

DEPTH, EDGE = 8, 16  # slices of a thumbnail, and pixels along its edges
SAME = 0.98  # likeness of two images, and more, that are nearly the same
APART = 0.9  # likeness, and more, that they have without the mean of the set: all heads and chests look much the same
MEAN = 20  # cases, and more, have a mean that is none of them
MOST = 20_000  # cases that are compared, as each is with all others
NEAREST = 0.01  # of all others: a neighbour by name that is among them is alike
SUSPICIOUS, FEW = 0.1, 5  # share and number of such neighbours that are no chance: by chance it is about NEAREST

Thumbnail = NDArray[np.float32]


class Pictured(NamedTuple):
    """A case, for comparison with others."""

    id: str
    group: str
    thumbnail: Thumbnail


class Alike(NamedTuple):
    """Two cases of different groups, by their places in the list."""

    one: int
    other: int
    likeness: float


class Neighbours(NamedTuple):
    """Cases of different groups whose names follow each other, and those of them that are suspiciously alike."""

    count: int
    alike: list[Alike]


def thumbnail(image: NDArray[Any]) -> Thumbnail:
    """A small picture of an image `[channels, *spatial]`: `[points]` of mean 0 and length 1. So the likeness of two
    images, their correlation, is a product. All 0 if there is nothing to see; empty if the image is smaller itself.

    A point is the mean of two pixels along each axis, not of all that it stands for: so it costs little.

    >>> thumbnail(np.arange(1024).reshape(1, 32, 32)).shape, thumbnail(np.arange(8100).reshape(1, 9, 30, 30)).shape
    ((256,), (2048,))
    """
    if min(image.shape[-2:]) < EDGE:
        return np.empty(0, np.float32)
    shape = (DEPTH, EDGE, EDGE)[-(image.ndim - 1) :]
    every = [_middles(length, 2 * points) for length, points in zip(image.shape[1:], shape, strict=True)]
    small = image[np.ix_(range(len(image)), *every)].sum(0, dtype=np.float32)
    for _ in shape:  # each axis in turn is the first
        small = np.moveaxis(small[::2] + small[1::2], 0, -1)
    small = small.ravel()
    return _of_length_1((small - small.mean())[None])[0] if np.isfinite(small).all() else np.zeros_like(small)


def _middles(length: int, points: int) -> NDArray[np.int64]:
    """Of as many equal stretches, the pixels in the middle."""
    return (2 * np.arange(points) + 1) * length // (2 * points)


def _of_length_1(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 1e-6 * (1 + np.abs(rows).max(initial=0)))


def compared(cases: Sequence[Pictured]) -> tuple[list[Alike], Neighbours]:
    """Of cases in any order, for each the one of another group that it is nearly the same as, if there is one before it
    in the order of names, and the neighbours by name. Nothing of sets with more than MOST cases."""
    order = sorted(range(len(cases)), key=lambda place: _natural(cases[place].id))
    length = max((len(cases[place].thumbnail) for place in order), default=0)
    order = [place for place in order if len(cases[place].thumbnail) == length and cases[place].thumbnail.any()]
    if not 2 <= len(order) <= MOST:
        return [], Neighbours(0, [])
    small = np.stack([cases[place].thumbnail for place in order])
    rest = _of_length_1(small - small.mean(0))
    groups = np.unique([cases[place].group for place in order], return_inverse=True)[1]
    same, beside, count = [], [], 0
    for row, place in enumerate(order):
        likeness = np.where(groups == groups[row], -1, small @ small[row])
        before = likeness[:row].copy()
        if len(order) >= MEAN:
            before[rest[:row] @ rest[row] < APART] = -1
        if row and before.max() >= SAME:
            nearest = int(before.argmax())
            same.append(Alike(place, order[nearest], float(before[nearest])))
        if row and groups[row - 1] != groups[row]:
            count += 1
            nearer = np.count_nonzero(likeness > likeness[row - 1])
            if nearer < NEAREST * np.count_nonzero(groups != groups[row]):
                beside.append(Alike(place, order[row - 1], float(likeness[row - 1])))
    many = len(beside) >= max(FEW, SUSPICIOUS * count)
    return same, Neighbours(count, beside if many else [])


def _natural(name: str) -> list[tuple[int, str]]:
    """The order people have in mind: 9 before 10.

    >>> sorted(["slice10", "slice9", "a"], key=_natural)
    ['a', 'slice9', 'slice10']
    """
    return [(int(part or 0), "") if place % 2 else (0, part) for place, part in enumerate(re.split(r"(\d+)", name))]
