"""Trials of a search: ordinary runs in separate processes, whose settings optuna draws and which it may prune.

searches/CartPole-v1-ppo/
  config.yaml  search.json       common settings; the dimensions of the search, and the results so far
  study.journal                  optuna's study
  trial-0/  trial-1/ …           the runs
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from multiverse.cli.search import Space
from multiverse.cli.search_journal import JOURNAL, STARTUP_TRIALS, handle, opened, repair
from multiverse.core.errors import InvalidRequest, MultiverseError
from multiverse.core.imports import absolute_name, display_name
from multiverse.core.wording import short_error
from multiverse.training.config.build import with_current_names
from multiverse.training.config.files import read_config
from multiverse.training.config.resolve import plain_config
from multiverse.training.config.train_config import TrainConfig
from multiverse.training.events import run_with_sinks
from multiverse.training.hooks import Hook
from multiverse.training.runs.files import LOCK, RunLock, for_json, replace_file
from multiverse.training.runs.find_runs import CONFIG, ORIGIN, is_run, refuse_link
from multiverse.training.runs.origin import redacted
from multiverse.training.runs.run_directory import read_object
from multiverse.training.seed_runs import finished, run_order, write_config
from multiverse.training.side_by_side import in_child, run_in_processes, share_of_cores

if TYPE_CHECKING:
    from multiverse.algorithms.algorithm import UpdateReport
    from multiverse.training.trainer import Trainer

RESULTS = "search.json"
PRUNERS = ("median", "halving", "none")
STAGES = 5
"""Number of equal parts of the budget, after each of which a trial is evaluated."""
MAX_FAILED = 3
"""Number of failed trials that end a search in which no trial has succeeded."""
PRUNED = "pruned"


@dataclass(frozen=True)
class Trial:
    """State of one trial; `returned` is the mean return of its last evaluation."""

    number: int
    settings: dict[str, Any]
    state: str  # running, complete, pruned or failed
    returned: float | None = None
    stage: int = STAGES  # at which it ended
    why: str = ""  # reason of a failure


class Search:
    """A study and its runs in a directory. `request` is the value of `--search`."""

    def __init__(self, path: Path, config: TrainConfig, space: Space, request: str, pruner: str) -> None:
        config = dataclasses.replace(config, env=absolute_name(config.env), algorithm=absolute_name(config.algorithm))
        self.path, self.config, self._space, self._request, self._pruner = path, config, space, request, pruner
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._refuse_other_search()
            lock = RunLock(path)  # one search at a time
            try:
                known = self._known_trials()
                repair(path, len(known))
                write_config(path, config)
                self._study = opened(path)
                self._refuse_lost_trials(known)
                self.write()
            finally:
                lock.release()
        except OSError as error:
            raise InvalidRequest(f"{path} cannot be the directory of a search: {error.strerror or error}") from error

    def _refuse_other_search(self) -> None:
        """Refuse a directory that contains another search, or other files."""
        for name in (CONFIG, ORIGIN, RESULTS):
            refuse_link(self.path / name)  # guard: no-file-of-a-search-is-a-link
        if not (self.path / CONFIG).exists():
            if any(one.name != LOCK for one in self.path.iterdir()):
                raise InvalidRequest(
                    f"{self.path} is not empty and holds no search; pass another directory with --run-dir"
                )
            return
        saved, current = with_current_names(read_config(self.path / CONFIG)), redacted(plain_config(self.config))
        named = [name for name in ("env", "algorithm", "network") if current.get(name)]
        saved |= {name: current[name] for name in named if _is_same(str(saved.get(name)), current[name])}
        request = self._saved().get("search", self._request)
        if saved != json.loads(json.dumps(current)) or request != self._request:
            differs = f"--search {request}" if request != self._request else ", ".join(_differing(saved, current))
            raise InvalidRequest(
                f"{self.path} holds a search with other settings ({differs}); pass the same settings, or another "
                "--run-dir"
            )

    def _known_trials(self) -> dict[int, Any]:
        """Return number → settings of every trial in `search.json`; None for a trial of which there is only the run."""
        rows = self._saved().get("trials")
        trials: dict[int, Any] = {}
        for path in self.path.glob("trial-*"):
            refuse_link(path)  # guard: no-trial-is-a-link
            number = path.name.removeprefix("trial-")
            if number.isdecimal() and is_run(path):
                trials[int(number)] = None
        for row in rows if isinstance(rows, list) else []:
            if isinstance(row, dict) and isinstance(row.get("number"), int):
                trials[row["number"]] = row.get("settings")
        return trials

    def _refuse_lost_trials(self, known: Mapping[int, Any]) -> None:
        """Refuse a journal that lacks trials: they would be drawn again, and their runs would count for other
        settings."""
        trials = self.trials
        for number, settings in sorted(known.items()):
            here = trials[number].settings if number < len(trials) else None
            same = here is not None and (settings is None or json.loads(json.dumps(for_json(here))) == settings)
            if not same:  # guard: lost-records-are-no-new-trials
                raise InvalidRequest(
                    f"{self.path / JOURNAL} lacks trial {number} as it is in {RESULTS} and trial-{number}: lines were "
                    "lost or changed. Restore the file from a copy, or start another search with --run-dir"
                )

    def _saved(self) -> dict[str, Any]:
        return read_object(self.path / RESULTS)

    # -- running -------------------------------------------------------------------------------------------------
    def run(self, trials: int, report: Callable[[Trial], None]) -> None:
        """Run the remaining trials up to this number, and resume those that were interrupted; `report` gets each trial
        when it has ended."""
        at_once, shared = share_of_cores(self.config, trials)
        if shared.evaluate_every is None:
            shared = dataclasses.replace(shared, evaluate_every=0)  # `Pruning` evaluates
        lock = RunLock(self.path)  # one search at a time
        try:
            if not self._study.trials and (own := self._space.drawn_for(self.config)):
                self._study.enqueue_trial(own)  # the first trial has the settings without a search

            def ended(number: int, why: str | None) -> None:
                self._record(number, why)
                self.write()
                report(self.trials[number])
                self._stop_if_all_failed()

            orders = self._orders(shared, trials, ended)
            run_in_processes(orders, at_once, __name__, lambda number, line: None, ended)
        finally:
            lock.release()

    def _orders(
        self, config: TrainConfig, trials: int, ended: Callable[[int, str | None], None]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        left = [trial.number for trial in self.trials if trial.state == "running"]
        while left or len(self.trials) < trials:
            number = left.pop(0) if left else self._drawn()
            run = self.path / f"trial-{number}"
            if finished(run) is not None:  # the search was killed before it recorded the result
                ended(number, None)
                continue
            order: dict[str, Any] = {"run": str(run), "trust": False, "tensorboard": False}
            order["names"] = {"algorithm": self.config.algorithm, "network": self.config.network}  # current places
            order |= {"study": str(self.path), "trial": number, "pruner": self._pruner}
            if is_run(run):
                yield number, {**order, "settings": {}}
                continue
            try:
                settings, before = self.trials[number].settings, self.trials[:number]
                if len(settings) < len(self._space.dimensions):
                    ended(number, "the search was killed while the settings of this trial were drawn")
                    continue
                equal = sum(trial.settings == settings for trial in before)
                seeded = dataclasses.replace(config, seed=config.seed + equal)  # the same seed would give the same run
                trial_config = plain_config(self._space.config(seeded, settings))
            except MultiverseError as error:  # this combination of settings is invalid
                ended(number, short_error(error))
                continue
            yield number, {**order, "config": trial_config, "init_from": None}

    def _drawn(self) -> int:
        """Draw the settings of the next trial. Its number is the seed, so that an interrupted search draws the same."""
        from optuna.samplers import TPESampler

        seeds = np.random.SeedSequence((self.config.seed, len(self.trials)))
        self._study.sampler = TPESampler(seed=int(seeds.generate_state(1)[0]), n_startup_trials=STARTUP_TRIALS)
        dimensions = {name: dimension.distribution() for name, dimension in self._space.dimensions.items()}
        return int(self._study.ask(dimensions).number)

    def _record(self, number: int, why: str | None) -> None:
        """Record the result of a trial that has ended; `why`: the reason of a failure."""
        from optuna.trial import TrialState

        run = finished(self.path / f"trial-{number}")
        evaluated = None if run is None else run.summary["evaluation"]
        if why is not None or run is None or evaluated is None:
            handle(self._study, number).set_user_attr("why", why or "its evaluation failed")
            self._study.tell(number, state=TrialState.FAIL)
        elif str(run.summary["stopped"] or "").startswith(PRUNED):
            self._study.tell(number, state=TrialState.PRUNED)
        else:
            self._study.tell(number, float(evaluated["mean_return"]))

    def _stop_if_all_failed(self) -> None:
        states = [trial.state for trial in self.trials if trial.state != "running"]
        if len(states) >= MAX_FAILED and {*states} == {"failed"}:
            raise MultiverseError(
                f"the first {len(states)} trials failed: {self.trials[0].why}. The search is in {self.path}"
            )

    # -- results ------------------------------------------------------------------------------------------------
    @property
    def trials(self) -> list[Trial]:
        """All trials, ordered by number."""
        return [self._trial(trial) for trial in self._study.trials if trial.state.name != "WAITING"]

    def _trial(self, trial: Any) -> Trial:
        """Return a trial of the study with the result of its run."""
        state = {"RUNNING": "running", "COMPLETE": "complete", "PRUNED": PRUNED}.get(trial.state.name, "failed")
        run = finished(self.path / f"trial-{trial.number}")
        evaluated = None if run is None or state == "failed" else run.summary["evaluation"]
        reported = list(trial.intermediate_values.values())  # the study has them even if the run was deleted
        returned = trial.value if state == "complete" else reported[-1] if reported and state == PRUNED else None
        return Trial(
            number=trial.number,
            settings=self._space.values(trial.params),
            state=state,
            returned=returned if evaluated is None else float(evaluated["mean_return"]),
            stage=max(trial.intermediate_values, default=0) if state == PRUNED else STAGES,
            why=trial.user_attrs.get("why", ""),
        )

    @property
    def best(self) -> Trial | None:
        """The first complete trial with the largest return; None if there is none."""
        complete = [trial for trial in self.trials if trial.state == "complete" and trial.returned is not None]
        return max(complete, key=lambda trial: (trial.returned, -trial.number), default=None)

    def results(self) -> dict[str, Any]:
        """Return the content of `search.json`."""
        best = self.best
        rows = [{"run": f"trial-{trial.number}", **vars(trial)} for trial in self.trials]
        return {
            "search": self._request,
            "pruner": self._pruner,
            "best": None if best is None else best.number,
            "trials": rows,
        }

    def write(self) -> None:
        replace_file(self.path / RESULTS, f"{json.dumps(for_json(self.results()), indent=2)}\n".encode())


def _is_same(saved: str, current: str) -> bool:
    """Return whether both name the same class or function; its file may have moved."""
    moved = not Path(saved.rpartition(":")[0]).is_file()
    return absolute_name(saved) == current or (moved and display_name(absolute_name(saved)) == display_name(current))


def _differing(saved: Mapping[str, Any], current: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted({*saved, *current}):
        old, new = saved.get(name), current.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _differing(old, new)
        elif old != new and not (isinstance(new, tuple) and old == [*new]):
            yield f"{name}: {old}, now {new}"


# -- in the process of a trial -------------------------------------------------------------------------------------
class Pruning(Hook):
    """Evaluates a run at every stage, reports to the study, and stops a run that falls behind. Returns of training are
    no substitute: where good episodes are long, they are counted late."""

    def __init__(self, path: Path, number: int, pruner: str) -> None:
        study = opened(path, pruner)
        self._trial = handle(study, number)
        self._stage = max(study.trials[number].intermediate_values, default=0)  # above 0 in a resumed trial

    def on_update(self, trainer: Trainer, report: UpdateReport) -> None:
        stage = int(STAGES * trainer.config.budget.spent(trainer.clock))
        if self._stage < stage < STAGES:
            self._stage = stage
            trainer.evaluate()
            if trainer.evaluation is not None:  # neither failed nor interrupted
                self._trial.report(trainer.evaluation.mean_return, stage)
            if self._trial.should_prune():
                trainer.stop(f"{PRUNED} at {100 * stage // STAGES} % of its budget: others were better by then")


def child(order: Mapping[str, Any]) -> int:
    """Run one trial in its own process."""

    def run() -> None:
        pruning = Pruning(Path(order["study"]), order["trial"], order["pruner"])
        run_with_sinks(functools.partial(run_order, order, hooks=[pruning]), sinks=[])

    return in_child(run)
