"""The fixtures of the contract suite."""

from tests.vector.conftest import gate, make, nothing_left_behind  # noqa: F401
