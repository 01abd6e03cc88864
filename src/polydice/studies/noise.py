"""How much a mean over seeds and folds varies: the levels of a study, each counted once."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

POOLED = 0.75  # a level counts on its own where its spread is beyond this quantile of what the levels below let expect


class Noise(NamedTuple):
    """A variance of the mean difference, and the degrees of freedom it was estimated with."""

    variance: float
    freedom: float


def of_mean_difference(observed: NDArray[np.float64], groups: Noise) -> Noise:
    """The variance of the mean of the differences `[seeds, folds]`: each level adds what those below do not explain.

    A fold's mean varies with its runs and its groups, a seed's mean with its runs, and either may vary more. Where it
    does not stand out, it is one more estimate of the same: so five folds or three seeds, few as they are, make the
    interval wide only where they must.
    """
    seeds, folds = observed.shape
    mean, by_seed, by_fold = observed.mean(), observed.mean(1), observed.mean(0)
    runs = _of_mean(observed - by_seed[:, None] - by_fold + mean, (seeds - 1) * (folds - 1))
    between_folds, between_seeds = _of_mean(by_fold - mean, folds - 1), _of_mean(by_seed - mean, seeds - 1)

    below = _approximate(runs.variance + groups.variance, runs, groups)
    data = between_folds if _stands_out(between_folds, below) else _pooled(between_folds, below)
    if not _stands_out(between_seeds, runs):
        return data
    return _approximate(data.variance + between_seeds.variance - runs.variance, data, between_seeds)


def _of_mean(deviations: NDArray[np.float64], freedom: int) -> Noise:
    return Noise(float((deviations**2).sum()) / freedom / deviations.size, freedom) if freedom else Noise(0, 0)


def _stands_out(level: Noise, below: Noise) -> bool:
    if level.variance == 0 or below.variance == 0:
        return level.variance > 0
    return level.variance > below.variance * float(stats.f.ppf(POOLED, level.freedom, below.freedom))


def _pooled(one: Noise, other: Noise) -> Noise:
    freedom = one.freedom + other.freedom
    squares = one.variance * one.freedom + other.variance * other.freedom
    return Noise(squares / freedom if freedom else 0, freedom)


def _approximate(variance: float, *parts: Noise) -> Noise:
    """A variance made of estimated parts, with Satterthwaite's degrees of freedom."""
    doubt = sum(part.variance**2 / part.freedom for part in parts if part.freedom)
    return Noise(variance, variance**2 / doubt if doubt else sum(part.freedom for part in parts))
