"""Any use of the package registers its envs with Gymnasium, as documented."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "use",
    [
        "mv.MetaEpisode(gymnasium.make('multiverse/Wind-v0'), 2)",
        "mv.draw_tasks(gymnasium.make('multiverse/PointRobot-v0'), 3, 2, seed=1)",
    ],
)
def test_built_in_ids_are_registered_by_using_the_package(use: str) -> None:
    program = f"import gymnasium, multiverse as mv\nassert {use}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
