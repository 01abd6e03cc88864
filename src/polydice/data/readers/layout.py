"""What the readers share: what a layout is, finding folders and files, pairing images with masks."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from polydice.data.cases import Case, Dataset, Finding
from polydice.data.files import ARCHIVES, PICTURES, VOLUMES, below, ending

IMAGES = PICTURES + VOLUMES + ARCHIVES


class Layout(NamedTuple):
    """A way to lay out a data set in a folder. `find` returns None where the folder is laid out otherwise; what is
    wrong with single files it puts into the set's findings."""

    name: str
    looks_for: str
    find: Callable[[Path], Dataset | None]


def inside(folder: Path, *places: str) -> Path | None:
    """The first of the places, such as "PNG/Original", that is a folder; upper and lower case do not matter."""
    for place in places:
        found = [folder]
        for part in filter(None, place.split("/")):
            found = [path for path in found[0].iterdir() if path.name.lower() == part.lower() and path.is_dir()][:1]
            if not found:
                break
        else:
            return found[0]
    return None


def files_in(folder: Path) -> list[Path]:
    """Its files by name, without those that operating systems leave behind."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.is_file() and not path.name.startswith(".") and path.name.lower() not in ("thumbs.db", "desktop.ini")
    )


def error(folder: Path, path: Path, what: str) -> Finding:
    return Finding("error", below(folder, path), what)


def warning(folder: Path, path: Path, what: str) -> Finding:
    return Finding("warning", below(folder, path), what)


class Files(NamedTuple):
    """Files by the case they belong to, and what is wrong with the others."""

    of: dict[str, Path]
    findings: list[Finding]


def by_case(folder: Path, paths: Iterable[Path], case: Callable[[Path], str | None], expected: str) -> Files:
    """`case` tells the case from a file's path, or None for one that is not as `expected`."""
    files = Files({}, [])
    for path in paths:
        name = case(path)
        if name is None:
            report = error if ending(path) in IMAGES else warning
            files.findings.append(report(folder, path, f"is not read: {expected} is expected here"))
        elif name in files.of:
            what = f"belongs to the same case as {files.of[name].name}: which one is meant?"
            files.findings.append(error(folder, path, what))
        else:
            files.of[name] = path
    return files


def pair_up(folder: Path, images: Files, masks: Files, group: Callable[[str], str]) -> tuple[list[Case], list[Finding]]:
    """The cases that have an image and a mask, and everything there is to say about the others."""
    names = sorted(images.of.keys() | masks.of.keys())
    alone = [error(folder, images.of[name], "has no mask") for name in names if name not in masks.of]
    alone += [error(folder, masks.of[name], "has no image") for name in names if name not in images.of]
    both = [name for name in names if name in images.of and name in masks.of]
    cases = [Case(name, group(name), (images.of[name],), (masks.of[name],)) for name in both]
    return cases, images.findings + masks.findings + alone
