"""results/fair/nnunet.py: what it makes of its records. That it trains is seen where nnU-Net is."""

import json
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

FILE = str(Path(__file__).parents[1] / "results/fair/nnunet.py")
SCRIPT = runpy.run_path(FILE)
VOXELS = {  # found and true, found, true
    "a": [[8, 10, 10], [0, 0, 0]],
    "b": [[3, 4, 6], [1, 1, 3]],
}


def test_the_dice_of_cases_and_of_all_their_voxels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [("nnUNetTrainer", VOXELS), ("nnUNetTrainerDice", {"a": [[10, 10, 10], [0, 0, 0]], "b": VOXELS["b"]})]
    records = [{"trainer": trainer, "fold": 2, "voxels": voxels} for trainer, voxels in runs]
    file = tmp_path / "records.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert list(SCRIPT["recorded"](file)) == [("nnUNetTrainer", 2), ("nnUNetTrainerDice", 2)]
    SCRIPT["show"](file)
    # Classes 22/30 and 2/4 of all voxels, then 26/30 and 2/4; cases 16/20 and (6/10 + 2/4)/2, then 1 and the same.
    expected = {"dice_foreground": ("61.67", "68.33", "+6.67"), "dice_case": ("67.50", "77.50", "+10.00")}
    printed = capsys.readouterr().out.splitlines()
    for place, (score, (own, other, difference)) in enumerate(expected.items()):
        name, first, second = printed[3 * place : 3 * place + 3]
        assert (name, first.split(), second.split()[:3]) == (
            score,
            ["nnUNetTrainer", own],
            ["nnUNetTrainerDice", other, difference],
        )


def test_own_trainer_is_first_whichever_run_ended_first(tmp_path: Path) -> None:
    runs = [("nnUNetTrainerDice", 1), ("nnUNetTrainer", 1), ("nnUNetTrainer", 0)]
    records = [{"trainer": trainer, "fold": fold, "voxels": VOXELS} for trainer, fold in runs]
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert list(SCRIPT["recorded"](tmp_path / "records.jsonl")) == runs[::-1]


def python(folder: Path, text: str) -> dict[str, str]:
    """An environment in which nnU-Net is something else."""
    (folder / "nnunetv2").mkdir()
    (folder / "nnunetv2/__init__.py").write_text(text)
    return os.environ | {"PYTHONPATH": str(folder)}


def test_a_run_that_fails_says_why(tmp_path: Path) -> None:
    command = [sys.executable, FILE, "train", str(tmp_path), "nnUNetTrainer", "--folds", "0", "--out"]
    environment = python(tmp_path, "raise RuntimeError('it is broken')")
    done = subprocess.run(
        [*command, str(tmp_path / "r.jsonl")], env=environment, capture_output=True, text=True, timeout=120
    )
    assert "it is broken" in done.stderr
    assert "it is broken" in (tmp_path / "logs/nnUNetTrainer-0.txt").read_text()
    assert "1 failed, 0 were stopped, 0 have not begun" in done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
def test_a_stopped_training_leaves_no_run_behind(tmp_path: Path) -> None:
    command = [sys.executable, FILE, "train", str(tmp_path), "nnUNetTrainer", "--folds", "0", "--out"]
    text = "import os, pathlib, time; pathlib.Path(__file__).with_name('pid').write_text(str(os.getpid()))"
    process = subprocess.Popen([*command, str(tmp_path / "r.jsonl")], env=python(tmp_path, f"{text}; time.sleep(100)"))
    file, end = tmp_path / "nnunetv2/pid", time.monotonic() + 60
    while not (file.exists() and file.read_text()) and time.monotonic() < end:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 143
    time.sleep(0.5)
    state = Path(f"/proc/{file.read_text()}/status")
    assert not state.exists() or "zombie" in state.read_text()
