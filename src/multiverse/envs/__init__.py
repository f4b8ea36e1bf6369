"""Built-in environments, one file or folder each. They know the contracts, and nothing of the engine.

Importing this registers those of one agent with Gymnasium: `gymnasium.make("multiverse.envs:multiverse/Quest-v0")`.
`mv.make_vec` and the command line know them by `multiverse/Quest-v0` alone.
"""

from typing import Any

from gymnasium.envs.registration import register

_ENVS: dict[str, dict[str, Any]] = {
    "Quest-v0": {"observation": "ram"},
    "QuestScreen-v0": {"observation": "screen", "downscale": 4, "stack": 2},
}
for _name, _arguments in _ENVS.items():
    register(
        f"multiverse/{_name}",
        "multiverse.envs.game_boy:make_quest",
        kwargs=_arguments,
        disable_env_checker=True,  # `multiverse check-env` looks closer, and once
        order_enforce=False,
    )
