"""What a study says so far: on every data set and with every network, each loss beside the baseline."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple, get_args

import numpy as np

from polydice.studies.published import Published, published
from polydice.studies.recipe import slug
from polydice.studies.selection import chosen
from polydice.studies.statistics import Difference, Outcome, Score, Summary, difference, holm, signed_rank, summary
from polydice.studies.statistics import verdict as sentence
from polydice.studies.study import Finished, State, Study
from polydice.training.config import CountingScore
from polydice.training.scoring import collapse

SCORES: tuple[Score, ...] = get_args(Score)

Runs = dict[tuple[int, int], Finished]  # by seed and fold


class Paired(NamedTuple):
    """A loss against the baseline, over the seeds and folds that both have."""

    differences: Mapping[Score, Difference]
    p: float | None  # Wilcoxon's, of the score that counts
    problem: str  # why there is no difference; empty where there is one


@dataclass(frozen=True)
class Row:
    """A loss on a data set with a network. What cannot be computed yet is not in the mappings."""

    loss: str
    states: Counter[State]  # of all its runs, those for the choice of a value among them
    counting: Runs  # those that count: where there are values, the one that was chosen
    undefined: int  # runs that would count, but whose test part has no foreground to score
    scores: Mapping[Score, Summary]
    last: float | None  # the score that counts, of the last epoch's weights, over the runs of the scores
    differences: Mapping[Score, Difference]  # to the baseline
    gradient: float | None  # how many times as large as the baseline's
    p: float | None  # Wilcoxon's, of the score that counts, after Holm's correction
    verdict: str  # empty for the baseline
    published: Published | None

    @property
    def planned(self) -> int:
        return self.states.total()

    @property
    def to_published(self) -> float | None:
        """Points of Dice above the published figure, which has the background in it, whatever counts here."""
        if self.published is None or "dice_global" not in self.scores:
            return None
        return 100 * self.scores["dice_global"].mean - float(self.published.mean)

    @property
    def collapsed(self) -> int:
        """How many of the runs that count predict nothing, or have lost a class."""
        return sum(bool(collapse(each.result["test"])) for each in self.counting.values())

    @cached_property
    def values(self) -> dict[int, list[str]]:
        """Of each fold, the values that were chosen, by seed; empty for a loss without a list of them."""
        found: defaultdict[int, list[str]] = defaultdict(list)
        for (_, fold), each in sorted(self.counting.items()):
            if each.run.value:
                found[fold].append(each.run.value)
        return dict(sorted(found.items()))


@dataclass(frozen=True)
class Comparison:
    dataset: str
    model: str
    baseline: str
    score: CountingScore
    rows: tuple[Row, ...]  # as the recipe has the losses

    @property
    def title(self) -> str:
        return f"{self.dataset}, {self.model}"

    @property
    def slug(self) -> str:
        return f"{slug(self.dataset)}-{slug(self.model)}"

    @cached_property
    def highest(self) -> str:
        """The loss with the highest mean; empty where there is none, or where the means are over different runs."""
        scored = {row.loss: row for row in self.rows if self.score in row.scores}
        if len({tuple(_for_mean(row.counting)) for row in scored.values()}) > 1:
            return ""
        return max(scored, key=lambda loss: scored[loss].scores[self.score].mean, default="")


def compare(study: Study) -> list[Comparison]:
    """One comparison for every data set and network of the recipe, in its order."""
    recipe = study.recipe
    counting = chosen(study.finished(), recipe.values)
    runs: defaultdict[tuple[str, str, str], Runs] = defaultdict(dict)
    undefined: Counter[tuple[str, str, str]] = Counter()
    for entry, each in counting.items():
        place = entry.dataset, entry.model, entry.loss
        if each.result["test"][recipe.score] is None:
            undefined[place] += 1
        else:
            runs[place][entry.replicate, entry.fold] = each
    states: defaultdict[tuple[str, str, str], Counter[State]] = defaultdict(Counter)
    for run in study.runs:
        states[run.dataset, run.model, run.loss][study.state(run)] += 1

    comparisons = []
    for dataset, model in product(recipe.datasets, recipe.models):
        baseline, score = runs[dataset, model, recipe.baseline], recipe.score
        gradients = {loss: _gradients(study, runs[dataset, model, loss]) for loss in recipe.losses}
        others = [loss for loss in recipe.losses if loss != recipe.baseline]
        paired = {loss: _paired(runs[dataset, model, loss], baseline, score) for loss in others}
        adjusted = dict(zip(others, holm([paired[loss].p for loss in others]), strict=True))
        rows = []
        for loss in recipe.losses:
            own, against = runs[dataset, model, loss], paired.get(loss, Paired({}, None, ""))
            rows.append(
                Row(
                    loss, states[dataset, model, loss], own, undefined[dataset, model, loss], _scores(own),
                    _last(own, score), against.differences, _ratio(gradients[loss], gradients[recipe.baseline]),
                    adjusted.get(loss), _said(loss, recipe.baseline, against, score, adjusted.get(loss)),
                    _published(study, dataset, model, loss, own),
                )
            )  # fmt: skip
        comparisons.append(Comparison(dataset, model, recipe.baseline, score, tuple(rows)))
    return comparisons


Pairs = list[tuple[int, int]]  # of seed and fold


def whole_grids(pairs: Iterable[tuple[int, int]]) -> list[Pairs]:
    """Every way to take (seed, fold) of those given so that all seeds have the same folds, as many seeds as have them.

    A study that was stopped has some folds under one more seed; a mean over them all would weigh folds unequally.

    >>> whole_grids([(0, 0), (0, 1), (1, 0)])
    [[(0, 0), (0, 1)], [(0, 0), (1, 0)]]
    """
    folds: defaultdict[int, set[int]] = defaultdict(set)
    for seed, fold in pairs:
        folds[seed].add(fold)
    common: set[frozenset[int]] = set()  # what any seeds have in common
    for own in map(frozenset, folds.values()):
        common |= {own, *(own & other for other in common)}
    grids = [product((seed for seed in folds if folds[seed] >= these), these) for these in common if these]
    return sorted(map(sorted, grids))


def _for_mean(pairs: Iterable[tuple[int, int]]) -> Pairs:
    """The most folds, before the most seeds: folds differ more than losses do, and means stand side by side."""
    return max(whole_grids(pairs), key=lambda grid: (_folds(grid), len(grid)), default=[])


def _for_difference(pairs: Iterable[tuple[int, int]]) -> Pairs:
    """The most pairs of runs; of equally many, more folds."""
    return max(whole_grids(pairs), key=lambda grid: (len(grid), _folds(grid)), default=[])


def _folds(grid: Pairs) -> int:
    return len({fold for _, fold in grid})


def _outcomes(runs: Runs, pairs: Iterable[tuple[int, int]]) -> list[Outcome]:
    outcomes = []
    for seed, fold in pairs:
        cases = runs[seed, fold].result["cases"]
        matrices = np.array([case["confusion"] for case in cases], np.int64)
        outcomes.append(Outcome(seed, fold, tuple(case["group"] for case in cases), matrices))
    return outcomes


def _scores(runs: Runs) -> dict[Score, Summary]:
    outcomes = _outcomes(runs, _for_mean(runs))
    found = {}
    for score in SCORES if outcomes else ():
        try:
            found[score] = summary(outcomes, score)
        except ValueError:  # no case has a class that this score could count
            continue
    return found


def _last(runs: Runs, score: CountingScore) -> float | None:
    results = [runs[pair].result for pair in _for_mean(runs)]
    if not results or not all("test" in each.get("last", {}) for each in results):
        return None
    return fmean(each["last"]["test"][score] for each in results)


def _gradients(study: Study, runs: Runs) -> dict[tuple[int, int], float]:
    """The norm of each run's gradient, median over its epochs, where the history has it."""
    found = {}
    for pair, each in runs.items():
        rows = study.history(each.run)
        if rows and all("gradient_norm" in row for row in rows):
            found[pair] = median(row["gradient_norm"] for row in rows)
    return found


def _ratio(own: Mapping[tuple[int, int], float], other: Mapping[tuple[int, int], float]) -> float | None:
    """Median over the runs that both have."""
    ratios = [own[pair] / other[pair] for pair in own.keys() & other.keys() if other[pair] > 0]
    return median(ratios) if ratios else None


def _paired(runs: Runs, baseline: Runs, counts: CountingScore) -> Paired:
    pairs = _for_difference(runs.keys() & baseline.keys())
    if not pairs:
        return Paired({}, None, "no fold and seed has results of both")
    own, other = _outcomes(runs, pairs), _outcomes(baseline, pairs)
    found, problems = {}, {}
    for score in SCORES:
        try:
            found[score] = difference(own, other, score)
        except ValueError as problem:
            problems[score] = str(problem)
    p = signed_rank(own, other, counts).p if counts in found else None
    return Paired(found, p, problems.get(counts, ""))


def _said(loss: str, baseline: str, paired: Paired, score: CountingScore, p: float | None) -> str:
    if score in paired.differences:
        return sentence(paired.differences[score], loss, baseline, p)
    return f"{loss} cannot be compared with {baseline}: {paired.problem}." if paired.problem else ""


def _published(study: Study, dataset: str, model: str, loss: str, runs: Runs) -> Published | None:
    """By the recipe's own name of the data set, by that of its folder, and by what the data set calls itself."""
    recipe = study.recipe
    names = [dataset, Path(str(recipe.datasets[dataset].get("path", ""))).name]
    names += [each.result["dataset"] for each in runs.values()]
    models = (model, str(recipe.models[model].get("model", "")))
    found = (published(name, network, loss) for name, network in product(names, models))
    return next((figure for figure in found if figure), None)
