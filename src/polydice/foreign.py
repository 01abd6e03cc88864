"""Classes that are not polydice's own, named as `module:Class` on a command line, in a recipe or in a checkpoint.

A module is looked for where Python looks (PYTHONPATH, what is installed), then in the folders that `look_in` was given
(a recipe's own folder), then in the current folder. To import a module runs its code, as `import` in a script does.
"""

import ast
import os
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polydice.suggest import meant

if TYPE_CHECKING:
    from torch import nn

# Texts in quotation marks are matched first, so that a colon in them names no class.
PLACE = re.compile(r"""'[^']*'|"[^"]*"|(?<![\w.])([A-Za-z_]\w*(?:\.\w+)*):([A-Za-z_]\w*)""")
# The same in a recipe, where everything is in quotation marks.
MENTION = re.compile(r"(?<![\w.])([A-Za-z_]\w*)(?:\.\w+)*:[A-Za-z_]")
COLON = "ː"  # a letter that Python allows in names: so it reads `module:Class` as a name


class ForeignError(ValueError):
    """A `module:Class` that cannot be used; the message says why, and what to do."""


def look_in(folder: Path | str) -> None:
    """Modules are looked for in this folder too, after all places that come before."""
    path = str(Path(folder).resolve())
    if path not in sys.path:
        sys.path.append(path)


def find(place: str) -> "type[nn.Module]":
    """The class that `module:Class` names.

    >>> find("torch.nn:CrossEntropyLoss").__name__
    'CrossEntropyLoss'
    """
    from torch import nn

    module, _, name = place.partition(":")
    look_in(os.getcwd())
    try:
        found = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise ForeignError(f"{place}: {module} cannot be imported: {error}") from error
        raise ForeignError(
            f"{place}: there is no module {error.name}; it is looked for where Python looks, beside the recipe and in "
            f"the current folder ({os.getcwd()}): start there, or set PYTHONPATH to the folder that holds it"
        ) from error
    except AttributeError as error:
        if module not in sys.modules:  # it was raised by the module's own code
            raise ForeignError(f"{place}: {module} cannot be imported: {error}") from error
        near = meant(name, vars(sys.modules[module]))
        asked = f": did you mean {near}?" if near else ""
        raise ForeignError(f"{place}: the module {module} ({_file(module)}) has no {name}{asked}") from error
    except (Exception, SystemExit) as error:  # it is somebody else's code, and may do anything
        raise ForeignError(f"{place}: {module} cannot be imported: {type(error).__name__}: {error}") from error
    if not isinstance(found, type) or not issubclass(found, nn.Module):
        raise ForeignError(f"{place} is no class of torch modules, that is, derived from torch.nn.Module: {found!r}")
    return found


def parsed(text: str) -> ast.expr:
    """The text as Python reads it, where `module:Class` counts as a name."""
    marked = PLACE.sub(lambda match: f"{match[1]}{COLON}{match[2]}" if match[1] else match[0], text.strip())
    return ast.parse(marked, mode="eval").body


def spelt(node: ast.expr) -> str:
    """What was written."""
    return ast.unparse(node).replace(COLON, ":")


def arguments(call: ast.Call) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call: numbers, texts, and lists, tuples and tables of them. Nothing is run."""
    return [literal(each) for each in call.args], {word.arg or "**": literal(word.value) for word in call.keywords}


def literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(f"{spelt(node)!r} is neither a number nor a text") from None


def folders(recipe: str) -> list[str]:
    """Where the modules lie that a recipe's text names and that were found: another process is to look there."""
    modules = {match[1] for match in MENTION.finditer(recipe)} & set(sys.modules)
    files = [Path(_file(module)) for module in modules]
    return sorted({str(file.resolve().parents[file.stem == "__init__"]) for file in files if file.is_file()})


def _file(module: str) -> str:
    return getattr(sys.modules[module], "__file__", None) or "built in"
