import io
from pathlib import Path

from polydice.studies.live import Live
from tests.studies.test_engine import study_in


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_a_table_that_is_drawn_anew(tmp_path: Path) -> None:
    study, shown = study_in(tmp_path), Terminal()
    live = Live(study, shown)
    first, second = study.runs[:2]
    live(first, "started")
    live(second, "started")
    live(first, "done")
    live(second, "failed")
    table = shown.getvalue().rpartition("\033[J")[2].splitlines()
    assert table[0].split() == ["loss", "done", "running", "failed"]
    assert table[1].split() == ["lesions,", "unet", "Dice", "1/2"]
    assert table[2].split() == ["lesions,", "unet", "PolyDice-1", "0/4", "1"]
    assert table[3].startswith("1 of 6 runs done, 1 failed, about ")
    assert shown.getvalue().count(f"\033[{len(table)}A") == 4  # each event draws over what was there


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
