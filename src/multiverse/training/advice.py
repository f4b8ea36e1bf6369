"""Advice: an advisor, such as a language model, periodically shapes rewards or chooses where episodes begin.

    advisor = HttpAdvisor("http://localhost:8000/v1", "my-model")
    run = mv.train("multiverse/Quest-v0", hooks=[Advice(advisor, every_episodes=50)])

Envs need the methods `advisable()` and `advise(starts=…, rewards=…)`, and the advice must be part of their
`save_state()`. Decisions are written to the run (`advice.jsonl`). A resumed run that reaches the same env steps again
uses these, without asking the advisor again.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from multiverse.core.errors import InvalidConfig, InvalidRequest, MultiverseError
from multiverse.core.wording import short_error, short_repr
from multiverse.rollouts.episodes import RecentEpisodes
from multiverse.training.config.files import read_config
from multiverse.training.hooks import Hook
from multiverse.training.runs.files import append_line, read_lines
from multiverse.training.runs.find_runs import ADVICE

if TYPE_CHECKING:
    from multiverse.rollouts.episodes import Collected
    from multiverse.training.trainer import Trainer

log = logging.getLogger("multiverse")

FILE = ADVICE
LARGEST_ANSWER = 2**20
Decision = dict[str, Any]
"""`starts`: names of points where episodes begin; `rewards`: name → factor of its rewards. Both are optional."""


class Advisor(Protocol):
    """Makes decisions about a run."""

    takes_time: bool  # whether it is asked in a thread, and its answer used when it arrives

    def advise(self, numbers: Mapping[str, float], report: str) -> Mapping[str, Any] | None:
        """Return a decision, from the run's numbers or from the same report as text; None changes nothing. Errors are
        logged."""


# -- the hook ----------------------------------------------------------------------------------------------------
class Advice(Hook):
    """Hook that asks an advisor every `every_episodes` or `every_s`; stepping never waits for one that takes time."""

    def __init__(self, advisor: Advisor, *, every_episodes: int | None = None, every_s: float | None = None) -> None:
        if (every_episodes is None) == (every_s is None) or not (every_episodes or every_s or 0) > 0:
            raise InvalidRequest(f"every_episodes={every_episodes}, every_s={every_s}: expected one of them, above 0")
        self._advisor, self._every_episodes, self._every_s = advisor, every_episodes, every_s
        self._recorded: dict[int, Decision] | None = None  # env steps → recorded decision that is still to come
        self._standing: Decision = {}  # all decisions so far
        self._advised: tuple[int, int] | None = None  # envs and restarts at the last advice: new envs have none
        self._asked_at = 0.0  # episodes or seconds
        self._question: _Question | None = None

    def on_rollout(self, trainer: Trainer, collected: Collected) -> None:
        """Advise the envs before the run is marked, so that the advice is in their saved states."""
        clock = trainer.clock
        if self._recorded is None:
            self._begin(trainer)
        recorded, failures = self._recorded or {}, trainer.session.failures
        envs = id(trainer.session.envs), failures.env_restarts + failures.worker_restarts
        if envs != self._advised:
            self._advised = envs
            if self._standing:
                self._advise(trainer, self._standing)
        if clock.env_steps in recorded:
            self._advise(trainer, recorded.pop(clock.env_steps))
        if recorded:
            return
        now = clock.episodes + len(collected.episodes) if self._every_s is None else clock.seconds
        if self._question is None and now - self._asked_at >= (self._every_episodes or self._every_s or 0):
            self._asked_at = now
            numbers, report = _report(trainer, collected)
            self._question = _Question(self._advisor, numbers, report)
        if self._question is not None and self._question.answered:
            answer, self._question = self._question.answer, None
            decision = _checked(answer, trainer.session.envs.call("advisable", env_ids=[0])[0])
            if decision:
                self._write(trainer, decision)
                self._advise(trainer, decision)

    def _begin(self, trainer: Trainer) -> None:
        envs = trainer.session.envs
        try:
            envs.call("advisable", env_ids=[0])
        except MultiverseError as error:
            raise InvalidRequest(
                f"{trainer.config.env} cannot be advised: it needs the methods advisable() and advise() "
                f"({error.headline})"
            ) from error
        lines = list(read_lines(trainer.directory.path / FILE))
        self._recorded = {}
        for line in lines:
            if line["env_steps"] < trainer.clock.env_steps:
                self._standing |= line["decision"]
            else:
                self._recorded[line["env_steps"]] = line["decision"]
        key = "episodes" if self._every_s is None else "seconds"
        self._asked_at = max([line[key] for line in lines], default=0.0)

    def _advise(self, trainer: Trainer, decision: Decision) -> None:
        self._standing |= decision
        trainer.session.envs.call("advise", **decision)

    def _write(self, trainer: Trainer, decision: Decision) -> None:
        clock = trainer.clock
        line = {"env_steps": clock.env_steps, "episodes": clock.episodes, "seconds": round(clock.seconds, 3)}
        append_line(trainer.directory.path / FILE, {**line, "decision": decision})
        log.info("advice at %s env steps: %s", f"{clock.env_steps:,}", decision)


class _Question:
    """A question to an advisor, which is answered at once or later, in a thread."""

    def __init__(self, advisor: Advisor, numbers: Mapping[str, float], report: str) -> None:
        self._ask = (advisor, numbers, report)
        self.answer: Mapping[str, Any] | None = None
        self.answered = False
        if advisor.takes_time:
            threading.Thread(target=self._answer, name="multiverse-advisor", daemon=True).start()
        else:
            self._answer()

    def _answer(self) -> None:
        advisor, numbers, report = self._ask
        try:
            self.answer = advisor.advise(numbers, report)
        except Exception as error:  # a training does not fail because its advisor does
            log.warning("no advice: %s", error if isinstance(error, MultiverseError) else short_error(error))
        self.answered = True


def _report(trainer: Trainer, collected: Collected) -> tuple[dict[str, float], str]:
    """Return the run's numbers (progress, results, states of its envs), and the same as text."""
    clock, recent = trainer.clock, trainer.session.recent
    known = trainer.session.envs.call("advisable")
    if not len(recent):  # the episodes of the first rollout are added later
        recent = RecentEpisodes()
        recent.add(collected.episodes)
    numbers: dict[str, float] = {
        "env_steps": clock.env_steps,
        "episodes": clock.episodes + len(collected.episodes),
        "seconds": clock.seconds,
        "mean_return": recent.mean_return,
        "mean_length": recent.mean_length,
    }
    for name in known[0]["now"]:
        numbers[name] = sum(float(each["now"][name]) for each in known) / len(known)
    text = "\n".join(
        [
            "A reinforcement-learning run, and the means over its envs of what lies in their memory now:",
            *(f"{name}: {value:.6g}" for name, value in numbers.items()),
            f"Returns of the episodes that ended last: {[round(ep.returned, 2) for ep in collected.episodes[-10:]]}",
            f"Points where episodes can begin: {', '.join(sorted(known[0]['starts']))}",
            f"Names of rewards: {', '.join(known[0]['rewards'])}",
        ]
    )
    return numbers, text


def _checked(answer: Any, known: Mapping[str, Any]) -> Decision:
    """Return the valid part of an answer; log the rest."""
    if answer is None:
        return {}
    wrong, decision = [], Decision()
    starts, rewards = (answer.get("starts"), answer.get("rewards")) if isinstance(answer, Mapping) else (None, None)
    if isinstance(starts, Sequence) and not isinstance(starts, str) and starts and set(starts) <= set(known["starts"]):
        decision["starts"] = list(starts)
    elif starts is not None:
        wrong.append(f"starts={short_repr(starts)}")
    if isinstance(rewards, Mapping) and all(
        name in known["rewards"] and _is_scale(scale) for name, scale in rewards.items()
    ):
        decision["rewards"] = {name: float(scale) for name, scale in rewards.items()}
    elif rewards is not None:
        wrong.append(f"rewards={short_repr(rewards)}")
    if wrong or not decision:
        log.warning("advice that cannot be followed: %s", ", ".join(wrong) or short_repr(answer))
    return decision


def _is_scale(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0.0 <= value <= 100.0


# -- advisors ----------------------------------------------------------------------------------------------------
class RuleAdvisor:
    """Advisor with a file of rules, of which the first that applies decides:

    rules:
      - {when: mean_return, below: 5, starts: [stage_1, stage_2]}
      - {when: progress, above: 4, rewards: {defeated: 0.5}}
    """

    takes_time = False

    def __init__(self, path: Path | str) -> None:
        content = read_config(path)
        rules = content.get("rules")
        if set(content) != {"rules"} or not isinstance(rules, list) or not rules:
            raise InvalidConfig(str(path), "expected `rules`, a list, and nothing else")
        for number, rule in enumerate(rules):
            self._check(rule, f"{path}: rules[{number}]")
        self._rules: list[Mapping[str, Any]] = rules

    @staticmethod
    def _check(rule: Any, where: str) -> None:
        keys = {"when", "below", "above", "starts", "rewards"}
        if not isinstance(rule, Mapping) or (unknown := sorted(set(rule) - keys)):
            wrong = f"unknown: {', '.join(unknown)}" if isinstance(rule, Mapping) else "expected keys and values"
            raise InvalidConfig(where, wrong, f"A rule has the keys {', '.join(sorted(keys))}")
        if ("below" in rule) == ("above" in rule) or "when" not in rule or not {"starts", "rewards"} & set(rule):
            raise InvalidConfig(where, "expected `when`, `below` or `above`, and `starts` or `rewards`")

    def advise(self, numbers: Mapping[str, float], report: str) -> Mapping[str, Any] | None:
        for rule in self._rules:
            if rule["when"] not in numbers:
                raise InvalidRequest(f"rule {dict(rule)}: the numbers are {', '.join(numbers)}")
            value = numbers[rule["when"]]
            if value < rule["below"] if "below" in rule else value > rule["above"]:
                return {key: rule[key] for key in ("starts", "rewards") if key in rule}
        return None


class HttpAdvisor:
    """Advisor that asks a model behind an OpenAI-compatible endpoint (`url`/chat/completions)."""

    takes_time = True
    TASK = (
        "You advise a reinforcement-learning run. Answer with one JSON object and nothing else: "
        '{"starts": [names of points where the next episodes should begin], "rewards": {name: factor from 0 to 100}}. '
        "Leave a key out to change nothing there."
    )

    def __init__(
        self, url: str, model: str, *, key_variable: str | None = None, timeout_s: float = 20.0, retries: int = 2
    ) -> None:
        """`key_variable`: environment variable with the key, which is read when it is needed and never written."""
        if not url.startswith(("http://", "https://")):
            raise InvalidRequest(f"url={url!r}: expected http://… or https://…, to which /chat/completions is added")
        self._url, self._model, self._key_variable = url.rstrip("/"), model, key_variable
        self._timeout_s, self._retries = timeout_s, retries

    def advise(self, numbers: Mapping[str, float], report: str) -> Mapping[str, Any] | None:
        messages = [{"role": "system", "content": self.TASK}, {"role": "user", "content": report}]
        body = json.dumps({"model": self._model, "messages": messages, "temperature": 0}).encode()
        for left in range(self._retries, -1, -1):
            try:
                return self._post(body)
            except (OSError, ValueError, LookupError, TypeError) as error:
                refused = isinstance(error, urllib.error.HTTPError) and 400 <= error.code < 500 and error.code != 429
                if not left or refused:
                    raise InvalidRequest(
                        f"{self._url} returned no usable advice ({short_error(error)}): check address, key and model"
                    ) from error
                time.sleep(min(10.0, 2.0 ** (self._retries - left)))  # in its own thread: the training continues
        return None

    def _post(self, body: bytes) -> Mapping[str, Any]:
        headers = {"Content-Type": "application/json"}
        if self._key_variable is not None:
            headers["Authorization"] = f"Bearer {os.environ[self._key_variable]}"
        request = urllib.request.Request(f"{self._url}/chat/completions", body, headers)
        with urllib.request.urlopen(request, timeout=self._timeout_s) as reply:
            content = json.loads(reply.read(LARGEST_ANSWER))["choices"][0]["message"]["content"]
        answer = json.loads(content[content.index("{") : content.rindex("}") + 1])
        if not isinstance(answer, Mapping):
            raise ValueError(f"expected one JSON object, found {short_repr(content)}")
        return answer
