"""What the runs of a study say of a loss: mean and spread, and the difference to another loss with its intervals.

docs/statistics.md says why an interval is made as it is, and how often it was measured to cover the truth.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from polydice.studies.noise import Floats, Noise, crossed, nested
from polydice.studies.outcomes import Outcome, Score, difference_of, scored

LEVEL, NARROW = 0.95, 0.90  # the interval that decides whether losses differ, and the one for the margin


class Summary(NamedTuple):
    """A loss's score on one data set with one model."""

    mean: float
    sd: float | None  # over the folds; None with one fold
    replicate_noise: float | None  # sd over the replicates of the mean over the folds; None with one replicate
    runs: int


class Difference(NamedTuple):
    """A loss's score minus the baseline's, over the same replicates, folds and cases."""

    mean: float
    noise: Noise | None  # None with one replicate: it has no spread
    comparisons: int  # that share one level
    replicates: int
    folds: int

    @property
    def interval(self) -> tuple[float, float] | None:
        """What holds the true difference in 95 of 100 studies, for all of their comparisons at once; None where there
        are too few runs for any: one replicate, or ends that no difference of scores can reach."""
        if self.noise is None:
            return None
        reach = float(half_width(self.noise, LEVEL, self.comparisons))
        low, high = self.mean - reach, self.mean + reach
        return (low, high) if low >= -1 and high <= 1 else None


class SignedRank(NamedTuple):
    p: float | None
    note: str  # why there is no p, or why it is approximate


def summary(outcomes: Sequence[Outcome], score: Score, nested: bool = False) -> Summary:
    """Mean ± sd over the folds, as the paper's tables have it, and how far the mean moves from replicate to replicate.

    Where the folds of all seeds are the same, the sd is that of each fold's mean over the seeds; where every replicate
    has folds of its own, it is that of the folds of one replicate.
    """
    values = scored(outcomes, score, nested).values
    replicates, folds = values.shape
    spread = np.sqrt(values.var(1, ddof=1).mean()) if nested and folds > 1 else None
    if not nested and folds > 1:
        spread = values.mean(0).std(ddof=1)
    return Summary(
        mean=float(values.mean()),
        sd=None if spread is None else float(spread),
        replicate_noise=float(values.mean(1).std(ddof=1)) if replicates > 1 else None,
        runs=values.size,
    )


def difference(
    outcomes: Sequence[Outcome], baseline: Sequence[Outcome], score: Score, nested: bool = False, comparisons: int = 1
) -> Difference:
    """The mean paired difference and how much it varies; `comparisons` of the study share the level of its interval."""
    found = difference_of(outcomes, baseline, score, nested)
    replicates, folds = found.values.shape
    noise = noise_of(found.values, found.shares, nested) if replicates > 1 else None
    return Difference(float(found.values.mean()), noise, comparisons, replicates, folds)


def noise_of(values: Floats, shares: Floats, folds_are_nested: bool) -> Noise:
    return (nested if folds_are_nested else crossed)(values, shares)


def half_width(noise: Noise, level: float, comparisons: int, replicates: int | None = None) -> Floats:
    """Of the interval about a mean difference, such that all `comparisons` of a study hold their true difference with
    the probability `level` (Šidák's inequality); with another number of replicates, what is to be expected of them."""
    variance, freedom = noise.of_mean(replicates)
    each = level ** (1 / comparisons)
    reach: Floats = stats.t.ppf((1 + each) / 2, freedom) * np.sqrt(variance)
    return reach


def signed_rank(
    outcomes: Sequence[Outcome], baseline: Sequence[Outcome], score: Score, nested: bool = False
) -> SignedRank:
    """Wilcoxon's signed-rank test over the (replicate, fold) pairs, two-sided, from three replicates on."""
    observed = difference_of(outcomes, baseline, score, nested).values
    if len(observed) < 3:
        least = 2 / 2**observed.size  # all differences of one sign
        why = f", and {observed.size} pairs cannot give p below {least:.4g}" if least > 0.05 else ""
        return SignedRank(None, f"no Wilcoxon test from fewer than 3 replicates{why}")
    p = float(stats.wilcoxon(observed.ravel()).pvalue) if observed.any() else 1.0
    return SignedRank(p, "approximate: the pairs share training data, and the replicates share test cases")


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
