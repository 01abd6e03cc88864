"""What a loss is trained with: a value, or a list of values one of which is chosen on validation."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from polydice.studies.written import (
    RESERVED,
    SETTINGS,
    RecipeError,
    refuse_repeated,
    refuse_unknown,
    whole_numbers,
)
from polydice.values import as_tuple

# Settings that cannot be chosen on validation: with another value, the scores are of other cases or of other pixels, or
# mean something else, or are the same.
FIXED = {
    "layout", "masks", "group", "ignore", "skip_errors", "split", "folds", "split_seed", "size", "spacing", "cut",
    "score", "weights", "validate_every", "surfaces", "compile", "head", "save_every",
}  # fmt: skip
NETWORK = "model"  # networks are compared, under [models]
TUNABLE = SETTINGS - FIXED - {NETWORK}
OF_A_LOSS = {"loss", "seeds", "replicates"}

Chosen = tuple[tuple[str, Any], ...]  # names and values of settings


@dataclass(frozen=True)
class Variant:
    """A loss as it is trained: one value of those it lists."""

    loss: str  # as the recipe names it
    value: str  # "epsilon=0.5, rate=0.04"; nothing for a loss without a list
    expression: str
    settings: Chosen = field(default=(), compare=False)  # those of the value, which names them

    @property
    def of_the_loss(self) -> "Variant":
        """The loss itself, whatever it is trained with: variants with other settings have the same."""
        return replace(self, value="", settings=())


@dataclass(frozen=True)
class Tune:
    """How values are chosen: once, on the validation parts of some folds of a replicate of its own, or, if `nested`, in
    every fold and replicate by itself."""

    nested: bool
    folds: tuple[int, ...]
    lists: Mapping[str, list[Any]]  # of settings, for all losses that have no list of their own

    @classmethod
    def of(cls, given: Mapping[str, Any], nested: bool) -> "Tune":
        """The table [tune]; `nested` is what it means if it does not say it."""
        lists = {name: values for name, values in given.items() if name not in ("nested", "folds")}
        for name in lists:
            _refuse_fixed("[tune]", name)
        refuse_unknown("[tune]", given, TUNABLE | {"nested", "folds"})
        for name, values in lists.items():
            _refuse_no_choice(f"{name} under [tune]", values, "a single value belongs under [train]")
        nested = given.get("nested", nested)
        if type(nested) is not bool:
            raise RecipeError(f"tune.nested must be true or false: {nested!r}")
        if nested and "folds" in given:
            raise RecipeError("tune.folds has no meaning with tune.nested = true: values are chosen in every fold")
        folds = whole_numbers("tune.folds", given.get("folds", [0, 1]))
        return cls(nested, folds, lists)


def variants(name: str, entry: Any, tune: Tune) -> Iterator[Variant]:
    """A loss of the recipe with every value that it can have: those of its own lists, and of [tune]'s where it has
    nothing of its own."""
    if isinstance(entry, str):
        entry = {"loss": entry}
    if not isinstance(entry, dict) or not isinstance(entry.get("loss"), str):
        raise RecipeError(f"the loss {name!r} must be a text, or a table with a text `loss` and lists of values")
    own = {key: values for key, values in entry.items() if key not in OF_A_LOSS}
    for key, values in own.items():
        _refuse_unusable(name, entry["loss"], key, values)
    lists = {key: values if isinstance(values, list) else [values] for key, values in own.items()}
    lists |= {key: values for key, values in tune.lists.items() if key not in own}
    for values in product(*lists.values()):
        chosen = dict(zip(lists, map(as_tuple, values), strict=True))
        expression, settings = entry["loss"], {}
        for key, value in chosen.items():
            if f"{{{key}}}" in entry["loss"]:
                expression = expression.replace(f"{{{key}}}", repr(value))
            else:
                settings[key] = value
        named = ", ".join(f"{key}={value}" for key, value in chosen.items())
        yield Variant(name, named, expression, tuple(settings.items()))


def _refuse_unusable(loss: str, expression: str, key: str, values: Any) -> None:
    """What a loss's own table cannot have."""
    if f"{{{key}}}" in expression:
        if not isinstance(values, list) or not values:
            raise RecipeError(f"{key} of the loss {loss!r} must be a list of values: {values}")
        refuse_repeated(f"{key} of the loss {loss!r}", values)
        return
    _refuse_fixed(f"the loss {loss!r}", key)
    if key not in TUNABLE:
        raise RecipeError(
            f"{key} of the loss {loss!r} must be a list of values, and stand as {{{key}}} in `loss`, or be a "
            f"setting of training: {', '.join(sorted(TUNABLE))}"
        )
    if isinstance(values, list):
        _refuse_no_choice(f"{key} of the loss {loss!r}", values, "write a single value without brackets")


def _refuse_fixed(where: str, name: str) -> None:
    if name == NETWORK:
        raise RecipeError(f"{where} cannot choose the network on validation: networks are compared, under [models]")
    if name == "loss":
        raise RecipeError(f"{where} cannot choose the loss: losses are compared, under [losses]")
    if name in RESERVED:
        raise RecipeError(f"{where} cannot choose {name}: a study sets it for each run by itself")
    if name in FIXED:
        raise RecipeError(
            f"{where} cannot choose {name}: validation scores with another {name} could not be compared, or would be "
            f"the same; set it under [train]. What can be chosen: {', '.join(sorted(TUNABLE))}"
        )


def _refuse_no_choice(what: str, values: Any, instead: str) -> None:
    if not isinstance(values, list):
        raise RecipeError(f"{what} must be a list of the values to choose from: {values}")
    if len(values) < 2:
        raise RecipeError(f"{what} must list at least two values to choose from: {values}; {instead}")
    refuse_repeated(what, values)
