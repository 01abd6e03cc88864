"""How often the interval of a difference holds the true one, on simulated runs: the table of docs/statistics.md.

python -m tests.studies.coverage
"""

import itertools
from collections.abc import Callable, Mapping

import numpy as np
import torch

from polydice.studies.statistics import Outcome, Score, difference
from polydice.training.metrics import dice_per_class

Interval = Callable[[list[Outcome], list[Outcome], Score, int], tuple[float, float]]

FOLDS, GROUPS, CASES = 5, 8, 3  # folds, groups in a fold, cases in a group
EFFECT = 0.01  # the true difference in Dice of every case, and so of both scores' foreground
ERROR = 0.004  # the standard deviation of the mean difference, of all levels together
PIXELS = 100_000


def simulated(
    rng: np.random.Generator, seeds: int, shares: Mapping[str, float]
) -> tuple[list[Outcome], list[Outcome], dict[Score, float]]:
    """Runs of a loss and of the baseline, and the true difference of each score.

    `shares` says which part of the variance of the mean difference comes from which level: `seed` (alike in all folds),
    `run` (of one seed and fold), `fold`, `group` and `case` (alike under all seeds), `case_run`. Sizes of the objects
    are log-normal, and a case's difficulty is the same for both losses.
    """
    shapes = {
        "seed": (seeds, 1, 1, 1), "run": (seeds, FOLDS, 1, 1), "fold": (1, FOLDS, 1, 1), "group": (1, FOLDS, GROUPS, 1),
        "case": (1, FOLDS, GROUPS, CASES), "case_run": (seeds, FOLDS, GROUPS, CASES),
    }  # fmt: skip
    gain = np.full((seeds, FOLDS, GROUPS, CASES), EFFECT)
    for level, share in shares.items():
        shape = shapes[level]
        gain += ERROR * np.sqrt(share * np.prod(shape)) * rng.standard_normal(shape)
    size = np.round(3000 * np.exp(0.5 * rng.standard_normal((FOLDS, GROUPS, CASES))))
    dice = np.broadcast_to(0.6 + 0.05 * rng.standard_normal(size.shape), gain.shape)
    names = tuple(f"group {group}" for group in range(GROUPS) for _ in range(CASES))
    own, other = (
        [
            Outcome(seed, fold, names, _matrices(size[fold].ravel(), dices[seed, fold].ravel()))
            for seed, fold in itertools.product(range(seeds), range(FOLDS))
        ]
        for dices in (dice + gain, dice)
    )
    share = size.sum((1, 2)) / PIXELS / (GROUPS * CASES)  # of the foreground: the background gains that much less
    return own, other, {"dice_case": EFFECT, "dice_global": EFFECT * float(1 + (share / (1 - share)).mean()) / 2}


def _matrices(size: np.ndarray, dice: np.ndarray) -> np.ndarray:
    """`[cases, 2, 2]`: as many pixels predicted as there are, so that Dice is the part of them that is right."""
    hit = np.round(size * dice.clip(0, 1))
    return np.stack([PIXELS - 2 * size + hit, size - hit, size - hit, hit], -1).reshape(-1, 2, 2).astype(np.int64)


def levelled(own: list[Outcome], other: list[Outcome], score: Score, seed: int) -> tuple[float, float]:
    found = difference(own, other, score, seed=seed, resamples=300)
    return found.low, found.high


def nested(own: list[Outcome], other: list[Outcome], score: Score, seed: int) -> tuple[float, float]:
    """The textbook's: seeds, in them folds, in them groups, in them cases are drawn; percentiles of the means."""
    assert score == "dice_case"  # a mean over cases, so their differences are all it takes
    rng, draws, seeds = np.random.default_rng(seed), 300, len(own) // FOLDS
    gains = np.reshape(_case_dice(own) - _case_dice(other), (seeds, FOLDS, GROUPS, CASES))
    shape = (draws, seeds, FOLDS, GROUPS, CASES)
    places = (rng.integers(size, size=(*shape[:axis], size, *(1,) * (5 - axis - 1))) for axis, size in enumerate(shape))
    next(places)
    low, high = np.quantile(gains[tuple(places)].mean((1, 2, 3, 4)), [0.025, 0.975])
    return float(low), float(high)


def _case_dice(runs: list[Outcome]) -> np.ndarray:
    return dice_per_class(torch.from_numpy(np.concatenate([run.matrices for run in runs])))[:, 1].numpy()


def coverage(interval: Interval, seeds: int, shares: Mapping[str, float], repeats: int, score: Score) -> float:
    """The part of `repeats` simulated studies whose interval holds the true difference."""
    rng = np.random.default_rng(seeds)
    held = 0
    for repeat in range(repeats):
        own, other, truth = simulated(rng, seeds, shares)
        low, high = interval(own, other, score, repeat)
        held += low <= truth[score] <= high
    return held / repeats


SETTINGS = {
    "groups": {"group": 1.0},
    "cases, alike under all seeds": {"case": 1.0},
    "cases, differently in each run": {"case_run": 1.0},
    "runs": {"run": 1.0},
    "folds, alike under all seeds": {"fold": 1.0},
    "seeds, alike in all folds": {"seed": 1.0},
    "½ runs, ½ groups": {"run": 0.5, "group": 0.5},
    "½ folds, ½ groups": {"fold": 0.5, "group": 0.5},
    "½ seeds, ½ groups": {"seed": 0.5, "group": 0.5},
    "½ seeds, ½ runs": {"seed": 0.5, "run": 0.5},
    "⅘ seeds, ⅕ runs": {"seed": 0.8, "run": 0.2},
    "a bit of all": {"seed": 0.1, "fold": 0.1, "run": 0.2, "group": 0.2, "case": 0.2, "case_run": 0.2},
}


def main(repeats: int = 1000) -> None:
    for name, shares in SETTINGS.items():
        print("|", name, "|", end="", flush=True)
        for interval, score, seeds in itertools.chain(
            itertools.product([levelled], ["dice_global"], (1, 2, 3, 5)), [(nested, "dice_case", 3)]
        ):
            print(f" {100 * coverage(interval, seeds, shares, repeats, score):.1f} |", end="", flush=True)
        print()


if __name__ == "__main__":
    main()
