import re
from pathlib import Path

import pytest

from polydice.studies.recipe import (
    MOST_FOLDS,
    TUNING,
    RecipeError,
    own_seed,
    packaged,
    parse,
    read,
    slug,
)
from polydice.studies.unsaid import BEGUN_BEFORE
from polydice.training.expression import parse_loss
from tests.studies.tiny import RECIPE, TUNED


def test_every_run_is_planned_once_and_has_its_own_folder() -> None:
    runs = list(parse(RECIPE).runs())
    assert len(runs) == len(set(runs)) == 2 * (1 + 2)  # folds x (Dice and two values of ε)
    assert len({run.place for run in runs}) == len(runs)
    assert {run.expression for run in runs if run.loss == "PolyDice-1"} == {
        "PolyDice1Loss(-0.2, batch=True)",
        "PolyDice1Loss(0.5, batch=True)",
    }
    assert {str(run.place) for run in runs if run.value} >= {
        "lesions/unet/polydice-1-epsilon-minus-0.2/fold-0/seed-0",
        "lesions/unet/polydice-1-epsilon-0.5/fold-1/seed-0",
    }


def test_a_study_that_is_stopped_early_has_every_loss_on_its_first_fold() -> None:
    first = list(parse(RECIPE).runs())[:3]
    assert {run.fold for run in first} == {0}
    assert {run.loss for run in first} == {"Dice", "PolyDice-1"}


def test_a_loss_can_have_fewer_seeds() -> None:
    """Those with all seeds can be compared more sharply; the others need not wait for that."""
    recipe = parse(RECIPE.replace("seeds = [0]", "seeds = [0, 1]").replace("epsilon = [", "seeds = [0], epsilon = ["))
    found = {(run.loss, run.seed) for run in recipe.runs()}
    assert found == {("Dice", 0), ("Dice", 1), ("PolyDice-1", 0)}
    own = parse(RECIPE.replace("seeds = [0]", "replicates = 2").replace("epsilon = [", "replicates = 1, epsilon = ["))
    assert {(run.loss, run.replicate) for run in own.runs()} == found


def test_every_fold_of_a_replicate_has_a_seed_of_its_own_and_every_replicate_a_cut() -> None:
    recipe = parse(RECIPE.replace("seeds = [0]", "replicates = 3"))
    assert recipe.nested
    runs = list(recipe.runs())
    by_place = {(run.replicate, run.fold): run.seed for run in runs}
    assert all(run.seed == by_place[run.replicate, run.fold] for run in runs), "the same for all losses"
    assert len(by_place) == len(set(by_place.values())) == 6
    found = {run.replicate: recipe.settings(run, Path("d"), Path("o")) for run in runs}
    assert {replicate: settings.split_seed for replicate, settings in found.items()} == {0: 0, 1: 1, 2: 2}
    assert {str(run.place) for run in runs} >= {"lesions/unet/dice/fold-1/replicate-2"}
    assert recipe.extends(parse(RECIPE.replace("seeds = [0]", "replicates = 1")))
    assert not recipe.extends(parse(RECIPE)), "another cut, other seeds"


def test_no_two_folds_of_any_replicate_share_a_seed() -> None:
    seeds = [own_seed(fold, replicate) for fold in range(MOST_FOLDS) for replicate in (0, 1, 2, 500, TUNING)]
    assert len(set(seeds)) == len(seeds)


def test_what_a_recipe_means_that_does_not_say_it() -> None:
    text = RECIPE.replace("seeds = [0]\n", "").replace("nested = true\n", "")
    new, before = parse(text), parse(text, BEGUN_BEFORE)
    assert (new.score, new.weights, new.outer, new.replicates) == ("dice_foreground", "last", "replicate", (0, 1, 2))
    assert (new.tune.nested, new.tune.folds, new.margin) == (False, (0, 1), 1.0)
    assert (before.score, before.weights, before.outer, before.replicates) == ("dice_global", "best", "seed", (0,))
    assert before.tune.nested


def test_several_losses_can_be_baselines() -> None:
    recipe = parse(RECIPE.replace('baseline = "Dice"', 'baseline = ["PolyDice-1", "Dice"]\nmargin = 0.5'))
    assert (recipe.baselines, recipe.baseline, recipe.margin) == (("PolyDice-1", "Dice"), "PolyDice-1", 0.5)
    assert parse(RECIPE).baselines == ("Dice",)


def test_values_are_chosen_in_a_replicate_that_is_used_for_nothing_else() -> None:
    recipe = parse(TUNED)
    tuning, runs = list(recipe.tuning()), list(recipe.runs())
    assert [(run.loss, run.value, run.fold) for run in tuning] == [
        ("Dice", "rate=0.01", 0), ("Dice", "rate=0.01", 1), ("Dice", "rate=0.1", 0), ("Dice", "rate=0.1", 1),
    ]  # fmt: skip
    assert [(run.loss, run.value, run.open) for run in runs[:2]] == [
        ("Dice", "", True),
        ("PolyDice-1", "rate=0.05", False),
    ]
    of_tuning, of_runs = ([recipe.settings(run, Path("d"), Path("o")) for run in some] for some in (tuning, runs))
    assert not {each.seed for each in of_tuning} & {each.seed for each in of_runs}
    assert not {each.split_seed for each in of_tuning} & {each.split_seed for each in of_runs}
    assert [each.rate for each in of_tuning] == [0.01, 0.01, 0.1, 0.1]
    assert {run.rate for run, each in zip(of_runs, runs, strict=True) if each.loss == "PolyDice-1"} == {0.05}
    assert recipe.values == {"Dice": 1, "PolyDice-1": 1}


def test_an_optimiser_is_a_value_as_any_other() -> None:
    text = TUNED.replace("rate = [0.01, 0.1]", "rate = [0.0003, 0.01]\noptimizer = ['sgd', 'adamw']")
    recipe = parse(text)
    found = {run.value: recipe.settings(run, Path("d"), Path("o")) for run in recipe.tuning() if run.loss == "Dice"}
    assert list(found) == [f"rate={rate}, optimizer={name}" for rate in (0.0003, 0.01) for name in ("sgd", "adamw")]
    assert all(value == f"rate={each.rate}, optimizer={each.optimizer}" for value, each in found.items())
    with pytest.raises(RecipeError, match="optimizer=adamw, on lesions with unet: adamw has no momentum"):
        parse(text.replace("[train]", "[train]\nmomentum = 0.9"))


def test_nested_choices_multiply_the_runs() -> None:
    recipe = parse(TUNED.replace("rate = [0.01, 0.1]", "rate = [0.01, 0.1]\nnested = true"))
    assert not list(recipe.tuning())
    assert recipe.values == {"Dice": 2, "PolyDice-1": 1}
    assert len(list(recipe.runs())) == 2 * (2 + 1)


def test_more_values_extend_a_recipe() -> None:
    more, other_folds = TUNED.replace("[0.01, 0.1]", "[0.04, 0.01, 0.1]"), "rate = [0.01, 0.1]\nfolds = [0, 1, 2]"
    assert parse(more).extends(parse(TUNED))
    assert not parse(TUNED).extends(parse(more))
    assert parse(TUNED.replace("rate = [0.01, 0.1]", other_folds)).extends(parse(TUNED))


def test_a_recipe_extends_another_if_all_its_runs_are_the_same() -> None:
    recipe, more_seeds = parse(RECIPE), parse(RECIPE.replace("seeds = [0]", "seeds = [0, 1]"))
    more_losses = parse(RECIPE + '"Tversky" = "TverskyLoss(0.3, 0.7)"\n')
    longer = parse(RECIPE.replace("epochs = 2", "epochs = 3"))
    for larger in (recipe, more_seeds, more_losses):
        assert larger.extends(recipe)
    elsewhere = parse(RECIPE.replace("count = 18", "count = 30"))
    assert not elsewhere.extends(recipe)
    assert not recipe.extends(more_seeds)
    assert not recipe.extends(more_losses)
    assert not longer.extends(recipe)
    assert not recipe.extends(longer)


def test_settings_come_from_train_dataset_and_model_the_nearest_last() -> None:
    recipe = parse(
        RECIPE.replace("[models.unet]", "[models.unet]\nwidth = 6").replace(
            "seed = 1 }", "seed = 1 }\nsplit = 'random'\nepochs = 3"
        )
    )
    run = next(recipe.runs())
    settings = recipe.settings(run, Path("d"), Path("o"))
    assert (settings.width, settings.epochs, settings.split) == (6, 3, "random")
    assert (settings.size, settings.batch, settings.model) == (32, 4, "unet")
    assert (settings.fold, settings.seed, settings.resume) == (run.fold, run.seed, True)


def test_two_networks_may_be_the_same_one_with_other_settings() -> None:
    recipe = parse(RECIPE.replace("[models.unet]", '[models.thin]\nmodel = "unet"\nwidth = 2\n[models.unet]'))
    found = {run.model: recipe.settings(run, Path("d"), Path("o")) for run in recipe.runs()}
    assert (found["thin"].model, found["thin"].width) == ("unet", 2)
    assert (found["unet"].model, found["unet"].width) == ("unet", 4)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("epochs = 2", "epoch = 2", r"\[train\] has epoch \(did you mean epochs\?\)"),
        ("epochs = 2", "lr = 0.1", r"\[train\] has lr \(did you mean rate\?\)"),
        ("epochs = 2", "epochs = 0", "epochs must be at least 1"),
        ("epochs = 2", 'epochs = "6"', "epochs must be a whole number and must be at least 1: '6'"),
        ("epochs = 2", "clip = inf", "clip must be finite: inf"),
        ("epochs = 2", "rotation = nan", "rotation must not be negative: nan"),
        ("seeds = [0]", f"seeds = [{2**64}]", f"seed must be at most {2**64 - 1}"),
        ("epochs = 2", "seed = 2", r"\[train\] has seed"),
        ("[models.unet]", "[models.unet]\nmodel = 'resnet'", "resnet"),
        ("DiceLoss(batch=True)", "DiceLos(batch=True)", "DiceLos"),
        ("DiceLoss(batch=True)", "__import__('os')", "__import__"),
        ('baseline = "Dice"', 'baseline = "Lovász"', "baseline 'Lovász' is none of the losses"),
        ("{epsilon}", "0.1", "stand as {epsilon}"),
        ("epsilon = [-0.2, 0.5]", "epsilon = 0.5", "list of values"),
        ("generate = {", "path = 'x'\ngenerate = {", "either path or generate"),
        ('"Dice" =', '"dice!" = "DiceLoss()"\n"Dice" =', "folder of two runs"),
        ("[losses]", "[loss]", "the recipe has loss"),
        ("seeds = [0]", "seeds = 3", "seeds must be a list of whole numbers"),
        ("seeds = [0]", "seeds = [0]\nreplicates = 3", "both replicates and seeds"),
        ("seeds = [0]", "replicates = 0", "recipe.replicates must be at least 1: 0"),
        ("seeds = [0]", "replicates = [0]", "recipe.replicates must be a whole number"),
        ("seeds = [0]", "replicates = 1000", "replicates must be at most 999"),
        ("seeds = [0]\n\n[train]", "[train]\nsplit = 'contiguous'", "cuts the cases in one way only"),
        ("seeds = [0]\n\n[train]", "[train]\nsplit_seed = 4", "sets split_seed, but every replicate has its own"),
        ("epsilon = [", "replicates = 2, epsilon = [", "has replicates, but the recipe has seeds"),
        ("seeds = [0]", "seeds = [999000]", "seeds cannot be 999000, with which values are chosen"),
        ("seeds = [0]", "seeds = [0]\nmargin = 0", "recipe.margin must be positive: 0"),
        ("seeds = [0]", "seeds = [0]\nweights = 'last'", "weights belongs under .train., once for the whole recipe"),
        ("[models.unet]", "[models.unet]\nweights = 'last'", "weights belongs under .train., once for the whole"),
        ("epochs = 2", "epochs = 2\nreplicates = 3", "replicates belongs at the top of the recipe"),
        ("epochs = 2", "epochs = 2\nmargin = 3", "margin belongs at the top of the recipe"),
        ("epochs = 2", "nested = true", r"nested belongs under \[tune\]"),
        ("seeds = [0]", "seeds = [0]\nepochs = 3", r"epochs belongs under \[train\]"),
        ("epochs = 2", "weights = 'first'", "weights must be one of last, best: first"),
        ("nested = true", "rate = [0.01]", "rate under .tune. must list at least two values to choose from: .0.01."),
        ("nested = true", "rate = []", "rate under .tune. must list at least two values"),
        ("nested = true", "rate = 0.01", "rate under .tune. must be a list of the values to choose from: 0.01"),
        ("nested = true", "rate = [0.01, -1.0]", "Dice, rate=-1.0, on lesions with unet: rate must be positive: -1.0"),
        ("nested = true", "rate = [0.01, 'fast']", "rate must be a number and must be positive: 'fast'"),
        ("nested = true", "rate = [0.01, 0.1, 0.01]", "rate under .tune. names 0.01 twice"),
        ("nested = true", "lr = [0.01, 0.1]", r"\[tune\] has lr \(did you mean rate\?\)"),
        ("nested = true", "data = ['a', 'b']", r"\[tune\] cannot choose data: a study sets it"),
        ("nested = true", "out = ['a', 'b']", r"\[tune\] cannot choose out: a study sets it"),
        ("nested = true", "seed = [0, 1]", r"\[tune\] cannot choose seed: a study sets it"),
        ("nested = true", "split = ['random', 'grouped']", r"\[tune\] cannot choose split: validation scores"),
        ("nested = true", "model = ['unet', 'transunet']", "networks are compared, under .models."),
        ("nested = true", "loss = ['DiceLoss()']", "losses are compared, under .losses."),
        ("nested = true", "nested = 1", "tune.nested must be true or false: 1"),
        ("nested = true", "nested = true\nfolds = [0]", "tune.folds has no meaning with tune.nested = true"),
        ("nested = true", "folds = [0, 7]", "fold must lie between 0 and 2: 7"),
        ("nested = true", "folds = [0, 0]", "tune.folds names 0 twice"),
        ("epsilon = [", "rate = [0.01], epsilon = [", "rate of the loss 'PolyDice-1' must list at least two values"),
        ("epsilon = [", "size = [32, 48], epsilon = [", "the loss 'PolyDice-1' cannot choose size"),
        ("epsilon = [-0.2, 0.5]", "epsilon = [-0.2, 'x']", "PolyDice-1, epsilon=x, on lesions"),
        ("folds = [0, 1]", "folds = []", "folds must be a list of whole numbers"),
        ("folds = [0, 1]", 'folds = "01"', "folds must be a list of whole numbers"),
        ('title = "Tiny"', "title = 3", "recipe.title must be a text: 3"),
        ('baseline = "Dice"', "baseline = 3", "recipe.baseline must be a text: 3"),
        ('baseline = "Dice"', 'baseline = ["Dice", "Lovász"]', "baseline 'Lovász' is none of the losses"),
        ('baseline = "Dice"', "baseline = []", "baseline must name one of the losses, or several: Dice, PolyDice-1"),
        ('baseline = "Dice"', 'baseline = ["Dice", "Dice"]', "baseline names Dice twice"),
        ("seeds = [0]", "seeds = [0, 0]", "seeds names 0 twice"),
        ("epsilon = [-0.2, 0.5]", "epsilon = [0.5, 0.5]", "epsilon of the loss 'PolyDice-1' names 0.5 twice"),
        ("[datasets.lesions]", "[datasets]\nlesions = 3\n[datasets.more]", "datasets.lesions must be a table: 3"),
        ("count = 18", 'count = "18"', "datasets.lesions.generate.count must be a whole number and must be at least 1"),
        ("count = 18, ", "", "datasets.lesions.generate.count is missing"),
        ("count = 18", "count = 18, colour = 1", "datasets.lesions.generate has colour"),
        ("seeds = [0]", "seeds = [true]", "seeds must be a list of whole numbers"),
        ('"Dice" = "DiceLoss(batch=True)"', '"Dice" = { loss = "DiceLoss()", seeds = [1] }', "some of the recipe's"),
        ('"Dice" = "DiceLoss(batch=True)"', '"Dice" = { loss = "DiceLoss()", seeds = 0 }', "list of whole numbers"),
    ],
)  # fmt: skip
def test_a_wrong_recipe_is_refused_before_anything_runs(old: str, new: str, said: str) -> None:
    assert old in RECIPE
    with pytest.raises(RecipeError, match=said):
        parse(RECIPE.replace(old, new, 1))


def test_an_unknown_recipe_names_those_that_are_there() -> None:
    with pytest.raises(RecipeError, match="paper-unet"):
        read("no-such-recipe")


def test_a_file_that_is_no_toml_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("title = ")
    with pytest.raises(RecipeError, match=r"mine\.toml"):
        read(path)


def test_the_packaged_recipes() -> None:
    names = {"demo", "compare", "paper-unet", "paper-transunet", "order", "epsilon", "scale", "hippocampus"}
    assert names == set(packaged()), "what is of use on one set alone lies beside its results"
    for name in packaged():
        for run in read(name).runs():
            parse_loss(run.expression)


def test_the_papers_recipes_and_those_of_the_kept_runs_say_that_the_background_counts() -> None:
    fair = {"compare", "demo", "scale"}
    assert {name for name in packaged() if read(name).score == "dice_foreground"} == fair
    assert {name for name in packaged() if read(name).weights == "last"} == fair
    assert {name for name in packaged() if read(name).nested} == fair
    kept = sorted((Path(__file__).parents[2] / "results" / "paper").glob("*/recipe.toml"))
    assert len(kept) == 15
    assert {read(path).score for path in kept} == {"dice_global"}


def test_one_score_counts_in_the_whole_recipe() -> None:
    text = packaged()["demo"].read_text(encoding="utf-8")
    with pytest.raises(RecipeError, match=r"\[datasets\.lesions\] has score"):
        parse(text.replace("[datasets.lesions]", '[datasets.lesions]\nscore = "dice_global"'))
    with pytest.raises(RecipeError, match="score must be one of dice_foreground, dice_global: iou"):
        parse(text.replace("[train]", '[train]\nscore = "iou"'))


def test_the_recipe_of_the_docs_can_be_followed() -> None:
    text = (Path(__file__).parents[2] / "docs" / "studies.md").read_text(encoding="utf-8")
    recipe = parse(text.split("```toml\n")[1].split("```")[0])
    assert len(list(recipe.runs())) == 5 * (3 * 2 + 1)  # folds · (replicates · (Dice, PolyDice-1) + Tversky)
    assert len(list(recipe.tuning())) == 2 * (4 + 2 + 3 * 4)  # folds · (rates, Tversky's own, ε · rates)


def test_a_setting_is_tuned_or_set_and_not_both() -> None:
    for place in ("[train]", "[models.unet]", "[datasets.lesions]"):
        with pytest.raises(RecipeError, match=re.escape(f"{place} sets rate, and losses have values of it")):
            parse(TUNED.replace(place, f"{place}\nrate = 0.02"))


@pytest.mark.parametrize("name", ["paper-unet", "paper-transunet"])
def test_the_papers_tables_are_planned_whole(name: str) -> None:
    recipe = read(name)
    assert len(recipe.losses) == 7
    assert len(recipe.datasets) == 4
    assert recipe.folds == (0, 1, 2, 3, 4)
    assert [variant.value for variant in recipe.losses["DropDice"]] == [f"order={k}" for k in (1, 2, 3, 10)]
    assert len(recipe.losses["PolyDice-1"]) == 9
    settings = recipe.settings(next(recipe.runs()), Path("d"), Path("o"))
    assert recipe.tune.nested
    assert (settings.epochs, settings.batch, settings.rate, settings.momentum, settings.decay) == (
        200, 24, 0.01, 0.9, 1e-4,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["..", ".", "...", "a" * 101])
@pytest.mark.parametrize("table", ["datasets", "models", "losses"])
def test_a_name_that_is_no_folders_is_refused(name: str, table: str) -> None:
    recipe = {
        "datasets": RECIPE.replace("datasets.lesions", f'datasets."{name}"'),
        "models": RECIPE.replace("[models.unet]", f'[models."{name}"]\nmodel = "unet"'),
        "losses": RECIPE.replace('"Dice"', f'"{name}"'),
    }[table]
    with pytest.raises(RecipeError, match=f"'{re.escape(name)}' cannot name a folder"):
        parse(recipe)


def test_slugs_tell_signs_apart() -> None:
    assert slug("PolyDice-1, ε = -0.2") != slug("PolyDice-1, ε = 0.2")
    assert slug("a/b ../c") == "a-b-..-c"


def test_a_data_set_can_say_how_it_is_read() -> None:
    own = 'path = "vessels"\nmasks = "1st_manual"\ngroup = "[^_]+"\nignore = 255\nskip_errors = true'
    recipe = parse(RECIPE.replace("generate = { count = 18, size = 32, seed = 1 }", own))
    settings = recipe.settings(next(recipe.runs()), Path("data"), Path("out"))
    assert (settings.masks, settings.group, settings.ignore, settings.skip_errors) == ("1st_manual", "[^_]+", 255, True)
