"""Seeds: the same one gives the same bits, on a new env and on a used one; another one gives another episode."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from multiverse.env_checker.catalogue import found
from multiverse.env_checker.checks.sharing import seed_global_generators
from multiverse.env_checker.report import Finding
from multiverse.env_checker.subject import Subject
from multiverse.env_checker.trajectory import Actions, Trajectory, apart, episode, infos_apart, rollout, steps_in

CUT_AFTER = 3  # steps of an episode that is left in its middle
EPISODES = 6  # compared where chance could make two of them equal


def check_seeds(subject: Subject) -> Iterator[Finding]:
    """Two new envs with one seed; then a used env; then other seeds, and none."""
    env, settings = subject.build(), subject.settings
    seed = settings.seed
    actions = subject.actions(env, settings.compared_steps)
    first = rollout(env, actions, settings.compared_s, seed=seed)
    actions = actions[: steps_in(first)]
    second = rollout(subject.build(), actions, seed=seed)
    words = apart(first, second)
    other_infos = "" if words else infos_apart(first, second)
    if (words or other_infos) and getattr(env.env.spec, "nondeterministic", False):
        yield found("nondeterministic", f"two envs with seed {seed} part {words or other_infos}")
        return
    if words:
        yield _cause(subject, actions, f"two new envs, both with reset(seed={seed}) and the same actions, part {words}")
        return
    if other_infos:
        yield found("infos-differ", f"the same seed {seed} and actions gave other infos {other_infos}")
    yield from _leaks(subject, actions, first)
    yield from _variety(subject, actions)


def _cause(subject: Subject, actions: Actions, seen: str) -> Finding:
    """Whether fixing the global generators makes two runs equal: then it is they that drive the env."""
    runs = []
    for _ in range(2):
        seed_global_generators(subject.settings.seed)
        runs.append(rollout(subject.build(), actions, seed=subject.settings.seed))
    if apart(*runs):
        return found("seed-ignored", seen)
    return found("global-rng", f"{seen}; with np.random.seed() and random.seed() set before, they do not")


# -- a used env ------------------------------------------------------------------------------------------------
def _leaks(subject: Subject, actions: Actions, first: Trajectory) -> Iterator[Finding]:
    """The first rollout once more, on an env that has played before: cut in the middle, and played to an end."""
    seed, backwards = subject.settings.seed, actions[::-1]  # other actions than those to come
    for name, others, seconds in (
        ("left in its middle", actions[:CUT_AFTER], math.inf),
        ("that had ended", backwards, subject.settings.compared_s),
    ):
        env = subject.build()
        for other in (seed + 1, seed + 2):
            episode(env, others, seconds, seed=other)
        words = apart(first, rollout(env, actions, seed=seed))
        if words:
            seen = f"reset(seed={seed}) after another episode {name} gave another episode than on a new env, {words}"
            yield found("state-leaks", seen)
            return


# -- other seeds -----------------------------------------------------------------------------------------------
def _variety(subject: Subject, actions: Actions) -> Iterator[Finding]:
    env, seed = subject.build(), subject.settings.seed
    begun_with = [episode(env, actions, seed=number) for number in range(seed, seed + EPISODES)]
    episode(env, actions, seed=seed)
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
    first = episodes[0]
    return any(len(other) != len(first) or apart(first, other) for other in episodes[1:])
