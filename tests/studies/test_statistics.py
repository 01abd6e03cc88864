import math
import time

import numpy as np
import pytest
from scipy import stats

from polydice.studies.noise import Noise, Part
from polydice.studies.outcomes import Outcome, Score
from polydice.studies.statistics import Difference, difference, half_width, holm, signed_rank, summary
from tests.studies.outcomes import all_scores, binary, random_runs


def test_summary_by_hand() -> None:
    runs = [binary(0, 0, [0.5, 0.7]), binary(0, 1, [0.8, 0.8]), binary(1, 0, [0.6, 0.8]), binary(1, 1, [0.9, 0.9])]
    # Folds: (0.6 + 0.7)/2 and (0.8 + 0.9)/2; seeds: (0.6 + 0.8)/2 and (0.7 + 0.9)/2
    assert summary(runs, "dice_case") == pytest.approx((0.75, 0.2 / math.sqrt(2), 0.1 / math.sqrt(2), 4))
    # Folds that are cut anew have nothing to do with each other: 0.6 and 0.8 vary as much as 0.7 and 0.9.
    assert summary(runs, "dice_case", nested=True) == pytest.approx((0.75, 0.2 / math.sqrt(2), 0.1 / math.sqrt(2), 4))
    turned = [*runs[:2], runs[3]._replace(fold=0), runs[2]._replace(fold=1)]
    assert summary(turned, "dice_case", nested=True) == pytest.approx(summary(runs, "dice_case", nested=True))


def test_one_run_has_no_spread() -> None:
    assert summary([binary(0, 0, [0.5])], "dice_case") == (0.5, None, None, 1)


# The paired difference


@all_scores
@pytest.mark.parametrize("nested", [False, True])
def test_difference_is_that_of_the_means(score: Score, nested: bool) -> None:
    own, other = random_runs(3, 5, draw=1), random_runs(3, 5, draw=2)
    found = difference(own, other, score, nested)
    assert found.mean == pytest.approx(summary(own, score).mean - summary(other, score).mean, abs=1e-12)
    assert found.noise is not None
    assert found.interval is not None
    variance, freedom = found.noise.of_mean()
    assert found.interval[1] - found.mean == pytest.approx(np.sqrt(variance) * stats.t.ppf(0.975, freedom))
    assert found.mean - found.interval[0] == pytest.approx(found.interval[1] - found.mean)
    assert (found.replicates, found.folds) == (3, 5)


@all_scores
def test_more_of_the_same_patient_is_no_more_data(score: Score) -> None:
    groups = ["a", "b", "c", "d"]
    dices = [([0.5, 0.7, 0.4, 0.8], [0.4, 0.7, 0.5, 0.6]), ([0.6, 0.9, 0.5, 0.3], [0.6, 0.7, 0.3, 0.3])]
    found = []
    for times in (1, 5):
        own, other = (
            [binary(each, 0, times * pair[loss], times * groups) for each, pair in enumerate(dices)] for loss in (0, 1)
        )
        found.append(difference(own, other, score).interval)
    assert found[0] == pytest.approx(found[1])


@pytest.mark.parametrize("nested", [False, True])
def test_more_replicates_of_the_same_runs_are_no_more_patients(nested: bool) -> None:
    """What all replicates have in common does not shrink with their number."""
    own, other = random_runs(1, 5, draw=1), random_runs(1, 5, draw=2)
    copies = [[run._replace(replicate=each) for run in runs for each in range(20)] for runs in (own, other)]
    found = difference(*copies, "dice_case", nested).noise
    assert found is not None
    assert found.common.variance > 0
    assert found.of_mean(10**6).variance == pytest.approx(found.common.variance, rel=1e-3)


def test_equal_runs_differ_by_nothing() -> None:
    runs = random_runs(2, 5)
    assert difference(runs, runs, "dice_global").interval == (0, 0)


def test_one_replicate_has_no_interval() -> None:
    found = difference(random_runs(1, 5, draw=1), random_runs(1, 5, draw=2), "dice_case")
    assert (found.noise, found.interval) == (None, None)


def test_an_interval_that_no_difference_can_have_is_none() -> None:
    def noise(variance: float) -> Noise:
        part = Part(np.array(variance), np.array(1.0))
        return Noise(part, Part(np.array(0.0), np.array(1.0)), 2)

    assert Difference(0.1, noise(0.001), 1, 2, 5).interval is not None
    assert Difference(0.1, noise(1.0), 1, 2, 5).interval is None


def test_comparisons_share_one_level() -> None:
    """Šidák: so many independent intervals all hold the truth with the probability of the level."""
    part = Part(np.array(4.0), np.array(10.0))
    noise = Noise(part, Part(np.array(0.0), np.array(10.0)), 1)
    for comparisons in (1, 5):
        reach = half_width(noise, 0.95, comparisons)
        each = stats.t.cdf(reach / 2, 10) - stats.t.cdf(-reach / 2, 10)
        assert each**comparisons == pytest.approx(0.95)


def test_five_folds_three_replicates_nine_classes_take_no_time() -> None:
    own, other = (random_runs(3, 5, cases=120, classes=9, draw=draw) for draw in (1, 2))
    started = time.process_time()
    difference(own, other, "dice_global")
    assert time.process_time() - started < 0.5


# Tests of significance


def gained(replicates: int, gains: list[float]) -> tuple[list[Outcome], list[Outcome]]:
    pairs = [(each, fold) for each in range(replicates) for fold in range(len(gains) // replicates)]
    own = [binary(*pair, [0.5 + gain, 0.5 + gain]) for pair, gain in zip(pairs, gains, strict=True)]
    return own, [binary(*pair, [0.5, 0.5]) for pair in pairs]


def test_five_folds_of_one_replicate_are_not_tested() -> None:
    found = signed_rank(*gained(1, [0.1, 0.2, 0.3, 0.4, 0.5]), "dice_case")
    assert found == (None, "no Wilcoxon test from fewer than 3 replicates, and 5 pairs cannot give p below 0.0625")


def test_two_replicates_are_not_tested() -> None:
    found = signed_rank(*gained(2, [0.01 * gain for gain in range(1, 11)]), "dice_case")
    assert found == (None, "no Wilcoxon test from fewer than 3 replicates")


def test_three_replicates_are_tested_and_the_test_called_approximate() -> None:
    found = signed_rank(*gained(3, [0.01 * gain for gain in range(1, 16)]), "dice_case")
    assert found.p == pytest.approx(2 / 2**15)  # every one of 15 differences has the same sign
    assert found.note.startswith("approximate")


def test_no_difference_at_all_is_no_evidence() -> None:
    assert signed_rank(*gained(3, [0.0] * 15), "dice_case").p == 1


def test_holm_by_hand() -> None:
    # In order 0.005·4, 0.01·3, 0.03·2, 0.04·1: the last may not fall below the one before.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_holm_counts_only_the_tests_made_and_stays_a_probability() -> None:
    assert holm([0.6, None, 0.7]) == [1.0, None, 1.0]
    assert holm([None]) == [None]
    assert holm([]) == []
