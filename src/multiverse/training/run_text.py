"""Runs in words: how a run ended, an evaluation, a time, a budget."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from multiverse.core.wording import counted, in_digits
from multiverse.training.config.budget import PARTS, Budget, Clock

SHOWN_AGENTS = 4


def summary_lines(summary: dict[str, Any]) -> list[str]:
    """How a run ended."""
    stopped = f" ({summary['stopped']})" if summary["stopped"] else ""
    pace = f"{in_time(summary['seconds'])} ({summary['env_steps_per_s']:,.0f} env steps/s)"
    lines = [
        f"Done{stopped}: {counted(summary['env_steps'], 'env step')}, {counted(summary['episodes'], 'episode')} and "
        f"{counted(summary['updates'], 'update')} in {pace}.",
        f"Time: {in_percent({part: summary[f'{part}_s'] / (summary['seconds'] or 1.0) for part in PARTS})}.",
    ]
    best = "" if summary["best_return"] is None else f"; best {in_digits(summary['best_return'])}"
    if summary["evaluation"] is not None:
        lines.append(f"Evaluation: {evaluated(summary['evaluation'], summary.get('evaluation_opponent'))}{best}.")
    elif summary["evaluation_failures"]["failed"]:
        lines.append(f"Evaluation: none, the last one failed{best}.")
    return [*lines, failures_line(summary)]


def next_commands(summary: dict[str, Any], path: Path) -> list[str]:
    """What to type next."""
    where, longer = shlex.quote(str(path)), 2 * summary["env_steps"]
    more = f"resume {where} --env-steps {longer}"
    if summary["stopped"]:  # it would be stopped again
        more = f"train {shlex.quote(summary['env'])} --init-from {where}"
    return ["Next:", f"  multiverse evaluate {where}", f"  multiverse {more}"]


def evaluated(summary: Mapping[str, Any], opponent: str | None = None) -> str:
    """'return 493.1 ± 12.0, length 493, over 20 unseen episodes'; of several agents also each one's return or, against
    an opponent, how often the policy's side won. Of meta-episodes, what each of their episodes returned, and how many
    of those had a success."""
    prefix = "mean_return/"
    returned = f"{in_digits(summary['mean_return'])} ± {in_digits(summary['std_return'])}"
    if "wins" in summary:
        returned += f", {won(summary)}"
    else:
        each = {key.removeprefix(prefix): one for key, one in summary.items() if key.startswith(prefix)}
        returned += of_each(each, "episodes" if f"{prefix}episode_1" in summary else "agents")
    if successes := [one for key, one in summary.items() if key.startswith("success_rate/")]:
        returned += f", success {' → '.join(f'{100 * one:.0f} %' for one in successes)}"
    lost = f" ({summary['lost_episodes']} more failed)" if summary.get("lost_episodes") else ""
    episodes = counted(summary["episodes"], "unseen episode")
    against = f", against {opponent}" if opponent and "wins" in summary else ""
    return f"return {returned}, length {summary['mean_length']:.0f}, over {episodes}{lost}{against}"


def won(summary: Mapping[str, Any]) -> str:
    """'won 70 %, drew 5 %', of an evaluation against an opponent."""
    drew = f", drew {100 * summary['draws']:.0f} %" if summary.get("draws") else ""
    return f"won {100 * summary['wins']:.0f} %{drew}"


def of_each(returns: dict[str, float], of: str = "agents") -> str:
    """' (adversary_0 -3.1, agent_0 -12.2)'; of many the worst and the best, of a team with shared rewards the whole.
    Nothing of a single one."""
    if of == "agents" and len(returns) > 1 and len(set(returns.values())) == 1:
        return f" (each of {len(returns)} agents, {sum(returns.values()):.2f} together)"
    if len(returns) > SHOWN_AGENTS:
        low, high = min(returns, key=lambda agent: returns[agent]), max(returns, key=lambda agent: returns[agent])
        return f" ({len(returns)} {of}, from {low} {in_digits(returns[low])} to {high} {in_digits(returns[high])})"
    return f" ({', '.join(f'{agent} {in_digits(one)}' for agent, one in returns.items())})" if returns else ""


def in_time(seconds: float) -> str:
    """'4.2 s', '3:07 min', '2:05 h'."""
    if seconds == float("inf"):
        return "?"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f}:{seconds % 60:02.0f} min"
    return f"{seconds // 3600:.0f}:{seconds % 3600 // 60:02.0f} h"


def failure_counts(summary: dict[str, Any]) -> dict[str, int]:
    """What went wrong in a run, in words, and how often; nothing that was never met."""
    failures, evaluation = summary["failures"], summary["evaluation_failures"]
    counts = {
        "env restarts": failures["env_restarts"],
        "worker restarts": failures["worker_restarts"],
        "of them timeouts": failures["timeouts"],
        "bad values": failures["bad_values"],
        "observations outside their space": failures["out_of_bounds"],
        "env steps lost": summary["lost_steps"],
        "gradient steps skipped": summary["skipped_updates"],
        "evaluations failed": evaluation["failed"],
        "evaluation episodes lost": evaluation["lost_episodes"],
        "evaluation env restarts": evaluation["env_restarts"],
        "evaluation worker restarts": evaluation["worker_restarts"],
    }
    return {name: count for name, count in counts.items() if count}


def failures_line(summary: dict[str, Any]) -> str:
    """'Failures: env restarts 2.'"""
    found = [f"{name} {count:,}" for name, count in failure_counts(summary).items()]
    return f"Failures: {', '.join(found) or 'none'}."


def of_budget(budget: Budget, clock: Clock) -> str:
    """The share of whatever will be spent first, and what is not env steps."""
    parts = [f"{100 * budget.spent(clock):.0f} %"]
    parts += [f"{clock.episodes:,} of {budget.episodes:,} episodes"] if budget.episodes else []
    parts += [f"{in_time(clock.seconds)} of {in_time(60 * budget.minutes)}"] if budget.minutes else []
    return ", ".join(parts)


def in_percent(shares: dict[str, float]) -> str:
    """'act 20 %, step 42 %, learn 35 %, evaluate 0 %, save 0 %, other 3 %'."""
    return ", ".join(f"{part} {100 * share:.0f} %" for part, share in shares.items())
