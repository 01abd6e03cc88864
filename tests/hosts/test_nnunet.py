"""The losses beside nnU-Net's own, and the names of the trainers. What nnU-Net does with them: test_nnunet_commands."""

import csv
import os
import pickle
import subprocess
import sys
import warnings
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
from nnunetv2.training.loss.dice import MemoryEfficientSoftDiceLoss, get_tp_fp_fn_tn
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from nnunetv2.utilities.find_objects import recursive_find_trainer_class_by_name
from nnunetv2.utilities.label_handling.label_handling import LabelManager
from torch.nn.functional import one_hot

from benchmarks.__main__ import main
from polydice import CrossEntropyLoss, DiceLoss, PolyDice1Loss
from polydice.integrations import nnunet
from polydice.integrations.nnunet_annotated import counts, read_annotated, rows
from polydice.integrations.nnunet_names import EXPLAINED
from tests.together import in_processes

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
        dice, plus=CrossEntropyLoss if cross_entropy else None, batch_dice=training.batch_dice, ddp=training.ddp,
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
    logits = one_hot(target[:, 0].long(), IGNORED).movedim(-1, 1) * 100.0
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
    in_processes(one_of_two, tmp_path)


LABELS = {"background": 0, "one": 1, "two": 2, "three": 3}
TRAINERS = (nnunet.nnUNetTrainerDiceCE, nnUNetTrainer)
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
ANGLE = "include_background=False"
NAMES = {
    "nnUNetTrainerDice": f"DiceLoss(squared=False, {DICE})",
    "nnUNetTrainerDiceCE": f"DiceLoss(squared=False, {DICE}) + CrossEntropyLoss()",
    "nnUNetTrainerDiceFocal": f"DiceLoss(squared=False, {DICE}) + FocalLoss()",
    "nnUNetTrainerDiceFocal_focal3.5": f"DiceLoss(squared=False, {DICE}) + FocalLoss(gamma=3.5)",
    "nnUNetTrainerPolyDice": f"PolyDice1Loss(epsilon=0.2, {DICE})",
    "nnUNetTrainerPolyDiceCE": f"PolyDice1Loss(epsilon=0.2, {DICE}) + CrossEntropyLoss()",
    "nnUNetTrainerPolyDiceCE_epsilon0.5": f"PolyDice1Loss(epsilon=0.5, {DICE}) + CrossEntropyLoss()",
    "nnUNetTrainerPolyDice_epsilon-0.25": f"PolyDice1Loss(epsilon=-0.25, {DICE})",
    "nnUNetTrainerPolyDice_epsilon0": f"PolyDice1Loss(epsilon=0.0, {DICE})",
    "nnUNetTrainerPolyDice_epsilon0.5_detached": f"PolyDice1Loss(epsilon=0.5, scale='detached', {DICE})",
    "nnUNetTrainerPolyDice_noscale": f"PolyDice1Loss(epsilon=0.2, scale='none', {ANGLE})",
    "nnUNetTrainerPolyDiceFocal_epsilon0_follow4_detached_focal1":
        f"PolyDice1Loss(epsilon=0.0, follow=4.0, scale='detached', {DICE}) + FocalLoss(gamma=1.0)",
    "nnUNetTrainerDropDice": f"DropDiceLoss(order=1, {DICE})",
    "nnUNetTrainerDropDiceCE_order10": f"DropDiceLoss(order=10, {DICE}) + CrossEntropyLoss()",
    "nnUNetTrainerDropDice_order2_detached": f"DropDiceLoss(order=2, scale='detached', {DICE})",
    "nnUNetTrainerTversky": f"TverskyLoss({DICE})",
    "nnUNetTrainerTverskyCE_beta0.6": f"TverskyLoss(beta=0.6, {DICE}) + CrossEntropyLoss()",
    "nnUNetTrainerTverskyFocal_alpha0.4": f"TverskyLoss(alpha=0.4, {DICE}) + FocalLoss()",
    "nnUNetTrainerFocalTversky": f"FocalTverskyLoss({DICE})",
    "nnUNetTrainerFocalTverskyFocal_alpha0.7_beta0.3_gamma2":
        f"FocalTverskyLoss(alpha=0.7, beta=0.3, gamma=2.0, {DICE}) + FocalLoss()",
    "nnUNetTrainerTvMF": f"TvMFDiceLoss(kappa=0.0, {ANGLE})",
    "nnUNetTrainerTvMFCE_kappa32": f"TvMFDiceLoss(kappa=32.0, {ANGLE}) + CrossEntropyLoss()",
}  # fmt: skip
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
    ("name", "reason"),
    [
        ("nnUNetTrainerPolyDice_epsilon02", "epsilon02 is no number"),
        ("nnUNetTrainerPolyDice_epsilon.2", r"epsilon\.2 is no number"),
        ("nnUNetTrainerPolyDiceCE_epsilon", "epsilon is no number"),
        ("nnUNetTrainerPolyDice_epsilon-0.6", "below -1/2"),
        ("nnUNetTrainerPolyDice_follow-4", "follow .* at least 0"),
        ("nnUNetTrainerDropDice_order0", "order must be at least 1: 0"),
        ("nnUNetTrainerDropDice_order1.5", "order must be an integer: 1.5"),
        ("nnUNetTrainerTversky_alpha-0.3", "alpha must be .* at least 0"),
        ("nnUNetTrainerTversky_alpha0_beta0", "both 0"),
        ("nnUNetTrainerFocalTversky_gamma0", "gamma must be positive"),
        ("nnUNetTrainerTvMF_kappa-1", "kappa must be .* not negative"),
        ("nnUNetTrainerDiceFocal_focal-2", "gamma must be .* at least 0"),
    ],
)  # fmt: skip
def test_a_number_that_cannot_be_meant(name: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: .*{reason}") as problem:
        recursive_find_trainer_class_by_name(name)
    assert str(problem.value).endswith(EXPLAINED)


NEARLY = [
    "nnUNetTrainerPolydiceCE", "nnUNetTrainerPolyDice_eps0.2", "nnUNetTrainerPolyDiceCE_order2",
    "nnUNetTrainerPolyDice_detached_epsilon0.2", "nnUNetTrainerPolyDice_epsilon1e9", "nnUNetTrainerPolyDice_detached2",
    "nnUNetTrainerTverskyLoss", "nnUNetTrainerDiceCE_focal2", "nnUNetTrainerTVMF", "nnUNetTrainerFocalTverski",
    "nnUnetTrainerDropDice", "nnUNetTrainer_PolyDice", "nnUNetTrainerFocalDice", "nnUNetTrainerCE",
    "PolyDice_epsilon0.2",
]  # fmt: skip


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", NEARLY)
def test_a_name_that_is_nearly_one_says_which_there_are(name: str) -> None:
    with pytest.raises(
        ValueError, match=r"no .*names .*\n.*Dice\[CE\|Focal\](.*\n)+.*TvMF\[CE\|Focal\]\[_kappaNUMBER\]"
    ):
        recursive_find_trainer_class_by_name(name)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", ["nnUNetTrainerMine", "nnUNetTrainer_10epoch"])
def test_another_name_is_nnunets_affair(name: str) -> None:
    with pytest.raises(RuntimeError, match="Could not find requested nnunet trainer"):
        recursive_find_trainer_class_by_name(name)


def test_a_trainer_of_the_users_own_may_be_called_much_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = "from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer as nnUNetTrainerTverskyMine\n"
    (tmp_path / "own.py").write_text(own)
    for folders in ([str(tmp_path), nnunet.FOLDER], [nnunet.FOLDER, str(tmp_path)]):
        monkeypatch.setenv("nnUNet_extTrainer", os.pathsep.join(folders))
        with warnings.catch_warnings(action="ignore"):
            assert recursive_find_trainer_class_by_name("nnUNetTrainerTverskyMine") is nnUNetTrainer


def test_what_is_printed_last(tmp_path: Path) -> None:
    """The forms, and nothing is left behind."""
    command = [Path(sys.executable).with_name("nnUNetv2_train"), "1", "2d", "0", "-tr", "nnUNetTrainerPolydiceCE"]
    folders = {f"nnUNet_{name}": str(tmp_path) for name in ("raw", "preprocessed", "results")}
    environment = os.environ | folders | {"nnUNet_extTrainer": nnunet.FOLDER}
    found = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert found.returncode == 1
    assert found.stderr.endswith(EXPLAINED + "\n")
    assert not any(tmp_path.iterdir())


def test_an_nnunet_without_the_variable(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(nnunet, "version", lambda _: "2.7.0")
    assert "2.7.0 has no nnUNet_extTrainer" in str(nnunet.main())
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(nnunet, "version", lambda _: "2.10.0")
    assert nnunet.main() is None


def labels_of(training: Training) -> LabelManager:
    classes: dict[str, Any] = dict(zip(LABELS, (0, *REGIONS), strict=True)) if training.regions else LABELS
    return LabelManager(classes | ({"ignore": IGNORED} if training.ignore else {}), [1, 2, 3])


@each_training
def test_annotated(training: Training) -> None:
    """The loss is told, and a class is counted for the pseudo Dice where it is annotated, as nnU-Net counts.
    Regions have no background, and it may be named all the same."""
    labels, (logits, target) = labels_of(training), batch(training)
    background: list[str | int] = [] if training.regions else ["background"]
    table = read_annotated({"annotated": {"a": ["background", "one", "two"], "b": [*background, 3]}}, labels)
    annotated = rows(table, ["all", "a", "b"])
    assert annotated.T.tolist()[-3:] == [[True, True, False], [True, True, False], [True, False, True]]
    assert training.regions or annotated[:, 0].all()
    if training.regions:
        target[1, 2], target[2, :2] = False, False
    else:
        target[1][target[1] == 3], target[2][target[2] < 3] = 0, 0
    loss = ours(training)
    ignored = None
    if training.ignore:
        ignored = target[:, -1:] if training.regions else target == IGNORED
    truth = target[:, : len(REGIONS)] if training.regions else target
    expected = loss.loss(logits, truth, None if ignored is None or not training.regions else ~ignored, annotated) - 1
    assert loss(logits, target) != expected
    loss.annotated = annotated
    assert loss(logits, target) == expected

    found = counts(logits, target, annotated, labels)
    predicted = logits > 0 if training.regions else one_hot(logits.argmax(1), IGNORED).movedim(-1, 1)
    known = torch.ones_like(truth[:, :1]) if ignored is None else ~ignored
    true = truth if training.regions else torch.where(known.bool(), truth, 0)
    axes = list(range(2, logits.ndim))
    theirs = get_tp_fp_fn_tn(predicted.float(), true, axes=axes, mask=known)[:3]
    for name, each in zip(("tp_hard", "fp_hard", "fn_hard"), theirs, strict=True):
        assert found[name].tolist() == (each * annotated).sum(0)[0 if training.regions else 1 :].tolist()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["a"], "must be {case: .classes.}"),
        ({"a": "one"}, "must be {case: .classes.}"),
        ({"a": [0, "on"]}, r"a: \['on'\] is none of background, 0, one, 1"),
        ({"a": [0, 5]}, r"a: \[5\] is none of"),
        ({"a": ["one", "two"]}, "a: without the background"),
        ({"a": [0]}, "a: nothing can be learnt from it"),
    ],
)
def test_what_annotated_cannot_be(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_annotated({"annotated": given}, labels_of(TRAININGS[0]))


def test_a_number_is_no_region() -> None:
    labels = labels_of(Training(True, False, False))
    assert read_annotated({"annotated": {"a": [3]}}, labels)["a"].tolist() == [False, False, True]  # a region of one
    with pytest.raises(ValueError, match=r"\[2\] is none of one, two, three, 3$"):
        read_annotated({"annotated": {"a": [2]}}, labels)


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
