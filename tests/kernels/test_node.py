"""The compiled node of autograd. What a loss promises, test_native.py asks of it too; here is what is its own."""

import ctypes
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from polydice import CrossEntropyLoss, DiceLoss, PolyDice1Loss
from polydice.durable import locked
from polydice.kernels import compiling, node, plan
from polydice.kernels.node import address

FLOAT = torch.float32


@pytest.fixture(scope="module")
def module() -> Any:
    if why := node.obstacle():
        pytest.skip(f"nothing is compiled here: {why}")
    return node.load(compiling.kept(compiling.kept_in(), node._name()))  # type: ignore[arg-type]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of somebody who has never used polydice."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(node, "_SEARCH", node.Search())
    return tmp_path / ".cache/polydice/compiled"


# A driver that launches nothing, and writes down what it is given


class Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_uint), ("padding", ctypes.c_uint), ("value", ctypes.c_int * 16))


class Configuration(ctypes.Structure):
    """CUlaunchConfig, as cuda.h has it."""

    _fields_ = (
        *((name, ctypes.c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("count", ctypes.c_uint),
    )


class Driver:
    """Launches are (function, grid, threads, shared, stream, whether ahead, arguments)."""

    def __init__(self, arguments: dict[int, list[Any]], status: Callable[[], int] = lambda: 0) -> None:
        self.arguments = arguments
        self.launched: list[tuple[Any, ...]] = []
        self.entered: list[int] = []
        pointer = ctypes.c_void_p

        def start(how: Any, function: int, values: Any, _extra: int) -> int:
            at, ahead = (
                how.contents,
                [(each.id, each.value[0]) for each in how.contents.attributes[: how.contents.count]],
            )
            kinds = self.arguments.get(function, [])
            given = [kind.from_address(values[place]).value or 0 for place, kind in enumerate(kinds)]
            grid, threads = (at.grid_x, at.grid_y, at.grid_z), (at.block_x, at.block_y, at.block_z)
            assert threads[1:] == (1, 1)
            found = status()
            if not found:
                self.launched.append((function, grid, threads[0], at.shared, at.stream, ahead, given))
            return found

        def enter(context: int) -> int:
            self.entered.append(context)
            return 0

        of_start = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.POINTER(Configuration), pointer, ctypes.POINTER(pointer), pointer
        )
        self.kept = of_start(start), ctypes.CFUNCTYPE(ctypes.c_int, pointer)(enter)
        self.addresses = (*map(address, self.kept), 99)


FORWARD, TAIL, BACKWARD = 11, 12, 13
POINTER, INT, REAL, LONG = ctypes.c_void_p, ctypes.c_int32, ctypes.c_float, ctypes.c_int64
SCRATCH = [POINTER, POINTER]
TAKES = {
    FORWARD: [*[POINTER] * 4, INT, REAL, *SCRATCH],
    TAIL: [*[POINTER] * 4, LONG, *SCRATCH],
    BACKWARD: [*[POINTER] * 6, INT, *SCRATCH],
}
KERNELS = (
    (FORWARD, (3, 5, 1), 256, 1024, True, 4, (7, 0x3FC00000, 0, 0)),
    (TAIL, (1, 1, 1), 128, 0, False, 4, (1 << 40, 0, 0)),
    (BACKWARD, (2, 9, 1), 64, 16, True, 6, ((1 << 32) - 3, 0, 0)),
)
AHEAD = [(6, 1)]


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(2, 3, 8, requires_grad=True), torch.randint(3, (2, 8)), torch.rand(2, 8)


def test_kernels_are_launched_with_what_they_take(module: Any) -> None:
    driver, (logits, target, mask) = Driver(TAKES), inputs()
    plan = module.launches(None, 40, driver.addresses, KERNELS)
    loss = module.loss(plan, 5, logits, target, mask, None, None, None)
    assert (loss.dtype, loss.shape, loss.requires_grad) == (FLOAT, (), True)
    (gradient,) = torch.autograd.grad(loss, logits, torch.tensor(2.0))
    forward, tail, backward = driver.launched
    assert forward[:6] == (FORWARD, (3, 5, 1), 256, 1024, 5, AHEAD)
    room = forward[6][3]
    assert forward[6] == [logits.data_ptr(), target.data_ptr(), mask.data_ptr(), room, 7, 1.5, 0, 0]
    assert tail == (TAIL, (1, 1, 1), 128, 0, 5, [], [room, room, room, loss.data_ptr(), 1 << 40, 0, 0])
    assert backward[:6] == (BACKWARD, (2, 9, 1), 64, 16, 5, AHEAD)
    scale = backward[6][1]
    others = [logits.data_ptr(), target.data_ptr(), mask.data_ptr(), gradient.data_ptr()]
    assert backward[6] == [room, scale, *others, -3, 0, 0]
    assert gradient.shape == logits.shape
    assert not driver.entered


def test_a_thread_that_has_no_context_enters_it(module: Any) -> None:
    answers = iter([201, 0, 0])
    driver, (logits, target, _) = Driver(TAKES, lambda: next(answers)), inputs()
    plan = module.launches(None, 40, driver.addresses, KERNELS)
    module.loss(plan, 0, logits, target, None, None, None, None)
    assert driver.entered == [99]
    assert [each[0] for each in driver.launched] == [FORWARD, TAIL]


def test_a_launch_that_fails_is_an_error(module: Any) -> None:
    driver, (logits, target, _) = Driver(TAKES, lambda: 700), inputs()
    plan = module.launches(None, 40, driver.addresses, KERNELS)
    with pytest.raises(RuntimeError, match="could not launch a kernel of polydice: error 700"):
        module.loss(plan, 0, logits, target, None, None, None, None)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # make_dual's own
def test_what_kernels_of_aligned_pointers_do_not_take_is_left_to_python(module: Any) -> None:
    driver, (logits, target, _) = Driver(TAKES), inputs()
    plan = module.launches(None, 40, driver.addresses, KERNELS)
    for odd in (torch.zeros(49)[1:].view(2, 3, 8).requires_grad_(), logits):
        weights = None if odd is not logits else torch.ones(3)  # float32
        assert module.loss(plan, 0, odd, target, None, weights, None, None) is None
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(logits.detach(), torch.ones_like(logits))
        assert module.loss(plan, 0, dual, target, None, None, None, None) is None
    assert not driver.launched


def test_a_gradient_that_is_one_of_a_stack(module: Any) -> None:
    """Three of four are at no multiple of 16 bytes."""
    driver, (logits, target, _) = Driver(TAKES), inputs()
    plan = module.launches(None, 40, driver.addresses, KERNELS)
    losses = [module.loss(plan, 0, logits, target, None, None, None, None) for _ in range(4)]
    torch.stack(losses).mean().backward()
    assert [each[0] for each in driver.launched] == [FORWARD, TAIL] * 4 + [BACKWARD] * 4


def test_a_saved_tensor_that_comes_back_to_its_place_in_another_order(module: Any) -> None:
    driver, (_, target, _) = Driver(TAKES), inputs()
    logits, order = torch.randn(2, 8, 3).transpose(1, 2).requires_grad_(), {2: (8, 1), 3: (24, 8, 1)}
    plan = module.launches(lambda *_: torch.full_like(logits, 4.0), 40, driver.addresses, KERNELS)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t.as_strided(t.shape, order[t.ndim])):
        loss = module.loss(plan, 0, logits, target, None, None, None, None)
    (found,) = torch.autograd.grad(loss, logits)
    assert torch.equal(found, torch.full_like(logits, 4.0))
    assert [each[0] for each in driver.launched] == [FORWARD, TAIL]


def test_saved_tensors_that_come_back_as_others_go_to_python(module: Any) -> None:
    """With the slopes, and everything in its place; what Python raises comes out."""
    driver, (logits, target, mask) = Driver(TAKES), inputs()
    seen: list[tuple[Tensor | None, ...]] = []

    def by_torch(*given: Tensor | None) -> Tensor:
        seen.append(given)
        if len(seen) > 1:
            raise LookupError("no gradient today")
        return torch.full_like(logits, 4.0)

    plan = module.launches(by_torch, 40, driver.addresses, KERNELS)
    for call in range(2):
        with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda t: t):
            loss = module.loss(plan, 0, logits, target, mask, None, None, None)
        if call:
            with pytest.raises(LookupError, match="no gradient today"):
                torch.autograd.grad(loss, logits)
        else:
            assert torch.equal(torch.autograd.grad(loss, logits)[0], torch.full_like(logits, 4.0))
    grad, *others, annotated, space = seen[0]
    assert grad == 1
    assert annotated is None
    assert all(map(torch.equal, others, (logits, target, mask)))
    assert space is not None
    assert (space.shape, space.dtype) == ((40,), FLOAT)
    assert [each[0] for each in driver.launched] == [FORWARD, TAIL] * 2


def test_it_launches_what_triton_launches(module: Any, tmp_path: Path) -> None:
    """The same kernels, compiled for an H200, with the same arguments, as a driver gets them."""
    from polydice.kernels.plan import fused_obstacle

    if "Triton" in fused_obstacle(torch.zeros(1)):
        pytest.skip("needs Triton")
    source, library = Path(__file__).with_name("libcuda.c"), tmp_path / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", f"-Wl,-soname,{library.name}", "-o", library, source], check=True)
    searched = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
    paths = {"LD_LIBRARY_PATH": searched, "TRITON_LIBCUDA_PATH": str(tmp_path), "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-m", "tests.kernels.as_triton", str(library)]
    ran = subprocess.run(command, env=os.environ | paths, capture_output=True, text=True, timeout=500)
    assert (ran.returncode, ran.stdout.strip()) == (0, "36"), ran.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_gpu_it_has_the_bits_of_python_s_node(
    module: Any, dtype: torch.dtype, partial: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on another stream, and in a graph."""
    logits = torch.randn(3, 5, 40, 50, device="cuda", dtype=dtype, requires_grad=True)
    labels, known = torch.randint(5, (3, 40, 50), device="cuda"), None
    if partial:
        known = (torch.arange(5, device="cuda") != 2).repeat(3, 1)
        labels[labels == 2] = 0
    loss, grad = PolyDice1Loss(0.2) + CrossEntropyLoss(), torch.tensor(3.0, device="cuda")

    def computed(name: str) -> tuple[Tensor, Tensor]:
        value = loss(logits, labels, None, known)
        assert value.grad_fn is not None
        assert value.grad_fn.name() == name
        return value.detach(), torch.autograd.grad(value, logits, grad)[0]

    expected = computed("FusedLossBackward")
    monkeypatch.setattr(node, "_SEARCH", node.Search())
    assert all(map(torch.equal, computed("PolydiceLossBackward"), expected))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        found = computed("PolydiceLossBackward")
    torch.cuda.synchronize()
    assert all(map(torch.equal, found, expected))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = computed("PolydiceLossBackward")
    graph.replay()
    torch.cuda.synchronize()
    assert all(map(torch.equal, found, expected))


def test_nothing_is_kept_of_a_loss_that_is_gone(module: Any) -> None:
    """Neither by a plan nor by a node, whatever thread it ends on."""

    class Keeper:
        def __call__(self, *_: Any) -> None:
            raise AssertionError

    driver, keeper, (logits, target, _) = Driver(TAKES), Keeper(), inputs()
    gone = ref(keeper)
    plan = module.launches(keeper, 40, driver.addresses, KERNELS)
    losses = [module.loss(plan, 0, logits, target, None, None, None, None)]
    del keeper, plan
    gc.collect()
    assert gone() is not None
    thread = threading.Thread(target=losses.clear)
    thread.start()
    thread.join()
    gc.collect()
    assert gone() is None


# Autograd


@pytest.fixture
def by_node(module: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(node, "_SEARCH", node.Search())
    plan._PLANS.clear()
    yield
    plan._PLANS.clear()


@pytest.mark.usefixtures("by_node")
def test_backward_twice() -> None:
    logits, target, _ = inputs()
    loss = DiceLoss()(logits, target)
    first = torch.autograd.grad(loss, logits, retain_graph=True)
    assert torch.equal(first[0], torch.autograd.grad(loss, logits)[0])
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(loss, logits)


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled:UserWarning")
@pytest.mark.usefixtures("by_node")
def test_hooks_and_anomalies() -> None:
    logits, target, _ = inputs()
    seen: list[Tensor] = []
    with torch.autograd.detect_anomaly(check_nan=True):
        loss = DiceLoss()(logits, target)
        assert loss.grad_fn is not None
        loss.grad_fn.register_hook(lambda made, _: seen.append(made[0]))
        loss.backward()
    assert torch.equal(seen[0], logits.grad)  # type: ignore[arg-type]


@pytest.mark.usefixtures("by_node")
def test_checkpoints_compute_again() -> None:
    from torch.utils.checkpoint import checkpoint

    logits, target, _ = inputs()
    expected = torch.autograd.grad(DiceLoss()(logits * 2, target), logits)[0]
    for reentrant in (True, False):
        loss = checkpoint(lambda x: DiceLoss()(x * 2, target), logits, use_reentrant=reentrant)
        assert torch.equal(torch.autograd.grad(loss, logits)[0] if not reentrant else grad_of(loss, logits), expected)


def grad_of(loss: Tensor, logits: Tensor) -> Tensor:
    """`autograd.grad` does not go through a checkpoint that is run again."""
    logits.grad = None
    loss.backward()
    assert logits.grad is not None
    return logits.grad


@pytest.mark.usefixtures("by_node")
def test_logits_that_have_escaped_from_a_transform() -> None:
    """They have no memory of their own."""
    logits, target, _ = inputs()
    escaped: list[Tensor] = []
    torch.func.grad(lambda x: escaped.append(x) or x.sum())(logits)  # type: ignore[func-returns-value]
    assert name_of(logits, target) == "PolydiceLossBackward"
    assert torch.equal(DiceLoss()(escaped[0], target), DiceLoss()(logits, target))


@pytest.mark.usefixtures("by_node")
def test_compiled_autograd_gets_the_node_of_python() -> None:
    from torch._dynamo import compiled_autograd

    logits, target, _ = inputs()
    expected = torch.autograd.grad(DiceLoss()(logits, target), logits)[0]
    with compiled_autograd._enable(lambda graph: graph):
        DiceLoss()(logits, target).backward()
    assert torch.equal(logits.grad, expected)  # type: ignore[arg-type]
    assert name_of(logits, target) == "PolydiceLossBackward"
    with torch._dynamo.config.patch(compiled_autograd=True):  # that of a step whose backward alone is compiled
        assert name_of(logits, target) == "NativeLossBackward"


@pytest.mark.usefixtures("by_node")
def test_a_profiler_sees_it() -> None:
    logits, target, _ = inputs()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profile:
        DiceLoss()(logits, target).backward()
    names = {event.name for event in profile.events()}
    assert {"PolydiceLoss", "PolydiceLossBackward"} <= names


def name_of(logits: Tensor, target: Tensor) -> str:
    loss = DiceLoss()(logits, target)
    assert loss.grad_fn is not None
    return loss.grad_fn.name()


@pytest.mark.usefixtures("by_node")
def test_what_it_cannot_be_told_of_stays_with_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel of some later Triton, for one."""
    asked: list[int] = []

    def describe(module: Any) -> None:
        asked.append(1)
        raise AttributeError("no such metadata")

    (logits, target, _), made = inputs(), node.Node(describe)
    assert made(0, logits, target) is made(0, logits, target) is None
    assert asked == [1]


# How it is compiled


def test_it_is_compiled_beside_a_process_that_calls_losses(home: Path) -> None:
    """By a process that nobody waits for; from then on it is used."""
    script = (
        "import time, torch; from polydice import DiceLoss; from polydice.kernels import node; node.LONGEST_PAUSE = 1\n"
        "x, y = torch.randn(2, 3, 8, 8, requires_grad=True), torch.randint(3, (2, 8, 8))\n"
        "def name():\n"
        "    value = DiceLoss()(x, y)\n"
        "    return value.grad_fn.name()\n"
        "first, end = name(), time.monotonic() + 300\n"
        "while name() == first and time.monotonic() < end: time.sleep(0.001)\n"
        "print(first, name())"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=400, check=True)
    assert ran.stdout.split() == ["NativeLossBackward", "PolydiceLossBackward"]
    assert ran.stderr == ""
    assert len(list(home.glob("node-*.so"))) == 1


def test_a_few_calls_are_not_worth_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    monkeypatch.setattr(node, "_start", lambda: started.append(1))
    node._SEARCH.pause = 0.0
    for _ in range(node.CALLS - 1):
        node._SEARCH()
    assert not started
    for _ in range(5):
        assert node._SEARCH() is None
    assert started == [1]


def test_what_cannot_be_compiled_is_not_tried_at_every_call(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def compiled(*_: Any) -> None:
        tried.append(1)
        raise RuntimeError("no header Python.h")

    monkeypatch.setattr(node, "compiled", compiled)
    assert node.obstacle() == node.obstacle() == "no header Python.h"
    assert node._SEARCH() is None
    assert node._SEARCH.next_look == float("inf")
    assert len(tried) == 1
    (note,) = home.glob("*.failed")
    os.utime(note, (0, note.stat().st_mtime - 2 * compiling.A_DAY))  # the day before yesterday
    node.obstacle()
    assert len(tried) == 2


def test_a_compiler_that_took_too_long_may_be_tried_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "SECONDS", 0.01)
    assert "timed out" in node.obstacle()
    assert [path.name for path in home.iterdir()] == ["node.lock"]


def test_where_another_process_compiles_nobody_waits_who_need_not(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "compiled", lambda *_: pytest.fail("twice at once"))
    monkeypatch.setattr(node, "_start", lambda: pytest.fail("for nothing"))
    with locked(compiling.kept_in() / node.LOCK):
        node.make(wait=False)
        for _ in range(node.CALLS):
            node._SEARCH.next_look = 0.0
            assert node._SEARCH() is None
    assert node._SEARCH.next_look < float("inf")  # it goes on to look for what the other makes


def test_what_is_kept_needs_no_lock(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The home may be one that nobody can write to."""
    monkeypatch.setattr(node, "locked", lambda *_: pytest.fail("a file is opened"))
    monkeypatch.setattr(node, "_SEARCH", node.Search())
    assert node.obstacle() == ""
    assert node._SEARCH() is not None


def test_without_a_place_to_keep_it(home: Path) -> None:
    home.parents[2].joinpath(".cache").write_text("not a folder", encoding="utf-8")
    assert node._SEARCH() is None
    assert "Error" in node.obstacle()


def test_it_can_be_told_not_to(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYDICE_COMPILE", "0")
    assert node._SEARCH() is None
    assert node.obstacle() == "OSError: POLYDICE_COMPILE=0 says not to"
    assert not home.exists()
