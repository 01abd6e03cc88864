"""Compiles `native.c` for this machine, once: tried in a process of its own, and kept in the user's cache.

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
from functools import cache
from pathlib import Path
from typing import Any

SOURCES = tuple(Path(__file__).with_name(name) for name in ("native.c", "native_pixels.h"))
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O3", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared")
SECONDS = 120  # to compile in, or to try


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
    if os.name != "posix" or not sys.executable or getattr(sys, "frozen", False):
        raise OSError("it takes a POSIX system and an interpreter of its own")
    folder = Path.home() / ".cache" / "polydice"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not folder.is_absolute() or _shared(folder):
        raise PermissionError(f"others may write in {folder}")
    name = f"native-{_made_of()}"
    kept = next(filter(_whole, sorted(folder.glob(f"{name}-*.so"))), None)
    return ctypes.CDLL(str(kept or _compiled(folder, name)))


def _compiled(folder: Path, name: str) -> Path:
    problems = ["no C compiler is there"]
    for compiler in filter(None, map(shutil.which, COMPILERS)):
        with tempfile.TemporaryDirectory(dir=folder) as beside:
            made = Path(beside) / "native.so"
            tried = f"import ctypes; raise SystemExit(ctypes.CDLL({str(made)!r}).polydice_try())"
            try:
                _run([compiler, *FLAGS, *_own_flags(), "-o", str(made), str(SOURCES[0])])
                _run([sys.executable, "-I", "-S", "-c", tried])
            except (OSError, RuntimeError, subprocess.SubprocessError) as problem:
                problems.append(str(problem))
                continue
            return made.replace(folder / f"{name}-{_digest(made)}.so")
    raise RuntimeError("; ".join(problems[1:] or problems))


def _run(command: list[str]) -> None:
    ran = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=SECONDS, check=False)
    if ran.returncode:
        raise RuntimeError(f"{command[0]} ended with {ran.returncode}: {ran.stderr.strip()[-500:]}")


def _shared(path: Path) -> bool:
    """Whether somebody else may have written it."""
    found = path.stat()
    return found.st_uid != os.geteuid() or bool(found.st_mode & 0o022)


def _whole(kept: Path) -> bool:
    return not _shared(kept) and kept.stem.endswith(_digest(kept))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _made_of() -> str:
    """A digest of all that the library depends on: another machine may have the same home."""
    parts = [*FLAGS, sys.platform, platform.machine(), *platform.libc_ver(), _processor(), *map(str, SOURCES)]
    text = "\0".join([*parts, *(source.read_text(encoding="utf-8") for source in SOURCES)])
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
