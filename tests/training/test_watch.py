import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from polydice.training.checkpoint import CheckpointError
from polydice.training.config import Settings
from polydice.training.loop import train
from polydice.training.watch import Watch, write_history
from tests.training.runs import history, small, train_until


def row(epoch: int, **more: Any) -> dict[str, Any]:
    return {"epoch": epoch, "step": 3 * epoch, "loss": 1 / epoch, "rate": 0.01 / epoch} | more


def settings(out: Path, **more: Any) -> Settings:
    return Settings(data=Path("data"), out=out, epochs=4, **more)


def drawn(out: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows of a run."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(out / "tensorboard")).Reload()
    return {name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]}


def test_the_history_has_a_line_an_epoch(tmp_path: Path) -> None:
    rows = [row(1), row(2, dice_foreground=0.5), row(3)]
    with Watch(settings(tmp_path), [], 3, first=True) as watch:
        assert not (tmp_path / "history.jsonl").exists()  # nothing has happened yet
        for each in rows:
            watch.show(each)
    assert history(tmp_path) == rows


def test_epochs_that_will_be_done_again_are_taken_out_of_the_history(tmp_path: Path) -> None:
    write_history(tmp_path / "history.jsonl", [row(1), row(2), row(3)])
    with Watch(settings(tmp_path), [row(1)], 3, first=True) as watch:
        assert history(tmp_path) == [row(1)]
        watch.show(row(2))
    assert history(tmp_path) == [row(1), row(2)]


def test_other_processes_are_silent(tmp_path: Path) -> None:
    with Watch(settings(tmp_path, track="tensorboard"), [row(1)], 3, first=False) as watch:
        watch.show(row(2))
    assert os.listdir(tmp_path) == []


def test_without_a_terminal_an_epoch_is_a_line_where_lines_are_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row(2), row(3, dice_foreground=0.5, dice_global=0.7, dice_case=None)]
    for lines, first in ((True, True), (False, True), (True, False)):
        with Watch(settings(tmp_path / "run"), [row(1)], 3, first, lines) as watch:
            for each in rows:
                watch.show(each)
        told = "run: epoch 2 of 4, loss 0.5000\n"
        told += "run: epoch 3 of 4, loss 0.3333, dice_foreground 0.5000, dice_case not defined\n"
        assert capsys.readouterr().err == (told if lines and first else "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_is_one_clear_line(tmp_path: Path) -> None:
    with Watch(settings(tmp_path), [], 3, first=True) as watch:
        (tmp_path / "history.jsonl").symlink_to("/dev/full")
        with pytest.raises(CheckpointError, match=r"^cannot write .*history\.jsonl: No space left on device; what was"):
            watch.show(row(1))


def test_tensorboard_draws_the_history_also_of_a_run_that_was_stopped(images: Path, tmp_path: Path) -> None:
    run = small(images, tmp_path / "run", epochs=4, save_every=0.0, track="tensorboard", validate_every=2)
    train_until(2, run)
    train(Settings(**(vars(run) | {"resume": True})))
    rows, found = history(tmp_path / "run"), drawn(tmp_path / "run")
    scores = {"dice_foreground", "dice_global", "dice_case"}
    assert found.keys() == {"loss", "rate", "gradient_norm", "weight_norm"} | scores
    for name in found:
        expected = [(row["step"], row[name]) for row in rows if name in row]
        assert [step for step, _ in found[name]] == [step for step, _ in expected]
        assert [value for _, value in found[name]] == pytest.approx([value for _, value in expected])


def test_without_tensorboard_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"--track tensorboard needs TensorBoard: pip install 'polydice\[track\]'"):
        Watch(settings(tmp_path, track="tensorboard"), [], 3, first=True)


def test_the_progress_bar_shows_what_one_wants_to_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pty
    import termios

    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (20, 120))
    with open(theirs, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        with Watch(settings(tmp_path / "run"), [row(1)], 3, first=True) as watch:
            for _ in range(3):
                watch.bar.update()
            watch.show(row(2, dice_foreground=0.75, dice_global=0.9))
        shown = b""
        while b"dice=0.7500" not in shown:  # a terminal hands it over in pieces
            shown += os.read(ours, 100_000)
    os.close(ours)
    last = [line for line in shown.decode().split("\r") if line.strip()][-1]
    assert last.startswith("run:  50%|")
    assert "6/12" in last
    assert "epoch=2, loss=0.5000, rate=5.0e-03, dice=0.7500" in last


def test_off_a_terminal_there_is_no_bar(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with Watch(settings(tmp_path), [], 3, first=True) as watch:
        watch.bar.update()
        watch.show(row(1))
    assert capfd.readouterr() == ("", "")
    assert json.loads((tmp_path / "history.jsonl").read_text()) == row(1)
