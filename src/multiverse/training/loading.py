"""`load` and `evaluate`: policies of saved runs, which are opened, migrated, validated and built as for `resume`."""

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
from multiverse.core.imports import display_name
from multiverse.core.layout import SINGLE_AGENT, Group
from multiverse.core.plan import IN_CALLER, whole_number
from multiverse.core.policy import Policy
from multiverse.core.seeds import checked_run_seed, default_test_seed
from multiverse.core.wording import short_error
from multiverse.executors.choose import plan_for
from multiverse.policies.numpy_policies import loaded_policy
from multiverse.policies.simple_policies import FunctionPolicy, RandomPolicy
from multiverse.training.config.build import accepts_old_names
from multiverse.training.config.train_config import TrainConfig
from multiverse.training.env_states import EvaluationEnvs
from multiverse.training.evaluation import Evaluation, EvaluationOptions
from multiverse.training.learners import MakeAlgorithm, keep_masks, learned_in, policies_in
from multiverse.training.policy import LoadedPolicies, LoadedPolicy
from multiverse.training.runs.checkpoint_format import Checkpoint, reading_state
from multiverse.training.runs.find_runs import SPACES, RunPath
from multiverse.training.runs.run_directory import NEW_SPACES, read_spaces
from multiverse.training.saved_runs import SavedRun, migrate, open_run, saved_num_envs, trusted_config
from multiverse.training.session_envs import RunEnvs, evaluation_tasks, saved_masks, with_tasks
from multiverse.training.space_description import NO_SPACES, groups_from, space_from
from multiverse.training.validation import RunObjects, maker_of, source_of
from multiverse.vector.make import make_vec

SELF = "self"
"""As `opponent`: the policy plays all sides, even if its run names an opponent."""


@accepts_old_names
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
    """Load the policy of a run: `mv.load(run).act(observation)`; with several agents, the policies of all:
    `.act({agent: observation})`.

    Neither needs nor builds the env, and executes no code that the run names, except the class of a user-defined
    network or of a user-defined algorithm whose policy the run cannot hold.

    Args:
        which: The `"latest"` checkpoint, or the `"best"`.
        algorithm, network, trust: As for `mv.resume`.
        env, env_kwargs: For runs of version 0.1, which do not hold their spaces.
    """
    own = RunObjects(algorithm=algorithm, network=network).filled_from(run)
    objects = RunObjects(env=env, algorithm=own.algorithm, network=own.network, env_kwargs=env_kwargs)
    saved = migrate(open_run(run, which))
    groups = None if env is not None else saved_spaces(saved.path)
    plain = groups is not None and objects.algorithm is None and objects.network is None
    if plain and (policy := _saved_policy(saved.settings, groups or (), saved.existing_checkpoint)) is not None:
        return policy
    config = trusted_config(saved.path, saved.settings, objects, trust, needs_env=groups is None)
    return _policy_of_algorithm(config, objects, groups or _groups_of_env(config, objects), saved)


def _groups_of_env(config: TrainConfig, objects: RunObjects) -> tuple[Group, ...]:
    """The groups of agents of a run, with their spaces, from its env."""
    source, agents = source_of(config, objects), AgentOptions(groups="separate" if config.separate else None)
    tasks = with_tasks(config, source)
    with make_vec(source, 1, IN_CALLER, env_kwargs=config.env_kwargs or None, agents=agents, **tasks) as envs:
        return envs.views.layout.groups


@accepts_old_names
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
    """Evaluate the policy of a run, with seeds that no training uses: `mv.evaluate(run).mean_return`.

    Args:
        episodes: Number of episodes, or the numbers of those to play.
        which: The `"latest"` checkpoint, or the `"best"`.
        seed: Seed of the episodes; equal seeds give equal episodes for all runs. Default: 1,000,000, so that they are
            not the episodes of the run's own evaluations (`evaluation_seed`), which selected its best checkpoint.
        opponent: Player of the other side: `"random"`, another run, policies (`mv.load`), or a function (observation,
            action mask or None, generator) → action. The policy's side alternates from episode to episode. `"self"`:
            the policy plays all sides. Default: as in the run's own evaluations.
        deterministic: Whether the policy takes its most likely actions or draws them. Default: as in the run's own
            evaluations (`evaluation_deterministic`).
        env, algorithm, network, env_kwargs, wrappers, trust: As for `mv.resume`.
        watch: Outermost wrapper of the env. There is only one env then, in this process.
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
    """Evaluate a saved run as `evaluate` does."""
    checkpoint = saved.existing_checkpoint
    own = objects.algorithm is not None or objects.network is not None or not _holds_policies(checkpoint)
    config = trusted_config(saved.path, saved.settings, objects, trust, needs_algorithm=own)
    if isinstance(episodes, str) or not isinstance(episodes, Sequence):
        number = episodes = whole_number("episodes", episodes)
    else:
        number = len(episodes := [whole_number("episodes", episode) for episode in episodes])
    if number < 1:
        raise InvalidRequest(f"episodes={episodes}: expected at least 1")
    count = 1 if watch else dataclasses.replace(config, evaluation_episodes=number).num_evaluation_envs
    with reading_state(checkpoint):
        masks = saved_masks(checkpoint.state["session"])
    run_envs = RunEnvs(config, source_of(config, objects), masks, outside=[watch] if watch else [])
    plan = plan_for(IN_CALLER, 1, why="watched") if watch else None
    try:
        envs = EvaluationEnvs(lambda count: run_envs.open_evaluation(count, plan), count, config.restarts_per_minute)
    except EvaluationFailed as error:  # its cause suffices: there are no envs of a training here
        raise error.__cause__ or error from None
    with closing(envs):
        groups = envs.envs.views.layout.groups
        policy = None if own else _saved_policy(vars(config), groups, checkpoint)
        policy = policy or _policy_of_algorithm(config, objects, groups, saved)
        opponent = config.evaluation_opponent if objects.opponent is None else objects.opponent
        evaluation = envs.evaluate(
            [policy.acting] if isinstance(policy, LoadedPolicy) else policy.acting,
            episodes,
            seed,
            EvaluationOptions(
                opponents=opponents_for(opponent, groups, trust),
                tasks=evaluation_tasks(config),
                deterministic=config.evaluation_deterministic if deterministic is None else deterministic,
            ),
        )
    assert evaluation is not None
    return dataclasses.replace(evaluation, of=_description(vars(config), checkpoint))


def chosen_seed(saved: SavedRun, seed: int | None) -> int:
    """Seed of an evaluation after training: the given one, or the default for this run."""
    return default_test_seed(own_evaluation_seed(saved)) if seed is None else checked_run_seed("seed", seed)


def own_evaluation_seed(saved: SavedRun) -> int:
    """Seed of the evaluations during training; 0 if the config has an invalid one, which reading it will refuse."""
    seed = saved.settings.get("evaluation_seed")
    return seed if isinstance(seed, int) else 0


def _holds_policies(checkpoint: Checkpoint) -> bool:
    with reading_state(checkpoint):
        return None not in policies_in(checkpoint.state["session"]).values()


def _saved_policy(
    settings: Mapping[str, Any], groups: Sequence[Group], checkpoint: Checkpoint
) -> LoadedPolicy | LoadedPolicies | None:
    """The policy that is saved in the checkpoint, for which the algorithm is not needed; None if there is none."""
    with reading_state(checkpoint):
        saved = policies_in(checkpoint.state["session"])
        if None in saved.values():
            return None
        policies = [loaded_policy(saved[group.name], group.observation_space, group.action_space) for group in groups]
        return _loaded(policies, groups, _description(settings, checkpoint), bool(settings.get("action_masks", True)))


def _policy_of_algorithm(
    config: TrainConfig, objects: RunObjects, groups: Sequence[Group], saved: SavedRun
) -> LoadedPolicy | LoadedPolicies:
    """The policy of the run's algorithm, after loading its weights and state."""
    checkpoint, state = saved.existing_checkpoint, (read_spaces(saved.path) or {}).get("state")
    make, policies = maker_of(config, objects, checkpoint), []
    with reading_state(checkpoint):
        learned = learned_in(checkpoint.state["session"])
        for group in groups:
            state_space = None if state is None else space_from(state)
            learner = make(group, saved_num_envs(checkpoint, config), config.seed, state_space)
            has_masks = saved_masks(checkpoint.state["session"]) is not None
            if has_masks and isinstance(group.action_space, spaces.Discrete):
                keep_masks(learner, replace(group, masks=int(group.action_space.n)))
            learner.load_weights(learned[group.name]["weights"])
            learner.load(learned[group.name]["state"])
            policies.append(learner.policy())
        return _loaded(policies, groups, _description(vars(config), checkpoint), config.action_masks)


def _loaded(
    policies: Sequence[Policy], groups: Sequence[Group], description: str, masks: bool
) -> LoadedPolicy | LoadedPolicies:
    by_agent = {
        agent: LoadedPolicy(policy, group.observation_space, group.action_space, description, masks)
        for policy, group in zip(policies, groups)
        for agent in group.agents
    }
    if list(by_agent) == [SINGLE_AGENT]:
        return by_agent[SINGLE_AGENT]
    return LoadedPolicies(by_agent, {group.name: group.agents for group in groups})


def opponents_for(opponent: Any, groups: Sequence[Group], trust: bool = False) -> list[Policy] | None:
    """Return the policies of the other side, one for each group: those of `"random"`, of a run, of its policies or of a
    function. None without an opponent, and for `"self"`. `trust`: as for `load`."""
    if opponent is None or (isinstance(opponent, str) and opponent == SELF):
        return None
    if sum(len(group.agents) for group in groups) < 2:
        raise InvalidRequest(f"opponent={opponent!r}: the env has one agent, and an opponent needs at least two")
    if isinstance(opponent, str) and opponent == "random":
        return [RandomPolicy(group.action_space) for group in groups]
    player = opponent if callable(opponent) else _function(opponent) if isinstance(opponent, str) else None
    if player is not None:
        return [FunctionPolicy(player, group.observation_space, group.action_space) for group in groups]
    policies = opponent if isinstance(opponent, LoadedPolicies | LoadedPolicy) else _of_a_run(opponent, trust)
    if not isinstance(policies, LoadedPolicies) or {*policies} != {agent for group in groups for agent in group.agents}:
        raise InvalidRequest(f"opponent={opponent!r}: that run was trained on other agents")
    for group in groups:
        policy = policies[group.agents[0]]
        if group.agents not in policies.groups.values():
            raise InvalidRequest(f"opponent={opponent!r}: its agents share learners in another way (separate)")
        if (policy.observation_space, policy.action_space) != (group.observation_space, group.action_space):
            raise InvalidRequest(f"opponent={opponent!r}: {group.agents[0]} has other spaces there")
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
    """The function that `module:function` names; None if it names a run."""
    module, colon, attribute = name.partition(":")
    if not colon or Path(name).exists():
        return None
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidRequest(f"opponent={name!r} cannot be imported: {error}") from error


def _description(settings: Mapping[str, Any], checkpoint: Checkpoint) -> str:
    algorithm, env = (display_name(str(settings.get(name))) for name in ("algorithm", "env"))
    return f"{algorithm} for {env} after {checkpoint.manifest.get('env_steps')} env steps"


def saved_spaces(run: Path) -> tuple[Group, ...] | None:
    """The groups of agents of a run, with their spaces, from its files; None in a run of a version without them."""
    if (description := read_spaces(run)) is None:
        return None
    try:
        return groups_from(description)
    except NO_SPACES as error:
        why = f"it does not describe spaces ({short_error(error)})"
        raise InvalidRequest(f"{run / SPACES} cannot be used: {why}. {NEW_SPACES}") from None
