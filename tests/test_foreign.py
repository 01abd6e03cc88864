"""Networks and losses that are not polydice's own: found, refused, trained in a study, and predicted with."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from torch import nn

from polydice import foreign
from polydice.cli import main
from polydice.studies.study import create
from polydice.training.checkpoint import load_weights
from polydice.training.loop import train
from tests.test_docs import ROOT, blocks

PAGE = "docs/adding-a-loss.md"
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes modules into the current folder, which is this test's own; they are forgotten after it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)

    def written(**modules: str) -> Path:
        for name, text in modules.items():
            (tmp_path / f"{name}.py").write_text(text)
        return tmp_path

    yield written
    for name in set(sys.modules) - before:
        if str(tmp_path.parent) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


def polydice(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, which knows no module of a test."""
    command = [sys.executable, "-P", "-m", "polydice", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment)


def test_a_class_is_found_in_the_current_folder(write: Write) -> None:
    write(mine="from torch import nn\nclass Net(nn.Conv2d):\n    pass\n")
    assert issubclass(foreign.find("mine:Net"), nn.Conv2d)
    assert foreign.find("torch.nn:Conv2d") is nn.Conv2d


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("nowhere:Net", "nowhere:Net: there is no module nowhere; it is looked for where Python looks, beside the rec"),
        ("torch.nowhere:Net", "torch.nowhere:Net: there is no module torch.nowhere; it is looked for"),
        ("mine:Nett", "mine:Nett: the module mine (%s/mine.py) has no Nett: did you mean Net?"),
        (
            "mine:function",
            "mine:function is no class of torch modules, that is, derived from torch.nn.Module: <f",
        ),
        ("mine:Plain", "mine:Plain is no class of torch modules, that is, derived from torch.nn.Module: <class"),
        ("needy:Net", "needy:Net: needy cannot be imported: No module named 'nowhere'"),
        ("broken:Net", "broken:Net: broken cannot be imported: SyntaxError: '(' was never closed (broken.py, line 1)"),
        ("raising:Net", "raising:Net: raising cannot be imported: type object 'Plain' has no attribute 'x'"),
        ("ending:Net", "ending:Net: ending cannot be imported: SystemExit: 3"),
    ],
)
def test_what_cannot_be_found_is_told(place: str, problem: str, write: Write) -> None:
    plain = "class Plain:\n    pass\n"
    folder = write(
        mine=f"from torch import nn\n{plain}def function():\n    pass\nclass Net(nn.Conv2d):\n    pass\n",
        needy="import nowhere\n",
        broken="print(\n",
        raising=f"{plain}Plain.x\n",
        ending="import sys\nsys.exit(3)\n",
    )
    with pytest.raises(foreign.ForeignError) as caught:
        foreign.find(place)
    assert (problem % folder if "%s" in problem else problem) in str(caught.value)


def test_a_colon_in_a_text_names_no_class() -> None:
    text = "a.b:C(x='d:E(', y={'f': 1}) + g:H()"
    assert foreign.spelt(foreign.parsed(text)) == text


def test_the_folders_of_a_recipes_modules_are_known(write: Write) -> None:
    folder = write(mine="from torch import nn\nclass Net(nn.Conv2d):\n    pass\n")
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").write_text("from mine import Net")
    foreign.find("mine:Net"), foreign.find("package:Net")
    assert foreign.folders('about = "sys:tem, a:b"\nloss = "mine:Net()"') == [str(folder)]
    assert foreign.folders('model = "package:Net()"') == [str(folder)]


# A study with a loss and a network of the pages on them


def doc_block(page: str, kind: str, holds: str) -> str:
    found = re.findall(rf"^```{kind}\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return next(block for block in found if holds in block)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the pages say, done: modules beside the recipe, two workers, another current folder."""
    folder = tmp_path_factory.mktemp("foreign")
    code, elsewhere = folder / "code", folder / "elsewhere"
    code.mkdir()
    elsewhere.mkdir()
    (code / "my_losses.py").write_text(blocks(PAGE)[1])
    (code / "my_nets.py").write_text(doc_block("docs/models.md", "python", "class TinyNet"))
    (code / "log-cosh.toml").write_text(doc_block(PAGE, "toml", "[losses]"))
    ran = polydice(
        "study", code / "log-cosh.toml", "--out", folder / "study", "--cache", folder / "cache", "--jobs", 2,
        cwd=elsewhere,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return folder / "study"


def test_a_study_trains_anybodys_loss_and_network_and_its_report_shows_them(study: Path) -> None:
    results = [json.loads(path.read_text()) for path in study.rglob("result.json")]
    compared, tuned = 3 * 2 * 2, 2 * 2  # losses, replicates and folds; values and folds
    assert len(results) == 2 * (compared + tuned)  # of each network
    assert {result["settings"]["model"] for result in results} == {"unet", "my_nets:TinyNet(kernel=5)"}
    assert "CrossEntropyLoss() + 0.5 * my_losses:LogCoshDice()" in {each["settings"]["loss"] for each in results}
    page = (study / "report" / "report.html").read_text()
    assert {name for name in ("Log-cosh Dice", "Log-cosh + cross-entropy", "tiny") if name in page} == {
        "Log-cosh Dice", "Log-cosh + cross-entropy", "tiny"
    }  # fmt: skip


def test_a_study_goes_on_from_anywhere(study: Path, write: Write) -> None:
    """The folder of the modules is in study.json."""
    write()  # nothing: the current folder is another one
    again = create(study / "recipe.toml", study, study.parent, study.parent / "cache")
    run = next(run for run in again.runs if run.model == "tiny" and run.value)
    folder = again.run_folder(run)
    before = json.loads((folder / "result.json").read_text())
    shutil.rmtree(folder)
    assert train(again.settings(run, "cpu"))["test"] == before["test"]


@pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install 'polydice[ray]'")
def test_ray_finds_the_modules(study: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    text = (study / "recipe.toml").read_text().replace("folds = [0, 1]", "folds = [0]")
    recipe.write_text(re.sub(r"\[models.unet\].*?\[models", "[models", text, flags=re.DOTALL))
    for name in ("my_losses", "my_nets"):
        (tmp_path / f"{name}.py").write_bytes((study.parent / "code" / f"{name}.py").read_bytes())
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    where = ["--out", tmp_path / "study", "--cache", study.parent / "cache"]
    ran = polydice("study", recipe, *where, "--engine", "ray", "--json", cwd=elsewhere)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["runs"] == {"done": 3 * 2, "failed": 0, "no data": 0}


def test_a_network_of_somebody_predicts_where_its_module_is(
    study: Path, write: Write, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, weights = write(), next(study.rglob("tiny/**/best.safetensors"))
    assert load_weights(weights)[1]["model"]["name"] == "my_nets:TinyNet(kernel=5)"
    command = ["predict", str(weights), str(next(study.rglob("images"))), "--out", "labels"]
    assert main(command) == 2
    assert capsys.readouterr().err.startswith(
        f"polydice predict: {weights} holds a network that is not polydice's own, my_nets:TinyNet: there is no module "
        f"my_nets; it is looked for where Python looks, beside the recipe and in the current folder ({folder}): "
    )
    monkeypatch.syspath_prepend(study.parent / "code")
    assert main(command) == 0
    assert len(list((folder / "labels").iterdir())) == 18


BAD = """
from torch import nn

class NoNumber(nn.Module):
    def forward(self, logits, target):
        return logits.mean((0, 2, 3))

class NoGradient(nn.Module):
    def forward(self, logits, target):
        return logits.detach().mean()

class Refuses(nn.Module):
    def __init__(self, alpha=1.0):
        super().__init__()
        if alpha < 0:
            raise RuntimeError(f"alpha must not be {alpha}")

    def forward(self, logits, target):
        raise IndexError("too far")

class Net(nn.Conv2d):
    def __init__(self, channels, classes, stride=1):
        super().__init__(channels, classes, 3, stride=stride, padding=1)

class Listing(Net):
    def forward(self, x):
        return [super().forward(x)]

class Strange(Net):
    dims = 4
"""


@pytest.mark.parametrize(
    ("loss", "model", "problem"),
    [
        (
            "bad:NoNumber()",
            "unet",
            r"loss bad:NoNumber\(\) gave \[2\] for logits \[2, 2, 32, 32\] and labels \[",
        ),
        (
            "DiceLoss() + bad:NoGradient()",
            "unet",
            r"loss bad:NoGradient\(\) has no gradient: its value must be",
        ),
        ("bad:Refuses()", "unet", r"loss bad:Refuses\(\) failed on logits .*: IndexError: too far"),
        (
            "bad:Refuses(alpha=-1)",
            "unet",
            r"bad:Refuses\(alpha=-1\) cannot be made: RuntimeError: alpha must not be",
        ),
        ("bad:Refuses(beta=1)", "unet", r"bad:Refuses\(beta=1\) cannot be made: TypeError: .*'beta'"),
        ("bad:Nothing()", "unet", r"loss 'bad:Nothing\(\)': bad:Nothing: the module bad \(.*bad.py\) has no Nothing"),
        ("nowhere:Loss()", "unet", "nowhere:Loss: there is no module nowhere"),
        ("DiceLoss()", "bad:Net(stride=2)", r"gave \[1, 2, 16, 16\] for images \[1, 1, 32, 32\], but 2 classes need"),
        ("DiceLoss()", "bad:Net(stride=0)", r"model 'bad:Net\(stride=0\)' failed on images .*: "),
        (
            "DiceLoss()",
            "bad:Net(width=2)",
            r"model 'bad:Net\(width=2\)': got an unexpected keyword argument 'width'",
        ),
        ("DiceLoss()", "bad:Listing", "model 'bad:Listing' gave a list for images"),
        ("DiceLoss()", "bad:Strange", r"its attribute dims must be 2 \(images, slices\) or 3 \(volumes\): 4"),
        ("DiceLoss()", "nowhere:Net", "nowhere:Net: there is no module nowhere"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is(
    loss: str, model: str, problem: str, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(bad=BAD)
    small = "width = 4\ndepth = 2\n" if model == "unet" else ""
    recipe = doc_block(PAGE, "toml", "[losses]").partition("[models.unet]")[0]
    recipe += f'[models.mine]\nmodel = "{model}"\n{small}[losses]\nDice = "DiceLoss()"\nother = "{loss}"\n'
    (folder / "bad.toml").write_text(recipe)
    assert main(["study", "bad.toml", "--out", "study", "--cache", "cache"]) == 2
    assert re.search(problem, capsys.readouterr().err)
    assert not list(folder.glob("study/runs/*"))
