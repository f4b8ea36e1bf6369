"""A Game Boy: PyBoy without window, sound or speed limit. The cartridge is read once, and no file is written."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from multiverse.core.errors import InvalidRequest
from multiverse.core.layout import Array
from multiverse.core.plain_files import read_named

warnings.filterwarnings("ignore", "Using SDL2 binaries from pysdl2-dll")  # for PyBoy's window, which is not used
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
    """Return the image of a cartridge; refuse other files and truncated ones."""
    try:
        image = read_named(path, LARGEST)
    except OSError as error:
        raise InvalidRequest(f"rom={str(path)!r}: {error.strerror or error}; expected a Game Boy cartridge") from error
    checksum = -sum(byte + 1 for byte in image[TITLE:CHECKSUM]) & 0xFF
    if len(image) < HEADER_END or image[CHECKSUM] != checksum:
        raise InvalidRequest(
            f"rom={str(path)!r} is not a Game Boy cartridge: it has no header with a valid checksum at 0x134; "
            "expected an unpacked .gb or .gbc file"
        )
    expected = SMALLEST << image[SIZE] if image[SIZE] <= 8 else len(image)
    if len(image) < expected:
        raise InvalidRequest(
            f"rom={str(path)!r} is truncated: it has {len(image):,} of the {expected:,} bytes in its header"
        )
    return image


class Emulator:
    """A Game Boy with a cartridge, switched on but not yet run."""

    def __init__(self, image: bytes, name: str) -> None:
        """`name`: name of the cartridge for errors."""
        try:
            # As a stream, PyBoy neither reads nor writes the .ram, .rtc and .state files beside a cartridge.
            self._pyboy = PyBoy(io.BytesIO(image), window="null", sound_emulated=False, no_input=False)
        except Exception as error:  # PyBoy has its own errors, and strange headers cause others
            raise InvalidRequest(f"rom={name!r} cannot be played: {type(error).__name__}: {error}") from error
        self._pyboy.set_emulation_speed(0)
        if image[KIND] in WITH_CLOCK:
            self._pyboy.rtc_lock_experimental(
                True
            )  # the clock of a cartridge has the time of day, which does not depend on the seed
        self.in_colour = bool(image[COLOUR] & 0x80)
        self.memory: Any = self._pyboy.memory  # [address]
        self.screen: Array = self._pyboy.screen.ndarray  # [height, width, red green blue alpha], as last rendered
        self.run = self._pyboy.tick  # (frames, render): only the last frame is rendered; releases the GIL

    def press(self, buttons: Iterable[str]) -> None:
        for button in buttons:
            self._pyboy.button_press(button)

    def release(self, buttons: Iterable[str] = BUTTONS) -> None:
        for button in buttons:
            self._pyboy.button_release(button)

    def save(self) -> bytes:
        """Return the state."""
        stream = io.BytesIO()
        self._pyboy.save_state(stream)
        return stream.getvalue()

    def load(self, state: bytes) -> None:
        """Continue from a state."""
        self._pyboy.load_state(io.BytesIO(state))

    def close(self) -> None:
        """Switch off. Closing again has no effect."""
        self._pyboy.stop(save=False)
