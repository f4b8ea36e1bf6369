"""What a run is: its env, its algorithm, its budget, and how it is watched; and how what a user types, or a run has
saved, becomes that."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from multiverse.algorithms import ALGORITHMS, DEFAULT_ALGORITHM, algorithm_class, known_name, section_of
from multiverse.algorithms.capabilities import RunRequirements, refuse_unsupported
from multiverse.core.env import EnvDescription
from multiverse.core.errors import InvalidConfig, InvalidRequest
from multiverse.core.failures import OnBadValue
from multiverse.core.plan import IN_PROCESSES, ExecutorName, StartMethod
from multiverse.core.seeds import checked_run_seed
from multiverse.core.wording import did_you_mean, in_words
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
"""Of a preset, no setting: what was seen of it."""


@dataclass(frozen=True)
class TrainConfig:
    """Everything a run is made of. Saved with it, and what `resume` goes by."""

    env: str = "CartPole-v1"
    """A Gymnasium id, or module:name of something that builds an env."""
    algorithm: str = DEFAULT_ALGORITHM
    """Which algorithm learns: ppo, a2c, taac, sac, td3, discrete_sac, dqn, or module:Class of your own."""
    network: str | None = None
    """Network from observations to features, before the dense layers or the memory: mlp, nature_cnn, small_cnn, or
    module:Class or file.py:Class of your own. Default: none, and convolutions of images."""
    network_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the network."""
    seed: int = 0
    """Of the whole run: weights, noise, and every episode of every env."""
    num_envs: int | Literal["auto"] = 8
    """Envs that are stepped side by side. auto: from 8 on doubled, or halved, between rollouts while that makes the run
    faster and memory allows it."""
    env_steps: int | None = None
    """Budget: steps of all envs together. Where no budget is given, 100,000 of these."""
    episodes: int | None = None
    """Budget: episodes of all envs together."""
    minutes: float | None = None
    """Budget: time."""
    schedule_progress: float | None = None
    """Hold what follows the budget (learning rate, clip range, exploration) as it is at this share of it, from 0 to 1.
    Default: it follows the budget. `resume --hold-schedules` sets this to where the run is."""
    target_return: float | None = None
    """Stop as soon as an evaluation reaches this mean return."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments for the env."""
    wrappers: tuple[str, ...] = ()
    """What each env is wrapped in, the innermost first: module:name of something that takes an env and returns one."""
    tasks: int | None = None
    """Meta-RL, of an env with tasks: so many are drawn from the seed to train on, and every episode has one of them."""
    held_out_tasks: int = 0
    """So many others, which no training sees, for evaluations to go through; 0: they have the training's."""
    episodes_per_task: int = 1
    """With `tasks`: so many episodes of a task in a row are one (`mv.MetaEpisode`), and memory goes on through them."""
    oracle: bool = False
    """With `tasks`: show the task, to see what knowing it is worth."""
    separate: bool = False
    """Of several agents: each has a learner of its own, also where their spaces are equal."""
    opponents: int = 0
    """Self-play: how many past versions of the policy are kept to be played against; 0: none, only the present one."""
    opponent_share: float = 0.5
    """Of the episodes, those in which a past version plays the other side."""
    opponent_every: int = 10
    """Updates from one version that is kept to the next."""
    opponent_choice: Choice = "uniform"
    """Which of them plays: any, or rather a recent one."""
    executor: ExecutorName = "auto"
    """Where the envs run."""
    workers: int | None = None
    """Threads, processes or Ray actors of the executor."""
    start_method: StartMethod | None = None
    """How processes are started."""
    ray_address: str | None = None
    """With `--executor ray`: of the cluster, host:port or auto. Default: one of its own, on this machine."""
    cpus_per_worker: float = 1.0
    """That each worker has of its node, with `--executor ray`."""
    gpus_per_worker: float = 0.0
    """The same of GPUs."""
    action_masks: bool = True
    """Take only actions that the env's action masks leave open: an `action_mask` in observations or infos, or what a
    method `action_masks()` returns."""
    render: bool = False
    """Watch env 0 in a window while it trains (`render_mode="human"`): in one process, at the window's speed."""
    asynchronous: bool = False
    """Workers go on while the algorithm learns, and nobody waits for anybody; rollouts may then be of a policy some
    updates old (`lag_correction`). Not the same bits every time."""
    max_lag: int = 4
    """With `asynchronous`: updates that a rollout's policy may be behind; older ones are discarded."""
    queue_size: int = 1
    """With `asynchronous`: rollouts of all envs that wait for the algorithm at most."""
    full_queue: Literal["auto", "discard", "rest"] = "auto"
    """With `asynchronous`: `discard` the oldest rollouts of a full queue, and workers never wait; or they `rest` until
    there is room. auto: rest where there are fewer cores than workers and the algorithm want, who would share them."""
    on_failure: Literal["restart", "raise"] = "restart"
    """An env that raises, and a worker that dies or hangs: replaced, or an error."""
    restarts_per_minute: int | None = None
    """Limit of each worker, and of the envs of each worker; beyond it the run ends with the first cause. Default: a
    limit relative to the work done, which ends crash loops and never a run with one failure in thousands of steps."""
    worker_memory_limit: int | str | None = None
    """With `on_failure` restart: a worker process that holds more memory is replaced, which costs its envs their
    episodes. Memory is read every 5 s. A number of bytes, or text such as 2GiB."""
    on_bad_value: OnBadValue = "raise"
    """NaN and infinite observations and rewards: a failure of the env, or `truncate` the episode, `clip`, `off`."""
    reply_timeout_s: float | Literal["auto"] | None = "auto"
    """Time limit of a step of a worker. auto: 60 s; a worker that has hung may from then on take 10 times its
    longest step, at least 5 s."""
    device: Device = "auto"
    """Where the networks learn. auto: a GPU for images, else the CPU, which is faster for small networks."""
    torch_threads: int = 1
    """Of the networks, on the CPU. The envs need the other cores."""
    log_every: int | None = None
    """Env steps between lines of metrics, which are means over the updates since the last one. Default: a line for
    every update; where rollouts have fewer than 8 steps, every 1,000 env steps."""
    evaluate_every: int | None = None
    """Env steps between evaluations; 0: only at the end. Default: a tenth of the budget (100,000 without one in env
    steps). By default, and without a target_return, evaluations before the last one have as many episodes as keep all
    of them within a tenth of the training's env steps, but at least one."""
    evaluation_episodes: int | None = None
    """Episodes of each evaluation; those before the last one may have fewer (`evaluate_every`). Default: 10; with
    held-out tasks, one of each."""
    evaluation_envs: int | None = None
    """Envs that evaluations are played on side by side; their number changes no figure. Default: 10, but 1 where
    `num_envs` is 1."""
    evaluation_opponent: str | None = None
    """Who plays the other side in evaluations: `random`, a run, or module:function. Default: `self`, the policy itself,
    of which neither the mean return nor the best checkpoint says anything where one agent wins what another loses."""
    evaluation_deterministic: bool = True
    """The most likely actions; no: drawn, as in training. Where agents that see the same must differ, or who is
    predictable loses, only that shows what a policy is worth."""
    evaluation_seed: int = 0
    """Equal seeds give equal episodes, whatever the training."""
    checkpoint_every_s: float = 30.0
    """Time between checkpoints; one is saved at the end in any case."""
    keep_checkpoints: int = 3
    """How many of the latest are kept, beside the best."""
    settings: Any = None
    """Those of the algorithm: its own `Config`. In files they stand in a section of its name (`ppo:`)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "algorithm", known_name(self.algorithm))
        if self.settings is None:
            object.__setattr__(self, "settings", algorithm_class(self.algorithm).Config())
        for name in ("num_envs", "evaluation_episodes", "evaluation_envs", "keep_checkpoints", "torch_threads"):
            if (value := getattr(self, name)) is not None and value != "auto" and value < 1:
                raise InvalidRequest(f"{name}={value}: at least 1")
        if self.tasks is None and (self.held_out_tasks, self.episodes_per_task, self.oracle) != (0, 1, False):
            raise InvalidRequest("held_out_tasks, episodes_per_task and oracle are for runs with tasks: tasks=80, say")
        if (self.tasks is not None and self.tasks < 1) or self.held_out_tasks < 0 or self.episodes_per_task < 1:
            counts = self.tasks, self.held_out_tasks, self.episodes_per_task
            raise InvalidRequest(f"tasks, held_out_tasks, episodes_per_task={counts}: at least 1, 0 and 1")
        self._check_asynchronous()
        if self.opponents < 0:
            raise InvalidRequest(f"opponents={self.opponents}: 0 or more")
        if self.opponent_every < 1:
            raise InvalidRequest(f"opponent_every={self.opponent_every}: at least 1")
        if not 0.0 <= self.opponent_share <= 1.0:
            raise InvalidRequest(f"opponent_share={self.opponent_share}: between 0 and 1")
        if not self.checkpoint_every_s >= 0.0:
            raise InvalidRequest(f"checkpoint_every_s={self.checkpoint_every_s}: 0 or more")
        if self.network_kwargs and self.network is None:
            raise InvalidRequest(
                f"network_kwargs={self.network_kwargs}: no network is given that takes them; pass network too"
            )
        for name in ("seed", "evaluation_seed"):
            checked_run_seed(name, getattr(self, name))
        if self.log_every is not None and self.log_every < 1:
            raise InvalidRequest(f"log_every={self.log_every}: at least 1")
        if self.evaluate_every is not None and self.evaluate_every < 0:
            raise InvalidRequest(f"evaluate_every={self.evaluate_every}: 0 (only at the end) or more")
        if self.schedule_progress is not None and not 0.0 <= self.schedule_progress <= 1.0:
            raise InvalidRequest(f"schedule_progress={self.schedule_progress}: from 0 to 1")
        if self.target_return is not None and math.isnan(self.target_return):
            raise InvalidRequest("target_return=nan: no return ever reaches that")
        _ = self.budget

    def _check_asynchronous(self) -> None:
        """What does not go together with it is refused before anything is started."""
        if self.max_lag < 0:
            raise InvalidRequest(f"max_lag={self.max_lag}: 0 or more")
        if self.queue_size < 1:
            raise InvalidRequest(f"queue_size={self.queue_size}: at least 1")
        if not self.asynchronous:
            return
        if self.render:
            raise InvalidRequest("asynchronous: a window (render) means one process, which cannot learn meanwhile")
        from multiverse.executors.backends import BACKENDS  # help is shown without them

        if self.executor != "auto" and BACKENDS[self.executor].own_share:
            raise InvalidRequest(
                f"asynchronous: with executor={self.executor!r} the caller steps envs itself, and cannot learn "
                f"meanwhile: executor={IN_PROCESSES!r}"
            )
        if self.num_envs == "auto" or self.opponents:
            wrong = "num_envs='auto'" if self.num_envs == "auto" else f"opponents={self.opponents}"
            raise InvalidRequest(f"asynchronous: does not go together with {wrong}; leave one of them out")

    def requirements(self, description: EnvDescription | None = None) -> RunRequirements:
        """The requirements of this run for its algorithm; without a description, those that the config alone has."""
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
        """0: only at the end."""
        if self.evaluate_every is not None:
            return self.evaluate_every
        return max(1, (self.budget.env_steps or 10 * DEFAULT_ENV_STEPS) // 10)

    @property
    def num_evaluation_envs(self) -> int:
        """Of each evaluation: more than it has episodes would be idle."""
        return min(self.evaluation_envs or (1 if self.num_envs == 1 else 10), self.episodes_per_evaluation)

    @property
    def episodes_per_evaluation(self) -> int:
        """As asked for; else 10, or one of each held-out task."""
        return self.evaluation_episodes or self.held_out_tasks or 10


def budget_of(settings: Mapping[str, Any]) -> Budget:
    """The budget that a run with these settings has."""
    given = {name: settings.get(name) for name in BUDGETS}
    if all(value is None for value in given.values()):
        given["env_steps"] = DEFAULT_ENV_STEPS
    return build(Budget, given)


# -- where it comes from -----------------------------------------------------------------------------------------
@functools.cache
def presets() -> dict[tuple[str, str], dict[str, Any]]:
    """Settings that are known to suit an (env, algorithm)."""
    return {
        both: Located({name: value for name, value in one.items() if name != TRIED}, one.places)
        for both, one in _presets().items()
    }


def tried() -> dict[tuple[str, str], str]:
    """What was seen of those presets that were run to their end."""
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
    """The whole config from a few settings; those of the algorithm may stand beside those of the run.

    A budget that is given takes the place of the preset's, in whatever unit that is. `plan` among the settings is a
    file that `multiverse tune` has written: it goes before the preset.
    """
    if not isinstance(algorithm, str) and not callable(algorithm):
        raise InvalidRequest(f"algorithm={algorithm!r}: a name, your module:Class, or what makes one")
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
    """The settings of an algorithm, by the fields of its `Config`; one without has none that we know of."""
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
        raise InvalidRequest(f"{name_of(kind)}.Config: {', '.join(both)} is a setting of every run; call it otherwise")
    return names


def train_config(mapping: Mapping[str, Any], kind: Any, where: str = "") -> TrainConfig:
    """The config of a run from its settings; those of the algorithm `kind` are in the section of its name."""
    section = section_of(mapping.get("algorithm", DEFAULT_ALGORITHM))
    rest = {key: value for key, value in mapping.items() if key != section}
    config = getattr(kind, "Config", None)
    given = mapping.get(section) or {}
    settings = dict(given) if config is None else build(config, given, f"{where}: {section}" if where else section)
    return build(TrainConfig, Located({**rest, "settings": settings}, getattr(mapping, "places", {})), where)


def plain_config(config: TrainConfig) -> dict[str, Any]:
    """As files have it: what `saved_config` reads."""
    plain = as_plain(config)
    settings = plain.pop("settings")
    return {**plain, section_of(config.algorithm): settings}


def merged(under: Mapping[str, Any], over: Mapping[str, Any], algorithm: str, own: frozenset[str]) -> Located:
    """Settings over settings, those of the algorithm (`own`) in its section; each key remembers where it stands."""
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
                    twice = f"it is given twice, here and at {place_of(over, inner)}"
                    raise InvalidConfig(place_of(value, inner, f"{name}."), twice)
                theirs[inner], theirs.places[inner] = one, place_of(value, inner, f"{name}.")
        elif key in RUN_SETTINGS or key in own:
            target = run if key in RUN_SETTINGS else theirs
            if key == "env_kwargs" and isinstance(value, Mapping) and isinstance(run.get(key), Mapping):
                value = {**run[key], **value}  # an argument of the env more, or another; the rest stays
            target[key], target.places[key] = value, place_of(over, key)
        else:
            raise no_such(place_of(over, key), key, RUN_SETTINGS | own, algorithm)
    run[name] = theirs
    return run


def _section(value: Any, place: str) -> Mapping[str, Any]:
    """The settings of an algorithm, as a dict or as its `Config`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return as_plain(value)
    if not isinstance(value, Mapping):
        raise InvalidConfig(place, f"expected settings (name: value), found {in_words(value)}")
    return value


def _budget_of_both(key: str, over: Mapping[str, Any]) -> bool:
    return key in BUDGETS and any(over.get(unit) is not None for unit in BUDGETS)


def no_such(place: str, name: str, known: frozenset[str], algorithm: str, inside: bool = False) -> InvalidConfig:
    """An error with the setting that was probably meant."""
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
    """The algorithms of ours that have this setting."""
    return [one for one in ALGORITHMS if name in own_settings(algorithm_class(one))]


def _preset(env: str, algorithm: str, wanted: bool | str) -> dict[str, Any]:
    """The env's own if there is one, that of another env, which must be there, or none."""
    if isinstance(wanted, bool | None):
        return presets().get((env, algorithm), {}) if wanted else {}
    known = [name for name, learner in presets() if learner == algorithm]
    if wanted not in known:
        raise InvalidConfig("preset", f"there is none for {wanted}", did_you_mean(wanted, known))
    return presets()[wanted, algorithm]


def saved_config(
    saved: Mapping[str, Any],
    where: str,
    algorithm: MakeAlgorithm | None,
    env_kwargs: Mapping[str, Any] | None = None,
    needs_env: bool = True,
    needs_algorithm: bool = True,
) -> TrainConfig:
    """A run's config as it was saved. What no file holds must be given again: an algorithm of one's own and, where its
    env is needed, secrets among the env's arguments. Where one's own algorithm is not needed (`needs_algorithm`) it is
    not imported either, and its settings are a dict."""
    from multiverse.training.runs.origin import redacted_fields  # help is shown without it

    saved = in_todays_names(saved)
    if env_kwargs is not None and isinstance(saved.get("env_kwargs", {}), Mapping):
        saved = {**saved, "env_kwargs": {**saved.get("env_kwargs", {}), **env_kwargs}}
    if needs_env and (hidden := redacted_fields(saved)):
        raise InvalidRequest(
            f"{where}: {', '.join(hidden)} was secret and is not in the file: pass it again, in env_kwargs={{...}}"
        )
    name = saved.get("algorithm", DEFAULT_ALGORITHM)
    if algorithm is None and name not in ALGORITHMS and not needs_algorithm:
        return train_config(saved, None, where)
    return train_config(saved, algorithm_class(name) if algorithm is None else algorithm, where)


def import_name(kind: Any) -> str:
    """`module:Class` of an algorithm that can be imported again, so that runs need not be given it; else its name."""
    module, name = getattr(kind, "__module__", "__main__"), getattr(kind, "__qualname__", "<locals>")
    importable = isinstance(kind, type) and module != "__main__" and "<locals>" not in name and hasattr(kind, "Config")
    return f"{module}:{name}" if importable else name_of(kind)


def wrapper_name(wrapper: Any) -> str:
    """The same of what wraps envs, which may be a function too."""
    module, name = getattr(wrapper, "__module__", "__main__"), getattr(wrapper, "__qualname__", "<locals>")
    return f"{module}:{name}" if module != "__main__" and name.isidentifier() else name_of(wrapper)


def name_of(env: Any) -> str:
    """What to call an env, or an algorithm, that is no string."""
    return str(getattr(env, "__qualname__", None) or getattr(env, "__name__", None) or type(env).__name__)
