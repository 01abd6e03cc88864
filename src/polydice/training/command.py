"""`polydice train`: one run."""

import json
import sys
from typing import TYPE_CHECKING, Annotated

import tyro

from polydice.training.config import Settings

if TYPE_CHECKING:
    from polydice.data.cases import Dataset


def train(
    settings: Annotated[Settings, tyro.conf.OmitArgPrefixes],
    json_output: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> int:
    """Trains a network on one fold of a data set and tests it. Options can come from a TOML file: --config FILE.

    Ctrl-C saves and stops after the epoch, and --resume goes on; torchrun waits --shutdown-timeout seconds, or else 30.
    The exit status is 1 if the run failed, 130 if it was interrupted, and else 0.

    Example: polydice train --data cvc-clinicdb --out runs/cvc

    Example: polydice train --data cvc-clinicdb --out runs/sum --loss "PolyDice1Loss(0.2) + CrossEntropyLoss()"

    Example: polydice train --data Task04_Hippocampus --model unet3d --out runs/hippocampus --epochs 60

    Example: torchrun --nproc-per-node 4 --shutdown-timeout 300 -m polydice train --data acdc --out runs/acdc

    Args:
        json_output: print the scores as JSON; result.json has them of every case too.
    """
    import torch

    from polydice.data.cache import CacheError
    from polydice.data.usable import in_words
    from polydice.training import loop
    from polydice.training.checkpoint import CheckpointError

    try:
        result = loop.train(settings, _tell)
    except (loop.TrainingError, CheckpointError, CacheError, ImportError, OSError, ValueError) as problem:
        return _failed(str(problem))
    except torch.OutOfMemoryError as problem:
        return _failed(f"{str(problem).splitlines()[0]} Take a smaller --batch or --size.")
    except KeyboardInterrupt:
        return _failed(f"interrupted; the same command with --resume goes on with {settings.out}", 130)
    if result and json_output:
        best = {
            name: result[name] for name in ("best_epoch", "validation_dice_global", "used", "test") if name in result
        }
        print(json.dumps({"run": str(settings.out), **best}, indent=1))
    elif result:
        scores = result["test"]
        used = f"; {in_words(result['used'])}" if "used" in result else ""
        print(
            f"{settings.out}: dice_global {scores['dice_global']:.4f}, dice_case {scores['dice_case'] or 0:.4f} on "
            f"{scores['cases']} test cases (weights of epoch {result['best_epoch']}){used}"
        )
    return 0


def _tell(dataset: "Dataset") -> None:
    """What is trained on, at once if somebody watches or should know it; the last line says it always."""
    from polydice.data.usable import described

    if sys.stderr.isatty() or dataset.findings or len(dataset.cases) < dataset.listed:
        print(described(dataset), file=sys.stderr, flush=True)


def _failed(why: str, status: int = 1) -> int:
    print(f"polydice train: {why}", file=sys.stderr)
    return status
