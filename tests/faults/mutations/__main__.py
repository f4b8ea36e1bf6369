"""`python -m tests.faults.mutations [NAME]`: switch each guard off in a copy of the source and run its tests there.

Exit code 0: the named tests passed with all guards, and each missing guard was noticed. 1: one was not noticed.
2: the table is outdated, or the control run failed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from tests.faults.mutations import GUARDS
from tests.faults.mutations.guard import Guard, Stale, copy_source
from tests.faults.promises import ROOT

AT_ONCE = 2
LIMIT_S = 45.0
CONTROL_LIMIT_S = 600.0
MARK = "MULTIVERSE_MUTATION_RUN"
PASSED, FAILED, HUNG = 0, 1, 124

WHERE = """
import os, sys
import multiverse
from multiverse import make_vec
from multiverse.executors.launch import fork_server
from tests.faults.mutations.where import Where

places = {multiverse.__file__}
for method in ("forkserver", "fork", "spawn"):
    with make_vec(Where, 1, "process", workers=multiverse.WorkerOptions(count=1, start_method=method)) as envs:
        places.update(envs.call("where"))
assert all(place.startswith(sys.argv[1]) for place in places), places
"""


def main(names: Sequence[str]) -> int:
    chosen = [guard for guard in GUARDS if not names or guard.name in names]
    unknown = set(names) - {guard.name for guard in chosen}
    if unknown:
        print(f"no such guard: {', '.join(sorted(unknown))}; there are {', '.join(g.name for g in GUARDS)}")
        return 2
    try:
        for guard in chosen:
            guard.check()
    except Stale as error:
        print(f"stale: {error}")
        return 2
    if not control(chosen):
        return 2
    with ThreadPoolExecutor(AT_ONCE) as pool:
        noticed = list(pool.map(report, chosen))
    print(f"{sum(noticed)} of {len(chosen)} guards are missed when they are gone")
    return 0 if all(noticed) else 1


def control(chosen: Sequence[Guard]) -> bool:
    """With every guard in place the tests pass, and the processes that they start use the copy."""
    tests = sorted({test for guard in chosen for test in guard.tests})
    with tempfile.TemporaryDirectory(prefix="multiverse-control-") as folder:
        copy = copy_source(Path(folder))
        code, said = run([sys.executable, "-c", WHERE, folder], copy, LIMIT_S)
        if code == PASSED:
            code, said = run(pytest(tests), copy, CONTROL_LIMIT_S)
    print(f"control: {len(tests)} tests {'pass' if code == PASSED else f'do not pass (code {code})'}", flush=True)
    if code != PASSED:
        print(said)
    return code == PASSED


def report(guard: Guard) -> bool:
    """Run the tests without one guard, and report the result in one line."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="multiverse-mutation-") as folder:
        copy = copy_source(Path(folder))
        guard.switch_off(copy)
        survived = [test for test in guard.tests if not noticed(test, copy)]
    how = "failed as it must" if not survived else f"SURVIVED {', '.join(survived)}"
    print(f"{guard.name} ({', '.join(guard.rows)}): {how} [{time.monotonic() - began:.0f} s]", flush=True)
    return not survived


def noticed(test: str, copy: Path) -> bool:
    code, said = run(pytest([test]), copy, LIMIT_S)
    if code not in (PASSED, FAILED, HUNG):
        raise Stale(f"{test} could not be run (code {code}):\n{said}")
    return code != PASSED


def pytest(tests: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header", "--tb=short", *tests]


def run(command: list[str], copy: Path, limit_s: float) -> tuple[int, str]:
    """Exit code and output of a command that uses the copy; HUNG past its limit. None of its processes is left."""
    token, scratch = uuid.uuid4().hex, copy / "scratch"
    scratch.mkdir(exist_ok=True)  # files left there are removed with the copy
    places = {
        "PYTHONPATH": str(copy),
        "TMPDIR": str(scratch),
        "RAY_TMPDIR": tempfile.gettempdir(),
    }  # sockets: short names
    environment = {**os.environ, **places, MARK: token}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    with tempfile.TemporaryFile() as output:
        program = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output, process_group=0)
        try:
            code = program.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = HUNG
        finally:
            end_all(token)
            program.wait()
        output.seek(0)
        return code, output.read().decode(errors="replace")[-4000:]


def end_all(token: str) -> None:
    """End every process that has the token of this run in its environment, wherever it is."""
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == token:
                process.send_signal(signal.SIGKILL)
        except (psutil.Error, OSError):
            continue


if __name__ == "__main__":
    sys.exit(main([name for name in sys.argv[1:] if name]))
