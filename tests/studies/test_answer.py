from typing import Any

import pytest

from polydice.studies.answer import KEEP, Response, Tried, answered, forgiving, plateau, responses, warnings
from polydice.studies.recipe import Planned
from polydice.studies.study import Finished
from polydice.studies.verdicts import Verdict

WHOLE = {"predicts_nothing": False, "lost_classes": []}
LESS = "but by less than the margin"
RATES = Response("Dice", "rate", (Tried(0.01, 90.6), Tried(0.04, 92.3), Tried(0.16, 91.7)), 0.04, 1.0)


def found(kind: Any, mean: float = 1.0, more: int | None = None, minutes: float | None = None) -> Verdict:
    return Verdict(kind, mean, mean - 0.5, mean + 0.5, 1.0, more, minutes)


def run(loss: str, fold: int, score: float, expression: str = "DiceLoss()", **settings: Any) -> Finished:
    value = ", ".join(f"{name}={value}" for name, value in settings.items()) + expression
    planned = Planned("set", "unet", loss, value, fold, 999, expression, tuple(settings.items()), True, True)
    return Finished(planned, {"settings": {"score": "dice_global"}, "validation_dice_global": score / 100})


# Which loss?


def test_the_best_of_those_that_are_better_than_every_baseline_is_taken() -> None:
    verdicts = {
        "Dice": {},
        "Dice + CE": {"Dice": found("better", 0.9)},
        "A": {"Dice": found("better", 2.0), "Dice + CE": found("better", 1.1)},
        "B": {"Dice": found("better", 2.2), "Dice + CE": found(f"better, {LESS}", 0.3)},
        "C": {"Dice": found("better", 2.9), "Dice + CE": found("equivalent", 0.2)},
    }
    means = {"Dice": 0.8, "Dice + CE": 0.809, "A": 0.82, "B": 0.822, "C": 0.829}
    told = answered(verdicts, means, [RATES._replace(loss="B")])
    assert told == (
        "Take B at rate 0.04: it is better than Dice by 2.20 points and Dice + CE by 0.30 points (less than the "
        "margin), and that is sure. Better than the baselines, too: Dice + CE, A."
    )


def test_nobody_is_told_to_take_a_loss_whose_rate_was_not_tuned() -> None:
    verdicts = {"Dice": {}, "A": {"Dice": found("better", 2.0)}}
    assert answered(verdicts, {"A": 0.8}, []) == (
        "A is better than Dice by 2.00 points, and that is sure, but at rates that were not tuned: tune them before "
        "you take it."
    )


def test_where_none_is_clearly_better_one_keeps_what_one_has() -> None:
    verdicts = {"Dice": {}, "A": {"Dice": found("equivalent")}}
    assert answered(verdicts, {}, []) == KEEP
    slight = {"Dice": {}, "A": {"Dice": found(f"better, {LESS}", 0.5)}}
    assert answered(slight, {}, []) == KEEP, "a difference that does not matter"
    assert KEEP == "No loss is clearly better: keep what you have."


def test_nobody_is_told_to_keep_what_is_worse() -> None:
    verdicts = {
        "Dice": {},
        "Dice + CE": {"Dice": found("worse", -5.0)},
        "A": {"Dice": found("equivalent", 0.1), "Dice + CE": found("better", 5.1)},
        "B": {"Dice": found(f"worse, {LESS}", -0.5), "Dice + CE": found("better", 4.5)},
    }
    assert answered(verdicts, {}, []) == f"{KEEP} Worse than Dice: Dice + CE by 5.00 points."
    many = {"Dice": {}, **{name: {"Dice": found("worse", -2.0)} for name in "ABCD"}}
    assert answered(many, {}, []) == f"{KEEP} Worse than Dice: 4 losses."


def test_the_baselines_own_rate_is_not_taken_for_its_rank() -> None:
    verdicts = {"Dice": {}, "A": {"Dice": found("undecided", 3.0)}}
    assert "Dice did best" not in answered(verdicts, {}, [RATES])


def test_what_is_undecided_is_told_with_what_decides_it() -> None:
    verdicts = {
        "Dice": {},
        "A": {"Dice": found("undecided", 0.5, 4, 31.0)},
        "B": {"Dice": found("undecided", 0.5, 2, 15)},
    }
    told = answered(verdicts, {}, [])
    assert told == f"{KEEP} Undecided: A, B; 4 more replicates (about 31 minutes) should decide."
    verdicts["B"] = {"Dice": found("undecided", 0.5)}
    assert answered(verdicts, {}, []) == (
        f"{KEEP} Undecided: A; 4 more replicates (about 31 minutes) should decide. "
        "Undecided: B; not even 30 replicates are sure to decide."
    )


def test_too_few_runs_are_not_called_undecided() -> None:
    verdicts = {
        "Dice": {},
        "A": {"Dice": found("undecided", 0.5, 4)},
        "B": {"Dice": found("too few runs", -20.0)},
    }
    assert answered(verdicts, {}, []) == (
        f"{KEEP} Undecided: A; 4 more replicates should decide. "
        "Too few runs: B; not even 30 replicates are sure to decide."
    )


def test_a_study_of_seeds_is_told_of_seeds() -> None:
    seeds = found("undecided", 0.5, 4)._replace(outer="seed")
    verdicts = {"Dice": {}, "A": {"Dice": seeds}, "B": {"Dice": seeds._replace(more=None)}}
    told = answered(verdicts, {}, [])
    assert "A; 4 more seeds should decide" in told
    assert "B; not even 30 seeds are sure to decide" in told


def test_one_replicate_is_no_answer() -> None:
    verdicts = {"Dice": {}, "A": {"Dice": found("too few runs", 5.0, 2, 60.0)}}
    assert answered(verdicts, {}, []) == (
        "Too few runs for an answer: 2 more replicates (about 60 minutes) should give one."
    )
    assert answered({"Dice": {}}, {}, []) == "There is nothing to compare yet."


# How forgiving?


def test_a_plateau_is_the_span_around_the_best() -> None:
    assert RATES.span == (0.04, 0.16)
    gap = (Tried(1, 92.0), Tried(2, 90.0), Tried(3, 92.5), Tried(4, 91.6))
    assert plateau(gap, 1.0) == [3, 4], "without a gap"
    assert plateau([Tried("sgd", 92.0), Tried("adamw", 91.5), Tried("other", 80.0)], 1.0) == ["sgd", "adamw"]


def test_the_most_forgiving_comes_first() -> None:
    wide = Response("A", "rate", (Tried(0.01, 92.0), Tried(0.04, 92.3), Tried(0.16, 91.7)), 0.04, 1.0)
    assert forgiving([RATES, wide]) == (
        "How forgiving: the best rate of each loss, and in brackets those within 1 point of it: A 0.04 (0.01 to 0.16); "
        "Dice 0.04 (0.04 to 0.16)."
    )
    assert forgiving([RATES._replace(margin=0.1)]).endswith("within 0.1 points of it: Dice 0.04 (no other).")
    named = Response("A", "optimizer", (Tried("sgd", 92.0), Tried("adamw", 91.5)), "sgd", 1.0)
    assert forgiving([named]).endswith(
        "the best optimizer of each loss, and in brackets those within 1 point of it: A sgd (sgd or adamw)."
    )
    assert "A 0 (0 to 0.1)" in forgiving([Response("A", "decay", (Tried(0.0, 92.0), Tried(0.1, 91.5)), 0.0, 1.0)])
    assert forgiving([]) == ""


def test_scores_against_a_setting_come_from_the_runs() -> None:
    runs = [
        run("Dice", fold, score + fold, rate=rate)
        for rate, score in ((0.16, 80.0), (0.01, 70.0), (0.04, 90.0))
        for fold in (0, 1)
    ]
    (found,) = responses(runs, {}, 1.0)
    assert found.tried == (
        (0.01, pytest.approx(70.5), pytest.approx(70), pytest.approx(71)),
        (0.04, pytest.approx(90.5), pytest.approx(90), pytest.approx(91)),
        (0.16, pytest.approx(80.5), pytest.approx(80), pytest.approx(81)),
    )
    assert (found.loss, found.setting, found.chosen, found.at_end) == ("Dice", "rate", 0.04, "")
    (other,) = responses(runs, {"Dice": runs[0].run.value}, 1.0)
    assert (other.chosen, other.at_end) == (0.16, "largest"), "what was written down counts"
    (without,) = responses(runs[1:], {}, 1.0)
    assert [each.value for each in without.tried] == [0.01, 0.04], "a value with a run that diverged"


def test_other_settings_and_the_losss_own_values_are_as_chosen() -> None:
    runs = [
        run("X", 0, score, f"PolyDice1Loss({epsilon})", rate=rate, optimizer=optimizer)
        for epsilon, rate, optimizer, score in (
            (0.0, 0.01, "sgd", 70), (0.5, 0.01, "sgd", 80), (0.5, 0.1, "sgd", 90), (0.5, 0.1, "adamw", 85),
            (0.0, 0.1, "sgd", 60),
        )
    ]  # fmt: skip
    rate, optimizer = responses(runs, {}, 1.0)
    assert [(each.value, each.mean) for each in rate.tried] == [(0.01, pytest.approx(80)), (0.1, pytest.approx(90))]
    assert [each.value for each in optimizer.tried] == ["sgd", "adamw"]
    assert (optimizer.chosen, optimizer.at_end, optimizer.span) == ("sgd", "", None)


# What would make another comparison of it


def history(*scores: float | None) -> list[dict[str, Any]]:
    return [{"epoch": place, "dice_global": score} for place, score in enumerate(scores)]


def test_a_best_rate_at_the_end_of_the_list_is_told() -> None:
    largest = Response("A", "rate", (Tried(0.01, 80.0), Tried(0.04, 90.0)), 0.04, 1.0)
    smallest = largest._replace(loss="B", chosen=0.01)
    assert list(warnings([largest, smallest, RATES], [], [], "dice_global")) == [
        "The best rate of A (0.04) is the largest tried; a larger one may be better: this compares speed.",
        "The best rate of B (0.01) is the smallest tried; a smaller one may be better.",
    ]


def test_trainings_that_still_rise_compare_speed() -> None:
    rising, done = history(0.5, None, 0.7), history(0.5, 0.7, 0.6)
    (told,) = warnings([], [], [rising, rising, done], "dice_global")
    assert told.startswith("In 2 of 3 runs validation is best at the end")
    assert "This compares speed." in told
    assert not list(warnings([], [], [rising, done], "dice_global"))
    assert not list(warnings([], [], [history(0.5)], "dice_global")), "one validation says nothing"


def test_one_rate_for_all_is_told() -> None:
    runs = [
        Finished(each.run, {"settings": {"rate": 0.01}, "test": WHOLE}) for each in (run("A", 0, 80), run("B", 0, 80))
    ]
    (told,) = warnings([], runs, [], "dice_global")
    assert told.startswith("All losses were trained at one rate, 0.01")
    assert not list(warnings([RATES], runs, [], "dice_global"))
    runs[0].result["settings"]["rate"] = 0.02
    assert not list(warnings([], runs, [], "dice_global"))


def test_runs_that_have_collapsed_are_told_beside_the_answer() -> None:
    """Networks that predict nothing are all alike, which is no reason to call their losses equivalent."""
    tests = {"A": {"predicts_nothing": True, "lost_classes": []}, "B": WHOLE}
    runs = [Finished(run(loss, fold, 0).run, {"test": test}) for loss, test in tests.items() for fold in (0, 1)]
    (told,) = warnings([], runs, [], "dice_global")
    assert told.startswith("2 of 4 runs collapsed (A: 2): the network predicts nothing, or has lost a class.")
    assert not list(warnings([], runs[2:], [], "dice_global"))
