"""The emulator, and how bytes of its memory become rewards and features."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from multiverse.core.errors import InvalidRequest
from multiverse.core.plain_files import read_named
from multiverse.core.views import Array
from multiverse.envs.game_boy.game_file import RamField, Values

warnings.filterwarnings("ignore", "Using SDL2 binaries from pysdl2-dll")  # PyBoy's window, which nobody opens
try:
    from pyboy import PyBoy
except ImportError as error:
    raise ImportError("a Game Boy needs PyBoy, which is not installed: pip install 'multiverse[game-boy]'") from error

BUTTONS = ("a", "b", "start", "select", "up", "down", "left", "right")
FRAMES_PER_S = 59.7275
HEIGHT, WIDTH = 144, 160
HEADER_END, TITLE, COLOUR, KIND, SIZE, CHECKSUM = 0x150, 0x134, 0x143, 0x147, 0x148, 0x14D
SMALLEST, LARGEST = 32 * 1024, 2**23
WITH_CLOCK = (0x0F, 0x10)


def read_cartridge(path: Path | str) -> bytes:
    """The image of a cartridge; refused where it is none, or not all of it."""
    try:
        image = read_named(path, LARGEST)
    except OSError as error:
        raise InvalidRequest(f"rom={str(path)!r}: {error.strerror or error}; expected a Game Boy cartridge") from error
    checksum = -sum(byte + 1 for byte in image[TITLE:CHECKSUM]) & 0xFF
    if len(image) < HEADER_END or image[CHECKSUM] != checksum:
        raise InvalidRequest(
            f"rom={str(path)!r} is no Game Boy cartridge: it has no header with a valid checksum at 0x134; "
            "expected an unpacked .gb or .gbc file"
        )
    expected = SMALLEST << image[SIZE] if image[SIZE] <= 8 else len(image)
    if len(image) < expected:
        raise InvalidRequest(
            f"rom={str(path)!r} is truncated: it has {len(image):,} bytes, and its header says {expected:,}"
        )
    return image


class Emulator:
    """A Game Boy with a cartridge in it, switched on and not yet run."""

    def __init__(self, image: bytes, name: str) -> None:
        """`name`: of the cartridge, for errors."""
        try:
            # As a stream, PyBoy neither reads nor writes the .ram, .rtc and .state files beside a cartridge.
            self._pyboy = PyBoy(io.BytesIO(image), window="null", sound_emulated=False, no_input=False)
        except Exception as error:  # its own kinds of errors, and whatever else a strange header leads to
            raise InvalidRequest(f"rom={name!r} cannot be played: {type(error).__name__}: {error}") from error
        self._pyboy.set_emulation_speed(0)
        if image[KIND] in WITH_CLOCK:
            self._pyboy.rtc_lock_experimental(True)  # a cartridge's clock shows the time of day, which no seed sets
        self.in_colour = bool(image[COLOUR] & 0x80)
        self.memory: Any = self._pyboy.memory  # [address]
        self.screen: Array = self._pyboy.screen.ndarray  # [height, width, red green blue alpha], as last rendered
        self.run = self._pyboy.tick  # (frames, render): only the last of them is rendered; releases the GIL

    def press(self, buttons: Iterable[str]) -> None:
        for button in buttons:
            self._pyboy.button_press(button)

    def release(self, buttons: Iterable[str] = BUTTONS) -> None:
        for button in buttons:
            self._pyboy.button_release(button)

    def save(self) -> bytes:
        """Everything it takes to go on from here."""
        stream = io.BytesIO()
        self._pyboy.save_state(stream)
        return stream.getvalue()

    def load(self, state: bytes) -> None:
        """Go on from there."""
        self._pyboy.load_state(io.BytesIO(state))

    def close(self) -> None:
        """Twice does no harm."""
        self._pyboy.stop(save=False)


# -- bytes of memory -------------------------------------------------------------------------------------------
LARGEST_GAP = 64
"""Between two fields that are read in one go: to read a byte more costs a twentieth of another read."""
Number = Callable[[list[int]], int | tuple[int, ...]]


class Ram:
    """Fields of a game's RAM, read together."""

    def __init__(self, fields: Sequence[RamField]) -> None:
        self._spans, places = _spans(fields)
        plain = [field for field in fields if field.bytes == field.count == 1 and field.bit is None]
        self._names = [field.name for field in plain]
        self._plain = _all_of([places[field.name] for field in plain])
        self._others = [(field.name, _reader(field, places[field.name])) for field in fields if field not in plain]
        observed = [field for field in fields if field.feature]
        self.num_features = sum(field.size for field in observed)
        self._observed = [(field.name, _tables(field), field.count > 1, field.origin) for field in observed]

    def read(self, memory: Any) -> Values:
        raw: list[int] = []
        for start, stop in self._spans:
            raw += memory[start:stop]
        values: Values = dict(zip(self._names, self._plain(raw)))
        for name, number in self._others:
            values[name] = number(raw)
        return values

    def features(self, values: Values) -> Array:
        """[features] float32, from 0 to 1."""
        row: list[float] = []
        for name, features, several, origin in self._observed:
            here: Any = values[origin] if origin else 0
            if several:
                for number in values[name]:  # type: ignore[union-attr]
                    row += features(number - here)
            else:
                row += features(values[name] - here)
        return np.array(row, np.float32)


def _spans(fields: Sequence[RamField]) -> tuple[list[tuple[int, int]], dict[str, int]]:
    """(parts of RAM to read, where each field begins in all of them together)."""
    spans: list[tuple[int, int]] = []
    places, before = {}, 0  # before: bytes in all spans but the last
    for field in sorted(fields, key=lambda field: field.address):
        end = field.address + field.bytes * field.count
        if spans and field.address <= spans[-1][1] + LARGEST_GAP:
            spans[-1] = spans[-1][0], max(spans[-1][1], end)
        else:
            before += spans[-1][1] - spans[-1][0] if spans else 0
            spans.append((field.address, end))
        places[field.name] = before + field.address - spans[-1][0]
    return spans, places


def _all_of(places: Sequence[int]) -> Callable[[list[int]], Sequence[int]]:
    if len(places) > 1:
        return itemgetter(*places)
    return lambda raw: [raw[place] for place in places]


def _reader(field: RamField, at: int) -> Number:
    if (bit := field.bit) is not None:
        return lambda raw: raw[at] >> bit & 1
    size, end = field.bytes, at + field.bytes * field.count
    if size == 1:
        return lambda raw: tuple(raw[at:end])

    def numbers(raw: list[int]) -> int | tuple[int, ...]:
        found = [int.from_bytes(bytes(raw[k : k + size]), "little") for k in range(at, end, size)]
        return tuple(found) if len(found) > 1 else found[0]

    return numbers


def _tables(field: RamField) -> Callable[[int], tuple[float, ...]]:
    """Number → its features; looked up, where a number is a byte."""
    if field.bytes > 1:
        return field.features_of
    numbers = (*range(256), *(range(-255, 0) if field.origin else ()))  # a list counts back from its end
    return [field.features_of(number) for number in numbers].__getitem__
