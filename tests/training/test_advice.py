"""Advisors: asked periodically, followed if valid, never waited for, and not asked twice."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import multiverse as mv
from multiverse.training.advice import FILE, Advice, HttpAdvisor, RuleAdvisor
from tests.builtin_envs.game_boy.cartridge import written
from tests.training.small_runs import digest


class Advised(gym.Env[Any, Any]):
    """Env with a reward of 1 a step, times the advice; its observation is the start of its episode."""

    observation_space = gym.spaces.Box(0.0, 9.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self.steps, self.starts, self.rewards = 0, ["0"], {"step": 1.0}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.start = 0, float(self.starts[int(self.np_random.integers(len(self.starts)))])
        return self._shown(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self._shown(), self.rewards["step"], False, self.steps == 8, {}

    def _shown(self) -> Any:
        return np.array([self.start, self.rewards["step"]], np.float32)

    def advisable(self) -> dict[str, Any]:
        return {"starts": ["0", "1", "2"], "rewards": ["step"], "now": {"start": self.start}}

    def advise(self, starts: Any = None, rewards: Any = None) -> None:
        self.starts, self.rewards = starts or self.starts, rewards or self.rewards

    def save_state(self) -> dict[str, Any]:
        now = {"steps": self.steps, "start": self.start, "starts": self.starts, "rewards": self.rewards}
        return {**now, "random": self.np_random.bit_generator.state}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        self.steps, self.start = state["steps"], state["start"]
        self.starts, self.rewards = list(state["starts"]), dict(state["rewards"])
        self.np_random.bit_generator.state = state["random"]


class Saying:
    """Advisor that gives these answers in order, and keeps the questions."""

    takes_time = False

    def __init__(self, *answers: Any) -> None:
        self.answers, self.asked = list(answers), []

    asked: list[str]

    def advise(self, numbers: Mapping[str, float], message: str) -> Any:
        self.asked.append(message)
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer


def train(where: Path, advisor: Any, env_steps: int = 128, env: Any = Advised, **settings: Any) -> mv.Run:
    options: Any = {"num_envs": 2, "steps_per_env": 16, "batch_size": 16, "evaluate_every": 0, "evaluation_episodes": 1}
    options |= {"executor": "serial", "env_steps": env_steps, "preset": False, **settings}
    return mv.train(env, run_dir=where, hooks=[Advice(advisor, every_episodes=4)], **options)


def decisions(run: mv.Run) -> list[Any]:
    return [(line["env_steps"], line["decision"]) for line in map(json.loads, _text(run).splitlines())]


def _text(run: mv.Run) -> str:
    path = run.path / FILE
    return path.read_text() if path.exists() else ""


def returns(run: mv.Run) -> list[float]:
    return [json.loads(line)["return"] for line in (run.path / "episodes.jsonl").read_text().splitlines()]


def test_advice_is_applied_and_logged(tmp_path: Path) -> None:
    advisor = Saying({"rewards": {"step": 3}}, None, {"starts": ["2"], "rewards": {"step": 0.5}})
    run = train(tmp_path / "run", advisor)
    assert decisions(run) == [
        (0, {"rewards": {"step": 3.0}}),
        (64, {"starts": ["2"], "rewards": {"step": 0.5}}),
    ]
    assert returns(run) == [8.0] * 4 + [24.0] * 8 + [4.0] * 4, "from the rollout after the answer on"
    first, _, third, fourth = advisor.asked
    assert "episodes: 4" in first and "Returns of the episodes that ended last: [8.0, 8.0, 8.0, 8.0]" in first
    assert "Points where episodes can begin: 0, 1, 2" in first and "Names of rewards: step" in first
    assert "start: 0" in third and "start: 2" in fourth


@pytest.mark.parametrize(
    "answer",
    [
        {"starts": ["moon"]},
        {"starts": "1"},
        {"rewards": {"luck": 1}},
        {"rewards": {"step": -1}},
        {"rewards": {"step": "much"}},
        {},
        "continue",
        ValueError("no idea"),
    ],
    ids=str,
)
def test_invalid_advice_is_reported_and_ignored(answer: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = train(tmp_path / "run", Saying(answer), env_steps=64)
    assert decisions(run) == [] and returns(run) == [8.0] * 8
    assert "advice" in caplog.text


def test_resumed_run_does_not_ask_the_advisor_again(tmp_path: Path) -> None:
    """From a checkpoint in the middle: decisions before and after it stay as they were."""
    answers = [{"rewards": {"step": 2}}, {"starts": ["1", "2"]}, {"rewards": {"step": 5}}, {"starts": ["2"]}]
    half = train(tmp_path / "run", Saying(*answers), env_steps=64)
    whole = mv.resume(half, env=Advised, env_steps=192, hooks=[Advice(Saying(*answers[2:]), every_episodes=4)])
    before, episodes = digest(whole), returns(whole)
    again = mv.resume(
        whole.path / "checkpoints" / "step-000000000064",
        env=Advised,
        hooks=[Advice(Saying(*[AssertionError("asked again")] * 9), every_episodes=4)],
        env_steps=192,
    )
    assert digest(again) == before and returns(again) == episodes
    assert [env_steps for env_steps, _ in decisions(again)] == [0, 32, 64, 96]


def test_env_without_advice_methods_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        mv.errors.InvalidRequest,
        match=r"CartPole-v1 cannot be advised: it needs the methods advisable\(\) and advise\(\)",
    ):
        train(tmp_path / "run", Saying(), env="CartPole-v1")


@pytest.mark.parametrize("every", [{}, {"every_episodes": 0}, {"every_episodes": 3, "every_s": 1.0}])
def test_exactly_one_interval_must_be_given(every: dict[str, Any]) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match="expected one of them, above 0"):
        Advice(Saying(), **every)


# -- a file of rules ---------------------------------------------------------------------------------------------
def test_first_matching_rule_decides(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(
        "rules:\n"
        "  - {when: episodes, above: 9, rewards: {step: 7}}\n"
        "  - {when: mean_return, below: 100, starts: ['1']}\n"
    )
    run = train(tmp_path / "run", RuleAdvisor(tmp_path / "rules.yaml"))
    assert [decision for _, decision in decisions(run)] == [{"starts": ["1"]}] * 2 + [{"rewards": {"step": 7.0}}] * 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rule: []", "expected `rules`, a list"),
        ("rules: [{when: x, below: 1, start: [a]}]", r"rules\[0\]: unknown: start. A rule has the keys above, below"),
        ("rules: [{when: x, starts: [a]}]", "expected `when`, `below` or `above`"),
        ("rules: [{when: x, below: 1}]", "and `starts` or `rewards`"),
    ],
)
def test_invalid_rules_file_names_the_mistake(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(text)
    with pytest.raises(mv.errors.InvalidRequest, match=message):
        RuleAdvisor(tmp_path / "rules.yaml")


def test_game_boy_env_accepts_advice(tmp_path: Path) -> None:
    """Every reward of the cartridge is multiplied by zero from the second rollout on."""
    (tmp_path / "rules.yaml").write_text(
        "rules:\n  - {when: episodes, above: 0, rewards: {room: 0, gems: 0, health: 0}, starts: [power_on]}\n"
    )
    settings = {"env_kwargs": {**written(tmp_path), "observation": "ram", "episode_length": 8}}
    name = "multiverse.envs.game_boy:GameBoyEnv"
    run = train(tmp_path / "run", RuleAdvisor(tmp_path / "rules.yaml"), env=name, **settings)
    assert any(returns(run)[:4]) and not any(returns(run)[4:])


# -- over HTTP ---------------------------------------------------------------------------------------------------
@contextmanager
def server(*replies: Any) -> Iterator[tuple[str, list[Any]]]:
    """A server: its address and the requests; each reply is a status, the text of a model, or an event to wait for."""
    asked: list[Any] = []
    left = list(replies)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((self.path, self.headers.get("Authorization"), body))
            reply = left.pop(0) if left else 500
            if isinstance(reply, threading.Event):
                reply.wait(60)
                reply = 500
            self.send_response(reply if isinstance(reply, int) else 200)
            self.end_headers()
            if isinstance(reply, str):
                self.wfile.write(json.dumps({"choices": [{"message": {"content": reply}}]}).encode())

        def log_message(self, *_: Any) -> None:
            pass

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{running.server_port}/v1", asked
    finally:
        running.shutdown()
        running.server_close()


def test_model_is_asked_over_http_with_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeated after an error of the server; text around the JSON of the answer is ignored."""
    monkeypatch.setenv("MY_KEY", "secret")
    with server(503, 'Certainly!\n```json\n{"starts": ["1"]}\n```') as (url, asked):
        advisor = HttpAdvisor(url, "my-model", key_variable="MY_KEY")
        assert advisor.advise({}, "how it goes") == {"starts": ["1"]}
    path, key, body = asked[-1]
    assert (len(asked), path, key, body["model"]) == (2, "/v1/chat/completions", "Bearer secret", "my-model")
    assert body["messages"][-1] == {"role": "user", "content": "how it goes"}


@pytest.mark.parametrize(
    ("replies", "times", "message"),
    [((401,), 1, "401"), ((500, 500), 2, "500"), (("I would rather not.",) * 2, 2, "substring")],
)
def test_failing_or_invalid_model_answer_is_an_error(replies: Any, times: int, message: str) -> None:
    with server(*replies) as (url, asked):
        with pytest.raises(mv.errors.InvalidRequest, match=message):
            HttpAdvisor(url, "my-model", retries=1).advise({}, "")
        assert len(asked) == times


def test_invalid_endpoint_url_is_refused() -> None:
    with pytest.raises(mv.errors.InvalidRequest, match="url='localhost'"):
        HttpAdvisor("localhost", "my-model")


def test_training_does_not_wait_for_an_answer(tmp_path: Path) -> None:
    """The server does not answer before the training has ended."""
    over = threading.Event()
    with server(over) as (url, asked):
        run = train(tmp_path / "run", HttpAdvisor(url, "my-model", retries=0), env_steps=1280)
        done_first = not over.is_set()
        over.set()
    assert done_first and run.summary["env_steps"] == 1280 and len(asked) == 1 and decisions(run) == []


def test_late_answer_is_applied_when_it_arrives(tmp_path: Path) -> None:
    class Slow:
        """Advisor that is asked at the first rollout and answers when the third has been collected."""

        takes_time = True

        def __init__(self) -> None:
            self.may_answer, self.has_answered = threading.Event(), threading.Event()

        def advise(self, numbers: Mapping[str, float], message: str) -> Any:
            self.may_answer.wait(60)
            return {"rewards": {"step": 3}}

    class Release(mv.Hook):
        def __init__(self, slow: Slow, advice: Advice) -> None:
            self.slow, self.advice, self.rollouts = slow, advice, 0

        def on_rollout(self, trainer: Any, collected: Any) -> None:
            self.rollouts += 1
            if self.rollouts == 3:
                question = self.advice._question
                self.slow.may_answer.set()
                while question is not None and not question.answered:
                    pass

    slow = Slow()
    advice = Advice(slow, every_episodes=4)
    options: Any = {"num_envs": 2, "steps_per_env": 16, "evaluate_every": 0, "evaluation_episodes": 1, "preset": False}
    hooks = [Release(slow, advice), advice]
    run = mv.train(Advised, run_dir=tmp_path / "run", hooks=hooks, executor="serial", env_steps=128, **options)
    assert decisions(run)[0] == (64, {"rewards": {"step": 3.0}})
    assert returns(run)[:12] == [8.0] * 12 and returns(run)[12:16] == [24.0] * 4
