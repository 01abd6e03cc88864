import pytest

from polydice.studies.families import colours, line_title, lines, member
from polydice.studies.recipe import Variant, packaged, parse, read
from tests.studies.made_up import RECIPE


@pytest.mark.parametrize("name", packaged())
def test_every_packaged_recipe_has_a_colour_of_its_own_for_each_loss(name: str) -> None:
    found = colours(read(name))
    assert list(found)
    assert len(set(found.values())) == len(found)


def test_a_list_of_values_and_losses_by_the_value_make_the_same_line() -> None:
    listed = lines(read("paper-unet"))["order"]
    single = lines(read("order"))["order"]
    for found in (listed, single):
        (line,) = found.values()
        assert [member(each).value for each in line] == [1, 2, 3, 10]
        assert line_title(line) == "DropDice"


def test_what_else_differs_makes_another_line() -> None:
    found = lines(read("scale"))["epsilon"]
    assert [line_title(line) for line in found.values()] == [
        "PolyDice-1 coupled",
        "PolyDice-1 detached",
        "PolyDice-1 without scale",
    ]
    assert all([member(each).value for each in line] == [-0.2, 0.0, 0.2, 0.5] for line in found.values())


def test_one_value_is_no_line_and_a_sum_has_none() -> None:
    assert not lines(parse(RECIPE.replace("[-0.3, 0.5]", "[0.5]")))
    assert member(Variant("both", "", "PolyDice1Loss(0.5) + CrossEntropyLoss()")).parameter == ""
    assert member(Variant("each", "", "PolyDice1Loss([0.5, 0.2])")).parameter == ""
    assert "Dice + cross-entropy" in colours(read("hippocampus"))


def test_names_without_anything_in_common_are_told_by_the_loss() -> None:
    recipe = RECIPE.replace('"PolyDice-1" = { loss = "PolyDice1Loss({epsilon})", epsilon = [-0.3, 0.5] }', "")
    recipe += 'this = "PolyDice1Loss(0.1)"\nthat = "PolyDice1Loss(0.2)"\n'
    (line,) = lines(parse(recipe))["epsilon"].values()
    assert line_title(line) == "PolyDice1Loss()"
