"""Skip the tests of the built-in PettingZoo envs where PettingZoo is not installed."""

from __future__ import annotations

try:
    import pettingzoo
except ImportError:
    collect_ignore_glob = ["test_*.py"]
else:
    assert pettingzoo.__version__
