"""`multiverse replay RUN --episode K`: play an episode of a run's evaluation again."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from multiverse.cli.commands.evaluate import RunOptions
from multiverse.cli.main import FAILED, parse, require_positive
from multiverse.cli.output import print_json

DESCRIPTION = """\
Plays an episode of a checkpoint's evaluation again, bit for bit: the same
policy, the same seed. Its return and length are compared with those that the
run recorded; where they differ, the exit code is 1. The digest covers every
action, observation, reward and end: episodes with equal digests are equal,
on any machine.

examples:
  multiverse replay runs/CartPole-v1 --episode 3
  multiverse replay runs/CartPole-v1 --episode 0 --which best --video"""


@dataclass(frozen=True)
class Replay(RunOptions):
    """Options of `multiverse replay`."""

    episode: int = 0
    """Number of the episode in the evaluation, from 0."""
    video: bool = False
    """Record it too: into the run, videos/, or --out. Needs the extra `video`."""
    out: Annotated[str | None, tyro.conf.arg(metavar="FILE|FOLDER")] = None
    """File or folder of the video."""
    fps: float | None = None
    """Frames per second of the video. Default: as the env says."""
    json: bool = False
    """Print one JSON object."""


def run(arguments: Sequence[str]) -> int:
    options = parse(Replay, "replay", DESCRIPTION, arguments)
    require_positive(fps=options.fps)
    from multiverse.training.recording import replay

    video = options.out or options.video
    source = {"which": options.which, **options.source()}
    found = replay(options.run, options.episode, video=video, fps=options.fps, **source)
    if options.json:
        path = None if found.video is None else str(found.video)
        print_json({**dataclasses.asdict(found), "video": path, "same": found.same})
    else:
        print(f"episode {found.episode} (seed {found.seed}): return {found.returned:g}, length {found.length}")
        print(f"digest {found.digest}")
        if found.video is not None:
            print(found.video)
        print(_verdict(found.evaluated, found.same))
    return FAILED if found.same is False else 0


def _verdict(evaluated: tuple[float, int] | None, same: bool | None) -> str:
    if evaluated is None:
        return "The run has no record of this episode, so there is nothing to compare it with."
    if same:
        return "The same return and length as in the run's evaluation."
    return (
        f"Not the same: the run's evaluation had return {evaluated[0]:g}, length {evaluated[1]}. Check that the env is "
        "deterministic for its seed (`multiverse check-env`) and has the version that the run used."
    )
