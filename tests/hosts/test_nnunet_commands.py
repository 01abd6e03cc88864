"""nnU-Net's own commands with the trainers: plan and preprocess, train, predict."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip(
    "nnunetv2.training.nnUNetTrainer.nnUNetTrainer", reason="nnU-Net is not installed: make test-hosts",
    exc_type=ImportError,
)  # fmt: skip

import nibabel
import numpy as np

from polydice.integrations import nnunet
from tests.data.conftest import RealSet

CASES, CONFIGURATION = 10, "2d"
# nnU-Net loads every file of a folder of trainers, so this one makes any training a short one, on one thread.
SHORTER = """
from functools import wraps

import numpy as np
import torch
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

whole = nnUNetTrainer.__init__


@wraps(whole)
def shorter(self, *args, **kwargs):
    whole(self, *args, **kwargs)
    self.num_epochs, self.num_iterations_per_epoch, self.num_val_iterations_per_epoch = 5, ITERATIONS, 5
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)


nnUNetTrainer.__init__ = shorter
"""


class Home:
    """The folders and the variables of nnU-Net, with one data set and so many iterations an epoch."""

    def __init__(self, folder: Path, iterations: int = 30) -> None:
        self.folder, self.set = folder, folder / "raw" / "Dataset001_Set"
        trainers = folder / "trainers"
        trainers.mkdir()
        (trainers / "shorter.py").write_text(SHORTER.replace("ITERATIONS", str(iterations)))
        self.environment = os.environ | {
            "nnUNet_raw": str(folder / "raw"),
            "nnUNet_preprocessed": str(folder / "preprocessed"),
            "nnUNet_results": str(folder / "results"),
            "nnUNet_extTrainer": os.pathsep.join([str(trainers), nnunet.FOLDER]),
            "nnUNet_n_proc_DA": "1",
            "nnUNet_def_n_proc": "1",
        }
        for part in ("imagesTr", "labelsTr"):
            (self.set / part).mkdir(parents=True)

    def run(self, command: str, *arguments: str) -> None:
        found = subprocess.run(
            [Path(sys.executable).with_name(command), *arguments], env=self.environment, capture_output=True, text=True
        )
        assert found.returncode == 0, found.stdout[-3000:] + found.stderr[-3000:]

    def plan(self, labels: dict[str, Any]) -> None:
        settings = {"channel_names": {"0": "image"}, "labels": labels, "regions_class_order": [1, 2],
                    "numTraining": CASES, "file_ending": ".nii.gz"}  # fmt: skip
        (self.set / "dataset.json").write_text(json.dumps(settings))
        self.run("nnUNetv2_plan_and_preprocess", "-d", "1", "-c", CONFIGURATION, "-np", "1", "-npfp", "1")
        path = self.folder / "preprocessed" / self.set.name / "nnUNetPlans.json"
        plans = json.loads(path.read_text())
        planned = plans["configurations"][CONFIGURATION]
        planned["batch_size"] = 8
        network = planned["architecture"]["arch_kwargs"]
        network["features_per_stage"] = [features // 4 for features in network["features_per_stage"]]
        path.write_text(json.dumps(plans))
        self.environment["nnUNet_n_proc_DA"] = "0"  # in this process: the same numbers every time

    def train(self, trainer: str) -> Path:
        """The folder of the results."""
        self.run("nnUNetv2_train", "1", CONFIGURATION, "0", "-tr", trainer, "-device", "cpu")
        return self.folder / "results" / self.set.name / f"{trainer}__nnUNetPlans__{CONFIGURATION}" / "fold_0"


def add_shapes(home: Home, ignored: int | None = None) -> None:
    """Balls with a brighter core, in noise; of some slices it is not said what they are."""
    shape = (24, 32, 32)
    place = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), axis=-1)
    random = np.random.default_rng(0)
    for case in range(CASES):
        distance = np.linalg.norm(place - np.array(shape) / 2 - random.uniform(-4, 4, 3), axis=-1)
        labels = (distance < 10).astype(np.uint8) + (distance < 6)
        image = 2.0 * labels + random.normal(0, 0.3, shape)
        if ignored is not None:
            labels[:3] = ignored
        for name, array in ((f"imagesTr/{case}_0000", image.astype(np.float32)), (f"labelsTr/{case}", labels)):
            nibabel.save(nibabel.Nifti1Image(array, np.eye(4)), home.set / f"{name}.nii.gz")


def learned(results: Path, loss: str, least_dice: float) -> None:
    """It did, with that loss, and the results say with which."""
    (log,) = results.glob("training_log*.txt")
    assert f"Loss: {loss} - 1" in log.read_text()
    assert loss in json.loads((results / "debug.json").read_text())["loss"]
    checkpoint = torch.load(results / "checkpoint_final.pth", weights_only=False)
    assert f"{checkpoint['trainer_name']}__nnUNetPlans__{CONFIGURATION}" == results.parent.name
    curves = checkpoint["logging"]
    assert curves["train_losses"][-1] < curves["train_losses"][0] - 0.3
    assert curves["val_losses"][-1] < curves["val_losses"][0]
    summary = json.loads((results / "validation" / "summary.json").read_text())
    assert summary["foreground_mean"]["Dice"] > least_dice


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Home:
    home = Home(tmp_path_factory.mktemp("nnunet"))
    add_shapes(home)
    home.plan({"background": 0, "shell": 1, "core": 2})
    return home


BATCH = "batch=True, smooth=1e-05, include_background=False"


def test_trains_and_predicts(shapes: Home) -> None:
    results = shapes.train("nnUNetTrainerPolyDiceCE_epsilon0.2")
    learned(results, f"PolyDice1Loss(epsilon=0.2, {BATCH}) + CrossEntropyLoss()", 0.7)
    case = next((results / "validation").glob("*.nii.gz")).name
    images, predicted = shapes.folder / "images", shapes.folder / "predicted"
    images.mkdir()
    shutil.copy(shapes.set / "imagesTr" / case.replace(".", "_0000.", 1), images)
    shapes.run(
        "nnUNetv2_predict", "-d", "1", "-i", str(images), "-o", str(predicted), "-f", "0", "-c", CONFIGURATION,
        "-tr", "nnUNetTrainerPolyDiceCE_epsilon0.2", "-device", "cpu", "-npp", "1", "-nps", "1",
    )  # fmt: skip
    again, validated = (nibabel.load(folder / case).get_fdata() for folder in (predicted, results / "validation"))
    assert (again == validated).all()


def test_another_number_has_another_folder(shapes: Home) -> None:
    results = shapes.train("nnUNetTrainerPolyDice_epsilon-0.1_detached")
    learned(results, f"PolyDice1Loss(epsilon=-0.1, scale='detached', {BATCH})", 0.7)


def test_regions_and_an_ignore_label(tmp_path: Path) -> None:
    home = Home(tmp_path)
    add_shapes(home, ignored=3)
    home.plan({"background": 0, "ball": [1, 2], "core": 2, "ignore": 3})
    options = "batch=True, smooth=1e-05, activation='sigmoid'"
    loss = f"DropDiceLoss(order=2, {options}) + 2.0 * CrossEntropyLoss(activation='sigmoid')"
    learned(home.train("nnUNetTrainerDropDiceCE_order2"), loss, 0.6)


def test_hippocampus(tmp_path: Path, real_set: RealSet) -> None:
    home, source = Home(tmp_path, iterations=100), real_set("Task04_Hippocampus")
    for label in sorted((source / "labelsTr").glob("hippocampus_*.nii.gz"))[:CASES]:
        shutil.copy(label, home.set / "labelsTr")
        shutil.copy(source / "imagesTr" / label.name, home.set / "imagesTr" / label.name.replace(".", "_0000.", 1))
    home.plan({"background": 0, "anterior": 1, "posterior": 2})
    loss = f"PolyDice1Loss(epsilon=0.5, scale='detached', {BATCH}) + CrossEntropyLoss()"
    learned(home.train("nnUNetTrainerPolyDiceCE_epsilon0.5_detached"), loss, 0.5)
