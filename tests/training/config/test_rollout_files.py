"""Configs that count in rollouts and iterations become settings of a run, or are refused with the reason."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import multiverse as mv
from multiverse.training.config.files import parse_config
from multiverse.training.config.resolve import config_for
from multiverse.training.config.rollout_files import counts_rollouts

WIND: dict[str, Any] = {
    "seed": 3,
    "env": {"env_type": "meta", "env_name": "Wind-v0", "max_rollouts_per_task": 2, "num_train_tasks": 40,
            "num_eval_tasks": 20, "num_parallel_workers": 4},
    "train": {"num_iters": 10, "num_init_rollouts_pool": 8, "num_rollouts_per_iter": 10, "buffer_size": 1e6,
              "num_updates_per_iter": 50, "batch_size": 16, "sampled_seq_len": -1},
    "eval": {"log_interval": 2},
    "policy": {"algo_name": "sac", "seq_model": "gru", "rnn_hidden_size": 64, "action_embedding_size": 8,
               "observ_embedding_size": 32, "reward_embedding_size": 0, "policy_layers": [128, 128],
               "dqn_layers": [128, 128], "lr": 0.001, "gamma": 0.9, "tau": 0.01},
}  # fmt: skip
STEPS = 2 * 75
"""Number of environment steps of a rollout."""


def config(**changes: dict[str, Any]) -> Any:
    given = {name: {**section, **changes.get(name, {})} if isinstance(section, dict) else section
             for name, section in WIND.items()}  # fmt: skip
    settings = mv.rollout_settings(given)
    return config_for(settings.pop("env"), settings.pop("algorithm"), settings, settings.pop("preset"))


def test_every_key_becomes_a_setting() -> None:
    found = config()
    assert (found.env, found.seed, found.tasks, found.held_out_tasks, found.episodes_per_task) == (
        "multiverse/Wind-v0", 3, 40, 20, 2,
    )  # fmt: skip
    assert (found.num_envs, found.executor, found.workers, found.evaluation_episodes) == (4, "process", 4, 20)
    iteration = 4 * 3 * STEPS  # 10 rollouts of 4 envs: 3 of each
    assert found.env_steps == 8 * STEPS + 10 * iteration and found.evaluate_every == 2 * iteration
    own = found.settings
    assert (own.steps_per_env, own.learning_starts, own.gradient_steps) == (3 * STEPS, 8 * STEPS, 50)
    assert (own.memory, own.memory_size, own.sequences, own.sequence_length) == ("gru", 64, 16, None)
    assert (own.observation_embedding, own.action_embedding, own.reward_embedding) == (32, 8, 0)
    assert (own.hidden_sizes, own.learning_rate, own.gamma, own.tau) == ((128, 128), 0.001, 0.9, 0.01)
    assert own.buffer_size == 1_000_000 and not own.markov_actor


def test_optional_keys_set_update_ratio_sequence_length_and_markov_actor() -> None:
    own = config(train={"num_updates_per_iter": 0.02, "sampled_seq_len": 64}, policy={"arch": "memory-markov"}).settings
    assert own.gradient_steps is None and own.updates_per_step == 0.02  # regardless of the preset
    assert own.sequence_length == 64 and own.markov_actor
    markov = config(policy={"seq_model": "mlp"}).settings
    assert markov.memory is None and markov.batch_size == 16


def test_one_worker_is_the_caller() -> None:
    found = config(env={"num_parallel_workers": 1})
    assert (found.num_envs, found.executor, found.settings.steps_per_env) == (1, "serial", 10 * STEPS)


def test_partly_observed_envs_have_no_tasks() -> None:
    env = {"env_type": "pomdp", "env_name": "Pendulum-V-v1", "max_rollouts_per_task": 1, "num_train_tasks": 0}
    found = config(env=env, policy={"algo_name": "td3", "seq_model": "lstm"})
    assert (found.env, found.tasks, found.algorithm, found.settings.memory) == (
        "multiverse/Pendulum-V-v1", None, "td3", "lstm",
    )  # fmt: skip
    assert (found.settings.steps_per_env, found.evaluation_episodes) == (3 * 200, 20)
    cart = config(env={**env, "env_name": "CartPole-V-v1"}, policy={"algo_name": "sacd", "target_entropy": 0.6})
    assert (cart.settings.steps_per_env, cart.settings.target_entropy_ratio) == (3 * 200, 0.6)


def test_missing_keys_take_the_algorithms_defaults_and_no_preset() -> None:
    sparse = {name: WIND["policy"][name] for name in ("algo_name", "seq_model")}
    settings = mv.rollout_settings({**WIND, "policy": sparse})
    found = config_for(settings.pop("env"), settings.pop("algorithm"), settings, settings.pop("preset"))
    usual = config_for("CartPole-v1", "sac", {}, False).settings
    for name in ("gamma", "tau", "hidden_sizes", "action_embedding", "entropy_coef", "rewarded_fraction"):
        assert getattr(found.settings, name) == getattr(usual, name)


@pytest.mark.parametrize(
    ("section", "change", "message"),
    [
        ("env", {"env_name": "Wnd-v0"}, "env.env_name: .*Did you mean Wind-v0"),
        ("env", {"env_name": "os:system"}, "env.env_name: expected a Gymnasium id, found 'os:system'"),
        ("env", {"env_type": "rl"}, "env.env_type: expected meta or pomdp"),
        ("env", {"num_train_tasks": 0}, "env.num_train_tasks: expected a number of at least 1, found 0"),
        (
            "env",
            {"env_type": "pomdp", "env_name": "Pendulum-V-v1"},
            "env.num_train_tasks: environments of type pomdp have no",
        ),
        (
            "env",
            {"env_type": "pomdp", "env_name": "Pendulum-V-v1", "num_train_tasks": 0},
            "env.max_rollouts_per_task: expected 1, because",
        ),
        ("train", {"sampled_seq_len": 0}, "train.sampled_seq_len: expected a number of steps, or -1"),
        ("train", {"num_iters": 1.5}, "train.num_iters: expected a whole number, found 1.5"),
        ("train", {"batch_size": True}, "train.batch_size: expected a number"),
        ("train", {"speed": 1}, "train.speed: there is no such setting. There are: batch_size"),
        ("policy", {"algo_name": "sca"}, "policy.algo_name: there is no 'sca'. Did you mean sac"),
        ("policy", {"seq_model": "rnn"}, "policy.seq_model: expected mlp, lstm or gru"),
        ("policy", {"arch": "mlp"}, "policy.arch: expected memory or memory-markov with seq_model gru, found 'mlp'"),
        ("policy", {"algo_name": ["sac"]}, r"policy.algo_name: there is no \['sac'\]"),
        ("policy", {"dqn_layers": [64]}, "policy.dqn_layers: actor and critics have the same layers"),
        ("policy", {"dqn_layers": 128}, r"policy.dqn_layers: expected a list such as \[128, 128\], found 128"),
        ("policy", {"policy_layers": 128}, r"policy.policy_layers: expected a list such as \[128, 128\], found 128"),
    ],
)
def test_invalid_value_is_named(section: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=message):
        config(**{section: change})


def test_unknown_or_missing_section_is_refused() -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=r"polcy: there is no such section. Did you mean policy"):
        mv.rollout_settings({**WIND, "polcy": {}})
    with pytest.raises(mv.errors.InvalidRequest, match=r"train.num_rollouts_per_iter: missing"):
        mv.rollout_settings({"env": WIND["env"], "train": {"num_iters": 1, "num_updates_per_iter": 1}})


FILE = """\
seed: 3
env:
  env_type: meta
  env_name: Wind-v0
  max_rollouts_per_task: 2
  num_train_tasks: 40
  num_parallel_workers: 4
  oracle: false
train:
  num_iters: 10
  num_rollouts_per_iter: 10
  buffer_size: 1000
  num_updates_per_iter: 50
policy:
  seq_model: gru
  rnn_hidden_size: 64
  policy_layers: [8]
  gamma: 0.9
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("num_updates_per_iter: 50", "num_updates_per_iter: 0", "13: train.num_updates_per_iter: .* above 0, found 0$"),
        ("num_updates_per_iter: 50", "num_updates_per_iter: 0.0", "13: train.num_updates_per_iter: .*, found 0.0$"),
        ("rnn_hidden_size: 64", "rnn_hidden_size: 0", "16: policy.rnn_hidden_size=0: expected at least 1$"),
        ("gamma: 0.9", "gamma: 1.99", "18: policy.gamma=1.99: expected a number from 0 to 1$"),
        ("policy_layers: [8]", "dqn_layers: [0]", r"17: policy.dqn_layers=\(0,\): expected at least 1 each$"),
        ("seq_model", "algo_name: dqn\n  arch: memory-markov\n  seq_model", "16: policy.arch: dqn has no actor"),
        ("oracle: false", "oracle: yes", "8: env.oracle: expected true or false, found the text 'yes'$"),
        ("seed: 3", "seed: [1, 2]", r"1: seed: expected a whole number, found the list \[1, 2\]$"),
        ("seed: 3", "seed: -1", "1: seed=-1: expected a number from 0 to"),
        ("Wind-v0", "my_module:TD", "4: env.env_name: expected a Gymnasium id, found 'my_module:TD'$"),
        ("Wind-v0", "AntDirr", "4: env.env_name: Environment `AntDirr` doesn't exist. Did you mean AntDir-v0.$"),
        ("Wind-v0", "Pendulum-v1", "4: env.env_name: this environment has no tasks"),
        ("Wind-v0", "HalfCheetahDir-v0", "6: env.num_train_tasks: with num_eval_tasks, 40: .* expected at most 2"),
        ("buffer_size: 1000", "buffer_size: 3", "12: train.buffer_size: expected a number of at least 4, found 3$"),
        ("  num_rollouts_per_iter: 10\n", "", "9: train.num_rollouts_per_iter: missing$"),
    ],
)
def test_invalid_value_in_a_file_is_named_with_its_line(old: str, new: str, message: str) -> None:
    assert old in FILE
    with pytest.raises(mv.errors.InvalidRequest, match=f"^mine.yaml, line {message}"):
        mv.rollout_settings(parse_config(FILE.replace(old, new), "mine.yaml"))


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("env:\n", "mine.yaml, line 1: env.env_name: missing"),
        ("", "mine.yaml: env.env_name: missing"),
        ("env: Wind-v0\n", "mine.yaml, line 1: env: expected settings, found 'Wind-v0'"),
    ],
)
def test_config_without_an_env_still_counts_rollouts(env: str, message: str) -> None:
    file = parse_config(env + FILE[FILE.index("train:") :], "mine.yaml")
    assert counts_rollouts(file)
    with pytest.raises(mv.errors.InvalidRequest) as refused:
        mv.rollout_settings(file)
    assert str(refused.value) == message


def test_other_configs_do_not_count_rollouts() -> None:
    for text in ("", "env: CartPole-v1", "env:\nnum_envs: 3", "env: x\nppo: {gamma: 0.9}", "env: x\neval: 5"):
        assert not counts_rollouts(parse_config(text))


def test_every_setting_knows_its_key() -> None:
    settings = mv.rollout_settings(parse_config(FILE, "mine.yaml"))
    assert {name for name in settings if name not in settings.places} == {"preset"}  # type: ignore[attr-defined]


def test_rollout_settings_work_without_other_imports() -> None:
    """Our ids are registered although nothing else has been imported."""
    program = f"import multiverse as mv; print(mv.rollout_settings({WIND!r})['env'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("multiverse/Wind-v0\n", 0)
