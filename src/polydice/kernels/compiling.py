"""Compiles what is not Python for this machine, once, and keeps it in the user's cache: `native.c`, and `node.cpp`.

What is kept has its digest in its name, and is loaded only if it is whole and nobody but this user may have written it.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from time import time
from typing import Any

SOURCES = tuple(Path(__file__).with_name(name) for name in ("native.c", "native_pixels.h"))
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O3", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared")
SECONDS = 120.0  # that somebody who waits for a compiler gives it
SWITCH = "POLYDICE_COMPILE"  # 0 in the environment: nothing is compiled, and nothing that was is used
MAKING, A_DAY = "making-", 86400.0


@cache
def obstacle() -> str:
    """Why nothing compiled can be used; nothing if it can."""
    try:
        library()
    except Exception as error:  # whatever it is, there is the plain pass
        return f"{type(error).__name__}: {error}"
    return ""


@cache
def library() -> Any:
    folder, name = kept_in(), f"native-{made_of(SOURCES, (*FLAGS, _processor()))}"
    arguments = *FLAGS, *_own_flags(), str(SOURCES[0])
    return ctypes.CDLL(str(kept(folder, name) or compiled(folder, name, COMPILERS, arguments, _try)))


def kept_in() -> Path:
    if os.environ.get(SWITCH) == "0":
        raise OSError(f"{SWITCH}=0 says not to")
    if os.name != "posix" or not sys.executable or getattr(sys, "frozen", False):
        raise OSError("it takes a POSIX system and an interpreter of its own")
    folder = Path.home() / ".cache" / "polydice" / "compiled"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not folder.is_absolute() or _shared(folder):
        raise PermissionError(f"others may write in {folder}")
    return folder


def kept(folder: Path, name: str) -> Path | None:
    return next(filter(_whole, sorted(folder.glob(f"{name}-*.so"))), None)


def compiled(
    folder: Path, name: str, compilers: Sequence[str], arguments: Sequence[str],
    try_out: Callable[[Path, float | None], None], seconds: float | None = SECONDS,
) -> Path:  # fmt: skip
    """A library by the first compiler whose work passes the trial. One that takes too long raises
    `subprocess.TimeoutExpired`, and is no reason to try another."""
    problems = ["no compiler is there"]
    _forget_unfinished(folder)
    for compiler in filter(None, map(shutil.which, compilers)):
        with tempfile.TemporaryDirectory(prefix=MAKING, dir=folder) as beside:
            made = Path(beside) / f"{name}.so"
            try:
                run([compiler, "-o", str(made), *arguments], seconds)
                try_out(made, seconds)
            except (OSError, RuntimeError) as problem:
                problems.append(str(problem))
                continue
            made.chmod(0o700)  # a linker leaves that to the umask, with which others may be allowed to write it
            # Another may have made the same meanwhile, and machines that share this home have it in use.
            return kept(folder, name) or made.replace(folder / f"{name}-{_digest(made)}.so")
    raise RuntimeError("; ".join(problems[1:] or problems))


def _forget_unfinished(folder: Path) -> None:
    """Of processes that were killed while they compiled."""
    for left in folder.glob(f"{MAKING}*"):
        with suppress(FileNotFoundError):
            if not lately(left):
                shutil.rmtree(left, ignore_errors=True)


def lately(path: Path) -> bool:
    return time() - path.stat().st_mtime < A_DAY


def _try(made: Path, seconds: float | None) -> None:
    tried = f"import ctypes; raise SystemExit(ctypes.CDLL({str(made)!r}).polydice_try())"
    run([sys.executable, "-I", "-S", "-c", tried], seconds)


def run(command: list[str], seconds: float | None) -> None:
    ran = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=seconds, check=False)
    if ran.returncode:
        raise RuntimeError(f"{command[0]} ended with {ran.returncode}: {ran.stderr.strip()[-500:]}")


def _shared(path: Path) -> bool:
    """Whether somebody else may have written it."""
    found = path.stat()
    return found.st_uid != os.geteuid() or bool(found.st_mode & 0o022)


def _whole(found: Path) -> bool:
    return not _shared(found) and found.stem.endswith(_digest(found))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def made_of(sources: Sequence[Path], more: Sequence[str]) -> str:
    """A digest of all that a library depends on: another machine may have the same home."""
    parts = [*more, sys.platform, platform.machine(), *platform.libc_ver(), *map(str, sources)]
    text = "\0".join([*parts, *(source.read_text(encoding="utf-8") for source in sources)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _own_flags() -> tuple[str, ...]:
    """Where it is known what this processor can do, all of that is used."""
    return ("-march=native",) if _processor() else ()


@cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
