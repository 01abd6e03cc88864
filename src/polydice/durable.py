"""Files and folders that are there as a whole or not at all, whatever ends the process or the machine, and locks.

Each is written under another name, forced to the disk and then renamed, which either happens or does not.
"""

import errno
import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Makes or replaces a file: after a crash it holds what it held before or `content`, and nobody ever sees a part.

    Raises `OSError`. A process that is killed may leave a file with a name of its own that ends in `.tmp`.
    """
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _to_disk(path.parent)
    finally:
        with suppress(OSError):
            temporary.unlink()


def make_folder(final: Path, partial: Path, fill: Callable[[Path], None]) -> None:
    """Has `fill` write into the new folder `partial`, which then gets the name `final`. Raises `OSError`."""
    try:
        partial.mkdir(parents=True)
        fill(partial)
        for path in (*sorted(partial.rglob("*")), partial):
            _to_disk(path)
        partial.rename(final)
        _to_disk(final.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _to_disk(path: Path) -> None:
    """Forces a file, or the names in a folder, to the disk. Windows and some network disks have no way to do so with a
    folder, and do it by themselves."""
    folder = path.is_dir()
    if folder and os.name != "posix":
        return
    opened = os.open(path, os.O_RDONLY if folder else os.O_RDWR)
    try:
        os.fsync(opened)
    except OSError as error:
        if not folder or error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(opened)


@contextmanager
def locked(file: Path, wait: bool = True, told: str = "") -> Iterator[bool]:
    """Whether the lock on `file` is ours as long as this lasts. If another process has it, this one says what is `told`
    and waits or, without `wait`, goes on without the lock.

    The system lets go of the lock when its holder ends, however it ends. Where files cannot be locked (Windows, some
    network disks) nobody waits, and nobody has it.
    """
    with file.open("ab") as opened:
        yield _lock(opened.fileno(), wait, told)


def _lock(file: int, wait: bool, told: str) -> bool:
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if not wait:
            return False
        if told:
            print(told, file=sys.stderr, flush=True)
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError:
        return False
    return True
