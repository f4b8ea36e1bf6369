"""`GameBoyEnv`: any Game Boy game as a Gymnasium env."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast, get_args

import gymnasium
import numpy as np
from gymnasium import spaces

from multiverse.core.errors import InvalidRequest
from multiverse.core.layout import Array
from multiverse.core.plain_files import read_named
from multiverse.envs.game_boy.emulator import FRAMES_PER_S, HEIGHT, WIDTH, Emulator, read_cartridge
from multiverse.envs.game_boy.game_file import Game, StartStep, Values, read_game
from multiverse.envs.game_boy.ram import Ram, Rewards

LARGEST_STATE = 2**24

Observed = Literal["screen", "ram", "both"]
POWER_ON = "power_on"
DOWNSCALES = (1, 2, 4, 8)


class GameBoyEnv(gymnasium.Env[Any, np.int64]):
    """A game in its own emulator; a step presses buttons for several frames.

    Args:
        rom: the image of a cartridge, a .gb or .gbc file. No other file beside it is read or written.
        game: a YAML file with addresses in the game's RAM, rewards, starts and ends of episodes (docs/game_boy.md).
            Without one every reward is 0, and only `episode_length` ends an episode.
        observation: `"screen"`: the last `stack` screens, grey and reduced, [stack, height, width] bytes; `"ram"`: the
            numbers of the game file as a vector of features from 0 to 1; `"both"`: a Dict of these two.
        episode_length: steps after which an episode is truncated.
        hold_frames, release_frames: numbers of frames for which a step presses its buttons and then releases them. With
            `release_frames=0` they stay pressed until a step with other buttons. Only the last frame of a step is
            rendered, and only if it is used.
        downscale: factor by which the screen of 144 × 160 is reduced in both directions: 1, 2, 4 or 8.
        stack: number of screens in an observation.
        starts: where episodes begin: names of the game file's `starts`, files that `save_start` wrote, or `"power_on"`.
            Each episode draws one of them; one that appears twice is twice as likely. `reset(options={"start": name})`
            chooses one.
        penalties: whether rules with a negative `reward` or `each` apply. Without them a return measures only progress.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012, as in Gymnasium

    def __init__(
        self,
        rom: Path | str,
        game: Path | str | None = None,
        *,
        observation: Observed = "screen",
        episode_length: int = 1_000,
        hold_frames: int = 4,
        release_frames: int = 0,
        downscale: int = 2,
        stack: int = 4,
        starts: Sequence[str] = (POWER_ON,),
        penalties: bool = True,
        render_mode: str | None = None,
    ) -> None:
        for name, value, least in [
            ("episode_length", episode_length, 1),
            ("hold_frames", hold_frames, 1),
            ("release_frames", release_frames, 0),
            ("stack", stack, 1),
        ]:
            if not isinstance(value, int) or value < least:
                raise InvalidRequest(f"{name}={value!r}: expected a whole number of at least {least}")
        for name, chosen, choices in [
            ("observation", observation, get_args(Observed)),
            ("downscale", downscale, DOWNSCALES),
            ("render_mode", render_mode, (None, *self.metadata["render_modes"])),
        ]:
            if chosen not in choices:
                raise InvalidRequest(f"{name}={chosen!r}: expected one of {', '.join(map(str, choices))}")
        self._game = Game() if game is None else read_game(game)
        self._ram = Ram(self._game.ram)
        if observation != "screen" and not self._ram.num_features:
            raise InvalidRequest(f"observation={observation!r}: the game file {game} has no features in `ram`")
        self.episode_length, self.render_mode = episode_length, render_mode
        self._hold_frames, self._release_frames = hold_frames, release_frames
        self._downscale, self._observation = downscale, observation
        self._renders = observation != "ram" or render_mode is not None
        self._rewards = Rewards([rule for rule in self._game.rewards if penalties or rule.reward >= 0])
        self.metadata = {**self.metadata, "render_fps": FRAMES_PER_S / (hold_frames + release_frames)}
        self.action_space = spaces.Discrete(len(self._game.actions))
        screens = spaces.Box(0, 255, (stack, HEIGHT // downscale, WIDTH // downscale), np.uint8)
        ram = spaces.Box(0.0, 1.0, (self._ram.num_features,), np.float32)
        self.observation_space = cast(
            "spaces.Space[Any]",
            {"screen": screens, "ram": ram, "both": spaces.Dict({"ram": ram, "screen": screens})}[observation],
        )
        self._screens = np.zeros(screens.shape, np.uint8)
        self._held: tuple[str, ...] = ()
        self._steps = -1  # of the episode; -1: there is no episode
        self._emulator = Emulator(read_cartridge(rom), str(rom))
        self._points = {POWER_ON: self._emulator.save()}
        self._prefix = _without_draws(self._game.start)
        self.starts = [self._known_start(name) for name in starts]
        if not self.starts:
            raise InvalidRequest(f"starts={starts!r}: expected at least one")

    # -- episodes ------------------------------------------------------------------------------------------------
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if unknown := set(options or ()) - {"start"}:
            raise InvalidRequest(
                f"options: {', '.join(map(str, sorted(unknown)))} is not known; the only option is 'start'"
            )
        chosen = (options or {}).get("start")
        if chosen is None:
            chosen = self.starts[int(self.np_random.integers(len(self.starts)))]
        self._begin_at(self._known_start(chosen))
        if (seeded := self._game.seed) is not None:
            drawn = int(self.np_random.integers(1, 256**seeded.bytes))
            for k, byte in enumerate(drawn.to_bytes(seeded.bytes, "little")):
                self._emulator.memory[seeded.address + k] = byte
        self._emulator.run(1, self._renders)
        self._steps, values = 0, self._read()
        self._rewards.begin(values)
        if self._observation != "ram":
            self._screens[:] = self._small_screen()
        return self._observed(values), self._info(values)

    def _begin_at(self, start: str) -> None:
        emulator, self._held = self._emulator, ()
        if start != POWER_ON:
            emulator.load(self._points[start])
            emulator.release()
            return
        if (ready := self._points.get("")) is None:  # equal in every episode, hence played once
            emulator.load(self._points[POWER_ON])
            self._play(self._game.start[: self._prefix])
            ready = self._points[""] = emulator.save()
        emulator.load(ready)
        self._play(self._game.start[self._prefix :])

    def _play(self, steps: Sequence[StartStep]) -> None:
        for buttons, fewest, most in steps:
            frames = fewest if fewest == most else int(self.np_random.integers(fewest, most + 1))
            self._emulator.press(buttons)
            self._emulator.run(frames, False)
            self._emulator.release(buttons)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._steps < 0:
            raise InvalidRequest("step() without an episode: call reset() first")
        if not 0 <= action < len(self._game.actions):
            raise InvalidRequest(f"action={action!r}: expected 0 to {len(self._game.actions) - 1}")
        emulator, buttons = self._emulator, self._game.actions[action]
        if buttons != self._held:
            emulator.release(self._held)
            emulator.press(buttons)
        if self._release_frames:
            emulator.run(self._hold_frames, False)
            emulator.release(buttons)
            emulator.run(self._release_frames, self._renders)
        else:
            emulator.run(self._hold_frames, self._renders)
            self._held = buttons
        self._steps += 1
        values = self._read()
        reward = self._rewards.earned(values)
        terminated = any(condition.holds(values) for condition in self._game.end)
        if self._observation != "ram":
            self._screens[:-1] = self._screens[1:]
            self._screens[-1] = self._small_screen()
        return self._observed(values), reward, terminated, self._steps >= self.episode_length, self._info(values)

    # -- observations --------------------------------------------------------------------------------------------
    def _read(self) -> Values:
        return self._ram.read(self._emulator.memory)

    def _observed(self, values: Values) -> Any:
        if self._observation == "screen":
            return self._screens.copy()
        ram = self._ram.features(values)
        return ram if self._observation == "ram" else {"ram": ram, "screen": self._screens.copy()}

    def _small_screen(self) -> Array:
        """Return the grey screen, with the mean of each square of pixels."""
        screen, factor = self._emulator.screen, self._downscale
        grey = screen[:, :, 0]
        if self._emulator.in_colour:
            grey = (screen[:, :, 0].astype(np.uint16) + 2 * screen[:, :, 1].astype(np.uint16) + screen[:, :, 2]) >> 2
        while factor > 1:  # at most 64 × 255, which fits
            grey = np.add(grey[0::2], grey[1::2], dtype=np.uint16)
            grey = grey[:, 0::2] + grey[:, 1::2]
            factor //= 2
        return grey if self._downscale == 1 else grey // self._downscale**2

    def _info(self, values: Values) -> dict[str, Any]:
        info: dict[str, Any] = {name: value for name, value in values.items() if isinstance(value, int)}
        if self._game.success is not None:
            info["success"] = self._game.success.holds(values)
        return info

    def render(self) -> Any:
        """Return the full screen [144, 160, 3]."""
        return None if self.render_mode is None else self._emulator.screen[:, :, :3].copy()

    # -- saved states --------------------------------------------------------------------------------------------
    def save_state(self) -> dict[str, Any]:
        """Return the state for `restore_state`."""
        in_episode = self._steps >= 0
        return {
            "emulator": np.frombuffer(self._emulator.save(), np.uint8),
            "random": self.np_random.bit_generator.state,
            "steps": self._steps,
            "held": list(self._held),
            "advice": {"starts": list(self.starts), "rewards": dict(self._rewards.scales)},
            "screens": self._screens.copy() if self._observation != "ram" else np.zeros(0, np.uint8),
            "rewards": self._rewards.state() if in_episode else {},
        }

    def restore_state(self, state: Mapping[str, Any]) -> None:
        self.advise(**state["advice"])
        self._emulator.load(np.asarray(state["emulator"], np.uint8).tobytes())
        self.np_random.bit_generator.state = state["random"]
        self._steps, self._held = int(state["steps"]), tuple(state["held"])
        if self._observation != "ram":
            self._screens[:] = state["screens"]
        if self._steps >= 0:
            self._rewards.load(state["rewards"], self._read())

    def advisable(self) -> dict[str, Any]:
        """Return the choices for `advise`, and the current numbers in RAM."""
        starts = sorted({*self._points, *self._game.starts} - {""})
        return {"starts": starts, "rewards": self._rewards.names, "now": self._info(self._read())}

    def advise(self, starts: Sequence[str] | None = None, rewards: Mapping[str, float] | None = None) -> None:
        """Set the starts of episodes, and factors for the rewards of rules, until the next call."""
        if starts is not None:
            self.starts = [self._known_start(name) for name in starts] or [POWER_ON]
        if rewards is not None:
            self._rewards.scales = {name: float(scale) for name, scale in rewards.items()}

    def save_start(self, path: Path | str) -> None:
        """Write the current state of the game to a file for `starts`."""
        Path(path).write_bytes(self._emulator.save())

    def add_start(self, name: str, state: bytes) -> None:
        """Add a state, in the format of `save_start`, from which episodes may begin."""
        self._points[name] = state
        self.starts.append(name)

    def _known_start(self, name: str) -> str:
        """Read and store the state of a start that is not known yet; returns its name."""
        if name not in self._points:
            path, now = self._game.starts.get(name, Path(name)), self._emulator.save()
            try:
                state = read_named(path, LARGEST_STATE)
                self._emulator.load(state)
            except OSError as error:
                known = ", ".join([POWER_ON, *self._game.starts])
                problem = f"start {name!r}: {path}: {error.strerror or error}"
                raise InvalidRequest(f"{problem}; expected one of {known}, or a file of save_start") from error
            except Exception as error:  # PyBoy may raise anything for other files
                raise InvalidRequest(f"start {name!r}: {path} is not a state of this game: {error}") from error
            finally:
                self._emulator.load(now)
            self._points[name] = state
        return name

    def close(self) -> None:
        self._steps = -1
        if hasattr(self, "_emulator"):
            self._emulator.close()


def _without_draws(start: Sequence[StartStep]) -> int:
    """Return the number of first steps that are equal in every episode."""
    return next((k for k, step in enumerate(start) if step.fewest != step.most), len(start))
