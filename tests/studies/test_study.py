import json
import shutil
from pathlib import Path

import pytest

from polydice.recommended import START
from polydice.studies.recipe import packaged, read
from polydice.studies.study import create, open_study
from polydice.training.config import Settings
from tests.studies.made_up import ONE_SET, study_in

KEPT = sorted((Path(__file__).parents[2] / "results" / "paper").glob("*/recipe.toml"))
SILENT = ONE_SET.replace("seeds = [0, 1]\n", "").replace('weights = "best"\n', "").replace("nested = true\n", "")


def test_kept_studies_mean_what_they_meant() -> None:
    for path in KEPT:
        study = open_study(path.parent)
        assert (study.weights, study.recipe.score, study.recipe.nested) == ("best", "dice_global", False)
        assert study.recipe.tune.nested
        assert study.report_folder.name == "report"
        assert open_study(path.parent, "last").report_folder.name == "report-last"
        assert next(study.finished()), "its runs are where they were"


@pytest.mark.parametrize("name", sorted({path.parent.name for path in KEPT} & packaged().keys()))
def test_packaged_recipes_go_on_with_the_kept_studies(name: str, tmp_path: Path) -> None:
    kept = next(path.parent for path in KEPT if path.parent.name == name)
    for file in ("recipe.toml", "study.json", "runs.jsonl.gz"):
        shutil.copy(kept / file, tmp_path)
    before = open_study(tmp_path)
    assert set(create(name, tmp_path, tmp_path, tmp_path).runs) >= set(before.runs)


def settings_of(study_folder: Path, **said: str) -> None:
    """Writes the settings of a run, as it was trained by a version that knew what is `said`, and no more."""
    run = study_folder / "runs" / "cvc-clinicdb" / "unet" / "dice" / "fold-0" / "seed-0"
    run.mkdir(parents=True)
    settings = {name: value for name, value in Settings(Path("d"), Path("o")).to_json().items() if name not in said}
    settings = {name: value for name, value in settings.items() if name not in ("score", "weights")} | said
    (run / "settings.json").write_text(json.dumps(settings))


@pytest.mark.parametrize(("said", "score"), [({}, "dice_global"), ({"score": "dice_foreground"}, "dice_foreground")])
def test_a_begun_study_whose_recipe_says_nothing_keeps_its_seed_weights_and_choices(
    said: dict[str, str], score: str, tmp_path: Path
) -> None:
    study = study_in(tmp_path, lambda run: False, SILENT)
    assert (study.recipe.outer, study.weights, study.recipe.tune.nested) == ("replicate", "last", False)
    settings_of(study.folder, **said)
    where = json.loads((study.folder / "study.json").read_text())
    for kept in ({name: where[name] for name in ("data", "cache")}, "5"):  # as it was before, or damaged
        (study.folder / "study.json").write_text(json.dumps(kept))
        begun = create(tmp_path / "made-up.toml", study.folder, study.data, study.cache)
        for each in (begun, open_study(study.folder)):
            assert (each.recipe.outer, each.recipe.replicates) == ("seed", (0,))
            assert (each.weights, each.recipe.score, each.recipe.tune.nested) == ("best", score, True)
        assert begun.runs[0].place == Path("cvc-clinicdb/unet/dice/fold-0/seed-0")


def test_a_study_goes_on_with_the_optimiser_and_the_rate_that_it_was_begun_with(tmp_path: Path) -> None:
    study = study_in(tmp_path, lambda run: False, SILENT)
    where = json.loads((study.folder / "study.json").read_text())
    assert (where["optimizer"], where["rates"]) == (START.optimizer, START.rate)
    before = {name: value for name, value in where.items() if name not in ("optimizer", "rates")}
    later = where | {"optimizer": "adamw", "rates": {"sgd": 0.5, "adamw": 0.25}}
    for kept, steps in ((before, ("sgd", 0.01)), (later, ("adamw", 0.25))):
        (study.folder / "study.json").write_text(json.dumps(kept))
        for each in (
            open_study(study.folder),
            create(tmp_path / "made-up.toml", study.folder, study.data, study.cache),
        ):
            settings = each.settings(each.runs[0])
            assert (settings.optimizer, settings.rate) == steps


def test_a_study_of_now_whose_study_json_is_lost_means_what_it_meant(tmp_path: Path) -> None:
    study = study_in(tmp_path, lambda run: False, SILENT)
    settings_of(study.folder, score="dice_foreground", weights="last")
    (study.folder / "study.json").unlink()
    again = create(tmp_path / "made-up.toml", study.folder, study.data, study.cache)
    assert again.recipe == study.recipe == read(tmp_path / "made-up.toml")
