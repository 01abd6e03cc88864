"""Folders of finished work: found again by the content they were made from, and published in one step.

A folder under its final name is complete: it is filled under another name, forced to the disk and then renamed, which
either happens or does not, whatever ends the process or the machine.
"""

import hashlib
import json
import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from polydice.data.cases import DataError
from polydice.data.parallel import in_parallel

SETTLED_NS = 2_000_000_000  # a file that changed less than this ago could change again without its times showing it


class CacheError(RuntimeError):
    """The cache cannot be written, or what it holds cannot be trusted."""


def short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def digests(files: Iterable[Path], memory: Path) -> dict[Path, str]:
    """The SHA-256 of each file's bytes. A file whose size and times are as `memory` has them is not read again."""
    known, settled = _remembered(memory), time.time_ns() - SETTLED_NS
    try:
        stamps = {file: _stamp(file) for file in dict.fromkeys(files)}
        found = {file: known[str(file)][1] for file in stamps if known.get(str(file), [None])[0] == stamps[file]}
        unknown = [file for file in stamps if file not in found]
        if unknown:
            found |= zip(unknown, in_parallel(sha256, unknown, "hashing"), strict=True)
            lasting = {str(file): (stamps[file], found[file]) for file in unknown if max(stamps[file][1:]) < settled}
            _remember(memory, known | lasting)
    except OSError as error:
        raise DataError(f"cannot read a file of the data set: {error}") from error
    return found


def _stamp(file: Path) -> list[int]:
    status = file.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _remembered(memory: Path) -> dict[str, tuple[list[int], str]]:
    with suppress(OSError, TypeError, ValueError):
        return dict(json.loads(memory.read_text()))
    return {}


def _remember(memory: Path, known: dict[str, tuple[list[int], str]]) -> None:
    with suppress(OSError):  # it only saves time: a cache that cannot be written may still be read
        memory.parent.mkdir(parents=True, exist_ok=True)
        replace_text(memory, json.dumps(known))


def replace_text(file: Path, text: str) -> None:
    """Makes or replaces a file in one step: nobody ever sees half of it."""
    written = file.with_name(f"{file.name}.{uuid.uuid4().hex}")
    written.write_text(text)
    written.replace(file)


def publish(final: Path, fill: Callable[[Path], None]) -> None:
    """Has `fill` write into an empty folder, then gives that the name `final`, unless another process was first.

    Processes that want the same folder wait for the one that has begun; if it dies, the next one does the work.
    """
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with _lock(final, wait=True) as held:
            if final.exists():
                return
            if held:
                _remove_leftovers(final)
            _fill_and_rename(final, fill)
            _lock_file(final).unlink(missing_ok=True)  # whoever waits for it finds the final folder
    except OSError as error:
        raise CacheError(f"cannot write to the cache {final.parent}: {error}") from error


def _fill_and_rename(final: Path, fill: Callable[[Path], None]) -> None:
    partial = final.with_name(f"{final.name}.{uuid.uuid4().hex}.partial")
    partial.mkdir()
    try:
        fill(partial)
        for path in (*partial.rglob("*"), partial):
            _to_disk(path)
        try:
            partial.rename(final)
        except OSError:
            if not final.exists():  # where files cannot be locked another process may have been first
                raise
        _to_disk(final.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _to_disk(path: Path) -> None:
    """A file for certain; a folder where the file system has a way to."""
    with suppress(OSError) if path.is_dir() else nullcontext():
        opened = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def _remove_leftovers(final: Path) -> None:
    """Removes what processes that died have left: the folders being filled whose lock nobody holds."""
    for partial in final.parent.glob("*.partial"):
        its_final = final.with_name(partial.name.rsplit(".", 2)[0])
        if its_final == final:
            shutil.rmtree(partial, ignore_errors=True)
            continue
        with _lock(its_final, wait=False) as held:
            if held:
                shutil.rmtree(partial, ignore_errors=True)


def _lock_file(final: Path) -> Path:
    return final.with_name(f"{final.name}.lock")


@contextmanager
def _lock(final: Path, wait: bool) -> Iterator[bool]:
    """Whether the right to fill `final` is ours. The system takes it back when its holder ends, however it ends."""
    with _lock_file(final).open("ab") as file:
        yield _acquire(file.fileno(), wait, final)


def _acquire(file: int, wait: bool, final: Path) -> bool:
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if not wait:
            return False
        print(f"waiting for another process that is preparing {final}", file=sys.stderr, flush=True)
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError:  # a file system without locks: two processes may do the same work, and one rename succeeds
        return False
    return True
