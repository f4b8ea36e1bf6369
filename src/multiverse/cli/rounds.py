"""Round after round of a comparison, with progress on standard error."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from multiverse.adapters.env_source import Recipe
from multiverse.cli.comparison import Comparison, Make
from multiverse.cli.output import Progress
from multiverse.measure import BareLoops


def compared(recipe: Recipe, contenders: Mapping[str, Make], rounds: int, seconds: float) -> Comparison:
    """Every contender beside the bare loops of `recipe`, in every round."""
    others = f"{len(contenders)} contender{'' if len(contenders) == 1 else 's'}"
    with Progress(rounds * (2 + len(contenders))) as progress, BareLoops(recipe) as loops:
        comparison = Comparison(loops, contenders)
        for number in range(1, rounds + 1):
            name = f"round {number} of {rounds}"
            progress.begin(f"{name}: the machine's limit, the plain loop and {others}, {seconds:g} s each")
            comparison.run_round(seconds, functools.partial(progress.next, during=f"{name}: "))
        return comparison
