"""Rules of the code base, read from the source: allowed imports, and where each kind of text may be."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import multiverse
from multiverse.algorithms import ALGORITHMS
from multiverse.algorithms.capabilities import ANSWERS, FLAGS
from multiverse.executors.backends import BACKENDS
from multiverse.vector.make import OPTIONS

SOURCE = Path(multiverse.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

ENGINE = {"core", "adapters", "ipc", "executors"}
ALLOWED = {
    "core": {"core"},
    "adapters": {"core", "adapters", "envs"},
    "wrappers": {"core", "wrappers"},
    "ipc": {"core", "ipc"},
    "executors": ENGINE,
    "vector": ENGINE | {"vector"},
    "measure": ENGINE | {"vector"},
    "env_checker": ENGINE | {"wrappers", "env_checker"},
    "envs": {"core", "envs"},
    "interop": ENGINE | {"vector", "interop"},
    "policies": {"core", "ipc", "policies"},
    "rollouts": ENGINE | {"vector", "policies", "rollouts"},
    "experience": {"policies", "rollouts"},
    "errors": {"core", "env_checker"},
    "learning": {"core", "learning"},
    "kernels": {"core", "learning", "kernels"},
    "networks": {"core", "learning", "networks"},
    "algorithms": {"core", "policies", "rollouts", "learning", "kernels", "networks", "algorithms"},
    "training": ENGINE
    | {"wrappers", "vector", "policies", "rollouts", "learning", "kernels", "networks", "algorithms", "training"},
}
"""Which parts of the house each part may import. The command line may import anything."""

VECTOR = (
    {"requests", "batches", "step_results"},
    {"host_calls", "group_rows"},
    {"base"},
    {"single", "parallel"},
    {"turns"},
    {"opening"},
    {"make"},
)
"""Inside `vector/`, from the bottom: each row imports only those before it."""

TOP = {"cli", "__init__", "__main__"}


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports_of(path: Path) -> tuple[str, ...]:
    """Every module that a file imports, at any place."""
    return tuple(_imports_of(path))


def _imports_of(path: Path) -> Iterator[str]:
    tree = tree_of(path)
    package = ["multiverse", *path.relative_to(SOURCE).parent.parts]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) + "." if node.level else ""
            module = base + (node.module or "")
            yield module
            yield from (f"{module.rstrip('.')}.{alias.name}" for alias in node.names)


def packages_of(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports_of(path)}


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def files_of(*parts: str) -> list[Path]:
    return [path for path in FILES if part_of(path) in parts]


def test_layer_imports_only_lower_layers() -> None:
    homeless = {part_of(path) for path in FILES} - set(ALLOWED) - TOP
    assert not homeless, f"{homeless} have no place in the house yet: say in ALLOWED what they may import"
    upwards = {}
    for path in FILES:
        imported = {name.split(".")[1] for name in imports_of(path) if name.startswith("multiverse.")}
        if part_of(path) not in TOP and (above := imported - ALLOWED[part_of(path)]):
            upwards[name_of(path)] = above
    assert upwards == {}


def test_modules_of_vector_import_only_lower_modules() -> None:
    below: set[str] = set()
    for row in VECTOR:
        for name in row:
            path = SOURCE / "vector" / f"{name}.py"
            found = {i.split(".")[2] for i in imports_of(path) if i.startswith("multiverse.vector.")}
            assert found <= below, f"{name} imports {found - below}"
        below |= row
    assert below | {"__init__"} == {path.stem for path in files_of("vector")}


LEARNS = {"learning", "networks", "algorithms", "training"}


def test_torch_is_imported_only_in_learning_layers() -> None:
    outside = [path for path in FILES if part_of(path) not in LEARNS]
    assert [name_of(path) for path in outside if "torch" in packages_of(path)] == []


def test_multiprocessing_is_imported_only_in_ipc_and_executors() -> None:
    users = {name_of(path) for path in FILES if "multiprocessing" in packages_of(path)}
    assert {name for name in users if not name.startswith(("ipc/", "executors/", "interop/"))} == set()
    for path in files_of("interop"):  # the originals' exception, and what the program itself has set
        found = {name for name in imports_of(path) if name.split(".")[0] == "multiprocessing"}
        names = {"TimeoutError", "get_start_method", "get_all_start_methods"}
        assert {name.removeprefix("multiprocessing.") for name in found} - {"multiprocessing"} <= names, path
        assert "import multiprocessing" not in path.read_text().splitlines(), path


def test_modules_have_specific_names() -> None:
    empty = {"utils", "util", "common", "helpers", "helper", "misc"}
    assert [name_of(p) for p in FILES if empty & set(p.relative_to(SOURCE).with_suffix("").parts)] == []


REGISTERED = "|".join(ALGORITHMS)
NAMES_ALGORITHM = re.compile(rf"(?<![\w./])(?:{REGISTERED})(?![\w/]|\.\w)")
MAY_NAME_ALGORITHMS = {
    "algorithms/__init__.py": "the registry",
    "training/config/rollout_files.py": "translates the names that another program's files have",
    "cli/commands/tune.py": "examples of commands, in its help",
    "cli/search.py": "examples of commands, in its help",
}
EXECUTORS = "|".join(BACKENDS)
NAMES_EXECUTOR = re.compile(rf"^(?:{EXECUTORS})$|'(?:{EXECUTORS})'")
MAY_NAME_EXECUTORS = {
    "core/plan.py": "the type of their names, and Ray's options in plan files",
    "executors/": "their own files, their registry, and what `auto` chooses",
    "env_checker/catalogue.py": "advice to users",
    "training/session_envs.py": "passes the option `ray` of vector envs",
    "cli/": "compares, recommends and shows them, by the names that users type",
}


def texts_in(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of every string except docstrings."""
    tree = tree_of(path)
    documented = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in documented:
            yield node.lineno, node.value


def test_algorithms_are_named_only_in_their_own_file_and_the_registry() -> None:
    named = []
    for path in FILES:
        own = path.stem if path.parent.name == "algorithms" else ""
        if name_of(path) not in MAY_NAME_ALGORITHMS:
            found = ((line, set(NAMES_ALGORITHM.findall(text)) - {own}) for line, text in texts_in(path))
            named += [f"{name_of(path)}:{line} {names}" for line, names in found if names]
    assert named == []


def test_executors_are_named_only_in_their_own_file_and_the_registry() -> None:
    others = [path for path in FILES if not name_of(path).startswith(tuple(MAY_NAME_EXECUTORS))]
    found = [(path, line, text) for path in others for line, text in texts_in(path) if NAMES_EXECUTOR.search(text)]
    assert [f"{name_of(path)}:{line} {text}" for path, line, text in found] == []


def test_executor_names_are_not_compared() -> None:
    """Differences between executors are declared in `BACKENDS`."""
    compared = []
    for path in FILES:
        comparisons = [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Compare)]
        literals = [one for node in comparisons for one in ast.walk(node) if isinstance(one, ast.Constant)]
        compared += [f"{name_of(path)}:{one.lineno}" for one in literals if one.value in BACKENDS]
    # Ray's own module in sys.modules, and a field of this name in plan files
    assert {place.partition(":")[0] for place in compared} <= {"executors/ray_cluster.py", "core/plan.py"}


def test_capabilities_of_algorithms_are_declared_and_not_detected() -> None:
    declared = {*FLAGS, *ANSWERS, "supports", "max_lag", "set_slots", "keep_masks", "critic"}
    detected = []
    for path in FILES:
        for call in (node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call)):
            if isinstance(call.func, ast.Name) and call.func.id in ("hasattr", "getattr") and len(call.args) > 1:
                name = call.args[1].value if isinstance(call.args[1], ast.Constant) else ""
                detected += [f"{name_of(path)}:{call.lineno} {name}"] if name in declared else []
    assert [place for place in detected if not place.startswith("algorithms/capabilities.py")] == []


@pytest.mark.parametrize("exceptions", [MAY_NAME_ALGORITHMS, MAY_NAME_EXECUTORS], ids=["algorithms", "executors"])
def test_files_that_may_name_algorithms_or_executors_exist(exceptions: dict[str, str]) -> None:
    assert [name for name in exceptions if not (SOURCE / name).exists()] == []


def test_print_is_called_only_in_the_command_line() -> None:
    printing = []
    for path in FILES:
        calls = [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call)]
        lines = [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]
        printing += [f"{name_of(path)}:{line}" for line in lines if part_of(path) != "cli"]
    assert printing == []


def test_every_module_has_a_docstring() -> None:
    assert [name_of(path) for path in FILES if not ast.get_docstring(tree_of(path))] == []


def test_pickle_is_imported_only_where_workers_communicate() -> None:
    readers = {name_of(path) for path in FILES if {"pickle", "cloudpickle"} & packages_of(path)}
    ray = {f"executors/ray_{name}.py" for name in ("actor", "cluster", "workers")}
    allowed = {"ipc/link.py", "adapters/registered.py", "executors/worker_loop.py", "executors/process.py", *ray}
    assert {name for name in readers if not name.startswith("cli/")} <= allowed


def test_every_layer_exists() -> None:
    assert {part_of(path) for path in FILES} >= set(ALLOWED)
    assert len(files_of("core", "adapters", "ipc", "executors")) > 20


def loaded_after(code: str) -> set[str]:
    text = f"{code}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


def test_importing_the_package_loads_neither_torch_nor_gymnasium() -> None:
    loaded = loaded_after("import multiverse")
    assert not {"torch", "gymnasium", "numpy", "cloudpickle"} & loaded


def test_making_envs_does_not_load_torch() -> None:
    loaded = loaded_after("import multiverse as mv\nmv.make_vec('CartPole-v1', 2, 'thread').close()")
    assert "torch" not in loaded
    assert "multiverse.cli" not in loaded


def test_every_public_name_resolves_and_is_listed() -> None:
    for name in multiverse.__all__:
        assert getattr(multiverse, name) is not None
    assert set(multiverse.__all__) <= set(dir(multiverse))
    assert len(set(multiverse.__all__)) == len(multiverse.__all__)
    namespace: dict[str, object] = {}
    exec("from multiverse import *", namespace)
    assert set(multiverse.__all__) <= namespace.keys()


def test_public_surface_is_small_and_documented() -> None:
    assert len(inspect.signature(multiverse.make_vec).parameters) <= 16
    assert len(multiverse.__all__) <= 40
    modules = [multiverse, *(importlib.import_module(f"multiverse.{name}") for name in PUBLIC_MODULES)]
    undocumented = [name for module in modules for name in module.__all__ if not is_documented(getattr(module, name))]
    assert undocumented == []


PUBLIC_MODULES = ("errors", "vector", "env_checker", "policies", "rollouts", "algorithms.public")


def is_documented(member: object) -> bool:
    """Whether it has a written docstring; type aliases and constants cannot have one."""
    if not (inspect.isclass(member) or inspect.isfunction(member) or inspect.ismodule(member)):
        return True
    text = member.__doc__ or ""
    return bool(text) and not text.startswith(f"{getattr(member, '__name__', '')}(")


def test_every_option_of_make_vec_is_validated_frozen_and_documented() -> None:
    for kind in {*OPTIONS.values()}:
        assert kind.__dataclass_params__.frozen and all(field.kw_only for field in dataclasses.fields(kind))
        assert "__post_init__" in vars(kind), "validated on construction"
        arguments = inspect.getdoc(kind).partition("Args:")[2]
        assert [field.name for field in dataclasses.fields(kind) if f"{field.name}: " not in arguments] == []
    documented = inspect.getdoc(multiverse.make_vec).partition("Args:")[2]
    parameters = inspect.signature(multiverse.make_vec).parameters
    assert [name for name in parameters if f"    {name}: " not in documented] == []


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = multiverse.no_such_name


@pytest.mark.parametrize("page", ["architecture", "design_notes"])
def test_files_named_in_pages_about_the_code_exist(page: str) -> None:
    root = Path(__file__).parents[1]
    named = re.findall(r"`([\w/.-]+(?:\.py|\.yaml|\.md|/))`", (root / "docs" / f"{page}.md").read_text())
    there = [f"/{path.relative_to(root)}" for folder in ("src", "tests", "docs") for path in (root / folder).rglob("*")]
    assert len(named) > 15
    assert [name for name in named if not any(path.endswith(f"/{name.rstrip('/')}") for path in there)] == []
