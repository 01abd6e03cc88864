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
from polydice.data.generate import generated_folder
from polydice.studies.recipe import packaged, read
from polydice.studies.study import Study
from tests.studies.test_engine import reference  # noqa: F401
from tests.studies.tiny import RECIPE


def test_the_packaged_recipes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "--list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == list(packaged())
    assert len({line.index(read(name).title) for name, line in zip(packaged(), listed, strict=True)}) == 1, "aligned"


@pytest.mark.parametrize("arguments", [[], ["no-such-recipe"]])
def test_what_cannot_begin_is_one_line(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["study", *arguments, "--out", str(tmp_path / "s")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_finished_study_is_reported_on_again(reference: Study, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    recipe = str(reference.folder / "recipe.toml")
    where = ["--out", str(reference.folder), "--data", str(reference.data), "--cache", str(reference.cache)]
    assert main(["study", recipe, *where, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["runs"] == {"done": 6, "failed": 0, "no data": 0}
    assert Path(told["report"]).is_file()


GENERATED = "[datasets.lesions]\ngenerate = { count = 18, size = 32, seed = 1 }\n"
NOWHERE = '[datasets.nowhere]\npath = "nowhere"\n'


def test_a_set_that_is_not_there_is_named_and_left_out(
    reference: Study,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recipe, folder = tmp_path / "mine.toml", tmp_path / "study"
    recipe.write_text(RECIPE.replace(GENERATED, GENERATED + NOWHERE))
    shutil.copytree(reference.folder, folder)
    assert main(["study", str(recipe), "--out", str(folder), "--data", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert f"nowhere: {tmp_path / 'nowhere'} is not there; its runs are left out" in said.err
    assert said.out.strip().endswith("report.html")


def test_a_study_without_any_data_is_an_error_and_has_no_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text(RECIPE.replace(GENERATED, NOWHERE))
    assert main(["study", str(recipe), "--out", str(tmp_path / "s"), "--data", str(tmp_path)]) == 2
    said = capsys.readouterr()
    problem = (
        f"no data set of the recipe is there ({tmp_path / 'nowhere'}): --data names the folder that holds them; for "
        "compare, the data set itself"
    )
    assert (said.out, said.err) == ("", f"polydice study: {problem}\n")
    assert not (tmp_path / "s" / "report").exists()


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        ("--jobs", "0", "be at least 1: 0"),
        ("--jobs", "-1", "be at least 1: -1"),
        ("--per-gpu", "0", "be at least 1: 0"),
        ("--gpu-share", "0", "be positive: 0.0"),
        ("--gpu-share", "1.5", "be at most 1: 1.5"),
    ],
)
def test_a_number_that_would_train_nothing_is_refused_at_the_start(
    option: str, value: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["study", "demo", "--out", str(tmp_path / "s"), option, value]) == 2
    assert capsys.readouterr().err == f"polydice study: {option} must {problem}\n"
    assert not (tmp_path / "s").exists()


def test_a_recipe_toml_is_named_for_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "theirs"):
        Path(name).mkdir()
        Path(name, "recipe.toml").write_text(RECIPE.replace(GENERATED, NOWHERE))
        assert main(["study", f"{name}/recipe.toml"]) == 2
    monkeypatch.chdir("mine")
    assert main(["study", "recipe.toml"]) == 2
    assert Path("runs", "mine", "recipe.toml").is_file()
    assert sorted(path.name for path in tmp_path.glob("runs/*")) == ["mine", "theirs"]


def test_two_recipes_do_not_share_a_folder_silently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = RECIPE.replace(GENERATED, NOWHERE)
    said = []
    for name, recipe in [
        ("a", text),
        ("a", text),
        ("b", text.replace("epochs = 2", "epochs = 3")),
        ("c", text.replace("seeds = [0]", "seeds = [0, 1]")),
    ]:
        Path(name).mkdir(exist_ok=True)
        Path(name, "study.toml").write_text(recipe)
        assert main(["study", f"{name}/study.toml"]) == 2
        said.append(capsys.readouterr().err.splitlines())
        Path("runs/study/runs/nowhere").mkdir(parents=True, exist_ok=True)  # as if it had begun to train
    no_data = said[0]
    assert said[1] == no_data
    assert said[2][0].startswith("polydice study: runs/study holds a study with another recipe: take another folder")
    assert said[3] == ["runs/study holds a study with another recipe, which this one extends by 6 runs", *no_data]


def test_a_study_that_was_refused_can_be_mended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The recipe of a study that never began is not held against a better one, in the study's own folder or not."""
    recipe, out = tmp_path / "mine.toml", tmp_path / "s"
    where = ["--data", str(tmp_path), "--out", str(out), "--cache", str(tmp_path / "cache"), "--jobs", "1"]
    recipe.write_text(RECIPE.replace(GENERATED, NOWHERE))
    assert main(["study", str(recipe), *where]) == 2
    mended = (
        RECIPE.replace("epochs = 2", "epochs = 1").replace("[-0.2, 0.5]", "[0.5]").replace("seeds = [0]", "seeds = [1]")
    )
    (out / "recipe.toml").write_text(mended)
    (out / "study.json").unlink()
    assert main(["study", str(out / "recipe.toml"), *where]) == 0
    assert json.loads((out / "study.json").read_text())["score"] == "dice_foreground"
    (out / "study.json").write_text("5")
    assert main(["report", str(out)]) == 2
    assert "polydice study writes it anew" in capsys.readouterr().err
    assert main(["study", str(out / "recipe.toml"), *where]) == 0
    assert json.loads((out / "study.json").read_text())["score"] == "dice_foreground"


def test_a_set_with_errors_is_refused_before_anything_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Or trained on without the cases that have them, which the report says."""
    generated = generated_folder(tmp_path, 18, size=32, seed=1).rename(tmp_path / "lesions")
    for path in sorted((generated / "masks").iterdir())[:3]:
        path.write_bytes(b"")
    recipe = tmp_path / "mine.toml"
    recipe.write_text(
        RECIPE.replace("generate = { count = 18, size = 32, seed = 1 }", 'path = "lesions"')
        .replace("epochs = 2", "epochs = 1")
        .replace("[-0.2, 0.5]", "[0.5]")
    )
    where = ["--data", str(tmp_path), "--out", str(tmp_path / "s"), "--cache", str(tmp_path / "cache"), "--jobs", "1"]
    assert main(["study", str(recipe), *where]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"polydice study: {generated} has 3 errors and is not trained on:\nerror    masks/")
    assert "--skip-errors goes on with the other 15 of 18 cases" in said
    assert not list((tmp_path / "s").glob("runs/*"))
    assert main(["study", str(recipe), *where, "--skip-errors"]) == 0
    said = capsys.readouterr()
    used = "lesions: 15 of 18 cases, 15 groups, 2 classes: background, lesion 1"
    assert used in said.err.splitlines()
    for name in ("report.html", "tables.md"):
        assert used in (tmp_path / "s" / "report" / name).read_text(encoding="utf-8")
    for path in (tmp_path / "s").rglob("result.json"):
        assert json.loads(path.read_text())["used"]["cases"] == 15


def nobody_is_left_of(group: int) -> bool:
    for _ in range(100):  # the last of them ends by itself, soon
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_control_c_stops_all_workers_and_says_how_to_go_on(tmp_path: Path) -> None:
    recipe, folder = tmp_path / "mine.toml", tmp_path / "study"
    recipe.write_text(RECIPE.replace("epochs = 2", "epochs = 100_000"))
    command = ["study", str(recipe), "--out", str(folder), "--cache", str(tmp_path / "cache"), "--jobs", "2"]
    study = subprocess.Popen(
        [sys.executable, "-m", "polydice", *command],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a terminal of its own, as it were
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # it may have been ignored here
    )
    while len(list(folder.glob("runs/*/*/*/*/*/history.jsonl"))) < 2:
        assert study.poll() is None
        time.sleep(0.05)
    os.killpg(study.pid, signal.SIGINT)
    _, said = study.communicate()
    assert study.returncode == 130
    if said.startswith("waiting for another process"):  # on a busy machine: one worker prepares the data for both
        said = said.partition("\n")[2]
    used, plan, stopped = said.split("\n", 2)
    assert plan.startswith("6 runs to train (all to compare), 2 at a time: about ")
    assert used.endswith(": 18 of 18 cases, 18 groups, 2 classes: background, lesion 1")
    assert stopped == f"\nstopped; the same command goes on with {folder}\n"
    assert nobody_is_left_of(study.pid)
