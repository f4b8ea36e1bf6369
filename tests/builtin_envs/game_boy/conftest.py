"""The cartridge and its game file, written once."""

from __future__ import annotations

import pytest

from tests.builtin_envs.game_boy.cartridge import written


@pytest.fixture(scope="session")
def cartridge(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return written(tmp_path_factory.mktemp("cartridge"))
