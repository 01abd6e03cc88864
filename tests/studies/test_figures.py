import dataclasses
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from polydice.studies.figures import drawings, drawn, sign
from polydice.studies.plots import Panel, Plot, Point, Series
from polydice.studies.style import save

SERIES = (
    Series("Dice", "#000000", (Point(0, 1, 0.5, 2), Point(1, 2, 1, 3))),
    Series("other", "#D55E00", (Point(0, 2, 2, 2), Point(1, 2.5, 2.5, 2.5)), dashed=True),
)
LINES = Plot("lines", "Title", "Caption.", "points", (Panel("panel", "x", "y", SERIES, ("a", "b")),))
BARS = tuple(Series(name, "#0072B2", (Point(place, 1, -1, 4),)) for place, name in enumerate(("this", "that")))
INTERVALS = Plot("bars", "Title", "", "intervals", (Panel("panel", "", "points", BARS, ("this", "that")),))


@pytest.mark.parametrize("kind", ["curves", "points", "scatter"])
def test_a_line_is_where_its_points_are(kind: str) -> None:
    plot = dataclasses.replace(LINES, kind=kind, panels=(dataclasses.replace(LINES.panels[0], ticks=()),))
    (axes,) = drawn(plot).axes
    line = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert line["Dice"] == [[0, 1], [1, 2]]
    assert line["other"] == [[0, 2], [1, 2.5]]
    styles = {line.get_linestyle() for line in axes.lines if line.get_label() in ("Dice", "other")}
    assert ("None" in styles) == (kind == "scatter")
    assert (axes.get_title(loc="left"), axes.get_xlabel(), axes.get_ylabel()) == ("panel", "x", "y")


def test_an_interval_lies_below_its_name() -> None:
    (axes,) = drawn(INTERVALS).axes
    bars = [collection.get_segments()[0].tolist() for collection in axes.collections]
    assert bars == [[[-1, 0], [4, 0]], [[-1, 1], [4, 1]]]
    assert axes.yaxis_inverted(), "the first on top"
    assert [(text.get_text(), -1 < text.get_position()[1] - place < 0) for place, text in enumerate(axes.texts)] == [
        ("this", True),
        ("that", True),
    ]


@pytest.mark.parametrize("plot", [LINES, INTERVALS], ids=["lines", "intervals"])
def test_the_page_has_the_same_drawing_panel_by_panel(plot: Plot) -> None:
    """What can be pointed at is where matplotlib has drawn it, in the page's colours."""
    first, second = drawings(dataclasses.replace(plot, panels=plot.panels * 2))
    assert first.places == second.places
    assert first.svg != second.svg, "each has its own names for what its elements refer to"
    svg = ElementTree.fromstring(first.svg.replace("xlink:href", "href"))
    _, _, width, height = map(float, svg.attrib["viewBox"].split())
    marks = [svg.findall(f".//*[@data-series='{number}']//use") for number in range(2)]
    if plot is LINES:
        found = [[float(use.attrib["x"]) / width for use in each] for each in marks]
        assert np.mean(found, axis=0) == pytest.approx([place.share for place in first.places], abs=1e-3), (
            "side by side"
        )
        assert first.places[0][1:] == ("x a", [(0, "1 (0.5 to 2)"), (1, "2")])
    else:
        found = [[float(use.attrib["y"]) / height for use in each] for each in marks]
        assert np.ravel(found) == pytest.approx([place.share for place in first.places], abs=1e-3)
        assert first.places[1][1:] == ("", [(1, "1 (−1 to 4)")])
    assert not re.search(r": #[0-9a-f]{6}", first.svg), "no colour that dark ground does not know"
    text = " ".join(svg.itertext())
    assert all(name in text for name in plot.panels[0].ticks)


def test_a_plateau_lies_below_the_curves_with_a_ring_at_the_choice() -> None:
    series = (
        Series("Dice", "#000000", (Point(0.01, 90, 89, 91), Point(0.1, 92, 91, 93)), plateau=(0.1,), chosen=0.1),
        Series("other", "#D55E00", (Point(0.01, 92, 92, 92), Point(0.1, 91, 91, 91)), plateau=(0.01, 0.1), chosen=0.01),
    )
    panel = Panel("", "rate", "Dice, %", series, log=True, plateaus="within 1 point of its best")
    plot = Plot("plateaus", "Title", "", "points", (panel,))
    (axes,) = drawn(plot).axes
    assert axes.get_xscale() == "log"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0.01", "0.1"]
    assert min(axes.get_yticks()) >= 89, "what lies below has no Dice"
    below = [line.get_xydata() for line in axes.lines if line.get_gid() and line.get_ydata()[0] < 89]
    assert [line[:, 0].tolist() for line in below] == [[0.1], [0.1], [0.01, 0.1], [0.01]], "plateau and choice of each"
    heights = [line[0, 1] for line in below]
    assert heights[0] == heights[1] > heights[2] == heights[3] > axes.get_ylim()[0]
    (drawing,) = drawings(plot)
    assert drawing.places[1].title == "rate 0.1"
    assert drawing.svg.count('data-series="1"') == 3, "curve, plateau and choice go together"


def test_what_cannot_be_seen_is_named_at_the_edge() -> None:
    far = Series("far", "#D55E00", (Point(0, 8, 7, 9), Point(1, 9.5, 9, 10)))
    panel = dataclasses.replace(LINES.panels[0], series=(*SERIES, far), cut=(0.4, 3.1))
    plot = dataclasses.replace(LINES, panels=(panel,))
    (axes,) = drawn(plot).axes
    assert axes.get_ylim() == (0.4, 3.1)
    assert [text.get_text() for text in axes.texts] == ["▲ far: 8 to 9.5"]
    (drawing,) = drawings(plot)
    assert [text for _, text in drawing.places[0].values] == ["1 (0.5 to 2)", "2", "8 (7 to 9)"], "still told"


def test_panels_stand_in_pairs_and_share_a_legend() -> None:
    figure = drawn(dataclasses.replace(LINES, panels=LINES.panels * 3))
    assert len([axes for axes in figure.axes if axes.get_visible()]) == 3
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["Dice", "other"]


def test_a_name_is_no_formula_and_the_files_are_the_same_every_time(tmp_path: Path) -> None:
    spiteful = "<b> $\\frac{1}$ & 50 %"
    panel = dataclasses.replace(
        LINES.panels[0], title=spiteful, series=(dataclasses.replace(SERIES[0], name=spiteful),)
    )
    plot = dataclasses.replace(LINES, title=spiteful, panels=(panel,))
    first = [path.read_bytes() for path in save(drawn(plot), tmp_path / "first")]
    second = save(drawn(plot), tmp_path / "second")
    assert first == [path.read_bytes() for path in second]
    with Image.open(second[1]) as image:
        assert min(image.size) > 500


def test_a_legend_of_many_long_names_fits() -> None:
    series = tuple(dataclasses.replace(SERIES[0], name=f"PolyDice-1 without scale, ε = -0.{n}") for n in range(13))
    figure = drawn(dataclasses.replace(LINES, panels=(dataclasses.replace(LINES.panels[0], series=series),) * 2))
    figure.draw_without_rendering()
    legend, axes = figure.legends[0].get_window_extent(), figure.axes[0].get_window_extent()
    assert legend.x0 >= 0
    assert legend.x1 <= figure.bbox.x1
    assert axes.height > figure.bbox.height / 2, "and leaves the panels their room"


@pytest.mark.parametrize("baseline", ["Dice", "PolyDice-1 detached, ε = −0.5, + cross-entropy"])
def test_an_interval_plot_of_long_names_fits(baseline: str) -> None:
    names = ("PolyDice-1 detached, ε = 0.5, + cross-entropy", "PolyDice-1 without scale, ε = 0.5, + cross-entropy")
    measure, title = f"percentage points above {baseline}", "Task04_Hippocampus of the Decathlon, unet3d with 48 levels"
    bars = tuple(dataclasses.replace(each, name=name) for each, name in zip(BARS, names, strict=True))
    panel = dataclasses.replace(INTERVALS.panels[0], title=title, y=measure, series=bars, ticks=names)
    figure = drawn(dataclasses.replace(INTERVALS, panels=(panel,) * 2))
    figure.draw_without_rendering()
    for axes in figure.axes:
        right = figure.bbox.x1 if axes is figure.axes[-1] else figure.axes[-1].get_tightbbox().x0
        low, high = axes.get_xlim()
        ticks = [label for label in axes.get_xticklabels() if low <= label.get_position()[0] <= high]
        for text in (axes.xaxis.label, axes._left_title, *axes.texts, *ticks):
            extent = text.get_window_extent()
            assert 0 <= extent.x0 < extent.x1 <= right
        assert axes.get_window_extent().width > 2.5 * figure.dpi, "and leaves the intervals their room"


@pytest.mark.parametrize(
    ("far", "numbers", "left", "right"),
    [
        (Point(1, -27.45, -53, -1.7), ["−27.45"], [[[-5, 1]]], []),
        (Point(1, 27.45, 1.7, 53), ["+27.45"], [], [[[4.25, 1]]]),
        (Point(1, 0.5, -52, 53), [], [[[-5, 1]]], [[[4.25, 1]]]),
        (Point(1, 0.5, -5, 4.25), [], [], []),
    ],
)
def test_what_goes_beyond_an_edge_has_an_arrow(far: Point, numbers: list[str], left: object, right: object) -> None:
    series = (BARS[0], Series("that", "#D55E00", (far,)))
    panel = dataclasses.replace(INTERVALS.panels[0], series=series, cut=(-5, 4.25))
    (axes,) = drawn(dataclasses.replace(INTERVALS, panels=(panel,))).axes
    assert axes.get_xlim() == (-5, 4.25)
    assert [text.get_text() for text in axes.texts if text.get_text() not in ("this", "that")] == numbers
    for mark, places in (("<", left), (">", right)):
        assert [line.get_xydata().tolist() for line in axes.lines if line.get_marker() == mark] == places


@pytest.mark.parametrize(("kind", "signs"), [("points", "●■▲◆▼✚✖"), ("curves", ("——", "– –", "···", "–·–"))])
def test_more_losses_than_colours_have_signs(kind: str, signs: str) -> None:
    series = tuple(Series(f"loss {number}", "#0072B2", SERIES[0].points) for number in range(13))
    plot = Plot("many", "Title", "", kind, (Panel("", "x", "y", series),))
    assert [sign(plot, each) for each in series] == [signs[number % len(signs)] for number in range(13)]
    (axes,) = drawn(plot).axes
    looks = {(line.get_marker(), line.get_linestyle()) for line in axes.lines}
    assert len(looks) == len(signs)
    few = dataclasses.replace(plot, panels=(dataclasses.replace(plot.panels[0], series=series[:12]),))
    assert {sign(few, each) for each in series[:12]} == {""}
