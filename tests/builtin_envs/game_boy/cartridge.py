"""A cartridge of a few dozen instructions: the pad moves a point, A finds gems, B costs health, a number is drawn.

RAM: C002 x, C003 y, C004 gems, C005 health (from 200), C006 frames, C007 room (x / 16), C010 the random number,
C011 which of A, B, select, start (bits 0-3) were pressed last, C012 gems + 256 in two bytes.
"""

from __future__ import annotations

from pathlib import Path

GAME = """\
ram:
  x: {address: 0xC002, max: 255}
  y: {address: 0xC003, max: 255}
  gems: {address: 0xC004, max: 20}
  health: {address: 0xC005, max: 200}
  room: {address: 0xC007, values: 16}
  random: {address: 0xC010}
  score: {address: 0xC012, bytes: 2, feature: false}
seed: random
start:
  - {wait: 80}
  - {press: start, frames: 2}
  - {wait: [4, 12]}
rewards:
  - {of: room, when: new, reward: 10}
  - {of: gems, when: increased, each: 0.5}
  - {of: health, when: decreased, each: -1}
end:
  - {of: health, at_most: 190}
success: {of: gems, at_least: 5}
"""


def rom() -> bytes:
    """32 KiB with a valid header."""
    code = bytes.fromhex(
        "F3 31 FE FF"  # no interrupts, a stack
        "F0 44 FE 90 20 FA AF E0 40"  # in the vertical blank: the screen off
        "21 00 80 3E 0F 06 10 22 07 05 20 FB"  # tile 0: slanting lines
        "21 00 98 01 00 04 AF 22 0B 78 B1 20 F9"  # a map with only this tile
        "3E E4 E0 47 3E 91 E0 40"  # colours, the screen on
        "3E C8 EA 05 C0"  # health 200
    )
    loop = 0x150 + len(code)
    code += bytes.fromhex(
        "F0 44 FE 90 20 FA"  # wait for the vertical blank
        "3E 20 E0 00 F0 00 F0 00 F0 00 2F E6 0F 47"  # b = the cross: right, left, up, down
        "21 02 C0 CB 40 28 01 34 CB 48 28 01 35"  # x
        "21 03 C0 CB 50 28 01 35 CB 58 28 01 34"  # y
        "3E 10 E0 00 F0 00 F0 00 F0 00 2F E6 0F 47"  # b = A, B, select, start
        "B7 28 03 EA 11 C0"  # pressed
        "21 04 C0 CB 40 28 01 34"  # gems
        "21 05 C0 CB 48 28 01 35"  # health
        "21 06 C0 34"  # frames
        "21 10 C0 7E 87 87 86 3C 77"  # the number: 5 × itself + 1
        "FA 02 C0 E0 43 CB 37 E6 0F EA 07 C0"  # the screen follows x, and the room is x / 16
        "FA 10 C0 E0 42"  # and jumps up and down by the number
        "FA 04 C0 EA 12 C0 3E 01 EA 13 C0"  # score: gems + 256
        "F0 44 FE 90 28 FA"  # wait for its end
        "C3"
    ) + loop.to_bytes(2, "little")
    image = bytearray(32 * 1024)
    image[0x100:0x104] = bytes.fromhex("00 C3 50 01")
    image[0x134 : 0x134 + 4] = b"TEST"
    image[0x150 : 0x150 + len(code)] = code
    image[0x14D] = -sum(byte + 1 for byte in image[0x134:0x14D]) & 0xFF
    return bytes(image)


def written(folder: Path, game: str = GAME) -> dict[str, str]:
    """Write the cartridge and its game file; return them as arguments of an env."""
    cartridge, described = folder / "test.gb", folder / "test.yaml"
    cartridge.write_bytes(rom())
    described.write_text(game)
    return {"rom": str(cartridge), "game": str(described)}
