"""`python -m benchmarks loss`: measure the losses, write what was found, show it."""

from collections.abc import Iterator, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from benchmarks import check, cpu, cuda, report
from benchmarks.measure import Effort
from benchmarks.providers import LossFunction, Provider, annotated, installed
from benchmarks.report import Row, Sheet
from benchmarks.sizes import Size, annotated_sizes, default_sizes
from polydice.kernels import node

QUICK = Effort(gpu_ms=10, cpu_seconds=0, least_rounds=2)
CHECK = Effort(cpu_seconds=30, least_rounds=15)


def run(device: str, out: Path, sizes: list[Size] | None, quick: bool, only: Sequence[str] | None = None) -> int:
    from benchmarks import plots  # matplotlib is not needed for a check

    start = perf_counter()
    providers = [each for each in present(device) if not only or each.name in only]
    if unknown := {*(only or ())} - {each.name for each in providers}:
        raise SystemExit(f"not to be measured here: {', '.join(sorted(unknown))}")
    rows = []
    with report.CsvFile(out / "loss.csv") as file:
        for row in measure(sizes or default_sizes(device), providers, device, QUICK if quick else Effort()):
            file.write(row)
            rows.append(row)
    print(f"\n{report.table(rows)}\n")
    plots.draw(rows, out)
    print(f"{perf_counter() - start:.0f} s; loss.csv, time-pixels.png, time-classes.png and command.txt are in {out}")
    return 0


def run_annotated(device: str, out: Path, sizes: list[Size] | None, quick: bool) -> int:
    """What it costs to say which classes are annotated, as a ratio of forward and backward."""
    sizes = [size._replace(partial=True) for size in sizes] if sizes else annotated_sizes(device)
    rows = []
    with report.CsvFile(out / "annotated.csv") as file:
        for row in measure(sizes, annotated(device), device, QUICK if quick else Effort()):
            file.write(row)
            rows.append(row)
    print(f"\n{report.without_and_with(rows)}\n\nannotated.csv and command.txt are in {out}")
    return 0


def run_check(quick: bool) -> int:
    """1 if a limit is not kept. Nothing is written: two sizes are not a result."""
    providers = [provider for provider in present("cpu") if provider.name in check.PROVIDERS]
    verdicts = list(check.verdicts(list(measure(check.SIZES, providers, "cpu", QUICK if quick else CHECK))))
    print("", *(text for _, text in verdicts), sep="\n")
    return 0 if all(kept for kept, _ in verdicts) else 1


def measure(sizes: Sequence[Size], providers: Sequence[Provider], device: str, effort: Effort) -> Iterator[Row]:
    """Every row of a run, printed in short as it comes."""
    machine = cuda if device == "cuda" else cpu
    bandwidth = machine.copy_bandwidth(effort)
    sheet = Sheet(bandwidth, machine.device_name(), torch.__version__, triton_version())
    print(f"{machine.device_name()}, torch {torch.__version__}, copy {bandwidth / 1e9:.1f} GB/s", flush=True)
    print(f"the compiled node: {node.obstacle() or 'used'}", flush=True)  # else it would be there some time later
    label_bytes = {each.name: each.label_bytes for each in providers}
    for size in sizes:
        yield sheet.floor(size)
        candidates = [(each, _made(each, size, device)) for each in providers if each.series or not size.series]
        both: dict[str, float] = {}
        for name, figures in machine.measure(candidates, *size.inputs(device), effort):
            rows = list(sheet.of(name, size, figures, label_bytes[name]))
            show(name, size, rows)
            yield from rows
            if not isinstance(figures, str):
                both[name] = figures.both.median
        yield from sheet.ratios(size, both)
        for each in providers:
            if each.without in both and each.name in both:
                pair = {name: both[name] for name in (each.name, each.without)}
                yield from sheet.ratios(size, pair, [each.without])


def _made(provider: Provider, size: Size, device: str) -> LossFunction:
    made: Any = provider.make()
    return partial(made, annotated=size.annotated(device)) if provider.without else made


def show(name: str, size: Size, rows: Sequence[Row]) -> None:
    found = {(row.mode, row.metric): row for row in rows}
    both = found["both", "ms"]
    if both.median is None:
        print(f"{size!s:32} {name:18} {both.note}", flush=True)
        return
    times = "  ".join(f"{mode} {found[mode, 'ms'].median:8.3f}" for mode in ("forward", "backward", "both"))
    extra = found["both", "extra_over_logits"].median
    line = f"{size!s:32} {name:18} {times} ms  {both.floor_multiple:6.1f} x floor  extra {extra:7.2%}  {both.note}"
    print(line.rstrip(), flush=True)


def present(device: str) -> list[Provider]:
    providers, missing = installed(device)
    for name, why in missing.items():
        print(f"left out: {name}: {why}")
    return providers


def triton_version() -> str:
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return ""
