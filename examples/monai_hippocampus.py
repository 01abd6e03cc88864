"""A 3D U-Net learns the hippocampus with MONAI's own parts and PolyDice-1 as their loss.

    python examples/monai_hippocampus.py DIR/Task04_Hippocampus

DIR/Task04_Hippocampus is the folder of the Medical Segmentation Decathlon, with its dataset.json. A minute on two CPU
cores for the 32 volumes and 15 epochs that are the default. Needs monai, nibabel and pytorch-ignite.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from monai.data import CacheDataset, DataLoader, load_decathlon_datalist
from monai.engines import SupervisedEvaluator, SupervisedTrainer
from monai.handlers import MeanDice, ValidationHandler, from_engine
from monai.networks.nets import UNet
from monai.transforms import (
    AsDiscreted,
    Compose,
    EnsureChannelFirstd,
    LoadImaged,
    NormalizeIntensityd,
    RandGaussianNoised,
    RandScaleIntensityd,
    ResizeWithPadOrCropd,
)
from monai.utils import set_determinism

from polydice import CrossEntropyLoss, PolyDice1Loss
from polydice.integrations.monai import MonaiLoss

CLASSES = 3  # background, anterior, posterior
SIZE = (48, 64, 48)  # holds the largest of the 260 volumes
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

# The one line that is not MONAI's. It was DiceCELoss(to_onehot_y=True, softmax=True, include_background=False).
# It shows how a loss goes in; which one to take is the question of docs/which-loss.md.
LOSS = MonaiLoss(PolyDice1Loss(epsilon=0.2, include_background=False) + CrossEntropyLoss())


def loader(cases: Sequence[dict[str, str]], batch_size: int, augment: bool) -> DataLoader:
    both = ["image", "label"]
    transforms = [
        LoadImaged(both),
        EnsureChannelFirstd(both),
        NormalizeIntensityd("image"),
        ResizeWithPadOrCropd(both, SIZE),
    ]
    if augment:
        transforms += [RandScaleIntensityd("image", 0.1, prob=0.5), RandGaussianNoised("image", prob=0.2)]
    dataset = CacheDataset(cases, Compose(transforms), progress=False)
    return DataLoader(dataset, batch_size=batch_size, shuffle=augment)


def evaluator(network: torch.nn.Module, cases: Sequence[dict[str, str]]) -> SupervisedEvaluator:
    """Dice of each volume and foreground class, then the mean."""
    discrete = AsDiscreted(["pred", "label"], argmax=[True, False], to_onehot=CLASSES)
    dice = MeanDice(include_background=False, output_transform=from_engine(["pred", "label"]))
    return SupervisedEvaluator(
        DEVICE,
        loader(cases, batch_size=1, augment=False),
        network,
        postprocessing=discrete,
        key_val_metric={"dice": dice},
    )


def main(arguments: Sequence[str] | None = None) -> tuple[float, float]:
    """The mean Dice of the volumes held out, before the training and after."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--cases", type=int, default=32, help="the first so many volumes; every fourth is held out")
    parser.add_argument("--epochs", type=int, default=15)
    options = parser.parse_args(arguments)

    set_determinism(0)
    cases = load_decathlon_datalist(options.data / "dataset.json", True, "training")[: options.cases]
    held_out = cases[::4]
    network = UNet(3, 1, CLASSES, channels=(8, 16, 32), strides=(2, 2), num_res_units=1, norm="instance").to(DEVICE)
    judge = evaluator(network, held_out)
    judge.run()
    untrained = judge.state.metrics["dice"]

    trainer = SupervisedTrainer(
        DEVICE,
        options.epochs,
        loader([case for case in cases if case not in held_out], batch_size=2, augment=True),
        network,
        torch.optim.Adam(network.parameters(), lr=1e-2),
        LOSS,
        train_handlers=[ValidationHandler(options.epochs, judge)],
    )
    trainer.run()
    trained = judge.state.metrics["dice"]
    print(f"Dice on {len(held_out)} volumes held out: {untrained:.3f} untrained, {trained:.3f} trained")
    return untrained, trained


if __name__ == "__main__":
    main()
