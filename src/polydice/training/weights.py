"""Which weights of a run count: those of its last epoch, or those that were best on validation."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polydice.training.checkpoint import CheckpointError
from polydice.training.config import BEFORE, SETTINGS, CountingWeights
from polydice.values import check

FILES: dict[CountingWeights, str] = {"best": "best.safetensors", "last": "last.safetensors"}


def counting(settings: Mapping[str, Any]) -> CountingWeights:
    """What saved settings say; those of before there was a choice mean the best."""
    found: CountingWeights = (BEFORE | dict(settings))["weights"]
    check("weights", found, CountingWeights)
    return found


def counting_file(run: Path) -> Path:
    """The file of the weights that count in the folder of a run."""
    path = run / SETTINGS
    try:
        settings = json.loads(path.read_bytes()) if path.exists() else {}  # the weights may have come without it
        check(path.stem, settings, dict[str, Any])
        return run / FILES[counting(settings)]
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged ({error}): name the file of weights itself") from error


def counted(result: Mapping[str, Any], weights: CountingWeights | None = None) -> dict[str, Any]:
    """A result, as `result.json` holds it, of one kind of weights alone: of those that count, or of those asked for.

    `result.json` has the best at its top and the others in `last`. Here epoch, validation scores, test scores and cases
    at the top are of the weights in question, and there is no `last`; so what is counted once stays as it is.

    >>> result = {"settings": {"weights": "last"}, "best_epoch": 3, "last": {"best_epoch": 5}}
    >>> counted(result)["best_epoch"], counted(result, "best")["best_epoch"]
    (5, 3)
    """
    alone = {name: value for name, value in result.items() if name != "last"}
    if weights is None:
        weights = counting(result.get("settings", {})) if "last" in result else "best"
    return alone | result["last"] if weights == "last" else alone
