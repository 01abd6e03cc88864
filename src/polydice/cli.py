"""The command line. It must answer --help at once, so it imports nothing heavy by itself."""

import argparse
import functools
import importlib
import inspect
import os
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import is_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from polydice import __version__
from polydice.suggest import meant
from polydice.values import check

# A command is a function: its arguments are the options, its docstring the help, its result the exit status.
COMMANDS = {
    "data": ("polydice.data.command", "data", "look at a data set: what it is, and what is wrong with it"),
    "train": ("polydice.training.command", "train", "train a network on one fold of a data set, and test it"),
    "predict": ("polydice.training.predict_command", "predict", "segment images and volumes with a trained network"),
    "study": ("polydice.studies.command", "study", "train every network of a recipe, compare the losses, report"),
    "pack": ("polydice.studies.pack_command", "pack", "put the runs of a study into one file, to keep or hand on"),
    "report": ("polydice.studies.report_command", "report", "the tables, figures and page of a study"),
    "curves": ("polydice.studies.curves_command", "curves", "draw the losses: figures, and a page with sliders"),
}

DESCRIPTION = """\
Polynomial Dice losses for medical image segmentation.

In a training script:

    from polydice import PolyDice1Loss
    loss = PolyDice1Loss(epsilon=0.2)
    loss(logits, labels).backward()

commands (polydice COMMAND --help says more):
""" + "".join(f"\n    {name:<10}{purpose}" for name, (_, _, purpose) in COMMANDS.items())


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments and arguments[0] in COMMANDS:
        return _run(arguments[0], arguments[1:])
    if arguments and not arguments[0].startswith("-"):
        near = meant(arguments[0], COMMANDS)
        asked = f"did you mean {near}?" if near else f"the commands are {', '.join(COMMANDS)}"
        print(f"polydice: there is no command {arguments[0]!r}: {asked}", file=sys.stderr)
        return 2
    parser = argparse.ArgumentParser(
        "polydice",
        usage="polydice [-h] [--version] COMMAND ...",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"polydice {__version__}")
    parser.parse_args(arguments)
    parser.print_help()
    return 0


def _run(name: str, arguments: Sequence[str]) -> int:
    module, function, _ = COMMANDS[name]
    try:
        import tyro

        command = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.startswith("polydice"):
            raise
        print(f"polydice {name} needs {missing.name}: pip install 'polydice[study]'", file=sys.stderr)
        return 2
    arguments = _with_config(arguments)
    try:
        status: int = tyro.cli(_checked(command, name), prog=f"polydice {name}", args=arguments)
    except SystemExit as end:
        if end.code == 2:
            for line in _suggestions(command, arguments):
                print(f"polydice {name}: {line}", file=sys.stderr)
        raise
    except KeyboardInterrupt:
        print(f"\npolydice {name}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read the output has seen enough; what is left of it must not be complained about
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


def _suggestions(command: Callable[..., int], arguments: Sequence[str]) -> Iterator[str]:
    """What may have been meant by options that the command does not have."""
    known = {name.replace("_", "-") for name in _options(command)}
    for given in (argument[2:].partition("=")[0].replace("_", "-") for argument in arguments if argument[:2] == "--"):
        near = meant(given, known)
        if given.removeprefix("no-") not in known and near:
            yield f"there is no --{given}: did you mean --{near}?"


def _options(command: Callable[..., int]) -> Iterator[str]:
    yield from ("config", "help")
    for name, hint in get_type_hints(command, include_extras=True).items():
        kind, *about = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        if is_dataclass(kind):
            yield from kind.__annotations__
        elif name != "return":
            yield next((each.name for each in about if getattr(each, "name", None)), name)


def _checked(command: Callable[..., int], name: str) -> Callable[..., int]:
    """The command, which refuses what its annotations do not allow: tyro knows types, and no ranges."""

    @functools.wraps(command)
    def checked(*arguments: Any, **options: Any) -> int:
        given = inspect.signature(command).bind(*arguments, **options).arguments
        hints = get_type_hints(command, include_extras=True)
        for option, value in given.items():
            try:
                check(f"--{option.replace('_', '-')}", value, hints[option])
            except ValueError as problem:
                print(f"polydice {name}: {problem}", file=sys.stderr)
                return 2
        return command(*arguments, **options)

    return checked


def _with_config(arguments: Sequence[str]) -> list[str]:
    """The options after those of a TOML file, `--config FILE`: what is given by hand comes later, and wins."""
    arguments = [part for each in arguments for part in each.split("=", each.startswith("--config="))]
    if "--config" not in arguments[:-1]:
        return arguments
    place = arguments.index("--config")
    try:
        with open(arguments[place + 1], "rb") as file:
            settings = tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError) as problem:
        raise SystemExit(f"polydice: --config {arguments[place + 1]}: {problem}") from problem
    options = []
    for name, value in settings.items():
        if isinstance(value, dict):
            raise SystemExit(f"polydice: --config {arguments[place + 1]}: [{name}] is a table, and options have none")
        if isinstance(value, bool):
            options.append(f"--{'' if value else 'no-'}{name}")
        else:
            options += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    return options + arguments[:place] + arguments[place + 2 :]
