import csv
import io
import re
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pytest

from polydice.studies.comparison import compare
from polydice.studies.formats import Table, latex, markdown
from polydice.studies.study import Study
from polydice.studies.tables import (
    by_dataset,
    choices,
    courses,
    csv_text,
    details,
    document,
    notes,
    pairs,
    record,
    results,
)
from tests.studies.conftest import train_runs
from tests.studies.made_up import GLOBAL, RECIPE, find_nothing, finish, study_in
from tests.studies.tiny import RECIPE as TINY


def cells(table: Table, loss: str) -> dict[str, str]:
    """The row of a loss, by the columns' names."""
    row = next(row for row in table.rows if row[0].text == loss)
    return dict(zip(table.header, (cell.text for cell in row), strict=True))


@pytest.mark.parametrize(
    ("recipe", "counts", "beside", "other"),
    [
        (RECIPE, "dice_foreground", "Dice with background", "dice_global"),
        (GLOBAL, "dice_global", "Dice of foreground", "dice_foreground"),
    ],
)
def test_a_row_says_what_was_found_and_what_the_paper_has(
    recipe: str, counts: Any, beside: str, other: Any, tmp_path: Path
) -> None:
    cvc, mine = compare(study_in(tmp_path, recipe=recipe))
    found = cells(results(cvc), "Focal Tversky")
    row = cvc.rows[1]
    score, apart = row.scores[counts], row.differences[counts]
    assert found[beside] == f"{100 * row.scores[other].mean:.2f} ± {100 * row.scores[other].sd:.2f}"
    header = results(cvc).header
    with_background = "Dice" if counts == "dice_global" else "Dice with background"
    assert header[header.index(with_background) + 1] == "Paper, Table 1", "beside the score that the paper has"
    assert found["Dice"] == f"{100 * score.mean:.2f} ± {100 * score.sd:.2f}"
    assert found["Paper, Table 1"] == "80.93 ± 4.21"
    assert found["Ours − paper"] == f"{100 * row.scores['dice_global'].mean - 80.93:+.2f}".replace("-", "−")
    low, high = (100 * end for end in apart.interval)
    wanted = f"{100 * apart.mean:+.2f} [{low:.2f}, {high:.2f}]".replace("-", "−")
    assert found["Difference to Dice"] == wanted
    assert found["Noise"] == f"{100 * score.replicate_noise:.2f}"
    assert found["Runs"] == "6 of 6"
    assert not any("Paper" in name for name in results(mine).header)
    assert [row[1].bold for row in results(cvc).rows] == [False, False, True], "the highest mean"


def test_the_overview_is_the_papers_table(tmp_path: Path) -> None:
    found = by_dataset(compare(study_in(tmp_path, recipe=GLOBAL)), "unet")
    assert found.header == ("Loss", "cvc-clinicdb", "mine")
    assert cells(found, "Dice")["cvc-clinicdb"].endswith(" (79.31 ± 4.69)")
    assert "(" not in cells(found, "Dice")["mine"]
    found = by_dataset(compare(study_in(tmp_path / "foreground")), "unet")
    assert "paper" not in found.title
    assert "(" not in cells(found, "Dice")["cvc-clinicdb"], "it would stand beside another score"


def test_runs_that_have_collapsed_are_marked(tmp_path: Path) -> None:
    study = study_in(tmp_path)
    for run in study.runs[:1]:  # of Dice, on the first set
        find_nothing(study, run)
    cvc, mine = compare(study)
    found = cells(results(cvc), "Dice")
    assert found["Dice"] == f"{100 * cvc.rows[0].scores['dice_foreground'].mean:.2f} ± " + (
        f"{100 * cvc.rows[0].scores['dice_foreground'].sd:.2f} †"
    )
    assert found["Runs"] == "6 of 6, 1 collapsed"
    assert cells(by_dataset([cvc, mine], "unet"), "Dice")["cvc-clinicdb"] == found["Dice"]
    assert [record(cvc, row)["runs_collapsed"] for row in cvc.rows] == [1, 0, 0]
    assert "†" not in "".join(markdown(results(mine)))
    assert any(note.startswith("† ") for note in notes([cvc, mine]))
    assert not any(note.startswith("† ") for note in notes([mine]))
    assert r"$\dagger$" in latex(results(cvc))


def test_where_no_test_case_has_foreground_there_is_a_dash(tmp_path: Path) -> None:
    study = study_in(tmp_path, recipe=RECIPE.replace("folds = [0, 1, 2]", "folds = [0]"))
    for run in study.runs:
        if run.dataset == "mine":
            finish(study, run, foreground=False)
    cvc, mine = (results(each) for each in compare(study))
    assert {cells(mine, row[0].text)["Dice"] for row in mine.rows} == {"–"}
    assert cells(mine, "Dice")["Runs"] == "2 of 2, 2 not defined"
    assert all(float(row[1].text) > 0 for row in cvc.rows)
    assert any(note.startswith("– ") for note in notes(compare(study)))
    assert record(compare(study)[1], compare(study)[1].rows[0])["dice_foreground"] is None


def test_chosen_values_are_told_fold_by_fold(tmp_path: Path) -> None:
    cvc = compare(study_in(tmp_path))[0]
    assert cells(choices(cvc), "PolyDice-1") == {"Loss": "PolyDice-1"} | {f"Fold {k}": "ε = 0.5, 0.5" for k in range(3)}
    two = RECIPE.replace("({epsilon})", "({epsilon}, smooth={smooth})").replace("0.5] }", "0.5], smooth = [1.0] }")
    cvc = compare(study_in(tmp_path / "two", recipe=two))[0]
    assert cells(choices(cvc), "PolyDice-1")["Fold 0"].count("smooth=1.0") == 2
    assert choices(compare(study_in(tmp_path / "none", lambda run: False))[0]) is None


def test_the_gradient_is_told_as_a_multiple_of_the_baselines(tmp_path: Path) -> None:
    """Of one step from the same weights, so the multiple is the loss's own."""
    recipe = TINY.replace("epochs = 2", "epochs = 1").replace("batch = 4", "batch = 6")
    recipe = re.sub('"PolyDice-1" = .*', '"3 x Dice" = "3 * DiceLoss(batch=True)"', recipe)
    study = study_in(tmp_path, lambda run: False, recipe)
    train_runs(study, study.runs)
    (found,) = compare(study)
    assert [row.gradient for row in found.rows] == [1, pytest.approx(3, rel=1e-4)]
    assert cells(courses(found), "3 x Dice")["Gradient, × Dice"] == "3.00"


def test_the_other_weights_stand_beside_those_that_count(trained: Study) -> None:
    for study, other in ((trained, "last"), (replace(trained, weights="last"), "best")):
        (found,) = compare(study)
        for row in found.rows:
            results = [each.result for each in row.counting.values()]
            beside = 100 * fmean(each[other]["test"]["dice_foreground"] for each in results)
            counts = 100 * fmean(each["test"]["dice_foreground"] for each in results)
            best = results if other == "last" else [each["best"] for each in results]
            told = cells(courses(found), row.loss)
            assert told["Best epoch"] == f"{median(each['best_epoch'] for each in best):g}"
            assert told[f"Dice, {other} weights"] == f"{beside:.2f}"
            name = "Best − last" if other == "best" else "Last − best"
            assert told[name] == f"{beside - counts:+.2f}".replace("-", "−")


def test_all_pairs_are_told_once(tmp_path: Path) -> None:
    cvc = compare(study_in(tmp_path))[0]
    found = pairs(cvc)
    assert found.header == ("Row − column", "Dice", "Focal Tversky")
    assert [row[0].text for row in found.rows] == ["Focal Tversky", "PolyDice-1"]
    means = {row.loss: 100 * row.scores["dice_foreground"].mean for row in cvc.rows}
    apart = means["PolyDice-1"] - means["Focal Tversky"]
    assert found.rows[1][2] == (f"{apart:+.2f}", pytest.approx(apart), True)
    assert found.rows[0][2].text == ""


def test_p_values_stand_in_the_details(tmp_path: Path) -> None:
    three = RECIPE.replace("seeds = [0, 1]", "seeds = [0, 1, 2]")
    cvc = compare(study_in(tmp_path, recipe=three))[0]
    told = cells(details(cvc), "PolyDice-1")
    assert told["Verdict"] == "better"
    assert told["Seeds × folds"] == "3 × 3"
    assert 0 < float(told["Wilcoxon's p"]) < 0.05
    assert "p" not in [name.lower() for name in results(cvc).header]


def test_results_that_tell_neither_have_no_such_table(tmp_path: Path) -> None:
    cvc = compare(study_in(tmp_path))[0]
    assert courses(cvc) is None


def test_what_is_missing_is_marked(tmp_path: Path) -> None:
    study = study_in(tmp_path, lambda run: run.dataset == "cvc-clinicdb" and run.value == "epsilon=-0.3")
    failed = next(run for run in study.runs if run.loss == "Focal Tversky")
    study.run_folder(failed).mkdir(parents=True)
    (study.run_folder(failed) / "error.txt").write_text("ValueError: no\n")
    (tmp_path / "data" / "mine").rmdir()
    cvc, mine = (results(each) for each in compare(study))
    assert [cells(cvc, row[0].text)["Dice"] for row in cvc.rows] == ["not run", "failed", "unfinished"]
    assert [cells(cvc, row[0].text)["Runs"] for row in cvc.rows] == ["0 of 6", "0 of 6, 1 failed", "6 of 12"]
    assert {cells(mine, row[0].text)["Dice"] for row in mine.rows} == {"no data"}
    assert cells(cvc, "Dice")["Paper, Table 1"] == "79.31 ± 4.69", "shown before anything is run"


def test_one_fold_has_no_spread_over_folds(tmp_path: Path) -> None:
    recipe = RECIPE.replace("folds = [0, 1, 2]", "folds = [0]")
    cvc = compare(study_in(tmp_path, recipe=recipe))[0]
    assert re.fullmatch(r"\d\d\.\d\d", cells(results(cvc), "Dice")["Dice"])


def test_the_csv_holds_the_numbers(tmp_path: Path) -> None:
    comparisons = compare(study_in(tmp_path))
    rows = list(csv.DictReader(io.StringIO(csv_text(comparisons))))
    assert [(row["dataset"], row["loss"]) for row in rows[:3]] == [("cvc-clinicdb", loss) for loss in
        ("Dice", "Focal Tversky", "PolyDice-1")]  # fmt: skip
    focal, expected = rows[1], record(comparisons[0], comparisons[0].rows[1])
    assert {name: focal[name] for name in expected} == {
        name: "" if value is None else str(value) for name, value in expected.items()
    }
    assert float(focal["published"]) == 80.93
    assert float(focal["dice_global"]) - 80.93 == pytest.approx(float(focal["to_published"]), abs=1e-4)


def test_the_document_has_the_sentences_the_tables_and_what_is_missing(tmp_path: Path) -> None:
    comparisons = compare(study_in(tmp_path, recipe=GLOBAL))
    found = document("Title", "About.", comparisons, [results(comparisons[0])], ["Dice: 1 of 2 runs not run"])
    assert found.startswith("# Title\n\nAbout.\n\ncvc-clinicdb, unet: PolyDice-1 is better")
    assert "\n- Focal Tversky is worse than Dice by " in found
    assert "| Loss | Dice | Paper, Table 1 |" in found
    assert "- Dice: 1 of 2 runs not run" in found
    assert "arXiv:2606.23373" in found
