import math
import time

import numpy as np
import pytest
import torch
from scipy import stats

from polydice.studies.statistics import (
    Difference,
    Outcome,
    Score,
    difference,
    holm,
    signed_rank,
    summary,
    verdict,
)
from polydice.training.metrics import dice_case, dice_foreground, dice_global
from tests.studies.coverage import SETTINGS, coverage, levelled, nested

METRICS = {"dice_foreground": dice_foreground, "dice_global": dice_global, "dice_case": dice_case}
all_scores = pytest.mark.parametrize("score", METRICS)


def random_runs(seeds: int, folds: int, cases: int = 6, classes: int = 3, draw: int = 0) -> list[Outcome]:
    """The truth depends on the fold alone; classes and whole foregrounds are missing from some cases."""
    runs = []
    for fold in range(folds):
        truth = np.random.default_rng(fold).integers(1, 200, (cases, classes))
        truth[::3, 1] = 0
        truth[4::5, 1:] = 0
        for seed in range(seeds):
            rng = np.random.default_rng([draw, seed, fold])
            right = rng.binomial(truth, rng.uniform(0.6, 0.9))
            matrices = np.zeros((cases, classes, classes), np.int64)
            for label in range(classes):
                matrices[:, label, label] = right[:, label]
                matrices[:, label, (label + 1) % classes if label else 0] += (truth - right)[:, label]
            runs.append(Outcome(seed, fold, tuple(f"patient {case // 2}" for case in range(cases)), matrices))
    return runs


def binary(seed: int, fold: int, dices: list[float], groups: list[str] | None = None) -> Outcome:
    """Cases of 100 foreground pixels, as many predicted: Dice is the part that is right."""
    hit = np.round(100 * np.array(dices)).astype(np.int64)
    matrices = np.stack([800 + hit, 100 - hit, 100 - hit, hit], -1).reshape(-1, 2, 2)
    return Outcome(seed, fold, tuple(groups or map(str, range(len(dices)))), matrices)


# Mean and spread


@all_scores
def test_summary_has_the_metrics_of_training(score: Score) -> None:
    runs = random_runs(seeds=3, folds=5)
    expected = np.reshape([METRICS[score](torch.tensor(run.matrices)) for run in runs], (5, 3))
    found = summary(runs, score)
    assert found.mean == pytest.approx(expected.mean(), rel=1e-12)
    assert found.sd == pytest.approx(expected.mean(1).std(ddof=1), rel=1e-12)
    assert found.seed_noise == pytest.approx(expected.mean(0).std(ddof=1), rel=1e-12)
    assert found.runs == 15


def test_summary_by_hand() -> None:
    runs = [binary(0, 0, [0.5, 0.7]), binary(0, 1, [0.8, 0.8]), binary(1, 0, [0.6, 0.8]), binary(1, 1, [0.9, 0.9])]
    # Folds: (0.6 + 0.7)/2 and (0.8 + 0.9)/2; seeds: (0.6 + 0.8)/2 and (0.7 + 0.9)/2
    assert summary(runs, "dice_case") == pytest.approx((0.75, 0.2 / math.sqrt(2), 0.1 / math.sqrt(2), 4))


def test_one_run_has_no_spread() -> None:
    assert summary([binary(0, 0, [0.5])], "dice_case") == (0.5, None, None, 1)


# The paired difference


@all_scores
def test_difference_is_that_of_the_means(score: Score) -> None:
    own, other = random_runs(3, 5, draw=1), random_runs(3, 5, draw=2)
    found = difference(own, other, score)
    assert found.mean == pytest.approx(summary(own, score).mean - summary(other, score).mean, abs=1e-12)
    assert found.low < found.mean < found.high
    assert found.high - found.mean == pytest.approx(found.standard_error * stats.t.ppf(0.975, found.freedom))
    assert (found.seeds, found.folds, found.level, found.caveat) == (3, 5, 0.95, "")


def test_groups_of_one_run_give_the_standard_error_of_their_mean() -> None:
    gains = np.array([0.0, 0.1, 0.3, 0.05, 0.2, 0.1])
    own, other = [binary(0, 0, list(0.5 + gains))], [binary(0, 0, [0.5] * 6)]
    draws = 100_000
    found = difference(own, other, "dice_case", resamples=draws)
    # A variance from n draws is off by √(2/n), about; its root by half of that.
    assert found.standard_error == pytest.approx(stats.sem(gains), rel=3 * math.sqrt(1 / 2 / draws))
    assert found.freedom == 5


@all_scores
def test_more_of_the_same_patient_is_no_more_data(score: Score) -> None:
    groups = ["a", "b", "c", "d"]
    dices = [([0.5, 0.7, 0.4, 0.8], [0.4, 0.7, 0.5, 0.6]), ([0.6, 0.9, 0.5, 0.3], [0.6, 0.7, 0.3, 0.3])]
    once = [[binary(0, fold, pair[loss], groups) for fold, pair in enumerate(dices)] for loss in (0, 1)]
    often = [[binary(0, fold, 5 * pair[loss], 5 * groups) for fold, pair in enumerate(dices)] for loss in (0, 1)]
    assert difference(*often, score) == pytest.approx(difference(*once, score))


@all_scores
def test_more_seeds_are_no_more_patients(score: Score) -> None:
    own, other = random_runs(1, 5, draw=1), random_runs(1, 5, draw=2)
    copies = [[run._replace(seed=seed) for run in runs for seed in range(4)] for runs in (own, other)]
    one, four = difference(own, other, score), difference(*copies, score)
    assert four.standard_error == pytest.approx(one.standard_error, rel=1e-9)
    assert four.freedom == pytest.approx(one.freedom, rel=1e-9)


def test_a_single_group_is_drawn_by_its_cases() -> None:
    own, other = [0.5, 0.9, 0.7], [0.5, 0.6, 0.8]
    single, each = (
        difference([binary(0, 0, own, groups)], [binary(0, 0, other, groups)], "dice_case")
        for groups in (["a", "a", "a"], ["a", "b", "c"])
    )
    assert single == each


def test_equal_runs_differ_by_nothing() -> None:
    runs = random_runs(2, 5)
    found = difference(runs, runs, "dice_global")
    assert (found.mean, found.low, found.high) == (0, 0, 0)
    assert verdict(found, "Twin").startswith("Twin scores the same as Dice")


@all_scores
def test_the_order_of_runs_and_of_cases_does_not_matter(score: Score) -> None:
    own, other = random_runs(3, 5, draw=1), random_runs(3, 5, draw=2)
    turned = [
        [run._replace(groups=run.groups[::-1], matrices=run.matrices[::-1]) for run in runs]
        for runs in (own[::-1], other[7:] + other[:7])
    ]
    assert difference(own, other, score) == difference(own[::-1], other[7:] + other[:7], score)
    assert difference(own, other, score)[:6] == pytest.approx(difference(*turned, score)[:6], rel=1e-9)
    assert summary(own, score) == summary(own[::-1], score)


def test_the_seed_decides_the_draws() -> None:
    own, other = random_runs(1, 1, cases=20, draw=1), random_runs(1, 1, cases=20, draw=2)
    first, again, another = (difference(own, other, "dice_case", seed=seed) for seed in (4, 4, 5))
    assert first == again
    assert first != another
    assert first.standard_error == pytest.approx(another.standard_error, rel=0.1)


def test_a_wider_level_gives_a_wider_interval() -> None:
    own, other = random_runs(3, 5, draw=1), random_runs(3, 5, draw=2)
    half, almost = (difference(own, other, "dice_case", level=level) for level in (0.5, 0.99))
    assert almost.low < half.low < half.high < almost.high


def test_what_the_interval_leaves_out_is_said() -> None:
    def caveat(seeds: int, folds: int) -> str:
        return difference(random_runs(seeds, folds, draw=1), random_runs(seeds, folds, draw=2), "dice_case").caveat

    assert "one seed: seed noise is not in this interval, except for what shows between the folds" in caveat(1, 5)
    assert caveat(1, 1) == "All runs have one seed: seed noise is not in this interval."
    assert "one fold" in caveat(3, 1)
    assert caveat(2, 2) == ""


def test_a_case_without_any_class_counts_for_neither_and_draws_of_such_cases_alone_are_left_out() -> None:
    empty = binary(0, 0, [0.5, 0.5, 0.5])
    own, other = binary(0, 0, [0.9, 0.7, 0.7]), binary(0, 0, [0.5, 0.6, 0.6])
    for run in (own, other):
        run.matrices[0] = [[1000, 0], [0, 0]]
    found = difference([own], [other], "dice_case")
    assert found.mean == pytest.approx(0.1)
    assert found.standard_error == pytest.approx(0, abs=1e-12)
    for run in (own, empty):
        run.matrices[:] = [[1000, 0], [0, 0]]
    with pytest.raises(ValueError, match="fold 0: no test case has a class that dice_case counts"):
        difference([own], [empty], "dice_case")


def test_five_folds_three_seeds_nine_classes_take_no_time() -> None:
    own, other = (random_runs(3, 5, cases=120, classes=9, draw=draw) for draw in (1, 2))
    started = time.process_time()
    difference(own, other, "dice_global", resamples=2000)
    assert time.process_time() - started < 2


# Coverage: the interval holds the true difference as often as it says


REPEATS = 400
LEAST, MOST = (count / REPEATS for count in stats.binom.interval(0.999, REPEATS, 0.95))


@pytest.mark.parametrize(
    ("seeds", "source", "score"),
    [
        (1, "groups", "dice_global"),
        (1, "½ runs, ½ groups", "dice_case"),
        (2, "groups", "dice_case"),
        (3, "seeds, alike in all folds", "dice_case"),
        (3, "runs", "dice_case"),
        (3, "folds, alike under all seeds", "dice_case"),
        (3, "a bit of all", "dice_global"),
        (5, "½ runs, ½ groups", "dice_global"),
    ],
)
def test_the_interval_covers_the_true_difference_as_often_as_it_says(seeds: int, source: str, score: Score) -> None:
    assert LEAST <= coverage(levelled, seeds, SETTINGS[source], REPEATS, score) <= MOST


def test_drawing_every_level_in_turn_does_not() -> None:
    assert coverage(nested, 3, SETTINGS["seeds, alike in all folds"], REPEATS, "dice_case") < 0.85  # too few seeds
    assert coverage(nested, 5, SETTINGS["groups"], REPEATS, "dice_case") < 0.85  # patients counted once per seed
    assert coverage(nested, 3, SETTINGS["cases, differently in each run"], REPEATS, "dice_case") > 0.99  # cases twice


# Runs that cannot be paired


def test_a_missing_partner_is_named() -> None:
    runs = random_runs(2, 3)
    with pytest.raises(ValueError, match=r"without a partner in the baseline: \(1, 2\); .* in the loss: none"):
        difference(runs, runs[:-1], "dice_case")


def test_an_incomplete_grid_is_named() -> None:
    with pytest.raises(ValueError, match=r"every seed needs the same folds; missing \(seed, fold\): \(1, 2\)"):
        summary(random_runs(2, 3)[:-1], "dice_case")


def test_a_run_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="4 runs, but 3 pairs of seed and fold"):
        summary([*random_runs(1, 3), *random_runs(1, 1)], "dice_case")


def test_no_runs_are_refused() -> None:
    with pytest.raises(ValueError, match="no runs"):
        summary([], "dice_case")


def test_other_cases_are_refused() -> None:
    runs = random_runs(1, 2)
    renamed = [run._replace(groups=run.groups[::-1]) for run in runs]
    moved = [run._replace(matrices=run.matrices[::-1]) for run in runs]
    for other in (renamed, moved, [run._replace(matrices=run.matrices[:-1], groups=run.groups[:-1]) for run in runs]):
        with pytest.raises(ValueError, match="fold 0, seed 0: the loss and the baseline were not tested on the same"):
            difference(runs, other, "dice_case")
    with pytest.raises(ValueError, match="fold 0, seed 1: two seeds were not tested on the same cases"):
        summary(runs + [run._replace(seed=1) for run in moved], "dice_case")


def test_nonsense_is_refused() -> None:
    runs = random_runs(1, 2)
    with pytest.raises(ValueError, match="'dice_foreground', 'dice_global' or 'dice_case': 'iou'"):
        summary(runs, "iou")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="resamples must be at least 2"):
        difference(runs, runs, "dice_case", resamples=1)
    with pytest.raises(ValueError, match="level between 0 and 1"):
        difference(runs, runs, "dice_case", level=95)
    with pytest.raises(ValueError, match="no interval"):
        difference([binary(0, 0, [0.5])], [binary(0, 0, [0.6])], "dice_case")


# Tests of significance


def gained(seeds: int, gains: list[float]) -> tuple[list[Outcome], list[Outcome]]:
    pairs = [(seed, fold) for seed in range(seeds) for fold in range(len(gains) // seeds)]
    own = [binary(*pair, [0.5 + gain, 0.5 + gain]) for pair, gain in zip(pairs, gains, strict=True)]
    return own, [binary(*pair, [0.5, 0.5]) for pair in pairs]


def test_five_folds_of_one_seed_are_not_tested() -> None:
    found = signed_rank(*gained(1, [0.1, 0.2, 0.3, 0.4, 0.5]), "dice_case")
    assert found == (None, "no Wilcoxon test from fewer than 3 seeds, and 5 pairs cannot give p below 0.0625")


def test_two_seeds_are_not_tested() -> None:
    found = signed_rank(*gained(2, [0.01 * gain for gain in range(1, 11)]), "dice_case")
    assert found == (None, "no Wilcoxon test from fewer than 3 seeds")


def test_three_seeds_are_tested_and_the_test_called_approximate() -> None:
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


# The sentence


def found(mean: float, low: float, high: float, caveat: str = "") -> Difference:
    return Difference(mean, low, high, 0.95, 0.01, 10, 3, 5, caveat)


def test_verdict_says_whether_the_losses_can_be_told_apart() -> None:
    assert verdict(found(0.012, 0.003, 0.021), "PolyDice-1 (ε = 0.5)") == (
        "PolyDice-1 (ε = 0.5) is better than Dice by 1.20 points (95 % interval 0.30 to 2.10, which excludes 0)."
    )
    assert verdict(found(-0.02, -0.03, -0.01), "Tversky", "the Dice loss") == (
        "Tversky is worse than the Dice loss by 2.00 points (95 % interval −3.00 to −1.00, which excludes 0)."
    )
    assert verdict(found(-0.012, -0.027, 0.003), "CE", p=0.2) == (
        "CE scores 1.20 points below Dice (95 % interval −2.70 to 0.30): these runs cannot tell them apart; "
        "Wilcoxon's p = 0.2 after Holm's correction, approximate."
    )


def test_verdict_says_what_could_make_it_wrong() -> None:
    assert verdict(found(0.012, 0.003, 0.021), "CE", p=0.08).endswith(
        "p = 0.08 after Holm's correction, approximate, so with so many losses compared this may be chance."
    )
    one_seed = found(0.012, 0.003, 0.021, "All runs have one seed.")._replace(seeds=1)
    assert verdict(one_seed, "CE") == (
        "CE scores 1.20 points above Dice (95 % interval 0.30 to 2.10, which excludes 0). All runs have one seed."
    )
