"""Tidy rows, one figure each, as they come; and the table of them at the end."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import TracebackType

from benchmarks.measure import Figures, Spread
from benchmarks.sizes import LABEL_BYTES, Size

FLOOR = "floor"
REFERENCES = ("cross_entropy", "monai", "nnunet")


@dataclass(frozen=True)
class Row:
    """`metric` says what the numbers are: `ms`, `extra_bytes` (beyond inputs and gradient), `extra_over_logits`, or
    `over_…`, the time over that peer's. `floor_multiple` is the time over that of moving the bytes that must move."""

    provider: str
    shape: str
    dtype: str
    pixels: int
    classes: int
    mode: str
    metric: str
    median: float | None
    q10: float | None
    q90: float | None
    floor_multiple: float | None
    device: str
    torch: str
    triton: str
    note: str = ""


class Sheet:
    """Makes the rows of one run, which share the machine and its copy bandwidth in bytes per second."""

    def __init__(self, bandwidth: float, device: str, torch: str, triton: str) -> None:
        self.bandwidth = bandwidth
        self.machine = (device, torch, triton)

    def floor_ms(self, size: Size, label_bytes: int = LABEL_BYTES) -> float:
        return 1e3 * size.floor_bytes(label_bytes) / self.bandwidth

    def floor(self, size: Size) -> Row:
        note = f"copy at {self.bandwidth / 1e9:.1f} GB/s"
        return self._row(FLOOR, size, "both", "ms", Spread(self.floor_ms(size)), multiple=1, note=note)

    def of(self, name: str, size: Size, figures: Figures | str, label_bytes: int = LABEL_BYTES) -> Iterator[Row]:
        """A provider's rows; one with the reason where it has no figures."""
        if isinstance(figures, str):
            yield self._row(name, size, "both", "ms", None, note=figures)
            return
        multiple = figures.both.median / self.floor_ms(size, label_bytes)
        yield self._row(name, size, "forward", "ms", figures.forward, note=figures.note)
        yield self._row(name, size, "backward", "ms", figures.backward, note=figures.note)
        yield self._row(name, size, "both", "ms", figures.both, multiple, figures.note)
        yield self._row(name, size, "both", "extra_bytes", Spread(figures.extra_bytes))
        yield self._row(name, size, "both", "extra_over_logits", Spread(figures.extra_bytes / size.logits_bytes))

    def ratios(self, size: Size, both: dict[str, float], references: Sequence[str] = REFERENCES) -> Iterator[Row]:
        """Each provider's time over each reference's, as medians of the same run."""
        for name, ms in both.items():
            for reference in references:
                if reference in both and reference != name:
                    yield self._row(name, size, "both", f"over_{reference}", Spread(ms / both[reference]))

    def _row(
        self, name: str, size: Size, mode: str, metric: str, spread: Spread | None,
        multiple: float | None = None, note: str = "",
    ) -> Row:  # fmt: skip
        median, q10, q90 = spread or (None, None, None)
        kind = (name, size.name, size.dtype, size.pixels, size.classes, mode, metric)
        return Row(*kind, median, q10, q90, multiple, *self.machine, note)


class CsvFile:
    """Rows on disk as soon as they are known: an interrupted run keeps what it has."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("w", newline="")
        self.writer = csv.DictWriter(self.file, [field.name for field in fields(Row)])
        self.writer.writeheader()

    def write(self, row: Row) -> None:
        values = asdict(row).items()
        self.writer.writerow({name: f"{value:.6g}" if isinstance(value, float) else value for name, value in values})
        self.file.flush()

    def __enter__(self) -> "CsvFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.file.close()


def both_ms(rows: Sequence[Row]) -> dict[tuple[str, str], dict[str, float]]:
    """Forward + backward of every provider, for each shape and type."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        if (row.mode, row.metric) == ("both", "ms") and row.median is not None:
            found.setdefault((row.shape, row.dtype), {})[row.provider] = row.median
    return found


def table(rows: Sequence[Row], reference: str = "cross_entropy") -> str:
    """Sizes down, providers across: milliseconds of forward + backward, and their ratio to a reference's."""
    measured = both_ms(rows)
    names = list(dict.fromkeys(row.provider for row in rows))
    lines = [[f"forward + backward, ms (x {reference})", *names]]
    for (shape, dtype), times in measured.items():
        cells = [_cell(times.get(name), times.get(reference)) for name in names]
        lines.append([f"{shape} {dtype}", *cells])
    return _aligned(lines)


def without_and_with(rows: Sequence[Row]) -> str:
    """Sizes down, losses across: milliseconds without and with `annotated`, and their ratio."""
    measured = both_ms(rows)
    pairs = dict.fromkeys((row.metric[5:], row.provider) for row in rows if row.metric.startswith("over_"))
    lines = [["forward + backward, ms, without and with", *(name for name, _ in pairs)]]
    for (shape, dtype), times in measured.items():
        found = [(times.get(one), times.get(other)) for one, other in pairs]
        lines.append([f"{shape} {dtype}", *(f"{_cell(one, None)} {_cell(other, one)}" for one, other in found)])
    return _aligned(lines)


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.rjust, line, widths)) for line in lines)


def _cell(ms: float | None, reference: float | None) -> str:
    if ms is None:
        return "-"
    shown = f"{ms:.3g}" if ms < 100 else f"{ms:.0f}"
    return shown if reference is None else f"{shown} ({ms / reference:.2f})"
