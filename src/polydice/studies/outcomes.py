"""The tests of a loss's runs, put in order: the score of every replicate and fold, and what each group has in it.

A replicate is one training of all folds. With `nested`, every replicate has a cut into folds of its own: the same
patient is tested in fold 2 of one and in fold 4 of the next. Else all replicates, the seeds, have the same cut.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polydice.studies.noise import Floats
from polydice.training.metrics import Members, dice_per_class, pixels_per_class

Score = Literal["dice_foreground", "dice_global", "dice_case"]


class Outcome(NamedTuple):
    """The test of one run, as its `result.json` has it."""

    replicate: int
    fold: int
    groups: tuple[str, ...]  # of each case: its patient, its sequence
    matrices: NDArray[np.int64]  # [cases, C, C]: row the truth, column the prediction
    members: Members | None = None  # where classes are regions, and the matrices those of labels


class Scored(NamedTuple):
    """The scores of a loss, or the difference of two losses' scores."""

    values: Floats  # [replicates, folds]
    shares: Floats  # [replicates, groups]: how far each group has moved its replicate's mean; sums to 0


def scored(outcomes: Sequence[Outcome], score: Score, nested: bool) -> Scored:
    """The runs of one loss; replicates and folds in ascending order.

    A fold's score is a mean of ratios of sums over its cases. If a group counted a little more, the score would change
    by the group's share. With `nested`, groups stand for the whole data set, and the share is about the mean of the
    replicate; else they stand for their fold, which the replicates have in common, and the share is about its score.
    """
    table = _table(outcomes)
    replicates, folds = (sorted(set(axis)) for axis in zip(*table, strict=True))
    missing = set(itertools.product(replicates, folds)) - table.keys()
    if missing:
        raise ValueError(f"every replicate needs the same folds; missing (replicate, fold): {_listed(missing)}")
    for run in outcomes if not nested else ():
        _same_cases(run, table[replicates[0], run.fold], "two seeds")
    names = {name: place for place, name in enumerate(sorted({each for run in outcomes for each in run.groups}))}
    values = np.empty((len(replicates), len(folds)))
    # A split that does not keep groups together can put a group into several folds: first each fold counts its part.
    slopes = np.zeros((len(replicates), len(folds), len(names)))
    fold_of = np.full(slopes.shape, -1)
    for row, column in np.ndindex(values.shape):
        run = table[replicates[row], folds[column]]
        own = [names[name] for name in run.groups]
        values[row, column], by_case = _score(run, score)
        np.add.at(slopes[row, column], own, by_case)
        fold_of[row, column, own] = column
    flat = (len(replicates), -1)
    shares = shares_of(values, slopes.reshape(flat), fold_of.reshape(flat), nested)
    return Scored(values, shares.reshape(slopes.shape).sum(1))


def shares_of(values: Floats, slopes: Floats, fold_of: NDArray[np.int64], nested: bool) -> Floats:
    """How far each group has moved its replicate's mean, `[..., replicates, groups]`, of how far it has moved the score
    of its fold, and of which fold that is; −1 for a group that is not tested. Further axes may stand in front."""
    folds = values.shape[-1]
    sizes = np.stack([(fold_of == fold).sum(-1) for fold in range(folds)], -1)
    tested = fold_of >= 0
    size = np.where(tested, np.take_along_axis(sizes, fold_of.clip(0), -1), 1)
    if nested:
        above = values - values.mean(-1, keepdims=True)
        places = np.broadcast_to(fold_of.clip(0), slopes.shape)
        shares: Floats = (slopes + tested * np.take_along_axis(above, places, -1) / size) / folds
        return shares
    # The groups of a fold are spread about their own mean, which takes one of their degrees of freedom.
    within: Floats = slopes * np.sqrt(size / np.maximum(size - 1, 1)) / folds
    return within


def difference_of(own: Sequence[Outcome], other: Sequence[Outcome], score: Score, nested: bool) -> Scored:
    """A loss minus another, run by run and group by group."""
    mine, theirs = _table(own), _table(other)
    if mine.keys() != theirs.keys():
        raise ValueError(
            f"runs are compared in pairs of the same (replicate, fold); without a partner in the baseline: "
            f"{_listed(mine.keys() - theirs.keys())}; without a partner in the loss: "
            f"{_listed(theirs.keys() - mine.keys())}"
        )
    for place, run in mine.items():
        _same_cases(theirs[place], run, "the loss and the baseline")
    one, two = scored(own, score, nested), scored(other, score, nested)
    return Scored(one.values - two.values, one.shares - two.shares)


def _table(outcomes: Sequence[Outcome]) -> dict[tuple[int, int], Outcome]:
    table = {(run.replicate, run.fold): run for run in outcomes}
    if not table:
        raise ValueError("there are no runs to score: give one for each replicate and fold")
    if len(table) < len(outcomes):
        raise ValueError(f"{len(outcomes)} runs, but {len(table)} pairs of replicate and fold: give each pair once")
    return table


def _same_cases(run: Outcome, first: Outcome, whose: str) -> None:
    """The pixels of each class are the same, whatever was predicted."""
    if run.groups != first.groups or not np.array_equal(run.matrices.sum(-1), first.matrices.sum(-1)):
        raise ValueError(
            f"fold {run.fold}, replicate {run.replicate}: {whose} were not tested on the same cases in the same order, "
            f"so their runs cannot be paired; use one prepared data set and one split for all runs"
        )


def _score(run: Outcome, score: Score) -> tuple[float, Floats]:
    """A run's score, and by how much each case moves it: the slope of the score in the case's weight."""
    numerators, denominators = _parts(torch.from_numpy(np.ascontiguousarray(run.matrices)), score, run.members).numpy()
    top, bottom = numerators.sum(0), denominators.sum(0)
    there = bottom > 0  # a class that is nowhere does not count
    empty = score != "dice_global" and not run.matrices[:, 1:, :].any()  # no foreground in the truth
    if empty or not there.any():
        raise ValueError(f"fold {run.fold}: no test case has a class that {score} counts")
    ratios = top[there] / bottom[there]
    slopes = (numerators[:, there] - ratios * denominators[:, there]) / bottom[there]
    return float(ratios.mean()), slopes.mean(1)


def _parts(matrices: Tensor, score: Score, members: Members | None) -> Tensor:
    """`[2, cases, terms]`: numerators and denominators. A score is the mean over its terms of Σ numerator / Σ
    denominator, Σ over the cases; for `dice_case` there is one term, for the others the terms are the classes."""
    if score in ("dice_foreground", "dice_global"):
        first = 1 if score == "dice_foreground" else 0
        both, truth, guess = pixels_per_class(matrices, members)
        parts = 2 * both[..., first:], (truth + guess)[..., first:]
    elif score == "dice_case":
        dice = dice_per_class(matrices, members)[..., 1:].nanmean(-1, keepdim=True)
        parts = dice.nan_to_num(0), ~dice.isnan()
    else:
        raise ValueError(f"score must be 'dice_foreground', 'dice_global' or 'dice_case': {score!r}")
    return torch.stack([part.double() for part in parts])


def _listed(pairs: Iterable[tuple[int, int]]) -> str:
    return ", ".join(map(str, sorted(pairs))) or "none"
