"""The trainer: collects a rollout, learns from it, evaluates the policy and saves, until the budget is spent."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from threadpoolctl import threadpool_limits

from multiverse.algorithms.algorithm import UpdateReport
from multiverse.core.errors import InvalidRequest, MultiverseError, RunNotSaved, TrainingDiverged
from multiverse.ipc.interrupts import StopRequests, StopWaiting
from multiverse.learning.threads import torch_threads
from multiverse.rollouts.asynchronous import account_lines
from multiverse.rollouts.episodes import Collected
from multiverse.training import events
from multiverse.training.config.budget import Clock, Stopwatch
from multiverse.training.config.build import build
from multiverse.training.config.resolve import plain_config
from multiverse.training.config.train_config import TrainConfig
from multiverse.training.env_states import affordable_episodes, evaluation_log_prefix
from multiverse.training.evaluation import Evaluation, EvaluationOptions, sides_of
from multiverse.training.hooks import READ_ONLY, Hook, ReadOnlyMetrics
from multiverse.training.runs.checkpoint import Checkpoints
from multiverse.training.runs.metric_sinks import NextMetrics
from multiverse.training.runs.origin import blas
from multiverse.training.runs.run_directory import RunDirectory
from multiverse.training.scaling import Scaling
from multiverse.training.session import Session

log = logging.getLogger("multiverse")


class Trainer:
    """Trains one run, from the present state of `session` and `clock` to the end of its budget."""

    def __init__(
        self,
        config: TrainConfig,
        session: Session,
        directory: RunDirectory,
        hooks: Sequence[Hook] = (),
        sinks: events.Sinks | None = None,
    ) -> None:
        """`sinks`: receive the events of the run, after its own files."""
        self.config, self.session, self.directory, self._hooks = config, session, directory, list(hooks)
        self._sinks = [] if sinks is None else [sinks]
        self.clock, self.evaluation, self.best_return = Clock(), None, float("-inf")
        self._checkpoints = Checkpoints(directory.checkpoints, config.keep_checkpoints)
        self._requests, self._stopped = StopRequests(), ""
        self._saved_at, self._stopwatch = time.monotonic(), Stopwatch(self.clock)
        self._next_metrics = NextMetrics()
        self._metrics = ReadOnlyMetrics()  # logged last
        self._best_episodes = 0  # of the evaluation that gave `best_return`
        self._evaluated_at = 0  # env steps
        self._evaluation_steps = 0  # of all evaluations so far
        self._checkpointed_at: int | None = None  # env steps
        self.skipped_updates = 0
        self._whole = True  # no update is running
        self.scaling = None if isinstance(config.num_envs, int) else Scaling(directory.path)
        self._scaled_at = -1  # env steps
        self._blas = blas()

    clock: Clock
    evaluation: Evaluation | None

    @property
    def algorithm(self) -> Any:
        """The algorithm; with several groups of agents, all of them (`Learners`)."""
        return self.session.algorithm

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics that were logged last; read-only."""
        return self._metrics

    @metrics.setter
    def metrics(self, value: Any) -> None:
        raise InvalidRequest(READ_ONLY)

    @property
    def schedule_progress(self) -> float:
        """Schedule progress from 0 to 1: the spent share of the budget, unless schedules are held."""
        held = self.config.schedule_progress
        return self.config.budget.spent(self.clock) if held is None else held  # guard: held-schedules-do-not-move

    def stop(self, why: str) -> None:
        """End the run after this rollout."""
        self._stopped = self._stopped or why

    # -- the loop ------------------------------------------------------------------------------------------------
    def run(self) -> dict[str, Any]:
        """Train until the budget is spent; return the summary, which is in the run's directory too.

        Ctrl-C, SIGTERM and SIGUSR1 save the run as it was after its last update, then take effect.
        """
        files = self.directory.sinks()
        self._sinks, self._status = [files, *self._sinks], events.RunStatus(self.config, self.clock, self.session)
        self._start()
        # One thread: the last bits of sums that BLAS computes depend on the number of its threads.
        with self._requests, torch_threads(self.config.torch_threads), threadpool_limits(1, "blas"):
            self._stopwatch = Stopwatch(self.clock)
            self._next_metrics.leave_out_time_before(self.clock)
            try:
                self._evaluate_if_due()  # a resumed run may have been interrupted just before
                while not self._over():
                    self._scale()
                    progress = self.schedule_progress
                    collected = self.session.collect(self._interrupted)
                    if collected is None:
                        break
                    self._stopwatch.lap(act=collected.act_s, step=collected.step_s)
                    for hook in self._hooks:
                        hook.on_rollout(self, collected)
                    self._whole = False
                    with self._stopwatch.spending("learn"):
                        report = self.session.learners.update(self.session.rollouts, progress)
                        self.session.learned(collected)
                    self._whole = True
                    self._count(collected, report)
                    self._evaluate_if_due()
                    self._save_if_due()
                return self._end()
            except StopWaiting:  # interrupted while an env hangs; no update is running
                return self._end()
            except Exception as error:
                self._end_in(error)
                raise
            finally:
                files.close()

    def _start(self) -> None:
        run_id, path, notes = self.directory.run_id, self.directory.path, self.session.start_lines
        best, status = self.best_return, self._status
        self._emit(events.RunStarted(run_id=run_id, path=path, status=status, best_return=best, notes=notes))
        for hook in self._hooks:
            hook.on_start(self)

    def _over(self) -> bool:
        return bool(self._stopped) or self._interrupted() or self.config.budget.spent(self.clock) >= 1.0

    def _scale(self) -> None:
        if self.scaling is None:
            return
        now, before = self.session.envs.num_envs, self.scaling.last
        if (count := self.scaling.next(self.clock, now)) != now:
            with self._stopwatch.spending("other"):
                self.session.change_num_envs(count)
        self._scaled_at = self.scaling.decided_at  # guard: a-change-of-envs-counts-once-it-is-made
        if self.scaling.last is not None and self.scaling.last is not before:
            self._emit(events.NumEnvsDecided(decision=self.scaling.last))

    def _interrupted(self) -> bool:
        return self._requests.received is not None

    def _count(self, collected: Collected, report: UpdateReport) -> None:
        clock = self.clock
        clock.env_steps += self.session.env_steps
        clock.episodes += len(collected.episodes)
        clock.updates += 1
        clock.lost_steps += collected.lost_steps
        self.skipped_updates += report.skipped
        if collected.episodes:
            self._emit(events.EpisodesEnded(env_steps=clock.env_steps, episodes=collected.episodes))
        self._next_metrics.add(report.metrics)
        if self._next_metrics.are_due(clock, self.config.log_every, self.session.rollouts[0].steps):
            self._log_metrics()
        self._emit(events.UpdateDone(status=self._status))
        report = replace(report, metrics=ReadOnlyMetrics(report.metrics))
        for hook in self._hooks:
            hook.on_update(self, report)

    def _log_metrics(self) -> None:
        """Log the means of the updates since the last time, and how fast the run was."""
        more = {} if self.scaling is None else {"num_envs": self.session.envs.num_envs}
        more |= {} if self.session.account is None else account_lines(self.session.account)
        self._metrics = ReadOnlyMetrics(self._next_metrics.take(self.clock, self.session.recent, more))
        self._emit(events.MetricsLogged(env_steps=self.clock.env_steps, metrics=self._metrics))

    # -- evaluations and checkpoints -----------------------------------------------------------------------------
    def _evaluate_if_due(self) -> None:
        every = self.config.steps_between_evaluations
        due = every and self.clock.env_steps // every > self._evaluated_at // every
        if due and not self._over() and (episodes := self._affordable_episodes()):  # `_end` makes the last one
            self.evaluate(episodes)

    def _affordable_episodes(self) -> int:
        config, recent = self.config, self.session.recent
        if config.evaluate_every is not None or config.target_return is not None:  # the user wants evaluations
            return config.episodes_per_evaluation
        if self.evaluation is not None:
            length = self.evaluation.mean_length
        elif len(recent):
            length = recent.mean_length
        else:  # no episode has ended yet: this is a lower bound of their length
            length = self.clock.env_steps / self.session.envs.num_envs
        least = 1 if self.session.opponents is None else len(sides_of(self.session.envs.views.layout.groups))
        return affordable_episodes(config, self.clock.env_steps, self._evaluation_steps, length, least)

    def evaluate(self, episodes: int | None = None) -> None:
        """Evaluate the policy now; for hooks, in `on_update`. If an env fails, only the evaluation is lost. `episodes`:
        by default as many as in the last evaluation of a run."""
        config, envs, policies = self.config, self.session.evaluation_envs, self.session.learners.policies()
        number = episodes or config.episodes_per_evaluation
        options = EvaluationOptions(
            opponents=self.session.opponents,
            tasks=self.session.evaluation_tasks,
            deterministic=config.evaluation_deterministic,
            lost_before=envs.lost_before,
            should_stop=self._interrupted,
        )
        self.session.rest()
        with evaluation_log_prefix(), self._stopwatch.spending("evaluate"):
            try:
                evaluation = envs.evaluate(policies, number, config.evaluation_seed, options)
            except MultiverseError as error:
                envs.fail(error, self.clock.env_steps)
                # guard: no-older-figure-after-a-failed-evaluation
                self.evaluation, self._evaluated_at = None, self.clock.env_steps
                return
            if evaluation is not None:
                envs.succeeded(evaluation)
        if evaluation is not None:
            self._evaluated(evaluation)

    def _evaluated(self, evaluation: Evaluation) -> None:
        """Report an evaluation, and save the policy if it is the best so far."""
        self.evaluation, self._evaluated_at = evaluation, self.clock.env_steps
        self._evaluation_steps += sum(evaluation.lengths)
        is_best, opponent = evaluation.mean_return > self.best_return, self.config.evaluation_opponent
        at, summary = self.clock.env_steps, evaluation.summary()
        self._emit(events.EvaluationDone(env_steps=at, summary=summary, opponent=opponent, is_best=is_best))
        for hook in self._hooks:
            hook.on_evaluation(self, evaluation)
        if evaluation.cancels and self.best_return == float("-inf"):
            log.warning(
                "evaluations are self-play in a zero-sum game: their mean return, and therefore the choice of the best "
                "checkpoint, carries no information. Set evaluation_opponent='random' for one that does"
            )
        if (evaluation.mean_return, evaluation.played) > (self.best_return, self._best_episodes):
            self.best_return, self._best_episodes = evaluation.mean_return, evaluation.played
            self._save(best=True)
        self._stop_at_target()

    def _stop_at_target(self) -> None:
        evaluation, target = self.evaluation, self.config.target_return
        if evaluation is not None and target is not None and evaluation.mean_return >= target:
            self.stop(f"reached a mean return of {evaluation.mean_return:g}")

    def _is_evaluated(self) -> bool:
        """Whether the present policy was evaluated with all episodes, or this process has tried and failed."""
        if self.evaluation is None:
            tried = self.session.evaluation_envs.failed_in_a_row > 0
        else:
            tried = self.evaluation.played >= self.config.episodes_per_evaluation
        return tried and self._evaluated_at == self.clock.env_steps

    def _save_if_due(self) -> None:
        if time.monotonic() - self._saved_at >= self.config.checkpoint_every_s:
            self._save()

    def save(self) -> None:
        """Save a checkpoint now; for hooks, in `on_update`."""
        self._save()

    def _save(self, best: bool = False, final: bool = False) -> None:
        if not self.session.has_state:  # guard: no-checkpoint-of-two-moments
            why = "a rollout is running, and save_state() of these envs takes too long to be called before each one"
            self._warn_not_saved(why)
            return
        with self._stopwatch.spending("save"):
            env_steps, manifest = self.clock.env_steps, {"config": plain_config(self.config), "blas": self._blas}
            manifest["clock"] = self.clock.state()
            path = self._checkpoints.save(self.state(), manifest, env_steps, best=best, final=final)
            if path is not None:
                self._checkpointed_at = env_steps
                self.directory.note_checkpoint()
        self._saved_at = time.monotonic()
        if path is not None:
            self._emit(events.CheckpointSaved(env_steps=env_steps, path=path, best=best, final=final))

    def _warn_not_saved(self, why: str) -> None:
        """Warn that the present state is not saved, unless there is nothing to lose."""
        now, before = self.clock.env_steps, self._checkpointed_at
        if (before or 0) == now:  # it is saved, or nothing was learned yet
            return
        then = f"continues from {before or 0:,} env steps, and {now - (before or 0):,} are lost"
        log.warning("no checkpoint was saved at %s env steps: %s; if resumed, the run %s", f"{now:,}", why, then)

    # -- the end -------------------------------------------------------------------------------------------------
    def _end(self) -> dict[str, Any]:
        self.session.stop_collecting()
        if not self._interrupted() and not self._is_evaluated():
            self.evaluate()
        interrupted = self._interrupted()  # perhaps during the evaluation
        if not interrupted and self._next_metrics.since.env_steps < self.clock.env_steps:
            self._log_metrics()
        try:
            self._save(final=True)
        except OSError as error:
            raise RunNotSaved(self.directory.path, error.strerror or str(error), self._checkpoints.latest) from error
        summary = self.summary(finished=not interrupted)
        self.directory.write_summary(summary)
        if interrupted:
            self._requests.raise_stop()
        for hook in self._hooks:
            hook.on_end(self, summary)
        return summary

    def _end_in(self, error: Exception) -> None:
        """Save the run as it was after its last update, whatever error ended it."""
        try:
            self.session.stop_collecting()
            if not self._whole:
                self._warn_not_saved("an update is running")
            elif not isinstance(error, RunNotSaved):
                try:
                    self._save()
                except TrainingDiverged as diverged:
                    if not isinstance(error, TrainingDiverged):
                        log.warning("%s", diverged)
            reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            self.directory.write_summary({**self.summary(finished=False), "error": reason})
        except Exception as another:  # the caller must get the first one
            log.warning("the run could not be saved at its end: %s", another)

    def summary(self, finished: bool) -> dict[str, Any]:
        """Summary of the run so far."""
        self._stopwatch.lap()
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
            "evaluation_opponent": self.config.evaluation_opponent,
            "evaluated_at": None if self.evaluation is None else self._evaluated_at,
            "best_return": None if self.best_return == float("-inf") else self.best_return,
            "skipped_updates": self.skipped_updates,
            **({} if self.session.account is None else {"asynchronous": asdict(self.session.account)}),
            "failures": asdict(self.session.failures),
            "evaluation_failures": self.session.evaluation_envs.account(),
            "plan": asdict(self.session.envs.plan),
        }

    def _emit(self, event: events.Event) -> None:
        """Report an event to the run's files, then to the other sinks."""
        for sink in self._sinks:
            sink.handle(event)

    # -- its state -----------------------------------------------------------------------------------------------
    def state(self) -> dict[str, Any]:
        """Return everything that an exact resume needs."""
        return {
            "session": self.session.state(),
            "plan": asdict(self.session.envs.plan),
            "clock": self.clock.state(),
            "best_return": self.best_return,
            "best_episodes": self._best_episodes,
            "evaluated_at": self._evaluated_at,
            "evaluation_steps": self._evaluation_steps,
            "evaluation": None if self.evaluation is None else asdict(self.evaluation),
            "evaluation_env": self.session.evaluation_envs.state(),
            "skipped_updates": self.skipped_updates,
            "failures": asdict(self.session.failures),
            "told": self._next_metrics.state(),
            "files": self.directory.position(),
            **({} if self.scaling is None else {"scaled_at": self._scaled_at}),
        }

    def load(self, state: Mapping[str, Any], without_replay: bool = False) -> None:
        """Restore a run, and cut its files back to that state. `without_replay`: the state has no replay buffers."""
        self.session.load(state["session"])
        self.session.load_failures(state["failures"])
        self.clock = build(Clock, state["clock"], "its clock")
        self.best_return, self._evaluated_at = float(state["best_return"]), int(state["evaluated_at"])
        self._best_episodes, self._evaluation_steps = int(state["best_episodes"]), int(state["evaluation_steps"])
        saved = state["evaluation"]
        self.evaluation = None if saved is None else build(Evaluation, saved, "its evaluation")
        self._stop_at_target()  # guard: a-target-that-was-reached-stays-reached
        with evaluation_log_prefix():
            self.session.evaluation_envs.load(state["evaluation_env"])  # guard: evaluations-go-on-as-saved
        self.skipped_updates = int(state["skipped_updates"])
        self._next_metrics.load(state["told"], self.clock)
        if self.scaling is not None:
            self._scaled_at = int(state["scaled_at"])
            self.scaling = Scaling(self.directory.path, self._scaled_at)
        self._checkpointed_at = self.clock.env_steps
        self.directory.cut_back(state["files"])
        self._checkpoints.cut_back(self.clock.env_steps, continue_tables=not without_replay)
        if not (self.directory.checkpoints / "best").exists():  # it was later than the checkpoint, and is removed
            self.best_return = float("-inf")
