"""Settings of a grid world: makes a frozen, validated `WorldSetup` from the arguments of the constructor.

Errors name the argument, its value and the expected values. Nothing here depends on PettingZoo or on the world.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from multiverse.core.errors import InvalidRequest
from multiverse.envs.arguments import at_least, between, flag

Color = tuple[int, int, int]

GROUND, OBSERVER = "ground", "observer"
TYPES = {"ground": GROUND, "FOVAgent": GROUND, "observer": OBSERVER, "air": OBSERVER, "ObserverAgent": OBSERVER}
"""Valid names for the `type` of an agent."""

DETECTION_PROBABILITIES = (1.0, 0.66, 0.33)
COLORS: tuple[Color, ...] = (
    (66, 133, 244),
    (234, 134, 43),
    (52, 168, 110),
    (160, 90, 200),
    (30, 160, 180),
    (200, 80, 130),
)
LOOKS = {"name", "color", "outline_width", "box_scale"}
AGENT_KEYS = {
    GROUND: LOOKS | {"type", "show_target_coords", "fov_size"},
    OBSERVER: LOOKS | {"type", "show_target_coords", "fov_base_size", "max_altitude", "target_detection_probs"},
}
TARGET_KEYS = LOOKS | {"movement_speed", "movement_range", "smooth_movement", "box_cells", "initial_position"}


@dataclass(frozen=True, slots=True)
class Look:
    """Appearance of a body."""

    color: Color
    outline_width: int  # pixels
    box_scale: float  # part of its cell that a body fills


@dataclass(frozen=True, slots=True)
class AgentSetup:
    """Settings of one agent. A ground agent has one level, an observer one for each altitude."""

    name: str
    kind: str  # GROUND or OBSERVER
    base_cells: int  # side of its view on level 1; every level above adds 2
    detection: tuple[float, ...]  # probability of seeing a target in view, by level
    shows_target: bool
    look: Look

    @property
    def flies(self) -> bool:
        return self.kind == OBSERVER

    @property
    def num_actions(self) -> int:
        """Right, up, left, down, stay; for an observer also higher, same altitude, lower."""
        return 8 if self.flies else 5

    @property
    def max_altitude(self) -> int:
        return len(self.detection)

    @property
    def view_cells(self) -> int:
        """Side of `obstacles_fov`, which is the view from the highest level."""
        return self.base_cells + 2 * (self.max_altitude - 1)


@dataclass(frozen=True, slots=True)
class TargetSetup:
    """The target that the agents look for."""

    name: str
    movement_speed: float  # probability of moving in a step
    movement_range: int  # cells in one move
    smooth_movement: bool  # keeps its heading until it is blocked
    view_cells: int  # side of its own view
    initial_position: tuple[int, int] | None  # None: anywhere
    look: Look


@dataclass(frozen=True, slots=True)
class WorldSetup:
    """Settings that are the same in all episodes."""

    size: int
    max_steps: int
    agents: tuple[AgentSetup, ...]
    target: TargetSetup | None
    num_obstacles: int
    intrinsic: bool
    lambda_fov: float


def world_setup(
    *,
    size: int,
    max_steps: int,
    agents: Sequence[Mapping[str, Any]] | None,
    target_config: Mapping[str, Any] | None,
    enable_obstacles: bool,
    num_obstacles: int,
    intrinsic: bool,
    lambda_fov: float,
    show_target_coords: bool,
    no_target: bool,
) -> WorldSetup:
    """Return the validated setup; raise `InvalidRequest`."""
    size = at_least("size", size, 2)
    obstacles = at_least("num_obstacles", num_obstacles, 0)
    shows, without = flag("show_target_coords", show_target_coords), flag("no_target", no_target)
    target = _target({} if target_config is None else target_config, size)
    team = _team(agents, shows)
    setup = WorldSetup(
        size=size,
        max_steps=at_least("max_steps", max_steps, 1),
        agents=team,
        target=None if without else target,
        num_obstacles=obstacles if flag("enable_obstacles", enable_obstacles) else 0,
        intrinsic=flag("intrinsic", intrinsic),
        lambda_fov=between("lambda_fov", lambda_fov, -0.5, 0.5),
    )
    _refuse_coordinates_without_target(setup)
    _refuse_too_few_cells(setup)
    return setup


def _refuse_coordinates_without_target(setup: WorldSetup) -> None:
    shown = [agent.name for agent in setup.agents if agent.shows_target]
    if setup.target is None and shown:
        raise InvalidRequest(
            f"no_target=True and show_target_coords=True (of {shown[0]!r}) cannot be used together: there are no "
            "coordinates to show"
        )


def _refuse_too_few_cells(setup: WorldSetup) -> None:
    bodies = len(setup.agents) + (setup.target is not None)
    cells = setup.size**2
    if bodies + setup.num_obstacles > cells:
        raise InvalidRequest(
            f"size={setup.size} has {cells} cells, too few for {setup.num_obstacles} obstacles, {len(setup.agents)} "
            f"agents{'' if setup.target is None else ' and the target'}: make it larger, or ask for fewer"
        )


# -- agents and the target -------------------------------------------------------------------------------------
def _team(agents: Any, shows_target: bool) -> tuple[AgentSetup, ...]:
    if agents is None:
        agents = [{"type": GROUND}, {"type": OBSERVER}]
    if not isinstance(agents, list | tuple) or not agents:
        raise InvalidRequest(
            f"agents={agents!r}: expected a list of dicts, one per agent, or None for one of each kind"
        )
    team: list[AgentSetup] = []
    for index, config in enumerate(agents):
        team.append(_agent(f"agents[{index}]", config, team, shows_target))
        if team[-1].name in {agent.name for agent in team[:-1]}:
            raise InvalidRequest(f"agents[{index}]['name']={team[-1].name!r}: agents need different names")
    return tuple(team)


def _agent(where: str, config: Any, before: Sequence[AgentSetup], shows_target: bool) -> AgentSetup:
    kind = _kind(where, config)
    _refuse_unknown(where, config, AGENT_KEYS[kind], f"the keys of an agent of type {kind!r}")
    base, detection = _ground_senses(where, config) if kind == GROUND else _observer_senses(where, config)
    return AgentSetup(
        name=_name(where, config, f"{kind}_{sum(agent.kind == kind for agent in before)}"),
        kind=kind,
        base_cells=base,
        detection=detection,
        shows_target=flag(f"{where}['show_target_coords']", config.get("show_target_coords", shows_target)),
        look=_look(where, config, COLORS[len(before) % len(COLORS)]),
    )


def _kind(where: str, config: Any) -> str:
    if not isinstance(config, Mapping):
        raise InvalidRequest(f"{where}={config!r}: expected a dict, such as {{'type': 'ground', 'fov_size': 5}}")
    given = config.get("type")
    if given is None:
        return OBSERVER if set(config) & (AGENT_KEYS[OBSERVER] - AGENT_KEYS[GROUND]) else GROUND
    if not isinstance(given, str) or given not in TYPES:
        raise InvalidRequest(f"{where}['type']={given!r}: expected one of {', '.join(map(repr, TYPES))}")
    return TYPES[given]


def _ground_senses(where: str, config: Mapping[str, Any]) -> tuple[int, tuple[float, ...]]:
    return _odd(f"{where}['fov_size']", config.get("fov_size", 5)), (1.0,)


def _observer_senses(where: str, config: Mapping[str, Any]) -> tuple[int, tuple[float, ...]]:
    base = _odd(f"{where}['fov_base_size']", config.get("fov_base_size", 3))
    levels = at_least(f"{where}['max_altitude']", config.get("max_altitude", 3), 1)
    if levels > 3:
        raise InvalidRequest(f"{where}['max_altitude']={levels}: expected 1, 2 or 3")
    key = f"{where}['target_detection_probs']"
    given = config.get("target_detection_probs", DETECTION_PROBABILITIES[:levels])
    if not isinstance(given, list | tuple) or len(given) != levels:
        raise InvalidRequest(f"{key}={given!r}: expected {levels} numbers, one for each level")
    return base, tuple(between(f"{key}[{i}]", each, 0.0, 1.0) for i, each in enumerate(given))


def _target(config: Any, size: int) -> TargetSetup:
    where = "target_config"
    if not isinstance(config, Mapping):
        raise InvalidRequest(f"{where}={config!r}: expected a dict, such as {{'movement_speed': 0.3}}, or None")
    _refuse_unknown(where, config, TARGET_KEYS, "the target's keys")
    return TargetSetup(
        name=_name(where, config, "target"),
        movement_speed=between(f"{where}['movement_speed']", config.get("movement_speed", 0.3), 0.0, 1.0),
        movement_range=at_least(f"{where}['movement_range']", config.get("movement_range", 1), 1),
        smooth_movement=flag(f"{where}['smooth_movement']", config.get("smooth_movement", False)),
        view_cells=_odd(f"{where}['box_cells']", config.get("box_cells", 3)),
        initial_position=_position(f"{where}['initial_position']", config.get("initial_position"), size),
        look=_look(where, config, (219, 68, 55)),
    )


def _look(where: str, config: Mapping[str, Any], color: Color) -> Look:
    return Look(
        color=_color(f"{where}['color']", config.get("color", color)),
        outline_width=at_least(f"{where}['outline_width']", config.get("outline_width", 2), 1),
        box_scale=between(f"{where}['box_scale']", config.get("box_scale", 0.8), 0.1, 1.0),
    )


# -- single values ---------------------------------------------------------------------------------------------
def _refuse_unknown(where: str, config: Mapping[str, Any], known: set[str], whose: str) -> None:
    unknown = [key for key in config if key not in known]
    if unknown:
        raise InvalidRequest(f"{where} has the unknown key {unknown[0]!r}; {whose} are {', '.join(sorted(known))}")


def _name(where: str, config: Mapping[str, Any], default: str) -> str:
    name = config.get("name", default)
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"{where}['name']={name!r}: expected a name, such as {default!r}")
    return name


def _odd(name: str, value: Any) -> int:
    number = at_least(name, value, 1)
    if number % 2 == 0:
        raise InvalidRequest(f"{name}={number}: expected an odd number, such as {number + 1}")
    return number


def _color(name: str, value: Any) -> Color:
    if not isinstance(value, list | tuple) or len(value) != 3:
        raise InvalidRequest(f"{name}={value!r}: expected red, green and blue, such as (66, 133, 244)")
    red, green, blue = (at_least(name, part, 0) for part in value)
    if max(red, green, blue) > 255:
        raise InvalidRequest(f"{name}={value!r}: expected parts from 0 to 255")
    return red, green, blue


def _position(name: str, value: Any, size: int) -> tuple[int, int] | None:
    if value is None:
        return None
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise InvalidRequest(f"{name}={value!r}: expected (x, y), or None for anywhere")
    x, y = (at_least(name, part, 0) for part in value)
    if max(x, y) >= size:
        raise InvalidRequest(f"{name}={value!r}: outside the grid, whose cells are from 0 to {size - 1}")
    return x, y
