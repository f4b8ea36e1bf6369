"""`multiverse evaluate RUN`: how good a policy is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from multiverse.cli.main import parse, require_positive
from multiverse.cli.output import print_json

if TYPE_CHECKING:
    from multiverse.training.evaluation import Evaluation
    from multiverse.training.storage.checkpoint_format import Checkpoint

DESCRIPTION = """\
Plays episodes with a run's policy, deterministic, on as many envs as the
run's evaluations, on seeds that no training ever sees. Equal seeds give equal
episodes, whatever the training looked like. Of several agents it plays all,
or, with --opponent, one side, which alternates from episode to episode.

examples:
  multiverse evaluate runs/CartPole-v1
  multiverse evaluate runs/connect_four --opponent random
  multiverse evaluate runs/CartPole-v1/ppo-0-20260101-120000 --best --json"""


@dataclass(frozen=True)
class Evaluate:
    """Options of `multiverse evaluate`."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """The run's directory, a checkpoint in it, or a directory above: then the run written to last."""
    episodes: Annotated[int, tyro.conf.arg(aliases=("--n-eval-episodes", "--num-episodes"))] = 100
    """How many."""
    best: bool = False
    """The checkpoint with the best evaluation instead of the latest."""
    seed: int = 0
    """Of the episodes."""
    opponent: Annotated[str | None, tyro.conf.arg(metavar="random|RUN|MODULE:FUNCTION")] = None
    """Who plays the other side: any open action, another run's policy, or a function (observation, open actions,
    generator) → action. Default: as in the run's own evaluations."""
    env: Annotated[str | None, tyro.conf.arg(metavar="ID|MODULE:NAME")] = None
    """The env, for a run whose env was an object of a program."""
    trust: bool = False
    """Call the env that the run names (module:name), though the run was not written by you on this machine."""
    json: bool = False
    """Print one JSON object, with every episode."""


def run(arguments: Sequence[str]) -> int:
    options = parse(Evaluate, "evaluate", DESCRIPTION, arguments)
    require_positive(episodes=options.episodes)
    from multiverse.training.loading import checkpoint_of, evaluate_run

    which = "best" if options.best else "latest"
    checkpoint = checkpoint_of(options.run, which)
    how: dict[str, Any] = {"episodes": options.episodes, "seed": options.seed, "opponent": options.opponent}
    found = evaluate_run(checkpoint.path, env=options.env, trust=options.trust, **how)
    report = _report(options, checkpoint, found)
    if options.json:
        print_json(report)
    else:
        _print(report)
    return 0


def _report(options: Evaluate, checkpoint: Checkpoint, found: Evaluation) -> dict[str, Any]:
    from multiverse.training.loading import config_of, steps_of

    return {
        "checkpoint": str(checkpoint.path),
        "env": options.env or config_of(checkpoint.path).get("env"),
        "env_steps": steps_of(checkpoint),
        "seed": options.seed,
        "opponent": options.opponent or config_of(checkpoint.path).get("evaluation_opponent"),
        **found.summary(),
        "returns": list(found.returns),
        "lengths": list(found.lengths),
    }


def _print(report: dict[str, Any]) -> None:
    from multiverse.training.progress import evaluated

    print(f"{report['env']} after {report['env_steps']:,} env steps ({report['checkpoint']})")
    against = f", against {report['opponent']}" if report["opponent"] else ""
    print(f"{evaluated(report)}{against}; from {min(report['returns']):.1f} to {max(report['returns']):.1f}")
