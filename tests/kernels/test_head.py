import warnings
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from polydice import CrossEntropyLoss, DiceLoss, HeadLoss, PolyDice1Loss
from polydice.kernels import blocks
from polydice.kernels.head import head_sums
from polydice.sums import FIELDS
from tests.kernels.test_eager import peak_bytes
from tests.kernels.test_op import Calls
from tests.reference import Case, each_loss

# torch's own compiler makes an instance of every autograd function and loads torch.jit, and torch warns of both.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.torch.jit.*is deprecated:DeprecationWarning"),
]
SAME = 1e-12
MIB = 2**20


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch._dynamo.reset()


def inputs(*spatial: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(2, 5, *spatial, dtype=dtype, requires_grad=True), torch.randint(3, (2, *spatial))


def head_loss(loss: Any, dtype: torch.dtype = torch.float64) -> HeadLoss:
    torch.manual_seed(1)
    return HeadLoss(loss, nn.Conv2d(5, 3, 1, dtype=dtype))


def results(call: Any, loss: HeadLoss, features: Tensor, labels: Tensor) -> list[Tensor]:
    value = call(features, labels)
    return [value.detach(), *torch.autograd.grad(value, [features, *loss.conv.parameters()])]


def close(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=SAME, atol=SAME)


# Slabs


@pytest.mark.parametrize("block", [1, 3 * blocks.RUN, 6 * blocks.RUN + 1, 100 * blocks.RUN])
@pytest.mark.parametrize("pixels", [blocks.RUN - 1, 2 * blocks.RUN, 5 * blocks.RUN + 3])
def test_slabs_of_any_size_give_the_same(monkeypatch: pytest.MonkeyPatch, pixels: int, block: int) -> None:
    """Of pixels where an image is larger than a slab, of images where it is smaller, with a short last one."""
    features, labels = inputs(1, pixels)
    loss = head_loss(PolyDice1Loss(0.2, ignore_index=1) + CrossEntropyLoss(ignore_index=1))
    expected = results(lambda x, target: loss.loss(loss.conv(x), target), loss, features, labels)
    monkeypatch.setattr(blocks, "CPU_BLOCK", block)
    close(results(loss, loss, features, labels), expected)


# Memory


@pytest.mark.parametrize(
    "loss",
    [PolyDice1Loss(0.2), PolyDice1Loss(0.2, ignore_index=0) + CrossEntropyLoss(ignore_index=0)],
    ids=["dice", "ignored pixels and cross-entropy"],
)
@pytest.mark.parametrize(("classes", "side"), [(118, 32), (236, 32), (118, 40), (3, 64)])
def test_memory_does_not_grow_with_classes_and_pixels(classes: int, side: int, loss: Any) -> None:
    """Beyond the gradient of the features: a few blocks of the pass, 1 MiB each. The logits are 3 to 31 MiB."""
    conv = nn.Conv3d(32, classes, 1)
    features = torch.randn(1, 32, side, side, side, requires_grad=True)
    labels, call = torch.randint(classes, (1, side, side, side), dtype=torch.uint8), HeadLoss(loss, conv)
    extra = peak_bytes(lambda: torch.autograd.grad(call(features, labels), [features, *conv.parameters()]))
    assert extra - features.nbytes < 7 * MIB


@each_loss
def test_nothing_but_the_inputs_is_kept_for_backward(case: Case) -> None:
    features, labels = inputs(50, 50)
    loss = head_loss(case.make())
    given = {tensor.data_ptr() for tensor in (features, labels, loss.conv.weight, loss.conv.bias)}
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        loss(features, labels)
    others = [tensor for tensor in kept if tensor.data_ptr() not in given]
    assert features.data_ptr() in {tensor.data_ptr() for tensor in kept}
    assert all(tensor.numel() <= 2 * 3 * len(FIELDS) for tensor in others)  # a few [B, C] tensors


# The operator


# torch 2.15: opcheck itself looks at the gradients of the copies that it makes.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["labels", "ignored", "soft", "annotated"])
def test_the_operator_is_what_torch_asks_of_one(kind: str, bias: bool) -> None:
    """opcheck: schema, autograd registration, the fake implementation, tracing with dynamic shapes."""
    features = torch.randn(2, 5, 40, requires_grad=True)
    weight, offset = torch.randn(3, 5, requires_grad=True), torch.randn(3, requires_grad=True) if bias else None
    target = torch.rand(2, 3, 40) if kind == "soft" else torch.randint(2 if kind == "annotated" else 3, (2, 40))
    ignored = 1 if kind == "ignored" else None
    annotated = torch.tensor([[True, True, False], [True, True, True]]) if kind == "annotated" else None
    with Calls() as recorded:
        sums = head_sums(
            features, weight, offset, target, torch.rand(2, 40), "softmax", ignored, ["error_sq", "focal"], False, 1.5,
            annotated,
        )  # fmt: skip
        sums.sum().backward()
    assert recorded.names == ["polydice::head_sums", "polydice::head_sums_backward"]
    (forward, args, kwargs), (backward, backward_args, backward_kwargs) = recorded.calls
    leaves = {id(tensor): tensor for tensor in (features, weight, offset)}
    torch.library.opcheck(forward, tuple(leaves.get(id(arg), arg) for arg in args), kwargs)
    # It has no derivative of its own: it is checked as a plain function.
    utilities = ("test_schema", "test_faketensor")
    torch.library.opcheck(backward, backward_args, backward_kwargs, test_utils=utilities)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_fake_tensors_have_the_shapes_types_and_strides_of_real_ones(dtype: torch.dtype, layout: str) -> None:
    features, labels = inputs(8, 8, dtype=dtype)
    if layout == "channels_last":
        features = features.detach().contiguous(memory_format=torch.channels_last)
    loss = head_loss(DiceLoss(), dtype)

    def run(x: Tensor, target: Tensor, weight: Tensor) -> list[Tensor]:
        x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
        others = {"conv.weight": weight, "conv.bias": weight.new_zeros(3)}
        value = torch.func.functional_call(loss, others, (x, target))
        return [value, *torch.autograd.grad(value, [x, weight])]

    real = run(features, labels, loss.conv.weight)
    with FakeTensorMode() as mode:
        fake = run(*map(mode.from_tensor, (features, labels, loss.conv.weight)))
    for one, other in zip(real, fake, strict=True):
        assert (one.shape, one.dtype, one.stride()) == (other.shape, other.dtype, other.stride())


def test_meta_tensors_pass() -> None:
    features = torch.empty(2, 5, 8, 8, device="meta", requires_grad=True)
    loss = HeadLoss(DiceLoss(), nn.Conv2d(5, 3, 1, device="meta"))
    loss(features, torch.empty(2, 8, 8, device="meta", dtype=torch.long)).backward()
    assert features.grad.shape == features.shape
    assert loss.conv.weight.grad.shape == loss.conv.weight.shape


# torch.func


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_transforms_of_torch_func_differentiate_it() -> None:
    features, labels = inputs(6, 7)
    loss = head_loss(DiceLoss() + CrossEntropyLoss())
    weights = {name: parameter.detach() for name, parameter in loss.named_parameters()}

    def value(given: dict[str, Tensor], x: Tensor, target: Tensor) -> Tensor:
        return torch.func.functional_call(loss, given, (x[None], target[None]))

    found = torch.func.vmap(torch.func.grad(value), (None, 0, 0))(weights, features.detach(), labels)
    for index in range(2):
        alone = loss(features[index : index + 1], labels[index : index + 1])
        expected = torch.autograd.grad(alone, [*loss.parameters()])
        close([found[name][index] for name in weights], [*expected])


def test_the_second_derivative_and_forward_mode_are_refused() -> None:
    features, labels = inputs(6, 7)
    loss = head_loss(DiceLoss())
    (gradient,) = torch.autograd.grad(loss(features, labels), features, create_graph=True)
    with pytest.raises(RuntimeError, match="can be differentiated once, backwards"):
        gradient.square().sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RuntimeError, match="not forwards"):
            torch.func.jvp(lambda x: loss(x, labels), (features.detach(),), (features.detach(),))


# torch.compile


@each_loss
def test_every_loss_compiles_in_one_graph(case: Case) -> None:
    features, labels = inputs(6, 7)
    loss = head_loss(case.make())
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    close(results(compiled, loss, features, labels), results(loss, loss, features, labels))


def test_the_default_compiler_gives_the_same_with_sizes_that_change() -> None:
    loss = head_loss(PolyDice1Loss(0.2, batch=True) + 0.5 * CrossEntropyLoss())
    compiled = torch.compile(loss, fullgraph=True, dynamic=True)
    for height in (8, 9, 13):
        features, labels = inputs(height, 10)
        close(results(compiled, loss, features, labels), results(loss, loss, features, labels))


def test_autocast_and_a_compiler_together() -> None:
    features, labels = inputs(9, 10, dtype=torch.float32)
    loss = head_loss(DiceLoss(), torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
        found, expected = (results(call, loss, features, labels) for call in (compiled, loss))
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_a_tracer_sees_one_node_and_no_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "CPU_BLOCK", 3 * blocks.RUN)
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    aot = torch._dynamo.backends.common.aot_autograd(fw_compiler=backend, bw_compiler=backend)
    features, labels = inputs(20, 3 * blocks.RUN)
    torch.compile(head_loss(DiceLoss()), fullgraph=True, backend=aot)(features, labels).backward()
    own = [str(node.target) for graph in graphs for node in graph.graph.nodes if "polydice" in str(node.target)]
    assert own == ["polydice.head_sums.default", "polydice.head_sums_backward.default"]
    nodes = [node for graph in graphs for node in graph.graph.nodes if node.op == "call_function"]
    of_logits = [node for node in nodes if getattr(node.meta.get("val"), "shape", ())[1:2] == (3,)]
    assert all(
        node.meta["val"].numel() <= 2 * 3 * len(FIELDS) for node in of_logits if "expand" not in str(node.target)
    )
