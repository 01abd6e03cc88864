"""A whole loss on a CPU: of labels and float32 logits, what the launches of `fused.py` are on CUDA.

The plain pass takes a dozen torch operations for each block of pixels, and some 200 more for the formula of a loss.
`native.c` reads the logits twice, once for the sums and once for the gradient, and forms the loss of a few numbers in a
microsecond. It is compiled at its first use by the compiler that is there, tried in a process of its own, and kept in
the user's cache. Where that cannot be, the plain pass does the same work.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polydice.kernels import eager
from polydice.kernels.direct import DirectFunction
from polydice.kernels.fields import ON_REQUEST, Formula, Options
from polydice.kernels.threads import on_threads

SOURCES = tuple(Path(__file__).with_name(name) for name in ("native.c", "native_pixels.h"))
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O3", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared")
LABELS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)  # native.c numbers them so
KINDS = ("polynomial", "ratio", "overlap", "entropy")  # and these
SUMS, SLOPES = 7, 5  # of a class
# Up to so many logits the pixels are computed in float64: there rounding does not average out.
EXACT = 1 << 13
PIECE = 1 << 17  # logits that a thread takes at a time
FOR_A_THREAD = 1 << 20  # logits for which a thread is worth starting
SECONDS = 120  # to compile in, or to try


class _Pass(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("batch", "classes", "count", "piece", "pieces", "ignore")),
        *((name, ctypes.c_int32) for name in ("has_ignore", "label_type", "sigmoid", "entropy", "regions", "exact")),
    )


class _Term(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("kind", "background", "skip", "added", "first", "last")),
        ("factor", ctypes.c_double),
        ("numbers", ctypes.c_double * 4),
    )


class _Formula(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("terms", "mean", "over_batch", "each_added")),
        ("term", ctypes.POINTER(_Term)),
        ("coefficients", ctypes.POINTER(ctypes.c_double)),
    )


class NativeLaunches(NamedTuple):
    """A loss of tensors of certain shapes and types."""

    over: _Pass
    formula: _Formula
    at: tuple[int, int]  # their addresses
    pieces: int
    slopes: type[ctypes.Array[ctypes.c_double]]  # what backward keeps
    parts: int  # numbers that threads add up to
    spans: tuple[tuple[int, int], ...]  # pieces that a thread takes together
    threads: int  # at most
    options: Options

    def __call__(
        self, logits: Tensor, target: Tensor, mask: Tensor | None, weights: Tensor | None, added: Tensor | None,
        annotated: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        annotated = annotated if annotated is None else annotated.contiguous()
        loss: Tensor = NativeLoss.apply(logits, (target, annotated, weights, added), self)
        return loss

    def forward(self, *pointers: int) -> int:
        """Of logits, labels, what is annotated, weights, what is added, slopes and loss."""
        if self.threads == 1:
            return int(_library().polydice_loss(*self.at, *pointers))
        parts = torch.empty(self.parts, dtype=torch.float64, device="cpu")
        status = self._shared(_library().polydice_forward, (self.at[0], *pointers[:3]), parts.data_ptr())
        _library().polydice_formula(*self.at, parts.data_ptr(), *pointers[2:])
        return status

    def backward(self, *pointers: int) -> int:
        """Of logits, labels, what is annotated, slopes, the loss's gradient and that of the logits."""
        *given, gradient = pointers
        if self.threads == 1:
            return int(_library().polydice_backward(self.at[0], *given, 0, self.pieces, gradient))
        return self._shared(_library().polydice_backward, (self.at[0], *given), gradient)

    def _shared(self, function: Any, given: tuple[int, ...], result: int) -> int:
        found = [0]

        def some(spans: Iterator[tuple[int, int]]) -> None:
            found.extend(function(*given, *span, result) for span in spans)

        on_threads(some, self.spans, self.threads)
        return next(filter(None, found), 0)


class NativeLoss(DirectFunction):
    """A weighted sum of losses. All that has no gradient comes as one argument: each takes torch a while."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, others: tuple[Any, ...], launches: NativeLaunches) -> Tensor:
        target, annotated, weights, added = others
        loss, slopes = logits.new_empty(()), launches.slopes()
        given = _pointers(logits, target, annotated, weights, added)
        if launches.forward(*given, ctypes.addressof(slopes), loss.data_ptr()):
            # A bad label, if it is not memory: the plain pass says which.
            eager.forward(*eager.flatten(logits, target, None, labels=True), launches.options, annotated)
            raise MemoryError
        ctx.launches, ctx.slopes = launches, slopes
        ctx.save_for_backward(logits, target, annotated)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True: a second derivative would silently be 0
            raise RuntimeError("polydice's losses can be differentiated once, not twice")
        # Hooks may have copied them.
        logits, *others = [tensor if tensor is None else tensor.contiguous() for tensor in ctx.saved_tensors]
        gradient = torch.empty_like(logits)  # type: ignore[arg-type]
        given = _pointers(logits, *others)
        if ctx.launches.backward(*given, ctypes.addressof(ctx.slopes), grad.data_ptr(), gradient.data_ptr()):
            raise MemoryError
        return gradient, None, None


def _pointers(*tensors: Tensor | None) -> list[int]:
    return [0 if tensor is None else tensor.data_ptr() for tensor in tensors]


def native_launches(
    formula: Formula, options: Options, logits: Tensor, target: Tensor, mask: Tensor | None
) -> NativeLaunches | None:
    """None where the plain pass must do it: on what is rare, or where nothing could be compiled."""
    usual = logits.device.type == "cpu" and logits.dtype == torch.float32 and target.dtype in LABELS
    if (
        not usual
        or target.numel() * logits.shape[1] != logits.numel()
        or not (logits.is_contiguous() and target.is_contiguous())
        or mask is not None
        or not set(ON_REQUEST).isdisjoint(options.want)
        or obstacle()
    ):
        return None
    batch, classes = logits.shape[:2]
    count = target.numel() // batch
    piece = max(1, min(count, PIECE // classes))
    pieces = -(-count // piece)
    over = _Pass(
        batch, classes, count, piece, pieces, options.ignore_index or 0, options.ignore_index is not None,
        LABELS.index(target.dtype), options.activation == "sigmoid", "cross_entropy" in options.want,
        "intersection" in options.want, logits.numel() <= EXACT,
    )  # fmt: skip
    threads, whole = max(1, logits.numel() // FOR_A_THREAD), batch * pieces
    some = max(1, PIECE // (classes * piece))  # small images are taken several at a time
    spans = tuple((first, min(first + some, whole)) for first in range(0, whole, some))
    described = _described(formula)
    at = ctypes.addressof(over), ctypes.addressof(described)
    sizes = whole, ctypes.c_double * (batch * classes * SLOPES), whole * classes * SUMS
    return NativeLaunches(over, described, at, *sizes, spans, threads, options)


def _described(formula: Formula) -> _Formula:
    terms, coefficients, rows = [], list[float](), 0
    for term in formula.terms:
        first, form = len(coefficients), term.form
        coefficients += form.coefficients
        numbers = (ctypes.c_double * 4)(*map(float, form.numbers))
        added = rows if form.added else -1
        rows += bool(form.added)
        bounds = first, len(coefficients)
        kind = KINDS.index(form.kind)
        terms.append(_Term(kind, term.background, term.skip_absent, added, *bounds, term.factor, numbers))
    flags = formula.mean, formula.over_batch, formula.each_added
    return _Formula(
        len(terms), *flags, (_Term * len(terms))(*terms), (ctypes.c_double * max(1, len(coefficients)))(*coefficients)
    )


@cache
def obstacle() -> str:
    """Why nothing compiled can be used; nothing if it can."""
    try:
        _library()
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        return str(error)
    return ""


@cache
def _library() -> Any:
    if os.name != "posix":
        raise OSError(f"nothing is compiled on {sys.platform}")
    code = ctypes.CDLL(str(_compiled()))
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    code.polydice_forward.argtypes = [*[pointer] * 4, number, number, pointer]
    code.polydice_backward.argtypes = [*[pointer] * 6, number, number, pointer]
    code.polydice_loss.argtypes = [pointer] * 9
    code.polydice_formula.argtypes, code.polydice_formula.restype = [pointer] * 8, None
    return code


def _compiled() -> Path:
    """The library: made for this processor from these sources, or kept from before."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise OSError(f"no C compiler is there: {', '.join(COMPILERS)}")
    processor = _processor()
    flags = (*FLAGS, "-march=native") if processor else FLAGS
    made_of = [*flags, sys.platform, processor, *(source.read_text(encoding="utf-8") for source in SOURCES)]
    folder = Path.home() / ".cache" / "polydice"
    kept = folder / f"native-{hashlib.sha256(chr(0).join(made_of).encode()).hexdigest()[:16]}.so"
    if kept.exists():
        return kept
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as beside:
        made = Path(beside) / kept.name
        _run([compiler, *flags, "-o", str(made), str(SOURCES[0]), "-lm"])
        _run(
            [
                sys.executable,
                "-I",
                "-S",
                "-c",
                f"import ctypes\nraise SystemExit(ctypes.CDLL({str(made)!r}).polydice_try())",
            ]
        )
        made.replace(kept)
    return kept


def _run(command: list[str]) -> None:
    ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    if ran.returncode:
        raise RuntimeError(f"{command[0]} ended with {ran.returncode}: {ran.stderr.strip()[-500:]}")


def _processor() -> str:
    """What this processor can do, where Linux says it: a library that was made for one may not run on another."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
