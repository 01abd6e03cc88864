"""What the readers share: what a layout is, finding folders and files, pairing images with masks."""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple
from unicodedata import normalize

from polydice.data.cases import Case, Dataset, Finding
from polydice.data.files import ARCHIVES, PICTURES, UNREAD, VOLUMES, below, ending

IMAGES = PICTURES + VOLUMES + ARCHIVES
NO_MASK, NO_IMAGE, TWICE = "has no mask", "has no image", "belongs to the same case as"
# In what two names can differ that people take for the same, from the least to the most.
SPELLINGS: dict[str, Callable[[str], str]] = {
    "in how an accent is stored (composed or decomposed)": lambda name: normalize("NFC", name),
    "in upper and lower case": lambda name: normalize("NFC", name).casefold(),
    "in _, - and spaces": lambda name: re.sub(r"[_\-\s]+", " ", normalize("NFC", name).casefold()),
}


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
    """Files by the case they belong to, what is wrong with the others, and the cases that have more than one."""

    of: dict[str, Path]
    findings: list[Finding]
    twice: set[str]


def by_case(folder: Path, paths: Iterable[Path], case: Callable[[Path], str | None], expected: str) -> Files:
    """`case` tells the case from a file's path, or None for one that is not as `expected`."""
    files = Files({}, [], set())
    for path in paths:
        name = case(path)
        if name is None:
            kind = ending(path)
            report = error if kind in (*IMAGES, *UNREAD) else warning
            todo = f"; {UNREAD[kind]}" if kind in UNREAD else ""
            files.findings.append(report(folder, path, f"is not read: {expected} is expected here{todo}"))
        elif name in files.of:
            files.findings.append(error(folder, path, f"{TWICE} {files.of[name].name}: which one is meant?"))
            files.twice.add(name)
        else:
            files.of[name] = path
    return files


def pair_up(folder: Path, images: Files, masks: Files, group: Callable[[str], str]) -> tuple[list[Case], list[Finding]]:
    """The cases that have one image and one mask, and everything there is to say about the others."""
    names = sorted(images.of.keys() | masks.of.keys())
    alone = [name for name in names if name not in masks.of], [name for name in names if name not in images.of]
    findings = images.findings + masks.findings
    findings += _without(folder, NO_MASK, alone[0], images, alone[1], masks)
    findings += _without(folder, NO_IMAGE, alone[1], masks, alone[0], images)
    both = [name for name in names if name in images.of and name in masks.of and name not in images.twice | masks.twice]
    return [Case(name, group(name), (images.of[name],), (masks.of[name],)) for name in both], findings


def _without(
    folder: Path, what: str, alone: Sequence[str], files: Files, others: Sequence[str], other_files: Files
) -> list[Finding]:
    """Files without a partner; if another one's name is the same but for its spelling, that is said."""
    nearly: dict[str, str] = {}
    for how, plain in SPELLINGS.items():
        known = {plain(name): name for name in others}
        for name in alone:
            if plain(name) in known:
                other = below(folder, other_files.of[known[plain(name)]])
                nearly.setdefault(name, f", but one differs only {how}: rename one of them ({other})")
    return [error(folder, files.of[name], what + nearly.get(name, "")) for name in alone]


def incomplete(findings: Iterable[Finding]) -> int:
    """How many cases have an image or a mask alone, or several: an image and a mask that miss each other are one."""
    kinds = [next((kind for kind in (NO_MASK, NO_IMAGE, TWICE) if each.what.startswith(kind)), "") for each in findings]
    return max(kinds.count(NO_MASK), kinds.count(NO_IMAGE)) + kinds.count(TWICE)
