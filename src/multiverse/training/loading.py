"""Policies of runs: to act with, and to be evaluated."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gymnasium import spaces

from multiverse.adapters.agents import AgentOptions
from multiverse.adapters.env_source import Wrapper
from multiverse.core.errors import CheckpointBroken, EvaluationFailed, InvalidRequest, in_a_line, in_words
from multiverse.core.imports import without_folders
from multiverse.core.layout import SINGLE_AGENT, Group
from multiverse.core.plan import IN_CALLER, whole_number
from multiverse.core.policy import Policy
from multiverse.core.seeds import checked_run_seed, default_test_seed
from multiverse.executors.choose import plan_for
from multiverse.policies.numpy_policies import loaded_policy
from multiverse.policies.opponents import FunctionPolicy
from multiverse.policies.random_policy import RandomPolicy
from multiverse.training.algorithm_maker import MakeAlgorithm, algorithm_maker
from multiverse.training.config.build import takes_old_names
from multiverse.training.config.train_config import TrainConfig
from multiverse.training.evaluation import Evaluation
from multiverse.training.evaluation_envs import EvaluationEnvs
from multiverse.training.learners import learned_in, policies_in, trained_on_scaled_bytes
from multiverse.training.policy import LoadedPolicies, LoadedPolicy
from multiverse.training.run_sources import (
    RunPath,
    as_name,
    at_hand,
    config_of,
    object_of,
    path_of,
    saved_settings,
    source_of,
    trusted_config,
)
from multiverse.training.runs.checkpoint import load as load_checkpoint
from multiverse.training.runs.checkpoint import load_latest, taken_over
from multiverse.training.runs.checkpoint_format import Checkpoint
from multiverse.training.runs.find_runs import SPACES, find_run
from multiverse.training.runs.run_directory import NEW_SPACES, had_checkpoint, read_spaces
from multiverse.training.session_envs import evaluation_envs_of, keep_masks, saved_masks
from multiverse.training.space_description import space_from
from multiverse.training.tasks import evaluation_tasks, with_tasks
from multiverse.vector.base import BaseVectorEnv
from multiverse.vector.make import make_vec

SELF = "self"
"""In the place of an opponent: the policy plays all sides, also where its run names somebody else."""


def _groups(envs: BaseVectorEnv) -> tuple[Group, ...]:
    return envs.views.layout.groups


@takes_old_names
def load(
    run: RunPath,
    *,
    env: Any = None,
    algorithm: MakeAlgorithm | str | None = None,
    network: Any = None,
    which: str = "latest",
    env_kwargs: Mapping[str, Any] | None = None,
    trust: bool = False,
) -> LoadedPolicy | LoadedPolicies:
    """The policy of a run, to act with: `mv.load(run).act(observation)`. `which`: `"latest"` or `"best"`. Of a run with
    several agents, those of all: `.act({agent: observation})`.

    Neither needs nor builds its env, and runs no code that the run names, except the class of an own algorithm whose
    policy the run cannot hold, or of an own network. `algorithm`, `network`, `trust`: as for `resume`. `env`,
    `env_kwargs`: for runs of 0.1, which have no spaces.
    """
    algorithm, network = at_hand(run, algorithm=algorithm, network=network)
    maker, named = as_name(algorithm)
    where, found = find_run(path_of(run)).path, checkpoint_of(run, which)
    groups = None if env is not None else saved_spaces(where)
    if groups is not None:
        if algorithm is None and network is None and (held := _held(saved_settings(where), groups, found)) is not None:
            return held
        config = trusted_config(where, None, maker, None, trust, named=named, needs_env=False, network=network)
        return _policy(config, maker, groups, found, where, network)
    config = trusted_config(where, env, maker, env_kwargs, trust, named=named, network=network)
    source, agents = source_of(config, env), AgentOptions(groups="separate" if config.separate else None)
    tasks = with_tasks(config, source)
    with make_vec(source, 1, IN_CALLER, env_kwargs=config.env_kwargs or None, agents=agents, **tasks) as envs:
        groups = _groups(envs)
    return _policy(config, maker, groups, found, where, network)


@takes_old_names
def evaluate(
    run: RunPath,
    *,
    episodes: int | Sequence[int] = 100,
    seed: int | None = None,
    which: str = "latest",
    env: Any = None,
    algorithm: MakeAlgorithm | str | None = None,
    network: Any = None,
    env_kwargs: Mapping[str, Any] | None = None,
    opponent: Any = None,
    deterministic: bool | None = None,
    trust: bool = False,
    wrappers: Sequence[Wrapper | str] | None = None,
    watch: Wrapper | None = None,
) -> Evaluation:
    """How good a run's policy is, on seeds no training sees: `mv.evaluate(run).mean_return`.

    Args:
        episodes: how many, or the numbers of those to play.
        which: the `"latest"` checkpoint, or the `"best"`.
        seed: equal seeds give equal episodes, whatever the training. Default: 1,000,000, so that the episodes are not
            those of the run's own evaluations (`evaluation_seed`), on which its best checkpoint was selected.
        opponent: who plays the other side: `"random"`, another run, policies (`mv.load`), or a function (observation,
            open actions or None, generator) → action; the policy's side alternates from episode to episode. `"self"`:
            the policy plays all sides. Default: as in the run's own evaluations.
        deterministic: its most likely actions, or drawn ones. Default: as in the run's own evaluations
            (`evaluation_deterministic`).
        env, algorithm, network, env_kwargs, trust: as for `mv.resume`.
        watch: wraps the env, of which there is only one then, in this process.
    """
    seed = chosen_seed(run, seed)
    env, algorithm, wrappers, network = at_hand(run, env=env, algorithm=algorithm, wrappers=wrappers, network=network)
    found = checkpoint_of(run, which)
    where = find_run(path_of(run)).path
    needed = algorithm is not None or network is not None or not _holds_policies(found)
    maker, named = as_name(algorithm)
    config = trusted_config(
        where, env, maker, env_kwargs, trust, wrappers, needs_algorithm=needed, named=named, network=network
    )
    if isinstance(episodes, str) or not isinstance(episodes, Sequence):
        many = episodes = whole_number("episodes", episodes)
    else:
        many = len(episodes := [whole_number("episodes", one) for one in episodes])
    if many < 1:
        raise InvalidRequest(f"episodes={episodes}: at least 1")
    count = 1 if watch else dataclasses.replace(config, evaluation_episodes=many).num_evaluation_envs
    source = source_of(config, env, wrappers)
    tasks = with_tasks(config, source, *([watch] if watch else []))
    here = plan_for(IN_CALLER, 1, None, None, "auto", "watched") if watch else None
    with taken_over(found):
        masks = saved_masks(found.state["session"])
    make = partial(evaluation_envs_of, config, source, here, tasks, masks=masks)
    try:
        played_on = EvaluationEnvs(make, count, config.restarts_per_minute)
    except EvaluationFailed as error:  # there are no other envs that it must be told from
        raise error.__cause__ or error from None
    try:
        groups = _groups(played_on.envs)
        held = None if needed else _held(vars(config), groups, found)
        policy = held or _policy(config, maker, groups, found, where, network)
        acting = policy.acting if isinstance(policy, LoadedPolicies) else [policy.acting]
        against = opponents_for(config.evaluation_opponent if opponent is None else opponent, groups, trust)
        likely = config.evaluation_deterministic if deterministic is None else deterministic
        how = against, evaluation_tasks(config), likely
        found_out = played_on.evaluate(acting, episodes, seed, lambda: False, (), *how)
    finally:
        played_on.close()
    assert found_out is not None
    return dataclasses.replace(found_out, of=_told(vars(config), found))


def chosen_seed(run: RunPath, seed: int | None) -> int:
    """The seed of an evaluation after training: the one that was given, or the default one for this run."""
    if seed is not None:
        return checked_run_seed("seed", seed)
    return default_test_seed(own_evaluation_seed(run))


def own_evaluation_seed(run: RunPath) -> int:
    """The seed of the evaluations during training; of a file with something else there 0, and reading it will fail."""
    saved = config_of(run).get("evaluation_seed")
    return saved if isinstance(saved, int) else 0


def _holds_policies(found: Checkpoint) -> bool:
    with taken_over(found):
        return None not in policies_in(found.state["session"]).values()


def _held(saved: Mapping[str, Any], groups: Sequence[Group], found: Checkpoint) -> LoadedPolicy | LoadedPolicies | None:
    """The policy that the run itself holds: nothing of its algorithm is needed. None if it holds none."""
    with taken_over(found):
        held = policies_in(found.state["session"])
        if None in held.values():
            return None
        acting = [loaded_policy(held[one.name], one.observation_space, one.action_space) for one in groups]
        return _loaded(acting, groups, _told(saved, found), bool(saved.get("action_masks", True)))


def _policy(
    config: TrainConfig,
    algorithm: MakeAlgorithm | None,
    groups: Sequence[Group],
    found: Checkpoint,
    run: Path,
    network: Any = None,
) -> LoadedPolicy | LoadedPolicies:
    make, acting = algorithm_maker(config, algorithm, scales_bytes(found), object_of(network)), []
    state = (read_spaces(run) or {}).get("state")
    with taken_over(found):
        learned = learned_in(found.state["session"])
        for group in groups:
            agents, saved = len(group.agents), learned[group.name]
            slots = num_envs_in(found.state, config) * agents
            state_space = None if state is None else space_from(state)
            learner = make(group.observation_space, group.action_space, slots, config.seed, agents, state_space)
            if saved_masks(found.state["session"]) is not None and isinstance(group.action_space, spaces.Discrete):
                keep_masks(learner, replace(group, masks=int(group.action_space.n)))
            learner.load_weights(saved["weights"])
            learner.load(saved["state"])
            acting.append(learner.policy())
        return _loaded(acting, groups, _told(vars(config), found), config.action_masks)


def scales_bytes(learned_from: Checkpoint | None) -> bool:
    """Whether an algorithm that continues from this checkpoint scales bytes; True if it starts without one."""
    if learned_from is None:
        return True
    with taken_over(learned_from):
        return trained_on_scaled_bytes(learned_from.state["session"])


def num_envs_in(state: Mapping[str, Any], config: TrainConfig) -> int:
    """Of a run as it was when it was saved."""
    return len(state["session"]["envs"]["episodes"]) if config.num_envs == "auto" else config.num_envs


def _loaded(acting: Sequence[Policy], groups: Sequence[Group], told: str, masks: bool) -> LoadedPolicy | LoadedPolicies:
    by_agent = {
        agent: LoadedPolicy(policy, group.observation_space, group.action_space, told, masks)
        for policy, group in zip(acting, groups)
        for agent in group.agents
    }
    if list(by_agent) == [SINGLE_AGENT]:
        return by_agent[SINGLE_AGENT]
    return LoadedPolicies(by_agent, {group.name: group.agents for group in groups})


def opponents_for(opponent: Any, groups: Sequence[Group], trust: bool = False) -> list[Policy] | None:
    """Who plays the other side, for each group: `"random"`, a run, its policies, or a function; None for nobody, which
    is also what `"self"` means. `trust`: of a run, as for `load`."""
    if opponent is None or (isinstance(opponent, str) and opponent == SELF):
        return None
    if sum(len(group.agents) for group in groups) < 2:
        raise InvalidRequest(f"opponent={opponent!r}: there is no other side, the env has one agent")
    if isinstance(opponent, str) and opponent == "random":
        return [RandomPolicy(group.action_space) for group in groups]
    player = opponent if callable(opponent) else _function(opponent) if isinstance(opponent, str) else None
    if player is not None:
        return [FunctionPolicy(player, group.observation_space, group.action_space) for group in groups]
    policies = opponent if isinstance(opponent, LoadedPolicies | LoadedPolicy) else _of_a_run(opponent, trust)
    if not isinstance(policies, LoadedPolicies) or {*policies} != {agent for group in groups for agent in group.agents}:
        raise InvalidRequest(f"opponent={opponent!r}: that run was trained on other agents")
    for group in groups:
        theirs = policies[group.agents[0]]
        if group.agents not in policies.groups.values():
            raise InvalidRequest(f"opponent={opponent!r}: its agents share learners in another way (separate)")
        if (theirs.observation_space, theirs.action_space) != (group.observation_space, group.action_space):
            raise InvalidRequest(f"opponent={opponent!r}: {group.agents[0]} sees or does something else there")
    return [policies[group.agents[0]].acting for group in groups]


def _of_a_run(opponent: Any, trust: bool) -> LoadedPolicy | LoadedPolicies:
    if not isinstance(opponent, str | Path) and not hasattr(opponent, "path"):
        raise InvalidRequest(f"opponent={opponent!r}: expected 'random', 'self', a run, its policies, or a function")
    if not opponent:
        raise InvalidRequest("opponent='': expected 'random', 'self', a run, or module:function")
    if isinstance(opponent, str) and opponent.startswith("<"):
        raise InvalidRequest(
            f"the evaluation_opponent of this run, {opponent}, was an object of the program that trained it: pass it "
            "again (evaluate: opponent=…, or opponent='self')"
        )
    try:
        return load(opponent, trust=trust)
    except InvalidRequest as error:
        raise InvalidRequest(f"opponent: {error}; or 'random', 'self', or module:function") from error


def _function(name: str) -> Any:
    """What `module:function` names; None if it names a run."""
    module, colon, attribute = name.partition(":")
    if not colon or Path(name).exists():
        return None
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidRequest(f"opponent={name!r} cannot be imported: {error}") from error


def _told(saved: Mapping[str, Any], found: Checkpoint) -> str:
    algorithm, env = (without_folders(str(saved.get(name))) for name in ("algorithm", "env"))
    return f"{algorithm} for {env} after {found.manifest.get('env_steps')} env steps"


def saved_spaces(run: Path) -> tuple[Group, ...] | None:
    """What the policies of a run see and do, as the run itself says; None if it does not."""
    if (said := read_spaces(run)) is None:
        return None
    try:
        each = said.get("groups") or [{"group": SINGLE_AGENT, "agents": [SINGLE_AGENT], **said}]
        return tuple(
            Group(str(one["group"]), tuple(one["agents"]), space_from(one["observation"]), space_from(one["action"]))
            for one in each
        )
    except (
        ValueError,
        TypeError,
        LookupError,
        ArithmeticError,
        AssertionError,
        AttributeError,
        RecursionError,
    ) as error:
        wrong = f"it describes no spaces ({in_a_line(error)})"
        raise InvalidRequest(f"{run / SPACES} cannot be used: {wrong}. {NEW_SPACES}") from None


def checkpoint_of(run: RunPath, which: str = "latest") -> Checkpoint:
    """A run's latest good checkpoint, its best one, or the very one that the path names."""
    found = find_run(path_of(run))
    if found.checkpoint is not None:
        return load_checkpoint(found.checkpoint)
    if which == "best":
        best = found.path / "checkpoints" / "best"
        try:
            return load_checkpoint(best)
        except CheckpointBroken:
            if best.exists() or load_latest(best.parent) is None:
                raise
            told = "no evaluation has found a best checkpoint yet; the latest (which='latest', --which latest) is there"
            raise InvalidRequest(f"{found.path}: {told}") from None
    if which != "latest":
        raise InvalidRequest(f"which={which!r}: 'latest' or 'best'")
    latest = load_latest(found.path / "checkpoints")
    if latest is None:
        raise InvalidRequest(
            f"{found.path}: this run has no checkpoint {'any more' if had_checkpoint(found.path) else 'yet'}"
        )
    return latest


def steps_of(found: Checkpoint) -> int:
    """Env steps of the run when a checkpoint was taken, as its manifest says."""
    steps = found.manifest.get("env_steps")
    if type(steps) is not int or steps < 0:
        raise CheckpointBroken(found.path, f"its manifest has {in_words(steps)} env steps")
    return steps
