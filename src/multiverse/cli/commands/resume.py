"""`multiverse resume RUN`: go on with a run."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from multiverse.cli.main import parse, require, require_positive

DESCRIPTION = """\
Goes on with a run exactly where its last checkpoint was taken: an interrupted
one to the end of its budget, a finished one with a larger budget. Weights,
noise and every env in the middle of its episode come back as they were.

examples:
  multiverse resume runs/CartPole-v1
  multiverse resume runs/CartPole-v1/ppo-0-20260101-120000 --env-steps 200000"""


@dataclass(frozen=True)
class Resume:
    """Options of `multiverse resume`."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """The run's directory, or one above: then the run in it that was written to last. A checkpoint in it: then the run
    goes on from there, and what came after it goes."""
    env_steps: Annotated[int | None, tyro.conf.arg(aliases=("--total-timesteps", "--timesteps"))] = None
    """A new budget: steps of all envs together, those before included."""
    episodes: Annotated[int | None, tyro.conf.arg(aliases=("--num-episodes",))] = None
    """A new budget in episodes."""
    minutes: float | None = None
    """A new budget in minutes."""
    env: Annotated[str | None, tyro.conf.arg(metavar="ID|MODULE:NAME")] = None
    """The env, for a run whose env was an object of a program."""
    trust: bool = False
    """Call the env that the run names (module:name), though the run was not written by you on this machine."""
    tensorboard: bool = False
    """Metrics for TensorBoard too. A run that has begun with them goes on with them."""
    quiet: bool = False
    """Print nothing but the run's directory, at its end."""
    json: bool = False
    """Print a JSON object a line: start, metrics every few seconds, evaluation, end."""


def run(arguments: Sequence[str]) -> int:
    options = parse(Resume, "resume", DESCRIPTION, arguments)
    require_positive(env_steps=options.env_steps, episodes=options.episodes, minutes=options.minutes)
    if options.tensorboard:
        require("tensorboard", "tensorboard", purpose="--tensorboard")
    from multiverse.cli.display import progress_for
    from multiverse.cli.progress import LinePrinter, run_with_progress
    from multiverse.training.run import resume

    budget: dict[str, Any] = {"env_steps": options.env_steps, "episodes": options.episodes, "minutes": options.minutes}
    go_on = functools.partial(resume, options.run, env=options.env, trust=options.trust, **budget)
    with progress_for(LinePrinter(), options.quiet, options.json) as progress:
        run_with_progress(go_on, progress, tensorboard=options.tensorboard)
    return 0
