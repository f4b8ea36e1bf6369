"""`multiverse replay RUN --episode K`: an episode of a run's evaluation once more."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from multiverse.cli.main import FAILED, parse, require_positive
from multiverse.cli.output import print_json

DESCRIPTION = """\
Plays an episode of the evaluation that a checkpoint had once more, bit for
bit: the same policy, the same seed. Its return and length are compared with
what the run has written down; where they differ, the exit code is 1. The
digest is of every action, observation, reward and end: equal ones are equal
episodes, on whatever machine.

examples:
  multiverse replay runs/CartPole-v1 --episode 3
  multiverse replay runs/CartPole-v1 --episode 0 --which best --video"""


@dataclass(frozen=True)
class ReplayOptions:
    """Options of `multiverse replay`."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """The run's directory, a checkpoint in it, or a directory above: then the run written to last."""
    episode: int = 0
    """Its number in the evaluation, from 0."""
    video: bool = False
    """Record it too: into the run, videos/, or --out. Needs the extra `video`."""
    out: Annotated[str | None, tyro.conf.arg(metavar="FILE|FOLDER")] = None
    """Where the video goes."""
    which: Literal["latest", "best"] = "latest"
    """The latest checkpoint, or the one with the best evaluation."""
    fps: float | None = None
    """Frames per second of the video; else as the env says."""
    env: Annotated[str | None, tyro.conf.arg(metavar="ID|MODULE:NAME")] = None
    """The env, for a run whose env was an object of a program."""
    algorithm: Annotated[str | None, tyro.conf.arg(metavar="MODULE:CLASS")] = None
    """Your algorithm, for a run that cannot hold its policy, where the class was in a program or has moved."""
    network: Annotated[str | None, tyro.conf.arg(metavar="FILE.py:CLASS")] = None
    """Your network, for a run whose network was a class of a program, or has moved."""
    trust: bool = False
    """Call the code (module:name) and join the Ray cluster that the run names, although you did not write it here."""
    json: bool = False
    """Print one JSON object."""


def run(arguments: Sequence[str]) -> int:
    options = parse(ReplayOptions, "replay", DESCRIPTION, arguments)
    require_positive(fps=options.fps)
    from multiverse.training.recording import replay

    found = replay(
        options.run,
        options.episode,
        video=options.out or options.video,
        which=options.which,
        fps=options.fps,
        env=options.env,
        algorithm=options.algorithm,
        network=options.network,
        trust=options.trust,
    )
    if options.json:
        video = None if found.video is None else str(found.video)
        print_json({**dataclasses.asdict(found), "video": video, "same": found.same})
    else:
        print(f"episode {found.episode} (seed {found.seed}): return {found.returned:g}, length {found.length}")
        print(f"digest {found.digest}")
        if found.video is not None:
            print(found.video)
        print(_verdict(found.evaluated, found.same))
    return FAILED if found.same is False else 0


def _verdict(evaluated: tuple[float, int] | None, same: bool | None) -> str:
    if evaluated is None:
        return "The run has not written down how this episode went: there is nothing to compare it with."
    if same:
        return "The same return and length as in the run's evaluation."
    return (
        f"Not the same: the run's evaluation had return {evaluated[0]:g}, length {evaluated[1]}. Does the env follow "
        "its seed (`multiverse check-env` says), and is it the version of then?"
    )
