"""A recipe: which data sets, networks, losses, folds and seeds are trained, and how. A recipe is a TOML file.

    title = "Dice against PolyDice-1"
    baseline = "Dice"                       # what the others are compared with
    folds = [0, 1, 2, 3, 4]
    seeds = [0, 1, 2]

    [train]                                 # any setting of `polydice train`
    epochs = 100

    [datasets.cvc-clinicdb]                 # a folder, below the one given by --data; settings of this set alone
    path = "cvc-clinicdb"
    split = "contiguous"

    [models.unet]                           # settings of this network alone; `model` is its name if not given

    [losses]
    Dice = "DiceLoss(batch=True)"
    Tversky = { loss = "TverskyLoss(0.3, 0.7, batch=True)", seeds = [0] }
    "PolyDice-1" = { loss = "PolyDice1Loss({epsilon}, batch=True)", epsilon = [-0.3, 0.0, 0.5] }

A loss with a list of values is trained with each, and the value is chosen on the validation part. A loss can have seeds
of its own, fewer than the others.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any, Required, TypedDict, get_type_hints

from polydice.data.generate import Options
from polydice.suggest import meant
from polydice.training.config import CountingScore, Settings
from polydice.values import Count, check

LONGEST_NAME = 100  # letters: file systems take 255 bytes
PACKAGED = Path(__file__).parents[1] / "recipes"
# What a study decides for each run by itself.
RESERVED = {"data", "out", "cache", "fold", "seed", "loss", "resume", "device", "track"}
SETTINGS = {field.name for field in fields(Settings)} - RESERVED
OF_A_PART = SETTINGS - {"score"}  # one report has one score that counts


class Written(TypedDict, total=False):
    """A recipe as it is written."""

    title: str
    about: str
    baseline: str
    folds: Any
    seeds: Any
    train: dict[str, Any]
    datasets: Required[dict[str, dict[str, Any]]]
    models: Required[dict[str, dict[str, Any]]]
    losses: Required[dict[str, Any]]


class Generated(Options):
    """What `generate` of a data set is asked for."""

    count: Required[Count]


class RecipeError(ValueError):
    """A recipe that cannot be followed; the message says where in it."""


@dataclass(frozen=True)
class Variant:
    """A loss as it is trained: one value of those it lists."""

    loss: str  # as the recipe names it
    value: str  # "epsilon=0.5"; nothing for a loss without a list
    expression: str


@dataclass(frozen=True)
class Planned:
    """One run of a study."""

    dataset: str
    model: str
    loss: str
    value: str
    fold: int
    seed: int
    expression: str

    @property
    def replicate(self) -> int:
        return self.seed

    @property
    def place(self) -> Path:
        """Its folder below the study's `runs`."""
        variant = slug(self.loss) + (f"-{slug(self.value)}" if self.value else "")
        return Path(slug(self.dataset), slug(self.model), variant, f"fold-{self.fold}", f"seed-{self.seed}")


@dataclass(frozen=True)
class Recipe:
    title: str
    about: str
    baseline: str
    folds: tuple[int, ...]
    seeds: tuple[int, ...]
    train: Mapping[str, Any]
    datasets: Mapping[str, Mapping[str, Any]]
    models: Mapping[str, Mapping[str, Any]]
    losses: Mapping[str, tuple[Variant, ...]]
    fewer_seeds: Mapping[str, tuple[int, ...]]  # of losses that have their own

    def runs(self) -> Iterator[Planned]:
        """Every run, so that a study that is stopped early has compared all losses on what it has."""
        order = product(self.seeds, self.folds, self.datasets, self.models, self.losses)
        for seed, fold, dataset, model, loss in order:
            if seed in self.fewer_seeds.get(loss, self.seeds):
                for variant in self.losses[loss]:
                    yield Planned(dataset, model, loss, variant.value, fold, seed, variant.expression)

    def extends(self, other: "Recipe") -> bool:
        """Whether every run of the other is one of these, on the same data and trained in the same way."""
        runs, place = set(self.runs()), Path()
        return all(self.datasets.get(name) == dataset for name, dataset in other.datasets.items()) and all(
            run in runs and self.settings(run, place, place) == other.settings(run, place, place)
            for run in other.runs()
        )

    @property
    def baselines(self) -> tuple[str, ...]:
        return (self.baseline,)

    @property
    def margin(self) -> float:
        """Points of the score that counts."""
        return 1.0

    @property
    def nested(self) -> bool:
        """Every replicate has a cut into folds of its own."""
        return False

    @property
    def score(self) -> CountingScore:
        """The score that counts."""
        found: CountingScore = self.train["score"]
        return found

    def settings(self, run: Planned, data: Path, out: Path, **more: Any) -> Settings:
        """What `polydice train` is given for a run on the data set in the folder `data`."""
        own = {"model": run.model} if run.model in ("unet", "transunet", "unet3d") else {}
        given = {**self.train, **own, **self.datasets[run.dataset], **self.models[run.model]}
        chosen = {name: _as_tuple(value) for name, value in given.items() if name in SETTINGS}
        return Settings(
            data=data, out=out, loss=run.expression, fold=run.fold, seed=run.seed, resume=True, **chosen, **more
        )


def packaged() -> dict[str, Path]:
    """The recipes that come with polydice, by name."""
    return {path.stem: path for path in sorted(PACKAGED.glob("*.toml"))}


def read(name: str | Path, score: CountingScore = "dice_foreground") -> Recipe:
    """A packaged recipe by its name, or one from a file. `score` counts where the recipe does not say which does."""
    path = packaged().get(str(name), Path(name))
    try:
        return parse(path.read_text(encoding="utf-8"), score)
    except FileNotFoundError:
        near = meant(str(name), packaged())
        known = ", ".join(packaged()) + (f"; did you mean {near}?" if near else "")
        raise RecipeError(f"{name} is neither a file nor one of the packaged recipes: {known}") from None
    except (OSError, ValueError) as error:
        raise RecipeError(f"{path}: {error}") from error


def parse(text: str, score: CountingScore = "dice_foreground") -> Recipe:
    given = tomllib.loads(text)
    _refuse_unknown("the recipe", given, set(get_type_hints(Written)))
    for table in ("datasets", "models", "losses"):
        if not given.get(table):
            raise RecipeError(f"the recipe has no {table}: add a table [{table}]")
    _check("recipe", given, Written)
    _refuse_unknown("[train]", given.get("train", {}), SETTINGS)
    for name, dataset in given["datasets"].items():
        _refuse_unknown(f"[datasets.{name}]", dataset, OF_A_PART | {"path", "generate"})
        if ("path" in dataset) == ("generate" in dataset):
            raise RecipeError(f"[datasets.{name}] needs either path or generate")
        for key, hint in (("path", str), ("generate", Generated)):
            if key in dataset:
                _check(f"datasets.{name}.{key}", _as_tuple(dataset[key]), hint)
        _refuse_unknown(f"datasets.{name}.generate", dataset.get("generate", {}), set(get_type_hints(Generated)))
    for name, model in given["models"].items():
        _refuse_unknown(f"[models.{name}]", model, OF_A_PART)
    folds = _whole_numbers("folds", given.get("folds", [0, 1, 2, 3, 4]))
    seeds = _whole_numbers("seeds", given.get("seeds", [0]))
    losses = {name: tuple(_variants(name, entry)) for name, entry in given["losses"].items()}
    tables = {name: entry for name, entry in given["losses"].items() if isinstance(entry, dict)}
    fewer = {
        name: _whole_numbers(f"seeds of {name!r}", entry["seeds"]) for name, entry in tables.items() if "seeds" in entry
    }
    for name, own in fewer.items():
        if not set(own) <= set(seeds):
            raise RecipeError(f"seeds of {name!r} must be some of the recipe's {list(seeds)}: {list(own)}")
    baseline = given.get("baseline", next(iter(losses)))
    if baseline not in losses:
        raise RecipeError(f"the baseline {baseline!r} is none of the losses: {', '.join(losses)}")
    recipe = Recipe(
        given.get("title", "A study"), given.get("about", ""), baseline, folds, seeds,
        {"score": score, **given.get("train", {})}, given["datasets"], given["models"], losses, fewer,
    )  # fmt: skip
    _refuse_what_cannot_run(recipe)
    return recipe


def slug(text: str) -> str:
    """A name for a folder, and for nothing above or below it: `PolyDice-1, ε` becomes `polydice-1-e`."""
    signed = re.sub(r"(?<!\w)-(?=\d)", "minus-", text.lower())
    name = re.sub(r"[^a-z0-9.]+", "-", signed.replace("ε", "e").replace("κ", "k")).strip("-") or "x"
    if not text.strip() or not name.strip(".") or len(name) > LONGEST_NAME:
        raise RecipeError(f"{text!r} cannot name a folder: take a name with a letter, of {LONGEST_NAME} at most")
    return name


def stem(name: str) -> str:
    """A loss's name without the values of its parameters.

    >>> stem("Tversky, α = 0.3, β = 0.7"), stem("PolyDice-1 detached, ε = −0.3")
    ('Tversky', 'PolyDice-1 detached')
    """
    return re.sub(r",? *\b(K|ε|α|β|order|epsilon) *= *[-−+]?[\d.]+", "", name)


def _whole_numbers(what: str, given: Any) -> tuple[int, ...]:
    if not isinstance(given, list) or not given or not all(type(each) is int and each >= 0 for each in given):
        raise RecipeError(f"{what} must be a list of whole numbers: {given}")
    return tuple(given)


def _variants(name: str, entry: Any) -> Iterator[Variant]:
    if isinstance(entry, str):
        entry = {"loss": entry}
    if not isinstance(entry, dict) or not isinstance(entry.get("loss"), str):
        raise RecipeError(f"the loss {name!r} must be a text, or a table with a text `loss` and lists of values")
    lists = {key: values for key, values in entry.items() if key not in ("loss", "seeds")}
    for key, values in lists.items():
        if not isinstance(values, list) or not values or f"{{{key}}}" not in entry["loss"]:
            raise RecipeError(f"{key} of the loss {name!r} must be a list of values, and stand as {{{key}}} in `loss`")
    for values in product(*lists.values()):
        chosen = dict(zip(lists, values, strict=True))
        expression = entry["loss"]
        for key, value in chosen.items():
            expression = expression.replace(f"{{{key}}}", repr(value))
        yield Variant(name, ", ".join(f"{key}={value}" for key, value in chosen.items()), expression)


def _check(name: str, value: Any, hint: Any) -> None:
    try:
        check(name, value, hint)
    except ValueError as problem:
        raise RecipeError(str(problem)) from problem


def _refuse_unknown(where: str, given: Mapping[str, Any], known: set[str]) -> None:
    unknown = sorted(set(given) - known)
    near = ", ".join(filter(None, (meant(name, known) for name in unknown)))
    if unknown:
        asked = f" (did you mean {near}?)" if near else ""
        raise RecipeError(f"{where} has {', '.join(unknown)}{asked}; known are {', '.join(sorted(known))}")


def _refuse_what_cannot_run(recipe: Recipe) -> None:
    """Settings and losses are tried before hours are spent."""
    from polydice.training.expression import parse_loss

    places: set[Path] = set()
    for run in recipe.runs():
        try:
            recipe.settings(run, Path("data"), Path("out"))
            parse_loss(run.expression)
            place = run.place
        except (TypeError, ValueError) as error:
            raise RecipeError(f"{run.loss} on {run.dataset} with {run.model}: {error}") from error
        if place in places:
            raise RecipeError(f"{place} is the folder of two runs: give {run.loss} another name")
        places.add(place)


def _as_tuple(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _as_tuple(each) for name, each in value.items()}
    return tuple(value) if isinstance(value, list) else value
