"""Measurements on a CPU: all providers take turns, so that what else runs on the machine slows all alike."""

import os
import platform
import random
from functools import partial
from pathlib import Path
from time import perf_counter, process_time

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks.measure import Candidates, Effort, Figures, Outcome, Spread, attempt, gradient, learnt
from benchmarks.providers import LossFunction

COPY_BYTES = 1 << 28  # far more than the caches hold
COPIES = 10
TOLERATED = 0.05  # share of the cores that others may take unmentioned
Times = list[tuple[float, float]]  # seconds of forward and of backward, for each round


def device_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{model or platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"


def copy_bandwidth(effort: Effort) -> float:
    """Bytes read and written per second by a copy."""
    source = torch.ones(COPY_BYTES, dtype=torch.uint8)
    copy = torch.zeros_like(source)
    times = []
    for _ in range(COPIES):
        start = perf_counter()
        copy.copy_(source)
        times.append(perf_counter() - start)
    return 2e3 * COPY_BYTES / spread(times).median


def measure(candidates: Candidates, logits: Tensor, target: Tensor, effort: Effort) -> Outcome:
    working: list[tuple[str, LossFunction]] = []
    extra: dict[str, int] = {}
    for provider, loss in candidates:
        used = attempt(partial(_extra_bytes, loss, logits, target))
        if isinstance(used, str):
            yield provider.name, used
        else:
            extra[provider.name] = used
            working.append((provider.name, loss))
    start, others = perf_counter(), seconds_of_others()
    found = rounds(working, logits, target, effort)
    note = _disturbance((seconds_of_others() - others) / (perf_counter() - start))
    for name, times in found.items():
        forward, backward = ([time[part] for time in times] for part in (0, 1))
        both = [sum(time) for time in times]
        yield name, Figures(spread(forward), spread(backward), spread(both), extra[name], note)


def rounds(working: list[tuple[str, LossFunction]], logits: Tensor, target: Tensor, effort: Effort) -> dict[str, Times]:
    """One call of each in every round, in an order that changes: nobody always runs after the same neighbour."""
    times: dict[str, Times] = {name: [] for name, _ in working}
    turns, order = random.Random(0), list(working)
    start, rounds = perf_counter(), 0
    while rounds < effort.least_rounds or perf_counter() - start < effort.cpu_seconds:
        turns.shuffle(order)
        for name, loss in order:
            times[name].append(_once(loss, logits, target))
        rounds += 1
    return times


def seconds_of_others() -> float:
    """Processor time that other processes, and other guests of the host, have used; 0 where the system does not say."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, stat.read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK") - process_time()


def _disturbance(cores: float) -> str:
    """Threads that wait for each other on cores that others use can take a hundred times as long: then say so."""
    count = os.cpu_count() or 1
    return f"other processes took {cores:.2f} of {count} cores" if cores > TOLERATED * count else ""


def _once(loss: LossFunction, logits: Tensor, target: Tensor) -> tuple[float, float]:
    of = learnt(loss, logits)
    start = perf_counter()
    value = loss(logits, target)
    middle = perf_counter()
    torch.autograd.grad(value, of)
    return middle - start, perf_counter() - middle


def spread(seconds: list[float]) -> Spread:
    ms = torch.tensor(seconds, dtype=torch.float64) * 1e3
    return Spread(*ms.quantile(torch.tensor([0.5, 0.1, 0.9], dtype=torch.float64)).tolist())


def _extra_bytes(loss: LossFunction, logits: Tensor, target: Tensor) -> int:
    """The peak of torch's own allocations on one thread, as its profiler logs them, less the gradient. The process's
    resident size would also tell, but in pages and with whatever else the process keeps. Other threads are not seen
    (torch 2.13 logs no memory at all when it is asked for them): each adds what it works in."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler says on every start that it starts
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        gradient(loss, logits, target)  # the first call may compile
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
            result = gradient(loss, logits, target)
    finally:
        torch.set_num_threads(threads)
    log = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(log, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    made = sum(each.nbytes for each in result)
    if peak < made:
        raise RuntimeError(f"torch's profiler logged {peak} bytes, less than the gradient's {made}")
    return peak - made
