"""Tests of runs, made up."""

import numpy as np
import pytest

from polydice.studies.outcomes import Outcome

all_scores = pytest.mark.parametrize("score", ["dice_foreground", "dice_global", "dice_case"])


def random_runs(replicates: int, folds: int, cases: int = 6, classes: int = 3, draw: int = 0) -> list[Outcome]:
    """The truth depends on the fold alone; classes and whole foregrounds are missing from some cases."""
    runs = []
    for fold in range(folds):
        truth = np.random.default_rng(fold).integers(1, 200, (cases, classes))
        truth[::3, 1] = 0
        truth[4::5, 1:] = 0
        for replicate in range(replicates):
            rng = np.random.default_rng([draw, replicate, fold])
            right = rng.binomial(truth, rng.uniform(0.6, 0.9))
            matrices = np.zeros((cases, classes, classes), np.int64)
            for label in range(classes):
                matrices[:, label, label] = right[:, label]
                matrices[:, label, (label + 1) % classes if label else 0] += (truth - right)[:, label]
            groups = tuple(f"patient {fold} {case // 2}" for case in range(cases))
            runs.append(Outcome(replicate, fold, groups, matrices))
    return runs


def binary(replicate: int, fold: int, dices: list[float], groups: list[str] | None = None) -> Outcome:
    """Cases of 100 foreground pixels, as many predicted: Dice is the part that is right."""
    hit = np.round(100 * np.array(dices)).astype(np.int64)
    matrices = np.stack([800 + hit, 100 - hit, 100 - hit, hit], -1).reshape(-1, 2, 2)
    return Outcome(replicate, fold, tuple(groups or (f"{fold} {case}" for case in range(len(dices)))), matrices)
