import warnings
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from polydice import CrossEntropyLoss, DiceLoss, PolyDice1Loss, pixel_sums
from polydice.kernels import blocks
from polydice.kernels.fields import FIELDS
from tests.reference import ACTIVATIONS, Case, each_loss, each_loss_and_activation, predictions, value_and_gradient

# torch's own compiler makes an instance of every autograd function and loads torch.jit, and torch warns of both.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.torch.jit.*is deprecated:DeprecationWarning"),
]

# Compiled code may join or reorder float64 operations.
SAME = 1e-12


class Calls(TorchDispatchMode):
    """Records the calls of the library's own operators: each is one to a tracer, whatever it does inside."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple, dict]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if function.namespace == "polydice":
            self.calls.append((function, args, kwargs or {}))
        return function(*args, **(kwargs or {}))

    @property
    def names(self) -> list[str]:
        return [function.name() for function, _, _ in self.calls]


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch._dynamo.reset()


# The operator


# torch 2.15: opcheck itself looks at the gradients of the copies that it makes.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", ["labels", "ignored", "soft"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_operator_is_what_torch_asks_of_one(activation: str, kind: str, masked: bool) -> None:
    """opcheck: schema, autograd registration, the fake implementation, tracing with dynamic shapes."""
    x = predictions((2, 3, 40), activation, torch.float32).requires_grad_()
    target = torch.rand(2, 3, 40) if kind == "soft" else torch.randint(3, (2, 40))
    mask, ignored = torch.rand(2, 40) if masked else None, 1 if kind == "ignored" else None
    with Calls() as recorded:
        sums = pixel_sums(x, target, activation=activation, mask=mask, ignore_index=ignored)
        sums.intersection.sum().backward()
    assert recorded.names == ["polydice::pixel_sums", "polydice::pixel_sums_backward"]
    (forward, args, kwargs), (backward, backward_args, backward_kwargs) = recorded.calls
    torch.library.opcheck(forward, tuple(x if a is args[0] else a for a in args), kwargs)
    # It has no derivative of its own: it is checked as a plain function.
    utilities = ("test_schema", "test_faketensor")
    torch.library.opcheck(backward, backward_args, backward_kwargs, test_utils=utilities)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_fake_tensors_have_the_shapes_types_and_strides_of_real_ones(dtype: torch.dtype, layout: str) -> None:
    x = torch.randn(2, 3, 8, 8).to(dtype)
    if layout == "channels_last":
        x = x.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(3, (2, 8, 8))

    def run(logits: Tensor, target: Tensor) -> list[Tensor]:
        logits = logits.detach().requires_grad_()
        value = DiceLoss()(logits, target)
        return [value, torch.autograd.grad(value, logits)[0]]

    real = run(x, labels)
    with FakeTensorMode() as mode:
        fake = run(mode.from_tensor(x), mode.from_tensor(labels))
    for one, other in zip(real, fake, strict=True):
        assert (one.shape, one.dtype, one.stride()) == (other.shape, other.dtype, other.stride())


@each_loss
def test_no_loss_asks_the_host_for_a_value(case: Case) -> None:
    """Tensors without values can answer no such question: this would raise."""
    with FakeTensorMode():
        x = torch.randn(2, 3, 40, requires_grad=True)
        labels, mask = torch.randint(3, (2, 40)), torch.rand(2, 40)
        options = {"absent": "skip"} if case.region else {}
        case.make(ignore_index=0, include_background=False, **options)(x, labels, mask).backward()
        assert x.grad.shape == x.shape


def test_meta_tensors_pass() -> None:
    x = torch.empty(2, 3, 8, 8, device="meta", requires_grad=True)
    loss = DiceLoss()(x, torch.empty(2, 8, 8, device="meta", dtype=torch.long))
    loss.backward()
    assert loss.shape == ()
    assert x.grad.shape == x.shape


def test_a_graph_of_the_gradient_gives_the_same_gradient() -> None:
    x, labels = torch.randn(2, 3, 40, dtype=torch.float64, requires_grad=True), torch.randint(3, (2, 40))
    loss = DiceLoss()(x, labels)
    (plain,) = torch.autograd.grad(loss, x, retain_graph=True)
    (with_graph,) = torch.autograd.grad(loss, x, create_graph=True)
    torch.testing.assert_close(with_graph.detach(), plain, rtol=0, atol=0)


def test_the_second_derivative_is_right_or_refused() -> None:
    """Never a silent 0."""
    x, labels = torch.randn(2, 3, 10, dtype=torch.float64, requires_grad=True), torch.randint(3, (2, 10))
    try:
        (gradient,) = torch.autograd.grad(DiceLoss()(x, labels), x, create_graph=True)
        (second,) = torch.autograd.grad(gradient.square().sum(), x)
    except (RuntimeError, NotImplementedError):
        return
    step = 1e-6

    def squared(logits: Tensor) -> Tensor:
        return value_and_gradient(DiceLoss(), logits, labels)[1].square().sum()

    moved = torch.zeros_like(x)
    moved[0, 0, 0] = step
    numeric = (squared(x + moved) - squared(x - moved)) / (2 * step)
    torch.testing.assert_close(second[0, 0, 0], numeric, rtol=1e-5, atol=1e-12)


# torch.func


def loss_of_one(logits: Tensor, labels: Tensor) -> Tensor:
    return (PolyDice1Loss(0.2) + CrossEntropyLoss())(logits.unsqueeze(0), labels.unsqueeze(0))


def test_func_grad_is_autograds() -> None:
    x, labels = torch.randn(2, 3, 10, dtype=torch.float64), torch.randint(3, (2, 10))
    for loss in (PolyDice1Loss(0.2), DiceLoss() + CrossEntropyLoss(ignore_index=None)):
        gradient, value = torch.func.grad_and_value(loss)(x, labels)
        expected, its_gradient = value_and_gradient(loss, x, labels)
        torch.testing.assert_close(value, expected, rtol=0, atol=0)
        torch.testing.assert_close(gradient, its_gradient, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # of a rule that torch finds itself
def test_func_vmap_takes_images_one_by_one() -> None:
    x, labels = torch.randn(2, 3, 10, dtype=torch.float64), torch.randint(3, (2, 10))
    found = torch.func.vmap(torch.func.grad(loss_of_one))(x, labels)
    for image, its_labels, gradient in zip(x, labels, found, strict=True):
        _, expected = value_and_gradient(lambda *given: loss_of_one(*given[:2]), image, its_labels)
        torch.testing.assert_close(gradient, expected, rtol=SAME, atol=SAME)


def test_forward_mode_and_second_derivatives_are_refused_in_words() -> None:
    """Never a silent 0."""
    x, labels = torch.randn(3, 10, dtype=torch.float64), torch.randint(3, (10,))

    def loss(logits: Tensor) -> Tensor:
        return loss_of_one(logits, labels)

    for refused in (
        lambda: torch.func.jvp(loss, (x,), (x,)),
        lambda: torch.func.hessian(loss)(x),
        lambda: torch.func.grad(lambda z: torch.func.grad(loss)(z).square().sum())(x),
    ):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")
            with pytest.raises(RuntimeError, match="can be differentiated once, backwards"):
                refused()
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match="not forwards"):
        loss(forward_ad.make_dual(x, x))


# One pass


def test_a_sum_of_losses_makes_one_pass() -> None:
    x, labels = torch.randn(2, 3, 40, requires_grad=True), torch.randint(3, (2, 40))
    loss = PolyDice1Loss(0.2, batch=True) + 0.5 * CrossEntropyLoss() + DiceLoss(squared=False)
    with Calls() as recorded:
        loss(x, labels).backward()
    assert recorded.names == ["polydice::pixel_sums", "polydice::pixel_sums_backward"]


@pytest.mark.parametrize(
    ("loss", "sums"),
    [
        (DiceLoss(), {"prediction_sq", "target_sq", "error_sq"}),
        (DiceLoss(squared=False), {"intersection", "prediction", "target"}),
        (CrossEntropyLoss(), {"cross_entropy", "pixels", "target"}),
    ],
)
def test_sums_that_no_loss_wants_are_not_made(loss: torch.nn.Module, sums: set[str]) -> None:
    with Calls() as recorded:
        loss(torch.randn(2, 3, 40), torch.randint(3, (2, 40)))
    wanted = next(arg for arg in recorded.calls[0][1] if isinstance(arg, list) and arg and arg[0] in FIELDS)
    assert set(wanted) == sums


# torch.compile


@pytest.mark.parametrize("kind", ["labels", "soft"])
@each_loss_and_activation
def test_every_loss_compiles_in_one_graph(case: Case, activation: str, kind: str) -> None:
    x = predictions((2, 3, 6, 7), activation)
    target = torch.randint(3, (2, 6, 7)) if kind == "labels" else torch.rand(2, 3, 6, 7, dtype=torch.float64)
    loss = case.make(activation=activation)
    eager_result = value_and_gradient(loss, x, target)
    compiled = value_and_gradient(torch.compile(loss, fullgraph=True, backend="aot_eager"), x, target)
    for found, expected in zip(compiled, eager_result, strict=True):
        torch.testing.assert_close(found, expected, rtol=SAME, atol=SAME)


@pytest.mark.parametrize(
    "options",
    [
        {"ignore_index": 1},
        {"weight": [1.0, 0.5, 0.0], "absent": "skip"},
        {"include_background": False, "batch": True},
        {"reduction": "none"},
        {"smooth": 0.0, "reduction": "sum"},
    ],
    ids=str,
)
def test_every_option_compiles_in_one_graph(options: dict) -> None:
    x, labels, mask = torch.randn(2, 3, 50).double(), torch.randint(3, (2, 50)), torch.rand(2, 50)
    loss = PolyDice1Loss(0.2, **options)
    expected = value_and_gradient(loss, x, labels, mask)
    found = value_and_gradient(torch.compile(loss, fullgraph=True, backend="aot_eager"), x, labels, mask)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=SAME, atol=SAME)


@pytest.mark.parametrize(
    "loss",
    [PolyDice1Loss(0.2), DiceLoss(squared=False), PolyDice1Loss(0.2, batch=True) + 0.5 * CrossEntropyLoss()],
    ids=str,
)
def test_the_default_compiler_gives_the_same(loss: torch.nn.Module) -> None:
    x, labels = torch.randn(2, 3, 20, 20, dtype=torch.float64), torch.randint(3, (2, 20, 20))
    expected = value_and_gradient(loss, x, labels)
    found = value_and_gradient(torch.compile(loss, fullgraph=True), x, labels)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=SAME, atol=SAME)


def test_the_sizes_may_change_from_call_to_call() -> None:
    loss = PolyDice1Loss(0.2) + CrossEntropyLoss()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=True)
    for batch, height in ((2, 8), (3, 9), (4, 13)):
        x = torch.randn(batch, 3, height, 10, dtype=torch.float64)
        labels = torch.randint(3, (batch, height, 10))
        expected = value_and_gradient(loss, x, labels)
        for one, other in zip(value_and_gradient(compiled, x, labels), expected, strict=True):
            torch.testing.assert_close(one, other, rtol=SAME, atol=SAME)


def test_the_loop_over_blocks_is_not_in_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of blocks, one node forward and one backward."""
    monkeypatch.setattr(blocks, "CPU_BLOCK", 3 * blocks.RUN)
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    aot = torch._dynamo.backends.common.aot_autograd(fw_compiler=backend, bw_compiler=backend)
    x, labels = torch.randn(2, 3, 200 * blocks.RUN, requires_grad=True), torch.randint(3, (2, 200 * blocks.RUN))
    torch.compile(DiceLoss(), fullgraph=True, backend=aot)(x, labels).backward()
    own = [str(node.target) for graph in graphs for node in graph.graph.nodes if "polydice" in str(node.target)]
    assert own == ["polydice.pixel_sums.default", "polydice.pixel_sums_backward.default"]
    # All else is arithmetic on a few numbers.
    assert sum(len(graph.graph.nodes) for graph in graphs) < 200
    assert all(
        node.meta["val"].numel() <= 2 * 3 * len(FIELDS)
        for graph in graphs
        for node in graph.graph.nodes
        if node.op == "call_function"
        and isinstance(node.meta.get("val"), Tensor)
        and "view" not in str(node.target)
        and "pixel_sums_backward" not in str(node.target)
    )


def test_a_bad_label_is_named_in_compiled_code_too() -> None:
    compiled = torch.compile(DiceLoss(), fullgraph=True, backend="aot_eager")
    with pytest.raises(ValueError, match="label 7 is not in"):
        compiled(torch.randn(2, 3, 40), torch.full((2, 40), 7))


def test_classes_that_are_not_annotated_compile_in_one_graph() -> None:
    x, labels = torch.randn(2, 3, 50).double(), torch.randint(2, (2, 50))
    annotated = torch.tensor([[True, True, False], [True, True, True]])
    loss = PolyDice1Loss(0.2, batch=True) + CrossEntropyLoss()

    def partly(x: Tensor, labels: Tensor, _: Tensor | None) -> Tensor:
        return loss(x, labels, annotated=annotated)

    compiled = value_and_gradient(torch.compile(partly, fullgraph=True, backend="aot_eager"), x, labels)
    for found, expected in zip(compiled, value_and_gradient(partly, x, labels), strict=True):
        torch.testing.assert_close(found, expected, rtol=SAME, atol=SAME)
    arguments = (
        x.requires_grad_(),
        labels,
        None,
        "softmax",
        None,
        ["prediction", "cross_entropy"],
        False,
        0.0,
        annotated,
    )
    torch.library.opcheck(torch.ops.polydice.pixel_sums, arguments)


def test_a_changing_epsilon_compiles_nothing_anew() -> None:
    x, labels = torch.randn(2, 3, 40), torch.randint(3, (2, 40))
    loss = PolyDice1Loss([0.0, 0.0, 0.0])
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    compiled(x, labels)
    with torch.compiler.set_stance("fail_on_recompile"):
        for epsilon in ([0.1, 0.2, 0.3], [0.5, 0.25, 0.125]):
            loss.update_epsilon(epsilon)
            torch.testing.assert_close(compiled(x, labels), PolyDice1Loss(epsilon)(x, labels))
