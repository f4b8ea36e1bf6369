"""Config of a run (`TrainConfig`), and how it is made from presets, files, flags, arguments or a saved run."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from multiverse.algorithms import ALGORITHMS, DEFAULT_ALGORITHM, algorithm_class, known_name, section_of
from multiverse.algorithms.capabilities import RunRequirements, refuse_unsupported
from multiverse.algorithms.settings import check_bounds, setting
from multiverse.core.env import EnvDescription
from multiverse.core.errors import InvalidConfig, InvalidRequest
from multiverse.core.failures import OnBadValue
from multiverse.core.plan import IN_PROCESSES, ExecutorName, StartMethod
from multiverse.core.seeds import checked_run_seed
from multiverse.core.wording import did_you_mean, short_repr
from multiverse.rollouts.self_play import Choice
from multiverse.training.config.budget import Budget
from multiverse.training.config.build import Located, as_plain, build, in_todays_names, is_required, place_of
from multiverse.training.config.files import read_config
from multiverse.training.config.other_libraries import EQUIVALENTS, SYNONYMS, equivalent
from multiverse.training.config.tuned import tuned_settings

if TYPE_CHECKING:
    from multiverse.training.learners import MakeAlgorithm

Device = Literal["auto", "cpu", "cuda", "mps"]
DEFAULT_ENV_STEPS = 100_000
TRIED = "tried"
"""Key of a preset that is not a setting: the result of the run that validated it."""


@dataclass(frozen=True)
class TrainConfig:
    """All settings of a run. It is saved in the run's directory, from where `resume` reads it."""

    env: str = setting(
        "CartPole-v1", "Gymnasium id, or module:name of a class or function that creates the environment."
    )
    algorithm: str = setting(DEFAULT_ALGORITHM, f"Algorithm: {', '.join(ALGORITHMS)}, or module:Class of your own.")
    network: str | None = setting(
        None,
        "Network between the observations and the dense layers or the memory: mlp, nature_cnn, small_cnn, or "
        "module:Class or file.py:Class of your own. Default: no network, and convolutions for images.",
    )
    network_kwargs: dict[str, Any] = setting({}, "Arguments of the network.")
    seed: int = setting(
        0, "Seed of the whole run: initial weights, exploration noise and every episode of every environment."
    )
    num_envs: int | Literal["auto"] = setting(
        8,
        "Number of environments stepped in parallel. auto: begins with 8 and doubles or halves the number between "
        "rollouts while that makes the run faster and memory allows it.",
        at_least=1,
    )
    env_steps: int | None = setting(
        None, "Budget in steps of all environments together. Default: 100,000 if no other budget is given."
    )
    episodes: int | None = setting(None, "Budget in episodes of all environments together.")
    minutes: float | None = setting(None, "Budget in minutes of training.")
    schedule_progress: float | None = setting(
        None,
        "Hold scheduled values (learning rate, clip range, exploration) at this share of the budget, from 0 to 1. "
        "Default: they follow the budget. `resume --hold-schedules` sets this to the present share.",
        at_least=0,
        at_most=1,
    )
    target_return: float | None = setting(None, "Stop as soon as an evaluation reaches this mean return.")
    env_kwargs: dict[str, Any] = setting({}, "Arguments of the environment.")
    wrappers: tuple[str, ...] = setting(
        (),
        "Wrappers of each environment, the innermost first: module:name of a class or function that takes an "
        "environment and returns one.",
    )
    tasks: int | None = setting(
        None,
        "Meta-RL, for an environment with tasks: number of training tasks, drawn from the seed. Every episode has one "
        "of them.",
        at_least=1,
    )
    held_out_tasks: int = setting(
        0,
        "With `tasks`: number of further tasks that training never uses and evaluations go through. 0: evaluations "
        "use the training tasks.",
        at_least=0,
    )
    episodes_per_task: int = setting(
        1,
        "With `tasks`: number of consecutive episodes of a task that form one episode (`mv.MetaEpisode`), during "
        "which the memory is kept.",
        at_least=1,
    )
    oracle: bool = setting(
        False, "With `tasks`: the task is part of the observation, to measure what knowing it is worth."
    )
    separate: bool = setting(
        False, "With several agents: each agent has its own learner, even if their spaces are equal."
    )
    opponents: int = setting(
        0,
        "Self-play: number of past versions of the policy that are kept as opponents. 0: the policy plays only "
        "against its present version.",
        at_least=0,
    )
    opponent_share: float = setting(
        0.5, "Self-play: share of the episodes in which a past version plays the other side.", at_least=0, at_most=1
    )
    opponent_every: int = setting(10, "Self-play: number of updates between two versions that are kept.", at_least=1)
    opponent_choice: Choice = setting(
        "uniform",
        "Self-play: how the past version of an episode is chosen: each with the same probability, or recent ones more "
        "often.",
    )
    executor: ExecutorName = setting("auto", "Where the environments run.")
    workers: int | None = setting(None, "Number of threads, processes or Ray actors of the executor.")
    start_method: StartMethod | None = setting(None, "How worker processes are started.")
    ray_address: str | None = setting(
        None,
        "With `--executor ray`: address of the cluster, host:port or auto. Default: a cluster of its own on this "
        "machine.",
    )
    cpus_per_worker: float = setting(1.0, "With `--executor ray`: number of CPUs that each worker reserves.")
    gpus_per_worker: float = setting(0.0, "With `--executor ray`: number of GPUs that each worker reserves.")
    action_masks: bool = setting(
        True,
        "Take only actions that the environment's action masks allow: `action_mask` in observations or infos, or the "
        "result of a method `action_masks()`.",
    )
    render: bool = setting(
        False,
        'Show environment 0 in a window while it trains (`render_mode="human"`): in one process, at the window\'s '
        "speed.",
    )
    asynchronous: bool = setting(
        False,
        "Workers collect while the algorithm learns. Rollouts may then come from a policy that is some updates old "
        "(`lag_correction`), and results are not reproducible bit for bit.",
    )
    max_lag: int = setting(
        4,
        "With `asynchronous`: largest number of updates by which the policy of a rollout may be behind; older "
        "rollouts are discarded.",
        at_least=0,
    )
    queue_size: int = setting(
        1,
        "With `asynchronous`: largest number of rollouts of all environments that wait for the algorithm.",
        at_least=1,
    )
    full_queue: Literal["auto", "discard", "rest"] = setting(
        "auto",
        "With `asynchronous`: when the queue is full, `discard` its oldest rollouts, so that workers never wait, or "
        "let workers `rest` until there is room. auto: `rest` if the machine has fewer cores than the workers and the "
        "algorithm need.",
    )
    on_failure: Literal["restart", "raise"] = setting(
        "restart",
        "What happens when an environment raises, or a worker ends or hangs: `restart` it, or `raise` an error.",
    )
    restarts_per_minute: int | None = setting(
        None,
        "Limit of restarts of each worker, and of the environments of each worker; beyond it the run ends with the "
        "first cause. Default: a limit relative to the work done, which ends crash loops but never a run with one "
        "failure in thousands of steps.",
    )
    worker_memory_limit: int | str | None = setting(
        None,
        "With `on_failure` restart: a worker process that uses more memory is replaced, which costs its environments "
        "their present episodes. Memory is read every 5 s. A number of bytes, or text such as 2GiB.",
    )
    on_bad_value: OnBadValue = setting(
        "raise",
        "What happens with NaN or infinite observations and rewards: `raise` a failure of the environment, `truncate` "
        "the episode, `clip` the values, or `off` (no check).",
    )
    reply_timeout_s: float | Literal["auto"] | None = setting(
        "auto",
        "Time limit in seconds for a step of a worker. auto: 60 s; after a worker has hung once, 10 times its longest "
        "step, but at least 5 s.",
    )
    device: Device = setting(
        "auto",
        "Device of the networks during learning. auto: a GPU for images, else the CPU, which is faster for small "
        "networks.",
    )
    torch_threads: int = setting(
        1, "Number of torch's threads on the CPU. The environments need the other cores.", at_least=1
    )
    log_every: int | None = setting(
        None,
        "Number of env steps between two lines of metrics, which are means over the updates in between. Default: a "
        "line for every update; every 1,000 env steps if rollouts have fewer than 8 steps.",
        at_least=1,
    )
    evaluate_every: int | None = setting(
        None,
        "Number of env steps between two evaluations; 0: evaluate only at the end. Default: a tenth of the budget "
        "(100,000 if the budget is not in env steps). By default, and without `target_return`, evaluations before the "
        "last one have as many episodes as take at most a tenth of the training's env steps together, but at least "
        "one.",
        at_least=0,
    )
    evaluation_episodes: int | None = setting(
        None,
        "Number of episodes of each evaluation; evaluations before the last one may have fewer (`evaluate_every`). "
        "Default: 10; with held-out tasks, one for each.",
        at_least=1,
    )
    evaluation_envs: int | None = setting(
        None,
        "Number of environments that evaluations run in parallel; it changes no result. Default: 10, but 1 if "
        "`num_envs` is 1.",
        at_least=1,
    )
    evaluation_opponent: str | None = setting(
        None,
        "Opponent in evaluations: `random`, a run, or module:function. Default: `self`, the policy itself; where one "
        "agent wins what another loses, the mean return and the best checkpoint then say nothing.",
    )
    evaluation_deterministic: bool = setting(
        True,
        "Evaluations take the most likely actions. No: they are sampled, as in training, which is the right measure "
        "if agents with equal observations must act differently, or if a predictable policy loses.",
    )
    evaluation_seed: int = setting(0, "Seed of evaluations: equal seeds give equal episodes, whatever the training.")
    checkpoint_every_s: float = setting(
        30.0, "Seconds between two checkpoints. A checkpoint is saved at the end in any case.", at_least=0
    )
    keep_checkpoints: int = setting(
        3, "Number of most recent checkpoints that are kept, besides the best one.", at_least=1
    )
    settings: Any = setting(
        None, "Settings of the algorithm: its own `Config`. In files they are in a section with the algorithm's name."
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "algorithm", known_name(self.algorithm))
        if self.settings is None:
            object.__setattr__(self, "settings", algorithm_class(self.algorithm).Config())
        check_bounds(self)
        if self.tasks is None and (self.held_out_tasks, self.episodes_per_task, self.oracle) != (0, 1, False):
            raise InvalidRequest("held_out_tasks, episodes_per_task and oracle need tasks, for example tasks=80")
        self._check_asynchronous()
        if self.network_kwargs and self.network is None:
            raise InvalidRequest(
                f"network_kwargs={self.network_kwargs}: these are arguments of a network; pass network too"
            )
        for name in ("seed", "evaluation_seed"):
            checked_run_seed(name, getattr(self, name))
        if self.target_return is not None and math.isnan(self.target_return):
            raise InvalidRequest("target_return=nan: expected a number")
        _ = self.budget

    def _check_asynchronous(self) -> None:
        """Refuse settings that cannot be used with `asynchronous`."""
        if not self.asynchronous:
            return
        if self.render:
            raise InvalidRequest("asynchronous cannot be used with render: the window needs everything in one process")
        from multiverse.executors.backends import BACKENDS  # help is shown without them

        if self.executor != "auto" and BACKENDS[self.executor].own_share:
            raise InvalidRequest(
                f"asynchronous cannot be used with executor={self.executor!r}, where the process that learns also "
                f"steps environments; use executor={IN_PROCESSES!r}"
            )
        if self.num_envs == "auto" or self.opponents:
            wrong = "num_envs='auto'" if self.num_envs == "auto" else f"opponents={self.opponents}"
            raise InvalidRequest(f"asynchronous cannot be used with {wrong}; leave one of them out")

    def requirements(self, description: EnvDescription | None = None) -> RunRequirements:
        """Return what this run needs of its algorithm; without a description, as far as the config says."""
        network = "" if self.network is None else self.network.rpartition(":")[2].strip("<>")
        return RunRequirements(
            settings=self.settings,
            asynchronous=self.asynchronous,
            auto_num_envs=self.num_envs == "auto",
            network=network,
            small_images=bool(network),
            device=self.device,
            env_steps=self.budget.env_steps,
            env=self.env,
            kind=None if description is None else description.kind,
            groups=() if description is None else description.groups,
        )

    @functools.cached_property
    def budget(self) -> Budget:
        return budget_of(vars(self))

    @property
    def steps_between_evaluations(self) -> int:
        """Number of env steps between two evaluations; 0: only at the end."""
        if self.evaluate_every is not None:
            return self.evaluate_every
        return max(1, (self.budget.env_steps or 10 * DEFAULT_ENV_STEPS) // 10)

    @property
    def num_evaluation_envs(self) -> int:
        """Number of environments of an evaluation, at most one for each of its episodes."""
        return min(self.evaluation_envs or (1 if self.num_envs == 1 else 10), self.episodes_per_evaluation)

    @property
    def episodes_per_evaluation(self) -> int:
        """Number of episodes of an evaluation: as set, else one for each held-out task, else 10."""
        return self.evaluation_episodes or self.held_out_tasks or 10


def budget_of(settings: Mapping[str, Any]) -> Budget:
    """Return the budget of a run with these settings."""
    given = {name: settings.get(name) for name in BUDGETS}
    if all(value is None for value in given.values()):
        given["env_steps"] = DEFAULT_ENV_STEPS
    return build(Budget, given)


# -- from presets, files and arguments ---------------------------------------------------------------------------
@functools.cache
def presets() -> dict[tuple[str, str], dict[str, Any]]:
    """Preset settings by (env, algorithm)."""
    return {
        both: Located({name: value for name, value in one.items() if name != TRIED}, one.places)
        for both, one in _presets().items()
    }


def tried() -> dict[tuple[str, str], str]:
    """Results of the presets that were validated to their full budget, by (env, algorithm)."""
    return {both: str(settings[TRIED]) for both, settings in _presets().items() if TRIED in settings}


@functools.cache
def _presets() -> dict[tuple[str, str], Located]:
    return {
        (env, algorithm): settings
        for env, algorithms in read_config(Path(__file__).with_name("presets.yaml")).items()
        for algorithm, settings in algorithms.items()
    }


BUDGETS = ("env_steps", "episodes", "minutes")
RUN_SETTINGS = frozenset(field.name for field in dataclasses.fields(TrainConfig)) - {"settings"}


def config_for(
    env: Any, algorithm: str | MakeAlgorithm, settings: Mapping[str, Any], preset: bool | str = True
) -> TrainConfig:
    """Return the config of a run from some of its settings; settings of the algorithm need no section.

    A given budget replaces the preset's, whatever its unit. `plan` among the settings is a file written by
    `multiverse tune`, whose settings override the preset's.
    """
    if not isinstance(algorithm, str) and not callable(algorithm):
        raise InvalidRequest(f"algorithm={algorithm!r}: expected a name, module:Class, or a class")
    algorithm = known_name(algorithm) if isinstance(algorithm, str) else algorithm
    name = env if isinstance(env, str) else name_of(env)
    learner = algorithm if isinstance(algorithm, str) else import_name(algorithm)
    kind = algorithm_class(algorithm) if isinstance(algorithm, str) else algorithm
    own = own_settings(kind)
    suited = _preset(name, stock_name(learner, kind), preset)
    if learner not in ALGORITHMS:  # a Config that does not derive from the stock one may lack some of its settings
        suited = {key: value for key, value in suited.items() if key in own or key in RUN_SETTINGS}
    known = merged(Located({}, {}), suited, learner, own)
    given = in_todays_names(settings)
    if (plan := given.pop("plan", None)) is not None:
        known = merged(known, tuned_settings(plan, env, given), learner, own)
    whole = merged(known, given, learner, own)
    config = train_config(Located({**whole, "env": name, "algorithm": learner}, whole.places), kind)
    refuse_unsupported(kind, config.requirements())
    return config


def stock_name(algorithm: str, kind: Any) -> str:
    """Name of the stock algorithm that this one is or derives from, whose presets apply to it; else its own name."""
    names = {path: name for name, path in ALGORITHMS.items()}
    bases = (f"{base.__module__}:{base.__qualname__}" for base in getattr(kind, "__mro__", ()))
    return algorithm if algorithm in ALGORITHMS else next((names[base] for base in bases if base in names), algorithm)


def own_settings(kind: Any) -> frozenset[str]:
    """Return the names of the settings of an algorithm: the fields of its `Config`, if it has one."""
    config = getattr(kind, "Config", None)
    if config is None:
        return frozenset()
    if not (isinstance(config, type) and dataclasses.is_dataclass(config)):
        raise InvalidRequest(f"{name_of(kind)}.Config is {config!r}: expected a dataclass whose fields have defaults")
    fields = dataclasses.fields(config)
    if bare := [field.name for field in fields if is_required(field)]:
        raise InvalidRequest(f"{name_of(kind)}.Config: {', '.join(bare)} must have a default")
    names = frozenset(field.name for field in fields)
    if forgotten := [name for name in vars(config).get("__annotations__", {}) if name not in names]:
        raise InvalidRequest(
            f"{name_of(kind)}.Config: {', '.join(forgotten)} would not be a setting, because {config.__name__} is not "
            "decorated: put @dataclass(frozen=True) above the class"
        )
    if both := sorted(names & RUN_SETTINGS):
        raise InvalidRequest(
            f"{name_of(kind)}.Config: {', '.join(both)} is a setting of every run; choose another name"
        )
    return names


def train_config(mapping: Mapping[str, Any], kind: Any, where: str = "") -> TrainConfig:
    """Return the config of a run from all its settings; those of its algorithm (`kind`) are in a section."""
    section = section_of(mapping.get("algorithm", DEFAULT_ALGORITHM))
    rest = {key: value for key, value in mapping.items() if key != section}
    config = getattr(kind, "Config", None)
    given = mapping.get(section) or {}
    settings = dict(given) if config is None else build(config, given, f"{where}: {section}" if where else section)
    return build(TrainConfig, Located({**rest, "settings": settings}, getattr(mapping, "places", {})), where)


def plain_config(config: TrainConfig) -> dict[str, Any]:
    """Return a config as it is written to files; `saved_config` reads it."""
    plain = as_plain(config)
    settings = plain.pop("settings")
    return {**plain, section_of(config.algorithm): settings}


def merged(under: Mapping[str, Any], over: Mapping[str, Any], algorithm: str, own: frozenset[str]) -> Located:
    """Return the settings `under`, overridden by `over`; those of the algorithm (`own`) are in its section. Each key
    keeps its place in a file or on the command line."""
    name = section_of(algorithm)
    section = under.get(name, Located({}, {}))
    kept = {key: value for key, value in under.items() if key != name and not _budget_of_both(key, over)}
    run = Located(kept, getattr(under, "places", {}))
    theirs = Located(section, getattr(section, "places", {}))
    for key, value in over.items():
        if key == name:
            for inner, one in _section(value, place_of(over, key)).items():
                if inner not in own:
                    raise no_such(place_of(value, inner, f"{name}."), inner, own, algorithm, inside=True)
                if inner in over:
                    twice = f"given twice, here and at {place_of(over, inner)}"
                    raise InvalidConfig(place_of(value, inner, f"{name}."), twice)
                theirs[inner], theirs.places[inner] = one, place_of(value, inner, f"{name}.")
        elif key in RUN_SETTINGS or key in own:
            target = run if key in RUN_SETTINGS else theirs
            if key == "env_kwargs" and isinstance(value, Mapping) and isinstance(run.get(key), Mapping):
                value = {**run[key], **value}  # other arguments of the env are kept
            target[key], target.places[key] = value, place_of(over, key)
        else:
            raise no_such(place_of(over, key), key, RUN_SETTINGS | own, algorithm)
    run[name] = theirs
    return run


def _section(value: Any, place: str) -> Mapping[str, Any]:
    """Return the settings of an algorithm, given as a dict or as its `Config`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return as_plain(value)
    if not isinstance(value, Mapping):
        raise InvalidConfig(place, f"expected settings (name: value), found {short_repr(value)}")
    return value


def _budget_of_both(key: str, over: Mapping[str, Any]) -> bool:
    return key in BUDGETS and any(over.get(unit) is not None for unit in BUDGETS)


def no_such(place: str, name: str, known: frozenset[str], algorithm: str, inside: bool = False) -> InvalidConfig:
    """Return an error that names the setting that was probably meant."""
    meant = next((ours for ours, theirs in SYNONYMS.items() if name in theirs and ours in known), None)
    others = [theirs for ours in known for theirs in SYNONYMS.get(ours, ())]
    hint = f"Did you mean {meant}?" if meant else did_you_mean(name, sorted(known), others)
    if name in EQUIVALENTS:
        hint = equivalent(name)
    elif whose := algorithms_with(name):
        hint = f"It is a setting of {', '.join(whose)}; this is {algorithm}"
    if inside and name in RUN_SETTINGS:
        hint = "It is a setting of the run: it belongs outside this section"
    return InvalidConfig(place, "there is no such setting", hint)


def algorithms_with(name: str) -> list[str]:
    """Return the names of the stock algorithms that have this setting."""
    return [one for one in ALGORITHMS if name in own_settings(algorithm_class(one))]


def _preset(env: str, algorithm: str, wanted: bool | str) -> dict[str, Any]:
    """Return the preset of this env (`wanted` is True) or of another env (its name), which must exist; or none."""
    if isinstance(wanted, bool | None):
        return presets().get((env, algorithm), {}) if wanted else {}
    known = [name for name, learner in presets() if learner == algorithm]
    if wanted not in known:
        raise InvalidConfig("preset", f"there is no preset for {wanted}", did_you_mean(wanted, known))
    return presets()[wanted, algorithm]


def saved_config(
    saved: Mapping[str, Any],
    where: str,
    algorithm: MakeAlgorithm | None,
    env_kwargs: Mapping[str, Any] | None = None,
    needs_env: bool = True,
    needs_algorithm: bool = True,
) -> TrainConfig:
    """Return the config of a saved run.

    What is not in the file must be given again: an algorithm that has no name, and secrets among the arguments of the
    env if the env is needed. If a custom algorithm is not needed (`needs_algorithm`), it is not imported, and its
    settings are a dict.
    """
    from multiverse.training.runs.origin import redacted_fields  # not needed for help

    saved = in_todays_names(saved)
    if env_kwargs is not None and isinstance(saved.get("env_kwargs", {}), Mapping):
        saved = {**saved, "env_kwargs": {**saved.get("env_kwargs", {}), **env_kwargs}}
    if needs_env and (hidden := redacted_fields(saved)):
        raise InvalidRequest(
            f"{where}: {', '.join(hidden)} is secret and was not saved: pass it again in env_kwargs={{...}}"
        )
    name = saved.get("algorithm", DEFAULT_ALGORITHM)
    if algorithm is None and name not in ALGORITHMS and not needs_algorithm:
        return train_config(saved, None, where)
    return train_config(saved, algorithm_class(name) if algorithm is None else algorithm, where)


def import_name(kind: Any) -> str:
    """Return `module:Class` of an algorithm if it can be imported by that, so that a resume finds it; else its name."""
    module, name = getattr(kind, "__module__", "__main__"), getattr(kind, "__qualname__", "<locals>")
    importable = isinstance(kind, type) and module != "__main__" and "<locals>" not in name and hasattr(kind, "Config")
    return f"{module}:{name}" if importable else name_of(kind)


def wrapper_name(wrapper: Any) -> str:
    """Return `module:name` of a wrapper class or function if it can be imported by that; else its name."""
    module, name = getattr(wrapper, "__module__", "__main__"), getattr(wrapper, "__qualname__", "<locals>")
    return f"{module}:{name}" if module != "__main__" and name.isidentifier() else name_of(wrapper)


def name_of(env: Any) -> str:
    """Return a name for an env or an algorithm that is not given as a string."""
    return str(getattr(env, "__qualname__", None) or getattr(env, "__name__", None) or type(env).__name__)
