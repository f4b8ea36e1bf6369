"""Origin of a run: its user, the machine and versions it ran on, and the redaction of secrets.

A config may name code, which is called when its run is resumed, and a Ray cluster, which is joined. Runs of this user
are distinguished from those of others by a mark that only this user can make on this machine: an HMAC of everything
that would be called or joined, with a key in the user's state directory and in no run. A mark says nothing about the
rest of a run, which is data.

Provenance contains no environment variables, and collecting it uses no network and raises no errors. Secrets are not
written: not in configs, manifests or logged command lines. A field is secret if its name ends in one of `_SECRET`, in
upper or lower case: `api_key`, `WANDB_API_KEY`, `authToken`, `Authorization`. Names that only begin so are not
(`keys_pressed`, `token_count`), and a `monkey` is: redacting too much is the smaller harm. Every value under a secret
name is redacted, except None and booleans, which only show whether there is a secret. In text with an address (`://`),
its password and values that follow a secret name are redacted.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import importlib.metadata
import json
import logging
import os
import platform
import re
import secrets
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

import multiverse
from multiverse.core.errors import UntrustedRun
from multiverse.core.plain_files import read_plain
from multiverse.core.plan import Plan
from multiverse.core.wording import short_repr
from multiverse.executors.machine import usable_cores
from multiverse.training.runs.files import write_new

log = logging.getLogger("multiverse")

KEY_BYTES = 32
OPPONENT, WRAPPERS, RAY, NETWORK = "evaluation_opponent", "wrappers", "ray_address", "network"
MAX_ARGUMENTS = 8
"""Maximum number of arguments in a sentence."""
_PURPOSE = b"multiverse: what a run calls\0"
_CODE = re.compile(r"(?:\w[\w.-]*|.*\.py):[^\W\d][\w./-]*")
"""`module:name`, `path/file.py:name`, or the id of an env after the module that registers it. An address, with its
slashes, does not match."""
PACKAGES = ("numpy", "gymnasium", "torch", "safetensors", "pettingzoo", "mpe2", "mujoco", "ale_py", "Box2D", "pyboy")
"""Packages whose versions are recorded if they are imported: others had no part in the run."""
GIT_S = 2.0
REDACTED = "<redacted>"

_SECRET = (
    "key", "token", "password", "passwd", "passphrase", "pass", "pwd", "secret", "credential", "credentials",
    "authorization", "auth", "bearer", "cookie",
)  # fmt: skip
_NAME = rf"[\w.-]*(?:{'|'.join(_SECRET)})"
_VALUE = r"""(?:(?:bearer|basic|token)\s+)?(?:"[^"]*"|'[^']*'|[^\s,;}&"']+)"""
_ASSIGNED = re.compile(rf"""(?i)(?P<before>{_NAME}["']?\s*(?::(?!//)|=)\s*){_VALUE}""")
_LOGIN = re.compile(r"(?P<before>\w://(?:[^\s:/@]*:)?)[^\s/]+(?=@)")
_HEADER = re.compile(r"(?i)\b(?:authorization|bearer|basic)\b")


# -- the user ----------------------------------------------------------------------------------------------------
def names_code(config: Mapping[str, Any]) -> bool:
    """Whether making the env or the algorithm of this config would import code that it names, or join a Ray cluster,
    whose replies are unpickled here. Ids in Gymnasium's registry and algorithms of this library are not code."""
    if config.get(RAY):  # guard: a-strangers-cluster-is-not-joined
        return True
    code = ("env", "algorithm", NETWORK, OPPONENT, WRAPPERS)  # guard: untrusted-network-is-not-imported
    named = "".join(str(config.get(name) or "") for name in code)
    return ":" in named or any(_CODE.fullmatch(text) for text in _texts(config.get("env_kwargs")))


def in_a_call(config: Mapping[str, Any]) -> str:
    """Describe what would be executed, without secrets: "call os:system(command='…')"."""
    kwargs = redacted(config).get("env_kwargs")
    given = list(kwargs.items()) if isinstance(kwargs, Mapping) else []
    arguments = [f"{key if key.isidentifier() else short_repr(key)}={short_repr(value)}" for key, value in given]
    more = ["…"] if len(arguments) > MAX_ARGUMENTS else []
    env = f"{short_repr(str(config.get('env')))[1:-1]}({', '.join(arguments[:MAX_ARGUMENTS] + more)})"
    named = [str(config.get(name) or "") for name in ("algorithm", NETWORK, OPPONENT)]
    named += map(str, config.get(WRAPPERS) or ())
    called = [*([env] if config.get("env") else []), *(short_repr(name)[1:-1] for name in named if ":" in name)]
    joined = [f"join the Ray cluster at {short_repr(redacted(config)[RAY])}"] if config.get(RAY) else []
    return " and ".join([*([f"call {' and '.join(called)}"] if called else []), *joined])


def check_trusted(config: Mapping[str, Any], mark: Any, where: Path | str, trust: bool) -> None:
    """Raise `UntrustedRun` if this config names code or a Ray cluster, unless this user made its mark or `trust`."""
    if trust or not names_code(config):
        return
    try:
        key = _read_key()
        ours = hmac.compare_digest(_mark(config, key), mark if isinstance(mark, str) and mark.isascii() else "")
        why = ""
    except OSError as error:
        ours, why = False, "" if isinstance(error, FileNotFoundError) else _no_key(error)
    if not ours:  # guard: a-strangers-code-is-not-called
        raise UntrustedRun(where, in_a_call(config), why)


def mark_of(config: Mapping[str, Any]) -> str | None:
    """Return the mark with which `check_trusted` trusts this config; None, with a warning, if no key can be stored."""
    try:
        return _mark(config, _existing_or_new_key())
    except OSError as error:
        log.warning("%s: this run will be treated as another user's, and need --trust (trust=True)", _no_key(error))
        return None


def _mark(config: Mapping[str, Any], key: bytes) -> str:
    called = {name: config.get(name) for name in ("env", "env_kwargs", "algorithm")}
    more = (OPPONENT, WRAPPERS, RAY, NETWORK, f"{NETWORK}_kwargs")  # guard: networks-are-part-of-the-mark
    called |= {name: config[name] for name in more if config.get(name)}
    text = json.dumps(redacted(called), sort_keys=True).encode()
    return hmac.new(key, _PURPOSE + text, hashlib.sha256).hexdigest()


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in a value, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _texts(inner)


# -- the key -----------------------------------------------------------------------------------------------------
def _key_path() -> Path:
    given = os.environ.get("XDG_STATE_HOME", "")
    try:
        home = Path(given) if os.path.isabs(given) else Path.home() / ".local" / "state"
    except RuntimeError as error:  # this user has no home directory
        raise OSError(str(error)) from None
    return home / "multiverse" / "key"


def _read_key() -> bytes:
    """Read the key; OSError if there is none, or if another user could have made or read it."""
    path = _key_path()
    key, status = read_plain(path, KEY_BYTES)
    if len(key) != KEY_BYTES:
        raise OSError(f"it has {len(key)} bytes instead of {KEY_BYTES}")
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        raise OSError("it belongs to another user")
    if os.name == "posix" and stat.S_IMODE(status.st_mode) & 0o077:
        raise OSError("others may read it")
    return key


def _existing_or_new_key() -> bytes:
    """Return the key of this user, which is made when it is first needed."""
    path = _key_path()
    try:
        return _read_key()
    except FileNotFoundError:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    aside = path.with_name(f"key-{secrets.token_hex(4)}")
    try:
        write_new(aside, secrets.token_bytes(KEY_BYTES), 0o600)
        os.link(aside, path)  # unlike a rename, does not replace a key that another process has made meanwhile
    except FileExistsError:
        pass
    finally:
        aside.unlink(missing_ok=True)
    return _read_key()


def _no_key(error: OSError) -> str:
    try:
        where = f"{_key_path()}"
    except OSError:
        where = "the user's state directory"
    return f"there is no key that identifies your own runs in {where} ({error.strerror or error})"


# -- versions and machine ----------------------------------------------------------------------------------------
def provenance(seed: int | None, plan: Plan | None = None) -> dict[str, Any]:
    """Return what is needed to repeat this run, in values that JSON can hold."""
    return {
        "seed": seed,
        "plan": None if plan is None else dataclasses.asdict(plan),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": redacted_command(sys.argv),
        "versions": versions(),
        "machine": machine(),
        "git": git_commit(),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python, multiverse and imported packages, also of those that registered envs."""
    by_name = {"python": platform.python_version(), "multiverse": multiverse.__version__}
    for name in dict.fromkeys((*PACKAGES, *_env_packages())):
        if name in sys.modules and (version := _version(name)) is not None:
            by_name[name] = version
    return by_name


def machine() -> dict[str, Any]:
    """Describe this machine."""
    return {
        "os": platform.platform(),
        "cpu": _or_none(_cpu_model) or platform.processor() or platform.machine(),
        "usable_cores": _or_none(usable_cores),
        "memory_bytes": _or_none(lambda: psutil.virtual_memory().total),
        "blas": blas(),
    }


def blas() -> str | None:
    """Return numpy's BLAS and its kernels ('openblas 0.3.31 Haswell'); results of others differ in the last bits."""
    return _or_none(_blas)  # type: ignore[no-any-return]


def _blas() -> str | None:
    from threadpoolctl import threadpool_info  # not needed for acting only

    loaded = [library for library in threadpool_info() if library["user_api"] == "blas"]
    loaded.sort(key=lambda library: "numpy.libs" not in library["filepath"])  # scipy and torch may bring their own
    info = {} if not loaded else loaded[0]
    return " ".join(str(info[name]) for name in ("internal_api", "version", "architecture") if name in info) or None


def git_commit(directory: Path | None = None) -> dict[str, Any] | None:
    """Return the commit of the working directory, and whether files differ from it; None outside a repository."""
    commit = _git(directory, "rev-parse", "HEAD")
    if commit is None:
        return None
    changed = _git(directory, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "changed": None if changed is None else bool(changed)}


def _git(directory: Path | None, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-c", "core.fsmonitor=false", *arguments],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=GIT_S,
            check=False,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"},
        )
    except (OSError, subprocess.TimeoutExpired):  # git is missing or too slow
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _env_packages() -> list[str]:
    """Top-level packages whose envs are registered with Gymnasium."""
    registered = getattr(sys.modules.get("gymnasium"), "registry", {})
    points = [getattr(spec, "entry_point", None) for spec in list(registered.values())]
    return sorted({point.partition(":")[0].partition(".")[0] for point in points if isinstance(point, str)})


def _version(module: str) -> str | None:
    version = getattr(sys.modules[module], "__version__", None)
    if isinstance(version, str):
        return version
    try:
        return importlib.metadata.version(module)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None


def _cpu_model() -> str | None:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def _or_none(ask: Callable[[], Any]) -> Any:
    """Return the result of `ask`, or None after an error: a run does not fail because the machine is not known."""
    try:
        return ask()
    except (OSError, ValueError, subprocess.SubprocessError, psutil.Error):
        return None


# -- secrets -----------------------------------------------------------------------------------------------------
def is_secret(name: str) -> bool:
    """Whether a field of this name is secret."""
    return name.lower().endswith(_SECRET)  # guard: secrets-are-redacted


def redacted(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy with every secret replaced by `<redacted>`, at any depth."""
    return {key: REDACTED if _hidden(key, value) else _redacted_value(value) for key, value in mapping.items()}


def redacted_fields(value: Any, where: str = "") -> list[str]:
    """Return the names of redacted fields, such as `env_kwargs.api_key`, which must be given again to resume a run."""
    inside: list[tuple[str, Any]] = []
    if isinstance(value, Mapping):
        inside = [(f"{where}.{key}" if where else str(key), inner) for key, inner in value.items()]
    elif isinstance(value, (list, tuple)):
        inside = [(f"{where}[{index}]", inner) for index, inner in enumerate(value)]
    elif isinstance(value, str) and REDACTED in value:  # the whole of it, or the password in an address
        return [where]
    return [field for place, inner in inside for field in redacted_fields(inner, place)]


def redacted_command(arguments: Sequence[str]) -> list[str]:
    """Redact the secrets of a command line: `--api-key VALUE`, `--api-key=VALUE`, `{"api_key": "VALUE"}`, logins."""
    words, secret_next = [], False
    for argument in arguments:
        words.append(REDACTED if secret_next and not argument.startswith("--") else redacted_text(argument))
        secret_next = argument.startswith("-") and is_secret(argument)
    return words


def redacted_text(text: str) -> str:
    """Redact values that follow a secret name, and passwords in addresses, in a line of text."""
    return _LOGIN.sub(rf"\g<before>{REDACTED}", _ASSIGNED.sub(rf"\g<before>{REDACTED}", text))


def _hidden(key: Any, value: Any) -> bool:
    return isinstance(key, str) and is_secret(key) and value is not None and not isinstance(value, bool)


def _redacted_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return redacted(value)
    if isinstance(value, (list, tuple)):
        return type(value)(map(_redacted_value, value)) if type(value) in (list, tuple) else value
    if isinstance(value, str) and ("://" in value or _HEADER.search(value)):
        return redacted_text(value)  # guard: addresses-are-redacted
    return value
