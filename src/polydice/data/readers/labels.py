"""The labels of a dataset.json: the names of classes, regions of several labels, and the label of pixels without one.

What nnU-Net demands of them is demanded here, before anything is read, and two things that it leaves to the user: the
label that is written for a region is one of its own, and no region is written over by one that it is a part of.
"""

from itertools import combinations
from typing import Any, NamedTuple

from polydice.data.cases import DataError, Regions

Named = list[tuple[str, tuple[int, ...]]]  # classes and their labels


class Described(NamedTuple):
    classes: tuple[str, ...]  # the background first
    ignore: int | None
    regions: Regions | None


def described(labels: dict[str, Any], order: Any = None) -> Described:
    """From `{"0": name}` as the Decathlon writes it, or `{name: 0}` as nnU-Net does; a list of labels is a region.

    >>> described({"background": 0, "organ": [1, 2], "tumour": 2, "ignore": 3}, [1, 2]).regions
    Regions(members=((0,), (1, 2), (2,)), order=(1, 2))
    """
    numbered = all(map(str.isdecimal, labels))
    pairs = [(str(value), _numbers(key)) if numbered else (key, _numbers(value)) for key, value in labels.items()]
    named = [(name, numbers) for name, numbers in pairs if name != "ignore"]
    ignored = [number for name, numbers in pairs if name == "ignore" for number in numbers]
    known = sorted({number for _, numbers in named for number in numbers})
    if known != list(range(len(known))) or len(known) < 2:
        raise DataError(f"labels must be numbered 0, 1, 2 and so on, at least two: {known}")
    if len(ignored) > 1 or (ignored and ignored[0] <= known[-1]):
        raise DataError(f"ignore must be one label, and the highest: {len(known)}, and not {ignored}")
    ignore = ignored[0] if ignored else None
    if any(len(numbers) > 1 for _, numbers in named):
        return _regions(named, order, ignore)
    names = {numbers[0]: name for name, numbers in named}
    if len(names) < len(named):
        raise DataError(f"one label has two names: {labels}; merge them, or make a region of several labels")
    return Described(tuple(names[number] for number in known), ignore, None)


def _numbers(value: Any) -> tuple[int, ...]:
    return tuple(dict.fromkeys(map(int, value))) if isinstance(value, list) else (int(value),)


def _regions(named: Named, order: Any, ignore: int | None) -> Described:
    """nnU-Net goes by the order in which the file has them."""
    background = [name for name, numbers in named if numbers == (0,)]
    regions = [(name, numbers) for name, numbers in named if numbers != (0,)]
    if len(background) != 1 or any(0 in numbers for _, numbers in regions):
        raise DataError("where labels have regions, 0 must be a class by itself, the background, and in no region")
    wanted = ", ".join(f"{name!r} {list(numbers)}" for name, numbers in regions)
    if not isinstance(order, list) or len(order) != len(regions):
        raise DataError(f"regions need regions_class_order, a label to write for each of {wanted}: {order}")
    for (name, numbers), label in zip(regions, order, strict=True):
        if label not in numbers:
            raise DataError(f"regions_class_order {order} has {label} for {name!r}, which is {list(numbers)}: {wanted}")
    for (name, numbers), (later, others) in combinations(regions, 2):
        if set(numbers) < set(others):
            raise DataError(f"{name!r} is a part of {later!r}, which would be written over it: name {later!r} first")
    members = ((0,), *(numbers for _, numbers in regions))
    return Described((*background, *(name for name, _ in regions)), ignore, Regions(members, tuple(map(int, order))))
