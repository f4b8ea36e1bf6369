"""Workers on Ray: actors that die, hang and are replaced; missing clusters; training that is the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import multiverse as mv
from multiverse.core.plan import RayOptions
from multiverse.executors import machine, ray_cluster
from multiverse.executors.ray_actor import RayActor
from multiverse.executors.worker_loop import Surroundings
from multiverse.ipc.block import private_arrays
from multiverse.ipc.doorbell import new_doorbell
from multiverse.ipc.mailbox import CONTROL, CallerMailbox, WorkerMailbox, control_field
from multiverse.vector.opening import VectorOptions, open_envs
from tests.envs import Walk
from tests.fault_envs import Fault

PROGRAM_S = 90


@pytest.fixture
def made() -> Iterator[list[Any]]:
    """Vector envs that are closed at the end of the test."""
    vector_envs: list[Any] = []
    yield vector_envs
    for envs in vector_envs:
        envs.close()


def make(made: list[Any], env: Any, num_envs: int = 4, workers: int = 2, **options: Any) -> Any:
    made.append(mv.make_vec(env, num_envs, **{"executor": "ray", "workers": workers, **options}))
    return made[-1]


def program(text: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a separate process, with its own cluster."""
    command = [sys.executable, "-c", textwrap.dedent(text), *arguments]
    env = {**os.environ, **environ}
    return subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_S, env=env, check=False)


# -- losses ------------------------------------------------------------------------------------------------------
@pytest.mark.fault("F1")
def test_killed_actor_is_named(made: list[Any]) -> None:
    envs = make(made, Walk)
    envs.reset(seed=0)
    os.kill(envs.worker_pids[1], signal.SIGKILL)
    with pytest.raises(mv.errors.WorkerDied, match=r"worker 1 \(envs 2-3\) lost its Ray actor.*during step") as caught:
        envs.step(np.zeros(4, np.int64))
    assert "its node is gone" in str(caught.value)


@pytest.mark.fault("F1")
def test_killed_actor_is_replaced_and_the_others_continue(made: list[Any]) -> None:
    envs = make(made, Walk, on_failure="restart")
    envs.reset(seed=0)
    envs.step(np.ones(4, np.int64))
    old = envs.worker_pids
    os.kill(old[0], signal.SIGKILL)
    _, rewards, _, truncated, infos = envs.step(np.ones(4, np.int64))
    assert truncated.tolist() == [True, True, False, False] and (rewards[:2] == 0).all()
    assert infos["restarted"].tolist() == [True, True, False, False]
    assert envs.failures.worker_restarts == 1 and envs.worker_pids[1] == old[1] and envs.worker_pids[0] != old[0]
    assert not envs.step(np.ones(4, np.int64))[3].any()


def test_id_registered_by_the_program_is_known_in_actors(made: list[Any]) -> None:
    gymnasium.register("of-this-test/Walk-v0", entry_point=Walk)
    try:
        envs = make(made, lambda: gymnasium.make("of-this-test/Walk-v0"), 2, 1)
    finally:
        del gymnasium.registry["of-this-test/Walk-v0"]
    assert envs.spec.id == "of-this-test/Walk-v0"


def test_class_registered_by_the_script_is_known_in_actors() -> None:
    done = program(
        """
        import gymnasium, multiverse as mv
        from gymnasium.envs.classic_control import CartPoleEnv

        class Mine(CartPoleEnv):
            pass

        gymnasium.register("OfThisScript-v0", Mine)
        with mv.make_vec(lambda: gymnasium.make("OfThisScript-v0"), 2, "ray", workers=1) as envs:
            envs.reset(seed=1)
            print(envs.step(envs.action_space.sample())[1].tolist())
        """
    )
    assert done.returncode == 0 and "[1.0, 1.0]" in done.stdout, done.stderr


@pytest.mark.fault("F1")
def test_actor_that_dies_while_building_is_named(made: list[Any]) -> None:
    with pytest.raises(mv.errors.WorkerDied, match=r"worker \d .*lost its Ray actor.*during start"):
        make(made, Fault, env_kwargs={"what": "kill", "phase": "constructor"})


@pytest.mark.fault("F1")
def test_hanging_actor_reports_where(made: list[Any]) -> None:
    faults = [{"what": "sleep", "at": 2} if i == 3 else {} for i in range(4)]
    envs = make(made, Fault, env_kwargs=faults, timeouts=mv.Timeouts(reply_s=2.0, close_s=0.1))
    envs.reset(seed=0)
    envs.step(np.zeros(4, np.int64))
    with pytest.raises(mv.errors.ReplyTimeout, match="env 3, step 2, line") as caught:
        envs.step(np.zeros(4, np.int64))
    assert "fault_envs.py" in caught.value.stack


@pytest.mark.fault("F1")
def test_env_that_exits_ends_its_actor(made: list[Any]) -> None:
    envs = make(made, Fault, env_kwargs={"what": "system_exit"})
    envs.reset(seed=0)
    with pytest.raises(mv.errors.WorkerDied, match="lost its Ray actor"):
        envs.step(np.zeros(4, np.int64))


@pytest.mark.fault("F1")
def test_closed_actors_are_gone(made: list[Any]) -> None:
    envs = make(made, Walk)
    envs.reset(seed=0)
    pids = envs.worker_pids
    envs.close()
    assert len(pids) == 2 and not [pid for pid in pids if alive(pid)]


NODES = """
import os, psutil, ray, sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
import multiverse as mv

def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

class Lose(mv.Hook):
    def on_update(self, trainer, report):
        if trainer.clock.updates == 2:
            gone, actors = {node.node_id for node in nodes}, ray._private.state.actors().values()
            lost = [actor["Pid"] for actor in actors if actor["Address"]["NodeID"] in gone]
            while nodes:
                cluster.remove_node(nodes.pop(), allow_graceful=False)
            while any(map(alive, lost)):  # they end when they notice that their node has ended
                os.sched_yield()

run = mv.train("CartPole-v1", executor="ray", ray_address=cluster.address, workers=3, num_envs=6, env_steps=1_800,
               steps_per_env=50, seed=1, preset=False, evaluate_every=0, evaluation_episodes=1, hooks=[Lose()],
               run_dir=sys.argv[1])
counts = run.summary["failures"]
print("restarted:", counts["worker_restarts"], "lost:", run.summary["lost_steps"], "of", run.summary["env_steps"])
print("adds up:", counts["steps_sent"] == counts["steps_used"] + counts["steps_discarded"], counts["steps_discarded"])
"""


@pytest.mark.fault("F1")
def test_run_survives_the_loss_of_all_nodes_but_one(tmp_path: Path) -> None:
    """Two of three nodes are killed; their envs continue on the remaining node and share its core."""
    found = program(NODES, str(tmp_path / "run"))
    assert "restarted: 2 lost: 4 of 1800" in found.stdout and "adds up: True 4" in found.stdout, found.stderr[-3000:]
    assert "from now on it shares CPUs with other workers" in found.stderr


@pytest.mark.fault("F1")
def test_worker_of_a_lost_node_moves_to_a_free_node() -> None:
    """Not the caller's own node, which is full: a node that joined meanwhile has free cores."""
    found = program(
        """
        import numpy as np, ray, multiverse as mv
        from ray.cluster_utils import Cluster

        def on():
            return {actor["Address"]["NodeID"] for actor in ray._private.state.actors().values()
                    if actor["State"] == "ALIVE"}

        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        lost = cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, logging_level="error")
        envs = mv.make_vec("CartPole-v1", 2, "ray", workers=2, on_failure="restart", timeouts=mv.Timeouts(reset_s=40))
        envs.reset(seed=0)
        assert lost.node_id in on()
        joined = cluster.add_node(num_cpus=1)
        cluster.remove_node(lost, allow_graceful=False)
        while not envs.failures.worker_restarts:
            envs.step(np.ones(2, np.int64))
        print("there:", joined.node_id in on())
        envs.close()
        """
    )
    assert "there: True" in found.stdout, found.stderr


@pytest.mark.fault("F1")
def test_loss_of_the_own_cluster_ends_the_run_and_the_next_starts_another(tmp_path: Path) -> None:
    found = program(
        """
        import sys, psutil, multiverse as mv

        class Lose(mv.Hook):
            lost = False
            def on_update(self, trainer, report):
                if trainer.clock.updates == 2 and not self.lost:
                    self.lost = True
                    for child in psutil.Process().children(recursive=True):
                        if child.name() == "raylet":
                            child.kill()
                            child.wait()

        hook = Lose()
        try:
            mv.train("CartPole-v1", executor="ray", workers=2, num_envs=4, env_steps=800, steps_per_env=50, seed=1,
                     preset=False, evaluate_every=0, evaluation_episodes=1, checkpoint_every_s=0.0, hooks=[hook],
                     run_dir=sys.argv[1])
        except mv.errors.WorkerDied as error:
            print("reported:", error)
        mv.make_vec("CartPole-v1", 2, "ray", workers=1).close()
        print("resumed:", mv.resume(sys.argv[1]).summary["env_steps"])
        """,
        str(tmp_path / "run"),
    )
    assert "the Ray cluster is gone" in found.stdout and "mv.resume(" in found.stdout, found.stderr[-3000:]
    assert "resumed: 800" in found.stdout, found.stderr[-3000:]
    assert "restart 1 of" not in found.stderr and "CPUs free" not in found.stderr


def test_late_stop_request_does_not_end_another_rollout() -> None:
    actor, words = RayActor(Surroundings.here(), b"no assignment"), private_arrays([control_field(1)])[CONTROL]
    bells = new_doorbell(), new_doorbell()
    mailbox, seen = CallerMailbox(words, 0, bells), WorkerMailbox(words, 0, bells)
    actor._thread.join()
    actor._mailbox = mailbox
    signals = []
    for before, number, meanwhile in [((), 2, 1), ((), 3, 3), ((5, 4), 5, 4)]:
        for stopped in before:
            actor.stop(stopped)
        actor._begin_rows(mailbox, number)
        actor.stop(meanwhile)
        signals.append(seen.stopping)
    for bell in bells:
        bell.close()
    assert signals == [False, True, True]


# -- clusters ----------------------------------------------------------------------------------------------------
@pytest.mark.fault("E5")
def test_cluster_that_does_not_answer_is_named_at_once() -> None:
    with pytest.raises(mv.errors.PreflightError, match=r"no Ray cluster answers at 127\.0\.0\.1:1 .*ray start --head"):
        ray_cluster._join("127.0.0.1:1")


@pytest.mark.fault("E5")
def test_auto_address_without_a_cluster_is_refused_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """First without a cluster, then with a record of a cluster that has ended."""
    services = ray_cluster.ray()._private.services
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr(services, "find_gcs_addresses", set)
    with pytest.raises(
        mv.errors.PreflightError, match=r"no Ray cluster is running here; start one \(`ray start --head`"
    ):
        ray_cluster._join("auto")
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:1")
    with pytest.raises(mv.errors.PreflightError, match=r"no Ray cluster answers at 127\.0\.0\.1:1 \(found by .auto.\)"):
        ray_cluster._join("auto")


@pytest.mark.fault("E5")
def test_mismatched_versions_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def differs(**options: Any) -> None:
        raise RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.9.0\n    Python: 3.10.1")

    monkeypatch.setattr(ray_cluster, "_check_reachable", lambda address: None)
    monkeypatch.setattr(ray_cluster.ray(), "init", differs)
    with pytest.raises(mv.errors.PreflightError, match=r"Ray: 2\.9\.0 Python: 3\.10\.1\. This program has Python 3\."):
        ray_cluster._join("10.0.0.1:6379")


def test_invalid_address_is_refused() -> None:
    with pytest.raises(mv.errors.InvalidRequest, match="host:port"):
        ray_cluster._join("somewhere")


@pytest.mark.fault("E5")
def test_second_cluster_in_one_program_is_refused(made: list[Any]) -> None:
    make(made, Walk, 2, 1)
    with pytest.raises(mv.errors.InvalidRequest, match="already connected to the Ray cluster at "):
        make(made, Walk, 2, 1, executor=mv.RayOptions(address="10.0.0.1:6379"))


@pytest.mark.fault("F1")
@pytest.mark.parametrize("kind", ["CPU", "GPU"])
def test_more_resources_than_the_cluster_has_are_refused(made: list[Any], kind: str) -> None:
    with pytest.raises(
        mv.errors.PreflightError, match=rf"2 workers with 1000 {kind}s each need 2000, .* has \d+: use fewer"
    ):
        make(made, Walk, executor=mv.RayOptions(**{f"{kind.lower()}s_per_worker": 1000}))


def test_workers_of_the_own_cluster_share_cores_unless_each_needs_several() -> None:
    ray_cluster.connect(RayOptions())
    ray_cluster.check(1000, RayOptions())
    cores = machine.usable_cores()
    assert [ray_cluster.cores(RayOptions(cpus_per_worker=cpus)) for cpus in (0.5, 1, 2 * cores)] == [cores, cores, 1]


@pytest.mark.parametrize("options", [RayOptions(address="10.0.0.1:6379"), RayOptions(cpus_per_worker=2.0)])
def test_ray_options_are_refused_with_other_executors(options: RayOptions) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match="only for executor='ray'"):
        open_envs(Walk, 2, VectorOptions(executor="serial", ray=options))


@pytest.mark.parametrize("cpus", [-1, float("nan"), True, "two"])
def test_invalid_cpus_per_worker_are_refused(cpus: Any) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match="cpus_per_worker"):
        mv.make_vec(Walk, 2, mv.RayOptions(cpus_per_worker=cpus))


@pytest.mark.fault("E5")
def test_cluster_started_by_the_program_is_used_and_kept() -> None:
    found = program(
        """
        import signal
        import ray, multiverse as mv
        ray.init(address="local", num_cpus=2, include_dashboard=False, logging_level="error")
        handler = signal.getsignal(signal.SIGTERM)
        envs = mv.make_vec("CartPole-v1", 2, "ray", workers=1)
        envs.reset()
        envs.close()
        from multiverse.executors import ray_cluster
        ray_cluster.shut_down()
        print("still there:", ray.is_initialized(), ray_cluster.own(), signal.getsignal(signal.SIGTERM) == handler)
        """
    )
    assert "still there: True False True" in found.stdout, found.stderr


@pytest.mark.fault("E5")
def test_own_cluster_is_local_and_ends_with_the_program() -> None:
    found = program(
        """
        import psutil, signal, multiverse as mv
        envs = mv.make_vec("CartPole-v1", 2, "ray", workers=1)
        envs.reset()
        import ray
        print("nodes:", [node["NodeManagerAddress"] for node in ray.nodes()])
        print("pids:", *[child.pid for child in psutil.Process().children(recursive=True)])
        print("handler:", signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
        """
    )
    assert "nodes: ['127.0.0.1']" in found.stdout and "handler: True" in found.stdout, found.stderr
    pids = [int(pid) for line in found.stdout.splitlines() if line.startswith("pids:") for pid in line.split()[1:]]
    assert pids and not [pid for pid in pids if alive(pid)]


@pytest.mark.fault("A14")
@pytest.mark.parametrize("handled", [True, False])
def test_sigterm_while_ray_starts_ends_the_program(handled: bool) -> None:
    found = program(
        f"""
        import signal, sys
        from multiverse.core.plan import RayOptions
        from multiverse.executors import ray_cluster
        from multiverse.ipc.interrupts import end_on_request
        if {handled}:
            signal.signal(signal.SIGTERM, end_on_request)
        node = ray_cluster.ray()._private.node.Node
        start = node.start_head_processes
        def in_the_middle(self):
            start(self)
            signal.raise_signal(signal.SIGTERM)
        node.start_head_processes = in_the_middle
        ray_cluster.connect(RayOptions())
        """
    )
    assert found.returncode == (143 if handled else -signal.SIGTERM) and found.stderr == ""


@pytest.mark.fault("F1")
def test_own_cluster_outlives_the_thread_that_started_it() -> None:
    found = program(
        """
        import threading, gymnasium as gym, multiverse as mv
        made = []
        for _ in range(2):  # the second cluster too
            thread = threading.Thread(target=lambda: made.append(mv.make_vec("CartPole-v1", 2, "ray", workers=1)))
            thread.start()
            thread.join()
            with made.pop() as envs:
                envs.reset(seed=0)
                for _ in range(3):
                    envs.step(envs.action_space.sample())
            from multiverse.executors import ray_cluster
            ray_cluster.shut_down()
        print("steps were taken")
        """
    )
    assert "steps were taken" in found.stdout and found.returncode == 0, found.stderr


@pytest.mark.fault("E5")
def test_failed_cluster_start_is_reported_and_leaves_nothing() -> None:
    found = program(
        """
        import psutil, ray, multiverse as mv
        def late(*_):
            raise Exception("The current node timed out during startup.")
        ray._private.services.get_node = late
        try:
            mv.make_vec("CartPole-v1", 2, "ray", workers=1)
        except mv.errors.PreflightError as error:
            print("reported:", error)
        _, left = psutil.wait_procs(psutil.Process().children(recursive=True), 10)
        print("left:", [process.name() for process in left], ray.is_initialized())
        """
    )
    assert "reported: no Ray cluster could be started here: The current node timed out" in found.stdout, found.stderr
    assert "left: [] False" in found.stdout


@pytest.mark.fault("E5")
def test_own_cluster_is_local_if_ray_was_imported_before() -> None:
    found = program(
        """
        import ray, multiverse as mv
        mv.make_vec("CartPole-v1", 2, "ray", workers=1).close()
        print("nodes:", [node["NodeManagerAddress"] for node in ray.nodes()])
        """
    )
    assert "nodes: ['127.0.0.1']" in found.stdout, found.stderr


@pytest.mark.fault("E5")
def test_envs_after_ray_shutdown_are_lost_and_no_other_cluster_is_joined() -> None:
    found = program(
        """
        import numpy as np, ray, multiverse as mv
        envs = mv.make_vec("CartPole-v1", 2, "ray", workers=1)
        envs.reset(seed=0)
        ray.shutdown()
        try:
            envs.step(np.zeros(2, np.int64))
        except mv.errors.WorkerDied as error:
            print("reported:", error)
        envs.close()
        print("connected:", ray.is_initialized())
        """
    )
    assert "ray.shutdown() was called" in found.stdout and "connected: False" in found.stdout, found.stderr
    assert "Traceback" not in found.stderr


def alive(pid: int) -> bool:
    import psutil

    try:
        _, left = psutil.wait_procs([psutil.Process(pid)], 5)
    except psutil.NoSuchProcess:
        return False
    return bool(left)


def test_missing_ray_is_reported_with_the_install_command() -> None:
    found = program(
        """
        import importlib.util, multiverse as mv
        whole = importlib.util.find_spec
        importlib.util.find_spec = lambda name, *more: None if name == "ray" else whole(name, *more)
        try:
            mv.make_vec("CartPole-v1", 2, "ray")
        except mv.errors.PreflightError as error:
            print(error)
        """
    )
    assert "pip install 'multiverse[ray]'" in found.stdout, found.stderr


def test_modules_of_the_caller_are_pickled_by_value(tmp_path: Path) -> None:
    """Other nodes cannot import these classes, so they are sent by value."""
    (tmp_path / "my_envs.py").write_text(
        "import gymnasium\n\n\nclass Mine(gymnasium.Wrapper):\n"
        "    def __init__(self):\n        super().__init__(gymnasium.make('CartPole-v1'))\n"
    )
    found = program(
        """
        import pickle, sys
        import my_envs
        from multiverse.adapters.env_source import recipes
        from multiverse.executors import ray_cluster
        from multiverse.executors.env_range import RangeConfig
        from multiverse.executors.process import pickled
        from multiverse.executors.worker_loop import Assignment
        each = [Assignment(0, RangeConfig(env_ids=range(1)), recipes(my_envs.Mine, 1, None, None), "park")]
        with ray_cluster.own_modules_by_value(ray_cluster.used_by(each)):
            (data,) = pickled(each)
        del sys.modules["my_envs"]
        sys.path.pop()
        sys.path[:] = [place for place in sys.path if "my_place" not in place]
        sys.meta_path.insert(0, type("No", (), {"find_spec": staticmethod(
            lambda name, *_: (_ for _ in ()).throw(ImportError(name)) if name == "my_envs" else None)}))
        print("built:", pickle.loads(data).recipes[0].build())
        """,
        PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
    )
    assert "built:" in found.stdout, found.stderr
