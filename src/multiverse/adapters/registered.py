"""Additions of this program to Gymnasium's registry, in the form in which other processes receive them.

An id that the user's script registers, or a package that it imports, is unknown in every other process, for the script
is never imported there. So the additions travel: each spec is pickled separately, because one that cannot be pickled or
restored must not affect envs that do not use it.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import pickle
import re
import sys
import warnings
from collections.abc import Set
from dataclasses import asdict, dataclass, field
from typing import Any

import cloudpickle
import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator, parse_env_id

import multiverse.envs  # noqa: F401  every process has its ids

DIGEST_BYTES = 8
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")

_LOST: dict[str, str] = {}
"""Ids that the caller has registered and this process has not: why each is missing."""


@dataclass(frozen=True, slots=True)
class Registered:
    """Additions to Gymnasium's registry: specs by id, what these name in `__main__`, and why other ids are missing."""

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
            # A module named by an entry point registers its own ids again when it is imported: not worth a warning.
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
    """The specs of this process's registry whose digest is not `known`."""
    found = Registered()
    for env_id, spec in list(gymnasium.registry.items()):
        if _digest(spec) in known:  # guard: only-additions-to-the-registry-travel
            continue
        try:
            for name in _names_in_main(spec) - found.in_main.keys():
                found.in_main[name] = cloudpickle.dumps(getattr(sys.modules["__main__"], name))
            found.specs[env_id] = cloudpickle.dumps(_portable(spec))
        except Exception as error:  # guard: an-entry-that-cannot-travel-is-skipped
            found.lost[env_id] = f"{type(error).__name__}: {error}"
    return found


def digests() -> frozenset[bytes]:
    """One for each spec of this process's registry."""
    return frozenset(map(_digest, gymnasium.registry.values()))


def why_missing(error: Exception) -> str:
    """A sentence for an id that Gymnasium does not know in this process although the caller does; '' for any other."""
    for env_id, reason in _LOST.items():
        namespace, name, _ = parse_env_id(env_id)
        if name in str(error) or (namespace and namespace in str(error)):
            return (
                f". {env_id!r} is registered in the program, but what it is registered with cannot be sent to other "
                f"processes ({reason}): register what can be pickled, or register it inside the env factory"
            )
    return ""


def _digest(spec: EnvSpec) -> bytes:
    try:
        text = repr(spec)
    except Exception:  # of a value in its kwargs
        return b""
    text = _ADDRESS.sub("", text)  # of a function: another one in every process
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=DIGEST_BYTES).digest()


def _names_in_main(spec: EnvSpec) -> set[str]:
    points = [spec.entry_point, spec.vector_entry_point, *(w.entry_point for w in spec.additional_wrappers)]
    named = [point.partition(":") for point in points if isinstance(point, str)]
    return {name for module, _, name in named if module == "__main__"}


def _portable(spec: EnvSpec) -> EnvSpec:
    changed = copy.copy(spec)
    changed.entry_point, changed.vector_entry_point = map(_entry, (spec.entry_point, spec.vector_entry_point))
    return changed


def _entry(point: Any) -> Any:
    """An entry point that is imported where an env is made with it, and not before; or that is pickled by value, where
    its module is."""
    named = isinstance(point, str)
    module = point.partition(":")[0] if named else getattr(point, "__module__", None) or ""
    name = getattr(point, "__qualname__", "")
    if module == "__main__" or module not in sys.modules:
        return point
    if any(f"{module}.".startswith(f"{one}.") for one in cloudpickle.list_registry_pickle_by_value()):
        return load_env_creator(point) if named else point
    return point if named or getattr(sys.modules[module], name, None) is not point else f"{module}:{name}"


# -- specs on their way back ------------------------------------------------------------------------------------
def without_code(spec: EnvSpec | None) -> EnvSpec | None:
    """The spec without a callable entry point: a class that came to a worker by value cannot travel back by name."""
    if spec is None or not callable(spec.entry_point):
        return spec
    found = copy.copy(spec)
    found.entry_point = None  # guard: a-spec-travels-back-without-code
    return found


def with_code(spec: EnvSpec | None) -> EnvSpec | None:
    """The spec with the entry point that this program has registered, if a worker had to leave it out."""
    registered = None if spec is None else gymnasium.registry.get(spec.id)
    if spec is None or spec.entry_point is not None or registered is None:
        return spec
    found = copy.copy(spec)
    found.entry_point = registered.entry_point
    return found
