import gzip
import json
import shutil
from pathlib import Path

import pytest

from polydice.cli import main
from polydice.studies.agenda import Agenda
from polydice.studies.comparison import compare
from polydice.studies.pack import pack
from polydice.studies.pool import pooled
from polydice.studies.record import RECORD
from polydice.studies.report import write_report
from polydice.studies.study import Study, create, open_study
from tests.studies.made_up import ONE_SET, finish, study_in

FILES = ("recipe.toml", "runs.jsonl.gz", "study.json")
TUNED = ONE_SET.replace("seeds = [0, 1]", "replicates = 1").replace("nested = true", "folds = [0]")


def written(report: Path) -> dict[str, bytes]:
    return {str(path.relative_to(report.parent)): path.read_bytes() for path in report.parent.rglob("*.*")}


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in gzip.decompress((folder / RECORD).read_bytes()).splitlines()]


def test_a_record_gives_the_report_of_the_folders(tmp_path: Path) -> None:
    study = study_in(tmp_path, recipe=ONE_SET)
    packed = pack(study, tmp_path / "kept")
    assert (packed.runs, packed.new, packed.left_out) == (24, 24, [])
    assert sorted(path.name for path in packed.record.parent.iterdir()) == sorted(FILES)
    assert written(write_report(open_study(tmp_path / "kept"))) == written(write_report(study))


def test_a_record_of_trained_runs_has_all_but_places_and_what_follows_from_the_rest(
    trained: Study, tmp_path: Path
) -> None:
    pack(trained, tmp_path)
    text = gzip.decompress((tmp_path / RECORD).read_bytes()).decode() + (tmp_path / "study.json").read_text()
    for place in (trained.folder, trained.data, trained.cache, Path.home()):
        assert str(place) not in text
    kept = open_study(tmp_path)
    for run, result in trained.finished():
        assert kept.history(run) == trained.history(run)
        for name in ("data", "out", "cache"):
            del result["settings"][name]
        for case in (*result["cases"], *result["last"]["cases"]):
            del case["dice"]
        assert kept.result(run) == result


def test_the_same_runs_give_the_same_bytes_in_whatever_order_they_come(tmp_path: Path) -> None:
    whole = study_in(tmp_path / "a", recipe=ONE_SET)
    first = pack(whole, tmp_path / "one").record.read_bytes()
    begun = study_in(tmp_path / "b", lambda run: run.fold == 2, ONE_SET)
    assert pack(begun, tmp_path / "two")[1:] == (8, 8, ["16 runs not trained"])
    assert (tmp_path / "two" / RECORD).read_bytes() != first
    assert pack(whole, tmp_path / "two")[1:] == (24, 16, [])
    assert (tmp_path / "two" / RECORD).read_bytes() == first
    assert pack(begun, tmp_path / "two").runs == 24, "a record never gets smaller"
    assert pack(open_study(tmp_path / "two"), tmp_path / "three").record.read_bytes() == first, "a copy of a copy"


def test_a_packed_study_goes_on_and_trains_only_what_it_has_not(trained: Study, tmp_path: Path) -> None:
    pack(trained, tmp_path)
    recipe = (tmp_path / "recipe.toml").read_text()
    assert Agenda(create(tmp_path / "recipe.toml", tmp_path, trained.data, trained.cache)).ready() == []
    (more := tmp_path / "more.toml").write_text(recipe.replace("seeds = [0, 1]", "seeds = [0, 1, 2]"))
    ready = Agenda(study := create(more, tmp_path, trained.data, trained.cache)).ready()
    assert {run.replicate for run in ready} == {2}
    assert study.result(trained.runs[0])["test"] == trained.result(trained.runs[0])["test"]
    finish(study, ready[0])
    assert pack(study, tmp_path)[1:3] == (13, 1)
    shutil.rmtree(tmp_path / "runs")
    assert {run for run, _ in open_study(tmp_path).finished()} == {ready[0], *trained.runs}
    more.write_text(recipe.replace("epochs = 5", "epochs = 6"))
    with pytest.raises(ValueError, match="holds a study with another recipe"):
        create(more, tmp_path, trained.data, trained.cache)


def test_a_choice_and_what_has_diverged_go_along_and_other_failures_do_not(tmp_path: Path) -> None:
    study = study_in(tmp_path, lambda run: False, TUNED)
    first, second = study.tuning
    finish(study, first)
    study.note_error(second, f"TrainingError: the loss became inf at step 3\n\n{tmp_path}/module.py, line 3")
    study = Agenda(study, lambda line: None).study
    for run in study.runs[1:]:
        finish(study, run)
    study.note_error(study.runs[0], "OutOfMemoryError: no")
    assert pack(study, tmp_path / "kept").left_out == ["1 run failed, and may be mended"]
    kept = create(tmp_path / "made-up.toml", tmp_path / "kept", study.data, study.cache)
    assert kept.choices == study.choices
    assert Agenda(kept).ready() == [study.runs[0]]
    assert kept.error(second) == "TrainingError: the loss became inf at step 3"
    assert {"run": second.place.as_posix(), "error": kept.error(second)} in lines(tmp_path / "kept")
    text = TUNED.replace("[-0.3, 0.5]", "[-0.3, 0.2, 0.5]")
    (tmp_path / "made-up.toml").write_text(text)
    with pytest.raises(ValueError, match="another value would make these runs another study"):
        create(tmp_path / "made-up.toml", tmp_path / "kept", study.data, study.cache)


def test_a_record_follows_a_study_that_chooses_anew_among_more_values(tmp_path: Path) -> None:
    kept, better = tmp_path / "kept", {"epsilon=0.7": 1.1, "epsilon=0.9": 1.15}

    def chosen(values: str) -> Study:
        study = study_in(tmp_path / values, lambda run: False, TUNED.replace("[-0.3, 0.5]", values))
        for run in study.tuning:
            finish(study, run, found=better.get(run.value, 1))
        return Agenda(study, lambda line: None).study

    for values in ("[-0.3, 0.5]", "[-0.3, 0.5, 0.7]", "[-0.3, 0.5]"):
        pack(chosen(values), kept)
    study = open_study(kept)
    assert [(each["value"], len(each["validation"])) for each in study.choices] == [("epsilon=0.7", 3)]
    finish(study, study.runs[-1])
    assert pack(study, kept).runs == 4
    with pytest.raises(ValueError, match=r"has epsilon=0.7 in .*kept and epsilon=0.9 in"):
        pack(chosen("[-0.3, 0.5, 0.7, 0.9]"), kept)


def test_runs_on_other_data_are_refused(tmp_path: Path) -> None:
    pack(study_in(tmp_path / "a", lambda run: run.fold == 0, ONE_SET), tmp_path / "kept")
    study = study_in(tmp_path / "b", lambda run: run.fold == 1, ONE_SET)
    for path in study.folder.rglob("result.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"prepared": "elsewhere"}))
    with pytest.raises(ValueError, match="were trained on other data: elsewhere and nowhere"):
        pack(study, tmp_path / "kept")


def test_records_are_pooled_as_folders_are(tmp_path: Path) -> None:
    parts = [
        study_in(tmp_path / seeds, recipe=ONE_SET.replace("[0, 1]\n", f"[{seeds}]\n")) for seeds in ("0, 1", "2, 3")
    ]
    for number, part in enumerate(parts):
        pack(part, tmp_path / f"kept-{number}")
    kept = [open_study(tmp_path / f"kept-{number}") for number in range(2)]
    assert compare(pooled(kept)) == compare(pooled(parts))


def test_a_study_whose_study_json_is_lost_means_what_its_record_says(tmp_path: Path) -> None:
    study = study_in(tmp_path, recipe=ONE_SET.replace('weights = "best"', 'score = "dice_global"\nweights = "best"'))
    pack(study, study.folder)
    shutil.rmtree(study.folder / "runs")
    (study.folder / "study.json").write_text(json.dumps({"data": "data", "cache": "cache"}))
    said = (study.folder / "recipe.toml").read_text()
    (study.folder / "recipe.toml").write_text(said.replace('score = "dice_global"', ""))
    assert open_study(study.folder).recipe.score == "dice_global"


def test_runs_that_do_not_belong_together_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = study_in(tmp_path / "a", recipe=ONE_SET)
    assert main(["pack", str(study.folder), "--out", str(tmp_path / "kept")]) == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == (f"{tmp_path / 'kept' / RECORD}\n", "24 runs, 24 of them new\n")
    before = (tmp_path / "kept" / RECORD).read_bytes()
    finish(study, study.runs[0], found=0.5)
    others = {
        "cvc-clinicdb/unet/dice/fold-0/seed-0 with another result": study,
        "are not one study: each has runs": study_in(
            tmp_path / "b", lambda run: False, ONE_SET.replace("[train]", "[train]\nepochs = 7")
        ),
        "that the other's recipe has not": study_in(
            tmp_path / "c", lambda run: False, ONE_SET.replace("seeds = [0, 1]", "seeds = [1, 2]")
        ),
    }
    for problem, other in others.items():
        assert main(["pack", str(other.folder), "--out", str(tmp_path / "kept")]) == 2
        said = capsys.readouterr()
        assert problem in said.err
        assert (said.out, said.err.count("\n")) == ("", 1)
    assert (tmp_path / "kept" / RECORD).read_bytes() == before
    assert main(["pack", str(tmp_path)]) == 2
    assert "holds no study" in capsys.readouterr().err


def test_a_module_of_the_recipe_is_found_from_where_the_record_is(tmp_path: Path) -> None:
    (tmp_path / "packed_loss.py").write_text("from polydice import DiceLoss\n\n\nclass Own(DiceLoss):\n    pass\n")
    study = study_in(tmp_path, recipe=ONE_SET.replace("FocalTverskyLoss()", "packed_loss:Own()"))
    pack(study, tmp_path / "kept")
    assert json.loads((tmp_path / "kept" / "study.json").read_text())["code"] == [".."]
    assert open_study(tmp_path / "kept").recipe == study.recipe


def test_a_folder_that_is_no_run_of_the_recipe_is_named(tmp_path: Path) -> None:
    study = study_in(tmp_path, recipe=ONE_SET)
    shutil.copytree(study.run_folder(study.runs[0]), study.folder / "runs" / "again")
    assert pack(study, study.folder).left_out == ["1 run that the recipe does not have: again"]
    assert (study.folder / "runs" / "again" / "result.json").exists()
