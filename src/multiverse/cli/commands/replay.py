"""`multiverse replay RUN --episode K`: play an episode of a run's evaluation again."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from multiverse.cli.commands.evaluate import RunOptions
from multiverse.cli.main import FAILED, print_wrapped, require_positive
from multiverse.cli.options import option, parse
from multiverse.cli.output import print_json

DESCRIPTION = """\
Plays an episode of a checkpoint's evaluation again, bit for bit, with the same
policy and the same seed. Its return and length are compared with those that
the run recorded; the exit code is 1 if they differ. The digest covers every
action, observation, reward and end of the episode: episodes with equal
digests are equal, on any machine.

examples:
  multiverse replay runs/CartPole-v1 --episode 3
  multiverse replay runs/CartPole-v1 --episode 0 --which best --video"""


@dataclass(frozen=True)
class Replay(RunOptions):
    """Options of `multiverse replay`."""

    episode: int = option(0, "Number of the episode in the evaluation, counted from 0.")
    video: bool = option(False, "Also record a video, into videos/ in the run or --out. Needs the extra `video`.")
    out: str | None = option(None, "File or folder of the video; implies --video.", metavar="FILE|FOLDER")
    fps: float | None = option(None, "Frames per second of the video. Default: the env's `render_fps`.")
    json: bool = option(False, "Print one JSON object instead of text.")


def run(arguments: Sequence[str]) -> int:
    options = parse(Replay, "replay", DESCRIPTION, arguments)
    require_positive(fps=options.fps)
    from multiverse.training.recording import replay

    video = options.out or options.video
    source = {"which": options.which, **options.source()}
    result = replay(options.run, options.episode, video=video, fps=options.fps, **source)
    if options.json:
        path = None if result.video is None else str(result.video)
        print_json({**dataclasses.asdict(result), "video": path, "same": result.same})
    else:
        print(f"episode {result.episode} (seed {result.seed}): return {result.returned:g}, length {result.length}")
        print(f"digest {result.digest}")
        if result.video is not None:
            print(result.video)
        print_wrapped(_verdict(result.evaluated, result.same))
    return FAILED if result.same is False else 0


def _verdict(evaluated: tuple[float, int] | None, same: bool | None) -> str:
    if evaluated is None:
        return "The run has no record of this episode, so there is nothing to compare it with."
    if same:
        return "The return and the length are the same as in the run's evaluation."
    return (
        f"Not the same: in the run's evaluation the return was {evaluated[0]:g} and the length {evaluated[1]}. Check "
        "that the env is deterministic for its seed (`multiverse check-env`) and has the version that the run used."
    )
