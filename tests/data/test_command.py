import csv
import json
from pathlib import Path

import numpy as np
import pytest

from polydice.cli import main
from polydice.data.command import data
from polydice.data.readers import LAYOUTS
from tests.data import write
from tests.data.conftest import RealSet

MASK = np.repeat(np.array([[0, 0, 0, 255]], np.uint8), 5, axis=0)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def mine(folder: Path, *names: str) -> Path:
    for number, name in enumerate(names):
        write.picture(folder / "images" / f"{name}.png", number + np.arange(60, dtype=np.uint8).reshape(5, 4, 3))
        write.picture(folder / "masks" / f"{name}.png", MASK)
    return folder


def test_what_is_told_a_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = mine(tmp_path / "mine", "a", "b"), tmp_path / "out"
    (folder / "masks" / "b.png").unlink()
    assert main(["data", str(folder), "--out", str(out), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["cases"], told["groups"], told["out"]) == (1, 1, str(out))
    assert told["classes"][1] == {"label": 1, "class": "foreground", "pixels": 5, "share": 0.25, "cases": 1}
    assert [(found["level"], "b" in found["where"]) for found in told["findings"]] == [("error", True)]


def test_what_is_told_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = mine(tmp_path / "mine", "a", "b"), tmp_path / "out"
    assert main(["data", str(folder), "--out", str(out)]) == 0
    told = capsys.readouterr().out
    for line in ("2 cases in 2 groups, 4×5, 3 channels", "0 errors, 0 warnings", f"{out}: overview.png"):
        assert line in told
    assert rows(out / "classes.csv") == [
        {"label": "0", "class": "background", "pixels": "30", "share": "0.75", "cases": "2"},
        {"label": "1", "class": "foreground", "pixels": "10", "share": "0.25", "cases": "2"},
    ]
    about = {"group": "a", "channels": "3", "size": "4×5", "spacing": "", "background": "15", "foreground": "5"}
    assert rows(out / "cases.csv")[0] == {"case": "a"} | about
    assert rows(out / "findings.csv") == []
    assert (out / "overview.png").stat().st_size > 1000


def test_who_has_what_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = mine(tmp_path / "mine", "a", "b", "c"), tmp_path / "out"
    write.picture(folder / "masks" / "a.png", MASK // 255 * np.arange(1, 6, dtype=np.uint8)[:, None] % 3)
    for name in "bc":
        write.picture(folder / "masks" / f"{name}.png", MASK // 255)
    (folder / "classes.txt").write_text("background\nkidney\nliver\n")
    (folder / "annotated.csv").write_text("case,classes\nb,0;1\nc,background;kidney\n")
    assert main(["data", str(folder), "--out", str(out)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert [line.split() for line in told if line.startswith(("class", "kidney", "liver"))] == [
        ["class", "pixels", "share", "cases", "annotated", "in"],
        ["kidney", "12", "20.000%", "3", "3"],
        ["liver", "2", "3.333%", "1", "1"],
    ]
    assert "background;kidney: 2 cases (b, c)" in told
    assert "all classes: 1 case (a)" in told
    assert [row["annotated"] for row in rows(out / "cases.csv")] == ["background;kidney;liver"] + [
        "background;kidney"
    ] * 2
    assert main(["data", str(folder), "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["annotated"] == {name: ["background", "kidney"] for name in "bc"}


def test_errors_are_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = mine(tmp_path / "mine", "a", "b", "c")
    (folder / "masks" / "a.png").unlink()
    (folder / "images" / "b.png").write_bytes(b"")
    assert main(["data", str(folder), "--out", str(tmp_path / "out")]) == 1
    told = capsys.readouterr().out
    assert "2 cases in 2 groups, 1 of them of no use" in told
    assert "2 errors, 0 warnings" in told
    assert rows(tmp_path / "out" / "findings.csv") == [
        {"level": "error", "where": "images/a.png", "what": "has no mask"},
        {"level": "error", "where": "images/b.png", "what": "is empty"},
    ]


def test_a_set_without_a_single_pair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = mine(tmp_path / "mine", "a")
    (folder / "masks" / "a.png").rename(folder / "masks" / "b.png")
    assert main(["data", str(folder), "--out", str(tmp_path / "out")]) == 1
    assert "0 cases in 0 groups" in capsys.readouterr().out


def test_a_wrong_folder_is_one_line_and_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", str(tmp_path / "nowhere")]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == f"polydice data: {tmp_path / 'nowhere'} is not a folder\n"
    assert main(["data", str(tmp_path), "--layout", "acdc"]) == 2
    assert "patientNNN_frameMM" in capsys.readouterr().err


def test_without_out_it_goes_to_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = mine(tmp_path / "mine", "a")
    monkeypatch.chdir(tmp_path)
    assert data(folder) == 0
    assert (tmp_path / "runs" / "data" / "mine" / "overview.png").exists()


def test_the_help_names_every_layout(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["data", "--help"])
    assert end.value.code == 0
    told = capsys.readouterr().out
    for layout in LAYOUTS:
        assert layout.name in told


@pytest.mark.parametrize(
    ("name", "told", "warnings"),
    [
        ("acdc", "200 cases in 99 groups, 1902 slices, voxel sizes unknown, 224×154×6 to 512×428×8, 1 channel", 4),
        ("Task04_Hippocampus", "260 cases in 170 groups, 9270 slices, voxels of 1×1×1 mm", 0),
    ],
)
def test_real_sets(
    name: str, told: str, warnings: int, real_set: RealSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", str(real_set(name)), "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert told in out
    assert f"0 errors, {warnings} warnings" in out
    counted = rows(Path(__file__).parents[2] / "results" / "data" / f"{name}.csv")
    assert rows(tmp_path / "classes.csv") == counted, "as published in results/data"
