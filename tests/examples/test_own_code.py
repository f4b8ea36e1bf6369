"""Examples of user code are short and use only public names."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = sorted([*EXAMPLES.glob("own_*.py"), EXAMPLES / "distributional.py"])
PUBLIC = {f"multiverse.{room}" for room in ("algorithms", "networks", "policies", "rollouts")} | {"multiverse"}
LINES = {
    ("own_loss.py", ("DualClipConfig", "DualClipPPO")): 15,
    ("own_network.py", ("Residual", "PredictingPPO")): 30,
    ("distributional.py", ("best_actions", "QRDQNConfig", "QRDQN")): 30,
    ("distributional.py", ("best_actions", "C51Config", "C51")): 40,
}
"""(file, names) → how many lines they have together, at most."""


def test_every_example_is_checked() -> None:
    assert {"distributional.py", "own_algorithm.py", "own_loss.py"} <= {file.name for file in FILES}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_example_imports_public_modules_and_names_only(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names = {alias.name for alias in node.names}
            assert {name for name in names if name.startswith("multiverse")} <= PUBLIC
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("multiverse"):
            assert node.module in PUBLIC and node.level == 0
            module = importlib.import_module(node.module)
            assert {alias.name for alias in node.names} <= {*getattr(module, "__all__", dir(module))}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_example_uses_no_private_name_of_the_library(file: Path) -> None:
    """Names with an underscore belong to the example: it defines each of them itself."""
    tree = ast.parse(file.read_text())
    private, own = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.Attribute):
            (own if isinstance(node.ctx, ast.Store) else private).add(node.attr)
        elif isinstance(node, ast.Name):
            (own if isinstance(node.ctx, ast.Store) else private).add(node.id)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            private |= {alias.name.rpartition(".")[2] for alias in node.names}
    assert {name for name in private if name.startswith("_") and not name.endswith("__")} <= own


@pytest.mark.parametrize("subclass", ["PPO", "DQN"])
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_subclass_of_a_stock_algorithm_has_no_private_names(file: Path, subclass: str) -> None:
    """A private name that it defines might override one of the library."""
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ClassDef) and subclass in [ast.unparse(base) for base in node.bases]:
            names = {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}
            names |= {one.name for one in ast.walk(node) if isinstance(one, ast.FunctionDef)}
            assert not {name for name in names if name.startswith("_")}


@pytest.mark.parametrize(("part", "most"), LINES.items(), ids=lambda part: str(part))
def test_part_of_an_example_is_at_most_as_long_as_documented(part: tuple[str, tuple[str, ...]], most: int) -> None:
    file, names = part
    text = (EXAMPLES / file).read_text()
    parts = {getattr(node, "name", ""): node for node in ast.parse(text).body}
    lines = text.splitlines()
    count = 0
    for name in names:
        node = parts[name]
        assert isinstance(node, ast.ClassDef | ast.FunctionDef) and node.end_lineno is not None
        first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
        count += sum(bool(line.strip()) for line in lines[first - 1 : node.end_lineno])
    assert count <= most
