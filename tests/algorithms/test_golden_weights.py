"""Every algorithm, with either learner, learns from fixed rollouts what it learned when `golden_weights.json` was made.

An accidental change of an algorithm's mathematics (a sign, a factor, an order of draws) fails these tests, also where
numpy and torch change alike. What is stored are norms and a few entries of the first weights and of how far updates
moved them, and the metrics of the last update. They are compared up to rounding errors, which differ between
processors.

After an intended change, write the file again, and name the algorithms that learn differently in the
changelog:

    python -m tests.algorithms.test_golden_weights
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from multiverse.algorithms import algorithm_class
from multiverse.core.layout import Array
from tests.algorithms.rollouts import random_rollout

FILE = Path(__file__).with_name("golden_weights.json")
SLOTS, UPDATES, ENTRIES = 4, 3, 5
TOLERANCE = 1e-4
"""Relative to the norm; for a single entry, relative to the root mean square of all entries."""
OBSERVATIONS, DISCRETE = spaces.Box(-9, 9, (5,), np.float32), spaces.Discrete(4)
BOX = spaces.Box(-1, 1, (2,), np.float32)
ON_POLICY = {"steps_per_env": 12, "hidden_sizes": (16, 8), "learning_rate": 3e-3}
EPOCHS = {"epochs": 2, "batch_size": 24, "entropy_coef": 0.01}
TEAM = {"steps_per_env": 12, "learning_rate": 3e-3, "num_heads": 2, "embedding_size": 8, "hidden_size": 12}
CELL = {"memory_size": 6, "chunk_length": 5}
OFF_POLICY = {"steps_per_env": 10, "hidden_sizes": (16, 8), "learning_rate": 3e-3, "learning_starts": 0,
              "batch_size": 16, "gradient_steps": 3, "tau": 0.5}  # fmt: skip
SEQUENCES = {"memory_size": 6, "sequences": 5, "observation_embedding": 5, "action_embedding": 3, "reward_embedding": 2}
NORMALIZED = {"normalize_observations": True, "normalize_rewards": True, "value_clip_range": 0.2}
CASES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "ppo": ("ppo", DISCRETE, {**ON_POLICY, **EPOCHS}),
    "ppo-box-normalized": ("ppo", BOX, {**ON_POLICY, **EPOCHS, **NORMALIZED}),
    "ppo-lstm": ("ppo", DISCRETE, {**ON_POLICY, **EPOCHS, **CELL, "memory": "lstm"}),
    "ppo-gru-previous": ("ppo", BOX, {**ON_POLICY, **EPOCHS, **CELL, "memory": "gru", "see_previous": True}),
    "a2c": ("a2c", DISCRETE, ON_POLICY),
    "a2c-lstm": ("a2c", BOX, {**ON_POLICY, **CELL, "memory": "lstm"}),
    "a2c-gru": ("a2c", DISCRETE, {**ON_POLICY, **CELL, "memory": "gru"}),
    "taac": ("taac", DISCRETE, {**TEAM, **EPOCHS}),
    **{
        f"{name}-{memory}" if memory else name: (name, actions, {**OFF_POLICY, **more, **of_memory})
        for name, actions, more in [
            ("sac", BOX, {}),
            ("td3", BOX, {}),
            ("discrete_sac", DISCRETE, {}),
            ("dqn", DISCRETE, {"target_update_interval": 50}),
        ]
        for memory in ("", "lstm", "gru")
        for of_memory in [{"memory": memory, **SEQUENCES} if memory else {}]
    },
}


def made(case: str, learner: str) -> Any:
    name, actions, settings = CASES[case]
    kind, more = algorithm_class(name), {}
    if name == "taac":
        more["agents"] = 2
    else:
        settings = {**settings, "learner": learner}
    return kind(kind.Config(**settings), OBSERVATIONS, actions, SLOTS, 3, **more)


def weights_of(algorithm: Any) -> dict[str, Array]:
    """Copies of all weights, by network, and of those of targets."""
    found = {name: np.array(one) for name, one in algorithm.weights().items() if isinstance(one, np.ndarray)}
    targets = algorithm.state().get("targets", {})
    return found | {f"target {name}": np.array(one) for name, one in targets.items()}


def summary(values: Array) -> dict[str, Any]:
    """The size and the norm of a vector, and some of its entries."""
    some = np.linspace(0, len(values) - 1, ENTRIES).astype(int)
    norm, entries = float(np.linalg.norm(values.astype(np.float64))), values[some].astype(float).tolist()
    return {"size": len(values), "norm": norm, "entries": entries}


def learned(case: str, learner: str) -> dict[str, Any]:
    """Summaries of the first weights, and of how far updates moved them, by network; and metrics."""
    algorithm = made(case, learner)
    first, report = weights_of(algorithm), None
    for update in range(UPDATES):
        report = algorithm.update([random_rollout(algorithm, SLOTS, update)], update / UPDATES)
    last = weights_of(algorithm)
    networks = {name: {"first": summary(one), "change": summary(last[name] - one)} for name, one in first.items()}
    return {**networks, "metrics": dict(report.metrics)}


def learners(case: str) -> list[str]:
    return ["torch"] if CASES[case][0] == "taac" else ["numpy", "torch"]


@pytest.mark.parametrize(("case", "learner"), [(case, learner) for case in CASES for learner in learners(case)])
def test_weights_after_updates_on_fixed_rollouts_equal_the_golden_file(case: str, learner: str) -> None:
    golden, found = json.loads(FILE.read_text())[case], learned(case, learner)
    metrics = found.pop("metrics")
    assert golden.pop("metrics") == pytest.approx(metrics, rel=10 * TOLERANCE, abs=1e-6)
    assert found.keys() == golden.keys()
    for name, summaries in found.items():
        for part, now in summaries.items():
            then, where = golden[name][part], f"{part} of {name}"
            assert now["size"] == then["size"], where
            assert now["norm"] == pytest.approx(then["norm"], rel=TOLERANCE), where
            mean = then["norm"] / np.sqrt(then["size"])
            np.testing.assert_allclose(
                now["entries"], then["entries"], rtol=TOLERANCE, atol=TOLERANCE * mean, err_msg=where
            )


def test_golden_file_has_every_case_and_trained_networks() -> None:
    golden = json.loads(FILE.read_text())
    assert golden.keys() == CASES.keys()
    for case, networks in golden.items():
        assert networks.pop("metrics"), case
        assert all(one["change"]["norm"] > 1e-3 for one in networks.values()), case


def write() -> None:
    """Write the file again."""
    cases = []
    for case in CASES:
        found = learned(case, learners(case)[0])
        rounded = json.loads(json.dumps(found), parse_float=lambda one: float(f"{float(one):.7g}"))
        networks = ",\n".join(f"    {json.dumps(name)}: {json.dumps(one)}" for name, one in rounded.items())
        cases.append(f"  {json.dumps(case)}: {{\n{networks}\n  }}")
    FILE.write_text("{\n" + ",\n".join(cases) + "\n}\n")


if __name__ == "__main__":
    write()
