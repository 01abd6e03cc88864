import csv
import os
import re
import subprocess
import sys
from argparse import ArgumentTypeError
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from benchmarks import check, cpu, step
from benchmarks.__main__ import main
from benchmarks.measure import Figures, Spread
from benchmarks.report import Row, Sheet
from benchmarks.sizes import Size, parse_head_size, parse_size
from polydice import PolyDice1Loss
from polydice.data.generate import generated_folder


def measured(out: Path, *arguments: str) -> list[dict[str, str]]:
    """In a process of its own: the peers warn while they are imported, and here warnings are errors."""
    command = ["-m", "benchmarks", *arguments, "--device", "cpu", "--quick", "--out", str(out)]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    root = Path(__file__).parents[1]
    ran = subprocess.run([sys.executable, *command], cwd=root, env=one_thread, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert (out / "command.txt").read_text().startswith(f"python -m benchmarks {arguments[0]} ")
    with (out / f"{arguments[0]}.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == [field.name for field in fields(Row)]
    return rows


def test_a_run_writes_rows_plots_and_its_command(tmp_path: Path) -> None:
    rows = measured(tmp_path, "loss", "--sizes", "2x3x16x16")
    assert {row["shape"] for row in rows} == {"2x3x16x16"}
    assert {row["mode"] for row in rows if row["provider"] == "polydice eager"} == {"forward", "backward", "both"}
    timed = {row["provider"]: row for row in rows if row["metric"] == "ms" and row["median"]}
    assert timed.keys() >= {"floor", "polydice eager", "polydice + ce", "cross_entropy"}
    assert {row["provider"] for row in rows if row["metric"] == "over_cross_entropy"} >= {"polydice eager"}
    for plot in ("time-pixels.png", "time-classes.png"):
        assert (tmp_path / plot).read_bytes().startswith(b"\x89PNG")


def test_what_annotated_costs_is_a_ratio(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["3x4x8x8", "1x2x8x8"]
    command = ["loss", "--annotated", "--device", "cpu", "--quick", "--out", str(tmp_path), "--sizes", *sizes]
    assert main(command) == 0
    with (tmp_path / "annotated.csv").open() as file:
        rows = list(csv.DictReader(file))
    ms = {
        (row["shape"], row["provider"]): float(row["median"])
        for row in rows
        if (row["mode"], row["metric"]) == ("both", "ms")
    }
    for shape in sizes:
        for loss in ("polydice", "dice + ce"):
            (ratio,) = [
                float(row["median"]) for row in rows if (row["shape"], row["metric"]) == (shape, f"over_{loss}")
            ]
            assert ratio == pytest.approx(ms[shape, f"{loss}, annotated"] / ms[shape, loss], rel=1e-4)
    assert "polydice" in capsys.readouterr().out.splitlines()[-5]


def test_not_all_classes_of_a_partial_size_are_annotated() -> None:
    size = Size((4, 5, 16, 16), partial=True)
    annotated, (_, labels) = size.annotated("cpu"), size.inputs("cpu")
    assert annotated[:, 0].all()
    assert not annotated[:, 1:].all(0).any(), "each other class is missing somewhere"
    for image, known in zip(labels, annotated, strict=True):
        assert set(image.unique().tolist()) == set(known.nonzero().flatten().tolist())


def test_a_head_is_measured_against_the_fastest_way_to_make_logits(tmp_path: Path) -> None:
    rows = measured(tmp_path, "head", "--sizes", "1x4-9x8x8x8", "1x4-3x8x8x8")
    assert {row["shape"] for row in rows} == {"1x4-9x8x8x8", "1x4-3x8x8x8"}
    timed = {row["provider"]: row for row in rows if (row["mode"], row["metric"]) == ("both", "ms") and row["median"]}
    ways = [f"{way} + polydice" for way in ("conv", "conv, channels-last", "matmul")]
    assert timed.keys() >= {"floor", "HeadLoss", "HeadLoss with ce", "monai", "cross_entropy", *ways}
    assert float(timed["polydice"]["median"]) == min(float(timed[way]["median"]) for way in ways)
    assert {row["metric"] for row in rows if row["provider"] == "HeadLoss"} >= {"over_polydice", "extra_bytes"}
    for plot in ("time-classes.png", "memory-classes.png"):
        assert (tmp_path / plot).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("target", ["labels", "masks"])
def test_fresh_processes_are_compared_one_by_one(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    size = "1x2x8x8" if target == "labels" else "1x1x8x8"
    command = ["steady", "--processes", "2", "--busy", "1", "--quick", "--sizes", size, "--out", str(tmp_path)]
    assert main(command if target == "labels" else [*command, "--masks"]) == 0
    with (tmp_path / ("steady1.csv" if target == "labels" else "masks1.csv")).open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["shape"], row["busy"], row["process"]) for row in rows] == [
        (size, "1", "0"),
        (size, "1", "1"),
    ]
    for row in rows:
        ratio = float(row["ours_ms"]) / float(row["cross_entropy_ms"])
        assert float(row["ratio"]) == pytest.approx(ratio, rel=1e-3)
    assert size in capsys.readouterr().out.splitlines()[-1]


def test_the_training_counts_its_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = generated_folder(tmp_path, 30, size=32)  # of which 18 train, four batches of four an epoch
    assert main(["train", "--device", "cpu", "--quick", "--data", str(data), "--out", str(tmp_path)]) == 0
    with (tmp_path / "train.csv").open() as file:
        short, long, difference = csv.DictReader(file)
    assert [int(row["images"]) for row in (short, long, difference)] == [2 * 16, 10 * 16, 8 * 16]
    assert f"{float(difference['images_per_second']):.0f} images/s" in capsys.readouterr().out


def test_a_step_is_measured_with_the_head_in_the_loss_and_apart(tmp_path: Path) -> None:
    assert main(["step", "--device", "cpu", "--quick", "--out", str(tmp_path)]) == 0
    with (tmp_path / "step.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["head"], row["edge"]) for row in rows] == [(head, edge) for head in step.HEADS for edge in ("8", "16")]
    assert all(float(row["ms"]) > 0 and not row["note"] for row in rows)


@pytest.mark.parametrize(
    ("guess", "tried"), [(96, [96, 128, 160, 192]), (160, [160, 192]), (192, [192, 160]), (256, [256, 224, 192, 160])]
)
def test_the_largest_cube_is_found_from_both_sides(guess: int, tried: list[int]) -> None:
    """Here 160 is the largest."""
    found = list(step.around(guess, lambda edge: step.Cost(1.0, edge) if edge <= 160 else "too large"))
    assert [edge for edge, _ in found] == tried
    assert max(edge for edge, cost in found if not isinstance(cost, str)) == 160


def test_a_volume_is_labelled_as_from_all_logits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--device", "cpu", "--quick", "--out", str(tmp_path)]) == 0
    with (tmp_path / "predict.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["edge"], row["classes"]) == ("24", "118")
    assert int(row["host_bytes"]) > 24**3
    found = re.search(r"labels differ, by (\S+) of the largest logit", capsys.readouterr().out)
    assert found is not None
    assert float(found[1]) < 1e-6


def test_a_size_is_read_from_the_command_line() -> None:
    size = parse_head_size("2x32-118x64x64x64:bfloat16")
    assert size == Size((2, 118, 64, 64, 64), "bfloat16", features=32)
    assert (str(size), size.floor_bytes()) == ("2x32-118x64x64x64 bfloat16", 2 * 64**3 * (3 * 32 * 2 + 2 * 8))
    assert parse_size("2x14x128x128x128:bfloat16") == Size((2, 14, 128, 128, 128), "bfloat16")
    assert parse_size("24x9x224x224").floor_bytes() == 24 * 224 * 224 * (3 * 9 * 4 + 2 * 8)


@pytest.mark.parametrize("text", ["24x9", "axb", "2x1x8x8", "2x3x8x8:int8"])
def test_what_is_no_size_is_refused_and_shown(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=text):
        parse_size(text)
    with pytest.raises(ArgumentTypeError, match=text):
        parse_head_size(text)


def _rows(ours_ms: float) -> list[Row]:
    """Cross-entropy takes 10 ms, MONAI 20, nnU-Net 12; ours has no extra memory."""
    sheet = Sheet(1e9, "a device", "2.13.0", "")
    rows: list[Row] = []
    for size in check.SIZES:
        time = Spread(ours_ms, ours_ms, ours_ms)
        rows += sheet.of(check.OURS, size, Figures(time, time, time, 0))
        rows += sheet.ratios(size, {check.OURS: ours_ms, "cross_entropy": 10, "monai": 20, "nnunet": 12})
    return rows


@pytest.mark.parametrize(
    ("ours_ms", "failed"), [(4, set()), (5, {"over_nnunet"}), (8, {"over_cross_entropy", "over_monai", "over_nnunet"})]
)
def test_the_check_names_the_limits_that_are_not_kept(ours_ms: float, failed: set[str]) -> None:
    for kept, text in check.verdicts(_rows(ours_ms)):
        assert kept == (not any(metric in text for metric in failed)), text
    assert not any(kept for kept, _ in check.verdicts([])), "a figure that is missing is not a limit kept"


@pytest.mark.parametrize(
    "arguments", [["--device", "cuda"], ["--device", "cpu", "--sizes", "2x3x8x8"], ["--device", "cpu", "--annotated"]]
)
def test_the_check_refuses_what_it_would_ignore(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["loss", "--check", *arguments])
    assert "--check" in capsys.readouterr().err


def test_the_memory_of_a_loss_is_seen() -> None:
    """Cross-entropy keeps the logarithms of all probabilities, and makes the gradient of them beside its own."""
    logits, labels = torch.randn(2, 9, 100, 100, requires_grad=True), torch.randint(9, (2, 100, 100))
    assert cpu._extra_bytes(torch.nn.functional.cross_entropy, logits, labels) >= logits.nbytes
    assert 0 < cpu._extra_bytes(PolyDice1Loss(0.2), logits, labels) < 0.05 * logits.nbytes
