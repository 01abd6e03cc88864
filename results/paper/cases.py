"""Prints the numbers of README.md that no report has. `python results/paper/cases.py`"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import inf
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polydice.studies.study import open_study
from polydice.training.metrics import dice_global, dice_per_class

HERE = Path(__file__).parent
Place = tuple[str, int, int]  # loss, seed, fold
BRIGHT = "patient021"  # see bright.py


def main() -> None:
    sequences()
    for last in (False, True):
        hearts(last)
    for study in ("question-acdc", "gradient-acdc", "hippocampus", "gradient-hippocampus"):
        starts(study)
    choices()
    again()


def sequences() -> None:
    """CVC-ClinicDB: the images of sequences that contiguous folds cut, and the others, under both kinds of folds."""
    contiguous, grouped = cases("column-cvc"), cases("grouped-cvc")
    group_of = {case["id"]: case["group"] for each in grouped.values() for case in each}
    folds: defaultdict[str, set[int]] = defaultdict(set)
    for (_, _, fold), each in contiguous.items():
        for case in each:
            folds[group_of[case["id"]]].add(fold)
    cut = {name for name, group in group_of.items() if len(folds[group]) > 1}
    pieces = {group: len(each) for group, each in sorted(folds.items()) if len(each) > 1}
    print(f"{len(pieces)} of {len(folds)} sequences, {len(cut)} images, are cut, into this many pieces: {pieces}")
    for loss in sorted({place[0] for place in grouped}):
        for name, runs in {"contiguous": contiguous, "grouped": grouped}.items():
            for seed in sorted({place[1] for place in runs if place[0] == loss}):
                each = [case for place, found in runs.items() if place[:2] == (loss, seed) for case in found]
                parts = [[c for c in each if (c["id"] in cut) == wanted] for wanted in (True, False)]
                parts += [[c for c in each if group_of[c["id"]] == group] for group in pieces]
                print(f"{loss}, {name}, seed {seed}:", *(f"{100 * dice_global(matrices(part)):.1f}" for part in parts))


def hearts(last: bool) -> None:
    """ACDC: by class and by phase, over the runs that all losses have, and without the bright patient."""
    runs = cases("question-acdc", last)
    losses = sorted({place[0] for place in runs})
    common = {place[1:] for place in runs if all((loss, *place[1:]) in runs for loss in losses)}
    print(f"\nACDC, {'last' if last else 'chosen'} weights, {len(common)} runs of each loss")
    by_case: dict[str, dict[str, float]] = {}
    for loss in losses:
        own = [runs[loss, *pair] for pair in sorted(common)]
        classes = 100 * np.mean([dice_per_class(matrices(each).sum(0)).tolist() for each in own], axis=0)
        others = [matrices(case for case in each if case["group"] != BRIGHT) for each in own]
        without = 100 * fmean(map(dice_global, others))
        found: defaultdict[str, list[float]] = defaultdict(list)
        for case in (case for each in own for case in each):
            found[case["id"]].append(100 * float(dice_per_class(matrices([case])[0])[1:].mean()))
        by_case[loss] = {name: fmean(values) for name, values in found.items()}
        phases = [fmean(value for name, value in by_case[loss].items() if name.endswith(end)) for end in ("01", "02")]
        print(f"{loss}: classes {classes.round(2)}, ED and ES {np.round(phases, 2)}, without {BRIGHT} {without:.2f}")
    for loss in losses:
        better = sum(value > by_case["dice"][name] for name, value in by_case[loss].items())
        scores = {each: [dice_global(matrices(runs[each, *pair])) for pair in common] for each in (loss, "dice")}
        above = [own > dice for own, dice in zip(scores[loss], scores["dice"], strict=True)]
        print(f"{loss}: above Dice in {better} of {len(by_case[loss])} volumes, {sum(above)} of {len(above)} runs")


def starts(name: str) -> None:
    """The background at the first validation, and when the mean Dice of all classes first was 80 %."""
    study = open_study(HERE / name)
    found: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for run, _ in study.finished():
        validations = [epoch for epoch in study.history(run) if "dice_global" in epoch]
        reached = (epoch["epoch"] for epoch in validations if epoch["dice_global"] >= 0.8)
        found[run.loss].append((100 * validations[0]["dice_global_per_class"][0], next(reached, inf)))
    print(f"\n{name}: background at the first validation (mean, least, most), epoch with 80 % (median)")
    for loss, runs in found.items():
        background, epochs = zip(*runs, strict=True)
        print(f"{loss}: {fmean(background):.1f}, {min(background):.1f}, {max(background):.1f}; {median(epochs)}")


def choices() -> None:
    """CVC-ClinicDB: how far the mean over the folds moves from seed to seed, tested with the weights that were best on
    validation, and in the last validation, which chose nothing."""
    study = open_study(HERE / "column-cvc")
    found: defaultdict[str, defaultdict[int, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for run, result in study.finished():
        found[run.loss][run.seed].append((result["test"]["dice_global"], study.history(run)[-1]["dice_global"]))
    print("\ncolumn-cvc: standard deviation over three seeds, of the chosen weights' test and of the last validation")
    for loss, seeds in found.items():
        if len(seeds) == 3:
            print(f"{loss}:", *(100 * np.mean(list(seeds.values()), axis=1).std(0, ddof=1)).round(2))


def again() -> None:
    """ACDC: runs of gradient-acdc that were trained a second time, with the same seed on another machine."""
    first, second = cases("gradient-acdc"), cases("gradient-acdc-again")
    print("\ngradient-acdc, fold 0, seed 3: Dice, and again")
    for place, own in sorted(second.items()):
        print(f"{place[0]}: {100 * dice_global(matrices(first[place])):.2f} {100 * dice_global(matrices(own)):.2f}")


def cases(study: str, last: bool = False) -> dict[Place, list[Mapping[str, Any]]]:
    finished = open_study(HERE / study, "last" if last else None).finished()
    return {(Path(run.place).parts[2], run.seed, run.fold): result["cases"] for run, result in finished}


def matrices(some: Iterable[Mapping[str, Any]]) -> Tensor:
    return torch.tensor([case["confusion"] for case in some])


if __name__ == "__main__":
    main()
