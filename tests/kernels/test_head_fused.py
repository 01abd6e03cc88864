"""The kernels that take features, against float64 logits: on a GPU, or in Triton's interpreter (TRITON_INTERPRET=1)."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from polydice import CrossEntropyLoss, DiceLoss, FocalLoss, HeadLoss, PolyDice1Loss, TverskyLoss
from polydice.base import Loss, LossSum
from polydice.kernels import plan
from polydice.kernels.fields import FIELDS, ON_REQUEST
from polydice.kernels.head import head_sums
from tests.kernels.test_triton import DEVICE, TOLERANCE, pytestmark, relative  # noqa: F401

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}


@pytest.fixture(autouse=True)
def one_kernel(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The launches of the kernels, by name; a slab of logits is a failure."""
    from polydice.kernels import fused, launch

    called: list[str] = []
    call = launch.Launch.__call__

    def recorded(self: Any, *inputs: Any) -> None:
        called.append(self.kernel.__name__)
        call(self, *inputs)

    torch.manual_seed(0)
    monkeypatch.setattr(launch.Launch, "__call__", recorded)
    monkeypatch.setattr(fused, "_launch", None)
    monkeypatch.setattr(plan, "_PLANS", {})
    return called


def given(
    width: int, classes: int, *spatial: int, dtype: torch.dtype = torch.float32, last: bool = False, **options: Any
) -> tuple[nn.Module, Tensor, Tensor]:
    """A layer, features of two images, and their labels."""
    conv = CONVOLUTIONS[len(spatial)](width, classes, 1, **options).to(DEVICE, dtype)
    features = torch.randn(2, width, *spatial, device=DEVICE, dtype=dtype)
    if last:
        features = features.contiguous(memory_format=LAYOUTS[features.ndim])
    return conv, features, torch.randint(max(2, classes), (2, *spatial), device=DEVICE)


def results(call: Any, conv: nn.Module, features: Tensor, *others: Any) -> list[Tensor]:
    """The value, and its gradients in features, weight and bias."""
    features = features.detach().requires_grad_()
    value = call(features, *others)
    weight = torch.linspace(1, 2, max(1, value.numel()), device=DEVICE).view(value.shape)  # not the last layer
    return [value.detach(), *torch.autograd.grad((weight * value).sum(), [features, *conv.parameters()])]


def compare(loss: Loss | LossSum, conv: nn.Module, features: Tensor, *others: Any) -> None:
    exact = copy.deepcopy(conv).double()
    found = results(HeadLoss(loss, conv), conv, features, *others)
    expected = results(lambda x, *rest: loss(exact(x), *rest), exact, features.double(), *others)
    assert relative(found[0], expected[0]) < TOLERANCE[torch.float32]
    for one, other in zip(found[1:], expected[1:], strict=True):
        assert one.dtype == features.dtype
        assert relative(one, other) < TOLERANCE[features.dtype]
    assert found[1].stride() == torch.empty_like(features).stride()


def combined(**options: Any) -> LossSum:
    return PolyDice1Loss(0.2, **options) + 0.5 * CrossEntropyLoss(**options) + TverskyLoss(**options)


@pytest.mark.parametrize(
    ("loss", "last"),
    [
        (PolyDice1Loss(0.2, batch=True, absent="skip"), False),
        (combined(ignore_index=1), True),
        (combined(weight=[1.0, 0.5, 0.0, 2.0, 1.0], include_background=False), False),
        (combined(activation="sigmoid", reduction="sum"), True),
        (DiceLoss(reduction="none"), True),
        (FocalLoss(1.5) + CrossEntropyLoss(label_smoothing=0.1), False),
    ],
    ids=repr,
)
def test_a_loss_is_that_of_the_logits(loss: Loss | LossSum, last: bool, one_kernel: list[str]) -> None:
    conv, features, labels = given(7, 5, 9, 11, last=last)
    loss = loss.to(DEVICE)
    compare(loss, conv, features, labels.to(torch.uint8))
    mask = torch.rand(2, 9, 11, device=DEVICE) * (torch.rand(2, 9, 11, device=DEVICE) < 0.7)
    compare(loss, conv, features, labels, mask)
    assert {"head_forward", "head_backward"} <= set(one_kernel)
    if loss.terms[0][1].reduction != "none":
        assert "tail" in one_kernel, "the whole loss in one go"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("width", "classes", "spatial"), [(7, 5, (9, 15)), (16, 3, (8, 8, 4)), (32, 118, (37,))])
def test_half_types_and_sizes(dtype: torch.dtype, width: int, classes: int, spatial: tuple[int, ...]) -> None:
    """Tiles that are full and others, one and several of them; one, two and three axes."""
    conv, features, labels = given(width, classes, *spatial, dtype=dtype)
    compare(1000 * combined(), conv, features, labels)  # so that float16 has no subnormal gradients


def test_several_programs_of_several_tiles_and_the_same_bits_twice() -> None:
    conv, features, labels = given(3, 2, 450, bias=False)
    compare(combined(), conv, features, labels)
    one, other = (results(HeadLoss(combined(), conv), conv, features, labels) for _ in range(2))
    assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("kind", "classes", "activation"),
    [
        ("labels", 5, "softmax"), ("soft", 5, "softmax"), ("labels", 5, "sigmoid"), ("bool", 5, "sigmoid"),
        ("labels", 1, "sigmoid"), ("soft", 5, "none"), ("labels", 5, "none"),
    ],
)  # fmt: skip
def test_every_sum(kind: str, classes: int, activation: str) -> None:
    want = [name for name in FIELDS if name != "cross_entropy" or activation != "none"]
    want += ON_REQUEST if activation == "softmax" else ()
    conv, features, target = given(6, classes, 71)
    features, weight, bias = features.sigmoid(), conv.weight.detach().flatten(1), conv.bias.detach()
    if activation == "none":
        weight, bias = weight.abs() / 6, bias.abs()
    if kind != "labels":
        target = torch.rand(2, classes, 71, device=DEVICE)
        target = target > 0.5 if kind == "bool" else target
    mask = torch.rand(2, 71, device=DEVICE) * (torch.rand(2, 71, device=DEVICE) < 0.7)
    found, expected = (
        [tensor.to(dtype).requires_grad_() for tensor in (features, weight, bias)]
        for dtype in (torch.float32, torch.float64)
    )
    sums = [
        head_sums(*inputs, target, mask, activation, None, want, fused, 1.5, None)
        for inputs, fused in ((found, True), (expected, False))
    ]
    assert relative(*sums) < TOLERANCE[torch.float32]
    slopes = torch.randn_like(sums[0])
    gradients = [
        torch.autograd.grad(total, inputs, slopes) for total, inputs in zip(sums, (found, expected), strict=True)
    ]
    for one, other in zip(*gradients, strict=True):
        assert relative(one, other) < TOLERANCE[torch.float32]


def test_a_call_allocates_and_launches_and_does_nothing_else(
    one_kernel: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every operation of torch takes the host longer than a launch, and the kernels may take less than either."""
    from polydice.kernels import launch

    conv, features, labels = given(7, 5, 9, 11)
    head, features = HeadLoss(combined(), conv), features.requires_grad_()
    torch.autograd.grad(head(features, labels), [features, *conv.parameters()])
    monkeypatch.setattr(launch.Launch, "__call__", lambda self, *_: one_kernel.append(self.kernel.__name__))
    one_kernel.clear()
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler:
        torch.autograd.grad(head(features, labels), [features, *conv.parameters()])
    assert one_kernel == ["head_forward", "tail", "head_backward", "head_collect"]
    operations = {event.name for event in profiler.events() if event.name.startswith("aten::")}
    allowed = "empty", "empty_like", "empty_strided", "ones_like", "fill_", "detach"
    assert operations <= {f"aten::{name}" for name in allowed}


def test_who_looks_at_operators_sees_them(one_kernel: list[str]) -> None:
    conv, features, labels = given(7, 5, 9, 11)
    head = HeadLoss(combined(), conv)
    with FlopCounterMode(display=False):
        found = head(features, labels)
    assert "tail" not in one_kernel
    assert relative(found, head(features, labels)) < TOLERANCE[torch.float32]
    assert "tail" in one_kernel


def test_what_does_not_lie_in_a_row_is_copied() -> None:
    """Or addressed as it lies: every second feature, and every second pixel."""
    conv, features, labels = given(14, 5, 9, 22)
    narrow = CONVOLUTIONS[2](7, 5, 1).to(DEVICE)
    compare(combined(), narrow, features[:, ::2, :, ::2], labels[..., ::2])
    compare(combined(), narrow, features[:, ::2], labels)
    narrow.weight.data = narrow.weight.detach().transpose(0, 1).contiguous().transpose(0, 1)
    narrow.bias.data = conv.bias.detach().repeat(2)[::2]
    compare(combined(), narrow, features[:, ::2], labels.unsqueeze(1))


@pytest.mark.parametrize("frozen", ["features", "weight", "bias"])
def test_only_gradients_that_are_asked_for_are_made(frozen: str) -> None:
    conv, features, labels = given(7, 5, 9, 11)
    _, *gradients = results(HeadLoss(combined(), conv), conv, features, labels)
    expected = dict(zip(("features", "weight", "bias"), gradients, strict=True))
    if frozen == "features":
        HeadLoss(combined(), conv)(features, labels).backward()
    else:
        conv.get_parameter(frozen).requires_grad_(False)
        HeadLoss(combined(), conv)(features.requires_grad_(), labels).backward()
    for name, tensor in {"features": features, "weight": conv.weight, "bias": conv.bias}.items():
        assert tensor.grad is None if name == frozen else torch.equal(tensor.grad, expected[name])


def test_a_float32_layer_takes_features_of_half_precision() -> None:
    """As under autocast. Its weight is one that bfloat16 has too, and its gradient float32."""
    conv, features, labels = given(7, 5, 9, 11)
    conv.weight.data = conv.weight.bfloat16().float()
    features = features.bfloat16().requires_grad_()
    exact = copy.deepcopy(conv).double()
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        value = HeadLoss(combined(), conv)(features, labels)
    gradients = torch.autograd.grad(value, [features, *conv.parameters()])
    assert [tensor.dtype for tensor in gradients] == [torch.bfloat16, torch.float32, torch.float32]
    expected = results(lambda x: combined()(exact(x), labels), exact, features.double())
    for one, other in zip((value, *gradients), expected, strict=True):
        assert relative(one, other) < TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize("bad", [-1, 5])
def test_a_label_of_no_class_makes_the_loss_nan(bad: int) -> None:
    conv, features, labels = given(7, 5, 9, 11)
    labels[1, 2, 3] = bad
    assert HeadLoss(combined(), conv)(features, labels).isnan()
    assert not HeadLoss(combined(ignore_index=bad), conv)(features, labels).isnan()


def test_the_second_derivative_is_refused() -> None:
    conv, features, labels = given(7, 5, 9, 11)
    value = HeadLoss(combined(), conv)(features.requires_grad_(), labels)
    with pytest.raises(RuntimeError, match="can be differentiated once"):
        torch.autograd.grad(value, features, create_graph=True)


def test_saved_tensors_may_come_back_as_copies() -> None:
    """From the host's memory for one, contiguous."""
    conv, features, labels = given(7, 5, 9, 11, last=True)
    expected = results(HeadLoss(combined(), conv), conv, features, labels)
    copied = torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: tensor, lambda tensor: tensor.clone(memory_format=torch.contiguous_format)
    )
    with copied:
        found = results(HeadLoss(combined(), conv), conv, features, labels)
    for one, other in zip(found, expected, strict=True):
        assert relative(one, other) < TOLERANCE[torch.float32]
