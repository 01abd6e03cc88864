import threading
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from polydice.data.augment import Augment2D, Augment3D, as_float
from polydice.data.batches import Batch, Batches, _ahead
from polydice.data.cases import Case, Dataset, Sample
from polydice.data.prepare import Preparation, Prepared, prepare

SIZE = 16
PATCH = (6, 7, 8)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


def _labels(case: Case, random: np.random.Generator, *shape: int) -> NDArray[np.int64]:
    return random.choice(case.annotated or (0, 1, 2), size=shape)


def _image(case: Case) -> Sample:
    random = np.random.default_rng(int(case.id))
    return Sample(random.integers(256, size=(3, SIZE, SIZE), dtype=np.uint8), _labels(case, random, SIZE, SIZE), None)


def _volume(case: Case) -> Sample:
    random = np.random.default_rng(int(case.id))
    shape = (5 + int(case.id) % 7, 12, 9 + int(case.id) % 3)
    return Sample(random.random((2, *shape), np.float32), _labels(case, random, *shape), (1.0, 1.0, 1.0))


def _prepared(folder: Path, dims: int, count: int) -> Prepared:
    """Every third case has all classes annotated, the next the first of two, the next the second."""
    kinds = (None, (0, 1), (0, 2))
    cases = tuple(Case(f"{number:03}", f"{number:03}", (), (), kinds[number % 3]) for number in range(count))
    read, intensity = (_image, "colour") if dims == 2 else (_volume, "mr")
    dataset = Dataset("numbers", folder, ("background", "one", "two"), intensity, cases, read)
    return prepare(dataset, Preparation(dims=dims, size=SIZE), folder / "cache", workers=1)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return _prepared(tmp_path_factory.mktemp("images"), 2, 23)


@pytest.fixture(scope="module")
def volumes(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return _prepared(tmp_path_factory.mktemp("volumes"), 3, 11)


@pytest.fixture(params=["2D", "3D"])
def make(request: pytest.FixtureRequest, images: Prepared, volumes: Prepared) -> partial[Batches]:
    """Augmented batches of four of all items but the first; the rest is to be said."""
    if request.param == "2D":
        return partial(Batches, images, range(1, 23), 4, augment=Augment2D(interpolation="bilinear"))
    return partial(Batches, volumes, range(1, 11), 4, augment=Augment3D(), patch=PATCH)


def _assert_same(found: Iterable[Batch], expected: Iterable[Batch]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_an_epoch_has_every_item_at_most_once_and_only_whole_batches(make: partial[Batches]) -> None:
    batches = make(device="cpu")
    epoch = list(batches.epoch(0))
    assert len(epoch) == len(batches) == len(batches.items) // 4
    items = torch.cat([batch.items for batch in epoch])
    assert len(items.unique()) == len(items)
    assert set(items.tolist()) <= set(batches.items.tolist())
    spatial = PATCH if batches.patch else (SIZE, SIZE)
    for batch in epoch:
        assert batch.images.shape == (4, batches.prepared.channels, *spatial)
        assert batch.labels.shape == (4, *spatial)
        assert (batch.images.dtype, batch.labels.dtype) == (torch.float32, torch.uint8)


def test_what_is_annotated_comes_with_every_image(make: partial[Batches]) -> None:
    batches = make(device="cpu")
    kinds = torch.tensor([[True, True, True], [True, True, False], [True, False, True]])
    for batch in (*batches.epoch(0), *batches.ordered()):
        assert batch.annotated is not None
        assert torch.equal(batch.annotated, kinds[batch.items % 3])
        for known, labels in zip(batch.annotated, batch.labels, strict=True):
            assert known[labels.unique().long()].all()


def test_an_epoch_is_a_function_of_seed_and_number(make: partial[Batches]) -> None:
    batches = make(device="cpu", seed=5)
    list(batches.epoch(2))  # what was drawn before does not matter
    _assert_same(batches.epoch(3), make(device="cpu", seed=5).epoch(3))
    orders = [
        torch.cat([batch.items for batch in one]).tolist()
        for one in (
            batches.epoch(3),
            batches.epoch(4),
            make(device="cpu", seed=6).epoch(3),
            make(device="cpu", seed=4).epoch(4),
        )
    ]
    assert len({tuple(order) for order in orders}) == 4


def test_processes_together_take_what_one_takes(make: partial[Batches]) -> None:
    ranks = [make(device="cpu", rank=rank, world=2).epoch(1) for rank in range(2)]
    joined = (Batch(*map(torch.cat, zip(*parts, strict=True))) for parts in zip(*ranks, strict=True))
    _assert_same(joined, make(device="cpu").epoch(1))


@pytest.mark.parametrize("device", DEVICES)
def test_streamed_batches_are_the_resident_ones(make: partial[Batches], device: str) -> None:
    resident, streamed = make(device=device, resident=True), make(device=device, resident=False)
    assert next(streamed.epoch(0)).images.device.type == device
    for number in range(3):
        _assert_same(streamed.epoch(number), resident.epoch(number))
    _assert_same(streamed.ordered(), resident.ordered())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode", "ignore:.torch.jit.script_method")  # torch's own
@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("resident", [True, False])
def test_a_gpu_gets_the_batches_of_a_cpu_and_nothing_waits_for_it(
    make: partial[Batches], resident: bool, compile: bool
) -> None:
    on_gpu = make(device="cuda", resident=resident, compile=compile)
    next(on_gpu.epoch(0))  # which compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = list(on_gpu.epoch(0))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for one, other in zip(found, make(device="cpu").epoch(0), strict=True):
        assert torch.equal(one.items, other.items)
        # Places are read to 2e-6 pixels, values to as much, and near 0 the smallest gamma makes 1e-4 of that.
        assert torch.allclose(one.images.cpu(), other.images, rtol=0, atol=3e-4)
        assert (one.labels.cpu() == other.labels).float().mean() > 0.999


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_set_lives_on_the_gpu_if_it_fits_in_half_of_what_is_free(
    make: partial[Batches], monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = make(device="cpu")
    needed = sum(a.nbytes + b.nbytes for a, b in map(batches.prepared.item, batches.items.tolist()))
    for free, fits in ((2 * needed, True), (2 * needed - 1, False)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, free))
        assert make(device="cuda").resident is fits


def test_ordered_gives_every_image_whole_and_as_it_is(images: Prepared) -> None:
    found = list(Batches(images, [7, 3, 20, 5, 9], 2, "cpu", augment=Augment2D(), rank=1, world=2).ordered())
    assert [batch.items.tolist() for batch in found] == [[7, 3], [20, 5], [9]]
    for batch in found:
        assert torch.equal(batch.images, as_float(torch.from_numpy(images.images[batch.items.tolist()])))
        assert torch.equal(batch.labels, torch.from_numpy(images.labels[batch.items.tolist()]))


def test_ordered_gives_volumes_one_by_one(volumes: Prepared) -> None:
    found = list(Batches(volumes, [7, 3, 10], 2, "cpu").ordered())
    assert [batch.items.tolist() for batch in found] == [[7], [3], [10]]
    for batch in found:
        image, labels = volumes.item(int(batch.items))
        assert np.array_equal(batch.images[0], image)
        assert np.array_equal(batch.labels[0], labels)


def test_without_augmentation_an_epoch_has_the_items_themselves(images: Prepared) -> None:
    for batch in Batches(images, range(23), 5, "cpu").epoch(0):
        assert torch.equal(batch.images, as_float(torch.from_numpy(images.images[batch.items.tolist()])))
        assert torch.equal(batch.labels, torch.from_numpy(images.labels[batch.items.tolist()]))


def test_patches_are_parts_of_their_volumes_with_zeros_around(volumes: Prepared) -> None:
    for batch in Batches(volumes, range(11), 3, "cpu", patch=PATCH).epoch(0):
        for image, labels, item in zip(batch.images, batch.labels, batch.items.tolist(), strict=True):
            whole, all_labels = volumes.item(item)
            missing = max(PATCH[0] - whole.shape[1], 0)
            before, inside = missing - missing // 2, min(PATCH[0], whole.shape[1])
            assert image[:, :before].count_nonzero() == image[:, before + inside :].count_nonzero() == 0
            windows = np.lib.stride_tricks.sliding_window_view(whole, (inside, *PATCH[1:]), (1, 2, 3))
            same = (windows == image[:, before : before + inside].numpy()[:, None, None, None]).all((0, 4, 5, 6))
            (corner,) = np.argwhere(same)
            part = tuple(
                slice(first, first + length) for first, length in zip(corner, (inside, *PATCH[1:]), strict=True)
            )
            assert np.array_equal(labels[before : before + inside], all_labels[part])


def _ramp(case: Case) -> Sample:
    """Each channel is one coordinate, so the values of a patch tell where it lies; labels are 1 wherever data is."""
    return Sample(np.indices((30, 30, 30), np.float32), np.ones((30, 30, 30), np.uint8), (1.0, 1.0, 1.0))


def test_turned_patches_have_no_empty_corners_where_the_volume_has_data(tmp_path: Path) -> None:
    cases = tuple(Case(str(number), "", (), ()) for number in range(100))
    dataset = Dataset("ramps", tmp_path, ("background", "data"), "mr", cases, _ramp)
    prepared = prepare(dataset, Preparation(dims=3), tmp_path / "cache", workers=1)
    augment = Augment3D(brightness=0, contrast=(1, 1), gamma=(1, 1))
    (batch,) = Batches(prepared, range(100), 100, "cpu", augment=augment, patch=(8, 8, 8)).epoch(0)
    centres = batch.images.mean((2, 3, 4)) * 29
    reach = max(augment.reach((8, 8, 8))) / 2
    deep = ((centres > reach) & (centres < 29 - reach)).all(1)
    assert deep.sum() > 10
    assert batch.labels[deep].min() == 1
    assert batch.images[deep].min() > 0
    assert batch.labels[~deep].min() == 0  # beyond the border there is nothing


def test_whoever_leaves_in_the_middle_leaves_no_thread_behind(make: partial[Batches]) -> None:
    before = threading.active_count()
    for _ in make(device="cpu", resident=False).epoch(0):
        assert threading.active_count() > before
        break
    assert threading.active_count() == before
    with pytest.raises(RuntimeError, match="diverged"):
        _fail_in(make(device="cpu", resident=False).epoch(0))
    assert threading.active_count() == before


def _fail_in(epoch: Iterable[Batch]) -> None:
    for _ in epoch:
        raise RuntimeError("diverged")


def test_what_goes_wrong_in_the_background_is_raised() -> None:
    def read() -> tuple[Tensor, Tensor]:
        raise OSError("the disk is gone")

    before = threading.active_count()
    with pytest.raises(OSError, match="the disk is gone"):
        next(_ahead([read] * 9, torch.device("cpu")))
    assert threading.active_count() == before


def test_too_few_items_for_a_batch_can_still_be_evaluated(images: Prepared) -> None:
    batches = Batches(images, [1, 2, 3], 4, "cpu")
    assert len(list(batches.ordered())) == 1
    for wrong in (lambda: len(batches), lambda: next(batches.epoch(0))):
        with pytest.raises(ValueError, match="3 items do not make one batch of 4"):
            wrong()


def test_volumes_are_trained_on_in_patches(volumes: Prepared) -> None:
    with pytest.raises(ValueError, match="patch="):
        next(Batches(volumes, range(11), 2, "cpu").epoch(0))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"items": []}, "items is empty"),
        ({"items": [3, 23]}, "between 3 and 23.* 0 to 22"),
        ({"batch": 0}, "batch=0"),
        ({"world": 3}, "process 0 of 3 .* batch of 4"),
        ({"rank": 2, "world": 2}, "process 2 of 2"),
        ({"augment": Augment3D()}, "Augment3D.* 2D"),
        ({"patch": PATCH}, "patch=.* 2D"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(images: Prepared, options: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Batches(**{"prepared": images, "items": range(23), "batch": 4, "device": "cpu"} | options)
