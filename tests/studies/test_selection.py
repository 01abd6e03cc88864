from polydice.studies.recipe import Planned
from polydice.studies.selection import Entry, chosen
from polydice.studies.study import Finished


def finished(loss: str, value: str, fold: int, validation: float, test: float) -> Finished:
    run = Planned("set", "unet", loss, value, fold, 0, "DiceLoss()")
    return Finished(run, {"validation_dice_global": validation, "test": {"dice_global": test}})


def test_the_best_validation_is_chosen_in_each_fold_whatever_the_test_says() -> None:
    runs = [
        finished("P", "epsilon=0.0", 0, 0.8, 0.1),
        finished("P", "epsilon=0.5", 0, 0.7, 0.9),
        finished("P", "epsilon=0.0", 1, 0.6, 0.9),
        finished("P", "epsilon=0.5", 1, 0.9, 0.1),
        finished("Dice", "", 0, 0.5, 0.5),
    ]
    found = chosen(runs, {"P": 2, "Dice": 1})
    values = {(entry.loss, entry.fold): each.run.value for entry, each in found.items()}
    assert values == {("P", 0): "epsilon=0.0", ("P", 1): "epsilon=0.5", ("Dice", 0): ""}


def test_the_score_that_chose_the_weights_chooses_the_value() -> None:
    """What finds nothing has the higher score with the background."""
    runs = []
    for value, foreground, with_background in (("epsilon=0.0", 0.0, 0.48), ("epsilon=0.5", 0.2, 0.4)):
        run, result = finished("P", value, 0, with_background, 0.5)
        runs.append(Finished(run, result | {"validation_dice_foreground": foreground}))
    for score, value in (("dice_foreground", "epsilon=0.5"), ("dice_global", "epsilon=0.0")):
        given = [Finished(run, result | {"settings": {"score": score}}) for run, result in runs]
        assert chosen(given, {"P": 2})[Entry("set", "unet", "P", 0, 0)].run.value == value
    undefined = [
        Finished(run, result | {"settings": {"score": "dice_foreground"}, "validation_dice_foreground": None})
        for run, result in runs
    ]
    assert chosen(undefined, {"P": 2})[Entry("set", "unet", "P", 0, 0)].run.value == "epsilon=0.0", "the first"


def test_a_choice_waits_until_every_value_is_trained() -> None:
    assert chosen([finished("P", "epsilon=0.0", 0, 0.8, 0.1)], {"P": 2}) == {}


def test_of_equal_scores_the_first_listed_counts() -> None:
    runs = [finished("P", "order=1", 0, 0.8, 0.1), finished("P", "order=2", 0, 0.8, 0.9)]
    assert chosen(runs, {"P": 2})[Entry("set", "unet", "P", 0, 0)].run.value == "order=1"
