import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polydice.studies import plots as plots_module
from polydice.studies.comparison import compare
from polydice.studies.families import colours
from polydice.studies.plots import (
    EACH,
    Panel,
    Plot,
    Point,
    Series,
    _cut,
    _view,
    effects,
    epochs,
    intervals,
    shared,
    sizes,
    training,
)
from polydice.studies.report import write_report
from polydice.studies.study import Study, open_study
from tests.studies.made_up import RECIPE, study_in
from tests.test_docs import blocks

RESULTS = Path(__file__).parents[2] / "results" / "paper"


def drawn(panel: Panel) -> dict[str, list[tuple[float, ...]]]:
    return {series.name: [tuple(point) for point in series.points] for series in panel.series}


def plots(study: Study) -> list[Plot | None]:
    comparisons, colour = compare(study), colours(study.recipe)
    own = [make(study, each, colour) for each in comparisons for make in EACH]
    first, *others = shared(study, comparisons, colour)
    return [first, *own, *others]


def test_intervals_are_the_differences_in_points(tmp_path: Path) -> None:
    study = study_in(tmp_path)
    comparisons = compare(study)
    plot = intervals(comparisons, colours(study.recipe))
    assert [panel.title for panel in plot.panels] == ["cvc-clinicdb, unet", "mine, unet"]
    for panel, each in zip(plot.panels, comparisons, strict=True):
        assert panel.ticks == ("Focal Tversky", "PolyDice-1")
        for place, row in enumerate(each.rows[1:]):
            apart = row.differences["dice_foreground"]
            assert drawn(panel)[row.loss] == [(place, *(100 * x for x in (apart.mean, *apart.interval)))]


@pytest.mark.parametrize(
    ("bars", "cut"),
    [
        ([(-1, 1), (0, 2), (-50, -3)], (-1.6, 2.6)),  # 4 times the median is 8
        ([(-1, 1), (0, 2), (40, 50)], (-1.6, 2.6)),
        ([(0.5, 1), (1, 2), (40, 50)], (-0.4, 2.4)),  # 0 is always shown
        ([(-1, 1), (0, 2), (-8, 3)], None),
        ([(-1, 1), (-50, -3)], None),  # which of two is the odd one?
        ([(0, 0), (0, 0), (47, 49)], None),  # most are the baseline itself
        ([(-3, 50)], None),
    ],
)
def test_the_edges_are_those_of_most_intervals(bars: list[tuple[float, float]], cut: object) -> None:
    assert _cut([Point(0, (low + high) / 2, low, high) for low, high in bars]) == (cut and pytest.approx(cut))


def test_what_reaches_much_farther_than_most_is_cut_off() -> None:
    """Two seeds that happen to differ by more than the others; cross-entropy has too few runs for an interval."""
    study = open_study(RESULTS / "hippocampus")
    plot = intervals(compare(study), colours(study.recipe))
    ((low, high), points) = plot.panels[0].cut, drawn(plot.panels[0])
    assert {name for name, ((_, _, *ends),) in points.items() if min(ends) < low or max(ends) > high} == {
        "PolyDice-1, ε = 0.5"
    }
    assert high - low < 15
    assert "arrow" in plot.caption
    study = open_study(RESULTS / "question-acdc")
    plot = intervals(compare(study), colours(study.recipe))
    assert plot.panels[0].cut is None
    assert "arrow" not in plot.caption


def test_training_is_the_mean_and_the_range_of_the_runs(tmp_path: Path) -> None:
    study = study_in(tmp_path)
    plot = training(study, compare(study)[0], colours(study.recipe))
    losses, dice = plot.panels
    # 1/epoch + seed, for the seeds 0 and 1
    assert drawn(losses)["Dice"] == [(1, 1.5, 1.0, 2.0), (2, 1.0, 0.5, 1.5), (3, pytest.approx(5 / 6), 1 / 3, 4 / 3)]
    reached = [100 * each.result["test"]["dice_foreground"] for each in compare(study)[0].rows[0].counting.values()]
    epoch, mean, low, high = drawn(dice)["Dice"][-1]
    assert (epoch, low, mean, high) == pytest.approx((3, min(reached), np.mean(reached), max(reached)))


def test_many_losses_are_drawn_without_their_ranges(tmp_path: Path) -> None:
    more = "".join(f'"Dice {n}" = "DiceLoss(smooth={n}.0)"\n' for n in range(2, 6))
    study = study_in(tmp_path, recipe=RECIPE + more)
    plot = training(study, compare(study)[0], colours(study.recipe))
    assert len(plot.panels[0].series) == 7
    assert all(point.low == point.y == point.high for series in plot.panels[0].series for point in series.points)
    assert plot.caption.startswith("Mean of the runs. ")


def test_a_point_is_a_run_at_its_chosen_epoch_without_what_its_fold_does(tmp_path: Path) -> None:
    study = study_in(tmp_path)
    comparison = compare(study)[0]
    plot = epochs(study, comparison, colours(study.recipe))
    points = drawn(plot.panels[0])
    runs = [each for row in comparison.rows for each in row.counting.values()]
    dice = np.array(
        [[100 * each.result["test"]["dice_foreground"] for each in runs if each.run.fold == n] for n in range(3)]
    )
    assert {name: [epoch for epoch, *_ in each] for name, each in points.items()} == dict.fromkeys(
        points, [1] * 3 + [2] * 3
    )
    found = [above for each in points.values() for _, above, _, _ in each]
    assert sorted(found) == pytest.approx(sorted((dice - dice.mean(1, keepdims=True)).ravel()))
    one = study_in(tmp_path / "one", lambda run: run.seed == 0)
    assert epochs(one, compare(one)[0], colours(one.recipe)) is None


def test_sizes_are_the_strata_of_the_results(tmp_path: Path) -> None:
    study = study_in(tmp_path)
    comparison = compare(study)[0]
    (panel,) = sizes(study, comparison, colours(study.recipe)).panels
    assert panel.ticks == ("tiny", "small", "medium", "large")
    for row in comparison.rows:
        for place, name in enumerate(panel.ticks):
            tested = [each.result["test"]["strata"][name]["dice_case"] for each in row.counting.values()]
            assert drawn(panel)[row.loss][place][1] == pytest.approx(100 * np.mean(tested))


def test_a_loss_that_failed_leaves_the_others_their_room() -> None:
    """Cross-entropy, 40 points below all others, of which none is four points above another."""
    study = open_study(RESULTS / "hippocampus")
    (comparison,) = compare(study)
    (panel,) = sizes(study, comparison, colours(study.recipe)).panels
    low, high = panel.cut
    assert high - low < 6
    outside = {name for name, points in drawn(panel).items() if all(not low < y < high for _, y, _, _ in points)}
    assert outside == {"Cross-entropy"}
    assert all(
        low < end < high for name, each in drawn(panel).items() if name not in outside for _, *y in each for end in y
    )


@pytest.mark.parametrize(
    ("levels", "cut"),
    [
        ([80, 81, 82, 40], (79.8, 82.2)),
        ([80, 81, 82, 99], (79.8, 82.2)),
        ([80, 81, 82, 76], None),  # a difference of 2 can still be seen
        ([80, 40], None),  # which of two is the odd one?
        ([80, 80, 80, 40], None),  # all others are one line
        ([80], None),
    ],
)
def test_the_view_is_that_of_most_series(levels: list[float], cut: object) -> None:
    series = [Series(str(level), "#000000", (Point(0, level, level, level),)) for level in levels]
    assert _view(series) == (cut and pytest.approx(cut))


def test_an_effect_is_the_mean_of_each_value_and_its_error_leaves_the_folds_out(tmp_path: Path) -> None:
    study = study_in(tmp_path)
    (plot,) = effects(study, compare(study), colours(study.recipe))
    assert (plot.name, plot.title) == ("effect-epsilon-unet", "Effect of ε: unet")
    panel = plot.panels[0]
    scores = np.array([
        [
            100 * next(result["test"]["dice_foreground"] for run, result in study.finished()
                if (run.dataset, run.value, run.seed, run.fold) == ("cvc-clinicdb", f"epsilon={value}", seed, fold))
            for value in (-0.3, 0.5)
        ]
        for seed in (0, 1) for fold in (0, 1, 2)
    ])  # fmt: skip
    points = np.array(drawn(panel)["PolyDice-1"])
    np.testing.assert_allclose(points[:, 0], [-0.3, 0.5])
    np.testing.assert_allclose(points[:, 1], scores.mean(0))
    # With two values the error of each is that of their paired difference, over √2.
    paired = np.diff(scores).std(ddof=1) / np.sqrt(len(scores)) / np.sqrt(2)
    np.testing.assert_allclose(points[:, 3] - points[:, 1], paired)
    assert set(drawn(panel)) == {"PolyDice-1", "PolyDice-1, validation", "Dice"}
    dice = [point[1] for point in drawn(panel)["Dice"]]
    assert dice == pytest.approx([100 * compare(study)[0].rows[0].scores["dice_foreground"].mean] * 2)
    other = open_study(study.folder, baseline="PolyDice-1")
    (plot,) = effects(other, compare(other), colours(other.recipe))
    assert [series.name for series in plot.panels[0].series] == ["PolyDice-1", "PolyDice-1, validation"], "no level"


def test_an_effect_is_seen_too_where_every_value_is_a_loss_of_its_own(tmp_path: Path) -> None:
    head = RECIPE.partition("[losses]")[0]
    recipe = head + '[losses]\nDice = "DiceLoss()"\n'
    recipe += "".join(f'"DropDice, K = {order}" = "DropDiceLoss({order})"\n' for order in (10, 1, 2))
    study = study_in(tmp_path, recipe=recipe)
    (plot,) = effects(study, compare(study), colours(study.recipe))
    assert plot.title == "Effect of K: unet"
    assert plot.panels[0].ticks == ("1", "2", "10")
    assert [point[0] for point in drawn(plot.panels[0])["DropDice"]] == [0, 1, 2]


def test_what_is_not_there_is_not_plotted(tmp_path: Path) -> None:
    assert plots(study_in(tmp_path / "nothing", lambda run: False)) == [None] * 7
    one = plots(study_in(tmp_path / "one", lambda run: run.loss == "Dice" and run.dataset == "mine"))
    assert [plot and plot.name for plot in one] == [
        *[None] * 4,
        "training-mine-unet",
        "epochs-mine-unet",
        "sizes-mine-unet",
    ]
    half = study_in(tmp_path / "half", lambda run: run.value != "epsilon=0.5")
    assert not any(plot and plot.name.startswith("effect") for plot in plots(half)), "no value to compare with"
    for path in half.folder.rglob("history.jsonl"):
        path.unlink()
    assert not any(plot and plot.name.startswith("training") for plot in plots(half))


def test_a_figure_is_added_as_the_docs_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The function of docs/report.md, which the package does not have, in `EACH`: page and files have its figure."""
    names: dict[str, Any] = {}
    exec(blocks("docs/report.md")[0], names)
    monkeypatch.setattr(plots_module, "EACH", (names["by_fold"], *EACH))
    study = study_in(tmp_path)
    page = write_report(study).read_text(encoding="utf-8")
    assert page.index("Dice by fold: mine, unet</h3>") < page.index("Training: mine, unet</h3>")
    figure = page[page.index("Dice by fold: mine, unet</h3>") :].partition("</figure>")[0]
    assert "Mean of the runs of a fold, and their range." in figure
    assert set(re.findall(r'data-series="(.)"', figure)) == {"0", "1", "2"}
    (scores, *_) = (row.counting for row in compare(study)[1].rows)
    dice = [100 * scores[seed, 0].result["test"]["dice_foreground"] for seed in (0, 1)]
    assert f"{np.mean(dice):.4g} ({min(dice):.4g} to {max(dice):.4g})" in figure, "what the pointer is told"
    for kind in ("svg", "png"):
        assert (study.folder / "report" / "figures" / f"by-fold-mine-unet.{kind}").stat().st_size > 1000


def test_every_number_is_finite(tmp_path: Path) -> None:
    for plot in plots(study_in(tmp_path)):
        for panel in plot.panels:
            assert np.isfinite([point for series in panel.series for point in series.points]).all()
            assert dataclasses.asdict(panel)["series"]
