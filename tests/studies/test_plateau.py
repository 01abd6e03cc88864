import pytest

from polydice.studies.answer import Tried, plateau
from polydice.studies.figures import drawn
from polydice.studies.plateau import score_against
from tests.studies.made_up import CHOSEN, TRIED

COLOURS = dict.fromkeys(TRIED, "#000000")
WHERE = {"name": "rate-mine", "title": "Rate"}


@pytest.mark.parametrize(
    ("scores", "values"),
    [
        ({0.01: 90.6, 0.04: 92.3, 0.16: 91.7}, [0.04, 0.16]),
        ({0.16: 91.7, 0.01: 91.3, 0.04: 92.3}, [0.01, 0.04, 0.16]),  # whatever the order, and the edge is within
        ({0.01: 92.0, 0.04: 80.0, 0.16: 92.3}, [0.16]),  # what lies beyond a gap is no part of it
        ({0.01: 92.3, 0.04: 80.0, 0.16: 92.3}, [0.01]),
        ({0.01: 90.0}, [0.01]),
        ({"sgd": 92.0, "rmsprop": 80.0, "adamw": 92.3}, ["sgd", "adamw"]),  # names have no order, and so no gap
    ],
)
def test_a_plateau_is_around_the_best(scores: dict[float | str, float], values: list[float | str]) -> None:
    assert plateau([Tried(*each) for each in scores.items()], 1.0) == values


def test_rates_have_a_curve_for_each_loss_on_an_axis_of_logarithms() -> None:
    plot = score_against("rate", TRIED, CHOSEN, 1.0, COLOURS, **WHERE)
    (panel,) = plot.panels
    assert (panel.x, panel.log, panel.ticks) == ("rate", True, ())
    assert panel.plateaus == "within 1 point of its best"
    assert {series.name: (series.plateau, series.chosen) for series in panel.series} == {
        "Dice": ((0.04, 0.16), 0.04),
        "Focal Tversky": ((0.16,), 0.16),
        "PolyDice-1": ((0.01, 0.04, 0.16), 0.01),
    }
    assert panel.series[0].points[0] == (0.0025, 88.1, 87.2, 89.0)
    assert panel.series[0].points[3] == (0.16, 91.7, 91.7, 91.7), "one run has no range"


def test_other_settings_than_rates() -> None:
    tried = {"Dice": [("sgd", 90, None, None), ("adamw", 92, 91, 93)], "other": [("adamw", 91), ("sgd", 91.5)]}
    (panel,) = score_against(
        "optimizer", tried, {"Dice": "adamw"}, 1.0, dict.fromkeys(tried, "#000000"), **WHERE
    ).panels
    assert (panel.ticks, panel.log) == (("sgd", "adamw"), False)
    assert [[point.x for point in series.points] for series in panel.series] == [[0, 1], [1, 0]]
    assert [(series.plateau, series.chosen) for series in panel.series] == [((1,), 1), ((1, 0), None)]
    close = {"Dice": [(-0.3, 90.0), (0.5, 92.0)], "other": [(0.0, 91.0)]}
    (panel,) = score_against("epsilon", close, {}, 2.0, dict.fromkeys(close, "#000000"), **WHERE).panels
    assert (panel.log, [series.name for series in panel.series]) == (False, ["Dice"]), "one value is no curve"
    assert panel.plateaus == "within 2 points of its best"


def test_without_tuning_there_is_no_plot() -> None:
    assert score_against("rate", {}, {}, 1.0, {}, **WHERE) is None
    assert score_against("rate", {"Dice": [Tried(0.01, 90.0)]}, {"Dice": 0.01}, 1.0, COLOURS, **WHERE) is None


def test_scores_far_below_the_best_are_not_shown_and_said_to_be() -> None:
    near = score_against("rate", {"Dice": TRIED["Dice"]}, {}, 1.0, COLOURS, **WHERE)
    assert near.panels[0].cut is None
    lost = {"Dice": [*TRIED["Dice"], Tried(0.64, 41.1, 40.0, 42.2)]}
    plot = score_against("rate", lost, {}, 1.0, COLOURS, **WHERE)
    low, high = plot.panels[0].cut
    assert (low, high) == (86, pytest.approx(92.8 + 0.05 * 6.8)), "six margins below the best, 92.3"
    assert plot.caption.startswith("Mean and range of the runs with each rate, from 86 % on.")
    assert len(plot.panels[0].series[0].points) == 5, "the page's table has them"
    axes = drawn(plot).axes[0]
    _, bottom = axes.transData.inverted().transform(axes.lines[0].get_clip_box().p0)
    assert bottom == pytest.approx(86), "nor does the curve run through the plateaus"
    assert axes.get_ylim()[0] < 86
