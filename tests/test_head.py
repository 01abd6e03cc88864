import copy
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

from polydice import CrossEntropyLoss, DiceLoss, FocalLoss, HeadLoss, PolyDice1Loss, TverskyLoss, TvMFDiceLoss
from polydice.kernels import blocks
from tests.reference import Case, each_loss, each_loss_and_activation, float32_pixels
from tests.test_base import LOOPBACK
from tests.together import in_processes

SAME = 1e-12  # the same float64 sums in another order
FLOAT32 = 1e-5  # of a value, and of the largest component of a gradient
CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
FEATURES, CLASSES = 6, 4


def head(axes: int = 2, classes: int = CLASSES, **options: Any) -> nn.Module:
    torch.manual_seed(1)
    return CONVOLUTIONS[axes](FEATURES, classes, 1, **options).double()


def given(*spatial: int, kind: str = "labels", classes: int = CLASSES) -> tuple[Tensor, Tensor]:
    """Features of two images, and labels or soft masks."""
    torch.manual_seed(2)
    features = torch.randn(2, FEATURES, *spatial, dtype=torch.float64)
    if kind == "soft":
        return features, torch.rand(2, classes, *spatial, dtype=torch.float64)
    return features, torch.randint(max(2, classes), (2, *spatial))


def results(call: Any, conv: nn.Module, features: Tensor, *others: Any) -> list[Tensor]:
    """The value, and the gradients of its sum in features, weight and bias."""
    features = features.detach().requires_grad_()
    value = call(features, *others)
    return [value.detach(), *torch.autograd.grad(value.sum(), [features, *conv.parameters()])]


def compare(loss: nn.Module, conv: nn.Module, *inputs: Any, tolerance: float = SAME) -> None:
    """HeadLoss(loss, conv) against the loss of the convolution's logits."""
    found = results(HeadLoss(loss, conv), conv, *inputs)
    expected = results(lambda features, *others: loss(conv(features), *others), conv, *inputs)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@pytest.fixture
def many_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "CPU_BLOCK", CLASSES * blocks.RUN)


# The same as with logits


@pytest.mark.usefixtures("many_slabs")
@pytest.mark.parametrize("kind", ["labels", "soft"])
@each_loss_and_activation
def test_every_loss_is_that_of_the_logits(case: Case, activation: str, kind: str) -> None:
    conv, (features, target) = head(), given(20, 31, kind=kind)
    if activation == "none":  # the logits are probabilities: means of numbers in [0, 1]
        features = features.sigmoid()
        conv.weight.data, conv.bias.data = conv.weight.data.abs() / FEATURES, conv.bias.data.abs() / FEATURES
    mask = torch.rand(2, 20, 31) * (torch.rand(2, 20, 31) < 0.7)
    loss = case.make(activation=activation)
    compare(loss, conv, features, target)
    compare(loss, conv, features, target, mask)


@pytest.mark.usefixtures("many_slabs")
@pytest.mark.parametrize(
    "options",
    [
        {"ignore_index": 1},
        {"weight": [1.0, 0.5, 0.0, 2.0], "absent": "skip"},
        {"include_background": False, "batch": True},
        {"reduction": "none"},
        {"reduction": "none", "batch": True},
        {"smooth": 0.0, "reduction": "sum"},
        {"impl": "eager"},
    ],
    ids=str,
)
def test_every_option_is_that_of_the_logits(options: dict) -> None:
    compare(PolyDice1Loss(0.2, **options), head(), *given(20, 31))
    compare(PolyDice1Loss(0.2, **options), head(), *given(20, 31), torch.rand(2, 1, 20, 31) < 0.5)


@pytest.mark.parametrize("loss", [
    DiceLoss() + 0.5 * CrossEntropyLoss(),
    2 * PolyDice1Loss(0.2, batch=True) + CrossEntropyLoss() + TverskyLoss(),
    TvMFDiceLoss([1.0, 2.0, 4.0, 8.0]),
    PolyDice1Loss([0.1, 0.2, 0.4, 0.8]) + FocalLoss(1.5) + CrossEntropyLoss(label_smoothing=0.1),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("spatial", [(50,), (20, 31), (7, 9, 11), (1,), (1, 1, 1)], ids=str)
def test_sums_of_losses_in_any_number_of_dimensions(loss: nn.Module, spatial: tuple[int, ...]) -> None:
    compare(loss, head(len(spatial)), *given(*spatial))


@pytest.mark.usefixtures("many_slabs")
@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
@pytest.mark.parametrize("kind", ["labels", "soft"])
@each_loss
def test_classes_that_are_not_annotated_are_those_of_the_logits(case: Case, kind: str, activation: str) -> None:
    features, target = given(20, 31, kind=kind)
    if kind == "labels":
        target[1][target[1] == 2] = 0
    else:
        target /= 2  # of two classes together no more than 1
    annotated = torch.tensor([[True] * CLASSES, [True, True, False, True]])
    for options in ({}, {"batch": True}) if case.region else ({},):
        compare(case.make(activation=activation, **options), head(), features, target, None, annotated)
    compare(case.make(activation=activation), head(), features, target, torch.rand(2, 20, 31) < 0.7, annotated)


@pytest.mark.parametrize("axes", [2, 3])
def test_the_layout_in_memory_does_not_matter_and_is_that_of_the_gradient(axes: int) -> None:
    last = {2: torch.channels_last, 3: torch.channels_last_3d}[axes]
    conv, (features, labels) = head(axes), given(*[6, 7, 8][:axes])
    features = features.contiguous(memory_format=last)
    compare(DiceLoss(), conv, features, labels)
    assert results(HeadLoss(DiceLoss(), conv), conv, features, labels)[1].is_contiguous(memory_format=last)
    compare(DiceLoss(), conv, features[..., 1:5], labels[..., 1:5])  # a part of something larger


def test_a_convolution_without_bias_and_one_of_a_single_class() -> None:
    compare(DiceLoss(), head(bias=False), *given(9, 9))
    compare(DiceLoss(activation="sigmoid"), head(classes=1), *given(9, 9, classes=1))


@pytest.mark.parametrize("padding", [0, "same", "valid"])
def test_what_adds_no_padding_is_taken(padding: str | int) -> None:
    compare(DiceLoss(), head(padding=padding), *given(9, 9))


@pytest.mark.parametrize("shape", [(0, FEATURES, 8, 8), (2, FEATURES, 0, 8)], ids=str)
def test_nothing_gives_nothing(shape: tuple[int, ...]) -> None:
    conv, labels = head(), torch.zeros(shape[0], *shape[2:], dtype=torch.long)
    value, *gradients = results(HeadLoss(CrossEntropyLoss(), conv), conv, torch.zeros(shape).double(), labels)
    assert value == 0
    assert all(not gradient.any() for gradient in gradients)
    assert gradients[0].shape == shape


@pytest.mark.usefixtures("many_slabs")
@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
@each_loss
def test_float32_is_float32(case: Case, activation: str) -> None:
    """Against float64 logits, value and gradients."""
    conv, (features, labels) = head(), given(40, 50)
    loss = case.make(activation=activation)
    conv, features = conv.float(), features.float()
    exact = copy.deepcopy(conv).double()
    with float32_pixels():
        found = results(HeadLoss(loss, conv), conv, features, labels)
    expected = results(lambda x, target: loss(exact(x), target), exact, features.double(), labels)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one.double(), other, rtol=0, atol=FLOAT32 * other.abs().max().item())


@pytest.mark.parametrize("kind", ["labels", "soft"])
@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_gradients_are_those_of_differences(activation: str, kind: str) -> None:
    features, target = given(4, 5, kind=kind)
    loss = HeadLoss(PolyDice1Loss(0.2, activation=activation) + CrossEntropyLoss(activation=activation), head())
    mask = torch.rand(2, 4, 5)

    def value(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.func.functional_call(loss, {"conv.weight": weight, "conv.bias": bias}, (x, target, mask))

    inputs = [tensor.detach().requires_grad_() for tensor in (features, loss.conv.weight, loss.conv.bias)]
    assert torch.autograd.gradcheck(value, inputs)


def test_only_gradients_that_are_asked_for_are_made() -> None:
    features, labels = given(9, 9)
    conv = head()
    expected = results(HeadLoss(DiceLoss(), conv), conv, features, labels)[1:]
    HeadLoss(DiceLoss(), conv)(features, labels).backward()  # the network before it is frozen
    torch.testing.assert_close(conv.weight.grad, expected[1], rtol=0, atol=0)
    frozen, x = head().requires_grad_(False), features.clone().requires_grad_()
    HeadLoss(DiceLoss(), frozen)(x, labels).backward()
    torch.testing.assert_close(x.grad, expected[0], rtol=0, atol=0)
    assert frozen.weight.grad is None


# Training


class Net(nn.Module):
    def __init__(self, classes: int = CLASSES) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.body = nn.Sequential(nn.Conv2d(1, FEATURES, 3, padding=1), nn.ReLU())
        self.head = nn.Conv2d(FEATURES, classes, 1)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.body(image))


class Training(nn.Module):
    """A network and its loss in one module, as DDP wants it."""

    def __init__(self, group: Any = None) -> None:
        super().__init__()
        self.net = Net().double()
        dice = PolyDice1Loss(0.2, batch=True, weight=[1.0, 1.0, 2.0, 1.0], process_group=group)
        self.loss = HeadLoss(dice + CrossEntropyLoss(process_group=group), self.net.head)

    def forward(self, image: Tensor, labels: Tensor) -> Tensor:
        return self.loss(self.net.body(image), labels)


def pictures() -> tuple[Tensor, Tensor]:
    torch.manual_seed(4)
    labels = torch.randint(CLASSES, (4, 5, 5)).repeat_interleave(8, 1).repeat_interleave(8, 2)
    return (labels + torch.randn(labels.shape) / 2).unsqueeze(1).double(), labels


def trained(dtype: torch.dtype, by_head: bool, steps: int = 200) -> Tensor:
    """All parameters after training, in a row."""
    net, loss = Net().to(dtype), PolyDice1Loss(0.2) + CrossEntropyLoss()
    images, labels = pictures()
    images, in_pass = images.to(dtype), HeadLoss(loss, net.head)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        (in_pass(net.body(images), labels) if by_head else loss(net(images), labels)).backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in net.parameters()]).double()


def test_200_steps_are_as_with_logits() -> None:
    """Where float32 differs from float64 by its rounding alone, they come equally near to float64's end."""
    exact = trained(torch.float64, by_head=False)
    torch.testing.assert_close(trained(torch.float64, by_head=True), exact, rtol=0, atol=1e-9)
    with float32_pixels():
        logits, head = (trained(torch.float32, by_head=by_head) for by_head in (False, True))
    noise = (logits - exact).abs().max()
    assert 0 < noise < 1e-3
    assert (head - exact).abs().max() < 3 * noise


def test_the_same_bits_twice() -> None:
    conv, (features, labels) = head().float(), given(150, 200)
    one, other = (results(HeadLoss(DiceLoss(), conv), conv, features.float(), labels) for _ in range(2))
    assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))


def test_checkpointing_gives_the_same_gradients() -> None:
    images, labels = pictures()
    plain, cheap = Training(), Training()
    plain(images, labels).backward()
    features = checkpoint(cheap.net.body, images, use_reentrant=False)
    checkpoint(cheap.loss, features, labels, use_reentrant=False).backward()
    for one, other in zip(cheap.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


def one_of_two(rank: int, folder: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    images, labels = pictures()
    model = DistributedDataParallel(Training(distributed.group.WORLD))
    own = slice(0, 3) if rank == 0 else slice(3, 4)
    value = model(images[own], labels[own])
    value.backward()
    torch.save([value.detach(), *(parameter.grad for parameter in model.parameters())], f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


def test_two_processes_equal_one(tmp_path: Path) -> None:
    in_processes(one_of_two, tmp_path)
    alone = Training()
    value = alone(*pictures())
    value.backward()
    expected = [value.detach(), *(parameter.grad for parameter in alone.parameters())]
    for rank in range(2):
        for one, other in zip(torch.load(tmp_path / f"{rank}.pt"), expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


# Types


def test_autocast_rounds_the_features_as_the_convolution_does() -> None:
    """And on a CPU nothing else: the same bits as of rounded features in float32."""
    conv, (features, labels) = head().float(), given(40, 50)
    loss = HeadLoss(PolyDice1Loss(0.2) + CrossEntropyLoss(), conv)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = results(loss, conv, features.float(), labels)
        of_half = results(loss, conv, features.bfloat16(), labels)
        logits = results(lambda x, target: loss.loss(conv(x), target), conv, features.float(), labels)
    rounded = results(loss, conv, features.bfloat16().float(), labels)
    assert [tensor.dtype for tensor in of_half] == [torch.float32, torch.bfloat16, torch.float32, torch.float32]
    for one, half, other, coarse in zip(found, of_half, rounded, logits, strict=True):
        assert torch.equal(one, other.bfloat16().float() if one is found[1] else other)
        assert torch.equal(half, other.to(half.dtype))
        atol = 2 * torch.finfo(torch.bfloat16).eps * other.abs().max().item()
        torch.testing.assert_close(coarse, other, rtol=0, atol=atol)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_throughout(dtype: torch.dtype) -> None:
    conv, (features, labels) = head().to(dtype), given(40, 50)
    exact = copy.deepcopy(conv).double()
    found = results(HeadLoss(DiceLoss(), conv), conv, features.to(dtype), labels)
    expected = results(HeadLoss(DiceLoss(), exact), exact, features.to(dtype).double(), labels)
    assert [tensor.dtype for tensor in found] == [torch.float32, dtype, dtype, dtype]
    for one, other in zip(found, expected, strict=True):
        atol = torch.finfo(one.dtype).eps * 4 * other.abs().max().item()
        torch.testing.assert_close(one.double(), other, rtol=0, atol=atol)


# Whose the convolution is


def test_the_parameters_are_the_convolutions_own() -> None:
    conv = head()
    loss = HeadLoss(DiceLoss(), conv)
    assert [*map(id, loss.parameters())] == [*map(id, conv.parameters())]
    assert loss.state_dict().keys() == {"conv.weight", "conv.bias"}


def test_a_network_and_its_loss_save_the_convolution_once(tmp_path: Path) -> None:
    model, other = Training(), Training()
    names = {"body.0.weight", "body.0.bias", "head.weight", "head.bias"}
    assert model.net.state_dict().keys() == names
    saved = model.state_dict()
    assert saved.keys() == {f"net.{name}" for name in names} | {
        f"loss.loss.losses.0.{own}" for own in ("weight", "epsilon")
    }
    with torch.no_grad():
        model.net.head.weight += 1
    save_file(model.state_dict(), tmp_path / "model.safetensors")  # refuses tensors that share memory
    other.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert torch.equal(other.net.head.weight, model.net.head.weight)
    assert other.loss.conv is other.net.head


def test_a_convolution_that_nobody_else_has_is_saved() -> None:
    alone, other = (nn.ModuleDict({"loss": HeadLoss(DiceLoss(), head())}) for _ in range(2))
    assert alone.state_dict().keys() == {"loss.conv.weight", "loss.conv.bias"}
    with torch.no_grad():
        alone["loss"].conv.weight += 1
    other.load_state_dict(alone.state_dict())
    assert torch.equal(other["loss"].conv.weight, alone["loss"].conv.weight)
    with pytest.raises(RuntimeError, match="Missing key"):
        HeadLoss(DiceLoss(), head()).load_state_dict({})


def test_a_copy_has_its_own_convolution_in_both_places() -> None:
    model = Training()
    twin = copy.deepcopy(model)
    assert twin.loss.conv is twin.net.head
    assert twin.net.head is not model.net.head


def test_a_weight_that_is_computed_is_computed_anew() -> None:
    conv, (features, labels) = weight_norm(head()), given(9, 9)
    compare(DiceLoss(), conv, features, labels)
    with torch.no_grad():
        conv.parametrizations.weight.original0 *= 2
    compare(DiceLoss(), conv, features, labels)


# Bad input


@pytest.mark.parametrize(
    "options",
    [{"kernel_size": 3}, {"kernel_size": (1, 3)}, {"stride": 2}, {"padding": 1}, {"dilation": 2}, {"groups": 2}],
    ids=str,
)
def test_another_convolution_is_refused(options: dict) -> None:
    conv = nn.Conv2d(6, 4, **{"kernel_size": 1} | options)
    with pytest.raises(ValueError, match=r"takes a 1×1 convolution without .* groups: Conv2d\(6, 4, kernel"):
        HeadLoss(DiceLoss(), conv)


class Standardised(nn.Conv2d):
    def forward(self, image: Tensor) -> Tensor:
        return super().forward(image - image.mean())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((DiceLoss(), nn.Linear(6, 4)), "an nn.Conv1d, Conv2d or Conv3d: Linear"),
        ((DiceLoss(), nn.ConvTranspose2d(6, 4, 1)), "an nn.Conv1d, Conv2d or Conv3d: ConvTranspose2d"),
        ((DiceLoss(), Standardised(6, 4, 1)), "Standardised has a forward of its own"),
        ((nn.CrossEntropyLoss(), nn.Conv2d(6, 4, 1)), "takes a loss of polydice, or a sum of them: CrossEntropyLoss"),
        ((nn.Conv2d(6, 4, 1), DiceLoss()), "takes a loss of polydice, or a sum of them: Conv2d"),
    ],
)
def test_what_is_no_loss_or_no_convolution_is_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        HeadLoss(*arguments)


@pytest.mark.parametrize(
    ("features", "error", "message"),
    [
        (torch.zeros(2, 5, 8, 8).double(), ValueError, r"takes features \[B, 6, \*spatial\] .*: features \[2, 5, "),
        (torch.zeros(2, 6, 8).double(), ValueError, r"2 spatial axes: features \[2, 6, 8\] float64, Conv2d\(6, 4"),
        (torch.zeros(2, 6, 8, 8), ValueError, r"the convolution is torch.float64: features \[2, 6, 8, 8\] float32"),
        (torch.zeros(2, 6, 8, 8).long(), TypeError, r"features must be floating: features \[2, 6, 8, 8\] int64"),
        (torch.zeros(2, 6, 8, 8, device="meta").double(), ValueError, "are on meta, the convolution is on cpu"),
        ([[0.0]], TypeError, "features must be a tensor: list"),
    ],
)  # fmt: skip
def test_features_that_do_not_fit_are_refused(features: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        HeadLoss(DiceLoss(), head())(features, torch.zeros(2, 8, 8, dtype=torch.long))


def test_the_loss_refuses_what_it_refuses_of_logits() -> None:
    features, labels = given(8, 8)
    with pytest.raises(ValueError, match="label 4 is not in"):
        HeadLoss(DiceLoss(), head())(features, torch.full_like(labels, 4))
    with pytest.raises(ValueError, match=r"logits \[2, 4, 8, 8\] float64, target \[2, 9, 8\]"):
        HeadLoss(DiceLoss(), head())(features, torch.zeros(2, 9, 8, dtype=torch.long))
    with pytest.raises(ValueError, match="weight has 2 entries, the logits have 4 classes"):
        HeadLoss(DiceLoss(weight=[1.0, 2.0]), head())(features, labels)
    with pytest.raises(ValueError, match="impl='fused' is not possible here"):
        HeadLoss(DiceLoss(impl="fused"), head())(features, labels)


def test_probabilities_are_checked() -> None:
    features, labels = given(8, 8)
    with pytest.raises(ValueError, match="activation='none' takes probabilities"):
        HeadLoss(DiceLoss(activation="none"), head())(100 * features, labels)
