"""Cross-validation: the cases cut into parts, each of them tested on once.

With n parts in order, fold k tests on part k, validates on part k + 1 (mod n) and trains on the others.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain, permutations
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import numpy as np

from polydice.data.cases import DataError

How = Literal["grouped", "contiguous", "random"]


class HasGroup(Protocol):
    """A case, as it was read or as it was prepared."""

    @property
    def id(self) -> str: ...
    @property
    def group(self) -> str: ...


class Fold(NamedTuple):
    """Places in the list of cases, in ascending order."""

    train: tuple[int, ...]
    validation: tuple[int, ...]
    test: tuple[int, ...]


def split(cases: Sequence[HasGroup], how: How = "grouped", folds: int = 5, seed: int = 0) -> list[Fold]:
    """The cases cut into as many parts as there are to be `folds`, and the folds that are made of them.

    `grouped` keeps every group (patient, video sequence) within one part, and the parts nearly equal in cases.
    `contiguous` cuts the ids in lexicographic order, `random` shuffles them, both into parts whose sizes differ by one
    at most. These two look at cases alone, so a group can lie in two parts, and what was trained on can be tested on:
    they are here to compare with results that were made so.

    Each `seed` of `grouped` and `random` is another cut; `contiguous` has only one.

    >>> from polydice.data.cases import Case
    >>> split([Case(frame, frame[0], (), ()) for frame in ("a1", "a2", "b1", "c1")], folds=3)[0]
    Fold(train=(3,), validation=(2,), test=(0, 1))
    """
    if folds < 3:
        raise ValueError(f"folds must be at least 3, one part each to train, to validate and to test on: {folds}")
    by_id = sorted(range(len(cases)), key=lambda place: cases[place].id)
    if how == "grouped":
        parts = _grouped_parts(cases, by_id, folds, seed)
    elif how == "contiguous" or how == "random":
        if len(cases) < folds:
            raise DataError(f"{len(cases)} cases cannot be cut into {folds} parts: take fewer folds")
        order = np.random.default_rng(seed).permutation(by_id) if how == "random" else np.array(by_id)
        parts = [part.tolist() for part in np.array_split(order, folds)]
    else:
        raise ValueError(f"how must be 'grouped', 'contiguous' or 'random': {how!r}")
    return [_fold(parts, k) for k in range(folds)]


def _grouped_parts(cases: Sequence[HasGroup], by_id: Sequence[int], count: int, seed: int) -> list[list[int]]:
    """Every group goes into the part that is smallest by then. With seed 0 the largest groups go first, and ties are
    settled by order, as it always was; any other seed shuffles the groups and then evens out the parts."""
    by_name: defaultdict[str, list[int]] = defaultdict(list)
    for place in by_id:
        by_name[cases[place].group].append(place)
    groups = list(by_name.values())
    if len(groups) < count:
        raise DataError(
            f"{len(groups)} groups (patients, sequences) cannot be spread over {count} parts: take fewer folds, "
            'or --split contiguous or random (split = "contiguous" in a recipe), which may split a group'
        )
    if seed == 0:
        groups.sort(key=len, reverse=True)
    else:
        groups = [groups[place] for place in np.random.default_rng(seed).permutation(len(groups))]
    parts: list[list[list[int]]] = [[] for _ in range(count)]
    sizes = [0] * count
    for group in groups:
        smallest = sizes.index(min(sizes))
        parts[smallest].append(group)
        sizes[smallest] += len(group)
    while seed != 0 and any(_exchange(large, small) for large, small in permutations(parts, 2)):
        pass
    return [list(chain.from_iterable(part)) for part in parts]


def _exchange(large: list[list[int]], small: list[list[int]]) -> bool:
    """Exchanges two groups, or moves one, if that brings the sizes of two parts nearer to each other: the choice that
    does so most. Whether there was one."""
    gap = _size(large) - _size(small)
    if gap < 2:
        return False
    given = {len(group): place for place, group in enumerate(large)}
    taken = {len(group): place for place, group in enumerate(small)} | {0: None}
    left, give, take = min((abs(gap - 2 * (ours - theirs)), ours, theirs) for ours in given for theirs in taken)
    if left >= gap:
        return False
    small.append(large.pop(given[give]))
    if (place := taken[take]) is not None:
        large.append(small.pop(place))
    return True


def _size(part: Sequence[Sequence[int]]) -> int:
    return sum(map(len, part))


def _fold(parts: Sequence[Sequence[int]], k: int) -> Fold:
    test, validation = k, (k + 1) % len(parts)
    train = [place for part in range(len(parts)) if part not in (test, validation) for place in parts[part]]
    return Fold(tuple(sorted(train)), tuple(sorted(parts[validation])), tuple(sorted(parts[test])))


def save_folds(file: Path, cut: Sequence[Fold], cases: Sequence[HasGroup]) -> None:
    """Writes the folds of a cut as JSON, by the ids of the cases."""
    named = [{part: [cases[place].id for place in places] for part, places in fold._asdict().items()} for fold in cut]
    file.write_text(json.dumps(named, indent=1) + "\n")
