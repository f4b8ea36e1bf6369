"""Invalid cartridges and game files, and their error messages."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import multiverse as mv
from multiverse.envs.game_boy import GameBoyEnv
from multiverse.envs.game_boy.game_file import read_game
from tests.builtin_envs.game_boy.cartridge import GAME, rom, written


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (None, "No such file or directory; expected a Game Boy cartridge"),
        (b"", "is not a Game Boy cartridge"),
        (b"PK\x03\x04" + bytes(40_000), "is not a Game Boy cartridge"),
        (rom()[:0x140], "is not a Game Boy cartridge"),
        (rom()[:20_000], r"is truncated: it has 20,000 of the 32,768 bytes in its header"),
        (rom() + b"more", "cannot be played: .*length"),
    ],
)
def test_invalid_cartridge_file_is_refused(image: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "game.gb"
    if image is not None:
        path.write_bytes(image)
    with pytest.raises(mv.errors.InvalidRequest, match=rf"rom='{path}'.*{message}"):
        GameBoyEnv(path)


def test_directory_as_cartridge_is_refused(tmp_path: Path) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match="Is a directory"):
        GameBoyEnv(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rams: {}", r"rams: there is no such key. Did you mean ram\?"),
        ("[1, 2]", r"expected keys and values \(name: value\), found \[1, 2\]"),
        ("ram: {x: {adress: 1}}", r"ram.x: address is missing"),
        ("ram: {x: {address: 1, size: 2}}", r"ram.x: size: there is no such key"),
        ("ram: {x: {address: C021}}", r"ram.x: address: expected a whole number from 0 to 65535, found 'C021'"),
        ("ram: {x: C021}", r"ram.x: expected keys and values \(name: value\), found 'C021'"),
        ("ram: {x: {address: 0xFFFF, bytes: 2}}", "beyond the last address"),
        ("ram: {x: {address: 1, bit: 9}}", r"bit: expected a whole number from 0 to 7, found 9"),
        ("ram: {x: {address: 1, bit: 1, count: 2}}", "a bit belongs to one byte"),
        ("ram: {x: {address: 1, values: 1}}", r"values: expected a whole number from 2"),
        ("ram: {x: {address: 1, feature: 1}}", "feature: expected true or false"),
        ("ram: {x: 1, boss: {address: 2, from: y}}", r"ram.boss: from: there is no 'y' in ram"),
        ("ram: {x: 1, boss: {address: 2, from: x, values: 3}}", r"ram.boss: from: a field with `values` or `bit`"),
        ("actions: [up, upp]", r"actions: there is no button 'upp'. Expected wait, a, b"),
        ("start: [{wait: 3, press: a}]", r"start\[0\]: expected exactly one of `wait: frames` and `press: buttons`"),
        ("start: [{wait: [5, 3]}]", r"wait: expected a whole number from 5"),
        ("start: [{press: a, for: 3}]", r"start\[0\]: for: there is no such key"),
        ("seed: luck", r"seed: there is no 'luck' in ram. There are: none"),
        ("rewards: [{of: x, when: bigger, reward: 1}]\nram: {x: 1}", "when: expected one of new, changed"),
        ("rewards: [{of: x, when: new}]\nram: {x: 1}", r"rewards\[0\]: expected exactly one of `reward` and"),
        ("rewards: [{of: x, when: new, reward: lots}]\nram: {x: 1}", "reward: expected a number, found 'lots'"),
        ("rewards: [{of: x, reward: 1}]\nram: {x: 1}", "`of` needs `when: new"),
        ("rewards: [{when: new, reward: 1}]\nram: {x: 1}", "needs `of`, a name in ram"),
        ("rewards: [{of: x, when: new, equals: 1, reward: 1}]\nram: {x: 1}", "belong into two rules"),
        ("rewards: [{of: x, when: new, each: 1}]\nram: {x: 1}", "each: only for `when: increased`, decreased"),
        ("rewards: [{of: [x, y], when: increased, reward: 1}]\nram: {x: 1, y: 2}", "`when: new`, changed or nearer"),
        ("rewards: [{of: x, when: nearer, each: 1}]\nram: {x: 1}", "needs `each`, and `to` with as many names as `of`"),
        (
            "rewards: [{of: x, when: new, to: x, reward: 1}]\nram: {x: 1}",
            "`to` and `within` are only for `when: nearer`",
        ),
        ("rewards: [{of: x, when: new, reward: 1, once: 3}]\nram: {x: 1}", "once: expected true or false"),
        ("rewards: [{of: health, when: new, reward: 1}]\nram: {heath: 1}", r"Did you mean heath\?"),
        ("end: [{of: xs, equals: 1}]\nram: {xs: {address: 1, count: 3}}", "xs has 3 numbers"),
        ("end: [{of: x}]\nram: {x: 1}", r"end\[0\]: expected one of equals, not_equals"),
        ("end: [{of: x, equals: 1, at_most: 3}]\nram: {x: 1}", "cannot be used together"),
        ("end: [{equals: 1}]\nram: {x: 1}", r"end\[0\]: of is missing"),
        ("starts: [a.state]", "starts: expected keys and values"),
        ("starts: {a: 3}", r"starts.a: expected text, found 3"),
        ("ram: {x: [", "it is not valid YAML"),
        (f"ram: {5_000 * '['}", "it is nested too deeply"),
        ("#" * 2**19, "it has more than"),
    ],
)
def test_invalid_game_file_names_the_mistake(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "game.yaml"
    path.write_text(text)
    with pytest.raises(mv.errors.InvalidRequest, match=message) as found:
        read_game(path)
    assert str(path) in str(found.value)


def test_missing_game_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=r"absent.yaml: No such file"):
        GameBoyEnv(written(tmp_path)["rom"], tmp_path / "absent.yaml")


def test_game_file_or_cartridge_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for rom_file, game in ((written(tmp_path)["rom"], pipe), (pipe, written(tmp_path)["game"])):
        with pytest.raises(mv.errors.InvalidRequest, match="it is not a plain file"):
            GameBoyEnv(rom_file, game)


def test_game_file_is_read_with_all_its_keys(tmp_path: Path) -> None:
    (tmp_path / "game.yaml").write_text(
        GAME + "actions: [wait, right, up+a]\nstarts: {cave: cave.state}\n# and once more, in other words\n"
    )
    game = read_game(tmp_path / "game.yaml")
    assert game.actions == ((), ("right",), ("up", "a"))
    assert game.starts == {"cave": tmp_path / "cave.state"}
    assert [step[1:] for step in game.start] == [(80, 80), (2, 2), (4, 12)]
    assert [one.size for one in game.ram] == [1, 1, 1, 1, 16, 1, 0]


def test_addresses_can_be_read_from_another_file(tmp_path: Path) -> None:
    """A game whose build writes a file of addresses."""
    (tmp_path / "map.yaml").write_text("ram: {x: 0xC002, y: 0xC003, gems: 0xC004}")
    (tmp_path / "game.yaml").write_text("addresses: map.yaml\nram: {x: , gems: {max: 99}, y: 0xC0FF}")
    game = read_game(tmp_path / "game.yaml")
    assert [(one.name, one.address, one.max) for one in game.ram] == [
        ("x", 0xC002, 255),
        ("gems", 0xC004, 99),
        ("y", 0xC0FF, 255),
    ]
    (tmp_path / "map.yaml").write_text("ram: {x: here}")
    with pytest.raises(mv.errors.InvalidRequest, match=r"map.yaml: ram.x: expected a whole number.*found 'here'"):
        read_game(tmp_path / "game.yaml")
    (tmp_path / "game.yaml").write_text("addresses: nowhere.yaml")
    with pytest.raises(mv.errors.InvalidRequest, match=r"nowhere.yaml: No such file"):
        read_game(tmp_path / "game.yaml")


def test_empty_game_file_gives_the_default_actions(tmp_path: Path) -> None:
    (tmp_path / "game.yaml").write_text("")
    assert len(read_game(tmp_path / "game.yaml").actions) == 9
