"""What a run minimises: its loss, over all processes and all resolutions of the logits."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional as F

from polydice.base import Loss, LossSum
from polydice.data.cases import Regions
from polydice.losses import TvMFDiceLoss
from polydice.training.expression import parse_loss
from polydice.training.heads import LevelLoss
from polydice.training.mixed import Mixed, takes
from polydice.training.processes import Process

Objective = Loss | LossSum | Mixed


def objective(text: str, process: Process, ignore: int | None = None, regions: Regions | None = None) -> Objective:
    """The loss that `text` spells, which does not look at pixels with the label `ignore`. What is summed over the batch
    is summed over the batches of all processes. Regions have a channel each, with a sigmoid."""
    if regions is not None:
        loss = _of_regions(text, ignore)
    else:
        loss = parse_loss(text) if ignore is None else parse_loss(text, ignore_index=ignore)
    for term in _terms(loss):
        if ignore is not None and regions is None and term.ignore_index != ignore:
            raise ValueError(f"loss {text!r}: pixels without a label are {ignore} here: leave ignore_index out")
        if "none" in (term.reduction, term.activation):
            raise ValueError(f"loss {text!r}: 'none' will not do, a network gives logits and is trained on one number")
    if process.world > 1:
        _join(loss, text, process.world)
    return loss


def _of_regions(text: str, ignore: int | None) -> Objective:
    """A loss of masks that overlap, which takes a mask if there are pixels to be ignored."""
    loss = parse_loss(text, activation="sigmoid")
    for term in _terms(loss):
        for option, wanted in (("activation", "sigmoid"), ("include_background", True), ("ignore_index", None)):
            if getattr(term, option) != wanted:
                raise ValueError(
                    f"loss {text!r}: the classes are regions, each a channel with a sigmoid, and the background has "
                    f"none: leave {option} out"
                )
    for _, other in loss.foreign if isinstance(loss, Mixed) and ignore is not None else ():
        if not takes(type(other.module).forward, "mask"):
            raise ValueError(
                f"loss {text!r}: there are pixels without a label, and {other} does not leave them out: its forward "
                "must take a mask"
            )
    return loss


def targets(labels: Tensor, ignore: int | None = None, regions: Regions | None = None) -> tuple[Tensor, Tensor | None]:
    """What a loss is given for labels `[B, *spatial]`: target and mask. Of regions, the target is `[B, regions,
    *spatial]`, booleans; else it is the labels, in which the loss knows what to ignore by itself.

    >>> targets(torch.tensor([[0, 1, 2]]), regions=Regions(((0,), (1, 2), (2,)), (1, 2)))[0].int().tolist()
    [[[0, 1, 1], [0, 0, 1]]]
    """
    if regions is None:
        return labels, None
    masks = [torch.stack([labels == label for label in own]).any(0) for own in regions.members[1:]]
    return torch.stack(masks, 1), None if ignore is None else labels != ignore


def _join(loss: Objective, text: str, world: int) -> None:
    """Gives the loss the group of all processes, where it sums over the batch: each of them has a part of it."""
    terms = list(_terms(loss))
    if any(term.over_batch for term in terms):
        for term in terms:  # all of them, since they must agree; those that do not sum take no notice
            term.process_group = dist.group.WORLD
    for _, other in loss.foreign if isinstance(loss, Mixed) else ():
        if not hasattr(other.module, "process_group"):
            raise ValueError(
                f"loss {text!r}: {world} processes have a part of each batch, and {other} has no process_group: give "
                "its class that attribute. It is set to their group, to sum over; a mean over images may ignore it"
            )
        setattr(other.module, "process_group", dist.group.WORLD)  # noqa: B010 (torch types attributes as tensors)


def supervised(
    losses: Objective | Sequence[LevelLoss],
    outputs: Tensor | list[Tensor],
    labels: Tensor,
    ignore: int | None = None,
    regions: Regions | None = None,
    annotated: Tensor | None = None,
) -> Tensor:
    """The loss of logits, or of features by the losses that have their heads; of several resolutions the mean, each
    with half the weight of the one before. `annotated` `[B, C]`: the classes that are, in each image."""
    levels = [outputs] if isinstance(outputs, Tensor) else outputs
    each = losses if isinstance(losses, Sequence) else [losses] * len(levels)
    if isinstance(outputs, Tensor):
        value: Tensor = each[0](outputs, *targets(labels, ignore, regions), annotated)
        return value
    weights = [0.5**level for level in range(len(levels))]
    total = labels.new_zeros((), dtype=torch.float32)
    for weight, loss, output in zip(weights, each, levels, strict=True):
        smaller = F.interpolate(labels[:, None].float(), output.shape[2:], mode="nearest-exact")[:, 0]
        target = targets(smaller.to(labels.dtype), ignore, regions)
        total = total + weight / sum(weights) * loss(output, *target, annotated)
    return total


def adaptive(loss: Objective, kappa: bool = True) -> list[Loss]:
    """The losses that follow the validation, also those inside a loss of somebody else's; a κ only if it shall."""
    losses = (each for each in loss.modules() if isinstance(each, Loss))
    return [each for each in losses if each.adaptive and (kappa or not isinstance(each, TvMFDiceLoss))]


def adapt(losses: Sequence[Loss], dice_per_class: Tensor) -> None:
    """A class that is nowhere has Dice 0."""
    for loss in losses:
        loss.adapt(dice_per_class.nan_to_num(0.0))


def _terms(loss: Objective) -> Iterator[Loss]:
    """Those of polydice."""
    own = loss.own if isinstance(loss, Mixed) else loss
    if own is not None:
        yield from (term for _, term in own.terms) if isinstance(own, LossSum) else [own]
