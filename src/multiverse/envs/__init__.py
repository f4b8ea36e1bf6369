"""Built-in envs. Those with a Gymnasium id are registered when this is imported; they are built when asked for."""

from __future__ import annotations

from typing import Any

import gymnasium

_PARTLY = "multiverse.envs.partly_observed:make"


def _add(env_id: str, entry_point: str, **kwargs: Any) -> None:
    if env_id not in gymnasium.registry:  # rl_zoo3 has some of these names too
        gymnasium.register(env_id, entry_point, kwargs=kwargs)


for _name, _version in (("CartPole", 1), ("Pendulum", 1), ("LunarLander", 3)):
    for _shown in ("P", "V"):
        _add(f"multiverse/{_name}-{_shown}-v{_version}", _PARTLY, env=f"{_name}-v{_version}", shown=_shown)
    _add(f"{_name}NoVel-v{_version}", _PARTLY, env=f"{_name}-v{_version}", shown="P", zeros=True)
_add("multiverse/TMaze-v0", "multiverse.envs.remembering:TMaze")
_add("multiverse/RepeatPrevious-v0", "multiverse.envs.remembering:RepeatPrevious")
