"""Replay: samples are real steps with their successors; lost steps are excluded, and sequences have no gaps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from gymnasium import spaces

from multiverse.core.errors import InvalidRequest
from multiverse.core.policy import Leaves
from multiverse.core.tables import Table
from multiverse.rollouts.replay import Replay, ReplaySteps
from multiverse.rollouts.rollout import Rollout, rollout_for

SPACE = spaces.Dict({"place": spaces.Box(-1e9, 1e9, (2,), np.float32), "room": spaces.Discrete(10**6)})
ACTION = (1,), np.float32
PLACE, ROOM = ("place",), ("room",)


class Step(NamedTuple):
    """A step whose observations are numbers that identify it."""

    saw: int
    led_to: int
    reward: float
    terminated: bool


class World:
    """Slots with numbered observations, which identify every step, and all steps that were taken."""

    def __init__(self, slots: int, seed: int, ends: float = 0.2, losses: float = 0.05) -> None:
        self.slots, self.rng, self.ends, self.losses = slots, np.random.default_rng(seed), ends, losses
        self.numbers = iter(range(1, 10**6))
        self.shown = [next(self.numbers) for _ in range(slots)]
        self.fresh = np.ones(slots, bool)
        self.rows: list[list[Step | None]] = []  # by row and slot; None: lost, or without a next observation
        self.open: list[bool] = [False] * slots  # the last step's episode continues

    def show(self, leaves: Leaves, place: Any, number: int) -> None:
        leaves[PLACE][place], leaves[ROOM][place] = (number, -number), number

    def rollout(self, steps: int) -> Rollout:
        rollout = rollout_for(SPACE, steps, self.slots, ACTION)
        for t in range(steps):
            self.rows.append([self.step(rollout, t, s) for s in range(self.slots)])
        for s in range(self.slots):
            self.show(rollout.last, s, self.shown[s])
        return rollout

    def step(self, rollout: Rollout, t: int, s: int) -> Step | None:
        saw, after, draw = self.shown[s], next(self.numbers), self.rng.random()
        self.show(rollout.observations, (t, s), saw)
        rollout.actions[t, s], rollout.rewards[t, s], rollout.starts[t, s] = saw, saw / 2, self.fresh[s]
        lost, ended = draw < self.losses, self.losses <= draw < self.losses + self.ends
        terminated = bool(ended and self.rng.random() < 0.5)
        rollout.valid[t, s] = not lost
        rollout.terminated[t, s], rollout.truncated[t, s] = terminated, (ended and not terminated) or lost
        self.fresh[s] = lost or ended
        if lost or ended:
            self.show(rollout.finals, (t, s), saw if lost else after)
        self.shown[s] = next(self.numbers) if lost or ended else after
        self.open[s] = not (lost or ended)
        return None if lost else Step(saw, after, saw / 2, terminated)

    def lose_between_rollouts(self, slot: int) -> None:
        """Its episode has not ended, and another begins: the successor of the last step is in no row."""
        self.shown[slot], self.fresh[slot] = next(self.numbers), True
        if self.rows and self.open[slot]:
            self.rows[-1][slot] = None

    def kept(self, capacity: int) -> set[Step]:
        rows = self.rows[-(capacity // self.slots) :]
        return {step for row in rows for step in row if step is not None}


def steps_of(rows: ReplaySteps) -> Iterator[Step]:
    for leaves, number in ((rows.observations, rows.actions[:, 0]), (rows.next_observations, None)):
        assert (leaves[PLACE][:, 0] == leaves[ROOM]).all() and (leaves[PLACE][:, 1] == -leaves[PLACE][:, 0]).all()
        assert number is None or (leaves[ROOM] == number).all()
    columns = rows.observations[ROOM], rows.next_observations[ROOM], rows.rewards, rows.terminated
    return map(Step, *(column.tolist() for column in columns))


@pytest.mark.fault("B4")
@pytest.mark.parametrize(("slots", "steps", "capacity"), [(1, 1, 50), (3, 1, 100), (3, 7, 100), (4, 40, 100)])
def test_drawn_steps_are_all_stored_steps(slots: int, steps: int, capacity: int) -> None:
    world, rng = World(slots, seed=slots), np.random.default_rng(0)
    replay = Replay(SPACE, ACTION, slots, capacity)
    for number in range(150 // steps + 8):
        if number % 5 == 4:
            world.lose_between_rollouts(number % slots)
        replay.add(world.rollout(steps))
        expected = world.kept(capacity)
        if expected:
            assert set(steps_of(replay.rows(rng, 1_500))) == expected


def test_steps_are_drawn_uniformly(size: int = 40_000) -> None:
    world, replay = World(2, seed=3), Replay(SPACE, ACTION, 2, 30)
    replay.add(world.rollout(25))
    _, counts = np.unique(replay.rows(np.random.default_rng(1), size).observations[ROOM], return_counts=True)
    expected = size / len(world.kept(30))
    assert abs(counts - expected).max() < 6 * np.sqrt(expected)


def test_fraction_of_sequences_is_drawn_around_rewards() -> None:
    world, rng = World(2, seed=3, losses=0.0), np.random.default_rng(1)
    replay, other = Replay(SPACE, ACTION, 2, 80), Replay(SPACE, ACTION, 2, 80)
    other.add(world.rollout(40))
    other.rows(rng, 1, 0.5)
    for rewarded in (0, 3, 0):  # none yet; three rows; and those dropped again
        rollout = world.rollout(40)
        rollout.rewards[rewarded:] = 0
        replay.add(rollout)
        rows, sequences = replay.rows(rng, 400, 0.25), replay.sequences(rng, 400, 5, 0.25)
        assert (rows.rewards[:100] != 0).all() == (sequences.rewards[:, :100] != 0).any(axis=0).all() == (rewarded > 0)
        assert (rows.rewards[100:] != 0).mean() < 0.25
        state = replay.state()
        other.load({**state, "rows": Kept(state["rows"]), "finals": Kept(state["finals"])})
        ours, theirs = (list(steps_of(one.rows(np.random.default_rng(4), 50, 0.5))) for one in (replay, other))
        assert ours == theirs


@pytest.mark.parametrize(("steps", "every"), [(1, 1), (3, 2), (50, 2)])
def test_steps_with_a_reward_are_tracked_as_rows_change(steps: int, every: int) -> None:
    """Whether or not it is called after every rollout; lost steps are excluded; a loaded replay has the same steps."""
    world, rng = World(2, seed=3), np.random.default_rng(1)
    replay, other = Replay(SPACE, ACTION, 2, 60), Replay(SPACE, ACTION, 2, 60)
    for number in range(200 // steps):
        if number % 5 == 4:
            world.lose_between_rollouts(number % 2)
        rollout = world.rollout(steps)
        for t in range(steps):
            if rng.random() < 0.8:
                rollout.rewards[t] = 0
                row = world.rows[t - steps]
                row[:] = [None if step is None else step._replace(reward=0.0) for step in row]
        replay.add(rollout)
        expected = {step for step in world.kept(60) if step.reward}
        if number % every or not expected:
            continue
        drawn = list(steps_of(replay.rows(np.random.default_rng(4), 600, 1.0)))
        assert {step for step in drawn if step.reward} == expected
        assert next(steps_of(replay.rows(rng, 3, 0.01))) in expected or any(step.reward == 0 for step in drawn)
        state = replay.state()
        other.load({**state, "rows": Kept(state["rows"]), "finals": Kept(state["finals"])})
        assert list(steps_of(other.rows(np.random.default_rng(4), 600, 1.0))) == drawn


def test_usable_steps_are_drawn_where_nearly_all_were_lost() -> None:
    world, replay = World(1, seed=0, ends=0.0, losses=1.0), Replay(SPACE, ACTION, 1, 3_000)
    replay.add(world.rollout(2_000))
    with pytest.raises(InvalidRequest, match="all steps in replay were lost"):
        replay.rows(np.random.default_rng(0), 4)
    world.losses = 0.0
    replay.add(world.rollout(2))
    assert set(steps_of(replay.rows(np.random.default_rng(0), 100))) == world.kept(2)


def test_empty_replay_and_too_small_capacity_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="replay is empty"):
        Replay(SPACE, ACTION, 2, 10).rows(np.random.default_rng(0), 1)
    with pytest.raises(InvalidRequest, match="buffer_size=3: expected at least 4, a step of each env"):
        Replay(SPACE, ACTION, 4, 3)


# -- sequences ---------------------------------------------------------------------------------------------------
def chains_of(world: World, capacity: int) -> list[list[Step]]:
    """Runs of consecutive steps of one episode that are still stored."""
    rows, found = world.rows[-(capacity // world.slots) :], []
    for slot in range(world.slots):
        chain: list[Step] = []
        for row in [*rows, [None] * world.slots]:
            step = row[slot]
            if chain and (step is None or chain[-1].led_to != step.saw):
                found.append(chain)
                chain = []
            chain += [step] if step is not None else []
    return found


def drawn_chains(replay: Replay, length: int | None, count: int) -> list[list[Step]]:
    found = replay.sequences(np.random.default_rng(0), count, length)
    seen, chains = found.observations[ROOM], []
    assert (found.observations[PLACE][..., 0] == seen).all()
    for b in range(count):
        steps = int(found.mask[:, b].sum())
        assert found.mask[:steps, b].all() and not seen[steps + 1 :, b].any() and not found.rewards[steps:, b].any()
        assert (found.actions[:steps, b, 0] == seen[:steps, b]).all() and not found.actions[steps:, b].any()
        columns = seen[:steps, b], seen[1 : steps + 1, b], found.rewards[:steps, b], found.terminated[:steps, b]
        chains.append(list(map(Step, *(column.tolist() for column in columns))))
    return chains


@pytest.mark.parametrize(("slots", "steps", "capacity"), [(1, 1, 60), (3, 4, 90), (2, 100, 90)])
def test_whole_episode_sequences_are_complete_while_stored(slots: int, steps: int, capacity: int) -> None:
    world, replay = World(slots, seed=7), Replay(SPACE, ACTION, slots, capacity)
    for number in range(100 // steps + 3):
        if number % 9 == 8:
            world.lose_between_rollouts(0)
        replay.add(world.rollout(steps))
    drawn = drawn_chains(replay, None, 2_000)
    assert {tuple(chain) for chain in drawn} == {tuple(chain) for chain in chains_of(world, capacity)}


@pytest.mark.parametrize("length", [1, 3, 8])
def test_sequences_have_the_requested_length_where_episodes_do(length: int) -> None:
    world, replay = World(2, seed=5), Replay(SPACE, ACTION, 2, 80)
    for _ in range(60):
        replay.add(world.rollout(1))
    parts = {
        tuple(chain[first : first + length])
        for chain in chains_of(world, 80)
        for first in range(max(1, len(chain) - length + 1))
    }
    assert {tuple(chain) for chain in drawn_chains(replay, length, 3_000)} == parts


def test_sequences_end_at_the_stored_rows() -> None:
    """However long sequences may be, and however long an episode lasts: an endless one does not exceed the replay."""
    world, replay = World(2, seed=5), Replay(SPACE, ACTION, 2, 80)
    for _ in range(60):
        replay.add(world.rollout(1))
    assert drawn_chains(replay, 10**12, 50) == drawn_chains(replay, 40, 50)
    whole, state = drawn_chains(replay, None, 50), replay.state()
    replay.load({**state, "rows": Kept(state["rows"]), "finals": Kept(state["finals"]), "longest": 10**12})
    assert drawn_chains(replay, None, 50) == whole


def test_sequence_marks_whether_it_starts_its_episode() -> None:
    world, replay = World(1, seed=5, ends=0.0, losses=0.0), Replay(SPACE, ACTION, 1, 10)
    replay.add(world.rollout(8))
    assert replay.sequences(np.random.default_rng(0), 5).starts.all()
    replay.add(world.rollout(8))
    assert not replay.sequences(np.random.default_rng(0), 5).starts.any()


# -- saving ------------------------------------------------------------------------------------------------------
class Kept:
    """A table as a run stores it."""

    def __init__(self, table: Table) -> None:
        self.first, self.last = table.first, table.last
        middle = (table.first + table.last) // 2
        self._pieces = [table.records(table.first, middle).copy(), table.records(middle, table.last).copy()]

    def pieces(self, dtype: Any) -> Iterator[Any]:
        assert all(piece.dtype == dtype for piece in self._pieces)
        return iter(self._pieces)


@pytest.mark.parametrize("rollouts", [0, 5, 60])
def test_loaded_replay_draws_the_same_as_the_saved_one(rollouts: int) -> None:
    world = World(3, seed=2)
    one, other = Replay(SPACE, ACTION, 3, 60), Replay(SPACE, ACTION, 3, 60)
    for _ in range(rollouts):
        one.add(world.rollout(2))
    state = one.state()
    other.load({**state, "rows": Kept(state["rows"]), "finals": Kept(state["finals"])})
    for _ in range(12):
        rollout = world.rollout(2)
        one.add(rollout)
        other.add(rollout)
        ours, theirs = (list(steps_of(replay.rows(np.random.default_rng(4), 200))) for replay in (one, other))
        assert ours == theirs
        a, b = (replay.sequences(np.random.default_rng(4), 20) for replay in (one, other))
        assert all((x == y).all() for x, y in zip((a.rewards, a.mask, a.starts), (b.rewards, b.mask, b.starts)))


def test_saved_records_of_replay_never_change() -> None:
    """Also if an env is lost between two rollouts: records are written once."""
    world, replay = World(2, seed=9), Replay(SPACE, ACTION, 2, 40)
    written: dict[int, bytes] = {}
    for number in range(60):
        if number % 7 == 3:
            world.lose_between_rollouts(1)
        replay.add(world.rollout(1))
        table: Table = replay.state()["rows"]
        for row in range(table.first, table.last):
            assert (
                written.setdefault(row, table.records(row, row + 1).tobytes()) == table.records(row, row + 1).tobytes()
            )
