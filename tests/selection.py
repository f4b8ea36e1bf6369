"""What `make test` runs: `-p tests.selection`. Without it pytest runs everything (`make test-all`).

Every test runs serially and with worker processes from the fork server. Threads, hybrid, fork and spawn are other
choices of the same hosts, so each of these runs with one test of every file, and with tests that have nothing else.
Ray, which takes seconds to start, does so in some files only, beside those that are about it.
"""

from __future__ import annotations

import pytest

from tests.vector.configurations import Configuration

FULL = ("serial", "forkserver")
WITH_RAY = ("test_equals_gymnasium.py", "test_env_failures.py", "test_parallel_equality.py", "test_turns_equality.py")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    in_full = {function_of(item) for item in items if configuration_of(item) in FULL}
    seen: set[tuple[object, str]] = set()
    chosen, left_out = [], []
    for item in items:
        name = configuration_of(item)
        if name == "ray" and item.path.name not in WITH_RAY:
            left_out.append(item)
            continue
        scope = item.path if function_of(item) in in_full else function_of(item)
        if name is None or name in FULL or (scope, name) not in seen:
            chosen.append(item)
            seen.update([] if name is None else [(item.path, name), (function_of(item), name)])
        else:
            left_out.append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = chosen


def function_of(item: pytest.Item) -> tuple[object, str]:
    return item.path, getattr(item, "originalname", item.name)


def configuration_of(item: pytest.Item) -> str | None:
    """The test's parameter: a configuration, a start method `method`, or None without either."""
    parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    found = parameters.get("config", parameters.get("method"))
    return found.name if isinstance(found, Configuration) else found if isinstance(found, str) else None
