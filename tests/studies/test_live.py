import contextlib
import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from polydice.studies.live import Live
from tests.studies.test_engine import study_in
from tests.studies.tiny import RECIPE


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def screen(text: str, columns: int = 80, height: int = 24) -> list[str]:
    """What a terminal of that size shows: long lines are wrapped, and what scrolls off its top cannot be reached."""
    lines, row, column = [""], 0, 0
    for up, erase, character in re.findall(r"\033\[(\d+)A|(\033\[J)|([^\033])", text, re.DOTALL):
        if up:
            row = max(row - int(up), len(lines) - height, 0)
        elif erase:
            lines[row:] = [lines[row][:column]]
        elif character == "\n" or column == columns:
            row, column = row + 1, 0
            lines += [""] * (row == len(lines))
        if character and character not in "\r\n":
            lines[row] = lines[row][:column] + character + lines[row][column + 1 :]
        column = 0 if character in ("\r", "\n") else column + bool(character)
    return [line for line in lines if line]


@pytest.fixture(autouse=True)
def _eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")


def test_a_terminal_sees_a_table_that_is_drawn_anew(tmp_path: Path) -> None:
    study, shown = study_in(tmp_path), Terminal()
    live = Live(study, shown)
    first, second = study.runs[:2]
    live(first, "started")
    live(second, "started")
    (study.run_folder(second)).mkdir(parents=True)
    (study.run_folder(second) / "history.jsonl").write_text("{}\n")
    live(first, "done")
    table = screen(shown.getvalue())
    assert table[0].split() == ["loss", "done", "running", "failed"]
    assert table[1].split() == ["lesions,", "unet", "Dice", "1/2"]
    assert table[2].split() == ["lesions,", "unet", "PolyDice-1", "0/4", "1"]
    assert table[3] == "lesions/unet/polydice-1-epsilon-minus-0.2/fold-0/seed-0: epoch 2 of 2"
    assert table[4].startswith("1 of 6 runs done, about ")
    assert len(table) == 5
    live(second, "failed")
    table = screen(shown.getvalue())
    assert table[2].split() == ["lesions,", "unet", "PolyDice-1", "0/4", "1"]
    assert table[3].startswith("1 of 6 runs done, 1 failed, about ")
    assert len(table) == 4


def test_what_runs_say_stands_above_the_table(tmp_path: Path) -> None:
    study, shown = study_in(tmp_path), Terminal()
    live = Live(study, shown)
    live(study.runs[0], "started")
    live.say("waiting for another process")
    live.say("a warning")
    live.draw()
    assert screen(shown.getvalue())[:2] == ["waiting for another process", "a warning"]
    assert sum("running" in line for line in screen(shown.getvalue())) == 1


@pytest.mark.parametrize(("columns", "height"), [(30, 24), (80, 8), (30, 7)])
def test_a_small_terminal_shows_one_table_too(
    columns: int, height: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", str(height))
    losses = "".join(f'"Tversky {number}" = "TverskyLoss(0.{number}, 0.5)"\n' for number in range(1, 10))
    study, shown = study_in(tmp_path, RECIPE + losses), Terminal()
    live = Live(study, shown)
    for run in study.runs[:5]:
        live(run, "started")
    for run in study.runs[:4]:
        live(run, "done")
    table = screen(shown.getvalue(), columns, height)
    assert len(table) < height
    assert sum("loss" in line for line in table) == 1
    assert sum("4 of 24 runs" in line for line in table) == 1
    name = study.runs[4].loss
    assert any(name[:5] in line for line in table), "the one that runs"


def test_workers_draw_nothing_over_the_table(tmp_path: Path) -> None:
    """A study with two workers, in a terminal of its own."""
    recipe, (ours, theirs) = tmp_path / "mine.toml", pty.openpty()
    recipe.write_text(RECIPE.replace("folds = [0, 1]", "folds = [0]"))
    command = ["study", str(recipe), "--out", str(tmp_path / "s"), "--cache", str(tmp_path / "cache"), "--jobs", "2"]
    study = subprocess.Popen([sys.executable, "-m", "polydice", *command], stdout=theirs, stderr=theirs)
    os.close(theirs)
    said = b""
    with contextlib.suppress(OSError):  # which is how a terminal ends
        while data := os.read(ours, 4096):
            said += data
    assert study.wait() == 0
    assert b"step/s" not in said
    seen = screen(said.decode())
    tables = [place for place, line in enumerate(seen) if line.split() == ["loss", "done", "running", "failed"]]
    assert len(tables) == 1
    assert seen[tables[0] + 3] == "3 of 3 runs done"
    assert seen[tables[0] + 4] == "lesions, unet", "its table, and what it says"
    assert any(line.startswith("PolyDice-1 scores ") for line in seen)
    assert "".join(seen[-3:]).endswith("report.html")


def test_elsewhere_each_run_that_ends_is_a_line(tmp_path: Path) -> None:
    study, shown = study_in(tmp_path), io.StringIO()
    live = Live(study, shown)
    first, second = study.runs[:2]
    study.note_error(second, "ValueError: no such thing\n\nTraceback")
    live(first, "started")
    live(first, "done")
    live(second, "failed")
    lines = shown.getvalue().splitlines()
    assert lines[0].startswith("done lesions/unet/dice/fold-0/seed-0 (1 of 6 runs done, about ")
    assert lines[1].startswith("failed lesions/unet/polydice-1-epsilon-minus-0.2/fold-0/seed-0 (1 of 6 runs done, 1 fa")
    assert lines[1].endswith(": ValueError: no such thing")
