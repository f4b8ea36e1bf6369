"""`multiverse train ENV`: from what was typed to a whole config, and then the run, or several."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multiverse.cli.commands.list import env_names
from multiverse.cli.parsing import require, require_positive
from multiverse.contracts.errors import InvalidConfig, InvalidRequest, in_words

if TYPE_CHECKING:
    from multiverse.cli.progress import LinePrinter
    from multiverse.cli.train_options import TrainOptions
    from multiverse.training.config.train_config import TrainConfig
    from multiverse.training.run import Run


def run(arguments: Sequence[str]) -> int:
    require("train", "torch", "safetensors", purpose="training")
    from multiverse.cli.progress import LinePrinter
    from multiverse.cli.train_options import train_options

    options = train_options(arguments)
    config = config_from(options)
    _refuse_early(options, config)
    voice = LinePrinter()
    for line in _announced(options, config):
        voice.say(line)
    if options.command["seeds"] == 1:
        _train(options, config, voice, options.command["run_dir"])
    else:
        _train_seeds(options, config, voice)
    return 0


# -- the config --------------------------------------------------------------------------------------------------
def config_from(options: TrainOptions) -> TrainConfig:
    """Flags before the file, the file before the preset, the preset before the defaults."""
    from multiverse.algorithms import algorithm_class
    from multiverse.training.config.build import in_todays_names
    from multiverse.training.config.files import read_config
    from multiverse.training.config.train_config import config_for, merged, own_settings
    from multiverse.training.storage.origin import check_trusted
    from multiverse.training.storage.run_directory import read_mark

    command = options.command
    file = in_todays_names(read_config(command["config"])) if command["config"] else {}
    algorithm = _named("algorithm", options.settings, file) or "ppo"
    typed = {*options.settings, *(("env", "env_kwargs") if options.env else ())}  # whoever types a name means it
    if named := {key: value for key, value in file.items() if key not in typed}:
        check_trusted(named, read_mark(Path(command["config"]).parent), command["config"], command["trust"])
    own = own_settings(algorithm_class(algorithm))
    settings = merged(merged({}, file, algorithm, own), options.settings, algorithm, own)
    env = options.env or _named("env", settings)
    settings.pop("env", None)
    settings.pop("algorithm", None)
    if not env:
        raise InvalidRequest("which env? `multiverse train CartPole-v1`, or a --config that names one")
    return config_for(env, algorithm, settings, not command["no_preset"] and (command["preset"] or True))


def _named(key: str, *given: Mapping[str, Any]) -> str:
    """The first of these that names it; '' if none does."""
    from multiverse.training.config.build import place_of

    for mapping in given:
        if key in mapping and not isinstance(mapping[key], str):
            raise InvalidConfig(place_of(mapping, key), f"expected a name, found {in_words(mapping[key])}")
        if mapping.get(key):
            return str(mapping[key])
    return ""


def _refuse_early(options: TrainOptions, config: TrainConfig) -> None:
    """What cannot be is said before anything is started."""
    from multiverse.training.loading import checkpoint_of
    from multiverse.training.session import checked_device

    command = options.command
    require_positive(seeds=command["seeds"])
    if command["no_preset"] and command["preset"]:
        raise InvalidRequest(f"--no-preset, or --preset {command['preset']}?")
    checked_device(config.device)
    _refuse_unknown_env(config)
    if command["init_from"]:
        checkpoint_of(command["init_from"])
    if command["tensorboard"]:
        require("tensorboard", "tensorboard", purpose="--tensorboard")


def _refuse_unknown_env(config: TrainConfig) -> None:
    """With the id that was probably meant: of several versions the one that has a preset."""
    from multiverse.adapters.env_source import recipes
    from multiverse.training.config.train_config import PRESETS

    try:
        recipes(config.env, 1, config.env_kwargs, None)
    except InvalidRequest as error:
        by_form = {name.lower(): name for name in env_names()}
        near = [by_form[form] for form in difflib.get_close_matches(config.env.lower(), by_form, n=5)]
        best = next((name for name in near if (name, config.algorithm) in PRESETS), near[0] if near else None)
        if ":" in config.env or best is None or best in str(error):
            raise
        raise InvalidRequest(f"there is no env {config.env}; did you mean {best}?") from error


# -- the run -----------------------------------------------------------------------------------------------------
def _announced(options: TrainOptions, config: TrainConfig) -> list[str]:
    from multiverse.training.config.train_config import PRESETS

    budget = [
        f"{config.budget.env_steps:,} env steps" if config.budget.env_steps else "",
        f"{config.budget.episodes:,} episodes" if config.budget.episodes else "",
        f"{config.budget.minutes:g} minutes" if config.budget.minutes else "",
    ]
    spend = " or ".join(part for part in budget if part)
    envs = "1 env" if config.num_envs == 1 else f"{config.num_envs} envs"
    lines = [f"Training {config.algorithm} on {config.env}: {envs}, {spend}, seed {config.seed}."]
    source = options.command["preset"] or config.env
    if not options.command["no_preset"] and (source, config.algorithm) in PRESETS:
        lines.append(f"Settings: the preset for {source} (`multiverse list presets`), unless given otherwise.")
    return lines


def _train(options: TrainOptions, config: TrainConfig, voice: LinePrinter, run_dir: Path | str) -> Run:
    from multiverse.cli.progress import run_with_progress
    from multiverse.training.run import start_run

    return run_with_progress(
        lambda **watching: start_run(
            config, run_dir=run_dir or None, init_from=options.command["init_from"] or None, **watching
        ),
        voice,
        tensorboard=options.command["tensorboard"],
    )


def _train_seeds(options: TrainOptions, config: TrainConfig, voice: LinePrinter) -> None:
    from multiverse.cli.seeds import seed_lines

    runs: dict[int, Run] = {}
    home, count = options.command["run_dir"], options.command["seeds"]
    for seed in range(config.seed, config.seed + count):
        voice.say(f"\nSeed {seed} ({len(runs) + 1} of {count})")
        mine = Path(home) / f"seed-{seed}" if home else ""
        runs[seed] = _train(options, dataclasses.replace(config, seed=seed), voice, mine)
    for line in seed_lines(runs):
        voice.say(line)
