"""Game Boy games as envs: any cartridge that you own, with a YAML file that describes its RAM, and a built-in game.

`GameBoyEnv` takes a cartridge; `make_quest` makes Lantern Vale, the built-in game (`multiverse/Quest-v0`).
"""

from pathlib import Path
from typing import Any

from multiverse.envs.game_boy.env import POWER_ON, GameBoyEnv

__all__ = ["GameBoyEnv", "make_quest"]

QUEST = Path(__file__).parent / "quest"


def make_quest(*, curriculum: bool = False, **arguments: Any) -> GameBoyEnv:
    """Make Lantern Vale, with its own game file; `arguments` are those of `GameBoyEnv`.

    A step is eight frames, the last without buttons, so that A can be pressed again in every step. With `curriculum` a
    quarter of the episodes begin at power-on, the others at a random point of the quest. Use it for training, since the
    quest is long, but not for evaluation.
    """
    env = GameBoyEnv(QUEST / "quest.gb", QUEST / "game.yaml", **{"hold_frames": 7, "release_frames": 1, **arguments})
    if curriculum:
        from multiverse.envs.game_boy.quest.player import stages

        points = stages()
        for name, state in points.items():
            env.add_start(name, state)
        env.starts += [POWER_ON] * (len(points) // 3)
    return env
