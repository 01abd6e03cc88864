"""How wide the intervals of the planned studies will be, and how often they decide. From the repository's root:

PYTHONPATH=. python results/fair/power.py

Noise as in the kept runs of results/paper, with the last weights, simulated and judged by tests/studies/coverage.py. On
ACDC without patient 21, which `cut` mends. Kvasir-SEG has one seed: what part of its images' noise comes again in every
replicate is not known, and taken as a half.
"""

from itertools import combinations
from statistics import fmean

import numpy as np

from polydice.studies.grids import outcomes_of
from polydice.studies.outcomes import Outcome, difference_of
from polydice.studies.study import open_study
from polydice.studies.verdicts import KINDS, kinds
from tests.studies.coverage import (
    MARGIN,
    RESULTS,
    STUDIES,
    Row,
    Simulation,
    Variances,
    comparisons,
    components,
    judged,
)

SIMULATED = 1000
EFFECTS = (0.0, 0.5, 1.0, 1.5)  # points
PLANNED = (  # set, people or images, losses, replicates
    ("Hippocampus", 170, 7, (2, 3, 4)), ("Hippocampus", 170, 2, (2,)), ("ACDC", 99, 5, (2, 3, 4)),
    ("Kvasir-SEG", 1000, 5, (3, 5, 7)), ("Kvasir-SEG", 1000, 2, (2, 3)),
)  # fmt: skip


def outcomes(folder: str, losses: tuple[str, ...] = (), without: str = "nobody") -> list[list[Outcome]]:
    """Of each loss, from its runs with the last weights; of all losses, if none are named."""
    runs: dict[str, dict[tuple[int, int], object]] = {}
    for each in open_study(RESULTS / "paper" / folder, "last").finished():
        each.result["cases"] = [case for case in each.result["cases"] if not case["id"].startswith(without)]
        if not losses or each.run.loss in losses:
            runs.setdefault(each.run.loss, {})[each.run.seed, each.run.fold] = each
    return [outcomes_of(own, own) for own in runs.values()]


def of_one_seed(own: list[Outcome], other: list[Outcome]) -> Variances:
    """The images' part from their shares, what is left of the folds' spread to the run."""
    values, shares = (100 * each for each in difference_of(own, other, "dice_foreground", nested=False))
    images = shares.shape[1]
    every = images * (shares**2).sum()
    run = values.var(ddof=1) - every / (images / values.shape[1])
    return Variances(0, 0, run, every / 2, every / 2)


def main() -> None:
    found = {
        "Hippocampus": [components(*pair) for pair in combinations(outcomes(*STUDIES["Hippocampus"]), 2)],
        "ACDC": [components(*pair) for pair in combinations(outcomes(*STUDIES["ACDC"], "patient021"), 2)],
        "Kvasir-SEG": [of_one_seed(*pair) for pair in combinations(outcomes("question-kvasir"), 2)],
    }
    noise = {
        name: Variances(*(max(0.0, fmean(each)) for each in zip(*own, strict=True))) for name, own in found.items()
    }
    for name, variances in noise.items():
        print(name, "  ".join(f"{part} {value:.3f}" for part, value in variances._asdict().items()))
    print(f"\n| set | losses | replicates | 95 % | 90 % | {' | '.join(f'at {effect:g}' for effect in EFFECTS)} |")
    for name, groups, losses, replicates in PLANNED:
        for count in replicates:
            row, pairs = Row(name, count, groups=groups, losses=losses), comparisons(losses)
            study = judged(Simulation(row, noise[name], SIMULATED, seed=0).trained(count), row, pairs)
            ours = np.array([loss > 1 or losses == 2 for loss, _ in pairs])  # all but that of the two baselines
            decided = []
            for effect in EFFECTS:
                verdicts = kinds(study.off + effect * ours, study.wide, study.narrow, MARGIN)[:, ours]
                decided.append(f"{100 * (verdicts != KINDS.index('undecided')).mean():.0f} %")
            widths = (f"±{np.median(each):.2f}" for each in (study.wide, study.narrow))
            print(f"| {name} | {losses} | {count} | {' | '.join(widths)} | {' | '.join(decided)} |")


if __name__ == "__main__":
    main()
