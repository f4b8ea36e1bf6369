"""What is being trained: envs, agent and collector, and the exact state of all three between two windows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from multiverse.agents.agent import Agent
from multiverse.contracts.errors import InvalidRequest
from multiverse.contracts.plan import Plan
from multiverse.contracts.policy import Leaves
from multiverse.contracts.reset_plan import DerivedSeeds
from multiverse.experience.collector import Collected, Collector
from multiverse.experience.episodes import RecentEpisodes
from multiverse.experience.features import choices_of
from multiverse.experience.replaying import bring_back
from multiverse.experience.window import Window, leaf_of, window_for
from multiverse.training.config import TrainConfig
from multiverse.vector_env import VectorEnv
from multiverse.vectorize import make_vec

log = logging.getLogger("multiverse")

MakeAgent = Callable[[Any, Any, int, int], Agent]
"""(observation space, action space, slots, seed) → an agent."""


class Session:
    """Envs under way, an agent, and the window between them. `close` it."""

    def __init__(self, config: TrainConfig, env: Any, make_agent: MakeAgent, plan: Plan | None = None) -> None:
        self._reset_plan = DerivedSeeds(config.seed)
        self.envs = _training_envs(config, env, self._reset_plan, plan)
        try:
            spaces = self.envs.single_observation_space, self.envs.single_action_space
            self.agent = make_agent(*spaces, config.num_envs, config.seed)
            self.window = self._new_window()
            self._collector = Collector(self.envs, self.window, self.agent.features, self._reset_plan)
            self.evaluation_env = _evaluation_env(config, env)
        except BaseException:
            self.envs.close()
            raise
        self._noise = np.random.default_rng((config.seed, 2))
        self.recent = RecentEpisodes()

    def _new_window(self) -> Window:
        agent, features = self.agent, self.agent.features
        masks = choices_of(self.envs.single_action_space) if features.mask is not None else 0  # type: ignore[arg-type]
        return window_for(
            self.envs.single_observation_space, agent.steps_per_env, self.envs.num_envs, agent.action, masks
        )

    def begin(self) -> None:
        """The first episode of every env."""
        observations, _ = self.envs.reset()
        self._collector.begin(observations)
        self._mark()

    def collect(self, should_stop: Callable[[], bool]) -> Collected | None:
        """Fill the window with the agent's policy; None if it was to stop before that. The state stays what it was."""
        policy = self.agent.policy()
        noise = policy.noise(self._noise, self.agent.steps_per_env, self.envs.num_envs)
        return self._collector.collect(policy, noise, should_stop)

    def learned(self, collected: Collected) -> None:
        """The window has been learned from: this is the state to come back to."""
        self.recent.add(collected.episodes)
        self._mark()

    def close(self) -> None:
        self.envs.close()
        self.evaluation_env.close()

    # -- its state -----------------------------------------------------------------------------------------------
    def _mark(self) -> None:
        """Remember where the envs and the noise are; what is under way later does not count until it is learned."""
        self._collector.actions.mark()
        self._marked_noise = self._noise.bit_generator.state
        self._marked_episodes = self.envs.episode_counts
        self._marked_rows: Leaves = {
            path: np.array(leaf_of(self._collector.observations, path), rows.dtype)
            for path, rows in self.window.last.items()
        }

    def state(self) -> dict[str, Any]:
        """As it was after the last update."""
        actions = self._collector.actions.state()
        return {
            "agent": self.agent.state(),
            "noise": self._marked_noise,
            "recent": self.recent.state(),
            "envs": {
                "episodes": self._marked_episodes,
                "actions": {str(i): known for i, known in enumerate(actions) if known is not None},
                "observations": {str(k): rows for k, rows in enumerate(self._marked_rows.values())},
            },
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from there: the same weights, the same noise, and every env in the middle of its episode."""
        self.agent.load(state["agent"])
        self._noise.bit_generator.state = state["noise"]
        self.recent.load(state["recent"])
        episodes, saved = np.asarray(state["envs"]["episodes"]).tolist(), state["envs"]["actions"]
        actions = [saved.get(str(i)) for i in range(self.envs.num_envs)]
        rows = dict(zip(self.window.last, state["envs"]["observations"].values()))
        observations, lost = bring_back(self.envs, episodes, actions, rows)
        for env_id, known in enumerate(actions):
            if known is not None and env_id not in lost:
                self._collector.actions.load(env_id, known)
        if lost:
            log.warning(
                "envs %s could not be brought back: playing their episodes again from their seeds led elsewhere. Those "
                "episodes end here, and this run is not exactly the one that was interrupted (`multiverse check-env` "
                "says why an env cannot be replayed)",
                lost,
            )
        self._collector.begin(observations)
        self._mark()


def _training_envs(config: TrainConfig, env: Any, reset_plan: DerivedSeeds, plan: Plan | None) -> VectorEnv:
    how: dict[str, Any] = {"plan": plan}
    if plan is None:
        how = {"executor": config.executor, "workers": config.workers, "start_method": config.start_method}
    envs = make_vec(
        env,
        config.num_envs,
        autoreset="same_step",
        copy=False,
        infos=False,
        env_kwargs=config.env_kwargs or None,
        reset_plan=reset_plan,
        on_failure=config.on_failure,
        reply_timeout_s=config.reply_timeout_s,
        **how,
    )
    if not isinstance(envs, VectorEnv):
        envs.close()
        raise InvalidRequest(
            f"{config.env} has several agents, and {config.agent} learns from one: `mv.flatten_agents(env)` makes one "
            "of them"
        )
    return envs


def _evaluation_env(config: TrainConfig, env: Any) -> VectorEnv:
    """One env in this process, whatever the training looks like."""
    return make_vec(env, 1, "serial", autoreset="disabled", infos=False, env_kwargs=config.env_kwargs or None)
