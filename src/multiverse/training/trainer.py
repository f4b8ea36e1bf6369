"""The trainer: collect a rollout, learn from it, look how good it has become, save; until the budget is spent."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from multiverse.algorithms.algorithm import Algorithm, UpdateReport
from multiverse.contracts.errors import MultiverseError, RunNotSaved
from multiverse.experience.collector import Collected
from multiverse.learning.networks import torch_threads
from multiverse.memory.interrupts import StopRequests, StopWaiting
from multiverse.training.config.build import as_plain
from multiverse.training.config.train_config import Clock, TrainConfig
from multiverse.training.evaluation import Evaluation, evaluate
from multiverse.training.hooks import Hook
from multiverse.training.session import Session
from multiverse.training.storage.checkpoint import Checkpoints
from multiverse.training.storage.run_directory import RunDirectory

log = logging.getLogger("multiverse")


class Trainer:
    """One run, from wherever `session` and `clock` are to the end of its budget."""

    def __init__(
        self, config: TrainConfig, session: Session, directory: RunDirectory, hooks: Sequence[Hook] = ()
    ) -> None:
        self.config, self.session, self.directory, self._hooks = config, session, directory, list(hooks)
        self.clock, self.evaluation, self.best_return = Clock(), None, float("-inf")
        self._checkpoints = Checkpoints(directory.checkpoints, config.keep_checkpoints)
        self._requests, self._stopped = StopRequests(), ""
        self._saved_at = self._looked_at = time.monotonic()
        self._evaluated_at = 0  # env steps
        self.skipped_updates = 0
        self._whole = True  # the algorithm is as it was after an update, and not in the middle of one

    clock: Clock
    evaluation: Evaluation | None

    @property
    def algorithm(self) -> Algorithm:
        return self.session.algorithm

    def stop(self, why: str) -> None:
        """End the run after this rollout."""
        self._stopped = self._stopped or why

    # -- the loop ------------------------------------------------------------------------------------------------
    def run(self) -> dict[str, Any]:
        """Train until the budget is spent; returns the summary, which is in the run's directory too.

        Ctrl-C or SIGTERM: the run is saved as it was after its last update, and the signal goes on its way.
        """
        with self._requests, torch_threads(self.config.torch_threads):
            self._sinks, self._looked_at = self.directory.sinks(), time.monotonic()
            try:
                self._evaluate_now_and_then()  # a resumed run may have been cut off just before
                while not self._over():
                    share = self.config.budget.spent(self.clock)
                    collected = self.session.collect(self._interrupted)
                    if collected is None:
                        break
                    self._tell("on_rollout", collected)
                    began_at, self._whole = time.perf_counter(), False
                    report = self.algorithm.update(self.session.rollout, share)
                    self.session.learned(collected)
                    self._whole = True
                    self._count(collected, report, time.perf_counter() - began_at)
                    self._evaluate_now_and_then()
                    self._save_now_and_then()
                return self._end()
            except StopWaiting:  # for an env that hangs; what has been learned is whole
                return self._end()
            except Exception as error:
                self._end_in(error)
                raise
            finally:
                self._sinks.close()

    def _over(self) -> bool:
        return bool(self._stopped) or self._interrupted() or self.config.budget.spent(self.clock) >= 1.0

    def _interrupted(self) -> bool:
        return self._requests.received is not None

    def _count(self, collected: Collected, report: UpdateReport, learn_s: float) -> None:
        clock, rollout, now = self.clock, self.session.rollout, time.monotonic()
        took_s, self._looked_at = now - self._looked_at, now
        clock.env_steps += rollout.steps * rollout.slots
        clock.episodes += len(collected.episodes)
        clock.updates += 1
        clock.lost_steps += collected.lost_steps
        clock.seconds += took_s
        self.skipped_updates += report.skipped
        self.directory.write_episodes(_episode_lines(collected, clock.env_steps))
        shares = {"act": collected.act_s, "step": collected.step_s, "learn": learn_s}
        self.metrics = {
            "episodes": clock.episodes,
            "updates": clock.updates,
            "seconds": round(clock.seconds, 3),
            "env_steps_per_s": rollout.steps * rollout.slots / took_s if took_s else 0.0,
            "mean_return": self.session.recent.mean_return,
            "mean_length": self.session.recent.mean_length,
            **{f"{name}_share": spent / took_s if took_s else 0.0 for name, spent in shares.items()},
            **report.metrics,
        }
        self._sinks.write(self.metrics, clock.env_steps)
        self._tell("on_update", report)

    # -- now and then --------------------------------------------------------------------------------------------
    def _evaluate_now_and_then(self) -> None:
        every = self.config.steps_between_evaluations
        if every and self.clock.env_steps // every > self._evaluated_at // every:
            self.evaluate()

    def evaluate(self) -> None:
        """Try the policy out, now; from a hook in `on_update`. An env that fails there costs the evaluation only."""
        try:
            found = self._evaluated()
        except MultiverseError as error:
            log.warning("this evaluation failed, and the run goes on without it: %s", error.headline)
            self._evaluated_at = self.clock.env_steps
            return
        if found is not None:
            self._take(found)

    def _evaluated(self) -> Evaluation | None:
        config, algorithm = self.config, self.algorithm
        return evaluate(
            self.session.evaluation_env,
            algorithm.policy(),
            algorithm.features,
            config.evaluation_episodes,
            config.evaluation_seed,
            self._interrupted,
        )

    def _take(self, found: Evaluation) -> None:
        config = self.config
        self.evaluation, self._evaluated_at = found, self.clock.env_steps
        metrics = {f"evaluation_{name}": value for name, value in found.summary().items()}
        self._sinks.write(metrics, self.clock.env_steps)
        self._tell("on_evaluation", found)
        if found.mean_return > self.best_return:
            self.best_return = found.mean_return
            self._save(best=True)
        if config.target_return is not None and found.mean_return >= config.target_return:
            self.stop(f"reached a mean return of {found.mean_return:g}")

    def _save_now_and_then(self) -> None:
        if time.monotonic() - self._saved_at >= self.config.checkpoint_every_s:
            self._save()

    def save(self) -> None:
        """A checkpoint, now; from a hook in `on_update`."""
        self._save()

    def _save(self, best: bool = False, final: bool = False) -> None:
        manifest = {"config": as_plain(self.config), "clock": self.clock.state()}
        self._checkpoints.save(self.state(), manifest, self.clock.env_steps, best=best, final=final)
        self._saved_at = time.monotonic()

    # -- the end -------------------------------------------------------------------------------------------------
    def _end(self) -> dict[str, Any]:
        if not self._interrupted() and (self.evaluation is None or self._evaluated_at != self.clock.env_steps):
            self.evaluate()
        interrupted = self._interrupted()  # perhaps only now: an evaluation takes its time
        try:
            self._save(final=True)
        except OSError as error:
            raise RunNotSaved(self.directory.path, error.strerror or str(error)) from error
        summary = self.summary(finished=not interrupted)
        self.directory.write_summary(summary)
        if interrupted:
            self._requests.raise_it()
        self._tell("on_end", summary)
        return summary

    def _end_in(self, error: Exception) -> None:
        """Whatever ended the run, what it has learned is kept: as it was after its last update."""
        try:
            if self._whole and not isinstance(error, RunNotSaved):
                self._save()
            reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            self.directory.write_summary({**self.summary(finished=False), "error": reason})
        except Exception as another:  # the first one is what the caller must hear of
            log.warning("the run could not be saved at its end: %s", another)

    def summary(self, finished: bool) -> dict[str, Any]:
        """What became of the run so far."""
        clock = self.clock
        return {
            "finished": finished,
            "stopped": self._stopped or None,
            "env": self.config.env,
            "algorithm": self.config.algorithm,
            "seed": self.config.seed,
            **asdict(clock),
            "env_steps_per_s": clock.env_steps / clock.seconds if clock.seconds else 0.0,
            "mean_return": self.session.recent.mean_return,
            "evaluation": None if self.evaluation is None else self.evaluation.summary(),
            "best_return": None if self.best_return == float("-inf") else self.best_return,
            "skipped_updates": self.skipped_updates,
            "failures": asdict(self.session.envs.failures),
            "plan": asdict(self.session.envs.plan),
        }

    def _tell(self, moment: str, what: Any) -> None:
        for hook in self._hooks:
            getattr(hook, moment)(self, what)

    # -- its state -----------------------------------------------------------------------------------------------
    def state(self) -> dict[str, Any]:
        """Everything a resumed run needs to be this one."""
        return {
            "session": self.session.state(),
            "plan": asdict(self.session.envs.plan),
            "clock": self.clock.state(),
            "best_return": self.best_return,
            "evaluated_at": self._evaluated_at,
            "skipped_updates": self.skipped_updates,
            "files": self.directory.position(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Be that run; what its files tell beyond it is cut off."""
        self.session.load(state["session"])
        self.clock = Clock(**state["clock"])
        self.best_return, self._evaluated_at = state["best_return"], state["evaluated_at"]
        self.skipped_updates = state["skipped_updates"]
        self.directory.cut_back(state["files"])
        self._checkpoints.cut_back(self.clock.env_steps)


def _episode_lines(collected: Collected, env_steps: int) -> Iterable[dict[str, Any]]:
    return [
        {
            "env_id": episode.env_id,
            "episode": episode.index,
            "seed": episode.seed,
            "return": episode.returned,
            "length": episode.length,
            "lost": episode.lost,
            "env_steps": env_steps,
        }
        for episode in collected.episodes
    ]
