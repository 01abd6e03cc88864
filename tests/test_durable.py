import ast
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import polydice
from polydice.durable import locked, make_folder, replace_file


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def fill(folder: Path) -> None:
    (folder / "inner").mkdir()
    (folder / "inner" / "file").write_text("whole")


def make(folder: Path) -> None:
    make_folder(folder / "final", folder / "partial", fill)


def write(folder: Path) -> None:
    replace_file(folder / "file", b"new" * 100_000)


@pytest.mark.parametrize("call", [1, 2])
def test_a_disk_that_fails_leaves_the_file_as_it_was_or_as_it_should_be(
    call: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"old")
    calls = iter(range(1, 9))

    def failing(_: int) -> None:
        if next(calls) == call:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OSError, match="Input/output error"):
        write(tmp_path)
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == (b"old" if call == 1 else b"new" * 100_000)


@pytest.mark.parametrize(("made", "work"), [("file", "write"), ("final", "make")])
def test_killed_at_any_moment_it_is_there_whole_or_not_at_all(made: str, work: str, tmp_path: Path) -> None:
    """The n-th process is killed at its n-th write to the disk, until one has fewer than that."""
    program = (
        "import os, signal, sys; from pathlib import Path; from tests import test_durable\n"
        "fsync, left = os.fsync, int(sys.argv[3])\n"
        "def fatal(descriptor):\n"
        "    global left\n"
        "    left -= 1\n"
        "    if left == 0: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    fsync(descriptor)\n"
        "os.fsync = fatal\n"
        "getattr(test_durable, sys.argv[1])(Path(sys.argv[2]))\n"
    )
    seen, status, life = set(), -signal.SIGKILL, 0
    while status == -signal.SIGKILL:
        life += 1
        folder = tmp_path / str(life)
        folder.mkdir()
        root = str(Path(__file__).parents[1])
        command = [sys.executable, "-c", program, work, str(folder), str(life)]
        status = subprocess.run(command, cwd=root, timeout=60).returncode
        seen.add((folder / made).exists())
        if (folder / made).is_dir():
            assert (folder / made / "inner" / "file").read_text() == "whole"
        elif (folder / made).exists():
            assert (folder / made).read_bytes() == b"new" * 100_000
    assert status == 0
    assert life > 2
    assert seen == {False, True}
    assert names(folder) == [made]


def test_a_failure_to_fill_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        fill(folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_folder(tmp_path / "final", tmp_path / "partial", fail)
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_forced_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on some network disks."""
    fsync = os.fsync

    def unable(opened: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{opened}"):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        fsync(opened)

    monkeypatch.setattr(os, "fsync", unable)
    write(tmp_path)
    make(tmp_path)
    assert names(tmp_path) == ["file", "final"]


def test_one_process_at_a_time_has_a_lock_and_it_ends_with_its_holder(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = (
        "import sys, time; from pathlib import Path; from polydice.durable import locked\n"
        "with locked(Path(sys.argv[1])) as held: print(held, flush=True); time.sleep(60)"
    )
    file = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", program, str(file)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        with locked(file, wait=False) as held:
            assert not held
        other.kill()
        with locked(file, told="waiting") as held:  # for the other's end, if that is not over yet
            assert held
    with locked(file, told="waiting") as held:
        assert held
    assert capfd.readouterr().err in ("", "waiting\n")


def test_nobody_else_forces_to_the_disk_or_locks() -> None:
    """Every module that writes for good or waits for another process does so through this one."""
    root = Path(polydice.__file__).parent
    own = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in ("fsync", "flock")
    }
    assert own == {"durable.py"}
