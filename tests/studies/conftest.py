from collections.abc import Iterable
from pathlib import Path

import pytest

from polydice.studies.recipe import Planned
from polydice.studies.study import Study, create
from polydice.training.loop import train

RECIPE = """
title = "Real, and small"
baseline = "Dice"
folds = [0, 1]
seeds = [0, 1]

[train]
folds = 3
size = 32
width = 4
depth = 2
epochs = 5
batch = 4
rate = 0.05
weights = "best"
surfaces = false

[tune]
nested = true

[datasets.lesions]
generate = { count = 18, size = 32, classes = 3, lesion = [2.0, 5.0], seed = 1 }

[models.unet]

[losses]
"Dice" = "DiceLoss(batch=True)"
"PolyDice-1" = { loss = "PolyDice1Loss({epsilon}, batch=True)", epsilon = [0.0, 0.5] }
"""


def real_study(folder: Path) -> Study:
    (folder / "real.toml").write_text(RECIPE)
    return create(folder / "real.toml", folder / "study", folder, folder / "cache")


def train_runs(study: Study, runs: Iterable[Planned]) -> None:
    for run in runs:
        train(study.settings(run, "cpu"))


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """A study that was trained in one go."""
    study = real_study(tmp_path_factory.mktemp("real"))
    train_runs(study, study.runs)
    return study
