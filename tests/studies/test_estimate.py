import json
from pathlib import Path

import pytest

from polydice.studies.agenda import Agenda
from polydice.studies.estimate import plan, timed
from polydice.studies.study import Study
from polydice.training.loop import opened, train
from tests.studies.test_engine import study_in
from tests.studies.tiny import RECIPE, TUNED


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return study_in(tmp_path, TUNED)


def test_runs_and_minutes_are_told_before_anything_is_trained(study: Study) -> None:
    prepared = {("lesions", "unet"): opened(study.settings(study.runs[0]))[1]}
    told = plan(Agenda(study), 2, prepared)
    assert told.startswith("8 runs to train (4 to choose values and 4 to compare), 2 at a time: about 1 minute, g")
    assert plan(Agenda(study), None, prepared).endswith("compare); how long that takes is told once a run has ended")


def test_finished_runs_tell_better(study: Study) -> None:
    run = study.tuning[0]
    train(study.settings(run, "cpu"))
    path = study.run_folder(run) / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"seconds": 600.0}))
    prepared = {("lesions", "unet"): opened(study.settings(run))[1]}
    assert plan(Agenda(study), 2, prepared) == (
        "7 runs to train (3 to choose values and 4 to compare), 2 at a time: about 35 minutes, as the runs that are "
        "finished took"
    )


def test_more_epochs_take_longer(tmp_path: Path) -> None:
    study = study_in(tmp_path, RECIPE.replace("epochs = 2", "epochs = 20000"))
    settings = study.settings(study.runs[0])
    assert timed(settings, opened(settings)[1]) > 60
