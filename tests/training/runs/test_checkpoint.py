"""Checkpoints are restored exactly, the right ones are kept, and differences are reported."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings

import multiverse
from multiverse.core.errors import CheckpointBroken, InvalidRequest
from multiverse.training.runs.checkpoint import Checkpoints, load, load_latest, save
from multiverse.training.runs.checkpoint_format import differences, read_manifest
from tests.training.runs.states import SMALL, everything, same, states


def test_saved_state_is_restored_bit_exactly(tmp_path: Path) -> None:
    found = load(save(tmp_path, "one", everything(), {}))
    assert same(found.state, everything())


@settings(max_examples=60, deadline=None)
@given(states())
def test_arbitrary_state_is_restored_bit_exactly(state: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert same(load(save(folder, "one", state, {})).state, state)


def test_restored_generator_continues_exactly(tmp_path: Path) -> None:
    generator, other = np.random.default_rng(1), np.random.default_rng(2)
    generator.random(5)
    other.bit_generator.state = load(save(tmp_path, "rng", {"rng": generator.bit_generator.state}, {})).state["rng"]
    assert (other.random(100) == generator.random(100)).all()


def test_loaded_arrays_are_copies(tmp_path: Path) -> None:
    path = save(tmp_path, "one", everything(), {})
    state = load(path).state
    state["algorithm"]["policy"]["0.weight"] += 1
    state["views"][0][:] = 0
    assert same(load(path).state, everything())


@pytest.mark.parametrize(
    "state, wrong",
    [
        ({"a": {"b": object()}}, r"a\.b is a object"),
        ({"a": [1, {2}]}, r"a\.1 is a set"),
        ({"a": b"bytes"}, "a is a bytes"),
        ({1: 2}, "key 1"),
        ({"a": np.array(["text"])}, "a is an array of dtype <U4"),
        ({"a": np.array([object()])}, "a is an array of dtype object"),
        ({"a": np.ma.masked_array([1], [True])}, "a is an array"),
        ({"__metadata__": np.zeros(1)}, "__metadata__"),
        ([1], "a state must be a dict"),
    ],
)
def test_unsupported_values_are_refused_by_name(tmp_path: Path, state: Any, wrong: str) -> None:
    with pytest.raises(TypeError, match=wrong):
        save(tmp_path, "one", state, {})
    assert list(tmp_path.iterdir()) == []


def test_names_with_lone_surrogates_are_restored(tmp_path: Path) -> None:
    state = {"\udce9": np.ones(2), "~dce9": np.zeros(2), "\\udce9": np.arange(2)}
    assert same(load(save(tmp_path, "one", state, {})).state, state)


def test_large_values_outside_arrays_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="store lists of numbers as arrays"):
        save(tmp_path, "one", {"long": "x" * 2**26}, {})


def test_manifest_lists_files_and_arrays(tmp_path: Path) -> None:
    path = save(tmp_path, "one", SMALL, {"env_steps": np.int64(7), "config": {"gamma": 0.9, 3: "three", 10: "ten"}})
    manifest = read_manifest(path)
    assert manifest == load(path).manifest
    assert (manifest["env_steps"], manifest["format"], manifest["multiverse"]) == (7, 1, multiverse.__version__)
    assert manifest["config"] == {"gamma": 0.9, "3": "three", "10": "ten"}
    assert manifest["arrays"] == {"weights": {"shape": [2, 3], "dtype": "float32"}}
    assert manifest["files"]["state.json"]["bytes"] == (path / "state.json").stat().st_size
    assert manifest == {k: v for k, v in json.loads((path / "manifest.json").read_text()).items() if k != "sha256"}


def test_arrays_file_is_readable_with_safetensors(tmp_path: Path) -> None:
    path = save(tmp_path, "one", {"algorithm": {"w": np.eye(2).T[::-1]}}, {})
    assert (safetensors.numpy.load_file(path / "arrays.safetensors")["algorithm/w"] == np.eye(2)[::-1]).all()


def test_reserved_manifest_keys_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="files"):
        save(tmp_path, "one", SMALL, {"files": {}})


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "x.broken"])
def test_invalid_checkpoint_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidRequest, match="name of a checkpoint"):
        save(tmp_path, name, SMALL, {})


def test_latest_and_best_checkpoints_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (100, 900, 1000, 99_000):
        checkpoints.save({"step": step}, {}, step, best=step == 100)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best", "step-000000001000", "step-000000099000"]
    assert checkpoints.best is not None and load(checkpoints.best).state == {"step": 100}
    latest = load_latest(tmp_path)
    assert latest is not None and latest.state == {"step": 99_000} and latest.path == checkpoints.latest
    assert latest.manifest["env_steps"] == 99_000


def test_checkpoint_saved_again_replaces_the_former(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for note in ("first", "second"):
        checkpoints.save({"note": note}, {}, 5, best=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best", "step-000000000005"]
    assert [load(path).state["note"] for path in sorted(tmp_path.iterdir())] == ["second", "second"]


def test_cutting_back_removes_later_checkpoints(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2, 3):
        checkpoints.save({}, {}, step)
    checkpoints.cut_back(2)
    assert checkpoints.latest == tmp_path / "step-000000000002"


def test_folder_without_checkpoints_has_none(tmp_path: Path) -> None:
    assert load_latest(tmp_path) is None
    assert load_latest(tmp_path / "not there") is None
    assert Checkpoints(tmp_path / "new" / "one").latest is None


def test_keep_must_be_positive(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="keep=0"):
        Checkpoints(tmp_path, keep=0)


def test_reader_changes_nothing_during_a_save(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save({}, {}, 1)
    (tmp_path / ".saving-step-000000000002-abcd").mkdir()
    (tmp_path / ".replaced-best").mkdir()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CheckpointBroken):
        load(tmp_path / "best")
    load_latest(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_reader_finds_a_checkpoint_that_is_being_replaced(tmp_path: Path) -> None:
    save(tmp_path, "best", SMALL, {})
    (tmp_path / "best").rename(tmp_path / ".replaced-best")
    latest = load_latest(tmp_path)
    assert latest is not None and same(latest.state, SMALL)
    assert same(load(tmp_path / "best").state, SMALL)


def test_differences_are_sentences() -> None:
    arrays = {"w": {"shape": [4, 64], "dtype": "float32"}, "old": {"shape": [], "dtype": "int64"}}
    old = {"multiverse": "0.1.0", "config": {"ppo": {"gamma": 0.99, "gone": 1}, "nan": float("nan")}, "arrays": arrays}
    new = {
        "multiverse": "0.2.0",
        "config": {"ppo": {"gamma": 0.9, "clip": 0.2}, "nan": float("nan")},
        "arrays": {"w": {"shape": (4, 32), "dtype": "float32"}, "v": {"shape": [1], "dtype": "bool"}},
    }
    assert differences(old, new) == [
        "It was written by multiverse 0.1.0; this is 0.2.0.",
        "ppo.gamma changed from 0.99 to 0.9.",
        "ppo.gone was 1 and no longer exists.",
        "ppo.clip is new: 0.2.",
        "The array w was [4, 64] float32 and is [4, 32] float32 now.",
        "The array old [] int64 is not used now.",
        "The array v [1] bool is missing in it.",
    ]
    assert differences(old, old) == []
    assert differences({}, new) == []


def test_many_differences_are_limited_to_twenty_lines() -> None:
    old, new = ({"config": {f"field{i}": i + add for i in range(1000)}} for add in (0, 1))
    assert differences(old, new)[-1] == "And 980 more of this kind."


def test_runs_package_imports_neither_torch_nor_envs() -> None:
    modules = ("runs.checkpoint", "config.files", "runs.metric_sinks", "runs.run_directory")
    code = "".join(f"import multiverse.training.{module}\n" for module in modules) + "import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(done.stdout.split())
    assert "multiverse.training.runs.checkpoint" in loaded
    assert not {"torch", "gymnasium", "cloudpickle", "tensorboard", "multiverse.vector.make"} & loaded
