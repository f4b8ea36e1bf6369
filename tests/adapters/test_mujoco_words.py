"""MuJoCo's warnings about Gymnasium's own model files are suppressed; its other warnings are passed on."""

from __future__ import annotations

import gymnasium
import pytest

import multiverse as mv
from multiverse.adapters import env_source

mujoco = pytest.importorskip("mujoco")
OLD_MODEL = '<mujoco><compiler settotalmass="14"/><worldbody><body><geom size="1"/></body></worldbody></mujoco>'


def test_mujoco_warnings_are_hidden_only_for_gymnasium_models(capfd: pytest.CaptureFixture[str]) -> None:
    mv.make_vec("HalfCheetah-v5", 2, "serial").close()
    assert "deprecated" not in capfd.readouterr().err
    mujoco.MjModel.from_xml_string(OLD_MODEL)
    assert "deprecated" in capfd.readouterr().err


def test_mujoco_warning_filter_stays_while_another_thread_builds() -> None:
    spec = gymnasium.spec("HalfCheetah-v5")
    one, other = (env_source._without_deprecations_of_models(spec) for _ in range(2))
    with one:
        other.__enter__()
    assert mujoco.get_mju_user_warning() is not None  # or MuJoCo would end the program with its next warning
    other.__exit__(None, None, None)
