"""Which value of a loss counts: the one whose validation was best. Test scores play no part.

A value is chosen in every fold and replicate by itself (`chosen`), or once for all of them, from runs that are there
for nothing else (`choose`). Of equal validation scores the first in the recipe's order is taken; so it is, too, where a
validation part has no foreground to score.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from statistics import fmean
from typing import NamedTuple

from polydice.studies.files import Choice
from polydice.studies.recipe import Planned
from polydice.studies.study import Finished, Study
from polydice.training.scoring import validation

# How `error.txt` begins where the numbers of a training grew beyond all bounds: that is the value's own fault, and
# would happen again. Whatever else goes wrong may be mended.
DIVERGED = re.compile(r"TrainingError: the (loss|gradient or the weights) became ")


class Entry(NamedTuple):
    """A loss on a data set with a network, in one fold and replicate."""

    dataset: str
    model: str
    loss: str
    fold: int
    replicate: int


def chosen(finished: Iterable[Finished], values: dict[str, int]) -> dict[Entry, Finished]:
    """The run that counts for each entry. `values` says with how many values each loss is trained there: an entry
    counts once all of them are, since a choice among some of them would be another choice."""
    every: defaultdict[Entry, list[Finished]] = defaultdict(list)
    for each in finished:
        run = each.run
        every[Entry(run.dataset, run.model, run.loss, run.fold, run.replicate)].append(each)
    return {
        entry: max(candidates, key=lambda each: validation(each.result) or 0)
        for entry, candidates in every.items()
        if len(candidates) == values[entry.loss]
    }


def choose(study: Study, dataset: str, model: str, loss: str) -> Choice | None:
    """The value that all folds and replicates of a loss are to have: that with the best mean over the tuning folds.

    None as long as tuning runs are missing or have failed. A value that has diverged in one of its folds is out; if all
    have, there is nothing to choose either.
    """
    reached: defaultdict[str, list[float | None]] = defaultdict(list)
    for run in study.tuning_of(dataset, model, loss):
        if study.state(run) == "done":
            reached[run.value].append(validation(study.result(run)) or 0)
        elif has_diverged(study, run):
            reached[run.value].append(None)
        else:
            return None
    trained = {value: fmean(whole) for value, each in reached.items() if (whole := _whole(each))}
    if not trained:
        return None
    best, folds = max(trained, key=lambda value: trained[value]), [*study.recipe.tune.folds]
    scores = {value: trained.get(value) for value in reached}
    return Choice(dataset=dataset, model=model, loss=loss, value=best, folds=folds, validation=scores)


def _whole(scores: list[float | None]) -> list[float]:
    """These, if there is one for every fold; else none."""
    found = [score for score in scores if score is not None]
    return found if len(found) == len(scores) else []


def has_diverged(study: Study, run: Planned) -> bool:
    """Whether its training cannot go on, and would not if it were tried again."""
    return study.state(run) == "failed" and bool(DIVERGED.match(study.error(run)))
