from pathlib import Path

import pytest

from polydice.studies.comparison import compare
from polydice.studies.qualitative import qualitative
from polydice.studies.report import write_report
from polydice.studies.study import create
from tests.data import write
from tests.studies.conftest import train_runs
from tests.studies.tiny import RECIPE


def test_a_study_of_classes_that_overlap(tmp_path: Path) -> None:
    """Its scores are those of the regions, its pictures those of the labels."""
    write.regions(tmp_path / "regions", 2, cases=9)
    recipe = RECIPE.replace("[datasets.lesions]", "[datasets.regions]").replace("size = 32", "size = 24")
    recipe = recipe.replace("generate = { count = 18, size = 24, seed = 1 }", 'path = "regions"')
    recipe = recipe.replace("epochs = 2", "epochs = 8\nrate = 0.1")
    (tmp_path / "regions.toml").write_text(recipe.replace("batch = 4", "batch = 3").replace("[-0.2, 0.5]", "[0.5]"))
    study = create(tmp_path / "regions.toml", tmp_path / "study", tmp_path, tmp_path / "cache")
    train_runs(study, study.runs)
    write_report(study)
    (comparison,) = compare(study)
    for row in comparison.rows:
        reached = [each.result["test"]["dice_foreground"] for each in row.counting.values()]
        assert row.scores["dice_foreground"].mean == pytest.approx(sum(reached) / len(reached))
    figure = qualitative(study, comparison)
    named = [text.get_text() for text in figure.legends[0].get_texts()]
    assert named[:2] == ["organ, found", "organ + tumour, found"]
