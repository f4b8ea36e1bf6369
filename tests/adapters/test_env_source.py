"""Every valid form of the argument `env` becomes one recipe per env; others are refused with the valid forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import pytest

import multiverse as mv
from multiverse.adapters.env_source import recipes
from tests.envs import Walk


def lengths(source: Any, num_envs: int | None = 2, **options: Any) -> tuple[int, ...]:
    with mv.make_vec(source, num_envs, "serial", **options) as envs:
        return envs.get_attr("length")


def test_env_ids_specs_callables_and_import_paths_are_accepted() -> None:
    assert lengths("tests/Walk-v0") == (5, 5)
    assert lengths(gymnasium.spec("tests/Walk-v0")) == (5, 5)
    assert lengths(Walk) == (5, 5)
    assert lengths(lambda: Walk(length=3)) == (3, 3)
    assert lengths("tests.envs:Walk") == (5, 5)
    assert lengths([Walk, lambda: Walk(length=2)], None) == (5, 2)


def test_env_id_can_include_the_module_that_registers_it() -> None:
    assert gymnasium.make("tests.envs:tests/Walk-v0").get_wrapper_attr("length") == 5
    assert lengths("tests.envs:tests/Walk-v0") == (5, 5)


def test_num_envs_defaults_to_one() -> None:
    assert lengths(Walk, None) == (5,)


def test_env_kwargs_are_passed_to_every_kind_of_source() -> None:
    for source in ("tests/Walk-v0", "tests.envs:Walk", Walk):
        assert lengths(source, env_kwargs={"length": 8}) == (8, 8)
        assert lengths(source, env_kwargs=[{"length": 8}, {}]) == (8, 5)


def test_wrappers_are_applied_in_order() -> None:
    first = gymnasium.wrappers.TimeLimit
    with mv.make_vec(Walk, 1, "serial", wrappers=[lambda e: first(e, 3), gymnasium.wrappers.TimeAwareObservation]) as e:
        assert e.single_observation_space.shape == (3,)


@pytest.mark.parametrize(
    ("source", "num_envs", "said"),
    [
        ("NoSuchEnv-v0", 2, "NoSuchEnv"),
        ("CartPole-v77", 2, "CartPole"),
        ("no_such_module_at_all:make", 2, "no_such_module_at_all"),
        ([], None, "empty"),
        ([Walk, Walk], 3, "2 env factories for num_envs=3"),
        (Walk(), 2, "one instance: pass a function that builds an env"),
        (17, 2, "expected a Gymnasium id"),
        ([Walk, 17], None, "expected a Gymnasium id"),
    ],
)
def test_unusable_env_source_is_refused_with_the_reason(source: Any, num_envs: int | None, said: str) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=said):
        mv.make_vec(source, num_envs, "serial")


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        (lambda: None, "NoneType, which is neither a gymnasium.Env nor a PettingZoo env"),
        (lambda: gymnasium.vector.SyncVectorEnv([Walk]), "is a vector env already"),
    ],
)
def test_factory_that_returns_no_env_is_refused_with_its_type(factory: Any, said: str) -> None:
    with pytest.raises(mv.MultiverseError, match=said):
        mv.make_vec(factory, 2, "serial")


@pytest.mark.parametrize(
    ("source", "meant"),
    [
        ("class Cart(gym.Env): ...\nclass Wheel: ...\ndef make_env(): ...\ndef _env(): ...", ":Cart or {}:make_env"),
        ("class _B(gym.Env): ...\nclass Cart(_B): ...\nclass Fast(Cart): ...\nclass Wheel: ...", ":Cart or {}:Fast"),
        ("def build(): ...\nsurely = 1", ":build"),
        ("surely = 1", ":NAME"),
        ("class", "cannot be read: .*line 1"),
    ],
)
def test_file_without_class_name_lists_its_envs_without_being_imported(source: str, meant: str, tmp_path: Path) -> None:
    file = str(tmp_path / "my_env.py")
    Path(file).write_text(f"import nothing_of_this_name\n{source}" if meant.startswith(":") else source)
    result = f"names a file, not an env in it. Use {file}{meant.format(file)}$" if meant.startswith(":") else meant
    with pytest.raises(mv.errors.InvalidRequest, match=result):
        mv.make_vec(file, 2)


def test_atari_id_error_names_its_package() -> None:
    with pytest.raises(
        mv.errors.InvalidRequest, match=r"to another package: (pip install ale-py, then )?use ale_py:ALE/Pong-v5$"
    ):
        mv.make_vec("ALE/Pong-v5", 2)


@pytest.mark.parametrize(
    ("typed", "meant"), [("CartPole", "CartPole-v1"), ("cartpole-v9", "CartPole"), ("Pendulumm-v1", "Pendulum")]
)
def test_unknown_env_id_suggests_the_nearest(typed: str, meant: str) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=f"Did you mean:? `?{meant}`?\\?$"):
        mv.make_vec(typed, 2)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("mpe2.simple_spread_v3", "mpe2.simple_spread_v3:parallel_env or mpe2.simple_spread_v3:env?"),
        ("pettingzoo.classic.connect_four_v3", "Did you mean pettingzoo.classic.connect_four_v3:env?"),
    ],
)
def test_pettingzoo_module_without_function_suggests_what_to_type(typed: str, meant: str) -> None:
    pytest.importorskip(typed.partition(".")[0])  # optional for this suite
    with pytest.raises(mv.errors.InvalidRequest) as caught:
        mv.make_vec(typed, 2)
    assert meant in str(caught.value)
    for other in ("nowhere.at_all", "__main__.Env"):
        with pytest.raises(mv.errors.InvalidRequest) as caught:
            mv.make_vec(other, 2)
        assert "id you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("of_versions.games.chase_v4:env", "of_versions.games.chase_v5:env or of_versions.games.chase_v6:env"),
        ("of_versions.gamse.chase_v5:env", "of_versions.games.chase_v5:env"),
        ("of_versions.games.chase_v4", "of_versions.games.chase_v5:env"),
        ("of_versions.games:chase_v5", "of_versions.games.chase_v5:env"),
    ],
)
def test_unknown_module_or_version_suggests_existing_ones(
    typed: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    games = tmp_path / "of_versions" / "games"
    games.mkdir(parents=True)
    for file in (games.parent / "__init__.py", games / "__init__.py"):
        file.write_text("")
    for version in (5, 6):
        (games / f"chase_v{version}.py").write_text("def env():\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(mv.errors.InvalidRequest) as caught:
        mv.make_vec(typed, 2)
    assert str(caught.value).endswith(f" Did you mean {meant}?")


def test_unknown_version_in_an_installed_package_is_not_answered_with_an_extra() -> None:
    pytest.importorskip("pettingzoo")
    with pytest.raises(mv.errors.InvalidRequest, match=r"Did you mean pettingzoo\.sisl\.pursuit_v\d:env\?$"):
        mv.make_vec("pettingzoo.sisl.pursuit_v99:env", 2)


def test_each_env_has_its_own_copy_of_the_kwargs() -> None:
    given: dict[str, Any] = {"length": 3}
    one, other = recipes(Walk, 2, given, None)
    given["length"] = 99
    assert (one.kwargs, other.kwargs) == ({"length": 3}, {"length": 3})
