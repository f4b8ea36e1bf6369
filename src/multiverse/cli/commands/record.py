"""`multiverse record RUN`: a video of a policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from multiverse.cli.commands.evaluate import EpisodeOptions
from multiverse.cli.main import parse, require_positive
from multiverse.core.wording import in_digits

DESCRIPTION = """\
Writes an mp4 of episodes that a run's policy plays, on seeds that no training
ever uses: the first ones of `multiverse evaluate`. Needs the extra `video`,
and no screen.

examples:
  multiverse record runs/CartPole-v1
  multiverse record runs/connect_four --opponent random
  multiverse record runs/LunarLander-v3 --which best --out landing.mp4"""


@dataclass(frozen=True)
class Record(EpisodeOptions):
    """Options of `multiverse record`."""

    episodes: Annotated[int, tyro.conf.arg(aliases=("--num-episodes",))] = 1
    """Number of episodes in the video, one after the other."""
    out: Annotated[str | None, tyro.conf.arg(metavar="FILE|FOLDER")] = None
    """File or folder of the video. Default: videos/ in the run."""
    fps: float | None = None
    """Frames per second. Default: as the env says."""


def run(arguments: Sequence[str]) -> int:
    options = parse(Record, "record", DESCRIPTION, arguments)
    require_positive(episodes=options.episodes, fps=options.fps)
    conditions = {**options.source(), **options.conditions(), "which": options.which, "seed": options.seed}
    from multiverse.training.recording import record

    made = record(options.run, options.out, episodes=options.episodes, fps=options.fps, **conditions)
    returns = ", ".join(map(in_digits, made.evaluation.returns))
    named = "return" if len(made.evaluation.returns) == 1 else "returns"
    seconds = made.frames / made.fps
    print(f"{made.path}: {made.frames} frames at {made.fps:g} a second, {seconds:.1f} s; {named} {returns}")
    return 0
