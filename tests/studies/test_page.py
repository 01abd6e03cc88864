"""The page: what it shows is text, it needs nothing else, and it works in a real browser on every screen."""

import html
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from polydice.studies.report import write_report
from tests.studies.browser import ask, needs_chromium
from tests.studies.made_up import RECIPE, study_in

SCRIPT = "<script>alert(1)</script>"
SPITEFUL = RECIPE.replace("mine]", f'"{SCRIPT}"]').replace("Made up", f"{SCRIPT} & <img src=x onerror=alert(2)>")
SPITEFUL = SPITEFUL.replace('"Focal Tversky"', "\"</script><b onclick='alert(3)'>$x$\"")
RESULTS, OVERVIEW = 1, 0  # places among the tables that can be sorted


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_report(study_in(tmp_path_factory.mktemp("page"))).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def spiteful(tmp_path_factory: pytest.TempPathFactory) -> str:
    study = study_in(tmp_path_factory.mktemp("spiteful"), recipe=SPITEFUL)
    failed = study.runs[0]
    (study.run_folder(failed) / "result.json").unlink()
    (study.run_folder(failed) / "error.txt").write_text(f"ValueError: {SCRIPT}\nTraceback")
    return write_report(study).read_text(encoding="utf-8")


class Elements(HTMLParser):
    """The elements of a page and their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_it_needs_no_other_file_and_no_network(page: str) -> None:
    assert "default-src 'none'" in page
    for tag, attributes in Elements(page).found:
        assert tag not in ("link", "iframe", "object", "embed", "base")
        for name in ("src", "href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/")), (tag, attributes)
    without_images = re.sub(r'src="data:[^"]*"', "", page)
    assert not re.search(r"\burl\(|@import|\bfetch\(", without_images)
    assert set(re.findall(r"https?://[^\s\"'<]*", without_images)) <= {"http://www.w3.org/2000/svg"}, (
        "a name, no address"
    )


def test_names_are_never_markup(page: str, spiteful: str) -> None:
    plain, elements = (Elements(text).found for text in (page, spiteful))
    assert sum(tag == "script" for tag, _ in elements) == sum(tag == "script" for tag, _ in plain)
    assert not [attributes for _, attributes in elements if any(name.startswith("on") for name in attributes)]
    assert "alert(1)" in spiteful, "shown all the same"
    assert SCRIPT not in spiteful
    assert html.escape(SCRIPT) in spiteful


def test_the_sentences_come_first_and_what_made_it_last(page: str) -> None:
    parts = ["What the runs can tell", "PolyDice-1 is better than Dice", "cvc-clinicdb, unet</h2>", "What was not run"]
    parts += [
        "Every run of the recipe is done.",
        "How it was made",
        "polydice report DIR",
        "<summary>recipe.toml",
        "PolyDice1Loss({epsilon})",
    ]
    places = [page.index(part) for part in parts]
    assert places == sorted(places)
    assert "80.93 ± 4.21" in page, "the published figure beside ours"
    assert "Seed noise" in page


LISTEN = "<script>var problems = []; addEventListener('error', event => problems.push(event.message));</script>"
SORT = f"""(() => {{
    const table = document.querySelectorAll("table.sortable")[{RESULTS}];
    const losses = () => [...table.tBodies[0].rows].map(row => row.cells[0].textContent);
    const heading = name => [...table.tHead.rows[0].cells].find(cell => cell.textContent === name);
    const seen = {{"": losses()}};
    for (const name of ["Dice", "Dice", "Loss", "Difference to Dice"]) {{
        heading(name).firstElementChild.click();
        seen[name + " " + heading(name).ariaSort] = losses();
    }}
    return {{seen, problems}};
}})()"""


@needs_chromium
def test_a_table_is_sorted_by_a_click_on_its_heading(page: str, tmp_path: Path) -> None:
    answer = ask(page.replace("<head>", f"<head>{LISTEN}"), SORT, tmp_path)
    assert answer == {
        "seen": {
            "": ["Dice", "Focal Tversky", "PolyDice-1"],
            "Dice descending": ["PolyDice-1", "Dice", "Focal Tversky"],
            "Dice ascending": ["Focal Tversky", "Dice", "PolyDice-1"],
            "Loss ascending": ["Dice", "Focal Tversky", "PolyDice-1"],
            "Difference to Dice descending": ["PolyDice-1", "Focal Tversky", "Dice"],  # Dice has none
        },
        "problems": [],
    }


PLOTS = """(() => {
    const figures = [...document.querySelectorAll(".plot")];
    const count = figure => figure.querySelectorAll(".panel .line").length;
    const drawn = figures.map(count), bad = figures.flatMap(figure =>
        [...figure.querySelectorAll("path")].filter(path => /NaN|Infinity/.test(path.getAttribute("d"))));
    const training = figures.find(figure => /^Training/.test(figure.textContent.trim()));
    const button = training.querySelector(".legend button");
    button.click();
    const hidden = {count: count(training), pressed: button.ariaPressed};
    button.click();
    const svg = training.querySelector(".panel svg"), {left, top} = svg.getBoundingClientRect();
    svg.dispatchEvent(new PointerEvent("pointermove", {clientX: left + 60, clientY: top + 50}));
    const tip = training.querySelector(".tip");
    const told = tip.hidden ? null : tip.textContent.split("\\n");
    svg.dispatchEvent(new PointerEvent("pointerleave"));
    return {drawn, bad: bad.length, hidden, again: count(training), told, left: tip.hidden, problems,
        pictures: figures.map(figure => getComputedStyle(figure.querySelector("img")).display)};
})()"""


@needs_chromium
def test_plots_are_drawn_hide_what_is_clicked_and_tell_what_is_pointed_at(page: str, tmp_path: Path) -> None:
    answer = ask(page.replace("<head>", f"<head>{LISTEN}"), PLOTS, tmp_path)
    assert answer["problems"] == []
    assert answer["bad"] == 0
    assert all(answer["drawn"])
    assert answer["hidden"] == {"count": 4, "pressed": "false"}, "two panels, two losses left of three"
    assert answer["again"] == 6
    assert answer["told"] == [
        "epoch 1",
        "Dice: 1.5 (1 to 2)",
        "Focal Tversky: 1.5 (1 to 2)",
        "PolyDice-1: 1.5 (1 to 2)",
    ]
    assert answer["left"] is True
    assert set(answer["pictures"]) == {"none"}, "the picture is for where no script runs"


EDGES = """(() => {
    const svg = [...document.querySelectorAll(".plot")].find(plot => /^Difference/.test(plot.textContent.trim()))
        .querySelector(".panel svg");
    const box = svg.getBoundingClientRect(), inside = each => {
        const {left, right} = each.getBoundingClientRect();
        return left >= box.left && right <= box.right;
    };
    return {dots: svg.querySelectorAll("circle").length, arrows: svg.querySelectorAll("path.dot").length,
        numbers: [...svg.querySelectorAll("text")].map(each => each.textContent).filter(text => /[.]..$/.test(text)),
        inside: [...svg.querySelectorAll("path, circle, text")].every(inside), problems};
})()"""


@needs_chromium
def test_what_goes_beyond_an_edge_has_an_arrow_and_its_number(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "results/paper/hippocampus/report/report.html").read_text(encoding="utf-8")
    answer = ask(page.replace("<head>", f"<head>{LISTEN}"), EDGES, tmp_path)
    assert answer == {"dots": 5, "arrows": 1, "numbers": ["−27.45"], "inside": True, "problems": []}


@needs_chromium
def test_no_name_of_a_data_set_or_loss_is_run(spiteful: str, tmp_path: Path) -> None:
    listen = LISTEN.replace("var problems", "var alerts = []; alert = what => alerts.push(what); var problems")
    question = """(document.querySelectorAll("b[onclick], img[onerror]").forEach(each => each.click()),
        {alerts, problems, title: document.title})"""
    answer = ask(spiteful.replace("<head>", f"<head>{listen}"), question, tmp_path)
    assert answer == {"alerts": [], "problems": [], "title": f"{SCRIPT} & <img src=x onerror=alert(2)>"}


@needs_chromium
@pytest.mark.parametrize("which", ["page", "spiteful"])
def test_it_fits_every_screen(which: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    source = html.escape(request.getfixturevalue(which))
    frames = "".join(
        f'<iframe srcdoc="{source}" style="height: 900px; width: {width}px"></iframe>' for width in (320, 390, 1280)
    )
    question = """[...document.querySelectorAll("iframe")].map(({contentDocument: {documentElement: page}}) =>
        page.scrollWidth - page.clientWidth)"""
    assert ask(f"<body>{frames}</body>", question, tmp_path) == [0, 0, 0]
