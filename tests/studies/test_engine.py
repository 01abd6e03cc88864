import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from polydice.studies.engine import Worker, run_local
from polydice.studies.recipe import Planned, RecipeError
from polydice.studies.study import Study, create, open_study
from polydice.training.checkpoint import load_weights
from tests.studies.tiny import RECIPE

Events = list[tuple[Planned, str]]


def study_in(folder: Path, recipe: str = RECIPE) -> Study:
    path = folder / "tiny.toml"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(recipe)
    return create(path, folder / "study", folder / "data", folder / "cache")


def results(study: Study) -> dict[str, tuple[object, ...]]:
    """What a run found: its scores, its history and its weights; not how long it took."""
    found = {}
    for run, result in study.finished():
        folder = study.run_folder(run)
        weights, _ = load_weights(folder / "best.safetensors")
        total = tuple(sorted((name, float(tensor.double().sum())) for name, tensor in weights.items()))
        history = (folder / "history.jsonl").read_bytes()
        found[str(run.place)] = (result["validation_dice_global"], str(result["test"]), history, total)
    return found


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Study:
    study = study_in(tmp_path_factory.mktemp("reference"))
    events: Events = []
    run_local(study, study.runs, lambda run, event: events.append((run, event)), ["cpu", "cpu"])
    assert Counter(event for _, event in events) == {"started": 6, "done": 6}
    return study


def test_every_run_has_a_result(reference: Study) -> None:
    assert {reference.state(run) for run in reference.runs} == {"done"}
    assert len(results(reference)) == 6


def test_a_run_that_fails_stops_no_other_and_its_error_is_kept(tmp_path: Path) -> None:
    study = study_in(tmp_path, RECIPE.replace("batch = 4", "batch = 1000"))
    runs = study.runs[:2]
    events: Events = []
    run_local(study, runs, lambda run, event: events.append((run, event)), ["cpu"])
    assert [event for _, event in events] == ["started", "failed", "started", "failed"]
    assert [study.state(run) for run in runs] == ["failed", "failed"]
    assert "do not make one batch of 1000" in study.error(runs[0]).partition("\n")[0]


def test_a_worker_that_is_killed_is_replaced_and_its_run_can_be_gone_on_with(tmp_path: Path, reference: Study) -> None:
    study = study_in(tmp_path)
    worker = Worker(study.folder, "cpu")
    run = study.runs[0]
    worker.take(run)
    os.kill(worker.process.pid or 0, signal.SIGKILL)
    assert worker.news() == (run, False)
    assert "exit code -9" in study.error(run)
    worker.take(run)
    assert worker.news() == (run, True)
    worker.stop()
    assert study.state(run) == "done"
    assert results(study)[str(run.place)] == results(reference)[str(run.place)]


SCRIPT = """
import sys
from pathlib import Path
from polydice.studies.engine import run_local
from polydice.studies.study import open_study
if __name__ == "__main__":
    study = open_study(Path(sys.argv[1]))
    waiting = [run for run in study.runs if study.state(run) != "done"]
    run_local(study, waiting, lambda run, event: print(event, run.place, flush=True), ["cpu", "cpu"])
"""


def test_a_study_killed_again_and_again_ends_as_one_that_was_not(tmp_path: Path, reference: Study) -> None:
    study = study_in(tmp_path)
    script = tmp_path / "study.py"
    script.write_text(SCRIPT)
    for delay in (6.0, 8.0, 10.0):
        process = subprocess.Popen([sys.executable, script, study.folder], stdout=subprocess.DEVNULL)
        time.sleep(delay)
        process.kill()
        process.wait()
    subprocess.run([sys.executable, script, study.folder], check=True, stdout=subprocess.DEVNULL)
    assert results(study) == results(reference)


def test_a_folder_keeps_its_recipe(reference: Study, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text(RECIPE.replace("epochs = 2", "epochs = 3"))
    with pytest.raises(RecipeError, match="another recipe"):
        create(other, reference.folder, reference.data, reference.cache)
    assert open_study(reference.folder) == reference


def test_a_study_grows_and_keeps_what_it_has(reference: Study, tmp_path: Path) -> None:
    folder, recipe = tmp_path / "grown", tmp_path / "more.toml"
    shutil.copytree(reference.folder, folder)
    recipe.write_text(RECIPE.replace("seeds = [0]", "seeds = [0, 1]"))
    grown = create(recipe, folder, reference.data, reference.cache)
    assert [run for run in grown.runs if grown.state(run) == "done"] == list(reference.runs)
    assert {run.seed for run in grown.runs if grown.state(run) == "waiting"} == {1}
    assert open_study(folder) == grown
