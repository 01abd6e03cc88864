"""The test of a trained network: what `result.json` says of every case, and of all, and what a reader must be told."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tqdm import tqdm

from polydice.data.batches import Batches
from polydice.data.prepare import Prepared
from polydice.training.config import BEFORE
from polydice.training.inference import Network
from polydice.training.metrics import dice_per_class, evaluate, surface
from polydice.training.weights import counted


def score(network: Network, prepared: Prepared, cases: Sequence[int], batch: int, surfaces: bool) -> dict[str, Any]:
    """`test`: the scores of all cases; `cases`: of each its confusion matrix, its Dice of every class and, if wanted,
    its surface distances. A number that does not exist is None.

    Slices are put back into their volumes first. Distances are in millimetres if every spacing is known, and else in
    pixels: their mean needs one unit.
    """
    chosen = [prepared.cases[case] for case in cases]
    classes, members, in_mm = len(prepared.classes), prepared.members, all(case.spacing for case in chosen)
    items = [item for case in chosen for item in case.items]
    batches, labels = Batches(prepared, items, batch, network.device), len(prepared.label_names)
    found = (
        each for part in network.segmented(batches, labels) for each in zip(*(of.cpu() for of in part), strict=True)
    )
    rows: list[dict[str, Any]] = []
    matrices, distances = [], []
    for case in tqdm(chosen, "testing", unit="case", disable=None):
        truths, guesses, counts = zip(*(next(found) for _ in case.items), strict=True)
        matrices.append(torch.stack(counts).sum(0))
        row = {"id": case.id, "group": case.group, "confusion": matrices[-1].tolist()}
        row["dice"] = _plain(dice_per_class(matrices[-1], members))
        if surfaces:
            guess, truth = (torch.stack(each) if case.volume else each[0] for each in (guesses, truths))
            distances.append(surface(guess, truth, classes, case.spacing if in_mm else None, members=members))
            row |= {"hd95": _plain(distances[-1].hd95), "nsd": _plain(distances[-1].nsd)}
        rows.append(row)
    return {"test": evaluate(torch.stack(matrices), distances, prepared.classes, members), "cases": rows}


def completed(result: dict[str, Any]) -> dict[str, Any]:
    """A result of an older version, with the scores that it does not have: they follow from the confusion matrices of
    its cases."""
    for each in (result, result.get("last", {})):
        if {"test", "cases"} <= each.keys() and "lost_classes" not in each["test"]:
            matrices = torch.tensor([case["confusion"] for case in each["cases"]])
            each["test"] = evaluate(matrices, names=result.get("classes", ())) | each["test"]  # had no regions yet
    return result


def validation(result: Mapping[str, Any]) -> float | None:
    """What the weights at the top of a result reached on validation, by the score that counts; None if there was no
    foreground. `validation(counted(result))` is about the weights that count."""
    score = (BEFORE | result.get("settings", {}))["score"]
    found: float | None = result[f"validation_{score}"]
    return found


def remarks(result: Mapping[str, Any]) -> list[str]:
    """What a reader of a run's scores must know, in words; of the weights that count."""
    result = counted(result)
    found = [collapse(result["test"])]
    if result["test"]["dice_foreground"] is None:
        found.append("Dice of the foreground is not defined, since no test case has any")
    if validation(result) is None:
        found.append("nothing was chosen on validation, where no case has foreground: the last weights count")
    return [each for each in found if each]


def collapse(test: Mapping[str, Any]) -> str:
    """What has collapsed in a run, from the `test` of its result; empty where nothing has."""
    if test["predicts_nothing"]:
        return "predicts nothing, not one pixel of foreground in any test case"
    if test["lost_classes"]:
        return f"has lost {', '.join(test['lost_classes'])}, in the truth of test cases and predicted in none"
    return ""


def _plain(values: torch.Tensor) -> list[float | None]:
    return [None if value != value else value for value in values.tolist()]
