"""Readers of the layouts people have: each finds the cases of a folder, or says that the folder is laid out otherwise.

`open_dataset` asks them in turn. A new one is a function of a folder and a line in `LAYOUTS`.
"""

from pathlib import Path

from polydice.data.cases import DataError, Dataset
from polydice.data.readers.acdc import ACDC
from polydice.data.readers.decathlon import DECATHLON
from polydice.data.readers.folder import FOLDER
from polydice.data.readers.polyps import CVC, KVASIR
from polydice.data.readers.synapse import SYNAPSE

LAYOUTS = (CVC, KVASIR, ACDC, SYNAPSE, DECATHLON, FOLDER)


def open_dataset(folder: Path | str, layout: str | None = None) -> Dataset:
    """The data set in a folder, whose layout is recognised, or is the one given by name.

    Raises `DataError` where there is none. What is wrong with single files is in the set's `findings`.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder")
    readers = [reader for reader in LAYOUTS if layout in (None, reader.name)]
    if not readers:
        raise DataError(f"layout {layout!r} is none of {', '.join(reader.name for reader in LAYOUTS)}")
    try:
        for reader in readers:
            if dataset := reader.find(folder):
                return dataset
    except OSError as problem:
        raise DataError(f"{folder} cannot be searched: {problem}") from problem
    looked_for = "\n".join(f"  {reader.name:<14}{reader.looks_for}" for reader in readers)
    held = sorted(path.name + "/" * path.is_dir() for path in folder.iterdir())
    holds = ", ".join(held[:8]) + ", ..." * (len(held) > 8) if held else "nothing"
    raise DataError(f"{folder} holds no data set that is known. It was searched for\n{looked_for}\nbut holds {holds}")
