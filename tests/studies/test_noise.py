import numpy as np
import pytest
from scipy import stats

from polydice.studies.noise import Noise, of_mean_difference

UNKNOWN = Noise(0, 0)


@pytest.mark.parametrize("shape", [(1, 5), (4, 1)], ids=["one seed", "one fold"])
def test_one_level_alone_is_the_t_test_of_its_values(shape: tuple[int, int]) -> None:
    observed = np.random.default_rng(0).normal(size=shape)
    variance, freedom = of_mean_difference(observed, UNKNOWN)
    expected = stats.ttest_1samp(observed.ravel(), 0)
    assert freedom == expected.df
    assert observed.mean() / variance**0.5 == pytest.approx(expected.statistic, rel=1e-12)


def test_groups_alone_are_what_they_were_measured_to_be() -> None:
    assert of_mean_difference(np.array([[0.3]]), Noise(0.04, 17)) == (0.04, 17)


def test_nothing_measured_has_no_freedom() -> None:
    assert of_mean_difference(np.array([[0.3]]), UNKNOWN) == (0, 0)


def test_seeds_and_folds_that_stand_out_add_up_and_the_runs_in_both_count_once() -> None:
    seed, fold = np.array([[-3.0], [3.0]]), np.array([[-5.0, 0.0, 5.0]])
    run = np.array([[0.5, -1.0, 0.5], [-0.5, 1.0, -0.5]])  # sums to 0 along both axes
    variance, freedom = of_mean_difference(seed + fold + run, UNKNOWN)
    seeds, folds, runs = 18 / 1 / 2, 50 / 2 / 3, 3 / 2 / 6  # squares / freedom / count
    assert variance == pytest.approx(seeds + folds - runs, rel=1e-12)
    assert freedom == pytest.approx(variance**2 / (seeds**2 / 1 + folds**2 / 2), rel=1e-12)


def test_seeds_and_folds_that_do_not_stand_out_are_estimates_of_what_is_below() -> None:
    seed, fold = np.array([[-0.1], [0.1]]), np.array([[-0.2, 0.0, 0.2]])
    run = np.array([[0.5, -1.0, 0.5], [-0.5, 1.0, -0.5]])
    variance, freedom = of_mean_difference(seed + fold + run, Noise(0.1, 10))
    below, folds = 0.25 + 0.1, 0.08 / 2 / 3
    below_freedom = below**2 / (0.25**2 / 2 + 0.1**2 / 10)
    assert freedom == pytest.approx(below_freedom + 2, rel=1e-12)
    assert variance == pytest.approx((below_freedom * below + 2 * folds) / freedom, rel=1e-12)
