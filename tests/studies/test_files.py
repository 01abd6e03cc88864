import json
import random
import re
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from polydice.cli import main
from polydice.studies.files import read_result
from polydice.studies.study import Study
from tests.studies.made_up import ONE_SET, study_in

RECIPE = ONE_SET.replace("folds = [0, 1, 2]", "folds = [0]").replace("seeds = [0, 1]", "seeds = [0]")
NUMBER = re.compile(rb"-?\d+(\.\d+)?(e-?\d+)?")

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda data: data[: len(data) // 2],
    "without its end": lambda data: data[:-3],
    "binary rubbish": lambda data: random.Random(0).randbytes(200),
    "a hole of zeros": lambda data: data[:20] + bytes(50) + data[70:],
    "text": lambda data: b"hello",
    "nothing": lambda data: b"null",
    "a list": lambda data: b"[]",
    "a number": lambda data: b"3",
    "an empty object": lambda data: b"{}",
    "too deep": lambda data: b"[" * 100_000,
    "texts": lambda data: NUMBER.sub(b'"x"', data),
    "lists": lambda data: NUMBER.sub(b"[]", data),
    "huge": lambda data: NUMBER.sub(b"9" * 30, data),
}
WRONG = (None, "", -1, float("nan"), [], {})
PLACES: tuple[tuple[str | int, ...], ...] = (
    ("dataset",), ("prepared",), ("best_epoch",), ("validation_dice_global",), ("test",), ("test", "dice_global"),
    ("test", "strata"), ("cases",), ("cases", 3), ("cases", 3, "id"), ("cases", 3, "group"), ("cases", 3, "confusion"),
    ("cases", 3, "confusion", 1), ("cases", 3, "confusion", 1, 0), ("versions",), ("versions", "torch"), ("device",),
    ("settings",), ("settings", "score"), ("test", "lost_classes"), ("test", "predicts_nothing"), ("used",),
    ("used", "cases"), ("used", "classes"),
)  # fmt: skip


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    made = study_in(tmp_path_factory.mktemp("files"), recipe=RECIPE)
    for path in made.folder.rglob("result.json"):
        used = {"cases": 8, "of": 9, "groups": 4, "classes": ["background", "polyp"], "ignore": None}
        path.write_text(json.dumps(json.loads(path.read_text()) | {"used": used}))
    return made


def refused(study: Study, path: Path, data: bytes, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that `polydice report` says of a file with that content."""
    kept = path.read_bytes()
    path.write_bytes(data)
    try:
        status = main(["report", str(study.folder)])
    finally:
        path.write_bytes(kept)
    said = capsys.readouterr()
    assert (status, said.out, said.err.count("\n")) == (2, "", 1)
    assert str(path) in said.err
    return said.err


DAMAGED = [(name, damage) for name in ("recipe.toml", "result.json", "history.jsonl") for damage in DAMAGES]
DAMAGED += [("study.json", damage) for damage in DAMAGES if damage != "huge"]  # its numbers may be


@pytest.mark.parametrize(("name", "damage"), DAMAGED)
def test_a_damaged_file_is_named(study: Study, name: str, damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = study.folder if name in ("recipe.toml", "study.json") else study.run_folder(study.runs[0])
    refused(study, folder / name, DAMAGES[damage]((folder / name).read_bytes()), capsys)


def test_a_value_of_the_wrong_type_is_named_with_its_place(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    """Every value that a report reads, in six wrong ways."""
    path = study.run_folder(study.runs[0]) / "result.json"
    for (*outer, key), wrong in product(PLACES, WRONG):
        result = json.loads(path.read_text())
        within: Any = result
        for each in outer:
            within = within[each]
        if type(wrong) is not type(within[key]):
            within[key] = wrong
            line = refused(study, path, json.dumps(result).encode(), capsys)
            assert f"{path} is damaged: " in line
            assert line.endswith("; remove it and train the run again\n")


def test_matrices_must_be_square_whole_and_of_one_size(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    path = study.run_folder(study.runs[0]) / "result.json"
    for wrong in ([[1, 2]], [[1, 2], [3]], [[1, 2], [3, 4.5]], [[1, 2], [3, -4]], [[5]], [[1, 2], [3, 10**18]]):
        result = json.loads(path.read_text())
        result["cases"][0]["confusion"] = wrong
        assert "square matrices of whole numbers" in refused(study, path, json.dumps(result).encode(), capsys)
    result["cases"] = []
    assert "square matrices of whole numbers" in refused(study, path, json.dumps(result).encode(), capsys)


def test_scores_of_the_last_weights_are_checked_too(study: Study, tmp_path: Path) -> None:
    result = json.loads((study.run_folder(study.runs[0]) / "result.json").read_text())
    path = tmp_path / "result.json"
    for last, problem in [
        ({}, "does not have the cases of the last weights"),
        ({"test": result["test"], "cases": [], "best_epoch": 3}, "square matrices"),
        ({"test": result["test"], "cases": result["cases"], "best_epoch": "3"}, "result.best_epoch must be a whole"),
    ]:
        path.write_text(json.dumps(result | {"last": last}))
        with pytest.raises(ValueError, match=problem):
            read_result(path, "last")


def test_weights_that_are_damaged_are_named_in_the_report(
    trained: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "study"
    shutil.copytree(trained.folder, folder)
    for path in folder.rglob("best.safetensors"):
        path.write_bytes(path.read_bytes()[:-1])
    error = trained.run_folder(trained.runs[0]).relative_to(trained.folder) / "error.txt"
    (folder / error).write_bytes(bytes(range(256)))
    assert main(["report", str(folder)]) == 0
    page = Path(capsys.readouterr().out.strip()).read_text(encoding="utf-8")
    assert "the weights of these runs cannot be read: DIR/runs/" in page
