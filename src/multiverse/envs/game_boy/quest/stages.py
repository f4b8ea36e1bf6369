"""The stages of Lantern Vale as points to begin at: where one who knows the way is when a stage begins."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from multiverse.envs.game_boy.emulator import Emulator, read_cartridge
from multiverse.envs.game_boy.quest.player import FRAMES, Player

HERE = Path(__file__).parent
PLAYING = 1
MOST_FRAMES = 20_000


@cache
def stages() -> dict[str, bytes]:
    """stage_1 … stage_8 → the emulator's state; played once in a process, which takes about a second."""
    emulator = Emulator(read_cartridge(HERE / "quest.gb"), "quest.gb")
    player, found, held = Player(emulator.memory.__getitem__), dict[str, bytes](), list[str]()
    try:
        for _ in range(MOST_FRAMES // FRAMES):
            name = f"stage_{player['progress']}"
            if player["mode"] == PLAYING and player["progress"] and name not in found:
                emulator.release()
                emulator.run(1, True)
                found[name], held = emulator.save(), []
            if player["won"] or player["game_over"]:
                break
            wanted = player.buttons()
            emulator.release([button for button in held if button not in wanted])
            emulator.press([button for button in wanted if button not in held])
            emulator.run(FRAMES, False)
            held = wanted
    finally:
        emulator.close()
    found.pop("stage_9", None)  # it is won
    return found
