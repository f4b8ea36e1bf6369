"""Who learns: an algorithm for each group of agents, handled as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from multiverse.algorithms.algorithm import Algorithm, UpdateReport
from multiverse.core.errors import InvalidRequest
from multiverse.core.layout import SINGLE_AGENT, Group
from multiverse.core.policy import Policy
from multiverse.policies.features import SCALED_BYTES
from multiverse.policies.numpy_policies import saved_policy
from multiverse.rollouts.rollout import Rollout

ONE, SEVERAL = ("algorithm", "policy"), ("algorithms", "policies")
"""What a checkpoint calls what was learned and what acts: of a single agent, and by group of several."""


class Learners:
    """The algorithms of a run, by group."""

    def __init__(self, groups: Sequence[Group], single: bool, make: Callable[..., Algorithm], seed: int) -> None:
        """`make`: (group, seed) → its algorithm."""
        self._single, self._groups = single, {group.name: group for group in groups}
        self.by_group = {group.name: make(group, _seed_of(seed, k)) for k, group in enumerate(groups)}

    def __iter__(self) -> Iterator[Algorithm]:
        return iter(self.by_group.values())

    @property
    def only(self) -> Any:
        """The algorithm, where there is one; else all of them, which can be changed together."""
        return next(iter(self)) if len(self.by_group) == 1 else self

    def policies(self) -> list[Policy]:
        return [learner.policy() for learner in self]

    def update(self, rollouts: Sequence[Rollout], progress: float) -> UpdateReport:
        """Each learns from its own group's rollout; what they report has the group's name before it, if they are
        several."""
        reports = [
            (name, as_report(learner.update([rollout], progress)))
            for (name, learner), rollout in zip(self.by_group.items(), rollouts)
        ]
        if len(reports) == 1:
            return reports[0][1]
        metrics = {f"{name}/{metric}": value for name, one in reports for metric, value in one.metrics.items()}
        steps, skipped = (sum(getattr(one, what) for _, one in reports) for what in ("gradient_steps", "skipped"))
        return UpdateReport(metrics, steps, skipped)

    def change(self, **settings: Any) -> None:
        """Other settings for all of them from here on."""
        for learner in self:
            learner.change(**settings)

    # -- in a checkpoint -----------------------------------------------------------------------------------------
    def state(self) -> dict[str, Any]:
        learned = {name: {"weights": one.weights(), "state": one.state()} for name, one in self.by_group.items()}
        acting, _ = self.saved_policies()
        scaled = any(getattr(one.features, "scales_bytes", False) for one in self)
        about = {SCALED_BYTES: True} if scaled else {}
        if self._single:
            return {ONE[0]: learned[SINGLE_AGENT], ONE[1]: acting[SINGLE_AGENT], **about}
        return {SEVERAL[0]: learned, SEVERAL[1]: acting, **about}

    def saved_policies(self) -> tuple[dict[str, Any], dict[str, str]]:
        """(group → what `mv.load` takes, without env, algorithm and torch; group → why there is None instead)."""
        saved: dict[str, Any] = {}
        reasons = {}
        for name, learner in self.by_group.items():
            group, saved[name] = self._groups[name], None
            try:
                saved[name] = saved_policy(learner.policy(), group.observation_space, group.action_space)
            except ValueError as error:
                reasons[name] = str(error)
        return saved, reasons

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        for name, saved in self._saved(state):
            self.by_group[name].load_weights(saved["weights"])
            self.by_group[name].load(saved["state"])

    def load_weights(self, state: Mapping[str, Any]) -> None:
        """Begin with what the learners of another run have learned."""
        for name, saved in self._saved(state):
            self.by_group[name].load_weights(saved["weights"])

    def _saved(self, state: Mapping[str, Any]) -> list[tuple[str, Any]]:
        learned = learned_in(state)
        if set(learned) != set(self.by_group):
            raise InvalidRequest(
                f"the run has learners for {', '.join(learned)}, and here they are for {', '.join(self.by_group)}"
            )
        return list(learned.items())


def drop_replay(state: Mapping[str, Any]) -> None:
    """Change a session's state such that learners with replay begin with an empty buffer; refused if there are none."""
    states = [saved["state"] for saved in learned_in(state).values()]
    if not any("replay" in one for one in states):
        raise InvalidRequest("without_replay: the algorithm of this run has no replay buffer; leave it out")
    for one in states:
        one |= {"replay": None}


def learned_in(state: Mapping[str, Any]) -> dict[str, Any]:
    """group → weights and state, of a session's state."""
    return {SINGLE_AGENT: state[ONE[0]]} if ONE[0] in state else dict(state[SEVERAL[0]])


def trained_on_scaled_bytes(state: Mapping[str, Any]) -> bool:
    """Whether the weights in a session's state were learned from bytes scaled to [0, 1]."""
    return bool(state.get(SCALED_BYTES, False))


def policies_in(state: Mapping[str, Any]) -> dict[str, Any]:
    """group → the policy that the run holds, or None; of a session's state."""
    if ONE[0] in state:
        return {SINGLE_AGENT: state.get(ONE[1])}
    return dict(state[SEVERAL[1]])


def _seed_of(seed: int, number: int) -> int:
    """The first learner has the run's; others would begin with equal weights from it."""
    return seed if not number else int(np.random.SeedSequence((seed, number)).generate_state(1)[0])


def as_report(found: Any) -> UpdateReport:
    """What an update returned; a dict is taken for its metrics."""
    if isinstance(found, UpdateReport):
        return found
    if isinstance(found, Mapping) or found is None:
        return UpdateReport(dict(found or {}), 1)
    raise InvalidRequest(f"update() returned {found!r}: expected an UpdateReport, a dict of metrics, or None")
