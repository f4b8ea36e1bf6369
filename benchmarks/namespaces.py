"""Simulated cluster on one machine: nodes with their own network, processes, /dev/shm and /tmp/ray, on one switch.

Each node is a set of Linux namespaces, held by a process that ends with this program, however that ends. The kernel
then ends every process in the node and removes its link. Nothing has a name outside the node, so nothing is left
behind. Nodes communicate over TCP through a bridge and veth pairs. Processors and disk are shared: a network and the
loss of machines can be tested, but not the effect of more processors.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

NETWORK = "10.77.0"
TOOLS = ("ip", "tc", "unshare", "nsenter")
START_S = 10.0


def unavailable_reason() -> str | None:
    """Return why this machine cannot create nodes, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"not installed: {', '.join(missing)} (packages iproute2 and util-linux)" if missing else None


@dataclass(frozen=True)
class Shape:
    """Shape of every link, in both directions: a rate as in `tc` ("100mbit"), and a delay in milliseconds."""

    rate: str | None = None
    delay_ms: float = 0.0

    def commands(self) -> list[list[str]]:
        """Return the arguments of `tc qdisc add dev DEVICE …`, outermost first."""
        slowed = ["netem", "delay", f"{self.delay_ms}ms"] if self.delay_ms else []
        limited = ["tbf", "rate", self.rate, "burst", "16kb", "latency", "200ms"] if self.rate else []
        if slowed and limited:
            return [["root", "handle", "1:", *slowed], ["parent", "1:", *limited]]
        return [["root", *one] for one in (slowed, limited) if one]


def unsupported_shape(shape: Shape) -> str | None:
    """Return which part of the shape this kernel does not support, or None."""
    for name in (["netem"] if shape.delay_ms else []) + (["tbf"] if shape.rate else []):
        with Namespace() as namespace:
            _run(namespace.inside("ip", "link", "add", "v", "type", "veth", "peer", "name", "w"))
            arguments = next(one for one in (Shape(delay_ms=1) if name == "netem" else Shape("1mbit")).commands())
            done = subprocess.run(
                namespace.inside("tc", "qdisc", "add", "dev", "v", *arguments), capture_output=True, text=True
            )
        if done.returncode:
            return f"tc {name}: {' '.join(done.stderr.split())}"
    return None


class Namespace:
    """Separate network and processes, which end with this program at the latest."""

    def __init__(self) -> None:
        kinds = ["--net", "--mount", "--ipc", "--pid", "--mount-proc", "--fork", "--kill-child"]
        self._first = subprocess.Popen(  # ends when its pipe is closed; leaves no zombies
            ["unshare", *kinds, "env", "--ignore-signal=CHLD", "cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._first.stdin is not None and self._first.stdout is not None
        self._first.stdin.write(b"there\n")
        self._first.stdin.flush()
        if self._first.stdout.readline() != b"there\n":
            raise SystemExit("namespaces cannot be created here; a container may lack the permission")
        (self.pid,) = (child.pid for child in psutil.Process(self._first.pid).children())

    def inside(self, *command: str, only_network: bool = False) -> list[str]:
        """Return the command line that runs a command in the namespace."""
        kinds = ["--net"] if only_network else ["--net", "--mount", "--ipc", "--pid"]
        return ["nsenter", "--target", str(self.pid), *kinds, *command]

    def start(self, command: Sequence[str], environ: Mapping[str, str] | None = None, **more: Any) -> Any:
        """Start a process in the namespace, in a new session so that Ctrl-C does not reach it."""
        environ = {**os.environ, **(environ or {})}
        return subprocess.Popen(self.inside(*command), env=environ, start_new_session=True, text=True, **more)

    def kill_all(self) -> None:
        """Send SIGKILL to every process in the namespace; the namespace and its link remain."""
        subprocess.run(self.inside("sh", "-c", "kill -9 -1"), check=False, capture_output=True)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)  # the init process: the kernel ends the others with it
        for pipe in (self._first.stdin, self._first.stdout):
            if pipe is not None:
                pipe.close()
        self._first.wait()

    def __enter__(self) -> Namespace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Node(Namespace):
    """Simulated machine on a switch."""

    def __init__(self, switch: Namespace, number: int, shape: Shape) -> None:
        super().__init__()
        self._switch, self._port, self.address = switch, f"port{number}", f"{NETWORK}.{number}"
        os.makedirs("/tmp/ray", exist_ok=True)
        self.hide("/tmp/ray")
        self.hide("/dev/shm")
        on = switch.inside("ip", "link", only_network=True)
        _run([*on, "add", self._port, "type", "veth", "peer", "name", "eth0", "netns", str(self.pid)])
        _run([*on, "set", self._port, "master", "switch", "up"])
        _run(self.inside("ip", "address", "add", f"{self.address}/24", "dev", "eth0"))
        for device in ("lo", "eth0"):
            _run(self.inside("ip", "link", "set", device, "up"))
        for given in shape.commands():
            _run(self.inside("tc", "qdisc", "add", "dev", "eth0", *given))
            _run(switch.inside("tc", "qdisc", "add", "dev", self._port, *given, only_network=True))

    def link(self, up: bool) -> None:
        """Connect or disconnect the link, without notice to either end."""
        _run(self._switch.inside("ip", "link", "set", self._port, "up" if up else "down", only_network=True))

    def hide(self, folder: str) -> None:
        """Hide the content of a directory from this node."""
        _run(self.inside("mount", "-t", "tmpfs", "tmpfs", folder))

    def processes(self, name: str) -> list[str]:
        """Return the command lines of the node's processes that contain `name`."""
        listed = _run(self.inside("sh", "-c", "for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$f; echo; done"))
        return [line for line in listed.splitlines() if name in line]

    def bytes_sent(self) -> int:
        """Return the number of bytes sent over the link since its creation."""
        table = _run(self.inside("cat", "/proc/net/dev"))
        (line,) = re.findall(r"eth0:\s*(.*)", table)
        return int(line.split()[8])


class Network:
    """A switch and its nodes, numbered from 1."""

    def __init__(self, count: int, shape: Shape | None = None) -> None:
        self._opened = contextlib.ExitStack()
        switch = self._opened.enter_context(Namespace())
        _run(switch.inside("ip", "link", "add", "switch", "type", "bridge"))
        _run(switch.inside("ip", "link", "set", "switch", "up"))
        self.nodes = [self._opened.enter_context(Node(switch, i + 1, shape or Shape())) for i in range(count)]

    def __enter__(self) -> list[Node]:
        return self.nodes

    def __exit__(self, *_: object) -> None:
        self._opened.close()


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_S)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout
