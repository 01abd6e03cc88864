import json
from pathlib import Path

import numpy as np
import pytest

from polydice.studies.comparison import Comparison, Row, compare
from polydice.studies.study import Study, open_study
from tests.studies.made_up import GLOBAL, ONE_SET, RECIPE, everything, finish, study_in


def row(comparison: Comparison, loss: str) -> Row:
    return next(row for row in comparison.rows if row.loss == loss)


def scores(study: Study, dataset: str, loss: str, value: str = "") -> np.ndarray:
    """`[seeds, folds]` of the results as they are on disk."""
    found = {
        (run.seed, run.fold): result["test"]["dice_global"]
        for run, result in study.finished()
        if (run.dataset, run.loss, run.value) == (dataset, loss, value)
    }
    return np.array([[found[seed, fold] for fold in (0, 1, 2)] for seed in (0, 1)])


def test_the_numbers_follow_from_the_results(tmp_path: Path) -> None:
    study = study_in(tmp_path)
    comparisons = compare(study)
    assert [each.title for each in comparisons] == ["cvc-clinicdb, unet", "mine, unet"]
    for each in comparisons:
        dice = scores(study, each.dataset, "Dice")
        found = row(each, "Dice").scores["dice_global"]
        assert found.mean == pytest.approx(dice.mean(), abs=1e-12)
        assert found.sd == pytest.approx(dice.mean(0).std(ddof=1), abs=1e-12)
        assert found.replicate_noise == pytest.approx(dice.mean(1).std(ddof=1), abs=1e-12)
        other = scores(study, each.dataset, "PolyDice-1", "epsilon=0.5")  # validation was made to prefer it
        apart = row(each, "PolyDice-1").differences["dice_global"]
        assert apart.mean == pytest.approx((other - dice).mean(), abs=1e-12)
        assert apart.interval is not None
        assert apart.interval[0] < apart.mean < apart.interval[1]
        assert row(each, "PolyDice-1").values == {fold: ["epsilon=0.5"] * 2 for fold in (0, 1, 2)}
        assert each.highest == "PolyDice-1"
        assert "PolyDice-1 is better than Dice" in row(each, "PolyDice-1").verdict
        assert "Focal Tversky is worse than Dice" in row(each, "Focal Tversky").verdict
        assert not row(each, "Dice").verdict
        assert not row(each, "Dice").differences


def test_the_score_that_counts_is_the_recipes(tmp_path: Path) -> None:
    """Focal Tversky finds less of the lesions and makes no false alarms, so both scores have the same order; but the
    sentences and the highest mean are of the one that counts."""
    for recipe, score in ((RECIPE, "dice_foreground"), (GLOBAL, "dice_global")):
        each = compare(study_in(tmp_path / score, recipe=recipe))[0]
        assert each.score == score
        focal = row(each, "Focal Tversky")
        assert f" by {-100 * focal.differences[score].mean:.2f} points" in focal.verdict
        assert focal.scores.keys() == {"dice_foreground", "dice_global", "dice_case"}


def test_a_fold_without_foreground_is_left_out_of_what_it_cannot_tell(tmp_path: Path) -> None:
    study = study_in(tmp_path)
    without = study_in(tmp_path / "without", lambda run: run.fold != 1)
    for run in study.runs:
        if run.fold == 1:
            finish(study, run, foreground=False)
    for each, wanted in zip(compare(study), compare(without), strict=True):
        assert [row.undefined for row in each.rows] == [2, 2, 2]
        assert [row.scores for row in each.rows] == [row.scores for row in wanted.rows]
        assert [row.differences for row in each.rows] == [row.differences for row in wanted.rows]


def test_the_published_figure_is_beside_ours_where_the_paper_has_it(tmp_path: Path) -> None:
    cvc, mine = compare(study_in(tmp_path))
    focal = row(cvc, "Focal Tversky")
    assert str(focal.published) == "80.93 ± 4.21"
    assert focal.to_published == pytest.approx(100 * focal.scores["dice_global"].mean - 80.93)
    assert all(row.published is None and row.to_published is None for row in mine.rows)


@pytest.mark.parametrize(
    "renamed", ['[datasets.polyps]\npath = "cvc-clinicdb"', '[datasets.CVC-ClinicDB]\npath = "mine"']
)
def test_a_data_set_is_known_by_its_folder_or_by_its_name(tmp_path: Path, renamed: str) -> None:
    recipe = RECIPE.replace('[datasets.cvc-clinicdb]\npath = "cvc-clinicdb"', renamed)
    assert str(row(compare(study_in(tmp_path, recipe=recipe))[0], "Dice").published) == "79.31 ± 4.69"


def test_without_one_run_a_mean_is_over_all_folds_and_a_difference_over_the_most_pairs(tmp_path: Path) -> None:
    study = study_in(tmp_path, lambda run: (run.loss, run.seed, run.fold) != ("Focal Tversky", 1, 1))
    focal = row(compare(study)[0], "Focal Tversky")
    assert focal.scores["dice_global"].runs == 3
    assert (focal.differences["dice_global"].folds, focal.differences["dice_global"].replicates) == (2, 2)


def test_a_study_that_was_stopped_compares_what_both_have(tmp_path: Path) -> None:
    study = study_in(tmp_path, lambda run: run.seed == 0 or (run.loss == "Dice" and run.fold == 0))
    cvc = compare(study)[0]
    assert row(cvc, "Dice").states == {"done": 4, "waiting": 2}
    assert row(cvc, "Dice").scores["dice_global"].runs == 3, "seed 1 has one fold of three"
    apart = row(cvc, "Focal Tversky").differences["dice_global"]
    assert (apart.replicates, apart.folds) == (1, 3)


def test_means_over_different_runs_have_no_highest(tmp_path: Path) -> None:
    study = study_in(tmp_path, lambda run: run.loss != "PolyDice-1" or run.fold == 0)
    assert compare(study)[0].highest == ""


def test_an_unfinished_choice_is_no_score(tmp_path: Path) -> None:
    cvc = compare(study_in(tmp_path, lambda run: run.value != "epsilon=0.5"))[0]
    poly = row(cvc, "PolyDice-1")
    assert (poly.states["done"], poly.planned) == (6, 12)
    assert not poly.scores
    assert poly.verdict == "PolyDice-1 cannot be compared with Dice: no fold and seed has results of both."


def test_without_a_baseline_there_are_scores_but_no_differences(tmp_path: Path) -> None:
    cvc = compare(study_in(tmp_path, lambda run: run.loss != "Dice"))[0]
    assert row(cvc, "Focal Tversky").scores
    assert not any(row.differences for row in cvc.rows)
    assert "cannot be compared" in row(cvc, "Focal Tversky").verdict


def test_nothing_finished_is_no_error(tmp_path: Path) -> None:
    for each in compare(study_in(tmp_path, lambda run: not everything(run))):
        assert each.highest == ""
        assert all(not row.scores and row.states == {"waiting": row.planned} for row in each.rows)


TWO = ONE_SET.replace('baseline = "Dice"', 'baseline = ["Dice", "Focal Tversky"]').replace("[0, 1]", "[0, 1, 2, 3]")


def test_every_loss_is_compared_with_every_baseline_and_two_baselines_once(tmp_path: Path) -> None:
    (found,) = compare(study_in(tmp_path, recipe=TWO))
    assert {row.loss: list(row.verdicts) for row in found.rows} == {
        "Dice": [], "Focal Tversky": ["Dice"], "PolyDice-1": ["Dice", "Focal Tversky"]
    }  # fmt: skip
    assert {each.comparisons for row in found.rows for each in row.differences.values()} == {3}, "they share one level"
    poly = row(found, "PolyDice-1")
    assert poly.verdict.count("PolyDice-1 is better than") == 2
    assert found.answer.startswith("PolyDice-1 is better than Dice by ")
    assert found.baseline == "Dice"


def test_replicates_with_cuts_of_their_own_are_compared(tmp_path: Path) -> None:
    """The same runs, once as seeds on one cut, once as replicates: the means are the same, the intervals are not."""
    nested = study_in(tmp_path / "nested", recipe=ONE_SET.replace("seeds = [0, 1]", "replicates = 2"))
    crossed = study_in(tmp_path / "crossed", recipe=ONE_SET)
    for run, other in zip(nested.runs, crossed.runs, strict=True):
        result = (crossed.run_folder(other) / "result.json").read_text(encoding="utf-8")
        (nested.run_folder(run) / "result.json").write_text(result, encoding="utf-8")
    (new,), (old,) = compare(nested), compare(crossed)
    assert new.nested
    assert not old.nested
    for mine, theirs in zip(new.rows[1:], old.rows[1:], strict=True):
        one, two = mine.differences["dice_foreground"], theirs.differences["dice_foreground"]
        assert one.mean == pytest.approx(two.mean)
        assert one.interval is not None
        assert two.interval is not None
        assert one.interval != pytest.approx(two.interval, rel=0.01)


def test_the_minutes_of_more_replicates_are_those_of_the_runs(tmp_path: Path) -> None:
    study = study_in(tmp_path, lambda run: run.seed == 0, ONE_SET)
    for path in study.folder.rglob("result.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"seconds": 30.0}))
    found = row(compare(study)[0], "Focal Tversky").verdicts["Dice"]
    runs = 3 * (1 + 1 + 2)  # of a seed: three folds, PolyDice-1 with two values
    assert (found.kind, found.more, found.minutes) == ("too few runs", 2, 2 * runs / 2)


def test_a_study_of_before_has_its_tables() -> None:
    """One seed has no verdict any more, and three seeds have one where their interval excludes 0."""
    results = Path(__file__).parents[2] / "results" / "paper"
    (small,), (acdc,) = (compare(open_study(results / name)) for name in ("gradient-small", "question-acdc"))
    assert (small.weights, small.score, small.nested) == ("best", "dice_global", False)
    assert {each.kind for line in small.rows for each in line.verdicts.values()} == {"too few runs"}
    assert row(small, "2 × Dice").differences["dice_global"].mean == pytest.approx(0.0213, abs=5e-5)
    detached = row(acdc, "PolyDice-1 detached, ε = 0.5").verdicts["Dice"]
    assert detached.kind == "better"
    assert detached.mean == pytest.approx(1.31, abs=0.005)
    assert row(acdc, "PolyDice-1, ε = 0.5").verdicts["Dice"].kind == "undecided"
