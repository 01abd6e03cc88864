"""Ray runs in processes of its own here, and only on the loopback address."""

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from polydice.studies.agenda import Agenda
from polydice.studies.engine import run_local
from polydice.studies.ray_engine import run_ray
from polydice.studies.study import Study, open_study
from tests.studies.test_engine import results, study_in
from tests.studies.tiny import RECIPE, TUNED

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install 'polydice[ray]'")
EPOCHS = 12
HOUR = 3600
LONGER = RECIPE.replace("epochs = 2", f"epochs = {EPOCHS}")
HALF_FAIL = RECIPE.replace("[models.unet]", '[models.unet]\n[models.hungry]\nmodel = "unet"\nbatch = 1000')

WATCH = """
import json, os, sys
from contextlib import suppress
from pathlib import Path
from polydice.studies.ray_engine import run_ray
from polydice.studies.study import open_study

study = open_study(Path(sys.argv[1]))
events, finished = [], {}

def watch(run, event):
    events.append((event, str(run.place)))
    if event == "done":
        finished[str(run.place)] = (study.run_folder(run) / "result.json").stat().st_mtime_ns
"""

# A node is lost while it is in the middle of a run and another run is finished. Its process is held first, so that it
# stays in the middle; and its checkpoint is made to say that an hour was spent, so that one sees who went on from it.
LOSE_A_NODE = (
    WATCH
    + """
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # takes 127.0.0.1 for what it is
import time
from concurrent.futures import ThreadPoolExecutor
from ray.cluster_utils import Cluster
import psutil  # which comes with Ray
from polydice.training.checkpoint import load, save

EPOCHS, HOUR = map(int, sys.argv[2:])
HERE = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "object_store_memory": 100 << 20}

def processes(node):
    return psutil.Process(node.all_processes["raylet"][0].process.pid).children(recursive=True)

def at_work():
    for node in others:
        for process in processes(node):
            with suppress(psutil.Error):
                for file in process.open_files():
                    if file.path.endswith(".lock"):
                        yield node, process, Path(file.path).parent

def lose_a_node():
    while len(finished) < len(study.runs):
        time.sleep(0.05)
        for node, process, folder in at_work() if finished else ():
            with suppress(psutil.NoSuchProcess):  # it may end before it is held
                process.suspend()
                checkpoint = load(folder)
                if checkpoint and checkpoint.state["epoch"] < EPOCHS:
                    lose(node, folder, checkpoint)
                    return
                process.resume()

def lose(node, folder, checkpoint):
    save(folder, checkpoint.weights, checkpoint.state | {"seconds": HOUR}, checkpoint.metadata)
    events.append(("lost", str(folder.relative_to(study.folder / "runs"))))
    dying = processes(node)
    cluster.remove_node(node, allow_graceful=False)
    for process in dying:
        with suppress(psutil.NoSuchProcess):
            process.kill()

cluster = Cluster(initialize_head=True, head_node_args=HERE | {"include_dashboard": False})
others = [cluster.add_node(**HERE), cluster.add_node(**HERE)]
try:
    with ThreadPoolExecutor() as pool:
        losing = pool.submit(lose_a_node)
        run_ray(study, study.runs, watch, cluster.address, gpu_share=1.0)
        losing.result()
finally:
    cluster.shutdown()
print(json.dumps({"events": events, "finished": finished}))
"""
)

ALONE = (
    WATCH
    + """
def listen(run, event):
    import psutil  # which comes with Ray, and Ray is imported by now
    watch(run, event)
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # a worker may end meanwhile
            heard.update(c.laddr.ip for c in process.net_connections() if c.status == psutil.CONN_LISTEN)

heard = set()
run_ray(study, study.runs, listen, None, gpu_share=1.0)
print(json.dumps({"events": events, "heard": sorted(heard)}))
"""
)


TUNE = (
    WATCH
    + """
from polydice.studies.agenda import Agenda

agenda = Agenda(study)
run_ray(study, agenda.ready(), watch, None, gpu_share=1.0, then=agenda.then)
print(json.dumps({"events": events}))
"""
)


@pytest.fixture
def away() -> Iterator[dict[str, str]]:
    """An environment in which Ray leaves nothing behind. The names of its sockets allow no deep folder."""
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        ours = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        yield ours | {
            "HOME": folder,
            "RAY_TMPDIR": folder,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",  # or other work on the machine would come first
        }


def outcome(script: str, study: Study, *more: int, env: dict[str, str]) -> Any:
    command = [sys.executable, "-c", script, str(study.folder), *map(str, more)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_ray
def test_a_study_survives_the_loss_of_one_of_three_nodes(tmp_path: Path, away: dict[str, str]) -> None:
    local = study_in(tmp_path / "local", LONGER)
    run_local(local, local.runs, lambda run, event: None, ["cpu", "cpu"])
    study = study_in(tmp_path / "ray", LONGER)
    found = outcome(LOSE_A_NODE, study, EPOCHS, HOUR, env=away)

    places = sorted(str(run.place) for run in study.runs)
    by_event = {event: sorted(place for e, place in found["events"] if e == event) for event, _ in found["events"]}
    (lost,) = by_event.pop("lost")
    assert by_event == {"started": places, "done": places}
    assert "done" in {event for event, _ in found["events"][: found["events"].index(["lost", lost])]}
    assert results(study) == results(local)
    # The run of the lost node was gone on with from its checkpoint, and what was finished was not run again.
    assert [str(run.place) for run, result in study.finished() if result["seconds"] >= HOUR] == [lost]
    times = {str(run.place): (study.run_folder(run) / "result.json").stat().st_mtime_ns for run in study.runs}
    assert times == found["finished"]


@needs_ray
def test_values_are_chosen_on_a_cluster_as_they_are_here(tmp_path: Path, away: dict[str, str]) -> None:
    local, study = study_in(tmp_path / "local", TUNED), study_in(tmp_path / "ray", TUNED)
    agenda = Agenda(local, lambda line: None)
    run_local(local, agenda.ready(), lambda run, event: None, ["cpu", "cpu"], then=agenda.then)
    found = outcome(TUNE, study, env=away)
    assert Counter(event for event, _ in found["events"]) == {"started": 8, "done": 8}
    study = open_study(study.folder)
    assert study.choices == agenda.study.choices
    assert results(study) == results(agenda.study)


@needs_ray
def test_without_an_address_a_cluster_is_started_that_only_this_machine_reaches(
    tmp_path: Path, away: dict[str, str]
) -> None:
    study = study_in(tmp_path, HALF_FAIL)
    found = outcome(ALONE, study, env=away)
    assert {address.removeprefix("::ffff:") for address in found["heard"]} == {"127.0.0.1"}
    for run in study.runs:
        assert study.state(run) == ("failed" if run.model == "hungry" else "done")
        assert ("do not make one batch of 1000" in study.error(run).partition("\n")[0]) == (run.model == "hungry")
    assert Counter(event for event, _ in found["events"]) == {"started": 12, "done": 6, "failed": 6}


@needs_ray
def test_an_address_where_nothing_answers_is_refused_at_once(tmp_path: Path) -> None:
    study = study_in(tmp_path)
    for address, problem in (("127.0.0.1:1", "refused"), ("here", "--address is HOST:PORT")):
        with pytest.raises(RuntimeError, match=f"at {address}: (?s:.*){problem}"):
            run_ray(study, study.runs, lambda run, event: None, address, gpu_share=1.0)


def test_without_ray_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    study = study_in(tmp_path)
    with pytest.raises(RuntimeError, match=r"pip install 'polydice\[ray\]'"):
        run_ray(study, study.runs, lambda run, event: None, None, gpu_share=1.0)
