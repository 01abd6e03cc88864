"""A whole loss on a CPU, of float32 logits: what the launches of `fused.py` are on CUDA.

The plain pass takes a dozen torch operations for each block of pixels, and some 200 more for the formula of a loss.
`native.c` reads the logits twice, once for the sums and once for the gradient, and forms the loss of a few numbers in a
microsecond. `compiling.py` compiles it at its first use; where that cannot be, the plain pass does the same work.
"""

import ctypes
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from polydice.kernels import compiling, eager, op
from polydice.kernels.fields import ON_REQUEST, Formula, Options
from polydice.kernels.inputs import is_lazy, places
from polydice.kernels.node import Node, address
from polydice.kernels.threads import on_threads

LABELS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)  # native.c numbers them so,
MASKS = {torch.uint8: 5, torch.bool: 6, torch.float32: 7}  # and these so
KINDS = ("polynomial", "ratio", "overlap", "entropy")  # and these
SUMS, SLOPES = 8, 5  # of a class
# Up to so many logits the pixels are computed in float64: there rounding does not average out.
EXACT = 1 << 13
PIECE, LINE = 1 << 17, 64  # logits that a thread takes at a time, of whole runs of pixels
FOR_A_THREAD = 1 << 20  # logits for which a thread is worth starting
WANTED = ("intersection", "prediction", "prediction_sq", "error_sq", "cross_entropy")  # whose slopes it has


class _Pass(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("batch", "classes", "count", "piece", "pieces", "ignore")),
        *((name, ctypes.c_int32) for name in ("has_ignore", "target_type", "sigmoid", "entropy", "regions", "exact")),
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
    labels: bool
    node: Node | None  # for one thread

    def __call__(
        self, logits: Tensor, target: Tensor, mask: Tensor | None, weights: Tensor | None, added: Tensor | None,
        annotated: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        annotated = annotated if annotated is None else annotated.contiguous()
        if self.node is not None:
            made = self.node(0, logits, target, None, weights, added, annotated)
            if made is not None:
                return made
        loss: Tensor = NativeLoss.apply(logits, (target, annotated, weights, added), self)  # type: ignore[no-untyped-call]
        return loss

    def forward(self, *given: Any) -> int:
        """Of logits, target, what is annotated, weights, what is added, slopes and loss."""
        if self.threads == 1:
            return int(_library().polydice_loss(*self.at, *_pointers(*given)))
        parts = torch.empty(self.parts, dtype=torch.float64, device="cpu")
        status = self._shared(_library().polydice_forward, given[:3], parts)
        _library().polydice_formula(*self.at, parts.data_ptr(), *_pointers(*given[2:]))
        return status

    def backward(self, gradient: Tensor, *given: Any) -> int:
        """That of the logits, of logits, target, what is annotated, slopes and the loss's gradient."""
        if self.threads == 1:
            more = 0, self.pieces, gradient.data_ptr()
            return int(_library().polydice_backward(self.at[0], *_pointers(*given), *more))
        return self._shared(_library().polydice_backward, given, gradient)

    def _shared(self, function: Any, given: Sequence[Any], result: Tensor) -> int:
        found = [0]

        def some(spans: Iterator[tuple[int, int]]) -> None:
            pointers = _pointers(*given)  # of what it holds: `on_threads` says why
            found.extend(function(self.at[0], *pointers, *span, result.data_ptr()) for span in spans)

        on_threads(some, self.spans, self.threads)
        return next(filter(None, found), 0)


class NativeLoss(torch.autograd.Function):
    """A weighted sum of losses. All that has no gradient comes as one argument: each takes torch a while."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, others: tuple[Any, ...], launches: NativeLaunches) -> Tensor:
        target, annotated, weights, added = others
        loss, slopes = logits.new_empty(()), launches.slopes()
        if launches.forward(logits, target, annotated, weights, added, slopes, loss):
            # A bad label or mask, if it is not memory: the plain pass says which.
            eager.forward(*eager.flatten(logits, target, None, launches.labels), launches.options, annotated)
            raise MemoryError
        ctx.launches, ctx.slopes, ctx.places = launches, slopes, places(logits, target, annotated)
        ctx.save_for_backward(logits, target, annotated)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True: a second derivative would silently be 0
            raise RuntimeError("polydice's losses can be differentiated once, not twice")
        logits, target, annotated = ctx.saved_tensors
        if is_watched() or is_lazy(grad) or places(logits, target, annotated) != ctx.places:
            slopes = torch.tensor(list(ctx.slopes), dtype=torch.float64, device=logits.device)
            launches, saved = ctx.launches, (logits, target, None, annotated)
            return _backward_by_torch(launches.options, launches.labels, grad, *saved, slopes), None, None
        gradient = torch.empty_like(logits)
        if ctx.launches.backward(gradient, logits, target, annotated, ctx.slopes, grad):
            raise MemoryError
        return gradient, None, None


def _pointers(*given: Any) -> list[int]:
    """Of tensors and arrays."""
    return [
        0 if each is None else each.data_ptr() if isinstance(each, Tensor) else ctypes.addressof(each) for each in given
    ]


def _backward_by_torch(
    options: Options, labels: bool, grad: Tensor, logits: Tensor, target: Tensor, mask: None,
    annotated: Tensor | None, each: Tensor,
) -> Tensor:  # fmt: skip
    """`each`: the slopes."""
    slopes = dict(zip(WANTED, each.to(logits.device).view(*logits.shape[:2], SLOPES).unbind(2), strict=True))
    nothing = torch.zeros_like(slopes["intersection"])
    stacked = torch.stack([slopes.get(name, nothing) for name in options.want]) * grad
    return op.gradient(stacked, logits, target, mask, annotated, options, labels, fused=False)


def is_watched() -> bool:
    """Whether somebody records operators or differentiates forwards: what is compiled would not be seen."""
    return (
        bool(torch._C._len_torch_dispatch_stack())
        or forward_ad._current_level >= 0
        or torch._C._get_tracing_state() is not None
    )


def native_launches(
    formula: Formula, options: Options, labels: bool, logits: Tensor, target: Tensor, mask: Tensor | None,
    annotated: Tensor | None,
) -> NativeLaunches | None:  # fmt: skip
    """None where the plain pass must do it: on what is rare, or where nothing could be compiled."""
    usual = logits.device.type == "cpu" and logits.dtype == torch.float32
    known = target.dtype in LABELS if labels else target.dtype in MASKS and annotated is None
    if (
        not (usual and known)
        or not (logits.is_contiguous() and target.is_contiguous())
        or mask is not None
        or not set(ON_REQUEST).isdisjoint(options.want)
        # The power's slope has no bound near 0: there what a float32 sum has lost would count.
        or any(term.form.kind == "overlap" and term.form.numbers[3] != 1 for term in formula.terms)
        or not -(2**63) <= (options.ignore_index or 0) < 2**63
        or compiling.obstacle()
    ):
        return None
    batch, classes, *spatial = logits.shape
    count, kind = math.prod(spatial), LABELS.index(target.dtype) if labels else MASKS[target.dtype]
    piece = min(count, max(LINE, PIECE // classes // LINE * LINE))
    pieces = -(-count // piece)
    over = _Pass(
        batch, classes, count, piece, pieces, options.ignore_index or 0, options.ignore_index is not None,
        kind, options.activation == "sigmoid", "cross_entropy" in options.want,
        "intersection" in options.want, logits.numel() <= EXACT,
    )  # fmt: skip
    threads, whole = max(1, logits.numel() // FOR_A_THREAD), batch * pieces
    some = max(1, PIECE // (classes * piece))  # small images are taken several at a time
    spans = tuple((first, min(first + some, whole)) for first in range(0, whole, some))
    described = _described(formula)
    at = ctypes.addressof(over), ctypes.addressof(described)
    slopes = batch * classes * SLOPES

    def describe(module: Any) -> Any:
        code = _library()
        functions = address(code.polydice_loss), address(code.polydice_backward)
        by_torch = partial(_backward_by_torch, options, labels)
        return module.native(by_torch, (over, described), slopes, *functions, *at, whole)

    sizes, node = (whole, ctypes.c_double * slopes, whole * classes * SUMS), Node(describe) if threads == 1 else None
    return NativeLaunches(over, described, at, *sizes, spans, threads, options, labels, node)


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


def _library() -> Any:
    code = compiling.library()
    if code.polydice_loss.argtypes is None:
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        code.polydice_forward.argtypes = [*[pointer] * 4, number, number, pointer]
        code.polydice_backward.argtypes = [*[pointer] * 6, number, number, pointer]
        code.polydice_formula.argtypes, code.polydice_formula.restype = [pointer] * 8, None
        code.polydice_loss.argtypes = [pointer] * 9
    return code
