import gzip
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polydice.cli import main
from polydice.studies.pack import pack
from polydice.studies.record import RECORD, finished_line
from tests.studies.made_up import ONE_SET, study_in


def line(**changed: Any) -> Callable[[bytes], bytes]:
    """A record whose first line is changed."""

    def damaged(data: bytes) -> bytes:
        first, *rest = gzip.decompress(data).splitlines()
        said = {name: value for name, value in (json.loads(first) | changed).items() if value is not None}
        return gzip.compress(b"\n".join([json.dumps(said).encode(), *rest]))

    return damaged


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "truncated": (lambda data: data[: len(data) // 2], "Compressed file ended"),
    "rubbish": (lambda data: random.Random(0).randbytes(200), "Not a gzipped file"),
    "a hole": (lambda data: data[:500] + bytes(50) + data[550:], ""),
    "text": (lambda data: gzip.compress(b"hello"), "Expecting value"),
    "another line": (lambda data: gzip.compress(b"[]"), "must be a table"),
    "one line twice": (lambda data: gzip.compress(gzip.decompress(data) * 2), "a second time"),
    "no result": (line(result=None), "needs a result"),
    "both": (line(error="no"), "needs a result"),
    "another result": (line(result={}), "result"),
    "another history": (line(history=[{"epoch": 0, "loss": 1}]), "history.epoch must be at least 1"),
}


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("record")
    return pack(study_in(folder, recipe=ONE_SET), folder / "kept").record


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_record_is_named(
    damage: str, record: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("recipe.toml", "study.json"):
        shutil.copy(record.with_name(name), tmp_path)
    path, (change, problem) = tmp_path / RECORD, DAMAGES[damage]
    path.write_bytes(change(record.read_bytes()))
    assert main(["report", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert f"{path}" in said.err
    assert problem in said.err
    assert "is damaged: " in said.err
    assert "polydice pack makes it anew" in said.err


def test_the_file_of_pretrained_weights_is_named_without_its_folder() -> None:
    settings = {"data": "/a", "out": "/b", "cache": "/c", "pretrained": "/d/R50+ViT-B_16.npz", "epochs": 3}
    said = json.loads(finished_line("run", {"settings": settings, "cases": []}, []))
    assert said["result"]["settings"] == {"pretrained": "R50+ViT-B_16.npz", "epochs": 3}


def test_a_record_has_no_time_and_no_name(record: Path) -> None:
    assert record.read_bytes()[3:8] == bytes(5), "no flag of a name, no time of writing"
