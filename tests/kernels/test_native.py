"""A CPU's compiled pass. What every loss promises, tests/test_losses.py asks of it too; here is what is its own."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from polydice import CrossEntropyLoss, DiceLoss, DropDiceLoss, FocalTverskyLoss, PolyCE1Loss, PolyDice1Loss, TverskyLoss
from polydice.kernels import compiling, native, node, plan
from tests.reference import Case, each_loss, float32_pixels, value_and_gradient

pytestmark = pytest.mark.skipif(bool(compiling.obstacle()), reason=f"nothing is compiled here: {compiling.obstacle()}")
NODES = ("NativeLossBackward", "PolydiceLossBackward")  # of Python, and of node.cpp
FLOAT32 = 2e-6  # of a value, and of the largest gradient: some roundings of the pixels
LOSSES = {
    "dice": lambda **o: DiceLoss(**o),
    "unsquared": lambda **o: DiceLoss(squared=False, **o),
    "drop3, detached": lambda **o: DropDiceLoss(3, scale="detached", **o),
    "poly1, an ε for each class": lambda **o: PolyDice1Loss([0.1, 0.5, 1.0, 0.0], **o),
    "tversky": lambda **o: TverskyLoss(0.7, 0.3, **o),
}
PIXELWISE = {"ce": lambda **o: CrossEntropyLoss(**o), "polyce": lambda **o: PolyCE1Loss(2.0, **o)}
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"ignore_index": 2},
    {"weight": [0.5, 0.0, 3.0, 1.0]},
    {"include_background": False, "reduction": "sum"},
)
AVERAGED: tuple[dict[str, Any], ...] = ({"batch": True}, {"absent": "skip"}, {"batch": True, "absent": "skip"})


@pytest.fixture(autouse=True, params=["python", "compiled"])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Who links the loss to torch's autograd. No plans of other tests, which may have been made of other pieces."""
    kind: str = request.param
    if kind == "compiled":
        if why := node.obstacle():
            pytest.skip(f"nothing is compiled here: {why}")
        monkeypatch.setattr(node, "_SEARCH", node.Search())
    plan._PLANS.clear()
    yield kind
    plan._PLANS.clear()


def test_who_links_it(by: str) -> None:
    logits, labels = batch()
    value = DiceLoss()(logits.requires_grad_(), labels)
    assert value.grad_fn is not None
    assert value.grad_fn.name() == NODES[by == "compiled"]


def batch(shape: tuple[int, ...] = (3, 4, 30, 41), gap: float = 3.0) -> tuple[Tensor, Tensor]:
    """Labels 0 and 2 in the first image, so that classes are absent there."""
    labels = torch.randint(shape[1] if shape[1] > 1 else 2, (shape[0], *shape[2:]))
    labels[0] = labels[0] % 2 * 2 if shape[1] > 2 else 0
    return gap * torch.randn(shape), labels


def is_native(loss: Any, logits: Tensor, labels: Tensor, *more: Any) -> bool:
    value = loss(logits.requires_grad_(), labels, *more)
    return value.grad_fn.name() in NODES  # which torch 2.11 forgets with the value


def against_float64(make: Any, logits: Tensor, labels: Tensor, tolerance: float = FLOAT32) -> None:
    loss = make()
    assert is_native(loss, logits.clone(), labels)
    value, gradient = value_and_gradient(loss, logits, labels)
    exact, expected = value_and_gradient(loss, logits.double(), labels)
    assert value.dtype == gradient.dtype == torch.float32
    torch.testing.assert_close(value.double(), exact, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(gradient.double(), expected, rtol=0, atol=tolerance * expected.abs().max().item())


@pytest.mark.parametrize("exact", [False, True], ids=["float32", "float64"])
@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
@pytest.mark.parametrize("name", [*LOSSES, *PIXELWISE])
def test_every_formula_and_option(name: str, activation: str, exact: bool) -> None:
    """float64 logits take the plain pass. Values of float64 pixels are as exact as their rounding to float32."""
    make = (LOSSES | PIXELWISE)[name]
    logits, labels = batch() if not exact else batch((3, 4, 7, 11))
    for options in (*OPTIONS, *(AVERAGED if name in LOSSES else ())):
        against_float64(lambda: make(activation=activation, **options), logits, labels, 1e-7 if exact else FLOAT32)  # noqa: B023


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_sums_of_losses(activation: str) -> None:
    options = {"activation": activation, "weight": [1.0, 2.0, 0.5, 1.0]}
    first, second = PolyDice1Loss(0.3, **options), PolyDice1Loss([1.0, 0.0, 0.5, 0.2], scale="detached", **options)
    sums = first + 0.5 * second + 2 * CrossEntropyLoss(activation=activation) + DiceLoss(**options)
    against_float64(lambda: sums, *batch())


@pytest.mark.parametrize("classes", [1, 2, 3, 118])
@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_any_number_of_classes(classes: int, activation: str) -> None:
    if classes > 1 or activation == "sigmoid":
        make = lambda: DiceLoss(activation=activation) + CrossEntropyLoss(activation=activation)  # noqa: E731
        against_float64(make, *batch((2, classes, 12000 // classes)))


@pytest.mark.parametrize("dtype", native.LABELS)
def test_every_type_of_labels(dtype: torch.dtype) -> None:
    logits, labels = batch()
    expected = value_and_gradient(PolyDice1Loss(0.2), logits, labels)
    found = value_and_gradient(PolyDice1Loss(0.2), logits, labels.to(dtype))
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
@pytest.mark.parametrize("exact", [False, True])
def test_an_ignored_pixel_may_be_anything(exact: bool, activation: str) -> None:
    logits, labels = batch()
    labels[1, 3:9], labels[2] = 255, 255
    loss = PolyDice1Loss(0.2, activation=activation, ignore_index=255)
    loss = loss + CrossEntropyLoss(activation=activation, ignore_index=255)
    native_exact = native.EXACT
    native.EXACT = 1 << 20 if exact else 0
    try:
        expected = value_and_gradient(loss, logits, labels)
        hidden = (labels == 255).unsqueeze(1).expand_as(logits)
        for whatever in (torch.nan, torch.inf, -torch.inf):
            found = value_and_gradient(loss, logits.masked_fill(hidden, whatever), labels)
            assert all(map(torch.equal, found, expected))
        assert not expected[1][hidden].any()
        value, gradient = value_and_gradient(loss, logits, torch.full_like(labels, 255))
        assert value == 0
        assert not gradient.any()
    finally:
        native.EXACT = native_exact


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_classes_that_are_ruled_out(activation: str) -> None:
    """Logits of −∞, with and without a truth there; a pixel that is NaN makes the loss NaN."""
    logits, labels = batch()
    logits[:, 3] = -torch.inf
    labels[labels == 3] = 0
    loss = PolyDice1Loss(0.2, activation=activation) + CrossEntropyLoss(activation=activation)
    with float32_pixels():
        against_float64(lambda: loss, logits, labels)
        labels[0, 0, 0] = 3
        assert loss(logits, labels) == torch.inf
        assert PolyDice1Loss(0.2, activation=activation)(logits, labels).isfinite()
        logits[1, 1, 2, 3] = torch.nan
        assert loss(logits, labels).isnan()


@each_loss
def test_confident_networks(case: Case) -> None:
    """Where e^x leaves float32, and beyond."""
    labels = torch.randint(3, (2, 40))
    with float32_pixels():
        for gap in (20.0, 80.0, 87.0, 88.0, 89.0, 104.0, 1e4):
            for sign in (1, -1):
                x = sign * gap * torch.nn.functional.one_hot(labels, 3).movedim(-1, 1).float()
                for activation in ("softmax", "sigmoid"):
                    loss = case.make(activation=activation)
                    value, gradient = value_and_gradient(loss, x, labels)
                    exact, expected = value_and_gradient(loss, x.double(), labels)
                    torch.testing.assert_close(value.double(), exact, rtol=1e-5, atol=1e-6)
                    assert gradient.isfinite().all()
                    if not (case.name == "focal" and sign > 0):  # its slope has no bound near 0
                        size = max(expected.abs().max().item(), 1e-3)
                        torch.testing.assert_close(gradient.double(), expected, rtol=0, atol=1e-4 * size)


# Masks


def masks(labels: Tensor, kind: str) -> Tensor:
    """Of labels, hard or soft."""
    hard = torch.nn.functional.one_hot(labels, 4).movedim(-1, 1).contiguous()
    return {"bool": hard > 0, "uint8": hard.to(torch.uint8), "soft": 0.9 * hard + 0.1 * torch.rand(hard.shape)}[kind]


@pytest.mark.parametrize("exact", [False, True], ids=["float32", "float64"])
@pytest.mark.parametrize("kind", ["bool", "uint8", "soft"])
@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
@pytest.mark.parametrize("name", [*LOSSES, *PIXELWISE])
def test_masks(name: str, activation: str, kind: str, exact: bool) -> None:
    logits, labels = batch() if not exact else batch((3, 4, 7, 11))
    for options in (*OPTIONS, *(AVERAGED if name in LOSSES else ())):
        if "ignore_index" not in options:
            make = lambda: (LOSSES | PIXELWISE)[name](activation=activation, **options)  # noqa: B023, E731
            against_float64(make, logits, masks(labels, kind), 1e-7 if exact else FLOAT32)


@pytest.mark.parametrize("kind", ["bool", "uint8", "soft"])
def test_masks_of_one_channel(kind: str) -> None:
    logits, labels = batch((5, 4, 123, 17))
    loss = PolyDice1Loss(0.2, activation="sigmoid") + CrossEntropyLoss(activation="sigmoid")
    against_float64(lambda: loss, logits[:, :1].contiguous(), masks(labels, kind)[:, 1:2].contiguous())


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_masks_where_classes_are_ruled_out(activation: str) -> None:
    """What is impossible and not there costs nothing."""
    logits, labels = batch()
    logits[:, 3] = -torch.inf
    labels[labels == 3] = 0
    target = masks(labels, "bool")
    loss = PolyDice1Loss(0.2, activation=activation) + CrossEntropyLoss(activation=activation)
    with float32_pixels():
        against_float64(lambda: loss, logits, target)
        if activation == "sigmoid":
            target[:, 3], logits[:, 3] = True, torch.inf
            against_float64(lambda: loss, logits, target)
        logits[1, 1, 2, 3] = torch.nan
        assert loss(logits, target).isnan()


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_bad_masks_are_refused(activation: str, exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the last pixel, and beside one that is no number."""
    monkeypatch.setattr(native, "EXACT", 1 << 20 if exact else 0)
    logits, labels = batch()
    loss = DiceLoss(activation=activation)
    for value in (255.0, -0.5, 1.01, 1.001, -0.001, torch.inf, -torch.inf):
        soft = masks(labels, "soft")
        soft[2, 3, 29, 40] = value
        with pytest.raises(ValueError, match=r"masks must lie in \[0, 1\]"):
            loss(logits, soft)
        soft[0, 0, 0, 0] = torch.nan
        with pytest.raises(ValueError, match=r"masks must lie in \[0, 1\]"):
            loss(logits, soft)
    assert loss(logits, soft.clamp(0, 1)).isnan()
    with pytest.raises(ValueError, match=r"mask value 255 is not in \[0, 2\)"):
        loss(logits, 255 * masks(labels, "uint8"))
    odd = (7 * masks(labels, "uint8")).view(torch.bool)
    assert torch.equal(loss(logits, odd), loss(logits, masks(labels, "bool")))


# Classes that are not annotated


KNOWN = torch.tensor([[1, 0, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]]) > 0


def partly(gap: float = 3.0) -> tuple[Tensor, Tensor]:
    """Labels of what is annotated in each of four images."""
    logits, labels = batch((4, 4, 30, 41), gap)
    for image, known in enumerate(KNOWN.tolist()):
        allowed = torch.tensor([c for c in range(4) if known[c]] or [0, 1, 2, 3])
        labels[image] = allowed[torch.randint(len(allowed), labels[image].shape)]
    return logits, labels


@pytest.mark.parametrize("exact", [False, True], ids=["float32", "float64"])
@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
@pytest.mark.parametrize("name", [*LOSSES, *PIXELWISE])
def test_classes_that_are_not_annotated(
    name: str, activation: str, exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of float64 logits, which take the plain pass. One gap is so wide that the background has no digits left."""
    monkeypatch.setattr(native, "EXACT", 1 << 20 if exact else 0)
    make = (LOSSES | PIXELWISE)[name]
    for gap in (3.0, 40.0):
        logits, labels = partly(gap)
        for options in (*OPTIONS, *(AVERAGED if name in LOSSES else ())):
            loss = make(activation=activation, **options)
            assert is_native(loss, logits.clone(), labels, None, KNOWN)
            told = lambda *given: loss(*given[:2], None, KNOWN)  # noqa: B023, E731
            value, gradient = value_and_gradient(told, logits, labels)
            expected, slope = value_and_gradient(told, logits.double(), labels)
            tolerance = 1e-6 if exact else FLOAT32
            torch.testing.assert_close(value.double(), expected, rtol=tolerance, atol=tolerance)
            torch.testing.assert_close(gradient.double(), slope, rtol=0, atol=tolerance * slope.abs().max().item())


def test_nothing_of_a_class_that_is_not_annotated_counts() -> None:
    logits, labels = partly()
    gradient = value_and_gradient(lambda *given: DiceLoss()(*given[:2], None, KNOWN), logits, labels)[1]
    assert not gradient[2].any()
    one = KNOWN.logical_not().view(4, 4, 1, 1) & (KNOWN.any(1).view(4, 1, 1, 1))
    alone = value_and_gradient(
        lambda *given: DiceLoss(activation="sigmoid")(*given[:2], None, KNOWN),
        logits.masked_fill(one, torch.nan),
        labels,
    )[1]
    assert alone.isfinite().all()
    assert not alone[one.expand_as(alone)].any()


@pytest.mark.parametrize("exact", [False, True], ids=["float32", "float64"])
def test_a_truth_that_is_ruled_out_is_infinitely_surprising(exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it is the background, merged of classes none of which is possible: not NaN."""
    monkeypatch.setattr(native, "EXACT", 1 << 20 if exact else 0)
    logits, labels = partly()
    logits[0, :2, 3, 4], labels[0, 3, 4] = -torch.inf, 0  # class 1 is not annotated there
    for annotated in (None, KNOWN):
        assert (DiceLoss() + CrossEntropyLoss())(logits, labels, None, annotated) == torch.inf


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_labels_of_classes_that_are_not_annotated_are_named(activation: str) -> None:
    logits, labels = partly()
    labels[1, 4, 5] = 3
    with pytest.raises(ValueError, match="image 1 has the label 3, a class that is not annotated there"):
        DiceLoss(activation=activation)(logits, labels, None, KNOWN)
    if activation == "softmax":
        with pytest.raises(ValueError, match="annotated lacks class 0 in image 0"):
            DiceLoss()(*partly(), None, KNOWN & (torch.arange(4) > 0))


# Pieces and threads


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("shape", [(3, 4, 5000), (40, 3, 70), (1, 2, 20001)])
def test_the_same_bits_from_any_number_of_threads(
    shape: tuple[int, ...], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of an image, and several images, at a time."""
    monkeypatch.setattr(native, "PIECE", 3000)
    logits, labels = batch(shape)
    loss = PolyDice1Loss(0.2) + CrossEntropyLoss()
    expected = value_and_gradient(loss, logits, labels)
    soft = torch.rand_like(logits)
    of_soft = value_and_gradient(loss, logits, soft)
    before = torch.get_num_threads()
    monkeypatch.setattr(native, "FOR_A_THREAD", 1)
    plan._PLANS.clear()
    torch.set_num_threads(threads)
    try:
        for _ in range(3):
            assert all(map(torch.equal, value_and_gradient(loss, logits, labels), expected))
            assert all(map(torch.equal, value_and_gradient(loss, logits, soft), of_soft))
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    monkeypatch.undo()
    plan._PLANS.clear()
    whole = value_and_gradient(loss, logits, labels)
    torch.testing.assert_close(whole[1], expected[1], rtol=0, atol=FLOAT32 * expected[1].abs().max().item())


def test_threads_that_an_interrupt_leaves_at_work_hold_what_they_write_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of C they call what waits."""
    monkeypatch.setattr(native, "PIECE", 3000)
    monkeypatch.setattr(native, "FOR_A_THREAD", 1)
    logits, labels = batch((2, 4, 5000))
    launches = plan.plan_loss(DiceLoss().terms, logits, labels, None).launches
    assert isinstance(launches, native.NativeLaunches)
    result = torch.empty(3)
    kept, at_work, end = ref(result), threading.Event(), threading.Event()

    def wait(*_: Any) -> int:
        if threading.current_thread() is threading.main_thread():
            at_work.wait()
        else:
            at_work.set()
            end.wait()
        return 0

    def interrupt(*_: Any) -> None:
        raise InterruptedError

    before, threads = signal.signal(signal.SIGALRM, interrupt), torch.get_num_threads()
    torch.set_num_threads(2)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        launches._shared(wait, (logits, labels, None), result)
        pytest.fail("it waits for what is at work")
    except InterruptedError:
        pass
    finally:
        torch.set_num_threads(threads)
        signal.signal(signal.SIGALRM, before)
    assert at_work.is_set()
    del result
    assert kept() is not None
    end.set()
    until = time.monotonic() + 60
    while kept() is not None and time.monotonic() < until:
        time.sleep(0.01)
    assert kept() is None


def test_interrupts_at_any_time() -> None:
    script = """
import random, signal, time, torch
from polydice import DiceLoss
torch.set_num_threads(2)
loss, labels = DiceLoss(), torch.randint(9, (8, 224, 224))
logits = torch.randn(8, 9, 224, 224, requires_grad=True)
def gradient():
    return torch.autograd.grad(loss(logits, labels), logits)[0]
def interrupt(*_):
    raise InterruptedError
expected, start = gradient(), time.perf_counter()
gradient()
seconds, interrupted = time.perf_counter() - start, 0
signal.signal(signal.SIGALRM, interrupt)
for _ in range(200):
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-4, seconds))
        gradient()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except InterruptedError:
        interrupted += 1
signal.signal(signal.SIGALRM, signal.SIG_IGN)
assert torch.equal(gradient(), expected)
assert interrupted > 50, interrupted
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


def test_several_threads_of_a_user() -> None:
    logits, labels = batch()
    expected = value_and_gradient(DiceLoss(), logits, labels)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: value_and_gradient(DiceLoss(), logits, labels), range(20)):
            assert all(map(torch.equal, found, expected))


# What it refuses, and what it leaves to the plain pass


@pytest.mark.parametrize(("bad", "ignored"), [(4, None), (-1, None), (255, 254), (-100, None)])
@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_a_bad_label_is_named(bad: int, ignored: int | None, activation: str) -> None:
    logits, labels = batch()
    labels[2, 29, 40] = bad
    with pytest.raises(ValueError, match=rf"label {bad} is not in \[0, 4\), and is not ignored either"):
        DiceLoss(activation=activation, ignore_index=ignored)(logits, labels)


def test_what_is_left_to_the_plain_pass() -> None:
    logits, labels = batch()
    soft, mask = torch.rand_like(logits), torch.rand(labels.shape)
    assert is_native(DiceLoss(), logits, labels)
    assert is_native(DiceLoss(), logits, labels.unsqueeze(1))
    assert not is_native(DiceLoss(impl="eager"), logits, labels)
    assert not is_native(DiceLoss(impl="eager") + CrossEntropyLoss(impl="eager"), logits, labels)
    assert not is_native(DiceLoss(), logits.detach().double(), labels)
    assert not is_native(DiceLoss(), logits.detach().bfloat16(), labels)
    assert is_native(DiceLoss(), logits, soft)
    assert not is_native(DiceLoss(), logits, soft.double())
    assert not is_native(DiceLoss(), logits, soft.mT.contiguous().mT)
    assert not is_native(DiceLoss(), logits, soft, None, torch.ones(3, 4, dtype=torch.bool))
    assert not is_native(DiceLoss(), logits, labels, mask)
    assert is_native(DiceLoss(), logits, labels, None, torch.ones(3, 4, dtype=torch.bool))
    assert not is_native(DiceLoss(), logits.detach().contiguous(memory_format=torch.channels_last), labels)
    assert not is_native(DiceLoss(), logits, labels.mT.contiguous().mT)
    assert not is_native(CrossEntropyLoss(label_smoothing=0.1), logits, labels)
    assert not is_native(FocalTverskyLoss(), logits, labels)
    assert not is_native(DiceLoss(ignore_index=2**63), logits, labels)
    assert not is_native(DiceLoss(), torch._neg_view(logits.detach()), labels)


# Autograd


def test_a_second_derivative_is_refused() -> None:
    logits, labels = batch()
    loss = DiceLoss()(logits.requires_grad_(), labels)
    with pytest.raises(RuntimeError, match="differentiated once, not twice"):
        torch.autograd.grad(loss, logits, create_graph=True)


def test_logits_changed_in_place_are_noticed() -> None:
    logits, labels = batch()
    given = logits.requires_grad_() * 1
    loss = DiceLoss()(given, labels)
    given.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_gradient_that_arrives_is_a_factor() -> None:
    """Also one that a scaler has multiplied: nothing becomes infinite that need not."""
    logits, labels = batch()
    value, gradient = value_and_gradient(PolyDice1Loss(0.2), logits, labels)
    twice = value_and_gradient(lambda *given: -4 * PolyDice1Loss(0.2)(*given), logits, labels)[1]
    assert torch.equal(twice, -4 * gradient)
    with torch.inference_mode():
        assert torch.equal(PolyDice1Loss(0.2)(logits, labels), value)
    with torch.no_grad():
        assert not PolyDice1Loss(0.2)(logits.requires_grad_(), labels).requires_grad


def test_torch_s_defaults_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What C writes to is float32 on the CPU, whatever a new tensor would be."""
    loss, (logits, labels) = PolyDice1Loss(0.2), batch()
    expected = value_and_gradient(loss, logits, labels)
    for threads_for in (1 << 30, 1):
        monkeypatch.setattr(native, "FOR_A_THREAD", threads_for)
        plan._PLANS.clear()
        torch.set_default_dtype(torch.float64)
        try:
            with torch.device("meta"):
                found = value_and_gradient(loss, logits, labels)
        finally:
            torch.set_default_dtype(torch.float32)
        assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize(
    "kept", [torch.clone, lambda t: t.half() if t.is_floating_point() else t], ids=["copy", "half"]
)
def test_saved_tensors_may_come_back_as_others(kept: Any) -> None:
    logits, labels = batch()
    loss = DiceLoss() + CrossEntropyLoss()
    for target in (labels, masks(labels, "soft")):
        expected = value_and_gradient(loss, logits, target)[1]
        given = logits.clone().requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(kept, lambda t: t):
            value = loss(given, target)
        found = torch.autograd.grad(value, given)[0]
        torch.testing.assert_close(found, expected, rtol=0, atol=4e-3 * expected.abs().max().item())


def test_a_gradient_may_be_a_view_with_another_sign() -> None:
    logits, labels = batch()
    expected = value_and_gradient(DiceLoss(), logits, labels)[1]
    one = torch.tensor(-1j).conj().imag
    assert one.is_neg()
    logits.requires_grad_()
    found = torch.autograd.grad(DiceLoss()(logits, labels), logits, one)[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=FLOAT32 * expected.abs().max().item())


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # torch's own look
def test_who_looks_at_operators_sees_them() -> None:
    """Backward under a fake mode has no memory to write to."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    logits, labels = batch()
    loss = DiceLoss()(logits.requires_grad_(), labels)
    with FakeTensorMode(allow_non_fake_inputs=True):
        (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient.shape == logits.shape
    with FlopCounterMode(display=False):
        assert not is_native(DiceLoss(), *batch())


def test_a_pixel_that_is_no_number_is_seen_whatever_its_class_weighs() -> None:
    logits, labels = batch()
    logits[1, 1, 2, 3], labels[1, 2, 3] = torch.nan, 0
    assert CrossEntropyLoss(include_background=False)(logits, labels).isnan()


def test_the_same_pixel_has_the_same_gradient_wherever_it_lies() -> None:
    """At the end of an image too, where vectors are not full."""
    logits, labels = batch((1, 3, 1))
    loss = PolyCE1Loss(2.0) + PolyDice1Loss(0.2) + TverskyLoss()
    for count in (4001, 4015, 4127):
        gradient = value_and_gradient(loss, logits.expand(1, 3, count).clone(), labels.expand(1, count).clone())[1]
        assert torch.equal(gradient, gradient[..., :1].expand_as(gradient))


class Weighted(DiceLoss):
    def class_weights(self, like: Tensor) -> Tensor:
        return like.new_tensor([0.0, 0.0, 1.0, 0.0])


def test_a_subclass_that_computes_otherwise_is_left_to_torch() -> None:
    logits, labels = batch()
    assert not is_native(Weighted(absent="skip"), logits, labels)


# How it is compiled


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Of somebody who has never used polydice."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for function in (compiling.obstacle, compiling.library):
        function.cache_clear()
    yield tmp_path
    monkeypatch.undo()
    for function in (compiling.obstacle, compiling.library):
        function.cache_clear()


def kept(home: Path) -> list[Path]:
    return [path for path in (home / ".cache/polydice").rglob("*") if path.is_file()]


@pytest.mark.parametrize("mask", [0o022, 0o002])  # with the latter, files are the group's to write
def test_it_is_compiled_once_and_kept(
    mask: int, home: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    before = os.umask(mask)
    request.addfinalizer(lambda: os.umask(before))
    assert compiling.obstacle() == ""
    (library,) = kept(home)
    assert library.stat().st_size > 10_000
    compiling.obstacle.cache_clear()
    compiling.library.cache_clear()
    monkeypatch.setattr(compiling, "run", lambda *command: pytest.fail(f"run again: {command}"))
    assert compiling.obstacle() == ""
    assert is_native(DiceLoss(), *batch())


def test_what_a_killed_process_has_left_is_cleared_away_a_day_later(home: Path) -> None:
    left = [compiling.kept_in() / f"{compiling.MAKING}{name}" for name in ("now", "then")]
    for folder in left:
        folder.mkdir()
    os.utime(left[1], (0, left[1].stat().st_mtime - 2 * compiling.A_DAY))
    assert compiling.obstacle() == ""
    assert [folder.exists() for folder in left] == [True, False]


def test_two_processes_that_compile_at_once(home: Path) -> None:
    script = "from polydice.kernels import compiling; raise SystemExit(bool(compiling.obstacle()))"
    paths = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    started = [subprocess.Popen([sys.executable, "-c", script], env=os.environ | paths) for _ in range(2)]
    assert [process.wait(timeout=300) for process in started] == [0, 0]
    assert len(kept(home)) == 1


@pytest.mark.parametrize("damage", ["short", "empty", "others"])
def test_a_kept_library_that_is_not_whole_or_not_ours_is_made_again(damage: str, home: Path) -> None:
    assert compiling.obstacle() == ""
    (library,) = kept(home)
    content = library.read_bytes()
    if damage == "others":
        library.chmod(0o666)
    else:
        library.unlink()  # it is loaded
        library.write_bytes(content[: 5000 if damage == "short" else 0])
    compiling.obstacle.cache_clear()
    compiling.library.cache_clear()
    assert compiling.obstacle() == ""
    assert library.read_bytes() == content
    assert library.stat().st_mode & 0o022 == 0


def test_a_folder_that_others_may_write_to_is_not_used(home: Path) -> None:
    (home / ".cache/polydice/compiled").mkdir(parents=True)
    (home / ".cache/polydice/compiled").chmod(0o777)
    assert "others may write" in compiling.obstacle()


@pytest.mark.parametrize("what", ["compiler", "home", "sources", "library"])
def test_where_it_cannot_be_compiled_the_plain_pass_does_the_same(
    what: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if what == "compiler":
        monkeypatch.setattr(compiling, "COMPILERS", ("a compiler that is not there",))
    elif what == "home":
        (home / ".cache").write_text("not a folder", encoding="utf-8")
    else:
        source = home / "native.c"
        source.write_text("int" if what == "sources" else "int polydice_try(void) { return 1; }", encoding="utf-8")
        monkeypatch.setattr(compiling, "SOURCES", (source,))
    assert compiling.obstacle()
    assert kept(home) == []
    logits, labels = batch()
    assert not is_native(DiceLoss(), logits, labels)
    expected = DiceLoss(impl="eager")(logits, labels)
    assert torch.equal(DiceLoss()(logits, labels), expected)


def test_the_first_call_of_several_threads(home: Path) -> None:
    logits, labels = batch()
    found: list[Tensor] = []
    threads = [threading.Thread(target=lambda: found.append(DiceLoss()(logits, labels))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({value.item() for value in found}) == 1
    assert len(kept(home)) == 1
