"""Rows D3 and E1: what is not as it was written is named and passed over, and what was made to do harm does none."""

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
def test_one_flipped_bit_anywhere_is_noticed(good: Path, name: str) -> None:
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
def test_one_that_is_cut_off_anywhere_or_longer_is_noticed(good: Path, name: str) -> None:
    data = (good / name).read_bytes()
    for other in [*(data[:length] for length in range(0, len(data), 7)), data[:-1], data + b"\n", data + data]:
        (good / name).write_bytes(other)
        with pytest.raises(CheckpointBroken, match=name):
            load(good)


@pytest.mark.fault("D3")
@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(good: Path, name: str) -> None:
    (good / name).unlink()
    with pytest.raises(CheckpointBroken, match=f"{name} is missing"):
        load(good)
    assert not (good / name).exists()


@pytest.mark.fault("D3")
@pytest.mark.parametrize(
    "make, wrong",
    [(os.mkfifo, "not a plain file"), (os.mkdir, "not a plain file|cannot be read"), (lambda path: None, "is missing")],
)
def test_what_is_no_file_is_not_waited_for(good: Path, make: Callable[[Path], None], wrong: str) -> None:
    (good / "state.json").unlink()
    make(good / "state.json")
    with pytest.raises(CheckpointBroken, match=wrong):
        load(good)


@pytest.mark.fault("D3")
def test_where_there_is_none_that_is_said(tmp_path: Path) -> None:
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
def test_the_one_before_a_broken_one_is_used_and_that_is_said_loudly(
    three: Checkpoints, damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "multiverse")
    damage(three.folder / "step-000000000003")
    found = load_latest(three.folder)
    assert found is not None and found.state == {"step": 2}
    assert len(caplog.messages) == 1
    assert "step-000000000003 cannot be used" in caplog.text and "Trying the one before" in caplog.text


@pytest.mark.fault("D3")
def test_a_run_that_goes_on_sets_the_broken_aside_so_that_they_push_no_good_one_out(three: Checkpoints) -> None:
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
def test_if_all_are_broken_that_is_an_error_and_no_start_from_scratch(three: Checkpoints) -> None:
    for path in three.folder.iterdir():
        cut(path)
    for latest in (three.load_latest, lambda: load_latest(three.folder)):
        with pytest.raises(CheckpointBroken, match=r"all of its 3 checkpoints are damaged.*Restore one"):
            latest()
    assert len(list(three.folder.iterdir())) == 3


@pytest.mark.fault("D3")
def test_all_set_aside_is_all_broken(three: Checkpoints) -> None:
    """Those set aside by an earlier attempt are still no reason to begin anew."""
    for path in list(three.folder.iterdir()):
        path.rename(path.with_name(path.name + ".broken"))
    with pytest.raises(CheckpointBroken, match="all of its 3 checkpoints are damaged"):
        load_latest(three.folder)


@pytest.mark.fault("D3")
def test_one_that_vanishes_while_it_is_read_was_only_old(
    three: Checkpoints, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A reader lists three, and meanwhile the run that trains has saved three more."""
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
    """Leaves a file behind when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


def forge(path: Path, **files: bytes) -> None:
    """Other contents, and a manifest that vouches for them."""
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
def test_a_pickle_is_refused_in_one_sentence_and_never_opened(tmp_path: Path, dump: Callable[[Harm], bytes]) -> None:
    mark, path = tmp_path / "harm", tmp_path / "model.pt"
    path.write_bytes(dump(Harm(mark)))
    with pytest.raises(CheckpointBroken, match=r"is a pickle .* could execute code") as refused:
        load(path)
    assert "\n" not in str(refused.value)
    assert not mark.exists()


@pytest.mark.fault("E1")
@pytest.mark.parametrize("stem", ["arrays", "state"])
def test_a_pickle_in_the_place_of_a_file_is_not_opened_even_if_the_manifest_vouches_for_it(
    good: Path, tmp_path: Path, stem: str
) -> None:
    mark = tmp_path / "harm"
    forge(good, **{stem: pickle.dumps(Harm(mark))})
    with pytest.raises(CheckpointBroken, match="are not a state"):
        load(good)
    assert not mark.exists()


@pytest.mark.fault("E1")
@pytest.mark.parametrize("claimed", [2**27, 2**63 - 1, 2**64 - 1])
def test_a_header_that_claims_to_be_huge_is_refused(good: Path, claimed: int) -> None:
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
def test_arrays_that_claim_more_than_there_is_are_refused(good: Path, header: dict[str, Any]) -> None:
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
def test_a_state_that_makes_no_sense_is_refused(good: Path, state: bytes) -> None:
    forge(good, state=state)
    with pytest.raises(CheckpointBroken, match="are not a state"):
        load(good)


@pytest.mark.fault("E1")
@pytest.mark.parametrize("name", FILES)
def test_a_file_larger_than_any_of_ours_is_not_read(good: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hole costs no disk, and reading it would cost all memory."""
    monkeypatch.setitem(checkpoint_format.LARGEST, "arrays.safetensors", 2**33)
    os.truncate(good / name, checkpoint_format.LARGEST[name] + 1)
    with pytest.raises(CheckpointBroken, match=r"expected at most"):
        load(good)


@pytest.mark.fault("E1")
@pytest.mark.parametrize("raw", [b"[1]", b"null", b'"x"', b"{", b"[" * 100_000, b'{"files": 1}', b"\xff"])
def test_a_manifest_that_is_none_is_refused(good: Path, raw: bytes) -> None:
    (good / "manifest.json").write_bytes(raw)
    with pytest.raises(CheckpointBroken, match=r"manifest\.json"):
        load(good)


@pytest.mark.fault("E1")
@pytest.mark.parametrize("files", [{}, {"../../secret": {"bytes": 1, "sha256": ""}}, [], {"state.json": None}])
def test_a_manifest_names_no_other_files(good: Path, files: Any) -> None:
    manifest = {**checkpoint_format.read_manifest(good), "files": files}
    (good / "manifest.json").write_bytes(checkpoint_format._manifest_text(manifest))
    with pytest.raises(CheckpointBroken, match=r"does not describe arrays\.safetensors"):
        load(good)


@pytest.mark.fault("E1")
@pytest.mark.parametrize("number", [2, 0, "1", None])
def test_another_format_is_refused_with_both_numbers(good: Path, number: Any) -> None:
    manifest = {**checkpoint_format.read_manifest(good), "format": number, "multiverse": "9.9"}
    (good / "manifest.json").write_bytes(checkpoint_format._manifest_text(manifest))
    with pytest.raises(CheckpointBroken, match=f"format {number!r} .of multiverse 9.9.; this version reads 1"):
        load(good)


def test_a_copy_elsewhere_is_as_good(good: Path, tmp_path: Path) -> None:
    assert same(load(shutil.copytree(good, tmp_path / "copy")).state, SMALL)
