"""The YAML file of a game: addresses in RAM, rewards, and starts and ends of episodes.

docs/game_boy.md describes every key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from multiverse.core.errors import InvalidConfig
from multiverse.core.plain_files import read_named
from multiverse.core.wording import did_you_mean, short_repr
from multiverse.envs.game_boy.emulator import BUTTONS

Values = dict[str, int | tuple[int, ...]]
"""Current values in RAM, by name."""

EVENTS = ("new", "changed", "increased", "decreased", "nearer")
TESTS = ("equals", "not_equals", "at_least", "at_most")
ALL_ACTIONS = ((), *((button,) for button in BUTTONS))
WAIT = "wait"
_MISSING = object()
LARGEST_BYTES = 2**18


@dataclass(frozen=True, slots=True)
class RamField:
    """A number in RAM, or several adjacent ones of the same kind."""

    name: str
    address: int
    bytes: int = 1  # of a number, the lowest first
    count: int = 1
    bit: int | None = None  # of one byte; the number is then 0 or 1
    max: int = 255  # its feature is value / max, at most 1
    values: int = 0  # above 0: its feature is a one-hot vector of this length
    feature: bool = True  # whether it is observed
    origin: str = ""  # a field: the feature is the distance from it, 0.5 for 0, and 0 or 1 from `max` on

    @property
    def size(self) -> int:
        """Number of features."""
        return self.count * max(1, self.values) if self.feature else 0

    def features_of(self, number: int) -> tuple[float, ...]:
        """Return the features of one of its numbers, or of its distance from `origin`."""
        if self.origin:
            return (min(1.0, max(0.0, 0.5 + 0.5 * number / self.max)),)
        if self.values == 0:
            return (min(1.0, number / self.max),)
        return tuple(float(number == k) for k in range(self.values))


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on a value in RAM."""

    of: str
    test: str
    value: int

    def holds(self, values: Values) -> bool:
        value = values[self.of]
        if self.test == "equals":
            return value == self.value
        if self.test == "not_equals":
            return value != self.value
        return value >= self.value if self.test == "at_least" else value <= self.value  # type: ignore[operator]


@dataclass(frozen=True, slots=True)
class RewardRule:
    """Reward of a step: `reward`, or `each` for every unit by which a number has changed."""

    of: tuple[str, ...] = ()  # empty: every step
    event: str | None = None
    condition: Condition | None = None
    reward: float = 0.0
    each: float | None = None
    once: bool = False  # per episode
    to: tuple[str, ...] = ()  # for `nearer`: the numbers that `of` approaches, in the same order …
    within: tuple[str, ...] = ()  # … in steps in which those and these do not change


class StartStep(NamedTuple):
    """A number of frames with these buttons pressed, drawn between `fewest` and `most`."""

    buttons: tuple[str, ...]
    fewest: int
    most: int


@dataclass(frozen=True)
class Game:
    """Content of a game file; the defaults fit any game."""

    ram: tuple[RamField, ...] = ()
    actions: tuple[tuple[str, ...], ...] = ALL_ACTIONS
    start: tuple[StartStep, ...] = (StartStep((), 0, 60),)
    seed: RamField | None = None
    rewards: tuple[RewardRule, ...] = ()
    end: tuple[Condition, ...] = ()
    success: Condition | None = None
    starts: Mapping[str, Path] = field(default_factory=dict)


def read_game(path: Path | str) -> Game:
    """Return the content of a game file; raise `InvalidConfig` with the invalid key."""
    where, top = Path(path), _read(Path(path))
    addresses = top.take("addresses", None)
    known = {} if addresses is None else _addresses(where.parent / _text(top.place("addresses"), addresses))
    ram = tuple(_ram_field(name, one, known) for name, one in top.sections("ram"))
    names = {one.name: one for one in ram}
    for one in ram:
        if one.origin:
            _name(f"{top.place('ram')}.{one.name}: from", one.origin, names)
    game = Game(
        ram,
        tuple(_buttons(top.place("actions"), one) for one in top.take_list("actions")) or ALL_ACTIONS,
        tuple(_start_step(one) for one in top.list_of_sections("start")) or Game.start,
        _seed_field(top, names),
        tuple(_reward_rule(one, names) for one in top.list_of_sections("rewards")),
        tuple(_condition(one, names) for one in top.list_of_sections("end")),
        next((_condition(one, names) for one in top.list_of_sections("success")), None),
        {name: where.parent / _text(place, one) for name, (place, one) in top.named("starts").items()},
    )
    top.end()
    return game


def _read(path: Path) -> _Section:
    try:
        content = yaml.safe_load(read_named(path, LARGEST_BYTES).decode())
    except OSError as error:
        raise InvalidConfig(str(path), error.strerror or str(error), "Expected a YAML file") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidConfig(str(path), "it is not valid YAML: " + " ".join(str(error).split())) from error
    except RecursionError:
        raise InvalidConfig(str(path), "it is nested too deeply", "Expected a few levels at most") from None
    return _Section(str(path), {} if content is None else content)


def _addresses(path: Path) -> dict[str, int]:
    """Return the addresses in another file: `ram: {name: address}`."""
    top = _read(path)
    by_name = {name: _number(place, value, 0, 0xFFFF) for name, (place, value) in top.named("ram").items()}
    top.end()
    return by_name


# -- parts -------------------------------------------------------------------------------------------------------
def _ram_field(name: str, section: _Section, addresses: Mapping[str, int]) -> RamField:
    address = section.number("address", addresses.get(name, _MISSING), most=0xFFFF)
    size = section.number("bytes", 1, least=1, most=4)
    count, bit = section.number("count", 1, least=1, most=0x2000), section.take("bit", None)
    if bit is not None:
        bit = _number(section.place("bit"), bit, 0, 7)
        if size * count > 1:
            raise InvalidConfig(section.place("bit"), "a bit belongs to one byte: leave bytes and count out")
    highest = 1 if bit is not None else 256**size - 1
    most = section.number("max", highest, least=1, most=256**size - 1)
    values, feature = section.number("values", 0, least=2, most=256), section.take("feature", True)
    if not isinstance(feature, bool):
        raise InvalidConfig(section.place("feature"), f"expected true or false, found {short_repr(feature)}")
    origin = section.take("from", "")
    section.end()
    if origin and (values or bit is not None):
        raise InvalidConfig(
            section.place("from"), "a field with `values` or `bit` has no distance: leave one of them out"
        )
    if address + size * count > 0x10000:
        raise InvalidConfig(section.where, f"it ends at {address + size * count:#x}, beyond the last address, 0xFFFF")
    return RamField(name, address, size, count, bit, most, values, feature, str(origin))


def _seed_field(top: _Section, names: Mapping[str, RamField]) -> RamField | None:
    name = top.take("seed", None)
    return None if name is None else names[_name(top.place("seed"), name, names)]


def _start_step(section: _Section) -> StartStep:
    wait, press = section.take(WAIT, None), section.take("press", None)
    if (wait is None) == (press is None):
        raise InvalidConfig(section.where, "expected exactly one of `wait: frames` and `press: buttons`")
    key = WAIT if press is None else "frames"
    frames = section.take("frames", 4) if press is not None else wait
    buttons = () if press is None else _buttons(section.place("press"), press)
    section.end()
    low, high = frames if isinstance(frames, list) and len(frames) == 2 else (frames, frames)
    least = _number(section.place(key), low, 0, 100_000)
    return StartStep(buttons, least, _number(section.place(key), high, least, 100_000))


def _reward_rule(section: _Section, names: Mapping[str, RamField]) -> RewardRule:
    of, to, within = (
        tuple(_name(section.place(key), one, names) for one in section.take_list(key)) for key in ("of", "to", "within")
    )
    event, once = section.take("when", None), section.take("once", False)
    test = _test(section)
    reward, each = section.take("reward", None), section.take("each", None)
    section.end()
    if event is not None and event not in EVENTS:
        raise InvalidConfig(section.place("when"), f"expected one of {', '.join(EVENTS)}, found {short_repr(event)}")
    if not isinstance(once, bool):
        raise InvalidConfig(section.place("once"), f"expected true or false, found {short_repr(once)}")
    if (reward is None) == (each is None):
        raise InvalidConfig(section.where, "expected exactly one of `reward` and, per unit of a change, `each`")
    if event is not None and test is not None:
        raise InvalidConfig(section.where, f"`when: {event}` and `{test[0]}` belong into two rules")
    if bool(of) != (event is not None or test is not None):
        conditions = f"`when: {'|'.join(EVENTS)}` or {', '.join(TESTS)}"
        problem = f"`of` needs {conditions}" if of else f"{conditions} needs `of`, a name in ram"
        raise InvalidConfig(section.where, problem)
    if len(of) > 1 and event not in ("new", "changed", "nearer"):
        raise InvalidConfig(section.place("of"), "several names can only be used with `when: new`, changed or nearer")
    if each is not None and event not in ("increased", "decreased", "nearer"):
        raise InvalidConfig(section.place("each"), "only for `when: increased`, decreased or nearer")
    if event == "nearer" and (each is None or len(to) != len(of)):
        raise InvalidConfig(section.where, "`when: nearer` needs `each`, and `to` with as many names as `of`")
    if event != "nearer" and to + within:
        raise InvalidConfig(section.where, "`to` and `within` are only for `when: nearer`")
    amount = _amount(section.place("reward" if each is None else "each"), reward if each is None else each)
    condition = None if test is None else Condition(of[0], test=test[0], value=test[1])
    return RewardRule(of, event, condition, amount, None if each is None else amount, once, to, within)


def _condition(section: _Section, names: Mapping[str, RamField]) -> Condition:
    of = _name(section.place("of"), section.take("of"), names)
    test = _test(section)
    section.end()
    if test is None:
        raise InvalidConfig(section.where, f"expected one of {', '.join(TESTS)}")
    return Condition(of, test=test[0], value=test[1])


def _test(section: _Section) -> tuple[str, int] | None:
    given = [(test, value) for test in TESTS if (value := section.take(test, None)) is not None]
    if len(given) > 1:
        raise InvalidConfig(
            section.where, f"{given[0][0]} and {given[1][0]} cannot be used together: expected one condition"
        )
    return None if not given else (given[0][0], _number(section.place(given[0][0]), given[0][1], 0, 2**32))


def _name(place: str, name: Any, names: Mapping[str, RamField]) -> str:
    if name not in names:
        raise InvalidConfig(place, f"there is no {short_repr(name)} in ram", did_you_mean(str(name), list(names)))
    if names[name].count > 1:
        raise InvalidConfig(place, f"{name} has {names[name].count} numbers: expected the name of a single number")
    return str(name)


def _buttons(place: str, text: Any) -> tuple[str, ...]:
    if text == WAIT:
        return ()
    pressed = tuple(str(text).split("+"))
    for button in pressed:
        if button not in BUTTONS:
            hint = f"Expected {WAIT}, {', '.join(BUTTONS)}, or several with +: up+a"
            raise InvalidConfig(place, f"there is no button {short_repr(button)}", hint)
    return pressed


def _number(place: str, value: Any, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidConfig(place, f"expected a whole number from {least} to {most}, found {short_repr(value)}")
    return value


def _amount(place: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < float("inf"):
        raise InvalidConfig(place, f"expected a number, found {short_repr(value)}")
    return float(value)


def _text(place: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidConfig(place, f"expected text, found {short_repr(value)}")
    return value


class _Section:
    """A mapping in the file whose keys are taken one by one; keys that are left at the end are errors."""

    def __init__(self, where: str, mapping: Any) -> None:
        if not isinstance(mapping, dict):
            raise InvalidConfig(where, f"expected keys and values (name: value), found {short_repr(mapping)}")
        self.where, self._left, self._known = where, dict(mapping), []

    _known: list[str]

    def place(self, key: str) -> str:
        return f"{self.where}: {key}"

    def take(self, key: str, default: Any = _MISSING) -> Any:
        self._known.append(key)
        value = self._left.pop(key, default)
        if value is _MISSING:
            raise InvalidConfig(self.where, f"{key} is missing")
        return value

    def number(self, key: str, default: Any = _MISSING, *, least: int = 0, most: int) -> int:
        given = key in self._left
        value = self.take(key, default)
        return _number(self.place(key), value, least, most) if given else value

    def take_list(self, key: str) -> list[Any]:
        """Return a list; a single value is a list of one."""
        value = self.take(key, [])
        return value if isinstance(value, list) else [value]

    def list_of_sections(self, key: str) -> list[_Section]:
        return [_Section(f"{self.place(key)}[{i}]", one) for i, one in enumerate(self.take_list(key))]

    def named(self, key: str) -> dict[str, tuple[str, Any]]:
        """Return name → (place, value)."""
        values = self.take(key, {})
        if not isinstance(values, dict):
            raise InvalidConfig(self.place(key), f"expected keys and values (name: value), found {short_repr(values)}")
        return {str(name): (f"{self.place(key)}.{name}", value) for name, value in values.items()}

    def sections(self, key: str) -> list[tuple[str, _Section]]:
        """Return named sections; a number stands for an address, an empty one for an address from another file."""

        def whole(one: Any) -> Any:
            return {"address": one} if isinstance(one, int) else one or {}

        return [(name, _Section(at, whole(one))) for name, (at, one) in self.named(key).items()]

    def end(self) -> None:
        if self._left:
            key = str(next(iter(self._left)))
            raise InvalidConfig(self.place(key), "there is no such key", did_you_mean(key, self._known))
