"""MONAI: our losses in its engine, and `from_monai` against MONAI's own losses, value and gradient."""

import runpy
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polydice import CrossEntropyLoss, PolyDice1Loss
from polydice.data.generate import generate
from tests.data.conftest import RealSet

monai = pytest.importorskip("monai", reason="monai is not installed: make test-hosts")

from monai import losses as theirs  # noqa: E402
from monai.data.meta_tensor import MetaTensor  # noqa: E402
from monai.networks.nets.unet import UNet  # noqa: E402
from monai.networks.utils import one_hot  # noqa: E402

from polydice.integrations.monai import MonaiLoss, from_monai  # noqa: E402

NO_ENGINES = "pytorch-ignite, which MONAI's engines need, is not installed: make test-hosts"
EXAMPLE = Path(__file__).parents[2] / "examples" / "monai_hippocampus.py"
CLASSES = 4
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}
SHAPES = ((3, CLASSES, 9, 7), (2, CLASSES, 5, 4, 6))
ACTIVATIONS: tuple[dict[str, Any], ...] = ({"softmax": True}, {"sigmoid": True}, {})


def grid(**options: tuple[Any, ...]) -> Iterator[dict[str, Any]]:
    """Every combination: an option's values, or under `activation` whole sets of options."""
    for values in product(*options.values()):
        chosen = dict(zip(options, values, strict=True))
        yield chosen.pop("activation", {}) | chosen


def pair(shape: tuple[int, ...], to_onehot_y: bool, probabilities: bool) -> tuple[Tensor, Tensor]:
    """Logits, and a target as MONAI's pipelines give it: floating labels B1…, or one-hot. The last class is absent."""
    logits = torch.randn(shape)
    labels = torch.randint(max(2, shape[1] - 1), (shape[0], 1, *shape[2:])).float()
    target = labels if to_onehot_y or shape[1] == 1 else one_hot(labels, shape[1])
    return logits.sigmoid() if probabilities else logits, target


def assert_equal(loss: nn.Module, logits: Tensor, target: Tensor, *mask: Tensor) -> None:
    """`from_monai(loss)` has the shape, the value and the gradient of `loss`."""
    ours, their_logits, our_logits = from_monai(loss), logits.clone().requires_grad_(), logits.clone().requires_grad_()
    expected, value = loss(their_logits, target, *mask), ours(our_logits, target, *mask)
    torch.testing.assert_close(value, expected, **TOLERANCE)
    upstream = torch.rand_like(expected)
    expected.backward(upstream)
    value.backward(upstream)
    torch.testing.assert_close(our_logits.grad, their_logits.grad, **TOLERANCE)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_dice_is_monais(shape: tuple[int, ...], reduction: str) -> None:
    weights = (None, [0.5, 2.0, 0.0, 1.5])
    booleans = (True, False)
    for options in grid(
        activation=ACTIVATIONS, include_background=booleans, to_onehot_y=booleans, squared_pred=booleans,
        batch=booleans, weight=weights, smooth_nr=(1e-5, 1.0),
    ):  # fmt: skip
        if options["weight"] and not options["include_background"]:
            options["weight"] = options["weight"][1:]
        loss = theirs.DiceLoss(**options, smooth_dr=options["smooth_nr"], reduction=reduction)
        assert_equal(loss, *pair(shape, options["to_onehot_y"], not (loss.softmax or loss.sigmoid)))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_tversky_is_monais(shape: tuple[int, ...], reduction: str) -> None:
    booleans = (True, False)
    for options in grid(
        activation=ACTIVATIONS, include_background=booleans, to_onehot_y=booleans, batch=booleans,
        smooth_nr=(1e-5, 1.0), alpha=(0.5, 0.3), beta=(0.5, 0.7),
    ):  # fmt: skip
        loss = theirs.TverskyLoss(**options, smooth_dr=options["smooth_nr"], reduction=reduction)
        assert_equal(loss, *pair(shape, options["to_onehot_y"], not (loss.softmax or loss.sigmoid)))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_dice_and_cross_entropy_are_monais(shape: tuple[int, ...], reduction: str) -> None:
    booleans = (True, False)
    for options in grid(
        include_background=booleans, to_onehot_y=booleans, squared_pred=booleans, batch=booleans,
        weight=(None, torch.tensor([0.5, 2.0, 0.0, 1.5])), lambda_dice=(1.0, 0.3), lambda_ce=(1.0, 0.0),
        label_smoothing=(0.0, 0.1),
    ):  # fmt: skip
        loss = theirs.DiceCELoss(softmax=True, reduction=reduction, **options)
        assert_equal(loss, *pair(shape, options["to_onehot_y"], False))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_focal_is_monais(shape: tuple[int, ...], reduction: str) -> None:
    """Of hard targets; an ignored label changes what MONAI divides by."""
    alphas: tuple[Any, ...] = (None, 0.3, [0.5, 0.25, 2.0, 1.0])
    softmax = [{"use_softmax": True, "alpha": alpha} for alpha in alphas]
    for options in grid(
        gamma=(0.0, 2.0, 0.7), to_onehot_y=(True, False), weight=(None, 3.0, [0.5, 2.0, 0.0, 1.5]),
        ignore_index=(None, 1, 255), activation=(*softmax, {}, {"include_background": False}),
    ):  # fmt: skip
        if isinstance(options["weight"], list) and not options.get("include_background", True):
            options["weight"] = options["weight"][1:]
        if options["ignore_index"] is not None and not options["to_onehot_y"]:
            continue
        logits, target = pair(shape, options["to_onehot_y"], False)
        if options["ignore_index"]:
            target[0, :, 2:4] = options["ignore_index"]
        assert_equal(theirs.FocalLoss(**options, reduction=reduction), logits, target)
    one, target = pair((3, 1, 9, 7), False, False)
    assert_equal(theirs.FocalLoss(gamma=1.5, reduction=reduction), one, target)
    target[:2, :, 2:4] = 255
    assert_equal(theirs.FocalLoss(reduction=reduction, ignore_index=255, to_onehot_y=True), one, target)


def test_dice_and_focal_are_the_sum_that_the_advice_says() -> None:
    logits, labels = pair((3, CLASSES, 9, 7), True, False)
    loss = theirs.DiceFocalLoss(softmax=True, to_onehot_y=True, lambda_dice=0.7, lambda_focal=0.4, gamma=1.0)
    ours = 0.7 * from_monai(loss.dice)(logits, labels) + 0.4 * from_monai(loss.focal)(logits, labels)
    torch.testing.assert_close(ours, loss(logits, labels), **TOLERANCE)


def test_a_mask_leaves_voxels_out_of_the_mean_of_a_focal_loss() -> None:
    logits, labels = pair((3, CLASSES, 9, 7), True, False)
    loss = from_monai(theirs.FocalLoss(to_onehot_y=True, use_softmax=True))
    mask = torch.zeros(1, 1, 9, 7)
    mask[..., :4, :] = 1
    torch.testing.assert_close(loss(logits, labels, mask), loss(logits[:, :, :4], labels[:, :, :4]))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_one_channel_is_monais(reduction: str) -> None:
    logits, target = pair((3, 1, 9, 7), False, False)
    assert_equal(theirs.DiceLoss(sigmoid=True, weight=[3.0], reduction=reduction), logits, target)
    assert_equal(theirs.DiceLoss(sigmoid=True, squared_pred=True, reduction=reduction), logits, torch.rand(3, 1, 9, 7))
    assert_equal(theirs.TverskyLoss(sigmoid=True, alpha=0.3, beta=0.7, reduction=reduction), logits, target)
    assert_equal(theirs.DiceCELoss(sigmoid=True, lambda_ce=0.5, batch=True, reduction=reduction), logits, target)


@pytest.mark.parametrize("weight", [[2.0], [5.0]])
def test_monai_does_not_weigh_a_single_class(weight: list[float]) -> None:
    loss = theirs.DiceLoss(softmax=True, to_onehot_y=True, include_background=False, weight=weight)
    assert_equal(loss, *pair((3, 2, 9, 7), True, False))


@pytest.mark.parametrize("kind", [theirs.DiceLoss, theirs.TverskyLoss])
@pytest.mark.parametrize("ignored", [1, 255])
@pytest.mark.parametrize("include_background", [True, False])
def test_an_ignored_label_is_monais(kind: type[nn.Module], ignored: int, include_background: bool) -> None:
    logits, labels = pair((3, CLASSES, 9, 7), True, False)
    labels[:, :, 2:4] = ignored
    options = {"to_onehot_y": True, "include_background": include_background, "ignore_index": ignored}
    for activation in ("softmax", "sigmoid"):
        assert_equal(kind(**options, **{activation: True}), logits, labels)


def test_soft_targets_are_monais() -> None:
    logits, target = torch.randn(2, CLASSES, 9, 7), torch.rand(2, CLASSES, 9, 7)
    for options in ({}, {"squared_pred": True}, {"squared_pred": True, "soft_label": True}):
        assert_equal(theirs.DiceLoss(sigmoid=True, **options), logits, target)
    assert_equal(theirs.TverskyLoss(sigmoid=True, alpha=0.3, beta=0.7), logits, target)


@pytest.mark.parametrize("images", [1, 3])
def test_a_mask_is_monais_masked_dice(images: int) -> None:
    mask = (torch.rand(images, 1, 9, 7) < 0.5).float()
    for activation in ACTIVATIONS:
        logits, target = pair((3, CLASSES, 9, 7), False, not activation)
        assert_equal(theirs.MaskedDiceLoss(**activation), logits, target, mask)
        logits, labels = pair((3, CLASSES, 9, 7), True, not activation)
        masked = theirs.MaskedDiceLoss(**activation, to_onehot_y=True, include_background=False)
        assert_equal(masked, logits, labels, mask)


def test_monais_masked_loss_counts_what_it_masks_and_a_mask_does_not() -> None:
    target = torch.zeros(1, 1, 10, 10)
    target[..., :5, :5] = 1
    logits, mask = 40 * target - 20, torch.ones(1, 1, 10, 10)
    mask[..., 5:] = 0
    dice = theirs.DiceLoss(sigmoid=True)
    # A perfect prediction: but the 50 masked pixels have logit 0 and so probability ½, beside 25 of the foreground.
    assert float(theirs.MaskedLoss(dice)(logits, target, mask)) == pytest.approx(
        1 - 2 * 25 / (25 + 25 + 50 / 2), abs=1e-6
    )
    assert float(from_monai(dice)(logits, target, mask)) == pytest.approx(0, abs=1e-6)


def test_a_masked_label_is_no_background_where_monai_makes_it_one() -> None:
    logits, labels = pair((3, CLASSES, 9, 7), True, False)
    mask = (torch.rand(3, 1, 9, 7) < 0.5).float()
    per_class = from_monai(theirs.DiceLoss(to_onehot_y=True, softmax=True, reduction="none"))(logits, labels, mask)
    masked = theirs.MaskedDiceLoss(to_onehot_y=True, softmax=True, reduction="none")(logits, labels, mask)
    torch.testing.assert_close(per_class[:, 1:], masked[:, 1:], **TOLERANCE)
    assert (masked[:, 0] > per_class[:, 0] + 0.1).all()


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (theirs.DiceLoss(jaccard=True), "DiceLoss with jaccard=True .* pixel_sums"),
        (theirs.DiceLoss(smooth_nr=0.0), "smooth_nr=0.0 with smooth_dr=1e-05 .* must be the same"),
        (theirs.DiceLoss(other_act=torch.tanh), "other_act=.*tanh.* last layer"),
        (theirs.DiceLoss(soft_label=True), "soft_label=True .* squared_pred=True"),
        (theirs.TverskyLoss(soft_label=True), "TverskyLoss with soft_label=True"),
        (theirs.DiceLoss(weight=2.0), "weight of one number .* multiply"),
        (theirs.DiceLoss(ignore_index=255), "ignore_index=255 with to_onehot_y=False .* mask"),
        (theirs.MaskedDiceLoss(to_onehot_y=True), "to_onehot_y=True with include_background=True .* background"),
        (theirs.MaskedDiceLoss(other_act=torch.tanh), "other_act"),
        (theirs.FocalLoss(reduction="none"), "FocalLoss with reduction='none' .* for each voxel"),
        (theirs.FocalLoss(alpha=0.25), "alpha=0.25 without use_softmax .* weighs classes"),
        (theirs.FocalLoss(use_softmax=True, include_background=False), "softmax of the other classes alone"),
        (theirs.FocalLoss(ignore_index=255), "ignore_index=255 with to_onehot_y=False .* mask"),
        (theirs.DiceFocalLoss(softmax=True), r"DiceFocalLoss has no equal .* from_monai\(loss\.dice\)"),
        (theirs.DiceCELoss(), "neither sigmoid nor softmax"),
        (theirs.DiceCELoss(sigmoid=True, weight=torch.ones(1)), "weight with sigmoid=True .* pos_weight"),
        (theirs.MaskedLoss(theirs.DiceLoss(sigmoid=True)), "MaskedLoss has no equal .* the loss inside"),
        (theirs.DeepSupervisionLoss(theirs.DiceLoss()), r"DeepSupervisionLoss\(from_monai"),
        (theirs.GeneralizedDiceLoss(), "GeneralizedDiceLoss has no equal"),
        (theirs.GeneralizedDiceFocalLoss(), "knows MONAI's DiceLoss, MaskedDiceLoss, DiceCELoss, TverskyLoss"),
        (theirs.AsymmetricUnifiedFocalLoss(), "has no equal"),
        (theirs.HausdorffDTLoss(), "has no equal"),
        (nn.MSELoss(), "MSELoss has no equal"),
    ],
)
def test_what_has_no_equal_is_refused(loss: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_monai(loss)


def test_a_subclass_is_refused_for_it_may_compute_something_else() -> None:
    class Mine(theirs.DiceLoss):
        pass

    with pytest.raises(ValueError, match="Mine has no equal"):
        from_monai(Mine())
    with pytest.raises(TypeError, match=r"a loss that is made, with its options: DiceLoss\(\.\.\.\)"):
        from_monai(theirs.DiceLoss)


def test_sigmoid_dice_beside_a_softmax_cross_entropy_is_refused() -> None:
    loss = from_monai(theirs.DiceCELoss(sigmoid=True))
    with pytest.raises(ValueError, match="of 3 channels adds the cross-entropy of a softmax"):
        loss(*pair((2, 3, 8, 8), False, False))


def test_labels_of_any_type_and_meta_tensors() -> None:
    logits, labels = pair((3, CLASSES, 9, 7), True, False)
    plain = PolyDice1Loss(0.2) + CrossEntropyLoss()
    expected = plain(logits, labels.long())
    loss = MonaiLoss(plain)
    for dtype in (torch.float32, torch.float16, torch.uint8, torch.int64):
        value = loss(MetaTensor(logits), MetaTensor(labels.to(dtype)))
        assert type(value) is Tensor
        assert value == expected
    torch.testing.assert_close(loss(logits, one_hot(labels, CLASSES)), expected)
    half = MetaTensor(torch.ones(1, 1, 9, 7, dtype=torch.int64))
    torch.testing.assert_close(loss(logits, labels, half), expected)
    annotated = torch.tensor([[True] * (CLASSES - 1) + [False]] * 3)
    fewer = labels.clamp(max=CLASSES - 2)
    assert loss(logits, MetaTensor(fewer), annotated=annotated) == plain(logits, fewer.long(), annotated=annotated)
    with pytest.raises(ValueError, match="over all channels, annotated or not"):
        from_monai(theirs.FocalLoss(to_onehot_y=True, use_softmax=True))(logits, fewer, annotated=annotated)


def test_deep_supervision_takes_it() -> None:
    outputs = [torch.randn(2, CLASSES, size, size) for size in (16, 8, 4)]
    _, labels = pair((2, CLASSES, 16, 16), True, False)
    loss = theirs.DiceCELoss(to_onehot_y=True, softmax=True)
    expected = theirs.DeepSupervisionLoss(loss)(outputs, labels)
    torch.testing.assert_close(theirs.DeepSupervisionLoss(from_monai(loss))(outputs, labels), expected, **TOLERANCE)


def test_supervised_trainer_learns() -> None:
    pytest.importorskip("ignite", reason=NO_ENGINES)
    from monai.data import DataLoader, Dataset
    from monai.engines import SupervisedEvaluator, SupervisedTrainer
    from monai.handlers import MeanDice, from_engine
    from monai.transforms import AsDiscreted, Compose, EnsureTyped, RandFlipd

    images, labels = generate(12, size=24, dims=3, lesion=(3.0, 6.0))
    cases = [{"image": i, "label": y[None].astype("float32")} for i, y in zip(images, labels, strict=True)]
    both = ["image", "label"]
    training = Dataset(cases[:8], Compose([EnsureTyped(both), RandFlipd(both, prob=0.5)]))
    network, cpu = UNet(3, 1, 2, channels=(8, 16, 32), strides=(2, 2), num_res_units=1), torch.device("cpu")
    evaluator = SupervisedEvaluator(
        cpu,
        DataLoader(Dataset(cases[8:], EnsureTyped(both)), batch_size=2),
        network,
        postprocessing=AsDiscreted(["pred", "label"], argmax=[True, False], to_onehot=2),
        key_val_metric={"dice": MeanDice(include_background=False, output_transform=from_engine(["pred", "label"]))},
    )
    evaluator.run()
    untrained = evaluator.state.metrics["dice"]
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    loss = MonaiLoss(PolyDice1Loss(epsilon=0.2, include_background=False))
    SupervisedTrainer(cpu, 30, DataLoader(training, batch_size=4, shuffle=True), network, optimizer, loss).run()
    evaluator.run()
    assert evaluator.state.metrics["dice"] > untrained + 0.3


def test_the_example_learns_the_hippocampus(real_set: RealSet) -> None:
    pytest.importorskip("ignite", reason=NO_ENGINES)
    main = runpy.run_path(str(EXAMPLE))["main"]
    untrained, trained = main([str(real_set("Task04_Hippocampus")), "--cases", "24", "--epochs", "8"])
    assert untrained < 0.2
    assert trained > 0.6
