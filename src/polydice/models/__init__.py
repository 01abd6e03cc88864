"""The networks, by name. Each is imported when it is asked for: only `unet3d` needs MONAI."""

from importlib import import_module
from typing import Any

from torch import nn

MODELS = {"unet": "unet.UNet", "transunet": "transunet.TransUNet", "unet3d": "unet3d.UNet3D"}


def build(name: str, channels: int, classes: int, **options: Any) -> nn.Module:
    """A randomly initialised network: `[B, channels, *spatial]` to logits `[B, classes, *spatial]`.

    `options` are those of its class.

    >>> model = build("unet", channels=3, classes=2)
    >>> sum(parameter.numel() for parameter in model.parameters())
    31037698
    """
    if name not in MODELS:
        raise ValueError(f"no model is called {name!r}; there are {', '.join(MODELS)}")
    if channels < 1 or classes < 1:
        raise ValueError(f"{name} needs at least one channel and one class: {channels=}, {classes=}")
    module, kind = MODELS[name].split(".")
    model: nn.Module = getattr(import_module(f"{__name__}.{module}"), kind)(channels, classes, **options)
    return model
