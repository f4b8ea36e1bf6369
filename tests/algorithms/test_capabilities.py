"""Capabilities that algorithms declare, their refusals, and when a run asks for them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import multiverse as mv
from examples.own_algorithm import Reinforce
from multiverse.algorithms import ALGORITHMS, PPO, SAC, PPOConfig, algorithm_class
from multiverse.algorithms.algorithm import Learner
from multiverse.algorithms.capabilities import (
    ANSWERS,
    FLAGS,
    Capabilities,
    RunRequirements,
    capabilities_of,
    refuse_unsupported,
)
from multiverse.core.layout import Group
from multiverse.training.config.train_config import TrainConfig

SEEN, IMAGES = spaces.Box(-1, 1, (3,)), spaces.Box(0, 255, (64, 64, 3), np.uint8)
BOX, DISCRETE = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)
ON_POLICY, FROM_REPLAY = {"ppo", "a2c", "taac"}, {"sac", "td3", "discrete_sac", "dqn"}


def group(actions: Any = None, observations: Any = SEEN, agents: int = 1) -> dict[str, Any]:
    """The requirements of envs with these agents; without given actions, any that the algorithm supports."""
    return {"groups": (Group("agents", tuple("abc"[:agents]), observations, actions),)}


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], set[str], str]] = {
    "asynchronous": ({"asynchronous": True}, {}, FROM_REPLAY, "asynchronous: NAME learns from replay"),
    "a changing number of envs": ({"auto_num_envs": True}, {}, FROM_REPLAY, "num_envs='auto': NAME keeps data"),
    "in turn": ({"kind": "turns", "env": "chess"}, {}, FROM_REPLAY, "NAME learns from replay, and agents of chess"),
    "own network": ({"network": "Mine"}, {}, {"taac"}, "network=Mine: NAME does not take a network"),
    "a Box": (group(BOX), {}, {"taac", "discrete_sac", "dqn"}, "NAME: actions must be Discrete, and these are Box"),
    "a Box without bounds": (
        group(spaces.Box(-np.inf, np.inf, (2,))),
        {},
        {"taac"} | FROM_REPLAY,
        "NAME: actions must be .*, and these are Box",
    ),
    "Discrete": (
        group(DISCRETE),
        {},
        {"sac", "td3"},
        "NAME: actions must be a Box of floats with bounds on every side",
    ),
    "MultiDiscrete": (
        group(spaces.MultiDiscrete([2, 3])),
        {},
        {"taac"} | FROM_REPLAY,
        "NAME: actions must be .*, and these are MultiDiscrete",
    ),
    "a Tuple": (group(spaces.Tuple([DISCRETE])), {}, ON_POLICY | FROM_REPLAY, "NAME: actions must be .* Tuple"),
    "images": (group(observations=IMAGES), {}, {"taac"}, "NAME does not learn from images"),
    "a memory, from images": (
        group(observations=IMAGES),
        {"memory": "gru"},
        FROM_REPLAY,
        "memory='gru': NAME supports a memory only on the CPU",
    ),
    "a memory, on a GPU": (
        {"device": "cuda"},
        {"memory": "lstm"},
        FROM_REPLAY,
        "memory='lstm': NAME supports a memory only on the CPU",
    ),
    "asynchronous, whole episodes": (
        {"asynchronous": True},
        {"whole_episodes": True},
        ON_POLICY,
        "asynchronous: cannot be used with whole_episodes",
    ),
    "a central critic of one agent": (
        {"kind": "single", "env": "maze"},
        {"critic": "central"},
        {"ppo", "a2c"},
        "critic='central': needs several agents, and maze has one",
    ),
    "a critic on the state, of one agent": (
        {"kind": "single"},
        {"critic": "state"},
        {"ppo", "a2c"},
        "critic='state': needs several agents, and the env has one",
    ),
    "a central critic of agents without teammates": (
        {"kind": "parallel", **group()},
        {"critic": "central"},
        {"ppo", "a2c"},
        "critic='central': no agent of the env has teammates",
    ),
}
"""By name: requirements, settings of the algorithm, who refuses that, and with which words."""


def reason_of(name: str, case: str) -> str | None:
    """The reason why the algorithm refuses this case; "no such setting" if the algorithm lacks the setting."""
    requirements, settings, _, _ = REFUSED[case]
    kind = algorithm_class(name)
    try:
        config = kind.Config(**settings)
    except (TypeError, mv.errors.InvalidRequest):
        return "no such setting"
    own = BOX if not kind.acts_in(DISCRETE) else DISCRETE
    groups = tuple(
        Group(one.name, one.agents, one.observation_space, own if one.action_space is None else one.action_space)
        for one in requirements.get("groups", ())
    )
    found: str | None = kind.supports(RunRequirements(**{**requirements, "groups": groups}, settings=config))
    return found


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("case", REFUSED)
def test_algorithm_refuses_exactly_unsupported_runs(name: str, case: str) -> None:
    _, _, refused, words = REFUSED[case]
    reason = reason_of(name, case)
    if name in refused:
        assert reason is not None and re.match(words.replace("NAME", name), reason), reason
    else:
        assert reason in (None, "no such setting")


@pytest.mark.parametrize("case", REFUSED)
def test_algorithms_that_a_refusal_recommends_support_the_run(case: str) -> None:
    recommended = set()
    for name in REFUSED[case][2]:
        text = reason_of(name, case) or ""
        advice = re.search(r"use ([\w, ]+)$|; ([\w, ]+) do so", text)
        recommended |= {word for word in re.findall(r"\w+", advice[0]) if word in ALGORITHMS} if advice else set()
    assert {name for name in recommended if reason_of(name, case) is not None} == set()
    able = {name for name in ALGORITHMS if reason_of(name, case) is None}
    assert recommended == (able if recommended else set())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithm_supports_its_intended_runs(name: str) -> None:
    kind = algorithm_class(name)
    assert issubclass(kind, Learner) and kind.title() == name
    actions = DISCRETE if kind.acts_in(DISCRETE) else BOX
    for agents, env in ((1, "single"), (3, "parallel")):
        run = RunRequirements(settings=kind.Config(), kind=env, **group(actions, agents=agents))  # type: ignore[arg-type]
        assert kind.supports(run) is None


@pytest.mark.parametrize("name", ALGORITHMS)
def test_capability_flags_agree_with_the_methods_of_the_class(name: str) -> None:
    kind = algorithm_class(name)
    assert kind.asynchronous == hasattr(kind, "max_lag")
    assert kind.auto_num_envs == hasattr(kind, "set_slots") and kind.keeps_masks == hasattr(kind, "keep_masks")


def test_training_page_has_the_capabilities_of_every_algorithm() -> None:
    rows = {
        "actions": lambda kind: "Box with bounds" if kind.bounded_actions else _kinds(kind),
        "images": lambda kind: _yes(kind.images),
        "with a memory: images, a GPU": lambda kind: _yes(kind.recurrent_images),
        "a network of yours (`network`)": lambda kind: _yes(kind.takes_network()),
        "agents that act in turn": lambda kind: _yes(kind.in_turn),
        "`asynchronous`": lambda kind: _yes(kind.asynchronous),
        "`num_envs: auto`": lambda kind: _yes(kind.auto_num_envs),
    }
    kinds = [algorithm_class(name) for name in ALGORITHMS]
    table = [f"| | {' | '.join(f'`{name}`' for name in ALGORITHMS)} |", f"|{'---|' * (len(kinds) + 1)}"]
    table += [f"| {what} | {' | '.join(cell(kind) for kind in kinds)} |" for what, cell in rows.items()]
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    assert "\n".join(table) in page, "\n".join(table)


def _yes(can: bool) -> str:
    return "yes" if can else "no"


def _kinds(kind: Any) -> str:
    return "any" if kind.actions == Learner.actions else ", ".join(one.__name__ for one in kind.actions)


def test_training_page_has_every_capability_name() -> None:
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    assert [name for name in (*FLAGS, *ANSWERS, "supports") if f"`{name}" not in page] == []


def test_help_of_the_setting_names_every_algorithm() -> None:
    from multiverse.cli.flags import all_settings

    help_text = next(one.help for one in all_settings()["settings of the run"] if one.name == "algorithm")
    assert f": {', '.join(ALGORITHMS)}, or module:Class" in " ".join(help_text.split())


# -- algorithms of the user --------------------------------------------------------------------------------------
class Plain:
    """An algorithm without a base class that declares no capabilities."""


def test_class_without_declarations_has_the_values_of_the_base_class() -> None:
    found = capabilities_of(Plain)
    assert {name: getattr(found, name) for name in FLAGS} == {name: getattr(Capabilities, name) for name in FLAGS}
    assert not found.takes_network() and found.title() == "Plain"
    assert found.supports(RunRequirements(kind="turns", **group(spaces.Tuple([BOX]), IMAGES))) is None
    reason = found.supports(RunRequirements(asynchronous=True))
    assert reason == "asynchronous: Plain does not correct for rollouts of an older policy: leave it out, or use " + (
        "ppo, a2c or taac"
    )


def test_methods_and_arguments_of_a_plain_class_declare_what_it_does() -> None:
    class Able(Plain):
        def __init__(self, network: Any = None) -> None: ...
        def set_slots(self, slots: int) -> None: ...
        def keep_masks(self, actions: int) -> None: ...

    found = capabilities_of(Able)
    assert found.takes_network() and found.auto_num_envs and found.keeps_masks
    assert found.supports(RunRequirements(auto_num_envs=True, network="Net")) is None


def test_flags_and_methods_of_a_plain_class_are_used() -> None:
    class Declares(Plain):
        asynchronous, in_turn, actions = True, False, (spaces.Box,)

        @classmethod
        def whole_episodes(cls, settings: Any) -> bool:
            return bool(settings["whole"])

    found = capabilities_of(Declares)
    assert found.supports(RunRequirements(asynchronous=True)) is None
    assert found.whole_episodes({"whole": True}) and not found.sees_state({})
    reason = found.supports(RunRequirements(kind="turns", env="chess"))
    assert reason is not None and reason.startswith("Declares learns from agents that act at once, and agents of chess")
    assert "Declares: actions must be a Box" in str(found.supports(RunRequirements(**group(DISCRETE))))


class SmallOnly(Reinforce):
    """Supports runs of at most 1,000 env steps."""

    @classmethod
    def supports(cls, run: RunRequirements) -> str | None:
        return "SmallOnly learns for 1,000 env steps at most" if (run.env_steps or 0) > 1_000 else None


class SmallPPO(PPO):
    @classmethod
    def supports(cls, run: RunRequirements) -> str | None:
        return super().supports(run) or SmallOnly.supports(run)


def no_env() -> Any:
    raise AssertionError("no env is built for a run that is refused")


@pytest.mark.parametrize("kind", [SmallOnly, SmallPPO])
def test_supports_of_an_own_algorithm_is_called_before_envs_are_built(kind: Any, tmp_path: Path) -> None:
    settings = {"run_dir": tmp_path / "run", "executor": "serial", "progress": False}
    with pytest.raises(mv.errors.InvalidRequest, match="1,000 env steps at most"):
        mv.train(no_env, kind, env_steps=2_000, **settings)
    with pytest.raises(mv.errors.EnvFailed, match="no env is built"):
        mv.train(no_env, kind, env_steps=500, **settings)
    assert not (tmp_path / "run").exists()


def test_supports_of_a_plain_class_adds_to_what_its_flags_refuse() -> None:
    reason = capabilities_of(SmallOnly).supports(RunRequirements(asynchronous=True, env_steps=2_000))
    assert reason is not None and reason.startswith("asynchronous: SmallOnly does not correct")


def test_actions_of_an_own_algorithm_are_refused_before_it_is_made(tmp_path: Path) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match="Reinforce: actions must be Discrete, and these are Box"):
        mv.train("Pendulum-v1", Reinforce, run_dir=tmp_path / "run", executor="serial", env_steps=500, progress=False)


def test_algorithm_from_a_function_is_checked_after_creation(tmp_path: Path) -> None:
    def make(observation_space: Any, action_space: Any, slots: int, seed: int) -> Any:
        return SmallOnly(SmallOnly.Config(), observation_space, action_space, slots, seed, "cpu")

    settings = {"num_envs": 2, "executor": "serial", "progress": False}
    with pytest.raises(mv.errors.InvalidRequest, match="1,000 env steps at most"):
        mv.train("CartPole-v1", make, run_dir=tmp_path / "run", env_steps=2_000, **settings)
    with pytest.raises(mv.errors.InvalidRequest, match="num_envs='auto': SmallOnly has no method set_slots"):
        mv.train("CartPole-v1", make, run_dir=tmp_path / "run", env_steps=500, **{**settings, "num_envs": "auto"})


def test_function_that_creates_an_algorithm_is_checked_with_its_own_settings(tmp_path: Path) -> None:
    def make(*given: Any) -> Any:
        return PPO(PPOConfig(critic="central"), *given)

    settings = {"num_envs": 2, "executor": "serial", "progress": False, "env_steps": 500}
    with pytest.raises(
        mv.errors.InvalidRequest, match="critic='central': needs several agents, and CartPole-v1 has one"
    ):
        mv.train("CartPole-v1", make, run_dir=tmp_path / "run", **settings)


@pytest.mark.parametrize("base", [Plain, PPO])
def test_invalid_supports_method_is_an_error(base: Any) -> None:
    class Instance(base):  # type: ignore[misc]
        def supports(self, run: RunRequirements) -> None: ...

    class Agrees(base):  # type: ignore[misc]
        @classmethod
        def supports(cls, run: RunRequirements) -> Any:
            return True

    run = RunRequirements(settings=PPOConfig())
    with pytest.raises(
        mv.errors.InvalidRequest, match=r"Instance.supports cannot be called with \(run\): .*@classmethod"
    ):
        refuse_unsupported(Instance, run)
    with pytest.raises(mv.errors.InvalidRequest, match=r"Agrees.supports returned True: expected the reason"):
        refuse_unsupported(Agrees, run)


def test_subclass_without_network_argument_refuses_a_network() -> None:
    class Fixed(SAC):
        def __init__(self, config: Any, observations: Any, actions: Any, slots: int, seed: int, device: str) -> None:
            super().__init__(config, observations, actions, slots, seed, device)

    reason = Fixed.supports(RunRequirements(settings=Fixed.Config(), network="Net"))
    assert reason is not None
    assert (
        "network=Net: Fixed does not take a network, because its constructor has no argument `network`; use" in reason
    )


# -- what a run asks ---------------------------------------------------------------------------------------------
def test_requirements_of_a_config_equal_its_settings() -> None:
    config = TrainConfig(env="CartPole-v1", num_envs="auto", network="my_net.py:Net", device="cuda", env_steps=500)
    asked = config.requirements()
    assert (asked.auto_num_envs, asked.network, asked.device, asked.env_steps) == (True, "Net", "cuda", 500)
    assert (asked.kind, asked.groups, asked.has_teams, asked.has_images) == (None, (), False, False)


def test_cautions_name_runs_that_learn_nothing() -> None:
    def cautions(name: str, env_steps: int, **settings: Any) -> list[str]:
        kind = algorithm_class(name)
        found: list[str] = kind.cautions(RunRequirements(settings=kind.Config(**settings), env_steps=env_steps))
        return found

    assert cautions("sac", 100, learning_starts=100) == [
        "learning_starts=100 and env_steps=100: the run ends before it learns"
    ]
    assert (
        "no gradient step is due in the 100 env steps"
        in cautions("sac", 200, learning_starts=100, updates_per_step=0.001)[0]
    )
    assert cautions("sac", 200, learning_starts=100) == cautions("ppo", 200) == []
    assert "taac trains a team of one agent; ppo is simpler" in cautions("taac", 200)[0]
