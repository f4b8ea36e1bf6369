"""Builds Lantern Vale: pictures and rooms drawn in text become C, and sdcc makes quest.gb of it.

python -m multiverse.envs.game_boy.quest.build [FILE]
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import yaml

HERE = Path(__file__).parent
IMAGE = HERE / "quest.gb"
SHADES = ".-+#"
KINDS = ("open", "solid", "water", "bush", "talk", "locked", "exit")
ENEMIES = ("", "slime", "bat", "skeleton", "shade", "spark")
ITEMS = ("", "gem", "heart")
EDGES = ((72, 112), (72, 0), (0, 56), (144, 56))
"""Where a hero leaves a room to the south, north, west and east (the order of `facing`), in pixels."""

STEPS = ((1, 96, 40), (3, 72, 56), (2, 72, 24), (2, 72, 16), (7, 30, 44), (8, 120, 56), (6, 72, 8), (10, 72, 56), (11, 72, 40))
"""The steps of the quest in order: the room of each, and where in it."""
OTHER_FLOOR = {2: (6, 72, 16), 6: (2, 72, 112)}
"""The rooms with stairs: where these lead, and where they are."""

Picture = list[str]


def blocks(name: str, word: str) -> Iterator[tuple[list[str], Picture]]:
    """The blocks of a text file: the words of each heading, and the lines below it."""
    heading, lines = [], []
    for line in (HERE / "art" / name).read_text().splitlines():
        if line.startswith(word + " "):
            if heading:
                yield heading, lines
            heading, lines = re.findall(r'"[^"]*"|\S+', line)[1:], []
        elif line and not line.startswith("# "):
            lines.append(line)
    yield heading, lines


def mirrored(picture: Picture) -> Picture:
    return [line[::-1] for line in picture]


def turned(picture: Picture) -> Picture:
    """A quarter turn clockwise."""
    return ["".join(column) for column in zip(*reversed(picture))]


def cut(picture: Picture, x: int, y: int) -> Picture:
    """The 8 by 8 pixels at (x, y)."""
    return [line[x : x + 8] for line in picture[y : y + 8]]


def two_bits(tile: Picture) -> bytes:
    """An 8 by 8 tile as the console wants it: for each line the low bits, then the high bits, of its pixels."""
    rows = [[SHADES.index(pixel) for pixel in line] for line in tile]
    return bytes(sum((shade >> bit & 1) << 7 - i for i, shade in enumerate(row)) for row in rows for bit in (0, 1))


def font() -> dict[str, Picture]:
    glyphs = {}
    for letter, *rows in map(str.split, (HERE / "art/font.txt").read_text().splitlines()[2:]):
        if len(rows[0]) == 5:
            rows = ["." + "".join("#" if "#" in pair else "." for pair in zip("." + row, row + ".")) for row in rows]
        glyphs[letter] = [f"{row:.<8}"[:8] for row in (rows + [""] * 8)[:8]]
    return glyphs


def logo(letter: Picture) -> list[Picture]:
    """A letter of the title: twice as large, corners rounded, with a shadow; its four tiles."""

    def ink(x: int, y: int) -> bool:
        if not (0 <= x < 16 and 0 <= y < 16):
            return False
        black = [[letter[j][i] == "#" if 0 <= i < 8 and 0 <= j < 8 else False for i in range(-1, 9)] for j in range(-1, 9)]
        i, j = x // 2 + 1, y // 2 + 1
        across, down = black[j][i + (1 if x % 2 else -1)], black[j + (1 if y % 2 else -1)][i]
        back, up = black[j][i - (1 if x % 2 else -1)], black[j - (1 if y % 2 else -1)][i]
        if across == down and across != back and down != up:
            return across
        return black[j][i]

    rows = []
    for y in range(16):
        rows.append("".join("#" if ink(x, y) else "+" if ink(x - 1, y - 1) else "-" if ink(x - 2, y - 2) else "." for x in range(16)))
    return [cut(rows, x, y) for y in (0, 8) for x in (0, 8)]


class Header:
    """The C header that is made of the drawings."""

    def __init__(self) -> None:
        self.lines = ["/* Made by build.py of ram.yaml and art/. */"]

    def define(self, name: str, value: object) -> None:
        self.lines.append(f"#define {name.upper()} {value}")

    def array(self, name: str, values: bytes | list[int]) -> None:
        listed = ",".join(map(str, values))
        self.lines.append(f"extern const u8 {name}[{len(values)}];\n#ifdef ASSETS\nconst u8 {name}[] = {{{listed}}};\n#endif")


def write_ram(header: Header) -> None:
    """Each name is a byte; those numbered from 0 are an array."""
    for name, address in yaml.safe_load((HERE / "ram.yaml").read_text())["ram"].items():
        stem, _, number = name.rpartition("_")
        if number == "0":
            header.lines.append(f"#define {stem} ((u8 *){address:#x})")
        elif not number.isdigit():
            header.lines.append(f"#define ram_{name} (*(u8 *){address:#x})")


def write_pictures(header: Header) -> None:
    glyphs = font()
    header.array("font", b"".join(two_bits(glyphs.get(chr(code), ["." * 8] * 8))[::2] for code in range(32, 127)))

    small: list[Picture] = []
    for (name, *rest), picture in blocks("hud.txt", "hud"):
        header.define(f"hud_{name}", len(small))
        for _ in range(4 if rest else 1):
            small.append(picture)
            picture = turned(picture)
    assert len(small) <= 32, "the font begins at tile 32"
    header.array("hud_tiles", b"".join(map(two_bits, small)))

    tiles = list(blocks("tiles.txt", "tile"))
    drawn: dict[str, Picture] = {}
    for number, ((letter, name, _, _, *rest), picture) in enumerate(tiles):
        drawn[letter] = mirrored(drawn[rest[1]]) if rest else picture
        header.define(f"tile_{name}", number)
    header.array("kinds", [KINDS.index(heading[2]) for heading, _ in tiles])
    for floor in ("vale", "crypt"):  # the console holds 128 tiles of ground: one floor's
        ground: list[Picture] = [["." * 8] * 8]
        quads = []
        for letter, _, _, where, *_ in (heading for heading, _ in tiles):
            picture = drawn[letter] if where in (floor, "both") else ["." * 16] * 16
            for tile in (cut(picture, x, y) for y in (0, 8) for x in (0, 8)):
                if tile not in ground:
                    ground.append(tile)
                quads.append(128 + ground.index(tile))
        if floor == "vale":
            write_logo(header, ground, glyphs)
        assert len(ground) <= 128, f"{len(ground)} tiles of ground in the {floor}; the console holds 128"
        header.array(f"{floor}_tiles", b"".join(map(two_bits, ground)))
        header.array(f"{floor}_quads", quads)
    for number, kind in enumerate(KINDS):
        header.define(f"kind_{kind}", number)

    sprites = b""
    for (name,), picture in blocks("sprites.txt", "sprite"):
        header.define(f"sprite_{name}", len(sprites) // 16)
        for top in range(0, len(picture), 16):
            for left in range(0, len(picture[0]), 8):
                sprites += two_bits(cut(picture, left, top)) + two_bits(cut(picture, left, top + 8))
    assert len(sprites) <= 128 * 16
    header.array("sprite_tiles", sprites)


def write_logo(header: Header, ground: list[Picture], glyphs: dict[str, Picture]) -> None:
    """The letters of the title, behind the vale's tiles."""
    letters = {}
    for letter in sorted(set("LANTERNVALE")):
        letters[letter] = 128 + len(ground)
        ground += logo(glyphs[letter])
    header.array("logo_top", [letters[letter] for letter in "LANTERN"])
    header.array("logo_bottom", [letters[letter] for letter in "VALE"])


def write_music(header: Header) -> None:
    """Pitches as the console counts them, and each tune as numbers of these and lengths. The bass sounds an octave lower."""
    scale = dict(zip("C D EF G A B", range(12)))
    pitches, numbers = [0, 0], {"-": 0}
    header.define("silence", 254)
    for tune, ((name, speed), lines) in enumerate(blocks("music.txt", "tune")):
        header.define(f"tune_{name}", tune)
        header.define(f"{name}_speed", speed)
        half = lines.index("bass")
        for voice, octave, part in (("melody", 0, lines[:half]), ("bass", 1, lines[half + 1 :])):
            words = " ".join(part).split()
            encoded = []
            for note, length in zip(words[::2], words[1::2]):
                key = note if note == "-" else f"{note[0]}{int(note[1]) + octave}"
                if key not in numbers:
                    numbers[key] = len(pitches) // 2
                    hertz = 440 * 2 ** (int(key[1]) - 4 + (scale[key[0]] - 9) / 12)
                    pitches += divmod(round(2048 - 131072 / hertz), 256)[::-1]
                encoded += [numbers[key], int(length)]
            header.array(f"{name}_{voice}", [*encoded, 255])
    header.array("pitches", pitches)


def write_rooms(header: Header) -> None:
    letters = [heading[0] for heading, _ in blocks("tiles.txt", "tile")]
    kinds = {heading[0]: heading[2] for heading, _ in blocks("tiles.txt", "tile")}
    cells, exits, foes, finds, names, maps = [], [], [], [], [], []
    for (_, name, _, *ways), lines in blocks("rooms.txt", "room"):
        rows = lines[:8]
        assert len(rows) == 8 and all(len(row) == 10 for row in rows), f"{name} is not ten by eight"
        maps.append(rows)
        cells += [letters.index(letter) for row in rows for letter in row]
        north, east, south, west = (255 if way == "-" else int(way) for way in ways)
        exits += [south, north, west, east]
        names.append(name.strip('"'))
        things = [(kind, int(x) * 16, int(y) * 16) for kind, x, y in map(str.split, lines[8:])]
        finds += next(([ITEMS.index(kind), x, y] for kind, x, y in things if kind in ITEMS), [0, 0, 0])
        enemies = [thing for thing in things if thing[0] in ENEMIES] + [("", 0, 0)] * 4
        foes += [part for kind, x, y in enemies[:4] for part in (ENEMIES.index(kind), x, y)]
    for number, rows in enumerate(maps):  # what is open on one side of an edge is open on the other
        for side, line in ((3, [row[9] for row in rows]), (0, rows[7])):
            if (other := exits[4 * number + side]) != 255:
                facing = [row[0] for row in maps[other]] if side == 3 else maps[other][0]
                pairs = zip((kinds[a] for a in line), (kinds[b] for b in facing))
                assert all(a == b or "locked" in (a, b) for a, b in pairs), f"rooms {number} and {other} do not fit"
    header.define("rooms", len(maps))
    header.array("room_cells", cells)
    header.array("room_exits", exits)
    header.array("room_enemies", foes)
    header.array("room_finds", finds)
    header.array("room_names", "".join(f"{name:<18}" for name in names).encode())
    header.array("guide", [part for goal in STEPS for room in range(len(maps)) for part in way_to(goal, room, exits)])


def way_to(goal: tuple[int, int, int], room: int, exits: list[int]) -> tuple[int, int]:
    """Where to go in this room to come nearer to the goal: to it, to an edge, or to the stairs."""
    target, x, y = goal
    if room == target:
        return x, y
    first: dict[int, tuple[int, int]] = {room: (0, 0)}
    waiting = deque([room])
    while target not in first:
        here = waiting.popleft()
        ways = [(other, EDGES[side]) for side, other in enumerate(exits[4 * here : 4 * here + 4]) if other != 255]
        if here in OTHER_FLOOR:
            other, *place = OTHER_FLOOR[here]
            ways.append((other, (place[0], place[1])))
        for other, place_ in ways:
            if other not in first:
                first[other] = place_ if here == room else first[here]
                waiting.append(other)
    return first[target]


def build(image: Path) -> None:
    """Writes the 32 KiB image. Needs sdcc 4.2; another version may well make another, equally good one."""
    header = Header()
    write_ram(header)
    write_pictures(header)
    write_music(header)
    write_rooms(header)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "assets.h").write_text("\n".join(header.lines) + "\n")

        def call(*command: str) -> None:
            subprocess.run(command, cwd=folder, check=True)

        objects = []
        call("sdasgb", "-o", "start.rel", str(HERE / "code/start.s"))
        for source in sorted((HERE / "code").glob("*.c")):
            objects.append(source.with_suffix(".rel").name)
            call("sdcc", "-msm83", "--opt-code-speed", "-I", ".", "-c", str(source), "-o", objects[-1])
        places = ("--no-std-crt0", "--code-loc", "0x0200", "--data-loc", "0xC100")
        call("sdcc", "-msm83", *places, "-o", "quest.ihx", "start.rel", *objects)
        call("makebin", "-Z", "-yn", "LANTERN VALE", "quest.ihx", "quest.gb")
        image.write_bytes((Path(folder) / "quest.gb").read_bytes())


if __name__ == "__main__":
    build(Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGE)
