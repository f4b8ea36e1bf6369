"""`multiverse evaluate RUN`: measure the return of a run's policy."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from multiverse.cli.main import parsed_kwargs, print_wrapped, require_positive
from multiverse.cli.options import ENV_KWARGS_HELP, MOVED_HELP, RUN_HELP, TRUST_HELP, argument, option, parse
from multiverse.cli.output import print_json
from multiverse.core.errors import InvalidRequest
from multiverse.core.imports import display_name
from multiverse.core.wording import format_return

if TYPE_CHECKING:
    from multiverse.training.evaluation import Evaluation
    from multiverse.training.saved_runs import SavedRun

DESCRIPTION = """\
Plays episodes with a run's policy and prints their mean return. The episodes
have seeds that are never used in training; equal seeds give equal episodes.
By default they are not the episodes of the run's own evaluations: the best
checkpoint was selected on those, so its return on them is too high. Actions
are the most likely ones or, if the run's evaluations sample, sampled ones.
The policy plays all agents or, with --opponent, one side, which alternates
from episode to episode.

examples:
  multiverse evaluate runs/CartPole-v1
  multiverse evaluate runs/connect_four --opponent random
  multiverse evaluate runs/BoxJump-v0 --stochastic
  multiverse evaluate runs/Pendulum-v1 --env-kwargs '{"g": 9.8}'
  multiverse evaluate runs/CartPole-v1/ppo-0-20260101-120000 --best --json"""


@dataclass(frozen=True)
class RunOptions:
    """Options of every command that plays with the policy of a run."""

    run: str = argument("RUN", RUN_HELP)
    which: Literal["latest", "best"] = option("latest", "Use the latest checkpoint, or the best one.")
    env: str | None = option(None, MOVED_HELP.format("env"), metavar="ID|MODULE:NAME")
    algorithm: str | None = option(None, MOVED_HELP.format("algorithm"), metavar="MODULE:CLASS")
    network: str | None = option(None, MOVED_HELP.format("network"), metavar="FILE.py:CLASS")
    trust: bool = option(False, TRUST_HELP)

    def source(self) -> dict[str, Any]:
        """Return the options that replace code that the run names, or allow it to be called."""
        return {"env": self.env, "algorithm": self.algorithm, "network": self.network, "trust": self.trust}


@dataclass(frozen=True)
class EpisodeOptions(RunOptions):
    """Options of every command that plays new episodes with the policy of a run."""

    seed: int | None = option(None, "Seed of the episodes. Default: 1000000, not that of the run's evaluations.")
    opponent: str | None = option(
        None,
        "The opponent: `random` (any legal action), `self` (the policy itself), the policy of another run, or a "
        "function (observation, legal actions, generator) → action. Default: that of the run's own evaluations.",
        metavar="random|self|RUN|MODULE:FUNCTION",
    )
    stochastic: bool = option(False, "Sample the actions. Default: as in the run's own evaluations.")
    deterministic: bool = option(False, "Take the most likely actions.")
    env_kwargs: str = option("{}", f"{ENV_KWARGS_HELP} They override those of the run.", metavar="JSON")

    def conditions(self) -> dict[str, Any]:
        """Return the conditions of the episodes, other than their seed."""
        if self.stochastic and self.deterministic:
            raise InvalidRequest("--stochastic and --deterministic cannot be used together")
        deterministic = self.deterministic if self.stochastic != self.deterministic else None
        kwargs = parsed_kwargs(self.env_kwargs) or None
        return {"opponent": self.opponent, "deterministic": deterministic, "env_kwargs": kwargs}


@dataclass(frozen=True)
class Evaluate(EpisodeOptions):
    """Options of `multiverse evaluate`."""

    run: str = argument("RUN", f"{RUN_HELP} For the directory of several seeds, every seed is evaluated.")
    episodes: int = option(100, "Number of episodes.", aliases=("--n-eval-episodes", "--num-episodes"))
    best: bool = option(False, "The same as --which best.")
    json: bool = option(False, "Print one JSON object, with every episode.")


def run(arguments: Sequence[str]) -> int:
    options = parse(Evaluate, "evaluate", DESCRIPTION, arguments)
    require_positive(episodes=options.episodes)
    conditions = options.conditions()
    from multiverse.training.loading import chosen_seed, evaluate_saved
    from multiverse.training.runs.find_runs import find_set
    from multiverse.training.saved_runs import migrate, open_run
    from multiverse.training.seed_runs import iqm_text, over_seeds
    from multiverse.training.validation import RunObjects

    run_set, which = find_set(options.run), "best" if options.best else options.which
    runs = {None: options.run} if run_set is None else _started_runs(run_set)
    objects = RunObjects(env=options.env, algorithm=options.algorithm, network=options.network)
    replaced = {"env_kwargs": conditions.pop("env_kwargs"), "opponent": conditions.pop("opponent")}
    objects = dataclasses.replace(objects, **replaced)
    saved_runs = {run_seed: migrate(open_run(path, which)) for run_seed, path in runs.items()}
    reports = dict[Any, dict[str, Any]]()
    for run_seed, saved in saved_runs.items():
        seed = chosen_seed(saved, options.seed)
        result = evaluate_saved(saved, objects, seed=seed, episodes=options.episodes, trust=options.trust, **conditions)
        reports[run_seed] = report = _report(options, saved, result, seed)
        if not options.json:
            _print(report)
    if run_set is not None:
        aggregate = over_seeds({str(run_seed): report["mean_return"] for run_seed, report in reports.items()})
        report = {"run": str(run_set), **aggregate, "runs": [*reports.values()]}
        if not options.json:
            print_wrapped(iqm_text(aggregate))
    if options.json:
        print_json(report)
    return 0


def _started_runs(run_set: Path) -> dict[int | None, str]:
    """Return the runs of a set that have been started, by seed; warn about the others."""
    from multiverse.training.seed_runs import read_set

    runs = {seed: run_set / f"seed-{seed}" for seed in read_set(run_set)["seeds"]}
    resume = f"`multiverse resume {shlex.quote(str(run_set))}`"
    if not any(run.exists() for run in runs.values()):
        raise InvalidRequest(f"no seed of {run_set} has been started; start them with {resume}")
    for seed in (seed for seed, run in runs.items() if not run.exists()):
        print_wrapped(f"seed {seed} has not been started and is left out; start it with {resume}", sys.stderr)
    return {seed: str(run) for seed, run in runs.items() if run.exists()}


def _report(options: Evaluate, saved: SavedRun, evaluation: Evaluation, seed: int) -> dict[str, Any]:
    from multiverse.training.loading import own_evaluation_seed
    from multiverse.training.runs.origin import OPPONENT
    from multiverse.training.saved_runs import steps_of

    return {
        "checkpoint": str(saved.existing_checkpoint.path),
        "env": options.env or saved.settings.get("env"),
        "env_steps": steps_of(saved.existing_checkpoint),
        "seed": seed,
        "training_evaluation_seed": own_evaluation_seed(saved),
        "opponent": (options.opponent or saved.settings.get(OPPONENT)) if evaluation.opponent else None,
        **evaluation.summary(),
        **({"sides": {name: side.summary() for name, side in evaluation.sides.items()}} if evaluation.sides else {}),
        "returns": list(evaluation.returns),
        "lengths": list(evaluation.lengths),
    }


def _print(report: dict[str, Any]) -> None:
    from multiverse.training.progress import evaluation_text

    print(f"{display_name(str(report['env']))} after {report['env_steps']:,} env steps ({report['checkpoint']})")
    print_wrapped(_seeds(report))
    lowest, highest = format_return(min(report["returns"])), format_return(max(report["returns"]))
    print_wrapped(f"{evaluation_text(report, report['opponent'])}; from {lowest} to {highest}")
    for side, summary in report.get("sides", {}).items():
        print(f"  as {side}: {evaluation_text(summary)}")


def _seeds(report: dict[str, Any]) -> str:
    seed, in_training = report["seed"], report["training_evaluation_seed"]
    if seed == in_training:
        return f"seed {seed}: the episodes of the run's own evaluations, on which its best checkpoint was selected"
    return f"seed {seed}; the run's own evaluations use seed {in_training}"
