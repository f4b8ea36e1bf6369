"""The Ray cluster that workers run on: a private one on this machine, or an existing one."""

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
"""Bytes of an argument or a result that are sent with a call in a private cluster; larger ones go through the object
store. Ray's limit is 100 kB; on one machine the store takes 2 ms longer than a call, and pays off above about 1 MB."""
_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Environment variable that Ray reads when it is imported; "0" puts its node at 127.0.0.1."""

_ours: int | None = None  # pid of the process that started the private cluster
_joined: str | None = None  # the address that this program has connected to
_shut_down = threading.Event()  # of the last cluster that was started


def ray() -> Any:
    """The Ray package; `PreflightError` if it is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise PreflightError("executor='ray' needs Ray: pip install 'multiverse[ray]'")
    if "ray" not in sys.modules:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    return ray


def connect(options: RayOptions) -> None:
    """Connect to the requested cluster, or start a private one, unless this program is connected already."""
    if _ours is not None and living() is None:  # guard: a-dead-cluster-of-our-own-is-started-anew
        shut_down()
    here, address = _connected_to(), options.address
    if here is not None:
        if address not in (None, "auto", here, _joined):  # guard: one-cluster-a-program
            raise InvalidRequest(
                f"ray_address={address!r}: this program is already connected to the Ray cluster at {here}; omit the "
                "address, or call ray.shutdown() first"
            )
        return
    ray()  # raises first if Ray is not installed
    if address is None:
        _start()
    else:
        _join(address)


def _connected_to() -> str | None:
    module = sys.modules.get("ray")
    if module is None or not module.is_initialized():
        return None
    return str(module.get_runtime_context().gcs_address)


def living() -> Any:
    """An object that identifies the connected cluster; None without one, or if our own has ended."""
    if _connected_to() is None:
        return None
    node = ray()._private.worker._global_node
    needed = [info for kind in ("raylet", "gcs_server") for info in node.all_processes.get(kind, ())]
    ended = _ours == os.getpid() and any(info.process.poll() is not None for info in needed)
    return None if ended else node


def _start() -> None:
    """Start a private cluster, which other programs do not find, and which ends with this program."""
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
                    "worker_niceness": 0,  # Ray's default, 15, would give other programs priority
                    "max_direct_call_object_size": ALONG_WITH_A_CALL,
                },
            )
            _in_a_lasting_thread(start)  # guard: a-cluster-outlives-the-thread-that-asks-for-it
    except BaseException as error:  # ports, memory, too long a path for its sockets, slow nodes; Ctrl-C
        _end_the_half_started(error)
        if not isinstance(error, Exception):
            raise
        hint = "; set RAY_TMPDIR=/tmp to use a shorter path" if "path length" in str(error) else ""
        raise PreflightError(f"no Ray cluster could be started here: {error}{hint}") from error
    finally:
        os.environ.pop(_LOOPBACK)
        if before is not None:
            os.environ[_LOOPBACK] = before
    _ours = os.getpid()
    atexit.register(shut_down)


def _in_a_lasting_thread(start: Callable[[], Any]) -> None:
    """Call `start` in a thread that lasts as long as the cluster: the kernel ends Ray's processes with the thread that
    has started them."""
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
    """End the processes of a node that failed to start, which Ray leaves behind: the error's frames refer to it."""
    node_type = ray()._private.node.Node
    for frame, _ in traceback.walk_tb(error.__traceback__):
        node = frame.f_locals.get("self")
        if isinstance(node, node_type):  # guard: a-cluster-that-fails-to-start-leaves-nothing
            node.kill_all_processes(check_alive=False, allow_graceful=False)
    ray().shutdown()


@contextlib.contextmanager
def _imported_before() -> Iterator[None]:
    """Set what Ray derived from the variable, in case it was imported before."""
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
        reason = " ".join(str(error).split())
        if "ersion mismatch" in reason:  # guard: versions-that-differ-are-named
            here = f"Python {'.'.join(map(str, sys.version_info[:3]))} and Ray {ray().__version__}"
            reason = f"{reason}. This program has {here}: install the same versions on the nodes, or theirs here"
        else:
            reason = (
                f"{reason}. If the cluster requires a token (newer versions of Ray do), set RAY_AUTH_TOKEN here too"
            )
        raise PreflightError(f"the Ray cluster at {address} cannot be joined: {reason}") from error
    _joined = address


def _check_reachable(address: str) -> None:
    """Check the address quickly, with a clear error: Ray itself tries for a minute."""
    shown = address
    if address == "auto":  # guard: what-auto-leads-to-is-looked-at
        address = _auto_address()
        shown = f"{address} (found by 'auto')"
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "://" in address:
        raise InvalidRequest(f"ray_address={address!r}: expected host:port, as `ray start --head` prints it, or auto")
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except OSError as error:  # guard: an-unreachable-cluster-is-named
        raise PreflightError(
            f"no Ray cluster answers at {shown} ({error.strerror or error}). Check that it is running (`ray start "
            "--head`) and that this machine can reach its port"
        ) from error


def _auto_address() -> str:
    """RAY_ADDRESS, a cluster that runs here, or the last one that Ray has recorded, which may have ended."""
    try:
        return str(ray()._private.services.get_ray_address_from_environment("auto", None))
    except ConnectionError as error:
        raise PreflightError(
            "ray_address='auto': no Ray cluster is running here; start one (`ray start --head`), join one with this "
            "machine (`ray start --address host:port`), or omit the address for a private cluster"
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
    """End the cluster if it was started here."""
    global _ours
    if _ours == os.getpid() and _connected_to() is not None:  # guard: only-our-own-cluster-is-ended
        ray().shutdown()
    _shut_down.set()
    _ours = None


def own() -> bool:
    """Whether the cluster was started here. It then has this machine's cores, and no other program uses it."""
    return _ours is not None and _connected_to() is not None


def cores(options: RayOptions) -> int:
    """Number of workers that fit in the cluster."""
    connect(options)
    if own() and not _cpus_that_count(options):
        return machine.usable_cores()
    each = {"CPU": options.cpus_per_worker, "GPU": options.gpus_per_worker}
    return max(1, min((int(_resource(kind) / count) for kind, count in each.items() if count), default=1))


def check(workers: int, options: RayOptions) -> None:
    """Check that the cluster is large enough; parts that are in use now may become free."""
    for kind, each in (("CPU", _cpus_that_count(options)), ("GPU", options.gpus_per_worker)):
        needed, there = workers * each, _resource(kind)
        if needed > there:  # guard: what-a-cluster-lacks-is-refused
            raise PreflightError(
                f"{workers} workers with {each:g} {kind}s each need {needed:g}, but the Ray cluster has {there:g}: use "
                f"fewer workers, or a smaller {kind.lower()}s_per_worker"
            )
        free, give_up = _free(kind), time.monotonic() + SOON_FREE_S
        while needed > free and time.monotonic() < give_up:  # resources of closed actors become free with a delay
            time.sleep(SOON_FREE_S / 10)
            free = _free(kind)
        if needed > free:
            log.warning(
                "%d workers need %g %ss; the Ray cluster has %g free: waiting for more", workers, needed, kind, free
            )


def _cpus_that_count(options: RayOptions) -> float:
    """CPUs to reserve per worker: none in a private cluster, where there may be more workers than cores, unless each
    worker needs several."""
    return 0.0 if own() and options.cpus_per_worker <= 1 else options.cpus_per_worker


def nodes_with(kind: str, count: float) -> list[str]:
    """Nodes with at least `count` free of a resource, as far as the cluster knows; this program's node first."""
    here = ray().get_runtime_context().get_node_id()
    left = ray()._private.state.available_resources_per_node()
    return sorted((node for node in left if left[node].get(kind, 0.0) >= count), key=lambda node: node != here)


def on_node(node: str) -> Any:
    """Scheduling strategy for this node. It waits without limit if the node has no room."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=True)


def _free(kind: str) -> float:
    return float(ray().available_resources().get(kind, 0.0))


def _resource(kind: str) -> float:
    return float(ray().cluster_resources().get(kind, 0.0))


@contextlib.contextmanager
def own_modules_by_value(things: Iterable[Any]) -> Iterator[None]:
    """While these objects are pickled for other nodes, pickle the user's own modules, which are not installed there, by
    value."""
    modules = [] if own() else [m for m in _modules_of(things) if _is_users_own(m)]
    registered = [m for m in modules if m.__name__ not in cloudpickle.list_registry_pickle_by_value()]
    for module in registered:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in registered:
            cloudpickle.unregister_pickle_by_value(module)


def used_by(assignments: Any) -> list[Any]:
    """The user's factories, wrappers, arguments and reset plans that the workers need."""
    recipes = [recipe for a in assignments for recipe in a.recipes]
    used = [thing for r in recipes for thing in (r.source, *r.wrappers, *r.kwargs.values())]
    return used + [a.config.reset_plan for a in assignments]


def _modules_of(things: Iterable[Any]) -> list[ModuleType]:
    tops = {name.partition(".")[0] for thing in things for name in _places_of(thing)}
    return [sys.modules[name] for name in tops if name in sys.modules and name != "__main__"]


def _places_of(thing: Any) -> list[str]:
    """The modules that define an object, also inside a partial or behind a Gymnasium id."""
    if isinstance(thing, functools.partial):
        return [name for part in (thing.func, *thing.args, *thing.keywords.values()) for name in _places_of(part)]
    entry = getattr(thing, "entry_point", None)
    if isinstance(entry, str):
        return [entry.partition(":")[0]]
    return [getattr(entry or thing, "__module__", None) or type(entry or thing).__module__]


def _is_users_own(module: ModuleType) -> bool:
    """Whether a module is neither installed nor part of multiverse."""
    file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", [])), None)
    if file is None or module.__name__ == "multiverse":
        return False
    installed = [sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    installed += [*site.getsitepackages(), site.getusersitepackages()]
    return not any(Path(file).is_relative_to(place) for place in installed)
