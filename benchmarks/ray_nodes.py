"""Training on Ray nodes that fail and return: 2 and 4 nodes in network namespaces, connected by TCP.

    python benchmarks/ray_nodes.py                        every row, with 2 and with 4 nodes
    python benchmarks/ray_nodes.py --rows killed cut --nodes 4 --json results.json
    python benchmarks/ray_nodes.py --rows scale --nodes 1 2 4 --rate 100mbit

Requires root, iproute2 and util-linux: each node is a set of namespaces (`benchmarks/namespaces.py`) with one Ray CPU.
The training program runs in the first, the head node. The other nodes do not have the code of this tree, so it must be
sent with the run. `--rate` and `--delay-ms` shape every link, if the kernel supports it.

`cartpole`, `simple_spread`: training on the nodes and serially must give bit-identical weights, and hence equal
returns. The other rows inject faults into a run of CartPole with steps of 2 ms. They report the longest pause between
updates, the lost steps, whether sent steps equal used and discarded steps, and the log:
`killed`: SIGKILL to every process of a node. `all_but_one`: the same for all nodes but the head.
`cut`: a node's link is down until its worker has been replaced, then up; abandoned actors on the node must end.
`blip`: a link is down for 2 s, less than Ray's time limit: no worker may be lost.
`joined`: a node is killed and restarted, then another is killed: its worker must move to the restarted node.
`scale`: env steps/s, and bytes on the links, of an env that waits 1 ms per step (so that nodes need no cores).

With Ray's defaults a silent node is considered lost after about 15 to 65 s (`health_check_period_ms` 3000,
`health_check_timeout_ms` 10000, `health_check_failure_threshold` 5: src/ray/common/ray_config_def.h). These clusters
use 1000, 2000 and 3.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import logging
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import multiverse as mv
from benchmarks.namespaces import Network, Node, Shape, unavailable_reason, unsupported_shape
from benchmarks.provenance import TREE, provenance, write_results
from tests.training.small_runs import digest

PORT = 6379
HEALTH = {"health_check_initial_delay_ms": 2000, "health_check_period_ms": 1000, "health_check_timeout_ms": 2000,
          "health_check_failure_threshold": 3}  # fmt: skip
ENVIRON = {
    **{f"RAY_{name}": str(value) for name, value in HEALTH.items()},
    "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16),  # a token for this program only
    "RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1",
}  # fmt: skip
START_S, UPDATES_S, RUN_S = 120.0, 120.0, 600.0
ATTEMPTS = 3
BLIP_S = 2.0
FIRST = 4
"""Number of updates before a fault is injected."""

BUDGETS: dict[str, dict[str, Any]] = {
    "cartpole": {"env": "CartPole-v1", "env_steps": 40_000, "evaluation_episodes": 20},
    "simple_spread": {
        "env": "mpe2.simple_spread_v3:parallel_env", "env_steps": 16_000, "num_envs": 8, "steps_per_env": 125,
        "batch_size": 500, "evaluation_episodes": 20,
    },
}  # fmt: skip
FAULTS: dict[str, Any] = {"env": "CartPole-v1", "wait_s": 0.002, "num_envs": 8, "steps_per_env": 64, "preset": False}
UPDATES_AFTER = 12


class Waiting(gym.Wrapper[Any, Any, Any, Any]):
    """Wrapper whose steps take a fixed time without using the processor."""

    def __init__(self, env: Any, seconds: float) -> None:
        super().__init__(env)
        self._seconds = seconds

    def step(self, action: Any) -> Any:
        time.sleep(self._seconds)
        return self.env.step(action)


# -- in the head node --------------------------------------------------------------------------------------------
class ReportProgress(mv.Hook):
    """Hook that prints progress and the workers' nodes after every update, and stops when the file `stop` exists."""

    def __init__(self, stop: Path) -> None:
        self._stop = stop

    def on_update(self, trainer: Any, report: Any) -> None:
        clock = trainer.clock
        emit(update=clock.updates, env_steps=clock.env_steps, lost_steps=clock.lost_steps, on=actors_on())
        if self._stop.exists():
            trainer.stop("stopped by the benchmark")


def emit(**what: Any) -> None:
    print("@" + json.dumps(what), flush=True)


def actors_on() -> list[str]:
    """Return the node address of every actor of this run."""
    import ray

    addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    actors = ray._private.state.actors().values()
    return sorted(addresses.get(a["Address"]["NodeID"], "?") for a in actors if a["State"] == "ALIVE")


def drive(given: dict[str, Any]) -> None:
    """Run one training and report it on stdout."""
    logging.basicConfig(format="%(name)s %(levelname)s: %(message)s", level=logging.WARNING)
    wait_s, stop = given.pop("wait_s", 0.0), given.pop("stop")
    wrappers = [functools.partial(Waiting, seconds=wait_s)] if wait_s else []
    hooks = [ReportProgress(Path(stop))] if given["executor"] == "ray" else []
    run = mv.train(given.pop("env"), wrappers=wrappers, hooks=hooks, progress=False, evaluate_every=0, seed=1, **given)
    emit(digest=digest(run.path), summary=run.summary)


# -- outside nodes------------------------------------------------------------------------------------------------
class Cluster:
    """A Ray cluster with one Ray node per node of the network."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.address = f"{nodes[0].address}:{PORT}"
        for node in nodes[1:]:
            for folder in ("src", "benchmarks", "tests"):
                node.hide(str(TREE / folder))
        self._start(nodes[:1])
        self._start(nodes[1:])

    def join(self, node: Node) -> None:
        self._start([node])

    def _start(self, nodes: list[Node]) -> None:
        """Start Ray on nodes in parallel. Ray gives up after 30 s, which may be too short under load, so retry."""
        for _ in range(ATTEMPTS):
            started = [(node, self._begin(node)) for node in nodes]
            errors = {node: process.communicate(timeout=START_S)[1] for node, process in started}
            nodes = [node for node, process in started if process.returncode]
            for node in nodes:
                node.kill_all()
            if not nodes:
                return
        raise SystemExit(f"ray start: {errors[nodes[0]]}")

    def _begin(self, node: Node) -> Any:
        head = ["--head", f"--port={PORT}", "--include-dashboard=false"]
        joining = [f"--address={self.address}"]
        command = [
            sys.executable, "-m", "ray.scripts.scripts", "start", f"--node-ip-address={node.address}", "--num-cpus=1",
            "--object-store-memory=100000000", "--disable-usage-stats", "--include-log-monitor=false",
            *(head if node is self.nodes[0] else joining),
        ]  # fmt: skip
        environ = {**ENVIRON, "PYTHONPATH": ""}
        return node.start(command, environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd="/")


class Driver:
    """A training in the first node, or without nodes, with its reports and log lines and their times."""

    def __init__(self, node: Node | None, home: Path, **given: Any) -> None:
        self._stop, self._begun = home / "stop", time.monotonic()
        self.reports: list[tuple[float, dict[str, Any]]] = []
        self.lines: list[str] = []
        self.other: list[str] = []
        self._changed = threading.Condition()
        given = {"run_dir": str(home / "run"), "stop": str(self._stop), **given}
        command = [sys.executable, str(Path(__file__).resolve()), "--drive", json.dumps(given)]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        environ = {**ENVIRON, "PYTHONPATH": os.pathsep.join(sys.path)}
        if node is None:
            self._process = subprocess.Popen(
                command, text=True, env={**os.environ, **environ}, start_new_session=True, **pipes
            )
        else:
            self._process = node.start(command, environ, **pipes)
        self._readers = [
            threading.Thread(target=self._read, args=(pipe,)) for pipe in (self._process.stdout, self._process.stderr)
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, pipe: Any) -> None:
        for line in pipe:
            with self._changed:
                if line.startswith("@"):
                    self.reports.append((self.seconds, json.loads(line[1:])))
                elif line.startswith("multiverse "):
                    self.note(line.removeprefix("multiverse ").rstrip())
                else:
                    self.other.append(line)
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    @property
    def seconds(self) -> float:
        return round(time.monotonic() - self._begun, 1)

    def note(self, what: str) -> None:
        self.lines.append(f"{self.seconds:6.1f} s  {what}")
        print(f"    {self.lines[-1]}", flush=True)

    @property
    def updates(self) -> int:
        return max((one.get("update", 0) for _, one in self.reports), default=0)

    def wait(self, what: str, until: Callable[[], bool], seconds: float = UPDATES_S) -> None:
        """Wait for a condition, which is checked after every report of the run."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while not until():
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"{what}: not reached in {seconds:g} s, or the run ended\n{''.join(self.other)}")
                self._changed.wait(1.0)

    def more_updates(self, count: int) -> None:
        wanted = self.updates + count
        self.wait(f"update {wanted}", lambda: self.updates >= wanted)

    def on(self) -> list[str]:
        """Return the addresses of the workers' nodes at the last update."""
        return next((one["on"] for _, one in reversed(self.reports) if "on" in one), [])

    def stood_still_s(self) -> float:
        """Return the longest time between two updates."""
        at = [seconds for seconds, one in self.reports if "update" in one]
        return round(max((b - a for a, b in itertools.pairwise(at)), default=0.0), 1)

    def end(self) -> dict[str, Any]:
        """Stop the training and return its result."""
        self._stop.touch()
        return self.result()

    def result(self) -> dict[str, Any]:
        self._process.wait(RUN_S)
        for reader in self._readers:
            reader.join()
        if self._process.returncode or "summary" not in self.reports[-1][1]:
            raise SystemExit(f"the run ended with {self._process.returncode}:\n{''.join(self.other)}")
        return self.reports[-1][1]

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # nsenter and the processes it has started
        for reader in self._readers:
            reader.join()


@contextlib.contextmanager
def driver(node: Node | None, **given: Any) -> Iterator[Driver]:
    home = Path(tempfile.mkdtemp(prefix="ray-nodes-"))
    made = Driver(node, home, **given)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(home, ignore_errors=True)


# -- rows --------------------------------------------------------------------------------------------------------
@functools.cache
def serial_result(name: str) -> dict[str, Any]:
    with driver(None, **BUDGETS[name], executor="serial") as made:
        return made.result()


def on_ray(cluster: Cluster) -> dict[str, Any]:
    return {"executor": "ray", "ray_address": cluster.address, "workers": len(cluster.nodes)}


def same(name: str, cluster: Cluster) -> dict[str, Any]:
    """Compare the weights and return with those of a serial run."""
    with driver(cluster.nodes[0], **BUDGETS[name], **on_ray(cluster)) as made:
        there, on = made.result(), made.on()
    here = serial_result(name)
    equal = there["digest"] == here["digest"]
    returns = [one["summary"]["evaluation"]["mean_return"] for one in (there, here)]
    took = [round(one["summary"]["seconds"], 1) for one in (there, here)]
    on_each = {address: on.count(address) for address in sorted(set(on))}
    print(f"  weights {'the same' if equal else 'DIFFER'}; return {returns[0]:.1f} on the nodes, {returns[1]:.1f} here")
    print(f"  {took[0]} s, serially {took[1]} s; workers on {on_each}", flush=True)
    return {
        "same_weights": equal, "returns": returns, "seconds": took, "workers_on": on_each,
        "env_steps": there["summary"]["env_steps"], "met": equal and returns[0] == returns[1],
    }  # fmt: skip


Script = Callable[[Driver, Cluster], bool]
"""Injects a fault into the nodes; returns whether the expected behaviour was observed."""


def fault(script: Script, cluster: Cluster) -> dict[str, Any]:
    with driver(cluster.nodes[0], **FAULTS, env_steps=10_000_000, evaluation_episodes=1, **on_ray(cluster)) as made:
        made.more_updates(FIRST)
        shown = script(made, cluster)
        made.more_updates(UPDATES_AFTER)
        summary, on = made.end()["summary"], made.on()
    counts = summary["failures"]
    balanced = counts["steps_sent"] == counts["steps_used"] + counts["steps_discarded"]
    figures = {name: counts[name] for name in ("worker_restarts", "steps_sent", "steps_used", "steps_discarded")}
    figures |= {"env_steps": summary["env_steps"], "lost_steps": summary["lost_steps"], "updates": made.updates}
    stood_still_s = made.stood_still_s()
    print(f"  {figures}")
    print(f"  counts {'add up' if balanced else 'DO NOT ADD UP'}; longest pause {stood_still_s} s", flush=True)
    return {**figures, "stood_still_s": stood_still_s, "workers_on": on, "log": made.lines, "met": balanced and shown}


def _kill(made: Driver, nodes: list[Node]) -> None:
    made.note(f"SIGKILL to all processes of {', '.join(node.address for node in nodes)}")
    for node in nodes:
        node.kill_all()


def _wait_until_moved(made: Driver, nodes: list[Node]) -> None:
    """Wait until its workers are on other nodes and the run continues."""
    gone = {node.address for node in nodes}
    made.more_updates(1)
    made.wait("workers elsewhere", lambda: not gone & set(made.on()) and len(made.on()) > 0)


def killed(made: Driver, cluster: Cluster) -> bool:
    _kill(made, cluster.nodes[1:2])
    _wait_until_moved(made, cluster.nodes[1:2])
    return True


def all_but_one(made: Driver, cluster: Cluster) -> bool:
    _kill(made, cluster.nodes[1:])
    _wait_until_moved(made, cluster.nodes[1:])
    return set(made.on()) == {cluster.nodes[0].address}


def cut(made: Driver, cluster: Cluster) -> bool:
    lost = cluster.nodes[1]
    made.note(f"link of {lost.address} cut")
    lost.link(up=False)
    _wait_until_moved(made, [lost])
    made.note(f"link of {lost.address} back")
    lost.link(up=True)
    deadline = time.monotonic() + UPDATES_S
    while left := lost.processes("ray::RayActor"):
        if time.monotonic() > deadline:
            made.note(f"{len(left)} abandoned actors still run on {lost.address}")
            return False
        time.sleep(1.0)
    made.note(f"nothing of the run is left on {lost.address}")
    return True


def blip(made: Driver, cluster: Cluster) -> bool:
    made.note(f"link of {cluster.nodes[1].address} cut")
    cluster.nodes[1].link(up=False)
    time.sleep(BLIP_S)
    cluster.nodes[1].link(up=True)
    made.note(f"link of {cluster.nodes[1].address} back")
    made.more_updates(1)
    return len(set(made.on())) == len(cluster.nodes)


def joined(made: Driver, cluster: Cluster) -> bool:
    back, lost = cluster.nodes[1], cluster.nodes[-1]
    _kill(made, [back])
    _wait_until_moved(made, [back])
    made.note(f"{back.address} starts again")
    cluster.join(back)
    made.more_updates(2)
    _kill(made, [lost])
    _wait_until_moved(made, [lost])
    made.wait(f"a worker on {back.address}", lambda: back.address in made.on())
    made.note(f"its worker is on {back.address} now")
    return True


SCALE_ROWS, SCALE_UPDATES = 64, 24
SCALE: dict[str, Any] = {
    "env": "CartPole-v1", "wait_s": 0.001, "num_envs": 16, "steps_per_env": SCALE_ROWS, "preset": False, "epochs": 4,
    "batch_size": 256, "evaluation_episodes": 1, "env_steps": 16 * SCALE_ROWS * SCALE_UPDATES,
}  # fmt: skip


def scale(cluster: Cluster) -> dict[str, Any]:
    """Measure the collection; the time of the learner does not depend on the nodes."""
    with driver(cluster.nodes[0], **SCALE, **on_ray(cluster)) as made:
        made.more_updates(FIRST)
        first, before = made.updates, [node.bytes_sent() for node in cluster.nodes]
        made.more_updates(SCALE_UPDATES - 2 * FIRST)
        last, after = made.updates, [node.bytes_sent() for node in cluster.nodes]
        summary = made.result()["summary"]
    steps, watched = summary["env_steps"], (last - first) * SCALE["num_envs"] * SCALE_ROWS
    sent = [(b - a) / watched for a, b in zip(before, after)]
    result = {
        "env_steps_per_s": round(steps / (summary["act_s"] + summary["step_s"]), 1),
        "learn_us_per_env_step": round(summary["learn_s"] / steps * 1e6, 2),
        "bytes_per_env_step": {"head": round(sent[0], 1), "others": round(sum(sent[1:]), 1)},
        "met": True,
    }
    print(f"  {result}", flush=True)
    return result


ROWS: dict[str, Callable[[Cluster], dict[str, Any]]] = {
    **{name: functools.partial(same, name) for name in BUDGETS},
    **{one.__name__: functools.partial(fault, one) for one in (killed, all_but_one, cut, blip, joined)},
    "scale": scale,
}
TOGETHER = ("cartpole", "simple_spread", "scale")
"""Rows that do not change the cluster and can share one."""
OF_THREE = ("all_but_one", "joined")
"""Rows that need more than two nodes."""


def clusters(rows: list[str]) -> list[list[str]]:
    """Group the rows by cluster."""
    together = [row for row in rows if row in TOGETHER]
    return [*([together] if together else []), *([row] for row in rows if row not in TOGETHER)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--nodes", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--rate", help="rate of every link, as in tc: 100mbit")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="delay of every link in each direction")
    parser.add_argument("--json", type=Path, help="also write all results to this file")
    parser.add_argument("--drive", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.drive:
        drive(json.loads(options.drive))
        return 0
    shape = Shape(options.rate, options.delay_ms)
    if (reason := unavailable_reason() or unsupported_shape(shape)) is not None:
        raise SystemExit(f"nodes in namespaces are not available: {reason}")
    origin, results = provenance(), []
    for count in options.nodes:
        for rows in clusters([row for row in options.rows if count > 2 or row not in OF_THREE]):
            with Network(count, shape) as nodes:
                cluster = Cluster(nodes)
                for row in rows:
                    print(f"\n{row}, {count} nodes{f', {shape}' if shape != Shape() else ''}", flush=True)
                    results.append({"row": row, "nodes": count, "shape": vars(shape), **ROWS[row](cluster)})
                    if options.json:
                        write_results(options.json, origin, {"health_check": HEALTH, "rows": results})
    missed = [f"{one['row']} with {one['nodes']} nodes" for one in results if not one["met"]]
    print("\nMISSED: " + ", ".join(missed) if missed else "\nall requirements met")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
