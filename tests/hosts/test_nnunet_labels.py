"""Regions and ignore labels of a dataset.json beside nnU-Net's own reading of them."""

from typing import Any

import pytest
import torch

pytest.importorskip("nnunetv2", reason="nnU-Net is not installed: make test-hosts", exc_type=ImportError)

from batchgeneratorsv2.transforms.utils.seg_to_regions import ConvertSegmentationToRegionsTransform
from nnunetv2.evaluation.evaluate_predictions import compute_tp_fp_fn_tn, region_or_label_to_mask
from nnunetv2.training.loss.compound_losses import DC_and_BCE_loss
from nnunetv2.utilities.label_handling.label_handling import LabelManager

from polydice.data.cases import DataError
from polydice.data.readers.labels import described
from polydice.training.inference import label_maps
from polydice.training.metrics import confusion, dice_per_class
from polydice.training.objective import objective, supervised, targets
from polydice.training.processes import Process

BRAIN = {"background": 0, "whole": [1, 2, 3], "core": [2, 3], "enhancing": 3}
SETS: list[tuple[dict[str, Any], list[int] | None]] = [
    (BRAIN, [1, 2, 3]),
    (BRAIN | {"ignore": 4}, [1, 2, 3]),
    ({"background": 0, "kidney": [1, 2, 3], "masses": [2, 3], "tumour": 2, "ignore": 4}, [1, 3, 2]),
    ({"a": [1, 2], "b": [2, 3], "background": 0}, [1, 3]),
    ({"background": 0, "a": 1, "b": 2, "ignore": 3}, None),
]


@pytest.mark.parametrize(("labels", "order"), SETS)
def test_targets_label_maps_and_scores_are_nnunets(labels: dict[str, Any], order: list[int] | None) -> None:
    theirs, (_, ignore, regions) = LabelManager(labels, order), described(labels, order)
    assert (theirs.ignore_label, theirs.has_regions) == (ignore, regions is not None)
    random = torch.Generator().manual_seed(0)
    truth = torch.randint(len(theirs.all_labels) + (ignore is not None), (2, 9, 8, 7), generator=random)
    logits = torch.randn(2, theirs.num_segmentation_heads, 9, 8, 7, generator=random)
    maps = label_maps(logits, regions.order if regions else None)
    for one, found in zip(logits, maps, strict=True):
        assert torch.equal(theirs.convert_logits_to_segmentation(one).long(), found.long())

    if regions is not None:
        every = [*theirs.foreground_regions, *([ignore] if ignore is not None else [])]
        convert = ConvertSegmentationToRegionsTransform(regions=every)
        target, mask = targets(truth, ignore, regions)
        for one, found in zip(truth, target, strict=True):
            assert torch.equal(convert._apply_to_segmentation(one[None])[: len(regions.order)], found)
        assert (mask is None) == (ignore is None)
        if mask is not None:
            ignored = torch.stack([convert._apply_to_segmentation(one[None])[-1] for one in truth])
            assert torch.equal(mask, ~ignored)

    count = len(theirs.all_labels)
    dice = dice_per_class(confusion(maps, truth, count), regions.members if regions else None)
    known = None if ignore is None else (truth != ignore).numpy()
    for place, each in enumerate(theirs.foreground_regions if regions else theirs.foreground_labels, start=1):
        for case in range(2):
            masks = [region_or_label_to_mask(array[case].numpy(), each) for array in (truth, maps)]
            tp, fp, fn, _ = compute_tp_fp_fn_tn(*masks, None if known is None else ~known[case])
            assert float(dice[case, place]) == pytest.approx(2 * tp / (2 * tp + fp + fn), rel=1e-12)


@pytest.mark.parametrize(("labels", "order"), SETS[:4])
def test_a_training_on_regions_minimises_what_nnunets_does(labels: dict[str, Any], order: list[int]) -> None:
    """Its Dice is counted as −Dice; and where pixels are ignored, its cross-entropy is a sum over the regions."""
    theirs, (_, ignore, regions) = LabelManager(labels, order), described(labels, order)
    assert regions is not None
    count, void = len(regions.order), [] if ignore is None else [ignore]
    random = torch.Generator().manual_seed(0)
    truth = torch.randint(len(theirs.all_labels) + len(void), (2, 9, 8, 7), generator=random)
    logits = torch.randn(2, count, 9, 8, 7, generator=random)
    convert = ConvertSegmentationToRegionsTransform(regions=[*theirs.foreground_regions, *void])
    target = torch.stack([convert._apply_to_segmentation(one[None]) for one in truth])
    alone = Process(0, 1, torch.device("cpu"))
    for text, dice, entropy in (
        ("DiceLoss(squared=False, batch=True, smooth=1e-5)", 1, 0),
        ("CrossEntropyLoss()", 0, 1 / count if void else 1),
    ):
        mine, its = logits.clone().requires_grad_(), logits.clone().requires_grad_()
        found = supervised(objective(text, alone, ignore, regions), mine, truth, ignore, regions)
        options = {"batch_dice": True, "do_bg": True, "smooth": 1e-5, "ddp": False}
        wanted = DC_and_BCE_loss({}, options, entropy, dice, use_ignore_label=bool(void))(its, target) + dice
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
        found.backward()
        wanted.backward()
        torch.testing.assert_close(mine.grad, its.grad, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("labels", "order"),
    [
        (BRAIN, None),
        (BRAIN, [1, 2]),
        (BRAIN | {"ignore": 3}, [1, 2, 3]),
        (BRAIN | {"ignore": [4, 5]}, [1, 2, 3]),
        ({"all": [0, 1], "b": 1}, [1, 1]),
    ],
)
def test_what_nnunet_refuses_is_refused(labels: dict[str, Any], order: list[int] | None) -> None:
    with pytest.raises((AssertionError, RuntimeError)):
        LabelManager(labels, order)
    with pytest.raises(DataError):
        described(labels, order)
