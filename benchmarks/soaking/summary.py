"""Summary of a soak test: every check, whether it held, and its figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from benchmarks.soaking.audit import Auditor
from benchmarks.soaking.fates import BAD_VALUES, CHANCES, RAISE
from benchmarks.soaking.resources import WARM_UP, Holdings, Memory
from benchmarks.soaking.rollouts import RolloutAuditor
from benchmarks.soaking.signals import Hits, Sniper
from multiverse.core.failures import Failures

MOST_GROWTH_MIB = 2.0


class Summary:
    """Checks by name: (whether it held, details)."""

    def __init__(self, auditor: Auditor | RolloutAuditor, sniper: Sniper, hits: Hits, failures: Failures) -> None:
        self.checks: dict[str, tuple[bool, str]] = {}
        self.figures: dict[str, Any] = {
            **asdict(failures),
            "kills": sniper.kills,
            "stops": sniper.stops,
            "signals_too_late": sniper.missed,
            **{kind: auditor.met[kind] + auditor.unsure[kind] for kind in CHANCES},
            "whole_episodes_compared": auditor.whole_episodes,
            "cut_episodes_compared": auditor.cut_episodes,
            "rows_compared": auditor.rows_equal,
        }
        self._check_rows(auditor)
        self._check_steps(failures, auditor)
        self._check_restarts(failures, auditor, hits)
        self._check_every_kind(auditor, sniper)

    @property
    def held(self) -> bool:
        return all(fine for fine, _ in self.checks.values())

    def lines(self) -> list[str]:
        """Return the figures, then one line per check."""
        figures = [
            f"{name}: {value:.2f}" if isinstance(value, float) else f"{name}: {value}"
            for name, value in self.figures.items()
        ]
        checks = [
            f"{'held  ' if fine else 'FAILED'}  {name}: {details}" for name, (fine, details) in self.checks.items()
        ]
        return [*figures, *checks]

    def as_json(self) -> dict[str, Any]:
        checks = {name: {"held": fine, "found": details} for name, (fine, details) in self.checks.items()}
        return {"held": self.held, "checks": checks, "figures": self.figures}

    def add(self, other: Summary, where: str) -> None:
        """Add the summary of another part of the same test."""
        self.figures.update({f"{name} {where}": figure for name, figure in other.figures.items()})
        self.checks.update({f"{where}: {name}": check for name, check in other.checks.items()})

    # -- what came ---------------------------------------------------------------------------------------------
    def _check_rows(self, auditor: Auditor | RolloutAuditor) -> None:
        details = f"{auditor.rows_equal} rows of {auditor.whole_episodes} whole and {auditor.cut_episodes} cut episodes"
        wrong = auditor.complaints
        self.checks["every delivered row as in a clean serial run, every lost one marked and due"] = (
            not wrong and auditor.rows_equal > 0,
            "; ".join([details, *wrong]),
        )

    def _check_steps(self, failures: Failures, auditor: Auditor | RolloutAuditor) -> None:
        counted = (failures.steps_sent, failures.steps_used, failures.steps_discarded)
        ours = (auditor.rows_sent, auditor.rows_sent - auditor.rows_lost, auditor.rows_lost)
        self.checks["steps sent = used + discarded, as counted by the soak itself"] = (
            counted == ours and counted[0] == counted[1] + counted[2],
            f"{counted[0]} = {counted[1]} + {counted[2]}; the soak counts {ours}",
        )

    def _check_restarts(self, failures: Failures, auditor: Auditor | RolloutAuditor, hits: Hits) -> None:
        """One restart per worker that was hit; timeouts for those that fell silent, unless a KILL came first."""
        silent_only = len(hits.silenced - hits.killed)
        self._between("worker restarts", failures.worker_restarts, len(hits), len(hits))
        self._between("timeouts", failures.timeouts, silent_only, len(hits.silenced))
        met, unsure = auditor.met, auditor.unsure
        self._between("env restarts", failures.env_restarts, met[RAISE], met[RAISE] + unsure[RAISE])
        sure, perhaps = (sum(kinds[kind] for kind in BAD_VALUES) for kinds in (met, unsure))
        self._between("bad values", failures.bad_values, sure, sure + perhaps)

    def _check_every_kind(self, auditor: Auditor | RolloutAuditor, sniper: Sniper) -> None:
        counts = {kind: auditor.met[kind] + auditor.unsure[kind] for kind in CHANCES}
        counts.update(kills=sniper.kills, stops=sniper.stops)
        details = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        self.checks["every kind of fault was met"] = (all(counts.values()), details)

    # -- what is left ------------------------------------------------------------------------------------------
    def check_holdings(self, running: Holdings, at_end: Holdings, before: Holdings, after: Holdings) -> None:
        self.checks["nothing leaked while it ran"] = (at_end == running, f"{running}, at the end {at_end}")
        self.checks["nothing left after close"] = (after == before, f"{before}, after {after}")

    def check_memory(self, memory: Mapping[str, Memory], same_worker: bool) -> None:
        """Check the growth of memory by a line fitted after the warm-up."""
        for name, seen in memory.items():
            growth, looks = seen.growth_mib(), len(seen.seen)
            self.figures[f"growth_mib of {name}"] = growth
            self.checks[f"memory of {name} is flat"] = (
                growth <= MOST_GROWTH_MIB,
                f"{growth:+.2f} MiB (at most {MOST_GROWTH_MIB:g}) after the first {WARM_UP:.0%} of {looks} looks",
            )
        self.checks["worker 0, which was spared, is still the same"] = (same_worker, "as the memory looked at")

    def _between(self, name: str, count: int, least: int, most: int) -> None:
        expected = f"{least}" if least == most else f"{least} to {most}"
        self.checks[f"{name} are those injected"] = (least <= count <= most, f"{count}, injected {expected}")
