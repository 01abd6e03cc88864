import subprocess
import sys

import pytest

from polydice import __version__
from polydice.cli import COMMANDS, main


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_says_how_to_use_the_library(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(arguments)
    except SystemExit as end:  # argparse's own way out
        status = end.code
    assert status == 0
    assert "from polydice import PolyDice1Loss" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"polydice {__version__}\n"


def test_an_unknown_argument_is_refused_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--colour"])
    assert end.value.code == 2
    assert "--colour" in capsys.readouterr().err


def test_help_does_not_wait_for_torch() -> None:
    """The import time log names every module that is loaded."""
    command = [sys.executable, "-X", "importtime", "-m", "polydice", "--help"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()}
    assert "polydice.cli" in loaded
    assert "torch" not in loaded
    assert "numpy" not in loaded
    assert ran.stdout.startswith("usage: polydice")


def test_the_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    told = capsys.readouterr().out
    for name, (_, _, purpose) in COMMANDS.items():
        assert f"{name} " in told
        assert purpose in told


@pytest.mark.parametrize("missing", ["tyro", "nibabel"])
def test_without_the_extra_a_command_names_it(missing: str) -> None:
    script = (
        f"import sys; sys.modules['{missing}'] = None; from polydice.cli import main; sys.exit(main(['data', '.']))"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stderr == f"polydice data needs {missing}: pip install 'polydice[study]'\n"


def stop() -> int:
    raise KeyboardInterrupt


def test_control_c_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(COMMANDS, "stop", ("tests.test_cli", "stop", ""))
    assert main(["stop"]) == 130
    assert capsys.readouterr().err == "\npolydice stop: interrupted\n"
