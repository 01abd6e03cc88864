import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import torch
from torch import Tensor, nn

from polydice.training import checkpoint
from polydice.training.checkpoint import CheckpointError, load, load_weights, save, save_weights

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]
BOTH = ["weights.safetensors", "state.pt"]


def same(found: Any, given: Any) -> bool:
    """Equal bit for bit, through dicts and lists; NaN payloads and the sign of zero included."""
    if isinstance(given, Tensor):
        bits = [value.contiguous().flatten().view(torch.uint8) for value in (found, given)]
        return (found.dtype, found.shape) == (given.dtype, given.shape) and torch.equal(*bits)
    if isinstance(given, dict):
        return list(found) == list(given) and all(same(found[key], given[key]) for key in given)
    if isinstance(given, list):
        return len(found) == len(given) and all(map(same, found, given))
    return type(found) is type(given) and found == given


def pair(step: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    return {"w": torch.full((1000,), float(step))}, {"step": step, "momentum": torch.full((1000,), float(step))}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def flip(path: Path, byte: int) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 1
    path.write_bytes(data)


# What is saved is what is loaded


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 5)])
def test_every_bit_comes_back(tmp_path: Path, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.randint(0, 256, (*shape, dtype.itemsize), dtype=torch.uint8)
    tensor = tensor % 2 == 1 if dtype == torch.bool else tensor.view(dtype)
    weights, state = {"a.b": tensor.squeeze(-1)}, {"nested": [{"t": tensor.squeeze(-1)}, 3, 0.1, None, "text", True]}
    save(tmp_path, weights, state)
    found = load(tmp_path)
    assert found is not None
    assert same(found.weights, weights)
    assert same(found.state, state)


def test_a_network_and_its_optimiser_go_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5)).to(
            memory_format=torch.channels_last
        )
        return net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def steps(net: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
        for _ in range(3):
            optimiser.zero_grad()
            net(torch.randn(2, 1, 8, 8)).square().mean().backward()
            optimiser.step()
        return net.state_dict()

    net, optimiser = make()
    steps(net, optimiser)
    save(tmp_path, net.state_dict(), {"optimiser": optimiser.state_dict(), "random": torch.get_rng_state()})
    expected = steps(net, optimiser)

    net, optimiser = make()
    found = load(tmp_path)
    assert found is not None
    net.load_state_dict(found.weights)
    optimiser.load_state_dict(found.state["optimiser"])
    torch.set_rng_state(found.state["random"])
    assert same(dict(steps(net, optimiser)), dict(expected))


def test_tied_strided_and_expanded_tensors_are_saved_as_they_look(tmp_path: Path) -> None:
    base = torch.randn(6, 4)
    weights = {"w": base, "tied": base, "part": base[1:3], "turned": base.T, "wide": torch.ones(1).expand(3)}
    save_weights(tmp_path / "best.safetensors", weights | {"parameter": nn.Parameter(base)})
    found, _ = load_weights(tmp_path / "best.safetensors")
    assert found.keys() == weights.keys() | {"parameter"}
    assert all(same(found[name], weights[name]) for name in weights)


def test_nothing_saved_is_none(tmp_path: Path) -> None:
    assert load(tmp_path) is None
    assert load(tmp_path / "absent") is None


def test_the_last_two_are_kept_and_the_last_is_loaded(tmp_path: Path) -> None:
    for step in range(12):
        assert save(tmp_path, *pair(step)) == tmp_path / f"checkpoint-{step + 1:06d}"
        found = load(tmp_path)
        assert found is not None
        assert found.state["step"] == step
        assert float(found.weights["w"][0]) == step
    assert names(tmp_path) == ["checkpoint-000011", "checkpoint-000012"]
    assert names(tmp_path / "checkpoint-000012") == ["state.pt", "weights.safetensors"]


def test_metadata_comes_back_and_any_reader_of_the_format_opens_the_file(tmp_path: Path) -> None:
    metadata = {
        "model": "unet",
        "classes": ["background", "pölyp"],
        "size": [224, 224],
        "zeros": "0" * 64,
        "none": None,
    }
    weights = {"0" * 64: torch.randn(3), "sha256": torch.randn(2)}
    path = tmp_path / "new" / "best.safetensors"
    save_weights(path, weights, metadata)
    found, read = load_weights(path)
    assert same(dict(sorted(found.items())), dict(sorted(weights.items())))
    assert read == metadata
    with safetensors.safe_open(path, "pt") as file:
        assert json.loads(file.metadata()["polydice"])["metadata"] == metadata
        assert same(file.get_tensor("sha256"), weights["sha256"])
    save(tmp_path, weights, {}, metadata)
    assert load_weights(tmp_path / "checkpoint-000001" / "weights.safetensors")[1] == metadata


def test_the_same_weights_are_the_same_file(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))
    for name in ("a", "b"):
        save_weights(tmp_path / name, net.state_dict(), {"seed": 0, "loss": "dice"})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_state_that_could_not_be_loaded_is_refused_when_it_is_saved(tmp_path: Path) -> None:
    with pytest.raises(
        TypeError, match=r"state holds numpy\S*scalar, numpy\.dtype, which .*use tensors, numbers, strings"
    ):
        save(tmp_path, {}, {"best": np.float64(0.5)})
    assert names(tmp_path) == []


# Damage


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("where", [0, 9, 40, 90, 0.5, -1])
def test_a_flipped_bit_is_found_and_the_previous_checkpoint_is_named(tmp_path: Path, name: str, where: float) -> None:
    for step in range(2):
        save(tmp_path, *pair(step))
    last = tmp_path / "checkpoint-000002"
    flip(last / name, int(where * (last / name).stat().st_size) if where == 0.5 else int(where))
    with pytest.raises(CheckpointError) as caught:
        load(tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{last / name} is damaged")
    assert message.endswith(f"delete the folder {last} to resume from checkpoint-000001, which is intact")
    assert "\n" not in message
    shutil.rmtree(last)  # as the message says
    found = load(tmp_path)
    assert found is not None
    assert found.state["step"] == 0


def test_every_flipped_bit_of_a_small_file_of_weights_is_found(tmp_path: Path) -> None:
    path = tmp_path / "best.safetensors"
    save_weights(path, {"w": torch.ones(2)}, {"a": 1})
    data = path.read_bytes()
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="is damaged"):
            load_weights(path)


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("length", [0, 5, 100, 3000])
def test_a_file_cut_short_is_found(tmp_path: Path, name: str, length: int) -> None:
    save(tmp_path, *pair(0))
    os.truncate(tmp_path / "checkpoint-000001" / name, length)
    with pytest.raises(CheckpointError, match=rf"{name} is damaged.* no older checkpoint is intact: start again"):
        load(tmp_path)


@pytest.mark.parametrize("name", BOTH)
def test_files_of_two_checkpoints_make_no_pair(tmp_path: Path, name: str) -> None:
    first, second = (save(tmp_path, *pair(step)) for step in range(2))
    shutil.copy(first / name, second / name)
    with pytest.raises(CheckpointError, match=r"state\.pt is damaged: its SHA-256 is not the one in weights"):
        load(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    (save(tmp_path, *pair(0)) / "state.pt").unlink()
    with pytest.raises(CheckpointError, match=r"cannot read .*state\.pt: No such file or directory"):
        load(tmp_path)
    with pytest.raises(CheckpointError, match=r"cannot read .*best\.safetensors: No such file or directory"):
        load_weights(tmp_path / "best.safetensors")


def test_weights_of_somebody_else_are_refused(tmp_path: Path) -> None:
    safetensors.torch.save_file({"w": torch.ones(2)}, tmp_path / "a.safetensors")
    with pytest.raises(CheckpointError, match=r"a\.safetensors is damaged, or was not written by polydice"):
        load_weights(tmp_path / "a.safetensors")


# Disks and processes that fail


@pytest.mark.parametrize("call", [1, 2, 3, 4])
def test_an_error_at_any_write_leaves_one_whole_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    save(tmp_path, *pair(0))
    calls = iter(range(1, 100))

    def failing(descriptor: int) -> None:
        if next(calls) == call:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        with pytest.raises(CheckpointError, match=r"cannot save .*checkpoint-000002: Input/output error"):
            save(tmp_path, *pair(1))
    assert [name for name in names(tmp_path) if name.endswith(".tmp")] == []
    found = load(tmp_path)
    assert found is not None
    assert found.state["step"] == float(found.weights["w"][0]) == (1 if call == 4 else 0)  # the fourth: all is there


def test_a_folder_that_cannot_be_is_one_clear_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(CheckpointError, match=r"^cannot save .*: Not a directory; nothing was saved before"):
        save(file / "run", *pair(0))
    with pytest.raises(CheckpointError, match=r"^cannot save .*best\.safetensors: Not a directory$"):
        save_weights(file / "run" / "best.safetensors", {})


def in_own_mounts(folder: Path, code: str) -> list[str]:
    """Runs Python with a file system of one megabyte at `folder`, which nobody else sees and which ends with it."""
    script = f'mount -t tmpfs -o size=1m none "{folder}" && exec "$@"'
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh"]
    if shutil.which("unshare") is None or subprocess.run([*command, "true"], capture_output=True).returncode != 0:
        pytest.skip("mounting a small file system is not permitted here")
    return python(code, folder, *command)


def python(code: str, folder: Path, *prefix: str) -> list[str]:
    """What a script prints; it has the functions and `folder`, and `attempt` prints a CheckpointError."""
    start = (
        "import os, resource, subprocess, sys, torch\nfrom pathlib import Path\n"
        "from polydice.training.checkpoint import *\ntorch.set_num_threads(1)\nfolder = Path(sys.argv[1])\n"
        "def attempt(function, *arguments):\n"
        "    try: function(*arguments)\n"
        "    except CheckpointError as error: print(error)\n"
        "def filled(step, kilobytes):\n"
        "    return {'w': torch.full((256 * kilobytes,), float(step))}, {'step': step}\n"
    )
    sources = os.pathsep.join([str(Path(checkpoint.__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    command = [*prefix, sys.executable, "-c", start + code, str(folder)]
    ran = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": sources})
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    lines = in_own_mounts(
        tmp_path,
        "best = folder / 'best.safetensors'\n"
        "save(folder, *filled(1, 100)); save_weights(best, filled(1, 100)[0])\n"
        "attempt(save, folder, *filled(2, 2000)); attempt(save_weights, best, filled(2, 2000)[0])\n"
        "attempt(save, folder, {}, {'big': torch.ones(2_000_000)})\n"
        "print(load(folder).state, float(load_weights(best)[0]['w'][0]), sorted(os.listdir(folder)))\n"
        "save(folder, *filled(3, 100)); print(load(folder).state)\n",
    )
    full = (
        f"cannot save {tmp_path / 'checkpoint-000002'}: No space left on device; "
        "checkpoint-000001 is untouched: resume from it once the folder can be written to"
    )
    assert lines == [
        full,
        f"cannot save {tmp_path / 'best.safetensors'}: No space left on device; the file that was there is untouched",
        full,
        "{'step': 1} 1.0 ['best.safetensors', 'checkpoint-000001']",
        "{'step': 3}",
    ]


def test_a_read_only_folder_loses_nothing(tmp_path: Path) -> None:
    lines = in_own_mounts(
        tmp_path,
        "best = folder / 'best.safetensors'\n"
        "save(folder, *filled(1, 10)); save_weights(best, filled(1, 10)[0])\n"
        "subprocess.run(['mount', '-o', 'remount,ro', folder], check=True)\n"
        "attempt(save, folder, *filled(2, 10)); attempt(save_weights, best, filled(2, 10)[0])\n"
        "print(load(folder).state, float(load_weights(best)[0]['w'][0]), sorted(os.listdir(folder)))\n",
    )
    assert lines == [
        f"cannot save {tmp_path / 'checkpoint-000002'}: Read-only file system; "
        "checkpoint-000001 is untouched: resume from it once the folder can be written to",
        f"cannot save {tmp_path / 'best.safetensors'}: Read-only file system; the file that was there is untouched",
        "{'step': 1} 1.0 ['best.safetensors', 'checkpoint-000001']",
    ]


def test_a_limit_on_the_size_of_files_is_met_in_the_same_way(tmp_path: Path) -> None:
    lines = python(
        "save(folder, *filled(1, 10))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "attempt(save, folder, *filled(2, 1000)); print(load(folder).state, os.listdir(folder))\n",
        tmp_path,
    )
    assert lines == [
        f"cannot save {tmp_path / 'checkpoint-000002'}: File too large; "
        "checkpoint-000001 is untouched: resume from it once the folder can be written to",
        "{'step': 1} ['checkpoint-000001']",
    ]


def test_killed_at_twenty_moments_every_load_gives_one_whole_pair(tmp_path: Path) -> None:
    lines = python(
        # A child saves step after step and says so; it is killed in the middle. Both steps loaded must be one and the
        # same, and not older than the last one said to be saved.
        "import random, select, signal, time\n"
        "random.seed(0)\n"
        "for _ in range(20):\n"
        "    said, tell = os.pipe()\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        found = load(folder)\n"
        "        step = found.state['step'] if found else 0\n"
        "        while True:\n"
        "            step += 1\n"
        "            save(folder, *filled(step, 200))\n"
        "            save_weights(folder / 'best.safetensors', filled(step, 200)[0])\n"
        "            os.write(tell, f'{step} '.encode())\n"
        "    select.select([said], [], [])\n"
        "    time.sleep(random.uniform(0, 0.1))\n"
        "    os.kill(child, signal.SIGKILL)\n"
        "    os.waitpid(child, 0)\n"
        "    reported = int(os.read(said, 100_000).split()[-1])\n"
        "    left = any(name.endswith('.tmp') for name in os.listdir(folder))\n"
        "    found, best = load(folder), load_weights(folder / 'best.safetensors')[0]['w'].unique().tolist()\n"
        "    print(reported, found.state['step'], *found.weights['w'].unique().tolist(), *best, left)\n",
        tmp_path,
    )
    assert len(lines) == 20
    interrupted = 0
    for line in lines:
        reported, step, weights, best, left = line.split()
        assert int(reported) <= int(step) == float(weights)
        assert float(best) in (int(reported), int(step))
        interrupted += left == "True"
    assert interrupted > 0  # or the test would show nothing
    save(tmp_path, *pair(0))
    assert [name for name in names(tmp_path) if name.startswith("checkpoint-") and name.endswith(".tmp")] == []
