"""Policies of runs: to act with, and to be evaluated. Opened, migrated, validated and built, as a run that goes on."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from gymnasium import spaces

from multiverse.adapters.agents import AgentOptions
from multiverse.adapters.env_source import Wrapper
from multiverse.core.errors import EvaluationFailed, InvalidRequest
from multiverse.core.imports import without_folders
from multiverse.core.layout import SINGLE_AGENT, Group
from multiverse.core.plan import IN_CALLER, whole_number
from multiverse.core.policy import Policy
from multiverse.core.seeds import checked_run_seed, default_test_seed
from multiverse.core.wording import in_a_line
from multiverse.executors.choose import plan_for
from multiverse.policies.numpy_policies import loaded_policy
from multiverse.policies.simple_policies import FunctionPolicy, RandomPolicy
from multiverse.training.config.build import takes_old_names
from multiverse.training.config.train_config import TrainConfig
from multiverse.training.evaluation import Evaluation
from multiverse.training.evaluation_envs import EvaluationEnvs
from multiverse.training.learners import MakeAlgorithm, keep_masks, learned_in, policies_in
from multiverse.training.objects import RunObjects, source_of
from multiverse.training.opening import SavedRun, migrate, open_run
from multiverse.training.policy import LoadedPolicies, LoadedPolicy
from multiverse.training.runs.checkpoint_format import Checkpoint, taken_over
from multiverse.training.runs.find_runs import SPACES, RunPath
from multiverse.training.runs.run_directory import NEW_SPACES, read_spaces
from multiverse.training.session_envs import RunEnvs, evaluation_tasks, saved_masks, with_tasks
from multiverse.training.space_description import NO_SPACES, groups_from, space_from
from multiverse.training.validation import maker_of, num_envs_in, trusted_config
from multiverse.vector.make import make_vec

SELF = "self"
"""In the place of an opponent: the policy plays all sides, also where its run names somebody else."""


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
    own = RunObjects(algorithm=algorithm, network=network).filled_from(run)
    objects = RunObjects(env=env, algorithm=own.algorithm, network=own.network, env_kwargs=env_kwargs)
    saved = migrate(open_run(run, which))
    groups = None if env is not None else saved_spaces(saved.path)
    plain = groups is not None and objects.algorithm is None and objects.network is None
    if plain and (held := _held(saved.settings, groups or (), saved.found)) is not None:
        return held
    config = trusted_config(saved.path, saved.settings, objects, trust, needs_env=groups is None)
    return _policy(config, objects, groups or _built_groups(config, objects), saved)


def _built_groups(config: TrainConfig, objects: RunObjects) -> tuple[Group, ...]:
    """What the policies of a run see and do, as its env says."""
    source, agents = source_of(config, objects), AgentOptions(groups="separate" if config.separate else None)
    tasks = with_tasks(config, source)
    with make_vec(source, 1, IN_CALLER, env_kwargs=config.env_kwargs or None, agents=agents, **tasks) as envs:
        return envs.views.layout.groups


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
    objects = RunObjects(env=env, algorithm=algorithm, network=network, wrappers=wrappers, env_kwargs=env_kwargs)
    objects = dataclasses.replace(objects.filled_from(run), opponent=opponent)
    saved = migrate(open_run(run, which))
    seed = chosen_seed(saved, seed)
    return evaluate_saved(
        saved, objects, episodes=episodes, seed=seed, deterministic=deterministic, trust=trust, watch=watch
    )


def evaluate_saved(
    saved: SavedRun,
    objects: RunObjects,
    *,
    episodes: int | Sequence[int],
    seed: int,
    deterministic: bool | None = None,
    trust: bool = False,
    watch: Wrapper | None = None,
) -> Evaluation:
    """As `evaluate`."""
    found = saved.found
    own = objects.algorithm is not None or objects.network is not None or not _holds_policies(found)
    config = trusted_config(saved.path, saved.settings, objects, trust, needs_algorithm=own)
    if isinstance(episodes, str) or not isinstance(episodes, Sequence):
        many = episodes = whole_number("episodes", episodes)
    else:
        many = len(episodes := [whole_number("episodes", one) for one in episodes])
    if many < 1:
        raise InvalidRequest(f"episodes={episodes}: at least 1")
    count = 1 if watch else dataclasses.replace(config, evaluation_episodes=many).num_evaluation_envs
    with taken_over(found):
        masks = saved_masks(found.state["session"])
    envs = RunEnvs(config, source_of(config, objects), masks, outside=[watch] if watch else [])
    here = plan_for(IN_CALLER, 1, why="watched") if watch else None
    try:
        played_on = EvaluationEnvs(lambda count: envs.open_evaluation(count, here), count, config.restarts_per_minute)
    except EvaluationFailed as error:  # there are no other envs that it must be told from
        raise error.__cause__ or error from None
    with closing(played_on):
        groups = played_on.envs.views.layout.groups
        policy = None if own else _held(vars(config), groups, found)
        policy = policy or _policy(config, objects, groups, saved)
        opponent = config.evaluation_opponent if objects.opponent is None else objects.opponent
        evaluation = played_on.evaluate(
            [policy.acting] if isinstance(policy, LoadedPolicy) else policy.acting,
            episodes,
            seed,
            opponents=opponents_for(opponent, groups, trust),
            tasks=evaluation_tasks(config),
            deterministic=config.evaluation_deterministic if deterministic is None else deterministic,
        )
    assert evaluation is not None
    return dataclasses.replace(evaluation, of=_told(vars(config), found))


def chosen_seed(saved: SavedRun, seed: int | None) -> int:
    """The seed of an evaluation after training: the one that was given, or the default one for this run."""
    return default_test_seed(own_evaluation_seed(saved)) if seed is None else checked_run_seed("seed", seed)


def own_evaluation_seed(saved: SavedRun) -> int:
    """The seed of the evaluations during training; of a file with something else there 0, and reading it will fail."""
    seed = saved.settings.get("evaluation_seed")
    return seed if isinstance(seed, int) else 0


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
    config: TrainConfig, objects: RunObjects, groups: Sequence[Group], saved: SavedRun
) -> LoadedPolicy | LoadedPolicies:
    """The policy that an algorithm of the run makes of what it has learned."""
    found, state = saved.found, (read_spaces(saved.path) or {}).get("state")
    make, acting = maker_of(config, objects, found), []
    with taken_over(found):
        learned = learned_in(found.state["session"])
        for group in groups:
            state_space = None if state is None else space_from(state)
            learner = make(group, num_envs_in(found, config), config.seed, state_space)
            if saved_masks(found.state["session"]) is not None and isinstance(group.action_space, spaces.Discrete):
                keep_masks(learner, replace(group, masks=int(group.action_space.n)))
            learner.load_weights(learned[group.name]["weights"])
            learner.load(learned[group.name]["state"])
            acting.append(learner.policy())
        return _loaded(acting, groups, _told(vars(config), found), config.action_masks)


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
        return groups_from(said)
    except NO_SPACES as error:
        wrong = f"it describes no spaces ({in_a_line(error)})"
        raise InvalidRequest(f"{run / SPACES} cannot be used: {wrong}. {NEW_SPACES}") from None
