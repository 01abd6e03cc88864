import html
import json
import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from polydice.cli import main
from polydice.studies.comparison import SCORES, compare
from polydice.studies.recipe import packaged
from polydice.studies.report import remarks, write_report
from polydice.studies.study import Finished, Study, create, open_study
from polydice.training.loop import train
from tests.studies.conftest import real_study, train_runs
from tests.studies.made_up import GLOBAL_SET, ONE_SET, find_nothing, finish, study_in
from tests.studies.tiny import RECIPE as TINY

RESULTS = Path(__file__).parents[2] / "results" / "paper"


def files(study: Study) -> dict[str, bytes]:
    report = study.folder / "report"
    return {str(path.relative_to(report)): path.read_bytes() for path in sorted(report.rglob("*")) if path.is_file()}


def test_a_report_has_its_tables_its_figures_and_its_page(trained: Study) -> None:
    assert write_report(trained) == trained.folder / "report" / "report.html"
    figures = ["cases-lesions-unet", "effect-epsilon-unet", "intervals", "sizes-lesions-unet", "training-lesions-unet"]
    drawn = {f"figures/{name}.{kind}" for name in figures for kind in ("svg", "png")}
    assert set(files(trained)) == {"report.html", "tables.csv", "tables.md", "tables.tex"} | drawn
    page = (trained.folder / "report" / "report.html").read_text(encoding="utf-8")
    assert "12 of 12 runs done" in page
    assert "image/jpeg" in page, "the test cases"


def test_stopped_gone_on_with_or_moved_the_report_is_the_same_to_the_last_byte(trained: Study, tmp_path: Path) -> None:
    write_report(trained)
    once = files(trained)
    write_report(trained)
    assert files(trained) == once

    other = real_study(tmp_path)
    backwards = list(reversed(other.runs))
    train_runs(other, backwards[:5])
    write_report(other)
    assert files(other) != once
    train_runs(other, backwards[5:])
    write_report(open_study(other.folder))
    assert files(other) == once

    shutil.copytree(trained.folder, tmp_path / "moved" / "elsewhere")
    moved = open_study(tmp_path / "moved" / "elsewhere")
    shutil.rmtree(moved.folder / "report")
    write_report(moved)
    assert files(moved) == once


def test_the_last_weights_can_be_reported_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As if there had been but one validation, at the end."""
    recipe = TINY.replace("epochs = 2", 'epochs = 8\nrate = 0.1\nweights = "best"').replace("count = 18", "count = 60")
    every, once = (study_in(tmp_path / name, lambda run: False, recipe) for name in ("every", "once"))
    for study, often in ((every, 1), (once, 8)):
        for run in study.runs:
            train(replace(study.settings(run, "cpu"), validate_every=often))
    assert main(["report", str(every.folder), "--weights", "last"]) == 0
    path = Path(capsys.readouterr().out.strip())
    assert path == every.folder / "report-last" / "report.html"
    for name in ("report.html", "tables.md"):
        assert "Tiny (weights of the last epoch)" in (path.parent / name).read_text(encoding="utf-8")
    assert "polydice report DIR --weights last</pre>" in path.read_text(encoding="utf-8")
    (last,), (wanted,) = compare(open_study(every.folder, "last")), compare(once)
    found = [(row.scores, row.differences, row.values) for row in last.rows]
    assert found == [(row.scores, row.differences, row.values) for row in wanted.rows]
    chosen = [(row.scores, row.differences, row.values) for row in compare(every)[0].rows]
    assert found != chosen, "validation chose other weights"


def test_any_loss_can_be_the_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = study_in(tmp_path, recipe=ONE_SET)
    assert main(["report", str(study.folder), "--baseline", "PolyDice-1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert Path(told["report"]) == study.folder / "report-to-polydice-1" / "report.html"
    assert told["baseline"] == "PolyDice-1"
    (forth,), (back,) = compare(study), compare(open_study(study.folder, baseline="PolyDice-1"))
    found = {each.baseline: {row.loss: row.differences for row in each.rows} for each in (forth, back)}
    one, other = found["Dice"]["PolyDice-1"]["dice_global"], found["PolyDice-1"]["Dice"]["dice_global"]
    assert one.mean == pytest.approx(-other.mean)
    assert one.interval == pytest.approx((-other.interval[1], -other.interval[0]))
    page = html.unescape(Path(told["report"]).read_text())
    assert "polydice report DIR --baseline=PolyDice-1</pre>" in page
    assert "(compared with PolyDice-1)</h1>" in page
    assert main(["report", str(study.folder), "--baseline", "Focal Tversky"]) == 0
    page = html.unescape(Path(capsys.readouterr().out.strip()).read_text())
    assert "polydice report DIR --baseline='Focal Tversky'</pre>" in page
    both = open_study(study.folder, "last", baseline="Focal Tversky")
    assert both.report_folder == study.folder / "report-last-to-focal-tversky"
    assert main(["report", str(study.folder), "--baseline", "Dice"]) == 0
    assert Path(capsys.readouterr().out.strip()) == study.folder / "report" / "report.html", "the recipe's own"
    assert not (study.folder / "report-to-dice").exists()
    assert main(["report", str(study.folder), "--baseline", "PolyDice"]) == 2
    wrong = "no loss of the study is called 'PolyDice'; its losses: Dice | Focal Tversky | PolyDice-1\n"
    assert capsys.readouterr().err.endswith(wrong)


def test_runs_that_predict_nothing_or_lose_a_class_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = study_in(tmp_path, recipe=ONE_SET)
    for run in study.runs:
        if run.loss == "Focal Tversky" and (run.seed, run.fold) != (1, 2):
            find_nothing(study, run)
    assert main(["study", str(tmp_path / "made-up.toml"), "--out", str(study.folder)]) == 0
    named = "cvc-clinicdb, unet, Focal Tversky: predicts nothing, not one pixel of foreground in any test case "
    named += "(seed 0, fold 0, 1, 2; seed 1, fold 0, 1)"
    assert named in capsys.readouterr().err.splitlines()
    for name in ("report.html", "tables.md"):
        assert named in (study.folder / "report" / name).read_text(encoding="utf-8")
    study = open_study(RESULTS / "hippocampus-small")
    kept = remarks(study.finished(), study.recipe.outer)
    assert kept == [
        "hippocampus, unet3d, PolyDice-1, ε = 0.5: has lost Anterior, in the truth of test cases and predicted in none "
        "(seed 0, fold 0, 1, 2, 3, 4)"
    ]


def test_a_set_without_foreground_has_a_report_that_says_so(tmp_path: Path) -> None:
    study = study_in(tmp_path, recipe=ONE_SET)
    for run in study.runs:
        finish(study, run, foreground=False)
    page = html.unescape(write_report(study).read_text(encoding="utf-8"))
    assert "Dice of the foreground is not defined, since no test case has any (seed 0, fold 0, 1, 2; seed 1" in page
    assert "nothing was chosen on validation, where no case has foreground: the last weights count (seed 0" in page
    table = (study.folder / "report" / "tables.md").read_text(encoding="utf-8")
    assert "| Dice | – |" in table
    assert "0.00" not in table
    assert "NaN" not in page
    assert "nan" not in table


def test_a_study_of_before_means_what_it_meant_and_grows_so(tmp_path: Path) -> None:
    """Its recipe and its results do not say which score counts: there was but one."""
    study = study_in(tmp_path, recipe=ONE_SET)
    where = json.loads((study.folder / "study.json").read_text())
    assert where.pop("score") == "dice_foreground"
    (study.folder / "study.json").write_text(json.dumps(where))
    for path in study.folder.rglob("result.json"):
        result = json.loads(path.read_text())
        for names in (result["test"], *result["test"]["strata"].values(), result):
            for name in ("dice_foreground", "lost_classes", "predicts_nothing", "validation_dice_foreground"):
                names.pop(name, None)
        path.write_text(json.dumps({name: result[name] for name in result if name != "settings"}))
    (before,), (wanted,) = compare(open_study(study.folder)), compare(study_in(tmp_path / "new", recipe=GLOBAL_SET))
    assert before.score == "dice_global"
    assert [row.verdict for row in before.rows] == [row.verdict for row in wanted.rows]
    assert [row.scores for row in before.rows] == [row.scores for row in wanted.rows]
    write_report(open_study(study.folder))

    (tmp_path / "more.toml").write_text(ONE_SET.replace("seeds = [0, 1]", "seeds = [0, 1, 2]"), encoding="utf-8")
    grown = create(tmp_path / "more.toml", study.folder, tmp_path / "data", tmp_path / "cache")
    assert {grown.settings(run).score for run in grown.runs} == {"dice_global"}
    assert open_study(study.folder).recipe.score == "dice_global", "and so it stays"


def test_many_small_cells_and_few_steps(tmp_path: Path) -> None:
    """The case of results/cells in small: the score that counts has the losses in the order of Dice per case, and every
    run that has collapsed is named. With the background in it, the score has a loss above Dice that finds nothing."""
    text = (RESULTS.parent / "cells" / "foreground.toml").read_text(encoding="utf-8")
    text = text.replace("folds = [0, 1, 2, 3, 4]", "folds = [0]").replace("seeds = [0, 1, 2]", "seeds = [1, 2]")
    text = re.sub(r"\[datasets\.cells-60\]\n.*\n.*\n", "", text)
    text = re.sub(r'"(Cross-entropy|Focal Tversky)" = .*\n', "", text)
    order: dict[str, dict[str, list[str]]] = {}
    for counts in ("dice_foreground", "dice_global"):
        study = study_in(tmp_path / counts, lambda run: False, text.replace("[train]", f'[train]\nscore = "{counts}"'))
        train_runs(study, study.runs)
        (found,) = compare(study)
        by_score = {score: sorted((row.scores[score].mean, row.loss) for row in found.rows) for score in SCORES}
        order[counts] = {score: [loss for _, loss in each] for score, each in by_score.items()}
        collapsed = Counter(each.run.loss for each in study.finished() if _has_collapsed(each))
        assert collapsed.total() >= 3, "or the test would show nothing"
        assert {row.loss: row.collapsed for row in found.rows} == {row.loss: collapsed[row.loss] for row in found.rows}
        told = remarks(study.finished(), study.recipe.outer)
        assert all(any(f"unet, {loss}: " in line for line in told) for loss in collapsed)
    assert order["dice_foreground"]["dice_foreground"] == order["dice_foreground"]["dice_case"]
    wrong = order["dice_global"]
    assert wrong["dice_case"][0] == "Dice + cross-entropy", "it finds least"
    assert wrong["dice_global"].index("Dice + cross-entropy") > wrong["dice_global"].index("Dice")
    assert wrong["dice_foreground"] == wrong["dice_case"]


def _has_collapsed(each: Finished) -> bool:
    total = np.sum([case["confusion"] for case in each.result["cases"]], axis=0)
    return bool(((total.sum(1) > 0) & (total.sum(0) == 0)).any())


def test_results_that_do_not_have_the_last_weights_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = study_in(tmp_path)
    path = study.run_folder(study.runs[0]) / "result.json"
    result = json.loads(path.read_text())
    path.write_text(json.dumps(result | {"last": result["test"]}))  # as it was before the cases came along
    assert main(["report", str(study.folder), "--weights", "last"]) == 2
    told = capsys.readouterr().err
    assert "result.json does not have the cases of the last weights: remove it and train the run again" in told
    assert main(["report", str(study.folder)]) == 0
    assert told.count("\n") == 1


def test_results_without_weights_and_images_are_reported_all_the_same(tmp_path: Path) -> None:
    study = study_in(tmp_path, recipe=ONE_SET)
    (study.folder / "report" / "figures").mkdir(parents=True)
    (study.folder / "report" / "figures" / "cases-cvc-clinicdb-unet.png").touch()  # of an earlier report
    page = write_report(study).read_text(encoding="utf-8")
    assert "No pictures: the weights of these runs (best.safetensors) are not here." in page
    assert not any(name.startswith("figures/cases") for name in files(study))
    assert "| Dice |" in (study.folder / "report" / "tables.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (lambda run: False, "Focal Tversky cannot be compared with Dice"),
        (lambda run: run.loss == "Dice", "PolyDice-1 cannot be compared with Dice"),
        (lambda run: run.loss != "Dice", "Focal Tversky cannot be compared with Dice"),
        (lambda run: run.fold == 0 and run.seed == 0, "Too few runs for an answer"),
        (lambda run: run.seed == 0, ">too few runs</"),
        (lambda run: run.value != "epsilon=0.5", "unfinished"),
        (lambda run: run.seed == 0 or run.fold < 2, "PolyDice-1 is better than Dice"),
    ],
    ids=["nothing", "baseline alone", "no baseline", "one fold", "one seed", "values left", "stopped"],
)
def test_a_part_of_a_study_has_a_report(wanted: object, told: str, tmp_path: Path) -> None:
    page = write_report(study_in(tmp_path, wanted, ONE_SET)).read_text(encoding="utf-8")
    assert told in page
    assert "not run" in page


def test_one_loss_has_a_report(tmp_path: Path) -> None:
    recipe = ONE_SET.partition("[losses]")[0] + '[losses]\nDice = "DiceLoss()"\n'
    page = write_report(study_in(tmp_path, recipe=recipe)).read_text(encoding="utf-8")
    assert "There is nothing to compare yet." in page


def test_what_failed_and_what_was_not_run_is_told(tmp_path: Path) -> None:
    study = study_in(tmp_path, lambda run: run.loss == "Dice")
    failed = next(run for run in study.runs if run.value == "epsilon=-0.3")
    study.run_folder(failed).mkdir(parents=True)
    where = study.run_folder(failed)
    (where / "error.txt").write_text(f"TrainingError: the loss became nan in {where}\n\nTraceback ...\n")
    (tmp_path / "data" / "mine").rmdir()
    write_report(study)
    lines = (study.folder / "report" / "tables.md").read_text(encoding="utf-8").splitlines()
    which = "cvc-clinicdb, unet, PolyDice-1, epsilon=-0.3, fold 0, seed 0"
    assert f"- {which}: failed: TrainingError: the loss became nan in DIR/runs/{failed.place}" in lines
    assert "- cvc-clinicdb, unet, Focal Tversky: 6 of 6 runs not run" in lines
    assert "- mine, unet, Focal Tversky: 6 of 6 runs not run, since the data set is not here" in lines
    assert "Traceback" not in "".join(lines)


def test_what_a_mean_and_a_difference_are_over_is_told_where_runs_are_missing(tmp_path: Path) -> None:
    study = study_in(tmp_path, lambda run: (run.loss, run.fold, run.seed) != ("Focal Tversky", 2, 1), ONE_SET)
    write_report(study)
    lines = (study.folder / "report" / "tables.md").read_text(encoding="utf-8").splitlines()
    over = "its mean is over 3 runs, its difference over 4 pairs"  # one seed has all folds, both have two of them
    assert f"- cvc-clinicdb, unet, Focal Tversky: 1 of 6 runs not run; {over}" in lines


def test_the_command_prints_the_path_of_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = study_in(tmp_path, lambda run: False)
    assert main(["report", str(study.folder)]) == 0
    assert Path(capsys.readouterr().out.strip()) == study.folder / "report" / "report.html"


def test_the_command_prints_the_table_for_other_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = study_in(tmp_path, recipe=ONE_SET)
    assert main(["report", str(study.folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["report"] == str(study.folder / "report" / "report.html")
    assert told["baseline"] == "Dice"
    focal = next(row for row in told["rows"] if row["loss"] == "Focal Tversky")
    assert (focal["published"], focal["published_sd"]) == (80.93, 4.21)
    assert focal["dice_global_low"] < focal["dice_global_difference"] < focal["dice_global_high"] < 0


def test_a_folder_without_a_study_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"polydice report: {tmp_path} holds no study")
    assert told.count("\n") == 1


def test_every_packaged_recipe_has_a_report_before_it_is_run(tmp_path: Path) -> None:
    for name in packaged().keys() - {"compare"}:  # which is completed from the data
        study = create(name, tmp_path / name, tmp_path / "data", tmp_path / "cache")
        page = write_report(study).read_text(encoding="utf-8")
        assert "not run" in page
        assert ("79.31 ± 4.69" in page) == ({"cvc-clinicdb", "unet"} <= {*study.recipe.datasets, *study.recipe.models})
