"""docs/adding-a-loss.md, followed to the letter in a copy of the repository."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/adding-a-loss.md").read_text(encoding="utf-8")
EDITS = re.findall(r"^`([^`\n]+)`, below `([^`\n]+)`:\n\n```\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def the_class() -> str:
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    (found,) = (node for node in ast.parse(block).body if isinstance(node, ast.ClassDef))
    return ast.get_source_segment(block, found) or ""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository after a newcomer has done what the page says."""
    folder = tmp_path_factory.mktemp("repository")
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    with (folder / "src/polydice/losses.py").open("a", encoding="utf-8") as file:
        file.write(f"\n\n{the_class()}\n")
    for name, line, text in EDITS:
        file = folder / name
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        (place,) = (number for number, found in enumerate(lines) if found == f"{line}\n")
        file.write_text("".join([*lines[: place + 1], text, *lines[place + 1 :]]), encoding="utf-8")
    return folder


def run(copy: Path, *command: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(copy / "src")}
    ran = subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=copy, env=environment)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_the_tests_of_all_losses_run_over_the_new_one(copy: Path) -> None:
    """And pass: options, batches, weights, copies, `repr`, and the loss and its gradient in 50 digits."""
    chosen = ("tests/test_base.py", "tests/test_losses.py", "-k", "jaccard")
    told = run(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen)
    passed = re.search(r"(\d+) passed", told)
    assert passed
    assert int(passed[1]) > 50
    assert "failed" not in told


def test_commands_find_it_by_its_name(copy: Path) -> None:
    code = "from polydice.training.expression import parse_loss; print(parse_loss('JaccardLoss(2) + DiceLoss()'))"
    assert run(copy, "-c", code) == "JaccardLoss(power=2.0) + DiceLoss()\n"


def test_the_linter_puts_the_names_in_order_and_has_nothing_else_to_say(copy: Path) -> None:
    run(
        copy, "-m", "ruff", "check", "--fix", "src/polydice/losses.py", "src/polydice/__init__.py", "tests/reference.py"
    )


def test_every_place_that_the_page_names_is_there() -> None:
    assert len(EDITS) == PAGE.count(", below `")
    for name, text in re.findall(r"`([\w/.-]+\.(?:py|md))`(?: that begins with| under) `([^`]+)`", PAGE):
        assert text in (ROOT / name).read_text(encoding="utf-8")
    for name in re.findall(r"`((?:src|tests)/[\w/.-]+\.py)`", PAGE):
        assert (ROOT / name).is_file()
