"""Whether runs can tell two losses apart: mean and spread, paired differences with intervals, tests, a plain sentence.

docs/statistics.md says why the interval is made as it is, and how often it was measured to cover the truth.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from polydice.studies.noise import Noise, of_mean_difference
from polydice.training.metrics import dice_per_class

Score = Literal["dice_foreground", "dice_global", "dice_case"]
Floats = NDArray[np.float64]


class Outcome(NamedTuple):
    """The test of one run, as its `result.json` has it."""

    seed: int
    fold: int
    groups: tuple[str, ...]  # of each case: its patient, its sequence
    matrices: NDArray[np.int64]  # [cases, C, C]: row the truth, column the prediction


class Summary(NamedTuple):
    """A loss's score on one data set with one model."""

    mean: float
    sd: float | None  # over the folds, of each fold's mean over the seeds; None with one fold
    seed_noise: float | None  # sd over the seeds of the mean over the folds; None with one seed
    runs: int


class Difference(NamedTuple):
    """A loss's score minus the baseline's, over the same seeds, folds and cases."""

    mean: float
    low: float
    high: float
    level: float  # how often such an interval is to hold the true difference
    standard_error: float
    freedom: float  # degrees of freedom of the standard error: few make a wide interval
    seeds: int
    folds: int
    caveat: str  # what the interval leaves out; empty where nothing

    @property
    def apart(self) -> bool:
        """The interval excludes 0."""
        return self.low > 0 or self.high < 0


class SignedRank(NamedTuple):
    p: float | None
    note: str  # why there is no p, or why it is approximate


def summary(outcomes: Sequence[Outcome], score: Score) -> Summary:
    """Mean ± sd over the folds, as the paper's tables have it, and how far the mean moves from seed to seed."""
    (scores,) = _scores(_by_fold(outcomes), score)
    by_fold, by_seed = scores.mean(0), scores.mean(1)
    return Summary(
        mean=float(scores.mean()),
        sd=float(by_fold.std(ddof=1)) if len(by_fold) > 1 else None,
        seed_noise=float(by_seed.std(ddof=1)) if len(by_seed) > 1 else None,
        runs=scores.size,
    )


def difference(
    outcomes: Sequence[Outcome],
    baseline: Sequence[Outcome],
    score: Score,
    *,
    seed: int = 0,
    resamples: int = 2000,
    level: float = 0.95,
) -> Difference:
    """The mean paired difference and its interval, mean ± t·standard error: a hierarchical bootstrap.

    Groups are drawn anew within their folds, with all their cases, the same ones for both losses and all seeds, and
    the score is computed again from the confusion matrices drawn; `seed` is that of these draws. Over seeds and folds
    the score is a plain mean, whose bootstrap variance is known without drawing.
    """
    if resamples < 2 or not 0 < level < 1:
        raise ValueError(f"resamples must be at least 2, level between 0 and 1: {resamples}, {level}")
    runs = _by_fold(outcomes, baseline)
    observed = np.subtract(*_scores(runs, score))
    noise = of_mean_difference(observed, _group_noise(runs, score, resamples, np.random.default_rng(seed)))
    seeds, folds = observed.shape
    if noise.freedom == 0:
        raise ValueError("one run with one case that counts has no spread, and its difference no interval: add runs")
    mean, error = float(observed.mean()), float(np.sqrt(noise.variance))
    reach = float(stats.t.ppf((1 + level) / 2, noise.freedom)) * error
    return Difference(
        mean, mean - reach, mean + reach, level, error, noise.freedom, seeds, folds, _caveat(seeds, folds)
    )


def signed_rank(outcomes: Sequence[Outcome], baseline: Sequence[Outcome], score: Score) -> SignedRank:
    """Wilcoxon's signed-rank test over the (seed, fold) pairs, two-sided, from three seeds on."""
    observed = np.subtract(*_scores(_by_fold(outcomes, baseline), score))
    if len(observed) < 3:
        least = 2 / 2**observed.size  # all differences of one sign
        why = f", and {observed.size} pairs cannot give p below {least:.4g}" if least > 0.05 else ""
        return SignedRank(None, f"no Wilcoxon test from fewer than 3 seeds{why}")
    p = float(stats.wilcoxon(observed.ravel()).pvalue) if observed.any() else 1.0
    return SignedRank(p, "approximate: the pairs share training data, and the seeds share test cases")


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's correction for the number of tests made; None stays None and is no test.

    >>> holm([0.25, None, 0.125])
    [0.25, None, 0.25]
    """
    adjusted = list(p_values)
    ranked = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    least = 0.0
    for rank, (p, place) in enumerate(ranked):
        adjusted[place] = least = min(1.0, max(least, (len(ranked) - rank) * p))
    return adjusted


def verdict(found: Difference, name: str, baseline: str = "Dice", p: float | None = None) -> str:
    """One sentence for a reader: can the runs tell the loss from the baseline? `p` is Wilcoxon's after `holm`.

    >>> verdict(Difference(0.012, -0.003, 0.027, 0.95, 0.007, 14.0, 3, 5, ""), "PolyDice-1")
    'PolyDice-1 scores 1.20 points above Dice (95 % interval −0.30 to 2.70): these runs cannot tell them apart.'
    """
    interval = f"{100 * found.level:g} % interval {_points(found.low)} to {_points(found.high)}"
    size = _points(abs(found.mean))
    place = "above" if found.mean > 0 else "below"
    where = f"{size} points {place}" if found.mean else "the same as"
    if found.apart and found.seeds > 1:
        word = "better" if found.mean > 0 else "worse"
        text = f"{name} is {word} than {baseline} by {size} points ({interval}, which excludes 0)"
    elif found.apart:  # another seed may well turn it round: results/paper has such a case
        text = f"{name} scores {where} {baseline} ({interval}, which excludes 0)"
    else:
        text = f"{name} scores {where} {baseline} ({interval}): these runs cannot tell them apart"
    if p is not None:
        doubt = ", so with so many losses compared this may be chance" if found.apart and p >= 1 - found.level else ""
        text += f"; Wilcoxon's p = {p:.2g} after Holm's correction, approximate{doubt}"
    return f"{text}. {found.caveat}".rstrip()


# The runs, put in order


class _Fold(NamedTuple):
    """All runs that were tested on the same cases."""

    number: int
    groups: tuple[str, ...]
    matrices: NDArray[np.int64]  # [losses, seeds, cases, C, C]


def _by_fold(*losses: Sequence[Outcome]) -> list[_Fold]:
    """The runs of a loss, or of a loss and the baseline; seeds and folds in ascending order."""
    tables = [_table(outcomes) for outcomes in losses]
    own, others = tables[0].keys(), tables[-1].keys()
    if own != others:
        raise ValueError(
            f"runs are compared in pairs of the same (seed, fold); without a partner in the baseline: "
            f"{_listed(own - others)}; without a partner in the loss: {_listed(others - own)}"
        )
    seeds, folds = (sorted(set(axis)) for axis in zip(*own, strict=True))
    missing = set(itertools.product(seeds, folds)) - own
    if missing:
        raise ValueError(f"every seed needs the same folds; missing (seed, fold): {_listed(missing)}")
    return [_stacked([[table[seed, fold] for seed in seeds] for table in tables]) for fold in folds]


def _table(outcomes: Sequence[Outcome]) -> dict[tuple[int, int], Outcome]:
    table = {(run.seed, run.fold): run for run in outcomes}
    if not table:
        raise ValueError("there are no runs to score: give one for each seed and fold")
    if len(table) < len(outcomes):
        raise ValueError(f"{len(outcomes)} runs, but {len(table)} pairs of seed and fold: give each pair once")
    return table


def _stacked(losses: list[list[Outcome]]) -> _Fold:
    first = losses[0][0]
    truth = first.matrices.sum(-1)  # the pixels of each class are the same, whatever was predicted
    for runs in losses:
        whose = "two seeds" if runs is losses[0] else "the loss and the baseline"
        for run in runs:
            if run.groups != first.groups or not np.array_equal(run.matrices.sum(-1), truth):
                raise ValueError(
                    f"fold {first.fold}, seed {run.seed}: {whose} were not tested on the same cases in the same "
                    f"order, so their runs cannot be paired; use one prepared data set and one split for all runs"
                )
    return _Fold(first.fold, first.groups, np.stack([[run.matrices for run in runs] for runs in losses]))


# The scores, as sums over cases


def _scores(folds: Sequence[_Fold], score: Score) -> Floats:
    """`[losses, seeds, folds]`"""
    scores = []
    for fold in folds:
        scores.append(_weighted(fold.matrices, score, np.ones((1, len(fold.groups)))))
        empty = score != "dice_global" and not fold.matrices[..., 1:, :].any()  # no foreground in the truth
        if empty or np.isnan(scores[-1]).any():
            raise ValueError(f"fold {fold.number}: no test case has a class that {score} counts")
    return np.concatenate(scores, -1)


def _weighted(matrices: NDArray[np.int64], score: Score, weights: Floats) -> Floats:
    """The scores of runs `[..., cases, C, C]` whose cases count `weights` `[draws, cases]` times, `[..., draws]`."""
    parts = _parts(torch.from_numpy(matrices), score)
    numerator, denominator = torch.einsum("dn,...nt->...dt", torch.from_numpy(weights), parts)
    scores: Floats = (numerator / denominator).nanmean(-1).numpy()  # 0/0: a class that is nowhere does not count
    return scores


def _parts(matrices: Tensor, score: Score) -> Tensor:
    """`[2, ..., cases, terms]`: numerators and denominators. A score is the mean over its terms of Σ numerator / Σ
    denominator, Σ over the cases; for `dice_case` there is one term, for the others the terms are the classes."""
    if score in ("dice_foreground", "dice_global"):
        first = 1 if score == "dice_foreground" else 0
        hits, sizes = matrices.diagonal(dim1=-2, dim2=-1), matrices.sum(-1) + matrices.sum(-2)
        parts = 2 * hits[..., first:], sizes[..., first:]
    elif score == "dice_case":
        dice = dice_per_class(matrices)[..., 1:].nanmean(-1, keepdim=True)
        parts = dice.nan_to_num(0), ~dice.isnan()
    else:
        raise ValueError(f"score must be 'dice_foreground', 'dice_global' or 'dice_case': {score!r}")
    return torch.stack([part.double() for part in parts])


# What other groups would change


def _group_noise(folds: Sequence[_Fold], score: Score, resamples: int, rng: np.random.Generator) -> Noise:
    """What they would change for all seeds alike: the covariance between seeds over the draws.

    What they change for each seed in its own way is in the spread between the runs already. With one seed there is no
    other measure of that, and this is the whole variance.
    """
    drawn, freedom = [], 0
    for fold in folds:
        weights, units = _draw(fold.groups, resamples, rng)
        own, other = _weighted(fold.matrices, score, weights)
        drawn.append(own - other)
        freedom += units - 1
    means = np.mean(drawn, 0)  # [seeds, draws]
    means = means[:, ~np.isnan(means).any(0)]  # without draws of which a fold has only cases that do not count
    if freedom == 0 or means.shape[1] < 2:
        return Noise(0, 0)
    covariance = np.atleast_2d(np.cov(means))
    shared = covariance[~np.eye(len(means), dtype=bool)] if len(means) > 1 else covariance
    return Noise(max(0.0, float(shared.mean())), freedom)


def _draw(groups: tuple[str, ...], resamples: int, rng: np.random.Generator) -> tuple[Floats, int]:
    """How often each case was drawn, `[draws, cases]`, and of how many units: groups, or the cases of a single group.

    One unit fewer is drawn than there are: n of n would make the variance of a mean (n − 1)/n times too small.
    """
    unit = np.unique(groups, return_inverse=True)[1]
    if unit.max() == 0:
        unit = np.arange(len(groups))
    units = int(unit.max()) + 1
    return rng.multinomial(max(1, units - 1), np.full(units, 1 / units), resamples)[:, unit].astype(float), units


# The words


def _caveat(seeds: int, folds: int) -> str:
    if seeds == 1:
        exception = ", except for what shows between the folds" if folds > 1 else ""
        return f"All runs have one seed: seed noise is not in this interval{exception}."
    return "" if folds > 1 else "All runs have one fold: what other training data would change is not in this interval."


def _listed(pairs: Iterable[tuple[int, int]]) -> str:
    return ", ".join(map(str, sorted(pairs))) or "none"


def _points(score: float) -> str:
    return f"{100 * score:.2f}".replace("-", "−")
