"""The node of torch's autograd that `node.cpp` has: half of what a host does for a loss is what Python does in one.

It is compiled against torch's headers, which takes some ten seconds: by another process, at the lowest priority, once a
process has called losses so often that it is worth it. Until it is there, and where it cannot be, Python does the same.
"""

import ctypes
import importlib.machinery
import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from polydice.durable import locked, replace_file
from polydice.kernels.compiling import SECONDS, compiled, kept, kept_in, lately, made_of, run

SOURCE = Path(__file__).with_name("node.cpp")
MODULE = "polydice.kernels.compiled_node"
COMPILERS = ("c++", "g++", "clang++")
LIBRARIES = ("torch_python", "torch_cpu", "torch", "c10")
LOCK = "node.lock"
CALLS = 200  # of losses, before it is worth while to compile
PAUSE, LONGEST_PAUSE = 1.0, 64.0  # seconds between two looks at whether it is there, of which each is twice as long
ENOUGH = 600  # seconds of a processor's time for a compiler that nobody waits for


class Node:
    """A loss for tensors of certain shapes and types, by `node.cpp`. `describe` says with its module what to compute;
    None where that is not known yet."""

    def __init__(self, describe: Callable[[Any], Any]) -> None:
        self.describe: Callable[[Any], Any] | None = describe
        self.loss: Callable[..., Tensor | None] | None = None

    def __call__(self, stream: int, *tensors: Tensor | None) -> Tensor | None:
        """Of logits, target, mask, weights, what is added and what is annotated. None where Python must make it."""
        loss = self.loss or self._found()
        return None if loss is None or _is_compiled_autograd_on() else loss(stream, *tensors)

    def _found(self) -> Callable[..., Tensor | None] | None:
        describe, module = self.describe, _SEARCH()
        if describe is None or module is None:
            return None
        try:
            plan = describe(module)
        except Exception:  # of a kernel or a driver that is not as those that are known
            self.describe = None
            return None
        if plan is not None:
            self.loss = partial(module.loss, plan)
        return self.loss


def _is_compiled_autograd_on() -> bool:
    """It traces backward through what is Python's. Where nobody has imported it, nobody has turned it on."""
    found = sys.modules.get("torch._dynamo.compiled_autograd")
    if found is None:
        return False
    return bool(getattr(found, "compiled_autograd_enabled", True) or torch._dynamo.config.compiled_autograd)


class Search:
    """Looks for the compiled module now and then, and has it made."""

    def __init__(self) -> None:
        self.module: Any = None
        self.calls = 0
        self.pause, self.next_look = PAUSE, 0.0
        self.started = False

    def __call__(self) -> Any:
        if self.module is None:
            self.calls += 1
            if self.next_look <= monotonic():
                self._look()
        return self.module

    def give_up(self) -> None:
        self.next_look = float("inf")

    def _look(self) -> None:
        self.next_look = monotonic() + self.pause
        try:
            folder, name = _place()
            found = kept(folder, name)
            if found is not None:
                self.module = load(found)
            elif _failure(folder, name):
                self.give_up()
            elif self.started:
                self.pause = min(2 * self.pause, LONGEST_PAUSE)
            elif self.calls >= CALLS:
                self.started = True
                with locked(folder / LOCK, wait=False) as ours:  # of several processes, one has it made
                    if ours:
                        _start()
        except Exception:  # whatever it is, there is the node in Python; `obstacle` says it
            self.give_up()


_SEARCH = Search()


def obstacle() -> str:
    """Why there is no compiled node, which is compiled now if need be; nothing if there is one."""
    try:
        make()
        folder, name = _place()
        found = kept(folder, name)
        if found is None:
            return _failure(folder, name) or f"{folder} does not keep it"
        load(found)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def make(wait: bool = True) -> None:
    """Compiles the module, if it is not there. A failure is kept, too. Without `wait` nobody waits for it: it may take
    as long as it takes, and where another process does it already it is left to that one."""
    folder, name = _place()
    if kept(folder, name) is not None:  # in a home that may be read alone, for one
        return
    with locked(folder / LOCK, wait) as ours:
        if kept(folder, name) is not None or _failure(folder, name) or not (ours or wait):
            return
        arguments = *_flags(), str(SOURCE), *(f"-l{library}" for library in LIBRARIES)
        try:
            compiled(folder, name, COMPILERS, arguments, _try, SECONDS if wait else None)
        except RuntimeError as error:
            replace_file(_failed(folder, name), str(error).encode(errors="replace"))


def load(path: Path) -> Any:
    loader = importlib.machinery.ExtensionFileLoader(MODULE, str(path))
    spec = importlib.util.spec_from_loader(MODULE, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _failed(folder: Path, name: str) -> Path:
    return folder / f"{name}.failed"


def _failure(folder: Path, name: str) -> str:
    """Why it could not be compiled when that was tried last, a short while ago."""
    found = _failed(folder, name)
    return found.read_text(encoding="utf-8") if found.exists() and lately(found) else ""


def _place() -> tuple[Path, str]:
    """The folder in which it is kept, and the first part of its name."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise OSError("it is made for a Python with one lock for all threads")
    return kept_in(), _name()


@cache
def _name() -> str:
    compilers = [str(shutil.which(compiler)) for compiler in COMPILERS]
    return f"node-{made_of((SOURCE,), (*_flags(), *compilers, torch.__version__, str(torch.version.git_version)))}"


def _flags() -> tuple[str, ...]:
    base = Path(torch.__file__).parent
    include = base / "include"
    folders = include, include / "torch/csrc/api/include", Path(sysconfig.get_paths()["include"])
    return (
        # Without NDEBUG some of torch's classes have other members than the library was compiled with.
        *("-std=c++20", "-O2", "-fPIC", "-shared", "-DNDEBUG", "-DAT_PER_OPERATOR_HEADERS"),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
        *(f"-I{folder}" for folder in folders),
        *(f"-L{base / 'lib'}", f"-Wl,-rpath,{base / 'lib'}"),
    )


def _try(made: Path, seconds: float | None) -> None:
    """In a process of its own: what does not run here ends that one."""
    run(_python(f"node.try_out({str(made)!r})"), seconds)


def _python(call: str) -> list[str]:
    paths = [path for path in sys.path if isinstance(path, str)]
    return [sys.executable, "-c", f"import sys; sys.path[:] = {paths}; from polydice.kernels import node; {call}"]


def _start() -> None:
    """Has it made by a process that nobody waits for, the first to end where memory is short. In the same session: a
    new one would have as much of the processors as this one, however low its priority."""
    humbly = "echo 1000 > /proc/self/oom_score_adj"
    quietly = f'({humbly}; ulimit -t {ENOUGH}; exec nice -n 19 "$@") > /dev/null 2>&1 < /dev/null &'
    command = "/bin/sh", "-c", quietly, "sh", *_python("node.make(wait=False)")
    subprocess.run(command, process_group=0, timeout=SECONDS, check=True)


def try_out(made: str) -> None:
    """A loss that is 2, and whose gradient is 3 times its own."""
    module, pointer = load(Path(made)), ctypes.c_void_p

    @ctypes.CFUNCTYPE(ctypes.c_int, *[pointer] * 9)  # type: ignore[untyped-decorator]
    def loss(*given: int) -> int:
        ctypes.c_float.from_address(given[-1]).value = 2
        return 0

    @ctypes.CFUNCTYPE(ctypes.c_int, *[pointer] * 6, *[ctypes.c_int64] * 2, pointer)  # type: ignore[untyped-decorator]
    def gradient(*given: int) -> int:
        ctypes.c_float.from_address(given[-1]).value = 3 * ctypes.c_float.from_address(given[5]).value
        return 0

    plan = module.native(None, None, 1, *(address(function) for function in (loss, gradient)), 0, 0, 1)
    logits, target = torch.zeros(1, requires_grad=True), torch.zeros(1, dtype=torch.int64)
    value = module.loss(plan, 0, logits, target, None, None, None, None)
    (2 * value).backward()
    if value.item() != 2 or logits.grad is None or logits.grad.item() != 6:
        raise RuntimeError(f"a compiled node has {value.item()} and {logits.grad}, not 2 and 6")


def address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0
