"""Lantern Vale: its source builds the image, it can be won but not by chance, and its RAM has the state of the game."""

from __future__ import annotations

import itertools
import random
import re
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from multiverse.envs.game_boy.quest.build import HERE, IMAGE, build
from multiverse.envs.game_boy.quest.player import Player, addresses, play, way

TITLE_FRAMES = 120
"""From power-on until the title takes Start."""
BUTTONS = ("up", "down", "left", "right", "a", "b", "start", "select")
QUEST = ("has_sword", "gate_key", "gate_open", "entered_crypt", "west_key", "east_key", "door_open", "shade_defeated")


class Game:
    """The game in an emulator, at its title screen."""

    def __init__(self, rom: Path, seed: int) -> None:
        from pyboy import PyBoy

        self.emulator: Any = PyBoy(str(rom), window="null", sound_emulated=False)
        self.emulator.set_emulation_speed(0)
        self.emulator.tick(TITLE_FRAMES, False)
        self.player = Player(self.emulator.memory.__getitem__)
        self["seed"], self["seed_high"] = seed & 255, seed >> 8

    def __getitem__(self, name: str) -> int:
        return self.player[name]

    def __setitem__(self, name: str, value: int) -> None:
        self.emulator.memory[addresses()[name]] = value

    def hold(self, button: str, frames: int) -> None:
        self.emulator.button_press(button)
        self.emulator.tick(frames, False)
        self.emulator.button_release(button)
        self.emulator.tick(2, False)

    def play(self, until: Callable[[Player], bool], frames: int = 6000) -> int:
        played = play(self.emulator, until=until, frames=frames)
        assert until(self.player), f"not so after {frames} frames"
        return played

    def walk_to(self, x: int, y: int) -> None:
        while button := way(self["room"], (self["x"], self["y"]), [(x, y)], []):
            self.hold(button, 2)

    def read_out(self) -> None:
        """Turn the pages of a dialogue until it ends."""
        while self["mode"] == 2:
            self.hold("a", 2)
            self.emulator.tick(30, False)

    def state(self) -> bytes:
        return bytes(self.emulator.memory[0xC0A0:0xC100])


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[int], Game]]:
    """Start games on a copy of the image; fail if there are new files beside it afterwards."""
    rom = tmp_path / "rom" / "quest.gb"
    rom.parent.mkdir()
    shutil.copy(IMAGE, rom)
    games = []

    def begin(seed: int) -> Game:
        games.append(Game(rom, seed))
        return games[-1]

    yield begin
    for game in games:
        game.emulator.stop(save=False)
    assert list(rom.parent.iterdir()) == [rom]


@pytest.mark.skipif(shutil.which("sdcc") is None, reason="sdcc is not installed")
def test_rom_image_equals_the_build_of_its_source(tmp_path: Path) -> None:
    build(tmp_path / "quest.gb")
    assert (tmp_path / "quest.gb").read_bytes() == IMAGE.read_bytes(), (
        "run `python -m multiverse.envs.game_boy.quest.build`"
    )


def test_rom_header_is_valid() -> None:
    image = IMAGE.read_bytes()
    assert len(image) == 32768
    assert zlib.crc32(image[0x104:0x134]) == 0x46195417, "the logo that a console wants to see"
    assert image[0x134:0x144].rstrip(b"\0") == b"LANTERN VALE"
    assert image[0x147:0x14A] == b"\0\0\0", "32 KiB, no bank switching, no RAM"
    assert image[0x14D] == -sum(byte + 1 for byte in image[0x134:0x14D]) & 255
    assert int.from_bytes(image[0x14E:0x150], "big") == (sum(image) - image[0x14E] - image[0x14F]) & 0xFFFF


def test_every_name_in_the_ram_map_has_its_own_byte() -> None:
    places = list(addresses().values())
    assert len(set(places)) == len(places)
    assert min(places) == 0xC0A0 and max(places) < 0xC100


def test_every_dialogue_page_fits_its_window() -> None:
    pages = re.search(r"pages\[\] = \{(.*?)\n\};", (HERE / "code/talk.c").read_text(), re.DOTALL)
    assert pages is not None
    for page in re.findall(r'"(.*)"', pages[1]):
        lines = page.split("\\n")
        assert len(lines) <= 3 and all(len(line) <= 18 for line in lines), page
        assert len(lines) < 3 or len(lines[2]) <= 17, f"the mark that the page can be turned stands there: {page}"


@pytest.mark.parametrize("seed", [0, 1, 77, 300, 65535])
def test_scripted_player_wins_and_takes_at_least_a_minute(start: Callable[[int], Game], seed: int) -> None:
    game = start(seed)
    assert game["mode"] == 0
    steps: list[int] = []

    def won(player: Player) -> bool:
        if not steps or player["progress"] != steps[-1]:
            steps.append(player["progress"])
        return player["mode"] == 4

    assert game.play(won) >= 3600
    assert steps == list(range(10)), "one after another"
    assert [game[name] for name in (*QUEST, "won", "met_elder")] == [1] * 10
    assert game["game_over"] == 0 and game["floor"] == 1 and game["rooms_seen"] >= 10


@pytest.mark.parametrize("button", BUTTONS)
def test_holding_one_button_wins_nothing(start: Callable[[int], Game], button: str) -> None:
    game = start(1)
    game.hold("start", 4)
    for _ in range(1000):
        game.hold(button, 8)
        assert game["progress"] == game["won"] == 0


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_buttons_win_nothing(start: Callable[[int], Game], seed: int) -> None:
    game = start(seed)
    game.hold("start", 4)
    draw = random.Random(seed)
    for _ in range(1000):
        game.hold(draw.choice(BUTTONS), 8)
        assert game["x"] <= 144 and game["y"] <= 112 and game["health"] <= game["max_health"]
        assert game["won"] == game["entered_crypt"] == 0


def test_equal_seed_and_buttons_give_an_equal_game(start: Callable[[int], Game]) -> None:
    def after(seed: int, wait: int) -> bytes:
        game = start(seed)
        game.emulator.tick(wait, False)
        game.play(lambda player: player["progress"] == 2)
        return game.state()

    first = after(5, 0)
    assert after(5, 0) == first
    assert after(6, 0) != first, "another seed"
    assert after(5, 4) != first, "another moment of Start"


def test_game_never_skips_a_frame(start: Callable[[int], Game]) -> None:
    """With four slimes on the screen: every frame of the game is computed within one frame."""
    game = start(1)
    game.play(lambda player: player["room"] == 3 and player["enemies"] == 4)
    game.emulator.tick(60, False)
    counts = []
    for _ in range(120):
        game.emulator.tick(1, False)
        counts.append(game["frame"])
    assert [b - a & 255 for a, b in itertools.pairwise(counts)] == [1] * 119


def test_world_is_paused_while_the_elder_talks(start: Callable[[int], Game]) -> None:
    game = start(1)
    game.play(lambda player: player["mode"] == 2)
    assert (game["room"], game["dialogue"], game["met_elder"], game["has_sword"]) == (1, 1, 1, 0)
    before = game["x"], game["y"]
    game.hold("down", 20)
    assert (game["x"], game["y"]) == before
    pages = [game["dialogue"]]
    while game["mode"] == 2:
        game.hold("b", 2)
        game.emulator.tick(30, False)
        pages.append(game["dialogue"])
    assert list(dict.fromkeys(pages)) == [1, 2, 3, 4, 0]
    assert game["has_sword"] == game["progress"] == 1


def test_walls_stop_the_hero_and_edges_lead_to_the_next_room(start: Callable[[int], Game]) -> None:
    game = start(1)
    game.hold("start", 4)
    game.emulator.tick(40, False)
    game.hold("down", 100)
    assert (game["room"], game["y"]) == (4, 96), "trees in the south of the meadow"
    game.walk_to(72, 56)
    game.hold("left", 100)
    game.emulator.tick(20, False)
    assert (game["room"], game["rooms_seen"]) == (3, 2)
    assert game["x"] > 100, "entered from the east"


def test_doors_stay_locked_without_keys(start: Callable[[int], Game]) -> None:
    game = start(1)
    game.play(lambda player: player["gate_key"] == 1 and player["room"] == 2 and player["mode"] == 1)
    game["keys"] = 0
    game.play(lambda player: player["y"] == 24 and player["x"] // 8 == 9)
    game.hold("up", 60)
    assert (game["room"], game["gate_open"]) == (2, 0)
    game["keys"] = 1
    game.hold("up", 4)
    assert (game["gate_open"], game["keys"]) == (1, 0)


def test_pier_chest_has_gems_and_the_fisher_sells_a_heart(start: Callable[[int], Game]) -> None:
    """The chest at the pier's end has ten gems; for fifteen the fisher sells a heart."""
    game = start(1)
    game.play(lambda player: player["room"] == 0 and player["mode"] == 1)
    found = game["gems"]
    game.walk_to(64, 44)
    game.hold("left", 4)
    game.hold("a", 2)
    game.read_out()
    assert (game["bonus_found"], game["gems"]) == (1, found + 10)
    game["gems"] = 15
    game.walk_to(128, 40)
    game.hold("up", 2)
    game.hold("a", 2)
    game.read_out()
    assert (game["heart_bought"], game["gems"], game["max_health"], game["health"]) == (1, 0, 10, 10)


def test_new_game_after_defeat_starts_at_the_title(start: Callable[[int], Game]) -> None:
    game = start(1)
    game.play(lambda player: player["room"] == 2 and player["x"] in range(40, 48))
    healths = [game["health"]]
    for _ in range(3000):
        game.emulator.tick(1, False)
        if game["health"] != healths[-1]:
            healths.append(game["health"])
            assert game["health"] == 0 or 50 < game["invulnerable"] <= 60
    assert healths == list(range(healths[0], -1, -1)), (
        "the skeleton hits a hero that stands still, one half heart at a time"
    )
    assert (game["mode"], game["game_over"], game["won"]) == (3, 1, 0)
    game.hold("start", 4)
    game.emulator.tick(60, False)
    assert game["mode"] == 0
    game.hold("start", 4)
    game.emulator.tick(40, False)
    assert (game["mode"], game["room"], game["health"], game["game_over"]) == (1, 4, 8, 0)
    assert [game[name] for name in (*QUEST, "progress", "keys", "gems", "met_elder")] == [0] * 12
    assert game["rooms_seen"] == 1
