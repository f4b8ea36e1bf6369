"""`multiverse record RUN`: record a video of a policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from multiverse.cli.commands.evaluate import EpisodeOptions
from multiverse.cli.main import print_wrapped, require_positive
from multiverse.cli.options import option, parse
from multiverse.core.wording import format_return

DESCRIPTION = """\
Writes an mp4 video of episodes that a run's policy plays: the first episodes
of `multiverse evaluate`, whose seeds are never used in training. Needs the
extra `video`, and no screen.

examples:
  multiverse record runs/CartPole-v1
  multiverse record runs/connect_four --opponent random
  multiverse record runs/LunarLander-v3 --which best --out landing.mp4"""


@dataclass(frozen=True)
class Record(EpisodeOptions):
    """Options of `multiverse record`."""

    episodes: int = option(1, "Number of episodes in the video, one after the other.", aliases=("--num-episodes",))
    out: str | None = option(None, "File or folder of the video. Default: videos/ in the run.", metavar="FILE|FOLDER")
    fps: float | None = option(None, "Frames per second. Default: the env's `render_fps`.")


def run(arguments: Sequence[str]) -> int:
    options = parse(Record, "record", DESCRIPTION, arguments)
    require_positive(episodes=options.episodes, fps=options.fps)
    conditions = {**options.source(), **options.conditions(), "which": options.which, "seed": options.seed}
    from multiverse.training.recording import record

    video = record(options.run, options.out, episodes=options.episodes, fps=options.fps, **conditions)
    returns = ", ".join(map(format_return, video.evaluation.returns))
    noun = "return" if len(video.evaluation.returns) == 1 else "returns"
    seconds = video.frames / video.fps
    print_wrapped(f"{video.path}: {video.frames} frames at {video.fps:g} fps, {seconds:.1f} s; {noun} {returns}")
    return 0
