"""Today this is `GameBoyEnv`: here one environment by the document's names."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import gymnasium as gym

import multiverse as mv
from multiverse.envs.game_boy import GameBoyEnv

HERE = Path(__file__).parent
ZELDA = HERE / "zelda.yaml"
QUEST, ANY_GAME = "multiverse/Quest-v0", "multiverse.envs.game_boy:GameBoyEnv"


def env_of(rom_path: str | None, game: str | None = None, **arguments: Any) -> tuple[str, dict[str, Any]]:
    """(what `mv.train` takes for an env, its arguments): of a cartridge or, where there is none, of the quest."""
    if rom_path is None:
        if game is not None:
            raise mv.errors.InvalidRequest(
                f"game={game!r} says what a cartridge's RAM means: give the cartridge too (TRAIN_ROM)"
            )
        return QUEST, {"penalties": False, **arguments}
    return ANY_GAME, {"rom": rom_path, "game": game or str(ZELDA), **arguments}


class ParallelEnvironment:
    """One Game Boy for parallel training.

    `step()` does what `policy` says (what `mv.load` gives) and, without one, what chance says, of which it tells once.
    `rom_path=None` is the built-in quest; `game` a game file, by default the document's own game.
    """

    def __init__(
        self,
        env_id: int,
        rom_path: str | None,
        episode_length: int,
        *,
        game: str | None = None,
        observation: str = "ram",
        policy: Any = None,
    ) -> None:
        self.env_id, self.policy = env_id, policy
        self._how = env_of(rom_path, game, observation=observation, episode_length=episode_length)
        self._env: gym.Env[Any, Any] | None = None
        self._told_of_chance = False
        self._episode = -1
        self._reward, self._length, self._over = 0.0, 0, True

    def initialize(self) -> None:
        """Create the PyBoy instance."""
        if self._env is None:
            name, arguments = self._how
            self._env = gym.make(f"multiverse.envs:{QUEST}", **arguments) if name == QUEST else GameBoyEnv(**arguments)
            self._env.action_space.seed(self.env_id)

    def reset_episode(self) -> Any:
        """Begin an episode, each environment with seeds of its own; returns the first observation."""
        env = self._started()
        seed = self.env_id if self._episode < 0 else None
        self._observation, _ = env.reset(seed=seed)
        self._episode += 1
        self._reward, self._length, self._over = 0.0, 0, False
        return self._observation

    def step(self, action: int | None = None) -> tuple[Any, float, bool, dict[str, Any]]:
        """One step: (observation, reward, whether the episode is over, info)."""
        env = self._started()
        if self._over:
            self.reset_episode()
        if action is None:
            action = self._chosen(env)
        self._observation, reward, terminated, truncated, info = env.step(action)
        self._reward, self._length, self._over = self._reward + float(reward), self._length + 1, terminated or truncated
        return self._observation, float(reward), self._over, info

    def get_episode_stats(self) -> dict[str, Any]:
        """Of the episode under way, or the one that has just ended."""
        return {
            "env_id": self.env_id,
            "episode": self._episode + 1,
            "reward": self._reward,
            "length": self._length,
            "done": self._over,
        }

    def close(self) -> None:
        """Clean up; twice does no harm."""
        env, self._env = self._env, None
        if env is not None:
            env.close()

    def _started(self) -> gym.Env[Any, Any]:
        if self._env is None:
            raise mv.errors.InvalidRequest(
                f"environment {self.env_id} has no Game Boy yet, or none any more: initialize() first"
            )
        return self._env

    def _chosen(self, env: gym.Env[Any, Any]) -> Any:
        if self.policy is not None:
            return self.policy.act(self._observation)
        if not self._told_of_chance:
            self._told_of_chance = True
            print(f"Environment {self.env_id}: no policy was given, actions are random", flush=True)
        return env.action_space.sample()
