"""Every Python block of README, docs and results runs as it stands there, each by itself; and links, and `help`."""

import inspect
import re
from pathlib import Path

import pytest

import polydice

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("results/**/*.md")]
ELSEWHERE = {
    ("docs/data.md", 0): "test_docs_commands.py, on the folder that its commands read",
    ("docs/predict.md", 0): "test_docs_commands.py, with the network that its commands trained",
    ("docs/models.md", 1): "models/test_transunet_weights.py: a file of 400 MB, and of these names",
    **{("docs/integrations.md", number): "hosts/test_docs.py, where the hosts are installed" for number in range(5)},
}


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


BLOCKS = {
    (page, number): block
    for page in sorted(str(path.relative_to(ROOT)) for path in PAGES)
    for number, block in enumerate(blocks(page))
}


@pytest.mark.parametrize(("page", "number"), sorted(BLOCKS.keys() - ELSEWHERE.keys()))
def test_a_block_runs(page: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(BLOCKS[page, number], {"__name__": "block"})


def test_blocks_that_are_run_elsewhere_are_there() -> None:
    assert ELSEWHERE.keys() <= BLOCKS.keys()


@pytest.mark.parametrize("name", polydice.__all__)
def test_help_says_what_every_argument_is(name: str) -> None:
    public = getattr(polydice, name)
    listed = re.findall(r"^ {4}(\w+): ", inspect.getdoc(public) or "", re.MULTILINE)
    assert listed == [*inspect.signature(public).parameters]


@pytest.mark.parametrize("name", polydice.__all__)
def test_every_public_name_is_in_the_reference_and_has_a_text(name: str) -> None:
    assert re.search(rf"auto(class|function):: polydice\.{name}$", (ROOT / "docs/api.md").read_text(), re.MULTILINE)
    assert inspect.getdoc(getattr(polydice, name))


def links(page: Path) -> list[str]:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.findall(r"\]\(([^)#\s]+)", text) + re.findall(r'src(?:set)?="([^"]+)"', text)


def test_every_link_to_a_file_leads_to_one() -> None:
    found = [(page, link) for page in PAGES for link in links(page) if "://" not in link]
    assert not [(str(page), link) for page, link in found if not (page.parent / link).exists()]
