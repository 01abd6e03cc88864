"""`python -m tests.fuzz_losses --count 1000000`: random losses on random input, and a table of what came out.

An input is an image. Those of a call share the loss, its options, the types and the kind of target; each has its own
gap between logits, up to 1e4. Counted is what must not come out: a value or gradient that is not finite, a loss below
0, a value that is not that of float64, any error. Documented is an infinite cross-entropy where the truth has a logit
of −∞, and that the gradient of probabilities may leave its type.
"""

import argparse
import math
import random
import time
import warnings
from collections import Counter, defaultdict
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polydice import (
    CrossEntropyLoss,
    DiceLoss,
    DropDiceLoss,
    FocalTverskyLoss,
    PolyCE1Loss,
    PolyDice1Loss,
    PolyDiceLoss,
    TverskyLoss,
    TvMFDiceLoss,
)
from tests.reference import float32_pixels

IMAGES = 20  # in a call
# Where exp(−gap) or its square leaves the floats, with and without subnormals.
SPECIAL_GAPS = (0.0, 43.0, 44.0, 50.0, 58.0, 87.0, 88.0, 89.0, 103.0, 104.0, 110.0, 360.0, 372.0, 708.0, 745.0, 1e4)
SHAPES = ((1,), (2,), (7,), (16,), (3, 5), (4, 4), (2, 3, 2))
DTYPES = (torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16)  # the last not for probabilities
ROUNDING = 1e-5  # by which a loss may be below 0
AGREEMENT = 1e-4  # with float64, absolute or relative
COLUMNS = (
    "inputs",
    "∞, documented",
    "value not finite",
    "gradient not finite",
    "below 0",
    "not as in float64",
    "errors",
)


class Call(NamedTuple):
    loss: Any
    logits: Tensor
    target: Tensor
    mask: Tensor | None
    annotated: Tensor | None
    exact: bool  # whether a CPU computes the pixels of so small an input in float64, or as those of a large one
    scale: float  # of the gradients, as a scaler has it
    infinite: bool  # whether the truth may have a logit of −∞


def draw(rng: random.Random) -> tuple[str, Call]:
    """A call, and the name of its loss in the table."""
    activation = rng.choice(("softmax", "softmax", "sigmoid", "none"))
    classes = rng.randint(1 if activation != "softmax" else 2, 4)
    spatial, dtype = rng.choice(SHAPES), rng.choice(DTYPES if activation != "none" else DTYPES[:-1])
    generator = torch.Generator().manual_seed(rng.getrandbits(32))
    labels = _labels(rng, generator, classes, spatial)
    logits = _logits(rng, generator, labels, classes)
    infinite = activation != "none" and rng.random() < 0.1
    if infinite:
        ruled_out = torch.rand(logits.shape, generator=generator) < 0.2
        ruled_out[:, 0] &= activation == "sigmoid"  # a softmax needs one class
        logits[ruled_out] = -math.inf
    if activation == "none":
        logits = logits.softmax(1) if classes > 1 and rng.random() < 0.5 else logits.sigmoid()
    soft = rng.random() < 0.4
    annotated = _annotated(rng, generator, classes, activation)
    if annotated is not None:
        labels = _known(labels, annotated, classes)
    target = _masks(rng, generator, labels, classes) if soft else labels
    if soft and annotated is not None and activation == "softmax":
        target = _merging(target, annotated)
    ignored = None if soft or rng.random() < 0.7 else 255
    if ignored is not None:
        target = target.masked_fill(torch.rand(target.shape, generator=generator) < rng.choice((0.2, 0.9, 1.0)), 255)
    name, loss = _loss(rng, classes, activation, ignored)
    # What goes as 1/ŷ or has 16 bits may leave its type when it is multiplied.
    narrow = activation == "none" or dtype == torch.float16
    scale = 1.0 if narrow or rng.random() < 0.7 else 2.0**16
    mask = _pixel_mask(rng, generator, labels.shape, 1.0 if narrow else 1e6)
    exact = rng.random() < 0.5
    return name, Call(loss, logits.to(dtype), target, mask, annotated, exact, scale, infinite)


def _labels(rng: random.Random, generator: torch.Generator, classes: int, spatial: tuple[int, ...]) -> Tensor:
    shape, most = (IMAGES, *spatial), max(classes, 2)
    kind = rng.choice(("any", "one", "few"))
    if kind == "any":
        return torch.randint(most, shape, generator=generator)
    if kind == "one":
        return torch.full(shape, rng.randrange(most))
    return torch.randint(rng.randint(1, most), shape, generator=generator)


def _logits(rng: random.Random, generator: torch.Generator, labels: Tensor, classes: int) -> Tensor:
    """Gaps of every size, in favour of one class, of the truth, of anything else, or of chance."""
    gaps = [rng.choice(SPECIAL_GAPS) if rng.random() < 0.4 else 10 ** rng.uniform(-3, 4) for _ in range(IMAGES)]
    gap = torch.tensor(gaps, dtype=torch.float64).view(-1, 1, *[1] * (labels.ndim - 1))
    shape = (IMAGES, classes, *labels.shape[1:])
    channels = torch.arange(classes).view(1, -1, *[1] * (labels.ndim - 1))
    truth = (labels.unsqueeze(1) - int(classes == 1) == channels).double()
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    pattern = {
        "one class": (channels == rng.randrange(classes)).double().expand(shape),
        "truth": truth,
        "wrong": 1 - truth,
        "noise": noise,
        "signs": noise.sign() / 2,
        "almost": truth + 1e-3 * noise,
    }[rng.choice(("one class", "truth", "wrong", "noise", "signs", "almost"))]
    shift = rng.choice((0.0, 0.0, -0.5, 1.0, 1e4))
    return (gap * (pattern + shift if abs(shift) <= 1 else pattern) + (shift if shift > 1 else 0)).clamp(-6e4, 6e4)


def _masks(rng: random.Random, generator: torch.Generator, labels: Tensor, classes: int) -> Tensor:
    channels = torch.arange(classes).view(1, -1, *[1] * (labels.ndim - 1))
    hard = labels.unsqueeze(1) == channels
    return {
        "bool": hard,
        "byte": hard.to(torch.uint8) if classes > 1 else hard,
        "float": hard.float(),
        "soft": torch.rand(hard.shape, generator=generator),
        "empty": torch.zeros(hard.shape),
        "tiny": hard.double() * 10 ** rng.uniform(-40, 0),
        "rounded": hard.float() * 1.0009,
    }[rng.choice(("bool", "byte", "float", "soft", "empty", "tiny", "rounded"))]


def _annotated(rng: random.Random, generator: torch.Generator, classes: int, activation: str) -> Tensor | None:
    if rng.random() < 0.7:
        return None
    found = torch.rand(IMAGES, classes, generator=generator) < rng.choice((0.3, 0.7))
    if activation == "softmax":
        found[:, 0] |= found.any(1)
    return found


def _known(labels: Tensor, annotated: Tensor, classes: int) -> Tensor:
    """Labels of classes that are not annotated become those of one that is, or of none."""
    known = torch.where(annotated.any(1), annotated.int().argmax(1), 0)
    if classes == 1:
        return torch.where(annotated[:, 0].view(-1, *[1] * (labels.ndim - 1)), labels, 0)
    flat = labels.flatten(1)
    kept = annotated | ~annotated.any(1, keepdim=True)
    return torch.where(kept.gather(1, flat), flat, known.unsqueeze(1)).view_as(labels)


def _merging(masks: Tensor, annotated: Tensor) -> Tensor:
    """Masks whose members of the background do not overlap: they have no other than class 0."""
    others = ~annotated
    others[:, 0] = False
    return masks.masked_fill(others.view(*annotated.shape, *[1] * (masks.ndim - 2)), 0)


def _pixel_mask(rng: random.Random, generator: torch.Generator, shape: tuple[int, ...], most: float) -> Tensor | None:
    kind = rng.choice(("none", "none", "none", "bool", "float", "tiny", "large", "nothing"))
    some = torch.rand(shape, generator=generator)
    return {
        "none": None,
        "bool": some > 0.3,
        "float": (some - 0.3).relu(),
        "tiny": some * 10 ** rng.uniform(-40, 0),
        "large": some * most,
        "nothing": torch.zeros(shape),
    }[kind]


def _loss(rng: random.Random, classes: int, activation: str, ignored: int | None) -> tuple[str, Any]:
    options: dict[str, Any] = {"activation": activation, "ignore_index": ignored}
    options["reduction"] = rng.choice(("none", "none", "none", "mean", "sum"))
    options["impl"] = rng.choice(("auto", "eager"))
    if classes > 1 and rng.random() < 0.2:
        options["include_background"] = False
    if rng.random() < 0.2:
        options["weight"] = [rng.choice((0.0, 0.1, 1.0, 3.0)) for _ in range(classes - 1)] + [1.0]
    averaged = {**options, "batch": rng.random() < 0.2, "absent": rng.choice(("keep", "keep", "skip"))}
    delta = rng.choice((0.0, 0.0, 1.0, 1e-5, 10 ** rng.uniform(-45, 3)))
    region = {**averaged, "smooth": delta}
    kappa = rng.choice((0.0, 32.0, 10 ** rng.uniform(-3, 3), [rng.uniform(0, 32) for _ in range(classes)]))
    scale = rng.choice(("coupled", "detached"))
    losses = {
        "Dice": DiceLoss(**region),
        "Dice, unsquared": DiceLoss(squared=False, **region),
        "DropDice": DropDiceLoss(rng.choice((1, 2, 3, 10)), scale=scale, **region),
        "PolyDice-1": PolyDice1Loss(rng.uniform(-0.5, 2), scale=scale, **region),
        "PolyDice": PolyDiceLoss([rng.uniform(0, 1) for _ in range(rng.randint(1, 4))], scale=scale, **region),
        "the angle alone": PolyDice1Loss(rng.uniform(-0.5, 2), scale="none", **averaged),
        "Tversky": TverskyLoss(rng.choice((0.0, 0.3, 1.0)), rng.choice((0.0, 0.7, 2.0)), **region),
        "Focal Tversky": FocalTverskyLoss(gamma=rng.choice((0.5, 4 / 3, 10.0)), **region),
        "t-vMF Dice": TvMFDiceLoss(kappa, **averaged),
    }
    if activation != "none":
        entropies = {
            "cross-entropy": CrossEntropyLoss(**options),
            "PolyCE-1": PolyCE1Loss(rng.uniform(-1, 3), **options),
        }
        other = rng.choice(
            [loss for loss in losses.values() if not (loss.batch and loss.reduction == "none")] or [None]
        )
        if other is not None:
            entropies["a sum of two"] = other + rng.uniform(0.1, 10) * entropies["cross-entropy"]
        losses |= entropies
    return rng.choice(list(losses.items()))


def _run(call: Call) -> tuple[Tensor, Tensor]:
    """The values of each image, `[images, …]`, or the one of all, and the gradient."""
    logits = call.logits.clone().requires_grad_()
    with nullcontext() if call.exact else float32_pixels():
        values = call.loss(logits, call.target, call.mask, call.annotated)
        (gradient,) = torch.autograd.grad((values * call.scale).sum(), logits)
    return values.detach().reshape(len(values) if values.ndim else 1, -1), gradient.flatten(1)


def _infinite_truth(call: Call) -> Tensor:
    """The images whose truth may have a logit of −∞; with one value for all, all."""
    found = call.logits.isneginf().flatten(1).any(1)
    return found if call.infinite else torch.zeros_like(found)


def _well_posed(call: Call) -> bool:
    """Not the power of Focal Tversky, whose slope has no bound towards 0, nor rounding times a weight of a million."""
    return "FocalTversky" not in repr(call.loss) and not (call.mask is not None and bool(call.mask.max() > 1))


def fuzz(count: int, seed: int = 0) -> dict[str, Counter[str]]:
    rng, table = random.Random(seed), defaultdict[str, Counter[str]](Counter)
    for _ in range(-(-count // IMAGES)):
        name, call = draw(rng)
        row = table[name]
        row["inputs"] += IMAGES
        try:
            values, gradient = _run(call)
        except Exception as error:
            row["errors"] += IMAGES
            row[f"error: {type(error).__name__}: {error}"] += 1
            continue
        documented = _infinite_truth(call)
        documented = documented if len(values) == IMAGES else documented.any().expand(len(values))
        entropy = name in ("cross-entropy", "PolyCE-1", "a sum of two")
        infinite = values.isposinf().any(1) & documented & entropy
        row["∞, documented"] += int(infinite.sum())
        row["value not finite"] += int((~values.isfinite().all(1) & ~infinite).sum())
        row["gradient not finite"] += int((~gradient.isfinite().all(1)).sum())
        if not (call.target.is_floating_point() and call.target.max() > 1):
            row["below 0"] += int((values < -ROUNDING).any(1).sum())
        if rng.random() < 0.2 and _well_posed(call):
            exact, _ = _run(call._replace(logits=call.logits.double()))
            off = (values - exact).abs() > AGREEMENT * exact.abs().clamp(min=1)
            row["not as in float64"] += int((off & values.isfinite()).any(1).sum())
    return table


def shown(table: dict[str, Counter[str]]) -> str:
    lines = ["| loss | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    total = sum(table.values(), Counter[str]())
    for name, row in [*sorted(table.items()), ("all", total)]:
        lines.append(f"| {name} | " + " | ".join(f"{row[column]:,}" for column in COLUMNS) + " |")
    return "\n".join(lines + sorted(f"{kind}: {number}" for kind, number in total.items() if kind.startswith("error:")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    start = time.perf_counter()
    print(shown(fuzz(given.count, given.seed)))
    print(
        f"\n{given.count:,} inputs, seed {given.seed}, {time.perf_counter() - start:.0f} s, torch {torch.__version__}"
    )


if __name__ == "__main__":
    main()
