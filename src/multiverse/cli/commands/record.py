"""`multiverse record RUN`: a video of a policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

from multiverse.cli.commands.evaluate import deterministic_or_not
from multiverse.cli.main import parse, parsed_kwargs, require_positive
from multiverse.core.errors import in_digits

DESCRIPTION = """\
Writes an mp4 of episodes that a run's policy plays, on seeds that no training
ever sees: the first ones of `multiverse evaluate`. Needs no screen, and the
extra `video`.

examples:
  multiverse record runs/CartPole-v1
  multiverse record runs/connect_four --opponent random
  multiverse record runs/LunarLander-v3 --which best --out landing.mp4"""


@dataclass(frozen=True)
class Record:
    """Options of `multiverse record`."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """The run's directory, a checkpoint in it, or a directory above: then the run written to last."""
    episodes: Annotated[int, tyro.conf.arg(aliases=("--num-episodes",))] = 1
    """How many, one after the other."""
    out: Annotated[str | None, tyro.conf.arg(metavar="FILE|FOLDER")] = None
    """Where to; else into the run, videos/."""
    which: Literal["latest", "best"] = "latest"
    """The latest checkpoint, or the one with the best evaluation."""
    seed: int | None = None
    """Seed of the episodes. Default: the one of `multiverse evaluate`."""
    opponent: Annotated[str | None, tyro.conf.arg(metavar="random|self|RUN|MODULE:FUNCTION")] = None
    """Who plays the other side, as for `multiverse evaluate`."""
    stochastic: bool = False
    """Draw the actions. Default: as in the run's own evaluations."""
    deterministic: bool = False
    """Take the most likely actions."""
    fps: float | None = None
    """Frames per second; else as the env says."""
    env: Annotated[str | None, tyro.conf.arg(metavar="ID|MODULE:NAME")] = None
    """The env, for a run whose env was an object of a program."""
    env_kwargs: Annotated[str, tyro.conf.arg(metavar="JSON")] = "{}"
    """Arguments for the env, over those of the run."""
    algorithm: Annotated[str | None, tyro.conf.arg(metavar="MODULE:CLASS")] = None
    """Your algorithm, for a run that cannot hold its policy, where the class was in a program or has moved."""
    network: Annotated[str | None, tyro.conf.arg(metavar="FILE.py:CLASS")] = None
    """Your network, for a run whose network was a class of a program, or has moved."""
    trust: bool = False
    """Call the code (module:name) and join the Ray cluster that the run names, although you did not write it here."""


def run(arguments: Sequence[str]) -> int:
    options = parse(Record, "record", DESCRIPTION, arguments)
    require_positive(episodes=options.episodes, fps=options.fps)
    from multiverse.training.recording import record

    chosen: dict[str, Any] = {
        "which": options.which,
        "env": options.env,
        "algorithm": options.algorithm,
        "network": options.network,
        "trust": options.trust,
    }
    how: dict[str, Any] = {"episodes": options.episodes, "seed": options.seed, "fps": options.fps}
    how |= {"opponent": options.opponent, "env_kwargs": parsed_kwargs(options.env_kwargs) or None}
    how["deterministic"] = deterministic_or_not(options.stochastic, options.deterministic)
    made = record(options.run, options.out, **chosen, **how)
    returns = ", ".join(map(in_digits, made.evaluation.returns))
    told = "return" if len(made.evaluation.returns) == 1 else "returns"
    print(
        f"{made.path}: {made.frames} frames at {made.fps:g} a second, {made.frames / made.fps:.1f} s; {told} {returns}"
    )
    return 0
