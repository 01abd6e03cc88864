import json
import os
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


def test_a_set_that_is_not_there_is_named_and_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text(RECIPE.replace("generate = { count = 18, size = 32, seed = 1 }", 'path = "nowhere"'))
    assert main(["study", str(recipe), "--out", str(tmp_path / "s"), "--data", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert "nowhere is not there" in said.err
    assert said.out.strip().endswith("report.html")


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
    used, stopped = said.split("\n", 1)
    assert used.endswith(": 18 of 18 cases, 18 groups, 2 classes: background, lesion 1")
    assert stopped == f"\nstopped; the same command goes on with {folder}\n"
    assert nobody_is_left_of(study.pid)
