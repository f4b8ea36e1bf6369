"""Imports of modules and files that users name as `module:name` or `file.py:name`."""

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
from multiverse.core.wording import nearest

Loader = TypeVar("Loader", bound=Callable[..., object])
_LOADERS: set[CodeType] = set()


def loads_modules(function: Loader) -> Loader:
    """Mark a function that imports users' modules: while it runs, these modules must not start workers, which would
    import them again."""
    _LOADERS.add(function.__code__)
    return function


def refuse_in_import(what: str) -> None:
    """Raise `InvalidRequest` during an import by a function marked with `loads_modules`: a worker would import the
    module too, and start workers itself, without end. An env that is built or stepped is not an import."""
    frame: FrameType | None = sys._getframe(1)
    file = ""
    while frame is not None and frame.f_code not in _LOADERS:
        if not file and frame.f_code.co_name == "<module>":
            file = Path(frame.f_code.co_filename).name
        frame = frame.f_back
    if frame is not None and file:
        raise InvalidRequest(
            f"{file} {what} while it is imported, and workers that import it would do so too, without end: move that "
            'under `if __name__ == "__main__":`'
        )


@loads_modules
def module_named(name: str) -> ModuleType:
    """The module of this name or, if the name ends in `.py`, of this file; errors of the import are passed on.

    The folder of a file is added to `sys.path`, as Python does for scripts, so that workers can import it too.
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
        raise InvalidRequest(f"{name}: another module {file.stem!r} comes first ({module.__file__}); rename the file")
    return module


def modules_like(name: str) -> list[str]:
    """Other versions of a module that does not exist (`pursuit_v5` for `pursuit_v4`), or the module with the most
    similar name in its package. Nothing is imported."""
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


def absolute_name(name: str) -> str:
    """`file.py:name` with the file's absolute path, which is valid in any directory; other names unchanged."""
    file, _, attribute = name.rpartition(":")
    return f"{Path(file).absolute()}:{attribute}" if file.endswith(".py") else name


def display_name(name: str) -> str:
    """The name for display: an absolute path without its folders."""
    file, _, attribute = name.rpartition(":")
    return f"{Path(file).name}:{attribute}" if file.endswith(".py") and Path(file).is_absolute() else name


def colon_spelling(name: str) -> str:
    """`package.module.Name` as `package.module:Name` if that module exists, `file.py` as `file.py:Name`; else ''."""
    if name.endswith(".py"):
        return f"{name}:Name"
    module, dot, attribute = name.rpartition(".")
    try:
        exists = dot and attribute.isidentifier() and importlib.util.find_spec(module) is not None
    except (ImportError, ValueError, AttributeError):  # the part before the dot is not a package
        exists = False
    return f"{module}:{attribute}" if exists else ""
