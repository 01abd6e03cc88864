"""Runs of a study as Ray tasks, on one machine or many that share a file system.

A task whose node is lost is given to another node, and goes on from the run's last checkpoint.
"""

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from socket import create_connection
from typing import Any

from polydice.studies.engine import Event, Report, Then, run_one
from polydice.studies.recipe import Planned
from polydice.studies.study import Study

RETRIES = 5  # for each run, when its node or process is lost
PATIENCE = 10.0  # seconds for a cluster to answer; Ray itself would wait for minutes


def run_ray(
    study: Study,
    runs: Sequence[Planned],
    report: Report,
    address: str | None,
    gpu_share: float,
    then: Then = lambda run: (),
) -> None:
    """Runs them on the cluster at `address`, or on one that is started here; each takes a core and a share of a GPU.

    `then` says which runs are to be done besides, now that one has ended.
    """
    ray = _ray()
    # Ray prints what befalls its nodes, and standard output belongs to the caller.
    with redirect_stdout(sys.stderr), _connected(ray, address):
        share = gpu_share if ray.cluster_resources().get("GPU") else 0
        task = ray.remote(num_cpus=1, num_gpus=share, max_retries=RETRIES)(_events)
        folder = study.folder.resolve()

        def begun(runs: Sequence[Planned]) -> dict[Any, Planned]:
            return {task.options(name=str(run.place)).remote(folder, run): run for run in runs}

        pending = begun(runs)
        while pending:
            for events in ray.wait(list(pending))[0]:
                run = pending[events]
                try:
                    event = ray.get(next(events))
                except ray.exceptions.RayError as error:
                    cause = getattr(error, "cause", None) or error  # what was raised on the node, or Ray's own
                    study.note_error(run, f"{type(cause).__name__}: {cause}")
                    event = "failed"
                report(run, event)
                if event != "started":
                    del pending[events]
                    pending |= begun(then(run))


def _events(folder: Path, run: Planned) -> Iterator[Event]:
    yield "started"
    yield "done" if run_one(folder, run) else "failed"


def _ray() -> Any:
    # Ray replaces 127.0.0.1 by the machine's outer address, and a cluster started there listens to the whole network.
    # This makes it take addresses as they are; it is read when Ray is imported.
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
    except ImportError as error:
        raise RuntimeError("--engine ray needs Ray: pip install 'polydice[ray]'") from error
    return ray


def _connected(ray: Any, address: str | None) -> Any:
    try:
        if address not in (None, "auto"):
            host, _, port = address.rpartition(":")
            create_connection((host, int(port)), PATIENCE).close()
        return ray.init(address or "local", include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, OverflowError, ValueError) as error:
        raise RuntimeError(
            f"no Ray cluster can be used at {address}: {error.__cause__ or error}\n"
            "--address is HOST:PORT, as `ray start --head` shows it, or auto for a cluster that runs here"
        ) from error
