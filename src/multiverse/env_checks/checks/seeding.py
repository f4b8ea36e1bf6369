"""Seeds: the same one gives the same bits, on a new env and on a used one; another one gives another episode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from multiverse.env_checks.catalogue import found
from multiverse.env_checks.global_state import seed_global_generators
from multiverse.env_checks.report import Finding
from multiverse.env_checks.subject import Stopwatch, Subject, WatchedEnv
from multiverse.env_checks.trajectory import Trajectory, advance, begin, difference, episode, rollout, steps_in

CUT_AFTER = 3  # steps of an episode that is left in its middle
EPISODES = 6  # compared where chance could make two of them equal


def check_seeds(subject: Subject) -> Iterator[Finding]:
    """Two new envs with one seed; then a used env; then other seeds, and none."""
    env, settings = subject.build(), subject.settings
    seed = settings.seed
    actions = subject.actions(env, settings.compared_steps)
    first = rollout(env, actions, settings.compared_s, seed=seed)
    actions = actions[: steps_in(first)]
    apart = difference(first, rollout(subject.build(), actions, seed=seed))
    if apart is not None and getattr(env.env.spec, "nondeterministic", False):
        yield found("nondeterministic", f"two envs with seed {seed} part {apart}")
        return
    if apart is not None and not apart.in_info_only:
        yield _cause(subject, actions, f"two new envs, both with reset(seed={seed}) and the same actions, part {apart}")
        return
    if apart is not None:
        yield found("infos-differ", f"the same seed {seed} and actions gave other infos {apart}")
    yield from _leaks(subject, actions, first)
    yield from _variety(subject, actions)


def _cause(subject: Subject, actions: Sequence[Any], seen: str) -> Finding:
    """Whether fixing the global generators makes two runs equal: then it is they that drive the env."""
    runs = []
    for _ in range(2):
        seed_global_generators(subject.settings.seed)
        runs.append(rollout(subject.build(), actions, seed=subject.settings.seed))
    apart = difference(*runs)
    if apart is None or apart.in_info_only:
        return found("global-rng", f"{seen}; with np.random.seed() and random.seed() set before, they do not")
    return found("seed-ignored", seen)


# -- a used env ------------------------------------------------------------------------------------------------
def _leaks(subject: Subject, actions: Sequence[Any], first: Trajectory) -> Iterator[Finding]:
    """The first rollout once more, on an env that has played before: cut in the middle, and played to an end."""
    seed = subject.settings.seed
    for name, play in (("left in its middle", _cut), ("that had ended", _finish)):
        env = subject.build()
        for other in (seed + 1, seed + 2):
            play(env, actions, other, subject.settings.compared_s)
        apart = difference(first, rollout(env, actions, seed=seed))
        if apart is not None and not apart.in_info_only:
            words = f"reset(seed={seed}) after another episode {name} gave another episode than on a new env, {apart}"
            yield found("state-leaks", words)
            return


def _cut(env: WatchedEnv, actions: Sequence[Any], seed: int, seconds: float) -> None:
    begin(env, seed)
    for action in actions[:CUT_AFTER]:
        if advance(env, action).ended:
            return


def _finish(env: WatchedEnv, actions: Sequence[Any], seed: int, seconds: float) -> None:
    """Other actions than those to come: backwards."""
    begin(env, seed)
    watch = Stopwatch(seconds)
    for action in reversed(actions):
        if advance(env, action).ended or watch.over:
            return


# -- other seeds -----------------------------------------------------------------------------------------------
def _variety(subject: Subject, actions: Sequence[Any]) -> Iterator[Finding]:
    env, seed = subject.build(), subject.settings.seed
    others = range(seed + 1, seed + EPISODES)
    begun_with = [episode(env, actions, number) for number in (seed, *others)]
    episode(env, actions, seed)
    unseeded = [episode(env, actions) for _ in range(EPISODES)]
    by_seed, by_chance = _vary(begun_with), _vary([begun_with[0], *unseeded])
    if by_seed and not by_chance:
        words = f"{EPISODES} episodes after reset(seed={seed}), each begun by reset(), were equal to it bit for bit"
        yield found("episodes-repeat", words)
    if not by_seed and by_chance:
        words = f"seeds {seed} to {seed + EPISODES - 1} gave one and the same episode; unseeded ones differ"
        yield found("seeds-alike", words)
    if not by_seed and not by_chance:
        words = f"{EPISODES} seeds and {EPISODES} unseeded episodes with the same actions were all equal"
        yield found("no-randomness", words)


def _vary(episodes: Sequence[Trajectory]) -> bool:
    """Whether an agent could tell any of these episodes from the first."""
    for other in episodes[1:]:
        apart = difference(episodes[0], other)
        if len(other) != len(episodes[0]) or (apart is not None and not apart.in_info_only):
            return True
    return False
