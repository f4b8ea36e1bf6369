"""Builds Lantern Vale: converts drawings, rooms and tunes from text to a C header, and compiles quest.gb with sdcc.

python -m multiverse.envs.game_boy.quest.build [FILE]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import deque
from pathlib import Path

import yaml

from multiverse.envs.game_boy.quest.drawings import Picture, blocks, font, large, mirrored, quarters, turned, two_bits

HERE = Path(__file__).parent
IMAGE = HERE / "quest.gb"
TITLE = ("LANTERN", "VALE")

KINDS = ("open", "solid", "bush", "talk", "locked", "exit")
ENEMIES = ("", "slime", "bat", "skeleton", "shade", "spark")
ITEMS = ("", "gem", "heart")

EDGES = ((72, 112), (72, 0), (0, 56), (144, 56))
"""Positions in pixels where the hero leaves a room to the south, north, west and east (the order of `facing`)."""
STAIRS = {2: (6, (72, 16)), 6: (2, (72, 112))}
"""Rooms with stairs: the room that they lead to, and their position."""
STRAIGHT = 255
SIDES = ((0, 1), (0, -1), (-1, 0), (1, 0))
WALKED = ("open", "exit", "locked")
STEPS = (
    (1, (96, 40)),  # the elder
    (3, (72, 56)),  # the key of the gate
    (2, (72, 24)),  # the gate
    (2, (72, 16)),  # the stairs behind it
    (7, (30, 44)),  # the chest
    (8, (120, 56)),  # the key of the skeletons
    (6, (72, 8)),  # the door with two locks
    (10, (72, 56)),  # the Shade
    (11, (72, 40)),  # the lantern
)
"""Steps of the quest in order: room and position."""

Place = tuple[int, int]


class Header:
    """C header with the assets."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def define(self, name: str, value: object) -> None:
        self.lines.append(f"#define {name} {value}")

    def array(self, name: str, values: bytes | list[int]) -> None:
        """Add an array, which is declared everywhere and defined where ASSETS is set."""
        listed = ",".join(map(str, values))
        self.lines.append(f"extern const u8 {name}[{len(values)}];")
        self.lines.append(f"#ifdef ASSETS\nconst u8 {name}[] = {{{listed}}};\n#endif")


def write_ram(header: Header) -> None:
    """Write the names of ram.yaml: each is a byte; names numbered from 0 are an array."""
    for name, address in yaml.safe_load((HERE / "ram.yaml").read_text())["ram"].items():
        stem, _, number = name.rpartition("_")
        if number == "0":
            header.define(stem, f"((u8 *){address:#x})")
        elif not number.isdigit():
            header.define(f"ram_{name}", f"(*(u8 *){address:#x})")


def write_letters(header: Header, glyphs: dict[str, Picture]) -> None:
    """Write the font, one bit per pixel, and the small tiles before it."""
    blank = ["." * 8] * 8
    header.array("font", b"".join(two_bits(glyphs.get(chr(code), blank))[::2] for code in range(32, 127)))
    small: list[Picture] = []
    for (name, *rest), picture in blocks("hud.txt", "hud"):
        header.define(f"HUD_{name.upper()}", len(small))
        for _ in range(4 if rest else 1):
            small.append(picture)
            picture = turned(picture)
    assert len(small) <= 32, "the font begins at tile 32"
    header.array("hud_tiles", b"".join(map(two_bits, small)))


def write_ground(header: Header, glyphs: dict[str, Picture]) -> None:
    """Write the tiles and the four tiles of each cell. The console holds 128 ground tiles, those of one floor."""
    tiles = list(blocks("tiles.txt", "tile"))
    drawn: dict[str, Picture] = {}
    for number, ((letter, name, _, _, *rest), picture) in enumerate(tiles):
        drawn[letter] = mirrored(drawn[rest[1]]) if rest else picture
        header.define(f"TILE_{name.upper()}", number)
    header.array("kinds", [KINDS.index(kind) for (_, _, kind, *_), _ in tiles])
    for number, kind in enumerate(KINDS):
        header.define(f"KIND_{kind.upper()}", number)
    for floor in ("vale", "crypt"):
        ground: list[Picture] = [["." * 8] * 8]
        quads = []
        for letter, _, _, where, *_ in (heading for heading, _ in tiles):
            picture = drawn[letter] if where in (floor, "both") else ["." * 16] * 16
            ground += [tile for tile in quarters(picture) if tile not in ground]
            quads += [128 + ground.index(tile) for tile in quarters(picture)]
        if floor == "vale":
            write_title(header, ground, glyphs)
        assert len(ground) <= 128, f"{len(ground)} tiles in the {floor}"
        header.array(f"{floor}_tiles", b"".join(map(two_bits, ground)))
        header.array(f"{floor}_quads", quads)


def write_title(header: Header, ground: list[Picture], glyphs: dict[str, Picture]) -> None:
    """Write the letters of the title, behind the vale's tiles."""
    letters = {}
    for letter in sorted(set("".join(TITLE))):
        letters[letter] = 128 + len(ground)
        ground += quarters(large(glyphs[letter]))
    for number, word in enumerate(TITLE):
        header.array(f"title_{number}", [letters[letter] for letter in word])


def write_sprites(header: Header) -> None:
    """Write sprites in columns of 8 by 16 pixels, as the console draws them."""
    sprites: list[Picture] = []
    for (name,), picture in blocks("sprites.txt", "sprite"):
        header.define(f"SPRITE_{name.upper()}", len(sprites))
        for top in range(0, len(picture), 16):
            for left in range(0, len(picture[0]), 8):
                sprites += [[line[left : left + 8] for line in picture[y : y + 8]] for y in (top, top + 8)]
    assert len(sprites) <= 128, f"{len(sprites)} tiles of sprites"
    header.array("sprite_tiles", b"".join(map(two_bits, sprites)))


def write_music(header: Header) -> None:
    """Write pitches in the console's units, and each tune as indices of pitches with lengths."""
    semitones = dict(zip("C D EF G A B", range(12)))
    pitches, numbers = [0, 0], {"-": 0}
    header.define("SILENCE", 254)
    for tune, ((name, speed), lines) in enumerate(blocks("music.txt", "tune")):
        header.define(f"TUNE_{name.upper()}", tune)
        header.define(f"{name.upper()}_SPEED", speed)
        half = lines.index("bass")
        for voice, higher, part in (("melody", 0, lines[:half]), ("bass", 1, lines[half + 1 :])):
            words = " ".join(part).split()
            encoded = []
            for note, length in zip(words[::2], words[1::2]):
                key = note if note == "-" else f"{note[0]}{int(note[1]) + higher}"  # that channel is an octave lower
                if key not in numbers:
                    numbers[key] = len(pitches) // 2
                    hertz = 440 * 2 ** (int(key[1]) - 4 + (semitones[key[0]] - 9) / 12)
                    pitches += reversed(divmod(round(2048 - 131072 / hertz), 256))
                encoded += [numbers[key], int(length)]
            header.array(f"{name}_{voice}", [*encoded, 255])
    header.array("pitches", pitches)


def write_rooms(header: Header) -> None:
    tiles = [heading for heading, _ in blocks("tiles.txt", "tile")]
    numbers = {letter: number for number, (letter, *_) in enumerate(tiles)}
    kinds = {letter: kind for letter, _, kind, *_ in tiles}
    maps: list[list[str]] = []
    exits, enemies, finds = [], [], []
    names = ""
    for (_, name, _, *ways), lines in blocks("rooms.txt", "room"):
        maps.append(lines[:8])
        assert [len(row) for row in maps[-1]] == [10] * 8, f"{name} is not ten by eight"
        names += name.strip('"').ljust(18)
        north, east, south, west = (255 if way == "-" else int(way) for way in ways)
        exits += [south, north, west, east]
        things = [(kind, int(x) * 16, int(y) * 16) for kind, x, y in map(str.split, lines[8:])]
        finds += next(([ITEMS.index(kind), x, y] for kind, x, y in things if kind in ITEMS), [0, 0, 0])
        foes = [thing for thing in things if thing[0] in ENEMIES] + [("", 0, 0)] * 4
        enemies += [part for kind, x, y in foes[:4] for part in (ENEMIES.index(kind), x, y)]
    check_edges([[[kinds[letter] for letter in row] for row in rows] for rows in maps], exits)
    header.define("ROOMS", len(maps))
    header.array("room_cells", [numbers[letter] for rows in maps for row in rows for letter in row])
    header.array("room_exits", exits)
    header.array("room_enemies", enemies)
    header.array("room_finds", finds)
    header.array("room_names", names.encode())
    goals = [(room, way_to(target, place, room, exits)) for target, place in STEPS for room in range(len(maps))]
    different = list(dict.fromkeys(goals))
    header.array("guide", [part for _, place in goals for part in place])
    header.array("guide_ways", [different.index(goal) for goal in goals])
    open_cells = [{(x, y) for y in range(8) for x in range(10) if kinds[rows[y][x]] in WALKED} for rows in maps]
    header.array("ways", [one for room, place in different for one in bends(open_cells[room], place)])


def check_edges(maps: list[list[list[str]]], exits: list[int]) -> None:
    """Check that cells on both sides of an edge are equally open, except at doors."""
    for number, rows in enumerate(maps):
        south, _, _, east = exits[4 * number : 4 * number + 4]
        edges = [(rows[7], maps[south][0])] if south != 255 else []
        if east != 255:
            edges.append(([row[9] for row in rows], [row[0] for row in maps[east]]))
        for here, there in edges:
            fit = all(a == b or "locked" in (a, b) for a, b in zip(here, there))
            assert fit, f"room {number} does not fit the room to its south or east"


def way_to(target: int, place: Place, room: int, exits: list[int]) -> Place:
    """Return where to go in this room towards a place in another: an edge, or the stairs."""
    first = {room: place}
    waiting = deque([room])
    while target not in first:
        here = waiting.popleft()
        ways = [*zip(exits[4 * here : 4 * here + 4], EDGES), *([STAIRS[here]] if here in STAIRS else [])]
        for other, way in ways:
            if other != 255 and other not in first:
                first[other] = way if here == room else first[here]
                waiting.append(other)
    return first[target]


def bends(cells: set[Place], goal: Place) -> list[int]:
    """For each of a room's cells the next bend of the shortest way to a goal, as the number of its cell; STRAIGHT where
    there is none before the goal, or no way."""
    x, y = goal
    steps = {((x + dx) // 16, (y + 12) // 16): 0 for dx in (3, 12)}  # the feet's
    waiting = deque(steps)
    while waiting:
        here = waiting.popleft()
        for side in SIDES:
            there = here[0] + side[0], here[1] + side[1]
            if there in cells and there not in steps:
                steps[there] = steps[here] + 1
                waiting.append(there)

    def straight_on(place: Place, side: Place) -> list[Place]:
        """Return the cells in this direction, as long as each is nearer to the goal."""
        there = place[0] + side[0], place[1] + side[1]
        return [there, *straight_on(there, side)] if steps.get(there, 99) < steps[place] else []

    next_cells = [STRAIGHT] * 80
    for (column, row), left in steps.items():
        if left:
            end = max((straight_on((column, row), side) for side in SIDES), key=len)[-1]
            next_cells[10 * row + column] = 10 * end[1] + end[0] if steps[end] else STRAIGHT
    return next_cells


def build(image: Path) -> None:
    """Write the 32 KiB image. The shipped one was made by sdcc 4.2.0; other versions may give other bytes."""
    header = Header()
    glyphs = font()
    write_ram(header)
    write_letters(header, glyphs)
    write_ground(header, glyphs)
    write_sprites(header)
    write_music(header)
    write_rooms(header)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "assets.h").write_text("\n".join(header.lines) + "\n")

        def call(*command: str) -> None:
            subprocess.run(command, cwd=folder, check=True)

        objects = ["start.rel"]
        call("sdasgb", "-o", "start.rel", str(HERE / "code/start.s"))
        for source in sorted((HERE / "code").glob("*.c")):
            objects.append(source.with_suffix(".rel").name)
            call("sdcc", "-msm83", "--opt-code-speed", "-I", ".", "-c", str(source), "-o", objects[-1])
        places = ("--no-std-crt0", "--code-loc", "0x0200", "--data-loc", "0xC100")
        call("sdcc", "-msm83", *places, "-o", "quest.ihx", *objects)
        call("makebin", "-Z", "-yn", " ".join(TITLE), "quest.ihx", "quest.gb")
        image.write_bytes((Path(folder) / "quest.gb").read_bytes())


if __name__ == "__main__":
    build(Path(sys.argv[1]).absolute() if len(sys.argv) > 1 else IMAGE)
