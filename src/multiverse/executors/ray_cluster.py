"""The Ray cluster that workers run on: one of our own on this machine, or one that is there."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import logging
import os
import queue
import site
import socket
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

import multiverse
from multiverse.core.errors import InvalidRequest, PreflightError
from multiverse.core.plan import RayOptions
from multiverse.executors import machine

log = logging.getLogger("multiverse")

CONNECT_S, SOON_FREE_S = 5.0, 1.0
ALONG_WITH_A_CALL = 1 << 20
"""Bytes of an argument or a result, in a cluster of our own; more goes through the object store. Ray's limit is 100 kB;
on one machine the store takes 2 ms longer than a call, and pays from about 1 MB on."""
_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's own way to have a node at 127.0.0.1: it reads this when it is imported."""

_ours: int | None = None  # the process that started the cluster, if it is one of ours
_joined: str | None = None  # the address by which this program was connected
_shut_down = threading.Event()  # of the cluster that was started last


def ray() -> Any:
    """The package."""
    if importlib.util.find_spec("ray") is None:
        raise PreflightError("executor='ray' needs Ray: pip install 'multiverse[ray]'")
    if "ray" not in sys.modules:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    return ray


def connect(options: RayOptions) -> None:
    """To the cluster that is meant, unless this program is connected already; started if there is to be one of ours."""
    if _ours is not None and living() is None:  # guard: a-dead-cluster-of-our-own-is-started-anew
        shut_down()
    here, address = _connected_to(), options.address
    if here is not None:
        if address not in (None, "auto", here, _joined):  # guard: one-cluster-a-program
            raise InvalidRequest(
                f"ray_address={address!r}: this program is connected to the Ray cluster at {here} already; leave the "
                "address out, or call ray.shutdown() first"
            )
        return
    ray()  # if there is none, that is what is wrong
    if address is None:
        _start()
    else:
        _join(address)


def _connected_to() -> str | None:
    found = sys.modules.get("ray")
    if found is None or not found.is_initialized():
        return None
    return str(found.get_runtime_context().gcs_address)


def living() -> Any:
    """What stands for the cluster that this program is connected to; None when there is none, or ours has ended."""
    if _connected_to() is None:
        return None
    node = ray()._private.worker._global_node
    needed = [info for kind in ("raylet", "gcs_server") for info in node.all_processes.get(kind, ())]
    ended = _ours == os.getpid() and any(info.process.poll() is not None for info in needed)
    return None if ended else node


def _start() -> None:
    """A cluster of our own: nobody else hears of it, and it ends with this program."""
    global _ours
    before = os.environ.get(_LOOPBACK)
    os.environ[_LOOPBACK] = os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # guard: a-cluster-of-our-own-stays-here
    try:
        with _signals_kept(), _imported_before():
            start = functools.partial(
                ray().init,
                address="local",
                num_cpus=machine.usable_cores(),
                include_dashboard=False,
                logging_level="error",
                _system_config={
                    "worker_niceness": 0,  # 15 elsewhere: whoever else is busy would come first
                    "max_direct_call_object_size": ALONG_WITH_A_CALL,
                },
            )
            _in_a_lasting_thread(start)  # guard: a-cluster-outlives-the-thread-that-asks-for-it
    except BaseException as error:  # ports, memory, a path too long for its sockets, nodes that are too slow; Ctrl-C
        _end_the_half_started(error)
        if not isinstance(error, Exception):
            raise
        hint = "; RAY_TMPDIR=/tmp has it use another place" if "path length" in str(error) else ""
        raise PreflightError(f"no Ray cluster could be started here: {error}{hint}") from error
    finally:
        os.environ.pop(_LOOPBACK)
        if before is not None:
            os.environ[_LOOPBACK] = before
    _ours = os.getpid()
    atexit.register(shut_down)


def _in_a_lasting_thread(start: Callable[[], Any]) -> None:
    """Call this in a thread that lasts as long as the cluster: the kernel ends Ray's processes with the thread that has
    started them."""
    if threading.current_thread() is threading.main_thread():
        start()
        return
    _shut_down.clear()
    outcome: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def run() -> None:
        try:
            start()
        except BaseException as error:
            outcome.put(error)
            return
        outcome.put(None)
        _shut_down.wait()

    threading.Thread(target=run, name="ray_cluster", daemon=True).start()
    if (error := outcome.get()) is not None:
        raise error


def _end_the_half_started(error: BaseException) -> None:
    """Ray forgets a node that did not come to be, and leaves its processes: who raised still has it."""
    node_type = ray()._private.node.Node
    for frame, _ in traceback.walk_tb(error.__traceback__):
        node = frame.f_locals.get("self")
        if isinstance(node, node_type):  # guard: a-cluster-that-fails-to-start-leaves-nothing
            node.kill_all_processes(check_alive=False, allow_graceful=False)
    ray().shutdown()


@contextlib.contextmanager
def _imported_before() -> Iterator[None]:
    """Whoever imported Ray before has had it read the variable then."""
    constants = ray()._private.ray_constants
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


def _join(address: str) -> None:
    global _joined
    _check_reachable(address)
    ours = str(Path(multiverse.__file__).parent)
    try:
        with _signals_kept():
            ray().init(address=address, runtime_env={"py_modules": [ours]}, logging_level="error")
    except (ConnectionError, RuntimeError, ValueError, ray().exceptions.RayError) as error:
        said = " ".join(str(error).split())
        if "ersion mismatch" in said:  # guard: versions-that-differ-are-named
            here = f"Python {'.'.join(map(str, sys.version_info[:3]))} and Ray {ray().__version__} here"
            said = f"{said}. There must be the same as {here}: install that on the nodes, or the nodes' here"
        else:
            said = f"{said}. If it asks for a token (newer Rays do by themselves), set its RAY_AUTH_TOKEN here too"
        raise PreflightError(f"the Ray cluster at {address} cannot be joined: {said}") from error
    _joined = address


def _check_reachable(address: str) -> None:
    """In a moment, and in a sentence: Ray itself tries for a minute."""
    said = address
    if address == "auto":  # guard: what-auto-leads-to-is-looked-at
        address = _where_auto_leads()
        said = f"{address}, where 'auto' leads"
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "://" in address:
        raise InvalidRequest(f"ray_address={address!r}: host:port, as `ray start --head` prints it, or auto")
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except OSError as error:  # guard: an-unreachable-cluster-is-named
        raise PreflightError(
            f"no Ray cluster answers at {said} ({error.strerror or error}): is it running (`ray start --head` "
            "there), and may this machine reach that port?"
        ) from error


def _where_auto_leads() -> str:
    """RAY_ADDRESS, a cluster that runs here, or the one that Ray has written down, which may have ended long ago."""
    try:
        return str(ray()._private.services.get_ray_address_from_environment("auto", None))
    except ConnectionError as error:
        raise PreflightError(
            "ray_address='auto': no Ray cluster is running here; start one (`ray start --head`), have this machine "
            "join one (`ray start --address host:port`), or leave the address out for a cluster of the program's own"
        ) from error


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Keep Ray from replacing the program's handler of SIGTERM, which may arrive while Ray starts."""
    utils = ray()._private.utils
    before = utils.set_sigterm_handler
    utils.set_sigterm_handler = lambda handler: None  # guard: sigterm-keeps-its-handler-while-ray-starts
    try:
        yield
    finally:
        utils.set_sigterm_handler = before


def shut_down() -> None:
    """End what was started here, and nothing else."""
    global _ours
    if _ours == os.getpid() and _connected_to() is not None:  # guard: only-our-own-cluster-is-ended
        ray().shutdown()
    _shut_down.set()
    _ours = None


def own() -> bool:
    """Whether the cluster was started here. Then it has this machine's cores, and nobody else wants them."""
    return _ours is not None and _connected_to() is not None


def cores(options: RayOptions) -> int:
    """How many workers the cluster has room for."""
    connect(options)
    if own() and not _cpus_that_count(options):
        return machine.usable_cores()
    each = {"CPU": options.cpus_per_worker, "GPU": options.gpus_per_worker}
    return max(1, min((int(_resource(kind) / count) for kind, count in each.items() if count), default=1))


def check(workers: int, options: RayOptions) -> None:
    """That there is room at all; whoever else has it now may leave."""
    for kind, each in (("CPU", _cpus_that_count(options)), ("GPU", options.gpus_per_worker)):
        needed, there = workers * each, _resource(kind)
        if needed > there:  # guard: what-a-cluster-lacks-is-refused
            raise PreflightError(
                f"{workers} workers with {each:g} {kind}s each need {needed:g}, and the Ray cluster has {there:g}: "
                f"fewer workers, or a smaller {kind.lower()}s_per_worker"
            )
        free, give_up = _free(kind), time.monotonic() + SOON_FREE_S
        while needed > free and time.monotonic() < give_up:  # what was closed just now is free in a moment
            time.sleep(SOON_FREE_S / 10)
            free = _free(kind)
        if needed > free:
            log.warning(
                "%d workers need %g %ss; the Ray cluster has %g free: waiting for more", workers, needed, kind, free
            )


def _cpus_that_count(options: RayOptions) -> float:
    """Per worker. Of a cluster of our own nobody else wants anything, and workers may be more than cores; but whoever
    wants several for each must have them."""
    return 0.0 if own() and options.cpus_per_worker <= 1 else options.cpus_per_worker


def nodes_with(kind: str, count: float) -> list[str]:
    """Those that have so much left, as far as the cluster knows; this program's first."""
    here = ray().get_runtime_context().get_node_id()
    left = ray()._private.state.available_resources_per_node()
    return sorted((node for node in left if left[node].get(kind, 0.0) >= count), key=lambda node: node != here)


def on_node(node: str) -> Any:
    """A strategy: there. It waits for room for ever if there is none."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=True)


def _free(kind: str) -> float:
    return float(ray().available_resources().get(kind, 0.0))


def _resource(kind: str) -> float:
    return float(ray().cluster_resources().get(kind, 0.0))


@contextlib.contextmanager
def own_modules_by_value(things: Iterable[Any]) -> Iterator[None]:
    """While these are packed for nodes elsewhere, pickle the caller's own modules, which are not installed there, by
    value."""
    found = [] if own() else [m for m in _modules_of(things) if _is_the_callers(m)]
    registered = [m for m in found if m.__name__ not in cloudpickle.list_registry_pickle_by_value()]
    for module in registered:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in registered:
            cloudpickle.unregister_pickle_by_value(module)


def used_by(assignments: Any) -> list[Any]:
    """Factories, wrappers, arguments and reset plans of the user's that the workers need."""
    recipes = [recipe for a in assignments for recipe in a.recipes]
    used = [thing for r in recipes for thing in (r.source, *r.wrappers, *r.kwargs.values())]
    return used + [a.config.reset_plan for a in assignments]


def _modules_of(things: Iterable[Any]) -> list[ModuleType]:
    tops = {name.partition(".")[0] for thing in things for name in _places_of(thing)}
    return [sys.modules[name] for name in tops if name in sys.modules and name != "__main__"]


def _places_of(thing: Any) -> list[str]:
    """The modules that a thing is from: also of what is inside a partial, or behind a Gymnasium id."""
    if isinstance(thing, functools.partial):
        return [name for part in (thing.func, *thing.args, *thing.keywords.values()) for name in _places_of(part)]
    entry = getattr(thing, "entry_point", None)
    if isinstance(entry, str):
        return [entry.partition(":")[0]]
    return [getattr(entry or thing, "__module__", None) or type(entry or thing).__module__]


def _is_the_callers(module: ModuleType) -> bool:
    """Not installed, and not ours."""
    file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", [])), None)
    if file is None or module.__name__ == "multiverse":
        return False
    installed = [sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    installed += [*site.getsitepackages(), site.getusersitepackages()]
    return not any(Path(file).is_relative_to(place) for place in installed)
