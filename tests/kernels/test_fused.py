"""The kernels compiled for a GPU, which takes none: what the interpreter lets through, the compiler may not."""

import os
from typing import Any

import pytest
import torch

from polydice import (
    CrossEntropyLoss,
    DiceLoss,
    DropDiceLoss,
    FocalLoss,
    FocalTverskyLoss,
    PolyCE1Loss,
    PolyDice1Loss,
)
from polydice.base import Loss, LossSum
from polydice.kernels.fields import SUMS, Formula, FormulaTerm, Options
from polydice.kernels.plan import fused_obstacle

pytestmark = pytest.mark.skipif(
    "Triton" in fused_obstacle(torch.zeros(1)) or os.environ.get("TRITON_INTERPRET") == "1",
    reason="needs Triton's compiler",
)
POINTERS = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.bfloat16: "*bf16",
    torch.int64: "*i64",
    torch.uint8: "*u8",
}
KINDS = {float: "fp32", int: "i32", type(None): "constexpr"}


def compiled(launch: Any, *dtypes: torch.dtype) -> Any:
    """The launch's kernel for an H100 or H200."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = launch.kernel.arg_names
    types = [POINTERS[dtype] for dtype in dtypes]
    types += [KINDS[type(number)] for number in launch.numbers]
    signature = dict(zip(names, types, strict=False)) | dict.fromkeys(launch.constants, "constexpr")
    constants = {(names.index(name),): value for name, value in launch.constants.items()}
    constants |= {(len(dtypes) + place,): None for place, number in enumerate(launch.numbers) if number is None}
    source = ASTSource(launch.kernel, signature, constants, {})
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=launch.options)


def launches(loss: Loss | LossSum, classes: int, dtype: torch.dtype, labels: bool, partial: bool = False) -> Any:
    from polydice.kernels.fused import TensorSpec, loss_launches

    terms = [(factor, term.fused_form(), term.want) for factor, term in loss.terms]
    formula = Formula(
        tuple(FormulaTerm(form, factor, background=True, skip_absent=False) for factor, form, _ in terms),
        mean=True,
        over_batch=False,
        weighted=False,
    )
    host = torch.device("cpu")
    logits = TensorSpec((2, classes, 6, 10), (60 * classes, 60, 10, 1), dtype, host)
    target = TensorSpec((2, 6, 10), (60, 10, 1), torch.int64, host) if labels else logits._replace(dtype=torch.uint8)
    want = {"target" if labels and name == "target_sq" else name for *_, wanted in terms for name in wanted}
    options = Options(loss.terms[0][1].activation, None, tuple(name for name in SUMS if name in want))
    found = loss_launches(formula, options, labels, logits, target, None, partial)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "loss",
    [
        DiceLoss(),
        PolyDice1Loss(0.5),
        DropDiceLoss(7),
        FocalTverskyLoss(),
        PolyCE1Loss(),
        FocalLoss() + CrossEntropyLoss(label_smoothing=0.1),
        DropDiceLoss(3, scale="detached") + 0.5 * CrossEntropyLoss() + DiceLoss(squared=False),
    ],
    ids=repr,
)
def test_tail(loss: Loss | LossSum) -> None:
    doubles = [torch.float64] * 2  # weights, and what is added to coefficients
    kernel = compiled(launches(loss, 5, torch.float32, labels=True).ending.tail, torch.float32, *doubles, torch.float32)
    assert kernel.asm["cubin"]


@pytest.mark.parametrize(
    ("classes", "activation", "labels"),
    [
        (14, "softmax", True),
        (118, "softmax", True),
        (300, "softmax", True),
        (14, "softmax", False),
        (1, "sigmoid", True),
        (118, "sigmoid", False),
    ],
)
def test_pass(classes: int, activation: str, labels: bool) -> None:
    dtype = torch.bfloat16 if classes == 118 else torch.float32
    loss = PolyDice1Loss(0.5, activation=activation) + CrossEntropyLoss(activation=activation)
    over_pixels = launches(loss, classes, dtype, labels).over_pixels
    target = torch.int64 if labels else torch.uint8
    forward = compiled(over_pixels.forward, dtype, target, dtype, torch.float32)
    backward = compiled(over_pixels.backward, torch.float32, torch.float32, dtype, target, dtype, dtype)
    assert forward.asm["cubin"]
    assert backward.asm["cubin"]
    assert "%annotated" not in forward.asm["ttir"] + backward.asm["ttir"]  # it costs nothing where it is not given


@pytest.mark.parametrize(("classes", "activation", "labels"), [(9, "softmax", True), (40, "softmax", False)])
def test_launches_of_classes_that_are_not_annotated(classes: int, activation: str, labels: bool) -> None:
    loss = DiceLoss(activation=activation) + CrossEntropyLoss(activation=activation)
    found = launches(loss, classes, torch.float32, labels, partial=True)
    real, given, target = torch.float32, torch.uint8, torch.int64 if labels else torch.uint8
    forward = compiled(found.over_pixels.forward, real, target, real, real, given)
    backward = compiled(found.over_pixels.backward, *[real] * 3, target, real, real, given)
    assert all("%annotated" in kernel.asm["ttir"] and kernel.asm["cubin"] for kernel in (forward, backward))
    assert compiled(found.ending.tail, real, torch.float64, torch.float64, real, given).asm["cubin"]


@pytest.mark.parametrize(("classes", "activation"), [(3, "softmax"), (118, "softmax"), (3, "sigmoid")])
def test_pass_with_sums_on_request(classes: int, activation: str) -> None:
    loss = FocalLoss(activation=activation) + DiceLoss(activation=activation)
    if activation == "softmax":
        loss = loss + CrossEntropyLoss(label_smoothing=0.1)
    over_pixels = launches(loss, classes, torch.float32, labels=True).over_pixels
    tensors = [torch.float32, torch.int64, torch.float32, torch.float32]
    assert compiled(over_pixels.forward, *tensors).asm["cubin"]
    assert compiled(over_pixels.backward, torch.float32, torch.float32, *tensors).asm["cubin"]


@pytest.mark.parametrize(
    ("width", "classes", "activation", "labels", "dtype"),
    [(32, 118, "softmax", True, torch.bfloat16), (20, 5, "sigmoid", False, torch.float32)],
)
def test_pass_from_features(width: int, classes: int, activation: str, labels: bool, dtype: torch.dtype) -> None:
    from polydice.kernels.fused import TensorSpec
    from polydice.kernels.head_fused import Inputs, _gradients, _launch, _like

    host, want = torch.device("cpu"), tuple(name for name in SUMS if name != "uniform")
    target = TensorSpec((2, 960), (960, 1), torch.uint8, host)
    inputs = Inputs(
        TensorSpec((2, width, 960), (960 * width, 960, 1), dtype, host),
        TensorSpec((classes, width), (width, 1), torch.float32, host),
        TensorSpec((classes,), (1,), torch.float32, host),
        target if labels else TensorSpec((2, classes, 960), (960 * classes, 960, 1), torch.uint8, host),
        None,
    )
    tensors = [dtype, torch.float32, torch.float32, torch.uint8, dtype]
    options = Options(activation, None, want, 1.5)
    made = _gradients(inputs, _like(inputs.features).strides, options, (True, True, True), lump=False, scaled=True)
    assert compiled(_launch(inputs, options), *tensors, torch.float32).asm["cubin"]
    assert compiled(made.over_pixels, torch.float32, torch.float32, *tensors, dtype, torch.float32).asm["cubin"]
    assert compiled(made.collect, torch.float32, torch.float32, torch.float32).asm["cubin"]
