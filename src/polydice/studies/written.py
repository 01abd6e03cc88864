"""A recipe as it is written: its keys, what each may hold, and where each belongs."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import chain
from typing import Any, Required, TypedDict, get_type_hints

from polydice.data.generate import Options
from polydice.recommended import START
from polydice.suggest import meant
from polydice.training.config import Settings
from polydice.values import Count, Positive, as_tuple, check

# What a study decides for each run by itself.
RESERVED = {"data", "out", "cache", "fold", "seed", "loss", "resume", "device", "track"}
SETTINGS = {field.name for field in fields(Settings)} - RESERVED
ONCE = {"score", "weights"}  # one report has one score that counts, of one kind of weights
OF_A_PART = SETTINGS - ONCE


class Written(TypedDict, total=False):
    """The keys at the top of a recipe, and its tables."""

    title: str
    about: str
    baseline: str | list[str]
    margin: Positive
    folds: Any
    seeds: Any
    replicates: Count
    train: dict[str, Any]
    tune: dict[str, Any]
    datasets: Required[dict[str, dict[str, Any]]]
    models: Required[dict[str, dict[str, Any]]]
    losses: Required[dict[str, Any]]


class Generated(Options):
    """What `generate` of a data set is asked for."""

    count: Required[Count]


class RecipeError(ValueError):
    """A recipe that cannot be followed; the message says where in it."""


AUTO = "auto"  # what is chosen for a recipe: a network, or the rates to choose from
LONGEST_NAME = 100  # letters: file systems take 255 bytes
TOP = set(get_type_hints(Written))


def loads(text: str) -> dict[str, Any]:
    """The keys and tables of a recipe, each of which is known and holds what it may; losses and [tune] not yet."""
    given = tomllib.loads(text)
    refuse_unknown("the recipe", given, TOP)
    for table in ("datasets", "models", "losses"):
        if not given.get(table):
            raise RecipeError(f"the recipe has no {table}: add a table [{table}]")
    _check("recipe", given, Written)
    refuse_unknown("[train]", given.get("train", {}), SETTINGS)
    for name, dataset in given["datasets"].items():
        refuse_unknown(f"[datasets.{name}]", dataset, OF_A_PART | {"path", "generate"})
        if ("path" in dataset) == ("generate" in dataset):
            raise RecipeError(f"[datasets.{name}] needs either path or generate")
        for key, hint in (("path", str), ("generate", Generated)):
            if key in dataset:
                _check(f"datasets.{name}.{key}", as_tuple(dataset[key]), hint)
        refuse_unknown(f"datasets.{name}.generate", dataset.get("generate", {}), set(get_type_hints(Generated)))
    for name, model in given["models"].items():
        refuse_unknown(f"[models.{name}]", model, OF_A_PART)
    if given.get("tune", {}).get("rate") == AUTO:
        given["tune"]["rate"] = own_rates(given)
    return given


def own_rates(given: Mapping[str, Any]) -> list[float]:
    """The rates to choose from that the optimiser of a recipe has."""
    tables = (given.get(name, {}).values() for name in ("datasets", "models", "losses"))
    if any(isinstance(part, dict) and "optimizer" in part for part in (given["tune"], *chain(*tables))):
        raise RecipeError(
            f'rate = "{AUTO}" under [tune] are the rates of the one optimiser under [train], and this recipe has '
            "several: list the rates"
        )
    named = given.get("train", {}).get("optimizer")
    return [*START.tried.get(named, START.tried[START.optimizer])]  # what is wrong with another name is said later


def dumps(given: Mapping[str, Any]) -> str:
    """A recipe as TOML, as `loads` takes it."""
    lines = [*_lines({key: value for key, value in given.items() if not isinstance(value, dict)})]
    for name, table in given.items():
        if name in ("datasets", "models"):
            for part, entries in table.items():
                lines += ["", f"[{name}.{_key(part)}]", *_lines(entries)]
        elif isinstance(table, dict):
            lines += ["", f"[{name}]", *_lines(table)]
    return "\n".join(lines) + "\n"


def _lines(table: Mapping[str, Any]) -> Iterator[str]:
    return (f"{_key(key)} = {in_toml(value)}" for key, value in table.items())


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else in_toml(name)


def in_toml(value: Any) -> str:
    """A value as it stands in a recipe."""
    if isinstance(value, dict):
        return f"{{ {', '.join(_lines(value))} }}"
    if isinstance(value, str) and "\n" in value and not set('"\\') & set(value):
        return f'"""\n{value}"""'
    if isinstance(value, list):
        return "[" + ", ".join(map(in_toml, value)) + "]"
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def refuse_unknown(where: str, given: Mapping[str, Any], known: set[str]) -> None:
    unknown = sorted(set(given) - known)
    if not unknown:
        return
    told = [f"{name} belongs {place}" for name in unknown if (place := _belongs(name))]
    near = ", ".join(filter(None, (meant(name, known) for name in unknown if not _belongs(name))))
    asked = f" (did you mean {near}?)" if near else ""
    said = "".join(f"; {each}" for each in told)
    raise RecipeError(f"{where} has {', '.join(unknown)}{asked}{said}; known are {', '.join(sorted(known))}")


def _belongs(name: str) -> str:
    """Where a key stands that is written in another place; nothing for one that is not known anywhere."""
    if name in TOP:
        return "at the top of the recipe, before the first table"
    if name == "nested":
        return "under [tune]"
    if name in ONCE:
        return "under [train], once for the whole recipe"
    return "under [train]" if name in SETTINGS else ""


def slug(text: str) -> str:
    """A name for a folder, and for nothing above or below it: `PolyDice-1, ε` becomes `polydice-1-e`."""
    signed = re.sub(r"(?<!\w)-(?=\d)", "minus-", text.lower())
    name = re.sub(r"[^a-z0-9.]+", "-", signed.replace("ε", "e").replace("κ", "k")).strip("-") or "x"
    if not text.strip() or not name.strip(".") or len(name) > LONGEST_NAME:
        raise RecipeError(f"{text!r} cannot name a folder: take a name with a letter, of {LONGEST_NAME} at most")
    return name


def whole_numbers(what: str, given: Any) -> tuple[int, ...]:
    if not isinstance(given, list) or not given or not all(type(each) is int and each >= 0 for each in given):
        raise RecipeError(f"{what} must be a list of whole numbers: {given}")
    refuse_repeated(what, given)
    return tuple(given)


def refuse_repeated(what: str, values: Sequence[Any]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise RecipeError(f"{what} names {value} twice: {[*values]}")


def _check(name: str, value: Any, hint: Any) -> None:
    try:
        check(name, value, hint)
    except ValueError as problem:
        raise RecipeError(str(problem)) from problem
