"""Game Boy games as envs: any cartridge that you own, with a YAML file that says what its RAM means; and our own.

`GameBoyEnv` takes a cartridge, `make_quest` makes Lantern Vale, the built-in game (`multiverse/Quest-v0`).
"""

from pathlib import Path
from typing import Any

from multiverse.envs.game_boy.env import GameBoyEnv

__all__ = ["GameBoyEnv", "make_quest"]

QUEST = Path(__file__).parent / "quest"


def make_quest(*, curriculum: bool = False, **arguments: Any) -> GameBoyEnv:
    """Lantern Vale, by its own game file; `arguments` are those of `GameBoyEnv`.

    A step is eight frames, the last without a button, so that A is pressed anew at every step. With `curriculum`
    episodes begin at power-on or at one of the quest's stages, drawn: to train with, for a quest is long; not to be
    evaluated with.
    """
    env = GameBoyEnv(QUEST / "quest.gb", QUEST / "game.yaml", **{"hold_frames": 7, "release_frames": 1, **arguments})
    if curriculum:
        from multiverse.envs.game_boy.quest.stages import stages

        for name, state in stages().items():
            env.add_start(name, state)
    return env
