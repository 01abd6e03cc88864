"""segmentation_models_pytorch: the lines that give its Dice loss in each mode, and a U-Net of its own that learns."""

from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polydice import DiceLoss, FocalLoss, PolyDice1Loss, TverskyLoss
from polydice.data.generate import generate

smp = pytest.importorskip(
    "segmentation_models_pytorch", reason="segmentation_models_pytorch is not installed: make test-hosts"
)

CLASSES = 4
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}
SMOOTH = [0.0, 1.0]


def dice(activation: str, smooth: float, **options: Any) -> DiceLoss:
    """Its smoothing stands beside I, ours beside 2I."""
    return DiceLoss(activation=activation, squared=False, batch=True, smooth=2 * smooth, **options)


def assert_equal(ours: nn.Module, theirs: nn.Module, logits: Tensor, target: Tensor) -> None:
    """The same value and the same gradient."""
    our_logits, their_logits = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    value, expected = ours(our_logits, target), theirs(their_logits, target)
    torch.testing.assert_close(value, expected, **TOLERANCE)
    value.backward()
    expected.backward()
    torch.testing.assert_close(our_logits.grad, their_logits.grad, **TOLERANCE)


@pytest.mark.parametrize("smooth", SMOOTH)
def test_binary(smooth: float) -> None:
    logits, mask = torch.randn(3, 1, 9, 7), (torch.rand(3, 1, 9, 7) < 0.3).float()
    ours = dice("sigmoid", smooth, absent="skip")
    assert_equal(ours, smp.losses.DiceLoss("binary", smooth=smooth), logits, mask)
    assert_equal(ours, smp.losses.DiceLoss("binary", smooth=smooth), logits, mask.long())
    assert_equal(ours, smp.losses.DiceLoss("binary", smooth=smooth), logits, torch.zeros_like(mask))


@pytest.mark.parametrize("smooth", SMOOTH)
def test_multiclass(smooth: float) -> None:
    logits, labels = torch.randn(3, CLASSES, 9, 7), torch.randint(CLASSES, (3, 9, 7))
    assert_equal(dice("softmax", smooth), smp.losses.DiceLoss("multiclass", smooth=smooth), logits, labels)


@pytest.mark.parametrize("smooth", SMOOTH)
def test_multilabel(smooth: float) -> None:
    logits, masks = torch.randn(3, CLASSES, 9, 7), (torch.rand(3, CLASSES, 9, 7) < 0.3).float()
    assert_equal(dice("sigmoid", smooth), smp.losses.DiceLoss("multilabel", smooth=smooth), logits, masks)


def test_probabilities() -> None:
    probabilities, masks = torch.rand(3, CLASSES, 9, 7), (torch.rand(3, CLASSES, 9, 7) < 0.3).float()
    assert_equal(dice("none", 1.0), smp.losses.DiceLoss("multilabel", from_logits=False, smooth=1.0),
                 probabilities, masks)  # fmt: skip


@pytest.mark.parametrize("smooth", SMOOTH)
def test_an_ignored_label(smooth: float) -> None:
    logits, labels = torch.randn(3, CLASSES, 9, 7), torch.randint(CLASSES, (3, 9, 7))
    labels[:, 2:4] = 255
    theirs = smp.losses.DiceLoss("multiclass", smooth=smooth, ignore_index=255)
    assert_equal(dice("softmax", smooth, ignore_index=255), theirs, logits, labels)
    labels = labels.clamp(max=1).masked_fill(labels == 255, 255)
    theirs = smp.losses.DiceLoss("binary", smooth=smooth, ignore_index=255)
    assert_equal(dice("sigmoid", smooth, ignore_index=255), theirs, logits[:, :1], labels)


def test_chosen_and_weighted_classes() -> None:
    logits, labels = torch.randn(3, CLASSES, 9, 7), torch.randint(CLASSES, (3, 9, 7))
    theirs = smp.losses.DiceLoss("multiclass", classes=[1, 2, 3])
    assert_equal(dice("softmax", 0, include_background=False), theirs, logits, labels)
    theirs = smp.losses.DiceLoss("multiclass", classes=[1, 3])
    assert_equal(dice("softmax", 0, weight=[0, 1, 0, 1]), theirs, logits, labels)
    theirs = smp.losses.DiceLoss("multiclass", class_weights=[0.5, 2.0, 0.0, 1.5])
    assert_equal(dice("softmax", 0, weight=[0.5, 2.0, 0.0, 1.5]), theirs, logits, labels)


@pytest.mark.parametrize("smooth", SMOOTH)
def test_an_absent_class_counts_as_perfect_there(smooth: float) -> None:
    logits, labels = torch.randn(3, CLASSES, 9, 7), torch.randint(2, (3, 9, 7))
    theirs = smp.losses.DiceLoss("multiclass", smooth=smooth)
    value = theirs(logits, labels)
    # Theirs: 0 for each of the two absent classes, in the mean of four. Left out here, or counted by what is predicted:
    torch.testing.assert_close(dice("softmax", smooth, absent="skip")(logits, labels), 2 * value, **TOLERANCE)
    assert dice("softmax", smooth)(logits, labels) > value + 0.4
    # The same number, absent classes or not:
    same = dice("softmax", smooth, absent="skip", reduction="sum") * (1 / CLASSES)
    assert_equal(same, theirs, logits, labels)


@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 0.5), (0.3, 0.7)])
def test_tversky_of_absent_classes(alpha: float, beta: float) -> None:
    options = {"alpha": alpha, "beta": beta, "smooth": 1.0}
    empty = torch.zeros(3, 1, 9, 7)
    ours = TverskyLoss(**options, activation="sigmoid", batch=True, absent="skip")
    for target in (empty, (torch.rand(3, 1, 9, 7) < 0.3).float()):
        assert_equal(ours, smp.losses.TverskyLoss("binary", **options), torch.randn(3, 1, 9, 7), target)
    some = (1 / CLASSES) * TverskyLoss(**options, batch=True, absent="skip", reduction="sum")
    labels = torch.randint(2, (3, 9, 7))
    assert_equal(some, smp.losses.TverskyLoss("multiclass", **options), torch.randn(3, CLASSES, 9, 7), labels)


@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 0.5), (0.3, 0.7)])
def test_tversky(alpha: float, beta: float) -> None:
    for mode, smooth in product(("multiclass", "multilabel"), SMOOTH):
        logits, labels = torch.randn(3, CLASSES, 9, 7), torch.randint(CLASSES, (3, 9, 7))
        target = labels if mode == "multiclass" else (torch.rand(3, CLASSES, 9, 7) < 0.3).float()
        activation = "softmax" if mode == "multiclass" else "sigmoid"
        ours = TverskyLoss(alpha, beta, activation=activation, batch=True, smooth=smooth)
        assert_equal(ours, smp.losses.TverskyLoss(mode, smooth=smooth, alpha=alpha, beta=beta), logits, target)


@pytest.mark.parametrize("gamma", [0.0, 0.7, 2.0])
def test_focal(gamma: float) -> None:
    """Its multiclass is one channel against the rest, a sigmoid each."""
    focal, theirs = partial(FocalLoss, gamma, activation="sigmoid"), partial(smp.losses.FocalLoss, gamma=gamma)
    logits, labels = torch.randn(3, CLASSES, 9, 7), torch.randint(CLASSES, (3, 9, 7))
    masks, weight = (torch.rand(3, CLASSES, 9, 7) < 0.3).float(), [0.5, 2.0, 0.0, 1.5]
    assert_equal(focal(), theirs("binary"), logits[:, :1], masks[:, :1])
    assert_equal(focal(), theirs("multilabel"), logits, masks)
    assert_equal(focal(), theirs("multiclass"), logits, labels)
    weighted = (CLASSES / sum(weight)) * focal(weight=weight)
    assert_equal(weighted, theirs("multiclass", class_weights=weight), logits, labels)
    assert_equal(weighted, theirs("multilabel", class_weights=weight), logits, masks)
    assert_equal((1 / CLASSES) * focal(reduction="sum"), theirs("multiclass", reduction="sum"), logits, labels)
    labels[:, 2:4] = 255
    assert_equal(focal(ignore_index=255), theirs("multiclass", ignore_index=255), logits, labels)
    binary = torch.where(labels == 255, 255, labels.clamp(max=1))
    assert_equal(focal(ignore_index=255), theirs("binary", ignore_index=255), logits[:, :1], binary)


@pytest.mark.parametrize("mode", ["binary", "multiclass"])
def test_its_unet_learns(mode: str) -> None:
    images, labels = (torch.from_numpy(array) for array in generate(64, size=32))
    masks = labels[:, None].float()  # as its binary mode has them
    binary = mode == "binary"
    network = smp.Unet("resnet18", encoder_weights=None, in_channels=1, classes=1 if binary else 2,
                       encoder_depth=3, decoder_channels=(32, 16, 8))  # fmt: skip
    loss = PolyDice1Loss(epsilon=0.2, activation="sigmoid" if binary else "softmax")

    def iou() -> float:
        """Of eight images that are not trained on, by its own metric."""
        with torch.no_grad():
            logits = network.eval()(images[56:])
        found = (logits > 0).long() if binary else logits.argmax(1, keepdim=True)
        counts = smp.metrics.get_stats(found, masks[56:].long(), mode="binary")
        return float(smp.metrics.iou_score(*counts, reduction="micro"))

    untrained = iou()
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    values = []
    for _ in range(15):
        for batch in torch.randperm(56).split(8):
            optimizer.zero_grad()
            value = loss(network.train()(images[batch]), masks[batch] if binary else labels[batch])
            value.backward()
            optimizer.step()
            values.append(value.item())
    assert sum(values[-3:]) < 0.5 * sum(values[:3])
    assert iou() > max(0.5, untrained + 0.2)
