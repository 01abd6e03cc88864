"""A study whose values are chosen first: whatever happens to it, the same choice and the same results."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from polydice.cli import main
from polydice.studies.agenda import Agenda
from polydice.studies.engine import run_local
from polydice.studies.recipe import TUNING, RecipeError
from polydice.studies.study import Study, create, open_study
from tests.studies.test_engine import results, study_in
from tests.studies.tiny import TUNED


def trained(study: Study, jobs: int = 2) -> Study:
    agenda = Agenda(study, lambda line: None)
    run_local(study, agenda.ready(), lambda run, event: None, ["cpu"] * jobs, then=agenda.then)
    return agenda.study


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return trained(study_in(tmp_path_factory.mktemp("tuned"), TUNED), jobs=1)


def test_a_value_is_chosen_on_validation_and_all_runs_of_the_loss_have_it(reference: Study) -> None:
    (choice,) = json.loads((reference.folder / "chosen.json").read_text())
    reached = {}
    for run, result in reference.finished(tuning=True):
        assert (run.loss, run.replicate, result["settings"]["weights"]) == ("Dice", TUNING, "last")
        last = json.loads((reference.run_folder(run) / "result.json").read_text())["last"]
        reached.setdefault(run.value, []).append(last["validation_dice_foreground"])
    means = {value: sum(scores) / 2 for value, scores in reached.items()}
    assert choice["validation"] == pytest.approx(means)
    assert choice["value"] == max(means, key=means.__getitem__)
    assert {(run.loss, run.value) for run in reference.runs} == {
        ("Dice", choice["value"]),
        ("PolyDice-1", "rate=0.05"),
    }
    assert {reference.state(run) for run in reference.runs} == {"done"}
    for run, result in reference.finished():
        assert result["settings"]["rate"] == dict(run.settings)["rate"]


def test_nothing_waits_for_a_choice_that_does_not_concern_it(tmp_path: Path) -> None:
    agenda = Agenda(study_in(tmp_path, TUNED))
    assert [run.tuning for run in agenda.ready()] == [True] * 4 + [False] * 2
    assert {run.loss for run in agenda.ready() if not run.tuning} == {"PolyDice-1"}
    assert agenda.counts() == (4, 4)


def test_runs_that_end_at_the_same_moment_make_one_choice(tmp_path: Path, reference: Study) -> None:
    shutil.copytree(reference.folder, tmp_path / "study")
    study, said = open_study(tmp_path / "study"), []
    (study.folder / "chosen.json").unlink()
    last = study.tuning[-1]
    (result := study.run_folder(last) / "result.json").rename(tmp_path / "kept.json")
    agenda = Agenda(open_study(study.folder), said.append)
    (tmp_path / "kept.json").rename(result)
    for run in study.tuning[-2:]:  # both have ended before either is told of
        agenda.then(run)
    assert len(said) == 1
    assert len(json.loads((study.folder / "chosen.json").read_text())) == 1


def test_a_study_killed_before_and_after_its_choice_ends_as_one_that_was_not(tmp_path: Path, reference: Study) -> None:
    recipe, folder = tmp_path / "tuned.toml", tmp_path / "study"
    recipe.write_text(TUNED)
    command = [sys.executable, "-m", "polydice", "study", str(recipe), "--out", str(folder), "--jobs", "2"]
    command += ["--cache", str(tmp_path / "cache")]
    for moment in ("**/tuning/result.json", "chosen.json", "**/replicate-0/result.json"):
        study = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
        while not any(folder.glob(moment)):
            assert study.poll() is None
            time.sleep(0.02)
        os.killpg(study.pid, signal.SIGKILL)
        study.wait()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "is chosen" not in done.stderr, "once is enough"
    found = open_study(folder)
    assert found.choices == reference.choices
    assert results(found) == results(reference)


def test_a_study_stopped_just_before_its_choice_makes_it_when_it_goes_on(tmp_path: Path, reference: Study) -> None:
    shutil.copytree(reference.folder, tmp_path / "study")
    (tmp_path / "study" / "chosen.json").unlink()
    study = open_study(tmp_path / "study")
    assert sum(run.open for run in study.runs) == 2
    assert main(["report", str(study.folder)]) == 0, "at any time"
    agenda = Agenda(study, lambda line: None)
    assert agenda.ready() == []
    assert agenda.study.choices == reference.choices


def grown(reference: Study, folder: Path, recipe: str, main_runs: bool) -> Study:
    shutil.copytree(reference.folder, folder / "study")
    if not main_runs:
        for path in (folder / "study" / "runs").rglob("replicate-0"):
            shutil.rmtree(path)
    (folder / "more.toml").write_text(recipe)
    return create(folder / "more.toml", folder / "study", reference.data, reference.cache)


def test_more_values_open_a_choice_again_until_something_is_trained_with_it(tmp_path: Path, reference: Study) -> None:
    more = TUNED.replace("[0.01, 0.1]", "[0.04, 0.01, 0.1]")
    with pytest.raises(RecipeError, match=r"Dice on lesions with unet is trained with rate=0\.\d+, which was chosen"):
        grown(reference, tmp_path / "begun", more, main_runs=True)
    study = grown(reference, tmp_path / "open", more, main_runs=False)
    assert study.choices == ()
    assert {run.value for run in Agenda(study).ready() if run.tuning} == {"rate=0.04"}


def test_more_losses_and_replicates_leave_a_choice_as_it_is(tmp_path: Path, reference: Study) -> None:
    more = TUNED.replace("replicates = 1", "replicates = 2") + '"Tversky" = "TverskyLoss(0.3, 0.7)"\n'
    study = grown(reference, tmp_path, more, main_runs=True)
    assert study.choices == reference.choices
    agenda = Agenda(study)
    assert {run.loss for run in agenda.ready() if run.tuning} == {"Tversky"}
    assert {(run.loss, run.replicate) for run in agenda.ready() if not run.tuning} == {("Dice", 1), ("PolyDice-1", 1)}
    assert agenda.counts() == (4, 2 * 2 + 2 * 2)


def test_a_value_that_diverges_is_out_and_any_other_failure_must_be_mended(tmp_path: Path, reference: Study) -> None:
    """1e30 is the rate of a real training that ends in infinity."""
    diverging = TUNED.replace("[0.01, 0.1]", "[1e30, 0.01, 0.1]")
    study = grown(reference, tmp_path, diverging, main_runs=False)
    agenda = Agenda(study, lambda line: None)
    wild = [run for run in agenda.ready() if run.value == "rate=1e+30"]
    assert len(wild) == 2
    study.note_error(wild[0], "OSError: no space left on device")
    run_local(study, wild[1:], lambda run, event: None, ["cpu"], then=agenda.then)
    assert "became" in study.error(wild[1])
    assert agenda.study.choices == (), "the other may be mended"
    assert agenda.failed() == wild
    assert [line.partition(":")[0] for line in agenda.undecided()] == ["Dice on lesions with unet"]
    assert wild[0] in Agenda(study).ready()
    assert wild[1] not in Agenda(study).ready(), "it would diverge again"
    study.note_error(wild[0], study.error(wild[1]))
    agenda = Agenda(study, lambda line: None)
    (choice,) = agenda.study.choices
    assert choice["validation"]["rate=1e+30"] is None
    assert choice["value"] == reference.choices[0]["value"]
    assert agenda.failed() == []


def test_a_damaged_choice_is_named(tmp_path: Path, reference: Study, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(reference.folder, tmp_path / "study")
    for text in ("[{}]", "5", "[", '[{"dataset": 1}]'):
        (tmp_path / "study" / "chosen.json").write_text(text)
        assert main(["report", str(tmp_path / "study")]) == 2
        assert "chosen.json is damaged" in capsys.readouterr().err
