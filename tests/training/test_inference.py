import ast
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from polydice.data import batches as data_batches
from polydice.data.batches import Batches
from polydice.data.prepare import Preparation, Prepared, prepare
from polydice.data.readers import open_dataset
from polydice.models import build
from polydice.training import inference
from polydice.training.inference import Network, patch_for
from polydice.training.loop import train
from polydice.training.metrics import confusion
from tests.training.networks import THRESHOLD, thresholding
from tests.training.runs import small


@pytest.fixture
def prepared(images: Path, tmp_path: Path) -> Prepared:
    return prepare(open_dataset(images), Preparation(2, 32), tmp_path)


def test_a_cpu_computes_in_float32_without_compiling() -> None:
    model = build("unet", 1, 2, width=4, depth=2)
    network, images = Network(model), torch.rand(2, 1, 32, 32)
    assert (network.half, network.compiled, network.channels_last) == (False, False, False)
    torch.testing.assert_close(network(images), model(images), rtol=0, atol=0)


def test_bfloat16_is_a_choice() -> None:
    """Eight bits: 0.4 %, through the layers a few of them. Weights and their gradients stay float32."""
    model = build("unet", 1, 2, width=4, depth=2)
    images = torch.rand(2, 1, 32, 32)
    half = Network(model, precision="bfloat16")(images)
    assert half.dtype == torch.bfloat16
    half.float().sum().backward()
    assert {weight.grad.dtype for weight in model.parameters() if weight.grad is not None} == {torch.float32}
    exact = Network(model)(images)
    assert 0 < (half.float() - exact).abs().max() < 0.05 * exact.abs().max()


def test_label_maps_are_the_largest_logits_of_the_network_at_rest() -> None:
    model = build("unet", 1, 3, width=4, depth=2, deep_supervision=True)
    model(torch.rand(4, 1, 32, 32))  # the batch norms have seen something
    network, images = Network(model), torch.rand(2, 1, 32, 32)
    network.train()
    assert isinstance(network(images), list)  # of every resolution
    found = network.segment(images)
    assert found.dtype == torch.uint8
    assert torch.equal(found.long(), model.eval()(images).argmax(1))


@pytest.mark.parametrize("batch", [4, 5, 7, 30])
def test_every_item_is_counted_once_whatever_the_batch(batch: int, prepared: Prepared) -> None:
    """25 items, with a last batch that is smaller, or the only one."""
    batches = Batches(prepared, range(25), batch, "cpu")
    found = Network(thresholding()).confusion(batches, 2)
    images, labels = torch.from_numpy(np.array(prepared.images)), torch.from_numpy(np.array(prepared.labels))
    assert torch.equal(found, confusion(images[:, 0] / 255 > THRESHOLD, labels, 2))


class Squares(nn.Module):
    """Logits 0 and x² − ¼ of each voxel: what a window sees does not depend on the others."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.sizes: set[tuple[int, ...]] = set()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.sizes.add(tuple(x.shape[2:]))
        return torch.cat([torch.zeros_like(x), x.square() - 0.25], 1) + self.weight


@pytest.mark.parametrize("shape", [(16, 16, 16), (40, 21, 16), (7, 30, 9), (5, 5, 5)])
def test_volumes_are_seen_through_windows_of_the_patch(shape: tuple[int, int, int]) -> None:
    model, volume = Squares(), torch.rand(1, 1, *shape)
    found = Network(model, patch=(16, 16, 16)).segment(volume)
    assert torch.equal(found[0], (volume[0, 0] > 0.5).to(torch.uint8))
    assert model.sizes == {(16, 16, 16)}


@pytest.mark.parametrize(
    ("at_once", "together"), [(1 << 24, [4, 4, 1]), (2 * 2 * 24**3, [2, 2, 2, 2, 1]), (1, [1] * 9)]
)
def test_small_volumes_go_through_the_network_together(
    at_once: int, together: list[int], monkeypatch: pytest.MonkeyPatch, volumes: Path, tmp_path: Path
) -> None:
    """As many as the batch has, and as their logits allow. Label maps and matrices are those of each by itself."""
    monkeypatch.setattr(inference, "AT_ONCE", at_once)
    prepared = prepare(open_dataset(volumes), Preparation(3), tmp_path)
    model = build("unet3d", 1, 2, width=4, depth=2)
    network, calls = Network(model, patch=(24, 24, 24)), []
    model.register_forward_hook(lambda _, images, __: calls.append(len(images[0])))
    found = list(network.segmented(Batches(prepared, range(9), 4, "cpu"), 2))
    assert calls == together
    for item, each in enumerate(found):
        images, labels = (torch.from_numpy(np.array(part)) for part in prepared.item(item))
        alone = network.segment(data_batches.as_float(images)[None])
        assert torch.equal(each.maps, alone)
        assert torch.equal(each.labels[0], labels)
        assert torch.equal(each.matrices, confusion(alone, labels[None], 2))
    assert any(each.maps.any() for each in found)


def test_there_is_one_way_through_windows_and_one_to_a_confusion_matrix() -> None:
    """Validation, test and prediction cannot differ."""
    names = ("planes", "confusion")
    called = [
        (node.func.id, path.name)
        for path in Path(inference.__file__).parents[1].rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names
    ]
    assert sorted(called) == [("confusion", "inference.py"), ("planes", "inference.py")]


@pytest.mark.parametrize(
    ("shapes", "patch"),
    [
        ([(35, 50, 36), (33, 48, 40), (34, 49, 35)], (48, 64, 48)),
        ([(16, 32, 48)], (16, 32, 48)),
        ([(5, 200, 200), (9, 300, 100)], (16, 96, 96)),
    ],
)
def test_a_patch_holds_most_volumes_up_to_a_limit(shapes: Any, patch: tuple[int, int, int]) -> None:
    assert patch_for(SimpleNamespace(shapes=np.array(shapes))) == patch  # type: ignore[arg-type]


# torch.compile


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Counts what torch.compile has traced. The graphs are run as they are: making code of them takes half a minute."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    torch._dynamo.reset()
    compiled = (inference._compiled, data_batches._compiled)
    for function in compiled:
        function.cache_clear()
    torch._dynamo.utils.counters.clear()
    with torch._dynamo.config.patch(cache_size_limit=8):
        yield lambda: torch._dynamo.utils.counters["stats"]["unique_graphs"]
    torch._dynamo.reset()
    for function in compiled:
        function.cache_clear()


def test_a_second_run_finds_the_network_compiled(images: Path, tmp_path: Path, graphs: Any) -> None:
    """One graph to augment, one to train and one to evaluate, though 5 images validate and test in batches of 4."""
    train(small(images, tmp_path / "first", epochs=2, compile="on"))
    assert graphs() == 3
    train(small(images, tmp_path / "second", epochs=1, compile="on", loss="CrossEntropyLoss()", seed=1))
    assert graphs() == 3


def test_a_process_can_compile_many_networks(graphs: Any) -> None:
    for channels in range(1, 12):  # torch gives up after eight of one function, unless it is told not to
        Network(nn.Conv2d(channels, 2, 1), compile=True)(torch.rand(1, channels, 4, 4))
    assert graphs() == 11


def test_compiled_or_not_the_logits_are_the_same(graphs: Any) -> None:
    model, images = build("unet", 1, 2, width=4, depth=2).eval(), torch.rand(2, 1, 32, 32)
    torch.testing.assert_close(Network(model, compile=True)(images), model(images))
    assert graphs() == 1
