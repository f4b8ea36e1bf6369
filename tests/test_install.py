"""A wheel, installed without a clone; and every extra that messages name exists."""

from __future__ import annotations

import importlib.metadata
import itertools
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from multiverse.adapters.env_source import EXTRA_OF, EXTRAS, recipes
from multiverse.core.errors import PreflightError

ROOT = Path(__file__).parents[1]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]


def said(command: list[str], **options: Any) -> str:
    """Return the output of a command that must succeed, without access to this clone."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MAKEFLAGS", "MAKELEVEL")}
    done = subprocess.run(command, capture_output=True, text=True, env=clean, timeout=300, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of `make wheel`, built in another folder."""
    folder = tmp_path_factory.mktemp("dist")
    words = said(["make", "--dry-run", "--no-print-directory", "wheel", f"PYTHON={sys.executable}"], cwd=ROOT)
    command = words.replace("--wheel-dir dist", f"--no-build-isolation --wheel-dir {folder}").split()
    said(command, cwd=ROOT)
    (made,) = folder.glob("multiverse-*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new venv with the wheel; it uses the dependencies of this one."""
    home = tmp_path_factory.mktemp("fresh") / "venv"
    venv.create(home)
    python = home / "bin" / "python"
    said([*PIP, "--python", str(python), "install", "--quiet", "--no-deps", "--no-index", str(wheel)])
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "beside.pth").write_text(sysconfig.get_path("purelib"))
    return python


def test_wheel_has_the_whole_package(wheel: Path) -> None:
    tracked = said(["git", "ls-files", "src/multiverse"], cwd=ROOT).split()
    inside = {f"src/{name}" for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in tracked if (ROOT / name).exists()} <= inside


def test_installed_wheel_trains_with_a_preset_and_plays_the_quest(installed: Path, tmp_path: Path) -> None:
    command, where = str(installed.parent / "multiverse"), {"cwd": tmp_path}
    home = said([str(installed), "-c", "import multiverse; print(multiverse.__file__)"], **where)
    assert home.startswith(str(installed.parents[1]))
    out = said([command, "train", "CartPole-v1", "--env-steps", "256", "--evaluation-episodes", "1"], **where)
    assert "Settings: flags, then the preset for CartPole-v1" in out and "Done: 256 env steps" in out
    quest = "import multiverse as mv\nwith mv.make_vec('multiverse/Quest-v0', 1) as e: print(len(e.reset(seed=0)[0]))"
    assert said([str(installed), "-c", quest], **where) == "1\n"


def test_installed_package_provides_its_extras_to_pip(installed: Path) -> None:
    """`pip install 'multiverse[tensorboard]'` works with the installed package: no index needs to have multiverse."""
    options = ["install", "--dry-run", "--no-index", "--quiet", "multiverse[tensorboard]"]
    said([*PIP, "--python", str(installed), *options])


def texts() -> list[Path]:
    kinds = ("*.md", "*.py", "*.mk")
    found = [
        path
        for folder in ("src", "docs", "examples", "benchmarks")
        for kind in kinds
        for path in ROOT.glob(f"{folder}/**/{kind}")
    ]
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "Makefile", *found]


def test_every_named_extra_exists() -> None:
    known = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    named = {
        (path.name, extra)
        for path in texts()
        for several in re.findall(r"(?:multiverse|whl|['\"]\.)\[([a-z0-9, -]+)\]", path.read_text())
        for extra in re.split(r", *", several)
    }
    assert len(named) > 20
    assert {(name, extra) for name, extra in named if extra not in known} == set()
    assert {*EXTRAS.values(), *EXTRA_OF.values()} <= known


def test_every_extra_is_in_the_install_page() -> None:
    known = importlib.metadata.metadata("multiverse").get_all("Provides-Extra") or []
    rows = re.findall(r"^\| (`.*?) \|", (ROOT / "docs" / "install.md").read_text(), re.MULTILINE)
    assert sorted(name for row in rows for name in re.findall(r"`(.*?)`", row)) == sorted(known)


@pytest.mark.parametrize(("env", "extra"), [("LunarLander-v3", "box2d"), ("HalfCheetah-v5", "mujoco")])
def test_env_without_its_package_names_the_extra(env: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: Any, **__: Any) -> None:
        raise gymnasium.error.DependencyNotInstalled("something is not there")

    monkeypatch.setattr(gymnasium, "make", absent)
    (recipe,) = recipes(env, 1, None, None)
    with pytest.raises(PreflightError, match=rf"{env} needs .*'multiverse\[{extra}\]'"):
        recipe.build()


@pytest.mark.parametrize(
    ("typed", "package", "extra"),
    [
        ("multiverse/AntDir-v0 --algorithm sac", "mujoco", "mujoco"),
        ("--config examples/meta_rl/configs/ant_dir.yaml", "mujoco", "mujoco"),
        ("multiverse/LunarLander-V-v3 --algorithm discrete_sac", "Box2D", "box2d"),
        ("mpe2.simple_spread_v3:parallel_env", "mpe2", "mpe"),
        ("pettingzoo.classic.connect_four_v3:env", "pettingzoo", "pettingzoo"),
    ],
)
def test_command_without_a_needed_package_names_the_extra(typed: str, package: str, extra: str, tmp_path: Path) -> None:
    """In one line, with few packages installed."""
    (tmp_path / "sitecustomize.py").write_text(f"import sys; sys.modules[{package!r}] = None")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    paths = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT / "src")])}
    command = [sys.executable, "-m", "multiverse.cli", "train", *typed.split()]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=os.environ | paths, timeout=120)
    assert done.returncode == 2 and done.stdout == "", done.stdout + done.stderr
    assert f"pip install 'multiverse[{extra}]'" in done.stderr and done.stderr.count("\n") == 1


def test_every_pin_in_constraints_is_a_dependency() -> None:
    """A dependency of a dependency counts too, and so do those of all extras."""
    pins = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    left = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    needed: set[tuple[str, str]] = set()
    while left:
        one = Requirement(left.pop())
        for extra in {"", *one.extras}:
            if (name := canonicalize_name(one.name), extra) in needed:
                continue
            needed.add((name, extra))
            try:
                wanted = importlib.metadata.requires(name) or []
            except importlib.metadata.PackageNotFoundError:
                pytest.skip(f"{name} is not installed: what it needs is not known")
            marked = ((text, Requirement(text).marker) for text in wanted)
            left += [text for text, marker in marked if marker is None or marker.evaluate({"extra": extra})]
    assert {canonicalize_name(pin) for pin in pins} - {name for name, _ in needed} == set()
