"""The bottleneck of a run: the largest part of its time, in one sentence with what to change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from multiverse.cli.output import percent
from multiverse.core.plan import IN_CALLER, IN_PROCESSES, Plan
from multiverse.executors.backends import BACKENDS
from multiverse.training.config.train_config import TrainConfig

WORDS = {
    "act": "choosing actions",
    "step": "stepping the envs",
    "learn": "learning",
    "evaluate": "evaluating",
    "save": "saving",
    "other": "other work",
}
CHEAPER = {
    "epochs": "fewer --epochs",
    "gradient_steps": "fewer --gradient-steps",
    "updates_per_step": "fewer --updates-per-step",
    "sequence_length": "a shorter --sequence-length",
    "sequences": "fewer --sequences",
    "batch_size": "a larger --batch-size",
    "hidden_sizes": "smaller --hidden-sizes",
}
"""Settings that make an update shorter, at some cost; the first ones that the algorithm has are suggested."""
MAX_SUGGESTIONS = 2


def bottleneck(
    shares: Mapping[str, float], plan: Plan, config: TrainConfig, cores: int, torch_on_cpu: bool = False
) -> str:
    """Return 'Learning takes 51 % of the time: fewer --epochs (20) or a larger --batch-size (256) would shorten it.'

    `torch_on_cpu`: whether the networks learn in torch on the CPU, where idle cores are the first thing to use.
    """
    part = max(shares, key=lambda one: shares[one])
    remedy = _remedy(part, plan, config, cores, torch_on_cpu)
    return f"{WORDS[part].capitalize()} takes {percent(shares[part])} of the time: {remedy}."


def _remedy(part: str, plan: Plan, config: TrainConfig, cores: int, torch_on_cpu: bool) -> str:
    if part == "step":
        return _more_workers(plan, config, cores)
    if part == "act":
        return f"more --num-envs ({config.num_envs}) share a forward pass, smaller --hidden-sizes make it cheaper"
    if part == "learn":
        free = cores - plan.workers if config.asynchronous else cores  # without `asynchronous`, workers are idle now
        if torch_on_cpu and config.torch_threads < free:
            return f"it uses {config.torch_threads} of {cores} cores; --torch-threads {free} uses more of them"
        return f"{_cheaper(config.settings)} would shorten it"
    if part == "evaluate":
        every = config.steps_between_evaluations
        return (
            f"a larger --evaluate-every ({every:,}) or fewer --evaluation-episodes ({config.episodes_per_evaluation})"
        )
    if part == "save":
        return f"a larger --checkpoint-every-s ({config.checkpoint_every_s:g}) saves less often"
    return "a larger --log-every writes fewer metrics; hooks may also take time"


def _more_workers(plan: Plan, config: TrainConfig, cores: int) -> str:
    busy = plan.workers + BACKENDS[plan.executor].own_share
    envs = 2 * cores if config.num_envs == "auto" else config.num_envs
    if busy < min(cores, envs):
        named = IN_PROCESSES if plan.executor == IN_CALLER else plan.executor
        return f"{busy} of {cores} cores are used; --executor {named} --workers {min(cores, envs)} uses all of them"
    if envs < 2 * cores:
        return f"{envs} envs leave cores idle; `multiverse tune` finds the best --num-envs"
    return f"all {cores} cores are used already; a faster env or a machine with more cores would help"


def _cheaper(settings: Any) -> str:
    without = set[str]()
    if hasattr(settings, "updates_per_step"):
        without.add("batch_size")  # with replay, a larger batch costs more
        without.add(
            "updates_per_step" if getattr(settings, "gradient_steps", 0) else "gradient_steps"
        )  # the unused one
    if not (hasattr(settings, "updates_per_step") and getattr(settings, "memory", None)):
        without |= {"sequence_length", "sequences"}
    suggestions = [
        f"{words} ({_value(getattr(settings, name))})"
        for name, words in CHEAPER.items()
        if hasattr(settings, name) and name not in without
    ]
    return " or ".join(suggestions[:MAX_SUGGESTIONS]) or "a cheaper update"


def _value(value: Any) -> str:
    if value is None:
        return "whole episodes"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
