"""One healthy env, and one env for each finding. Workers import this module by name."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import subprocess
import sys
import threading
import time
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Healthy(gym.Env):
    """A bounded random walk that terminates at random, or is truncated."""

    def __init__(self) -> None:
        self.observation_space: Any = spaces.Box(-1, 1, (3,), np.float32)
        self.action_space: Any = spaces.Box(-1, 1, (2,), np.float32)
        self.closed = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.over = 0, False
        self.state = self.np_random.uniform(-0.5, 0.5, 3).astype(np.float32)
        return self.observe(), self.info()

    def step(self, action: Any) -> Any:
        if self.over or not hasattr(self, "state"):
            raise RuntimeError("reset first")
        self.move(action)
        self.steps += 1
        terminated, truncated = bool(self.np_random.random() < 0.05), self.steps >= 40
        self.over = terminated or truncated
        return self.observe(), self.reward(), terminated, truncated, self.info()

    def move(self, action: Any) -> None:
        pushed = self.state + 0.1 * float(action[0]) + self.np_random.normal(0, 0.05, 3)
        self.state = np.clip(pushed, -1, 1).astype(np.float32)

    def observe(self) -> Any:
        return self.state.copy()

    def reward(self) -> Any:
        return float(self.state[0])

    def info(self) -> Any:
        return {"steps": self.steps, "position": self.state.copy()}


# -- building and closing --------------------------------------------------------------------------------------
class CannotBeBuilt(Healthy):
    def __init__(self) -> None:
        raise OSError("no licence")


class OnePerProcess(Healthy):
    """Env that holds a resource of which there is only one, and releases it in close."""

    taken = False

    def __init__(self) -> None:
        super().__init__()
        if OnePerProcess.taken:
            raise OSError("address already in use")
        OnePerProcess.taken = True

    def close(self) -> None:
        OnePerProcess.taken = False


class SameAgain:
    """A factory that returns the same env each time."""

    env: Healthy | None = None

    def __call__(self) -> Any:
        self.env = self.env or Healthy()
        return self.env


def not_an_env() -> Any:
    return object()


class CannotBeClosed(Healthy):
    def close(self) -> None:
        raise OSError("the window is gone")


class ClosesOnce(Healthy):
    def close(self) -> None:
        if self.closed:
            raise OSError("closed already")
        self.closed = True


# -- spaces ----------------------------------------------------------------------------------------------------
class NoSpace(Healthy):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = None


class CrossedBounds(Healthy):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space.low[1] = 2.0


class GrowingSpace(Healthy):
    built = 0

    def __init__(self) -> None:
        super().__init__()
        GrowingSpace.built += 1
        self.action_space = spaces.Discrete(GrowingSpace.built)


class ReplacesSpace(Healthy):
    def reset(self, **kwargs: Any) -> Any:
        result = super().reset(**kwargs)
        self.observation_space = spaces.Box(-2, 2, (3,), np.float32)
        return result


class Unsure(spaces.Discrete):
    """A space that does not contain its own samples."""

    def contains(self, x: Any) -> bool:
        return False


class WithActions(Healthy):
    def __init__(self, action_space: Any) -> None:
        super().__init__()
        self.action_space = action_space

    def move(self, action: Any) -> None:
        super().move([0.0])


class WithSpace(Healthy):
    """Env that declares this space and returns the given observation."""

    def __init__(self, space: Any, observation: Any = None) -> None:
        super().__init__()
        self.observation_space = space
        self.observation = space.sample() if observation is None else observation

    def observe(self) -> Any:
        return self.observation


# -- reset and step --------------------------------------------------------------------------------------------
class ResetRaises(Healthy):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        raise ZeroDivisionError("no level")


class ResetNeedsOptions(Healthy):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        _ = options["level"] if options is not None else 0
        return super().reset(seed=seed)


class ResetTakesNothing(Healthy):
    def reset(self) -> Any:
        return super().reset()


class ResetTakesNoOptions(Healthy):
    def reset(self, seed: int | None = None) -> Any:
        return super().reset(seed=seed)


class OldReset(Healthy):
    def reset(self, **kwargs: Any) -> Any:
        return super().reset(**kwargs)[0]


class LongReset(Healthy):
    def reset(self, **kwargs: Any) -> Any:
        return (*super().reset(**kwargs), None)


class ListInfo(Healthy):
    def info(self) -> Any:
        return ["nothing"]


class StepListInfo(Healthy):
    def info(self) -> Any:
        return {} if self.steps == 0 else None


class StepRaises(Healthy):
    def move(self, action: Any) -> None:
        super().move(action)
        if self.steps == 4:
            raise ZeroDivisionError("between two walls")


class StepExits(Healthy):
    def move(self, action: Any) -> None:
        sys.exit(3)


class OldStep(Healthy):
    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated or truncated, info


class StepReturnsList(Healthy):
    def step(self, action: Any) -> Any:
        return list(super().step(action))


class OddReward(Healthy):
    def __init__(self, odd: Any) -> None:
        super().__init__()
        self.odd = odd

    def reward(self) -> Any:
        return self.odd if self.steps >= 4 else 0.0


class OddEnd(Healthy):
    def __init__(self, odd: Any) -> None:
        super().__init__()
        self.odd = odd

    def step(self, action: Any) -> Any:
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, self.odd, info


class NeverEnds(Healthy):
    def step(self, action: Any) -> Any:
        self.over = False
        observation, reward, _, _, info = super().step(action)
        self.over = False
        return observation, reward, False, False, info


class ClockTerminates(Healthy):
    def step(self, action: Any) -> Any:
        self.over = False
        observation, reward, _, _, info = super().step(action)
        return observation, reward, self.steps >= 10, False, info


class NeedsNoReset(Healthy):
    def __init__(self) -> None:
        super().__init__()
        self.reset(seed=0)  # unseeded, one in twenty first steps ends an episode, which a check notices


class GoesOnAfterEnd(Healthy):
    def step(self, action: Any) -> Any:
        ended_before, self.over = self.over, False
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated and not ended_before, truncated and not ended_before, info


class OddObservation(Healthy):
    """Env that returns the observation `odd` from its fourth step on."""

    def __init__(self, odd: Any) -> None:
        super().__init__()
        self.odd = odd

    def observe(self) -> Any:
        return self.odd if self.steps >= 4 else super().observe()


# -- whose is it -----------------------------------------------------------------------------------------------
class ReusesObservation(Healthy):
    def observe(self) -> Any:
        self.buffer = getattr(self, "buffer", np.zeros(3, np.float32))
        self.buffer[:] = self.state
        return self.buffer


class ShowsState(Healthy):
    def observe(self) -> Any:
        return self.state


class ReusesInfo(Healthy):
    def info(self) -> Any:
        self.reused = getattr(self, "reused", {})
        self.reused["steps"] = self.steps
        return self.reused


class ReusesInfoArray(Healthy):
    def info(self) -> Any:
        self.path = getattr(self, "path", np.zeros(3, np.float32))
        self.path[:] = self.state
        return {"path": self.path}


class ClipsInPlace(Healthy):
    def move(self, action: Any) -> None:
        np.clip(action, -0.1, 0.1, out=action)
        super().move(action)


class KeepsAction(Healthy):
    last: Any = None

    def reset(self, **kwargs: Any) -> Any:
        self.last = None
        return super().reset(**kwargs)

    def move(self, action: Any) -> None:
        super().move(action if self.last is None else self.last)
        self.last = action


# -- seeds -----------------------------------------------------------------------------------------------------
class IgnoresSeed(Healthy):
    def reset(self, **kwargs: Any) -> Any:
        result = super().reset(**kwargs)
        self.np_random = np.random.default_rng()
        return result


class GlobalNumpy(Healthy):
    def move(self, action: Any) -> None:
        self.state = np.clip(self.state + np.random.normal(0, 0.05, 3), -1, 1).astype(np.float32)


class GlobalPython(Healthy):
    def reward(self) -> Any:
        return random.random()


class SeedsGlobalNumpy(GlobalNumpy):
    """Env that is reproducible only while nothing else draws from the global generator of numpy."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            np.random.seed(seed)
        return super().reset(seed=seed)


class TouchesGlobal(Healthy):
    def reward(self) -> Any:
        np.random.random()
        return super().reward()


class RemembersVelocity(Healthy):
    """Env in which a variable of one episode changes the next one."""

    velocity = 0.0

    def move(self, action: Any) -> None:
        super().move(action)
        self.velocity += 0.01 * float(action[0])
        self.state = np.clip(self.state + self.velocity, -1, 1).astype(np.float32)


class RemembersEnds(Healthy):
    """Env in which only an episode that has ended changes later ones."""

    ends = 0

    def step(self, action: Any) -> Any:
        result = super().step(action)
        self.ends += self.over
        return result

    def reward(self) -> Any:
        return float(self.ends)

    def reset(self, **kwargs: Any) -> Any:
        self.ends += 0
        return super().reset(**kwargs)


class TellsTheTime(Healthy):
    def info(self) -> Any:
        return {"now": time.perf_counter()}


class OneSeedForAll(Healthy):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=None if seed is None else 7)


class KeepsSeed(Healthy):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.first_seed = getattr(self, "first_seed", 42) if seed is None else seed
        return super().reset(seed=self.first_seed)


class SeedByDefault(Healthy):
    def reset(self, *, seed: int = 42, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed)


class Clockwork(Healthy):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=1)


gym.register("tests/Dice-v0", entry_point="tests.env_checker.broken_envs:IgnoresSeed", nondeterministic=True)


# -- several in one process ------------------------------------------------------------------------------------
class SharesBoard(Healthy):
    """Env whose instances all write to one array."""

    board: ClassVar[Any] = np.zeros(3, np.float32)

    def reset(self, **kwargs: Any) -> Any:
        result = super().reset(**kwargs)
        self.board[:] = self.state
        return result

    def move(self, action: Any) -> None:
        self.state = self.board.copy()
        super().move(action)
        self.board[:] = self.state


class SetsVariable(Healthy):
    def reset(self, **kwargs: Any) -> Any:
        os.environ["ENV_UNDER_TEST_LEVEL"] = "3"
        return super().reset(**kwargs)


class ChangesFolder(Healthy):
    def reset(self, **kwargs: Any) -> Any:
        os.chdir("/")
        return super().reset(**kwargs)


class ChangesSettings(Healthy):
    def __init__(self) -> None:
        super().__init__()
        np.seterr(all="raise")
        signal.signal(signal.SIGINT, signal.SIG_DFL)


# -- travelling ------------------------------------------------------------------------------------------------
class InfoWithLock(Healthy):
    def info(self) -> Any:
        return {"fine": 1, "inner": {"lock": threading.Lock(), "fine": 2}}


class HoldsLock(Healthy):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


# -- what stays ------------------------------------------------------------------------------------------------
class LeavesThread(Healthy):
    def __init__(self) -> None:
        super().__init__()
        threading.Thread(target=threading.Event().wait, name="telemetry", daemon=True).start()


class LeavesProcess(Healthy):
    started: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        super().__init__()
        self.started.append(subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]))


class LeavesFile(Healthy):
    opened: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        super().__init__()
        self.opened.append(open(os.devnull))  # noqa: SIM115


class Hoards(Healthy):
    hoard: ClassVar[list[Any]] = []

    def reset(self, **kwargs: Any) -> Any:
        self.hoard.append(np.ones(10_000))
        return super().reset(**kwargs)


class SlowReset(Healthy):
    def reset(self, **kwargs: Any) -> Any:
        np.linalg.svd(np.ones((200, 200)))
        return super().reset(**kwargs)


# -- the worst -------------------------------------------------------------------------------------------------
class Hangs(Healthy):
    def move(self, action: Any) -> None:
        super().move(action)
        if self.steps == 4:
            wait_for_ever()


def wait_for_ever() -> None:
    threading.Event().wait()


class Crashes(Healthy):
    """Env that causes a real segmentation fault."""

    def move(self, action: Any) -> None:
        super().move(action)
        if self.steps == 4:
            crash_here()


def crash_here() -> None:
    ctypes.string_at(0)


class Exits(Healthy):
    def reset(self, **kwargs: Any) -> Any:
        os.write(2, b"the simulator says: licence expired\n")
        os._exit(3)


class CrashesAsSecond(Healthy):
    """Env that works alone; two instances stepped in turn end the process."""

    last: ClassVar[Any] = None

    def step(self, action: Any) -> Any:
        if CrashesAsSecond.last not in (None, self) and self.steps and CrashesAsSecond.last.steps == self.steps:
            os._exit(4)
        CrashesAsSecond.last = self
        return super().step(action)

    def close(self) -> None:
        CrashesAsSecond.last = None


class Prints(Healthy):
    def reset(self, **kwargs: Any) -> Any:
        print("resetting", flush=True)
        return super().reset(**kwargs)
