"""A run's state on disk. A crash at any moment loses nothing that was saved.

    run/checkpoint-000041/     the checkpoint before the last; it is kept in case the last one is damaged
    run/checkpoint-000042/     the last checkpoint
        weights.safetensors    the network, as it is now and as it was best
        state.pt               all else that a run needs to go on: optimiser, loss, epoch, history, …
    run/last.safetensors       a file of weights by itself, with all that is needed to rebuild the network;
    run/best.safetensors       so is this one

A checkpoint is a folder. It is written under a temporary name, forced to the disk, and then renamed. So its weights and
its state always belong to the same step. A SHA-256 covers every byte, and is checked when the checkpoint is read.
"""

import contextlib
import hashlib
import io
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from torch import Tensor

from polydice.durable import locked, make_folder, replace_file

WEIGHTS, STATE = "weights.safetensors", "state.pt"
KEY = "polydice"  # our entry among the metadata of a safetensors file
UNSEALED = "0" * 64  # where a file's own digest goes


class CheckpointError(Exception):
    """A checkpoint that cannot be written or read; the message is one line that says which and what to do."""


class Checkpoint(NamedTuple):
    folder: Path
    weights: dict[str, Tensor]
    state: dict[str, Any]
    metadata: dict[str, Any]


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """The run in `folder` is ours as long as this lasts; another process that wants it waits."""
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ".lock"):
        yield


def save(
    folder: Path, weights: Mapping[str, Tensor], state: Mapping[str, Any], metadata: Mapping[str, Any] | None = None
) -> Path:
    """Adds a checkpoint to a run's folder, removes all older ones but the last, and returns the new one's folder.

    `state` may hold tensors, numbers, strings, None, and lists, tuples, dicts of them; `metadata` is anything that
    JSON can hold. One process at a time may save into a folder.
    """
    saved = _saved(folder)
    final = folder / f"checkpoint-{_number(saved[-1]) + 1 if saved else 1:06d}"
    state_data = _pickled(state)
    weights_data = _sealed(weights, metadata, state_sha256=hashlib.sha256(state_data).hexdigest())

    def fill(partial: Path) -> None:
        (partial / STATE).write_bytes(state_data)
        (partial / WEIGHTS).write_bytes(weights_data)

    _remove_leftovers(folder)
    try:
        make_folder(final, final.with_suffix(".tmp"), fill)
    except OSError as error:
        kept = f"{saved[-1].name} is untouched: resume from it" if saved else "nothing was saved before: start again"
        raise CheckpointError(
            f"cannot save {final}: {error.strerror}; {kept} once the folder can be written to"
        ) from error
    for older in saved[:-1]:
        shutil.rmtree(older, ignore_errors=True)  # what resists is tried again the next time
    return final


def load(folder: Path) -> Checkpoint | None:
    """The last checkpoint of a run's folder, all tensors on the CPU; None if nothing is saved there."""
    saved = _saved(folder)
    if not saved:
        return None
    try:
        return _read(saved[-1])
    except CheckpointError as error:
        intact = [older.name for older in saved[:-1] if _is_intact(older)]
        advice = (
            f"delete the folder {saved[-1]} to resume from {intact[-1]}, which is intact"
            if intact
            else "no older checkpoint is intact: start again in another folder"
        )
        raise CheckpointError(f"{error}; {advice}") from error


def save_weights(path: Path, weights: Mapping[str, Tensor], metadata: Mapping[str, Any] | None = None) -> None:
    """Replaces or makes one safetensors file that any reader of the format opens; `metadata` goes into its header."""
    _replace(path, _sealed(weights, metadata))


def write_text(path: Path, text: str) -> None:
    """Replaces or makes a file of text: after a crash it holds the old text or the new, never half of it."""
    _replace(path, text.encode())


def remove(folder: Path) -> None:
    """Removes the checkpoints of a run that has ended."""
    _remove_leftovers(folder)
    for path in _saved(folder):
        shutil.rmtree(path, ignore_errors=True)


def load_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The weights, on the CPU, and the metadata of a file by `save_weights`, or of a checkpoint's weights."""
    weights, header = _unsealed(path)
    return weights, header["metadata"]


def _remove_leftovers(folder: Path) -> None:
    """What a process that was killed has left of checkpoints and files: nobody else writes into a run's folder."""
    for path in folder.glob("*.tmp"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _saved(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first."""
    return sorted((path for path in folder.glob("checkpoint-*") if path.name[11:].isdecimal()), key=_number)


def _number(path: Path) -> int:
    return int(path.name[11:])


def _read(path: Path) -> Checkpoint:
    weights, header = _unsealed(path / WEIGHTS)
    data = _bytes(path / STATE)
    if hashlib.sha256(data).hexdigest() != header["state_sha256"]:
        raise CheckpointError(f"{path / STATE} is damaged: its SHA-256 is not the one in {WEIGHTS}")
    state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    return Checkpoint(path, weights, state, header["metadata"])


def _is_intact(path: Path) -> bool:
    try:
        _read(path)
    except CheckpointError:
        return False
    return True


def _pickled(state: Mapping[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    buffer.seek(0)
    refused = sorted(torch.serialization.get_unsafe_globals_in_checkpoint(buffer))
    if refused:  # better now than when the run is to be resumed
        raise TypeError(
            f"state holds {', '.join(refused)}, which could not be loaded safely: "
            "use tensors, numbers, strings, lists, tuples and dicts"
        )
    return buffer.getvalue()


def _sealed(weights: Mapping[str, Tensor], metadata: Mapping[str, Any] | None, state_sha256: str = "") -> bytes:
    """A safetensors file that holds its own digest, which is taken with zeros in the digest's place."""
    # Copies, since the format refuses tensors that share memory or lie in it out of order.
    copies = {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in weights.items()
    }
    header = {"sha256": UNSEALED, "state_sha256": state_sha256, "metadata": dict(metadata or {})}
    data = safetensors.torch.save(copies, {KEY: json.dumps(header)})
    return data.replace(UNSEALED.encode(), hashlib.sha256(data).hexdigest().encode(), 1)


def _unsealed(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    data = _bytes(path)
    try:
        length = int.from_bytes(data[:8], "little")  # the format: eight bytes, that much JSON, the tensors
        header = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][KEY])
        digest = header["sha256"]
        intact = hashlib.sha256(data.replace(digest.encode(), UNSEALED.encode(), 1)).hexdigest() == digest
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged, or was not written by polydice") from error
    if not intact:
        raise CheckpointError(f"{path} is damaged: its SHA-256 is not the one in its header")
    return safetensors.torch.load(data), header


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error


def _replace(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)
    except OSError as error:
        kept = "; the file that was there is untouched" if path.is_file() else ""
        raise CheckpointError(f"cannot save {path}: {error.strerror}{kept}") from error
