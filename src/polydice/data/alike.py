"""Images of different groups that are the same or nearly so, and names that follow each other for a reason: what is
trained on would then be tested on. docs/data.md says how these were measured.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

DEPTH, EDGE = 8, 16  # slices of a thumbnail, and pixels along its edges
SAME = 0.98  # likeness of two images, and more, that are nearly the same
APART = 0.9  # likeness, and more, that they have without the mean of the set: all heads and chests look much the same
MEAN = 20  # cases, and more, have a mean that is none of them
MOST, AT_ONCE = 20_000, 256  # cases that are compared, each with all others, and how many of them in one go
NEAREST = 0.01  # of all others: a neighbour by name that is among them is alike
SUSPICIOUS, FEW = 0.1, 5  # share and number of such neighbours that are no chance: by chance it is about NEAREST

Thumbnail = NDArray[np.float32]
Matrix = NDArray[np.float32]


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

    of: int
    alike: list[Alike]


def thumbnail(image: NDArray[Any]) -> Thumbnail:
    """A small picture of an image `[channels, *spatial]`: `[points]` of mean 0 and length 1. So the likeness of two
    images, their correlation, is a product. All 0 if there is nothing to see; empty if the image is smaller itself.

    A point is the mean of two pixels along each axis, not of all that it stands for: so it costs little.

    >>> thumbnail(np.arange(1024).reshape(1, 32, 32)).shape, thumbnail(np.arange(8100).reshape(1, 9, 30, 30)).shape
    ((256,), (2048,))
    """
    if image.ndim not in (3, 4) or min(image.shape[-2:]) < EDGE:
        return np.empty(0, np.float32)
    shape = (DEPTH, EDGE, EDGE)[-(image.ndim - 1) :]
    every = [_middles(length, 2 * points) for length, points in zip(image.shape[1:], shape, strict=True)]
    with np.errstate(over="ignore", invalid="ignore"):  # of NaN and infinity, which are found elsewhere
        small = image[np.ix_(np.arange(len(image)), *every)].sum(0, dtype=np.float32)
        for _ in shape:  # each axis in turn is the first
            small = np.moveaxis(small[::2] + small[1::2], 0, -1)
    small = small.ravel()
    nothing = not np.isfinite(small).all() or small.min() == small.max()
    return np.zeros_like(small) if nothing else _of_length_1((small - small.mean())[None])[0]


def _middles(length: int, points: int) -> NDArray[np.int64]:
    """Of as many equal stretches, the pixels in the middle."""
    return (2 * np.arange(points) + 1) * length // (2 * points)


def _of_length_1(rows: Matrix) -> Matrix:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    found: Matrix = rows / np.where(lengths > 0, lengths, 1)
    return found


def compared(cases: Sequence[Pictured]) -> tuple[list[Alike], Neighbours]:
    """For each case the one of another group that it is nearly the same as, if there is one before it in the order of
    names, and the neighbours in that order. Nothing of a set with more than MOST cases."""
    usual = max((len(case.thumbnail) for case in cases), default=0)
    seen = [place for place, case in enumerate(cases) if len(case.thumbnail) == usual and case.thumbnail.any()]
    if not 2 <= len(seen) <= MOST:
        return [], Neighbours(0, [])
    order = np.array(sorted(seen, key=lambda place: _natural(cases[place].id)))
    small = np.stack([cases[place].thumbnail for place in order])
    groups = np.unique([cases[place].group for place in order], return_inverse=True)[1]
    rest = _of_length_1(small - small.mean(0)) if len(order) >= MEAN else small
    same: list[Alike] = []
    beside: list[Alike] = []
    for rows in np.array_split(np.arange(len(order)), -(-len(order) // AT_ONCE)):
        likeness = np.where(groups[rows, None] == groups, -1, small[rows] @ small.T)
        same += _nearly_the_same(np.where(rest[rows] @ rest.T < APART, -1, likeness), rows)
        beside += _among_the_nearest(likeness, rows)
    count = int(np.count_nonzero(groups[1:] != groups[:-1]))
    many = len(beside) >= max(FEW, SUSPICIOUS * count)
    named = [[Alike(int(order[one]), int(order[other]), how) for one, other, how in pairs] for pairs in (same, beside)]
    return named[0], Neighbours(count, named[1] if many else [])


def _nearly_the_same(likeness: Matrix, rows: NDArray[np.int64]) -> Iterator[Alike]:
    """Of each row the one before it that is most alike. `likeness` is [rows, all], -1 where it does not count."""
    for row, each in zip(rows, likeness, strict=True):
        if row and each[:row].max() >= SAME:
            yield Alike(row, int(each[:row].argmax()), float(each[:row].max()))


def _among_the_nearest(likeness: Matrix, rows: NDArray[np.int64]) -> Iterator[Alike]:
    """Of each row the one just before it, if that is of another group and few of all others are more alike. `likeness`
    is [rows, all], -1 within a group."""
    for row, each in zip(rows, likeness, strict=True):
        others = np.count_nonzero(each != -1)
        if row and each[row - 1] != -1 and np.count_nonzero(each > each[row - 1]) < NEAREST * others:
            yield Alike(row, row - 1, float(each[row - 1]))


def _natural(name: str) -> list[tuple[int, str]]:
    """The order people have in mind: 9 before 10.

    >>> sorted(["slice10", "slice9", "a"], key=_natural)
    ['a', 'slice9', 'slice10']
    """
    return [(int(part or 0), "") if place % 2 else (0, part) for place, part in enumerate(re.split(r"(\d+)", name))]
