"""Trainers for nnU-Net v2, chosen by name; `python -m polydice.integrations.nnunet` prints the folder to find them in.

    export nnUNet_extTrainer="$(python -m polydice.integrations.nnunet)"
    nnUNetv2_train 4 3d_fullres 0 -tr nnUNetTrainerPolyDice_epsilon0_follow4_detached

A trainer's name says its loss, and nnU-Net names results and checkpoints after the trainer: runs with different numbers
go into different folders, and prediction finds the trainer again. `nnunet_names.py` has the names: Dice, PolyDice,
DropDice, Tversky, FocalTversky or TvMF, alone or with `CE` or `Focal`, and numbers. nnU-Net finds trainers outside its
own folder from version 2.8 on.
"""

import math
import os
import re
import sys
import warnings
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch import distributed as dist

from polydice.base import AveragedLoss, Loss, LossOptions, LossSum
from polydice.integrations.nnunet_annotated import check_cases, correct_summary, counts, read_annotated, rows
from polydice.integrations.nnunet_names import EXPLAINED, SMOOTH, nearly, read
from polydice.pixelwise import PixelLoss

FOLDER = str(Path(__file__).with_name("nnunet_trainers"))
OLDEST = (2, 8)  # with nnUNet_extTrainer


class NnUNetLoss(nn.Module):
    """A loss of ours with the value and the arguments of nnU-Net's: L − 1, as its Dice is −Dice. With `ignore_channel`
    the target's last channel is no region: it marks the pixels to be ignored. `annotated`, `[B, C]`, is set for a batch
    in which not every class is annotated."""

    def __init__(self, loss: Loss | LossSum, ignore_channel: bool = False) -> None:
        super().__init__()
        self.loss = loss
        self.ignore_channel = ignore_channel
        self.annotated: Tensor | None = None

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        mask = None
        if self.ignore_channel:
            target, mask = target[:, :-1], target[:, -1:] == 0
        value: Tensor = self.loss(logits, target, mask, self.annotated)
        return value - 1

    def adapt(self, dice_per_class: list[float]) -> None:
        """Dice of every channel; one that the validation does not have counts as 0."""
        for _, loss in self.loss.terms:
            loss.adapt([0.0 if math.isnan(dice) else float(dice) for dice in dice_per_class])


def nnunet_loss(
    dice: Callable[..., AveragedLoss],
    *,
    plus: Callable[..., PixelLoss] | None,
    batch_dice: bool,
    smooth: float | None = SMOOTH,
    regions: int = 0,
    ignore_label: int | None = None,
    ddp: bool = False,
) -> NnUNetLoss:
    """nnU-Net's loss with `dice` in place of its Dice, and `plus` in place of its cross-entropy, or None. `regions` is
    their number, 0 for a training with labels; `smooth` is None for a loss of the angle alone, which has none.

    >>> from functools import partial
    >>> from polydice import CrossEntropyLoss, PolyDice1Loss
    >>> nnunet_loss(partial(PolyDice1Loss, 0.2), plus=CrossEntropyLoss, batch_dice=False)
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
    if plus is not None:
        # nnU-Net's mean over the pixels that count is a sum over the regions, once there is an ignore label.
        loss = loss + (regions if ignore_channel else 1) * plus(**options)
    return NnUNetLoss(loss, ignore_channel)


@cache
def trainer(name: str) -> type | None:
    """The trainer of that name, if it is one of ours; always the same class, as pickle wants it."""
    named = read(name)
    return None if named is None else trainer_with(name, **named._asdict())


def trainer_with(
    name: str,
    dice: Callable[..., AveragedLoss],
    *,
    plus: Callable[..., PixelLoss] | None,
    smooth: float | None = SMOOTH,
    adapts: bool = True,
) -> type:
    """nnU-Net's trainer with `dice` in place of its Dice; `plus` and `smooth` as in `nnunet_loss`. A loss that can
    adapt to the validation does so after every epoch, unless `adapts` says not to."""
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

    class Trainer(nnUNetTrainer):  # type: ignore[misc]
        """nnU-Net's trainer with another loss."""

        def initialize(self) -> None:
            self.annotated = read_annotated(self.dataset_json, self.label_manager)
            super().initialize()
            if self.annotated:
                folder = self.preprocessed_dataset_folder
                cases = self.dataset_class.get_identifiers(folder)
                check_cases(self.annotated, cases, self.dataset_class(folder), self.label_manager)

        def _build_loss(self) -> nn.Module:
            labels = self.label_manager
            self.ours = nnunet_loss(
                dice,
                plus=plus,
                batch_dice=self.configuration_manager.batch_dice,
                smooth=smooth,
                regions=labels.num_segmentation_heads if labels.has_regions else 0,
                ignore_label=labels.ignore_label,
                ddp=self.is_ddp,
            ).to(self.device)
            self.print_to_log_file(f"Loss: {self.ours.loss} - 1")
            if not self.enable_deep_supervision:
                return self.ours
            # The weights of the resolutions, which depend on DDP and compilation, stay nnU-Net's own affair.
            wrapper: nn.Module = super()._build_loss()
            wrapper.loss = self.ours
            return wrapper

        def on_train_epoch_start(self) -> None:
            super().on_train_epoch_start()
            if adapts and self.current_epoch > 0:
                # From the log, which is in the checkpoint: a training that is resumed goes on as it would have.
                found = self.logger.get_value("dice_per_class_or_region", step=-1)
                self.ours.adapt(found if self.label_manager.has_regions else [1.0, *found])
                if any(loss.adaptive for _, loss in self.ours.loss.terms):
                    self.print_to_log_file(f"Loss: {self.ours.loss} - 1")

        def train_step(self, batch: dict[str, Any]) -> dict[str, Any]:
            self._tell(batch)
            found: dict[str, Any] = super().train_step(batch)
            return found

        def validation_step(self, batch: dict[str, Any]) -> dict[str, Any]:
            self._tell(batch)
            counted: dict[str, Any] = {}

            def count(_: nn.Module, __: Any, output: Any) -> None:
                first, target = (
                    each[0] if isinstance(each, list | tuple) else each for each in (output, batch["target"])
                )
                known = rows(self.annotated, batch["keys"]).to(first.device)
                counted.update(counts(first, target.to(first.device), known, self.label_manager))

            hooks = [self.network.register_forward_hook(count)] if self.annotated else []
            found: dict[str, Any] = super().validation_step(batch)
            for hook in hooks:
                hook.remove()
            return found | counted

        def _tell(self, batch: dict[str, Any]) -> None:
            """The loss is told which classes are annotated in the images of the batch."""
            if self.annotated:
                self.ours.annotated = rows(self.annotated, batch["keys"]).to(self.device)

        def perform_actual_validation(self, save_probabilities: bool = False) -> None:
            super().perform_actual_validation(save_probabilities)
            if self.annotated and self.local_rank == 0:
                file = Path(self.output_folder, "validation", "summary.json")
                dice = correct_summary(file, self.annotated, self.label_manager, self.dataset_json["file_ending"])
                self.print_to_log_file(f"Mean Validation Dice of the classes annotated in each case: {dice}")

    Trainer.__name__ = name
    Trainer.__qualname__ = name.replace(".", "·")  # pickle takes a name apart at its points
    return Trainer


def __getattr__(name: str) -> type:
    name = name.replace("·", ".")
    try:
        found = trainer(name)
    except ValueError as problem:
        raise ValueError(f"{problem}. {EXPLAINED}") from None
    if found is None:
        raise AttributeError(f"{__name__} has no {name!r}. {EXPLAINED}" if nearly(name) else name)
    return found


def searched(name: str) -> type:
    """For nnU-Net's search, which takes an AttributeError as a reason to look elsewhere, and in the end says only that
    it has found nothing. Where there is nothing else to look at, a name that is nearly one of ours ends it."""
    try:
        return __getattr__(name)
    except AttributeError as problem:
        folders = os.environ.get("nnUNet_extTrainer", "").rstrip(os.pathsep)  # noqa: SIM112
        if nearly(name) and Path(folders.split(os.pathsep)[-1]).resolve() == Path(FOLDER).resolve():
            raise ValueError(str(problem)) from None
        if nearly(name):
            warnings.warn(str(problem), stacklevel=2)
        raise


def main() -> str | None:
    """Prints the folder, or says why nnU-Net would not look into it."""
    try:
        installed = version("nnunetv2")
    except PackageNotFoundError:
        return f"nnU-Net is not installed in {sys.prefix}: pip install 'nnunetv2>=2.8'"
    if tuple(map(int, re.findall(r"\d+", installed)[:2])) < OLDEST:
        return f"nnU-Net {installed} has no nnUNet_extTrainer, by which trainers are found: pip install 'nnunetv2>=2.8'"
    print(FOLDER)
    return None


if __name__ == "__main__":
    sys.exit(main())
