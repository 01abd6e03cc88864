import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from polydice import models
from polydice.data.generate import generated_folder
from polydice.models import MODELS, Model, build
from polydice.studies.recipe import parse
from polydice.training.loop import train
from polydice.training.predict import predict
from tests.studies.tiny import RECIPE
from tests.test_docs import ROOT, blocks

SMALL = {
    "unet": {"width": 4},
    "transunet": {"size": 32},
    "unet3d": {"width": 4, "depth": 2},
    "dynunet": {"width": 4, "depth": 2},
}


@pytest.mark.parametrize("name", MODELS)
def test_every_model_takes_any_number_of_channels_and_classes(name: str) -> None:
    sides = (24, 32, 40) if MODELS[name].dims == 3 else (32, 64)
    for channels, classes in ((1, 2), (4, 1)):
        model = build(name, channels, classes, **SMALL[name]).eval()
        with torch.no_grad():
            assert model(torch.rand(2, channels, *sides)).shape == (2, classes, *sides)


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_learns(name: str) -> None:
    model = build(name, 1, 3, **SMALL[name])
    sides = (24, 32, 40) if MODELS[name].dims == 3 else (64, 64)
    model(torch.rand(2, 1, *sides)).square().sum().backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize("name", MODELS)
def test_a_checkpoint_holds_every_tensor_once(name: str) -> None:
    tensors = build(name, 1, 2, **SMALL[name]).state_dict().values()  # safetensors refuses shared memory
    assert len({tensor.data_ptr() for tensor in tensors}) == len(tensors)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_one_graph(name: str) -> None:
    model = build(name, 1, 2, **SMALL[name]).eval()
    image = torch.rand(1, 1, *((17, 32, 32) if MODELS[name].dims == 3 else (64, 96)))
    with torch.no_grad():
        plain = model(image)
        torch.testing.assert_close(torch.compile(model, fullgraph=True, backend="eager")(image), plain)


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if model.dims == 2])
def test_the_memory_format_does_not_matter(name: str) -> None:
    model = build(name, 3, 2, **SMALL[name]).double().eval()
    image = torch.rand(2, 3, 64, 64).double()
    with torch.no_grad():
        plain = model(image)
        other = model.to(memory_format=torch.channels_last)(image.to(memory_format=torch.channels_last))
    torch.testing.assert_close(other, plain)


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(ValueError, match="no model is called 'resnet'; there are unet, transunet, unet3d, dynunet"):
        build("resnet", 3, 2)


@pytest.mark.parametrize(("channels", "classes"), [(0, 2), (3, 0)])
def test_no_channel_or_no_class_is_refused(channels: int, classes: int) -> None:
    with pytest.raises(ValueError, match=f"channels={channels}, classes={classes}"):
        build("unet", channels, classes)


def test_an_option_of_another_model_is_refused() -> None:
    with pytest.raises(TypeError, match="size"):
        build("unet", 3, 2, size=224)


def test_only_the_3d_models_import_monai() -> None:
    code = "import sys; from polydice.models import build; build('unet', 1, 2); import polydice.models.transunet"
    subprocess.run([sys.executable, "-c", f"{code}; assert 'monai' not in sys.modules"], check=True)


def test_the_page_says_all_that_it_takes_to_add_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with the page's network, and the page's line in the registry; the file lies outside the package here."""
    text = next(block for block in blocks("docs/models.md") if "class TinyNet" in block)
    (tmp_path / "tiny.py").write_text(text)
    entry = re.search(r'^ +("tiny": Model\(.*\)),$', (ROOT / "docs/models.md").read_text(), re.MULTILINE)
    assert entry
    monkeypatch.setattr(models, "__path__", [*models.__path__, str(tmp_path)])
    for name, model in eval(f"{{{entry[1]}}}", {"Model": Model}).items():
        monkeypatch.setitem(MODELS, name, model)

    recipe = parse(RECIPE.replace("[models.unet]", "[models.tiny]").replace("depth = 2\n", ""))
    data = generated_folder(tmp_path / "generated", 18, size=32, seed=1)
    settings = recipe.settings(next(recipe.runs()), data, tmp_path / "run", cache=tmp_path / "cache", device="cpu")
    assert (settings.model, settings.model_options, settings.dims) == ("tiny", {"width": 4}, 2)
    assert train(settings)["model"] == {"name": "tiny", "channels": 1, "classes": 2, "options": {"width": 4}}
    written = predict(tmp_path / "run", sorted((data / "images").iterdir())[:1], tmp_path / "labels", device="cpu")
    assert len(written) == 1
    help_text = subprocess.run(
        [sys.executable, "-c", f"from polydice.models import *; MODELS[{'tiny'!r}] = MODELS['unet']\n"
         "from polydice.cli import main; main(['train', '--help'])"],
        capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert "{unet,transunet,unet3d,dynunet,tiny}" in help_text
    monkeypatch.delitem(sys.modules, "polydice.models.tiny")
