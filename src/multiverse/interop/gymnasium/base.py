"""What Gymnasium's two vector envs have in common, over our engine: how they start, and what they show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
from gymnasium import Env, Space
from gymnasium.vector.utils import batch_differing_spaces

from multiverse.contracts.errors import EnvFailed, SpacesDiffer
from multiverse.contracts.plan import Autoreset, ExecutorName
from multiverse.executors.worker_loop import alike
from multiverse.interop.drop_in import DropIn
from multiverse.interop.engine import Engine
from multiverse.interop.env_side import AsGivenRecipe
from multiverse.interop.profile import given_back, start
from multiverse.vector.single import VectorEnv

EnvFunction = Callable[[], Env[Any, Any]]


class GymnasiumDropIn(DropIn, gymnasium.vector.VectorEnv[Any, Any, Any]):
    """A vector env of Gymnasium's."""

    engine: Engine
    num_envs: int
    copy: bool
    observation_mode: Any

    def _started(
        self, env_fns: Sequence[EnvFunction], executor: ExecutorName, autoreset: Autoreset, **how: Any
    ) -> Engine:
        try:
            return start(
                env_fns,
                executor,
                autoreset,
                kind=Engine,
                copy=self.copy,
                recipe=AsGivenRecipe,
                bounds_may_differ=self.observation_mode != "same",
                **how,
            )
        except SpacesDiffer as error:
            raise RuntimeError(self._what_differs(error)) from error
        except EnvFailed as error:
            raised = given_back(error)
            raise raised from (None if raised is error else error)

    def _take_over(self, engine: Engine) -> None:
        """Show what the original shows of the envs that the engine runs."""
        self.engine, self.num_envs = engine, engine.num_envs
        self.metadata, self.render_mode = engine.metadata, engine.render_mode
        self.single_action_space, self.action_space = engine.single_action_space, engine.action_space
        if isinstance(self.observation_mode, tuple):
            self.observation_space, self.single_observation_space = self.observation_mode
            if not alike(self.single_observation_space, engine.single_observation_space):
                raise RuntimeError(self._observation_spaces_differ(engine.single_observation_space))
            return
        self.single_observation_space = engine.single_observation_space
        self.observation_space = engine.observation_space
        if self.observation_mode == "different":
            self.observation_space = batch_differing_spaces(list(engine.get_attr("observation_space")))

    def _what_differs(self, error: SpacesDiffer) -> str:
        """What the original says when the envs' spaces do not fit each other."""
        raise NotImplementedError

    def _observation_spaces_differ(self, space: Space[Any] | None) -> str:
        """What the original says when an env's observation space does not fit; the space, where it is known."""
        raise NotImplementedError

    np_random, np_random_seed = VectorEnv.np_random, VectorEnv.np_random_seed  # type: ignore[assignment]
