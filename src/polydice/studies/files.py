"""Reads the files of a study. One that does not hold what a report needs is named: it is damaged, or was changed."""

import json
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

import numpy as np

from polydice.data.cases import DataError
from polydice.training.config import CountingScore, CountingWeights
from polydice.training.scoring import completed, validation
from polydice.training.weights import counted
from polydice.values import Count, NotNegative, Positive, Range, Seed, check

MOST_PIXELS = 2**53
AGAIN = "remove it and train the run again"
WITHOUT = "without the file, the report has all but the run's course"
Share = Annotated[float, Range(0, 1)]


class Where(TypedDict):
    """study.json: the folders of data sets, as they were and prepared."""

    data: str
    cache: str
    score: NotRequired[CountingScore]  # this and the next: what counts where the recipe says nothing
    weights: NotRequired[CountingWeights]
    seeds: NotRequired[list[Seed]]
    nested: NotRequired[bool]
    optimizer: NotRequired[str]
    rates: NotRequired[dict[str, Positive]]
    skip_errors: NotRequired[bool]
    code: NotRequired[list[str]]  # folders of the modules that the recipe names


class Choice(TypedDict):
    """An entry of chosen.json: the value of a loss that all folds and replicates have."""

    dataset: str
    model: str
    loss: str
    value: str
    folds: list[Seed]  # of the tuning replicate
    validation: dict[str, Share | None]  # of every value, the mean over these folds; None if it cannot be trained


class Epoch(TypedDict):
    """A line of history.jsonl."""

    epoch: Count
    loss: float
    gradient_norm: NotRequired[NotNegative]
    dice_foreground: NotRequired[Share | None]
    dice_global: NotRequired[Share | None]


class Stratum(TypedDict, total=False):
    dice_case: Share | None


class Scores(TypedDict):
    dice_foreground: NotRequired[Share | None]
    dice_global: Share
    predicts_nothing: NotRequired[bool]
    lost_classes: NotRequired[list[str]]
    strata: dict[str, Stratum]


class Case(TypedDict):
    id: str
    group: str
    confusion: list[Any]


class Last(TypedDict, total=False):
    """The same of the last weights."""

    test: Scores


class RunSettings(TypedDict, total=False):
    """The settings of a run, as far as a report reads them."""

    score: CountingScore
    weights: CountingWeights


class Used(TypedDict):
    """What a run was trained on."""

    cases: Count
    of: Count
    groups: Count
    classes: list[str]
    ignore: int | None
    annotated: NotRequired[dict[str, list[str]]]


class Result(TypedDict):
    """result.json, as far as a report reads it."""

    dataset: str
    prepared: str
    best_epoch: Annotated[int, Range(0)]
    validation_dice_foreground: NotRequired[Share | None]
    validation_dice_global: NotRequired[Share]
    test: Scores
    cases: list[Case]
    versions: dict[str, str]
    device: str
    settings: NotRequired[RunSettings]
    used: NotRequired[Used]
    last: NotRequired[Last]


def read_where(path: Path) -> Where:
    where: Where = read_json(path, path.read_bytes(), Where, "polydice study writes it anew")
    return where


def read_settings(path: Path) -> dict[str, Any]:
    """The settings of a run, from its settings.json or its result.json."""
    advice = "remove the run's folder and train it again"
    return settings_of(path, read_json(path, path.read_bytes(), dict[str, Any], advice), advice)


def settings_of(path: Path, found: dict[str, Any], advice: str) -> dict[str, Any]:
    """The same of a result, or of settings, read from `path`; `advice` is what to do if they are damaged."""
    settings: dict[str, Any] = found.get("settings", found)
    _check(path, settings, RunSettings, advice)
    return settings


def read_choices(path: Path) -> list[Choice]:
    """What was chosen; nothing where nothing is written down."""
    if not path.exists():
        return []
    advice = "remove it: the values are chosen again, from the same runs"
    choices: list[Choice] = read_json(path, path.read_bytes(), list[Choice], advice)
    return choices


def read_history(path: Path) -> list[dict[str, Any]]:
    return history_of(path, [read_json(path, row, Any, WITHOUT) for row in path.read_bytes().splitlines()])


def history_of(path: Path, rows: list[Any], advice: str = WITHOUT) -> list[dict[str, Any]]:
    """The epochs that were read from `path`, if they are such; `advice` is what to do if they are not."""
    for row in rows:
        _check(path, row, Epoch, advice)
    return rows


def read_result(path: Path, weights: CountingWeights = "best") -> dict[str, Any]:
    """What a run's result is with these weights; under `best` or `last`, what it is with the others."""
    return result_of(path, read_json(path, path.read_bytes(), Any, AGAIN), weights)


def result_of(path: Path, result: Any, weights: CountingWeights, again: str = AGAIN) -> dict[str, Any]:
    """The same of a result that was read from `path`; `again` is what to do if it is damaged."""
    _check(path, result, Result, again)
    if weights == "last":
        if not {"test", "cases"} <= result.get("last", {}).keys():
            raise DataError(f"{path} does not have the cases of the last weights: {again}")
        best = {name: result[name] for name in result["last"].keys() & result.keys()}
        result = counted(result, "last") | {"best": best}
        _check(path, result, Result, again)
    _check_matrices(path, result["cases"], again)
    result["settings"] = result.get("settings", {}) | {"weights": weights}  # what is at its top is of these
    try:
        validation(result)
    except KeyError as error:
        raise DataError(f"{path} is damaged: it has no {error.args[0]}; {again}") from error
    return completed(result)


def read_json(path: Path, data: bytes, hint: Any, advice: str) -> Any:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is damaged: {error}; {advice}") from error
    if hint is not Any:
        _check(path, value, hint, advice)
    return value


def _check(path: Path, value: Any, hint: Any, advice: str) -> None:
    try:
        check(path.stem, value, hint)
    except ValueError as error:
        raise DataError(f"{path} is damaged: {error}; {advice}") from error


def _check_matrices(path: Path, cases: list[Case], advice: str) -> None:
    """All at once: there are thousands of numbers."""
    try:
        matrices = np.array([case["confusion"] for case in cases])
    except ValueError:  # not all of one size
        matrices = np.empty(0)
    square = matrices.ndim == 3 and matrices.shape[1] == matrices.shape[2] and matrices.dtype.kind == "i"
    if not square or matrices.min() < 0 or matrices.max() > MOST_PIXELS:
        raise DataError(
            f"{path} is damaged: the cases need square matrices of whole numbers, all of one size; {advice}"
        )
