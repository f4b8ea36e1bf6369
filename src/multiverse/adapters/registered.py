"""Additions of this program to Gymnasium's registry, and specs, in a form that other processes can use.

An id that the user's script registers, or a package that it imports, is unknown in every other process, which never
imports the script. So the additions are sent: each spec is pickled separately, because one that cannot be pickled or
restored must not affect envs that do not use it.
"""

from __future__ import annotations

import base64
import copy
import functools
import hashlib
import pickle
import re
import sys
import warnings
from collections.abc import Callable, Set
from dataclasses import asdict, dataclass, field
from typing import Any, TypeGuard

import cloudpickle
import gymnasium
from gymnasium.envs.registration import EnvSpec, WrapperSpec, load_env_creator, parse_env_id

import multiverse.envs  # noqa: F401  every process has its ids
from multiverse.core.errors import InvalidRequest

DIGEST_BYTES = 8
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")

_LOST: dict[str, str] = {}
"""Ids that only the caller has registered, with the reason why each is missing here."""


@dataclass(frozen=True, slots=True)
class Registered:
    """Additions to Gymnasium's registry: specs by id, objects in `__main__` that they name, and ids that were lost."""

    specs: dict[str, bytes] = field(default_factory=dict)
    in_main: dict[str, bytes] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_text(cls, text: str) -> Registered:
        return cls(**pickle.loads(base64.b64decode(text)))

    def as_text(self) -> str:
        return base64.b64encode(pickle.dumps(asdict(self))).decode()

    def adopt(self) -> None:
        """Add them to this process's registry."""
        _LOST.update(self.lost)
        if self.specs:
            # A module named by an entry point registers its own ids again when it is imported, which does no harm.
            warnings.filterwarnings("ignore", message=".*Overriding environment .* already in registry")
        for name, data in self.in_main.items():
            try:
                vars(sys.modules["__main__"]).setdefault(name, pickle.loads(data))
            except Exception:  # `gymnasium.make` reports that `__main__` has no such name
                pass
        for env_id, data in self.specs.items():
            try:
                gymnasium.registry[env_id] = pickle.loads(data)
            except Exception as error:
                _LOST[env_id] = f"{type(error).__name__}: {error}"


NOTHING_REGISTERED = Registered()


def additions(known: Set[bytes] = frozenset()) -> Registered:
    """Return the specs of this process's registry whose digest is not `known`."""
    added = Registered()
    for env_id, spec in list(gymnasium.registry.items()):
        if _digest(spec) in known:  # guard: only-additions-to-the-registry-travel
            continue
        try:
            for name in _names_in_main(spec) - added.in_main.keys():
                added.in_main[name] = cloudpickle.dumps(getattr(sys.modules["__main__"], name))
            added.specs[env_id] = cloudpickle.dumps(_portable(spec))
        except Exception as error:  # guard: an-entry-that-cannot-travel-is-skipped
            added.lost[env_id] = f"{type(error).__name__}: {error}"
    return added


def digests() -> frozenset[bytes]:
    """Return a digest of each spec in this process's registry."""
    return frozenset(map(_digest, gymnasium.registry.values()))


def why_missing(error: Exception) -> str:
    """Return why this process lacks an id that the caller has registered; '' for other errors."""
    for env_id, reason in _LOST.items():
        namespace, name, _ = parse_env_id(env_id)
        if name in str(error) or (namespace and namespace in str(error)):
            return (
                f". {env_id!r} is registered in the program, but its entry point or arguments cannot be sent to other "
                f"processes ({reason}): register objects that can be pickled, or register it inside the env factory"
            )
    return ""


def _digest(spec: EnvSpec) -> bytes:
    try:
        text = repr(spec)
    except Exception:  # of a value in its kwargs
        return b""
    text = _ADDRESS.sub("", text)  # addresses of functions differ between processes
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=DIGEST_BYTES).digest()


def _names_in_main(spec: EnvSpec) -> set[str]:
    points = [spec.entry_point, spec.vector_entry_point, *(w.entry_point for w in spec.additional_wrappers)]
    return {point.partition(":")[2] for point in points if _names_main(point)}


def _portable(spec: EnvSpec) -> EnvSpec:
    changed = copy.copy(spec)
    changed.entry_point, changed.vector_entry_point = map(_entry, (spec.entry_point, spec.vector_entry_point))
    return changed


def _entry(point: Any) -> Any:
    """Return an entry point that is imported only where an env is made with it; or one that is pickled by value, if its
    module is."""
    named = isinstance(point, str)
    module = point.partition(":")[0] if named else getattr(point, "__module__", None) or ""
    name = getattr(point, "__qualname__", "")
    if module == "__main__" or module not in sys.modules:
        return point
    if any(f"{module}.".startswith(f"{prefix}.") for prefix in cloudpickle.list_registry_pickle_by_value()):
        return load_env_creator(point) if named else point
    return point if named or getattr(sys.modules[module], name, None) is not point else f"{module}:{name}"


# -- specs that workers send back -------------------------------------------------------------------------------
def without_code(spec: EnvSpec | None) -> EnvSpec | None:
    """Return the spec without a callable entry point: a class that was pickled by value cannot be sent back by name."""
    if spec is None or not callable(spec.entry_point):
        return spec
    changed = copy.copy(spec)
    changed.entry_point = None  # guard: a-spec-travels-back-without-code
    return changed


def with_code(spec: EnvSpec | None) -> EnvSpec | None:
    """Return the spec with the entry point that this program has registered, if a worker had to leave it out."""
    registered = None if spec is None else gymnasium.registry.get(spec.id)
    if spec is None or spec.entry_point is not None or registered is None:
        return spec
    changed = copy.copy(spec)
    changed.entry_point = registered.entry_point
    return changed


# -- specs that name objects of the user's script ----------------------------------------------------------------
def without_main(spec: EnvSpec) -> tuple[EnvSpec, tuple[Callable[[Any], Any], ...]]:
    """Return a spec that works in a worker, which has another `__main__`, and the wrappers that it cannot hold then.

    Objects that the spec names in `__main__` ("__main__:MyEnv") replace their names.
    """
    entry_point = _object_in_main(spec.entry_point, spec)
    wrappers = tuple(spec.additional_wrappers)
    kept = next((i for i, w in enumerate(wrappers) if _names_main(w.entry_point)), len(wrappers))
    if entry_point is spec.entry_point and kept == len(wrappers):
        return spec, ()
    changed = copy.copy(spec)
    changed.entry_point, changed.additional_wrappers = entry_point, wrappers[:kept]
    return changed, tuple(_wrapper_of(wrapper, spec) for wrapper in wrappers[kept:])


def _names_main(entry_point: Any) -> TypeGuard[str]:
    return isinstance(entry_point, str) and entry_point.partition(":")[0] == "__main__"


def _object_in_main(entry_point: Any, spec: EnvSpec) -> Any:
    """Return the object that an entry point names in the user's script; other entry points unchanged."""
    if not _names_main(entry_point):
        return entry_point
    value = getattr(sys.modules["__main__"], entry_point.partition(":")[2], None)
    if not callable(value):
        raise InvalidRequest(
            f"env {spec.id!r} is registered with entry_point={entry_point!r}, but the running script has no such class "
            "or function; define it before make_vec, or register the class itself"
        )
    return value


def _wrapper_of(wrapper: WrapperSpec, spec: EnvSpec) -> Callable[[Any], Any]:
    if wrapper.kwargs is None:
        raise InvalidRequest(
            f"env {spec.id!r} has the wrapper {wrapper.name!r} without its arguments, so it cannot be made again; "
            "let the wrapper inherit from gymnasium.utils.RecordConstructorArgs, or pass it as wrappers=[...]"
        )
    return functools.partial(_wrap, _object_in_main(wrapper.entry_point, spec), dict(wrapper.kwargs))


def _wrap(entry_point: Any, kwargs: dict[str, Any], env: Any) -> Any:
    """Apply a spec's wrapper as `gymnasium.make` does."""
    wrapper = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    return wrapper(env=env, **kwargs)
