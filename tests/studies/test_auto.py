import json
import tomllib
from pathlib import Path

import pytest

from polydice.cli import main
from polydice.data.generate import generated_folder
from polydice.data.readers import open_dataset
from polydice.recommended import START
from polydice.studies.auto import completed, suited
from polydice.studies.recipe import packaged, parse
from polydice.studies.written import RecipeError, dumps

COMPARE = packaged()["compare"].read_text(encoding="utf-8")
CUT = ["folds=[0]", "replicates=1", "rate=0.05", "epochs=1", "width=2", "depth=1"]


def test_network_and_sizes_follow_the_data_and_the_machine(tmp_path: Path) -> None:
    images = open_dataset(generated_folder(tmp_path, 40, size=40))
    volumes = open_dataset(generated_folder(tmp_path, 10, size=20, dims=3, lesion=(2.0, 4.0)))
    small, large, solid = suited(images, "cpu"), suited(images, "gpu"), suited(volumes, "cpu")
    assert (small["model"], small["size"], small["width"], small["folds"]) == ("unet", 48, 8, 3)
    assert (large["model"], large["size"], large["folds"]) == ("unet", 48, 5)
    assert "width" not in large, "the network's own"
    assert (solid["model"], solid["patch"]) == ("unet3d", [24, 24, 24])
    assert "patch" not in suited(volumes, "gpu")
    assert suited(volumes, "cpu", {"model": "unet"})["model"] == "unet"
    assert suited(images, "cpu", {"epochs": 40})["validate_every"] == 2


REAL = Path(__file__).parents[3] / "shared" / "data"


@pytest.mark.skipif(not (REAL / "acdc").is_dir(), reason="needs ACDC and Hippocampus in ../shared/data")
def test_thick_slices_are_taken_one_by_one() -> None:
    assert suited(open_dataset(REAL / "acdc"), "gpu")["model"] == "unet"
    assert suited(open_dataset(REAL / "Task04_Hippocampus"), "gpu")["model"] == "unet3d"


def test_what_was_chosen_is_kept(tmp_path: Path) -> None:
    folder = generated_folder(tmp_path, 40, size=40)
    text, said = completed(COMPARE, folder, None, [])
    assert 'model = "unet"' in said
    assert "size = 48" in said
    elsewhere = text.replace("size = 48", "size = 64")  # as another machine had it
    assert completed(COMPARE, folder, elsewhere, [])[0] == elsewhere
    assert completed(text, folder, None, []) == (text, ""), "nothing is left open"


def test_a_command_can_change_a_recipe(tmp_path: Path) -> None:
    folder = generated_folder(tmp_path, 40, size=40)
    changes = ["epochs=7", "replicates=5", "margin=0.5", "rate=[0.1,0.2]", "folds=4", "model=transunet"]
    recipe = parse(completed(COMPARE, folder, None, changes)[0])
    settings = recipe.settings(next(recipe.runs()), Path("d"), Path("o"))
    assert (settings.epochs, settings.folds, settings.model) == (7, 4, "transunet")
    assert list(recipe.models) == ["transunet"]
    assert (len(recipe.replicates), recipe.margin, recipe.folds) == (5, 0.5, (0, 1, 2, 3))
    assert [variant.value for variant in recipe.losses["Dice"]] == ["rate=0.1", "rate=0.2"]
    seeds = parse(completed(COMPARE, folder, None, ["seeds=[0,1]", "rate=0.02", "folds=[0]"])[0])
    assert (seeds.nested, seeds.folds, list(seeds.tuning())) == (False, (0,), [])
    with pytest.raises(RecipeError, match=r"unet3d takes volumes, and .* holds images"):
        completed(COMPARE, folder, None, ["model=unet3d"])
    with pytest.raises(ValueError, match="epochs must be a whole number and must be at least 1: 'many'"):
        completed(COMPARE, folder, None, ["epochs=many"])
    tuned = parse(completed(COMPARE, folder, None, ["batch=[4,8]"])[0])
    assert len(tuned.losses["Dice"]) == 4 * 2
    demo = packaged()["demo"].read_text(encoding="utf-8")
    for change, problem in (
        ("epochs", "takes NAME=VALUE"),
        ("lr=0.1", r"--set has lr \(did you mean rate\?\)"),
        ("data=x", "--set has data"),
        ("model=unet3d", "the recipe names its networks"),
    ):
        with pytest.raises(RecipeError, match=problem):
            completed(demo, folder, None, [change])


def test_the_rates_to_choose_from_are_those_of_the_optimiser(tmp_path: Path) -> None:
    folder = generated_folder(tmp_path, 40, size=40)

    def tried(text: str) -> list[float]:
        found: list[float] = tomllib.loads(text)["tune"]["rate"]
        return found

    plain, _ = completed(COMPARE, folder, None, [])
    adamw, _ = completed(COMPARE, folder, None, ["optimizer=adamw"])
    assert (tried(plain), tried(adamw)) == (START.tried[START.optimizer], START.tried["adamw"])
    assert tried(completed(COMPARE, folder, None, ["optimizer=adamw", "rate=[0.1,0.2]"])[0]) == [0.1, 0.2]
    assert not tomllib.loads(completed(COMPARE, folder, None, ["optimizer=adamw", "rate=0.1"])[0])["tune"]
    begun = adamw.replace("0.00128", "0.001")  # by another version
    assert tried(completed(COMPARE, folder, begun, ["optimizer=adamw"])[0]) == tried(begun)
    assert tried(completed(COMPARE.replace("auto]", "unet]"), folder, None, [])[0]) == START.tried[START.optimizer]
    assert [variant.value for variant in parse(COMPARE).losses["Dice"]] == [
        f"rate={rate}" for rate in START.tried[START.optimizer]
    ]
    with pytest.raises(RecipeError, match=r"of the one optimiser under \[train\], and this recipe has several: list"):
        completed(COMPARE, folder, None, ['optimizer=["sgd","adamw"]'])
    with pytest.raises(RecipeError, match="and this recipe has several"):
        parse(COMPARE.replace("[models.auto]", '[models.auto]\noptimizer = "adamw"'))
    with pytest.raises(ValueError, match="optimizer must be one of sgd, adamw: adam"):
        parse(completed(COMPARE, folder, None, ["optimizer=adam"])[0])


def test_a_recipe_that_is_written_reads_the_same() -> None:
    for path in packaged().values():
        given = tomllib.loads(path.read_text(encoding="utf-8"))
        assert tomllib.loads(dumps(given)) == given


def test_compare_takes_any_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = generated_folder(tmp_path / "data", 12, size=32)
    where = ["--data", str(folder), "--out", str(tmp_path / "s"), "--cache", str(tmp_path / "cache"), "--jobs", "1"]
    assert main(["study", "compare", *where, "--json", "--set", *CUT]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["runs"] == {"done": 4, "failed": 0, "no data": 0}
    chosen, used, plan = said.err.splitlines()[:3]
    assert chosen.startswith(f"chosen for 12 cases of {folder.name} on a ")
    assert used.startswith(f"{folder.name}: 12 of 12 cases")
    assert plan.startswith("4 runs to train (all to compare), 1 at a time: about 1 minute, guessed from ")
    assert main(["study", "compare", *where, "--json", "--set", *CUT]) == 0, "the same command goes on"
    assert capsys.readouterr().err.startswith("as the study was begun: ")


def test_a_network_is_chosen_for_one_data_set(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"\[models.auto\] chooses one network for one data set"):
        completed(COMPARE.replace("[models.auto]", '[datasets.more]\npath = "x"\n[models.auto]'), tmp_path, None, [])


def test_a_folder_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--out", str(tmp_path / "s"), "--data", str(tmp_path / "nowhere")]
    assert main(["study", "compare", *where]) == 2
    assert f"no data set of the recipe is there ({tmp_path / 'nowhere'})" in capsys.readouterr().err
