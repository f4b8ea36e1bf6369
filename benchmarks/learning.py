"""Learning results of the presets at published budgets: every seed, the interquartile mean, and the published figure.

    python benchmarks/learning.py                                   all tasks whose packages are installed, 5 seeds
    python benchmarks/learning.py --tasks Pendulum-v1-sac Pendulum-v1-td3 CartPole-v1-dqn CartPole-v1-discrete_sac
    python benchmarks/learning.py --tasks CartPole-v1 --seeds 10 --jobs 2 --json benchmarks/results/learning.json
    python benchmarks/learning.py --memory                          tasks that need memory, with and without it
    python benchmarks/learning.py --out learning --limit-s 580      for ten minutes; the same command resumes

The figure of a run is the mean return of its final weights, deterministic, over 100 episodes on unseen seeds. "inside"
means that the published figure is inside or below the bootstrap interval of ours (over seeds). The protocol of the
published figure is printed too.

Every run is a process with one thread and `executor="serial"` (results do not depend on the executor); `--jobs` runs
are made in parallel, the longest first. Ctrl-C, SIGTERM and `--limit-s` end them with a checkpoint. The next call with
the same `--out` resumes them exactly and skips finished runs.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.provenance import TREE, provenance, write_results
from multiverse.executors.machine import usable_cores
from multiverse.training.runs.records import bootstrap_interval, interquartile_mean

EPISODES = 100
TO_SAVE_S = 20.0
"""Time for a run to end with a checkpoint. A slower run is killed, and resumes from the previous checkpoint."""
RESULTS = TREE / "benchmarks" / "results" / "learning.json"
ZOO = "one agent, deterministic, mean over 150 k evaluation steps"
CLEANRL = "3 seeds, mean return of training episodes, sampled actions (ours with this protocol: training_return)"


WITHOUT_MEMORY = {"memory": None, "see_previous": False}
NO_REFERENCE = "nobody", "to stand beside the row above"


@dataclass(frozen=True, eq=False)
class Task:
    """An env, the published figure and its protocol; `settings` are added to those of the preset."""

    env: str
    published: float | None  # None: without a published figure
    source: str
    protocol: str
    needs: str | None = None
    algorithm: str = "ppo"
    variant: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def name(self) -> str:
        """Name for the command line and directories: `CartPole-v1`, `Pendulum-v1-sac`."""
        name = self.env if self.algorithm == "ppo" else f"{self.env}-{self.algorithm}"
        return f"{name}, {self.variant}" if self.variant else name


TASKS = (
    Task("CartPole-v1", 500.0, "rl-baselines3-zoo, 100 k steps", ZOO),
    Task("CartPole-v1", 500.0, "rl-baselines3-zoo, 50 k steps", ZOO, algorithm="dqn"),
    Task("CartPole-v1", 500.0, "the most there is; none published at 50 k steps", "-", algorithm="discrete_sac"),
    Task("Pendulum-v1", -157.0, "rl-baselines3-zoo, 20 k steps", ZOO, algorithm="sac"),
    Task("Pendulum-v1", -152.0, "rl-baselines3-zoo, 20 k steps", ZOO, algorithm="td3"),
    Task("Acrobot-v1", -86.4, "CleanRL, 500 k steps", CLEANRL),
    Task("Pendulum-v1", -172.0, "rl-baselines3-zoo, 100 k steps", ZOO),
    Task("CartPoleNoVel-v1", 500.0, "rl-baselines3-zoo, 100 k steps", ZOO),
    Task("CartPoleNoVel-v1", None, *NO_REFERENCE, variant="without memory", settings=WITHOUT_MEMORY),
    Task("PendulumNoVel-v1", -218.0, "rl-baselines3-zoo, 100 k steps", ZOO),
    Task("PendulumNoVel-v1", None, *NO_REFERENCE, variant="without memory", settings=WITHOUT_MEMORY),
    Task("multiverse/RepeatPrevious-v0", 0.95, "of 1, 300 k steps", "our bar"),
    Task("multiverse/RepeatPrevious-v0", None, *NO_REFERENCE, variant="without memory", settings=WITHOUT_MEMORY),
    Task("multiverse/TMaze-v0", 0.95, "of 1, 600 k steps", "our bar"),
    Task("multiverse/TMaze-v0", None, *NO_REFERENCE, variant="without memory", settings=WITHOUT_MEMORY),
    Task("multiverse/TMaze-v0", None, *NO_REFERENCE, variant="chunks of 4", settings={"chunk_length": 4}),
    Task("LunarLander-v3", 242.0, "rl-baselines3-zoo (v2), 1 M steps", ZOO, "Box2D"),
    Task("HalfCheetah-v5", 1443.0, "CleanRL (v4), 1 M steps", CLEANRL, "mujoco"),
)
"""Ordered by duration, the shortest first."""
WITH_MEMORY = {task.env for task in TASKS if "memory" in task.settings}

LoadResult = Callable[[Path], dict[str, Any] | None]
Job = tuple[Any, int]
"""(task, seed) of one run."""


# -- one run -----------------------------------------------------------------------------------------------------
def one_run(task: Task, seed: int, run: Path, env_steps: int | None) -> None:
    """Train or resume a run. Runs in a separate process that ends with its parent."""
    import multiverse as mv
    from multiverse.executors.launch.orphan_guard import watch_process

    watch_process(os.getppid())
    if (run / "config.yaml").exists():
        mv.resume(run, progress=False)
    else:
        shutil.rmtree(run, ignore_errors=True)  # it was stopped before the first checkpoint
        settings: dict[str, Any] = {"executor": "serial", "evaluate_every": 0, "evaluation_episodes": EPISODES}
        settings |= {**task.settings, **({} if env_steps is None else {"env_steps": env_steps})}
        mv.train(task.env, task.algorithm, seed=seed, run_dir=run, progress=False, **settings)


def load_result(run: Path) -> dict[str, Any] | None:
    """Return the result of the run in this directory, or None if it is not finished."""
    try:
        summary = json.loads((run / "summary.json").read_text())
    except FileNotFoundError:
        return None
    if not summary["finished"] or summary["evaluation"] is None:
        return None
    return {
        "env": summary["env"],
        "seed": summary["seed"],
        "mean_return": summary["evaluation"]["mean_return"],
        "std_return": summary["evaluation"]["std_return"],
        "training_return": summary["mean_return"],
        "env_steps": summary["env_steps"],
        "seconds": summary["seconds"] - summary["evaluate_s"],
    }


# -- all runs ----------------------------------------------------------------------------------------------------
class Runs:
    """Parallel processes, one per run, that can all be ended early with a checkpoint."""

    def __init__(
        self, out: Path, env_steps: int | None, script: Path = Path(__file__), load: LoadResult | None = None
    ) -> None:
        """`script` makes one run with `--one TASK SEED RUN`; `load` returns the result of a finished run, or None."""
        self._out, self._env_steps, self._script, self._load = out, env_steps, script, load or load_result
        self._lock, self._stopping = threading.Lock(), False
        self._live: set[subprocess.Popen[bytes]] = set()

    def directory(self, job: Job) -> Path:
        return self._out / f"{job[0].name.replace('/', '-').replace(', ', '-').replace(' ', '-')}-{job[1]}"

    def run_job(self, job: Job) -> None:
        """Run a job, unless it is finished or the benchmark is being stopped."""
        directory, start = self.directory(job), time.monotonic()
        if self._load(directory) is not None:
            return
        log = directory.with_suffix(".log")
        process = self._started(job, directory, log)
        if process is None:
            return
        code = process.wait()
        with self._lock:
            self._live.discard(process)
        label = f"{job[0].name:24s} seed {job[1]}"
        result = self._load(directory)
        if result is not None:
            figure = next(value for name, value in result.items() if name not in ("env", "seed"))
            print(f"{label}: {figure:9.2f}   ({time.monotonic() - start:.0f} s)", flush=True)
        elif not self._stopping:
            print(f"{label} failed ({code}):\n{log.read_text()}", flush=True)

    def _started(self, job: Job, directory: Path, log: Path) -> subprocess.Popen[bytes] | None:
        threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        command = [sys.executable, str(self._script), "--one", job[0].name, str(job[1]), str(directory)]
        command += [] if self._env_steps is None else ["--env-steps", str(self._env_steps)]
        with self._lock, log.open("ab") as output:
            if self._stopping:
                return None
            # A new session, so that Ctrl-C at the terminal reaches it only through `stop`.
            process = subprocess.Popen(
                command, stdout=output, stderr=output, env={**os.environ, **threads}, start_new_session=True
            )
            self._live.add(process)
        return process

    def stop(self) -> None:
        """Request the end of all runs with a checkpoint, and start no further ones. Does not wait."""
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
            for process in self._live:
                process.terminate()
        killer = threading.Timer(TO_SAVE_S, self._kill)
        killer.daemon = True
        killer.start()

    def _kill(self) -> None:
        with self._lock:
            for process in self._live:
                process.kill()


def run_all(jobs: list[Job], runs: Runs, side_by_side: int, limit_s: float | None) -> None:
    """Run all jobs until they are finished, the time limit is reached, or a signal stops them."""

    def stop(*signal_and_frame: Any) -> None:
        threading.Thread(target=runs.stop).start()  # the lock may be held when the signal arrives

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    if limit_s is not None and limit_s <= TO_SAVE_S:
        runs.stop()  # only finished runs are reported
    elif limit_s is not None:
        timer = threading.Timer(limit_s - TO_SAVE_S, runs.stop)
        timer.daemon = True
        timer.start()
    try:
        with ThreadPoolExecutor(side_by_side) as pool:
            for done in [pool.submit(runs.run_job, job) for job in jobs]:
                done.result()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# -- the table ---------------------------------------------------------------------------------------------------
def report_task(task: Task, runs: list[dict[str, Any]], seeds: int, before: dict[str, Any] | None) -> dict[str, Any]:
    returns = [run["mean_return"] for run in runs]
    (low, high), iqm = bootstrap_interval(returns), interquartile_mean(returns)
    verdict = "beside"
    if task.published is not None:
        verdict = "reached" if iqm >= task.published else "inside" if high >= task.published else "MISSED"
    old = (
        "none"
        if before is None
        else f"{before['iqm']:.1f} ({before['interval'][0]:.1f} to {before['interval'][1]:.1f})"
    )
    count = f"{len(runs)} seeds" if len(runs) == seeds else f"{len(runs)} of {seeds} seeds SO FAR"
    digits = 1 if max(map(abs, returns)) >= 10 else 3
    print(f"\n{task.name}: IQM {iqm:.{digits}f} ({low:.{digits}f} to {high:.{digits}f}) of {count}; before: {old}")
    if task.published is not None:
        print(f"  published {task.published:g} ({task.source}; {task.protocol}): {verdict}")
    for label, key in (("seeds", "mean_return"), ("training", "training_return")):
        print(f"  {label:10s}" + "  ".join(f"{run['seed']}: {run[key]:.{digits}f}" for run in runs), flush=True)
    return {"env": task.name, "published": task.published, "source": task.source, "protocol": task.protocol, "iqm": iqm,
            "interval": [low, high], "verdict": verdict, "runs": runs}  # fmt: skip


def first_provenance(out: Path) -> dict[str, Any]:
    """Return the provenance of the first call with this directory; raise an error if its commit is a different one."""
    now, path = provenance(), out / "provenance.json"
    if not path.exists():
        path.write_text(json.dumps(now, indent=1) + "\n")
    first: dict[str, Any] = json.loads(path.read_text())
    if first["commit"] != now["commit"]:
        raise SystemExit(
            f"{out} holds runs of commit {first['commit']}, but this is {now['commit']}. Use another --out"
        )
    return first


def installed_tasks(names: list[str] | None) -> list[Task]:
    """Return those of the selected tasks (None: all) whose packages are installed."""
    tasks = []
    for task in TASKS:
        if names is not None and task.name not in names:
            continue
        if task.needs is not None and importlib.util.find_spec(task.needs) is None:
            print(f"{task.name}: skipped ({task.needs} is not installed)")
        else:
            tasks.append(task)
    return tasks


def measure_all(out: Path, options: argparse.Namespace) -> bool:
    """Run unfinished runs and print the results; return whether all are finished."""
    before = {one["env"]: one for one in json.loads(RESULTS.read_text())["tasks"]} if RESULTS.exists() else {}

    def each(task: Task, results: list[dict[str, Any]]) -> dict[str, Any]:
        return report_task(task, results, options.seeds, before.get(task.name))

    return run_and_report(out, options, installed_tasks(options.tasks), Runs(out, options.env_steps), load_result, each)


def run_and_report(
    out: Path,
    options: argparse.Namespace,
    tasks: list[Any],
    runs: Runs,
    load_result: LoadResult,
    report: Callable[[Any, list[dict[str, Any]]], dict[str, Any]],
) -> bool:
    """Run these tasks and report those with finished runs; return whether all runs are finished."""
    first, jobs = (
        first_provenance(out),
        [(task, seed) for task in reversed(tasks) for seed in range(1, 1 + options.seeds)],
    )
    run_all(jobs, runs, options.jobs, options.limit_s)
    results = {job: result for job in jobs if (result := load_result(runs.directory(job))) is not None}
    table = [
        report(task, result)
        for task in tasks
        if (result := [results[job] for job in jobs if job[0] is task and job in results])
    ]
    unfinished = [f"{task.name} seed {seed}" for task, seed in jobs if (task, seed) not in results]
    if unfinished:
        hint = f"the same command resumes them (--out {out})" if options.out else "pass --out DIR to keep them"
        print(f"\nunfinished: {', '.join(unfinished)}; {hint}")
    if options.json:
        write_results(options.json, first, {"episodes": options.episodes, "unfinished": unfinished, "tasks": table})
    return not unfinished


def parser_for(description: str | None, tasks: Sequence[Any], episodes: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=[task.name for task in tasks], default=None)
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds per task")
    parser.add_argument(
        "--jobs", type=int, default=usable_cores(), help="number of parallel runs; default: the usable cores"
    )
    parser.add_argument("--out", type=Path, help="directory that keeps the runs, to resume them; default: temporary")
    parser.add_argument("--limit-s", type=float, help="time limit, at which all runs end with a checkpoint")
    parser.add_argument("--env-steps", type=int, help="env steps of every run, for a short test; default: the preset's")
    parser.add_argument("--json", type=Path, help="also write all results to this file")
    parser.add_argument("--one", nargs=3, metavar=("TASK", "SEED", "RUN"), help=argparse.SUPPRESS)
    parser.set_defaults(episodes=episodes)
    return parser


def run_command_line(
    options: argparse.Namespace,
    tasks: Sequence[Any],
    one_run: Callable[[Any, int, Path, int | None], None],
    measure_all: Callable[[Path, argparse.Namespace], bool],
) -> int:
    """Make one run if called with --one, else the whole table; return the exit code."""
    if options.one:
        (task,) = [task for task in tasks if task.name == options.one[0]]
        one_run(task, int(options.one[1]), Path(options.one[2]), options.env_steps)
        return 0
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        return int(not measure_all(options.out, options))
    with tempfile.TemporaryDirectory() as nowhere:
        return int(not measure_all(Path(nowhere), options))


def main() -> int:
    parser = parser_for(__doc__, TASKS, EPISODES)
    parser.add_argument("--memory", action="store_true", help="all tasks with memory, and the same without")
    options = parser.parse_args()
    if options.memory:
        options.tasks = [task.name for task in TASKS if task.env in WITH_MEMORY]
    return run_command_line(options, TASKS, one_run, measure_all)


if __name__ == "__main__":
    sys.exit(main())
