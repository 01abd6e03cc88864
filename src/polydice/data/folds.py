"""Cross-validation: the cases cut into parts, each of them tested on once.

With n parts in order, fold k tests on part k, validates on part k + 1 (mod n) and trains on the others.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import chain
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
    """The folds of `cases`.

    `grouped` keeps every group (patient, video sequence) within one part, and the parts nearly equal in cases.
    `contiguous` cuts the ids in lexicographic order, `random` shuffles them with `seed`, both into parts whose sizes
    differ by one at most. These two look at cases alone, so a group can lie in two parts, and what was trained on can
    be tested on: they are here to compare with results that were made so.

    >>> from polydice.data.cases import Case
    >>> split([Case(frame, frame[0], (), ()) for frame in ("a1", "a2", "b1", "c1")], folds=3)[0]
    Fold(train=(3,), validation=(2,), test=(0, 1))
    """
    if folds < 3:
        raise ValueError(f"folds must be at least 3, one part each to train, to validate and to test on: {folds}")
    by_id = sorted(range(len(cases)), key=lambda place: cases[place].id)
    if how == "grouped":
        parts = _grouped_parts(cases, by_id, folds)
    elif how == "contiguous" or how == "random":
        if len(cases) < folds:
            raise DataError(f"{len(cases)} cases cannot be cut into {folds} parts: take fewer folds")
        order = np.random.default_rng(seed).permutation(by_id) if how == "random" else np.array(by_id)
        parts = [part.tolist() for part in np.array_split(order, folds)]
    else:
        raise ValueError(f"how must be 'grouped', 'contiguous' or 'random': {how!r}")
    return [_fold(parts, k) for k in range(folds)]


def _grouped_parts(cases: Sequence[HasGroup], by_id: Sequence[int], folds: int) -> list[list[int]]:
    """The largest group goes first, each into the part that is smallest by then; ties are settled by order."""
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for place in by_id:
        groups[cases[place].group].append(place)
    if len(groups) < folds:
        raise DataError(
            f"{len(groups)} groups (patients, sequences) cannot be spread over {folds} parts: take fewer folds, "
            'or --split contiguous or random (split = "contiguous" in a recipe), which may split a group'
        )
    parts: list[list[int]] = [[] for _ in range(folds)]
    for group in sorted(groups.values(), key=len, reverse=True):
        min(parts, key=len).extend(group)
    return parts


def _fold(parts: Sequence[Sequence[int]], k: int) -> Fold:
    test, validation = k, (k + 1) % len(parts)
    train = [place for part in range(len(parts)) if part not in (test, validation) for place in parts[part]]
    return Fold(tuple(sorted(train)), tuple(sorted(parts[validation])), tuple(sorted(parts[test])))


def save_folds(file: Path, folds: Sequence[Fold], cases: Sequence[HasGroup]) -> None:
    """Writes the folds as JSON, by the ids of the cases."""
    named = [{part: [cases[place].id for place in places] for part, places in fold._asdict().items()} for fold in folds]
    file.write_text(json.dumps(named, indent=1) + "\n")


def load_folds(file: Path, cases: Sequence[HasGroup]) -> list[Fold]:
    """The folds of `file`, which must hold exactly these cases, each once in every fold."""
    places = {case.id: place for place, case in enumerate(cases)}
    try:
        named = [[fold[part] for part in Fold._fields] for fold in json.loads(file.read_text())]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{file} is not a list of folds, each with {', '.join(Fold._fields)}: {error!r}") from error
    for number, fold in enumerate(named):
        count = Counter(chain.from_iterable(fold))
        count.subtract(list(places))
        wrong = [id for id, times in count.items() if times != 0]  # not of the set, not in the fold, or in it twice
        if wrong:
            raise DataError(
                f"fold {number} of {file} must hold each of the {len(places)} cases once; "
                f"it does not for {len(wrong)}, such as {', '.join(map(str, wrong[:3]))}"
            )
    return [Fold(*(tuple(places[id] for id in part) for part in fold)) for fold in named]
