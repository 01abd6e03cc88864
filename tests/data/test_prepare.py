import gzip
import hashlib
import json
import multiprocessing
import os
import pickle
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polydice.data.cache import CacheError
from polydice.data.cases import Case, DataError, Dataset, Intensity, Sample
from polydice.data.generate import generated_folder
from polydice.data.prepare import Preparation, Prepared, prepare
from polydice.data.readers import open_dataset
from polydice.data.resample import resample_image, resample_labels
from tests.data.conftest import RealSet


def read_archive(case: Case) -> Sample:
    with case.images[0].open("rb") as file, np.load(file) as archive:
        return Sample(archive["image"], archive["labels"], tuple(archive["spacing"].tolist()) or None)


def archives(
    folder: Path,
    *samples: Sample,
    intensity: Intensity = "unit",
    classes: tuple[str, ...] = ("background", "one", "two"),
) -> Dataset:
    cases = []
    for place, sample in enumerate(samples):
        file = folder / f"case{place}.npz"
        np.savez(file, image=sample.image, labels=sample.labels, spacing=sample.spacing or ())
        cases.append(Case(f"case{place}", f"patient{place // 2}", (file,), (file,)))
    return Dataset("archives", folder, classes, intensity, tuple(cases), read_archive)


def sample(*shape: int, channels: int = 1, spacing: tuple[float, ...] | None = None, seed: int = 0) -> Sample:
    numbers = np.random.default_rng(seed)
    return Sample(numbers.random((channels, *shape), np.float32), numbers.integers(0, 3, shape, np.uint8), spacing)


@pytest.fixture
def _nothing_is_recent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polydice.data.cache.SETTLED_NS", 0)


def folders(cache: Path) -> list[str]:
    """The folders of the cache that hold arrays, finished or not."""
    return sorted(path.name for path in cache.iterdir() if path.is_dir() and path.name != "digests")


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_pictures_become_squares_of_bytes(tmp_path: Path) -> None:
    dataset = open_dataset(generated_folder(tmp_path, 5, size=48))
    prepared = prepare(dataset, Preparation(size=32), tmp_path / "cache", workers=1)
    assert (prepared.name, prepared.classes) == (dataset.name, dataset.classes)
    assert (prepared.dims, prepared.channels, len(prepared)) == (2, 1, 5)
    assert (prepared.images.shape, prepared.images.dtype) == ((5, 1, 32, 32), np.uint8)
    assert (prepared.labels.shape, prepared.labels.dtype) == ((5, 32, 32), np.uint8)
    assert prepared.shapes.tolist() == [[32, 32]] * 5
    assert [(case.id, case.group, case.items, case.volume) for case in prepared.cases] == [
        (case.id, case.group, range(place, place + 1), False) for place, case in enumerate(dataset.cases)
    ]
    for place, case in enumerate(dataset.cases):
        read, (image, labels) = dataset.read(case), prepared.item(place)
        np.testing.assert_array_equal(image[0], resample_image(read.image[0], (32, 32)))
        np.testing.assert_array_equal(labels, resample_labels(read.labels, (32, 32)))  # type: ignore[arg-type]


def test_image_and_labels_stay_aligned(tmp_path: Path) -> None:
    """The centre of gravity of a bright disc and of its mask: half a pixel of either grid would be seen."""
    y, x = np.indices((90, 140))
    disc = ((y - 31) ** 2 + (x - 88) ** 2 < 24**2).astype(np.uint8)
    for size in (37, 224):
        dataset = archives(tmp_path, Sample(disc[None].astype(np.float32), disc, (2.0, 1.0)))
        prepared = prepare(dataset, Preparation(size=size), tmp_path / "cache", workers=1)
        image, labels = prepared.item(0)
        for axis, (old, centre) in enumerate(zip(disc.shape, (31, 88), strict=True)):
            places = np.arange(size).reshape(-1, *[1] * (1 - axis))
            expected = (centre + 0.5) * size / old - 0.5
            assert (places * image[0]).sum() / image[0].sum() == pytest.approx(expected, abs=0.02)
            assert (places * labels).sum() / labels.sum() == pytest.approx(expected, abs=0.1)
        assert prepared.cases[0].spacing == pytest.approx((2 * 90 / size, 140 / size))


def test_slices_of_volumes_keep_their_order_and_their_volume(tmp_path: Path) -> None:
    samples = [sample(4, 20, 30, spacing=(5.0, 1.0, 1.0)), sample(1, 9, 9, seed=1), sample(16, 16, seed=2)]
    prepared = prepare(archives(tmp_path, *samples), Preparation(size=16), tmp_path / "cache", workers=1)
    assert [(case.items, case.volume) for case in prepared.cases] == [
        (range(0, 4), True),
        (range(4, 5), True),
        (range(5, 6), False),
    ]
    assert [case.spacing for case in prepared.cases] == [(5.0, 20 / 16, 30 / 16), None, None]
    assert prepared.case_of.tolist() == [0, 0, 0, 0, 1, 2]
    for z in range(4):
        image, labels = prepared.item(z)
        np.testing.assert_array_equal(image[0], resample_image(samples[0].image[0, z], (16, 16)))
        np.testing.assert_array_equal(labels, resample_labels(samples[0].labels[z], (16, 16)))
    np.testing.assert_array_equal(prepared.item(5)[0], samples[2].image)


def test_mr_is_normalised_by_volume_not_by_slice(tmp_path: Path) -> None:
    image = np.arange(3 * 8 * 8).reshape(1, 3, 8, 8).astype(np.int16)
    dataset = archives(tmp_path, Sample(image, np.zeros((3, 8, 8), np.uint8), None), intensity="mr")
    prepared = prepare(dataset, Preparation(size=8), tmp_path / "cache", workers=1)
    np.testing.assert_allclose(prepared.images[:, 0], image[0] / 191, atol=1e-6)


def test_volumes_lie_one_after_the_other(tmp_path: Path) -> None:
    samples = [sample(4, 5, 6, channels=2), sample(3, 7, 2, channels=2, seed=1), sample(2, 2, 2, channels=2, seed=2)]
    prepared = prepare(archives(tmp_path, *samples), Preparation(dims=3), tmp_path / "cache", workers=1)
    assert prepared.shapes.tolist() == [[4, 5, 6], [3, 7, 2], [2, 2, 2]]
    assert prepared.starts.tolist() == [0, 120, 162]
    assert prepared.images.shape == (2, 170)
    assert prepared.labels.shape == (170,)
    assert [(case.items, case.volume) for case in prepared.cases] == [(range(n, n + 1), False) for n in range(3)]
    for place, (image, labels, *_) in enumerate(samples):
        np.testing.assert_array_equal(prepared.item(place)[0], image)
        np.testing.assert_array_equal(prepared.item(place)[1], labels)
        assert np.shares_memory(prepared.item(place)[0], prepared.images)


def test_volumes_of_different_spacing_come_to_that_in_the_middle(tmp_path: Path) -> None:
    samples = [
        sample(10, 20, 20, spacing=(3.0, 1.0, 1.0)),
        sample(12, 30, 20, spacing=(2.0, 0.5, 1.0), seed=1),
        sample(7, 10, 10, spacing=(2.5, 2.0, 1.0), seed=2),
    ]
    prepared = prepare(archives(tmp_path, *samples), Preparation(dims=3), tmp_path / "cache", workers=1)
    assert prepared.settings.spacing == (2.5, 1.0, 1.0)
    assert prepared.shapes.tolist() == [[12, 20, 20], [10, 15, 20], [7, 20, 10]]
    for before, case, shape in zip(samples, prepared.cases, prepared.shapes, strict=True):
        assert before.spacing is not None
        assert case.spacing is not None
        extent = np.multiply(before.spacing, before.labels.shape)
        np.testing.assert_allclose(np.multiply(case.spacing, shape), extent)
    np.testing.assert_array_equal(prepared.item(2)[1], resample_labels(samples[2].labels, (7, 20, 10)))

    given = prepare(archives(tmp_path, *samples), Preparation(dims=3, spacing=(3, 1, 1)), tmp_path / "cache", workers=1)
    np.testing.assert_array_equal(given.item(0)[0], samples[0].image)
    assert given.cases[0].spacing == (3.0, 1.0, 1.0)


def test_a_set_that_knows_no_spacing_is_left_on_its_grid(tmp_path: Path) -> None:
    dataset = archives(tmp_path, sample(4, 5, 6))
    for settings in (Preparation(dims=3), Preparation(dims=3, spacing=(1.0, 2.0, 2.0))):
        prepared = prepare(dataset, settings, tmp_path / "cache", workers=1)
        assert prepared.shapes.tolist() == [[4, 5, 6]]
        assert prepared.cases[0].spacing is None


def test_the_number_of_workers_changes_nothing(tmp_path: Path) -> None:
    dataset = open_dataset(generated_folder(tmp_path, 5, dims=3, size=16, lesion=(2, 4)))
    settings = Preparation(dims=3, spacing=(2.0, 1.5, 0.9))
    alone = prepare(dataset, settings, tmp_path / "alone", workers=1)
    together = prepare(dataset, settings, tmp_path / "together", workers=2)
    assert alone.folder.name == together.folder.name
    assert files(alone.folder) == files(together.folder)


@pytest.mark.parametrize(
    ("bad", "dims", "message"),
    [
        (sample(8, 8, channels=3), 2, "archives: case case1 has 3 channels, case case0 has 1"),
        (
            Sample(np.zeros((1, 8, 8)), np.full((8, 8), 7), None),
            2,
            "case case1: labels 7 to 7, but the classes are 0 to 2",
        ),
        (Sample(np.zeros((1, 8, 8)), np.full((8, 8), -1), None), 2, "case case1: labels -1 to -1"),
        (
            Sample(np.zeros((1, 8, 8)), np.zeros((8, 9), int), None),
            2,
            r"case case1: image \[1, 8, 8\] and labels \[8, 9\]",
        ),
        (Sample(np.full((1, 8, 8), np.nan), np.zeros((8, 8), int), None), 2, "case case1: the image holds NaN"),
        (sample(8, 8), 3, "case case1: it is a single image, not a volume: prepare with dims=2"),
    ],
)
def test_a_bad_case_is_named_and_nothing_is_left(tmp_path: Path, bad: Sample, dims: Any, message: str) -> None:
    good = sample(8, 8) if dims == 2 else sample(8, 8, 8)
    with pytest.raises(DataError, match=message):
        prepare(archives(tmp_path, good, bad), Preparation(dims=dims), tmp_path / "cache", workers=1)
    assert folders(tmp_path / "cache") == []


def test_a_worker_names_the_case_too(tmp_path: Path) -> None:
    dataset = open_dataset(generated_folder(tmp_path, 5, size=32))
    mask = dataset.cases[3].masks[0]
    mask.write_bytes(mask.read_bytes()[:60])
    with pytest.raises(DataError, match=f"case {dataset.cases[3].id}: .*{mask.name}"):
        prepare(dataset, Preparation(), tmp_path / "cache", workers=2)
    assert folders(tmp_path / "cache") == []


def test_a_set_without_cases_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no cases"):
        prepare(archives(tmp_path), Preparation(), tmp_path / "cache")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dims": 1}, "dims must be 2 or 3: 1"),
        ({"size": 0}, "size must be at least 1 pixel: 0"),
        ({"spacing": (1.0, 0.0, 1.0)}, "spacing must be three positive numbers"),
        ({"window": (10.0, 10.0)}, "window must be a lower and a higher number"),
        ({"cut": 0.0}, "cut must lie between 0 and 100 percent: 0.0"),
        ({"cut": 100.0}, "cut must lie between 0 and 100 percent: 100.0"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Preparation(**settings)


def test_the_same_set_is_found_again_and_another_is_not(tmp_path: Path) -> None:
    dataset = archives(tmp_path, sample(8, 8), sample(8, 8, seed=1), intensity="mr")
    cache, settings = tmp_path / "cache", Preparation(size=8)
    folder = prepare(dataset, settings, cache, workers=1).folder
    made = folder.stat().st_mtime_ns
    assert prepare(dataset, settings, cache, workers=1).folder == folder
    assert folder.stat().st_mtime_ns == made

    first = dataset.cases[0]
    others = [
        replace(dataset, cases=dataset.cases[1:]),
        replace(dataset, cases=(replace(first, group="another"), dataset.cases[1])),
        replace(dataset, cases=(replace(first, id="another"), dataset.cases[1])),
        replace(dataset, classes=("background", "one", "two", "three")),
        replace(dataset, intensity="unit"),
        replace(dataset, name="another"),
    ]
    folders = {prepare(other, settings, cache, workers=1).folder for other in others}
    more = [Preparation(size=9), Preparation(size=8, cut=0.5)]
    folders |= {prepare(dataset, other, cache, workers=1).folder for other in more}
    archives(tmp_path, sample(8, 8, seed=2), sample(8, 8, seed=1))  # one file holds something else
    folders.add(prepare(dataset, settings, cache, workers=1).folder)
    assert len(folders - {folder}) == 9


def kept_result() -> dict[str, Any]:
    """Of a run that was made before there was a cut."""
    kept = Path(__file__).parents[2] / "results/paper/gradient-small/runs.jsonl.gz"
    result: dict[str, Any] = json.loads(gzip.decompress(kept.read_bytes()).partition(b"\n")[0])["result"]
    return result


def test_files_of_before_there_was_a_cut_are_as_those_of_today() -> None:
    """Else no run of before could be resumed."""
    assert json.loads(json.dumps(Preparation(size=64).described())) == kept_result()["preparation"]
    assert Preparation(cut=1).described() == Preparation().described() | {"cut": 1.0}


def test_what_was_prepared_before_there_was_a_cut_is_found(real_set: RealSet, tmp_path: Path) -> None:
    prepared = prepare(open_dataset(real_set("cvc-clinicdb")), Preparation(size=64), tmp_path)
    assert prepared.folder.name == kept_result()["prepared"]


@pytest.mark.parametrize("intensity", ["unit", "colour", "ct"])
def test_only_mr_is_cut(intensity: Intensity, tmp_path: Path) -> None:
    dataset = archives(tmp_path, sample(8, 8), intensity=intensity)
    with pytest.raises(DataError, match=rf"cut is for MR, and the images of archives in .* are {intensity}"):
        prepare(dataset, Preparation(size=8, cut=0.5), tmp_path / "cache", workers=1)


def test_a_real_heart_beside_bright_skin_needs_the_cut_to_be_seen(real_set: RealSet, tmp_path: Path) -> None:
    dataset = open_dataset(real_set("acdc"))
    usual, spoilt = (tuple(case for case in dataset.cases if case.group == f"patient0{number}") for number in (16, 21))

    def ventricle(cases: tuple[Case, ...], cut: float | None) -> float:
        """How bright the left one is."""
        prepared = prepare(replace(dataset, cases=cases), Preparation(cut=cut), tmp_path)
        return float(prepared.images[:, 0][prepared.labels == 3].mean())

    assert ventricle(spoilt, None) < 0.1 < 0.5 < ventricle(usual, None)
    assert ventricle(spoilt, 0.5) > 5 * ventricle(spoilt, None)


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("void", [3, 255, -1, 65535])
def test_pixels_without_a_label_are_255_whatever_they_were(tmp_path: Path, void: int, dims: Any) -> None:
    labels = np.array([0, 1, 2, void], np.int32)[np.random.default_rng(0).integers(0, 4, (6, 8, 8))]
    dataset = archives(tmp_path, Sample(np.random.default_rng(1).random((1, 6, 8, 8)), labels, None))
    with pytest.raises(DataError, match="but the classes are 0 to 2"):
        prepare(dataset, Preparation(dims=dims, size=8), tmp_path / "cache", workers=1)
    prepared = prepare(replace(dataset, ignore=void), Preparation(dims=dims, size=8), tmp_path / "cache", workers=1)
    assert prepared.ignore == 255
    np.testing.assert_array_equal(prepared.labels.reshape(labels.shape), np.where(labels == void, 255, labels))
    stray = archives(tmp_path, Sample(np.zeros((1, 6, 8, 8)), np.where(labels == 2, 7, labels), None))
    with pytest.raises(DataError, match="but the classes are 0 to 2"):
        prepare(replace(stray, ignore=void), Preparation(dims=dims, size=8), tmp_path / "cache", workers=1)


def test_a_copy_of_the_set_elsewhere_is_the_same_set(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    here = archives(tmp_path / "here", sample(8, 8))
    there = archives(tmp_path / "there", sample(8, 8))
    first = prepare(here, Preparation(size=8), tmp_path / "cache", workers=1)
    assert prepare(there, Preparation(size=8), tmp_path / "cache", workers=1).folder == first.folder


def _cut_images(folder: Path) -> None:
    os.truncate(folder / "images", (folder / "images").stat().st_size - 1)


def _add_labels(folder: Path) -> None:
    with (folder / "labels").open("ab") as file:
        file.write(b"\0")


def _no_labels(folder: Path) -> None:
    (folder / "labels").unlink()


def _no_index(folder: Path) -> None:
    (folder / "index.json").unlink()


def _half_an_index(folder: Path) -> None:
    os.truncate(folder / "index.json", 100)


def _empty_index(folder: Path) -> None:
    (folder / "index.json").write_text("{}")


def _another_format(folder: Path) -> None:
    index = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps(index | {"format": 0}))


def _one_byte(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[-3] ^= 1
        (folder / name).write_bytes(content)

    return damage


def _another_group(folder: Path) -> None:
    index = (folder / "index.json").read_text()
    (folder / "index.json").write_text(index.replace("patient0", "patient1"))


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (_cut_images, "images has 127 bytes instead of 128"),
        (_add_labels, "labels has 33 bytes instead of 32"),
        (_no_labels, "No such file"),
        (_no_index, "No such file"),
        (_half_an_index, "Unterminated|Expecting|delimiter"),
        (_empty_index, "format"),
        (_another_format, "its format is 0"),
        *((_one_byte(name), f"the checksum of {name} is not the one in SHA256SUMS") for name in ("images", "labels")),
        (_another_group, r"the checksum of index\.json is not the one in SHA256SUMS"),
    ],
)
def test_a_damaged_cache_is_noticed_and_said(tmp_path: Path, damage: Callable[[Path], None], what: str) -> None:
    dataset = archives(tmp_path, sample(4, 4), sample(4, 4))
    folder = prepare(dataset, Preparation(size=4), tmp_path / "cache", workers=1).folder
    damage(folder)
    with pytest.raises(CacheError, match=f"{folder} is damaged .*({what}).*; delete it and run again"):
        prepare(dataset, Preparation(size=4), tmp_path / "cache", workers=1)
    shutil.rmtree(folder)
    assert len(prepare(dataset, Preparation(size=4), tmp_path / "cache", workers=1)) == 2


def test_each_of_twenty_damaged_bytes_is_refused(tmp_path: Path) -> None:
    """Wherever it is, also if the file is made to look as old as before."""
    dataset = archives(tmp_path, sample(8, 8), sample(8, 8, seed=1))
    folder = prepare(dataset, Preparation(size=8), tmp_path / "cache", workers=1).folder
    chance = random.Random(0)
    for _ in range(20):
        file = folder / chance.choice(("images", "labels", "index.json", "SHA256SUMS"))
        content, times = file.read_bytes(), (file.stat().st_atime_ns, file.stat().st_mtime_ns)
        place = chance.randrange(len(content))
        file.write_bytes(content[:place] + bytes([content[place] ^ 1 << chance.randrange(8)]) + content[place + 1 :])
        os.utime(file, ns=times)
        with pytest.raises(CacheError, match=f"{folder} is damaged .*; delete it and run again"):
            Prepared(folder)
        file.write_bytes(content)
    Prepared(folder)


@pytest.mark.usefixtures("_nothing_is_recent")
def test_checksums_are_verified_once_for_each_size_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = archives(tmp_path, sample(8, 8))
    folder = prepare(dataset, Preparation(size=8), tmp_path / "cache", workers=1).folder
    sums = {line.split()[1]: line.split()[0] for line in (folder / "SHA256SUMS").read_text().splitlines()}
    assert sums == {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in sums}
    assert set(sums) == {"index.json", "images", "labels"}
    monkeypatch.setattr("polydice.data.cache.sha256", lambda file: pytest.fail(f"{file} is read again"))
    Prepared(folder)


def test_what_was_prepared_before_there_were_checksums_gets_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = archives(tmp_path, sample(8, 8))
    folder = prepare(dataset, Preparation(size=8), tmp_path / "cache", workers=1).folder
    written = (folder / "SHA256SUMS").read_text()
    (folder / "SHA256SUMS").unlink()
    assert len(prepare(dataset, Preparation(size=8), tmp_path / "cache", workers=1)) == 1
    assert "has no checksums, as an earlier version made it: they are added now" in capsys.readouterr().err
    assert (folder / "SHA256SUMS").read_text() == written


def test_another_process_is_sent_the_folder_not_the_arrays(tmp_path: Path) -> None:
    prepared = prepare(archives(tmp_path, sample(64, 64)), Preparation(), tmp_path / "cache", workers=1)
    sent = pickle.dumps(prepared)
    assert len(sent) < 1000
    np.testing.assert_array_equal(pickle.loads(sent).images, prepared.images)
    assert not prepared.images.flags.writeable


def change_after_reading(case: Case) -> Sample:
    read = read_archive(case)
    archives(case.images[0].parent, sample(8, 8, seed=9))
    return read


def test_a_file_that_changes_meanwhile_is_noticed(tmp_path: Path) -> None:
    dataset = replace(archives(tmp_path, sample(8, 8)), read=change_after_reading)
    with pytest.raises(DataError, match="changed while they were prepared: run again"):
        prepare(dataset, Preparation(), tmp_path / "cache", workers=1)
    assert folders(tmp_path / "cache") == []


SMALL = Preparation(size=128)
# Children of a server that has imported everything start at once, and can be killed like any other process.
server = multiprocessing.get_context("forkserver")
server.set_forkserver_preload(["tests.data.test_prepare"])


def run(task: Callable[..., None], *arguments: Any) -> tuple[multiprocessing.process.BaseProcess, Connection]:
    """A process that runs task(connection, *arguments), and the connection to it."""
    ours, theirs = server.Pipe()
    process = server.Process(target=task, args=(theirs, *arguments))
    process.start()
    theirs.close()
    return process, ours


def prepare_folder(connection: Connection, folder: Path, cache: Path, workers: int) -> None:
    dataset = open_dataset(folder)
    connection.send("ready")
    prepare(dataset, SMALL, cache, workers)


def test_kill_9_at_random_points_leaves_nothing_that_is_trusted(tmp_path: Path) -> None:
    folder, cache = generated_folder(tmp_path, 200), tmp_path / "cache"
    began = time.monotonic()
    whole = prepare(open_dataset(folder), SMALL, tmp_path / "whole", workers=1).folder
    alone = time.monotonic() - began
    chance, killed, halfway = random.Random(0), 0, 0
    while killed < 20:
        process, connection = run(prepare_folder, folder, cache, 1 + killed % 2)
        assert connection.recv() == "ready"
        time.sleep(chance.uniform(0, alone))
        process.kill()  # SIGKILL
        process.join()
        killed += process.exitcode == -signal.SIGKILL
        halfway += any(name.endswith(".partial") for name in folders(cache)) if cache.exists() else 0
        if (cache / whole.name).exists():  # what a later run would trust
            assert files(cache / whole.name) == files(whole)
            shutil.rmtree(cache / whole.name)
    assert halfway >= 5
    assert files(prepare(open_dataset(folder), SMALL, cache, workers=1).folder) == files(whole)
    assert folders(cache) == [whole.name]


def kill_before(connection: Connection, folder: Path, cache: Path, operation: int) -> None:
    """Prepares the folder, and is killed just before that operation on the cache, counted from 0."""
    dataset = open_dataset(folder)
    remaining = operation

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal remaining
        if event.startswith(("open", "os.", "shutil.", "fcntl.")) and (str(cache) in str(arguments) or "lock" in event):
            if remaining == 0:
                connection.send(event)
                os.kill(os.getpid(), signal.SIGKILL)
            remaining -= 1

    sys.addaudithook(watch)
    prepare(dataset, SMALL, cache, workers=1)
    remaining = -1
    connection.send("finished")


def test_kill_9_before_every_operation_leaves_nothing_that_is_trusted(tmp_path: Path) -> None:
    folder = generated_folder(tmp_path, 3)
    whole = prepare(open_dataset(folder), SMALL, tmp_path / "whole", workers=1).folder
    operations: list[str] = []
    while "finished" not in operations:
        cache = tmp_path / f"cache{len(operations)}"
        process, connection = run(kill_before, folder, cache, len(operations))
        operations.append(connection.recv())
        process.join()
        assert process.exitcode == (0 if operations[-1] == "finished" else -signal.SIGKILL)
        if (cache / whole.name).exists():
            assert files(cache / whole.name) == files(whole)
        assert files(prepare(open_dataset(folder), SMALL, cache, workers=1).folder) == files(whole)
        assert folders(cache) == [whole.name]
    assert "os.rename" in operations
    assert len(operations) > 15


def test_processes_that_prepare_the_same_set_at_once_do_not_hurt_each_other(tmp_path: Path) -> None:
    folder, cache = generated_folder(tmp_path, 50), tmp_path / "cache"
    whole = prepare(open_dataset(folder), SMALL, tmp_path / "whole", workers=1).folder
    for process, _ in [run(prepare_folder, folder, cache, 1) for _ in range(3)]:
        process.join()
        assert process.exitcode == 0
    assert files(cache / whole.name) == files(whole)
    assert folders(cache) == [whole.name]


def prepare_on_a_full_disk(connection: Connection, folder: Path, cache: Path) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))  # bytes of a file
    try:
        prepare(open_dataset(folder), SMALL, cache, workers=1)
    except CacheError as error:
        connection.send(str(error))


def test_a_full_disk_is_one_clear_line(tmp_path: Path) -> None:
    process, connection = run(prepare_on_a_full_disk, generated_folder(tmp_path, 20), tmp_path / "cache")
    message = connection.recv()
    process.join()
    assert message == f"cannot write to the cache {tmp_path / 'cache'}: [Errno 27] File too large"
    assert folders(tmp_path / "cache") == []


def test_a_finished_cache_is_read_where_nothing_can_be_written(tmp_path: Path) -> None:
    dataset = archives(tmp_path, sample(8, 8))
    folder = prepare(dataset, Preparation(), tmp_path / "cache", workers=1).folder
    for path in (tmp_path / "cache" / "digests").iterdir():
        path.unlink()
    (tmp_path / "cache" / "digests").rmdir()
    (tmp_path / "cache" / "digests").touch()  # where a folder is wanted
    assert prepare(dataset, Preparation(), tmp_path / "cache", workers=1).folder == folder


def test_acdc(real_set: RealSet, tmp_path: Path) -> None:
    """Every slice of 100 patients; the share of each class is the files' own; the second start takes no time."""
    dataset = open_dataset(real_set("acdc"))
    prepared = prepare(dataset, Preparation(), tmp_path)
    assert prepared.images.shape == (1902, 1, 224, 224)
    assert len(prepared.cases) == 200
    assert prepared.images.min() == 0
    assert prepared.images.max() <= 1
    for case, done in list(zip(dataset.cases, prepared.cases, strict=True))[::50]:
        labels = dataset.read(case).labels
        assert len(done.items) == len(labels)
        ours = prepared.labels[done.items.start : done.items.stop]
        for label in range(4):
            np.testing.assert_allclose((ours == label).mean((1, 2)), (labels == label).mean((1, 2)), atol=2e-3)
    began = time.monotonic()
    assert prepare(open_dataset(real_set("acdc")), Preparation(), tmp_path).folder == prepared.folder
    assert time.monotonic() - began < 2


def test_hippocampus(real_set: RealSet, tmp_path: Path) -> None:
    """Voxels of another size make volumes of the same size, in cubic millimetres."""
    dataset = open_dataset(real_set("Task04_Hippocampus"))
    dataset = replace(dataset, cases=dataset.cases[:30])
    prepared = prepare(dataset, Preparation(dims=3, spacing=(1.5, 1.0, 0.8)), tmp_path, workers=1)
    before = np.stack([np.bincount(dataset.read(case).labels.flat, minlength=3) for case in dataset.cases])
    after = []
    for place, case in enumerate(prepared.cases):
        assert case.spacing == pytest.approx((1.5, 1.0, 0.8), rel=0.04)
        after.append(np.bincount(prepared.item(place)[1].flat, minlength=3) * np.prod(case.spacing))  # type: ignore[arg-type]
    np.testing.assert_allclose(np.sum(after, axis=0), before.sum(0), rtol=0.01)
    np.testing.assert_allclose(after, before, rtol=0.1)
