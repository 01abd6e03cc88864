import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from polydice import CrossEntropyLoss, DiceLoss, PolyDice1Loss
from polydice.models import MODELS, build
from polydice.models.dynunet import DynUNet
from polydice.training.checkpoint import load_weights
from polydice.training.config import Settings
from polydice.training.expression import parse_loss
from polydice.training.heads import LEAST_CLASSES, Body, head_losses, heads_of, late_head, pays
from polydice.training.loop import train
from polydice.training.objective import supervised
from tests.data import write
from tests.models.test_models import SMALL
from tests.training.runs import history, small, train_until, weights
from tests.training.test_processes import PATH

MANY = LEAST_CLASSES["cpu"]


@pytest.mark.parametrize("name", MODELS)
def test_the_registry_says_which_networks_have_a_head(name: str) -> None:
    """And of those the finest head makes the logits of the features."""
    model = build(name, 1, 5, **SMALL[name]).eval()
    if not MODELS[name].head:
        with pytest.raises(ValueError, match="does not end in a 1×1 convolution"):
            heads_of(model)
        return
    image = torch.rand(1, 1, *[32] * MODELS[name].dims)
    with torch.no_grad():
        assert torch.equal(heads_of(model)[0](Body(model)(image)), model(image))


@pytest.mark.parametrize("name", ["unet", "dynunet"])
def test_every_resolution_has_its_head(name: str) -> None:
    model = build(name, 1, 5, width=4, depth=3, deep_supervision=True)
    image = torch.rand(1, 1, *[32] * MODELS[name].dims)
    levels = zip(heads_of(model), Body(model)(image), model(image), strict=True)
    assert all(torch.equal(head(features), logits) for head, features, logits in levels)


class Headed(nn.Module):
    def __init__(self, classes: int, head: nn.Module | None = None) -> None:
        super().__init__()
        self.heads = nn.ModuleList([head or nn.Conv2d(8, classes, 1)])

    def features(self, image: Tensor) -> Tensor:
        return image.expand(-1, 8, -1, -1)


def chosen(wanted: Any, network: nn.Module, loss: nn.Module, half: bool = False) -> bool:
    return head_losses(wanted, loss, network, half) is not None


def test_auto_takes_the_head_into_the_loss_where_there_are_many_classes() -> None:
    """On a CPU."""
    dice, mixed = DiceLoss(), parse_loss("DiceLoss() + torch.nn:CrossEntropyLoss()")
    assert [chosen("auto", Headed(classes), dice) for classes in (2, MANY - 1, MANY)] == [False, False, True]
    assert [chosen("fused", Headed(classes), dice) for classes in (2, MANY)] == [True, True]
    assert not chosen("plain", Headed(MANY), dice)
    assert not chosen("auto", Headed(MANY), mixed)
    assert not chosen("auto", nn.Conv2d(1, MANY, 1), dice)
    assert not chosen("auto", Headed(MANY).to("meta"), dice)


def test_auto_takes_the_head_into_the_loss_on_a_gpu_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one kernel takes it, from 16 classes on: of a device that is not there, but for its memory."""
    from polydice.kernels import head_tiles

    monkeypatch.setattr(head_tiles, "shared_memory", lambda device: 227 * 1024)
    found = {}
    for width, classes in [(32, 15), (32, 16), (32, 118), (256, 16), (256, 118)]:
        head = nn.Conv3d(width, classes, 1)
        with FakeTensorMode():
            head.weight = nn.Parameter(torch.empty(head.weight.shape, device="cuda"))
            found[width, classes] = [pays(head, *said) for said in ((True, False), (True, True), (False, False))]
    fits = [True, False, False]  # in bfloat16; partly annotated, which goes by slabs; in float32
    never = [False] * 3
    assert found == {(32, 15): never, (32, 16): fits, (32, 118): fits, (256, 16): fits, (256, 118): never}


@pytest.mark.parametrize(
    ("network", "loss", "problem"),
    [
        (
            nn.Conv2d(1, 2, 1),
            DiceLoss(),
            "Conv2d does not end in a 1×1 convolution that it names: it has no `fea",
        ),
        (Headed(2, nn.Conv2d(8, 2, 3, padding=1)), DiceLoss(), "takes a 1×1 convolution without stride, padding"),
        (Headed(2, nn.Conv2d(8, 2, 1, groups=2)), DiceLoss(), "takes a 1×1 convolution without stride, .*groups=2"),
        (Headed(2, nn.Linear(8, 2)), DiceLoss(), "takes the network's last layer, an nn.Conv1d, Conv2d or Conv3d: Lin"),
        (
            Headed(2),
            parse_loss("torch.nn:CrossEntropyLoss()"),
            "losses that are not polydice's own take logits: torch.nn:Cr",
        ),
    ],
)
def test_what_cannot_be_fused_is_said(network: nn.Module, loss: nn.Module, problem: str) -> None:
    assert not chosen("auto", network, loss)
    with pytest.raises(ValueError, match=f"^head fused: .*{problem}.*; take head auto or plain$"):
        chosen("fused", network, loss)


def test_a_loss_that_takes_logits_alone_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    settings = Settings(Path("nowhere"), tmp_path, head="fused", loss="torch.nn:CrossEntropyLoss()", device="cpu")
    with pytest.raises(ValueError, match="head fused: losses that are not polydice's own take logits"):
        train(settings)


def test_a_head_that_makes_more_than_it_takes_comes_late() -> None:
    assert [late_head(Headed(classes)) is not None for classes in (7, 8, 9)] == [False, False, True]
    assert late_head(nn.Conv2d(1, 9, 1)) is None


def after_200_steps(wanted: Any) -> Tensor:
    """All parameters of a deeply supervised network, in a row."""
    torch.manual_seed(0)
    model = DynUNet(1, 20, width=4, depth=2, deep_supervision=True).double()
    labels = torch.randint(20, (2, 2, 2, 2)).repeat_interleave(4, 1).repeat_interleave(4, 2).repeat_interleave(4, 3)
    volumes = labels[:, None] / 20 + torch.rand(2, 1, 8, 8, 8, dtype=torch.float64)
    loss = PolyDice1Loss(0.2, batch=True) + CrossEntropyLoss()
    of_features = head_losses(wanted, loss, model, half=False)
    trained = model if of_features is None else Body(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, nesterov=True)
    for _ in range(200):
        optimizer.zero_grad()
        supervised(of_features or loss, trained(volumes), labels).backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_200_steps_are_as_with_logits() -> None:
    """In float64, whose rounding two hundred steps make a million times larger and no more."""
    torch.testing.assert_close(after_200_steps("fused"), after_200_steps("plain"), rtol=0, atol=1e-9)


RUNS = {
    "images": {
        "model": "unet",
        "deep_supervision": True,
        "loss": "PolyDice1Loss(0.5, batch=True) + CrossEntropyLoss()",
    },
    "volumes": {"model": "dynunet", "deep_supervision": True, "patch": (16, 16, 16), "batch": 2, "folds": 3},
    "regions": {"model": "unet", "size": 24, "batch": 2, "folds": 3, "loss": "DiceLoss() + CrossEntropyLoss()"},
    "annotated": {"model": "unet", "norm": "instance", "loss": "DiceLoss(batch=True) + CrossEntropyLoss()"},
    "half": {"model": "unet", "norm": "instance", "precision": "bfloat16"},
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_the_same_either_way(name: str, images: Path, volumes: Path, partly: Path, tmp_path: Path) -> None:
    """But for the order of sums; with bfloat16, whose logits the loss gets rounded only if they are made, as near as
    two runs in bfloat16 are."""
    options = RUNS[name] | {"epochs": 2, "rate": 0.05}
    data = {"volumes": volumes, "annotated": partly, "regions": write.regions(tmp_path / "set", 2)}.get(name, images)
    results = {}
    for head in ("plain", "fused"):
        settings = small(data, tmp_path / head, head=head, **options)
        results[head] = train(settings)
        assert results[head]["head"] == head
        assert json.loads((settings.out / "settings.json").read_text())["head"] == head
    plain, fused = (load_weights(tmp_path / head / "last.safetensors") for head in results)
    assert {key: tensor.shape for key, tensor in plain[0].items()} == {k: t.shape for k, t in fused[0].items()}
    assert plain[1] == fused[1]
    moved, apart = weights(tmp_path / "plain").norm(), weights(tmp_path / "plain") - weights(tmp_path / "fused")
    assert apart.norm() < moved * (PATH if name != "half" else 2**-8)


def test_a_run_may_go_on_the_other_way(images: Path, tmp_path: Path) -> None:
    options = {"epochs": 4, "rate": 0.05, "norm": "instance", "save_every": 0.0}
    train(small(images, tmp_path / "plain", **options))
    begun = small(images, tmp_path / "both", head="fused", **options)
    train_until(2, begun)
    assert train(replace(begun, head="plain", resume=True))["head"] == "plain"
    losses = [[epoch["loss"] for epoch in history(tmp_path / name)] for name in ("plain", "both")]
    assert losses[1] == pytest.approx(losses[0], rel=PATH)
