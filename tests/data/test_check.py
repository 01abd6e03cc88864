import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from PIL import Image

from polydice.data.cases import WHOLE, Case, Dataset, Finding, Sample
from polydice.data.check import check, table
from polydice.data.readers import open_dataset
from tests.data import write
from tests.data.conftest import RealSet

NUMBERS = np.random.default_rng(0)


def some_of(real: Path, copy: Path, cases: int) -> Dataset:
    """A writable copy of a few cases of a real set, spread over it."""
    dataset = open_dataset(real)
    chosen = [dataset.cases[i] for i in np.linspace(0, len(dataset.cases) - 1, cases).astype(int)]
    for path in (path for case in chosen for path in case.files):
        (copy / path.relative_to(real)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy / path.relative_to(real))
    if (real / "dataset.json").exists():
        about = json.loads((real / "dataset.json").read_text())
        kept = {path.relative_to(real) for case in chosen for path in case.masks}
        about["training"] = [listed for listed in about["training"] if Path(listed["label"]) in kept]
        (copy / "dataset.json").write_text(json.dumps(about))
    return open_dataset(copy)


def change(path: Path, how: Callable[[np.ndarray], np.ndarray]) -> None:
    """The array of a mask file, changed; a volume's slices come last."""
    if path.suffix == ".gz":
        volume = nib.load(path)
        nib.save(nib.Nifti1Image(how(np.asanyarray(volume.dataobj).copy()), volume.affine), path)
    else:
        Image.fromarray(how(np.array(Image.open(path)))).save(path)


def with_label_7(mask: np.ndarray) -> np.ndarray:
    mask[4:12, 4:12] = 7
    return mask


@pytest.mark.parametrize("name", ["cvc-clinicdb", "kvasir-seg", "acdc", "Task04_Hippocampus"])
def test_a_damaged_copy_of_a_real_set_is_reported_completely(name: str, real_set: RealSet, tmp_path: Path) -> None:
    copy = some_of(real_set(name), tmp_path / name, cases=12)
    assert [finding for finding in check(copy).findings if finding.level == "error"] == []
    truncated, lost, resized, labelled, renamed = (copy.cases[i] for i in (1, 3, 5, 7, 9))
    truncated.images[0].write_bytes(truncated.images[0].read_bytes()[:1500])
    lost.masks[0].unlink()
    change(resized.masks[0], lambda mask: mask[:-3])
    change(labelled.masks[0], with_label_7)
    new_name = renamed.images[0].with_name("new_name" + "".join(renamed.images[0].suffixes))
    renamed.images[0].rename(new_name)

    again = open_dataset(copy.folder)
    findings, facts = check(again)
    errors = {finding.where: finding.what for finding in findings if finding.level == "error"}
    # A list of files misses a file itself; where there is none, its partner does.
    listed = name == "Task04_Hippocampus"
    expected = {
        truncated.images[0]: "truncated",
        lost.masks[0] if listed else lost.images[0]: "is not there" if listed else "has no mask",
        resized.masks[0]: "but its image",
        labelled.masks[0]: "has label 7, outside the classes",
        new_name: "is not",
        renamed.images[0] if listed else renamed.masks[0]: "is not there" if listed else "has no image",
    }
    if name in ("cvc-clinicdb", "kvasir-seg"):
        expected[new_name] = "has no mask"
    assert set(errors) == {path.relative_to(copy.folder).as_posix() for path in expected}
    for path, what in expected.items():
        assert what in errors[path.relative_to(copy.folder).as_posix()]
        assert path.relative_to(copy.folder).as_posix() in table(findings)
    assert len(facts) == 12 - 4, "all but those that could not be read or paired"


@pytest.mark.parametrize("value", [2, 7, 128, 200])
def test_a_foreign_label_in_any_real_mask_is_named(value: int, real_set: RealSet, tmp_path: Path) -> None:
    """Wherever it is put, among values that the mask has by itself too."""
    copy = some_of(real_set("cvc-clinicdb"), tmp_path, cases=20)
    for case in copy.cases:
        y, x = NUMBERS.integers(0, 250), NUMBERS.integers(0, 350)
        change(case.masks[0], lambda mask, y=y, x=x: np.where(_patch(mask, y, x), np.uint8(value), mask))
    errors = {finding.where for finding in check(copy).findings if finding.level == "error"}
    assert errors == {case.masks[0].relative_to(tmp_path).as_posix() for case in copy.cases}


def _patch(mask: np.ndarray, y: int, x: int) -> np.ndarray:
    inside = np.zeros(mask.shape, bool)
    inside[y : y + 9, x : x + 9] = True
    return inside


def numbers(case: Case) -> Sample:
    """A case by its name, made up."""
    image = int(case.id) + np.linspace(0, 0.5, 24, dtype=np.float32).reshape(1, 4, 6)
    labels = np.tile(np.arange(2, dtype=np.uint8), (4, 3))
    match case.id:
        case "1":
            image = np.repeat(image, 3, axis=0)
        case "2":
            image[0, 0, :2] = np.nan, np.inf
        case "3":
            labels[:] = 0
        case "4":
            labels[0, :3] = 5, 6, 6
        case "5" | "6":
            image[0] = 56 + np.eye(4, 6)
        case "8":
            image[:] = 8
            labels[:] = 1
        case "7":
            return Sample(image, labels, None, "is odd (7)")
    return Sample(image, labels, None)


def made_up(read: Callable[[Case], Sample], cases: int, **options: Any) -> Dataset:
    folder = Path("set")
    made = [Case(f"{i}", f"{i // 2}", (folder / f"{i}.png",), (folder / f"{i}_mask.png",)) for i in range(cases)]
    return Dataset("set", folder, ("background", "blob"), "mr", tuple(made), read, **options)


def test_everything_odd_about_a_case_is_said() -> None:
    findings, facts = check(made_up(numbers, 10, findings=(Finding("warning", "notes.txt", "is not read"),)), workers=2)
    assert findings == [
        ("error", "1.png", "has 3 channels in 2D, where most images have 1 channel in 2D"),
        ("error", "2.png", "holds NaN or infinity (2 numbers)"),
        ("error", "4_mask.png", "has labels 6, 5, outside the classes 0 to 1 (3 pixels)"),
        ("warning", "3_mask.png", "is empty: background only"),
        ("warning", "6.png", "is the same image as one of another group (5.png)"),
        ("warning", "7_mask.png", "is odd (7)"),
        ("warning", "8.png", "has one value only: there is nothing to see in it"),
        ("warning", "8_mask.png", "has no background: foreground only"),
        ("warning", "notes.txt", "is not read"),
    ]
    assert [about.case.id for about in facts] == [str(i) for i in range(10)]
    assert facts[0].pixels == (12, 12)
    assert facts[4].pixels == (10, 11)


def test_both_files_of_a_case_can_be_damaged(tmp_path: Path) -> None:
    for name in ("images/a.png", "masks/a.png", "images/b.png", "masks/b.png"):
        write.picture(tmp_path / name, NUMBERS.integers(0, 2, (4, 6), dtype=np.uint8))
    for name in ("images/a.png", "masks/a.png"):
        (tmp_path / name).write_bytes(b"")
    findings, _ = check(open_dataset(tmp_path))
    assert findings == [("error", "images/a.png", "is empty"), ("error", "masks/a.png", "is empty")]


def test_numbers_that_do_not_fit_the_kind_of_set(tmp_path: Path) -> None:
    for name, image in (("a", np.eye(4, 6, dtype=np.uint8)), ("b", np.eye(4, 6, dtype=np.uint16))):
        write.picture(tmp_path / "images" / f"{name}.png", image)
        write.picture(tmp_path / "masks" / f"{name}.png", np.eye(4, 6, dtype=np.uint8))
    (finding,) = check(open_dataset(tmp_path)).findings
    assert finding == ("error", "images/b.png", "holds uint16 numbers, but the set is one of pictures with 8 bits")
    for name, top in (("case0001_slice000.npz", 1.0), ("case0002_slice000.npz", 275.0)):
        write.archive(tmp_path / "unit" / name, image=np.linspace(0, top, 24).reshape(4, 6), label=np.eye(4, 6))
    (finding,) = check(open_dataset(tmp_path / "unit")).findings
    assert finding.where == "case0002_slice000.npz"
    assert "0 to 275" in finding.what


def pictures(folder: Path, names: Iterable[str], mask: np.ndarray = np.eye(4, 6, dtype=np.uint8)) -> Path:  # noqa: B008
    for name in names:
        write.picture(folder / "images" / f"{name}.png", NUMBERS.integers(0, 256, (4, 6, 3), dtype=np.uint8))
        write.picture(folder / "masks" / f"{name}.png", mask)
    return folder


def of_the_whole(folder: Path, **options: Any) -> list[tuple[str, str]]:
    findings = check(open_dataset(folder, **options)).findings
    return [(finding.level, finding.what) for finding in findings if finding.where == "the whole set"]


def test_a_set_without_cases_or_foreground_is_an_error(tmp_path: Path) -> None:
    pictures(tmp_path / "empty", "ab", np.zeros((4, 6), np.uint8))
    assert of_the_whole(tmp_path / "empty") == [("error", "has no foreground: every mask is empty")]
    pictures(tmp_path / "white", "ab", np.full((4, 6), 255, np.uint8))
    void = ("error", "has no foreground: no pixel has the label of a class")
    assert of_the_whole(tmp_path / "white", ignore=255) == [void]
    pictures(tmp_path / "seven", "ab", np.eye(4, 6, dtype=np.uint8) * 7)
    foreign = ("error", "has no foreground: no pixel has the label of a class beside the background")
    assert of_the_whole(tmp_path / "seven") == [foreign]
    (pictures(tmp_path / "none", "a") / "masks" / "a.png").rename(tmp_path / "none" / "masks" / "b.png")
    assert of_the_whole(tmp_path / "none") == [("error", "has no case: no image has a mask that belongs to it")]


@pytest.mark.parametrize("white", [255, 1])
def test_masks_of_one_value_are_foreground_only(white: int, tmp_path: Path) -> None:
    """One finding if all are, and none that says otherwise."""
    folder = pictures(tmp_path, "ab", np.full((4, 6), white, np.uint8))
    told = "has no background: every mask is foreground only, so there is nothing to learn"
    assert check(open_dataset(folder)).findings == [("error", "the whole set", told)]
    pictures(folder, "cd", np.eye(4, 6, dtype=np.uint8) * 255)
    assert check(open_dataset(folder)).findings == [
        ("warning", f"masks/{name}.png", "has no background: foreground only") for name in "ab"
    ]


def test_a_mask_that_is_all_void_is_not_background(tmp_path: Path) -> None:
    pictures(tmp_path, "a", np.full((4, 6), 255, np.uint8))
    findings = check(open_dataset(pictures(tmp_path, "bc"), ignore=255)).findings
    assert findings == [("warning", "masks/a.png", "is void only: no pixel has a label")]


def test_more_classes_than_can_be_trained_are_an_error(tmp_path: Path) -> None:
    for classes, expected in ((254, []), (255, ["error"])):
        mask = np.arange(classes + 1, dtype=np.uint16).reshape(1, -1)
        for part in ("images", "masks"):
            write.picture(tmp_path / f"{classes}" / part / "a.png", mask)
        (tmp_path / f"{classes}" / "classes.txt").write_text("".join(f"{label}\n" for label in range(classes + 1)))
        assert [level for level, _ in of_the_whole(tmp_path / f"{classes}")] == expected


def test_patients_in_the_names_are_noticed(tmp_path: Path) -> None:
    folder = pictures(
        tmp_path, [f"patient{patient:02d}_slice{number:02d}" for patient in (0, 1) for number in range(12)]
    )
    ((level, what),) = of_the_whole(folder)
    assert level == "warning"
    assert "speak of 2 patients or sequences (patient00, patient01), but 24 groups: --group '[^_]+'" in what
    assert of_the_whole(folder, group="[^_]+") == []


@pytest.mark.parametrize(
    ("names", "patients"),
    [
        (["anna-1", "anna-2", "paul-1", "paul-2"], 2),
        (["p1slice1", "p1slice2", "p2slice1", "p2slice2"], 2),
        (["P_01_frame-1", "P_01_frame-2", "P_02_frame-1"], 2),
        (["hippocampus_001", "hippocampus_003", "hippocampus_004"], None),
        (["01_dr", "01_g", "02_dr", "02_g"], None),
        (["1", "2", "3"], None),
    ],
)
def test_which_names_speak_of_patients(names: list[str], patients: int | None, tmp_path: Path) -> None:
    """The pattern that is offered makes these groups."""
    told = of_the_whole(pictures(tmp_path, names))
    assert len(told) == (patients is not None)
    for _, what in told:
        pattern = re.search("--group '(.+)', group in a recipe, or", what)
        assert pattern
        assert open_dataset(tmp_path, group=pattern[1]).groups == patients


def test_a_void_is_named_and_the_way_out_offered(tmp_path: Path) -> None:
    mask = np.array([[0, 0, 1, 255, 255, 255]] * 4, np.uint8)
    findings = check(open_dataset(pictures(tmp_path, "ab", mask))).findings
    told = (
        "has label 255, outside the classes 0 to 1: if 255 marks pixels without a label, give --ignore 255, or "
        "ignore = 255 in a recipe (12 pixels)"
    )
    assert findings == [("error", f"masks/{name}.png", told) for name in "ab"]
    found = check(open_dataset(tmp_path, ignore=255))
    assert found.findings == []
    assert found.facts[0].pixels == (8, 4)


def test_what_one_sees_otherwise_is_said(tmp_path: Path) -> None:
    pictures(tmp_path, "ab")
    exif = Image.Exif()
    exif[0x0112] = 3
    layers = NUMBERS.integers(0, 256, (4, 6, 4), dtype=np.uint8)
    layers[..., 3] = 0
    write.picture(tmp_path / "images" / "a.png", layers[..., :3] // 2, exif=exif)
    write.picture(tmp_path / "images" / "b.png", layers)
    findings = check(open_dataset(tmp_path)).findings
    assert [(each.level, each.where) for each in findings] == [("warning", "images/a.png"), ("warning", "images/b.png")]
    assert "EXIF" in findings[0].what
    assert "fully transparent" in findings[1].what


def bright(case: Case) -> Sample:
    """A ramp from 0 to 199 and, in the case n, one voxel that is n times 200."""
    image = np.arange(200, dtype=np.int16).reshape(1, 2, 10, 10)
    image[0, 0, 0, 0] = 200 * int(case.id)
    return Sample(image, np.tile(np.arange(2, dtype=np.uint8), (2, 10, 5)), None)


def test_a_volume_that_scaling_makes_dark_is_named() -> None:
    findings = check(made_up(bright, 9), workers=2).findings
    assert [finding.where for finding in findings] == ["6.png", "7.png", "8.png"]
    assert (
        findings[-1].what
        == "is dark but for a few voxels (up to 8 times its 99th percentile; polydice train has --cut)"
    )
    assert check(replace(made_up(bright, 9), intensity="ct"), workers=2).findings == [], "CT has a window"


@pytest.mark.parametrize(("name", "dark"), [("acdc", {"patient021", "patient042"}), ("Task04_Hippocampus", set())])
def test_two_real_patients_are_dark(name: str, dark: set[str], real_set: RealSet) -> None:
    dataset = open_dataset(real_set(name))
    found = [Path(each.where).name for each in check(dataset).findings if each.what.startswith("is dark")]
    assert {name.partition("_")[0] for name in found} == dark
    assert len(found) == 2 * len(dark), "both volumes of each"


def test_one_real_image_has_two_annotations(real_set: RealSet) -> None:
    """The reader makes them one group; where the patients alone are the groups, it is found."""
    dataset = open_dataset(real_set("acdc"), group=r"patient\d+")
    twice = replace(dataset, cases=tuple(case for case in dataset.cases if case.group in ("patient074", "patient076")))
    assert [(each.level, each.where, each.what) for each in check(twice).findings if "same image" in each.what] == [
        (
            "warning",
            f"patient076/patient076_frame{frame}.nii.gz",
            f"is the same image as one of another group, with other labels (patient074/patient074_frame{frame}.nii.gz)",
        )
        for frame in ("01", "02")
    ]


def leaks(dataset: Dataset) -> tuple[int, int, list[str]]:
    """How many images are the same, how many nearly so, and what is said of neighbours."""
    findings = check(dataset).findings
    same = sum(each.what.startswith("is the same image") for each in findings)
    nearly = sum(each.what.startswith("is nearly the same image") for each in findings)
    return same, nearly, [each.what for each in findings if each.where == WHOLE]


@pytest.mark.parametrize(
    ("name", "nearly", "neighbours"),
    [
        ("cvc-clinicdb", 116, "339 of 611, such as PNG/Original/1.png and PNG/Original/2.png."),
        (
            "acdc",
            49,
            "100 of 199, such as patient001/patient001_frame01.nii.gz and patient001/patient001_frame02.nii.gz.",
        ),
        ("Task04_Hippocampus", 0, "54 of 259, such as imagesTr/"),
    ],
)
def test_groups_that_are_true_raise_no_alarm_and_those_that_are_not_do(
    name: str, nearly: int, neighbours: str, real_set: RealSet
) -> None:
    """Of a real set with the groups of its reader, and with each case for a group of its own."""
    dataset = open_dataset(real_set(name))
    assert leaks(dataset) == (0, 0, [])
    wrong = replace(dataset, cases=tuple(replace(case, group=case.id) for case in dataset.cases))
    same, found, told = leaks(wrong)
    assert found == nearly
    assert same == (2 if name == "acdc" else 0)
    assert any("look as if they belong together" in what and neighbours in what for what in told)


def test_kvasir_has_pictures_of_one_polyp_seconds_apart(real_set: RealSet) -> None:
    """Four pairs of its thousand images; here among forty others."""
    pairs = {
        "cju7avvi51iox0817ym55y6tt": "cju5fydrud94708507vo6oy21",
        "cju77k828z46w0871r0avuoo9": "cju30bmab08bi0835mvlr6e0r",
        "cju886ryxnsl50801r93jai7q": "cju8amfdtqi4x09871tygrgqe",
        "cju772304yw5t0818vbw8kkjf": "cju76lsehyia10987u54vn8rb",
    }
    kvasir = open_dataset(real_set("kvasir-seg"))
    named = {*pairs, *pairs.values()}
    some = [case for case in kvasir.cases if case.id in named] + [
        case for case in kvasir.cases if case.id not in named
    ][::24]
    findings = check(replace(kvasir, cases=tuple(some))).findings
    nearly = [each for each in findings if each.what.startswith("is nearly the same image as one of another group (")]
    found = {Path(each.where).stem: each.what.partition("(images/")[2].partition(".")[0] for each in nearly}
    assert found == pairs


def test_a_slice_with_a_foreign_label_is_named(tmp_path: Path) -> None:
    for number in range(1, 4):
        labels = np.eye(4, 6, dtype=int) * (7 if number == 2 else 1)
        write.archive(tmp_path / f"patient001_frame01_slice_{number}.h5", image=labels * number, label=labels)
    (finding,) = check(open_dataset(tmp_path)).findings
    assert finding.where == "patient001_frame01_slice_2.h5"


def test_many_of_a_kind_are_one_row_and_few_are_not() -> None:
    many = [Finding("warning", f"{i:03d}.png", f"is odd ({i} pixels)") for i in range(138)]
    few = [Finding("error", f"{i}.png", "is empty") for i in range(5)]
    rows = table(many + few).splitlines()
    assert len(rows) == 6
    assert rows[0].split() == ["error", "0.png", "is", "empty"]
    assert rows[-1].split("  ")[-3:] == ["warning", "000.png, 001.png and 136 more", "is odd"]
    assert len({row.index("is ") for row in rows}) == 1, "aligned"


def dies_at_3_and_17(case: Case) -> Sample:
    if case.id in ("3", "17"):
        os.kill(os.getpid(), signal.SIGKILL)
    return numbers(case)


def test_a_process_that_dies_is_survived_and_the_file_named() -> None:
    findings, facts = check(made_up(dies_at_3_and_17, 30), workers=2)
    died = [finding.where for finding in findings if "killed the process" in finding.what]
    assert died == ["17.png", "3.png"]
    assert len(facts) == 28


def sleepy(case: Case) -> Sample:
    time.sleep(0.1)
    return numbers(case)


def test_control_c_ends_it() -> None:
    """All processes of the group get the signal, as from a terminal; a thousand cases would take a minute."""
    script = "from tests.data.test_check import *; print('on', flush=True); check(made_up(sleepy, 1000), workers=2)"
    started = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
        cwd=Path(__file__).parents[2],
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "on\n"
    time.sleep(0.5)
    os.killpg(started.pid, signal.SIGINT)
    _, told = started.communicate(timeout=20)
    assert started.returncode == -signal.SIGINT
    assert told.count("Traceback") == 1, "of the process that was asked, not of its workers"
    with pytest.raises(ProcessLookupError):
        os.killpg(started.pid, 0)
