"""Envs that fail on schedule: by phase and count, never by chance or time."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from tests.envs import Walk

LEAK_BYTES = 200_000_000


class NeedsTwoArguments(Exception):
    """Cannot be rebuilt from its message alone, as unpickling would try to."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"code {code} because {reason}")


class CannotBePickled(Exception):
    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()


class CannotBeUnpickled:
    """Can be pickled but not unpickled."""

    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise ValueError("unpacking refused")


class Fault(Walk):
    """Env with the fault `what` in call `at` (from 1) of `phase`: constructor, reset, step, method, render or close.

    A fault of a value changes what that call of reset or step returns; `box` bounds the observations.
    """

    def __init__(
        self,
        what: str = "nothing",
        phase: str = "step",
        at: int = 1,
        box: tuple[float, float] = (-np.inf, np.inf),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.observation_space = spaces.Box(*box, (2,), self.observation_space.dtype)
        self._what, self._phase, self._at = what, phase, at
        self._calls: dict[str, int] = {}
        self._spoil: Callable[[Any], Any] = _unchanged
        self._spoil_reward: Callable[[Any], Any] = _unchanged
        self._count("constructor")

    def _count(self, phase: str) -> None:
        self._calls[phase] = self._calls.get(phase, 0) + 1
        if phase == self._phase and self._calls[phase] == self._at:
            getattr(self, f"_do_{self._what}")()

    def reset(self, **kwargs: Any) -> Any:
        self._spoil = _unchanged
        self._count("reset")
        observation, info = super().reset(**kwargs)
        return self._shown(observation), info

    def step(self, action: Any) -> Any:
        self._spoil = self._spoil_reward = _unchanged
        self._count("step")
        observation, reward, *rest = super().step(action)
        return self._shown(observation), self._spoil_reward(reward), *rest

    def _shown(self, observation: Any) -> Any:
        """Return the observation as this call returns it."""
        return self._spoil(observation)

    def method(self) -> int:
        self._count("method")
        return self.steps

    def fail_when_opened(self, gate: str) -> None:
        """Start a thread that does `what` when the gate is opened, while no call of the env is in progress."""
        do = getattr(self, f"_do_{self._what}")
        threading.Thread(target=lambda: (wait_at(Path(gate)), do()), daemon=True).start()

    def render(self) -> Any:
        self._count("render")
        return super().render()

    def close(self) -> None:
        self._count("close")

    def _do_nothing(self) -> None:
        pass

    def _do_raise(self) -> None:
        raise ZeroDivisionError("asked to fail")

    def _do_raise_two_arguments(self) -> None:
        raise NeedsTwoArguments(7, "asked to fail")

    def _do_raise_unpicklable(self) -> None:
        raise CannotBePickled

    def _do_raise_mute(self) -> None:
        class MuteError(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no message")

        raise MuteError

    def _do_kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _do_segv(self) -> None:
        _quietly()
        ctypes.string_at(0)

    def _do_abort(self) -> None:
        _quietly()
        os.abort()

    def _do_exit(self) -> None:
        os._exit(3)

    def _do_stop(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def _do_sleep(self) -> None:
        os.write(1, b"stuck\n")
        time.sleep(3600)

    def _do_deaf(self) -> None:
        """Ignore every signal that asks it to end."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        time.sleep(3600)

    def _do_leak(self) -> None:
        self.leaked = b"x" * LEAK_BYTES

    def _do_fork_child(self) -> None:
        self.child = subprocess.Popen(["sleep", "3600"])

    def child_id(self) -> int:
        return self.child.pid

    def _do_system_exit(self) -> None:
        raise SystemExit(3)

    def _do_interrupt(self) -> None:
        raise KeyboardInterrupt

    def _do_wide_observation(self) -> None:
        self._spoil = lambda _: np.zeros(3)

    def _do_scalar_observation(self) -> None:
        self._spoil = lambda _: np.float64(1.0)

    def _do_text_observation(self) -> None:
        self._spoil = lambda _: np.array(["a", "b"])

    def _do_nan_observation(self) -> None:
        self._spoil = lambda good: _with_second(good, np.nan)

    def _do_inf_observation(self) -> None:
        self._spoil = lambda good: _with_second(good, -np.inf)

    def _do_huge_observation(self) -> None:
        """Finite in float64, and infinite in a float32 leaf."""
        self._spoil = lambda good: _with_second(good, 1e300)

    def _do_outside_observation(self) -> None:
        """Finite, and outside every `box` of the tests."""
        self._spoil = lambda good: _with_second(good, 1e6)

    def _do_nan_reward(self) -> None:
        self._spoil_reward = lambda _: np.nan

    def _do_inf_reward(self) -> None:
        self._spoil_reward = lambda _: np.inf

    def _do_text_reward(self) -> None:
        self._spoil_reward = lambda _: "much"

    def _do_hold_the_gil(self) -> None:
        """Hang in C: no signal ends the wait for a mutex, and PyDLL does not release the GIL."""
        os.write(1, b"stuck\n")
        mutex, library = ctypes.create_string_buffer(128), ctypes.PyDLL(None)
        for _ in range(2):
            library.pthread_mutex_lock(mutex)


def _unchanged(value: Any) -> Any:
    return value


def _with_second(observation: Any, value: float) -> Any:
    return np.array([observation[0], value], np.float64)


def _quietly() -> None:
    """Disable core files, and the stack that the handler of the test runner would print in a forked worker."""
    faulthandler.disable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


class IntegerObservation(Walk):
    """Env with a uint8 observation space that returns the given value."""

    def __init__(self, value: Any, **kwargs: Any) -> None:
        super().__init__(dtype=np.float64, **kwargs)
        self.observation_space = spaces.Box(0, 255, (2,), np.uint8)
        self._value = value

    def _observe(self) -> Any:
        return np.array([1, 2], np.uint8) if self.steps == 0 else np.array(self._value)


class OddInfo(Walk):
    """Env with an info that cannot be pickled, or not unpickled, in the `at`-th step of an episode."""

    def __init__(self, what: str, at: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._odd_what, self._odd_at = what, at

    def step(self, action: Any) -> Any:
        *rest, info = super().step(action)
        if self.steps == self._odd_at:
            info["odd"] = self.odd()
        return (*rest, info)

    def odd(self) -> Any:
        return {"lock": threading.Lock, "landmine": CannotBeUnpickled, "fine": str}[self._odd_what]()


class Gated(Walk):
    """Env that waits at a gate in the `at`-th call of `phase` until the test opens it."""

    def __init__(self, gate: str | None = None, phase: str = "step", at: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._gate, self._phase, self._at, self._calls = gate, phase, at, 0
        self._pass("constructor")

    def _pass(self, phase: str) -> None:
        if self._gate is not None and phase == self._phase:
            self._calls += 1
            if self._calls == self._at:
                wait_at(Path(self._gate))

    def reset(self, **kwargs: Any) -> Any:
        self._pass("reset")
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        self._pass("step")
        return super().step(action)

    def method(self) -> int:
        self._pass("method")
        return self.steps

    def large(self) -> bytes:
        self._pass("method")
        return bytes(1 << 20)  # more than a pipe holds


class Gate:
    """Two named pipes: the env reports its arrival, and the test lets it continue. Opening a pipe blocks until the
    other side opens it too, so neither side has to wait for a fixed time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        os.mkfifo(path / "arrived")
        os.mkfifo(path / "opened")

    def __str__(self) -> str:
        return str(self.path)

    def wait_for_arrival(self) -> None:
        (self.path / "arrived").read_bytes()

    def open(self) -> None:
        """Let the env continue. Call it after `wait_for_arrival`."""
        (self.path / "opened").write_bytes(b"")


def wait_at(gate: Path) -> None:
    """Report the arrival and wait until the gate is opened: the side of the env."""
    (gate / "arrived").write_bytes(b"")
    (gate / "opened").read_bytes()


def first_to_note(note: str | Path) -> bool:
    """Create the note and return True, or return False if it exists. Of two concurrent workers, one gets True."""
    try:
        os.close(os.open(note, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


class WritesToStandardStreams(Walk):
    """Env that writes to the descriptors 1 and 2, as native code does."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        for descriptor in (1, 2):
            with contextlib.suppress(OSError):
                os.write(descriptor, b"printed\n")
        return super().step(action)
