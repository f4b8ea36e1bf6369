"""How well the presets learn, at the published budgets: every seed, their interquartile mean, and the published figure.

    python benchmarks/learning.py                                   all tasks whose packages are installed, 5 seeds
    python benchmarks/learning.py --tasks Pendulum-v1-sac Pendulum-v1-td3 CartPole-v1-dqn CartPole-v1-discrete_sac
    python benchmarks/learning.py --tasks CartPole-v1 --seeds 10 --jobs 2 --json benchmarks/results/learning.json
    python benchmarks/learning.py --memory                          those that want a memory, with and without
    python benchmarks/learning.py --out learning --limit-s 580      for ten minutes; again with the same --out: the rest

A run's figure is the mean return of its final weights, deterministic, over 100 episodes on seeds that no training
sees; never its best moment. "inside" means that the published figure lies inside the bootstrap interval of ours (over
seeds) or below it. How the published figure was found stands beside it.

Every run is a process with one thread that steps its envs itself (`executor="serial"`: the executor changes no bit of a
run); `--jobs` of them side by side, the longest first. Ctrl-C, SIGTERM and `--limit-s` end them with a checkpoint, and
the next call with the same `--out` resumes them, which is exact, and skips what is finished.
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
"""What a run gets to end with a checkpoint; one that takes longer is killed, and resumes from the one before."""
RESULTS = TREE / "benchmarks" / "results" / "learning.json"
ZOO = "one agent, deterministic, mean over 150 k evaluation steps"
CLEANRL = "3 seeds, mean return of training episodes, sampled actions (ours in that way: training_return)"


FORGETFUL = {"memory": None, "see_previous": False}
ALONE = "nobody", "to stand beside the row above"


@dataclass(frozen=True, eq=False)
class Task:
    """An env, what others reached there, and how they found it; `settings` beside those of the preset."""

    env: str
    published: float | None  # None: a figure to stand beside others
    source: str
    protocol: str
    needs: str | None = None
    algorithm: str = "ppo"
    variant: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def name(self) -> str:
        """As the command line and directories have it: `CartPole-v1`, `Pendulum-v1-sac`."""
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
    Task("CartPoleNoVel-v1", None, *ALONE, variant="without memory", settings=FORGETFUL),
    Task("PendulumNoVel-v1", -218.0, "rl-baselines3-zoo, 100 k steps", ZOO),
    Task("PendulumNoVel-v1", None, *ALONE, variant="without memory", settings=FORGETFUL),
    Task("multiverse/RepeatPrevious-v0", 0.95, "of 1, 300 k steps", "our bar"),
    Task("multiverse/RepeatPrevious-v0", None, *ALONE, variant="without memory", settings=FORGETFUL),
    Task("multiverse/TMaze-v0", 0.95, "of 1, 600 k steps", "our bar"),
    Task("multiverse/TMaze-v0", None, *ALONE, variant="without memory", settings=FORGETFUL),
    Task("multiverse/TMaze-v0", None, *ALONE, variant="chunks of 4", settings={"chunk_length": 4}),
    Task("LunarLander-v3", 242.0, "rl-baselines3-zoo (v2), 1 M steps", ZOO, "Box2D"),
    Task("HalfCheetah-v5", 1443.0, "CleanRL (v4), 1 M steps", CLEANRL, "mujoco"),
)
"""From the shortest run to the longest."""
WITH_MEMORY = {task.env for task in TASKS if "memory" in task.settings}

Found = Callable[[Path], dict[str, Any] | None]
Job = tuple[Any, int]
"""A task and a seed: one run."""


# -- one run -----------------------------------------------------------------------------------------------------
def one_run(task: Task, seed: int, run: Path, env_steps: int | None) -> None:
    """Train, or go on training. In a process of its own, which ends with the one that started it."""
    import multiverse as mv
    from multiverse.executors.launch.orphan_guard import watch_process

    watch_process(os.getppid())
    if (run / "config.yaml").exists():
        mv.resume(run, progress=False)
    else:
        shutil.rmtree(run, ignore_errors=True)  # it was ended before it began
        settings: dict[str, Any] = {"executor": "serial", "evaluate_every": 0, "evaluation_episodes": EPISODES}
        settings |= {**task.settings, **({} if env_steps is None else {"env_steps": env_steps})}
        mv.train(task.env, task.algorithm, seed=seed, run_dir=run, progress=False, **settings)


def found_in(run: Path) -> dict[str, Any] | None:
    """What a run in this directory has come to; None if it has not come to its end."""
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


# -- many of them ------------------------------------------------------------------------------------------------
class Runs:
    """Processes side by side, one a run, that can all be ended early with a checkpoint."""

    def __init__(
        self, out: Path, env_steps: int | None, script: Path = Path(__file__), found: Found | None = None
    ) -> None:
        """`script`: what makes one run, `--one TASK SEED RUN`; `found`: what a run has come to, None before its end."""
        self._out, self._env_steps, self._script, self._found = out, env_steps, script, found or found_in
        self._lock, self._stopping = threading.Lock(), False
        self._live: set[subprocess.Popen[bytes]] = set()

    def directory(self, job: Job) -> Path:
        return self._out / f"{job[0].name.replace('/', '-').replace(', ', '-').replace(' ', '-')}-{job[1]}"

    def to_its_end(self, job: Job) -> None:
        """Unless it is finished already, or everything is being stopped."""
        directory, begun = self.directory(job), time.monotonic()
        if self._found(directory) is not None:
            return
        log = directory.with_suffix(".log")
        process = self._started(job, directory, log)
        if process is None:
            return
        code = process.wait()
        with self._lock:
            self._live.discard(process)
        told = f"{job[0].name:24s} seed {job[1]}"
        found = self._found(directory)
        if found is not None:
            figure = next(value for name, value in found.items() if name not in ("env", "seed"))
            print(f"{told}: {figure:9.2f}   ({time.monotonic() - begun:.0f} s)", flush=True)
        elif not self._stopping:
            print(f"{told} failed ({code}):\n{log.read_text()}", flush=True)

    def _started(self, job: Job, directory: Path, log: Path) -> subprocess.Popen[bytes] | None:
        threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        command = [sys.executable, str(self._script), "--one", job[0].name, str(job[1]), str(directory)]
        command += [] if self._env_steps is None else ["--env-steps", str(self._env_steps)]
        with self._lock, log.open("ab") as output:
            if self._stopping:
                return None
            # A session of its own: a Ctrl-C at the terminal comes to it through `stop`, once.
            process = subprocess.Popen(
                command, stdout=output, stderr=output, env={**os.environ, **threads}, start_new_session=True
            )
            self._live.add(process)
        return process

    def stop(self) -> None:
        """End all of them with a checkpoint, and start no more; returns at once."""
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
    """Until all are finished, the time is over, or somebody stops it."""

    def stop(*signal_and_frame: Any) -> None:
        threading.Thread(target=runs.stop).start()  # this may be called where the lock is held

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    if limit_s is not None and limit_s <= TO_SAVE_S:
        runs.stop()  # only what is finished is shown
    elif limit_s is not None:
        timer = threading.Timer(limit_s - TO_SAVE_S, runs.stop)
        timer.daemon = True
        timer.start()
    try:
        with ThreadPoolExecutor(side_by_side) as pool:
            for done in [pool.submit(runs.to_its_end, job) for job in jobs]:
                done.result()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# -- the table ---------------------------------------------------------------------------------------------------
def shown(task: Task, runs: list[dict[str, Any]], seeds: int, before: dict[str, Any] | None) -> dict[str, Any]:
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
    of = f"{len(runs)} seeds" if len(runs) == seeds else f"{len(runs)} of {seeds} seeds SO FAR"
    digits = 1 if max(map(abs, returns)) >= 10 else 3
    print(f"\n{task.name}: IQM {iqm:.{digits}f} ({low:.{digits}f} to {high:.{digits}f}) of {of}; before: {old}")
    if task.published is not None:
        print(f"  published {task.published:g} ({task.source}; {task.protocol}): {verdict}")
    for told, key in (("seeds", "mean_return"), ("training", "training_return")):
        print(f"  {told:10s}" + "  ".join(f"{run['seed']}: {run[key]:.{digits}f}" for run in runs), flush=True)
    return {"env": task.name, "published": task.published, "source": task.source, "protocol": task.protocol, "iqm": iqm,
            "interval": [low, high], "verdict": verdict, "runs": runs}  # fmt: skip


def began(out: Path) -> dict[str, Any]:
    """The provenance of the runs in `out`: of the call that began them. Another commit's are no part of ours."""
    now, path = provenance(), out / "provenance.json"
    if not path.exists():
        path.write_text(json.dumps(now, indent=1) + "\n")
    first: dict[str, Any] = json.loads(path.read_text())
    if first["commit"] != now["commit"]:
        raise SystemExit(
            f"{out} holds runs of commit {first['commit']}, and this is {now['commit']}: take another --out"
        )
    return first


def installed(wanted: list[str] | None) -> list[Task]:
    """Of the tasks that are wanted (None: all), those whose packages are there."""
    there = []
    for task in TASKS:
        if wanted is not None and task.name not in wanted:
            continue
        if task.needs is not None and importlib.util.find_spec(task.needs) is None:
            print(f"{task.name}: left out ({task.needs} is not installed)")
        else:
            there.append(task)
    return there


def measured(out: Path, options: argparse.Namespace) -> bool:
    """Run what is not finished and show what is; whether that is everything."""
    before = {one["env"]: one for one in json.loads(RESULTS.read_text())["tasks"]} if RESULTS.exists() else {}

    def each(task: Task, found: list[dict[str, Any]]) -> dict[str, Any]:
        return shown(task, found, options.seeds, before.get(task.name))

    return tallied(out, options, installed(options.tasks), Runs(out, options.env_steps), found_in, each)


def tallied(
    out: Path,
    options: argparse.Namespace,
    tasks: list[Any],
    runs: Runs,
    found_in: Found,
    shown: Callable[[Any, list[dict[str, Any]]], dict[str, Any]],
) -> bool:
    """The table of these tasks, as far as their runs have come to an end; whether all have."""
    first, jobs = began(out), [(task, seed) for task in reversed(tasks) for seed in range(1, 1 + options.seeds)]
    run_all(jobs, runs, options.jobs, options.limit_s)
    ended = {job: found for job in jobs if (found := found_in(runs.directory(job))) is not None}
    table = [
        shown(task, found)
        for task in tasks
        if (found := [ended[job] for job in jobs if job[0] is task and job in ended])
    ]
    unfinished = [f"{task.name} seed {seed}" for task, seed in jobs if (task, seed) not in ended]
    if unfinished:
        again = f"the same command goes on with them (--out {out})" if options.out else "--out DIR would keep them"
        print(f"\nunfinished: {', '.join(unfinished)}; {again}")
    if options.json:
        write_results(options.json, first, {"episodes": options.episodes, "unfinished": unfinished, "tasks": table})
    return not unfinished


def parser_for(told: str | None, tasks: Sequence[Any], episodes: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=told, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=[task.name for task in tasks], default=None)
    parser.add_argument("--seeds", type=int, default=5, help="of each task")
    parser.add_argument("--jobs", type=int, default=usable_cores(), help="runs side by side; default: the usable cores")
    parser.add_argument("--out", type=Path, help="where the runs lie, to go on with them; default: nowhere afterwards")
    parser.add_argument("--limit-s", type=float, help="end by then, with a checkpoint of every run")
    parser.add_argument("--env-steps", type=int, help="of every run, for a short look; default: the preset's")
    parser.add_argument("--json", type=Path, help="write everything here too")
    parser.add_argument("--one", nargs=3, metavar=("TASK", "SEED", "RUN"), help=argparse.SUPPRESS)
    parser.set_defaults(episodes=episodes)
    return parser


def answered(
    options: argparse.Namespace,
    tasks: Sequence[Any],
    one_run: Callable[[Any, int, Path, int | None], None],
    measured: Callable[[Path, argparse.Namespace], bool],
) -> int:
    """One run, for whoever has started this as one; else the whole table. The exit code."""
    if options.one:
        (task,) = [task for task in tasks if task.name == options.one[0]]
        one_run(task, int(options.one[1]), Path(options.one[2]), options.env_steps)
        return 0
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        return int(not measured(options.out, options))
    with tempfile.TemporaryDirectory() as nowhere:
        return int(not measured(Path(nowhere), options))


def main() -> int:
    parser = parser_for(__doc__, TASKS, EPISODES)
    parser.add_argument("--memory", action="store_true", help="all tasks with memory, and those beside them")
    options = parser.parse_args()
    if options.memory:
        options.tasks = [task.name for task in TASKS if task.env in WITH_MEMORY]
    return answered(options, TASKS, one_run, measured)


if __name__ == "__main__":
    sys.exit(main())
