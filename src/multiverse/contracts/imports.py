"""What a user names as `module:name`, or `file.py:name`, imported."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from multiverse.contracts.errors import InvalidRequest


def module_named(name: str) -> ModuleType:
    """The module of this name or, if it ends in `.py`, in this file; raises whatever importing it does.

    A file's folder is put on the path, as Python does with that of a script: workers, who have ours, import it too.
    """
    if not name.endswith(".py"):
        return importlib.import_module(name)
    file = Path(name).absolute()
    if not file.is_file():
        raise InvalidRequest(f"there is no file {file}")
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    module = importlib.import_module(file.stem)
    if Path(module.__file__ or "").absolute() != file:
        raise InvalidRequest(f"{name}: Python has another module {file.stem!r} ({module.__file__}): rename the file")
    return module


def with_a_colon(name: str) -> str:
    """`package.module.Name` as `package.module:Name`, if there is such a module; else ''."""
    module, dot, attribute = name.rpartition(".")
    try:
        found = dot and attribute.isidentifier() and importlib.util.find_spec(module) is not None
    except (ImportError, ValueError, AttributeError):  # what is before it is no package
        found = False
    return f"{module}:{attribute}" if found else ""
