"""Small runs from the command line, for the tests of the commands that train."""

from __future__ import annotations

from pathlib import Path

from multiverse.cli.main import main

FLAGS = """
    --executor serial --num-envs 2 --steps-per-env 32 --epochs 1 --batch-size 32
    --evaluate-every 0 --evaluation-episodes 2 --no-preset
"""
SMALL = FLAGS.split()
"""Rollouts of 64 env steps, and one evaluation at the end."""


def train(home: Path, *more: str, env: str = "CartPole-v1", env_steps: int = 256) -> int:
    """`multiverse train ENV` in this process, into this directory."""
    return main(["train", env, "--run-dir", str(home), *SMALL, "--env-steps", str(env_steps), *more])
