from typing import Any

import numpy as np
import pytest
import torch

from polydice.studies.outcomes import Outcome, Score, difference_of, scored
from polydice.training.metrics import dice_case, dice_foreground, dice_global
from tests.studies.outcomes import all_scores, binary, random_runs

METRICS: dict[Score, Any] = {
    "dice_foreground": dice_foreground, "dice_global": dice_global, "dice_case": dice_case
}  # fmt: skip


@all_scores
@pytest.mark.parametrize("nested", [False, True])
def test_the_scores_are_the_metrics_of_training(score: Score, nested: bool) -> None:
    runs = random_runs(3, 5)
    expected = np.reshape([METRICS[score](torch.tensor(run.matrices)) for run in runs], (5, 3)).T
    assert scored(runs, score, nested).values == pytest.approx(expected, rel=1e-12)


@all_scores
def test_a_share_is_how_far_the_mean_moves_with_the_weight_of_a_group(score: Score) -> None:
    """Against the scores themselves, with the cases of one patient a millionth part more of themselves."""
    runs, step = random_runs(2, 3), 10**6
    found, names = scored(runs, score, nested=False), sorted({name for run in runs for name in run.groups})
    for place, name in enumerate(names):
        own = [np.array([name == each for each in run.groups]) for run in runs]
        more = [
            run._replace(matrices=np.where(which[:, None, None], step + 1, step) * run.matrices)
            for run, which in zip(runs, own, strict=True)
        ]
        if score == "dice_case":  # a mean over cases, whatever their sizes
            more = [
                Outcome(run.replicate, run.fold, run.groups * 500 + tuple(np.array(run.groups)[which]),
                        np.concatenate([*[run.matrices] * 500, run.matrices[which]]))
                for run, which in zip(runs, own, strict=True)
            ]  # fmt: skip
        moved = (scored(more, score, False).values - scored(runs, score, False).values).mean(1)
        weight = 1 / 500 if score == "dice_case" else 1 / step
        size = len({each for run in runs[:1] for each in run.groups})
        assert moved / weight == pytest.approx(found.shares[:, place] / np.sqrt(size / (size - 1)), rel=0.01, abs=1e-6)


def test_with_cuts_of_their_own_the_shares_are_about_the_mean_of_the_replicate() -> None:
    """Every case a group: Dice per case is a mean, and a share what a case has in it."""
    cut = [[("a", 0.5), ("b", 0.7)], [("c", 0.9), ("d", 0.6)]], [[("a", 0.4), ("d", 0.8)], [("b", 0.7), ("c", 0.8)]]
    runs = [
        binary(replicate, fold, [dice for _, dice in part], [name for name, _ in part])
        for replicate, parts in enumerate(cut)
        for fold, part in enumerate(parts)
    ]
    found = scored(runs, "dice_case", nested=True)
    assert found.values == pytest.approx(np.array([[0.6, 0.75], [0.6, 0.75]]))
    assert 4 * found.shares + 0.675 == pytest.approx(np.array([[0.5, 0.7, 0.9, 0.6], [0.4, 0.7, 0.8, 0.8]]))


def test_a_group_that_a_replicate_does_not_test_has_no_share_in_it() -> None:
    runs = [binary(0, 0, [0.5, 0.7], ["a", "b"]), binary(1, 0, [0.5, 0.9], ["b", "c"])]
    found = scored(runs, "dice_case", nested=True)
    assert found.shares == pytest.approx(np.array([[-0.05, 0.05, 0], [0, -0.1, 0.1]]))


def test_a_group_in_two_folds_is_one_all_the_same() -> None:
    """As frames of a video that contiguous folds have cut."""
    apart = [binary(0, 0, [0.5, 0.7], ["a", "b"]), binary(0, 1, [0.9, 0.6], ["c", "d"])]
    cut = [apart[0], apart[1]._replace(groups=("b", "d"))]
    for nested in (False, True):
        whole, found = (scored(runs, "dice_case", nested).shares[0] for runs in (apart, cut))
        assert found == pytest.approx(np.array([whole[0], whole[1] + whole[2], whole[3]]))


@all_scores
def test_the_order_of_runs_and_of_cases_does_not_matter(score: Score) -> None:
    own, other = random_runs(3, 5, draw=1), random_runs(3, 5, draw=2)
    turned = [
        [run._replace(groups=run.groups[::-1], matrices=run.matrices[::-1]) for run in runs]
        for runs in (own[::-1], other[7:] + other[:7])
    ]
    for one, two in zip(difference_of(own, other, score, True), difference_of(*turned, score, True), strict=True):
        assert one == pytest.approx(two, abs=1e-12)


def test_a_case_without_any_class_counts_for_neither() -> None:
    runs = [binary(0, 0, [0.9, 0.7, 0.8]), binary(0, 0, [0.5, 0.6, 0.7])]
    for run in runs:
        run.matrices[0] = [[1000, 0], [0, 0]]
    found = difference_of(runs[:1], runs[1:], "dice_case", nested=False)
    assert found.values == pytest.approx(np.array([[0.1]]))
    assert found.shares == pytest.approx(np.zeros((1, 3)), abs=1e-12)
    for run in runs:
        run.matrices[:] = [[1000, 0], [0, 0]]
    with pytest.raises(ValueError, match="fold 0: no test case has a class that dice_case counts"):
        difference_of(runs[:1], runs[1:], "dice_case", nested=False)


# Runs that cannot be paired


def test_a_missing_partner_is_named() -> None:
    runs = random_runs(2, 3)
    with pytest.raises(ValueError, match=r"without a partner in the baseline: \(1, 2\); .* in the loss: none"):
        difference_of(runs, runs[:-1], "dice_case", nested=False)


def test_an_incomplete_grid_is_named() -> None:
    with pytest.raises(ValueError, match=r"every replicate needs the same folds; missing .*: \(1, 2\)"):
        scored(random_runs(2, 3)[:-1], "dice_case", nested=False)


def test_a_run_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="4 runs, but 3 pairs of replicate and fold"):
        scored([*random_runs(1, 3), *random_runs(1, 1)], "dice_case", nested=False)


def test_no_runs_are_refused() -> None:
    with pytest.raises(ValueError, match="no runs"):
        scored([], "dice_case", nested=False)


def test_other_cases_are_refused() -> None:
    runs = random_runs(1, 2)
    renamed = [run._replace(groups=run.groups[::-1]) for run in runs]
    moved = [run._replace(matrices=run.matrices[::-1]) for run in runs]
    for other in (renamed, moved, [run._replace(matrices=run.matrices[:-1], groups=run.groups[:-1]) for run in runs]):
        with pytest.raises(ValueError, match="fold 0, replicate 0: the loss and the baseline were not tested on the s"):
            difference_of(runs, other, "dice_case", nested=False)
    again = runs + [run._replace(replicate=1) for run in moved]
    with pytest.raises(ValueError, match="fold 0, replicate 1: two seeds were not tested on the same cases"):
        scored(again, "dice_case", nested=False)
    assert scored(again, "dice_case", nested=True).values.shape == (2, 2), "a new cut has other cases"


def test_an_unknown_score_is_refused() -> None:
    with pytest.raises(ValueError, match="'dice_foreground', 'dice_global' or 'dice_case': 'iou'"):
        scored(random_runs(1, 2), "iou", nested=False)  # type: ignore[arg-type]
