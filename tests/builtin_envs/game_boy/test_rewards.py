"""Reward rules, tested without an emulator."""

from __future__ import annotations

from pathlib import Path

import pytest

from multiverse.envs.game_boy.game_file import Values, read_game
from multiverse.envs.game_boy.ram import Rewards


def rewards(tmp_path: Path, *rules: str) -> Rewards:
    lines = ["ram: {x: 0xC000, y: 0xC001, health: 0xC002}", "rewards:", *(f"  - {{{rule}}}" for rule in rules)]
    (tmp_path / "game.yaml").write_text("\n".join(lines))
    return Rewards(read_game(tmp_path / "game.yaml").rewards)


def at(x: int = 0, y: int = 0, health: int = 3) -> Values:
    return {"x": x, "y": y, "health": health}


@pytest.mark.parametrize(
    ("rule", "values", "paid"),
    [
        ("reward: -0.5", [at(), at()], [-0.5, -0.5]),
        ("of: x, when: new, reward: 10", [at(0), at(1), at(0), at(1), at(2)], [0, 10, 0, 0, 10]),
        ("of: [x, y], when: new, reward: 1", [at(1, 0), at(1, 1), at(1, 0)], [1, 1, 0]),
        ("of: x, when: changed, reward: 2", [at(0), at(1), at(1), at(0)], [0, 2, 0, 2]),
        ("of: [x, y], when: changed, reward: 2", [at(0, 1), at(0, 1), at(1, 1)], [2, 0, 2]),
        ("of: x, when: increased, reward: 2", [at(5), at(6), at(2)], [2, 2, 0]),
        ("of: x, when: increased, each: 2", [at(5), at(6), at(2)], [10, 2, 0]),
        ("of: health, when: decreased, each: -1", [at(health=1), at(health=5)], [-2, 0]),
        ("of: x, when: nearer, to: y, each: 2", [at(0, 9), at(3, 9), at(2, 9), at(12, 9), at(8, 8)], [0, 6, -2, 8, 0]),
        ("of: x, when: nearer, to: y, within: health, each: 1", [at(0, 9), at(3, 9), at(5, 9, 2)], [0, 3, 0]),
        ("of: x, equals: 2, reward: 5", [at(2), at(2), at(1)], [5, 5, 0]),
        ("of: x, not_equals: 0, reward: 25, once: true", [at(0), at(2), at(0), at(3)], [0, 25, 0, 0]),
        ("of: x, at_least: 2, reward: 1", [at(1), at(2), at(3)], [0, 1, 1]),
        ("of: x, at_most: 2, reward: 1", [at(1), at(2), at(3)], [1, 1, 0]),
    ],
)
def test_reward_rule_pays_when_its_condition_holds(
    rule: str, values: list[Values], paid: list[float], tmp_path: Path
) -> None:
    account = rewards(tmp_path, rule)
    for _ in range(2):  # in every episode
        account.begin(at())
        assert [account.earned(one) for one in values] == paid


def test_rewards_of_several_rules_are_added(tmp_path: Path) -> None:
    account = rewards(tmp_path, "reward: -0.5", "of: x, when: new, reward: 10", "of: x, when: increased, each: 1")
    account.begin(at())
    assert account.earned(at(3)) == 12.5


def test_saved_rewards_state_is_restored(tmp_path: Path) -> None:
    account = rewards(tmp_path, "of: [x, y], when: new, reward: 1", "of: x, equals: 1, reward: 5, once: true")
    account.begin(at())
    assert account.earned(at(1)) == 6
    state = account.state()
    account.begin(at())
    account.load(state, at(1))
    assert [account.earned(at()), account.earned(at(1)), account.earned(at(2))] == [0, 0, 1]
