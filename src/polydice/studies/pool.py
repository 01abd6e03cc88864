"""Several studies as one: of the same data, trained in the same way, with other replicates, seeds, folds or losses."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

from polydice.studies.recipe import Planned, Recipe, RecipeError, slug
from polydice.studies.record import Kept
from polydice.studies.study import Study
from polydice.studies.written import RESERVED

# Settings that may differ: they do not change what is trained, nor the scores that are compared.
HARMLESS = {"save_every", "surfaces", "compile", "head"}
Place = tuple[str, str, str, str, int, int]


@dataclass(frozen=True)
class Pool(Study):
    """For all that concerns a run, it asks the study that has the run."""

    parts: tuple[Study, ...] = ()

    @cached_property
    def runs(self) -> tuple[Planned, ...]:
        """Each once: of two studies that have the same run, the first in which it is finished."""
        return tuple(run for run, _ in self._runs.values())

    @cached_property
    def tuning(self) -> tuple[Planned, ...]:
        return tuple(run for run, _ in self._tuning.values())

    @property
    def report_folder(self) -> Path:
        own = super().report_folder
        return own.with_name(f"{own.name}-with-{'-'.join(slug(part.folder.name) for part in self.parts[1:])}")

    def run_folder(self, run: Planned) -> Path:
        return self._part(run).run_folder(run)

    def recorded(self, run: Planned) -> Kept | None:
        return self._part(run).recorded(run)

    def dataset_folder(self, name: str) -> Path:
        return next(part for part in self.parts if name in part.recipe.datasets).dataset_folder(name)

    def _part(self, run: Planned) -> Study:
        return (self._tuning if run.tuning else self._runs)[_place(run)][1]

    @cached_property
    def _runs(self) -> dict[Place, tuple[Planned, Study]]:
        return _first_finished((run, part) for part in self.parts for run in part.runs)

    @cached_property
    def _tuning(self) -> dict[Place, tuple[Planned, Study]]:
        return _first_finished((run, part) for part in self.parts for run in part.tuning)


def pooled(studies: Sequence[Study]) -> Study:
    """One study of several; of one, itself. Baselines, margin and title are those of the first."""
    first = studies[0]
    if len(studies) == 1:
        return first
    if len({study.folder.resolve() for study in studies}) < len(studies):
        raise RecipeError(f"{first.folder}: a study cannot be pooled with itself")
    for one, other in combinations(studies, 2):
        for difference in _differences(one, other):
            raise RecipeError(f"{one.folder} and {other.folder} cannot be pooled: {difference}")
    choices = {(each["dataset"], each["model"], each["loss"]): each for study in studies for each in study.choices}
    recipe = _union([study.recipe for study in studies])
    return Pool(
        first.folder, recipe, first.data, first.cache, first.weights, first.against, first.skip_errors,
        tuple(choices.values()), tuple(studies),
    )  # fmt: skip


def _union(recipes: Sequence[Recipe]) -> Recipe:
    def joined(name: str) -> dict[str, Any]:
        return {key: value for recipe in recipes for key, value in getattr(recipe, name).items()}

    def listed(name: str) -> tuple[int, ...]:
        return tuple(sorted({number for recipe in recipes for number in getattr(recipe, name)}))

    return replace(
        recipes[0], title=f"{recipes[0].title}, {len(recipes)} studies", folds=listed("folds"),
        replicates=listed("replicates"), datasets=joined("datasets"), models=joined("models"), losses=joined("losses"),
    )  # fmt: skip


def _first_finished(runs: Iterator[tuple[Planned, Study]]) -> dict[Place, tuple[Planned, Study]]:
    found: dict[Place, tuple[Planned, Study]] = {}
    for run, part in runs:
        kept = found.setdefault(_place(run), (run, part))
        if kept[1].state(kept[0]) != "done" and part.state(run) == "done":
            found[_place(run)] = run, part
    return found


def _place(run: Planned) -> Place:
    return run.dataset, run.model, run.loss, run.value, run.fold, run.replicate


def _differences(one: Study, other: Study) -> Iterator[str]:
    """What keeps two studies from being one, in words."""
    both = one.recipe, other.recipe
    outer = {"replicate": "replicates, each with a cut of its own", "seed": "seeds, on one cut"}
    told: dict[str, Sequence[str]] = {
        "repeated by": [outer[recipe.outer] for recipe in both],
        "score": [recipe.score for recipe in both],
        "[tune]": [_tuned(recipe) for recipe in both],
    }
    for what, (first, second) in told.items():
        if first != second:
            yield f"{what}: {first} and {second}"
    if one.weights != other.weights:
        yield f"weights: {one.weights} and {other.weights}"
    common = [
        (dataset, model)
        for dataset in both[0].datasets
        for model in both[0].models
        if dataset in both[1].datasets and model in both[1].models
    ]
    if not common:
        yield "they have no data set and network in common"
    for loss in both[0].losses.keys() & both[1].losses.keys():
        mine, theirs = ([each.expression for each in recipe.losses[loss]] for recipe in both)
        if mine != theirs:
            yield f"{loss} is {', '.join(mine)} and {', '.join(theirs)}"
    for dataset, model in common:
        where = f" of {dataset} with {model}"
        for name, (mine, theirs) in _unlike(one, other, dataset, model).items():
            yield f"{name}{where}: {mine} and {theirs}"
        contents = [{each.result["prepared"] for each in study.finished() if each.run.dataset == dataset}
                    for study in (one, other)]  # fmt: skip
        if len(set.union(*contents)) > 1:
            yield f"the data{where}: {' and '.join(', '.join(sorted(each)) for each in contents)}"
        for loss in both[0].losses.keys() & both[1].losses.keys():
            chosen = [each["value"] for study in (one, other) if (each := study.choice(dataset, model, loss))]
            if len(set(chosen)) > 1:
                yield f"the value that was chosen for {loss}{where}: {' and '.join(chosen)}"


def _tuned(recipe: Recipe) -> str:
    return "nested" if recipe.tune.nested else "once"


def _unlike(one: Study, other: Study, dataset: str, model: str) -> dict[str, tuple[Any, Any]]:
    """The settings that all losses of a study share, where two studies have others."""
    found = []
    for study in (one, other):
        run = next(each for each in study.recipe.runs() if (each.dataset, each.model) == (dataset, model))
        settings = vars(study.recipe.settings(run, Path(), Path()))
        tuned = {name for variants in study.recipe.losses.values() for name, _ in variants[0].settings}
        other_than_shared = RESERVED | HARMLESS | tuned | ({"split_seed"} if run.nested else set())
        found.append({name: value for name, value in settings.items() if name not in other_than_shared})
    common = found[0].keys() & found[1].keys()
    return {name: (found[0][name], found[1][name]) for name in sorted(common) if found[0][name] != found[1][name]}
