"""Every command line of README and docs runs, in the order of a reader's way, on a small folder and for few steps."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from PIL import Image

from polydice.cli import main
from polydice.data.generate import generate
from tests.test_docs import BLOCKS, ROOT

FIRST = ["README.md", "docs/getting-started.md", "docs/studies.md"]  # what they make, the others look at
PAGES = [*FIRST, "CONTRIBUTING.md", *sorted({f"docs/{page.name}" for page in ROOT.glob("docs/*.md")} - {*FIRST})]
ELSEWHERE = {
    "pip ": "tests/test_package.py builds and installs the package",
    "git ": "needs the repository's address",
    "make ": "the test below",
    "ray ": "tests/studies/test_ray_engine.py has a cluster of its own",
    "polydice study paper-unet": "the same, and the paper's data",
    "polydice study log-cosh.toml": "tests/test_foreign.py",
    "polydice train --data DIR --out runs/tiny": "tests/test_foreign.py",
    "polydice report runs/mine runs/more": "tests/studies/test_pool.py",
    "polydice report runs/demo runs/more": "tests/studies/test_pool.py",
    "polydice train --data acdc": "the title of a drawing",
    "python -m benchmarks": "tests/test_benchmarks.py",
    "nnUNetv2_": "tests/hosts",
    "export nnUNet": "tests/hosts",
}
# What makes a training small; the command is otherwise as it stands.
SHORT = {
    "train": "--epochs 1 --size 32 --width 4 --depth 2 --batch 4 --device cpu",
    "study": "--set epochs=1 size=32 width=4 depth=2 batch=4 replicates=2 --jobs 1",
}


def lines(page: str) -> list[str]:
    """The commands of its blocks, without their comments."""
    text = (ROOT / page).read_text(encoding="utf-8").replace("\\\n", " ")
    found = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    commands = [line.partition(" #")[0] for kind, block in found if kind in ("", "sh") for line in block.splitlines()]
    return [
        " ".join(line.split()) for line in commands if re.match(r"(polydice|python|make|pip|git|ray|export|nnU)", line)
    ]


COMMANDS = list(dict.fromkeys(line for page in PAGES for line in lines(page)))


def test_every_command_is_run_here_or_elsewhere() -> None:
    assert not [line for line in COMMANDS if not line.startswith(("polydice ", *ELSEWHERE))]
    for line in COMMANDS:
        if line.startswith("make "):
            subprocess.run([*shlex.split(line), "--dry-run"], cwd=ROOT, check=True, capture_output=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a reader has: images with masks, the same as the scans of the recipe in studies.md, a scan, that recipe."""
    images, labels = generate(12, size=32)
    for name, arrays in (("images", np.uint8(images[:, 0] * 255)), ("masks", labels * 255)):
        (tmp_path / "DIR" / name).mkdir(parents=True)
        for number, array in enumerate(arrays):
            Image.fromarray(array).save(tmp_path / "DIR" / name / f"{number:02}.png")
    shutil.copytree(tmp_path / "DIR", tmp_path / "data/scans")
    shutil.copytree(tmp_path / "DIR/images", tmp_path / "images")
    nib.save(nib.Nifti1Image(np.uint8(images[0].transpose(1, 2, 0) * 255), np.eye(4)), tmp_path / "scan.nii.gz")
    recipe = re.findall(r"^```toml\n(.*?)^```", (ROOT / "docs/studies.md").read_text(), re.DOTALL | re.MULTILINE)[0]
    (tmp_path / "mine.toml").write_text(recipe)
    return tmp_path


def test_the_commands_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for line in COMMANDS:
        if line.startswith("polydice ") and not line.startswith(tuple(ELSEWHERE)):
            _, command, *arguments = shlex.split(line)
            short = [] if "--list" in arguments else SHORT.get(command, "").split()
            assert main([command, *arguments, *short]) == 0, line
    for block in (("docs/data.md", 0), ("docs/predict.md", 0)):  # they name the same files
        exec(BLOCKS[block], {"__name__": "block"})
