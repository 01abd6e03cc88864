"""A Lightning module with a polydice loss, whose batch Dice is that of the whole batch however many processes share it.

    python examples/lightning_module.py --devices 2 --accelerator cpu

trains it for a few steps on generated lesions, by DDP where there is more than one device. Needs lightning and the
extra `study`. The loss is one of several terms, to show how they go in; docs/which-loss.md says which to take.
"""

import argparse

import lightning
import torch
from torch import Tensor, distributed, nn
from torch.utils.data import DataLoader, TensorDataset

from polydice import CrossEntropyLoss, PolyDice1Loss
from polydice.data.generate import generate
from polydice.models.unet import UNet


class Segmentation(lightning.LightningModule):
    """Trains a network on images `[B, channels, H, W]` and labels `[B, H, W]`."""

    def __init__(self, network: nn.Module, epsilon: float = 0.2, lr: float = 0.1) -> None:
        super().__init__()
        self.network, self.epsilon, self.lr = network, epsilon, lr

    def setup(self, stage: str) -> None:
        # Not in __init__: the processes of DDP are joined only now.
        everyone = distributed.group.WORLD if distributed.is_initialized() else None
        dice = PolyDice1Loss(self.epsilon, batch=True, process_group=everyone)
        self.loss = dice + CrossEntropyLoss(process_group=everyone)

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        images, labels = batch
        loss = self.loss(self.network(images), labels)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.network.parameters(), lr=self.lr, momentum=0.9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--accelerator", default="auto")
    options = parser.parse_args()
    lightning.seed_everything(0)
    images, labels = (torch.from_numpy(array) for array in generate(32, size=32))
    batches = DataLoader(TensorDataset(images, labels), batch_size=8 // options.devices, shuffle=True)
    trainer = lightning.Trainer(**vars(options), max_epochs=10, logger=False, enable_checkpointing=False)
    trainer.fit(Segmentation(UNet(1, 2, width=8, depth=2)), batches)
    print(f"loss {trainer.callback_metrics['loss']:.3f}")


if __name__ == "__main__":
    main()
