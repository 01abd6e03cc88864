"""Studies whose results are written by hand: what a report says must follow from them."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import numpy as np
import torch

from polydice.studies.answer import Tried
from polydice.studies.comparison import compare
from polydice.studies.families import colours
from polydice.studies.page import Section
from polydice.studies.plateau import score_against
from polydice.studies.recipe import Planned
from polydice.studies.study import Study, create
from polydice.studies.verdicts import Verdict
from polydice.training.metrics import evaluate

RECIPE = """
title = "Made up"
baseline = "Dice"
folds = [0, 1, 2]
seeds = [0, 1]

[train]
weights = "best"

[tune]
nested = true

[datasets.cvc-clinicdb]
path = "cvc-clinicdb"

[datasets.mine]
path = "mine"

[models.unet]

[losses]
"Dice" = "DiceLoss()"
"Focal Tversky" = "FocalTverskyLoss()"
"PolyDice-1" = { loss = "PolyDice1Loss({epsilon})", epsilon = [-0.3, 0.5] }
"""
# As the paper's recipes have it: the background counts.
GLOBAL = RECIPE.replace("[train]", '[train]\nscore = "dice_global"')
ONE_SET, GLOBAL_SET = (text.replace('[datasets.mine]\npath = "mine"\n', "") for text in (RECIPE, GLOBAL))
LEVELS = {"Dice": 0.7, "Focal Tversky": 0.5, "PolyDice-1": 0.8}  # the share of a lesion that is found


def everything(run: Planned) -> bool:
    return True


def study_in(folder: Path, wanted: Callable[[Planned], bool] = everything, recipe: str = RECIPE) -> Study:
    """The study of a recipe, the wanted runs of which have a result."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "made-up.toml"
    path.write_text(recipe, encoding="utf-8")
    for name in ("cvc-clinicdb", "mine"):
        (folder / "data" / name).mkdir(parents=True, exist_ok=True)
    study = create(path, folder / "study", folder / "data", folder / "cache")
    for run in filter(wanted, study.runs):
        finish(study, run)
    return study


def find_nothing(study: Study, run: Planned) -> None:
    """Writes a result of a network that has collapsed."""
    finish(study, run, found=0)


def finish(study: Study, run: Planned, found: float = 1, foreground: bool = True) -> None:
    """Writes a result: eight cases of a thousand pixels, in four groups, as large and as well found as the fold, the
    seed and the loss have it."""
    truth = np.random.default_rng(run.fold).integers(20, 300, 8)
    noise = np.random.default_rng(crc32(str(run.place).encode())).normal(0, 0.01, 8)
    truth *= foreground
    hits = (found * truth * (LEVELS.get(run.loss, 0.6) + 0.02 * run.fold + noise)).astype(int)
    matrices = torch.tensor([[[1000 - size, 0], [size - hit, hit]] for size, hit in zip(truth, hits, strict=True)])
    cases = [
        {"id": f"case-{run.fold}-{number}", "group": f"group-{number // 2}", "confusion": matrix}
        for number, matrix in enumerate(matrices.tolist())
    ]
    scores = evaluate(matrices)
    better = 0.01 if run.value == "epsilon=0.5" else 0
    result = {
        "settings": {"score": study.recipe.score},
        "dataset": run.dataset,
        "prepared": "nowhere",
        "best_epoch": 1 + run.replicate,
        "validation_dice_foreground": scores["dice_foreground"] + better if foreground else None,
        "validation_dice_global": min(1.0, scores["dice_global"] + better),
        "test": scores,
        "cases": cases,
        "versions": {"polydice": "0", "torch": "0"},
        "device": "cpu",
    }
    folder = study.run_folder(run)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(result))
    rows = [
        {"epoch": epoch, "loss": 1 / epoch + run.replicate}
        | {name: scores[name] and scores[name] * epoch / 3 for name in ("dice_foreground", "dice_global")}
        for epoch in (1, 2, 3)
    ]
    (folder / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


WARNING = "The best rate of Focal Tversky, 0.16, is the largest that was tried: a larger one may be better."
TRIED = {
    "Dice": [
        Tried(0.0025, 88.1, 87.2, 89.0),
        Tried(0.01, 90.6, 90.1, 91.2),
        Tried(0.04, 92.3, 91.9, 92.8),
        Tried(0.16, 91.7),
    ],
    "Focal Tversky": [
        Tried(0.0025, 84.0, 83.0, 85.0),
        Tried(0.01, 87.0, 86.0, 88.5),
        Tried(0.04, 90.1, 89.0, 91.0),
        Tried(0.16, 91.6, 91.0, 92.0),
    ],
    "PolyDice-1": [
        Tried(0.0025, 91.2, 90.6, 91.8),
        Tried(0.01, 92.9, 92.6, 93.3),
        Tried(0.04, 92.7, 92.0, 93.2),
        Tried(0.16, 92.1, 91.5, 92.6),
    ],
}
CHOSEN = {"Dice": 0.04, "Focal Tversky": 0.16, "PolyDice-1": 0.01}
PAIRS = {
    ("Focal Tversky", "Dice"): Verdict("worse", -2.1, -2.9, -1.3, 1.0),
    ("PolyDice-1", "Dice"): Verdict("equivalent", 0.4, -0.2, 1.0, 1.0),
    ("PolyDice-1", "Focal Tversky"): Verdict("better, but by less than the margin", 0.5, 0.1, 0.9, 1.0),
}


def answered(study: Study) -> list[Section]:
    """The sections of a page with all that a study with tuned rates has on its first screen."""
    sections = []
    for each in compare(study):
        plot = score_against(
            "rate",
            TRIED,
            CHOSEN,
            1.0,
            colours(study.recipe),
            name=f"rate-{each.slug}",
            title="How forgiving about the rate",
        )
        assert plot is not None
        sections.append(Section(replace(each, warnings=(WARNING,), pairs=PAIRS), [], "made up", [plot]))
    return sections
