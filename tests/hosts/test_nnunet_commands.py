"""nnU-Net's own commands with the trainers: plan and preprocess, train, predict."""

import json
import math
import os
import re
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
import os
from functools import wraps

import numpy as np
import torch
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

whole = nnUNetTrainer.__init__


@wraps(whole)
def shorter(self, *args, **kwargs):
    whole(self, *args, **kwargs)
    self.num_epochs, self.num_iterations_per_epoch = map(int, os.environ["EPOCHS_AND_ITERATIONS"].split())
    self.num_val_iterations_per_epoch = 5
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)


nnUNetTrainer.__init__ = shorter
"""


class Home:
    """The folders and the variables of nnU-Net, with one data set."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.set = folder, folder / "raw" / "Dataset001_Set"
        trainers = folder / "trainers"
        trainers.mkdir()
        (trainers / "shorter.py").write_text(SHORTER)
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
        found = self.ran(command, *arguments)
        assert found.returncode == 0, found.stdout[-3000:] + found.stderr[-3000:]

    def ran(self, command: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = str(Path(sys.executable).with_name(command))
        return subprocess.run([command, *arguments], env=self.environment, capture_output=True, text=True)

    def plan(self, labels: dict[str, Any], **more: Any) -> None:
        settings = {"channel_names": {"0": "image"}, "labels": labels, "regions_class_order": [1, 2],
                    "numTraining": CASES, "file_ending": ".nii.gz", **more}  # fmt: skip
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

    def train(self, trainer: str, epochs: int = 5, iterations: int = 30) -> Path:
        """The folder of the results."""
        self.environment["EPOCHS_AND_ITERATIONS"] = f"{epochs} {iterations}"
        self.run("nnUNetv2_train", "1", CONFIGURATION, "0", "-tr", trainer, "-device", "cpu")
        return self.folder / "results" / self.set.name / f"{trainer}__nnUNetPlans__{CONFIGURATION}" / "fold_0"

    def fails(self, trainer: str) -> str:
        """The last line printed."""
        found = self.ran("nnUNetv2_train", "1", CONFIGURATION, "0", "-tr", trainer, "-device", "cpu")
        assert found.returncode == 1
        return found.stderr.splitlines()[-1]

    def predicts_as_validated(self, trainer: str, results: Path) -> None:
        """With the documented line."""
        case = next((results / "validation").glob("*.nii.gz")).name
        images, predicted = self.folder / trainer / "images", self.folder / trainer / "predicted"
        images.mkdir(parents=True)
        shutil.copy(self.set / "imagesTr" / case.replace(".", "_0000.", 1), images)
        self.run(
            "nnUNetv2_predict", "-d", "1", "-c", CONFIGURATION, "-f", "0", "-tr", trainer,
            "-i", str(images), "-o", str(predicted), "-device", "cpu", "-npp", "1", "-nps", "1",
        )  # fmt: skip
        again, validated = (nibabel.load(folder / case).get_fdata() for folder in (predicted, results / "validation"))
        assert (again == validated).all()


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


def trained(results: Path, loss: str) -> None:
    """It did, with that loss, and the results say with which."""
    (log,) = results.glob("training_log*.txt")
    assert f"Loss: {loss} - 1" in log.read_text()
    assert loss in json.loads((results / "debug.json").read_text())["loss"]
    checkpoint = torch.load(results / "checkpoint_final.pth", weights_only=False)
    assert f"{checkpoint['trainer_name']}__nnUNetPlans__{CONFIGURATION}" == results.parent.name
    curves = checkpoint["logging"]
    # The first two epochs: later κ has grown, and the loss with it.
    assert curves["train_losses"][1] < curves["train_losses"][0] - 0.05
    assert curves["val_losses"][1] < curves["val_losses"][0]


def learned(results: Path, least_dice: float) -> None:
    summary = json.loads((results / "validation" / "summary.json").read_text())
    assert summary["foreground_mean"]["Dice"] > least_dice


BATCH = "batch=True, smooth=1e-05, include_background=False"


@pytest.fixture(scope="module")
def hippocampus(tmp_path_factory: pytest.TempPathFactory, real_set: RealSet) -> Home:
    home, source = Home(tmp_path_factory.mktemp("nnunet")), real_set("Task04_Hippocampus")
    for label in sorted((source / "labelsTr").glob("hippocampus_*.nii.gz"))[:CASES]:
        shutil.copy(label, home.set / "labelsTr")
        shutil.copy(source / "imagesTr" / label.name, home.set / "imagesTr" / label.name.replace(".", "_0000.", 1))
    home.plan({"background": 0, "anterior": 1, "posterior": 2})
    return home


LOSSES = {
    "nnUNetTrainerDiceFocal_focal1": f"DiceLoss(squared=False, {BATCH}) + FocalLoss(gamma=1.0)",
    "nnUNetTrainerTverskyCE_alpha0.4_beta0.6": f"TverskyLoss(alpha=0.4, beta=0.6, {BATCH}) + CrossEntropyLoss()",
    "nnUNetTrainerPolyDiceFocal_detached": f"PolyDice1Loss(epsilon=0.2, scale='detached', {BATCH}) + FocalLoss()",
    "nnUNetTrainerTvMFCE": "TvMFDiceLoss(kappa=0.0, batch=True, include_background=False) + CrossEntropyLoss()",
}  # fmt: skip


@pytest.mark.parametrize("trainer", LOSSES)
def test_hippocampus(hippocampus: Home, trainer: str) -> None:
    adapts = trainer == "nnUNetTrainerTvMFCE"
    results = hippocampus.train(trainer, *((5, 100) if adapts else (2, 10)))
    trained(results, LOSSES[trainer])
    if adapts:
        learned(results, 0.4)
        follows_the_pseudo_dice(results)
    hippocampus.predicts_as_validated(trainer, results)


def follows_the_pseudo_dice(results: Path) -> None:
    (log,) = results.glob("training_log*.txt")
    kappas = [json.loads(found) for found in re.findall(r"TvMFDiceLoss\(kappa=(\[.*?\])", log.read_text())]
    logged = torch.load(results / "checkpoint_final.pth", weights_only=False)["logging"]["dice_per_class_or_region"]
    assert len(kappas) == len(logged) - 1 == 4
    for kappa, dice in zip(kappas, logged, strict=False):
        assert kappa == pytest.approx([32, *(32 * each for each in dice)])


def test_regions_and_an_ignore_label(tmp_path: Path) -> None:
    home = Home(tmp_path)
    add_shapes(home, ignored=3)
    home.plan({"background": 0, "ball": [1, 2], "core": 2, "ignore": 3})
    options = "batch=True, smooth=1e-05, activation='sigmoid'"
    loss = f"DropDiceLoss(order=2, {options}) + 2.0 * CrossEntropyLoss(activation='sigmoid')"
    results = home.train("nnUNetTrainerDropDiceCE_order2")
    trained(results, loss)
    learned(results, 0.6)


def test_a_class_that_is_annotated_in_two_cases_only(tmp_path: Path) -> None:
    """In all others its voxels are labelled background. With the key it is found there, too (without: nowhere)."""
    home, annotated, cores = Home(tmp_path), ["2", "3"], {}
    add_shapes(home)
    for case in map(str, range(CASES)):
        file = home.set / "labelsTr" / f"{case}.nii.gz"
        labels = np.asarray(nibabel.load(file).dataobj)
        cores[case] = labels == 2
        if case not in annotated:
            nibabel.save(nibabel.Nifti1Image(np.where(cores[case], 0, labels).astype(np.uint8), np.eye(4)), file)
    known = {case: ["background", "shell"] for case in cores if case not in annotated}
    home.plan({"background": 0, "shell": 1, "core": 2}, annotated=known)
    results = home.train("nnUNetTrainerDiceCE")
    trained(results, f"DiceLoss(squared=False, {BATCH}) + CrossEntropyLoss()")
    learned(results, 0.6)
    summary = json.loads((results / "validation" / "summary.json").read_text())
    assert math.isnan(summary["mean"]["2"]["Dice"])  # of two cases where it is not annotated
    assert summary["foreground_mean"]["Dice"] == summary["mean"]["1"]["Dice"]
    for file in (results / "validation").glob("*.nii.gz"):
        found, true = nibabel.load(file).get_fdata() == 2, cores[file.name.removesuffix(".nii.gz")]
        assert 2 * (found & true).sum() / (found.sum() + true.sum()) > 0.6

    description = home.folder / "preprocessed" / home.set.name / "dataset.json"
    wrong = json.loads(description.read_text()) | {"annotated": {"2": [0, "shell"]}}
    description.write_text(json.dumps(wrong))
    assert '2 has the label 2, which "annotated" in dataset.json does not name' in home.fails("nnUNetTrainerDice")
