"""docs/architecture.md: what it says of the house holds."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/polydice"
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
FLOORS = ("kernels", "data", "models", "training", "studies")  # each may use those before it; kernels know the losses
FILES = sorted(SOURCE.rglob("*.py"))


def imports(file: Path) -> set[str]:
    """The parts of polydice that a file names: `data` for polydice.data.cases."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("polydice."):
            found.add((node.module or "").split(".")[1])
        elif isinstance(node, ast.ImportFrom) and node.module == "polydice":
            found |= {alias.name for alias in node.names}
    return found


@pytest.mark.parametrize("floor", FLOORS)
def test_imports_go_one_way(floor: str) -> None:
    above = set(FLOORS[FLOORS.index(floor) + 1 :]) | {"cli", "integrations"}
    for file in (SOURCE / floor).rglob("*.py"):
        assert not imports(file) & above, file


def test_the_losses_know_nothing_of_what_uses_them() -> None:
    for file in [*SOURCE.glob("*.py"), *(SOURCE / "kernels").glob("*.py")]:
        if file.name not in ("cli.py", "__main__.py"):
            assert not imports(file) & {*FLOORS[1:], "cli", "integrations"}, file


def test_no_file_has_more_than_350_lines() -> None:
    lengths = {file.relative_to(ROOT): len(file.read_text(encoding="utf-8").splitlines()) for file in FILES}
    assert {file: length for file, length in lengths.items() if length > 350} == {}


def test_every_room_of_the_drawings_is_there() -> None:
    rooms = set(re.findall(r"\[((?:data|training|studies|models)/[\w/]+\.py)\]", PAGE))
    rooms |= set(re.findall(r"│ ((?:kernels/)?\w+\.py) ", PAGE))
    assert len(rooms) > 25
    assert {room for room in rooms if not (SOURCE / room).is_file()} == set()


def test_every_test_it_names_is_there() -> None:
    named = re.findall(r"tests/[\w/]+\.py", PAGE)
    assert len(named) >= 5
    assert all((ROOT / name).is_file() for name in named)
