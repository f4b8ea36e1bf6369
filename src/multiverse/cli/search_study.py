"""Trials of a search: ordinary runs in processes of their own. optuna draws their settings, and says which to prune.

searches/CartPole-v1-ppo/
  config.yaml  search.json       common settings; what is searched, and the results so far
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
from multiverse.cli.search_journal import FIRST_ONES, JOURNAL, handle, opened, repair
from multiverse.core.errors import InvalidRequest, MultiverseError
from multiverse.core.imports import with_folders, without_folders
from multiverse.core.wording import in_a_line
from multiverse.training.config.build import in_todays_names
from multiverse.training.config.files import read_config
from multiverse.training.config.train_config import TrainConfig, plain_config
from multiverse.training.hooks import Hook
from multiverse.training.progress import run_with_sinks
from multiverse.training.runs.files import LOCK, RunLock, for_json, replace_file
from multiverse.training.runs.find_runs import CONFIG, ORIGIN, is_run, refuse_link
from multiverse.training.runs.origin import redacted
from multiverse.training.runs.run_directory import read_object
from multiverse.training.seed_runs import finished, ordered, write_config
from multiverse.training.side_by_side import in_child, share_of_cores, side_by_side

if TYPE_CHECKING:
    from multiverse.algorithms.algorithm import UpdateReport
    from multiverse.training.trainer import Trainer

RESULTS = "search.json"
PRUNERS = ("median", "halving", "none")
STAGES = 5
"""Number of equal parts of the budget, after each of which a trial is evaluated."""
HOPELESS = 3
"""Number of failed trials, without any other, that end a search."""
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
    """A study and its runs in a directory. `trials` is their state so far."""

    def __init__(self, path: Path, config: TrainConfig, space: Space, asked: str, pruner: str) -> None:
        config = dataclasses.replace(config, env=with_folders(config.env), algorithm=with_folders(config.algorithm))
        self.path, self.config, self._space, self._asked, self._pruner = path, config, space, asked, pruner
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._refuse_another()
            lock = RunLock(path)  # one search at a time
            try:
                known = self._known_trials()
                repair(path, len(known))
                write_config(path, config)
                self._study = opened(path)
                self._refuse_lost(known)
                self.write()
            finally:
                lock.release()
        except OSError as error:
            raise InvalidRequest(f"{path} cannot be the directory of a search: {error.strerror or error}") from error

    def _refuse_another(self) -> None:
        """Refuse a directory with another search, or with other files."""
        for name in (CONFIG, ORIGIN, RESULTS):
            refuse_link(self.path / name)  # guard: no-file-of-a-search-is-a-link
        if not (self.path / CONFIG).exists():
            if any(one.name != LOCK for one in self.path.iterdir()):
                raise InvalidRequest(f"{self.path} is not empty and holds no search: --run-dir for another directory")
            return
        there, wanted = in_todays_names(read_config(self.path / CONFIG)), redacted(plain_config(self.config))
        named = [name for name in ("env", "algorithm", "network") if wanted.get(name)]
        there |= {name: wanted[name] for name in named if _is_that(str(there.get(name)), wanted[name])}
        same = there == json.loads(json.dumps(wanted))
        before = self._saved().get("search", self._asked)
        if not same or before != self._asked:
            differs = f"--search {before}" if before != self._asked else ", ".join(_differing(there, wanted))
            raise InvalidRequest(
                f"{self.path} holds a search with other settings ({differs}): type the same, or --run-dir for another"
            )

    def _known_trials(self) -> dict[int, Any]:
        """Return number → settings of every trial in `search.json`; None for a trial that has only its run."""
        rows = self._saved().get("trials")
        found: dict[int, Any] = {}
        for path in self.path.glob("trial-*"):
            refuse_link(path)  # guard: no-trial-is-a-link
            number = path.name.removeprefix("trial-")
            if number.isdecimal() and is_run(path):
                found[int(number)] = None
        for row in rows if isinstance(rows, list) else []:
            if isinstance(row, dict) and isinstance(row.get("number"), int):
                found[row["number"]] = row.get("settings")
        return found

    def _refuse_lost(self, known: Mapping[int, Any]) -> None:
        """Refuse a journal that lacks trials: each would be drawn again, and its run would count for other settings."""
        trials = self.trials
        for number, settings in sorted(known.items()):
            here = trials[number].settings if number < len(trials) else None
            same = here is not None and (settings is None or json.loads(json.dumps(for_json(here))) == settings)
            if not same:  # guard: lost-records-are-no-new-trials
                raise InvalidRequest(
                    f"{self.path / JOURNAL} does not have trial {number} as {RESULTS} and trial-{number} have it: some "
                    "of its lines were lost or changed. Restore the file from a copy, or start another search with "
                    "--run-dir"
                )

    def _saved(self) -> dict[str, Any]:
        return read_object(self.path / RESULTS)

    # -- running -------------------------------------------------------------------------------------------------
    def run(self, trials: int, tell: Callable[[Trial], None]) -> None:
        """Run the remaining trials up to this number, and resume those that were interrupted."""
        at_once, shared = share_of_cores(self.config, trials)
        if shared.evaluate_every is None:
            shared = dataclasses.replace(shared, evaluate_every=0)  # `Pruning` does
        lock = RunLock(self.path)  # one search at a time
        try:
            if not self._study.trials and (own := self._space.drawn_for(self.config)):
                self._study.enqueue_trial(own)  # the settings without a search

            def ended(number: int, why: str | None) -> None:
                self._judge(number, why)
                self.write()
                tell(self.trials[number])
                self._refuse_hopeless()

            orders = self._orders(shared, trials, ended)
            side_by_side(orders, at_once, __name__, lambda number, line: None, ended)
        finally:
            lock.release()

    def _orders(
        self, config: TrainConfig, trials: int, ended: Callable[[int, str | None], None]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        left = [trial.number for trial in self.trials if trial.state == "running"]
        while left or len(self.trials) < trials:
            number = left.pop(0) if left else self._drawn()
            run = self.path / f"trial-{number}"
            if finished(run) is not None:  # only its result was not recorded
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
                if len(settings) < len(self._space.tried):
                    ended(number, "the search was ended while the settings of this trial were drawn")
                    continue
                again = sum(one.settings == settings for one in before)
                seeded = dataclasses.replace(config, seed=config.seed + again)  # an equal run would add no information
                mine = plain_config(self._space.config(seeded, settings))
            except MultiverseError as error:  # no such combination
                ended(number, in_a_line(error))
                continue
            yield number, {**order, "config": mine, "init_from": None}

    def _drawn(self) -> int:
        """Draw the settings of the next trial. Its number is the seed, so that an interrupted search draws the same."""
        from optuna.samplers import TPESampler

        seeds = np.random.SeedSequence((self.config.seed, len(self.trials)))
        self._study.sampler = TPESampler(seed=int(seeds.generate_state(1)[0]), n_startup_trials=FIRST_ONES)
        dimensions = {name: dimension.distribution() for name, dimension in self._space.tried.items()}
        return int(self._study.ask(dimensions).number)

    def _judge(self, number: int, why: str | None) -> None:
        """Record the result of a trial that has ended."""
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

    def _refuse_hopeless(self) -> None:
        states = [trial.state for trial in self.trials if trial.state != "running"]
        if len(states) >= HOPELESS and {*states} == {"failed"}:
            raise MultiverseError(f"no trial can be run: {self.trials[0].why}. The search is in {self.path}")

    # -- results ------------------------------------------------------------------------------------------------
    @property
    def trials(self) -> list[Trial]:
        """All trials, by their numbers."""
        return [self._trial(one) for one in self._study.trials if one.state.name != "WAITING"]

    def _trial(self, one: Any) -> Trial:
        state = {"RUNNING": "running", "COMPLETE": "complete", "PRUNED": PRUNED}.get(one.state.name, "failed")
        run = finished(self.path / f"trial-{one.number}")
        evaluated = None if run is None or state == "failed" else run.summary["evaluation"]
        reported = list(one.intermediate_values.values())  # the study has them even if the run was deleted
        known = one.value if state == "complete" else reported[-1] if reported and state == PRUNED else None
        return Trial(
            one.number,
            self._space.values(one.params),
            state,
            known if evaluated is None else float(evaluated["mean_return"]),
            max(one.intermediate_values, default=0) if state == PRUNED else STAGES,
            one.user_attrs.get("why", ""),
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
            "search": self._asked,
            "pruner": self._pruner,
            "best": None if best is None else best.number,
            "trials": rows,
        }

    def write(self) -> None:
        replace_file(self.path / RESULTS, f"{json.dumps(for_json(self.results()), indent=2)}\n".encode())


def _is_that(before: str, now: str) -> bool:
    """Return whether both name the same thing, whose file may have moved."""
    gone = not Path(before.rpartition(":")[0]).is_file()
    return with_folders(before) == now or (gone and without_folders(with_folders(before)) == without_folders(now))


def _differing(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted({*there, *wanted}):
        one, other = there.get(name), wanted.get(name)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from _differing(one, other)
        elif one != other and not (isinstance(other, tuple) and one == [*other]):
            yield f"{name}: {one}, now {other}"


# -- in the process of a trial -------------------------------------------------------------------------------------
class Pruning(Hook):
    """Evaluates a run at every stage, reports to the study, and ends a run that falls behind. Returns of training would
    cost nothing, but mislead: the longer good episodes are, the later they are counted."""

    def __init__(self, path: Path, number: int, pruner: str) -> None:
        study = opened(path, pruner)
        self._trial = handle(study, number)
        self._stage = max(study.trials[number].intermediate_values, default=0)  # it may be a resumed trial

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
    """Run one trial in a process of its own."""

    def run() -> None:
        pruning = Pruning(Path(order["study"]), order["trial"], order["pruner"])
        run_with_sinks(functools.partial(ordered, order, hooks=[pruning]), sinks=[])

    return in_child(run)
