"""The losses that are compared: ours in every form, and the peers that are installed."""

import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.sizes import LABEL_BYTES
from polydice import CrossEntropyLoss, DiceLoss, PolyDice1Loss

LossFunction = Callable[[Tensor, Tensor], Tensor]
EPSILON = 0.2


class Provider(NamedTuple):
    """`make` returns the loss as a function of logits and labels; it raises where the library is not installed."""

    name: str
    make: Callable[[], LossFunction]
    devices: tuple[str, ...] = ("cpu", "cuda")
    series: bool = True  # whether it is measured in the series too
    graph: bool = False  # whether it is replayed from a CUDA graph
    label_bytes: int = LABEL_BYTES  # of each label it is given: int64, or 1 for uint8, which peers do not take
    without: str = ""  # it is told which classes are annotated, and compared with that one, which is not


def _compiled() -> LossFunction:
    torch.compiler.reset()  # each size is compiled for itself: no shape is made dynamic because another came before
    loss = PolyDice1Loss(EPSILON)

    def call(logits: Tensor, target: Tensor) -> Tensor:
        value: Tensor = loss(logits, target)
        return value

    compiled: LossFunction = torch.compile(call, fullgraph=True, dynamic=False)
    return compiled


def _two_terms(impl: str) -> LossFunction:
    return PolyDice1Loss(EPSILON, impl=impl) + CrossEntropyLoss(impl=impl)


def _common(impl: str) -> LossFunction:
    return DiceLoss(impl=impl) + CrossEntropyLoss(impl=impl)


def _monai() -> LossFunction:
    module = import_module("monai.losses.dice")
    loss = module.DiceLoss(softmax=True, to_onehot_y=True, squared_pred=True)
    return lambda logits, target: loss(logits, target.unsqueeze(1))


def _nnunet() -> LossFunction:
    nonlinearity = import_module("nnunetv2.utilities.helpers").softmax_helper_dim1
    module = import_module("nnunetv2.training.loss.dice")
    loss: LossFunction = module.MemoryEfficientSoftDiceLoss(nonlinearity, batch_dice=False, do_bg=True)
    return loss


def _smp() -> LossFunction:
    # Its package imports encoders and datasets, and with them torchvision; the losses need torch alone.
    loss: LossFunction = _import_alone("segmentation_models_pytorch", "losses").DiceLoss(mode="multiclass")
    return loss


def _import_alone(package: str, module: str) -> Any:
    """A module without what its package imports first."""
    spec = find_spec(package)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {package!r}")
    sys.modules.setdefault(package, module_from_spec(spec))
    return import_module(f"{package}.{module}")


def _kornia() -> LossFunction:
    dice_loss = import_module("kornia.losses.dice").dice_loss
    return lambda logits, target: dice_loss(logits, target, average="macro")  # one Dice per class, as all the others


PROVIDERS = (
    Provider("polydice", lambda: PolyDice1Loss(EPSILON), ("cpu",)),
    Provider("polydice eager", lambda: PolyDice1Loss(EPSILON, impl="eager")),
    Provider("polydice fused", lambda: PolyDice1Loss(EPSILON, impl="fused"), ("cuda",)),
    Provider("polydice compiled", _compiled, series=False),
    Provider("polydice graph", lambda: PolyDice1Loss(EPSILON, impl="fused"), ("cuda",), graph=True),
    Provider("polydice fused, uint8", lambda: PolyDice1Loss(EPSILON, impl="fused"), ("cuda",), False, label_bytes=1),
    Provider("polydice graph, uint8", lambda: PolyDice1Loss(EPSILON, impl="fused"), ("cuda",), False, True, 1),
    Provider("polydice + ce", lambda: _two_terms("auto"), ("cpu",), series=False),
    Provider("polydice + ce", lambda: _two_terms("fused"), ("cuda",), series=False),
    Provider("polydice + ce graph, uint8", lambda: _two_terms("fused"), ("cuda",), False, True, 1),
    Provider("monai", _monai),
    Provider("nnunet", _nnunet),
    Provider("smp", _smp),
    Provider("kornia", _kornia),
    Provider("cross_entropy", lambda: F.cross_entropy),
    Provider("cross_entropy graph", lambda: F.cross_entropy, ("cuda",), series=False, graph=True),
)


def annotated(device: str) -> list[Provider]:
    """Ours without and with `annotated`, one beside the other; on a GPU in a graph and as called, with uint8 labels."""
    found = []
    impl, replays = ("fused", (True, False)) if device == "cuda" else ("auto", (False,))
    for loss, make in (("polydice", partial(PolyDice1Loss, EPSILON, impl=impl)), ("dice + ce", partial(_common, impl))):
        for graph in replays:
            name = f"{loss} graph" if graph else loss
            alone = Provider(name, make, (device,), graph=graph, label_bytes=1)
            found += [alone, alone._replace(name=f"{name}, annotated", without=name)]
    return found


def installed(device: str) -> tuple[list[Provider], dict[str, str]]:
    """The providers that can be had here, and why not for the others."""
    found, missing = [], {}
    for provider in PROVIDERS:
        if device not in provider.devices:
            continue
        try:
            provider.make()
        except Exception as error:  # a peer may fail in any way while it is imported
            missing[provider.name] = reason(error)
        else:
            found.append(provider)
    return found, missing


def reason(error: Exception) -> str:
    """An exception in one short line."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:160]
