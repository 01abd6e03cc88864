"""The losses beside nnU-Net's own, and the names of the trainers. What nnU-Net does with them: test_nnunet_commands."""

import csv
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, distributed, nn

pytest.importorskip(
    "nnunetv2.training.nnUNetTrainer.nnUNetTrainer", reason="nnU-Net is not installed: make test-hosts",
    exc_type=ImportError,
)  # fmt: skip

from nnunetv2.training.loss.compound_losses import DC_and_BCE_loss, DC_and_CE_loss
from nnunetv2.training.loss.dice import MemoryEfficientSoftDiceLoss
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from nnunetv2.utilities.find_objects import recursive_find_trainer_class_by_name

from benchmarks.__main__ import main
from polydice import DiceLoss, PolyDice1Loss
from polydice.integrations import nnunet

SAME = partial(DiceLoss, squared=False)  # nnU-Net's own mathematics
IGNORED = 4  # one more than the last of the labels 0 … 3
REGIONS = ((1, 2, 3), (2, 3), (3,))
TOLERANCE = 1e-5
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


class Training(NamedTuple):
    """What distinguishes trainings for a loss."""

    regions: bool
    ignore: bool
    batch_dice: bool
    ddp: bool = False


TRAININGS = [Training(bool(i & 4), bool(i & 2), bool(i & 1)) for i in range(8)]
each_training = pytest.mark.parametrize("training", TRAININGS, ids=str)


def theirs(training: Training, cross_entropy: bool = True) -> nn.Module:
    """As nnUNetTrainer._build_loss makes it."""
    dice = {"batch_dice": training.batch_dice, "do_bg": training.regions, "smooth": 1e-5, "ddp": training.ddp}
    settings = {"weight_ce": int(cross_entropy), "dice_class": MemoryEfficientSoftDiceLoss}
    if training.regions:
        return DC_and_BCE_loss({}, dice, use_ignore_label=training.ignore, **settings)
    return DC_and_CE_loss(dice, {}, ignore_label=IGNORED if training.ignore else None, **settings)


def ours(training: Training, cross_entropy: bool = True, dice: Callable[..., Any] = SAME) -> nnunet.NnUNetLoss:
    return nnunet.nnunet_loss(
        dice, cross_entropy=cross_entropy, batch_dice=training.batch_dice, ddp=training.ddp,
        regions=len(REGIONS) if training.regions else 0, ignore_label=IGNORED if training.ignore else None,
    )  # fmt: skip


def batch(training: Training, size: tuple[int, ...] = (17, 12, 9), images: int = 3) -> tuple[Tensor, Tensor]:
    """Logits, and a target as nnU-Net's loaders make it: int16 labels, or boolean regions and last what is ignored."""
    labels = torch.randint(IGNORED + training.ignore, (images, 1, *size), dtype=torch.int16)
    labels[0][labels[0] == 2] = 0  # a class that an image does not have
    if not training.regions:
        return torch.randn(images, IGNORED, *size), labels
    regions = REGIONS + ((IGNORED,),) * training.ignore
    target = torch.cat([torch.isin(labels, torch.tensor(region)) for region in regions], dim=1)
    return torch.randn(images, len(REGIONS), *size), target


def value_and_gradient(loss: nn.Module, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    logits = logits.clone().requires_grad_()
    value = loss(logits, target)
    return value.detach(), torch.autograd.grad(value, logits)[0]


def same(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    """The value to 1e-5; the gradient, whose elements are far smaller than that, to 1e-5 of its largest."""
    assert found[0].item() == pytest.approx(expected[0].item(), abs=TOLERANCE)
    assert (found[1] - expected[1]).abs().max() < TOLERANCE * expected[1].abs().max()


@each_training
@pytest.mark.parametrize("cross_entropy", [False, True], ids=["Dice", "Dice + CE"])
@pytest.mark.parametrize("size", [(31, 18), (17, 12, 9)], ids=["2D", "3D"])
def test_the_same_numbers(training: Training, cross_entropy: bool, size: tuple[int, ...]) -> None:
    logits, target = batch(training, size)
    found = value_and_gradient(ours(training, cross_entropy), logits, target)
    same(found, value_and_gradient(theirs(training, cross_entropy), logits, target))


@each_training
def test_the_same_numbers_where_an_image_is_ignored(training: Training) -> None:
    logits, target = batch(training._replace(ignore=True))
    target[0] = IGNORED if not training.regions else False
    if training.regions:
        target[0, -1] = True
    training = training._replace(ignore=True)
    same(value_and_gradient(ours(training), logits, target), value_and_gradient(theirs(training), logits, target))


@each_training
def test_half_precision(training: Training) -> None:
    """What autocast gives the loss. The sums are float32, so only the logits are rounded."""
    logits, target = batch(training)
    logits = logits.half()
    found, exact = (value_and_gradient(ours(training), x, target) for x in (logits, logits.double()))
    assert found[0].dtype == torch.float32
    assert found[0].item() == pytest.approx(exact[0].item(), abs=TOLERANCE)


@each_training
def test_compiles_whole(training: Training) -> None:
    """nnU-Net compiles the Dice of its loss."""
    logits, target = batch(training)
    loss = ours(training, dice=partial(PolyDice1Loss, 0.2))
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    same(value_and_gradient(compiled, logits, target), value_and_gradient(loss, logits, target))


def test_a_perfect_prediction_is_minus_one() -> None:
    """As nnU-Net's −Dice: its logs and plots read alike."""
    _, target = batch(TRAININGS[0])
    logits = torch.nn.functional.one_hot(target[:, 0].long(), IGNORED).movedim(-1, 1) * 100.0
    for dice in (SAME, partial(PolyDice1Loss, 0.2)):
        assert ours(TRAININGS[0], dice=dice)(logits, target).item() == pytest.approx(-1, abs=1e-6)


def one_of_two(rank: int, folder: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    for training in TRAININGS:
        torch.manual_seed(0)
        logits, target = batch(training, images=4)
        own, training = slice(2 * rank, 2 * rank + 2), training._replace(ddp=True)
        # Without an ignore label: with one, nnU-Net's cross-entropy is the mean of the processes' means.
        found, expected = (
            value_and_gradient(make(training, not training.ignore), logits[own], target[own]) for make in (ours, theirs)
        )
        if not training.ignore:  # what is logged is the mean over the processes
            for value, _ in (found, expected):
                distributed.all_reduce(value)
        same(found, expected)
    distributed.destroy_process_group()


def test_two_processes(tmp_path: Path) -> None:
    """The sums of a batch Dice run over the processes, and each has the gradient that nnU-Net's gathering gives it."""
    torch.multiprocessing.spawn(one_of_two, (str(tmp_path),), nprocs=2)


LABELS = {"background": 0, "one": 1, "two": 2, "three": 3}
TRAINERS = (nnunet.trainer_with("Same", SAME, cross_entropy=True), nnUNetTrainer)
Build = Callable[..., nn.Module]


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    """The loss that a trainer builds in a training."""
    monkeypatch.setenv("nnUNet_results", str(tmp_path))

    def made(
        trainer: type, training: Training = TRAININGS[0], *, deep_supervision: bool = False, compiles: bool = False
    ) -> nn.Module:
        network = {"arch_kwargs": {"strides": [[1, 1], [2, 2], [2, 2], [2, 2]]}}
        settings = {"data_identifier": "", "batch_dice": training.batch_dice, "architecture": network}
        labels: dict[str, Any] = dict(zip(LABELS, (0, *REGIONS), strict=True)) if training.regions else LABELS
        made: Any = trainer(
            {"dataset_name": "Dataset001_Set", "plans_name": "Plans", "label_manager": "LabelManager",
             "continue_training": False, "configurations": {"2d": settings}},
            "2d", 0,
            {"labels": labels | ({"ignore": IGNORED} if training.ignore else {}), "regions_class_order": [1, 2, 3]},
            torch.device("cpu"),
        )  # fmt: skip
        made.enable_deep_supervision, made.is_ddp = deep_supervision, training.ddp
        monkeypatch.setattr(nnUNetTrainer, "_do_i_compile", lambda _: compiles)  # it never does on a CPU
        loss: nn.Module = made._build_loss()
        return loss

    return made


@each_training
def test_trainer_builds_the_same_loss(build: Build, training: Training) -> None:
    found, expected = (build(trainer, training) for trainer in TRAINERS)
    logits, target = batch(training)
    same(value_and_gradient(found, logits, target), value_and_gradient(expected, logits, target))


@each_training
@pytest.mark.parametrize("ddp", [False, True], ids=["one process", "DDP"])
def test_deep_supervision(build: Build, training: Training, ddp: bool) -> None:
    """Also its weights for DDP without compilation, where the coarsest output must not be without any."""
    training = training._replace(ddp=ddp, batch_dice=training.batch_dice and not ddp)
    found, expected = (build(trainer, training, deep_supervision=True) for trainer in TRAINERS)
    assert found.weight_factors == expected.weight_factors
    assert (found.weight_factors[-1] > 0) == ddp
    pairs = [batch(training, (32 >> level, 16 >> level)) for level in range(3)]
    outputs, targets = zip(*pairs, strict=True)
    outputs = tuple(output.requires_grad_() for output in outputs)
    values = [loss(outputs, targets) for loss in (found, expected)]
    assert values[0].item() == pytest.approx(values[1].item(), abs=TOLERANCE)
    used = outputs if ddp else outputs[:-1]
    for gradient, their in zip(*(torch.autograd.grad(value, used) for value in values), strict=True):
        assert (gradient - their).abs().max() < TOLERANCE * their.abs().max()


@pytest.mark.parametrize("ddp", [False, True])
def test_deep_supervision_where_nnunet_compiles(build: Build, ddp: bool) -> None:
    training = TRAININGS[0]._replace(ddp=ddp)
    found, expected = (build(trainer, training, deep_supervision=True, compiles=True) for trainer in TRAINERS)
    assert found.weight_factors == expected.weight_factors
    assert found.weight_factors[-1] == 0


DICE = "smooth=1e-05, include_background=False"
NAMES = {
    "nnUNetTrainerPolyDice": f"PolyDice1Loss(epsilon=0.2, {DICE})",
    "nnUNetTrainerDropDice": f"DropDiceLoss(order=1, {DICE})",
    "nnUNetTrainerPolyDiceCE": f"PolyDice1Loss(epsilon=0.2, {DICE}) + CrossEntropyLoss()",
    "nnUNetTrainerDropDiceCE": f"DropDiceLoss(order=1, {DICE}) + CrossEntropyLoss()",
    "nnUNetTrainerPolyDiceCE_epsilon0.5": f"PolyDice1Loss(epsilon=0.5, {DICE}) + CrossEntropyLoss()",
    "nnUNetTrainerPolyDice_epsilon-0.25": f"PolyDice1Loss(epsilon=-0.25, {DICE})",
    "nnUNetTrainerPolyDice_epsilon0": f"PolyDice1Loss(epsilon=0.0, {DICE})",
    "nnUNetTrainerPolyDice_epsilon0.5_detached": f"PolyDice1Loss(epsilon=0.5, scale='detached', {DICE})",
    "nnUNetTrainerPolyDice_noscale": "PolyDice1Loss(epsilon=0.2, scale='none', include_background=False)",
    "nnUNetTrainerDropDiceCE_order10": f"DropDiceLoss(order=10, {DICE}) + CrossEntropyLoss()",
    "nnUNetTrainerDropDice_order2_detached": f"DropDiceLoss(order=2, scale='detached', {DICE})",
}
each_name = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(scope="module")
def folder() -> Iterator[None]:
    """The documented line."""
    command = [sys.executable, "-m", "polydice.integrations.nnunet"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("nnUNet_extTrainer", printed)
        yield


@each_name
@pytest.mark.usefixtures("folder")
def test_nnunet_finds_the_trainer_of_a_name(build: Build, name: str) -> None:
    trainer = recursive_find_trainer_class_by_name(name)
    assert trainer.__name__ == name  # after which nnU-Net names the folder of results
    assert issubclass(trainer, nnUNetTrainer)
    loss = build(trainer)
    assert isinstance(loss, nnunet.NnUNetLoss)
    assert repr(loss.loss) == NAMES[name]


@each_name
def test_pickle(name: str) -> None:
    trainer = getattr(nnunet, name)
    assert pickle.loads(pickle.dumps(trainer)) is trainer


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "name",
    ["nnUNetTrainerPolyDice_eps0.2", "nnUNetTrainerPolyDiceCE_order2", "nnUNetTrainerDropDiceCE_epsilon0.2",
     "nnUNetTrainerDropDice_order1.5", "nnUNetTrainerPolyDice_detached_epsilon0.2", "nnUNetTrainerPolyDice_epsilon1e9"],
)  # fmt: skip
def test_a_name_that_is_none_says_what_there_is(name: str) -> None:
    with pytest.warns(UserWarning, match=r"no trainer .*PolyDice\[CE\]\[_epsilonNUMBER\]"), pytest.raises(
        RuntimeError, match="Could not find requested nnunet trainer"
    ):  # fmt: skip
        recursive_find_trainer_class_by_name(name)


def test_order_zero(build: Build) -> None:
    with pytest.raises(ValueError, match="order must be at least 1: 0"):
        build(nnunet.nnUNetTrainerDropDice_order0)


def test_the_import_does_not_need_nnunet() -> None:
    code = "import sys, polydice.integrations.nnunet; sys.exit('nnunetv2' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It measures the same mathematics: the two values that must agree do."""
    monkeypatch.setenv("nnUNet_results", "")  # the benchmark sets its own
    assert main(["nnunet", "--device", "cpu", "--quick", "--out", str(tmp_path)]) == 0
    with (tmp_path / "nnunet.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["built_by"] for row in rows} == {"by_trainer"}
    values = {(row["shape"], row["cross_entropy"], row["dice"]): float(row["value"]) for row in rows}
    for (shape, cross_entropy, dice), value in values.items():
        if dice == "nnU-Net":
            assert values[shape, cross_entropy, "Dice as nnU-Net's"] == pytest.approx(value, abs=TOLERANCE)
