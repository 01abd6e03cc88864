import gc

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from polydice import CrossEntropyLoss, DiceLoss, PixelSums, PolyCE1Loss, PolyDice1Loss, TvMFDiceLoss
from polydice.kernels import plan, reference
from polydice.kernels.fields import FIELDS, Options

# Triton's interpreter, where it is asked for, computes both sides of a choice: 1/0 where the other is taken.
pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton"),
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning:triton"),
]
X, LABELS = torch.randn(2, 3, 10), torch.randint(3, (2, 10))


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """The shapes of the logits that were looked at closely, from an empty store of plans on."""
    seen: list[torch.Size] = []
    check = plan.check_inputs

    def recorded(logits: Tensor, *others: object) -> bool:
        seen.append(logits.shape)
        return check(logits, *others)

    monkeypatch.setattr(plan, "check_inputs", recorded)
    monkeypatch.setattr(plan, "_PLANS", {})
    return seen


@pytest.mark.parametrize(
    "loss", [DiceLoss(), TvMFDiceLoss(2.0), PolyDice1Loss(0.2) + 0.5 * CrossEntropyLoss()], ids=repr
)
def test_a_call_is_decided_once(checks: list[torch.Size], loss: nn.Module) -> None:
    for _ in range(3):
        loss(X, LABELS)
    assert len(checks) == 1
    loss(X[:, :, ::2], LABELS[:, ::2])
    loss(X, LABELS, torch.ones(2, 10))
    loss(X, LABELS.to(torch.uint8))
    loss(X.double(), LABELS)
    assert len(checks) == 5


def test_losses_that_are_the_same_share_a_plan(checks: list[torch.Size]) -> None:
    """Also one that is made anew at every step."""
    for _ in range(3):
        DiceLoss(batch=True)(X, LABELS)
        gc.collect()
    assert len(checks) == 1
    DiceLoss()(X, LABELS)
    assert len(checks) == 2


def test_an_option_that_is_set_is_heard() -> None:
    loss = DiceLoss()
    before = loss(X.double(), LABELS)
    loss.impl = "fused"
    with pytest.raises(ValueError, match="impl='fused' is not possible here"):
        loss(X.double(), LABELS)
    loss.impl = "eager"
    assert torch.equal(loss(X.double(), LABELS), before)


def test_the_store_of_plans_is_bounded(checks: list[torch.Size], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "MOST_PLANS", 3)
    for size in range(1, 9):
        DiceLoss()(X[:, :, :size], LABELS[:, :size])
        assert len(plan._PLANS) <= 3


def test_tensors_of_a_tracer_leave_no_plan(checks: list[torch.Size]) -> None:
    with FakeTensorMode():
        DiceLoss()(torch.randn(2, 3, 10), torch.randint(3, (2, 10)))
    torch.func.grad(DiceLoss())(X, LABELS)
    assert len(checks) == 2
    assert not plan._PLANS


@pytest.mark.parametrize(
    ("loss", "labels", "sums"),
    [
        (DiceLoss(), True, "prediction_sq error_sq target"),
        (DiceLoss(), False, "prediction_sq error_sq target_sq"),
        (CrossEntropyLoss(), True, "cross_entropy target"),
        (CrossEntropyLoss(activation="sigmoid"), True, "cross_entropy pixels"),
        (CrossEntropyLoss(activation="sigmoid"), False, "cross_entropy pixels"),
        (PolyCE1Loss(), True, "cross_entropy intersection target"),
        (PolyCE1Loss(), False, "cross_entropy intersection target pixels"),
    ],
    ids=str,
)
def test_kernels_make_the_wanted_sums_that_differ(loss: nn.Module, labels: bool, sums: str) -> None:
    assert set(plan.distinct(Options(loss.activation, None, loss.want), labels).want) == set(sums.split())


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_what_labels_make_redundant_is_the_same_number(activation: str, masked: bool) -> None:
    mask = torch.rand(2, 10, dtype=torch.float64) if masked else None
    sums: PixelSums = reference.pixel_sums(X.double(), LABELS, activation=activation, ignore_index=1, mask=mask)
    kept = plan.distinct(Options(activation, 1, FIELDS), labels=True).want
    assert torch.equal(sums.target_sq, sums.target)
    if "pixels" not in kept:
        torch.testing.assert_close(sums.target.sum(1, keepdim=True).expand(2, 3), sums.pixels)
    assert set(FIELDS) - set(kept) == {"target_sq"} | ({"pixels"} if activation == "softmax" else set())


def test_weights_that_are_a_parameter_learn() -> None:
    """Kernels do not differentiate weights: torch then makes the loss of the sums."""
    loss = DiceLoss()
    loss(X, LABELS)
    loss.weight = nn.Parameter(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    loss(X, LABELS).backward()
    assert loss.weight.grad.abs().sum() > 0
    assert plan.plan_loss(loss.terms, X, LABELS, None).launches is None


@pytest.mark.parametrize("epsilons", [(0.1, 0.2, 0.3), ([0.1, 0.2, 0.3], [0.3, 0.2, 0.1])])
def test_a_changing_epsilon_plans_nothing_anew(checks: list[torch.Size], epsilons: tuple) -> None:
    loss = PolyDice1Loss(epsilons[0]) + CrossEntropyLoss()
    for epsilon in epsilons:
        loss.losses[0].update_epsilon(epsilon)
        expected = (PolyDice1Loss(epsilon, impl="eager") + CrossEntropyLoss(impl="eager"))(X.double(), LABELS)
        torch.testing.assert_close(loss(X, LABELS).double(), expected, rtol=1e-6, atol=0)
    assert len(checks) == 2  # one is of float64


def test_numbers_that_nobody_moved_are_copied_once() -> None:
    """As those of a loss that stays on the host, with logits on a GPU; here the device is only another."""
    loss, there = PolyDice1Loss(0.1), torch.device("meta")
    first = plan.added_numbers(loss.terms, there)
    assert first is not None
    assert first.device == there
    assert plan.added_numbers(loss.terms, there) is first
    loss.epsilon.add_(0.1)
    second = plan.added_numbers(loss.terms, there)
    assert second is not first
    loss.update_epsilon(0.3)
    assert plan.added_numbers(loss.terms, there) is not second
    assert plan.added_numbers(loss.terms, torch.device("cpu")) is loss.epsilon
    assert plan.added_numbers(DiceLoss().terms, there) is None


def test_the_plan_says_whether_kernels_can_run() -> None:
    found = plan.plan_loss(DiceLoss().terms, X, LABELS, None)
    assert found.fused == (not plan.fused_obstacle(X))
    assert not plan.plan_loss(DiceLoss(impl="eager").terms, X, LABELS, None).fused


def test_without_triton_cuda_tensors_say_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "_TRITON_OBSTACLE", "Triton 3.2.0 is older than 3.6")
    plan.warn_without_triton.cache_clear()
    with FakeTensorMode():  # a CUDA tensor, but for its memory
        x, labels = torch.empty(2, 3, 8, device="cuda"), torch.zeros(2, 8, device="cuda", dtype=torch.long)
        DiceLoss(impl="eager")(x, labels)
        with pytest.warns(UserWarning, match=r"kernels are not used: Triton 3.2.0 is older than 3.6\. .* plain pass"):
            DiceLoss()(x, labels)
        DiceLoss()(x, labels)
    plan.warn_without_triton.cache_clear()
