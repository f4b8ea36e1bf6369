"""Errors: one tree, clear messages, and all details in attributes."""

from __future__ import annotations

import json

import pytest

import multiverse as mv
from multiverse.core import errors as all_errors
from multiverse.core.errors import InEnv, RemoteError
from multiverse.core.wording import describe_ids, format_return


def test_every_error_is_a_multiverse_error_and_a_builtin_one() -> None:
    public = [getattr(mv.errors, name) for name in mv.errors.__all__]
    errors = [e for e in public if issubclass(e, Exception) and e is not mv.MultiverseError]
    assert len(errors) >= 20
    for error in errors:
        assert issubclass(error, mv.MultiverseError)
        assert issubclass(error, ValueError | RuntimeError | TimeoutError | AssertionError | OSError)


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def test_exception_is_sent_as_text() -> None:
    remote = RemoteError.of(raised(KeyError("b")), env_id=3)
    assert (remote.type_name, remote.message, remote.env_id) == ("KeyError", "'b'", 3)
    assert "in raised" in remote.traceback
    assert str(remote) == "KeyError: 'b'"
    assert str(RemoteError.of(raised(ValueError()))) == "ValueError"


def test_env_id_of_the_raising_env_is_kept() -> None:
    remote = RemoteError.of(InEnv(5, ValueError("bad")))
    assert (remote.type_name, remote.env_id) == ("ValueError", 5)


def test_error_message_states_env_cause_and_traceback() -> None:
    failures = [RemoteError.of(raised(ValueError("bad")), i) for i in (2, 4)]
    error = mv.errors.EnvFailed("raised in step", 1, failures, hint="try this")
    text = str(error)
    first = "env 2 raised in step: ValueError: bad (and 1 more: envs [4])"
    assert text.startswith(f"{first}\n  env 4: ValueError: bad\ntry this")
    assert "Where it ran (worker 1):\nTraceback" in text
    assert error.env_ids == (2, 4)


def test_worker_death_message_names_worker_and_envs() -> None:
    error = mv.errors.WorkerDied(3, range(24, 32), "was killed by SIGKILL during step", "try fewer envs")
    assert str(error) == "worker 3 (envs 24-31) was killed by SIGKILL during step; try fewer envs"
    assert (error.worker, error.env_ids, error.hint) == (3, range(24, 32), "try fewer envs")


@pytest.mark.parametrize(("ids", "text"), [(range(7, 8), "7"), (range(2), "0-1")])
def test_env_id_ranges_are_shortened(ids: range, text: str) -> None:
    assert describe_ids(ids) == text


@pytest.mark.parametrize(
    ("value", "message"),
    [(493.14, "493.1"), (2792.83, "2,792.8"), (0.0, "0.0"), (0.004, "0.004"), (-0.0312, "-0.031"), (0.999, "1.0"),
     (0.00001, "1.0e-05"), (-1.8e-16, "0.0"), (5e-16, "0.0"), (-0.0, "0.0"),
     (float("inf"), "inf"), (float("nan"), "nan")],
)  # fmt: skip
def test_small_returns_are_shown_with_enough_digits(value: float, message: str) -> None:
    assert format_return(value) == message


@pytest.mark.parametrize(("text", "name"), [("json.loads('')", "mine.py"), ("mv.InvalidConfig()", "mine.py")])
def test_place_of_an_error_is_in_the_users_code(text: str, name: str) -> None:
    try:
        exec(compile(f"\n{text}", f"/home/me/{name}", "exec"), {"json": json, "mv": mv})
    except Exception as error:
        assert RemoteError.of(error).place().endswith(f" (/home/me/{name}, line 2)")


def test_place_of_an_error_outside_user_code_is_the_last_line() -> None:
    frames = [f'  File "{file}", line {line}, in one' for line, file in enumerate((all_errors.__file__, json.__file__))]
    result = RemoteError("KeyError", "", "\n".join(frames))
    assert result.place() == f" ({json.__file__}, line 1)"
    assert RemoteError("KeyError", "", "").place() == ""
