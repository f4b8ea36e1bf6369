"""Save a run of every kind with the current version, and what this version makes of it later.

    python -m tests.training.old_runs.make v0_2

Run it once, with the version whose runs are to be kept: `test_old_runs.py` then resumes and loads them with every later
version.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import multiverse as mv
from multiverse.training.policy import LoadedPolicy
from multiverse.training.saved_runs import checkpoint_of

SAMPLED = 48
"""Values of each array of weights that are compared."""
ON_POLICY: dict[str, Any] = {
    "seed": 5, "num_envs": 2, "env_steps": 64, "steps_per_env": 16, "hidden_sizes": (8, 8),
    "evaluate_every": 0, "evaluation_episodes": 1, "executor": "serial", "preset": False,
}  # fmt: skip
EPOCHS: dict[str, Any] = {"epochs": 2, "batch_size": 16}
REPLAY: dict[str, Any] = {
    **ON_POLICY, "steps_per_env": 4, "learning_starts": 24, "updates_per_step": 0.5, "batch_size": 8,
    "buffer_size": 200,
}  # fmt: skip
MEMORY: dict[str, Any] = {
    "memory_size": 6, "sequences": 3, "sequence_length": 8, "observation_embedding": 5, "action_embedding": 3,
    "reward_embedding": 3,
}  # fmt: skip
CARTPOLE, PENDULUM, SPREAD = "CartPole-v1", "Pendulum-v1", "mpe2.simple_spread_v3:parallel_env"
ENVS = "tests.training.old_runs.envs"
NORMALIZED = {"normalize_observations": True, "normalize_rewards": True}

KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ppo": (CARTPOLE, "ppo", {**ON_POLICY, **EPOCHS, **NORMALIZED}),
    "ppo_box": (PENDULUM, "ppo", {**ON_POLICY, **EPOCHS, "squash": True, "value_clip_range": 0.2}),
    "ppo_large": (CARTPOLE, "ppo", {**ON_POLICY, **EPOCHS, "hidden_sizes": (264,), "activation": "relu"}),
    "ppo_lstm": (CARTPOLE, "ppo", {**ON_POLICY, **EPOCHS, "memory": "lstm", "memory_size": 6, "see_previous": True}),
    "ppo_gru": (CARTPOLE, "ppo", {**ON_POLICY, **EPOCHS, "hidden_sizes": (264,), "memory": "gru", "memory_size": 6}),
    "ppo_images": (f"{ENVS}:Pictures", "ppo", {**ON_POLICY, **EPOCHS, "share_features": True}),
    "ppo_small_images": (f"{ENVS}:SmallPictures", "ppo", {**ON_POLICY, **EPOCHS}),
    "ppo_masks_in_infos": ("Taxi-v4", "ppo", {**ON_POLICY, **EPOCHS}),
    "ppo_filters": (f"{ENVS}:Board", "ppo", {**ON_POLICY, **EPOCHS, "filters": 4}),
    "a2c": (CARTPOLE, "a2c", ON_POLICY),
    "mappo": (SPREAD, "ppo", {**ON_POLICY, **EPOCHS, **NORMALIZED, "critic": "central"}),
    "ppo_state": (SPREAD, "ppo", {**ON_POLICY, **EPOCHS, "critic": "state", "separate": True}),
    "self_play": ("pettingzoo.classic.tictactoe_v3:env", "ppo", {**ON_POLICY, **EPOCHS, "opponents": 2}),
    "taac": (SPREAD, "taac", {
        **{name: value for name, value in ON_POLICY.items() if name != "hidden_sizes"},
        "epochs": 2, "batch_size": 12, "num_heads": 2, "embedding_size": 8, "hidden_size": 8,
    }),
    "sac": (PENDULUM, "sac", REPLAY),
    "sac_large": (PENDULUM, "sac", {**REPLAY, "hidden_sizes": (520,)}),
    "sac_gru": (PENDULUM, "sac", {**REPLAY, **MEMORY, "memory": "gru"}),
    "td3": (PENDULUM, "td3", REPLAY),
    "td3_markov_actor": (PENDULUM, "td3", {**REPLAY, **MEMORY, "memory": "lstm", "markov_actor": True}),
    "discrete_sac": (CARTPOLE, "discrete_sac", REPLAY),
    "dqn": (CARTPOLE, "dqn", {**REPLAY, "target_update_interval": 16}),
    "dqn_masks_in_infos": ("Taxi-v4", "dqn", {**REPLAY, "target_update_interval": 16}),
    "dqn_lstm": (CARTPOLE, "dqn", {**REPLAY, **MEMORY, "memory": "lstm", "target_update_interval": 16}),
}  # fmt: skip


def main(version: str) -> None:
    here = Path(__file__).parent / version
    shutil.rmtree(here, ignore_errors=True)
    for name, (env, algorithm, settings) in KINDS.items():
        run = here / name / "run"
        mv.train(env, algorithm=algorithm, run_dir=run, progress=False, keep_checkpoints=1, **settings)
        (run / "provenance.json").unlink()  # names this machine's folders
        shutil.rmtree(run / "checkpoints" / "best")
        with tempfile.TemporaryDirectory() as folder:
            resumed = Path(shutil.copytree(run, Path(folder, "run")))
            expected = {"actions_before": actions_of(run), **outcome_of(resumed, 2 * settings["env_steps"])}
        (run.parent / "expected.json").write_text(json.dumps(expected) + "\n")
        print(name)


def outcome_of(run: Path, env_steps: int) -> dict[str, Any]:
    """Return the outcome of a run that is resumed up to this many env steps."""
    resumed = mv.resume(run, env_steps=env_steps, trust=True, progress=False)
    return {
        "env_steps": env_steps,
        "episodes": resumed.summary["episodes"],
        "evaluation": resumed.summary["evaluation"],
        "weights": sampled(resumed),
        "actions": actions_of(resumed),
    }


def sampled(run: Any) -> dict[str, list[float]]:
    """Some values of every array of weights, by its place in the checkpoint."""
    session = checkpoint_of(run).state["session"]
    learned = session.get("algorithm") or session["algorithms"]
    return {name: values.reshape(-1)[:: max(1, values.size // SAMPLED)].tolist() for name, values in arrays_in(learned)}


def arrays_in(tree: Any, name: str = "") -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Arrays of floats among the weights."""
    if isinstance(tree, Mapping):
        for key in sorted(tree):
            if key != "state":
                yield from arrays_in(tree[key], f"{name}/{key}")
    elif isinstance(tree, np.ndarray) and np.issubdtype(tree.dtype, np.floating):
        yield name, tree


def actions_of(run: Any) -> Any:
    """Return the actions of the loaded policies for samples of their observation spaces."""
    policy = mv.load(run)
    policies = {"": policy} if isinstance(policy, LoadedPolicy) else {agent: policy[agent] for agent in policy}
    seen = {agent: batch_of(one.observation_space) for agent, one in policies.items()}
    if isinstance(policy, LoadedPolicy):
        return np.asarray(policy.act(seen[""])).tolist()
    return {agent: np.asarray(actions).tolist() for agent, actions in policy.act(seen).items()}


def batch_of(space: Any) -> Any:
    """Three observations, equal in every version."""
    if hasattr(space, "spaces"):
        return {name: batch_of(part) for name, part in space.spaces.items()}
    rng, shape = np.random.default_rng(1), (3, *space.shape)
    if hasattr(space, "n"):
        return rng.integers(0, space.n, shape) + getattr(space, "start", 0)
    if np.issubdtype(space.dtype, np.integer):
        return np.ones(shape, space.dtype) if space.high.max() <= 1 else rng.integers(0, 256, shape).astype(space.dtype)
    return rng.uniform(-1, 1, shape).astype(space.dtype)


if __name__ == "__main__":
    main(sys.argv[1])
