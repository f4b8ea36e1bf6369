"""The built-in envs are PettingZoo envs: without it there is nothing to test here."""

from __future__ import annotations

try:
    import pettingzoo
except ImportError:
    collect_ignore_glob = ["test_*.py"]
else:
    assert pettingzoo.__version__
