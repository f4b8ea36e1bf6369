"""A scripted player for Lantern Vale: it shows that the game can be won, and plays to points where episodes begin.

It knows the rooms, reads the RAM every four frames, walks around obstacles, and fights nearby enemies."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from multiverse.envs.game_boy.emulator import Emulator, read_cartridge
from multiverse.envs.game_boy.quest.drawings import blocks

FRAMES = 4
"""Frames between two decisions; the hero walks as many pixels."""

Place = tuple[int, int]
DIRECTIONS = {"down": (0, 1), "up": (0, -1), "left": (-1, 0), "right": (1, 0)}
MUST_CLEAR = (3, 8, 10)
"""Rooms where an item appears after all enemies are defeated."""


def addresses() -> dict[str, int]:
    by_name: dict[str, int] = yaml.safe_load((Path(__file__).parent / "ram.yaml").read_text())["ram"]
    return by_name


@cache
def open_cells(room: int) -> frozenset[Place]:
    """Return the cells of a room that the hero can stand on; doors count as open, since the keys are found before."""
    kinds = {heading[0]: heading[2] for heading, _ in blocks("tiles.txt", "tile")}
    rows = next(lines[:8] for heading, lines in blocks("rooms.txt", "room") if heading[0] == str(room))
    walkable = ("open", "exit", "locked")
    return frozenset((x, y) for y, row in enumerate(rows) for x, letter in enumerate(row) if kinds[letter] in walkable)


@cache
def fits(room: int, place: Place) -> bool:
    """Return whether the hero fits here."""
    x, y = place
    inside = 0 <= x <= 144 and 0 <= y <= 112
    corners = [((x + dx) // 16, (y + dy) // 16) for dx in (3, 12) for dy in (8, 15)]
    return inside and all(corner in open_cells(room) for corner in corners)


def distance(a: Place, b: Place) -> int:
    return max(abs(a[0] - b[0]), abs(a[1] - b[1]))


def way(room: int, start: Place, goals: list[Place], avoid: list[Place]) -> str | None:
    """Return the first button of the shortest path to one of the goals; None if there is none, or at a goal."""
    if any(distance(start, goal) < FRAMES for goal in goals):
        return None
    seen, waiting = {start}, deque([(start, "")])
    while waiting:
        place, first = waiting.popleft()
        if any(distance(place, goal) < FRAMES for goal in goals):
            return first
        for button, (dx, dy) in DIRECTIONS.items():
            new = (place[0] + FRAMES * dx, place[1] + FRAMES * dy)
            if new not in seen and fits(room, new) and not any(distance(new, enemy) < 18 for enemy in avoid):
                seen.add(new)
                waiting.append((new, first or button))
    return None


class Player:
    """Chooses the buttons for the next four frames by the RAM."""

    def __init__(self, read: Callable[[int], int]) -> None:
        self._read = read
        self._at = addresses()
        self._pressed = False  # A or Start in the last frames: a button must be released before it is pressed again

    def __getitem__(self, name: str) -> int:
        return self._read(self._at[name])

    def buttons(self) -> list[str]:
        """Return the buttons to hold; [] for none."""
        wanted = self._wanted()
        if self._pressed:
            wanted = [button for button in wanted if button not in ("a", "start")]
        self._pressed = "a" in wanted or "start" in wanted
        return wanted

    def _wanted(self) -> list[str]:
        if self["mode"] != 1:
            return {0: ["start"], 2: ["a"]}.get(self["mode"], [])
        here = self["x"], self["y"]
        if enemy := self._opponent(here):
            return self._fight(here, enemy)
        if self["health"] < 4 and (hearts := self._things("item", (2,))):
            return self._walk(here, hearts)
        return self._follow_guide(here)

    def _things(self, what: str, kinds: tuple[int, ...]) -> list[Place]:
        slots = [slot for slot in range(4) if self[f"{what}_kind_{slot}"] in kinds]
        return [(self[f"{what}_x_{slot}"], self[f"{what}_y_{slot}"]) for slot in slots]

    def _opponent(self, here: Place) -> Place | None:
        """Return the middle of the nearest enemy that has to be fought, or None."""
        if not self["has_sword"]:
            return None
        shade = [(x + 8, y + 8) for x, y in self._things("enemy", (4,))]
        enemies = sorted(self._things("enemy", (1, 2, 3, 5)) + shade, key=lambda enemy: distance(here, enemy))
        if enemies and (self["room"] in MUST_CLEAR or distance(here, enemies[0]) < 32):
            return enemies[0]
        return None

    def _fight(self, here: Place, enemy: Place) -> list[str]:
        reach = 26 if self["room"] == 10 else 20
        dx, dy = enemy[0] - here[0], enemy[1] - here[1]
        for button, (x, y) in DIRECTIONS.items():
            ahead, aside = x * dx + y * dy, abs(x * dy + y * dx)
            if 0 <= ahead <= reach + 4 and aside <= 8:
                return [button, "a"] if self["facing"] == list(DIRECTIONS).index(button) else [button]
        spots = [(enemy[0] - reach * x, enemy[1] - reach * y) for x, y in DIRECTIONS.values()]
        return self._walk(here, [spot for spot in spots if fits(self["room"], spot)])

    def _walk(self, here: Place, goals: list[Place], avoid: list[Place] | None = None) -> list[str]:
        button = way(self["room"], here, goals, avoid or [])
        return [button] if button else []

    def _follow_guide(self, here: Place) -> list[str]:
        """Walk to the firefly's goal; there, go through the door or talk."""
        goal = self["goal_x"], self["goal_y"]
        if step := self._walk(here, [goal]):
            return step
        if (self["progress"], self["room"]) == (0, 1):
            return ["a"] if self["facing"] == 1 else ["up"]
        if self["room"] == 7 and not self["west_key"]:
            return ["a"] if self["facing"] == 2 else ["left"]
        edges = {"left": goal[0] == 0, "right": goal[0] == 144, "down": goal[1] == 112}
        return [next((button for button, there in edges.items() if there), "up")]


def play(emulator: Any, *, until: Callable[[Player], bool], frames: int) -> int:
    """Play in a PyBoy until `until` holds, for at most `frames`; return the number of frames played."""
    player = Player(emulator.memory.__getitem__)
    held: list[str] = []
    played = 0
    while played < frames and not until(player):
        wanted = player.buttons()
        for button in set(held) - set(wanted):
            emulator.button_release(button)
        for button in set(wanted) - set(held):
            emulator.button_press(button)
        held = wanted
        emulator.tick(FRAMES, False)
        played += FRAMES
    for button in held:
        emulator.button_release(button)
    return played


# -- starts of episodes ----------------------------------------------------------------------------------------
HERE = Path(__file__).parent
TITLE, PLAYING = 0, 1
MOST_FRAMES = 20_000
FRAMES_BETWEEN = 96
"""Frames from one start to the next. Rooms that take longer, such as Black Water, have several."""


@cache
def stages() -> dict[str, bytes]:
    """Return the emulator's states of stage_0_1, …, stage_1, stage_1_1, …; played once per process, in some seconds.

    `stage_3` is just after the third step of the quest, `stage_3_2` the second start after it.
    """
    emulator = Emulator(read_cartridge(HERE / "quest.gb"), "quest.gb")
    player, states, held = Player(emulator.memory.__getitem__), dict[str, bytes](), list[str]()
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
                states[f"stage_{stage}_{points}" if points else f"stage_{stage}"] = emulator.save()
                since, held = 0, []
            wanted = player.buttons()
            emulator.release([button for button in held if button not in wanted])
            emulator.press([button for button in wanted if button not in held])
            emulator.run(FRAMES, False)
            since, held = since + FRAMES, wanted
    finally:
        emulator.close()
    return states
