"""Trains the module of examples/lightning_module.py for a few steps, and saves the weights of its network.

    python tests/hosts/train_lightning.py PROCESSES together|apart FILE

`apart`: each process takes the Dice of its own part of the batch. A file by itself, for Lightning starts it again for
each further process.
"""

import os
import sys
from pathlib import Path

import lightning
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from polydice import PolyDice1Loss
from polydice.data.generate import generate
from polydice.models.unet import UNet

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from lightning_module import Segmentation

IMAGES, BATCH = 24, 4
RANK = int(os.environ.get("LOCAL_RANK", "0"))


class Apart(Segmentation):
    def setup(self, stage: str) -> None:
        self.loss = PolyDice1Loss(self.epsilon, batch=True)


def train(processes: int, kind: type[Segmentation]) -> dict[str, torch.Tensor]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    module = kind(UNet(1, 3, width=4, depth=2, norm="instance"))  # a batch norm would see its own process's images
    images, labels = (torch.from_numpy(array) for array in generate(IMAGES, size=16, classes=3, lesion=(2.0, 4.0)))
    # Lightning would shuffle them. Dealt out in turn, a batch is the same images however many processes there are.
    dataset = TensorDataset(images.double(), labels)
    sampler: DistributedSampler[object] = DistributedSampler(dataset, processes, RANK, shuffle=False)
    batches = DataLoader(dataset, batch_size=BATCH // processes, sampler=sampler)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=processes, precision="64-true", max_epochs=2, use_distributed_sampler=False,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, batches)
    assert trainer.world_size == processes
    assert trainer.global_step == 2 * IMAGES // BATCH
    return module.network.state_dict()


if __name__ == "__main__":
    processes, how, file = sys.argv[1:]
    weights = train(int(processes), {"together": Segmentation, "apart": Apart}[how])
    if RANK == 0:
        torch.save(weights, file)
