"""The test of a trained network: what `result.json` says of every case, and of all."""

from collections.abc import Sequence
from typing import Any

import torch
from tqdm import tqdm

from polydice.data.batches import Batches
from polydice.data.prepare import Prepared
from polydice.training.inference import Network
from polydice.training.metrics import confusion, dice_per_class, evaluate, surface


def score(network: Network, prepared: Prepared, cases: Sequence[int], batch: int, surfaces: bool) -> dict[str, Any]:
    """`test`: the scores of all cases; `cases`: of each its confusion matrix, its Dice of every class and, if wanted,
    its surface distances. A number that does not exist is None.

    Slices are put back into their volumes first. Distances are in millimetres if the spacing of every case is known:
    else they would have no common mean.
    """
    chosen = [prepared.cases[case] for case in cases]
    classes, in_mm = len(prepared.classes), all(case.spacing for case in chosen)
    items = [item for case in chosen for item in case.items]
    maps = (
        (guess, labels)
        for found, guesses in network.segmented(Batches(prepared, items, batch, network.device))
        for guess, labels in zip(guesses.cpu(), found.labels.cpu(), strict=True)
    )
    rows: list[dict[str, Any]] = []
    matrices, distances = [], []
    for case in tqdm(chosen, "testing", unit="case", disable=None):
        guesses, truths = zip(*(next(maps) for _ in case.items), strict=True)
        guess, labels = (torch.stack(each) if case.volume else each[0] for each in (guesses, truths))
        matrices.append(confusion(guess[None], labels[None], classes)[0])
        row = {"id": case.id, "group": case.group, "confusion": matrices[-1].tolist()}
        row["dice"] = _plain(dice_per_class(matrices[-1]))
        if surfaces:
            distances.append(surface(guess, labels, classes, case.spacing if in_mm else None))
            row |= {"hd95": _plain(distances[-1].hd95), "nsd": _plain(distances[-1].nsd)}
        rows.append(row)
    return {"test": evaluate(torch.stack(matrices), distances), "cases": rows}


def _plain(values: torch.Tensor) -> list[float | None]:
    return [None if value != value else value for value in values.tolist()]
