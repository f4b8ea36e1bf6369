"""Runs with a network of the user: exact resumes, executors, memory, teams, saving, loading and refusals."""

from __future__ import annotations

import functools
import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from stable_baselines3.common.torch_layers import CombinedExtractor
from stable_baselines3.common.torch_layers import FlattenExtractor as Flatten
from torch import Tensor, nn

import multiverse as mv
from multiverse.algorithms import DQN, PPO, TAAC, Loss, Outputs, ReplayBatch, RolloutBatch
from multiverse.core.errors import UntrustedRun
from multiverse.training.saved_runs import checkpoint_of
from tests.forked_programs import ForkedPrograms
from tests.networks.own_networks import FromSB3, Pooled, Stateful, Wide
from tests.training.small_runs import SMALL, digest

BARS = "tests.training.envs:Bars"
VILLAGE = "tests.training.team_envs:StatelyVillage"
SPREAD = "mpe2.simple_spread_v3:parallel_env"
ON: dict[str, Any] = {**SMALL, "env_steps": 400, "hidden_sizes": (8,), "progress": False}
A2C = {name: value for name, value in ON.items() if name not in ("epochs", "batch_size")}
OFF: dict[str, Any] = {
    "seed": 5, "num_envs": 4, "env_steps": 160, "learning_starts": 40, "evaluate_every": 0, "evaluation_episodes": 1,
    "executor": "serial", "preset": False, "hidden_sizes": (8,), "updates_per_step": 0.25, "progress": False,
}  # fmt: skip
ROWS = {**OFF, "batch_size": 16}
MEMORY = {**OFF, "memory": "gru", "memory_size": 8, "sequences": 4, "sequence_length": 16, "updates_per_step": 0.1}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ppo": ("CartPole-v1", "ppo", ON),
    "ppo-lstm": ("CartPole-v1", "ppo", {**ON, "memory": "lstm", "memory_size": 8, "see_previous": True}),
    "a2c": ("CartPole-v1", "a2c", A2C),
    "sac": ("Pendulum-v1", "sac", ROWS),
    "td3": ("Pendulum-v1", "td3", ROWS),
    "discrete_sac": ("CartPole-v1", "discrete_sac", ROWS),
    "dqn": ("CartPole-v1", "dqn", {**ROWS, "target_update_interval": 40}),
    "sac-gru": ("Pendulum-v1", "sac", MEMORY),
    "dqn-lstm": ("CartPole-v1", "dqn", {**MEMORY, "memory": "lstm"}),
    "discrete_sac-markov": ("CartPole-v1", "discrete_sac", {**MEMORY, "markov_actor": True}),
}
CELL = {"memory": "gru", "memory_size": 8}
EVERY = pytest.mark.parametrize("case", CASES)


def trained(home: Path, case: str = "ppo", network: Any = Wide, **more: Any) -> mv.Run:
    env, algorithm, settings = CASES[case]
    return mv.train(more.pop("env", env), algorithm, network=network, run_dir=home, **{**settings, **more})


# -- the same bits -----------------------------------------------------------------------------------------------
@pytest.mark.fault("D5")
@EVERY
def test_run_resumes_exactly_with_frozen_layers_statistics_and_dropout(case: str, tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", case, Stateful)
    half = trained(tmp_path / "parts", case, Stateful, env_steps=CASES[case][2]["env_steps"] // 2)
    assert digest(mv.resume(half.path, env_steps=whole.summary["env_steps"], progress=False)) == digest(whole)


@pytest.mark.fault("D5")
@pytest.mark.parametrize("case", ["ppo", "discrete_sac"])
@pytest.mark.parametrize(("executor", "workers"), [("thread", 2), ("process", 1), ("process", 3)])
def test_executor_and_number_of_workers_change_no_bit(case: str, executor: str, workers: int, tmp_path: Path) -> None:
    runs = [
        trained(tmp_path / name, case, Stateful, **where)
        for name, where in (("one", {}), ("other", {"executor": executor, "workers": workers}))
    ]
    assert digest(runs[0]) == digest(runs[1])


KILLED = """
import json, os, signal, sys
import multiverse as mv
from multiverse.learning.optimizers import Adam

home, first, settings, at = json.loads(sys.argv[1])
before, calls = Adam.step, [0]

def dying(*arguments, **named):
    calls[0] += 1
    if calls[0] == at:
        os.kill(os.getpid(), signal.SIGKILL)
    return before(*arguments, **named)

Adam.step = dying
if first:
    mv.train("CartPole-v1", run_dir=home, network="tests.networks.own_networks:Stateful", **settings)
else:
    mv.resume(home, progress=False)
"""


@pytest.mark.fault("D5")
def test_killed_run_resumes_exactly(tmp_path: Path, programs: ForkedPrograms) -> None:
    settings = {**ON, "checkpoint_every_s": 0.0}
    whole = trained(tmp_path / "whole", network="tests.networks.own_networks:Stateful", checkpoint_every_s=0.0)
    for first in (True, False):
        done = programs.run(KILLED, json.dumps([str(tmp_path / "killed"), first, settings, 11]))
        assert done.returncode == -signal.SIGKILL, done.stderr
    mv.resume(tmp_path / "killed", progress=False)
    assert digest(tmp_path / "killed") == digest(whole)


# -- what happens inside an update -------------------------------------------------------------------------------
class Noting(Stateful):
    """Network that records whether it is in training mode, and the output of its dropout."""

    notes: ClassVar[list[tuple[bool, Any]]] = []

    def forward(self, observations: Tensor) -> Tensor:
        features = super().forward(observations)
        through = self.dropout(torch.ones(4))
        type(self).notes.append((self.training, through.tolist()))
        return features


@pytest.mark.parametrize("case", ["ppo", "dqn", "discrete_sac"])
def test_networks_are_in_training_mode_only_in_a_loss(case: str, tmp_path: Path) -> None:
    Noting.notes.clear()
    trained(tmp_path / "run", case, Noting)
    modes = {mode for mode, _ in Noting.notes}
    drawn = [through for mode, through in Noting.notes if mode]
    assert modes == {True, False} and all(through == [1, 1, 1, 1] for mode, through in Noting.notes if not mode)
    assert len({tuple(one) for one in drawn}) > 4, "every gradient step draws again"


@pytest.mark.fault("D5")
@pytest.mark.parametrize("case", ["ppo", "dqn"])
def test_dropout_depends_only_on_the_seed_and_the_update(case: str, tmp_path: Path) -> None:
    drawn = []
    for number, seed in enumerate((5, 5, 6)):
        Noting.notes.clear()
        torch.manual_seed(number)
        state = torch.get_rng_state()
        trained(tmp_path / str(number), case, Noting, seed=seed)
        assert torch.equal(torch.get_rng_state(), state)
        drawn.append([through for mode, through in Noting.notes if mode])
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize("case", ["ppo", "sac", "dqn-lstm"])
def test_statistics_are_learned_and_frozen_layers_are_not(case: str, tmp_path: Path) -> None:
    first, last = (
        checkpoint_of(trained(tmp_path / str(steps), case, Stateful, env_steps=steps)).state["session"]["algorithm"]
        for steps in (CASES[case][2]["env_steps"] // 2, CASES[case][2]["env_steps"])
    )
    before, after = (one["weights"]["fixed"] for one in (first, last))
    for name in before:
        same = np.array_equal(before[name], after[name])
        assert same == ("frozen" in name), name
    assert any("running_mean" in name for name in before) and any("frozen" in name for name in before)


class Clearing(Wide):
    def forward(self, observations: Tensor) -> Tensor:
        if self.training:
            self.zero_grad()
        return super().forward(observations)


@pytest.mark.fault("B5")
@pytest.mark.parametrize("case", ["ppo", "sac", "dqn"])
def test_zero_grad_in_a_network_is_an_error(case: str, tmp_path: Path) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=r"the optimizer has lost the gradient .* do not call zero_grad"):
        trained(tmp_path / "run", case, Clearing)


class PredictingPPO(PPO):
    """PPO that also predicts the reward from the features of the network."""

    def modules(self) -> dict[str, nn.Module]:
        return {"reward": nn.Linear(8, 1)}

    def loss(self, out: Outputs, batch: RolloutBatch) -> Loss:
        predicted = self.auxiliary["reward"](out.features)[:, 0]
        return super().loss(out, batch).plus(prediction=0.1 * ((predicted - batch.rewards) ** 2).mean())


def test_auxiliary_loss_on_features_of_the_network_resumes_exactly(tmp_path: Path) -> None:
    settings: dict[str, Any] = {**ON, "network": Stateful, "algorithm": PredictingPPO}
    whole = mv.train("CartPole-v1", run_dir=tmp_path / "whole", **settings)
    half = mv.train("CartPole-v1", run_dir=tmp_path / "parts", **{**settings, "env_steps": 200})
    assert digest(mv.resume(half.path, env_steps=400, progress=False)) == digest(whole)
    assert whole.summary["env_steps"] == 400


class PredictingDQN(DQN):
    """DQN that also predicts the reward from the features of the network."""

    def modules(self) -> dict[str, nn.Module]:
        return {"reward": nn.Linear(8, 1)}

    def loss(self, batch: ReplayBatch) -> Loss:
        features = self.values.features(batch.observations)
        assert torch.equal(
            features, self.values.module.networks[0].extract.inner.layer(batch.observations.vector).tanh()
        )
        predicted = self.auxiliary["reward"](features)[:, 0]
        return super().loss(batch).plus(prediction=((predicted - batch.rewards) ** 2).mean())


def test_loss_on_replay_receives_features_unless_there_is_a_memory(tmp_path: Path) -> None:
    mv.train("CartPole-v1", PredictingDQN, network=Wide, run_dir=tmp_path / "run", **ROWS)
    with pytest.raises(
        mv.errors.InvalidRequest, match=r"features\(\): a network with a memory has no features of single rows"
    ):
        mv.train("CartPole-v1", PredictingDQN, network=Wide, run_dir=tmp_path / "memory", **MEMORY)


class ObservingTAAC(TAAC):
    def loss(self, out: Outputs, batch: RolloutBatch) -> Loss:
        assert torch.equal(batch.observations, batch.vector) and len(out.features) == len(batch.rewards)
        return super().loss(out, batch).plus(seen=0.0 * batch.observations.mean())


def test_loss_of_a_team_receives_observations_rewards_and_features(tmp_path: Path) -> None:
    run = mv.train(
        SPREAD, ObservingTAAC, run_dir=tmp_path / "run", **{**ON, "hidden_sizes": (64, 64), "env_steps": 100}
    )
    assert run.summary["env_steps"] == 100


# -- observations, agents ----------------------------------------------------------------------------------------
def test_network_learns_what_dense_layers_do_not(tmp_path: Path) -> None:
    settings = {**ON, "num_envs": 16, "steps_per_env": 32, "env_steps": 4_096, "epochs": 4, "batch_size": 128}
    settings |= {"learning_rate": 1e-2, "hidden_sizes": (16,), "evaluation_episodes": 20}
    settings |= {"normalize_observations": False, "normalize_rewards": False}
    run = mv.train(BARS, network=Pooled, share_features=True, run_dir=tmp_path / "own", **settings)
    dense = mv.train(BARS, run_dir=tmp_path / "dense", **settings)
    assert run.summary["evaluation"]["mean_return"] > 8.5 > 7.5 > dense.summary["evaluation"]["mean_return"]


@pytest.mark.parametrize(
    ("network", "env_kwargs"),
    [
        ("small_cnn", {"size": 5}),
        (FromSB3, {"size": 5}),
        ("nature_cnn", {"size": 36}),
        ("mlp", {"size": 5, "nested": True}),
        (CombinedExtractor, {"size": 36, "nested": True}),
        (Flatten, {"size": 5}),
    ],
)
@pytest.mark.parametrize("case", ["ppo", "dqn"])
def test_images_and_nested_observations_are_trained_on(
    case: str, network: Any, env_kwargs: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(tmp_path / "run", case, network, env=BARS, env_kwargs=env_kwargs, env_steps=100, progress=True)
    size = env_kwargs["size"]
    assert f"Box(0, 255, (1, {size}, {size}), uint8)" in capsys.readouterr().err
    policy = mv.load(run.path)
    from tests.training.envs import Bars

    env = Bars(**env_kwargs)
    assert policy.act(env.reset(seed=0)[0]) in (0, 1)


@pytest.mark.parametrize(
    ("critic", "more"),
    [
        ("central", {}),
        ("central", {"share_features": True, **CELL}),
        ("state", {"share_features": True}),
        ("own", CELL),
    ],
)
def test_teams_train_with_every_critic(critic: str, more: dict[str, Any], tmp_path: Path) -> None:
    """Also teams with absent agents. Exactly, in workers too."""
    settings = {"env": VILLAGE, "env_kwargs": {"agents": ("farmer_0", "farmer_1", "guard_0", "guard_1")}}
    settings |= {"critic": critic, "env_steps": 200, **more}
    whole = trained(tmp_path / "whole", network="mlp", **settings)
    half = trained(tmp_path / "half", network="mlp", **{**settings, "env_steps": 100}, executor="process", workers=2)
    assert digest(mv.resume(half.path, env_steps=200, progress=False)) == digest(whole)


def test_every_separate_agent_has_its_own_network(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", network=Wide, env=SPREAD, separate=True, env_steps=200)
    learned = checkpoint_of(run).state["session"]["algorithms"]
    weights = [one["weights"]["parameters"] for one in learned.values()]
    assert len(weights) == 3 and not np.array_equal(weights[0], weights[1])
    observations = {f"agent_{number}": np.zeros(18, np.float32) for number in range(3)}
    assert mv.load(run.path).act(observations).keys() == observations.keys()


def test_network_is_used_in_turn_based_games_and_as_an_opponent(tmp_path: Path) -> None:
    options = {"env": "pettingzoo.classic.connect_four_v3:env", "env_steps": 100}
    first = trained(tmp_path / "first", network="small_cnn", **options)
    second = trained(tmp_path / "second", network="mlp", evaluation_opponent=str(first.path), **options)
    assert second.summary["evaluation"]["mean_return"] in (-1.0, 0.0, 1.0)


def test_network_trains_with_automatic_num_envs(tmp_path: Path) -> None:
    assert trained(tmp_path / "run", num_envs="auto").summary["env_steps"] >= 400


# -- refused -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"whole_episodes": True},
            "whole_episodes needs a policy that acts in the workers.* user-defined network",
        ),
        ({"asynchronous": True, "executor": "process"}, "asynchronous needs a policy .* user-defined network"),
        ({"filters": 4}, "filters=4: network=Wide replaces the first layers; use one of the two"),
        ({"learner": "numpy"}, "learner='numpy' cannot be used with network=Wide, which needs torch"),
        ({"opponents": 2, "env": SPREAD}, "network=Wide cannot be .it acts in torch, not in workers.: leave opponents"),
        ({"network": None, "network_kwargs": {"a": 1}}, "these are arguments of a network"),
        ({"network": Wide, "network_kwargs": {"a": 1}}, "unexpected keyword argument 'a'$"),
        ({"network": "smallcnn"}, "network='smallcnn' does not exist: .*Did you mean small_cnn"),
        (
            {"network": lambda space, layer: Wide(space), "network_kwargs": {"layer": nn.ReLU}},
            "network_kwargs.layer: .* cannot be written to a file: .*network=functools.partial.Net, layer=",
        ),
        (
            {"network": Wide, "network_kwargs": {"attention_key": "first"}},
            "network_kwargs.attention_key: a value of this name is hidden in files as a secret, .* rename the argument",
        ),
        ({"env": BARS, "env_kwargs": {"nested": True}}, "network=Wide cannot be created for Dict"),
    ],
)
def test_unsupported_settings_with_a_network_are_refused_with_the_reason(
    settings: Any, said: str, tmp_path: Path
) -> None:
    with pytest.raises(mv.MultiverseError, match=said):
        trained(tmp_path / "run", **settings)


@pytest.mark.parametrize(("algorithm", "env"), [("taac", SPREAD), ("examples.own_algorithm:Reinforce", "CartPole-v1")])
def test_algorithms_without_network_support_refuse_a_network(algorithm: str, env: str, tmp_path: Path) -> None:
    name = algorithm.rpartition(":")[2]
    with pytest.raises(mv.errors.InvalidRequest, match=f"network=Wide: {name} does not take a network"):
        mv.train(env, algorithm, network=Wide, env_steps=100, run_dir=tmp_path / "run")


def test_central_critic_refuses_images(tmp_path: Path) -> None:
    from gymnasium import spaces

    image = spaces.Box(0, 255, (6, 6, 3), np.uint8)
    with pytest.raises(
        mv.errors.InvalidRequest, match=r"network=Net: critic='central' .* cannot hold images; use critic="
    ):
        PPO(PPO.Config(critic="central"), image, spaces.Discrete(2), 4, 0, agents=2, network=("Net", FromSB3))


@pytest.mark.parametrize("memory", ["lstm", "gru"])
def test_recurrent_replay_algorithm_refuses_images(memory: str, tmp_path: Path) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=f"memory='{memory}': dqn supports a memory only on the CPU"):
        trained(tmp_path / "run", "dqn-lstm", "small_cnn", env=BARS, memory=memory)


# -- saved and loaded --------------------------------------------------------------------------------------------
def test_importable_network_is_loaded_evaluated_recorded_and_replayed_by_its_name(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", network=Stateful).path
    observations = np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4)
    assert "network: tests.networks.own_networks:Stateful" in (run / "config.yaml").read_text()
    assert mv.load(run).act(observations).tolist() == mv.load(run, network=Stateful).act(observations).tolist()
    evaluated = [mv.evaluate(run, episodes=2, seed=3, **given).returns for given in ({}, {"network": Stateful})]
    assert evaluated[0] == evaluated[1]
    replayed = mv.replay(run, episode=0)
    assert (replayed.returned, replayed.length) == replayed.evaluated
    assert mv.record(run, tmp_path / "video.mp4", episodes=1).frames > 1


class Local(Wide):
    """Stands for a class that is defined in a program."""


@pytest.fixture
def of_a_program(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(Local, "__module__", "__main__")
    return Local


def test_network_of_a_program_must_be_passed_again(
    of_a_program: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = trained(tmp_path / "run", network=of_a_program)
    (message,) = [one for one in caplog.messages if "imported by name" in one]
    assert "Local cannot be imported by name" in message
    assert "mv.load(run, network=Local), or --network FILE.py:Local in a shell" in message
    needed = r"the network of this run is Local, a class of a program: pass it again, network=Local .*--network FILE.py"
    uses: list[Callable[..., Any]] = [
        mv.load,
        mv.evaluate,
        mv.resume,
        mv.record,
        functools.partial(mv.replay, episode=0),
    ]
    for use in uses:
        with pytest.raises(mv.errors.InvalidRequest, match=needed):
            use(run.path)
    assert mv.load(run).act(np.zeros(4, np.float32)) in (0, 1)  # a `Run` object keeps it
    assert mv.evaluate(run.path, network=Local, episodes=1).returns
    assert mv.resume(run.path, network=Local, env_steps=500, progress=False).summary["env_steps"] == 500
    assert mv.resume(run, env_steps=600, progress=False).summary["env_steps"] == 600


def test_arguments_that_no_file_holds_are_passed_inside_the_network(tmp_path: Path) -> None:
    class Activated(Wide):
        def __init__(self, observation_space: Any, features_dim: int = 8, activation: Any = nn.ReLU) -> None:
            super().__init__(observation_space, features_dim)
            self.activation = activation()

    network = functools.partial(Activated, activation=nn.ELU)
    run = trained(tmp_path / "run", network=network, network_kwargs={"features_dim": 5})
    with pytest.raises(mv.errors.InvalidRequest, match="network=Activated"):
        mv.load(run.path)
    assert mv.load(run.path, network=network).act(np.zeros(4, np.float32)) in (0, 1)


def test_other_network_than_that_of_the_run_is_refused(tmp_path: Path) -> None:
    run, stock = trained(tmp_path / "run").path, trained(tmp_path / "stock", network=None).path
    for use in (mv.load, functools.partial(mv.resume, env_steps=500)):
        with pytest.raises(
            mv.errors.InvalidRequest, match="251 parameters and this one 283: its networks have other sizes"
        ):
            use(run, network=Stateful)
        with pytest.raises(
            mv.errors.InvalidRequest, match=r"network mlp: the network of this run is .*Wide; expected your"
        ):
            use(run, network="mlp")
        with pytest.raises(mv.errors.InvalidRequest, match="this run was trained without a user-defined network"):
            use(stock, network=Wide)
    built_in = trained(tmp_path / "mlp", network="mlp").path
    with pytest.raises(
        mv.errors.InvalidRequest, match="network small_cnn: the network of this run is mlp; that cannot change"
    ):
        mv.load(built_in, network="small_cnn")


def test_run_starts_only_with_the_weights_of_an_equal_network(tmp_path: Path) -> None:
    first = trained(tmp_path / "first", network=Stateful)
    begun = trained(tmp_path / "begun", network=Stateful, init_from=first.path, env_steps=100, learning_rate=1e-30)
    kept, taken = (checkpoint_of(one).state["session"]["algorithm"]["weights"] for one in (first, begun))
    np.testing.assert_allclose(taken["parameters"], kept["parameters"], atol=1e-12)
    frozen = [name for name in kept["fixed"] if "frozen" in name]
    assert frozen and all(np.array_equal(kept["fixed"][name], taken["fixed"][name]) for name in frozen)
    for number, network in enumerate((Wide, None, "mlp")):
        with pytest.raises(mv.errors.InvalidRequest, match="does not fit here"):
            trained(tmp_path / f"other-{number}", network=network, init_from=first.path)


def test_network_with_other_buffers_and_equal_parameter_count_is_refused(tmp_path: Path) -> None:
    class Normed(Wide):
        def __init__(self, observation_space: Any) -> None:
            super().__init__(observation_space)
            self.norm = nn.BatchNorm1d(8, affine=False)

    run = trained(tmp_path / "run")
    with pytest.raises(mv.errors.InvalidRequest, match=r"only one of the two has .*norm\.num_batches_tracked"):
        mv.load(run.path, network=Normed)


@pytest.mark.parametrize("case", ["ppo", "dqn"])
def test_network_with_the_same_layers_in_another_order_is_refused(case: str, tmp_path: Path) -> None:
    class TwoLayers(Wide):
        names = "first", "second"

        def __init__(self, observation_space: Any) -> None:
            super().__init__(observation_space)
            for name in self.names:
                setattr(self, name, nn.Linear(8, 8))

        def forward(self, observations: Tensor) -> Tensor:
            return self.second(self.first(super().forward(observations)).tanh())

    class OtherOrder(TwoLayers):
        names = "second", "first"

    run = trained(tmp_path / "run", case, TwoLayers)
    for use in (mv.load, functools.partial(mv.resume, env_steps=500)):
        with pytest.raises(
            mv.errors.InvalidRequest, match=r"parameter first\.weight of shape \(8, 8\), .* has second\.weight"
        ):
            use(run.path, network=OtherOrder)
    assert mv.load(run.path, network=TwoLayers).act(np.zeros(4, np.float32)) in (0, 1)


def test_own_algorithm_and_network_of_a_program_are_named_together(
    of_a_program: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    algorithm = type("Scripted", (PPO,), {"__module__": "__main__"})
    mv.train("CartPole-v1", algorithm, network=of_a_program, run_dir=tmp_path / "run", **ON)
    (message,) = [one for one in caplog.messages if "imported by name" in one]
    assert "Scripted and Local cannot be imported by name" in message
    assert "mv.load(run, algorithm=Scripted, network=Local)" in message
    assert "--algorithm FILE.py:Scripted --network FILE.py:Local" in message


def test_each_seed_trains_its_own_network(of_a_program: Any, tmp_path: Path) -> None:
    runs = trained(tmp_path / "set", network=of_a_program, seeds=2)
    with pytest.raises(mv.errors.InvalidRequest, match="network=Local"):
        mv.resume(runs.path, env_steps=500)
    mv.resume(runs.path, network=of_a_program, env_steps=500, progress=False)
    assert [mv.Run.at(one).summary["env_steps"] for one in Path(runs.path).glob("seed-*")] == [500, 500]


# -- foreign runs ------------------------------------------------------------------------------------------------
@pytest.mark.fault("E7")
def test_network_of_a_foreign_run_is_imported_only_with_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained(tmp_path / "run").path
    (tmp_path / "worst_network.py").write_text(
        f"import pathlib; pathlib.Path({str(tmp_path / 'harm')!r}).touch()\n"
        "from tests.networks.own_networks import Wide as Net\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("tests.networks.own_networks:Wide", "worst_network:Net"))
    copied = Path(shutil.copytree(run, tmp_path / "copied"))
    uses: list[Callable[..., Any]] = [mv.load, mv.evaluate, functools.partial(mv.resume, env_steps=500, progress=False)]
    for use in uses:
        with pytest.raises(UntrustedRun, match="worst_network:Net"):
            use(run)
    assert not (tmp_path / "harm").exists()
    assert mv.load(run, network=Wide).act(np.zeros(4, np.float32)) in (0, 1)
    assert not (tmp_path / "harm").exists()
    assert mv.load(copied, trust=True).act(np.zeros(4, np.float32)) in (0, 1)
    assert (tmp_path / "harm").exists()
