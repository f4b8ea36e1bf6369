"""Built-in envs. Importing this registers those with a Gymnasium id; making one imports its module."""

from __future__ import annotations

from typing import Any

import gymnasium

_PARTLY = "multiverse.envs.partly_observed:make"

WITH_TASKS = {
    "PointRobot-v0": "multiverse.envs.meta.points:PointRobot",
    "PointRobotSparse-v0": "multiverse.envs.meta.points:PointRobotSparse",
    "Wind-v0": "multiverse.envs.meta.points:Wind",
    "HalfCheetahVel-v0": "multiverse.envs.meta.locomotion:HalfCheetahVel",
    "HalfCheetahDir-v0": "multiverse.envs.meta.locomotion:HalfCheetahDir",
    "AntDir-v0": "multiverse.envs.meta.locomotion:AntDir",
}
"""Envs for meta-RL. Their ids are these common names after `multiverse/`."""


def _add(env_id: str, entry_point: str, unwrapped: bool = False, limit: int | None = None, **kwargs: Any) -> None:
    """Register an env. `unwrapped`: without Gymnasium's wrappers, which would hide that it can save its state."""
    if env_id not in gymnasium.registry:  # rl_zoo3 has some of these names too
        flags = {"order_enforce": False, "disable_env_checker": True} if unwrapped else {}
        gymnasium.register(env_id, entry_point, kwargs=kwargs, max_episode_steps=limit, **flags)  # type: ignore[arg-type]


for _name, _version in (("CartPole", 1), ("Pendulum", 1), ("LunarLander", 3)):
    _limit: dict[str, Any] = (
        {"limit": 200, "max_episode_steps": -1} if _name == "CartPole" else {}
    )  # as in the literature
    for _shown in ("P", "V"):
        _add(f"multiverse/{_name}-{_shown}-v{_version}", _PARTLY, env=f"{_name}-v{_version}", shown=_shown, **_limit)
    _add(f"{_name}NoVel-v{_version}", _PARTLY, env=f"{_name}-v{_version}", shown="P", zeros=True)
_add("multiverse/TMaze-v0", "multiverse.envs.partly_observed:TMaze")
_add("multiverse/RepeatPrevious-v0", "multiverse.envs.partly_observed:RepeatPrevious")
for _name, _entry_point in WITH_TASKS.items():
    _add(f"multiverse/{_name}", _entry_point, unwrapped=True)
_QUEST = "multiverse.envs.game_boy:make_quest"
_add("multiverse/Quest-v0", _QUEST, unwrapped=True, observation="ram")
_add("multiverse/QuestScreen-v0", _QUEST, unwrapped=True, observation="screen", downscale=4, stack=2)
