import json
from dataclasses import replace
from pathlib import Path

import pytest

from polydice.cli import main
from polydice.studies.comparison import compare
from polydice.studies.pool import pooled
from polydice.studies.study import open_study
from tests.studies.made_up import ONE_SET, study_in

MORE = ONE_SET.replace("seeds = [0, 1]", "seeds = [2, 3, 4]")


def test_studies_with_other_seeds_are_one_with_all_of_them(tmp_path: Path) -> None:
    parts = [study_in(tmp_path / "a", recipe=ONE_SET), study_in(tmp_path / "b", recipe=MORE)]
    whole = study_in(tmp_path / "whole", recipe=ONE_SET.replace("seeds = [0, 1]", "seeds = [0, 1, 2, 3, 4]"))
    (found,), (wanted,) = compare(pooled(parts)), compare(whole)
    assert [row.scores for row in found.rows] == [row.scores for row in wanted.rows]
    assert [row.verdict for row in found.rows] == [row.verdict for row in wanted.rows]
    assert found.rows[1].differences["dice_foreground"].replicates == 5


def test_studies_with_other_losses_are_one_with_all_of_them_and_a_run_counts_once(tmp_path: Path) -> None:
    lines = ONE_SET.splitlines()
    without = ["\n".join(line for line in lines if name not in line) for name in ("PolyDice-1", "Focal")]
    parts = [study_in(tmp_path / str(place), recipe=recipe) for place, recipe in enumerate(without)]
    (found,), (wanted,) = compare(pooled(parts)), compare(study_in(tmp_path / "whole", recipe=ONE_SET))
    assert {row.loss: row.scores for row in found.rows} == {row.loss: row.scores for row in wanted.rows}
    assert next(row for row in found.rows if row.loss == "Dice").states == {"done": 6}


def test_of_a_run_that_two_studies_have_the_finished_one_counts(tmp_path: Path) -> None:
    nothing, everything = study_in(tmp_path / "a", lambda run: False, ONE_SET), study_in(tmp_path / "b", recipe=ONE_SET)
    assert compare(pooled([nothing, everything]))[0].rows[0].states == {"done": 6}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (('weights = "best"', 'weights = "best"\nepochs = 7'), "epochs of cvc-clinicdb with unet: 200 and 7"),
        (('weights = "best"', 'weights = "best"\nscore = "dice_global"'), "score: dice_foreground and dice_global"),
        (("seeds = [2, 3, 4]", "replicates = 3"), "repeated by: seeds, on one cut and replicates, each"),
        (("FocalTverskyLoss()", "DiceLoss()"), "Focal Tversky is FocalTverskyLoss() and DiceLoss()"),
        (("[-0.3, 0.5]", "[-0.3, 0.2]"), "PolyDice-1 is PolyDice1Loss(-0.3), PolyDice1Loss(0.5) and PolyDice1Loss(-0"),
        (("[datasets.cvc-clinicdb]", "[datasets.other]"), "they have no data set and network in common"),
        (("nested = true", "nested = false"), "[tune]: nested and once"),
    ],
)  # fmt: skip
def test_what_differs_is_told(
    change: tuple[str, str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = study_in(tmp_path / "a", lambda run: False, ONE_SET)
    other = study_in(tmp_path / "b", lambda run: False, MORE.replace(*change))
    assert main(["report", str(one.folder), str(other.folder)]) == 2
    error = capsys.readouterr().err
    assert f"{one.folder} and {other.folder} cannot be pooled: {told}" in error
    assert error.count("\n") == 1


def test_other_data_under_the_same_name_are_told(tmp_path: Path) -> None:
    parts = [study_in(tmp_path / "a", recipe=ONE_SET), study_in(tmp_path / "b", recipe=MORE)]
    for path in parts[1].folder.rglob("result.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"prepared": "elsewhere"}))
    with pytest.raises(ValueError, match="the data of cvc-clinicdb with unet: nowhere and elsewhere"):
        pooled(parts)
    with pytest.raises(ValueError, match="cannot be pooled with itself"):
        pooled([parts[0], replace(parts[0])])


def test_the_command_writes_one_report_of_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = study_in(tmp_path / "a", recipe=ONE_SET), study_in(tmp_path / "b", recipe=MORE)
    assert main(["report", str(one.folder), str(other.folder)]) == 0
    told = capsys.readouterr()
    path = Path(told.out.strip())
    assert path == one.folder / "report-with-study" / "report.html"
    page = path.read_text(encoding="utf-8")
    assert "Made up, 2 studies" in page
    assert "5 seeds" in page
    assert "60 of 60 runs done" in page
    assert "PolyDice-1 is better" in told.err
    assert pooled([open_study(one.folder)]).folder == one.folder, "one study is itself"
