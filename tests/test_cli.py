import subprocess
import sys
from pathlib import Path

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


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("studdy", "did you mean study?"),
        ("trian", "did you mean train?"),
        ("fit", "did you mean train?"),
        ("qwerty", f"the commands are {', '.join(COMMANDS)}"),
    ],
)
def test_an_unknown_command_is_answered_with_the_nearest(
    given: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([given]) == 2
    assert capsys.readouterr().err == f"polydice: there is no command {given!r}: {said}\n"


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ("train --data x --out y --lr 3", ["--lr: did you mean --rate?"]),
        ("train --data x --out y --lr=3", ["--lr: did you mean --rate?"]),
        ("train --data x --out y --epoch 3", ["--epoch: did you mean --epochs?"]),
        ("train --dataset x --batch_size", ["--dataset: did you mean --data?", "--batch-size: did you mean --batch?"]),
        ("train --json --no-surfaces --epochs 3 --weight-decay 0", ["--weight-decay: did you mean --decay?"]),
        ("study demo --num-workers 3 --json", ["--num-workers: did you mean --jobs?"]),
        ("predict run image --out y --tta", ["--tta: did you mean --flips?"]),
        ("train --data x --out y --epochs ten", []),
        ("train --data x --out y --qwertyuiop 1", []),
    ],
)  # fmt: skip
def test_an_unknown_option_is_answered_with_what_was_meant(
    arguments: str, wanted: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments.split())
    assert end.value.code == 2
    said = capsys.readouterr().err.splitlines()
    start = f"polydice {arguments.split()[0]}: there is no "
    assert [line.removeprefix(start) for line in said if line.startswith(start)] == wanted


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


def test_whoever_reads_only_the_first_lines_sees_no_complaint() -> None:
    script = f"{sys.executable} -m polydice train --help | head -n 1"
    ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("usage: polydice train")
    assert ran.stderr == ""


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert f"polydice {name} " in capsys.readouterr().out.partition("Example: ")[2]


# Options from a file


def order(
    pages: int, *, title: str = "", margin: float = 1.0, bound: bool = True, size: tuple[int, int] | None = None
) -> int:
    print(pages, title, margin, bound, size)
    return 0


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(COMMANDS, "order", ("tests.test_cli", "order", ""))
    return tmp_path / "order.toml"


def test_options_come_from_a_toml_file(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text('pages = 3\ntitle = "two words"\nmargin = -0.5\nbound = false\nsize = [20, 30]\n')
    for arguments in (["--config", str(config)], [f"--config={config}"]):
        assert main(["order", *arguments]) == 0
        assert capsys.readouterr().out == "3 two words -0.5 False (20, 30)\n"


def test_what_is_given_by_hand_wins_wherever_it_stands(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text("pages = 3\nbound = false\nmargin = 2.0\n")
    for arguments in (
        ["--pages", "5", "--bound", "--config", str(config)],
        ["--config", str(config), "--pages=5", "--bound"],
    ):
        assert main(["order", *arguments]) == 0
        assert capsys.readouterr().out == "5  2.0 True None\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("pages 3", "Expected '=' after a key"),
        ("pages = 3\n[paper]\ncolour = 1\n", r"\[paper\] is a table, and options have none"),
        (None, "No such file or directory"),
    ],
)
def test_a_file_that_holds_no_options_is_one_line(config: Path, text: str | None, problem: str) -> None:
    if text is not None:
        config.write_text(text)
    with pytest.raises(SystemExit, match=rf"^polydice: --config {config}: .*{problem}"):
        main(["order", "--config", str(config)])


def test_an_option_that_no_command_has_is_shown(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text("pages = 3\ncolour = 1\n")
    with pytest.raises(SystemExit) as end:
        main(["order", "--config", str(config)])
    assert end.value.code == 2
    assert "--colour" in capsys.readouterr().err
