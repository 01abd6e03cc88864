"""The page: what it shows is text, it needs nothing else, and it works in a real browser on every screen."""

import html
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from polydice.studies.figures import drawings
from polydice.studies.page import page as render
from polydice.studies.plots import Panel, Plot, Point, Series
from polydice.studies.report import write_report
from tests.studies.browser import ask, needs_chromium
from tests.studies.made_up import ONE_SET, RECIPE, WARNING, answered, study_in

SCRIPT = "<script>alert(1)</script>"
SPITEFUL = RECIPE.replace("mine]", f'"{SCRIPT}"]').replace("Made up", f"{SCRIPT} & <img src=x onerror=alert(2)>")
SPITEFUL = SPITEFUL.replace('"Focal Tversky"', "\"</script><b onclick='alert(3)'>$x$\"")
RESULTS = 1  # its place among the tables that can be sorted


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
    assert not re.search(r"\burl\((?!#)|@import|\bfetch\(|https?://", without_images)


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
    assert ">Noise<" in page


CONTENT = {"title": "Made up", "about": "Three losses.", "facts": ["18 of 18 runs done", "3 folds", "2 seeds"]}
CONTENT |= {"commands": "polydice report DIR", "recipe": "", "versions": "", "notes": []}
CONTENT |= {name: [] for name in ("shared", "by_dataset", "remarks", "missing")}


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> str:
    return render(**CONTENT, sections=answered(study_in(tmp_path_factory.mktemp("answer"), recipe=ONE_SET)))


def test_the_answer_comes_first_then_what_it_rests_on(answer: str) -> None:
    parts = [
        '<p class="answer">PolyDice-1 is better',
        WARNING,
        'class="verdicts"',
        "How forgiving about the rate</h3>",
        "within 1 point of its best</text>",
    ]
    parts += ["All pairs", "−2.10 <small>[−2.90, −1.30]</small>", "What was not run"]
    places = [answer.index(part) for part in parts]
    assert places == sorted(places)
    assert re.findall(r'<td class="([a-z ]+)" title="([^"]*)"', answer) == [
        ("worse", "Focal Tversky and Dice: worse"),
        ("equivalent", "PolyDice-1 and Dice: equivalent"),
        ("better slight", "PolyDice-1 and Focal Tversky: better, but by less than the margin"),
    ]


def test_a_loss_without_an_interval_is_among_the_pairs_all_the_same(tmp_path: Path) -> None:
    (section,) = answered(study_in(tmp_path, recipe=ONE_SET))
    pairs = {pair: each._replace(low=None, high=None, kind="too few runs") for pair, each in section.pairs.items()}
    few = replace(section, comparison=replace(section.comparison, pairs=pairs))
    text = render(**CONTENT, sections=[few])
    assert "−2.10 <small>too few runs</small>" in text


def test_without_tuning_there_is_no_figure_beside_the_verdicts(page: str) -> None:
    assert 'class="beside"' not in page
    assert 'class="answer"' in page


SCREEN = """[...document.querySelectorAll("iframe")].map(({contentDocument: page, clientHeight: height}) => {
    const box = what => page.querySelector(what).getBoundingClientRect();
    const answer = box(".answer"), verdicts = box(".verdicts"), figure = box(".beside .drawing");
    return {over: page.documentElement.scrollWidth - page.documentElement.clientWidth,
        answered: answer.bottom < height, beside: figure.left > verdicts.right, seen: figure.bottom < height};
})"""


@needs_chromium
def test_the_first_screen_has_the_answer_and_the_figure_beside_the_verdicts(answer: str, tmp_path: Path) -> None:
    frames = "".join(
        f'<iframe srcdoc="{html.escape(answer)}" style="height: 844px; width: {width}px"></iframe>'
        for width in (1280, 390)
    )
    wide, narrow = ask(f"<body>{frames}</body>", SCREEN, tmp_path)
    assert wide == {"over": 0, "answered": True, "beside": True, "seen": True}
    assert narrow == {"over": 0, "answered": True, "beside": False, "seen": False}, "below each other"


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
    const count = figure => [...figure.querySelectorAll("[data-series]")]
        .filter(part => getComputedStyle(part).display !== "none").length;
    const drawn = figures.map(count);
    const training = figures.find(figure => /^Training/.test(figure.textContent.trim()));
    const button = training.querySelector(".legend button");
    button.click();
    const hidden = {count: count(training), pressed: button.ariaPressed};
    const drawing = training.querySelector(".drawing"), {left, top} = drawing.getBoundingClientRect();
    const reading = training.querySelector(".reading"), told = () => reading.textContent.split("\\n"), tell = () => {
        drawing.dispatchEvent(new PointerEvent("pointermove", {clientX: left + 60, clientY: top + 50}));
        return told();
    };
    const fewer = tell();
    button.click();
    const pointed = tell(), beside = [...training.querySelectorAll(".legend .value")].map(each => each.textContent);
    const {bottom} = drawing.getBoundingClientRect();
    const covered = [...training.querySelectorAll(".value, .panel:first-child .reading")].map(each =>
        each.getBoundingClientRect()).some(box => box.bottom > top && box.top < bottom);
    drawing.dispatchEvent(new PointerEvent("pointerleave"));
    const away = told();
    const press = key => { drawing.dispatchEvent(new KeyboardEvent("keydown", {key})); return told()[0]; };
    drawing.focus();
    const pressed = ["ArrowRight", "ArrowRight", "ArrowLeft", "Escape"].map(press);
    const keys = [document.activeElement === drawing, ...pressed];
    return {drawn, hidden, again: count(training), fewer, told: pointed, beside, covered, away, keys, problems};
})()"""


@needs_chromium
def test_plots_are_drawn_hide_what_is_clicked_and_tell_what_is_pointed_at(page: str, tmp_path: Path) -> None:
    answer = ask(page.replace("<head>", f"<head>{LISTEN}"), PLOTS, tmp_path)
    assert answer["problems"] == []
    assert all(answer["drawn"])
    assert answer["hidden"] == {"count": 8, "pressed": "false"}, "lines and bands, two panels, two losses left of three"
    assert answer["again"] == 12
    assert answer["told"] == [
        "epoch 1",
        "Dice: 1.5 (1 to 2)",
        "Focal Tversky: 1.5 (1 to 2)",
        "PolyDice-1: 1.5 (1 to 2)",
    ]
    assert answer["fewer"] == [answer["told"][0], *answer["told"][2:]]
    assert answer["beside"] == ["1.5 (1 to 2)"] * 3
    assert not answer["covered"]
    assert answer["away"] == [""]
    assert answer["keys"] == [True, "epoch 1", "epoch 2", "epoch 1", ""]


def test_what_a_figure_shows_can_be_read(page: str) -> None:
    """Behind each figure a table has its values: here of the first panel of the course of training."""
    figure = page[page.index("<h3>Training: ") :]
    table = figure[figure.index("The values") : figure.index("</table>")]
    cells = [html.unescape(cell) for cell in re.findall(r"<t[hd](?: [^>]*)?>(.*?)</t[hd]>", table)]
    assert cells[:8] == ["epoch", "Dice", "Focal Tversky", "PolyDice-1", "1", *["1.5 (1 to 2)"] * 3]


def test_drawings_do_not_share_names(page: str) -> None:
    """An element that another refers to, a clip path or a marker, is there once."""
    names = [attributes["id"] for _, attributes in Elements(page).found if "id" in attributes]
    assert len(names) == len(set(names))
    assert set(re.findall(r"url\(#(\w+)\)|xlink:href=\"#(\w+)\"", page)) - {("", "")} <= {
        pair for name in names for pair in ((name, ""), ("", name))
    }


EDGES = """(() => {
    const box = document.querySelector("svg").getBoundingClientRect(), inside = ({left, right}) =>
        left >= box.left && right <= box.right;
    const texts = [...document.querySelectorAll("svg text")];
    return {inside: texts.every(each => inside(each.getBoundingClientRect())), box: Math.round(box.width),
        numbers: texts.map(each => each.textContent).filter(text => /[.]..$/.test(text))};
})()"""


@needs_chromium
def test_what_goes_beyond_an_edge_is_told_within_it(tmp_path: Path) -> None:
    points = {"Cross-entropy": Point(0, -27.45, -31, -24), "PolyDice-1": Point(1, 0.7, -0.4, 1.8)}
    series = tuple(Series(name, "#0072B2", (point,)) for name, point in points.items())
    panel = Panel("", "", "points above Dice", series, tuple(points), cut=(-1.0, 2.4))
    (drawing,) = drawings(Plot("intervals", "Difference to the baseline", "", "intervals", (panel,)))
    page = f'<body><div style="width: 360px">{drawing.svg}</div></body>'
    assert ask(page, EDGES, tmp_path) == {"box": 360, "inside": True, "numbers": ["−27.45"]}


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
