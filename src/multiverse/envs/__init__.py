"""Built-in environments, one file or folder each. They know the contracts, and nothing of the engine.

Importing this registers those of Gymnasium's kind, and no more: `gymnasium.make("multiverse/AntDir-v0")`. `make_vec`,
`check_env` and the command line do it by themselves.
"""

from gymnasium.envs.registration import EnvSpec, registry

NAMESPACE = "multiverse"

ENTRY_POINTS = {
    "PointRobot-v0": "multiverse.envs.meta.points:PointRobot",
    "PointRobotSparse-v0": "multiverse.envs.meta.points:PointRobotSparse",
    "Wind-v0": "multiverse.envs.meta.points:Wind",
    "HalfCheetahVel-v0": "multiverse.envs.meta.locomotion:HalfCheetahVel",
    "HalfCheetahDir-v0": "multiverse.envs.meta.locomotion:HalfCheetahDir",
    "AntDir-v0": "multiverse.envs.meta.locomotion:AntDir",
}
"""Name → what builds it, imported when it is built."""


def env_id(name: str) -> str:
    """The id of a built-in env, from its name with or without the namespace ("AntDir-v0")."""
    return name if name.startswith(f"{NAMESPACE}/") else f"{NAMESPACE}/{name}"


for _name, _entry_point in ENTRY_POINTS.items():
    # As they are: they count their own steps, and save themselves, which no wrapper around them may hide.
    registry[env_id(_name)] = EnvSpec(env_id(_name), _entry_point, order_enforce=False, disable_env_checker=True)
