"""optuna's study of a search, kept as one JSON record a line in `study.journal`.

Every line is checked when it is read. A last line without its line break was being written when a process or the
machine stopped: it is cut off, and the file as it was is kept. Any other damage is an error with the file and the line.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
from optuna.storages.journal import BaseJournalBackend, JournalFileOpenLock

from multiverse.core.errors import InvalidRequest, MultiverseError
from multiverse.core.plain_files import open_plain, read_plain
from multiverse.core.wording import short_error
from multiverse.training.runs.files import LineFile, cut, write_new

log = logging.getLogger("multiverse")

JOURNAL, JOURNAL_LOCK = "study.journal", "study.journal.lock"
LARGEST_JOURNAL = 2**30  # bytes
STARTUP_TRIALS = 4
"""Number of trials whose settings are drawn at random, and which are complete before others are compared with them."""
WARMUP_STAGES = 2
"""Number of first stages at which the median prunes no trial, because all returns are still low."""
_CREATE_STUDY, _NAME = 0, "search"
_RESTORE = "Restore the file from a copy, or start another search with --run-dir"


class Journal(BaseJournalBackend):  # type: ignore[misc, unused-ignore]
    """The records of a study. Several processes may read and append at the same time."""

    def __init__(self, path: Path) -> None:
        self.path, self.line = path, 0
        self._lock = JournalFileOpenLock(str(path))  # optuna's other lock is a link that dangles in a relative path
        self._offsets = {0: 0}
        LineFile(path).close()

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """Yield the records from this number on. A last line without a line break is still being written."""
        number = log_number_from if log_number_from in self._offsets else 0
        with os.fdopen(open_plain(self.path, os.O_RDONLY), "rb") as file:
            file.seek(self._offsets[number])
            for line in file:
                if not line.endswith(b"\n"):
                    return
                number += 1
                self._offsets[number] = self._offsets[number - 1] + len(line)
                if number > log_number_from:
                    self.line = number
                    yield _record(self.path, number, line)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append records, which are on the disk when this returns; a write that fails leaves no torn line."""
        self._lock.acquire()
        try:
            file = LineFile(self.path)
            try:
                file.append_text("".join(f"{json.dumps(log, separators=(',', ':'))}\n" for log in logs))
                file.sync()
            finally:
                file.close()
        finally:
            self._lock.release()


def _record(path: Path, number: int, line: bytes) -> dict[str, Any]:
    """Return the record in this line; `InvalidRequest` if it is damaged."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, number, f"it is not JSON ({short_error(error)})") from None
    if not isinstance(record, dict) or not isinstance(record.get("op_code"), int):
        raise _damaged(path, number, "it is not a record of a study")
    if number == 1 and record["op_code"] != _CREATE_STUDY:
        raise _damaged(path, number, "the first record does not create the study, so lines before it are missing")
    return record


def _damaged(path: Path, line: int, wrong: str) -> InvalidRequest:
    return InvalidRequest(f"{path}, line {line}: {wrong}. {_RESTORE}")


def opened(path: Path, pruner: str = "none") -> optuna.Study:
    """Open the study in this directory; create one if there is none."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    pruners = {
        "median": lambda: optuna.pruners.MedianPruner(n_startup_trials=STARTUP_TRIALS, n_warmup_steps=WARMUP_STAGES),
        "halving": lambda: optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3),
        "none": optuna.pruners.NopPruner,
    }
    try:
        journal = Journal(path / JOURNAL)
    except OSError as error:
        raise _unusable(path / JOURNAL, error) from error
    try:
        storage = optuna.storages.JournalStorage(journal)
        if journal.line:  # loading a study appends nothing
            return optuna.load_study(study_name=_NAME, storage=storage, pruner=pruners[pruner]())
        return optuna.create_study(study_name=_NAME, storage=storage, direction="maximize", pruner=pruners[pruner]())
    except MultiverseError:
        raise
    except OSError as error:
        raise _unusable(journal.path, error) from error
    except Exception as error:  # errors of optuna about a record that is JSON but is not valid here
        # guard: records-that-do-not-fit-are-located
        wrong = f"this record does not fit those before it ({short_error(error)})"
        raise _damaged(journal.path, journal.line, wrong) from error


def _unusable(path: Path, error: OSError) -> InvalidRequest:
    return InvalidRequest(f"{path} cannot be used: {error.strerror or error}. {_RESTORE}")


def handle(study: optuna.Study, number: int) -> optuna.trial.Trial:
    """Return the handle of one trial, through which its results are reported."""
    return optuna.trial.Trial(study, study.trials[number]._trial_id)


def repair(path: Path, trials: int) -> None:
    """Cut off a torn last line, and remove the lock of a process that was killed. Only for the process that holds the
    search's lock. `trials`: number of trials in the rest of the directory; if there are any, the journal must exist."""
    journal = path / JOURNAL
    (path / JOURNAL_LOCK).unlink(missing_ok=True)  # guard: a-lock-that-was-left-is-removed
    try:
        data, _ = read_plain(journal, LARGEST_JOURNAL)
    except FileNotFoundError:
        data = b""
    except OSError as error:
        raise _unusable(journal, error) from error
    *whole, torn = data.split(b"\n")
    for number, line in enumerate(whole, 1):
        _record(journal, number, line)
    if torn:  # guard: a-torn-record-is-cut-off
        aside = journal.with_name(f"{JOURNAL}.torn-{secrets.token_hex(4)}")
        write_new(aside, data)
        cut(journal, len(data))
        log.warning(
            "%s: its last line was cut short, and these %d bytes were removed; the file as it was is %s",
            *(journal, len(torn), aside.name),
        )
    if trials and not whole:  # guard: a-lost-journal-is-no-new-search
        what = "is empty" if journal.exists() else "is missing"
        raise InvalidRequest(f"{journal} {what}, and this search has {trials} trials. {_RESTORE}")
