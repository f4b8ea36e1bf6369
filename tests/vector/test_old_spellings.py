"""Deprecated keywords of `make_vec` and names of `multiverse`: each warning names the replacement."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import pytest

import multiverse as mv
from multiverse.vector import make
from multiverse.vector.opening import VectorOptions
from tests.vector.conftest import nothing_left_behind  # noqa: F401

VALUES: dict[str, Any] = {
    "start_method": "fork",
    "waiting": "park",
    "restarts_per_minute": 3,
    "worker_memory_limit": "2GiB",
    "on_bad_value": "truncate",
    "reply_timeout_s": 30.0,
    "reset_timeout_s": 40.0,
    "close_timeout_s": 1.0,
    "groups": "separate",
    "possible_agents": ["a"],
    "parallel": True,
    "state": True,
    "ray_address": "auto",
    "cpus_per_worker": 2.0,
    "gpus_per_worker": 0.5,
}
PLAIN: dict[str, Any] = {"workers": 2, "on_failure": "restart", "executor": "ray"}


class Opened(Exception):
    """Raised in place of opening the envs, to end `make_vec`."""


@pytest.fixture
def options_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The options that `make_vec` makes of its arguments."""

    def asked(**arguments: Any) -> VectorOptions:
        def refuse(env: Any, num_envs: Any, options: VectorOptions) -> Any:
            raise Opened(options)

        monkeypatch.setattr(make, "open_envs", refuse)
        with pytest.raises(Opened) as caught:
            mv.make_vec("CartPole-v1", 2, **arguments)
        options: VectorOptions = caught.value.args[0]
        return options

    return asked


def test_every_old_keyword_has_a_test_value() -> None:
    assert VALUES.keys() == make.OLD_KEYWORDS.keys()


@pytest.mark.parametrize("old", VALUES)
def test_old_keyword_gives_the_same_options_and_names_its_replacement(old: str, options_of: Any) -> None:
    parameter, field = make.OLD_KEYWORDS[old]
    kind, plain = make.OPTIONS[parameter], {name: value for name, value in PLAIN.items() if name == parameter}
    fields = {make.PLAIN_FIELDS[name]: value for name, value in plain.items() if name in make.PLAIN_FIELDS}
    expected = options_of(**{parameter: kind(**fields, **{field: VALUES[old]})})
    with pytest.warns(DeprecationWarning, match=rf"{old}=….*{parameter}={kind.__name__}\({field}=…\)") as warned:
        assert options_of(**plain, **{old: VALUES[old]}) == expected
    assert [warning.filename for warning in warned] == [__file__]


@pytest.mark.parametrize("old", VALUES)
def test_old_keyword_together_with_its_replacement_is_refused(old: str) -> None:
    parameter, _ = make.OLD_KEYWORDS[old]
    options = {parameter: make.OPTIONS[parameter]()}
    with pytest.warns(DeprecationWarning), pytest.raises(mv.errors.InvalidRequest, match="cannot be used together"):
        mv.make_vec("CartPole-v1", 2, **options, **{old: VALUES[old]})


def test_several_old_keywords_are_combined_with_plain_values(options_of: Any) -> None:
    old = {"on_bad_value": "clip", "worker_memory_limit": 10**9, "start_method": "spawn", "waiting": "spin"}
    with pytest.warns(DeprecationWarning) as warned:
        options = options_of(workers=2, on_failure="restart", **old)
    assert len(warned) == len(old)
    assert options.workers == mv.WorkerOptions(count=2, start_method="spawn", waiting="spin")
    assert options.failures == mv.FailureOptions(on_failure="restart", on_bad_value="clip", worker_memory_limit=10**9)


def test_old_ray_address_selects_ray_if_no_executor_is_named(options_of: Any) -> None:
    with pytest.warns(DeprecationWarning):
        options = options_of(ray_address="auto")
    assert (options.executor, options.ray) == ("ray", mv.RayOptions(address="auto"))
    with pytest.warns(DeprecationWarning):
        assert options_of(cpus_per_worker=2.0).executor == "auto", "had no effect before, either"


@pytest.mark.parametrize("old", ["ray_address", "cpus_per_worker"])
def test_old_keywords_of_ray_are_refused_with_other_executors(old: str) -> None:
    with pytest.warns(DeprecationWarning), pytest.raises(mv.errors.InvalidRequest, match="only for executor='ray'"):
        mv.make_vec("CartPole-v1", 2, "serial", **{old: VALUES[old]})  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("name", "home"), [(name, home) for home, names in mv._MOVED.items() for name in names], ids=str
)
def test_moved_name_is_found_at_its_old_place_with_a_warning(name: str, home: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"multiverse\.{name} is now {home}\.{name}") as warned:
        found = getattr(mv, name)
    assert found is getattr(importlib.import_module(home), name) and name not in mv.__all__
    assert warned[0].filename == __file__


def test_current_spellings_emit_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        for name in mv.__all__:
            getattr(mv, name)
        timeouts, failures = mv.Timeouts(close_s=1.0), mv.FailureOptions(on_failure="restart")
        mv.make_vec("CartPole-v1", 2, "thread", workers=1, on_failure=failures, timeouts=timeouts).close()


@pytest.mark.parametrize("wrong", [{"timeouts": 30}, {"timeouts": mv.FailureOptions()}, {"agents": "separate"}])
def test_options_of_wrong_type_are_refused_with_the_expected_class(wrong: dict[str, Any]) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=r"expected mv\.(Timeouts|AgentOptions)\(…\)"):
        mv.make_vec("CartPole-v1", 2, "serial", **wrong)


@pytest.mark.parametrize("wrong", [{"masks": "of"}, {"possible_agents": "agent_0"}, {"groups": 3}])
def test_agent_options_are_validated_when_they_are_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match="expected"):
        mv.AgentOptions(**wrong)
