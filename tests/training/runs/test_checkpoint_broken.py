"""Rows D3 and E1: damaged checkpoints are named and skipped, and malicious ones do no harm."""

from __future__ import annotations

import io
import json
import logging
import os
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from multiverse.core.errors import CheckpointBroken
from multiverse.training.runs import checkpoint_format
from multiverse.training.runs.checkpoint import Checkpoints, load, load_latest, save
from tests.training.runs.states import SMALL, same

FILES = ("arrays.safetensors", "state.json", "manifest.json")
Damage = Callable[[Path], None]


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return save(tmp_path, "good", SMALL, {"env_steps": 12345, "rate": 1e-5})


@pytest.mark.fault("D3")
@pytest.mark.parametrize("name", FILES)
def test_flipped_bit_anywhere_is_noticed(good: Path, name: str) -> None:
    data = (good / name).read_bytes()
    for index in range(len(data)):
        flipped = bytearray(data)
        flipped[index] ^= 1 << index % 8
        (good / name).write_bytes(flipped)
        with pytest.raises(CheckpointBroken, match=f"{name}|format"):
            load(good)
    (good / name).write_bytes(data)
    assert same(load(good).state, SMALL)


@pytest.mark.fault("D3")
@pytest.mark.parametrize("name", FILES)
def test_truncated_or_extended_file_is_noticed(good: Path, name: str) -> None:
    data = (good / name).read_bytes()
    for other in [*(data[:length] for length in range(0, len(data), 7)), data[:-1], data + b"\n", data + data]:
        (good / name).write_bytes(other)
        with pytest.raises(CheckpointBroken, match=name):
            load(good)


@pytest.mark.fault("D3")
@pytest.mark.parametrize("name", FILES)
def test_missing_file_is_named(good: Path, name: str) -> None:
    (good / name).unlink()
    with pytest.raises(CheckpointBroken, match=f"{name} is missing"):
        load(good)
    assert not (good / name).exists()


@pytest.mark.fault("D3")
@pytest.mark.parametrize(
    "make, wrong",
    [(os.mkfifo, "not a plain file"), (os.mkdir, "not a plain file|cannot be read"), (lambda path: None, "is missing")],
)
def test_special_file_is_refused_without_waiting(good: Path, make: Callable[[Path], None], wrong: str) -> None:
    (good / "state.json").unlink()
    make(good / "state.json")
    with pytest.raises(CheckpointBroken, match=wrong):
        load(good)


@pytest.mark.fault("D3")
def test_missing_checkpoint_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CheckpointBroken, match="there is no checkpoint here"):
        load(tmp_path / "none")
    with pytest.raises(CheckpointBroken, match=r"manifest\.json is missing"):
        load(tmp_path)


def flip(path: Path) -> None:
    data = bytearray((path / "arrays.safetensors").read_bytes())
    data[-1] ^= 1
    (path / "arrays.safetensors").write_bytes(data)


def cut(path: Path) -> None:
    (path / "state.json").write_bytes((path / "state.json").read_bytes()[:5])


def half_remove(path: Path) -> None:
    (path / "manifest.json").unlink()


@pytest.fixture
def three(tmp_path: Path) -> Checkpoints:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    for step in (1, 2, 3):
        checkpoints.save({"step": step}, {}, step)
    return checkpoints


@pytest.mark.fault("D3")
@pytest.mark.parametrize("damage", [flip, cut, half_remove])
def test_checkpoint_before_a_broken_one_is_used_with_a_warning(
    three: Checkpoints, damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "multiverse")
    damage(three.folder / "step-000000000003")
    found = load_latest(three.folder)
    assert found is not None and found.state == {"step": 2}
    assert len(caplog.messages) == 1
    assert "step-000000000003 cannot be used" in caplog.text and "Trying the one before" in caplog.text


@pytest.mark.fault("D3")
def test_resumed_run_renames_broken_checkpoints_so_that_they_displace_no_good_one(three: Checkpoints) -> None:
    for step in (2, 3):
        cut(three.folder / f"step-{step:012d}")
    found = three.load_latest()
    assert found is not None and found.state == {"step": 1}
    assert three.save({"step": 2}, {}, 2) is not None
    assert sorted(path.name for path in three.folder.iterdir()) == [
        "step-000000000001", "step-000000000002", "step-000000000002.broken", "step-000000000003.broken",
    ]  # fmt: skip
    latest = load_latest(three.folder)
    assert latest is not None and latest.state == {"step": 2}


@pytest.mark.fault("D3")
def test_only_broken_checkpoints_are_an_error_and_no_fresh_start(three: Checkpoints) -> None:
    for path in three.folder.iterdir():
        cut(path)
    for latest in (three.load_latest, lambda: load_latest(three.folder)):
        with pytest.raises(CheckpointBroken, match=r"all of its 3 checkpoints are damaged.*Restore one"):
            latest()
    assert len(list(three.folder.iterdir())) == 3


@pytest.mark.fault("D3")
def test_only_renamed_broken_checkpoints_are_an_error(three: Checkpoints) -> None:
    """Checkpoints set aside by an earlier attempt do not allow a fresh start."""
    for path in list(three.folder.iterdir()):
        path.rename(path.with_name(path.name + ".broken"))
    with pytest.raises(CheckpointBroken, match="all of its 3 checkpoints are damaged"):
        load_latest(three.folder)


@pytest.mark.fault("D3")
def test_checkpoint_removed_while_read_is_skipped_for_a_newer_one(
    three: Checkpoints, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A reader lists three, and meanwhile the training run has saved three more."""
    listed = checkpoint_format.read_files

    def slow(path: Path) -> checkpoint_format.Checkpoint:
        if not (three.folder / "step-000000000006").exists():
            for step in (4, 5, 6):
                three.save({"step": step}, {}, step)
        return listed(path)

    monkeypatch.setattr("multiverse.training.runs.checkpoint.read_files", slow)
    found = load_latest(three.folder)
    assert found is not None and found.state == {"step": 6}
    assert caplog.messages == []


# -- made to do harm -------------------------------------------------------------------------------------------
class Harm:
    """An object that creates a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


def forge(path: Path, **files: bytes) -> None:
    """Other contents with a manifest that matches them."""
    manifest = checkpoint_format.read_manifest(path)
    for name, data in ((f"{stem}.safetensors" if stem == "arrays" else f"{stem}.json", d) for stem, d in files.items()):
        (path / name).write_bytes(data)
        manifest["files"][name] = {"bytes": len(data), "sha256": checkpoint_format._sha256(data)}
    (path / "manifest.json").write_bytes(checkpoint_format._manifest_text(manifest))


def torch_zip(harm: Harm) -> bytes:
    import torch

    data = io.BytesIO()
    torch.save({"model": harm}, data)
    assert zipfile.is_zipfile(data)
    return data.getvalue()


@pytest.mark.fault("E1")
@pytest.mark.parametrize("dump", [torch_zip, pickle.dumps, lambda harm: pickle.dumps(harm, 2)], ids=["zip", "4", "2"])
def test_pickle_is_refused_in_one_line_and_never_opened(tmp_path: Path, dump: Callable[[Harm], bytes]) -> None:
    mark, path = tmp_path / "harm", tmp_path / "model.pt"
    path.write_bytes(dump(Harm(mark)))
    with pytest.raises(CheckpointBroken, match=r"is a pickle .* could execute code") as refused:
        load(path)
    assert "\n" not in str(refused.value)
    assert not mark.exists()


@pytest.mark.fault("E1")
@pytest.mark.parametrize("stem", ["arrays", "state"])
def test_pickle_in_place_of_a_file_is_not_opened_even_with_a_valid_manifest(
    good: Path, tmp_path: Path, stem: str
) -> None:
    mark = tmp_path / "harm"
    forge(good, **{stem: pickle.dumps(Harm(mark))})
    with pytest.raises(CheckpointBroken, match="are not a state"):
        load(good)
    assert not mark.exists()


@pytest.mark.fault("E1")
@pytest.mark.parametrize("claimed", [2**27, 2**63 - 1, 2**64 - 1])
def test_header_that_claims_a_huge_size_is_refused(good: Path, claimed: int) -> None:
    forge(good, arrays=struct.pack("<Q", claimed) + b"{}")
    with pytest.raises(CheckpointBroken, match="are not a state"):
        load(good)


@pytest.mark.fault("E1")
@pytest.mark.parametrize(
    "header",
    [
        {"weights": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 4]}},
        {"weights": {"dtype": "F32", "shape": [1], "data_offsets": [0, 2**40]}},
        {"weights": {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 4]}},
        {"weights": {"dtype": "PICKLE", "shape": [1], "data_offsets": [0, 4]}},
    ],
)
def test_arrays_that_claim_more_than_the_file_holds_are_refused(good: Path, header: dict[str, Any]) -> None:
    text = json.dumps(header).encode()
    forge(good, arrays=struct.pack("<Q", len(text)) + text + bytes(4))
    with pytest.raises(CheckpointBroken, match="are not a state"):
        load(good)


@pytest.mark.fault("E1")
@pytest.mark.parametrize(
    "state",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"a": {"$array": "nowhere"}}',
        b'{"a": {"$array": ["weights"]}}',
        b'{"a": {"$array": "weights", "dtype": "O", "shape": [3]}}',
        b'{"a": {"$array": "weights", "dtype": "<f8", "shape": [99999999999]}}',
        b'{"a": {"$scalar": "0000000000000000", "dtype": "|O8"}}',
        b'{"a": {"$scalar": "", "dtype": "<f8"}}',
        b'{"a": {"$scalar": "00", "dtype": ["<f8"]}}',
        b'{"a": {"$tuple": 5}}',
        b'{"a": {"$int": "os.system"}}',
        b'{"a": {"$float": ""}}',
        b'{"a": {"$object": "os.system"}}',
        b'{"$array": "weights"}',
        b"[]",
        b"\xff\xfe",
        b'{"a": ' + b"9" * 10_000 + b"}",
    ],
    ids=lambda state: str(state[:40]),
)
def test_malformed_state_is_refused(good: Path, state: bytes) -> None:
    forge(good, state=state)
    with pytest.raises(CheckpointBroken, match="are not a state"):
        load(good)


@pytest.mark.fault("E1")
@pytest.mark.parametrize("name", FILES)
def test_file_larger_than_the_limit_is_not_read(good: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hole costs no disk space, but reading it would need all memory."""
    monkeypatch.setitem(checkpoint_format.LARGEST, "arrays.safetensors", 2**33)
    os.truncate(good / name, checkpoint_format.LARGEST[name] + 1)
    with pytest.raises(CheckpointBroken, match=r"above the limit of"):
        load(good)


@pytest.mark.fault("E1")
@pytest.mark.parametrize("raw", [b"[1]", b"null", b'"x"', b"{", b"[" * 100_000, b'{"files": 1}', b"\xff"])
def test_malformed_manifest_is_refused(good: Path, raw: bytes) -> None:
    (good / "manifest.json").write_bytes(raw)
    with pytest.raises(CheckpointBroken, match=r"manifest\.json"):
        load(good)


@pytest.mark.fault("E1")
@pytest.mark.parametrize("files", [{}, {"../../secret": {"bytes": 1, "sha256": ""}}, [], {"state.json": None}])
def test_manifest_cannot_name_other_files(good: Path, files: Any) -> None:
    manifest = {**checkpoint_format.read_manifest(good), "files": files}
    (good / "manifest.json").write_bytes(checkpoint_format._manifest_text(manifest))
    with pytest.raises(CheckpointBroken, match=r"does not describe arrays\.safetensors"):
        load(good)


@pytest.mark.fault("E1")
@pytest.mark.parametrize("number", [2, 0, "1", None])
def test_other_format_is_refused_with_both_numbers(good: Path, number: Any) -> None:
    manifest = {**checkpoint_format.read_manifest(good), "format": number, "multiverse": "9.9"}
    (good / "manifest.json").write_bytes(checkpoint_format._manifest_text(manifest))
    with pytest.raises(CheckpointBroken, match=f"format {number!r} .of multiverse 9.9.; this version reads 1"):
        load(good)


def test_copied_checkpoint_is_valid(good: Path, tmp_path: Path) -> None:
    assert same(load(shutil.copytree(good, tmp_path / "copy")).state, SMALL)
