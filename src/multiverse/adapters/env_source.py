"""Turns the user's `env` argument into one picklable recipe per env.

A recipe builds one env and its adapter. The `EnvSpec` of an id goes into the recipe by value, so ids that the user's
script has registered work in every worker (see `registered.without_main`).
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import gymnasium
from gymnasium.envs.registration import EnvSpec

import multiverse.envs  # noqa: F401  registers their ids
from multiverse.adapters.agents import DEFAULT_AGENTS, AgentOptions
from multiverse.adapters.gymnasium import GymnasiumEnv
from multiverse.adapters.pettingzoo_aec import PettingZooTurnEnv
from multiverse.adapters.pettingzoo_parallel import PettingZooParallelEnv, all_at_once
from multiverse.adapters.registered import why_missing, without_main
from multiverse.core.env import Env, EnvKind
from multiverse.core.errors import InvalidRequest, PreflightError
from multiverse.core.imports import colon_spelling, module_named, modules_like
from multiverse.core.plain_files import read_named
from multiverse.core.plan import whole_number
from multiverse.core.wording import nearest, short_error

EnvSource = str | EnvSpec | Callable[..., Any] | Sequence[Callable[..., Any]]
Source = EnvSpec | Callable[..., Any]
Wrapper = Callable[[Any], Any]

LARGEST_SOURCE = 2**22

BUILT_IN = {
    "BoxJump-v0": "multiverse.envs.box_jump:v0",
    "BoxJump-v1": "multiverse.envs.box_jump:v1",
}
"""Built-in envs that Gymnasium cannot register, since they are no `gymnasium.Env`: what builds each."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to build one env."""

    source: Source
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: tuple[Wrapper, ...] = ()
    agents: AgentOptions = DEFAULT_AGENTS

    def build(self) -> Env:
        return adapt(self.build_foreign(), self.agents)

    def build_foreign(self) -> Any:
        """Build the env with its wrappers, without an adapter."""
        try:
            if isinstance(self.source, EnvSpec):
                env: Any = _made(self.source, self.kwargs)
            else:
                env = self.source(**self.kwargs)
        except gymnasium.error.Error as error:
            if why := why_missing(error):  # guard: a-missing-id-comes-with-its-reason
                raise type(error)(f"{str(error).removesuffix('.')}{why}") from error
            raise
        for wrap in self.wrappers:
            env = wrap(env)
        return env


EXTRAS = {"gymnasium.envs.box2d": "box2d", "gymnasium.envs.mujoco": "mujoco"}
"""Extra of multiverse that Gymnasium's envs need, by the module they are in."""
EXTRA_OF = {"mujoco": "mujoco", "Box2D": "box2d", "pettingzoo": "pettingzoo", "mpe2": "mpe"}
"""Extra of multiverse that installs a package, by the name of the package."""


def _missing_extra(error: BaseException | None) -> str:
    """Return the extra that installs the package that could not be imported; '' if there is none."""
    while error is not None:
        package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
        if package in EXTRA_OF and not _installed(package):  # else only a module of it is missing
            return EXTRA_OF[package]
        error = error.__cause__ or error.__context__
    return ""


def _installed(package: str) -> bool:
    if package in sys.modules:
        return sys.modules[package] is not None  # None: its import is blocked
    return importlib.util.find_spec(package) is not None


def _made(spec: EnvSpec, kwargs: Mapping[str, Any]) -> Any:
    try:
        with _without_deprecations_of_models(spec):
            return gymnasium.make(spec, **kwargs)
    except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        known = (ours for module, ours in EXTRAS.items() if str(spec.entry_point).startswith(module))
        extra = next(known, "") or _missing_extra(error)
        if not extra:
            raise
        raise PreflightError(
            f"{spec.id} needs packages that are not installed: pip install 'multiverse[{extra}]'"
        ) from error


_BUILDING = threading.local()
"""`gymnasium_model`: whether this thread builds one of Gymnasium's MuJoCo envs."""


@contextmanager
def _without_deprecations_of_models(spec: EnvSpec) -> Iterator[None]:
    """Hide MuJoCo's warnings about deprecated elements in Gymnasium's own model files, which it prints for every env
    and which users cannot fix. Its other warnings, and those about other models, are still printed."""
    if not str(spec.entry_point).startswith("gymnasium.envs.mujoco") or importlib.util.find_spec("mujoco") is None:
        yield
        return
    mujoco = importlib.import_module("mujoco")
    if mujoco.get_mju_user_warning() is None:
        # It stays: if it were removed while another thread is in MuJoCo, a warning there would end the program.
        mujoco.set_mju_user_warning(_print_warning)
    _BUILDING.gymnasium_model = True
    try:
        yield
    finally:
        _BUILDING.gymnasium_model = False


def _print_warning(warning: str) -> None:
    if not (getattr(_BUILDING, "gymnasium_model", False) and "deprecated" in warning):
        sys.stderr.write(f"WARNING: {warning}\n")


def adapt(env: Any, agents: AgentOptions = DEFAULT_AGENTS) -> Env:
    """Return the adapter for an env, by its type."""
    if isinstance(env, gymnasium.Env):
        return GymnasiumEnv(env, agents.masks)
    kind = pettingzoo_kind(env)
    if kind == "parallel":
        if agents.parallel:
            raise InvalidRequest("parallel=True: the agents of this env act at the same time already; leave it out")
        return PettingZooParallelEnv(env, agents)
    if kind == "turns":
        if agents.parallel:
            return PettingZooParallelEnv(all_at_once(env), agents)
        return PettingZooTurnEnv(env, agents)
    if isinstance(env, gymnasium.vector.VectorEnv):
        raise InvalidRequest(
            f"{env!r} is a vector env already: pass make_vec a function that builds a single env, and num_envs"
        )
    raise InvalidRequest(
        f"the env factory returned {type(env).__module__}.{type(env).__qualname__}, which is neither "
        "a gymnasium.Env nor a PettingZoo env (pettingzoo.ParallelEnv or AECEnv)"
    )


def pettingzoo_kind(env: Any) -> EnvKind | None:
    """Return which of PettingZoo's two kinds an env is, or None."""
    pettingzoo = sys.modules.get("pettingzoo")  # loaded if such an env exists
    if pettingzoo is None:
        return None
    if isinstance(env, pettingzoo.ParallelEnv):
        return "parallel"
    return "turns" if isinstance(env, pettingzoo.AECEnv) else None


def recipes(
    source: EnvSource,
    num_envs: int | None,
    env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
    wrappers: Sequence[Wrapper] | Sequence[Sequence[Wrapper]] | None,
) -> list[Recipe]:
    """Return one recipe per env; refuse lists whose length is not the number of envs."""
    sources = _sources(source, num_envs)
    count = len(sources)
    kwargs = _per_env_kwargs(env_kwargs, count)
    wraps = _per_env_wrappers(wrappers, count)
    return [Recipe(s, dict(k), (*own, *w)) for (s, own), k, w in zip(sources, kwargs, wraps)]


def wrapped(source: EnvSource, wrappers: Sequence[Wrapper]) -> EnvSource:
    """Return a source of the same envs in these wrappers, the first of which is the innermost."""
    if not wrappers:
        return source
    if isinstance(source, list | tuple):
        return [cast(Callable[..., Any], wrapped(item, wrappers)) for item in source]
    _check_wrappers("wrappers", wrappers)
    bare, own = _one_source(source)
    return functools.partial(_built, bare, (*own, *wrappers))


def _built(source: Source, wrappers: tuple[Wrapper, ...], **kwargs: Any) -> Any:
    return Recipe(source, kwargs, wrappers).build_foreign()


def _sources(source: EnvSource, num_envs: int | None) -> list[tuple[Source, tuple[Wrapper, ...]]]:
    """Return the source of each env, with the wrappers of its spec."""
    if num_envs is not None:
        num_envs = whole_number("num_envs", num_envs)
    if isinstance(source, list | tuple):
        if not source:
            raise InvalidRequest("the list of env factories is empty")
        if num_envs is not None and num_envs != len(source):
            raise InvalidRequest(
                f"{len(source)} env factories for num_envs={num_envs}: leave num_envs out, or pass one factory per env"
            )
        return [_one_source(item) for item in source]
    count = 1 if num_envs is None else num_envs
    if count < 1:
        raise InvalidRequest(f"num_envs={num_envs}: expected at least 1")
    return [_one_source(source)] * count


def _one_source(source: Any) -> tuple[Source, tuple[Wrapper, ...]]:
    if isinstance(source, str):
        source = _from_string(source)
    if isinstance(source, EnvSpec):
        return without_main(source)
    if isinstance(source, gymnasium.Env):
        raise InvalidRequest(f"{source!r} is one instance: pass a function that builds an env, e.g. lambda: MyEnv()")
    if callable(source):
        return source, ()
    raise InvalidRequest(f"env={source!r}: expected a Gymnasium id, 'module:name', a callable, or a list of callables")


def _from_string(text: str) -> Source:
    module_name, colon, name = BUILT_IN.get(text, text).rpartition(":")
    if not colon and text.endswith(".py"):
        raise InvalidRequest(f"env={text!r} names a file, not an env in it. {_envs_in_file(text)}")
    module = _imported(module_name, text) if colon else None
    maker: Any = getattr(module, name, None)
    if callable(maker):
        return maker  # type: ignore[no-any-return]
    try:
        return gymnasium.spec(name)  # as in Gymnasium, importing the module may register the id
    except gymnasium.error.Error as error:
        if text.startswith("ALE/"):  # importing its package registers its ids
            install = "" if importlib.util.find_spec("ale_py") else "pip install ale-py, then "
            raise InvalidRequest(f"env={text!r} belongs to another package: {install}use ale_py:{text}") from error
        names = [key for key, value in vars(module).items() if callable(value) and key[0] != "_"] if colon else []
        no_callable = f"module {module_name!r} has no callable {name!r}"
        for near in nearest(name, names):
            raise InvalidRequest(f"env={text!r}: {no_callable}. Did you mean {module_name}:{near}?") from error
        prefix = f"{no_callable}, and Gymnasium has no such id: " if colon else ""
        module_text = f"{module_name}.{name}" if colon else text
        suggestion = next(filter(None, map(_env_in_module, [module_text, *modules_like(module_text)])), "")
        suggestion = suggestion or ("" if colon else colon_spelling(text))
        if not (colon or suggestion or "did you mean" in str(error).lower()):
            suggestion = next(iter(nearest(text, [*BUILT_IN, *gymnasium.registry])), "")
        reason = f"{str(error).removesuffix('.')}. Did you mean {suggestion}?" if suggestion else str(error)
        raise InvalidRequest(f"env={text!r}: {prefix}{reason}") from error


def _envs_in_file(text: str) -> str:
    """Suggest what in this file may build an env: classes and functions with "env" in their names or bases, or all if
    there are none. The file is read, not imported, which could have side effects."""
    try:
        defined = ast.parse(read_named(text, LARGEST_SOURCE)).body
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError) as error:
        return f"It cannot be read: {short_error(error)}"
    likely_by_name: dict[str, bool] = {}
    for node in defined:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names = [node.name, *map(ast.unparse, getattr(node, "bases", ()))]
            likely_by_name[node.name] = any("env" in name.lower() or likely_by_name.get(name) for name in names)
    public = [name for name in likely_by_name if not name.startswith("_")]
    likely = [name for name in public if likely_by_name[name]] or public
    return f"Use {' or '.join(f'{text}:{name}' for name in likely) or f'{text}:NAME'}"


def _env_in_module(text: str) -> str:
    """Return the functions that build the envs of a PettingZoo module; '' if this names no such module. The module is
    read, not imported."""
    package, *inside = text.split(".")
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return ""
    for home in (spec and spec.submodule_search_locations) or ():
        try:
            source = Path(home, *inside).with_suffix(".py").read_text()
        except (OSError, ValueError):
            continue
        if makers := [name for name in ("parallel_env", "env") if re.search(rf"\b{name}\b", source)]:
            return " or ".join(f"{text}:{name}" for name in makers)
    return ""


def _imported(module_name: str, text: str) -> Any:
    try:
        return module_named(module_name)
    except InvalidRequest as error:
        raise InvalidRequest(f"env={text!r}: {error}") from error
    except Exception as error:  # the user's module may raise anything
        hint = f": pip install 'multiverse[{extra}]'" if (extra := _missing_extra(error)) else ""
        missing = str(error.name) if isinstance(error, ModuleNotFoundError) else ""
        if others := modules_like(missing):
            hint = f". Did you mean {' or '.join(text.replace(missing, other) for other in others)}?"
        raise InvalidRequest(
            f"env={text!r}: importing {module_name!r} failed ({type(error).__name__}: {error}){hint}"
        ) from error


# -- arguments of each env -------------------------------------------------------------------------------------
def _per_env_kwargs(env_kwargs: Any, count: int) -> list[Mapping[str, Any]]:
    if env_kwargs is None or isinstance(env_kwargs, Mapping):
        return [_checked_kwargs("env_kwargs", env_kwargs or {})] * count
    if not isinstance(env_kwargs, Sequence) or isinstance(env_kwargs, str | bytes):
        raise InvalidRequest(
            f"env_kwargs={env_kwargs!r}: expected a dict for all envs, or a list with one dict per env"
        )
    if len(env_kwargs) != count:
        raise InvalidRequest(f"{len(env_kwargs)} env_kwargs for {count} envs: pass one for all, or one per env")
    return [_checked_kwargs(f"env_kwargs[{i}]", kwargs) for i, kwargs in enumerate(env_kwargs)]


def _checked_kwargs(name: str, kwargs: Any) -> Mapping[str, Any]:
    if not isinstance(kwargs, Mapping) or not all(isinstance(key, str) for key in kwargs):
        raise InvalidRequest(f"{name}={kwargs!r}: expected a dict from argument names to values")
    return kwargs


def _per_env_wrappers(wrappers: Any, count: int) -> list[Sequence[Wrapper]]:
    if wrappers is None:
        return [()] * count
    if not isinstance(wrappers, list | tuple):
        name = getattr(wrappers, "__name__", repr(wrappers))
        raise InvalidRequest(f"wrappers={name}: pass a list, wrappers=[{name if callable(wrappers) else '...'}]")
    if all(callable(w) for w in wrappers):
        return [tuple(wrappers)] * count
    for i, each in enumerate(wrappers):
        if not callable(each):
            _check_wrappers(f"wrappers[{i}]", each)
    if any(callable(w) for w in wrappers):
        raise InvalidRequest("wrappers mixes callables and lists: pass one list for all envs, or one list per env")
    if len(wrappers) != count:
        raise InvalidRequest(
            f"{len(wrappers)} lists of wrappers for {count} envs: pass one list for all, or one per env"
        )
    return [tuple(each) for each in wrappers]


def _check_wrappers(name: str, wrappers: Any) -> None:
    if not isinstance(wrappers, list | tuple) or not all(callable(w) for w in wrappers):
        raise InvalidRequest(f"{name}={wrappers!r}: expected functions that take an env and return one, in a list")
