"""Lightning: the module of the examples learns, and two processes train it as one does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from polydice.data.generate import generate
from polydice.models.unet import UNet

lightning = pytest.importorskip("lightning", reason="lightning is not installed: make test-hosts")

from tests.hosts.train_lightning import Apart, Segmentation, train  # noqa: E402

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[1] / "examples" / "lightning_module.py"


def run(*command: object) -> str:
    """Two processes on the loopback device, one thread each."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    arguments = [sys.executable, *map(str, command)]
    ran = subprocess.run(arguments, capture_output=True, text=True, env=environment, timeout=300)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def trained_by_two(tmp_path: Path, how: str) -> dict[str, torch.Tensor]:
    run(HERE / "train_lightning.py", 2, how, tmp_path / "weights.pt")
    weights: dict[str, torch.Tensor] = torch.load(tmp_path / "weights.pt")
    return weights


def difference(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> float:
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def test_it_learns() -> None:
    images, labels = (torch.from_numpy(array) for array in generate(40, size=32))
    network = UNet(1, 2, width=8, depth=2, norm="instance")

    def iou() -> float:
        """Of the foreground of eight images that are not trained on."""
        with torch.no_grad():
            found, true = network(images[32:]).argmax(1) == 1, labels[32:] == 1
        return float((found & true).sum() / (found | true).sum())

    untrained = iou()
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=20, logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(Segmentation(network), DataLoader(TensorDataset(images[:32], labels[:32]), batch_size=8, shuffle=True))
    assert iou() > max(0.5, untrained + 0.2)


def test_two_processes_with_half_a_batch_each_train_as_one_with_all_of_it(tmp_path: Path) -> None:
    alone = train(1, Segmentation)
    # Float64 throughout: twelve steps of rounding.
    assert difference(trained_by_two(tmp_path, "together"), alone) < 1e-10


def test_without_a_process_group_they_do_not(tmp_path: Path) -> None:
    assert difference(trained_by_two(tmp_path, "apart"), train(1, Apart)) > 1e-4


def test_the_example_runs_with_two_processes() -> None:
    assert "loss 0." in run(EXAMPLE, "--devices", 2, "--accelerator", "cpu")
