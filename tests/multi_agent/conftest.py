"""The contract suite's fixtures serve here too."""

from tests.contract.conftest import gate, make, nothing_left_behind  # noqa: F401
