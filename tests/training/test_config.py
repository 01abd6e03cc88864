import json
import math
import re
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from polydice.data.prepare import Preparation
from polydice.models import MODELS, Model
from polydice.models.transunet import TransUNet
from polydice.models.unet import UNet
from polydice.models.unet3d import UNet3D
from polydice.recommended import START
from polydice.training.config import CIRCUMSTANCES, Settings

SETTINGS = Settings(data=Path("data"), out=Path("out"), optimizer="sgd", rate=0.01)


def test_the_defaults_are_the_papers() -> None:
    """But for the loss, the optimiser and its rate: tests/test_recommended.py has these."""
    sgd = Settings(data=Path("data"), out=Path("out"), optimizer="sgd")
    wanted = {"size": 224, "epochs": 200, "power": 0.9, "momentum": 0.9, "nesterov": False, "decay": 1e-4, "folds": 5}
    assert {name: getattr(sgd, name) for name in wanted} == wanted


def test_what_is_not_given_is_what_the_optimiser_has() -> None:
    adamw = Settings(data=Path("data"), out=Path("out"), optimizer="adamw")
    rate = START.rate["adamw"]
    assert (adamw.rate, adamw.momentum, adamw.decay) == (rate, None, 0.01)
    assert adamw.optimization == {"rate": rate, "decay": 0.01}
    sgd = Settings(data=Path("data"), out=Path("out"), optimizer="sgd")
    given = replace(sgd, rate=0.5, decay=0.0, momentum=0.0)
    assert given.optimization == {"rate": 0.5, "momentum": 0.0, "decay": 0.0}
    same = replace(sgd, rate=START.rate["sgd"], momentum=0.9, decay=1e-4)
    assert same == sgd, "given or not, it is the same run"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"epochs": 0}, "epochs must be at least 1: 0"),
        ({"validate_every": 0}, "validate_every must be at least 1: 0"),
        ({"size": -1}, "size must be at least 1: -1"),
        ({"batch": 0}, "batch must be at least 1: 0"),
        ({"width": 0}, "width must be at least 1: 0"),
        ({"depth": 0}, "depth must be at least 1: 0"),
        ({"rate": 0.0}, "rate must be positive: 0.0"),
        ({"rate": float("nan")}, "rate must be positive: nan"),
        ({"rate": 1e39}, "rate must be finite: 1e\\+39"),
        ({"clip": 0.0}, "clip must be positive: 0.0"),
        ({"clip": math.inf}, "clip must be finite: inf"),
        ({"power": math.inf}, "power must be finite: inf"),
        ({"save_every": math.inf}, "save_every must be finite: inf"),
        ({"rotation": math.nan}, "rotation must not be negative: nan"),
        ({"rotation": 361.0}, "rotation must be at most 360: 361.0"),
        ({"flip": 1.5}, "flip must be at most 1: 1.5"),
        ({"folds": 2}, "folds must be at least 3: 2"),
        ({"depth": 11}, "depth must be at most 10: 11"),
        ({"epochs": "6"}, "epochs must be a whole number and must be at least 1: '6'"),
        ({"epochs": 6.0}, "epochs must be a whole number and must be at least 1: 6.0"),
        ({"epochs": True}, "epochs must be a whole number and must be at least 1: True"),
        ({"fold": "0"}, "fold must be a whole number: '0'"),
        ({"surfaces": "no"}, "surfaces must be true or false: 'no'"),
        ({"loss": None}, "loss must be a text: None"),
        ({"split": ["random"]}, r"split must be one of grouped, contiguous, random: \['random'\]"),
        ({"seed": 2**64}, f"seed must be at most {2**64 - 1}: {2**64}"),
        ({"patch": (8, 8)}, r"patch must be 3 values: \(8, 8\)"),
        ({"spacing": (1.0, 0.0, 1.0)}, r"spacing\[1\] must be positive: 0.0"),
        ({"cut": 0.0}, "cut must lie between 0 and 100 percent: 0.0"),
        ({"cut": 100.0}, "cut must lie between 0 and 100 percent: 100.0"),
        ({"momentum": -0.1}, "momentum must not be negative: -0.1"),
        ({"decay": -1.0}, "decay must not be negative: -1.0"),
        ({"optimizer": "adam"}, "optimizer must be one of sgd, adamw: adam"),
        ({"optimizer": "adamw", "momentum": 0.9}, "adamw has no momentum: 0.9; leave it out, or take optimizer sgd"),
        ({"optimizer": "adamw", "momentum": 0.0}, "adamw has no momentum: 0.0; leave it out, or take optimizer sgd"),
        (
            {"optimizer": "adamw", "momentum": None, "nesterov": True},
            "adamw has no nesterov: True; leave it out, or take optimizer sgd",
        ),
        ({"optimizer": "sgd", "nesterov": True, "momentum": 0.0}, "nesterov needs a momentum above 0: 0.0"),
        ({"seed": -1}, "seed must not be negative: -1"),
        ({"fold": 5}, "fold must lie between 0 and 4: 5"),
        ({"fold": -1}, "fold must lie between 0 and 4: -1"),
        ({"score": "iou"}, "score must be one of dice_foreground, dice_global: iou"),
        ({"weights": "first"}, "weights must be one of last, best: first"),
        (
            {"model": "resnet"},
            f"no model is called 'resnet'; there are {', '.join(MODELS)}, or yours as module:Class",
        ),
        ({"model": "unet3d", "norm": "batch"}, "unet3d has no norm: batch"),
        ({"model": "unet3d", "deep_supervision": True}, "unet3d has no deep supervision: True"),
        ({"model": "transunet", "width": 32}, "transunet has no width: 32"),
        (
            {"model": "unet3d", "head": "fused"},
            "unet3d does not end in a 1×1 convolution: head fused; take head auto or plain",
        ),
        ({"head": "fast"}, "head must be one of auto, plain, fused: fast"),
        ({"pretrained": Path("a.npz")}, "unet has no pretrained: a.npz"),
        ({"patch": (32, 32, 32)}, r"unet has no patch: \(32, 32, 32\)"),
        ({"spacing": (1.0, 1.0, 1.0)}, r"unet has no spacing: \(1.0, 1.0, 1.0\)"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=f"^{problem}$"):
        replace(SETTINGS, **given)


def test_momentum_beyond_1_is_refused() -> None:
    with pytest.raises(ValueError, match="momentum must be at most 1: 2"):
        replace(SETTINGS, momentum=2.0)


def test_a_path_may_be_given_as_text() -> None:
    given = Settings(data="data", out="out", cache="c", model="transunet", pretrained="a.npz")  # type: ignore[arg-type]
    assert (given.data, given.out, given.cache, given.pretrained) == tuple(map(Path, ("data", "out", "c", "a.npz")))


def test_a_run_saved_before_there_was_a_choice_of_scores_has_the_papers() -> None:
    saved = SETTINGS.to_json()
    del saved["score"]
    assert replace(SETTINGS, score="dice_global").differences(saved) == []
    assert SETTINGS.differences(saved) == ["score 'dice_global' -> 'dice_foreground'"]


def test_in_a_run_saved_before_there_was_a_choice_of_weights_the_best_count() -> None:
    saved = SETTINGS.to_json()
    assert saved.pop("weights") == "last"
    assert replace(SETTINGS, weights="best").differences(saved) == []
    assert SETTINGS.differences(saved) == ["weights 'best' -> 'last'"]


def test_a_run_saved_before_there_was_a_choice_of_optimisers_has_sgd() -> None:
    saved = SETTINGS.to_json()
    assert (saved["rate"], saved["momentum"], saved["decay"]) == (0.01, 0.9, 1e-4), "as they were written before"
    del saved["optimizer"], saved["nesterov"]
    assert SETTINGS.differences(saved) == []
    assert replace(SETTINGS, rate=0.01, momentum=0.9, decay=1e-4).differences(saved) == []
    assert replace(SETTINGS, optimizer="adamw", momentum=None).differences(saved) == [
        "optimizer 'sgd' -> 'adamw'", "momentum 0.9 -> None"
    ]  # fmt: skip


def test_the_options_of_a_model_are_its_own() -> None:
    unet = replace(SETTINGS, width=4, depth=2, norm="instance", deep_supervision=True)
    assert UNet(1, 2, **unet.model_options).deep_supervision
    assert UNet3D(1, 2, **replace(SETTINGS, model="unet3d", width=4, depth=1).model_options).stride == 2
    assert replace(SETTINGS, model="transunet", size=64).model_options == {"size": 64}
    assert TransUNet.__init__.__kwdefaults__ == {"size": 224}
    assert SETTINGS.model_options == {}


def test_the_data_set_is_prepared_as_the_settings_say() -> None:
    assert replace(SETTINGS, size=64, cut=0.5).preparation == Preparation(size=64, cut=0.5)
    volumes = replace(SETTINGS, model="unet3d", spacing=(1.0, 2.0, 2.0)).preparation
    assert volumes == Preparation(dims=3, spacing=(1.0, 2.0, 2.0))


def test_only_unet3d_is_trained_on_volumes() -> None:
    assert [replace(SETTINGS, model=name).dims for name in ("unet", "transunet", "unet3d")] == [2, 2, 3]


def test_what_a_network_takes_is_what_its_entry_in_the_registry_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "mine", Model("torch.nn:Conv3d", 3, ("depth",)))
    mine = replace(SETTINGS, model="mine", depth=2, patch=(8, 8, 8))
    assert (mine.dims, mine.model_options) == (3, {"depth": 2})
    with pytest.raises(ValueError, match=r"^mine has no width: 4$"):
        replace(mine, width=4)


def test_options_may_follow_the_name() -> None:
    assert replace(SETTINGS, model="unet(width=8, norm='instance')", depth=2).model_options == {"depth": 2}
    for wrong, problem in [
        ("unet(colour=8)", ": got an unexpected keyword argument 'colour'; it is called as UNet(channels: int, "),
        ("unet(8)", ": options are given by name, as in unet(width=8)"),
        ("unet(width=x)", " is no name, nor one with options: 'x' is neither a number nor a text"),
        ("my net", " is no name, nor one with options: invalid syntax"),
    ]:
        with pytest.raises(ValueError, match=re.escape(f"model {wrong!r}{problem}")):
            replace(SETTINGS, model=wrong)


def test_what_was_saved_is_no_difference() -> None:
    settings = replace(SETTINGS, model="unet3d", spacing=(1.0, 0.5, 0.5), patch=(16, 32, 32))
    assert settings.differences(json.loads(json.dumps(settings.to_json()))) == []


@pytest.mark.parametrize("name", [field.name for field in fields(Settings)])
def test_only_circumstances_may_differ(name: str) -> None:
    saved = SETTINGS.to_json() | {name: "another"}
    assert SETTINGS.differences(saved) == (
        [] if name in CIRCUMSTANCES else [f"{name} 'another' -> {SETTINGS.to_json()[name]!r}"]
    )


def test_every_setting_is_documented_in_the_help() -> None:
    ran = subprocess.run([sys.executable, "-m", "polydice", "train", "--help"], capture_output=True, text=True)
    assert ran.returncode == 0
    told = " ".join(ran.stdout.replace("│", " ").split())
    for field in fields(Settings):
        option = f"--{field.name.replace('_', '-')}"
        after = told.partition(f" {option} ")[2] or told.partition(f" {option}, ")[2]
        about = after.partition("(default:")[0].partition("(required)")[0]
        assert len(about.split()) > 2, f"{option}: {about}"
