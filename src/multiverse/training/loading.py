"""Policies of runs: to act with, and to be evaluated."""

from __future__ import annotations

import dataclasses
import importlib
import logging
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import gymnasium

from multiverse.adapters.env_source import BUILT_IN, Wrapper, wrapped
from multiverse.algorithms import ALGORITHMS
from multiverse.contracts.errors import CheckpointBroken, EvaluationFailed, InvalidRequest, in_a_line, in_words
from multiverse.contracts.imports import without_folders
from multiverse.contracts.layout import SINGLE_AGENT, Group
from multiverse.contracts.plan import whole_number
from multiverse.contracts.policy import Policy
from multiverse.contracts.seeds import checked_run_seed
from multiverse.executors.choose import plan_for
from multiverse.experience.numpy_policies import loaded_policy
from multiverse.experience.opponents import FunctionPolicy
from multiverse.experience.random_policy import RandomPolicy
from multiverse.training.algorithm_maker import MakeAlgorithm, algorithm_maker
from multiverse.training.config.build import in_todays_names, takes_old_names
from multiverse.training.config.files import read_config
from multiverse.training.config.train_config import TrainConfig, import_name, name_of, saved_config, wrapper_name
from multiverse.training.evaluation import Evaluation
from multiverse.training.evaluation_envs import EvaluationEnvs
from multiverse.training.learners import learned_in, policies_in
from multiverse.training.policy import LoadedPolicies, LoadedPolicy
from multiverse.training.session_envs import evaluation_envs_of
from multiverse.training.space_description import space_from
from multiverse.training.storage.checkpoint import load as load_checkpoint
from multiverse.training.storage.checkpoint import load_latest, taken_over
from multiverse.training.storage.checkpoint_format import Checkpoint
from multiverse.training.storage.find_runs import CONFIG, SPACES, find_run
from multiverse.training.storage.origin import check_trusted, names_code
from multiverse.training.storage.run_directory import NEW_SPACES, had_checkpoint, read_mark, read_spaces
from multiverse.training.tasks import evaluation_tasks, with_tasks
from multiverse.vector.base import BaseVectorEnv
from multiverse.vector.make import make_vec

log = logging.getLogger("multiverse")


class HasPath(Protocol):
    """A run that has come to its end knows where it lies."""

    @property
    def path(self) -> Path: ...


RunPath = HasPath | Path | str
SELF = "self"
"""In the place of an opponent: the policy plays all sides, also where its run names somebody else."""


def _groups(envs: BaseVectorEnv) -> tuple[Group, ...]:
    return envs.views.layout.groups


@takes_old_names
def load(
    run: RunPath,
    *,
    env: Any = None,
    algorithm: MakeAlgorithm | None = None,
    which: str = "latest",
    env_kwargs: Mapping[str, Any] | None = None,
    trust: bool = False,
) -> LoadedPolicy | LoadedPolicies:
    """The policy of a run, to act with: `mv.load(run).act(observation)`. `which`: `"latest"` or `"best"`. Of a run with
    several agents, those of all: `.act({agent: observation})`.

    Neither needs nor builds its env, and runs no code that the run names. `algorithm`: as for `resume`. `env`,
    `env_kwargs`, `trust`: for runs of 0.1, which do not say what their policies see and do.
    """
    (algorithm,) = at_hand(run, algorithm=algorithm)
    where, found = find_run(path_of(run)).path, checkpoint_of(run, which)
    groups = None if env is not None else saved_spaces(where)
    if groups is not None:
        saved = _saved(where)
        if algorithm is None and (held := _held(saved, groups, found)) is not None:
            return held
        config = saved_config(saved, str(where / CONFIG), algorithm, needs_env=False)
        return _policy(config, algorithm, groups, found, where)
    config = trusted_config(where, env, algorithm, env_kwargs, trust)
    how: dict[str, Any] = {"env_kwargs": config.env_kwargs or None, "groups": "separate" if config.separate else None}
    how |= with_tasks(config, source_of(config, env))
    with make_vec(source_of(config, env), 1, "serial", **how) as envs:
        groups = _groups(envs)
    return _policy(config, algorithm, groups, found, where)


@takes_old_names
def evaluate(
    run: RunPath,
    *,
    episodes: int | Sequence[int] = 100,
    seed: int = 0,
    which: str = "latest",
    env: Any = None,
    algorithm: MakeAlgorithm | None = None,
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
        seed: equal seeds give equal episodes, whatever the training.
        opponent: who plays the other side: `"random"`, another run, policies (`mv.load`), or a function (observation,
            open actions or None, generator) → action; the policy's side alternates from episode to episode. `"self"`:
            the policy plays all sides. Default: as in the run's own evaluations.
        deterministic: its most likely actions, or drawn ones. Default: as in the run's own evaluations
            (`evaluation_deterministic`).
        env, algorithm, env_kwargs, trust: as for `mv.resume`.
        watch: wraps the env, of which there is only one then, in this process.
    """
    checked_run_seed("seed", seed)
    env, algorithm, wrappers = at_hand(run, env=env, algorithm=algorithm, wrappers=wrappers)
    found = checkpoint_of(run, which)
    where, needed = find_run(path_of(run)).path, algorithm is not None or not _holds_policies(found)
    config = trusted_config(where, env, algorithm, env_kwargs, trust, wrappers, needs_algorithm=needed)
    if isinstance(episodes, str) or not isinstance(episodes, Sequence):
        many = episodes = whole_number("episodes", episodes)
    else:
        many = len(episodes := [whole_number("episodes", one) for one in episodes])
    if many < 1:
        raise InvalidRequest(f"episodes={episodes}: at least 1")
    count = 1 if watch else dataclasses.replace(config, evaluation_episodes=many).num_evaluation_envs
    source = source_of(config, env, wrappers)
    tasks = with_tasks(config, source, *([watch] if watch else []))
    here = plan_for("serial", 1, None, None, "auto", "watched") if watch else None
    make = partial(evaluation_envs_of, config, source, here, tasks)
    try:
        played_on = EvaluationEnvs(make, count, config.restarts_per_minute)
    except EvaluationFailed as error:  # there are no other envs that it must be told from
        raise error.__cause__ or error from None
    try:
        groups = _groups(played_on.envs)
        held = None if needed else _held(vars(config), groups, found)
        policy = held or _policy(config, algorithm, groups, found, where)
        acting = policy.acting if isinstance(policy, LoadedPolicies) else [policy.acting]
        against = opponents_for(config.evaluation_opponent if opponent is None else opponent, groups)
        likely = config.evaluation_deterministic if deterministic is None else deterministic
        how = against, evaluation_tasks(config), likely
        found_out = played_on.evaluate(acting, episodes, seed, lambda: False, (), *how)
    finally:
        played_on.close()
    assert found_out is not None
    return dataclasses.replace(found_out, of=_told(vars(config), found))


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
        return _loaded(acting, groups, _told(saved, found))


def _policy(
    config: TrainConfig, algorithm: MakeAlgorithm | None, groups: Sequence[Group], found: Checkpoint, run: Path
) -> LoadedPolicy | LoadedPolicies:
    make, acting, state = algorithm_maker(config, algorithm), [], (read_spaces(run) or {}).get("state")
    with taken_over(found):
        learned = learned_in(found.state["session"])
        for group in groups:
            agents, saved = len(group.agents), learned[group.name]
            slots = num_envs_in(found.state, config) * agents
            state_space = None if state is None else space_from(state)
            learner = make(group.observation_space, group.action_space, slots, config.seed, agents, state_space)
            learner.load_weights(saved["weights"])
            learner.load(saved["state"])
            acting.append(learner.policy())
        return _loaded(acting, groups, _told(vars(config), found))


def num_envs_in(state: Mapping[str, Any], config: TrainConfig) -> int:
    """Of a run as it was when it was saved."""
    return len(state["session"]["envs"]["episodes"]) if config.num_envs == "auto" else config.num_envs


def _loaded(acting: Sequence[Policy], groups: Sequence[Group], told: str) -> LoadedPolicy | LoadedPolicies:
    by_agent = {
        agent: LoadedPolicy(policy, group.observation_space, group.action_space, told)
        for policy, group in zip(acting, groups)
        for agent in group.agents
    }
    if list(by_agent) == [SINGLE_AGENT]:
        return by_agent[SINGLE_AGENT]
    return LoadedPolicies(by_agent, {group.name: group.agents for group in groups})


def opponents_for(opponent: Any, groups: Sequence[Group]) -> list[Policy] | None:
    """Who plays the other side, for each group: `"random"`, a run, its policies, or a function; None for nobody, which
    is also what `"self"` means."""
    if opponent is None or (isinstance(opponent, str) and opponent == SELF):
        return None
    if sum(len(group.agents) for group in groups) < 2:
        raise InvalidRequest(f"opponent={opponent!r}: there is no other side, the env has one agent")
    if isinstance(opponent, str) and opponent == "random":
        return [RandomPolicy(group.action_space) for group in groups]
    player = opponent if callable(opponent) else _function(opponent) if isinstance(opponent, str) else None
    if player is not None:
        return [FunctionPolicy(player, group.observation_space, group.action_space) for group in groups]
    policies = opponent if isinstance(opponent, LoadedPolicies | LoadedPolicy) else _of_a_run(opponent)
    if not isinstance(policies, LoadedPolicies) or {*policies} != {agent for group in groups for agent in group.agents}:
        raise InvalidRequest(f"opponent={opponent!r}: that run was trained on other agents")
    for group in groups:
        theirs = policies[group.agents[0]]
        if group.agents not in policies.groups.values():
            raise InvalidRequest(f"opponent={opponent!r}: its agents share learners in another way (separate)")
        if (theirs.observation_space, theirs.action_space) != (group.observation_space, group.action_space):
            raise InvalidRequest(f"opponent={opponent!r}: {group.agents[0]} sees or does something else there")
    return [policies[group.agents[0]].acting for group in groups]


def _of_a_run(opponent: Any) -> LoadedPolicy | LoadedPolicies:
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
        return load(opponent)
    except InvalidRequest as error:
        raise InvalidRequest(f"opponent: {error}; or 'random', 'self', or module:function") from error


def opponent_name(opponent: Any) -> str:
    """Of one that is no text, what a config can hold: where its run lies, `module:function` if that can be imported
    again, else a name in angle brackets."""
    if isinstance(opponent, Path) or hasattr(opponent, "path"):
        return str(path_of(opponent))
    module, name = getattr(opponent, "__module__", ""), name_of(opponent)
    if module != "__main__" and getattr(sys.modules.get(module), name, None) is opponent:
        return f"{module}:{name}"
    return f"<{name.strip('<>')}>"


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
    env = without_folders(str(saved.get("env")))
    return f"{saved.get('algorithm')} for {env} after {found.manifest.get('env_steps')} env steps"


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


def config_of(run: RunPath) -> dict[str, Any]:
    """The settings of a run as it has saved them."""
    return _saved(find_run(path_of(run)).path)


def steps_of(found: Checkpoint) -> int:
    """Env steps of the run when a checkpoint was taken, as its manifest says."""
    steps = found.manifest.get("env_steps")
    if type(steps) is not int or steps < 0:
        raise CheckpointBroken(found.path, f"its manifest has {in_words(steps)} env steps")
    return steps


def trusted_config(
    run: Path,
    env: Any,
    algorithm: MakeAlgorithm | None,
    env_kwargs: Mapping[str, Any] | None,
    trust: bool,
    wrappers: Sequence[Wrapper | str] | None = None,
    needs_algorithm: bool = True,
) -> TrainConfig:
    """The config of a run whose env is about to be made; `UntrustedRun` if that would call a stranger's code."""
    saved = _saved(run)
    # What the caller brings is the caller's own, whatever the run says; the rest of what it names is not.
    brought = {"env": env, "env_kwargs": env, "algorithm": algorithm}
    if names_code({name: value for name, value in saved.items() if brought.get(name) is None}):
        check_trusted(saved, read_mark(run), run, trust)
    _refuse_missing(saved, env, algorithm if needs_algorithm else True, wrappers)
    return saved_config(saved, str(run / CONFIG), algorithm, env_kwargs, needs_algorithm=needs_algorithm)


def _saved(run: Path) -> dict[str, Any]:
    """The config is the run's own file: a checkpoint is data, and names nothing that would be imported."""
    # guard: the-config-is-the-runs-own
    return in_todays_names(read_config(run / CONFIG))


def path_of(run: RunPath) -> Path:
    """Where a run lies."""
    return Path(run) if isinstance(run, str | Path) else run.path


def objects_among(**given: Any) -> dict[str, Any]:
    """Those that no file can name."""
    return {name: one for name, one in given.items() if one and not isinstance(one, str)}


def given_again(**given: Any) -> str:
    """Of what a run is made with, that which must be given again to go on, as arguments: ', env=Mine, wrappers=[…]'."""
    lost: dict[str, Any] = objects_among(env=given.get("env"))
    for name, named in (("algorithm", import_name), ("evaluation_opponent", opponent_name)):
        one = given.get(name.removeprefix("evaluation_"))
        if one is not None and not isinstance(one, str) and ":" not in named(one) and not hasattr(one, "path"):
            lost[name] = one
    called = {name: getattr(one, "__name__", "") for name, one in lost.items()}
    words = [f"{name}={one if one.isidentifier() else '…'}" for name, one in called.items()]
    if any(":" not in wrapper_name(one) for one in given.get("wrappers") or () if not isinstance(one, str)):
        words.append("wrappers=[…]")
    return "".join(f", {word}" for word in [*words, *(f"{name}=…" for name in given.get("schedules") or ())])


def _refuse_missing(saved: Mapping[str, Any], env: Any, algorithm: Any, wrappers: Any) -> None:
    """All that no file holds and that is not given again (None), in one sentence."""
    named, learner, inside = (saved.get(name) for name in ("env", "algorithm", "wrappers"))
    lost = {}
    if env is None and isinstance(named, str) and not _is_known(named):
        lost["env=…"] = f"the env of this run, {named}, is none of Gymnasium's"
    if algorithm is None and isinstance(learner, str) and ":" not in learner and learner not in ALGORITHMS:
        lost[f"algorithm={learner}"] = f"the algorithm of this run is {learner}, one of your own"
    program = [str(one) for one in inside if ":" not in str(one)] if isinstance(inside, list) else []
    if wrappers is None and program:
        lost["wrappers=[…]"] = f"the wrapper {' and '.join(program)} of this run is one of a program"
    if lost:
        shell = " (in a shell: --env FILE.py:NAME)" if [*lost] == ["env=…"] else ""
        shell = f" (in Python: mv.resume(run, algorithm={learner}))" if [*lost] == [f"algorithm={learner}"] else shell
        what = "it" if len(lost) == 1 else "them"
        raise InvalidRequest(f"{'; '.join(lost.values())}: pass {what} again, {', '.join(lost)}{shell}")


def _is_known(env: str) -> bool:
    return ":" in env or env in BUILT_IN or env in gymnasium.registry


def at_hand(run: RunPath, **given: Any) -> list[Any]:
    """What is given or, of a run that this program has made, what it was made with."""
    own = getattr(run, "objects", {})
    return [own.get(name) if value is None else value for name, value in given.items()]


def source_of(config: TrainConfig, env: Any, wrappers: Sequence[Wrapper | str] | None = None) -> Any:
    """The env that was given, or the one that the config names, if it names one that can be found; in its wrappers."""
    return wrapped(_bare_source(config, env), wrappers_of(config, wrappers))


def wrappers_of(config: TrainConfig, given: Sequence[Wrapper | str] | None = None) -> list[Wrapper]:
    """Those that are given, which must be the run's, or else those that the config names."""
    names = [one if isinstance(one, str) else wrapper_name(one) for one in (given or ())]
    bare, known = ([name.rpartition(":")[2] for name in several] for several in (names, config.wrappers))
    if given is not None and bare != known:  # a module may have them from another
        raise InvalidRequest(f"wrappers={names}: the envs of this run are in {list(config.wrappers)}")
    return [_wrapper(one) if isinstance(one, str) else one for one in (config.wrappers if given is None else given)]


def _wrapper(name: str) -> Wrapper:
    module, colon, attribute = name.partition(":")
    if not colon:
        raise InvalidRequest(f"the wrapper {name} of this run is one of a program: pass it again, wrappers=[…]")
    try:
        found: Wrapper = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever the user's module does
        raise InvalidRequest(f"wrapper {name!r} cannot be imported: {type(error).__name__}: {error}") from error
    return found


def _bare_source(config: TrainConfig, env: Any) -> Any:
    if env is not None:
        return env
    return _where_it_is_now(config.env)


def _where_it_is_now(env: str) -> str:
    """The env of a file that was moved together with its run is in the working directory."""
    file, _, name = env.rpartition(":")
    if not file.endswith(".py") or Path(file).is_file():
        return env
    moved = f"{Path(file).name}:{name}"
    if not Path(moved.rpartition(":")[0]).is_file():
        where = f"--env /path/to/{moved}, in Python env='/path/to/{moved}'"
        raise InvalidRequest(f"the env of this run was in {Path(file).absolute()}, and is not there: {where}")
    log.warning("there is no %s: the env is that of %s in this directory", file, Path(file).name)
    return moved
