"""Pictures drawn in text, and their conversion to the console's format; independent of the game."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ART = Path(__file__).parent / "art"
SHADES = ".-+#"
"""White (in sprites: transparent), light, dark, black; sprites show light as white."""

Picture = list[str]


def blocks(file: str, word: str) -> Iterator[tuple[list[str], Picture]]:
    """Yield the blocks of a text file: the words of the heading after the first, and the lines below it."""
    heading: list[str] = []
    lines: list[str] = []
    for line in (ART / file).read_text().splitlines():
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
    """Return the picture rotated by 90° clockwise."""
    return ["".join(column) for column in zip(*reversed(picture))]


def cut(picture: Picture, x: int, y: int) -> Picture:
    """Return the 8 by 8 pixels at (x, y)."""
    return [line[x : x + 8] for line in picture[y : y + 8]]


def quarters(picture: Picture) -> list[Picture]:
    """Return the four tiles of 16 by 16 pixels."""
    return [cut(picture, x, y) for y in (0, 8) for x in (0, 8)]


def two_bits(tile: Picture) -> bytes:
    """Encode an 8 by 8 tile: for each line the low bits of its pixels, then the high bits."""
    rows = [[SHADES.index(pixel) for pixel in line] for line in tile]
    return bytes(sum((shade >> bit & 1) << 7 - i for i, shade in enumerate(row)) for row in rows for bit in (0, 1))


def font() -> dict[str, Picture]:
    glyphs = {}
    for letter, *rows in map(str.split, (ART / "font.txt").read_text().splitlines()[2:]):
        if len(rows[0]) == 5:  # a stroke of two pixels, and a pixel before it
            rows = ["." + "".join("#" if "#" in pair else "." for pair in zip("." + row, row + ".")) for row in rows]
        glyphs[letter] = [f"{row:.<8}" for row in (rows + [""] * 8)[:8]]
    return glyphs


def large(letter: Picture) -> Picture:
    """Return a letter at twice the size, with smoothed steps and a shadow to the lower right."""

    def black(x: int, y: int) -> bool:
        return 0 <= x < 8 and 0 <= y < 8 and letter[y][x] == "#"

    def ink(x: int, y: int) -> bool:
        """Return the pixel's value, except at a corner, where both neighbours on this side differ from the others."""
        i, j, right, down = x // 2, y // 2, x % 2 * 2 - 1, y % 2 * 2 - 1
        near = {black(i + right, j), black(i, j + down)}
        far = {black(i - right, j), black(i, j - down)}
        return near.pop() if len(near) == len(far) == 1 and near != far else black(i, j)

    def shade(x: int, y: int) -> str:
        return next((shade for back, shade in enumerate("#+-") if ink(x - back, y - back)), ".")

    return ["".join(shade(x, y) for x in range(16)) for y in range(16)]
