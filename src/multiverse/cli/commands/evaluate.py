"""`multiverse evaluate RUN`: how good a policy is."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from multiverse.cli.main import parse, parsed_kwargs, require_positive
from multiverse.cli.output import print_json
from multiverse.core.errors import InvalidRequest
from multiverse.core.imports import without_folders
from multiverse.core.wording import in_digits

if TYPE_CHECKING:
    from multiverse.training.evaluation import Evaluation
    from multiverse.training.opening import SavedRun

DESCRIPTION = """\
Plays episodes with a run's policy, on as many envs as the run's evaluations,
on seeds that no training ever sees, with the most likely actions or, if its
evaluations do, drawn ones. Equal seeds give equal episodes, whatever the
training looked like. By default they are other episodes than those of the
run's own evaluations: its best checkpoint was selected on those, so that its
return there is too high. Of several agents it plays all, or, with --opponent,
one side, which alternates from episode to episode.

examples:
  multiverse evaluate runs/CartPole-v1
  multiverse evaluate runs/connect_four --opponent random
  multiverse evaluate runs/BoxJump-v0 --stochastic
  multiverse evaluate runs/Pendulum-v1 --env-kwargs '{"g": 9.8}'
  multiverse evaluate runs/CartPole-v1/ppo-0-20260101-120000 --best --json"""


@dataclass(frozen=True)
class RunOptions:
    """Options of every command that plays with the policy of a run."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Directory of the run, a checkpoint in it, or a directory above: then the run that was written to last."""
    which: Literal["latest", "best"] = "latest"
    """The latest checkpoint, or the one with the best evaluation."""
    env: Annotated[str | None, tyro.conf.arg(metavar="ID|MODULE:NAME")] = None
    """The env, for a run whose env was an object of a program."""
    algorithm: Annotated[str | None, tyro.conf.arg(metavar="MODULE:CLASS")] = None
    """Your algorithm, for a run that cannot hold its policy, where the class was in a program or has moved."""
    network: Annotated[str | None, tyro.conf.arg(metavar="FILE.py:CLASS")] = None
    """Your network, for a run whose network was a class of a program, or has moved."""
    trust: bool = False
    """Call the code (module:name) and join the Ray cluster that the run names, although you did not write it here."""

    def source(self) -> dict[str, Any]:
        """Return what replaces or allows code that the run names."""
        return {"env": self.env, "algorithm": self.algorithm, "network": self.network, "trust": self.trust}


@dataclass(frozen=True)
class EpisodeOptions(RunOptions):
    """Options of every command that plays new episodes with the policy of a run."""

    seed: int | None = None
    """Seed of the episodes. Default: 1000000; the run's own evaluations have `evaluation_seed`, 0 by default."""
    opponent: Annotated[str | None, tyro.conf.arg(metavar="random|self|RUN|MODULE:FUNCTION")] = None
    """Who plays the other side: any open action, the policy itself, another run's, or a function (observation, open
    actions, generator) → action. Default: as in the run's own evaluations."""
    stochastic: bool = False
    """Draw the actions. Default: as in the run's own evaluations (`evaluation_deterministic`)."""
    deterministic: bool = False
    """Take the most likely actions."""
    env_kwargs: Annotated[str, tyro.conf.arg(metavar="JSON")] = "{}"
    """Arguments for the env, over those of the run: a team of another size, say, or other physics."""

    def conditions(self) -> dict[str, Any]:
        """Return the conditions under which episodes are played, other than their seed."""
        if self.stochastic and self.deterministic:
            raise InvalidRequest("--stochastic and --deterministic cannot be used together")
        deterministic = self.deterministic if self.stochastic != self.deterministic else None
        kwargs = parsed_kwargs(self.env_kwargs) or None
        return {"opponent": self.opponent, "deterministic": deterministic, "env_kwargs": kwargs}


@dataclass(frozen=True)
class Evaluate(EpisodeOptions):
    """Options of `multiverse evaluate`."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Directory of the run, a checkpoint in it, or a directory above: then the run that was written to last. The
    directory of several seeds: every one of them."""
    episodes: Annotated[int, tyro.conf.arg(aliases=("--n-eval-episodes", "--num-episodes"))] = 100
    """Number of episodes."""
    best: bool = False
    """The same as --which best."""
    json: bool = False
    """Print one JSON object, with every episode."""


def run(arguments: Sequence[str]) -> int:
    options = parse(Evaluate, "evaluate", DESCRIPTION, arguments)
    require_positive(episodes=options.episodes)
    conditions = options.conditions()
    from multiverse.training.loading import chosen_seed, evaluate_saved
    from multiverse.training.objects import RunObjects
    from multiverse.training.opening import migrate, open_run
    from multiverse.training.runs.find_runs import find_set
    from multiverse.training.seed_runs import over_seeds, together

    several, which = find_set(options.run), "best" if options.best else options.which
    runs = {None: options.run} if several is None else _begun(several)
    objects = RunObjects(env=options.env, algorithm=options.algorithm, network=options.network)
    brought = {"env_kwargs": conditions.pop("env_kwargs"), "opponent": conditions.pop("opponent")}
    objects = dataclasses.replace(objects, **brought)
    opened = {seed: migrate(open_run(one, which)) for seed, one in runs.items()}
    reports = dict[Any, dict[str, Any]]()
    for of_run, saved in opened.items():
        seed = chosen_seed(saved, options.seed)
        result = evaluate_saved(saved, objects, seed=seed, episodes=options.episodes, trust=options.trust, **conditions)
        reports[of_run] = report = _report(options, saved, result, seed)
        if not options.json:
            _print(report)
    if several is not None:
        said = over_seeds({str(seed): report["mean_return"] for seed, report in reports.items()})
        report = {"run": str(several), **said, "runs": [*reports.values()]}
        if not options.json:
            print(together(said))
    if options.json:
        print_json(report)
    return 0


def _begun(several: Path) -> dict[int | None, str]:
    """Return the runs of a set that have begun, by seed; warn about the others."""
    from multiverse.training.seed_runs import read_set

    runs = {seed: several / f"seed-{seed}" for seed in read_set(several)["seeds"]}
    again = f"`multiverse resume {shlex.quote(str(several))}`"
    if not any(run.exists() for run in runs.values()):
        raise InvalidRequest(f"no seed of {several} has begun: {again} begins them")
    for seed in (seed for seed, run in runs.items() if not run.exists()):
        print(f"seed {seed} has not begun: left out; {again} goes on with it", file=sys.stderr)
    return {seed: str(run) for seed, run in runs.items() if run.exists()}


def _report(options: Evaluate, saved: SavedRun, found: Evaluation, seed: int) -> dict[str, Any]:
    from multiverse.training.loading import own_evaluation_seed
    from multiverse.training.opening import steps_of
    from multiverse.training.runs.origin import OPPONENT

    return {
        "checkpoint": str(saved.found.path),
        "env": options.env or saved.settings.get("env"),
        "env_steps": steps_of(saved.found),
        "seed": seed,
        "training_evaluation_seed": own_evaluation_seed(saved),
        "opponent": (options.opponent or saved.settings.get(OPPONENT)) if found.opponent else None,
        **found.summary(),
        **({"sides": {side: one.summary() for side, one in found.sides.items()}} if found.sides else {}),
        "returns": list(found.returns),
        "lengths": list(found.lengths),
    }


def _print(report: dict[str, Any]) -> None:
    from multiverse.training.run_text import evaluated

    print(f"{without_folders(str(report['env']))} after {report['env_steps']:,} env steps ({report['checkpoint']})")
    seeds, lowest, highest = _seeds(report), in_digits(min(report["returns"])), in_digits(max(report["returns"]))
    print(f"{evaluated(report, report['opponent'])}; from {lowest} to {highest}; {seeds}")
    for side, summary in report.get("sides", {}).items():
        print(f"  as {side}: {evaluated(summary)}")


def _seeds(report: dict[str, Any]) -> str:
    seed, in_training = report["seed"], report["training_evaluation_seed"]
    if seed == in_training:
        return f"seed {seed}, the episodes of the evaluations in training, on which the best checkpoint was selected"
    return f"seed {seed}, other episodes than in the evaluations in training (seed {in_training})"
