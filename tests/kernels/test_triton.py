"""The fused kernels against the plain pass in float64: on a GPU, or in Triton's interpreter (TRITON_INTERPRET=1)."""

import copy
import os
from itertools import combinations

import pytest
import torch
from torch import Tensor, nn

from polydice import (
    CrossEntropyLoss,
    DiceLoss,
    DropDiceLoss,
    FocalLoss,
    FocalTverskyLoss,
    HeadLoss,
    PixelSums,
    PolyCE1Loss,
    PolyDice1Loss,
    TverskyLoss,
    TvMFDiceLoss,
    pixel_sums,
)
from polydice.base import Loss, LossSum
from polydice.kernels import blocks, eager, plan, reference
from polydice.kernels.fields import FIELDS, Options

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
pytestmark = [
    pytest.mark.skipif(
        not (GPU or os.environ.get("TRITON_INTERPRET") == "1"), reason="needs a GPU, or TRITON_INTERPRET=1"
    ),
    # The interpreter computes both sides of a choice: 1/0 where the other is taken.
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton"),
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning:triton"),
]
gpu_only = pytest.mark.skipif(not GPU, reason="needs a GPU")

# What float32 can do on sums of random terms; and bfloat16's own rounding of a gradient, 2^-9, twice.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def relative(found: Tensor, expected: Tensor) -> float:
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).norm() / expected.norm().clamp(min=1e-12))


def example(shape: tuple[int, ...], target: str, activation: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    batch, classes, pixels = shape
    logits = torch.randn(shape, device=DEVICE)
    if activation == "none":
        logits = logits.sigmoid()
    if target == "soft":
        return logits.to(dtype), torch.rand(shape, device=DEVICE)
    if target == "bool":
        return logits.to(dtype), torch.rand(shape, device=DEVICE) > 0.5
    labels = torch.randint(0, max(classes, 2), (batch, pixels), device=DEVICE)
    return logits.to(dtype), labels.to(getattr(torch, target))


def assert_pass_agrees(
    logits: Tensor, target: Tensor, mask: Tensor | None, options: Options, annotated: Tensor | None = None
) -> None:
    from polydice.kernels import fused

    tolerance = TOLERANCE[logits.dtype]
    expected = eager.forward(logits.double(), target, mask, options, annotated)
    assert relative(fused.forward(logits, target, mask, options, annotated), expected) < 1e-5
    grad = torch.randn_like(expected)
    gradient = fused.backward(grad, logits, target, mask, options, annotated)
    assert gradient.stride() == torch.empty_like(logits).stride()
    assert relative(gradient, eager.backward(grad, logits.double(), target, mask, options, annotated)) < tolerance


def every_sum(activation: str) -> tuple[str, ...]:
    return tuple(name for name in FIELDS if name != "cross_entropy" or activation != "none")


KINDS = [(activation, target) for activation in ("softmax", "sigmoid", "none") for target in ("uint8", "soft", "bool")]
# One pixel, one class, several tiles and programs, an even tile, classes over several warps.
SHAPES = [(2, 2, 1), (1, 1, 307), (2, 9, 512), (1, 16, 1024), (1, 33, 131)]


@pytest.mark.parametrize(("activation", "target"), KINDS)
def test_pass_on_a_ragged_tile(activation: str, target: str) -> None:
    logits, given = example((2, 3, 37), target, activation, torch.float32)
    assert_pass_agrees(logits, given, None, Options(activation, None, every_sum(activation)))


@pytest.mark.parametrize(("activation", "target"), [("softmax", "int64"), ("sigmoid", "soft")])
@pytest.mark.parametrize("shape", SHAPES)
def test_pass_on_any_shape(shape: tuple[int, int, int], activation: str, target: str) -> None:
    if activation == "softmax" and shape[1] == 1:
        activation = "sigmoid"
    logits, given = example(shape, target, activation, torch.float32)
    assert_pass_agrees(logits, given, None, Options(activation, None, every_sum(activation)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_half_types(activation: str, dtype: torch.dtype) -> None:
    logits, target = example((1, 5, 131), "int32", activation, dtype)
    assert_pass_agrees(logits, target, None, Options(activation, None, every_sum(activation)))


@pytest.mark.parametrize(("kind", "ignore_index"), [("bool", None), ("float", -100)])
@pytest.mark.parametrize("activation", ["softmax", "sigmoid", "none"])
def test_mask_and_ignored_labels(activation: str, ignore_index: int | None, kind: str) -> None:
    logits, target = example((2, 5, 141), "int16", activation, torch.float32)
    mask = torch.rand(2, 141, device=DEVICE) > 0.3
    if ignore_index is not None:
        target[:, ::7] = ignore_index
    if kind == "float":
        mask = mask * torch.rand(2, 141, device=DEVICE)
    assert_pass_agrees(logits, target, mask, Options(activation, ignore_index, every_sum(activation)))


@pytest.mark.parametrize("classes", [1, 2, 7, 118, 512])
def test_any_number_of_classes(classes: int) -> None:
    activation = "sigmoid" if classes == 1 else "softmax"
    logits, target = example((1, classes, 19), "int64", activation, torch.float32)
    assert_pass_agrees(logits, target, None, Options(activation, None, every_sum(activation)))


def test_a_sum_alone_is_the_same_as_among_others() -> None:
    """But for rounding: in which order a GPU's threads are added up depends on how many sums lie side by side. Of the
    same sums, the same bits come out twice."""
    from polydice.kernels import fused

    logits, target = example((2, 6, 140), "int64", "softmax", torch.float32)
    together = fused.forward(logits, target, None, Options("softmax", None, FIELDS))
    assert torch.equal(fused.forward(logits, target, None, Options("softmax", None, FIELDS)), together)
    for i, name in enumerate(FIELDS):
        alone = fused.forward(logits, target, None, Options("softmax", None, (name,)))
        assert torch.equal(fused.forward(logits, target, None, Options("softmax", None, (name,))), alone)
        torch.testing.assert_close(alone[0], together[i], rtol=2**-20 if GPU else 0, atol=0)


def test_channels_last_is_read_by_strides() -> None:
    logits, target = example((2, 6, 140), "int64", "softmax", torch.float32)
    channels_last = logits.transpose(1, 2).contiguous().transpose(1, 2)
    assert channels_last.stride() == (840, 1, 6)
    assert_pass_agrees(channels_last, target, None, Options("softmax", None, FIELDS))


def losses(**options: object) -> list[Loss | LossSum]:
    angular = {name: value for name, value in options.items() if name != "smooth"}
    entropy = {name: value for name, value in angular.items() if name not in ("batch", "absent")}
    return [
        DiceLoss(**options),
        DiceLoss(squared=False, **options),
        PolyDice1Loss(0.5, **options),
        PolyDice1Loss(0.5, scale="detached", **options),
        PolyDice1Loss(0.5, scale="none", **angular),
        DropDiceLoss(7, **options),
        TverskyLoss(**options),
        FocalTverskyLoss(**options),
        TvMFDiceLoss(8.0, **angular),
        CrossEntropyLoss(**entropy),
        PolyCE1Loss(2.0, **entropy),
        PolyDice1Loss(0.2, **options) + 0.5 * CrossEntropyLoss(**entropy) + 2 * TverskyLoss(**options),
        FocalLoss(**entropy) + 0.5 * DiceLoss(**options),
    ]


def plain(loss: Loss | LossSum) -> Loss | LossSum:
    twin = copy.deepcopy(loss)
    for module in twin.modules():
        if isinstance(module, Loss):
            module.impl = "eager"
    return twin


OPTIONS: list[dict[str, object]] = [
    {"batch": True},
    {"absent": "skip"},
    {"include_background": False, "weight": [0.1, 0.2, 0.3, 0.4, 0.5]},
    {"smooth": 0.0, "reduction": "sum"},
    {"activation": "sigmoid"},
    {"reduction": "none"},
]
# Every loss as it comes, and those that stand for a kind of kernel with every option.
CASES = [(index, {}) for index in range(13)] + [(index, options) for options in OPTIONS for index in (2, 7, 10, 11, 12)]


@pytest.mark.parametrize(("index", "options"), CASES, ids=str)
def test_losses(index: int, options: dict[str, object]) -> None:
    loss = losses(ignore_index=99, **options)[index].to(DEVICE)
    if "none" in options.values() and isinstance(loss, LossSum):
        loss = loss.losses[0]
    logits = torch.randn(3, 5, 5, 7, device=DEVICE, requires_grad=True)
    exact = logits.detach().double().requires_grad_()
    target = torch.randint(0, 4, (3, 5, 7), device=DEVICE)  # class 4 is absent
    target[0], target[1, 0] = 0, 99
    found, expected = loss(logits, target), plain(loss)(exact, target)
    assert relative(found, expected) < 1e-6
    weight = torch.randn_like(expected)  # not the last layer
    (found * weight).sum().backward()
    (expected * weight).sum().backward()
    assert relative(logits.grad, exact.grad) < 1e-5


@pytest.mark.parametrize(("activation", "classes"), [("softmax", 3), ("softmax", 33), ("sigmoid", 3)])
@pytest.mark.parametrize("target", ["uint8", "soft"])
def test_sums_on_request(activation: str, classes: int, target: str) -> None:
    """Those of many classes too, of pixels that are weighed, and of a γ whose power has an infinite slope at 0."""
    logits, given = example((2, classes, 41), target, activation, torch.float32)
    want = ("prediction", "focal") + (("uniform",) if activation == "softmax" else ())
    mask = torch.rand(2, 41, device=DEVICE) * (torch.rand(2, 41, device=DEVICE) > 0.3)
    for gamma in (0.0, 0.5, 2.0):
        assert_pass_agrees(3 * logits, given, mask, Options(activation, None, want, gamma))


@pytest.mark.parametrize("weight", [None, [0.1, 0.2, 0.3]])
def test_label_smoothing(weight: list | None) -> None:
    logits, target = torch.randn(2, 3, 40, device=DEVICE), torch.randint(0, 3, (2, 40), device=DEVICE)
    loss = CrossEntropyLoss(label_smoothing=0.2, weight=weight).to(DEVICE)
    exact, x = logits.double().requires_grad_(), logits.clone().requires_grad_()
    torch_weight = None if weight is None else torch.tensor(weight, dtype=torch.float64, device=DEVICE)
    expected = nn.functional.cross_entropy(exact, target, weight=torch_weight, label_smoothing=0.2)
    assert relative(loss(x, target), expected) < 1e-6
    loss(x, target).backward()
    expected.backward()
    assert relative(x.grad, exact.grad) < 1e-5


def test_focal_certainties() -> None:
    """p = 1 and p = 0, to the last digit and beyond."""
    gaps = torch.tensor([[[0.0, 5.0, 17.0, 40.0, 80.0], [0.0] * 5]], device=DEVICE)
    for label in (0, 1):
        target = torch.full((1, 5), label, device=DEVICE)
        found = pixel_sums(gaps, target, want=["focal"], gamma=0.5, impl="fused").focal
        expected = pixel_sums(gaps.double(), target, want=["focal"], gamma=0.5, impl="eager").focal
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=0)
        for pixel in range(1, 4):
            one = pixel_sums(gaps[..., pixel : pixel + 1], target[:, :1], want=["focal"], gamma=0.5, impl="fused").focal
            exact = pixel_sums(gaps[..., pixel : pixel + 1].double(), target[:, :1], want=["focal"], gamma=0.5).focal
            torch.testing.assert_close(one.double(), exact, rtol=1e-5, atol=0)
    forbidden = torch.tensor([[[1.0], [-torch.inf]]], device=DEVICE)
    for loss in (FocalLoss(impl="fused"), FocalLoss(impl="fused", activation="sigmoid", reduction="sum")):
        assert loss(forbidden, torch.zeros(1, 1, dtype=torch.long, device=DEVICE)).isfinite()
        assert loss(forbidden, torch.ones(1, 1, dtype=torch.long, device=DEVICE)).isposinf()


@pytest.mark.parametrize("weight", [None, [0.1, 0.2, 0.3]])
def test_an_epsilon_of_each_class(weight: list | None) -> None:
    """Alone, in a sum with others that have one, one number or several, and changed."""
    logits, target = torch.randn(2, 3, 40, device=DEVICE), torch.randint(0, 3, (2, 40), device=DEVICE)
    first, second = PolyDice1Loss([0.5, 0.0, -0.25], weight=weight), PolyDice1Loss(0.25, scale="detached")
    first, second, drop = first.to(DEVICE), second.to(DEVICE), DropDiceLoss(2)
    for loss in (first, first + drop + second, second + CrossEntropyLoss() + PolyDice1Loss(0.75).to(DEVICE)):
        for epsilon in ([0.5, 0.0, -0.25], [0.125, 0.25, 0.5]):
            first.update_epsilon(epsilon)
            assert relative(loss(logits, target), plain(loss)(logits.double(), target)) < 1e-6
            x, exact = logits.clone().requires_grad_(), logits.double().requires_grad_()
            loss(x, target).backward()
            plain(loss)(exact, target).backward()
            assert relative(x.grad, exact.grad) < 1e-5


def test_a_subclass_that_computes_something_else_is_heard() -> None:
    class Doubled(PolyDice1Loss):
        def per_class(self, sums: PixelSums) -> Tensor:
            return 2 * super().per_class(sums)

    logits, target = torch.randn(1, 3, 20, device=DEVICE), torch.randint(0, 3, (1, 20), device=DEVICE)
    assert relative(Doubled(0.5)(logits, target), 2 * PolyDice1Loss(0.5)(logits, target)) < 1e-6


def test_soft_masks_and_weights_of_pixels() -> None:
    logits = torch.randn(2, 3, 9, 7, device=DEVICE, requires_grad=True)
    exact = logits.detach().double().requires_grad_()
    target = torch.rand(2, 3, 9, 7, device=DEVICE)
    mask = torch.rand(2, 9, 7, device=DEVICE)
    loss = PolyDice1Loss(0.3) + CrossEntropyLoss()
    found, expected = loss(logits, target, mask), plain(loss)(exact, target, mask)
    assert relative(found, expected) < 1e-6
    found.backward()
    expected.backward()
    assert relative(logits.grad, exact.grad) < 1e-5


def test_a_bad_label_poisons_its_image_alone() -> None:
    """Raising would cost a wait for the device, an assertion on it would end the process."""
    loss = PolyDice1Loss(0.5, impl="fused", reduction="none")
    logits, target = torch.randn(3, 4, 50, device=DEVICE), torch.randint(0, 4, (3, 50), device=DEVICE)
    for bad in (4, -1, 1 << 40):
        target[1, 7] = bad
        assert loss(logits, target).isnan().all(1).tolist() == [False, True, False]
    assert CrossEntropyLoss()(logits, target).isnan()
    integers = torch.zeros(3, 4, 50, dtype=torch.uint8, device=DEVICE)
    integers[2, 0, 0] = 255
    assert loss(logits, integers).isnan().all(1).tolist() == [False, False, True]


def test_a_mask_that_is_none_poisons_its_image_alone() -> None:
    """0/255 for 0/1, logits for probabilities, a weight below 0: as a bad label, on an accelerator."""
    options = Options("softmax", None, ("prediction_sq", "target_sq"))
    logits, masks = torch.randn(3, 4, 50, device=DEVICE), torch.rand(3, 4, 50, device=DEVICE)
    masks[1, 2, 7] = 1.0009  # rounding is none
    assert poisoned(logits, masks, None, options) == [False, False, False]
    for bad in (255.0, 1.0011, -0.0011):
        masks[1, 2, 7] = bad
        assert poisoned(logits, masks, None, options) == [False, True, False]
    keep = torch.ones(3, 50, device=DEVICE)
    keep[1, 7] = 0
    assert poisoned(logits, masks, keep, options) == [False, False, False]
    keep[2, 3] = -1
    assert poisoned(logits, masks, keep, options) == [False, False, True]
    plain_options = options._replace(activation="none")
    assert poisoned(logits, masks, keep, plain_options) == [True, True, True]
    assert poisoned(logits.sigmoid(), masks, keep.abs(), plain_options) == [False, False, False]


def poisoned(logits: Tensor, target: Tensor, mask: Tensor | None, options: Options) -> list[bool]:
    from polydice.kernels import fused

    sums = fused.forward(logits, target, mask, options)
    assert torch.equal(sums.isnan().any(2).all(0), sums.isnan().all(2).any(0))  # all of an image, or none
    return sums.isnan().all(2).all(0).tolist()


def test_nothing_under_the_mask_is_read_into_the_loss() -> None:
    logits = torch.randn(2, 3, 40, device=DEVICE)
    target = torch.randint(0, 3, (2, 40), device=DEVICE)
    mask = torch.rand(2, 40, device=DEVICE) > 0.5
    dirty = logits.masked_fill(~mask.unsqueeze(1), torch.nan).requires_grad_()
    loss = DiceLoss() + CrossEntropyLoss()
    value = loss(dirty, target, mask)
    assert relative(value, plain(loss)(logits.double(), target, mask)) < 1e-6
    value.backward()
    assert dirty.grad.isfinite().all()
    assert not dirty.grad[~mask.unsqueeze(1).expand_as(dirty)].any()


def test_everything_ignored_is_0_with_gradient_0() -> None:
    logits = torch.randn(2, 3, 40, device=DEVICE, requires_grad=True)
    value = (PolyDice1Loss(0.5, ignore_index=9) + CrossEntropyLoss(ignore_index=9))(
        logits, torch.full((2, 40), 9, device=DEVICE)
    )
    value.backward()
    assert value.item() == 0
    assert not logits.grad.any()


def test_forbidden_classes_and_underflow() -> None:
    logits = torch.randn(1, 3, 30, device=DEVICE) * 100  # the truth's probability underflows
    logits[:, 2, ::2] = -torch.inf
    target = torch.randint(0, 2, (1, 30), device=DEVICE)
    value = CrossEntropyLoss()(logits, target)
    assert relative(value, nn.functional.cross_entropy(logits.double(), target)) < 1e-6
    target[0, 0] = 2
    assert CrossEntropyLoss()(logits, target).isposinf()


@pytest.mark.parametrize("size", [2.0**14, 2.0**20, 2.0**32, 2.0**85])
def test_logits_of_any_size(size: float) -> None:
    """A softmax does not see what all logits share, and neither activation overflows before the loss does."""
    logits = torch.randint(-8, 8, (2, 3, 40), device=DEVICE) * torch.finfo(torch.float32).eps * size
    shifted = (size + logits).requires_grad_()
    exact = (shifted.detach().double() - size).requires_grad_()
    target = torch.randint(0, 3, (2, 40), device=DEVICE)
    loss = PolyDice1Loss(0.5) + CrossEntropyLoss()
    found, expected = loss(shifted, target), plain(loss)(exact, target)
    assert relative(found, expected) < 1e-6
    found.backward()
    expected.backward()
    assert relative(shifted.grad, exact.grad) < 1e-5
    sigmoid = CrossEntropyLoss(activation="sigmoid")
    value = sigmoid(-torch.ones(1, 1, 4, device=DEVICE) * size, torch.ones(1, 4, device=DEVICE, dtype=torch.int64))
    assert relative(value, torch.tensor(size, device=DEVICE)) < 1e-6


def test_an_infinite_logit_of_a_sigmoid_is_a_certainty() -> None:
    logits = torch.tensor([[[torch.inf, torch.inf, -torch.inf, -torch.inf]]], device=DEVICE)
    loss = CrossEntropyLoss(activation="sigmoid", impl="fused", reduction="sum")
    assert loss(logits[..., ::2], torch.tensor([[1, 0]], device=DEVICE)) == 0
    assert loss(logits[..., 1::2], torch.tensor([[0, 1]], device=DEVICE)).isposinf()


VANISHING = [
    DiceLoss(smooth=0.0, reduction="sum"),
    PolyDice1Loss(0.5, smooth=0.0),
    PolyDice1Loss(0.5, scale="detached", absent="skip"),
    TverskyLoss(smooth=0.0),
    FocalTverskyLoss(smooth=1e-5),
    TvMFDiceLoss(2.0),
    PolyDice1Loss(0.5, scale="none"),
]


@pytest.mark.parametrize("loss", VANISHING, ids=repr)
def test_predictions_that_vanish(loss: Loss) -> None:
    """Every gap, a class that is present and one that is absent, and the gradient as a scaler has it.

    At a gap of 88 a probability is subnormal, which is 0 on a GPU, but its sum over 20 pixels is not: the value is not
    compared there.
    """
    gaps = torch.tensor([14.0, 18.0, 30.0, 43.0, 44.0, 60.0, 87.0, 104.0, 360.0, 1e4, 88.0], device=DEVICE)
    target = torch.arange(20, device=DEVICE).remainder(2).expand(len(gaps), 20)
    for favoured in (0, 1):
        logits = torch.zeros(len(gaps), 3, 20, device=DEVICE)
        logits[:, favoured] = gaps[:, None]
        logits.requires_grad_()
        found = loss(logits, target)
        assert found.isfinite()
        comparable, expected = loss(logits[:-1], target[:-1]), plain(loss)(logits[:-1].detach().double(), target[:-1])
        assert relative(comparable, expected) < 1e-5
        (2.0**16 * found).backward()
        assert logits.grad.isfinite().all()


# Raw pointers


def test_weights_elsewhere_never_reach_a_kernel() -> None:
    """Whatever a plan was made for: the second loss has the first one's plan, and its weights on another device."""
    logits, target = torch.randn(2, 3, 40, device=DEVICE), torch.randint(0, 3, (2, 40), device=DEVICE)
    here, elsewhere = (DiceLoss(weight=[1.0, 2.0, 3.0]) for _ in range(2))
    value = here.to(DEVICE)(logits, target)
    elsewhere = elsewhere.to("cpu" if GPU else "meta")
    for loss in (elsewhere, plain(elsewhere), elsewhere + CrossEntropyLoss()):
        with pytest.raises(ValueError, match="weight is on "):
            loss(logits, target)
    assert torch.equal(here(logits, target), value)  # the context is alive


def test_a_launch_refuses_weights_of_another_device_or_type() -> None:
    from polydice.kernels.plan import plan_loss

    logits, target = torch.randn(2, 3, 40, device=DEVICE), torch.randint(0, 3, (2, 40), device=DEVICE)
    loss = DiceLoss(weight=[1.0, 2.0, 3.0]).to(DEVICE)
    launches = plan_loss([(1.0, loss)], logits, target, None).launches
    assert launches is not None
    right = torch.ones(1, 3, dtype=torch.float64, device=DEVICE)
    for wrong in (right.to("cpu" if GPU else "meta"), right.float()):
        with pytest.raises(ValueError, match="weights for logits on"):
            launches(logits, target, None, wrong, None)


@pytest.mark.parametrize("layout", ["contiguous", "channels last", "expanded"])
def test_saved_tensors_that_come_back_as_copies(layout: str) -> None:
    """As `save_on_cpu` gives them: elsewhere in memory, and contiguous."""
    logits = torch.randn(2, 3, 6, 7, device=DEVICE)
    if layout == "channels last":
        logits = logits.contiguous(memory_format=torch.channels_last)
    if layout == "expanded":
        logits = logits[:, :, :1].expand(2, 3, 6, 7)
    logits.requires_grad_()
    target, mask = torch.randint(0, 3, (2, 6, 7), device=DEVICE), torch.rand(2, 6, 7, device=DEVICE)
    loss = PolyDice1Loss(0.5) + CrossEntropyLoss()
    (expected,) = torch.autograd.grad(2 * loss(logits, target, mask), logits)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: t, lambda t: t.clone(memory_format=torch.contiguous_format)
    ):
        value = 2 * loss(logits, target, mask)
    (found,) = torch.autograd.grad(value, logits)
    assert relative(found, expected) < 1e-6


@gpu_only
def test_a_tensor_moved_before_backward_is_refused() -> None:
    """As `module.cpu()` moves its parameters."""
    logits = torch.randn(2, 3, 40, device=DEVICE, requires_grad=True)
    for moved in (logits, torch.randint(0, 3, (2, 40), device=DEVICE)):
        value = DiceLoss()(
            logits, moved if moved is not logits else torch.zeros(2, 40, dtype=torch.long, device=DEVICE)
        )
        moved.data = moved.data.cpu()
        with pytest.raises(RuntimeError, match="changed their device between forward and backward"):
            value.backward()
        moved.data = moved.data.to(DEVICE)


def test_tensors_without_memory_take_the_plain_pass() -> None:
    """Fake ones, as tracers make them: a kernel would get their pointer, which is none."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        logits = torch.randn(2, 3, 40, device=DEVICE, requires_grad=True)
        (DiceLoss() + CrossEntropyLoss())(logits, torch.randint(0, 3, (2, 40), device=DEVICE)).backward()
    assert logits.grad.shape == logits.shape


@pytest.mark.parametrize("batch", [False, True])
def test_partial_sums_that_are_gathered_first(batch: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of large inputs are: here those of a few programs, of which the tail adds up none by itself."""
    from polydice.kernels import ending, fused

    launched, gather = [], ending._gather
    monkeypatch.setattr(ending, "MOST_PARTIALS", 0)
    monkeypatch.setattr(fused, "resident", lambda device, block: 12)
    monkeypatch.setattr(ending, "_gather", lambda *sizes: launched.append(sizes) or gather(*sizes))
    logits = torch.randn(3, 5, 47, 59, device=DEVICE, requires_grad=True)
    exact, target = logits.detach().double().requires_grad_(), torch.randint(0, 5, (3, 47, 59), device=DEVICE)
    loss = PolyDice1Loss(0.2, batch=batch) + CrossEntropyLoss()
    found, expected = loss(logits, target), plain(loss)(exact, target)
    assert [programs > 1 for *_, programs, _ in launched] == [True]
    assert relative(found, expected) < 1e-6
    found.backward()
    expected.backward()
    assert relative(logits.grad, exact.grad) < 1e-5


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("annotated", [False, True])
@pytest.mark.parametrize(("classes", "count"), [(3, 3072), (14, 2048), (33, 256)])
def test_programs_that_walk_over_many_tiles(
    classes: int, count: int, annotated: bool, ragged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they do in large inputs: here one for each image. A label of no class is found in the last tile too."""
    from polydice.kernels import fused

    monkeypatch.setattr(fused, "resident", lambda device, block: 1)
    fused._pass.cache_clear()
    logits = torch.randn(2, classes, count - 37 * ragged, device=DEVICE)
    labels = torch.randint(classes, logits[:, 0].shape, device=DEVICE)
    known = (torch.arange(classes, device=DEVICE) % 3 != 2).expand(2, -1) if annotated else None
    labels = labels // 3 * 3 if annotated else labels
    options = Options("softmax", None, ("intersection", "prediction", "target", "error_sq", "cross_entropy"))
    exact = eager.forward(logits.double(), labels, None, options, known)
    assert relative(fused.forward(logits, labels, None, options, known), exact) < 1e-5
    grad = torch.randn_like(exact)
    expected = eager.backward(grad, logits.double(), labels, None, options, known)
    assert relative(fused.backward(grad, logits, labels, None, options, known), expected) < 1e-5
    labels[1, -1] = classes
    wrong = fused.forward(logits, labels, None, options, known).isnan().any(0)
    assert not wrong[0].any()
    assert wrong[1, 0]
    fused._pass.cache_clear()


def test_same_bits_twice() -> None:
    logits = torch.randn(2, 5, 301, device=DEVICE, requires_grad=True)
    target = torch.randint(0, 5, (2, 301), device=DEVICE)
    loss = PolyDice1Loss(0.5) + CrossEntropyLoss()
    values = [loss(logits, target) for _ in range(2)]
    gradients = [torch.autograd.grad(value, logits)[0] for value in values]
    assert torch.equal(*values)
    assert torch.equal(*gradients)


def test_second_derivatives_are_refused_in_words() -> None:
    logits = torch.randn(1, 3, 20, device=DEVICE, requires_grad=True)
    value = DiceLoss()(logits, torch.randint(0, 3, (1, 20), device=DEVICE))
    with pytest.raises(RuntimeError, match="once"):
        torch.autograd.grad(value, logits, create_graph=True)


def test_operator() -> None:
    logits, target = example((2, 3, 37), "int64", "softmax", torch.float32)
    arguments = (logits.requires_grad_(), target, None, "softmax", None, ["prediction_sq", "cross_entropy"], True)
    torch.library.opcheck(torch.ops.polydice.pixel_sums, arguments)


def test_public_sums_are_float32() -> None:
    sums = pixel_sums(torch.randn(2, 3, 8, device=DEVICE), torch.randint(0, 3, (2, 8), device=DEVICE))
    assert {(getattr(sums, name).dtype, getattr(sums, name).shape) for name in FIELDS} == {(torch.float32, (2, 3))}


def small_unet() -> nn.Module:
    def block(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.ReLU())

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.deep, self.up = block(1, 16), block(16, 32), block(48, 16)
            self.head = nn.Conv2d(16, 3, 1)

        def forward(self, image: Tensor) -> Tensor:
            skip = self.down(image)
            deep = nn.functional.interpolate(self.deep(nn.functional.max_pool2d(skip, 2)), scale_factor=2)
            return self.head(self.up(torch.cat([skip, deep], 1)))

    return Net().to(DEVICE)


def curve(loss: Loss, order: Tensor | None, steps: int = 200) -> Tensor:
    """The loss at every step of a training from one seed; `order` permutes the pixels before they are summed."""
    torch.manual_seed(3)
    net = small_unet()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    values = []
    for _ in range(steps):
        image = torch.randn(4, 1, 64, 64, device=DEVICE)
        smooth = nn.functional.avg_pool2d(image, 9, 1, 4)[:, 0]
        target = (smooth > 0.05).long() + (smooth > 0.15).long()
        logits = net(image)
        if order is not None:
            logits, target = logits.flatten(2)[..., order], target.flatten(1)[:, order]
        value = loss(logits, target)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        values.append(value.detach())
    return torch.stack(values)


@gpu_only
def test_training_is_as_close_to_the_plain_pass_as_that_is_to_itself() -> None:
    previous = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    plain = [curve(PolyDice1Loss(0.5, impl="eager"), None)]
    plain += [curve(PolyDice1Loss(0.5, impl="eager"), torch.randperm(64 * 64, device=DEVICE)) for _ in range(5)]
    fused = curve(PolyDice1Loss(0.5, impl="fused"), None)
    torch.backends.cudnn.deterministic = previous
    assert plain[0][-20:].mean() < 0.5 * plain[0][:5].mean()  # it learned
    # Rounding grows over the steps until it is luck how far two runs are apart: so several of them.
    apart = max((a - b).abs().max() for a, b in combinations(plain, 2))
    assert (fused - plain[0]).abs().max() <= apart


@gpu_only
def test_compiled_training_step() -> None:
    net, loss = small_unet(), PolyDice1Loss(0.5, batch=True) + CrossEntropyLoss()
    image = torch.randn(4, 1, 64, 64, device=DEVICE)
    target = torch.randint(0, 3, (4, 64, 64), device=DEVICE)

    def step(image: Tensor, target: Tensor) -> Tensor:
        return loss(net(image), target)

    expected = torch.autograd.grad(step(image, target), net.head.weight)[0]
    found = torch.autograd.grad(torch.compile(step, fullgraph=True)(image, target), net.head.weight)[0]
    assert relative(found, expected) < 1e-4


@gpu_only
def test_more_images_than_a_grid_axis_has_blocks() -> None:
    logits, target = example((70_000, 2, 4), "uint8", "softmax", torch.float32)
    assert_pass_agrees(logits, target, None, Options("softmax", None, FIELDS))


@gpu_only
def test_offsets_beyond_32_bits() -> None:
    pixels = (1 << 30) + 1234
    logits = torch.randn(1, 3, pixels, device=DEVICE, dtype=torch.bfloat16).requires_grad_()
    target = torch.randint(0, 3, (1, pixels), device=DEVICE, dtype=torch.uint8)
    value = PolyDice1Loss(0.5)(logits, target)
    (gradient,) = torch.autograd.grad(value, logits)
    last = torch.autograd.grad(PolyDice1Loss(0.5, impl="eager")(logits, target), logits)[0]
    assert relative(gradient[..., -4096:], last[..., -4096:]) < TOLERANCE[torch.bfloat16]
    assert relative(value, PolyDice1Loss(0.5, impl="eager")(logits, target)) < 1e-5


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_tensors_on_another_device_than_the_current() -> None:
    logits, target = torch.randn(2, 3, 64, device="cuda:1"), torch.randint(0, 3, (2, 64), device="cuda:1")
    assert relative(DiceLoss()(logits, target).cpu(), DiceLoss()(logits.cpu(), target.cpu())) < 1e-6


@pytest.mark.parametrize(("activation", "target"), KINDS)
def test_the_sums_and_gradients_of_the_reference(activation: str, target: str) -> None:
    logits, given = example((2, 3, 41), target, activation, torch.float32)
    mask = torch.rand(2, 41, device=DEVICE) * (torch.rand(2, 41, device=DEVICE) > 0.3)
    logits.requires_grad_()
    exact = logits.detach().double().requires_grad_()
    found = pixel_sums(logits, given, activation=activation, mask=mask, impl="fused")
    expected = reference.pixel_sums(exact, given, activation=activation, mask=mask)
    totals = []
    for sums in (found, expected):
        each = [(k + 1) * value.sum() for k, value in enumerate(sums[:-1]) if value is not None]
        totals.append(sum(each))
    for ours, theirs in zip(found[:-1], expected[:-1], strict=True):
        assert theirs is None or relative(ours, theirs) < 1e-5
    gradients = [torch.autograd.grad(total, x)[0] for total, x in zip(totals, (logits, exact), strict=True)]
    assert relative(*gradients) < 1e-5


# Classes that are not annotated


def partly_annotated(classes: int, activation: str, target: Tensor | None = None) -> Tensor:
    """Of three images: some classes, none, all. Labels of others become 0, as they must."""
    annotated = torch.rand(3, classes, device=DEVICE) > 0.5
    annotated[:, 0] |= activation == "softmax" or (target is not None and target.ndim == 2)
    annotated[1], annotated[2] = False, True
    if target is not None and target.ndim == 2:
        target[0] = torch.where(annotated[0][target[0].long()], target[0], 0)
    return annotated


ON_REQUEST = ("prediction", "focal", "uniform")


# Gaps beyond which a power, or its logarithm, is lost; classes that are rows, and groups of rows.
@pytest.mark.parametrize(
    ("activation", "classes", "target", "pixels", "size", "want"),
    [
        ("softmax", 3, "uint8", "none", 1.0, every_sum("softmax")),
        ("softmax", 3, "uint8", "ignored", 60.0, every_sum("softmax")),
        ("softmax", 5, "soft", "weighed", 1.0, ON_REQUEST),
        ("softmax", 33, "uint8", "ignored", 60.0, every_sum("softmax")),
        ("softmax", 33, "uint8", "weighed", 2000.0, ON_REQUEST),
        ("softmax", 33, "soft", "none", 60.0, every_sum("softmax")),
        ("softmax", 33, "uint8", "none", 60.0, ("error_sq",)),
        ("sigmoid", 3, "uint8", "weighed", 1.0, (*every_sum("sigmoid"), "focal")),
        ("sigmoid", 33, "soft", "none", 1.0, every_sum("sigmoid")),
        ("none", 3, "bool", "none", 1.0, every_sum("none")),
    ],
)
def test_classes_that_are_not_annotated(
    activation: str, classes: int, target: str, pixels: str, size: float, want: tuple[str, ...]
) -> None:
    """All sums, and those on request; an image in which nothing is annotated is not read."""
    logits, given = example((3, classes, 41), target, activation, torch.float32)
    logits, given = logits * size, given.softmax(1) if target == "soft" else given
    annotated = partly_annotated(classes, activation, given)
    mask = torch.rand(3, 41, device=DEVICE) * (torch.rand(3, 41, device=DEVICE) > 0.3) if pixels == "weighed" else None
    if pixels == "ignored":
        given[:, ::7] = 99
    logits[1, 0, 3] = torch.nan
    options = Options(activation, 99 if pixels == "ignored" else None, want, 1.5)
    assert_pass_agrees(logits, given, mask, options, annotated)


@pytest.mark.parametrize(
    ("index", "options"),
    [(2, {}), (11, {}), (12, {}), (2, {"batch": True}), (11, {"batch": True, "reduction": "sum"}), (7, {}), (10, {}),
     (11, {"include_background": False, "weight": [0.1, 0.2, 0.3, 0.4, 0.5]}), (11, {"absent": "skip"}),
     (11, {"activation": "sigmoid"}), (8, {"batch": True})],
    ids=str,
)  # fmt: skip
def test_losses_of_classes_that_are_not_annotated(index: int, options: dict[str, object]) -> None:
    loss = losses(ignore_index=99, **options)[index].to(DEVICE)
    logits = torch.randn(3, 5, 35, device=DEVICE, requires_grad=True)
    exact = logits.detach().double().requires_grad_()
    target = torch.randint(0, 5, (3, 35), device=DEVICE)
    annotated = partly_annotated(5, "softmax", target)
    target[:, 0] = 99
    found, expected = loss(logits, target, annotated=annotated), plain(loss)(exact, target, annotated=annotated)
    assert relative(found, expected) < 1e-6
    found.backward()
    expected.backward()
    assert relative(logits.grad, exact.grad) < 1e-5
    assert not logits.grad[1].any()


def test_a_merged_background_that_is_certain_or_ruled_out() -> None:
    """Every gap between it and the rest, with −∞ in some of it, and in all."""
    gaps = [-1e4, -200.0, -88.0, -64.0, -63.0, -20.0, 0.0, 16.0, 17.0, 88.0, 200.0, 1e4, -torch.inf]
    gap = torch.tensor(gaps, device=DEVICE)
    logits = torch.stack([gap - 1, torch.zeros_like(gap), gap, torch.full_like(gap, -torch.inf)], 1).unsqueeze(2)
    annotated = torch.tensor([[True, True, False, False]], device=DEVICE).expand(len(gaps), 4)
    target = torch.zeros(len(gaps), 1, dtype=torch.long, device=DEVICE)
    for want in (["cross_entropy"], ["focal", "uniform"]):
        found = []
        for x, impl in ((logits.clone(), "fused"), (logits.double(), "eager")):
            sums = pixel_sums(x.requires_grad_(), target, annotated=annotated, want=want, gamma=0.5, impl=impl)
            values = torch.stack([getattr(sums, name) for name in want]).double()
            found.append((values, *torch.autograd.grad(values.sum(), x)))
        for ours, exact in zip(*found, strict=True):  # to an ulp or two of a probability near 1
            torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=2**-22)
        assert found[0][0][0, -1, 0].isposinf()


def unlikely_background(classes: int, gaps: list[float]) -> tuple[Tensor, Tensor, Tensor]:
    """Every third class and class 0 are merged, and so much below the others, another gap at each pixel."""
    annotated = torch.arange(classes, device=DEVICE).expand(2, classes) % 3 != 2
    merged = ~annotated | (torch.arange(classes, device=DEVICE) == 0)
    gap = torch.tensor(gaps, device=DEVICE)[torch.randint(len(gaps), (2, 1, 411), device=DEVICE)]
    logits = torch.randn(2, classes, 411, device=DEVICE) + torch.where(merged.unsqueeze(2), gap, 0.0)
    return logits, torch.randint(0, 2, (2, 411), device=DEVICE), annotated


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("gaps", [[20.0, 3.0, 0.0, -3.0], [0.0, -12.0, -30.0, -41.0, -42.0], [0.0, -80.0, -1e4]])
@pytest.mark.parametrize("classes", [3, 14, 33])
@pytest.mark.parametrize(
    "loss",
    [DiceLoss() + CrossEntropyLoss(), CrossEntropyLoss(label_smoothing=0.1), FocalLoss(1.5) + CrossEntropyLoss()],
    ids=["dice", "smoothed", "focal"],
)
def test_neighbours_whose_merged_background_is_unlikely(
    loss: Loss | LossSum, classes: int, gaps: list[float], masked: bool
) -> None:
    """One logarithm is of the product of several, however small each is."""
    logits, target, annotated = unlikely_background(classes, gaps)
    mask = torch.rand(2, 411, device=DEVICE).round(decimals=1) if masked else None
    x, exact = logits.clone().requires_grad_(), logits.double().requires_grad_()
    found = loss(x, target, mask, annotated=annotated)
    expected = plain(loss)(exact, target, mask, annotated=annotated)
    assert relative(found, expected) < 1e-6
    found.backward()
    expected.backward()
    assert relative(x.grad, exact.grad) < 2e-6


@pytest.mark.parametrize("classes", [3, 14, 33])
def test_a_logit_that_is_none_among_merged_ones_is_not_lost(classes: int) -> None:
    """Nor a background that is ruled out: in a product, and where a probability is kept from being too small."""
    logits, target, annotated = unlikely_background(classes, [0.0])
    target[0, 7] = 0
    loss = CrossEntropyLoss(impl="fused")
    assert loss(logits, target, annotated=annotated).isfinite()
    without = logits.clone()
    without[0, ~annotated[0], 7], without[0, 0, 7] = -torch.inf, -torch.inf
    assert loss(without, target, annotated=annotated).isposinf()
    for channel in range(3):
        broken = logits.clone()
        broken[0, channel, 7] = torch.nan
        assert loss(broken, target, annotated=annotated).isnan()


@pytest.mark.parametrize("want", [("target", "prediction"), ("prediction",)])
def test_what_contradicts_the_annotation_poisons_its_image_alone(want: tuple[str, ...]) -> None:
    logits, target = torch.randn(3, 4, 50, device=DEVICE), torch.zeros(3, 50, dtype=torch.long, device=DEVICE)
    annotated = torch.tensor([[True, True, False, True], [True, True, True, True], [False] * 4], device=DEVICE)
    sums = {name: pixel_sums(logits, target, annotated=annotated, want=want, impl="fused") for name in ("fine",)}
    target[:, 7] = 2  # in the first image not annotated, in the last nothing is
    sums["stray"] = pixel_sums(logits, target, annotated=annotated, want=want, impl="fused")
    keep = torch.arange(50, device=DEVICE).ne(7).expand(3, 50)
    sums["hidden"] = pixel_sums(logits, target, mask=keep, annotated=annotated, want=want, impl="fused")
    headless = annotated.clone()
    headless[1, 0] = False
    sums["headless"] = pixel_sums(logits, target, mask=keep, annotated=headless, want=want, impl="fused")
    wrong = {name: found.prediction.isnan().any(1).tolist() for name, found in sums.items()}
    assert wrong == {
        "fine": [False] * 3, "stray": [True, False, False], "hidden": [False] * 3, "headless": [False, True, False]
    }  # fmt: skip
    assert not sums["stray"].prediction[2].any()


def test_an_annotation_outlives_its_call() -> None:
    """Of saved tensors that come back as copies, and laid out in another way."""
    logits = torch.randn(2, 4, 6, 7, device=DEVICE).contiguous(memory_format=torch.channels_last).requires_grad_()
    target = torch.randint(0, 2, (2, 6, 7), device=DEVICE)
    annotated = torch.tensor([[True, True], [True, True], [False, True], [True, False]], device=DEVICE).T
    loss = PolyDice1Loss(0.5) + CrossEntropyLoss()
    (expected,) = torch.autograd.grad(loss(logits, target, annotated=annotated.contiguous()), logits)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: t, lambda t: t.clone(memory_format=torch.contiguous_format)
    ):
        value = loss(logits, target, annotated=annotated)
    (found,) = torch.autograd.grad(value, logits)
    assert relative(found, expected) < 1e-6


# The head


@pytest.mark.parametrize(
    ("loss", "partial"),
    [
        (PolyDice1Loss(0.2), False),
        (DiceLoss(ignore_index=1) + CrossEntropyLoss(ignore_index=1), True),
        (FocalLoss(1.5) + CrossEntropyLoss(label_smoothing=0.1), False),
    ],
)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_slabs_of_a_head_go_through_the_kernels(
    monkeypatch: pytest.MonkeyPatch, layout: torch.memory_format, loss: Loss | LossSum, partial: bool
) -> None:
    """Those of a head that is too large for one kernel, against the logits in float64."""
    from polydice.kernels import head_tiles

    monkeypatch.setattr(head_tiles, "MOST_FLOAT32", 0)
    monkeypatch.setattr(plan, "_PLANS", {})
    for name in ("CPU_BLOCK", "ACCELERATOR_BLOCK"):
        monkeypatch.setattr(blocks, name, 5 * blocks.RUN)
    conv = nn.Conv2d(7, 5, 1).to(DEVICE)
    x = torch.randn(2, 7, 30, 31, device=DEVICE).contiguous(memory_format=layout).requires_grad_()
    labels = torch.randint(5, (2, 30, 31), device=DEVICE)
    annotated = torch.tensor([[True] * 5, [True, True, False, True, False]], device=DEVICE) if partial else None
    labels = 3 * (labels % 2) if partial else labels
    in_pass, exact = HeadLoss(loss, conv), copy.deepcopy(conv).double()
    value = in_pass(x, labels, annotated=annotated)
    expected = loss(exact(x.double()), labels, annotated=annotated)
    gradients = torch.autograd.grad(value, [x, *conv.parameters()])
    expected_gradients = torch.autograd.grad(expected, [x, *exact.parameters()])
    for found, other in zip((value, *gradients), (expected, *expected_gradients), strict=True):
        assert relative(found, other) < TOLERANCE[torch.float32]
