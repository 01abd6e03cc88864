import email
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import polydice
from benchmarks.providers import PROVIDERS

ROOT = Path(__file__).parents[1]


def run(*command: str, **environment: str) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, cwd=ROOT.anchor)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def third_party(statement: str, **environment: str) -> set[str]:
    """The packages from outside the standard library that a statement loads."""
    code = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    loaded = set(run(sys.executable, "-c", code, **environment).split())
    private = {name for name in loaded if name.startswith("_")}  # parts of the interpreter and of compiled packages
    return loaded - private - sys.stdlib_module_names


def source_path() -> str:
    """So that a process in another folder finds the same package as this one."""
    return os.pathsep.join([str(Path(polydice.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])


def test_the_losses_load_torch_and_nothing_else() -> None:
    with_torch = third_party("import torch")
    losses = "import polydice\nfor name in polydice.__all__: getattr(polydice, name)"
    assert third_party(losses, PYTHONPATH=source_path()) - with_torch == {"polydice"}


def test_using_a_loss_loads_nothing_else_either() -> None:
    with_torch = third_party("import torch\ntorch.randn(2, requires_grad=True).sum().backward()")
    losses = (
        "import torch\nfrom polydice import *\n"
        "x, y = torch.randn(2, 3, 8, requires_grad=True), torch.randint(3, (2, 8))\n"
        "(PolyDice1Loss(0.2) + CrossEntropyLoss())(x, y).backward()"
    )
    assert third_party(losses, PYTHONPATH=source_path()) - with_torch == {"polydice"}


def test_the_package_alone_does_not_load_torch() -> None:
    assert third_party("import polydice", PYTHONPATH=source_path()) - third_party("") == {"polydice"}


def test_every_public_name_is_there_and_listed() -> None:
    for name in polydice.__all__:
        assert getattr(polydice, name).__name__ == name
        assert name in dir(polydice)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="module 'polydice' has no attribute 'FancyLoss'"):
        polydice.FancyLoss  # noqa: B018


# The wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT))
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert wheel.name == f"polydice-{polydice.__version__}-py3-none-any.whl"
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"polydice", f"polydice-{polydice.__version__}.dist-info"}
    files = [path for path in (ROOT / "src/polydice").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    sources = {path.relative_to(ROOT / "src").as_posix() for path in files}
    assert sources >= {"polydice/py.typed", "polydice/recipes/demo.toml", "polydice/studies/explore.html"}
    assert sources == {name for name in names if name.startswith("polydice/")}


def test_the_wheel_requires_torch_alone(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_string(archive.read(name).decode())
    required = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    assert required == ["torch>=2.6"]
    assert metadata["Requires-Python"] == ">=3.11"


def extra(name: str) -> set[str]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return {*tomllib.load(file)["project"]["optional-dependencies"][name]}


def test_the_oldest_versions_are_bounds() -> None:
    """Those of docs/versions.md: older ones lack what is used, or were not tried."""
    assert "monai>=1.5" in extra("study") & extra("bench")
    assert "nnunetv2>=2.8" in extra("hosts") & extra("bench")
    told = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8")
    for bound in ("torch 2.6", "MONAI 1.5", "nnU-Net 2.8"):
        assert bound in told


def test_the_bench_extra_brings_every_peer() -> None:
    peers = {"monai": "monai", "nnunet": "nnunetv2", "smp": "segmentation-models-pytorch", "kornia": "kornia"}
    names = {provider.name for provider in PROVIDERS}
    assert {name for name in names if not name.startswith(("polydice", "cross_entropy"))} == peers.keys()
    assert {*peers.values()} <= {line.partition(">")[0] for line in extra("bench")}


def test_the_wheel_installed_alone_gives_the_losses(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--disable-pip-version-check",
        "--target", str(tmp_path), str(wheel))  # fmt: skip
    code = (
        "import polydice, torch\n"
        "x, y = torch.zeros(2, 3, 8), torch.zeros(2, 8, dtype=torch.long)\n"
        "print(polydice.__file__, float(polydice.CrossEntropyLoss()(x, y)))"
    )
    where, value = run(sys.executable, "-c", code, PYTHONPATH=str(tmp_path)).split()
    assert Path(where) == tmp_path / "polydice/__init__.py"
    assert float(value) == pytest.approx(1.0986122886681098, rel=1e-6)  # log 3, in float32
    command = run(sys.executable, "-m", "polydice", "--version", PYTHONPATH=str(tmp_path))
    assert command == f"polydice {polydice.__version__}\n"
