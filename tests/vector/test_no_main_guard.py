"""Scripts without `if __name__ == "__main__"`: their definitions are sent to workers, and the script runs once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
METHODS = ["forkserver", "fork", "spawn"]  # one program uses them all, one after another

DEFINITIONS = """
import sys
import gymnasium as gym
import numpy as np
import multiverse as mv

print("script runs", flush=True)

class Mine(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)
    factor = 1

    def __init__(self, factor=1, render_mode=None):
        self.factor = factor

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), float(self.factor * CONSTANT), False, False, {}

CONSTANT = 3
gym.register("mine/Mine-v0", entry_point=Mine)

def local_class():
    class Local(Mine):
        pass
    return Local

def closure(factor):
    def build():
        return Mine(factor)
    return build

class Halved(gym.RewardWrapper):
    def reward(self, reward):
        return reward / 2

def check(name, source, expected, **options):
    for method in ("forkserver", "fork", "spawn"):
        workers = mv.WorkerOptions(count=2, start_method=method)
        with mv.make_vec(source, 2, "process", workers=workers, **options) as envs:
            envs.reset(seed=0)
            rewards = envs.step(np.zeros(2, np.int64))[1]
        assert rewards.tolist() == [expected, expected], (name, method, rewards)
    print(name, "ok", flush=True)
"""

FEW = """
check("class", Mine, 3.0)
check("lambda", lambda: Mine(5), 15.0)
"""
MORE = """
check("local class", local_class(), 3.0)
check("closure", closure(7), 21.0)
check("wrapper", Mine, 1.5, wrappers=[Halved])
check("plan", Mine, 3.0, reset_plan=lambda env_id, episode: mv.ResetRequest(seed=env_id))
check("registered id", "mine/Mine-v0", 3.0)
"""


def said_by(checks: str) -> list[str]:
    names = [line.split('"')[1] for line in checks.split("\n") if line.startswith("check(")]
    return ["script runs", *(f"{name} ok" for name in names)]


def lines_of(command: list[str], cwd: Path, text: str | None = None) -> list[str]:
    """Standard output of a command that must print nothing on standard error."""
    done = subprocess.run(command, cwd=cwd, input=text, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.splitlines()


def test_script_needs_no_main_guard(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(DEFINITIONS + FEW + MORE)
    assert lines_of([sys.executable, "script.py"], tmp_path) == said_by(FEW + MORE)


def test_code_from_the_command_line_runs(tmp_path: Path) -> None:
    assert lines_of([sys.executable, "-c", DEFINITIONS + FEW], tmp_path) == said_by(FEW)


def test_code_from_standard_input_runs(tmp_path: Path) -> None:
    assert lines_of([sys.executable, "-"], tmp_path, DEFINITIONS + FEW) == said_by(FEW)


def test_module_run_with_dash_m_needs_no_main_guard(tmp_path: Path) -> None:
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text(DEFINITIONS + FEW)
    assert lines_of([sys.executable, "-m", "my_package.train"], tmp_path) == said_by(FEW)


NOTEBOOK = """
import __main__
import linecache

cells = {cells!r}
for number, cell in enumerate(cells):
    name = f"<ipython-input-{{number}}>"
    linecache.cache[name] = (len(cell), None, cell.splitlines(True), name)
    exec(compile(cell, name, "exec"), __main__.__dict__)
"""


def test_notebook_cells_run_and_see_changes_of_later_cells(tmp_path: Path) -> None:
    cells = [DEFINITIONS, FEW, "CONSTANT = 4", 'check("changed", Mine, 4.0)']
    (tmp_path / "kernel.py").write_text(NOTEBOOK.format(cells=cells))
    assert lines_of([sys.executable, "kernel.py"], tmp_path) == [*said_by(FEW), "changed ok"]


UNTOUCHED = """
before = dict(vars(Mine))
for source in (Mine, "mine/Mine-v0"):
    for method in ("forkserver", "spawn"):
        with mv.make_vec(source, 2, "process", workers=mv.WorkerOptions(count=1, start_method=method)) as envs:
            envs.get_attr("unwrapped")
        changed = [name for name in before if vars(Mine).get(name) is not before[name]]
        print(source if isinstance(source, str) else "class", method, changed)
"""


def test_classes_of_the_script_are_not_overwritten(tmp_path: Path) -> None:
    """A worker's copy of a class that was sent by value must not replace the original when it comes back."""
    found = lines_of([sys.executable, "-c", DEFINITIONS + UNTOUCHED], tmp_path)[1:]
    assert found == [f"{source} {method} []" for source in ("class", "mine/Mine-v0") for method in METHODS[::2]]


WITH_HELPER = """
import threading
import multiverse as mv
import numpy as np
import my_helper

print("script runs", flush=True)
failures = []

def work(method):
    try:
        workers = mv.WorkerOptions(count=2, start_method=method)
        with mv.make_vec(my_helper.Helped, 2, "process", workers=workers) as envs:
            envs.reset(seed=0)
            print(method, envs.step(np.zeros(2, np.int64))[1].tolist(), flush=True)
        workers = mv.WorkerOptions(count=1, start_method=method)
        with mv.make_vec("my_helper:build", 2, "process", workers=workers) as envs:
            print(method, envs.get_attr("where")[0], flush=True)
    except BaseException as error:
        failures.append(error)

for method in ("forkserver", "fork", "spawn"):
    thread = threading.Thread(target=work, args=(method,))
    thread.start()
    thread.join()
if failures:
    raise failures[0]
"""

MY_HELPER = """
import os
import gymnasium as gym
import numpy as np

class Helped(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)

    @property
    def where(self):
        return os.getcwd()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 9.0, False, False, {}

def build():
    return Helped()
"""


def test_script_in_another_directory_finds_its_helper_from_any_thread(tmp_path: Path) -> None:
    place, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    place.mkdir()
    elsewhere.mkdir()
    (place / "my_helper.py").write_text(MY_HELPER)
    (place / "main.py").write_text(WITH_HELPER)
    expected = [
        line for method in METHODS for line in (f"{method} [9.0, 9.0]", f"{method} {os.path.realpath(elsewhere)}")
    ]
    found = lines_of([sys.executable, str(place / "main.py")], elsewhere)
    assert found == ["script runs", *expected]


def test_workers_see_the_current_environment_variables() -> None:
    text = """
import os
import gymnasium as gym
import multiverse as mv
from tests.envs import Walk

class Asks(Walk):
    def setting(self):
        return os.environ.get("MY_SETTING"), os.environ.get("OMP_NUM_THREADS")

for value in ("one", "two"):
    os.environ["MY_SETTING"] = value
    with mv.make_vec(Asks, 1, "process", workers=1) as envs:
        print(envs.call("setting")[0], flush=True)
"""
    command = [sys.executable, "-c", text]
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["('one', '1')", "('two', '1')"]
    assert done.stderr == ""


def test_workers_do_not_load_torch() -> None:
    text = """
import sys
sys.modules["torch"] = type(sys)("torch")  # as if the script had imported it
import multiverse as mv
from tests.envs import Walk

class Looks(Walk):
    def torch_is_loaded(self):
        return "torch" in sys.modules

for method in ("forkserver", "spawn"):
    with mv.make_vec(Looks, 1, "process", workers=mv.WorkerOptions(count=1, start_method=method)) as envs:
        print(envs.call("torch_is_loaded"))
"""
    assert lines_of([sys.executable, "-c", text], ROOT) == ["(False,)", "(False,)"]
