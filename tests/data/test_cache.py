import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from polydice.data.cache import SETTLED_NS, CacheError, digests, publish
from polydice.data.cases import DataError

LONG_AGO = 1_000_000_000 * 10**9


def write(file: Path, content: bytes) -> Path:
    """Writes a file that looks old, as far as a program can make it so."""
    file.write_bytes(content)
    os.utime(file, ns=(LONG_AGO, LONG_AGO))
    return file


@pytest.fixture
def _nothing_is_recent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polydice.data.cache.SETTLED_NS", 0)


@pytest.mark.usefixtures("_nothing_is_recent")
def test_digests_are_of_the_bytes_and_are_remembered(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one", b"1"), write(tmp_path / "two", b"2")
    memory = tmp_path / "memory" / "digests.json"
    first = digests([one, two, one], memory)
    assert first[one] == "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"  # sha256sum
    assert list(first) == [one, two]

    remembered = memory.stat().st_mtime_ns
    assert digests([one, two], memory) == first
    assert memory.stat().st_mtime_ns == remembered
    memory.write_text(memory.read_text().replace(first[one], "recalled"))
    assert digests([one], memory) == {one: "recalled"}  # nothing was read again


@pytest.mark.usefixtures("_nothing_is_recent")
def test_a_change_is_seen_even_where_size_and_modification_time_stay(tmp_path: Path) -> None:
    file, memory = write(tmp_path / "file", b"before"), tmp_path / "digests.json"
    before = digests([file], memory)
    write(file, b"after!")
    assert file.stat().st_mtime_ns == LONG_AGO
    assert digests([file], memory) != before


def test_a_file_that_has_just_changed_is_not_remembered(tmp_path: Path) -> None:
    """It could change again within the resolution of its times."""
    assert SETTLED_NS >= 10**9
    file, memory = tmp_path / "file", tmp_path / "digests.json"
    file.write_bytes(b"1")
    digests([file], memory)
    assert str(file) not in memory.read_text()


@pytest.mark.parametrize("damage", ["", "{", "[1, 2]", "null"])
def test_a_damaged_memory_is_none(tmp_path: Path, damage: str) -> None:
    file, memory = write(tmp_path / "file", b"1"), tmp_path / "digests.json"
    memory.write_text(damage)
    assert digests([file], memory)[file].startswith("6b86b273")


def test_a_memory_that_cannot_be_written_does_no_harm(tmp_path: Path) -> None:
    file = write(tmp_path / "file", b"1")
    assert digests([file], file / "digests.json")[file].startswith("6b86b273")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="gone"):
        digests([tmp_path / "gone"], tmp_path / "digests.json")


def fill(folder: Path) -> None:
    (folder / "inner").mkdir()
    (folder / "inner" / "file").write_text("whole")


def contents(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_is_published_whole_and_once(tmp_path: Path) -> None:
    final = tmp_path / "cache" / "set"
    publish(final, fill)
    assert (final / "inner" / "file").read_text() == "whole"
    publish(final, lambda _: pytest.fail("it is there already"))
    assert "set" in contents(final.parent)
    assert not [name for name in contents(final.parent) if name.endswith(".partial")]


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        fill(folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        publish(tmp_path / "set", fail)
    assert contents(tmp_path) == ["set.lock"]
    publish(tmp_path / "set", fill)
    assert contents(tmp_path) == ["set"]


def test_where_nothing_can_be_written_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CacheError, match=r"cannot write to the cache .*/file/cache"):
        publish(tmp_path / "file" / "cache" / "set", fill)


def test_who_was_first_wins_where_files_cannot_be_locked(tmp_path: Path) -> None:
    """As if another process had finished in the meantime."""
    final = tmp_path / "set"

    def late(folder: Path) -> None:
        fill(folder)
        final.mkdir()
        (final / "first").touch()

    publish(final, late)
    assert contents(final) == ["first"]
    assert contents(tmp_path) == ["set"]


def test_what_the_dead_have_left_is_removed_and_what_the_living_fill_is_not(tmp_path: Path) -> None:
    for name in ("set.1a.partial", "other.2b.partial"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    begun, finish = threading.Event(), threading.Event()

    def slow(folder: Path) -> None:
        begun.set()
        finish.wait()
        fill(folder)

    living = threading.Thread(target=publish, args=(tmp_path / "living", slow))
    living.start()
    begun.wait()
    publish(tmp_path / "set", fill)
    assert not (tmp_path / "set.1a.partial").exists()
    assert not (tmp_path / "other.2b.partial").exists()
    finish.set()
    living.join()
    assert contents(tmp_path / "living") == ["inner"]


def test_others_wait_for_the_one_that_has_begun_and_take_over_if_it_dies(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from polydice.data.cache import publish\n"
        "def fill(folder): print('begun', flush=True); (folder / sys.argv[2]).touch(); time.sleep(float(sys.argv[3]))\n"
        "publish(Path(sys.argv[1]), fill)"
    )
    start = [sys.executable, "-c", program, str(tmp_path / "set")]
    with subprocess.Popen([*start, "first", "60"], stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "begun\n"
        with subprocess.Popen([*start, "second", "0"], stderr=subprocess.PIPE, text=True) as second:
            assert second.stderr is not None
            assert second.stderr.readline() == f"waiting for another process that is preparing {tmp_path / 'set'}\n"
            first.kill()
            assert second.wait(30) == 0
    assert contents(tmp_path / "set") == ["second"]
    assert contents(tmp_path) == ["set"]
