"""Config files of meta-RL (sections env, train, eval and policy), which count in rollouts and iterations.

Their settings, named as in pomdp-baselines, are converted to settings of a run. Unknown settings are refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium

from multiverse.adapters.env_source import recipes
from multiverse.core.errors import InvalidConfig, InvalidRequest
from multiverse.core.plan import IN_CALLER, IN_PROCESSES
from multiverse.core.wording import did_you_mean, short_repr
from multiverse.training.config.build import Located, place_of
from multiverse.training.config.resolve import config_for
from multiverse.wrappers.meta_episode import HOOKS

OURS = "multiverse/"
"""Namespace of our environments, which may be left out."""
ALGORITHMS = {"sac": "sac", "td3": "td3", "sacd": "discrete_sac", "discrete_sac": "discrete_sac", "dqn": "dqn"}
ARCHITECTURES = ("mlp", "memory", "memory-markov")
POLICY = {
    "rnn_hidden_size": "memory_size", "observ_embedding_size": "observation_embedding",
    "action_embedding_size": "action_embedding", "reward_embedding_size": "reward_embedding",
    "dqn_layers": "hidden_sizes", "policy_layers": "hidden_sizes", "lr": "learning_rate", "gamma": "gamma",
    "tau": "tau", "entropy_alpha": "entropy_coef", "target_entropy": "target_entropy",
}  # fmt: skip
"""Settings of the algorithm by their names in these files."""
KNOWN: dict[str, dict[str, tuple[str, ...]]] = {
    "env": {
        "env_type": (), "env_name": ("env",), "max_rollouts_per_task": ("episodes_per_task",),
        "num_train_tasks": ("tasks",), "num_eval_tasks": ("held_out_tasks", "evaluation_episodes"),
        "num_parallel_workers": ("num_envs", "executor", "workers"), "oracle": ("oracle",),
    },
    "train": {
        "num_iters": ("env_steps",), "num_init_rollouts_pool": ("learning_starts",),
        "num_rollouts_per_iter": ("steps_per_env",), "buffer_size": ("buffer_size",),
        "num_updates_per_iter": ("gradient_steps", "updates_per_step"), "batch_size": ("batch_size", "sequences"),
        "sampled_seq_len": ("sequence_length",),
    },
    "eval": {"log_interval": ("evaluate_every",)},
    "policy": {
        "algo_name": ("algorithm",), "seq_model": ("memory",), "arch": ("markov_actor",),
        **{theirs: (ours,) for theirs, ours in POLICY.items()},
    },
}  # fmt: skip
"""Settings of a run by section and key."""
COUNTED = ("env", "num_envs", "episodes_per_task", "steps_per_env")
"""Settings that determine the length of an iteration, from which all numbers of env steps are computed."""
DEFAULTS = {"max_rollouts_per_task": 1, "num_train_tasks": 0, "num_eval_tasks": 0, "num_parallel_workers": 4,
            "num_init_rollouts_pool": 0, "buffer_size": 1_000_000, "batch_size": 32, "sampled_seq_len": -1,
            "log_interval": 10, "num_iters": 3000, "num_updates_per_iter": 0.02}  # fmt: skip


class RolloutSettings(Located):
    """Settings of a run with the places of the keys in the file from which they come."""

    def check_beside(self, given: Mapping[str, Any]) -> None:
        """Refuse settings that would change the length of an iteration, and name the key to change instead."""
        for name in COUNTED:
            counted = _short(self.get(name, 1))
            if name in given and _short(given[name]) != counted:
                wrong = f"the iterations of this config are computed with {counted}; change {self.places[name]} instead"
                raise InvalidConfig(place_of(given, name), wrong)


def counts_rollouts(file: Mapping[str, Any]) -> bool:
    """Return whether a config has one of these sections, which may be empty."""
    others = [file[name] for name in KNOWN if name in file and name != "env"]
    return isinstance(file.get("env"), Mapping) or any(isinstance(one, Mapping | None) for one in others)


def rollout_settings(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of `mv.train`, including env and algorithm, from the sections of such a config.

    An iteration is one update: each environment plays as many rollouts of full length as are needed for
    `num_rollouts_per_iter`. The settings depend on each other, so only the sections should be changed.
    """
    for name in sections:
        if name != "seed" and name not in KNOWN:
            raise InvalidConfig(
                place_of(sections, name), "there is no such section", did_you_mean(name, ["seed", *KNOWN])
            )
    settings = _Sections(sections).settings()
    rest = Located({key: value for key, value in settings.items() if key not in ("env", "algorithm", "preset")},
                   settings.places)  # fmt: skip
    config_for(settings["env"], settings["algorithm"], rest, preset=False)  # refuses invalid values
    return settings


def _short(value: Any) -> Any:
    """Return the id of one of our environments without its namespace; other values unchanged."""
    return value.removeprefix(OURS) if isinstance(value, str) else value


class _Sections:
    """Sections of a file: their values with their places."""

    def __init__(self, sections: Mapping[str, Any]) -> None:
        self._given: dict[str, Mapping[str, Any]] = {}
        self._all = sections
        for name, known in KNOWN.items():
            section = {} if sections.get(name) is None else sections[name]
            if not isinstance(section, Mapping):
                raise InvalidConfig(place_of(sections, name), f"expected settings, found {short_repr(section)}")
            for key in section:
                if key not in known:
                    place = place_of(section, key, f"{name}.")
                    raise InvalidConfig(place, "there is no such setting", did_you_mean(key, [*known]))
            self._given[name] = section

    def _place(self, name: str, key: str) -> str:
        """Return the place of a key; if it is missing, that of its section or file."""
        if key in self._given[name]:
            return place_of(self._given[name], key, f"{name}.")
        if name in self._all:
            return f"{place_of(self._all, name)}.{key}"
        file = next((place_of(self._all, one).rpartition(", line ")[0] for one in self._all), "")
        return f"{file}: {name}.{key}" if file else f"{name}.{key}"

    def _refused(self, name: str, key: str, wrong: str, hint: str = "") -> InvalidConfig:
        return InvalidConfig(self._place(name, key), wrong, hint)

    def _number(self, name: str, key: str, least: float) -> int | float:
        value = self._given[name].get(key, DEFAULTS.get(key))
        if value is None:
            raise self._refused(name, key, "missing")
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < math.inf:
            raise self._refused(name, key, f"expected a number of at least {least:g}, found {short_repr(value)}")
        return value

    def _whole(self, name: str, key: str, least: int) -> int:
        """Return a whole number, which may be written as 1e6."""
        number = self._number(name, key, least)
        if number != int(number):
            raise self._refused(name, key, f"expected a whole number, found {number}")
        return int(number)

    def settings(self) -> RolloutSettings:
        episodes, workers = (
            self._whole("env", "max_rollouts_per_task", 1),
            self._whole("env", "num_parallel_workers", 1),
        )
        env, horizon = self._env(episodes)
        rollouts = math.ceil(self._whole("train", "num_rollouts_per_iter", 1) / workers)  # of each env
        length, updates = episodes * horizon, self._number("train", "num_updates_per_iter", 0)
        if updates == 0:
            raise self._refused("train", "num_updates_per_iter", f"expected a number above 0, found {updates}")
        iteration, first = rollouts * workers * length, self._whole("train", "num_init_rollouts_pool", 0) * length
        seed = {"seed": self._all["seed"]} if "seed" in self._all else {}
        return RolloutSettings({
            **seed, **env, **self._policy(),
            "num_envs": workers,
            "executor": IN_CALLER if workers == 1 else IN_PROCESSES,
            "workers": None if workers == 1 else workers,
            "env_steps": first + self._whole("train", "num_iters", 1) * iteration,
            "learning_starts": first,
            "steps_per_env": rollouts * length,
            "buffer_size": self._whole("train", "buffer_size", workers),
            "gradient_steps": updates if isinstance(updates, int) else None,
            **({} if isinstance(updates, int) else {"updates_per_step": updates}),
            "evaluate_every": self._whole("eval", "log_interval", 1) * iteration,
            "preset": False,  # such a file is complete
        }, self._places())  # fmt: skip

    def _places(self) -> dict[str, str]:
        """Return the place of the key of each setting; if two keys have it, of the one that is given."""
        keys = [(name, key) for name, known in KNOWN.items() for key in known]
        keys.sort(key=lambda one: one[1] in self._given[one[0]])
        ours = {name: place_of(self._all, name) for name in self._all if name == "seed"}
        for name, key in keys:
            named = (self._ours()[key],) if name == "policy" and key in POLICY else KNOWN[name][key]
            ours |= dict.fromkeys(named, self._place(name, key))
        return ours

    def _ours(self) -> dict[str, str]:
        """Return the settings of the algorithm by their names in the file. The target entropy of discrete SAC is a
        share of the maximum."""
        discrete = ALGORITHMS.get(self._given["policy"].get("algo_name", "sac")) == "discrete_sac"
        return {**POLICY, "target_entropy": "target_entropy_ratio"} if discrete else POLICY

    def _env(self, episodes: int) -> tuple[dict[str, Any], int]:
        """Return the settings of the env and the number of steps of an episode; `episodes`: per task."""
        given = self._given["env"]
        named, kind = given.get("env_name"), given.get("env_type", "meta")
        if kind not in ("meta", "pomdp"):
            raise self._refused("env", "env_type", f"expected meta or pomdp, found {short_repr(kind)}")
        if not isinstance(named, str) or ":" in named:  # files that are not trusted must not import modules
            missing = "missing" if named is None else f"expected a Gymnasium id, found {short_repr(named)}"
            raise self._refused("env", "env_name", missing)
        name = f"{OURS}{named}" if f"{OURS}{named}" in gymnasium.registry else named
        held_out, train = self._whole("env", "num_eval_tasks", 0), self._whole("env", "num_train_tasks", kind == "meta")
        env = self._built(name)
        try:
            horizon = env.get_wrapper_attr("horizon") if env.has_wrapper_attr("horizon") else None
            horizon = horizon or (env.spec and env.spec.max_episode_steps)
            if kind == "meta":
                self._check_tasks(env, train + held_out)
        finally:
            env.close()
        if not horizon:
            raise self._refused(
                "env",
                "env_name",
                "the length of its episodes is unknown: it needs an attribute horizon or max_episode_steps in its spec",
            )
        if kind == "pomdp":
            for key in ("num_train_tasks", "oracle"):
                if given.get(key):
                    raise self._refused("env", key, "environments of type pomdp have no tasks: leave it out")
            if episodes > 1:
                raise self._refused(
                    "env", "max_rollouts_per_task", "expected 1, because environments of type pomdp have no tasks"
                )
            return {"env": name, **({"evaluation_episodes": held_out} if held_out else {})}, int(horizon)
        return {
            "env": name, "tasks": train, "held_out_tasks": held_out, "evaluation_episodes": held_out or train,
            "episodes_per_task": episodes, "oracle": given.get("oracle", False),
        }, int(horizon)  # fmt: skip

    def _built(self, name: str) -> Any:
        try:
            return recipes(name, 1, None, None)[0].build_foreign()
        except InvalidRequest as error:
            ours = [one.removeprefix(OURS) for one in gymnasium.registry if one.startswith(OURS)]
            wrong = str(error).removeprefix(f"env={name!r}: ").partition(" Did you mean")[0].rstrip(".")
            hint = did_you_mean(_short(name), ours, gymnasium.registry) if "doesn't exist" in wrong else ""
            raise self._refused("env", "env_name", wrong, hint) from None

    def _check_tasks(self, env: Any, count: int) -> None:
        """Check that the env can draw this number of tasks, before the run starts."""
        if missing := [hook for hook in HOOKS if not env.has_wrapper_attr(hook)]:
            raise self._refused(
                "env", "env_name", f"this environment has no tasks: type meta needs {', '.join(missing)}"
            )
        try:
            env.reset(seed=0)
            env.get_wrapper_attr("sample_tasks")(count)
        except InvalidRequest as error:
            raise self._refused("env", "num_train_tasks", f"with num_eval_tasks, {count}: {error}") from None

    def _policy(self) -> dict[str, Any]:
        given = self._given["policy"]
        name, memory = given.get("algo_name", "sac"), given.get("seq_model", "mlp")
        kind = given.get("arch", "mlp" if memory == "mlp" else "memory")
        if not isinstance(name, str) or name not in ALGORITHMS:
            raise self._refused(
                "policy", "algo_name", f"there is no {short_repr(name)}", did_you_mean(str(name), [*ALGORITHMS])
            )
        if memory not in ("mlp", "lstm", "gru"):
            raise self._refused("policy", "seq_model", f"expected mlp, lstm or gru, found {short_repr(memory)}")
        if kind not in ARCHITECTURES or (kind == "mlp") != (memory == "mlp"):
            expected = ARCHITECTURES[0] if memory == "mlp" else "memory or memory-markov"
            wrong = f"expected {expected} with seq_model {memory}, found {short_repr(kind)}"
            raise self._refused("policy", "arch", wrong)
        layers = [key for key in ("policy_layers", "dqn_layers") if key in given]
        for key in layers:
            if not isinstance(given[key], list | tuple):
                raise self._refused(
                    "policy", key, f"expected a list such as [128, 128], found {short_repr(given[key])}"
                )
        if any(list(given[key]) != list(given[layers[0]]) for key in layers):
            raise self._refused(
                "policy", "dqn_layers", "actor and critics have the same layers: expected the same as policy_layers"
            )
        batch, length = self._whole("train", "batch_size", 1), self._whole("train", "sampled_seq_len", -1)
        if length == 0:
            raise self._refused("train", "sampled_seq_len", "expected a number of steps, or -1 for whole episodes")
        ours = self._ours()
        return {
            "algorithm": ALGORITHMS[name],
            **{ours[key]: value for key, value in given.items() if key in ours},
            "memory": None if memory == "mlp" else memory,
            **({"batch_size": batch} if memory == "mlp" else {"sequences": batch}),
            "sequence_length": None if length == -1 else length,
            "markov_actor": kind == "memory-markov",
        }
