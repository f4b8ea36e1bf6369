"""From what a user writes as `env` to one picklable recipe per env.

A recipe is a callable without arguments that builds one foreign env. An id's `EnvSpec` goes into the recipe by
value, so ids that were registered in the user's own script work in every worker; where it names something of that
script ("__main__:MyEnv") it is that thing that goes, for a worker has another `__main__`.
"""

from __future__ import annotations

import ast
import copy
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
from gymnasium.envs.registration import EnvSpec, WrapperSpec, load_env_creator

import multiverse.envs  # noqa: F401  their ids are known from here on
from multiverse.adapters.agents import NOTHING_SAID, AgentOptions
from multiverse.adapters.gymnasium import GymnasiumEnv
from multiverse.adapters.pettingzoo_aec import PettingZooTurnEnv
from multiverse.adapters.pettingzoo_parallel import PettingZooParallelEnv, all_at_once
from multiverse.adapters.registered import why_missing
from multiverse.core.env import Env, EnvKind
from multiverse.core.errors import InvalidRequest, PreflightError
from multiverse.core.imports import module_named, modules_like, with_a_colon
from multiverse.core.plain_files import read_named
from multiverse.core.plan import whole_number
from multiverse.core.wording import in_a_line, nearest

EnvSource = str | EnvSpec | Callable[..., Any] | Sequence[Callable[..., Any]]
Source = EnvSpec | Callable[..., Any]
Wrapper = Callable[[Any], Any]

LARGEST_SOURCE = 2**22

BUILT_IN = {
    "BoxJump-v0": "multiverse.envs.box_jump:v0",
    "BoxJump-v1": "multiverse.envs.box_jump:v1",
}
"""Names of our own envs that Gymnasium cannot hold: what builds each."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to build one env."""

    source: Source
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: tuple[Wrapper, ...] = ()
    agents: AgentOptions = NOTHING_SAID

    def build(self) -> Env:
        return adapt(self.build_foreign(), self.agents)

    def build_foreign(self) -> Any:
        """The env itself, with its wrappers and nothing of ours."""
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
"""Of Gymnasium's envs that need one: ours, by the module they are in."""
EXTRA_OF = {"mujoco": "mujoco", "Box2D": "box2d", "pettingzoo": "pettingzoo", "mpe2": "mpe"}
"""By the package that is missing."""


def _missing(error: BaseException | None) -> str:
    """The extra that brings what could not be imported; '' if none does."""
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
        with _without_words_to_gymnasium(spec):
            return gymnasium.make(spec, **kwargs)
    except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        known = (ours for module, ours in EXTRAS.items() if str(spec.entry_point).startswith(module))
        extra = next(known, "") or _missing(error)
        if not extra:
            raise
        raise PreflightError(
            f"{spec.id} needs what is not installed here: pip install 'multiverse[{extra}]'"
        ) from error


class _Quiet(threading.local):
    """Whether this thread builds one of Gymnasium's models."""

    now = False


_QUIET = _Quiet()


@contextmanager
def _without_words_to_gymnasium(spec: EnvSpec) -> Iterator[None]:
    """MuJoCo tells, at every load, what is deprecated in the model files that come with Gymnasium: nothing that whoever
    uses them could change, and said once for each env. Its other warnings, and those of other models, are heard."""
    if not str(spec.entry_point).startswith("gymnasium.envs.mujoco") or importlib.util.find_spec("mujoco") is None:
        yield
        return
    mujoco = importlib.import_module("mujoco")
    if mujoco.get_mju_user_warning() is None:
        # For good: taken back while another thread is in MuJoCo, it would end the program with that thread's warning.
        mujoco.set_mju_user_warning(_tell_what_is_new)
    _QUIET.now = True
    try:
        yield
    finally:
        _QUIET.now = False


def _tell_what_is_new(warning: str) -> None:
    if not (_QUIET.now and "deprecated" in warning):
        sys.stderr.write(f"WARNING: {warning}\n")


def adapt(env: Any, agents: AgentOptions = NOTHING_SAID) -> Env:
    """The adapter for a foreign env, by what it is."""
    if isinstance(env, gymnasium.Env):
        return GymnasiumEnv(env, agents.masks)
    kind = pettingzoo_kind(env)
    if kind == "parallel":
        if agents.parallel:
            raise InvalidRequest("parallel=True: this env's agents act at once already; leave it out")
        return PettingZooParallelEnv(env, agents)
    if kind == "turns":
        if agents.parallel:
            return PettingZooParallelEnv(all_at_once(env), agents)
        return PettingZooTurnEnv(env, agents)
    if isinstance(env, gymnasium.vector.VectorEnv):
        raise InvalidRequest(
            f"{env!r} is a vector env already; give make_vec something that builds one single env, and num_envs"
        )
    raise InvalidRequest(
        f"the env factory returned {type(env).__module__}.{type(env).__qualname__}, which is neither "
        "a gymnasium.Env nor a PettingZoo env (pettingzoo.ParallelEnv or AECEnv)"
    )


def pettingzoo_kind(env: Any) -> EnvKind | None:
    """Which of PettingZoo's two kinds an env is, if any."""
    pettingzoo = sys.modules.get("pettingzoo")  # whoever built such an env has loaded it
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
    """One recipe per env; refuses lists whose length is not the number of envs."""
    sources = _sources(source, num_envs)
    count = len(sources)
    kwargs = _per_env_kwargs(env_kwargs, count)
    wraps = _per_env_wrappers(wrappers, count)
    return [Recipe(s, dict(k), (*own, *w)) for (s, own), k, w in zip(sources, kwargs, wraps)]


def wrapped(source: EnvSource, wrappers: Sequence[Wrapper]) -> EnvSource:
    """The same, whose envs come in these wrappers; the first is the innermost."""
    if not wrappers:
        return source
    if isinstance(source, list | tuple):
        return [cast(Callable[..., Any], wrapped(one, wrappers)) for one in source]
    _refuse_no_wrappers("wrappers", wrappers)
    bare, own = _one_source(source)
    return functools.partial(_built, bare, (*own, *wrappers))


def _built(source: Source, wrappers: tuple[Wrapper, ...], **kwargs: Any) -> Any:
    return Recipe(source, kwargs, wrappers).build_foreign()


def _sources(source: EnvSource, num_envs: int | None) -> list[tuple[Source, tuple[Wrapper, ...]]]:
    """What builds each env, with the wrappers that belong to it."""
    if num_envs is not None:
        num_envs = whole_number("num_envs", num_envs)
    if isinstance(source, list | tuple):
        if not source:
            raise InvalidRequest("the list of env factories is empty")
        if num_envs is not None and num_envs != len(source):
            raise InvalidRequest(
                f"{len(source)} env factories for num_envs={num_envs}: leave num_envs out, or match it"
            )
        return [_one_source(item) for item in source]
    count = 1 if num_envs is None else num_envs
    if count < 1:
        raise InvalidRequest(f"num_envs={num_envs}: at least 1")
    return [_one_source(source)] * count


def _one_source(source: Any) -> tuple[Source, tuple[Wrapper, ...]]:
    if isinstance(source, str):
        source = _from_string(source)
    if isinstance(source, EnvSpec):
        return _without_main(source)
    if isinstance(source, gymnasium.Env):
        raise InvalidRequest(
            f"{source!r} is one env; each copy needs its own: pass a function that builds it, e.g. lambda: MyEnv()"
        )
    if callable(source):
        return source, ()
    raise InvalidRequest(f"env={source!r}: expected a Gymnasium id, 'module:name', a callable, or a list of callables")


def _from_string(text: str) -> Source:
    module_name, colon, name = BUILT_IN.get(text, text).rpartition(":")
    if not colon and text.endswith(".py"):
        raise InvalidRequest(f"env={text!r}: which env of that file? {_in_file(text)}")
    module = _imported(module_name, text) if colon else None
    found: Any = getattr(module, name, None)
    if callable(found):
        return found  # type: ignore[no-any-return]
    try:
        return gymnasium.spec(name)  # as in Gymnasium, the module may be one that registers the id
    except gymnasium.error.Error as error:
        if text.startswith("ALE/"):  # its ids are known once its package is imported
            first = "" if importlib.util.find_spec("ale_py") else "pip install ale-py, then "
            raise InvalidRequest(f"env={text!r} is of another package: {first}ale_py:{text}") from error
        there = [key for key, one in vars(module).items() if callable(one) and key[0] != "_"] if colon else []
        for near in nearest(name, there):
            told = f"module {module_name!r} has no callable {name!r}. Did you mean {module_name}:{near}?"
            raise InvalidRequest(f"env={text!r}: {told}") from error
        neither = f"module {module_name!r} has no callable {name!r}, and Gymnasium says: " if colon else ""
        module_text = f"{module_name}.{name}" if colon else text
        meant = next(filter(None, map(_as_module, [module_text, *modules_like(module_text)])), "")
        meant = meant or ("" if colon else with_a_colon(text))
        if not (colon or meant or "did you mean" in str(error).lower()):
            meant = next(iter(nearest(text, [*BUILT_IN, *gymnasium.registry])), "")
        said = f"{str(error).removesuffix('.')}. Did you mean {meant}?" if meant else str(error)
        raise InvalidRequest(f"env={text!r}: {neither}{said}") from error


def _in_file(text: str) -> str:
    """What of this file makes an env, by its names: classes and functions that are called after envs, or all if none
    are. It is only read: nobody has asked to import it."""
    try:
        defined = ast.parse(read_named(text, LARGEST_SOURCE)).body
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError) as error:
        return f"It cannot be read: {in_a_line(error)}"
    found: dict[str, bool] = {}  # by name: whether it is called after envs, or what it inherits from is
    for one in defined:
        if isinstance(one, ast.ClassDef | ast.FunctionDef):
            after = [one.name, *map(ast.unparse, getattr(one, "bases", ()))]
            found[one.name] = any("env" in name.lower() or found.get(name) for name in after)
    public = [name for name in found if not name.startswith("_")]
    likely = [name for name in public if found[name]] or public
    return f"Type {' or '.join(f'{text}:{name}' for name in likely) or f'{text}:NAME'}"


def _as_module(text: str) -> str:
    """Which of a PettingZoo module's functions make its envs, if this names such a module. It is not imported for that:
    nobody has asked for it."""
    package, *inside = text.split(".")
    try:
        found = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return ""
    for home in (found and found.submodule_search_locations) or ():
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
    except Exception as error:  # whatever the user's module does when it is imported
        how = f": pip install 'multiverse[{extra}]'" if (extra := _missing(error)) else ""
        missing = str(error.name) if isinstance(error, ModuleNotFoundError) else ""
        if others := modules_like(missing):
            how = f". Did you mean {' or '.join(text.replace(missing, other) for other in others)}?"
        raise InvalidRequest(
            f"env={text!r}: importing {module_name!r} failed ({type(error).__name__}: {error}){how}"
        ) from error


# -- what a spec names in the user's script --------------------------------------------------------------------
def _without_main(spec: EnvSpec) -> tuple[EnvSpec, tuple[Wrapper, ...]]:
    """The spec (a copy, if need be) with what it names in `__main__` put in, and the wrappers it cannot hold then."""
    entry_point = _found_in_main(spec.entry_point, spec)
    wrappers = tuple(spec.additional_wrappers)
    kept = next((i for i, w in enumerate(wrappers) if _names_main(w.entry_point)), len(wrappers))
    if entry_point is spec.entry_point and kept == len(wrappers):
        return spec, ()
    changed = copy.copy(spec)
    changed.entry_point, changed.additional_wrappers = entry_point, wrappers[:kept]
    return changed, tuple(_wrapper_of(w, spec) for w in wrappers[kept:])


def _names_main(entry_point: Any) -> bool:
    return isinstance(entry_point, str) and entry_point.partition(":")[0] == "__main__"


def _found_in_main(entry_point: Any, spec: EnvSpec) -> Any:
    """What an entry point names, if that is in the user's script; else the entry point itself."""
    if not _names_main(entry_point):
        return entry_point
    found = getattr(sys.modules["__main__"], entry_point.partition(":")[2], None)
    if not callable(found):
        raise InvalidRequest(
            f"env {spec.id!r} is registered with entry_point={entry_point!r}, and the script that runs now has no such "
            "class or function; define it before make_vec, or register the class itself"
        )
    return found


def _wrapper_of(wrapper: WrapperSpec, spec: EnvSpec) -> Wrapper:
    if wrapper.kwargs is None:
        raise InvalidRequest(
            f"env {spec.id!r} has the wrapper {wrapper.name!r} without its arguments, so it cannot be made again; "
            "let the wrapper inherit from gymnasium.utils.RecordConstructorArgs, or pass it as wrappers=[...]"
        )
    entry_point = _found_in_main(wrapper.entry_point, spec)
    return functools.partial(_wrap, entry_point, dict(wrapper.kwargs))


def _wrap(entry_point: Any, kwargs: dict[str, Any], env: Any) -> Any:
    """As `gymnasium.make` applies a spec's wrappers."""
    wrapper = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    return wrapper(env=env, **kwargs)


# -- one for each env ------------------------------------------------------------------------------------------
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
            _refuse_no_wrappers(f"wrappers[{i}]", each)
    if any(callable(w) for w in wrappers):
        raise InvalidRequest("wrappers mixes callables and lists: pass one list for all envs, or one list per env")
    if len(wrappers) != count:
        raise InvalidRequest(
            f"{len(wrappers)} lists of wrappers for {count} envs: pass one list for all, or one per env"
        )
    return [tuple(each) for each in wrappers]


def _refuse_no_wrappers(name: str, wrappers: Any) -> None:
    if not isinstance(wrappers, list | tuple) or not all(callable(w) for w in wrappers):
        raise InvalidRequest(f"{name}={wrappers!r}: expected something that takes an env and returns one, or a list")
