"""`multiverse tune ENV --search …`: search hyperparameters, with trials that are ordinary runs.

The settings to search are written as `learning_rate=1e-5..1e-2,batch_size=32|64|128,gamma`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from multiverse.algorithms import algorithm_class
from multiverse.cli.commands import train
from multiverse.cli.commands.plot import write
from multiverse.cli.flags import Setting, all_settings, flag_words, value_words
from multiverse.cli.main import print_wrapped, require, require_positive
from multiverse.cli.options import spelled
from multiverse.cli.output import print_json
from multiverse.core.errors import InvalidRequest, MultiverseError, PreflightError
from multiverse.core.wording import did_you_mean, format_return, pluralize
from multiverse.training.config.build import Located
from multiverse.training.config.resolve import merged, own_settings, plain_config, train_config
from multiverse.training.config.train_config import TrainConfig
from multiverse.training.runs.run_directory import safe_name

DEFAULT_VALUES = {
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
"""Values of settings that are named without any; booleans and settings with a fixed set of words need none."""
STEPS_PER_ENV = {True: "32|64|128|256|512|1024|2048", False: "1|2|4|8|16"}
"""Values of the rollout length for on-policy (True) and off-policy algorithms."""
WIDE = 10
"""Ratio of the ends of a range from which the range is searched on a logarithmic scale."""


@dataclass(frozen=True)
class Range:
    """Range of numbers, both ends included."""

    low: float
    high: float
    whole: bool

    @property
    def log(self) -> bool:
        return self.low > 0 and self.high >= WIDE * self.low

    def rounded(self, value: float) -> float:
        """Round to three digits, as values are used and displayed."""
        return int(value) if self.whole else min(max(float(f"{value:.3g}"), self.low), self.high)

    def holds(self, value: Any) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high

    def distribution(self) -> Any:
        """Return the range as an optuna distribution."""
        from optuna.distributions import FloatDistribution, IntDistribution

        if self.whole:
            return IntDistribution(int(self.low), int(self.high), log=self.log)
        return FloatDistribution(self.low, self.high, log=self.log)

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}{' (logarithmic scale)' if self.log else ''}"


@dataclass(frozen=True)
class Choice:
    """Several values, as they are typed."""

    words: tuple[str, ...]

    def distribution(self) -> Any:
        """Return the choice as an optuna distribution."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self.words)

    def __str__(self) -> str:
        return ", ".join(self.words)


Dimension = Range | Choice


@dataclass(frozen=True)
class Space:
    """The dimensions of a search, by the names of their settings."""

    settings: Mapping[str, Setting]
    dimensions: Mapping[str, Dimension]

    def values(self, drawn: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values that a study has drawn, as a config has them; some are missing if the search was killed
        while it drew them."""
        return {name: self._value(name, drawn[name]) for name in self.dimensions if name in drawn}

    def _value(self, name: str, drawn: Any) -> Any:
        match self.dimensions[name]:
            case Range() as numbers:
                return numbers.rounded(drawn)
            case Choice():
                setting = self.settings[name]
                if setting.kind is bool:
                    return drawn == "true"
                return setting.read(drawn.split() if get_origin(setting.kind) is tuple else drawn)

    def word(self, name: str, value: Any) -> str:
        """Return the word of a choice that stands for this value; '' if there is none."""
        words = getattr(self.dimensions[name], "words", ())
        return next((word for word in words if self._value(name, word) == value), "")

    def drawn_for(self, config: TrainConfig) -> dict[str, Any]:
        """Return the config's own values as a study would draw them, without those outside the dimensions."""
        settings = plain_config(config)
        for section in [value for value in settings.values() if isinstance(value, dict)]:
            settings = {**settings, **section}
        drawn: dict[str, Any] = {}
        for name, dimension in self.dimensions.items():
            if isinstance(dimension, Range):
                drawn |= {name: settings[name]} if dimension.holds(settings[name]) else {}
            elif word := self.word(name, settings[name]):
                drawn[name] = word
        return drawn

    def contains(self, config: TrainConfig) -> bool:
        """Return whether all of the config's own values are in the dimensions."""
        return self.drawn_for(config).keys() == self.dimensions.keys()

    def config(self, config: TrainConfig, values: Mapping[str, Any]) -> TrainConfig:
        """Return the config with these values."""
        kind = algorithm_class(config.algorithm)
        given = Located(values, {name: f"--search {name}" for name in values})
        return train_config(merged(plain_config(config), given, config.algorithm, own_settings(kind)), kind)

    def __str__(self) -> str:
        return "\n".join(f"  {name}: {dimension}" for name, dimension in self.dimensions.items())


def space_of(text: str, config: TrainConfig) -> Space:
    """Parse the value of `--search`, and check every value in it."""
    run, own = ({setting.name: setting for setting in group} for group in all_settings(config.algorithm).values())
    known = {**own, "num_envs": run["num_envs"]}
    by_spelling = {flag[2:].replace("-", "_"): setting for setting in known.values() for flag in setting.flags}
    dimensions: dict[str, Dimension] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, equals, values = map(str.strip, part.partition("="))
        setting = by_spelling.get(name.lower().replace("-", "_"))
        if setting is None:
            if name in run:
                raise InvalidRequest(
                    f"--search {name}: only settings of {config.algorithm} and num_envs can be searched"
                )
            hint = did_you_mean(name, [*known], by_spelling)
            raise InvalidRequest(f"--search {name}: {config.algorithm} has no such setting. {hint}")
        if setting.name in dimensions:
            raise InvalidRequest(f"--search {setting.name}: the setting is named twice")
        dimensions[setting.name] = _dimension(setting, values if equals else _default_values(setting, config), part)
    if not dimensions:
        raise InvalidRequest("--search needs settings, such as learning_rate,batch_size or learning_rate=1e-5..1e-2")
    space = Space(known, dimensions)
    for name, dimension in dimensions.items():  # refuse invalid values here, not in the trial that draws them
        for drawn in dimension.words if isinstance(dimension, Choice) else (dimension.low, dimension.high):
            space.config(config, {name: space._value(name, drawn)})
    return space


def _default_values(setting: Setting, config: TrainConfig) -> str:
    """Return the values to search for a setting that is named without any."""
    if setting.name == "steps_per_env":
        return STEPS_PER_ENV["gae_lambda" in own_settings(algorithm_class(config.algorithm))]
    if setting.name in DEFAULT_VALUES:
        return DEFAULT_VALUES[setting.name]
    if setting.kind is bool:
        return "true|false"
    kinds = (setting.kind, *get_args(setting.kind))
    words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    if not words:
        raise InvalidRequest(f"--search {setting.name} has no default values: pass {setting.name}=LOW..HIGH or =A|B|C")
    return "|".join([*words, *(["none"] if type(None) in kinds else [])])


def _dimension(setting: Setting, text: str, part: str) -> Dimension:
    if ".." in text:
        low, high = (_number(word, part) for word in text.split("..", 1))
        if not low < high:
            raise InvalidRequest(f"--search {part}: the start of the range must be below its end")
        kinds = (setting.kind, *get_args(setting.kind))
        if not {int, float} & {*kinds}:
            raise InvalidRequest(f"--search {part}: {setting.name} is not a number; pass its values as A|B|C")
        return Range(low, high, whole=float not in kinds)
    words = tuple(word.strip() for word in text.split("|"))
    if len({*words}) < 2 or "" in words:
        raise InvalidRequest(f"--search {part}: expected at least two values (A|B) or a range (LOW..HIGH)")
    if setting.kind is bool and {*words} != {"true", "false"}:
        raise InvalidRequest(f"--search {part}: {setting.name} is true or false; pass {setting.name}=true|false")
    return Choice(words)


def _number(word: str, part: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise InvalidRequest(
            f"--search {part}: {word!r} is not a number; expected a range LOW..HIGH, such as 1e-5..1e-2"
        ) from None


# -- the command ----------------------------------------------------------------------------------------------
DESCRIPTION = """\
Searches hyperparameters with optuna (extra `search`). Every trial is an
ordinary run; trials that fall behind the others are pruned. The same command
resumes an interrupted search, or adds trials with a larger --trials. All
flags of `multiverse train` apply, such as the budget of each trial. The
search prints a command with the best settings, and writes all trials to
search.json and a figure (extra `plot`).

examples:
  multiverse tune CartPole-v1 --search learning_rate,batch_size
  multiverse tune CartPole-v1 --search 'lr=1e-4..1e-2,epochs=4|10|20' \\
      --trials 50 --env-steps 20000
  multiverse tune Pendulum-v1 --algorithm sac --search lr,tau --pruner halving"""

OWN = (
    Setting(
        "search",
        str,
        "",
        "Settings to search, separated by commas: NAME (default values), NAME=LOW..HIGH (on a logarithmic scale if "
        "HIGH is at least 10 times LOW), or NAME=A|B|C.",
    ),
    Setting("trials", int, 20, "Number of trials, including those of earlier commands."),
    Setting(
        "pruner",
        str,
        "median",
        "Which trials end early, judged by evaluations after every fifth of the budget. `median`: trials below the "
        "median of the others, from two fifths on; `halving`: all but the best third, repeatedly; `none`.",
    ),
    Setting("run_dir", str, "", "Directory of the search. Default: searches/<env>-<algorithm>."),
    Setting("json", bool, None, "Also print the content of search.json."),
)
COMMAND = (*OWN, *(one for one in train.COMMAND if one.name in ("config", "trust", "preset", "no_preset", "plan")))


def requested(arguments: Sequence[str]) -> bool:
    return any(spelled(word).partition("=")[0] == "--search" for word in arguments)


def run(arguments: Sequence[str]) -> int:
    options = train.train_options(arguments, COMMAND, "tune", DESCRIPTION)
    require("search", "optuna", purpose="--search")
    from multiverse.cli.search_study import PRUNERS, Search

    command = options.command
    require_positive(trials=command["trials"])
    if command["pruner"] not in PRUNERS:
        raise InvalidRequest(f"--pruner {command['pruner']}: expected one of {', '.join(PRUNERS)}")
    if sys.platform == "win32":
        raise PreflightError("--search is not supported on Windows: it runs every trial in a separate process")
    config = train.config_from(options)
    train.refuse_unknown(config)
    space = space_of(command["search"], config)
    places = {name: f"--search {name}" for name in space.dimensions}
    train.refuse_beside(command["config"], Located(space.dimensions, places))
    path = Path(command["run_dir"] or Path("searches") / safe_name(f"{config.env}-{config.algorithm}"))
    search = Search(path, config, space, command["search"], command["pruner"])
    if done := [trial for trial in search.trials if trial.state != "running"]:
        _print(f"Resuming {path}: {len(done)} of {pluralize(command['trials'], 'trial')} done.")
    else:
        _print(f"Searching with {pluralize(command['trials'], 'trial')} in {path}:\n{space}")
    best = None if search.best is None else search.best.returned

    def print_trial(trial: Any) -> None:
        nonlocal best
        _print(f"trial {trial.number} ({_listed(trial.settings)}): {_outcome(trial, best)}")
        if trial.state == "complete":
            best = trial.returned if best is None else max(best, trial.returned)

    try:
        search.run(command["trials"], print_trial)
    except (KeyboardInterrupt, SystemExit):
        _print(f"Interrupted. The same command resumes the search. Results so far: {path}")
        raise
    search.write()
    _print_result(search, space, options)
    if command["json"]:
        print_json(search.results())
    return 0


def _print(line: str) -> None:
    print_wrapped(line, sys.stderr)


def _listed(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {' '.join(value_words(value))}" for name, value in settings.items())


def _outcome(trial: Any, best: float | None) -> str:
    from multiverse.cli.search_study import STAGES

    if trial.state == "failed":
        return f"failed: {trial.why}"
    result = f"return {format_return(trial.returned)}"
    if trial.state == "complete":
        return result + (" (best so far)" if best is None or trial.returned > best else "")
    return f"{result}, pruned at {100 * trial.stage // STAGES} % of its budget"


def _print_result(search: Any, space: Any, options: train.TrainOptions) -> None:
    trials, best = search.trials, search.best
    if best is None:
        why = next((trial.why for trial in trials if trial.why), "all were pruned")
        raise MultiverseError(f"no trial finished: {why}. The search is in {search.path}")
    try:
        require("plot", "matplotlib", purpose="the figure of a search")
    except PreflightError as error:
        _print(str(error))
    else:
        from multiverse.cli.figures import drawn, search_figure

        write(search.path / "search.png", drawn(search_figure(trials, space), "png"), sys.stderr)
    count = {state: sum(trial.state == state for trial in trials) for state in ("pruned", "failed")}
    others = "".join(f", {number} {state}" for state, number in count.items() if number)
    result = f"return {format_return(best.returned)} with {_listed(best.settings)}"
    print_wrapped(f"Best of {pluralize(len(trials), 'trial')}{others}: {result}.")
    initial = trials[0]
    if initial.number != best.number and initial.returned is not None and space.contains(search.config):
        print_wrapped(f"Without the search: return {format_return(initial.returned)} with {_listed(initial.settings)}.")
    print_wrapped("The return of the best of many trials is too optimistic. To measure its settings on new seeds:")
    print(f"  {command_of(options, best.settings)}")


def command_of(options: train.TrainOptions, settings: Mapping[str, Any]) -> str:
    """Return the command that trains with these settings and the other flags, for five seeds."""
    words = ["multiverse", "train", *([options.env] if options.env else [])]
    kept = {name: value for name, value in options.command.items() if value and not _is_own(name)}
    for name, value in {**kept, **options.settings, **settings}.items():
        words += flag_words(name, value)
    return shlex.join([*words, "--seeds", "5"])


def _is_own(name: str) -> bool:
    return any(one.name == name for one in OWN)
