"""Folders of finished work: found again by the content they were made from, and published in one step.

A folder under its final name is complete: see `durable`.
"""

import hashlib
import json
import shutil
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from polydice.data.cases import DataError
from polydice.data.parallel import in_parallel
from polydice.durable import locked, make_folder, replace_file

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
        replace_file(memory, json.dumps(known).encode())


def publish(final: Path, fill: Callable[[Path], None]) -> None:
    """Has `fill` write into an empty folder, then gives that the name `final`, unless another process was first.

    Processes that want the same folder wait for the one that has begun; if it dies, the next one does the work.
    """
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with locked(_lock_file(final), told=f"waiting for another process that is preparing {final}") as held:
            if final.exists():
                return
            if held:
                _remove_leftovers(final)
            _make(final, fill)
            _lock_file(final).unlink(missing_ok=True)  # whoever waits for it finds the final folder
    except OSError as error:
        raise CacheError(f"cannot write to the cache {final.parent}: {error}") from error


def _make(final: Path, fill: Callable[[Path], None]) -> None:
    try:
        make_folder(final, final.with_name(f"{final.name}.{uuid.uuid4().hex}.partial"), fill)
    except OSError:
        if not final.exists():  # where files cannot be locked another process may have been first
            raise


def _remove_leftovers(final: Path) -> None:
    """Removes what processes that died have left: the folders being filled whose lock nobody holds."""
    for partial in final.parent.glob("*.partial"):
        its_final = final.with_name(partial.name.rsplit(".", 2)[0])
        if its_final == final:
            shutil.rmtree(partial, ignore_errors=True)
            continue
        with locked(_lock_file(its_final), wait=False) as held:
            if held:
                shutil.rmtree(partial, ignore_errors=True)


def _lock_file(final: Path) -> Path:
    return final.with_name(f"{final.name}.lock")
