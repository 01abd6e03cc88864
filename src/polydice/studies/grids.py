"""Which runs of a loss are scored, where some are missing: replicates and folds that make a whole grid."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

import numpy as np

from polydice.studies.outcomes import Outcome
from polydice.studies.study import Finished

Runs = dict[tuple[int, int], Finished]  # by replicate and fold
Pairs = list[tuple[int, int]]  # of replicate and fold


def whole_grids(pairs: Iterable[tuple[int, int]]) -> list[Pairs]:
    """Every way to take (replicate, fold) of those given so that all replicates have the same folds, as many replicates
    as have them.

    A study that was stopped has some folds in one more replicate; a mean over them all would weigh folds unequally.

    >>> whole_grids([(0, 0), (0, 1), (1, 0)])
    [[(0, 0), (0, 1)], [(0, 0), (1, 0)]]
    """
    folds: defaultdict[int, set[int]] = defaultdict(set)
    for replicate, fold in pairs:
        folds[replicate].add(fold)
    common: set[frozenset[int]] = set()  # what any replicates have in common
    for own in map(frozenset, folds.values()):
        common |= {own, *(own & other for other in common)}
    grids = [product((each for each in folds if folds[each] >= these), these) for these in common if these]
    return sorted(map(sorted, grids))


def for_mean(pairs: Iterable[tuple[int, int]]) -> Pairs:
    """The most folds, before the most replicates: folds differ more than losses do, and means stand side by side."""
    return max(whole_grids(pairs), key=lambda grid: (_folds(grid), len(grid)), default=[])


def for_difference(pairs: Iterable[tuple[int, int]]) -> Pairs:
    """The most pairs of runs; of equally many, more folds."""
    return max(whole_grids(pairs), key=lambda grid: (len(grid), _folds(grid)), default=[])


def outcomes_of(runs: Mapping[tuple[int, int], Finished], pairs: Iterable[tuple[int, int]]) -> list[Outcome]:
    outcomes = []
    for replicate, fold in pairs:
        cases = runs[replicate, fold].result["cases"]
        matrices = np.array([case["confusion"] for case in cases], np.int64)
        members = members_of(runs[replicate, fold].result)
        outcomes.append(Outcome(replicate, fold, tuple(case["group"] for case in cases), matrices, members))
    return outcomes


def members_of(result: Mapping[str, Any]) -> list[list[int]] | None:
    """The labels of each class, if these are regions."""
    found: list[list[int]] | None = result.get("regions", {}).get("members")
    return found


def _folds(grid: Pairs) -> int:
    return len({fold for _, fold in grid})
