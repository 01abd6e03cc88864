"""Trainers for nnU-Net v2, chosen by name; `python -m polydice.integrations.nnunet` prints the folder to find them in.

    export nnUNet_extTrainer="$(python -m polydice.integrations.nnunet)"
    nnUNetv2_train 4 3d_fullres 0 -tr nnUNetTrainerPolyDiceCE_epsilon0.2

A trainer's name says its loss, and nnU-Net names results and checkpoints after the trainer: runs with different numbers
go into different folders, and prediction finds the trainer again. The names are

    nnUNetTrainerPolyDice[CE][_epsilonNUMBER][_detached or _noscale]
    nnUNetTrainerDropDice[CE][_orderNUMBER][_detached or _noscale]

with `CE`: plus cross-entropy, as in nnU-Net's own loss; the last part is `scale="detached"` or `scale="none"`.
"""

import re
import warnings
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from torch import Tensor, nn
from torch import distributed as dist

from polydice.base import AveragedLoss, Loss, LossOptions, LossSum
from polydice.losses import CrossEntropyLoss, DropDiceLoss, PolyDice1Loss

FOLDER = str(Path(__file__).with_name("nnunet_trainers"))
SMOOTH = 1e-5  # nnU-Net's own
EPSILON, ORDER = 0.2, 1  # where the name says none
SCALES = {None: "coupled", "detached": "detached", "noscale": "none"}
FORMS = (
    "nnUNetTrainerPolyDice[CE][_epsilonNUMBER][_detached|_noscale]",
    "nnUNetTrainerDropDice[CE][_orderNUMBER][_detached|_noscale]",
)
POLYDICE = re.compile(r"nnUNetTrainerPolyDice(CE)?(?:_epsilon(-?\d+(?:\.\d+)?))?(?:_(detached|noscale))?")
DROPDICE = re.compile(r"nnUNetTrainerDropDice(CE)?(?:_order(\d+))?(?:_(detached|noscale))?")


class NnUNetLoss(nn.Module):
    """A loss of ours with the value and the arguments of nnU-Net's: L − 1, as its Dice is −Dice. With `ignore_channel`
    the target's last channel is no region: it marks the pixels to be ignored."""

    def __init__(self, loss: Loss | LossSum, ignore_channel: bool = False) -> None:
        super().__init__()
        self.loss = loss
        self.ignore_channel = ignore_channel

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        mask = None
        if self.ignore_channel:
            target, mask = target[:, :-1], target[:, -1:] == 0
        value: Tensor = self.loss(logits, target, mask)
        return value - 1


def nnunet_loss(
    dice: Callable[..., AveragedLoss],
    *,
    cross_entropy: bool,
    batch_dice: bool,
    smooth: float | None = SMOOTH,
    regions: int = 0,
    ignore_label: int | None = None,
    ddp: bool = False,
) -> NnUNetLoss:
    """nnU-Net's loss with `dice` in place of its Dice. `regions` is their number, 0 for a training with labels;
    `smooth` is None for a loss of the angle alone, which has none.

    >>> nnunet_loss(partial(PolyDice1Loss, 0.2), cross_entropy=True, batch_dice=False)
    NnUNetLoss(
      (loss): PolyDice1Loss(epsilon=0.2, smooth=1e-05, include_background=False) + CrossEntropyLoss()
    )
    """
    options: LossOptions = {"activation": "sigmoid"} if regions else {"ignore_index": ignore_label}
    if ddp and batch_dice:
        options["process_group"] = dist.group.WORLD
    delta = {} if smooth is None else {"smooth": smooth}
    loss: Loss | LossSum = dice(include_background=bool(regions), batch=batch_dice, **delta, **options)
    ignore_channel = bool(regions) and ignore_label is not None
    if cross_entropy:
        # nnU-Net's mean over the pixels that count is a sum over the regions, once there is an ignore label.
        loss = loss + (regions if ignore_channel else 1) * CrossEntropyLoss(**options)
    return NnUNetLoss(loss, ignore_channel)


@cache
def trainer(name: str) -> type | None:
    """The trainer of that name, if it is one of ours; always the same class, as pickle wants it."""
    if found := POLYDICE.fullmatch(name):
        dice: Callable[..., AveragedLoss] = partial(PolyDice1Loss, float(found[2] or EPSILON))
    elif found := DROPDICE.fullmatch(name):
        dice = partial(DropDiceLoss, int(found[2] or ORDER))
    else:
        return None
    scale = SCALES[found[3]]
    smooth = None if scale == "none" else SMOOTH
    return trainer_with(name, partial(dice, scale=scale), cross_entropy=found[1] is not None, smooth=smooth)


def trainer_with(
    name: str, dice: Callable[..., AveragedLoss], *, cross_entropy: bool, smooth: float | None = SMOOTH
) -> type:
    """nnU-Net's trainer with `dice` in place of its Dice; `smooth` as in `nnunet_loss`."""
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

    class Trainer(nnUNetTrainer):  # type: ignore[misc]
        """nnU-Net's trainer with another loss."""

        def _build_loss(self) -> nn.Module:
            labels = self.label_manager
            ours = nnunet_loss(
                dice,
                cross_entropy=cross_entropy,
                batch_dice=self.configuration_manager.batch_dice,
                smooth=smooth,
                regions=labels.num_segmentation_heads if labels.has_regions else 0,
                ignore_label=labels.ignore_label,
                ddp=self.is_ddp,
            )
            self.print_to_log_file(f"Loss: {ours.loss} - 1")
            if not self.enable_deep_supervision:
                return ours
            # The weights of the resolutions, which depend on DDP and compilation, stay nnU-Net's own affair.
            wrapper: nn.Module = super()._build_loss()
            wrapper.loss = ours
            return wrapper

    Trainer.__name__ = name
    Trainer.__qualname__ = name.replace(".", "·")  # pickle takes a name apart at its points
    return Trainer


def __getattr__(name: str) -> type:
    found = trainer(name.replace("·", "."))
    if found is not None:
        return found
    if name.startswith(("nnUNetTrainerPolyDice", "nnUNetTrainerDropDice")):
        # nnU-Net goes on searching, and in the end says only that it has not found it.
        warnings.warn(f"polydice has no trainer {name!r}; the names are {' and '.join(FORMS)}", stacklevel=2)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if __name__ == "__main__":
    print(FOLDER)
