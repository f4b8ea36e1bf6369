"""Base classes of the built-in multi-agent envs: a team with fixed spaces, and pictures of its world.

Importing this without PettingZoo raises an error that says how to install it. Pictures are drawn with pygame on a
surface of their own, so that images need no window; pygame is imported for the first picture.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import logger, spaces
from gymnasium.utils import seeding

from multiverse.core.errors import InvalidActions, InvalidRequest

try:
    from pettingzoo import AECEnv, ParallelEnv  # type: ignore[import-untyped, unused-ignore]
except ImportError as error:
    raise ImportError(
        "this env is a PettingZoo env, and PettingZoo is not installed: pip install 'multiverse[pettingzoo]'"
    ) from error

__all__ = ["AECEnv", "ParallelEnv", "Pictures", "Team"]


class Team:
    """Agents with fixed spaces in one world, with one random generator, checked actions, `render` and `close`."""

    possible_agents: list[str]
    agents: list[str]
    observation_spaces: Mapping[str, Any]
    action_spaces: Mapping[str, spaces.Discrete]
    render_mode: str | None
    _rng: np.random.Generator | None = None
    _renderer: Pictures | None = None

    def observation_space(self, agent: str) -> Any:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Discrete:
        return self.action_spaces[agent]

    def _seeded(self, seed: int | None) -> np.random.Generator:
        """Return the generator of the next episode: a new one with a seed, otherwise the current one."""
        if seed is not None or self._rng is None:
            self._rng, _ = seeding.np_random(seed)
        return self._rng

    def _checked(self, agent: str, action: Any) -> int:
        """Return the action as a plain int; refuse an invalid one before the world changes."""
        try:
            number = operator.index(action)
        except TypeError:
            number = -1
        num_actions = int(self.action_spaces[agent].n)
        if not 0 <= number < num_actions:
            expected = f"expected a whole number from 0 to {num_actions - 1}"
            raise InvalidActions(f"action {action!r} for {agent!r}: {expected}")
        return number

    def _all_checked(self, actions: Mapping[str, Any]) -> list[int]:
        """Return the actions of a step of all agents; refuse invalid ones before the world changes."""
        if actions.keys() != set(self.agents):
            missing = [agent for agent in self.agents if agent not in actions]
            unknown = [agent for agent in actions if agent not in self.agents]
            raise InvalidActions(
                f"actions for {list(actions)}: the agents are {self.agents}; missing {missing}, unknown {unknown}"
            )
        return [self._checked(agent, actions[agent]) for agent in self.agents]

    # -- pictures ------------------------------------------------------------------------------------------------
    def _new_renderer(self) -> Pictures:
        raise NotImplementedError

    def _scene(self) -> Any:
        """Return the argument of the renderer's `_draw`."""
        raise NotImplementedError

    def render(self) -> np.ndarray[Any, np.dtype[np.uint8]] | None:
        """Return the world as an image [height, width, 3] (`rgb_array`), or show it in a window (`human`)."""
        if self.render_mode is None:
            logger.warn("render() has no effect without a render_mode: make the env with render_mode='rgb_array'")
            return None
        if self._rng is None:
            raise InvalidRequest("render() before the first reset(): call reset() first")
        if self._renderer is None:
            self._renderer = self._new_renderer()
        if self.render_mode != "human":
            return self._renderer.image(self._scene())
        self._renderer.show(self._scene())
        return None

    def close(self) -> None:
        """Close the window if there is one. The env can be reset and used again."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def _show(self) -> None:
        if self.render_mode == "human":
            self.render()


class Pictures:
    """A surface for images or a window. Subclasses draw on it."""

    def __init__(self, name: str, extras: str, size: tuple[int, int], frames_per_second: float) -> None:
        self._name, self._frames_per_second = name, frames_per_second
        self._pygame = _pygame(name, extras)
        self._surface = self._pygame.Surface(size)
        self._window: Any = None
        self._clock: Any = None

    def _draw(self, scene: Any) -> None:
        raise NotImplementedError

    def image(self, scene: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return an image [height, width, 3] that belongs to the caller."""
        self._draw(scene)
        pixels = self._pygame.surfarray.array3d(self._surface)  # [x, y, 3]
        return np.ascontiguousarray(pixels.transpose(1, 0, 2))

    def show(self, scene: Any) -> None:
        """Draw in a window, no faster than the frames per second."""
        self._draw(scene)
        if self._window is None:
            self._pygame.display.init()
            self._pygame.display.set_caption(self._name)
            self._window = self._pygame.display.set_mode(self._surface.get_size())
            self._clock = self._pygame.time.Clock()
        self._window.blit(self._surface, (0, 0))
        self._pygame.event.pump()
        self._pygame.display.flip()
        self._clock.tick(self._frames_per_second)

    def close(self) -> None:
        """Close the window, if there is one."""
        if self._window is not None:
            self._window = None
            self._pygame.display.quit()


def _pygame(name: str, extras: str) -> Any:
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # otherwise the import prints a line
    try:
        import pygame
    except ImportError as error:
        raise ImportError(
            f"drawing {name} needs pygame, which is not installed: pip install 'multiverse[{extras}]'"
        ) from error
    return pygame
