"""How long a study will take, about: from runs that it has, or from a few steps on made-up images."""

import time
from collections.abc import Mapping
from statistics import fmean

import torch
from torch.nn import functional as F

from polydice.data.prepare import Prepared
from polydice.models import build
from polydice.studies.agenda import Agenda
from polydice.studies.formats import duration
from polydice.studies.study import Study
from polydice.training.config import Settings
from polydice.training.rehearsal import sides

STEPS = 2  # that are timed, after one that is not
FORWARD = 1 / 3  # of a step's time: a case that is validated or tested on goes through the network once, and not back
FEW = 2  # images are timed on a CPU, where time grows with their number; a GPU is given the whole batch


def plan(agenda: Agenda, at_once: int | None, prepared: Mapping[tuple[str, str], Prepared]) -> str:
    """The runs that are left and about how many minutes they take, in words. `at_once` is how many are trained at a
    time; None if that is not known. `prepared` has the data by data set and network."""
    tuning, compared = agenda.counts()
    runs = f"{tuning} to choose values and {compared} to compare" if tuning else "all to compare"
    text = f"{tuning + compared} runs to train ({runs})"
    unknown = f"{text}; how long that takes is told once a run has ended"
    if at_once is None:
        return unknown
    known = _known(agenda.study)
    told = "as the runs that are finished took"
    every = [run for run in (*agenda.study.tuning, *agenda.study.runs) if agenda.is_left(run)]
    left = [run for run in every if (run.dataset, run.model) in prepared]
    first = {(run.dataset, run.model): run for run in reversed(left)}
    try:
        for pair in first.keys() - known.keys():
            told = f"guessed from {STEPS} steps of training; the first runs will tell better"
            known[pair] = timed(agenda.study.settings(first[pair]), prepared[pair])
    except (ImportError, RuntimeError, ValueError):  # no memory for it, say: the run itself will tell
        return unknown
    finally:
        torch.cuda.empty_cache()  # the runs will need it
    seconds = sum(known[run.dataset, run.model] for run in left) / min(at_once, len(left))
    return f"{text}, {at_once} at a time: about {duration(seconds / 60)}, {told}"


def timed(settings: Settings, prepared: Prepared) -> float:
    """Seconds of a run, guessed: a network of its size takes a few steps."""
    gpu = torch.cuda.is_available() and settings.device != "cpu"
    device = torch.device("cuda" if gpu else "cpu")
    count = settings.batch_size if gpu else min(settings.batch_size, FEW)
    shape = sides(settings, prepared)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as runs are trained that share the cores
    try:
        classes = prepared.outputs
        model = build(settings.model, prepared.channels, classes, **settings.model_options).to(device).train()
        images = torch.rand(count, prepared.channels, *shape, device=device)
        labels = torch.randint(classes, (count, *shape), device=device)
        for step in range(STEPS + 1):
            if step == 1:
                started = _now(gpu)
            with torch.autocast(device.type, torch.bfloat16, enabled=gpu and settings.precision != "float32"):
                out = model(images)
                F.cross_entropy((out[0] if isinstance(out, list | tuple) else out).float(), labels).backward()
        per_item = (_now(gpu) - started) / STEPS / count
    finally:
        torch.set_num_threads(threads)
    part = len(prepared) / settings.folds  # the items of a test part, and of a validation part
    trained = settings.epochs * (len(prepared) - 2 * part)
    looked_at = part * (settings.epochs / settings.validate_every + 2)
    return float(per_item * (trained + FORWARD * looked_at))


def _known(study: Study) -> dict[tuple[str, str], float]:
    """The mean seconds of the runs that are finished, by data set and network."""
    found: dict[tuple[str, str], list[float]] = {}
    for run, result in (*study.finished(tuning=True), *study.finished()):
        if "seconds" in result:
            found.setdefault((run.dataset, run.model), []).append(result["seconds"])
    return {pair: fmean(seconds) for pair, seconds in found.items()}


def _now(gpu: bool) -> float:
    if gpu:
        torch.cuda.synchronize()
    return time.monotonic()
