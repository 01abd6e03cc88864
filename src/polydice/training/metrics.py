"""How good a segmentation is: Dice from confusion matrices, HD95 and NSD from surfaces, Dice by foreground size.

One rule holds for all of them. A class that is in neither truth nor prediction is not counted (NaN here, null in JSON);
a class that is in only one of the two gets the worst value there is: Dice 0, NSD 0, and for HD95 the image's diagonal.
Where no case has foreground in its truth, a score of the foreground does not exist, whatever was predicted.
"""

import math
from collections.abc import Hashable, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

LANES = 256  # counters for each cell of a matrix
STRATA = ("tiny", "small", "medium", "large")

Key = TypeVar("Key", bound=Hashable)
Members = Sequence[Sequence[int]]  # the labels of each class, where classes are regions that overlap


def confusion(prediction: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Label maps `[B, *spatial]` to `[B, C, C]`, int64: entry (i, j) counts the pixels of class i predicted as j.

    Pixels whose label is outside 0 … C − 1 are not counted. The prediction is an argmax over the C classes.

    >>> confusion(torch.tensor([[0, 1, 1]]), torch.tensor([[0, 0, 1]]), classes=2)
    tensor([[[1, 1],
             [0, 1]]])
    """
    _check_shapes(prediction, labels)
    batch, cells = len(labels), classes * classes + 1  # the last cell takes the pixels that are not counted
    truth, guess = labels.flatten(1).long(), prediction.flatten(1).long()
    cell = torch.where((truth >= 0) & (truth < classes), truth * classes + guess, cells - 1)
    # Most pixels are background and predicted so: with one counter for them, all threads of a GPU would queue for it.
    lane = torch.arange(truth.shape[1], device=truth.device) % LANES
    counter = (torch.arange(batch, device=truth.device)[:, None] * LANES + lane) * cells + cell
    counts = torch.zeros(batch * LANES * cells, dtype=torch.int32, device=truth.device)
    counts.scatter_add_(0, counter.flatten(), counts.new_ones(1).expand(counter.numel()))
    return counts.view(batch, LANES, cells).sum(1)[:, :-1].reshape(batch, classes, classes)


def as_annotated(prediction: Tensor, annotated: Tensor | None) -> Tensor:
    """Label maps `[B, *spatial]` in which classes that are not `annotated`, `[B, C]` booleans, are background: as in
    the truth of such an image, and in the loss. The regions of the other classes stay, and so does their Dice.

    >>> as_annotated(torch.tensor([[0, 1, 2]]), torch.tensor([[True, False, True]]))
    tensor([[0, 0, 2]])
    """
    if annotated is None:
        return prediction
    known = torch.arange(annotated.shape[1], device=annotated.device) * annotated
    return known.gather(1, prediction.flatten(1).long()).view_as(prediction).to(prediction.dtype)


def _check_shapes(prediction: Tensor, labels: Tensor) -> None:
    if prediction.shape != labels.shape:
        raise ValueError(f"prediction {list(prediction.shape)} and labels {list(labels.shape)} differ in shape")


def per_case(matrices: Tensor, case_of: Sequence[Key]) -> tuple[list[Key], Tensor]:
    """Slices back into volumes: adds up the matrices `[N, C, C]` with the same case, in order of first appearance.

    >>> cases, volumes = per_case(torch.ones(3, 2, 2, dtype=torch.int64), ["a", "b", "a"])
    >>> cases, volumes[:, 0, 0].tolist()
    (['a', 'b'], [2, 1])
    """
    if len(case_of) != len(matrices):
        raise ValueError(f"{len(matrices)} matrices, but {len(case_of)} names of cases")
    place = {case: index for index, case in enumerate(dict.fromkeys(case_of))}
    index = torch.tensor([place[case] for case in case_of], dtype=torch.int64, device=matrices.device)
    return list(place), matrices.new_zeros(len(place), *matrices.shape[1:]).index_add_(0, index, matrices)


class Pixels(NamedTuple):
    """Of each class `[..., C]`: how many are of it in truth and prediction, in truth, in prediction."""

    both: Tensor
    truth: Tensor
    guess: Tensor


def pixels_per_class(matrix: Tensor, members: Members | None = None) -> Pixels:
    """From matrices `[..., C, C]` or, where classes are regions that have these `members`, from those of labels.

    >>> matrix = torch.tensor([[5, 1, 0], [0, 3, 2], [0, 1, 4]])
    >>> [found.tolist() for found in pixels_per_class(matrix, ((0,), (1, 2), (2,)))]
    [[5, 10, 4], [6, 10, 5], [5, 11, 6]]
    """
    if members is None:
        return Pixels(matrix.diagonal(dim1=-2, dim2=-1), matrix.sum(-1), matrix.sum(-2))
    truth, guess = matrix.sum(-1), matrix.sum(-2)
    every = [torch.tensor(labels, device=matrix.device) for labels in members]
    both = [matrix.index_select(-2, labels).index_select(-1, labels).sum((-2, -1)) for labels in every]
    found = both, *([total.index_select(-1, labels).sum(-1) for labels in every] for total in (truth, guess))
    return Pixels(*(torch.stack(each, -1) for each in found))


def dice_per_class(matrix: Tensor, members: Members | None = None) -> Tensor:
    """2TP / (2TP + FP + FN) of each class, `[..., C, C]` to `[..., C]`, float64; `members` as in `pixels_per_class`.

    >>> dice_per_class(torch.tensor([[8, 2, 0], [0, 0, 0], [0, 0, 0]]))
    tensor([0.8889, 0.0000,    nan], dtype=torch.float64)
    """
    both, truth, guess = pixels_per_class(matrix.double(), members)
    return 2 * both / (truth + guess)  # 0/0 is NaN: not counted


def dice_global(matrices: Tensor, members: Members | None = None) -> float:
    """One confusion matrix over all pixels of all cases, Dice of each class, mean over classes with the background."""
    return float(dice_per_class(matrices.sum(0), members).nanmean())


def dice_foreground(matrices: Tensor, members: Members | None = None) -> float:
    """As `dice_global`, mean over the foreground classes alone: to predict nothing pays nothing.

    >>> nothing = torch.tensor([[[900, 0], [100, 0]]])
    >>> round(dice_global(nothing), 2), dice_foreground(nothing)
    (0.47, 0.0)
    """
    return float(dice_per_class(matrices.sum(0), members)[1:].nanmean()) if has_foreground(matrices) else math.nan


def dice_case(matrices: Tensor, members: Members | None = None) -> float:
    """Dice of each case and foreground class, mean over the classes counted in a case, then mean over cases.

    So every case weighs the same, whatever it holds; a case without a counted class is left out. The other order,
    which weighs every class the same, is `dice_case_per_class(matrices)[1:].nanmean()`: nnU-Net's `foreground_mean`.
    The two differ only where a class is missing from some cases.
    """
    return _case_mean(dice_per_class(matrices, members)) if has_foreground(matrices) else math.nan


def has_foreground(matrices: Tensor) -> bool:
    """Whether the truth of any case has a foreground class."""
    return bool(matrices[:, 1:].any())


def lost_classes(matrices: Tensor, members: Members | None = None) -> list[int]:
    """The classes that are in the truth of some case and predicted in none: a network has collapsed there. One that
    sees foreground everywhere has lost the background.

    >>> lost_classes(torch.tensor([[[8, 1, 0], [0, 1, 0], [2, 0, 0]]]))
    [2]
    """
    _, truth, guess = pixels_per_class(matrices.sum(0), members)
    return torch.nonzero((truth > 0) & (guess == 0)).flatten().tolist()


def dice_case_per_class(matrices: Tensor, members: Members | None = None) -> Tensor:
    """Dice of each class as the mean over the cases it is counted in, `[N, C, C]` to `[C]`, float64."""
    return dice_per_class(matrices, members).nanmean(0)


def _case_mean(values: Tensor) -> float:
    """`[N, C]` to the mean over the foreground classes of a case, then over cases."""
    return float(values[:, 1:].nanmean(1).nanmean())


def foreground_share(matrices: Tensor) -> Tensor:
    """The part of each case's pixels that is foreground in the truth, `[N, C, C]` to `[N]`, float64."""
    truth = matrices.sum(-1).double()
    return truth[:, 1:].sum(-1) / truth.sum(-1)


def strata(matrices: Tensor) -> list[str | None]:
    """Each case's quarter, tiny to large, by the quartiles of the foreground share; None without foreground.

    A share equal to a quartile belongs to the smaller stratum. Only the truth decides: all losses have the same strata.
    """
    share = foreground_share(matrices)
    present = share > 0
    if not present.any():
        return [None] * len(matrices)
    quartiles = torch.quantile(share[present], share.new_tensor([0.25, 0.5, 0.75]))
    quarter = torch.bucketize(share, quartiles).tolist()
    return [STRATA[q] if p else None for q, p in zip(quarter, present.tolist(), strict=True)]


class Surface(NamedTuple):
    """How far the surfaces of one case's prediction and truth are apart. Entry 0, the background, is NaN."""

    hd95: Tensor  # [C], in `unit`: 95th percentile of the distances to the other surface; the larger of both ways
    nsd: Tensor  # [C]: the part of both surfaces that is within `tolerance` of the other
    missing: int  # how many classes are in only one of truth and prediction
    unit: Literal["mm", "px"]
    tolerance: float


def surface(
    prediction: Tensor,
    labels: Tensor,
    classes: int,
    spacing: Sequence[float] | None = None,
    tolerance: float = 2.0,
    members: Members | None = None,
) -> Surface:
    """HD95 and normalised surface Dice of one image or volume `[*spatial]`, from MONAI's edges and distances.

    HD95 is the larger of two 95th percentiles, of the distances there and of those back; MedPy has one, of both pooled.
    With `spacing`, the millimetres along each axis, distances and tolerance are in millimetres, else in pixels.
    Pixels whose label is outside 0 … C − 1 belong to no class, whatever is predicted there.
    A class in only one of truth and prediction has as HD95 the diagonal, the largest distance the image can hold:
    left out, a missed structure would improve the mean. `members` are the labels of each class, if not its own number.
    """
    _check_shapes(prediction, labels)
    if spacing is not None and len(spacing) != labels.ndim:
        raise ValueError(f"spacing {tuple(spacing)} has {len(spacing)} entries, the labels have {labels.ndim} axes")
    try:
        from monai.metrics.utils import get_mask_edges, get_surface_distance
    except ImportError as error:
        raise ImportError("HD95 and NSD are computed by MONAI: pip install 'polydice[study]'") from error

    step = tuple(map(float, spacing)) if spacing is not None else (1.0,) * labels.ndim
    diagonal = math.hypot(*((length - 1) * size for length, size in zip(labels.shape, step, strict=True)))

    prediction, labels = prediction.cpu(), labels.cpu()
    members = members or [[label] for label in range(classes)]
    known = torch.isin(labels, torch.tensor([label for each in members for label in each]))
    hd95, nsd = torch.full((2, classes), math.nan, dtype=torch.float64)
    missing = 0
    for label in range(1, classes):
        own = torch.tensor(members[label])
        guess, truth = torch.isin(prediction, own) & known, torch.isin(labels, own)
        found = int(guess.any()) + int(truth.any())
        if found == 1:
            hd95[label], nsd[label] = diagonal, 0
            missing += 1
        elif found == 2:
            guess, truth = get_mask_edges(guess, truth)
            there = torch.as_tensor(get_surface_distance(guess, truth, spacing=step))
            back = torch.as_tensor(get_surface_distance(truth, guess, spacing=step))
            hd95[label] = max(there.quantile(0.95), back.quantile(0.95))
            nsd[label] = (torch.cat([there, back]) <= tolerance).double().mean()
    return Surface(hd95, nsd, missing, "px" if spacing is None else "mm", tolerance)


def summary(matrices: Tensor, members: Members | None = None) -> dict[str, Any]:
    """The scores that a validation is about."""
    return {
        "dice_foreground": _number(dice_foreground(matrices, members)),
        "dice_global": _number(dice_global(matrices, members)),
        "dice_case": _number(dice_case(matrices, members)),
        "dice_global_per_class": _numbers(dice_per_class(matrices.sum(0), members)),
    }


def evaluate(
    matrices: Tensor, surfaces: Sequence[Surface] = (), names: Sequence[str] = (), members: Members | None = None
) -> dict[str, Any]:
    """Every score of a test set, ready for JSON, from one matrix `[N, C, C]` and, where wanted, one `Surface` per case.

    Lists have one entry per class, the background first; but `lost_classes` has the names of those that are lost.

    >>> found = evaluate(torch.tensor([[[8, 0], [0, 2]], [[9, 0], [1, 0]]]), names=("background", "polyp"))
    >>> found["lost_classes"], found["strata"]["tiny"]["dice_foreground"]
    ([], 0.0)
    """
    matrices = matrices.cpu()
    scores = {
        "cases": len(matrices),
        **summary(matrices, members),
        "predicts_nothing": has_foreground(matrices) and not matrices[..., 1:].any(),
        "lost_classes": [names[label] if names else f"class {label}" for label in lost_classes(matrices, members)],
        "dice_case_per_class": _numbers(dice_case_per_class(matrices, members)),
        "strata": _by_stratum(matrices, members),
    }
    return scores | ({"surface": _surfaces(surfaces, len(matrices))} if surfaces else {})


def _by_stratum(matrices: Tensor, members: Members | None) -> dict[str, dict[str, Any]]:
    names, share = strata(matrices), foreground_share(matrices)
    scores = {}
    for name in STRATA:
        chosen = torch.tensor([given == name for given in names], dtype=torch.bool)
        if chosen.any():
            scores[name] = {
                "cases": int(chosen.sum()),
                "foreground_share": [float(share[chosen].min()), float(share[chosen].max())],
                "dice_foreground": _number(dice_foreground(matrices[chosen], members)),
                "dice_global": _number(dice_global(matrices[chosen], members)),
                "dice_case": _number(dice_case(matrices[chosen], members)),
            }
    return scores


def _surfaces(surfaces: Sequence[Surface], cases: int) -> dict[str, Any]:
    if len(surfaces) != cases:
        raise ValueError(f"{cases} cases, but {len(surfaces)} surfaces")
    if len({(case.unit, case.tolerance) for case in surfaces}) > 1:
        raise ValueError("surfaces in millimetres and in pixels, or with different tolerances, have no common mean")
    hd95, nsd = (torch.stack([getattr(case, name) for case in surfaces]) for name in ("hd95", "nsd"))
    return {
        "unit": surfaces[0].unit,
        "tolerance": surfaces[0].tolerance,
        "missing": sum(case.missing for case in surfaces),
        "hd95": _number(_case_mean(hd95)),
        "nsd": _number(_case_mean(nsd)),
        "hd95_per_class": _numbers(hd95.nanmean(0)),
        "nsd_per_class": _numbers(nsd.nanmean(0)),
    }


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value  # JSON has no NaN


def _numbers(values: Tensor) -> list[float | None]:
    return [_number(value) for value in values.tolist()]
