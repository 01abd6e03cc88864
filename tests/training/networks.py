"""Small networks, one of them a known function of a pixel, in files as the training loop writes them."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from polydice.data.prepare import Preparation
from polydice.models.unet import UNet
from polydice.training.checkpoint import save_weights

SMALL = {"width": 4, "depth": 2}
THRESHOLD = 0.5


def saved(
    path: Path,
    module: nn.Module,
    name: str = "unet",
    classes: int = 2,
    intensity: str = "colour",
    patch: tuple[int, int, int] | None = None,
    options: dict[str, int] = SMALL,
    **settings: Any,
) -> Path:
    """A file of weights as the training loop writes it."""
    about = {
        "model": {"name": name, "channels": module.channels, "classes": classes, "options": options},
        "preparation": Preparation(**settings).described(),
        "classes": ["background", "first", "second", "third"][:classes],
        "intensity": intensity,
        "patch": patch,
        "dataset": "mine",
    }
    save_weights(path, module.state_dict(), about)
    return path


def thresholding(channels: int = 1) -> UNet:
    """A U-Net whose logits are 0 and x - THRESHOLD, of the first channel x of the same pixel."""
    model = UNet(channels, 2, **SMALL)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.zero_()
            if parameter.ndim == 1 and name.endswith("weight"):
                parameter.fill_((1 + 1e-5) ** 0.5)  # of a norm, whose variance is 1 + 1e-5
        for convs in (model.down[0], model.merge[-1]):
            for layer in (convs[0], convs[3]):
                layer.weight[0, 0, 1, 1] = 1
        model.heads[0].weight[1, 0] = 1
        model.heads[0].bias[1] = -THRESHOLD
    return model.eval()
