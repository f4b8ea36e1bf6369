"""Points of Lantern Vale to begin at: where one who knows the way is when a stage begins, and between."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from multiverse.envs.game_boy.emulator import Emulator, read_cartridge
from multiverse.envs.game_boy.quest.player import FRAMES, Player

HERE = Path(__file__).parent
TITLE, PLAYING = 0, 1
MOST_FRAMES = 20_000
FRAMES_BETWEEN = 96
"""From one point to the next. Rooms that take longer, such as the bends of Black Water, have several."""


@cache
def stages() -> dict[str, bytes]:
    """stage_0_1, …, stage_1, stage_1_1, … → the emulator's state; played once in a process, which takes some seconds.

    `stage_3` is where the third step of the quest was just done, `stage_3_2` the second point after it.
    """
    emulator = Emulator(read_cartridge(HERE / "quest.gb"), "quest.gb")
    player, found, held = Player(emulator.memory.__getitem__), dict[str, bytes](), list[str]()
    stage, points, since = 0, 0, 0
    try:
        for _ in range(MOST_FRAMES // FRAMES):
            if player["won"] or player["game_over"]:
                break
            if player["mode"] == TITLE:
                since = 0
            elif player["mode"] == PLAYING and (player["progress"] > stage or since >= FRAMES_BETWEEN):
                stage, points = player["progress"], points + 1 if player["progress"] == stage else 0
                emulator.release()
                emulator.run(1, True)
                found[f"stage_{stage}_{points}" if points else f"stage_{stage}"] = emulator.save()
                since, held = 0, []
            wanted = player.buttons()
            emulator.release([button for button in held if button not in wanted])
            emulator.press([button for button in wanted if button not in held])
            emulator.run(FRAMES, False)
            since, held = since + FRAMES, wanted
    finally:
        emulator.close()
    return found
