"""What a search of hyper-parameters tries: `learning_rate=1e-5..1e-2,batch_size=32|64|128,gamma`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from multiverse.algorithms import algorithm_class
from multiverse.cli.flags import Setting, all_settings
from multiverse.core.errors import InvalidRequest
from multiverse.core.names import did_you_mean
from multiverse.training.config.build import Located
from multiverse.training.config.train_config import TrainConfig, merged, own_settings, plain_config, train_config

TRIED = {
    "learning_rate": "1e-5..1e-2",
    "batch_size": "32|64|128|256|512",
    "gamma": "0.9|0.95|0.98|0.99|0.995|0.999",
    "gae_lambda": "0.8|0.9|0.95|0.98|1.0",
    "epochs": "1..20",
    "clip_range": "0.1|0.2|0.3|0.4",
    "entropy_coef": "1e-8..0.1",
    "value_coef": "0.2..1.0",
    "max_grad_norm": "0.3|0.5|0.7|1.0|2.0|5.0|10.0",
    "target_kl": "none|0.01|0.03|0.1",
    "log_std_init": "-3.0..0.5",
    "hidden_sizes": "64 64|128 128|256 256|400 300",
    "num_envs": "1|2|4|8|16|32",
    "memory_size": "32|64|128|256",
    "chunk_length": "8|16|32|64",
    "tau": "0.001..0.1",
    "updates_per_step": "0.125|0.25|0.5|1.0|2.0",
    "learning_starts": "100|1000|5000|10000",
    "buffer_size": "10000|100000|1000000",
    "action_noise": "0.05..0.5",
    "target_update_interval": "1|10|100|1000|10000",
    "exploration_fraction": "0.05..0.5",
    "exploration_final_eps": "0.01..0.2",
}
"""Of a setting that is named without a range; true or false, and words of a list, need none."""
STEPS_PER_ENV = {True: "32|64|128|256|512|1024|2048", False: "1|2|4|8|16"}
"""Whether it learns from rollouts of its own policy, or from replay."""
WIDE = 10
"""From here on a range that goes up to so many times its lower end is searched by the logarithm."""


@dataclass(frozen=True)
class Range:
    """Numbers from one to another, both included."""

    low: float
    high: float
    whole: bool

    @property
    def log(self) -> bool:
        return self.low > 0 and self.high >= WIDE * self.low

    def rounded(self, value: float) -> float:
        """To three digits, which is what is tried and told."""
        return int(value) if self.whole else min(max(float(f"{value:.3g}"), self.low), self.high)

    def holds(self, value: Any) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high

    def distribution(self) -> Any:
        """Return the same range as optuna has it."""
        from optuna.distributions import FloatDistribution, IntDistribution

        if self.whole:
            return IntDistribution(int(self.low), int(self.high), log=self.log)
        return FloatDistribution(self.low, self.high, log=self.log)

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}{', by the logarithm' if self.log else ''}"


@dataclass(frozen=True)
class Choice:
    """Some values, each as it is typed."""

    words: tuple[str, ...]

    def distribution(self) -> Any:
        """Return the same choice as optuna has it."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self.words)

    def __str__(self) -> str:
        return ", ".join(self.words)


Dimension = Range | Choice


@dataclass(frozen=True)
class Space:
    """By setting, what is tried."""

    settings: Mapping[str, Setting]
    tried: Mapping[str, Dimension]

    def values(self, drawn: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a study has drawn, as a config has it: not all of it, if the search was killed meanwhile."""
        return {name: self._value(name, drawn[name]) for name in self.tried if name in drawn}

    def _value(self, name: str, drawn: Any) -> Any:
        match self.tried[name]:
            case Range() as numbers:
                return numbers.rounded(drawn)
            case Choice():
                setting = self.settings[name]
                if setting.kind is bool:
                    return drawn == "true"
                return setting.read(drawn.split() if get_origin(setting.kind) is tuple else drawn)

    def word(self, name: str, value: Any) -> str:
        """Which of the words of a choice means this; '' if none does."""
        words = getattr(self.tried[name], "words", ())
        return next((word for word in words if self._value(name, word) == value), "")

    def drawn_for(self, config: TrainConfig) -> dict[str, Any]:
        """The config's own values as a study would have drawn them; those that are not among what is tried are left
        out."""
        plain = plain_config(config)
        own = {**plain, **{key: one for part in plain.values() if isinstance(part, dict) for key, one in part.items()}}
        found: dict[str, Any] = {}
        for name, dimension in self.tried.items():
            if isinstance(dimension, Range):
                found |= {name: own[name]} if dimension.holds(own[name]) else {}
            elif word := self.word(name, own[name]):
                found[name] = word
        return found

    def drawn_for_all(self, config: TrainConfig) -> bool:
        """Whether all of the config's own values are among what is tried."""
        return self.drawn_for(config).keys() == self.tried.keys()

    def config(self, config: TrainConfig, values: Mapping[str, Any]) -> TrainConfig:
        """With these values."""
        kind = algorithm_class(config.algorithm)
        given = Located(values, {name: f"--search {name}" for name in values})
        return train_config(merged(plain_config(config), given, config.algorithm, own_settings(kind)), kind)

    def __str__(self) -> str:
        return "\n".join(f"  {name}: {dimension}" for name, dimension in self.tried.items())


def space_of(text: str, config: TrainConfig) -> Space:
    """What `--search` asks for, every value of it checked."""
    run, own = ({one.name: one for one in group} for group in all_settings(config.algorithm).values())
    known = {**own, "num_envs": run["num_envs"]}
    by_form = {flag[2:].replace("-", "_"): one for one in known.values() for flag in one.flags}
    tried: dict[str, Dimension] = {}
    for part in filter(None, (one.strip() for one in text.split(","))):
        named, equals, values = (one.strip() for one in part.partition("="))
        setting = by_form.get(named.lower().replace("-", "_"))
        if setting is None:
            if named in run:
                raise InvalidRequest(f"--search {named}: it does not change what an algorithm learns from, or how")
            hint = did_you_mean(named, [*known], by_form)
            raise InvalidRequest(f"--search {named}: {config.algorithm} has no such setting. {hint}")
        if setting.name in tried:
            raise InvalidRequest(f"--search {setting.name}: it is there twice")
        tried[setting.name] = _dimension(setting, values if equals else _usual(setting, config), part)
    if not tried:
        raise InvalidRequest("--search: which settings? learning_rate,batch_size or learning_rate=1e-5..1e-2, say")
    space = Space(known, tried)
    for name, dimension in tried.items():  # whatever no config takes is said now, and not by the trial that meets it
        for drawn in dimension.words if isinstance(dimension, Choice) else (dimension.low, dimension.high):
            space.config(config, {name: space._value(name, drawn)})
    return space


def _usual(setting: Setting, config: TrainConfig) -> str:
    """What is tried of a setting where nobody says."""
    if setting.name == "steps_per_env":
        return STEPS_PER_ENV["gae_lambda" in own_settings(algorithm_class(config.algorithm))]
    if setting.name in TRIED:
        return TRIED[setting.name]
    if setting.kind is bool:
        return "true|false"
    kinds = (setting.kind, *get_args(setting.kind))
    words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    if not words:
        raise InvalidRequest(f"--search {setting.name}: from where to where? {setting.name}=LOW..HIGH, or A|B|C")
    return "|".join([*words, *(["none"] if type(None) in kinds else [])])


def _dimension(setting: Setting, text: str, part: str) -> Dimension:
    if ".." in text:
        low, high = (_number(word, part) for word in text.split("..", 1))
        if not low < high:
            raise InvalidRequest(f"--search {part}: the first must be below the second")
        kinds = (setting.kind, *get_args(setting.kind))
        if not {int, float} & {*kinds}:
            raise InvalidRequest(f"--search {part}: {setting.name} is no number; A|B|C names those to try")
        return Range(low, high, whole=float not in kinds)
    words = tuple(word.strip() for word in text.split("|"))
    if len({*words}) < 2 or "" in words:
        raise InvalidRequest(f"--search {part}: at least two values, {setting.name}=A|B, or a range, LOW..HIGH")
    if setting.kind is bool and {*words} != {"true", "false"}:
        raise InvalidRequest(f"--search {part}: it is true or false, and both are tried")
    return Choice(words)


def _number(word: str, part: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise InvalidRequest(f"--search {part}: {word!r} is no number; a range is LOW..HIGH, 1e-5..1e-2 say") from None
