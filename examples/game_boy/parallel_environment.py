"""One Game Boy environment with the document's names. In multiverse this is `GameBoyEnv`."""

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
    """Return the environment for `mv.train` and its arguments: the game of a cartridge or, without one, the quest."""
    if rom_path is None:
        if game is not None:
            raise mv.errors.InvalidRequest(
                f"game={game!r} describes the RAM of a cartridge, but no cartridge was given: set TRAIN_ROM"
            )
        return QUEST, {"penalties": False, **arguments}
    return ANY_GAME, {"rom": rom_path, "game": game or str(ZELDA), **arguments}


class ParallelEnvironment:
    """One Game Boy for parallel training.

    `step()` takes the action of `policy` (the result of `mv.load`). Without a policy, actions are random, and a message
    is printed once. `rom_path=None` selects the built-in quest; `game` is a game file, by default the document's game.
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
        self._env_arguments = env_of(rom_path, game, observation=observation, episode_length=episode_length)
        self._env: gym.Env[Any, Any] | None = None
        self._random_actions_reported = False
        self._episode = -1
        self._reward, self._length, self._over = 0.0, 0, True

    def initialize(self) -> None:
        """Create the PyBoy instance."""
        if self._env is None:
            name, arguments = self._env_arguments
            self._env = gym.make(f"multiverse.envs:{QUEST}", **arguments) if name == QUEST else GameBoyEnv(**arguments)
            self._env.action_space.seed(self.env_id)

    def reset_episode(self) -> Any:
        """Start an episode and return its first observation. Each environment has its own seeds."""
        env = self._initialized()
        seed = self.env_id if self._episode < 0 else None
        self._observation, _ = env.reset(seed=seed)
        self._episode += 1
        self._reward, self._length, self._over = 0.0, 0, False
        return self._observation

    def step(self, action: int | None = None) -> tuple[Any, float, bool, dict[str, Any]]:
        """Take one step; return (observation, reward, whether the episode is over, info)."""
        env = self._initialized()
        if self._over:
            self.reset_episode()
        if action is None:
            action = self._choose_action(env)
        self._observation, reward, terminated, truncated, info = env.step(action)
        self._reward, self._length, self._over = self._reward + float(reward), self._length + 1, terminated or truncated
        return self._observation, float(reward), self._over, info

    def get_episode_stats(self) -> dict[str, Any]:
        """Return statistics of the current episode, or of the one that has just ended."""
        return {
            "env_id": self.env_id,
            "episode": self._episode + 1,
            "reward": self._reward,
            "length": self._length,
            "done": self._over,
        }

    def close(self) -> None:
        """Close the environment. Calling this method again has no effect."""
        env, self._env = self._env, None
        if env is not None:
            env.close()

    def _initialized(self) -> gym.Env[Any, Any]:
        if self._env is None:
            raise mv.errors.InvalidRequest(f"environment {self.env_id} has no Game Boy: call initialize() first")
        return self._env

    def _choose_action(self, env: gym.Env[Any, Any]) -> Any:
        if self.policy is not None:
            return self.policy.act(self._observation)
        if not self._random_actions_reported:
            self._random_actions_reported = True
            print(f"Environment {self.env_id}: no policy was given, actions are random", flush=True)
        return env.action_space.sample()
