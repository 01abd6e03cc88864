"""Readers of the layouts people have: each finds the cases of a folder, or says that the folder is laid out otherwise.

`open_dataset` asks them in turn. docs/data.md says how to add one.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial, update_wrapper
from pathlib import Path

from polydice.data.cases import DataError, Dataset
from polydice.data.readers.acdc import ACDC
from polydice.data.readers.annotations import annotated
from polydice.data.readers.decathlon import DECATHLON
from polydice.data.readers.folder import FOLDER, find_folder, folders_of
from polydice.data.readers.groups import regrouped
from polydice.data.readers.layout import incomplete
from polydice.data.readers.pairs import read_two_classes
from polydice.data.readers.polyps import CVC, KVASIR
from polydice.data.readers.synapse import SYNAPSE

# All that the others need to know of a reader: what is asked first stands first, and a plain folder last.
LAYOUTS = (CVC, KVASIR, ACDC, SYNAPSE, DECATHLON, FOLDER)


def open_dataset(
    folder: Path | str,
    layout: str | None = None,
    *,
    masks: str | None = None,
    group: str | None = None,
    ignore: int | None = None,
) -> Dataset:
    """The data set in a folder, whose layout is recognised, or is the one given by name.

    `masks` names the folder of masks of a plain folder; `group` is a regular expression that finds the group in the
    name of a case; `ignore` is the label of pixels that have none.

    Raises `DataError` where there is none. What is wrong with single files is in the set's `findings`.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder")
    readers = [reader for reader in LAYOUTS if layout in (None, reader.name)]
    if not readers:
        raise DataError(f"layout {layout!r} is none of {', '.join(reader.name for reader in LAYOUTS)}")
    if masks is not None:
        if FOLDER not in readers:
            raise DataError(f"--masks is for a plain folder, and the layout is to be {layout}")
        readers = [FOLDER]
    try:
        for reader in readers:
            dataset = find_folder(folder, masks, ignore) if reader is FOLDER else reader.find(folder)
            if dataset:
                return regrouped(annotated(_completed(dataset, ignore)), group)
        below = "".join(f"\n{child} holds one: give that folder" for child in _sets_below(folder))
    except OSError as problem:
        raise DataError(f"{folder} cannot be searched: {problem}") from problem
    looked_for = "\n".join(f"  {reader.name:<14}{reader.looks_for}" for reader in readers)
    held = sorted(path.name + "/" * path.is_dir() for path in folder.iterdir())
    holds = ", ".join(held[:8]) + ", ..." * (len(held) > 8) if held else "nothing"
    raise DataError(
        f"{folder} holds no data set that is known. It was searched for\n{looked_for}\nbut holds {holds}{below}"
    )


def _completed(dataset: Dataset, ignore: int | None) -> Dataset:
    """Adds what no reader needs to know: how many cases the files speak of, and the label of pixels that have none. (A
    threshold would take that label for white.)"""
    dataset = replace(dataset, listed=dataset.listed or len(dataset.cases) + incomplete(dataset.findings))
    if ignore is None:
        return dataset
    if 0 <= ignore < len(dataset.label_names):
        raise DataError(f"--ignore {ignore} is the class {dataset.label_names[ignore]!r} of {dataset.folder}")
    if dataset.read is not read_two_classes:
        return replace(dataset, ignore=ignore)
    read = update_wrapper(partial(read_two_classes, ignore=ignore), read_two_classes)  # prepared sets have its name
    return replace(dataset, ignore=ignore, read=read)


def _sets_below(folder: Path) -> Iterator[Path]:
    others = [reader for reader in LAYOUTS if reader is not FOLDER]  # which would look into every mask
    for child in sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")):
        with suppress(DataError, OSError):
            if folders_of(child) or any(reader.find(child) for reader in others):
                yield child
