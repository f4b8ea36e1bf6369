"""`multiverse train ENV`: from what was typed, a file and a preset to a whole config; then the run, or several."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multiverse.algorithms import ALGORITHMS, DEFAULT_ALGORITHM, algorithm_class, known_name
from multiverse.cli.flags import Setting, all_settings, spelled, typed
from multiverse.cli.flags import parser as flags_parser
from multiverse.cli.flags import table as table
from multiverse.cli.main import require, require_positive
from multiverse.cli.results import results
from multiverse.core.errors import InvalidConfig, InvalidRequest
from multiverse.core.wording import in_words, nearest
from multiverse.training.config.build import Located, in_todays_names, place_of
from multiverse.training.config.files import read_config
from multiverse.training.config.rollout_files import RolloutSettings, counts_rollouts, rollout_settings
from multiverse.training.config.train_config import TrainConfig, config_for, merged, own_settings, presets, tried

if TYPE_CHECKING:
    from multiverse.training.progress import LinePrinter
    from multiverse.training.validation import StartOptions

DESCRIPTION = """\
  Trains an algorithm, and keeps the run in a directory of its own: settings,
  metrics, episodes, checkpoints and summary. Ctrl-C saves it; `multiverse
  resume` goes on exactly where it was. Flags go before --config, this before
  the preset of the env, this before the defaults; a budget (--env-steps,
  --episodes, --minutes) takes the place of those that it goes before.

examples:
    multiverse train CartPole-v1
    multiverse train Pendulum-v1 --minutes 5 --learning-rate 5e-4 --seeds 3
    multiverse train my_module:make_env --preset CartPole-v1 --num-envs 16
    multiverse train --config runs/CartPole-v1/ppo-0-…/config.yaml --seed 7"""


def run(arguments: Sequence[str]) -> int:
    options = train_options(arguments)
    from multiverse.training.progress import LinePrinter  # which, as all below, needs more than what shows help

    config = config_from(options)
    _refuse_early(options, config)
    train = _train if options.command["seeds"] == 1 else _train_seeds
    train(options, config, LinePrinter(results()))
    return 0


# -- the config --------------------------------------------------------------------------------------------------
def config_from(options: TrainOptions) -> TrainConfig:
    """Flags before the file, the file before the preset, the preset before the defaults."""
    from multiverse.training.runs.origin import check_trusted, names_code
    from multiverse.training.runs.run_directory import read_mark

    command = options.command
    file = _read(command["config"]) if command["config"] else {}
    if isinstance(file, RolloutSettings):
        env_too = {"env": options.env} if options.env else {}
        file.check_beside(Located({**options.settings, **env_too}, {**options.settings.places, "env": options.env}))
    if not file.pop("preset", True) and not command["preset"]:
        command["no_preset"] = True
    algorithm = known_name(_named("algorithm", options.settings, file) or DEFAULT_ALGORITHM)
    typed = {*options.settings, *(("env", "env_kwargs") if options.env else ())}  # whoever types a name means it
    if names_code({key: value for key, value in file.items() if key not in typed}):
        check_trusted(file, read_mark(Path(command["config"]).parent), command["config"], command["trust"])
    own = own_settings(algorithm_class(algorithm))
    settings = merged(merged({}, file, algorithm, own), options.settings, algorithm, own)
    env = _named("env", file) if isinstance(file, RolloutSettings) else options.env or _named("env", settings)
    settings.pop("env", None)
    settings.pop("algorithm", None)
    if command["plan"]:
        settings["plan"] = command["plan"]
    if not env:
        raise InvalidRequest("which env? `multiverse train CartPole-v1`, or a --config that names one")
    return config_for(env, algorithm, settings, not command["no_preset"] and (command["preset"] or True))


def _read(path: str) -> dict[str, Any]:
    """Settings of a run from a file, also of one that counts rollouts."""
    file = in_todays_names(read_config(path))
    return rollout_settings(file) if counts_rollouts(file) else file


def refuse_beside(path: str, given: Mapping[str, Any]) -> None:
    """Settings that do not go together with this config file, which may be none ('')."""
    if path and isinstance(file := _read(path), RolloutSettings):
        file.check_beside(given)


def _named(key: str, *given: Mapping[str, Any]) -> str:
    """The first of these that names it; '' if none does."""
    for mapping in given:
        if key in mapping and not isinstance(mapping[key], str):
            raise InvalidConfig(place_of(mapping, key), f"expected a name, found {in_words(mapping[key])}")
        if mapping.get(key):
            return str(mapping[key])
    return ""


def _refuse_early(options: TrainOptions, config: TrainConfig) -> None:
    """What cannot be is said before anything is started."""
    command = options.command
    require_positive(seeds=command["seeds"])
    if command["seeds"] != 1:
        from multiverse.training.seed_runs import checked_count

        checked_count(command["seeds"])
    if command["no_preset"] and command["preset"]:
        raise InvalidRequest(f"--no-preset, or --preset {command['preset']}?")
    refuse_unknown(config)
    if command["init_from"]:
        from multiverse.training.opening import checkpoint_of

        checkpoint_of(command["init_from"])
    if command["tensorboard"]:
        require("tensorboard", "tensorboard", purpose="--tensorboard")


def refuse_unknown(config: TrainConfig) -> None:
    """Devices and envs that are not there; with the id that was probably meant: of several versions the one that has a
    preset."""
    from multiverse.adapters.env_source import recipes
    from multiverse.training.learners import checked_device

    checked_device(config.device)
    try:
        recipes(config.env, 1, config.env_kwargs, None)
    except InvalidRequest as error:
        from multiverse.cli.commands.list import env_names

        near = nearest(config.env, env_names(), most=5)
        best = next((name for name in near if (name, config.algorithm) in presets()), near[0] if near else None)
        if newer := newest_version(config.env):  # with Gymnasium's own sentence
            raise InvalidRequest(f"{error} Type: multiverse train {newer}") from error
        if ":" in config.env or config.env.endswith(".py") or best is None or best in str(error):
            raise
        raise InvalidRequest(f"there is no env {config.env}; did you mean {best}?") from error


def newest_version(env: str) -> str:
    """Of an id of Gymnasium's that has a newer version: that one; else ''."""
    from gymnasium.envs.registration import find_highest_version, parse_env_id

    try:
        space, name, version = parse_env_id(env)
    except Exception:  # no id
        return ""
    newest = find_highest_version(space, name)
    older = version is not None and newest is not None and version < newest
    return f"{f'{space}/' if space else ''}{name}-v{newest}" if older else ""


# -- the run -----------------------------------------------------------------------------------------------------
def _announced(options: TrainOptions, config: TrainConfig) -> list[str]:
    budget = [
        f"{config.budget.env_steps:,} env steps" if config.budget.env_steps else "",
        f"{config.budget.episodes:,} episodes" if config.budget.episodes else "",
        f"{config.budget.minutes:g} minutes" if config.budget.minutes else "",
    ]
    spend = " or ".join(part for part in budget if part)
    envs = {1: "1 env", "auto": "as many envs as pay"}.get(config.num_envs, f"{config.num_envs} envs")
    last = config.seed + options.command["seeds"] - 1
    seeds = f"seed {config.seed}" if last == config.seed else f"seeds {config.seed} to {last}"
    lines = [f"Training {config.algorithm} on {config.env}: {envs}, {spend}, {seeds}."]
    if newer := newest_version(config.env):
        lines.append(f"Gymnasium has a newer version of it, {newer}: multiverse train {newer}")
    source = options.command["preset"] or config.env
    settings = [f"those of {options.command['config']}"] if options.command["config"] else []
    if not options.command["no_preset"] and (source, config.algorithm) in presets():
        known = "" if (source, config.algorithm) in tried() else "; nobody has run it to its end yet"
        settings.append(f"the preset for {source} (`multiverse list presets`{known})")
    if settings:
        lines.append(f"Settings: {', then '.join(settings)}, unless given otherwise.")
    if plan := options.command["plan"]:
        lines.append(f"Plan: {plan} says how many envs, and where they run, unless given otherwise.")
    return lines


def _train(options: TrainOptions, config: TrainConfig, voice: LinePrinter) -> None:
    from multiverse.cli.display import run_and_show
    from multiverse.training.run import start_run

    begin = functools.partial(start_run, config, _start_options(options))
    run_and_show(begin, voice, about=_announced(options, config), **_shown(options))


def _train_seeds(options: TrainOptions, config: TrainConfig, voice: LinePrinter) -> None:
    from multiverse.cli.seed_set import run_and_tell
    from multiverse.training.seed_runs import new_set

    if not any(_shown(options).values()):
        for line in _announced(options, config):
            voice.say(line, wrap=True)
    run_and_tell(new_set(config, options.command["seeds"], _start_options(options)), voice, **_shown(options))


def _start_options(options: TrainOptions) -> StartOptions:
    from multiverse.training.validation import StartOptions

    command = options.command
    run_dir, init_from = command["run_dir"] or None, command["init_from"] or None
    return StartOptions(run_dir=run_dir, init_from=init_from, tensorboard=bool(command["tensorboard"]))


def _shown(options: TrainOptions) -> dict[str, Any]:
    return {"quiet": bool(options.command["quiet"]), "as_json": bool(options.command["json"])}


# -- the flags ---------------------------------------------------------------------------------------------------
COMMAND = (
    Setting("config", str, "", "A YAML file with settings, such as the config.yaml of a run."),
    Setting(
        "trust",
        bool,
        None,
        "Call the code (module:name) and join the Ray cluster that the file names, although you did not write it here.",
    ),
    Setting("preset", str, "", "The env whose preset to begin from. Default: that of ENV, if there is one."),
    Setting("no_preset", bool, None, "Begin from the plain defaults instead."),
    Setting(
        "plan", str, "", "A file of `multiverse tune`: executor, workers and num_envs, where nothing else is given."
    ),
    Setting("seeds", int, 1, "So many runs, of SEED, SEED + 1, …, side by side where cores allow; and their IQM."),
    Setting("init_from", str, "", "A run whose weights to begin with."),
    Setting("run_dir", str, "", "Where the run lies. Default: runs/<env>/<algorithm>-<seed>-<time>."),
    Setting("tensorboard", bool, None, "Metrics for TensorBoard too (an extra)."),
    Setting("quiet", bool, None, "Print nothing but the run's directory, at its end."),
    Setting("json", bool, None, "Print a JSON object a line: start, metrics every 3 s, evaluation, end or error."),
)


def algorithm_in(arguments: Sequence[str]) -> str:
    """The algorithm that these words name, or the config file among them does; flags follow from it."""
    words = argparse.ArgumentParser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    words.add_argument("--algorithm", "--agent")
    words.add_argument("--config")
    words.add_argument("--trust", action="store_true")
    found, _ = words.parse_known_args([spelled(word) for word in arguments])
    if "config" in found and "algorithm" not in found:
        file = _read(found.config)
        named = file.get("algorithm")
        if not named or not isinstance(named, str):
            return DEFAULT_ALGORITHM
        named = known_name(named)
        if named not in ALGORITHMS:  # guard: a-strangers-algorithm-is-not-imported-for-its-flags
            from multiverse.training.runs.origin import check_trusted
            from multiverse.training.runs.run_directory import read_mark

            check_trusted(file, read_mark(Path(found.config).parent), found.config, "trust" in found)
        return named
    return known_name(str(getattr(found, "algorithm", DEFAULT_ALGORITHM)))


@dataclass(frozen=True)
class TrainOptions:
    """What was typed: the env ('' if it was left out), options of the command, and settings that were given."""

    env: str
    command: dict[str, Any]
    settings: Located


def train_options(
    arguments: Sequence[str],
    options: Sequence[Setting] = COMMAND,
    command: str = "train",
    description: str = DESCRIPTION,
) -> TrainOptions:
    """From words to options; shows help and exits where that is asked for. `options`: of this or another command that
    takes all settings too."""
    algorithm = algorithm_in(arguments)
    settings = [*options, *(one for group in all_settings(algorithm).values() for one in group)]
    found = typed(parser(algorithm, options, command, description), settings, arguments, algorithm)
    if len(found.words) > 1:
        raise InvalidRequest(f"one env at a time: {found.words[0]}, or {found.words[1]}?")
    own = {one.name: one.checked(found.values.pop(one.name, one.default)) for one in options}
    return TrainOptions(found.words[0] if found.words else "", own, Located(found.values, found.flags))


def parser(
    algorithm: str = DEFAULT_ALGORITHM,
    options: Sequence[Setting] = COMMAND,
    command: str = "train",
    description: str = DESCRIPTION,
) -> argparse.ArgumentParser:
    """Every flag, those of this algorithm too."""
    which = "A Gymnasium id, or module:name of something that builds an env. A config file may name it instead."
    groups = {"what to do": options, **all_settings(algorithm)}
    return flags_parser(command, description, "ENV", which, groups)
