"""What a recipe leaves open: with a network that is called auto, the network and the sizes that suit the data and the
machine; with `rate = "auto"` under [tune], rates that suit the optimiser. They are chosen when a study is made, and
stand in its recipe.toml from then on, where anybody can see them.

On a GPU the network and the image are those of the paper. On a CPU both are small, so that the whole of a study takes
an hour or so: it compares the losses, and its scores are far from the best that can be had.
"""

import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import ceil
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, get_type_hints

from polydice.data.cases import DataError, Dataset
from polydice.models import find
from polydice.studies.axes import TUNABLE
from polydice.studies.written import AUTO, SETTINGS, TOP, RecipeError, dumps, in_toml, own_rates, refuse_unknown
from polydice.training.config import Settings
from polydice.values import as_tuple, check

LOOKED_AT = 8  # cases, which tell the size of the others
THICK = 3  # volumes whose slices are so many times as thick as their pixels are wide are taken slice by slice
FEW_SLICES = 16  # and so are those with fewer slices
STEPS = {"gpu": 2000, "cpu": 600}  # of a training
EDGE, PATCH = {"gpu": 224, "cpu": 64}, 32  # pixels at most; voxels at most, on a CPU
SMALL = {"width": 8, "depth": 3}  # of networks that have these, on a CPU
FOLDS = {"gpu": 5, "cpu": 3}


def completed(text: str, data: Path, kept: str | None, changes: Sequence[str]) -> tuple[str, str]:
    """A recipe with the changes that the command asks for and without anything that is left open, and what was chosen,
    in words. `kept` is the recipe of a study that has begun: what was chosen for it stays."""
    try:
        given = tomllib.loads(text)
    except ValueError:
        return text, ""  # whoever reads it says what is wrong
    for each in changes:
        _change(given, each)
    models, tune = given.get("models", {}), given.get("tune", {})
    said, open_rates = "", isinstance(tune, dict) and tune.get("rate") == AUTO
    if open_rates:
        tune["rate"] = _kept_rates(kept) or own_rates(given)
    if AUTO in models and "model" not in models[AUTO]:
        found = _kept(kept) or _suited_to(given, data)
        if found is None:
            return dumps(given) if changes or open_rates else text, ""
        chosen, about = found
        said = f"{about}: {', '.join(f'{name} = {in_toml(value)}' for name, value in chosen.items())}"
        given["train"] = chosen | given.get("train", {})
        model = given["train"].pop("model")
        given["models"] = {model: {"model": model} | models[AUTO]}
    elif not changes and not open_rates:
        return text, ""
    return dumps(given), said


def suited(dataset: Dataset, machine: str, given: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """The settings that suit a data set, a machine, "gpu" or "cpu", and what is given already."""
    samples = []
    for case in dataset.cases[:: max(1, len(dataset.cases) // LOOKED_AT)]:
        with suppress(OSError, ValueError):  # what is wrong with it is said later, with all that is wrong
            samples.append(dataset.read(case))
    if not samples:
        raise DataError(f"{dataset.folder}: no case could be read; `polydice data` says what is wrong")
    shapes = [sample.labels.shape for sample in samples]
    slices = 1.0 if len(shapes[0]) == 2 else median(shape[0] for shape in shapes)
    spacings = [sample.spacing for sample in samples if sample.spacing]
    thick = bool(spacings) and median(each[0] / max(each[1:]) for each in spacings) > THICK
    solid = len(shapes[0]) == 3 and slices >= FEW_SLICES and not thick
    model = given.get("model", "unet3d" if solid else "unet")
    network, _ = find(model)
    volumes = network.dims == 3
    if volumes and len(shapes[0]) == 2:
        raise RecipeError(f"{model} takes volumes, and {dataset.folder} holds images")
    folds = given.get("folds", min(FOLDS[machine], max(3, dataset.groups)))
    found: dict[str, Any] = {"model": model, "folds": folds}
    if volumes:
        batch, step = 2, 8
        if machine == "cpu":
            sides = (median(shape[axis] for shape in shapes) for axis in range(3))
            found["patch"] = [min(PATCH, step * ceil(side / step)) for side in sides]
    else:
        batch, edge = (24 if machine == "gpu" else 8), median(max(shape[-2:]) for shape in shapes)
        found["size"] = min(EDGE[machine], 16 * ceil(edge / 16))
    if machine == "cpu":
        found |= {name: value for name, value in SMALL.items() if name in network.takes}
    items = len(dataset.cases) * (1 if volumes else slices) * (folds - 2) / folds  # that are trained on
    batch = given.get("batch", max(1, min(batch, int(items / 2))))
    epochs = given.get("epochs", max(10, ceil(STEPS[machine] / max(1, items // batch))))
    found |= {"batch": batch, "epochs": epochs, "validate_every": max(1, epochs // 20)}
    return {name: given.get(name, value) for name, value in found.items()}


def _suited_to(given: Mapping[str, Any], data: Path) -> tuple[dict[str, Any], str] | None:
    """What suits the recipe's one data set, and why, in words; None if it is not there."""
    import torch

    from polydice.data.readers import open_dataset

    sets, train = [*given.get("datasets", {}).values()], given.get("train", {})
    if len(sets) != 1 or "path" not in sets[0] or len(given["models"]) != 1:
        raise RecipeError(f"[models.{AUTO}] chooses one network for one data set, which has a path: name the networks")
    hints = get_type_hints(Settings, include_extras=True)
    for name in train.keys() & SETTINGS:
        check(name, as_tuple(train[name]), hints[name])
    folder, options = data / sets[0]["path"], train | sets[0]
    if not folder.is_dir():
        return None
    dataset = open_dataset(folder, **{name: options.get(name) for name in ("layout", "masks", "group", "ignore")})
    machine = "gpu" if torch.cuda.is_available() else "cpu"
    called = {"gpu": "a GPU", "cpu": "a CPU, and small for that"}[machine]
    found = suited(dataset, machine, train)
    tuned = given.get("tune", {}).keys() - {"folds", "nested"}
    return {name: value for name, value in found.items() if name not in tuned}, (
        f"chosen for {len(dataset.cases)} cases of {dataset.name} on {called} (--set changes it)"
    )


def _kept(recipe: str | None) -> tuple[dict[str, Any], str] | None:
    """What the study's own recipe has, if that, too, was chosen."""
    given = tomllib.loads(recipe) if recipe else {}
    models = [table.get("model") for table in given.get("models", {}).values()]
    if len(models) != 1 or models[0] is None:
        return None
    names = ("folds", "patch", "size", "width", "depth", "batch", "epochs", "validate_every")
    kept = {name: given["train"][name] for name in names if name in given.get("train", {})}
    return {"model": models[0]} | kept, "as the study was begun"


def _kept_rates(recipe: str | None) -> list[float] | None:
    """Those of the study's own recipe, if it has any to choose from."""
    found: list[float] | None = tomllib.loads(recipe or "").get("tune", {}).get("rate")
    return found


def _change(given: dict[str, Any], change: str) -> None:
    """Sets a key of the recipe, `epochs=20`, wherever it stands. A list of values to choose from goes to [tune], and a
    number of folds, of which the recipe itself has a list, to [train]."""
    name, _, text = change.partition("=")
    if not text:
        raise RecipeError(f"--set takes NAME=VALUE, such as epochs=20: {change!r}")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        value = text  # model=unet3d
    refuse_unknown("--set", {name: value}, (TOP | SETTINGS) - {"train", "tune", "datasets", "models", "losses"})
    if name == "model" and AUTO not in given.get("models", {}):
        raise RecipeError(f"--set {change}: the recipe names its networks, under [models]; copy it and change them")
    if name in TOP and not (name == "folds" and isinstance(value, int)):
        given.pop({"seeds": "replicates", "replicates": "seeds"}.get(name, name), None)
        given[name] = value
        return
    single = [given.get("train", {}), given.get("tune", {})]
    for table in (*single, *given.get("datasets", {}).values(), *given.get("models", {}).values()):
        table.pop(name, None)
    listed = isinstance(value, list) and name in TUNABLE - {"patch"}
    given.setdefault("tune" if listed else "train", {})[name] = value
