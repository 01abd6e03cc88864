"""The networks. `MODELS` is the one list of them: settings, recipes and commands read it.

Each is imported when it is asked for: only the 3D ones need MONAI, and to name a network takes no torch.
"""

import ast
import inspect
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from polydice import foreign

if TYPE_CHECKING:
    from torch import nn


class Model(NamedTuple):
    """What the rest of polydice must know of a network."""

    place: str  # "module:Class"; the class is called as Class(channels, classes, **options)
    dims: Literal[2, 3] = 2  # it takes images and slices, or volumes
    settings: tuple[str, ...] = ()  # settings of `polydice train` that are options of the class
    weights: str = ""  # a module with `load_weights(model, path)`, and `WANTED`, which says what file that is
    head: bool = True  # it may end in a 1×1 convolution (`polydice.training.heads`); False: it does not

    @property
    def takes(self) -> tuple[str, ...]:
        """Every setting that has a meaning for it, and not for all networks."""
        return self.settings + ("spacing", "patch") * (self.dims == 3) + ("pretrained",) * bool(self.weights)


OPTIONS = ("width", "depth", "norm", "deep_supervision")  # settings of training that are for any network that has them
MODELS = {
    "unet": Model("polydice.models.unet:UNet", 2, OPTIONS),
    "transunet": Model("polydice.models.transunet:TransUNet", 2, ("size",), "polydice.models.transunet_weights", False),
    "unet3d": Model("polydice.models.unet3d:UNet3D", 3, ("width", "depth"), head=False),
    "dynunet": Model("polydice.models.dynunet:DynUNet", 3, ("width", "depth", "deep_supervision")),
}


def find(text: str) -> tuple[Model, dict[str, Any]]:
    """The network that a text names, and the options that it spells: a name in `MODELS`, or anybody's class.

    >>> find("unet(width=8)")
    (Model(place='polydice.models.unet:UNet', dims=2, settings=('width', 'depth', 'norm', 'deep_supervision'), \
weights='', head=True), {'width': 8})
    """
    if text in MODELS:
        return MODELS[text], {}
    name, options = _read(text)
    if name not in MODELS and ":" not in name:
        raise ValueError(f"no model is called {name!r}; there are {', '.join(MODELS)}, or yours as module:Class")
    kind = _class(MODELS[name].place) if name in MODELS else foreign.find(name)
    takes = inspect.signature(kind)
    try:
        takes.bind_partial("channels", "classes", **options)  # settings of training may give more
    except TypeError as error:
        raise ValueError(f"model {text!r}: {error}; it is called as {kind.__name__}{takes}") from error
    if name in MODELS:
        return MODELS[name], options
    dims: Any = getattr(kind, "dims", 2)
    if dims not in (2, 3):
        raise ValueError(f"model {text!r}: its attribute dims must be 2 (images, slices) or 3 (volumes): {dims!r}")
    return Model(name, dims, tuple(each for each in OPTIONS if each in takes.parameters)), options


def build(name: str, channels: int, classes: int, **options: Any) -> "nn.Module":
    """A randomly initialised network: `[B, channels, *spatial]` to logits `[B, classes, *spatial]`.

    `options` are those of its class; the name may spell some too, `"unet(width=8)"`, which come first.

    >>> model = build("unet", channels=3, classes=2)
    >>> sum(parameter.numel() for parameter in model.parameters())
    31037698
    """
    model, spelt = find(name)
    if channels < 1 or classes < 1:
        raise ValueError(f"{name} needs at least one channel and one class: {channels=}, {classes=}")
    return _class(model.place)(channels, classes, **{**options, **spelt})


def _class(place: str) -> "type[nn.Module]":
    module, _, name = place.partition(":")
    kind: type[nn.Module] = getattr(import_module(module), name)
    return kind


def _read(text: str) -> tuple[str, dict[str, Any]]:
    """`name` or `name(option=value, ...)`."""
    try:
        node = foreign.parsed(text)
        if not isinstance(node, ast.Call):
            return foreign.spelt(node), {}
        given, options = foreign.arguments(node)
    except (SyntaxError, ValueError) as error:
        problem = error.msg if isinstance(error, SyntaxError) else error
        raise ValueError(f"model {text!r} is no name, nor one with options: {problem}") from error
    if given:
        raise ValueError(f"model {text!r}: options are given by name, as in unet(width=8)")
    return foreign.spelt(node.func), options
