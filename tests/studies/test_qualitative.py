import json
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from polydice.data.augment import as_float
from polydice.data.generate import generated_folder
from polydice.data.prepare import Preparation, prepare
from polydice.data.readers import open_dataset
from polydice.models import build
from polydice.studies import qualitative as module
from polydice.studies.comparison import compare
from polydice.studies.qualitative import NotHereError, qualitative
from polydice.studies.study import Study, open_study
from polydice.training.config import CountingWeights
from polydice.training.inference import Network
from polydice.training.metrics import confusion
from tests.studies.made_up import study_in


@pytest.fixture
def copied(trained: Study, tmp_path: Path) -> Study:
    """The same study in another place, with the cache of the first."""
    shutil.copytree(trained.folder, tmp_path / "study")
    return open_study(tmp_path / "study")


def views(study: Study) -> tuple[list[module.Finished], list[module.View]]:
    runs = module._together(study, compare(study)[0])
    networks = [module.load(study.run_folder(each.run) / module._file(study), "cpu").network for each in runs]
    return runs, module._views(module._prepared(study, runs[0]), runs, networks)


@pytest.mark.parametrize("weights", ["best", "last"])
def test_the_pictures_show_the_predictions_that_were_scored(trained: Study, weights: CountingWeights) -> None:
    """An image is a case here: its confusion matrix, made again from what is shown, is that of the result."""
    runs, shown = views(open_study(trained.folder, weights))
    assert [each.run.loss for each in runs] == ["Dice", "PolyDice-1"]
    assert len(shown) == 4
    for view in shown:
        for each, prediction, dice in zip(runs, view.predictions, view.dice, strict=True):
            case = next(case for case in each.result["cases"] if view.about.startswith(case["id"]))
            pair = torch.from_numpy(prediction)[None], torch.from_numpy(view.truth.copy())[None]
            assert confusion(*pair, 3)[0].tolist() == case["confusion"]
            counted = [score for score in case["dice"][1:] if score is not None]
            assert dice == pytest.approx(np.mean(counted))


def test_the_cases_go_from_the_baselines_worst_to_its_best(trained: Study) -> None:
    _, shown = views(trained)
    assert [view.about.partition("\n")[2] for view in shown] == [f"{name} for Dice" for name in module.PLACES]
    assert [view.dice[0] for view in shown] == sorted(view.dice[0] for view in shown)


@pytest.mark.parametrize(("dims", "model"), [(2, "unet"), (3, "unet3d")])
def test_a_volume_is_shown_where_it_has_most_foreground(dims: Literal[2, 3], model: str, tmp_path: Path) -> None:
    folder = generated_folder(tmp_path, 1, dims=3, size=16, lesion=(2.0, 4.0))
    prepared = prepare(open_dataset(folder), Preparation(dims, size=16), tmp_path)
    network = Network(build(model, 1, 2, width=4, depth=2), patch=(16, 16, 16) if dims == 3 else None)
    labels = np.stack([prepared.item(item)[1] for item in range(len(prepared))]).reshape(16, 16, 16)
    images = np.stack([prepared.item(item)[0] for item in range(len(prepared))])  # [slices, 1, y, x] or [1, 1, z, y, x]
    best = int(np.count_nonzero(labels, axis=(1, 2)).argmax())
    view = module._view(prepared, prepared.cases[0], "best", [network], [0.5])
    assert view.about == f"{prepared.cases[0].id}, slice {best + 1}\nbest"
    assert np.array_equal(view.truth, labels[best])
    whole = network.segment(as_float(torch.from_numpy(images.copy()))).reshape(16, 16, 16)
    assert torch.equal(torch.from_numpy(view.predictions[0]), whole[best])


def test_the_figure_has_a_column_for_each_loss_and_outlines_the_errors(trained: Study) -> None:
    figure = qualitative(trained, compare(trained)[0])
    grid = np.array(figure.axes).reshape(4, 4)
    assert [axes.get_title() for axes in grid[0]] == ["input", "truth", "Dice", "PolyDice-1"]
    named = [text.get_text() for text in figure.legends[0].get_texts()]
    assert named == ["lesion 1, found", "lesion 2, found", "false positive", "false negative", "wrong class"]
    _, shown = views(trained)
    for row, view in zip(grid, shown, strict=True):
        for axes, prediction in zip(row[2:], view.predictions, strict=True):
            kinds = [(view.truth == 0) & (prediction > 0), (view.truth > 0) & (prediction == 0)]
            kinds.append((view.truth > 0) & (prediction > 0) & (view.truth != prediction))
            assert len(axes.collections) == sum(kind.any() for kind in kinds)


def test_what_has_no_label_is_grey_and_no_error() -> None:
    truth = np.eye(30, 20, dtype=np.uint8)
    right, truth[20:] = truth.copy(), 255
    found = np.where(truth == 255, 1, right)
    view = module.View("case", np.zeros((30, 20, 3), np.uint8), truth, [found], [1.0])
    figure = module._drawn([view], ["Dice"], ("background", "lesion"))
    assert "without a label" in [text.get_text() for text in figure.legends[0].get_texts()]
    for axes in figure.axes[1:]:
        assert not axes.collections, "no outline of an error"
        cover = np.asarray(axes.images[1].get_array())
        assert (cover[truth == 255] == module.UNLABELLED).all()


def test_long_names_stand_apart_and_every_column_has_the_shape_of_the_image() -> None:
    losses = ["PolyDice-1 detached, ε = 0.5", "PolyDice-1 detached, ε = 0.5, + cross-entropy"]
    truth = np.eye(30, 20, dtype=np.uint8)
    view = module.View("case", np.zeros((30, 20, 3), np.uint8), truth, [truth, truth], [1.0, 1.0])
    figure = module._drawn([view], losses, ("background", "lesion"))
    figure.draw_without_rendering()
    assert [axes.get_title().replace("\n", " ") for axes in figure.axes[2:]] == losses
    titles = [axes.title.get_window_extent() for axes in figure.axes]
    assert all(left.x1 < right.x0 for left, right in pairwise(titles))
    assert max(title.y1 for title in titles) <= figure.bbox.y1
    for axes in figure.axes:
        extent = axes.get_window_extent()
        assert extent.height / extent.width == pytest.approx(1.5)


def test_without_the_data_set_the_prepared_one_will_do(copied: Study) -> None:
    shutil.rmtree(copied.folder / "generated")
    assert qualitative(copied, compare(copied)[0]).axes


def test_what_is_not_here_is_told(copied: Study, tmp_path: Path) -> None:
    elsewhere = replace(copied, cache=tmp_path / "empty", data=tmp_path)
    dataset = {"lesions": {"path": "gone"}}
    elsewhere = replace(elsewhere, recipe=replace(copied.recipe, datasets=dataset))
    with pytest.raises(NotHereError, match="the images of this data set are not here"):
        qualitative(elsewhere, compare(copied)[0])
    for path in copied.folder.rglob("best.safetensors"):
        path.write_bytes(b"cut")
    with pytest.raises(NotHereError, match="cannot be read"):
        qualitative(copied, compare(copied)[0])
    for path in copied.folder.rglob("best.safetensors"):
        path.unlink()
    with pytest.raises(NotHereError, match=r"best\.safetensors"):
        qualitative(copied, compare(copied)[0])
    nothing = study_in(tmp_path / "nothing", lambda run: False)
    with pytest.raises(NotHereError):
        qualitative(nothing, compare(nothing)[0])


def test_a_loss_without_weights_is_left_out_and_other_cases_are_refused(copied: Study) -> None:
    for path in copied.folder.rglob("polydice-1*/**/best.safetensors"):
        path.unlink()
    assert [axes.get_title() for axes in qualitative(copied, compare(copied)[0]).axes[:4]][2] == "Dice"
    for path in copied.folder.rglob("result.json"):
        result = json.loads(path.read_text())
        for case in result["cases"]:
            case["id"] += " of another set"
        path.write_text(json.dumps(result))
    with pytest.raises(NotHereError, match="images of this data set"):
        qualitative(copied, compare(copied)[0])
