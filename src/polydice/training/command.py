"""`polydice train`: one run."""

import json
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from polydice.training.config import CountingWeights, Settings

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
    status = _train(settings, json_output)
    if os.environ.get("WORLD_SIZE", "1") != "1":
        # gloo's threads may still hold tensors that Python knows of. If they let go of them after Python has begun to
        # end, they abort the process (pytorch/pytorch#190489), and torchrun stops the others.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


def _train(settings: Settings, json_output: bool) -> int:
    import torch

    from polydice.data.cache import CacheError
    from polydice.training import loop
    from polydice.training.checkpoint import CheckpointError
    from polydice.training.run import TrainingError

    try:
        result = loop.train(settings, _tell, lines=True)
    except (TrainingError, CheckpointError, CacheError, ImportError, OSError, ValueError) as problem:
        return _failed(str(problem))
    except torch.OutOfMemoryError as problem:
        return _failed(f"{str(problem).splitlines()[0]} Take a smaller --batch or --size.")
    except KeyboardInterrupt:
        return _failed(f"interrupted; the same command with --resume goes on with {settings.out}", 130)
    if not result:  # the first of several processes says it
        return 0
    print(json.dumps(_scores(settings, result), indent=1) if json_output else _line(settings, result))
    return 0


def _scores(settings: Settings, result: dict[str, Any]) -> dict[str, Any]:
    """The scores as in `result.json`: of the best weights at the top, of the last in `last`."""
    names = ("best_epoch", "validation_dice_foreground", "validation_dice_global", "used", "test")
    last = {name: value for name, value in result.get("last", {}).items() if name in names}
    return {
        "run": str(settings.out),
        "weights": settings.weights,
        **{name: result.get(name) for name in names},
        "last": last,
    }


def _line(settings: Settings, result: dict[str, Any]) -> str:
    """The scores of the weights that count, and of the others beside them, the score that counts first; then what a
    reader must know of them."""
    from polydice.data.usable import in_words
    from polydice.training.scoring import remarks
    from polydice.training.watch import told
    from polydice.training.weights import counted

    names = sorted(("dice_foreground", "dice_case", "dice_global"), key=lambda name: name != settings.score)

    def scores(kind: CountingWeights) -> str:
        return ", ".join(f"{name} {told(counted(result, kind)['test'][name])}" for name in names)

    def weights(kind: CountingWeights) -> str:
        return f"of epoch {counted(result, kind)['best_epoch']}, the {kind}{' on validation' if kind == 'best' else ''}"

    first: CountingWeights = settings.weights
    other: CountingWeights = "best" if first == "last" else "last"
    line = f"{settings.out}: {scores(first)} on {result['test']['cases']} test cases (weights {weights(first)}"
    if "test" in result.get("last", {}):  # a run of long ago has tested the best alone
        line += f"; {scores(other)} with those {weights(other)}"
    line += f"); {in_words(result['used'])}" if "used" in result else ")"
    return "\n".join([line, *(f"{settings.out}: {each}" for each in remarks(result))])


def _tell(dataset: "Dataset") -> None:
    """Says what is trained on, before it begins, if there is a terminal or something to know; the last line always says
    it."""
    from polydice.data.usable import described

    if sys.stderr.isatty() or dataset.findings or len(dataset.cases) < dataset.listed:
        print(described(dataset), file=sys.stderr, flush=True)


def _failed(why: str, status: int = 1) -> int:
    print(f"polydice train: {why}", file=sys.stderr)
    return status
