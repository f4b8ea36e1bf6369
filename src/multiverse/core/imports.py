"""What a user names as `module:name`, or `file.py:name`, imported."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import TypeVar

from multiverse.core.errors import InvalidRequest
from multiverse.core.names import nearest

Loader = TypeVar("Loader", bound=Callable[..., object])
_LOADERS: set[CodeType] = set()


def loads_modules(function: Loader) -> Loader:
    """Marks what imports users' modules for us: while it does, none of them may start what would import it again."""
    _LOADERS.add(function.__code__)
    return function


def refuse_in_import(what: str) -> None:
    """`InvalidRequest` in the middle of an import that is ours: a worker would import the module too, and so on without
    end. What an env does when it is built or stepped is no import."""
    frame: FrameType | None = sys._getframe(1)
    file = ""
    while frame is not None and frame.f_code not in _LOADERS:
        if not file and frame.f_code.co_name == "<module>":
            file = Path(frame.f_code.co_filename).name
        frame = frame.f_back
    if frame is not None and file:
        raise InvalidRequest(f'{file} {what} while it is imported: put that under `if __name__ == "__main__":`')


@loads_modules
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


def modules_like(name: str) -> list[str]:
    """Other versions of a module that does not exist (`pursuit_v5` for `pursuit_v4`), or the module of the nearest name
    in its package. Nothing is imported."""
    package, _, last = name.rpartition(".")
    top, *inside = package.split(".")
    try:
        spec = importlib.util.find_spec(top) if top else None
    except (ImportError, ValueError):
        spec = None
    folders = [str(Path(home, *inside)) for home in (spec and spec.submodule_search_locations) or ()]
    known = [module.name for module in pkgutil.iter_modules(folders)]
    stem = re.escape(re.sub(r"_v\d+$", "", last))
    versions = [module for module in known if re.fullmatch(rf"{stem}_v\d+", module)]
    return [f"{package}.{module}" for module in versions or nearest(last, known)]


def with_folders(name: str) -> str:
    """`file.py:name` with the file's whole path, which any directory finds; any other name as it is."""
    file, _, attribute = name.rpartition(":")
    return f"{Path(file).absolute()}:{attribute}" if file.endswith(".py") else name


def without_folders(name: str) -> str:
    """The same for people: a whole path without its folders."""
    file, _, attribute = name.rpartition(":")
    return f"{Path(file).name}:{attribute}" if file.endswith(".py") and Path(file).is_absolute() else name


def with_a_colon(name: str) -> str:
    """`package.module.Name` as `package.module:Name`, if there is such a module, and `file.py` as `file.py:Name`; else
    ''."""
    if name.endswith(".py"):
        return f"{name}:Name"
    module, dot, attribute = name.rpartition(".")
    try:
        found = dot and attribute.isidentifier() and importlib.util.find_spec(module) is not None
    except (ImportError, ValueError, AttributeError):  # what is before it is no package
        found = False
    return f"{module}:{attribute}" if found else ""
