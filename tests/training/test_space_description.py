"""Spaces are restored exactly from JSON, and an invalid file is refused in one sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import multiverse as mv
from multiverse.core.errors import CheckpointBroken
from multiverse.training.space_description import described, space_from
from tests.training.small_runs import SMALL

SPACES = [
    spaces.Box(-1.0, 1.0, (3, 2)),
    spaces.Box(np.array([-np.inf, -1.5, 0.1], np.float32), np.array([np.inf, 1e38, 0.1], np.float32)),
    spaces.Box(0, 255, (84, 84, 4), np.uint8),
    spaces.Box(-(2**63), 2**63 - 2, (2,), np.int64),
    spaces.Box(np.array([0.1, 1 / 3]), np.array([1e300, np.inf]), dtype=np.float64),
    spaces.Box(0, 1, (), np.float16),
    spaces.Box(0.0, 1.0, (0, 3)),
    spaces.Discrete(5, start=-3),
    spaces.MultiDiscrete([[3, 4], [5, 6]], start=[[1, 2], [3, 4]]),
    spaces.MultiDiscrete([3], np.int8),
    spaces.MultiBinary(4),
    spaces.MultiBinary([2, 3]),
    spaces.Tuple([spaces.Discrete(2), spaces.Tuple([spaces.MultiBinary(1)])]),
    spaces.Dict([("z", spaces.Discrete(2)), ("a", spaces.Box(0, 1)), ("api_key", spaces.Dict(é=spaces.Discrete(3)))]),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_space_is_restored_from_its_description(space: spaces.Space[Any]) -> None:
    again = space_from(json.loads(json.dumps(described(space), allow_nan=False)))
    assert again == space and str(again) == str(space) and again.dtype == space.dtype
    if isinstance(space, spaces.Dict) and isinstance(again, spaces.Dict):
        assert list(again.spaces) == list(space.spaces)
    if isinstance(space, spaces.Box) and isinstance(again, spaces.Box):
        assert (again.low.tobytes(), again.high.tobytes()) == (space.low.tobytes(), space.high.tobytes())


def test_description_of_an_image_space_is_short() -> None:
    assert len(json.dumps(described(SPACES[2]))) < 100


@pytest.mark.parametrize(
    "space", [spaces.Text(3), spaces.Sequence(spaces.Discrete(2)), spaces.Dict({1: spaces.Discrete(2)})]
)
def test_unsupported_spaces_are_refused(space: spaces.Space[Any]) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match="cannot be described"):
        described(space)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mv.train("CartPole-v1", run_dir=tmp_path_factory.mktemp("run") / "run", **{**SMALL, "env_steps": 100}).path


BOX = {"kind": "Box", "dtype": "float32", "shape": [4], "low": -1, "high": 1}
NESTED: Any = BOX
for _ in range(60):
    NESTED = {"kind": "Tuple", "spaces": [NESTED]}


@pytest.mark.fault("E7")
@pytest.mark.parametrize(
    "observation",
    [
        None, 3, [], {}, "os:system", {"kind": "os:system"}, {"kind": []}, NESTED,
        {"kind": "Box"}, {**BOX, "shape": [10**12]}, {**BOX, "shape": [2**13, 2**13]}, {**BOX, "shape": [-1]},
        {**BOX, "shape": "4"}, {**BOX, "shape": 4}, {**BOX, "shape": [4.5]}, {**BOX, "dtype": "object"},
        {**BOX, "dtype": "O"}, {**BOX, "dtype": ["f4"]}, {**BOX, "dtype": None}, {**BOX, "low": [1, 2]},
        {**BOX, "low": None}, {**BOX, "low": "nan"}, {**BOX, "low": "x"}, {**BOX, "low": 3}, {**BOX, "low": {}},
        {**BOX, "shape": [2000], "low": 3}, {**BOX, "dtype": "uint8", "low": -1},
        {**BOX, "dtype": "int8", "low": 2**70},
        {"kind": "Discrete", "n": 0, "start": 0, "dtype": "int64"}, {"kind": "Discrete", "n": 2, "start": 0},
        {"kind": "Discrete", "n": 10**30, "start": 0, "dtype": "int64"},
        {"kind": "Discrete", "n": True, "start": 0, "dtype": "int64"},
        {"kind": "MultiDiscrete", "nvec": "x", "start": [0], "dtype": "int64"},
        {"kind": "MultiDiscrete", "nvec": [[1], 2], "start": [0], "dtype": "int64"},
        {"kind": "MultiBinary", "n": [10**9, 10**9]}, {"kind": "MultiBinary", "n": "x"},
        {"kind": "Dict", "spaces": 3}, {"kind": "Dict", "spaces": [3]}, {"kind": "Tuple", "spaces": [None]},
        {"kind": "Tuple", "spaces": [{**BOX, "shape": [2**23]}] * 3},
    ],
    ids=lambda said: json.dumps(said)[:60],
)  # fmt: skip
def test_invalid_space_description_is_refused_in_one_line(observation: Any, trained: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    (run / "spaces.json").write_text(json.dumps({"observation": observation, "action": described(spaces.Discrete(2))}))
    with pytest.raises(mv.errors.InvalidRequest, match=r"spaces\.json cannot be used.*Pass env=") as refused:
        mv.load(run)
    assert "\n" not in str(refused.value)
    assert mv.load(run, env="CartPole-v1").act(np.zeros(4, np.float32)) in (0, 1)


@pytest.mark.fault("E7")
@pytest.mark.parametrize("text", [b"", b"[", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"observation": 1'])
def test_malformed_spaces_file_is_refused_in_one_line(text: bytes, trained: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    (run / "spaces.json").write_bytes(text)
    with pytest.raises(mv.errors.InvalidRequest, match=r"spaces\.json cannot be used") as refused:
        mv.load(run)
    assert "\n" not in str(refused.value)


@pytest.mark.fault("E7")
def test_spaces_of_another_policy_are_refused_with_the_reason(trained: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    (run / "spaces.json").write_text(
        json.dumps({"observation": {**BOX, "shape": [5]}, "action": described(spaces.Discrete(2))})
    )
    with pytest.raises(CheckpointBroken, match="the shapes of its layers do not fit"):
        mv.load(run)
