"""`polydice train`: one run."""

import sys
from typing import Annotated

import tyro

from polydice.training.config import Settings


def train(settings: Annotated[Settings, tyro.conf.OmitArgPrefixes]) -> int:
    """Trains a network on one fold of a data set and tests it. Options can come from a TOML file: --config FILE.

    `torchrun --nproc-per-node N -m polydice train ...` trains the same run in N processes.
    """
    from polydice.data.cache import CacheError
    from polydice.data.cases import DataError
    from polydice.training import loop
    from polydice.training.checkpoint import CheckpointError

    try:
        result = loop.train(settings)
    except (loop.TrainingError, CheckpointError, DataError, CacheError, OSError, ValueError) as problem:
        print(f"polydice train: {problem}", file=sys.stderr)
        return 1
    if result:
        scores = result["test"]
        print(
            f"{settings.out}: dice_global {scores['dice_global']:.4f}, dice_case {scores['dice_case'] or 0:.4f} on "
            f"{scores['cases']} test cases (weights of epoch {result['best_epoch']})"
        )
    return 0
