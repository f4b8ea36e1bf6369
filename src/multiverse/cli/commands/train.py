"""`multiverse train ENV`: build a config from flags, a file and a preset, and train it for one or several seeds."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multiverse.algorithms import ALGORITHMS, DEFAULT_ALGORITHM, algorithm_class, known_name
from multiverse.cli.flags import Setting, all_settings, typed
from multiverse.cli.flags import parser as flags_parser
from multiverse.cli.flags import table as table
from multiverse.cli.main import require, require_positive, results
from multiverse.cli.options import ENV_HELP, JSON_HELP, QUIET_HELP, TRUST_HELP, spelled
from multiverse.core.errors import InvalidConfig, InvalidRequest
from multiverse.core.wording import nearest, short_repr
from multiverse.training.config.build import Located, place_of, with_current_names
from multiverse.training.config.files import read_config
from multiverse.training.config.resolve import config_for, merged, own_settings, preset_results, presets
from multiverse.training.config.rollout_files import RolloutSettings, counts_rollouts, rollout_settings
from multiverse.training.config.train_config import TrainConfig

if TYPE_CHECKING:
    from multiverse.training.progress import LinePrinter
    from multiverse.training.validation import StartOptions

DESCRIPTION = """\
Trains an algorithm. The run is a directory with settings, metrics, episodes,
checkpoints and a summary. Ctrl-C saves the run, and `multiverse resume`
continues it exactly. Flags override the --config file, which overrides the
preset of the env, which overrides the defaults. A budget (--env-steps,
--episodes, --minutes) replaces all budgets that it overrides.

examples:
  multiverse train CartPole-v1
  multiverse train Pendulum-v1 --minutes 5 --learning-rate 5e-4 --seeds 3
  multiverse train my_module:make_env --preset CartPole-v1 --num-envs 16
  multiverse train --config runs/CartPole-v1/ppo-0-…/config.yaml --seed 7"""


def run(arguments: Sequence[str]) -> int:
    options = train_options(arguments)
    from multiverse.training.progress import LinePrinter  # slow to import, as all modules below; not needed for --help

    config = config_from(options)
    _refuse_early(options, config)
    train = _train if options.command["seeds"] == 1 else _train_seeds
    train(options, config, LinePrinter(results()))
    return 0


# -- the config --------------------------------------------------------------------------------------------------
def config_from(options: TrainOptions) -> TrainConfig:
    """Build the config: flags override the file, the file the preset, and the preset the defaults."""
    from multiverse.training.runs.origin import check_trusted, names_code
    from multiverse.training.runs.run_directory import read_mark

    command = options.command
    file = _read(command["config"]) if command["config"] else {}
    if isinstance(file, RolloutSettings):
        given = {**options.settings, **({"env": options.env} if options.env else {})}
        file.check_beside(Located(given, {**options.settings.places, "env": options.env}))
    if not file.pop("preset", True) and not command["preset"]:
        command["no_preset"] = True
    algorithm = known_name(_named("algorithm", options.settings, file) or DEFAULT_ALGORITHM)
    typed = {*options.settings, *(("env", "env_kwargs") if options.env else ())}  # what the user typed is trusted
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
        raise InvalidRequest(
            "ENV is missing; for example: `multiverse train CartPole-v1`, or pass a --config that names an env"
        )
    return config_for(env, algorithm, settings, not command["no_preset"] and (command["preset"] or True))


def _read(path: str) -> dict[str, Any]:
    """Return the settings of a run from a file, also from one that counts its budget in rollouts."""
    file = with_current_names(read_config(path))
    return rollout_settings(file) if counts_rollouts(file) else file


def refuse_beside(path: str, given: Mapping[str, Any]) -> None:
    """Refuse settings that contradict this config file ('' for no file)."""
    if path and isinstance(file := _read(path), RolloutSettings):
        file.check_beside(given)


def _named(key: str, *given: Mapping[str, Any]) -> str:
    """Return the name under this key in the first of the mappings that has one; '' if none has."""
    for mapping in given:
        if key in mapping and not isinstance(mapping[key], str):
            raise InvalidConfig(place_of(mapping, key), f"expected a name, found {short_repr(mapping[key])}")
        if mapping.get(key):
            return str(mapping[key])
    return ""


def _refuse_early(options: TrainOptions, config: TrainConfig) -> None:
    """Refuse options that are invalid or contradict each other, before anything is started."""
    command = options.command
    require_positive(seeds=command["seeds"])
    if command["seeds"] != 1:
        from multiverse.training.seed_runs import checked_count

        checked_count(command["seeds"])
    if command["no_preset"] and command["preset"]:
        raise InvalidRequest(f"--no-preset and --preset {command['preset']} cannot be used together")
    refuse_unknown(config)
    if command["init_from"]:
        from multiverse.training.saved_runs import checkpoint_of

        checkpoint_of(command["init_from"])
    if command["tensorboard"]:
        require("tensorboard", "tensorboard", purpose="--tensorboard")


def refuse_unknown(config: TrainConfig) -> None:
    """Refuse a device or an env that does not exist, with the id that was probably meant: of several versions, the one
    that has a preset."""
    from multiverse.adapters.env_source import recipes
    from multiverse.training.learners import checked_device

    checked_device(config.device)
    try:
        recipes(config.env, 1, config.env_kwargs, None)
    except InvalidRequest as error:
        from multiverse.cli.commands.list import env_names

        near = nearest(config.env, env_names(), most=5)
        best = next((name for name in near if (name, config.algorithm) in presets()), near[0] if near else None)
        if newer := newest_version(config.env):  # Gymnasium's message says that the version is outdated
            raise InvalidRequest(f"{error} Use: multiverse train {newer}") from error
        if ":" in config.env or config.env.endswith(".py") or best is None or best in str(error):
            raise
        raise InvalidRequest(f"there is no env {config.env}; did you mean {best}?") from error


def newest_version(env: str) -> str:
    """Return the id of the newest version of one of Gymnasium's envs; '' if there is no newer version."""
    from gymnasium.envs.registration import find_highest_version, parse_env_id

    try:
        space, name, version = parse_env_id(env)
    except Exception:  # not an id
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
    envs = {1: "1 env", "auto": "num_envs chosen automatically"}.get(config.num_envs, f"{config.num_envs} envs")
    last = config.seed + options.command["seeds"] - 1
    seeds = f"seed {config.seed}" if last == config.seed else f"seeds {config.seed} to {last}"
    lines = [f"Training {config.algorithm} on {config.env}: {envs}, {' or '.join(filter(None, budget))}, {seeds}."]
    if newer := newest_version(config.env):
        lines.append(f"Gymnasium has a newer version of this env. To train on it: multiverse train {newer}")
    source = options.command["preset"] or config.env
    sources = [options.command["config"]] if options.command["config"] else []
    if not options.command["no_preset"] and (source, config.algorithm) in presets():
        validated = "" if (source, config.algorithm) in preset_results() else "; not validated to its full budget"
        sources.append(f"the preset for {source} (`multiverse list presets`{validated})")
    if sources:
        lines.append(f"Settings: flags, then {', then '.join(sources)}.")
    if plan := options.command["plan"]:
        lines.append(f"Plan: {plan} sets the executor and the numbers of envs and workers, unless flags set them.")
    return lines


def _train(options: TrainOptions, config: TrainConfig, printer: LinePrinter) -> None:
    from multiverse.cli.run_output import run_and_show
    from multiverse.training.run import start_run

    begin = functools.partial(start_run, config, _start_options(options))
    run_and_show(begin, printer, about=_announced(options, config), **_format_of(options))


def _train_seeds(options: TrainOptions, config: TrainConfig, printer: LinePrinter) -> None:
    from multiverse.cli.run_output import run_set_and_show
    from multiverse.training.seed_runs import new_set

    if not any(_format_of(options).values()):
        for line in _announced(options, config):
            printer.say(line, wrap=True)
    run_set_and_show(new_set(config, options.command["seeds"], _start_options(options)), printer, **_format_of(options))


def _start_options(options: TrainOptions) -> StartOptions:
    from multiverse.training.validation import StartOptions

    command = options.command
    run_dir, init_from = command["run_dir"] or None, command["init_from"] or None
    return StartOptions(run_dir=run_dir, init_from=init_from, tensorboard=bool(command["tensorboard"]))


def _format_of(options: TrainOptions) -> dict[str, Any]:
    return {"quiet": bool(options.command["quiet"]), "as_json": bool(options.command["json"])}


# -- the flags ---------------------------------------------------------------------------------------------------
COMMAND = (
    Setting("config", str, "", "YAML file with settings, such as the config.yaml of a run."),
    Setting("trust", bool, None, TRUST_HELP),
    Setting("preset", str, "", "Env whose preset is used. Default: the preset of ENV, if there is one."),
    Setting("no_preset", bool, None, "Use the defaults instead of a preset."),
    Setting("plan", str, "", "Plan file of `multiverse tune`: executor, workers and num_envs, unless flags set them."),
    Setting("seeds", int, 1, "Number of runs, with the seeds SEED, SEED + 1, …, in parallel if there are cores."),
    Setting("init_from", str, "", "Run whose weights the new run starts with."),
    Setting("run_dir", str, "", "Directory of the run. Default: runs/<env>/<algorithm>-<seed>-<time>."),
    Setting("tensorboard", bool, None, "Also write metrics for TensorBoard (extra `tensorboard`)."),
    Setting("quiet", bool, None, QUIET_HELP),
    Setting("json", bool, None, JSON_HELP),
)


def algorithm_in(arguments: Sequence[str]) -> str:
    """Return the algorithm that the arguments, or their config file, name; it determines which flags there are."""
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
    """Parsed command line: the env ('' if it was left out), the options of the command, and the settings given."""

    env: str
    command: dict[str, Any]
    settings: Located


def train_options(
    arguments: Sequence[str],
    options: Sequence[Setting] = COMMAND,
    command: str = "train",
    description: str = DESCRIPTION,
) -> TrainOptions:
    """Parse a command line; print the help and exit if it is requested. `options`: those of the command, which also
    takes all settings."""
    algorithm = algorithm_in(arguments)
    settings = [*options, *(one for group in all_settings(algorithm).values() for one in group)]
    found = typed(parser(algorithm, options, command, description), settings, arguments, algorithm)
    if len(found.words) > 1:
        raise InvalidRequest(f"expected one ENV, got {len(found.words)}: {', '.join(found.words)}")
    own = {option.name: option.checked(found.values.pop(option.name, option.default)) for option in options}
    return TrainOptions(found.words[0] if found.words else "", own, Located(found.values, found.flags))


def parser(
    algorithm: str = DEFAULT_ALGORITHM,
    options: Sequence[Setting] = COMMAND,
    command: str = "train",
    description: str = DESCRIPTION,
) -> argparse.ArgumentParser:
    """Return the parser of all flags, including those of this algorithm."""
    env_help = f"{ENV_HELP} It may be named in a config file instead."
    return flags_parser(
        command, description, "ENV", env_help, {"options of the command": options, **all_settings(algorithm)}
    )
