"""A recipe: which data sets, networks, losses, folds and replicates are trained, and how. A recipe is a TOML file.

    title = "Dice against PolyDice-1"
    baseline = "Dice"                       # what the others are compared with; or a list
    margin = 1.0                            # points of the score: what is less does not matter
    folds = [0, 1, 2, 3, 4]                 # which of them; if not given, all
    replicates = 3                          # each with a cut into folds of its own; or seeds = [0, 1, 2], on one cut

    [train]                                 # any setting of `polydice train`
    epochs = 100

    [tune]                                  # values to choose from, for every loss by itself
    rate = [0.01, 0.04, 0.16, 0.64]

    [datasets.cvc-clinicdb]                 # a folder, below the one given by --data; settings of this set alone
    path = "cvc-clinicdb"

    [models.unet]                           # settings of this network alone; `model` is its name if not given

    [losses]
    Dice = "DiceLoss(batch=True)"
    Tversky = { loss = "TverskyLoss(0.3, 0.7, batch=True)", rate = [0.01, 0.02], replicates = 1 }
    "PolyDice-1" = { loss = "PolyDice1Loss({epsilon}, batch=True)", epsilon = [-0.3, 0.0, 0.5] }

A loss with several values has one of them chosen on validation: once, by runs that are there for nothing else, or in
every fold and replicate by itself (`[tune] nested = true`). A loss can have fewer replicates than the others.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from polydice import foreign
from polydice.models import MODELS
from polydice.studies.axes import Chosen, Tune, variants
from polydice.studies.axes import Variant as Variant
from polydice.studies.unsaid import NEW, Unsaid
from polydice.studies.written import SETTINGS, loads, refuse_repeated, whole_numbers
from polydice.studies.written import RecipeError as RecipeError
from polydice.studies.written import slug as slug
from polydice.suggest import meant
from polydice.training.config import CountingScore, CountingWeights, Settings
from polydice.values import as_tuple

PACKAGED = Path(__file__).parents[1] / "recipes"
TUNING = 999  # the replicate in which values are chosen: no other has its number
MOST_FOLDS = 1000  # see own_seed
PARTS = 5  # into which the cases are cut, if the recipe does not say it


def own_seed(fold: int, replicate: int) -> int:
    """The seed of a fold in a replicate, the same for all losses, and no other fold's or replicate's.

    >>> own_seed(fold=4, replicate=2)
    2004
    """
    return MOST_FOLDS * replicate + fold


@dataclass(frozen=True)
class Planned:
    """One run of a study."""

    dataset: str
    model: str
    loss: str
    value: str
    fold: int
    replicate: int  # with `seeds`, the seed
    expression: str
    settings: Chosen = ()  # those of its value
    nested: bool = False  # its replicate has a cut into folds of its own
    tuning: bool = False  # it is there for the choice of a value alone
    open: bool = False  # its value is still to be chosen: it cannot be trained yet

    @property
    def seed(self) -> int:
        return own_seed(self.fold, self.replicate) if self.nested or self.tuning else self.replicate

    @property
    def alike(self) -> "Planned":
        """What it has in common with the same run of a recipe that lists more values to choose from."""
        return replace(self, expression="") if self.open else self

    @property
    def turn(self) -> tuple[bool, int, int]:
        """By which runs are put in order: first what others wait for, then replicate by replicate, fold by fold."""
        return not self.tuning, self.replicate, self.fold

    @property
    def place(self) -> Path:
        """Its folder below the study's `runs`."""
        variant = slug(self.loss) + (f"-{slug(self.value)}" if self.value else "")
        last = "tuning" if self.tuning else f"{'replicate' if self.nested else 'seed'}-{self.replicate}"
        return Path(slug(self.dataset), slug(self.model), variant, f"fold-{self.fold}", last)


@dataclass(frozen=True)
class Recipe:
    title: str
    about: str
    baselines: tuple[str, ...]
    margin: float  # points of the score that counts
    folds: tuple[int, ...]  # those that are tested on; into how many the cases are cut is a setting
    replicates: tuple[int, ...]  # with `seeds`, these
    nested: bool  # every replicate has a cut into folds of its own; with `seeds`, all have the same
    train: Mapping[str, Any]
    tune: Tune
    datasets: Mapping[str, Mapping[str, Any]]
    models: Mapping[str, Mapping[str, Any]]
    losses: Mapping[str, tuple[Variant, ...]]
    fewer: Mapping[str, tuple[int, ...]]  # replicates of losses that have their own
    rates: Mapping[str, float]  # by optimiser, of what says none

    def runs(self) -> Iterator[Planned]:
        """Every run that is compared, so that a study that is stopped early has compared all losses on what it has.
        Those of a loss whose value is chosen once are open."""
        order = product(self.replicates, self.folds, self.datasets, self.models, self.losses)
        for replicate, fold, dataset, model, loss in order:
            if replicate not in self.fewer.get(loss, self.replicates):
                continue
            if self.is_tuned(loss):
                first = self.losses[loss][0].expression  # which stands for the others until the choice is made
                yield Planned(dataset, model, loss, "", fold, replicate, first, nested=self.nested, open=True)
                continue
            for each in self.losses[loss]:
                yield Planned(
                    dataset, model, loss, each.value, fold, replicate, each.expression, each.settings, self.nested
                )

    def tuning(self) -> Iterator[Planned]:
        """Every run that is there for the choice of a value alone."""
        for dataset, model, loss in product(self.datasets, self.models, filter(self.is_tuned, self.losses)):
            for each, fold in product(self.losses[loss], self.tune.folds):
                yield Planned(
                    dataset, model, loss, each.value, fold, TUNING, each.expression, each.settings, self.nested, True
                )

    def is_tuned(self, loss: str) -> bool:
        """Whether its value is chosen once, for all folds and replicates."""
        return len(self.losses[loss]) > 1 and not self.tune.nested

    @property
    def values(self) -> dict[str, int]:
        """With how many values each loss is trained in every fold and replicate."""
        return {loss: 1 if self.is_tuned(loss) else len(each) for loss, each in self.losses.items()}

    def extends(self, other: "Recipe") -> bool:
        """Whether every run of the other is one of these, on the same data and trained in the same way."""
        runs, place = {each.alike for each in (*self.runs(), *self.tuning())}, Path()
        return all(self.datasets.get(name) == dataset for name, dataset in other.datasets.items()) and all(
            run.alike in runs and self.settings(run, place, place) == other.settings(run, place, place)
            for run in (*other.runs(), *other.tuning())
        )

    @property
    def baseline(self) -> str:
        return self.baselines[0]

    @property
    def score(self) -> CountingScore:
        """The score that counts."""
        found: CountingScore = self.train["score"]
        return found

    @property
    def weights(self) -> CountingWeights:
        """The weights that count."""
        found: CountingWeights = self.train["weights"]
        return found

    @property
    def outer(self) -> str:
        """What a replicate is called: with `seeds` it is one of these."""
        return "replicate" if self.nested else "seed"

    def settings(self, run: Planned, data: Path, out: Path, **more: Any) -> Settings:
        """What `polydice train` is given for a run on the data set in the folder `data`."""
        own = {"model": run.model} if run.model in MODELS or ":" in run.model else {}
        given = {**self.train, **own, **self.datasets[run.dataset], **self.models[run.model], **dict(run.settings)}
        given.setdefault("rate", self.rates.get(given.get("optimizer", "")))  # none yet where that is to be chosen
        if run.nested:
            given["split_seed"] = run.replicate
        chosen = {name: as_tuple(value) for name, value in given.items() if name in SETTINGS}
        return Settings(
            data=data, out=out, loss=run.expression, fold=run.fold, seed=run.seed, resume=True, **chosen, **more
        )


def packaged() -> dict[str, Path]:
    """The recipes that come with polydice, by name."""
    return {path.stem: path for path in sorted(PACKAGED.glob("*.toml"))}


def text_of(name: str | Path) -> str:
    """What a packaged recipe says, or one from a file."""
    path = packaged().get(str(name), Path(name))
    try:
        text = path.read_text(encoding="utf-8")
        if foreign.MENTION.search(text):
            foreign.look_in(path.parent)
        return text
    except FileNotFoundError:
        near = meant(str(name), packaged())
        known = ", ".join(packaged()) + (f"; did you mean {near}?" if near else "")
        raise RecipeError(f"{name} is neither a file nor one of the packaged recipes: {known}") from None
    except (OSError, ValueError) as error:
        raise RecipeError(f"{path}: {error}") from error


def read(name: str | Path, unsaid: Unsaid = NEW, text: str | None = None) -> Recipe:
    """A packaged recipe by its name, or one from a file. `text` is what it says, if that is not what is there."""
    text = text_of(name) if text is None else text
    try:
        return parse(text, unsaid)
    except ValueError as error:
        raise RecipeError(f"{packaged().get(str(name), Path(name))}: {error}") from error


def parse(text: str, unsaid: Unsaid = NEW) -> Recipe:
    """The recipe that a text says; `unsaid` is what it means where it says nothing."""
    given = loads(text)
    tune = Tune.of(given.get("tune", {}), unsaid.nested)
    train = {"score": unsaid.score, "weights": unsaid.weights, **given.get("train", {})}
    if "optimizer" not in tune.lists:
        train.setdefault("optimizer", unsaid.optimizer)
    replicates, nested = _replicates(given, unsaid)
    folds = whole_numbers("folds", given.get("folds", [*range(_parts(train))]))
    losses = {name: tuple(variants(name, entry, tune)) for name, entry in given["losses"].items()}
    named = given.get("baseline", next(iter(losses)))
    recipe = Recipe(
        given.get("title", "A study"), given.get("about", ""), (named,) if isinstance(named, str) else tuple(named),
        given.get("margin", 1.0), folds, replicates, nested, train, tune, given["datasets"], given["models"], losses,
        {name: own for name, entry in given["losses"].items() if (own := _fewer(name, entry, replicates, nested))},
        unsaid.rates,
    )  # fmt: skip
    _refuse_contradictions(recipe)
    _refuse_what_cannot_run(recipe)
    return recipe


def stem(name: str) -> str:
    """A loss's name without the values of its parameters.

    >>> stem("Tversky, α = 0.3, β = 0.7"), stem("PolyDice-1 detached, ε = −0.3")
    ('Tversky', 'PolyDice-1 detached')
    """
    return re.sub(r",? *\b(K|ε|α|β|order|epsilon) *= *[-−+]?[\d.]+", "", name)


def _replicates(given: Mapping[str, Any], unsaid: Unsaid) -> tuple[tuple[int, ...], bool]:
    """The replicates of a recipe, and whether each has a cut into folds of its own."""
    if "seeds" in given and "replicates" in given:
        raise RecipeError(
            "the recipe has both replicates and seeds: replicates = 3 cuts the cases anew and draws a seed for each of "
            "its folds, three times; seeds = [0, 1, 2] trains with each of them on the same cut"
        )
    if "seeds" in given or ("replicates" not in given and unsaid.seeds is not None):
        return whole_numbers("seeds", given.get("seeds", unsaid.seeds and [*unsaid.seeds])), False
    count = given.get("replicates", 3)
    if count > TUNING:
        raise RecipeError(f"replicates must be at most {TUNING}: {count}")
    return tuple(range(count)), True


def _parts(train: Mapping[str, Any]) -> int:
    """Into how many parts the cases are cut; what is wrong with that number is said later."""
    count = train.get("folds", PARTS)
    return count if type(count) is int and 0 < count <= MOST_FOLDS else PARTS


def _fewer(loss: str, entry: Any, replicates: tuple[int, ...], nested: bool) -> tuple[int, ...]:
    """The replicates of a loss that has its own; none of another."""
    key, other = ("replicates", "seeds") if nested else ("seeds", "replicates")
    if not isinstance(entry, dict) or not {key, other} & entry.keys():
        return ()
    if other in entry:
        raise RecipeError(f"the loss {loss!r} has {other}, but the recipe has {key}")
    if nested:
        count = entry[key]
        if type(count) is not int or not 1 <= count <= len(replicates):
            raise RecipeError(f"replicates of {loss!r} must be a number up to the recipe's {len(replicates)}: {count}")
        return replicates[:count]
    own = whole_numbers(f"seeds of {loss!r}", entry[key])
    if not set(own) <= set(replicates):
        raise RecipeError(f"seeds of {loss!r} must be some of the recipe's {list(replicates)}: {list(own)}")
    return own


def _refuse_contradictions(recipe: Recipe) -> None:
    if not recipe.baselines:
        raise RecipeError(f"baseline must name one of the losses, or several: {', '.join(recipe.losses)}")
    refuse_repeated("baseline", recipe.baselines)
    for name in recipe.baselines:
        if name not in recipe.losses:
            raise RecipeError(f"the baseline {name!r} is none of the losses: {', '.join(recipe.losses)}")
    tables = {"[train]": recipe.train}
    tables |= {f"[datasets.{name}]": table for name, table in recipe.datasets.items()}
    tables |= {f"[models.{name}]": table for name, table in recipe.models.items()}
    valued = {name for each in recipe.losses.values() for variant in each for name, _ in variant.settings}
    for where, table in tables.items():
        for name in sorted(valued & table.keys() if where != "[train]" else recipe.tune.lists.keys() & table.keys()):
            raise RecipeError(f"{where} sets {name}, and losses have values of it to choose from: keep one of the two")
        if recipe.nested and "split_seed" in table:
            raise RecipeError(f"{where} sets split_seed, but every replicate has its own: leave it out, or take seeds")
    if not recipe.nested and (several := {*recipe.replicates} & {own_seed(each, TUNING) for each in recipe.tune.folds}):
        raise RecipeError(f"seeds cannot be {several.pop()}, with which values are chosen")


def _refuse_what_cannot_run(recipe: Recipe) -> None:
    """Settings and losses are tried before hours are spent."""
    from polydice.training.expression import parse_loss

    places: set[Path] = set()
    for run in (*recipe.tuning(), *recipe.runs()):
        try:
            settings = recipe.settings(run, Path("data"), Path("out"))
            if not run.open:
                parse_loss(run.expression)
            place = run.place
        except (TypeError, ValueError) as error:
            value = f", {run.value}," if run.value else ""
            raise RecipeError(f"{run.loss}{value} on {run.dataset} with {run.model}: {error}") from error
        if place in places:
            raise RecipeError(f"{place} is the folder of two runs: give {run.loss} another name")
        places.add(place)
        if run.nested and settings.split == "contiguous" and len(recipe.replicates) > 1:
            raise RecipeError(
                f'{run.dataset} has split = "contiguous", which cuts the cases in one way only, but each of '
                f'{len(recipe.replicates)} replicates needs a cut of its own: take split = "grouped" or "random", '
                f"or repeat the same cut with seeds = {[*recipe.replicates]}"
            )
        if run.nested and settings.folds > MOST_FOLDS:
            raise RecipeError(f"folds must be at most {MOST_FOLDS}, or seeds would collide: {settings.folds}")
