"""The code of these pages runs as it stands there, each block by itself. Blocks that name a user's files are not among
them; docs/integrations.md is, where its hosts are installed: tests/hosts/test_docs.py."""

import inspect
import re
from pathlib import Path

import pytest

import polydice

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": 1,
    "docs/index.md": 1,
    "docs/getting-started.md": 1,
    "docs/losses.md": 2,
    "docs/theory.md": 5,
    "docs/adding-a-loss.md": 2,
    "docs/models.md": 3,
    "docs/curves.md": 1,
    "docs/kernels.md": 1,
    "docs/head.md": 2,
    "docs/report.md": 1,
}

USERS_FILES = {("docs/models.md", 1)}  # weights that are not part of the package


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(
    ("page", "number"),
    [(page, number) for page, count in PAGES.items() for number in range(count) if (page, number) not in USERS_FILES],
)
def test_a_block_runs(page: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(blocks(page)[number], {"__name__": "block"})


def test_no_block_is_left_out() -> None:
    assert {page: len(blocks(page)) for page in PAGES} == PAGES


@pytest.mark.parametrize("name", polydice.__all__)
def test_every_public_name_is_in_the_reference_and_has_a_text(name: str) -> None:
    assert re.search(rf"auto(class|function):: polydice\.{name}$", (ROOT / "docs/api.md").read_text(), re.MULTILINE)
    assert inspect.getdoc(getattr(polydice, name))


def test_every_link_to_a_file_leads_to_one() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("results/**/*.md")]
    broken = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in pages
        for link in re.findall(
            r"\]\(([^)#\s]+)(?:#[^)]*)?\)", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        )
        if "://" not in link and not (page.parent / link).exists()
    ]
    assert not broken
