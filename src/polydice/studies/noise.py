"""How much a mean over replicates and folds varies. Arrays may have further axes in front: many studies at once."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]
# The replicates, or the folds of all seeds, vary at least as much as the runs below them. If they vary more than this
# quantile of what these runs lead one to expect, their own spread counts alone; otherwise both are averaged.
POOLED = 0.75


class Part(NamedTuple):
    """A variance, and the degrees of freedom it was estimated with."""

    variance: Floats
    freedom: Floats


class Noise(NamedTuple):
    """How the means of the replicates vary: each as much as the others, and partly together."""

    one: Part  # the variance of one replicate's mean
    common: Part  # of it, what all replicates have in common, the patients: more replicates do not lower it
    replicates: int

    def of_mean(self, replicates: int | None = None) -> Part:
        """The variance of the mean over the replicates, or what it would be over another number of them.

        The degrees of freedom are Satterthwaite's, but never below replicates − 1.
        """
        count = replicates or self.replicates
        own = Part(self.one.variance / count, self.one.freedom * count / self.replicates)
        mean = _added(own, Part(self.common.variance * (count - 1) / count, self.common.freedom))
        return Part(mean.variance, np.maximum(mean.freedom, count - 1))


def nested(values: Floats, shares: Floats) -> Noise:
    """Of differences `[..., replicates, folds]` whose folds are cut anew in every replicate, and of what each group has
    in them, `[..., replicates, groups]`; from two replicates on.

    A replicate's mean varies as its folds do: with its runs, whose seeds are all different, and with its groups. The
    spread of the replicates' means tells the same once more, but for what they have in common. If it is larger than the
    folds explain, it counts alone, although there are few replicates; otherwise both are averaged.
    """
    (replicates, folds), groups = values.shape[-2:], shares.shape[-1]
    common = _together(shares * np.sqrt(groups / max(groups - 1, 1)), groups - 1)
    means = _part(values.mean(-1).var(-1, ddof=1), replicates - 1)
    apart = _added(means, common)
    if folds == 1:
        return Noise(apart, common, replicates)
    within = _part(values.var(-1, ddof=1).mean(-1) / folds, replicates * (folds - 1))
    between = Part(apart.variance, means.freedom)
    one = _either(_stands_out(between, within), apart, _pooled(between, within))
    return Noise(one, common, replicates)


def crossed(values: Floats, shares: Floats) -> Noise:
    """The same where all replicates, the seeds, have one cut into folds.

    A fold's mean varies with its runs and its groups, and may vary more. A seed's mean varies with its runs, and may
    vary more: with what a seed does in all folds alike, of which only the seeds tell. So theirs are all the degrees of
    freedom there are.
    """
    (seeds, folds), groups = values.shape[-2:], shares.shape[-1]
    by_seed, by_fold = values.mean(-1), values.mean(-2)
    rest = values - by_seed[..., None] - by_fold[..., None, :] + values.mean((-1, -2))[..., None, None]
    left = (seeds - 1) * (folds - 1)
    runs = _part((rest**2).sum((-1, -2)) / max(left, 1) / (seeds * folds), left)
    data = _added(runs, _together(shares, max(groups - folds, 0)))
    if folds > 1:
        between = _part(by_fold.var(-1, ddof=1) / folds, folds - 1)
        data = _either(_stands_out(between, data), between, _pooled(between, data))
    seed = np.maximum(0, by_seed.var(-1, ddof=1) / seeds - runs.variance)
    common = np.maximum(0, data.variance - runs.variance)
    one = common + seeds * (data.variance - common + seed)
    return Noise(_part(one, seeds - 1), _part(common, seeds - 1), seeds)


def _together(shares: Floats, freedom: int) -> Part:
    """The covariance of two replicates over the groups, mean over all pairs of them: what other groups would change in
    all replicates alike. What they would change in each in its own way is in the spread of its folds."""
    count = shares.shape[-2]
    each, means = (shares**2).sum((-1, -2)) / count, (shares.mean(-2) ** 2).sum(-1)
    common = np.maximum(0, (count * means - each) / (count - 1))
    doubt = means**2 + ((each - common) / count) ** 2 / (count - 1)  # of `common`, which is a difference of the two
    return Part(common, freedom * _ratio(common**2, doubt, otherwise=1))


def _part(variance: Floats, freedom: int) -> Part:
    return Part(variance, np.full_like(variance, freedom))


def _stands_out(level: Part, below: Part) -> NDArray[np.bool_]:
    """Whether a level varies more than the runs below it explain."""
    known = (level.variance > 0) & (below.variance > 0)
    most = below.variance * stats.f.ppf(POOLED, level.freedom, np.where(known, below.freedom, 1))
    return np.where(known, level.variance > most, level.variance > 0)


def _pooled(one: Part, other: Part) -> Part:
    freedom = one.freedom + other.freedom
    return Part((one.variance * one.freedom + other.variance * other.freedom) / np.maximum(freedom, 1), freedom)


def _added(one: Part, other: Part) -> Part:
    """With Satterthwaite's degrees of freedom."""
    variance = one.variance + other.variance
    doubt = sum(_ratio(each.variance**2, each.freedom, otherwise=0) for each in (one, other))
    return Part(variance, _ratio(variance**2, doubt, otherwise=one.freedom + other.freedom))


def _ratio(numerator: Floats, denominator: Floats | float, otherwise: Floats | float) -> Floats:
    there = np.asarray(denominator) > 0
    return np.where(there, numerator / np.where(there, denominator, 1), otherwise)


def _either(first: NDArray[np.bool_], one: Part, other: Part) -> Part:
    return Part(
        np.where(first, one.variance, other.variance),
        np.where(first, one.freedom, other.freedom),
    )
