"""`polydice train`: one run."""

import sys
from typing import Annotated

import tyro

from polydice.training.config import Settings


def train(settings: Annotated[Settings, tyro.conf.OmitArgPrefixes]) -> int:
    """Trains a network on one fold of a data set and tests it. Options can come from a TOML file: --config FILE.

    `torchrun --nproc-per-node N -m polydice train ...` trains the same run in N processes.
    """
    import torch

    from polydice.data.cache import CacheError
    from polydice.training import loop
    from polydice.training.checkpoint import CheckpointError

    try:
        result = loop.train(settings)
    except (loop.TrainingError, CheckpointError, CacheError, ImportError, OSError, ValueError) as problem:
        return _failed(str(problem))
    except torch.OutOfMemoryError as problem:
        return _failed(f"{str(problem).splitlines()[0]} Take a smaller --batch or --size.")
    except KeyboardInterrupt:
        return _failed(f"interrupted; the same command with --resume goes on with {settings.out}", 130)
    if result:
        scores = result["test"]
        print(
            f"{settings.out}: dice_global {scores['dice_global']:.4f}, dice_case {scores['dice_case'] or 0:.4f} on "
            f"{scores['cases']} test cases (weights of epoch {result['best_epoch']})"
        )
    return 0


def _failed(why: str, status: int = 1) -> int:
    print(f"polydice train: {why}", file=sys.stderr)
    return status
