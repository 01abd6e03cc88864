"""What a study says so far: on every data set and with every network, each loss beside the baselines."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple, get_args

from polydice.studies.answer import Response, answered, forgiving, responses, warnings
from polydice.studies.grids import Runs, for_difference, for_mean, outcomes_of
from polydice.studies.outcomes import Score
from polydice.studies.published import Published, published
from polydice.studies.recipe import Planned, slug
from polydice.studies.selection import chosen
from polydice.studies.statistics import Difference, Summary, difference, holm, signed_rank, summary
from polydice.studies.study import State, Study
from polydice.studies.verdicts import Verdict, in_words, verdict
from polydice.training.config import CountingScore, CountingWeights
from polydice.training.scoring import collapse

SCORES: tuple[Score, ...] = get_args(Score)


class Paired(NamedTuple):
    """A loss against a baseline, over the replicates and folds that both have."""

    differences: Mapping[Score, Difference] = {}
    verdict: Verdict | None = None  # by the score that counts
    p: float | None = None  # Wilcoxon's, of the score that counts, after Holm's correction
    problem: str = ""  # why there is no verdict; empty where there is one

    def sentence(self, loss: str, baseline: str) -> str:
        if self.verdict is not None:
            return in_words(self.verdict, loss, baseline)
        return f"{loss} cannot be compared with {baseline}: {self.problem}."


@dataclass(frozen=True)
class Row:
    """A loss on a data set with a network. What cannot be computed yet is not in the mappings."""

    loss: str
    states: Counter[State]  # of all its runs, those for the choice of a value among them
    counting: Runs  # those that count: where there are values, the one that was chosen
    undefined: int  # runs that would count, but whose test part has no foreground to score
    scores: Mapping[Score, Summary]
    other: float | None  # the score that counts, of the weights that do not, over the runs of the scores
    compared: Mapping[str, Paired]  # by baseline; two baselines are compared once, in the row of the second
    gradient: float | None  # how many times as large as the baseline's
    published: Published | None

    @property
    def planned(self) -> int:
        return self.states.total()

    @property
    def differences(self) -> Mapping[Score, Difference]:
        """To the first baseline."""
        return next((each.differences for each in self.compared.values()), {})

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """By baseline."""
        return {name: each.verdict for name, each in self.compared.items() if each.verdict is not None}

    @property
    def verdict(self) -> str:
        """In words, a sentence for each baseline; empty for the first baseline itself."""
        return " ".join(each.sentence(self.loss, name) for name, each in self.compared.items())

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
        """Of each fold, the values that were chosen, by replicate; empty for a loss without a list of them."""
        found: defaultdict[int, list[str]] = defaultdict(list)
        for (_, fold), each in sorted(self.counting.items()):
            if each.run.value:
                found[fold].append(each.run.value)
        return dict(sorted(found.items()))


@dataclass(frozen=True)
class Comparison:
    dataset: str
    model: str
    baselines: tuple[str, ...]
    score: CountingScore
    margin: float  # points
    nested: bool  # every replicate has a cut into folds of its own
    weights: CountingWeights  # those that count
    rows: tuple[Row, ...]  # as the recipe has the losses
    pairs: Mapping[tuple[str, str], Verdict]  # of a loss minus one before it; all pairs share one level
    responses: tuple[Response, ...] = ()  # of each loss, its score against a setting of which several values were tried
    warnings: tuple[str, ...] = ()  # why it could have another result if it were done in another way

    @property
    def baseline(self) -> str:
        return self.baselines[0]

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
        if len({tuple(for_mean(row.counting)) for row in scored.values()}) > 1:
            return ""
        return max(scored, key=lambda loss: scored[loss].scores[self.score].mean, default="")

    @property
    def answer(self) -> str:
        """One paragraph for who has no time: which loss, at which rate, is it sure, how forgiving."""
        means = {row.loss: row.scores[self.score].mean for row in self.rows if self.score in row.scores}
        told = answered({row.loss: row.verdicts for row in self.rows}, means, self.responses)
        return " ".join(filter(None, (told, forgiving(self.responses))))


def compare(study: Study) -> list[Comparison]:
    """One comparison for every data set and network of the recipe, in its order."""
    recipe = study.recipe
    finished = list(study.finished())
    counting = chosen(finished, recipe.values)
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
    tried = [*study.finished(tuning=True), *(each for each in finished if recipe.values[each.run.loss] > 1)]

    comparisons = []
    for dataset, model in product(recipe.datasets, recipe.models):
        own = {loss: runs[dataset, model, loss] for loss in recipe.losses}
        every = [each for runs in own.values() for each in runs.values()]
        histories = {each.run: study.history(each.run) for each in every}
        gradients = {loss: _gradients(own[loss], histories) for loss in recipe.losses}
        compared = _compared(study, own, _minutes(study, dataset, model, own))
        rows = [
            Row(
                loss, states[dataset, model, loss], own[loss], undefined[dataset, model, loss],
                _scores(own[loss], recipe.nested), _other(own[loss], recipe.score), compared[loss],
                _ratio(gradients[loss], gradients[recipe.baseline]), _published(study, dataset, model, loss, own[loss]),
            )
            for loss in recipe.losses
        ]  # fmt: skip
        once = {loss: choice["value"] for loss in own if (choice := study.choice(dataset, model, loss))}
        here = (each for each in tried if (each.run.dataset, each.run.model) == (dataset, model))
        shown = tuple(responses(here, once, recipe.margin))
        said = warnings(shown, every, histories.values(), recipe.score)
        comparisons.append(
            Comparison(
                dataset, model, recipe.baselines, recipe.score, recipe.margin, recipe.nested, study.weights,
                tuple(rows), _pairs(own, study), shown, tuple(said),
            )
        )  # fmt: skip
    return comparisons


def _compared(study: Study, runs: Mapping[str, Runs], minutes: float | None) -> dict[str, dict[str, Paired]]:
    """Every loss with every baseline. All comparisons that can have a verdict share one level."""
    recipe = study.recipe
    wanted = [
        (loss, baseline)
        for loss in recipe.losses
        for place, baseline in enumerate(recipe.baselines)
        if loss not in recipe.baselines[: place + 1]
    ]
    grids = {pair: for_difference(runs[pair[0]].keys() & runs[pair[1]].keys()) for pair in wanted}
    sharing = max(1, sum(len({replicate for replicate, _ in grid}) > 1 for grid in grids.values()))
    found: dict[tuple[str, str], Paired] = {}
    for (loss, baseline), grid in grids.items():
        if not grid:
            found[loss, baseline] = Paired(problem=f"no fold and {recipe.outer} has results of both")
            continue
        own, other = outcomes_of(runs[loss], grid), outcomes_of(runs[baseline], grid)
        differences, problems = {}, {}
        for score in SCORES:
            try:
                differences[score] = difference(own, other, score, recipe.nested, sharing)
            except ValueError as problem:
                problems[score] = str(problem)
        if recipe.score in differences:
            judged = verdict(differences[recipe.score], recipe.margin, minutes, recipe.outer)
            p = signed_rank(own, other, recipe.score, recipe.nested).p
            found[loss, baseline] = Paired(differences, judged, p)
        else:
            found[loss, baseline] = Paired(differences, problem=problems[recipe.score])
    adjusted = holm([each.p for each in found.values()])
    rows: dict[str, dict[str, Paired]] = {loss: {} for loss in recipe.losses}
    for ((loss, baseline), each), p in zip(found.items(), adjusted, strict=True):
        rows[loss][baseline] = each._replace(p=p)
    return rows


def _pairs(runs: Mapping[str, Runs], study: Study) -> dict[tuple[str, str], Verdict]:
    """Every two losses, over the runs that both have, where there is more than one replicate of them."""
    recipe = study.recipe
    grids = {
        (later, earlier): grid
        for earlier, later in combinations(runs, 2)
        if (grid := for_difference(runs[earlier].keys() & runs[later].keys())) and len({each for each, _ in grid}) > 1
    }
    found = {}
    for (later, earlier), grid in grids.items():
        own, other = outcomes_of(runs[later], grid), outcomes_of(runs[earlier], grid)
        apart = difference(own, other, recipe.score, recipe.nested, len(grids))
        found[later, earlier] = verdict(apart, recipe.margin, outer=recipe.outer)
    return found


def _minutes(study: Study, dataset: str, model: str, runs: Mapping[str, Runs]) -> float | None:
    """What one more replicate of all losses takes, one run after the other; None if the results do not tell."""
    counting = [each for own in runs.values() for each in own.values()]
    seconds = [each.result["seconds"] for each in counting if "seconds" in each.result]
    replicates = {each.run.replicate for each in counting}
    if not seconds:
        return None
    planned = sum((run.dataset, run.model) == (dataset, model) and run.replicate in replicates for run in study.runs)
    return fmean(seconds) * planned / len(replicates) / 60


def _scores(runs: Runs, nested: bool) -> dict[Score, Summary]:
    outcomes = outcomes_of(runs, for_mean(runs))
    found = {}
    for score in SCORES if outcomes else ():
        try:
            found[score] = summary(outcomes, score, nested)
        except ValueError:  # no case has a class that this score could count
            continue
    return found


def _other(runs: Runs, score: CountingScore) -> float | None:
    """What the weights that do not count would have scored: `last` or `best` of a result has them."""
    results = [runs[pair].result for pair in for_mean(runs)]
    others = [each.get("last") or each.get("best") or {} for each in results]
    if not others or not all("test" in each for each in others):
        return None
    return fmean(each["test"][score] for each in others)


def _gradients(runs: Runs, histories: Mapping[Planned, Sequence[Mapping[str, Any]]]) -> dict[tuple[int, int], float]:
    """The norm of each run's gradient, median over its epochs, where the history has it."""
    found = {}
    for pair, each in runs.items():
        rows = histories[each.run]
        if rows and all("gradient_norm" in row for row in rows):
            found[pair] = median(row["gradient_norm"] for row in rows)
    return found


def _ratio(own: Mapping[tuple[int, int], float], other: Mapping[tuple[int, int], float]) -> float | None:
    """Median over the runs that both have."""
    ratios = [own[pair] / other[pair] for pair in own.keys() & other.keys() if other[pair] > 0]
    return median(ratios) if ratios else None


def _published(study: Study, dataset: str, model: str, loss: str, runs: Runs) -> Published | None:
    """By the recipe's own name of the data set, by that of its folder, and by what the data set calls itself."""
    recipe = study.recipe
    names = [dataset, Path(str(recipe.datasets[dataset].get("path", ""))).name]
    names += [each.result["dataset"] for each in runs.values()]
    models = (model, str(recipe.models[model].get("model", "")))
    found = (published(name, network, loss) for name, network in product(names, models))
    return next((figure for figure in found if figure), None)
