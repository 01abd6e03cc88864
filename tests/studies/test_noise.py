import numpy as np
import pytest
from scipy import stats

from polydice.studies.noise import Noise, Part, crossed, nested

rng = np.random.default_rng(0)


def part(variance: float, freedom: float) -> Part:
    return Part(np.array(variance), np.array(freedom))


def test_the_variance_of_a_mean_of_replicates_that_vary_together() -> None:
    """Of R numbers of variance 1 and covariance 0.4: (1 + (R − 1)·0.4)/R."""
    noise = Noise(part(1.0, 8), part(0.4, 20), 2)
    for count in (2, 3, 10):
        covariance = np.full((count, count), 0.4) + 0.6 * np.eye(count)
        assert noise.of_mean(count).variance == pytest.approx(covariance.mean(), rel=1e-12)
    assert noise.of_mean() == noise.of_mean(2)


def test_degrees_of_freedom_are_never_fewer_than_the_replicates_have() -> None:
    assert Noise(part(1.0, 0.1), part(1.0, 0.1), 4).of_mean().freedom == 3
    assert Noise(part(1.0, 12), part(0.0, 5), 4).of_mean().freedom == pytest.approx(12)


def test_one_fold_is_the_t_test_of_the_replicates() -> None:
    values = rng.normal(size=(4, 1))
    for found in (nested(values, np.zeros((4, 7))), crossed(values, np.zeros((4, 7)))):
        assert np.sqrt(found.of_mean().variance) == pytest.approx(stats.sem(values.ravel()), rel=1e-12)
        assert found.of_mean().freedom == pytest.approx(3)


def test_replicates_that_do_not_stand_out_are_one_more_estimate() -> None:
    values = np.array([[1.0, 2.0, 3.0], [1.1, 2.1, 3.1]])  # the folds vary, the replicates hardly
    found = nested(values, np.zeros((2, 9)))
    within, between = 1 / 3, 0.1**2 / 2
    assert found.one.variance == pytest.approx((4 * within + 1 * between) / 5)
    assert found.one.freedom == 5


def test_replicates_that_stand_out_are_believed() -> None:
    values = np.array([[1.0, 1.1, 0.9], [3.0, 3.1, 2.9]])
    found = nested(values, np.zeros((2, 9)))
    assert (found.one.variance, found.one.freedom) == (pytest.approx(2.0), 1)


def test_what_all_replicates_share_is_the_covariance_of_their_groups() -> None:
    shares = rng.normal(size=(3, 40))
    shares -= shares.mean(1, keepdims=True)
    found = nested(np.zeros((3, 2)), shares).common
    covariance = np.cov(shares)  # over the groups
    assert found.variance == pytest.approx(max(0, 40 * covariance[~np.eye(3, dtype=bool)].mean()), rel=1e-9)
    alike = nested(np.zeros((3, 2)), np.tile(shares[:1], (3, 1))).common
    assert alike.variance == pytest.approx(40 * covariance[0, 0])
    assert alike.freedom == pytest.approx(39)


def test_seeds_and_folds_that_stand_out_add_up_and_the_runs_in_both_count_once() -> None:
    seed, fold = np.array([[-3.0], [3.0]]), np.array([[-5.0, 0.0, 5.0]])
    run = np.array([[0.5, -1.0, 0.5], [-0.5, 1.0, -0.5]])  # sums to 0 along both axes
    variance, freedom = crossed(seed + fold + run, np.zeros((2, 9))).of_mean()
    seeds, folds, runs = 18 / 1 / 2, 50 / 2 / 3, 3 / 2 / 6  # squares / freedom / count
    assert variance == pytest.approx(seeds + folds - runs, rel=1e-12)
    assert 1 <= freedom <= 2, "there are but two seeds"


def test_more_seeds_lower_what_is_theirs_and_leave_the_folds() -> None:
    seed, fold = np.array([[-3.0], [3.0]]), np.array([[-5.0, 0.0, 5.0]])
    found = crossed(seed + fold, np.zeros((2, 9)))
    assert found.of_mean(10**6).variance == pytest.approx(50 / 2 / 3, rel=1e-3)
    assert found.of_mean(4).variance == pytest.approx(50 / 2 / 3 + 18 / 4)


@pytest.mark.parametrize("noise", [nested, crossed])
def test_many_studies_at_once_are_each_as_alone(noise: object) -> None:
    values, shares = rng.normal(size=(6, 3, 5)), rng.normal(size=(6, 3, 20)) / 20
    together = noise(values, shares).of_mean()  # type: ignore[operator]
    for place in range(6):
        alone = noise(values[place], shares[place]).of_mean()  # type: ignore[operator]
        assert (together.variance[place], together.freedom[place]) == pytest.approx((alone.variance, alone.freedom))


def test_no_spread_at_all_is_no_variance() -> None:
    for noise in (nested, crossed):
        variance, freedom = noise(np.full((2, 3), 0.3), np.zeros((2, 6))).of_mean()
        assert variance == pytest.approx(0, abs=1e-30)
        assert freedom >= 1
