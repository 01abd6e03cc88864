"""Which value of a loss counts: the one whose validation was best, in every fold and seed by itself."""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from polydice.studies.study import Finished
from polydice.training.scoring import validation


class Entry(NamedTuple):
    """A loss on a data set with a network, in one fold and seed."""

    dataset: str
    model: str
    loss: str
    fold: int
    seed: int


def chosen(finished: Iterable[Finished], values: dict[str, int]) -> dict[Entry, Finished]:
    """The run that counts for each entry. `values` says how many values each loss lists: an entry counts once all of
    its values are trained, since a choice among some of them would be another choice.

    The test scores play no part. Of equal validation scores the first in the recipe's order is taken; so it is, too,
    where a validation part has no foreground to score.
    """
    every: defaultdict[Entry, list[Finished]] = defaultdict(list)
    for each in finished:
        run = each.run
        every[Entry(run.dataset, run.model, run.loss, run.fold, run.seed)].append(each)
    return {
        entry: max(candidates, key=lambda each: validation(each.result) or 0)
        for entry, candidates in every.items()
        if len(candidates) == values[entry.loss]
    }
