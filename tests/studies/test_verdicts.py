import itertools
from typing import get_args

import numpy as np
import pytest

from polydice.studies.noise import Noise, Part
from polydice.studies.statistics import LEVEL, NARROW, Difference, half_width
from polydice.studies.verdicts import KINDS, MOST, Kind, Verdict, in_words, kinds, missing, verdict
from tests.studies.coverage import A_THIRD, STUDIES, Row, Variances, coverage, estimated

LESS = "but by less than the margin"


def noise(one: float, common: float = 0.0, replicates: int = 3, freedom: float = 14) -> Noise:
    """In points²."""
    return Noise(Part(np.array(one / 1e4), np.array(freedom)), Part(np.array(common / 1e4), np.array(30.0)), replicates)


def kind(mean: float, wide: float, narrow: float, margin: float = 1.0) -> Kind:
    return KINDS[int(kinds(np.array(mean), np.array(wide), np.array(narrow), margin))]


@pytest.mark.parametrize(
    ("mean", "wide", "narrow", "expected"),
    [
        (2.0, 0.9, 0.7, "better"),
        (-2.0, 0.9, 0.7, "worse"),
        (0.5, 0.3, 0.2, f"better, {LESS}"),
        (-0.5, 0.3, 0.2, f"worse, {LESS}"),
        (0.9, 0.3, 0.2, "better"),  # 1.1 is beyond the margin
        (0.1, 0.3, 0.2, "equivalent"),
        (0.1, 1.2, 0.8, "equivalent"),  # the 95 % interval may reach beyond
        (0.5, 0.9, 0.7, "undecided"),
        (0.0, 3.0, 2.5, "undecided"),
    ],
)
def test_the_intervals_decide(mean: float, wide: float, narrow: float, expected: str) -> None:
    assert kind(mean, wide, narrow) == expected


def test_when_both_halves_are_below_the_margin_together_every_outcome_is_a_verdict() -> None:
    for mean in np.linspace(-3, 3, 601):
        assert kind(float(mean), 0.54, 0.45) != "undecided"


def test_verdicts_exclude_each_other_and_follow_from_the_difference() -> None:
    for mean, one in itertools.product(np.linspace(-3, 3, 13), (0.01, 0.1, 1.0, 10.0)):
        found = Difference(float(mean) / 100, noise(one), 4, 3, 5)
        judged, interval = verdict(found, 1.0), found.interval
        assert judged.kind in get_args(Kind)
        assert interval is not None
        assert judged.kind.startswith(("better", "worse")) == (interval[0] > 0 or interval[1] < 0)
        assert judged.kind.startswith("better") == (interval[0] > 0)
        assert (judged.more is not None) <= (judged.kind == "undecided")
        reach = 100 * float(half_width(noise(one), NARROW, 4))
        if judged.kind == "equivalent" or judged.kind.endswith("margin"):
            assert abs(mean) + reach < 1


def test_one_replicate_gives_no_verdict_and_an_impossible_interval_is_not_one() -> None:
    single = verdict(Difference(0.05, None, 1, 1, 5), 1.0, minutes_each=10)
    assert single == Verdict("too few runs", 5.0, None, None, 1.0, 2, 20.0)
    wild = verdict(Difference(0.05, noise(1e4, replicates=2, freedom=1), 1, 2, 5), 1.0)
    assert (wild.kind, wild.low, wild.high) == ("too few runs", None, None)


def test_with_so_many_more_replicates_the_halves_are_below_the_margin_and_with_one_fewer_they_are_not() -> None:
    def halves(replicates: int) -> float:
        return 100 * float(sum(half_width(noise(0.3, 0.005), level, 5, replicates) for level in (LEVEL, NARROW)))

    more = int(missing(noise(0.3, 0.005), 1.0, 5))
    assert more > 1
    assert halves(3 + more) < 1 <= halves(2 + more)
    assert verdict(Difference(0.005, noise(0.3, 0.005), 5, 3, 5), 1.0, minutes_each=7).minutes == 7 * more


def test_no_number_of_replicates_replaces_patients() -> None:
    assert missing(noise(1.0, common=0.5), 1.0, 5) == 0
    found = verdict(Difference(0.005, noise(1.0, common=0.5), 5, 3, 5), 1.0, minutes_each=7)
    assert (found.kind, found.more, found.minutes) == ("undecided", None, None)
    assert f"Not even {MOST} replicates are sure to decide it" in in_words(found, "X", "Dice")


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Verdict("better", 1.2, 0.3, 2.1, 1.0), "X is better than Dice by 1.20 points (95 % interval 0.30 to 2.10)."),
        (
            Verdict("worse", -2.0, -3.0, -1.0, 1.0),
            "X is worse than Dice by 2.00 points (95 % interval −3.00 to −1.00).",
        ),
        (
            Verdict(f"better, {LESS}", 0.5, 0.2, 0.8, 1.0),  # type: ignore[arg-type]
            "X is better than Dice, but by less than the margin, 1 point: by 0.50 points (95 % interval 0.20 to 0.80).",
        ),
        (
            Verdict("equivalent", -0.1, -0.4, 0.2, 2.0),
            "X and Dice are equivalent within the margin, 2 points: X scores 0.10 points below it (95 % interval −0.40 "
            "to 0.20).",
        ),
        (
            Verdict("undecided", 1.2, -0.3, 2.7, 1.0, 1, 130.0),
            "X scores 1.20 points above Dice (95 % interval −0.30 to 2.70): undecided. 1 more replicate (about 130 "
            "minutes, or 2 hours) should decide it.",
        ),
        (
            Verdict("undecided", 1.2, -0.3, 2.7, 1.0, outer="seed"),
            "X scores 1.20 points above Dice (95 % interval −0.30 to 2.70): undecided. Not even 30 seeds are sure to "
            "decide it.",
        ),
        (
            Verdict("too few runs", 5.0, None, None, 1.0, 2),
            "X scores 5.00 points above Dice: too few runs for a verdict.",
        ),
    ],
)  # fmt: skip
def test_a_verdict_in_words(found: Verdict, words: str) -> None:
    assert in_words(found, "X", "Dice") == words


# A small part of results/coverage


@pytest.fixture(scope="module")
def models() -> dict[str, Variances]:
    return estimated()


def test_the_noise_of_the_kept_runs(models: dict[str, Variances]) -> None:
    assert models.keys() == {*STUDIES, A_THIRD}
    for each in models.values():
        assert min(each) >= 0
        assert each.group_run > each.group, "patients differ from training to training more than in the mean"


@pytest.mark.parametrize(
    "row",
    [
        Row("Hippocampus", 2), Row("Hippocampus", 3, groups=15), Row("ACDC", 3, folds=2), Row("CVC-ClinicDB", 5),
        Row("ACDC", 2, losses=8), Row("Hippocampus", 2, groups=150, nested=False), Row("CVC-ClinicDB", 3, nested=False),
    ],
    ids=str,
)  # fmt: skip
def test_simulated_studies_are_judged_rightly(row: Row, models: dict[str, Variances]) -> None:
    found = coverage(row, models[row.model], studies=500)
    chance = 3 * 100 * np.sqrt(0.05 * 0.95 / 500)  # three standard deviations of a share of 5 %
    assert found.held >= 95 - chance
    assert found.held_each >= found.held
    assert found.told_apart <= 5 + chance
    assert found.called_equal <= 5 + chance


def test_the_suggested_number_of_replicates_gives_a_verdict(models: dict[str, Variances]) -> None:
    found = coverage(Row("Hippocampus", 3, groups=150), models["Hippocampus"], studies=300)
    assert found.suggested > 95
    assert found.decided_then > 85
    assert found.replicates_then > 3
