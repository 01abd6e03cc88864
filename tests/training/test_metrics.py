import itertools
import json
import math
import sys
import warnings
from importlib.util import find_spec

import pytest
import torch
from scipy import ndimage
from torch import Tensor

from polydice.training.metrics import (
    STRATA,
    Surface,
    confusion,
    dice_case,
    dice_case_per_class,
    dice_foreground,
    dice_global,
    dice_per_class,
    evaluate,
    foreground_share,
    lost_classes,
    per_case,
    strata,
    surface,
)

NAN = math.nan
needs_monai = pytest.mark.skipif(find_spec("monai") is None, reason="needs MONAI, of the extra polydice[study]")


def label_maps(shape: tuple[int, ...], classes: int, present: float = 1.0) -> tuple[Tensor, Tensor]:
    """Random truth, and a prediction that is right for two pixels out of three; classes may be missing from images."""
    truth, other = torch.randint(classes, (2, *shape))
    keep = torch.rand(2, shape[0], classes) < present
    guess = torch.where(torch.rand(shape) < 2 / 3, truth, other)
    for image, label in itertools.product(range(shape[0]), range(1, classes)):
        for map_, kept in zip((truth, guess), keep, strict=True):
            if not kept[image, label]:
                map_[image][map_[image] == label] = 0
    return guess, truth


def binary(true_positive: int, false_positive: int, false_negative: int, true_negative: int) -> Tensor:
    return torch.tensor([[true_negative, false_positive], [false_negative, true_positive]])


# Confusion matrices


@pytest.mark.parametrize("shape", [(1, 7), (3, 5, 11), (2, 4, 6, 5)])
@pytest.mark.parametrize("classes", [1, 2, 9])
def test_confusion_counts_what_a_loop_counts(shape: tuple[int, ...], classes: int) -> None:
    guess, truth = label_maps(shape, classes)
    expected = torch.zeros(shape[0], classes, classes, dtype=torch.int64)
    for image in range(shape[0]):
        for i, j in zip(truth[image].flatten().tolist(), guess[image].flatten().tolist(), strict=True):
            expected[image, i, j] += 1
    found = confusion(guess, truth, classes)
    assert found.dtype == torch.int64
    assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_confusion_takes_any_integers_and_any_strides(dtype: torch.dtype) -> None:
    guess, truth = label_maps((2, 20, 30), 14)
    expected = confusion(guess, truth, 14)
    assert torch.equal(confusion(guess.to(dtype), truth.to(dtype), 14), expected)
    assert torch.equal(confusion(guess.mT, truth.mT, 14), expected)


def test_confusion_does_not_count_labels_that_are_no_class() -> None:
    guess, truth = label_maps((2, 20, 30), 3)
    ignored = torch.rand(truth.shape) < 0.3
    counted = zip(guess, truth, ~ignored, strict=True)
    expected = torch.cat([confusion(g[kept][None], t[kept][None], 3) for g, t, kept in counted])
    for value in (-1, 3, 255):
        assert torch.equal(confusion(guess, truth.masked_fill(ignored, value), 3), expected)


def test_confusion_of_an_empty_batch_and_of_empty_images() -> None:
    assert confusion(torch.zeros(0, 4).long(), torch.zeros(0, 4).long(), 3).shape == (0, 3, 3)
    assert confusion(torch.zeros(2, 0).long(), torch.zeros(2, 0).long(), 3).sum() == 0


def test_confusion_compiles_whole() -> None:
    guess, truth = label_maps((2, 20, 30), 4)
    compiled = torch.compile(confusion, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(guess, truth, 4), confusion(guess, truth, 4))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")  # a prototype, says torch
def test_confusion_on_a_gpu_is_the_same_and_never_waits() -> None:
    guess, truth = label_maps((4, 100, 130), 5)
    on_gpu = guess.cuda(), truth.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = confusion(*on_gpu, 5)
        scores = dice_per_class(found)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(found.cpu(), confusion(guess, truth, 5))
    assert torch.equal(scores.cpu(), dice_per_class(confusion(guess, truth, 5)))


def test_confusion_shows_shapes_that_differ() -> None:
    with pytest.raises(ValueError, match=r"prediction \[2, 3\] and labels \[2, 4\] differ in shape"):
        confusion(torch.zeros(2, 3).long(), torch.zeros(2, 4).long(), 2)


def test_slices_add_up_to_the_matrix_of_their_volume() -> None:
    guess, truth = label_maps((6, 9, 9), 3)
    cases, volumes = per_case(confusion(guess, truth, 3), ["b", "a", "b", "c", "a", "b"])
    assert cases == ["b", "a", "c"]
    for name, rows in zip(cases, ([0, 2, 5], [1, 4], [3]), strict=True):
        assert torch.equal(volumes[cases.index(name)], confusion(guess[rows][None], truth[rows][None], 3)[0])


def test_every_slice_needs_its_case() -> None:
    with pytest.raises(ValueError, match="2 matrices, but 1 names of cases"):
        per_case(torch.zeros(2, 3, 3).long(), ["a"])


# Dice


def test_dice_by_hand() -> None:
    matrix = torch.tensor([[5, 1, 0, 0], [2, 3, 0, 0], [0, 0, 0, 0], [0, 4, 0, 0]])
    # Class 0: TP 5, FP 2, FN 1. Class 1: TP 3, FP 5, FN 2. Class 2 is nowhere. Class 3 is only in the truth.
    assert dice_per_class(matrix).tolist() == pytest.approx([10 / 13, 6 / 13, NAN, 0], nan_ok=True, rel=1e-15)
    assert dice_per_class(matrix.T).tolist() == pytest.approx([10 / 13, 6 / 13, NAN, 0], nan_ok=True, rel=1e-15)
    assert dice_global(matrix[None]) == pytest.approx(16 / 39, rel=1e-15)
    assert dice_case(matrix[None]) == pytest.approx(3 / 13, rel=1e-15)


def test_global_and_case_dice_of_two_cases_by_hand() -> None:
    matrices = torch.stack([binary(10, 0, 0, 90), binary(1, 3, 2, 94)])
    # Together: TP 11, FP 3, FN 2, TN 184. Alone: Dice 1 and 2/7.
    assert dice_global(matrices) == pytest.approx((22 / 27 + 368 / 373) / 2, rel=1e-15)
    assert dice_case(matrices) == pytest.approx((1 + 2 / 7) / 2, rel=1e-15)


def test_foreground_dice_is_the_global_matrix_without_the_background_in_the_mean() -> None:
    matrices = torch.tensor([[[5, 1, 0], [1, 3, 0], [0, 2, 0]], [[9, 0, 1], [0, 0, 0], [0, 0, 4]]])
    background, first, second = dice_per_class(matrices.sum(0)).tolist()
    assert dice_foreground(matrices) == pytest.approx((first + second) / 2, rel=1e-15)
    assert dice_global(matrices) == pytest.approx((background + first + second) / 3, rel=1e-15)


def test_to_predict_nothing_pays_nothing() -> None:
    """A network that finds a third of it, with false alarms, against one that finds nothing: small objects, as in
    nuclei. The mean with the background has them the wrong way round, and the mean over cases has not."""
    nothing, something = binary(0, 0, 60, 940)[None], binary(20, 400, 40, 540)[None]
    assert dice_global(nothing) > dice_global(something)
    assert dice_foreground(nothing) == dice_case(nothing) == 0
    assert dice_foreground(something) == dice_case(something) > 0


def test_without_foreground_in_the_truth_there_is_no_score_of_it() -> None:
    """Not 0, though a false alarm in a case beside others is 0: of this set nothing can be told."""
    alarm, empty = binary(0, 5, 0, 95)[None], binary(0, 0, 0, 100)[None]
    for matrices in (alarm, empty, torch.cat([alarm, empty]), torch.full((2, 1, 1), 7)):
        assert math.isnan(dice_foreground(matrices))
        assert math.isnan(dice_case(matrices))
        found = evaluate(matrices)
        assert (found["dice_foreground"], found["dice_case"]) == (None, None)
        assert not found["predicts_nothing"], "there was nothing to predict"
        assert found["lost_classes"] == []


def test_what_has_collapsed_is_named() -> None:
    names = ("background", "ventricle", "myocardium", "atrium")
    healthy = torch.diag(torch.tensor([90, 5, 5, 0]))  # no atrium anywhere: it cannot be lost
    lost = torch.tensor([[90, 0, 0, 0], [1, 4, 0, 0], [5, 0, 0, 0], [0, 0, 0, 0]])
    nothing = torch.tensor([[90, 0, 0, 0], [5, 0, 0, 0], [5, 0, 0, 0], [0, 0, 0, 0]])
    for matrices, classes in (([healthy, lost], []), ([lost, nothing], [2]), ([nothing, nothing], [1, 2])):
        found = evaluate(torch.stack(matrices), names=names)
        assert lost_classes(torch.stack(matrices)) == classes
        assert found["lost_classes"] == [names[label] for label in classes]
        assert found["predicts_nothing"] == (len(classes) == 2)
    assert evaluate(lost[None])["lost_classes"] == ["class 2"]
    everywhere = evaluate(binary(10, 90, 0, 0)[None], names=("background", "polyp"))
    assert (everywhere["predicts_nothing"], everywhere["lost_classes"]) == (False, ["background"])


def test_a_case_weighs_the_same_whatever_it_holds() -> None:
    perfect, missed, halved = torch.zeros(3, 3, 3, dtype=torch.int64)
    perfect[1, 1] = perfect[2, 2] = 5
    missed[1, 0] = 5  # class 2 is nowhere
    halved[1, 1] = halved[1, 0] = halved[0, 1] = 4
    matrices = torch.stack([perfect, missed, halved])
    assert dice_case(matrices) == pytest.approx((1 + 0 + 0.5) / 3)
    assert dice_case_per_class(matrices)[1:].tolist() == pytest.approx([(1 + 0 + 0.5) / 3, 1])


def test_a_case_without_foreground_is_left_out_and_a_false_alarm_is_zero() -> None:
    empty, alarm, perfect = binary(0, 0, 0, 100), binary(0, 5, 0, 95), binary(7, 0, 0, 93)
    assert dice_case(torch.stack([empty, perfect])) == 1
    assert dice_case(torch.stack([alarm, perfect])) == 0.5
    assert math.isnan(dice_case(empty[None]))
    assert math.isnan(dice_global(torch.zeros(2, 3, 3).long()))


@needs_monai
@pytest.mark.parametrize("present", [1.0, 0.5])
def test_dice_is_monais(present: float) -> None:
    from monai import metrics

    guess, truth = label_maps((12, 24, 24), 5, present)
    masks = [torch.nn.functional.one_hot(labels, 5).movedim(-1, 1) for labels in (guess, truth)]
    theirs = metrics.compute_dice(*masks, ignore_empty=False).double()  # an empty truth: 1 if predicted so, else 0
    absent = torch.stack([mask.flatten(2).any(2) for mask in masks]).any(0).logical_not()
    theirs[absent] = NAN
    matrices = confusion(guess, truth, 5)
    rounding = {"rtol": 0, "atol": 2**-23, "equal_nan": True}  # MONAI divides in float32
    torch.testing.assert_close(dice_per_class(matrices), theirs, **rounding)
    torch.testing.assert_close(dice_case_per_class(matrices), theirs.nanmean(0), **rounding)
    mean, _ = metrics.do_metric_reduction(theirs[:, 1:].float(), "mean")  # over classes, then over cases
    assert dice_case(matrices) == pytest.approx(float(mean), abs=2**-22)


def test_pixel_counts_beyond_float32_are_exact() -> None:
    matrix = binary(2**30 + 1, 1, 0, 2**31)
    assert dice_per_class(matrix)[1] == 2 * (2**30 + 1) / (2 * (2**30 + 1) + 1)


# Strata


def test_strata_are_quarters_by_foreground_share_of_the_truth() -> None:
    shares = torch.randperm(40)[:20] + 1  # percent, no two alike
    matrices = torch.stack([binary(0, 0, int(share), 100 - int(share)) for share in shares])
    found = strata(matrices)
    order = shares.argsort()
    assert [found[i] for i in order] == [name for name in STRATA for _ in range(5)]
    predicted_otherwise = torch.stack([binary(int(share), 5, 0, 95 - int(share)) for share in shares])
    assert strata(predicted_otherwise) == found


def test_a_case_without_foreground_is_in_no_stratum_and_moves_no_quartile() -> None:
    matrices = torch.stack([binary(share, 0, 0, 100 - share) for share in (10, 0, 20, 30, 0, 40)])
    assert strata(matrices) == ["tiny", None, "small", "medium", None, "large"]
    assert strata(matrices[[1, 4]]) == [None, None]


def test_the_share_counts_every_foreground_class() -> None:
    matrix = torch.tensor([[60, 5, 5], [1, 9, 0], [10, 5, 5]])
    assert foreground_share(matrix[None]).tolist() == [0.3]


def test_equal_shares_are_never_split() -> None:
    assert strata(binary(3, 0, 0, 7).expand(5, 2, 2)) == ["tiny"] * 5


# Surfaces


def brute_force(guess: Tensor, truth: Tensor, spacing: tuple[float, ...], tolerance: float) -> tuple[float, float]:
    """HD95 and NSD of two masks from distance transforms of the whole image, in float64."""
    edges = [mask & ~ndimage.binary_erosion(mask) for mask in (guess.numpy(), truth.numpy())]
    ways = [
        torch.tensor(ndimage.distance_transform_edt(~edges[1 - way], sampling=spacing)[edges[way]]) for way in (0, 1)
    ]
    near = sum(int((way <= tolerance).sum()) for way in ways)
    return max(float(way.quantile(0.95)) for way in ways), near / sum(len(way) for way in ways)


def blobs(shape: tuple[int, ...]) -> Tensor:
    """Three classes of random shape: a smoothed noise, cut at its median and at its 80th percentile."""
    field = torch.tensor(ndimage.gaussian_filter(torch.rand(shape).numpy(), 2))
    return torch.bucketize(field, field.quantile(torch.tensor([0.5, 0.8])))


@needs_monai
@pytest.mark.parametrize(
    ("shape", "spacing"), [((40, 50), (0.7, 1.3)), ((12, 30, 28), (2.5, 0.8, 0.8)), ((40, 50), None)]
)
def test_surfaces_against_distance_transforms_and_monai(
    shape: tuple[int, ...], spacing: tuple[float, ...] | None
) -> None:
    from monai import metrics

    guess, truth = blobs(shape), blobs(shape)
    step = spacing or (1.0,) * len(shape)
    found = surface(guess, truth, 3, spacing, tolerance=1.5)
    assert found.unit == ("mm" if spacing else "px")
    assert (found.missing, found.tolerance) == (0, 1.5)
    assert found.hd95[0].isnan()
    assert found.nsd[0].isnan()
    for label in (1, 2):
        hd95, nsd = brute_force(guess == label, truth == label, step, 1.5)
        assert float(found.hd95[label]) == pytest.approx(hd95, rel=2**-22)  # MONAI's distances are float32
        assert float(found.nsd[label]) == pytest.approx(nsd, rel=1e-12)
        masks = (guess == label)[None, None], (truth == label)[None, None]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # MONAI 1.6 warns of an argument that it passes itself
            theirs = metrics.compute_hausdorff_distance(*masks, include_background=True, percentile=95, spacing=step)
            overlap = metrics.compute_surface_dice(*masks, [1.5], include_background=True, spacing=step)
        assert float(found.hd95[label]) == float(theirs)
        assert float(found.nsd[label]) == pytest.approx(float(overlap), abs=2**-23)


@needs_monai
@pytest.mark.parametrize(("axis", "spacing", "distance"), [(0, (5, 1, 1), 10.0), (2, (5, 1, 1), 2.0), (1, None, 2.0)])
def test_a_cube_moved_by_two_voxels(axis: int, spacing: tuple[float, ...] | None, distance: float) -> None:
    truth = torch.zeros(12, 12, 12, dtype=torch.uint8)
    truth[3:8, 3:8, 3:8] = 1
    found = surface(truth.roll(2, axis), truth, 2, spacing, tolerance=distance)
    assert float(found.hd95[1]) == distance
    assert float(found.nsd[1]) == 1
    assert float(surface(truth.roll(2, axis), truth, 2, spacing, tolerance=distance * 0.4).nsd[1]) < 0.9


@needs_monai
def test_a_perfect_prediction_touching_the_border_is_no_distance_away() -> None:
    labels = torch.zeros(6, 6, dtype=torch.int64)
    labels[:3] = 1
    found = surface(labels, labels, 2)
    assert (float(found.hd95[1]), float(found.nsd[1])) == (0, 1)


@needs_monai
def test_a_class_in_neither_is_not_counted_and_one_in_only_one_is_the_worst_there_is() -> None:
    truth = torch.zeros(4, 5, dtype=torch.int64)
    truth[1, 1:3] = 1
    guess = torch.zeros_like(truth)
    guess[2, 2] = 2
    found = surface(guess, truth, 4, spacing=(2.0, 1.0))
    diagonal = math.hypot(3 * 2, 4 * 1)
    assert found.hd95.tolist() == pytest.approx([NAN, diagonal, diagonal, NAN], nan_ok=True)
    assert found.nsd.tolist() == pytest.approx([NAN, 0, 0, NAN], nan_ok=True)
    assert found.missing == 2


@needs_monai
def test_the_diagonal_is_reached_by_pixels_in_opposite_corners_and_never_passed() -> None:
    truth, guess = torch.zeros(2, 7, 5, dtype=torch.int64)
    truth[0, 0] = guess[-1, -1] = 1
    far = surface(guess, truth, 2, spacing=(0.9, 1.7))
    missed = surface(torch.zeros_like(guess), truth, 2, spacing=(0.9, 1.7))
    assert float(far.hd95[1]) == pytest.approx(float(missed.hd95[1]), rel=2**-22)  # MONAI's distances are float32


def test_what_is_predicted_where_there_is_no_label_is_no_distance_away() -> None:
    labels = torch.zeros(20, 20, dtype=torch.uint8)
    labels[5:10, 5:10] = 1
    labels[15:] = 255
    prediction = (labels == 1).byte()
    prediction[16:19] = 1
    assert surface(prediction, labels, 2).hd95[1] == 0
    assert surface(prediction, labels, 2).nsd[1] == 1
    prediction[5:10, 5:10] = 0
    assert surface(prediction, labels, 2).missing == 1, "the class is in the truth alone"


def test_spacing_must_fit_the_axes() -> None:
    labels = torch.zeros(4, 4, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"spacing \(1, 1, 1\) has 3 entries, the labels have 2 axes"):
        surface(labels, labels, 2, (1, 1, 1))
    with pytest.raises(ValueError, match=r"prediction \[4\] and labels \[4, 4\] differ in shape"):
        surface(labels[0], labels, 2)


def test_without_monai_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "monai"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "monai", None)
    labels = torch.zeros(4, 4, dtype=torch.int64)
    with pytest.raises(ImportError, match=r"pip install 'polydice\[study\]'"):
        surface(labels, labels, 2)


# All together


@needs_monai
def test_every_score_goes_through_json_and_comes_back() -> None:
    guess, truth = label_maps((9, 16, 16), 3, present=0.6)
    matrices = confusion(guess, truth, 3)
    surfaces = [surface(g, t, 3, (1.0, 2.0)) for g, t in zip(guess, truth, strict=True)]
    scores = evaluate(matrices, surfaces)
    assert json.loads(json.dumps(scores, allow_nan=False)) == scores
    assert scores["cases"] == 9
    assert scores["dice_global"] == dice_global(matrices)
    assert scores["dice_case"] == dice_case(matrices)
    assert scores["dice_global_per_class"] == dice_per_class(matrices.sum(0)).tolist()
    assert scores["dice_case_per_class"] == dice_case_per_class(matrices).tolist()
    names = strata(matrices)
    for name, found in scores["strata"].items():
        chosen = [i for i, given in enumerate(names) if given == name]
        assert found["cases"] == len(chosen)
        assert found["dice_case"] == dice_case(matrices[chosen])
        assert found["foreground_share"][1] == float(foreground_share(matrices)[chosen].max())
    assert sum(found["cases"] for found in scores["strata"].values()) == 9 - names.count(None)
    assert scores["surface"]["unit"] == "mm"
    assert scores["surface"]["missing"] == sum(case.missing for case in surfaces) > 0
    hd95 = torch.stack([case.hd95 for case in surfaces])
    assert scores["surface"]["hd95"] == float(hd95[:, 1:].nanmean(1).nanmean())
    assert scores["surface"]["hd95_per_class"] == [None, *hd95.nanmean(0)[1:].tolist()]


def test_what_is_not_known_is_null() -> None:
    scores = evaluate(binary(0, 0, 0, 10)[None])
    assert scores == {
        "cases": 1,
        "dice_foreground": None,
        "dice_global": 1.0,
        "dice_case": None,
        "dice_global_per_class": [1.0, None],
        "predicts_nothing": False,
        "lost_classes": [],
        "dice_case_per_class": [1.0, None],
        "strata": {},
    }


def test_surfaces_must_belong_together() -> None:
    matrices = binary(1, 1, 1, 1).expand(2, 2, 2)
    one = Surface(torch.tensor([NAN, 1.0]), torch.tensor([NAN, 1.0]), 0, "mm", 2.0)
    with pytest.raises(ValueError, match="2 cases, but 1 surfaces"):
        evaluate(matrices, [one])
    with pytest.raises(ValueError, match="no common mean"):
        evaluate(matrices, [one, one._replace(unit="px")])
