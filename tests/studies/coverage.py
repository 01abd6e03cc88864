"""How often intervals and verdicts are right, on simulated studies whose noise is that of real ones.

python -m tests.studies.coverage

writes results/coverage. The simulated numbers are the score of every fold and what each group has in it; from there on
everything is done by the functions that a report uses.
"""

import argparse
import csv
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np

from polydice.studies.grids import outcomes_of
from polydice.studies.noise import Floats, Noise
from polydice.studies.outcomes import Outcome, difference_of, shares_of
from polydice.studies.statistics import LEVEL, NARROW, half_width, noise_of
from polydice.studies.study import Finished, open_study
from polydice.studies.verdicts import KINDS, kinds, missing

RESULTS = Path(__file__).parents[2] / "results"
MARGIN = 1.0  # points
EFFECTS = (0.0, MARGIN / 2, MARGIN)
CHUNK = 500  # studies at a time


class Variances(NamedTuple):
    """Of the difference of two losses, in points²: where its noise comes from."""

    seed: float  # alike in all folds of a seed
    fold: float  # alike under all seeds
    run: float
    group: float  # alike under all seeds
    group_run: float  # differently in each run


class Row(NamedTuple):
    """A kind of study."""

    model: str
    replicates: int
    folds: int = 5
    groups: int = 30  # in all
    losses: int = 4  # two of them baselines, or one of two
    nested: bool = True


class Found(NamedTuple):
    """Percent of the simulated studies."""

    held: float  # all intervals hold the true difference
    held_each: float  # of single intervals
    told_apart: float  # any "better" or "worse" between equal losses
    called_equal: float  # any "equivalent" at a true difference of one margin
    # Over true differences of nothing, half a margin and a margin:
    decided: float  # a verdict on every comparison
    suggested: float  # of the others, those that are told how many more replicates to train
    replicates_then: float  # how many there are with those, median
    decided_then: float  # of those, with so many more: a verdict on every comparison
    hardest_then: float  # the same, of a true difference of half a margin alone
    told_apart_then: float  # any "better" or "worse" between equal losses, now or before


# Where the noise of real studies comes from

# Losses that were trained under all seeds, and did not fail.
STUDIES = {
    "Hippocampus": ("hippocampus", ("Dice", "Dice + cross-entropy", "PolyDice-1, ε = 0", "PolyDice-1, ε = 0.5",
                                    "PolyDice-1 detached, ε = 0.5", "PolyDice-1 detached, ε = 0.5, + cross-entropy")),
    "ACDC": ("question-acdc", ("Dice", "Dice + cross-entropy", "Focal Tversky", "PolyDice-1, ε = 0.5",
                               "PolyDice-1 detached, ε = 0.5", "PolyDice-1 detached, ε = 0.5, + cross-entropy")),
    "CVC-ClinicDB": ("column-cvc", ("Dice", "Dice + cross-entropy", "Focal Tversky", "PolyDice-1, ε = 0.5",
                                    "PolyDice-1 detached, ε = 0.5")),
}  # fmt: skip
A_THIRD = "CVC-ClinicDB, a third"  # of its noise: what remained of it with the last weights


def estimated() -> dict[str, Variances]:
    """From the kept runs, mean over all pairs of losses; a variance that comes out negative is none."""
    found = {}
    for model, (folder, losses) in STUDIES.items():
        runs: dict[str, dict[tuple[int, int], Finished]] = {loss: {} for loss in losses}
        for each in open_study(RESULTS / "paper" / folder).finished():
            if each.run.loss in runs:
                runs[each.run.loss][each.run.seed, each.run.fold] = each
        outcomes = {loss: outcomes_of(own, own) for loss, own in runs.items()}
        pairs = [components(outcomes[one], outcomes[two]) for one, two in itertools.combinations(losses, 2)]
        found[model] = Variances(*(max(0.0, fmean(each)) for each in zip(*pairs, strict=True)))
    found[A_THIRD] = Variances(*(variance / 9 for variance in found["CVC-ClinicDB"]))
    return found


def components(own: Sequence[Outcome], other: Sequence[Outcome]) -> Variances:
    """By the analysis of variance of seeds × folds, and of seeds × groups within the folds."""
    values, shares = (100 * each for each in difference_of(own, other, "dice_foreground", nested=False))
    (seeds, folds), groups = values.shape, shares.shape[1]
    by_seed, by_fold = values.mean(1), values.mean(0)
    rest = ((values - by_seed[:, None] - by_fold + values.mean()) ** 2).sum() / (seeds - 1) / (folds - 1)
    each, means = (shares**2).sum() / seeds, (shares.mean(0) ** 2).sum()
    group = groups * (seeds * means - each) / (seeds - 1)
    group_run = groups * each - group
    size = groups / folds
    return Variances(
        seed=by_seed.var(ddof=1) - rest / folds,
        fold=by_fold.var(ddof=1) - rest / seeds - group / size,
        run=rest - group_run / size,
        group=group,
        group_run=group_run,
    )


# Studies with this noise


class Simulated(NamedTuple):
    """Many studies."""

    values: Floats  # [studies, losses, replicates, folds]
    shares: Floats  # [studies, losses, replicates, groups]


class Simulation:
    """Studies of one kind, whose groups stay the same when replicates are added."""

    def __init__(self, row: Row, variances: Variances, studies: int, seed: int):
        self.row, self.rng = row, np.random.default_rng(seed)
        self.sd = Variances(*(float(np.sqrt(variance / 2)) for variance in variances))  # of one loss of the two
        self.groups = self.sd.group * self.rng.standard_normal((studies, row.losses, 1, row.groups))
        self.folds = self.sd.fold * self.rng.standard_normal((studies, row.losses, 1, row.folds))

    def trained(self, replicates: int, which: np.ndarray | slice = slice(None)) -> Simulated:
        """More replicates of these studies."""
        row, rng, groups = self.row, self.rng, self.groups[which]
        shape = (len(groups), row.losses, replicates)
        cut = np.tile(np.arange(row.groups) % row.folds, (len(groups), 1, replicates, 1))
        runs = self.sd.run * rng.standard_normal((*shape, row.folds))
        if row.nested:  # a new cut, and every run a seed of its own
            cut = rng.permuted(cut, axis=-1)
            runs += np.hypot(self.sd.seed, self.sd.fold) * rng.standard_normal(runs.shape)
        else:
            runs += self.sd.seed * rng.standard_normal((*shape, 1)) + self.folds[which]
        each = groups + self.sd.group_run * rng.standard_normal((*shape, row.groups))
        within = cut[..., None, :] == np.arange(row.folds)[:, None]  # [studies, 1, replicates, folds, groups]
        size = within.sum(-1)
        means = np.matmul(within.astype(float), each[..., None])[..., 0] / size
        places = np.broadcast_to(cut, each.shape)
        slopes = (each - np.take_along_axis(means, places, -1)) / np.take_along_axis(size, cut, -1)
        values = means + runs
        return Simulated(values, shares_of(values, slopes, cut, row.nested))


def grown(before: Simulated, more: Simulated) -> Simulated:
    return Simulated(*(np.concatenate(pair, axis=2) for pair in zip(before, more, strict=True)))


class Judged(NamedTuple):
    """Of many studies and all their comparisons, `[studies, comparisons]`."""

    off: Floats  # the mean difference, less the true one
    wide: Floats  # half of the 95 % interval
    narrow: Floats
    noise: Noise


def judged(studies: Simulated, row: Row, pairs: Sequence[tuple[int, int]]) -> Judged:
    own, other = (list(side) for side in zip(*pairs, strict=True))
    values, shares = (each[:, own] - each[:, other] for each in studies)
    noise = noise_of(values / 100, shares / 100, row.nested)
    wide, narrow = (100 * half_width(noise, level, len(pairs)) for level in (LEVEL, NARROW))
    return Judged(values.mean((-1, -2)), wide, narrow, noise)


def comparisons(losses: int) -> list[tuple[int, int]]:
    """Each loss with the baselines: the first, and where there are more than two, the second."""
    return [(1, 0), *((loss, baseline) for loss in range(2, losses) for baseline in (0, 1))]


def coverage(row: Row, variances: Variances, studies: int) -> Found:
    parts = [_part(row, variances, min(CHUNK, studies - first), first) for first in range(0, studies, CHUNK)]
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    then = joined.pop("replicates_then")
    found = {name: 100 * each.mean() if each.size else np.nan for name, each in joined.items()}
    return Found(**found, replicates_then=np.median(then) if len(then) else np.nan)


def _part(row: Row, variances: Variances, studies: int, seed: int) -> dict[str, np.ndarray]:
    pairs = comparisons(row.losses)
    others = np.array([loss > 1 or row.losses == 2 for loss, _ in pairs])  # not two baselines, which are always equal
    simulation = Simulation(row, variances, studies, seed)
    first = simulation.trained(row.replicates)
    found = judged(first, row, pairs)
    held, wanted = np.abs(found.off) <= found.wide, missing(found.noise, MARGIN, len(pairs))

    def called(found: Judged, effect: float) -> np.ndarray:
        return kinds(found.off + effect * others, found.wide, found.narrow, MARGIN)

    apart = (called(found, 0) < KINDS.index("equivalent")).any(-1)
    equal = (called(found, MARGIN) == KINDS.index("equivalent")) & others
    parts: dict[str, list[np.ndarray]] = {name: [] for name in ("decided", "suggested", "replicates_then")}
    verdicts: dict[float, list[np.ndarray]] = {effect: [] for effect in EFFECTS}
    apart_then = apart.copy()
    for effect in EFFECTS:
        undecided = called(found, effect) == KINDS.index("undecided")
        hopeless = (undecided & (wanted == 0)).any(-1)
        more = np.where(hopeless, 0, np.where(undecided, wanted, 0).max(-1))
        parts["decided"].append(~undecided.any(-1))
        parts["suggested"].append((more > 0)[undecided.any(-1)])
        for count in np.unique(more[more > 0]):
            which = np.flatnonzero(more == count)
            after = grown(Simulated(*(each[which] for each in first)), simulation.trained(int(count), which))
            last = called(judged(after, row, pairs), effect)
            verdicts[effect].append((last != KINDS.index("undecided")).all(-1))
            parts["replicates_then"].append(np.full(len(which), row.replicates + count))
            if effect == 0:
                apart_then[which] |= (last < KINDS.index("equivalent")).any(-1)
    parts["hardest_then"], parts["decided_then"] = verdicts[MARGIN / 2], [*itertools.chain(*verdicts.values())]
    return {
        "held": held.all(-1), "held_each": held.ravel(), "told_apart": apart, "called_equal": equal.any(-1),
        "told_apart_then": apart_then, **{name: np.concatenate([*each, np.zeros(0)]) for name, each in parts.items()},
    }  # fmt: skip


def rows() -> Iterator[Row]:
    for model in (*STUDIES, A_THIRD):
        for replicates in (2, 3, 5):
            for groups in (15, 30, 150):
                yield Row(model, replicates, groups=groups)
            yield Row(model, replicates, groups=150, nested=False)
        for replicates, folds in itertools.product((2, 3), (2, 3)):
            yield Row(model, replicates, folds=folds)
        for losses in (2, 8):
            yield Row(model, 3, losses=losses)


def _written(path: Path, header: Sequence[str], lines: Sequence[Sequence[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([header, *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=4000, help="simulated for each row")
    parser.add_argument("--out", type=Path, default=RESULTS / "coverage")
    chosen = parser.parse_args()
    models = estimated()
    lines = [(model, *(f"{variance:.4f}" for variance in each)) for model, each in models.items()]
    _written(chosen.out / "variances.csv", ("model", *Variances._fields), lines)
    found = []
    for row in rows():
        found.append((row, coverage(row, models[row.model], chosen.studies)))
        print(*row, *(f"{number:.1f}" for number in found[-1][1]), flush=True, file=sys.stderr)
        _written(
            chosen.out / "coverage.csv",
            (*Row._fields, *Found._fields),
            [(*row, *("" if np.isnan(number) else f"{number:.1f}" for number in each)) for row, each in found],
        )


if __name__ == "__main__":
    main()
