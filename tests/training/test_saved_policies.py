"""A run contains a policy only if the loaded one acts equally; else its algorithm's class makes the policy again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import multiverse as mv
from multiverse.algorithms.dqn import DQN
from multiverse.cli.main import main as command
from multiverse.core.errors import UntrustedRun
from multiverse.core.policy import Seen
from multiverse.policies.features import Features
from multiverse.policies.heads import (
    CategoricalHead,
    DeterministicHead,
    DiscreteHead,
    EpsilonGreedyHead,
    GaussianHead,
    Head,
    UniformHead,
    head_for,
    learned_head,
    outputs_for,
)
from multiverse.policies.numpy_policies import NumpyPolicy, loaded_policy, saved_policy
from multiverse.training.learners import policies_in
from multiverse.training.saved_runs import checkpoint_of

FEW: dict[str, Any] = {"num_envs": 2, "executor": "serial", "evaluate_every": 0, "evaluation_episodes": 3, "seed": 1}
FEW |= {"env_steps": 64, "learning_starts": 1000, "progress": False, "preset": False}
MODULE = "from tests.training.test_saved_policies import Smallest\n\n\nclass Mine(Smallest): ...\n"
SEEN = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)


class SmallestHead(EpsilonGreedyHead):
    """A head that takes the action with the smallest output."""

    __slots__ = ()

    def choose(self, output: Any, noise: Any, masks: Any) -> Any:
        return EpsilonGreedyHead.choose(self, -output, noise, masks)


class Smallest(DQN):
    def head(self) -> Head:
        return SmallestHead(2, 0, self.epsilon)


class QuantileHead(EpsilonGreedyHead):
    """A head that takes the action with the largest mean of several outputs."""

    __slots__ = ()

    def choose(self, output: Any, noise: Any, masks: Any) -> Any:
        return EpsilonGreedyHead.choose(self, output.reshape(-1, 2, 3).mean(axis=2), noise, masks)


class Quantiles(DQN):
    def outputs(self) -> dict[str, int]:
        return {"values": 6}

    def head(self) -> Head:
        return QuantileHead(2, 0, self.epsilon)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory, from which modules can be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


@pytest.mark.fault("D8")
@pytest.mark.parametrize("kind", [Smallest, Quantiles])
def test_policy_with_an_own_head_is_loaded_as_it_acted_in_its_run(kind: type, tmp_path: Path) -> None:
    run = mv.train("CartPole-v1", kind, run_dir=tmp_path / "run", **FEW)
    assert policies_in(checkpoint_of(run).state["session"]) == {"agent": None}
    loaded = mv.load(run.path)
    assert type(loaded.acting._head.then).__name__ in ("SmallestHead", "QuantileHead")
    outputs = loaded.acting.output(SEEN, {})[0]
    expected = outputs.argmin(axis=1) if kind is Smallest else outputs.reshape(-1, 2, 3).mean(axis=2).argmax(axis=1)
    assert loaded.act(SEEN).tolist() == expected.tolist()
    assert mv.evaluate(run.path, episodes=3, seed=0).mean_return == run.summary["evaluation"]["mean_return"]


def test_policies_of_stock_algorithms_are_saved(tmp_path: Path) -> None:
    run = mv.train("CartPole-v1", "dqn", run_dir=tmp_path / "run", **FEW)
    assert None not in policies_in(checkpoint_of(run).state["session"]).values()


class OwnCategorical(CategoricalHead):
    """A head that a subclass changes."""

    __slots__ = ()


ATOMS = np.float32([-1, 0, 2])


class OwnFeatures(Features):
    def vector(self, observations: Any, previous: Any = None) -> Any:
        return -super().vector(observations, previous)


class OwnPolicy(NumpyPolicy):
    def act(self, seen: Any, noise: Any, memory: Any) -> Any:
        actions, memory = super().act(seen, noise, memory)
        return 1 - actions, memory


SPACE, BOX = spaces.Box(-9, 9, (4,), np.float32), spaces.Box(-1, 1, (1,), np.float32)
NARROW = np.float32([-0.5]), np.float32([0.5])


def policy_of(
    head: Head, kind: Any = NumpyPolicy, features: Any = Features, seen: Any = SPACE, outputs: int = 2
) -> Any:
    layers = [(np.ones((4, outputs), np.float32), np.zeros(outputs, np.float32))]
    return kind(features(seen, spaces.Discrete(2)), layers, "tanh", head, 3)


@pytest.mark.fault("D8")
@pytest.mark.parametrize(
    ("policy", "actions", "said"),
    [
        (policy_of(SmallestHead(2)), spaces.Discrete(2), "its head: SmallestHead"),
        (policy_of(UniformHead(SmallestHead(2))), spaces.Discrete(2), "its head: SmallestHead"),
        (policy_of(DiscreteHead(2), OwnPolicy), spaces.Discrete(2), "it is a OwnPolicy"),
        (policy_of(DiscreteHead(2), features=OwnFeatures), spaces.Discrete(2), "its features: OwnFeatures"),
        (policy_of(DiscreteHead(2, 5)), spaces.Discrete(2), "differ from those of the run's spaces"),
        (policy_of(OwnCategorical(2, support=ATOMS), outputs=6), spaces.Discrete(2), "its head: OwnCategorical"),
        (policy_of(DiscreteHead(2), seen=spaces.Box(-9, 9, (2, 2))), spaces.Discrete(2), "differ from those"),
        (policy_of(GaussianHead(np.ones(1), *NARROW, (1,)), outputs=1), BOX, "differ from those"),
        (policy_of(DeterministicHead(*NARROW, (1,), 1, 0.1), outputs=1), BOX, "differ from those"),
    ],
)
def test_policy_that_would_be_loaded_as_another_one_is_not_saved(policy: Any, actions: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        saved_policy(policy, SPACE, actions)


@pytest.mark.fault("D8")
@pytest.mark.parametrize("part", ["policy", "features"])
def test_policy_whose_method_was_replaced_is_not_saved(part: str) -> None:
    policy = policy_of(DiscreteHead(2))
    patched, name = {"policy": (policy, "act"), "features": (policy._features, "vector")}[part]
    setattr(patched, name, lambda *args: None)
    with pytest.raises(ValueError, match=f"its {part}: {name} of {type(patched).__name__} was replaced"):
        saved_policy(policy, SPACE, spaces.Discrete(2))


@pytest.mark.parametrize(
    ("head", "actions"),
    [
        (DiscreteHead(2, 5), spaces.Discrete(2, start=5)),
        (UniformHead(EpsilonGreedyHead(2, 0, 0.3)), spaces.Discrete(2)),
        (CategoricalHead(2, 0, 0.3, support=ATOMS), spaces.Discrete(2)),
        (head_for(spaces.MultiDiscrete([2])), spaces.MultiDiscrete([2])),
        (head_for(spaces.MultiBinary(2)), spaces.MultiBinary(2)),
        (head_for(BOX, np.ones(1, np.float32), squash=True), BOX),
        (DeterministicHead(np.float32([-1]), np.float32([1]), (1,), 4, 0.1), BOX),
    ],
    ids=str,
)
def test_policy_of_stock_parts_is_saved(head: Head, actions: Any) -> None:
    policy = policy_of(head, outputs=outputs_for(learned_head(head), actions))
    saved = saved_policy(policy, SPACE, actions)
    assert saved["kind"] == "dense"
    again, noise = loaded_policy(saved, SPACE, actions), policy.noise(np.random.default_rng(1), 1, len(SEEN))[0]
    if not isinstance(head, UniformHead | DeterministicHead):  # of which a run holds neither warm-up nor noise steps
        seen = Seen({(): SEEN}, np.zeros(len(SEEN), np.bool_))
        assert again.act(seen, noise, {})[0].tolist() == policy.act(seen, noise, {})[0].tolist()


@pytest.mark.fault("D8")
def test_self_play_refuses_a_policy_whose_past_versions_cannot_be_saved(tmp_path: Path) -> None:
    from examples.own_algorithm import Reinforce

    class Opposite(Reinforce):
        def policy(self) -> NumpyPolicy:
            return OwnPolicy(self.features, [(self._weights, self._bias)], "tanh", self._head, self._updates)

    env, settings = "tests.multi_agent.envs:Pair", {**FEW, "env_steps": 8}
    settings.pop("learning_starts")
    with pytest.raises(mv.errors.InvalidRequest, match=r"opponents=2: .*Opposite cannot be \(it is a OwnPolicy\)"):
        mv.train(env, Opposite, run_dir=tmp_path / "run", opponents=2, **settings)


@pytest.mark.fault("D8")
def test_class_of_a_script_is_named_at_the_start_and_required_when_loading(
    elsewhere: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    script = type("Scripted", (Smallest,), {"__module__": "__main__"})
    run = mv.train("CartPole-v1", script, run_dir="one", **FEW)
    assert "the policy of Scripted (its head: SmallestHead) is saved as weights" in caplog.text
    with pytest.raises(mv.errors.InvalidRequest, match="pass it again, algorithm=Scripted"):
        mv.load(run.path)
    expected = run.summary["evaluation"]["mean_return"]
    assert mv.evaluate(run.path, episodes=3, algorithm=script).mean_return == expected
    Path("mine_here.py").write_text(MODULE)
    name = "mine_here.py:Mine"
    first, again = (mv.load(run.path, algorithm=given).act(SEEN) for given in (script, name))
    assert first.tolist() == again.tolist()
    for words in (["evaluate", "one", "--episodes", "3"], ["replay", "one"]):
        assert command(words) == 2
        capsys.readouterr()
        assert command([*words, "--algorithm", name]) == 0
        assert "and the length are the same" in (said := capsys.readouterr().out) or f"return {expected:.1f}" in said


@pytest.mark.fault("E7")
def test_policy_class_of_a_foreign_run_is_imported_only_with_trust(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("strange.py").write_text(MODULE)
    mv.train("CartPole-v1", "strange.py:Mine", run_dir="one", **FEW)
    monkeypatch.setenv("XDG_STATE_HOME", str(elsewhere / "another user"))
    sys.modules.pop("strange")
    with pytest.raises(UntrustedRun, match=r"strange\.py:Mine"):
        mv.load("one")
    assert "strange" not in sys.modules
    observation, _ = gym.make("CartPole-v1").reset(seed=0)
    assert mv.load("one", trust=True).act(observation) in (0, 1)
