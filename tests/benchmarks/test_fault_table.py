"""The fault table: its cells are really run and judged by their rule, and leave no processes behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fault_table import measure
from benchmarks.faults.cell import MARK, marked
from benchmarks.faults.envs import FAULT_AT, NUM_ACTIONS, action_at, clean_run
from benchmarks.faults.judge import (
    CONTINUES,
    HANG,
    NUM_ENVS,
    RIGHT_DATA,
    RIGHT_ERROR,
    SEED,
    SILENT,
    STALE,
    VAGUE_ERROR,
    VICTIM,
    WRONG_ERROR,
    Record,
    ReportsCause,
    RightData,
)
from benchmarks.faults.scenarios import SCENARIOS
from benchmarks.faults.table import as_markdown, cell_text, is_handled_well

ROOT = Path(__file__).parents[2]
LIMIT_S = 30.0


# -- whole cells ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("scenario", "contender", "outcome"),
    [
        ("kill_in_step", "multiverse_raise", RIGHT_ERROR),
        ("nan_observation", "multiverse_restart", CONTINUES),
        ("raise", "gymnasium", RIGHT_ERROR),
    ],
)
def test_cell_is_run_and_judged_by_its_rule(scenario: str, contender: str, outcome: str) -> None:
    (cell,) = measure([scenario], [contender], LIMIT_S)
    assert (cell.verdict.outcome, cell.close, cell.left) == (outcome, "", ())
    assert is_handled_well(cell)


def test_hang_is_recognised_and_its_processes_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    marks = []
    monkeypatch.setattr("benchmarks.faults.cell.kill_all", _taking_note(marks))
    (cell,) = measure(["hang"], ["gymnasium"], limit_s=1.0)
    assert cell.verdict.outcome == HANG and not is_handled_well(cell)
    (mark,) = marks
    assert mark.startswith(MARK) and marked(mark) == []


def _taking_note(marks: list[str]) -> Any:
    from benchmarks.faults.cell import kill_all

    def take_away_and_note(program: subprocess.Popen[bytes], mark: str) -> None:
        assert len(marked(mark)) > NUM_ENVS  # the program and its workers: they are found before they are taken away
        marks.append(mark)
        kill_all(program, mark)

    return take_away_and_note


def test_command_writes_every_cell(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/fault_table.py", "--only", "exit", "--contenders", "multiverse_raise"]
    found = subprocess.run(
        [*command, "--json", str(tmp_path / "cells.json"), "--markdown"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    (cell,) = json.loads((tmp_path / "cells.json").read_text())["cells"]
    assert (cell["scenario"], cell["verdict"]["outcome"]) == ("exit", RIGHT_ERROR)
    assert "| os._exit(3) in step (`exit`) | right error: WorkerDied" in found.stdout
    assert "--only exit --contenders multiverse_raise" in found.stdout


# -- the judge -------------------------------------------------------------------------------------------------------
def row(env_id: int, step: int, **changes: Any) -> dict[str, Any]:
    """Return the row of a clean run, unless changed."""
    actions = [action_at(k) for k in range(1, step + 1)]
    observation, reward = list(clean_run(env_id, SEED, actions, "float32"))[-1]
    return {"observation": observation, "reward": reward, "ended": False, "marked": False, **changes}


def seen(*events: dict[str, Any], stderr: str = "", hung_after: str | None = None) -> Record:
    results = [{"event": "begin"}, *events]
    return Record([{"at": float(i), **event} for i, event in enumerate(results)], stderr, hung_after)


def returned(step: int, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"event": "returned", "call": "step", "step": step, "rows": rows}


def raised(text: str, call: str = "step") -> dict[str, Any]:
    return {"event": "raised", "call": call, "type": text.split(":")[0], "text": text}


@pytest.mark.parametrize(
    ("text", "stderr", "outcome"),
    [
        ("WorkerDied: worker 1 was killed by SIGKILL", "", RIGHT_ERROR),
        ("Gone: SIGKILL", "Received an error from Worker-1", RIGHT_ERROR),
        ("Gone: SIGKILL", "Received an error from Worker-11", VAGUE_ERROR),
        ("EOFError: ", "worker 1: SIGKILL", WRONG_ERROR),
    ],
)
def test_error_must_name_the_cause_and_the_place(text: str, stderr: str, outcome: str) -> None:
    assert ReportsCause(("SIGKILL",))(seen(raised(text), stderr=stderr)).outcome == outcome


def test_error_that_names_one_of_two_causes_is_vague() -> None:
    rule = ReportsCause(("first", "second"), who=(0, 2))
    assert rule(seen(raised("E: env 0: first; envs [2]"))).outcome == VAGUE_ERROR
    assert rule(seen(raised("E: env 0: first; env 2: second"))).outcome == RIGHT_ERROR


def test_call_without_outcome_is_judged_a_hang() -> None:
    assert ReportsCause((".",))(seen(hung_after="begin")).outcome == HANG
    late = RightData({"step": "timed out"})
    assert late(seen(raised("TimeoutError: timed out"), hung_after="raised")).outcome == HANG


def test_continuing_requires_a_marked_row_a_fresh_env_and_unchanged_others() -> None:
    rule = ReportsCause((".",))

    def outcome(lost: dict[str, Any], later: dict[str, Any], other: dict[str, Any]) -> str:
        first = [row(0, FAULT_AT), {**row(VICTIM, FAULT_AT - 1), **lost}, row(2, FAULT_AT)]
        second = [other, {**row(VICTIM, 1), **later}, row(2, FAULT_AT + 1)]
        return rule(seen(returned(FAULT_AT, first), returned(FAULT_AT + 1, second))).outcome

    marked_row = {"marked": True, "ended": True}
    fine = row(0, FAULT_AT + 1)
    assert outcome(marked_row, {}, fine) == CONTINUES
    assert outcome({}, {}, fine) == SILENT
    assert outcome(marked_row, row(VICTIM, FAULT_AT + 1), fine) == SILENT
    assert outcome(marked_row, {}, row(0, FAULT_AT)) == STALE


def test_results_of_an_earlier_or_refused_call_are_stale() -> None:
    rule = RightData({"short step": "too few"}, must_raise="short step")
    refused = raised("ValueError: too few", "short step")
    rows = [row(i, FAULT_AT) for i in range(NUM_ENVS)]
    assert rule(seen(refused, returned(FAULT_AT, rows))).outcome == RIGHT_DATA
    rows[0]["reward"] = FAULT_AT + (NUM_ACTIONS - 1) / 16  # the result of the refused action
    assert rule(seen(refused, returned(FAULT_AT, rows))).outcome == STALE
    assert rule(seen({**returned(FAULT_AT, []), "call": "short step"})).outcome == SILENT


def test_documentation_page_has_every_scenario_and_rule() -> None:
    page = (ROOT / "docs" / "fault_comparison.md").read_text()
    for name, scenario in SCENARIOS.items():
        assert f"| {scenario.title} (`{name}`) |" in page, f"{name}: run the command at the top of the page again"
        assert f"- `{name}`: {scenario.rule}\n" in page


def test_hanging_close_is_reported() -> None:
    from benchmarks.faults.cell import Cell
    from benchmarks.faults.judge import Verdict

    cell = Cell("exit", "gymnasium", Verdict(WRONG_ERROR, "EOFError", 0.002), (), "close hangs")
    assert cell_text(cell) == "wrong error: EOFError (2 ms); close hangs"
    assert "**0 of 1**" in as_markdown([cell], 8.0, "command")
