"""What `make test` runs: `-p tests.selection`. Without it pytest runs everything (`make test-all`).

A fresh interpreter takes half a second, and fork differs from forkserver only in how a worker begins: so with fork and
with spawn each test runs once, with the first of its other parameters. `uneven` is hybrid again with other shares.
"""

from __future__ import annotations

import pytest

from tests.contract.configurations import UNEVEN, Configuration

SMOKE = ("fork", "spawn")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seen: set[tuple[str, str, str]] = set()
    chosen, left_out = [], []
    for item in items:
        method = start_method(item)
        once = (getattr(item, "originalname", item.name), item.path.name, method)
        if is_uneven(item) or (method in SMOKE and once in seen):
            left_out.append(item)
        else:
            chosen.append(item)
            seen.add(once)
    config.hook.pytest_deselected(items=left_out)
    items[:] = chosen


def start_method(item: pytest.Item) -> str:
    """As the test's parameters say it: a whole configuration, or `method`."""
    parameters = parameters_of(item)
    found = parameters.get("config", parameters.get("method"))
    return str(found.start_method if isinstance(found, Configuration) else found)


def is_uneven(item: pytest.Item) -> bool:
    return parameters_of(item).get("config") is UNEVEN


def parameters_of(item: pytest.Item) -> dict[str, object]:
    return item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
