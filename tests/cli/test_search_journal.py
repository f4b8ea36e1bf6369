"""`study.journal` of a search: a torn last line is repaired; other damage is an error with file and line."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("optuna")

from multiverse.cli import search_journal
from multiverse.cli.main import main
from multiverse.cli.search import space_of
from multiverse.cli.search_journal import JOURNAL, JOURNAL_LOCK, repair
from multiverse.cli.search_study import Search
from multiverse.core.errors import InvalidRequest
from multiverse.training.config.resolve import config_for

ASKED = "lr=1e-9|0.003,gamma=0.9|0.99"
WORDS = f"tune CartPole-v1 --search {ASKED} --no-preset --run-dir s --trials 2".split()


def search(path: Path) -> Search:
    config = config_for("CartPole-v1", "ppo", {}, preset=False)
    return Search(path, config, space_of(ASKED, config), ASKED, "median")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A search with two trials that have ended; the last record is the end of the second."""
    found = search(tmp_path_factory.mktemp("made") / "s")
    for returned in (20.0, 30.0):
        found._study.tell(found._drawn(), returned)
        found.write()
    return found.path


@pytest.fixture
def journal(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "s")) / JOURNAL


@pytest.mark.fault("D3")
@pytest.mark.parametrize("cut", [1, 5, 40])
def test_torn_last_line_is_cut_off_and_a_copy_is_kept(
    journal: Path, cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    torn = journal.read_bytes()[:-cut]
    journal.write_bytes(torn)
    assert [trial.state for trial in search(journal.parent).trials] == ["complete", "running"]
    (aside,) = journal.parent.glob(f"{JOURNAL}.torn-*")
    assert aside.read_bytes() == torn
    assert "its last line was cut short" in caplog.text and aside.name in caplog.text
    caplog.clear()
    again = search(journal.parent)
    again._study.tell(1, 30.0)
    assert [trial.returned for trial in search(journal.parent).trials] == [20.0, 30.0]
    assert not caplog.text and [*journal.parent.glob(f"{JOURNAL}.torn-*")] == [aside]


def test_journal_with_a_torn_first_line_is_empty(tmp_path: Path) -> None:
    path = search(tmp_path / "s").path
    (path / JOURNAL).write_bytes(b'{"op_code":0,"wor')
    assert search(path).trials == []


def _replace_line(number: int, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def damage(journal: Path) -> None:
        lines = journal.read_bytes().splitlines(keepends=True)
        lines[number - 1] = change(lines[number - 1])
        journal.write_bytes(b"".join(lines))

    return damage


def _directory(journal: Path) -> None:
    journal.unlink()
    journal.mkdir()


def _link(journal: Path) -> None:
    elsewhere = journal.rename(journal.parent.parent / "elsewhere")
    journal.symlink_to(elsewhere)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda path: path.write_bytes(b""), "study.journal is empty, and this search has 2 trials"),
    "missing": (Path.unlink, "study.journal is missing, and this search has 2 trials"),
    "garbage_and_a_torn_line": (lambda path: path.write_bytes(b"\n\0{"), "study.journal, line 1: it is not JSON"),
    "only_a_torn_line": (lambda path: path.write_bytes(b'{"op_code":0'), "study.journal is empty, and this search has"),
    "garbage": (lambda path: path.write_bytes(bytes(range(256)) * 8), "study.journal, line 1: it is not JSON"),
    "flipped_byte": (_replace_line(4, lambda line: b"\x80" + line[1:]), "study.journal, line 4: it is not JSON"),
    "flipped_key": (
        _replace_line(4, lambda line: line.replace(b"op_code", b"oq_code")),
        "study.journal, line 4: it is not a record of a study",
    ),
    "no_operation": (
        _replace_line(4, lambda line: b'{"op_code":99,"worker_id":""}\n'),
        "study.journal, line 4: this record does not fit those before it",
    ),
    "no_trial_id": (
        _replace_line(4, lambda line: b'{"op_code":8,"worker_id":""}\n'),
        "study.journal, line 4: this record does not fit those before it .KeyError",
    ),
    "no_study": (_replace_line(1, lambda line: b""), "study.journal, line 1: the first record does not create"),
    "cut_in_the_middle": (_replace_line(4, lambda line: line[:20]), "study.journal, line 4: it is not JSON"),
    "lines_lost": (
        lambda path: [_replace_line(number, lambda line: b"")(path) for number in range(8, 2, -1)],
        "study.journal lacks trial . as it is in search.json",
    ),
    "directory": (_directory, "study.journal cannot be used: Is a directory. Restore the file"),
    "link": (_link, "study.journal cannot be used: it is a symbolic link, which is not followed"),
}


@pytest.mark.fault("D3", "E7")
@pytest.mark.parametrize("kind", DAMAGE)
def test_other_damage_is_an_error_with_file_and_line_and_changes_nothing(journal: Path, kind: str) -> None:
    damage, message = DAMAGE[kind]
    damage(journal)
    kept = {path.name: path.read_bytes() for path in journal.parent.parent.rglob("*") if path.is_file()}
    with pytest.raises(InvalidRequest, match=message):
        search(journal.parent)
    if kind != "only_a_torn_line":
        assert kept == {path.name: path.read_bytes() for path in journal.parent.parent.rglob("*") if path.is_file()}


@pytest.mark.fault("D3")
def test_unreadable_journal_is_an_error(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, largest: int) -> None:
        raise PermissionError(13, os.strerror(13), str(path))

    monkeypatch.setattr(search_journal, "read_plain", refuse)  # the user of these tests may read any file
    with pytest.raises(InvalidRequest, match=r"study.journal cannot be used: Permission denied\. Restore the file"):
        search(journal.parent)


def test_damaged_journal_is_reported_in_one_line(
    journal: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(journal.parent.parent)
    DAMAGE["flipped_byte"][0](journal)
    assert main(WORDS) == 2
    error = capsys.readouterr().err
    assert "s/study.journal, line 4: it is not JSON" in error and error.count("\n") == 1


@pytest.mark.fault("D7")
@pytest.mark.parametrize("link", [True, False])
def test_journal_lock_of_a_killed_process_is_removed(journal: Path, link: bool) -> None:
    left = journal.with_name(JOURNAL_LOCK)
    left.symlink_to("gone") if link else left.touch()
    repair(journal.parent, 2)
    assert not os.path.lexists(left)


@pytest.mark.fault("E7")
def test_trial_that_is_a_symbolic_link_is_refused(journal: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (journal.parent / "trial-1").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidRequest, match="trial-1 is a symbolic link, which is not followed"):
        search(journal.parent)


@pytest.mark.fault("E7")
@pytest.mark.parametrize("name", ["config.yaml", "search.json"])
def test_search_file_that_is_a_symbolic_link_is_refused(name: str, journal: Path, tmp_path: Path) -> None:
    shutil.move(journal.parent / name, tmp_path / "elsewhere")
    (journal.parent / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidRequest, match=f"{name} is a symbolic link, which is not followed"):
        search(journal.parent)


def test_trial_with_incompletely_drawn_settings_fails_and_another_is_drawn(tmp_path: Path) -> None:
    found = search(tmp_path / "s")
    found._drawn()
    path = found.path / JOURNAL
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))  # the last setting's record
    (found.path / "search.json").unlink()
    again, ended = search(tmp_path / "s"), list[tuple[int, str | None]]()

    def end(number: int, why: str | None) -> None:
        ended.append((number, why))
        again._record(number, why)

    number, order = next(again._orders(again.config, 2, end))
    assert number == 1 and order["config"]["ppo"]["gamma"] in (0.9, 0.99)
    assert ended == [(0, "the search was killed while the settings of this trial were drawn")]
    assert [trial.state for trial in again.trials] == ["failed", "running"]
