"""Whose a run is. A config may name code, and going on with its run calls that: a stranger's is told from one's own.

A run of one's own has a mark that only this user can have made here: an HMAC of everything that would be called, by a
key that is kept in the user's own state directory and in no run. A mark says nothing about the rest of a run, which is
data, and is verified as such.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from multiverse.contracts.errors import UntrustedRun, in_words
from multiverse.training.storage.files import read_plain, write_new
from multiverse.training.storage.redaction import redacted

log = logging.getLogger("multiverse")

KEY_BYTES = 32
MOST_ARGUMENTS = 8
"""That a sentence shows."""
_PURPOSE = b"multiverse: what a run calls\0"
_CODE = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w./-]*")
"""`module:name`, or the id of an env after the module that registers it. An address, with its slashes, is none."""


def names_code(config: Mapping[str, Any]) -> bool:
    """Whether making the env or the algorithm of this config would import what it names; ids in Gymnasium's registry
    and our own algorithms name nothing."""
    named = f"{config.get('env', '')}{config.get('algorithm', '')}"
    return ":" in named or any(_CODE.fullmatch(text) for text in _texts(config.get("env_kwargs")))


def in_a_call(config: Mapping[str, Any]) -> str:
    """What would be called, for a sentence: "os:system(command='…')". Without secrets."""
    kwargs = redacted(config).get("env_kwargs")
    given = list(kwargs.items()) if isinstance(kwargs, Mapping) else []
    arguments = [f"{key if key.isidentifier() else in_words(key)}={in_words(value)}" for key, value in given]
    more = ["…"] if len(arguments) > MOST_ARGUMENTS else []
    env = f"{in_words(str(config.get('env')))[1:-1]}({', '.join(arguments[:MOST_ARGUMENTS] + more)})"
    learner = str(config.get("algorithm", ""))
    return f"{env} and {in_words(learner)[1:-1]}" if ":" in learner else env


def check_trusted(config: Mapping[str, Any], mark: Any, where: Path | str, trust: bool) -> None:
    """`UntrustedRun` if this config names code, and neither its mark is ours nor does the caller vouch for it."""
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
    """What `check_trusted` knows this config by; None, with a warning, if no key can be kept here."""
    try:
        return _mark(config, _made_key())
    except OSError as error:
        log.warning("%s: this run will count as a stranger's, and want --trust (trust=True)", _no_key(error))
        return None


def _mark(config: Mapping[str, Any], key: bytes) -> str:
    called = {name: config.get(name) for name in ("env", "env_kwargs", "algorithm")}
    text = json.dumps(redacted(called), sort_keys=True).encode()
    return hmac.new(key, _PURPOSE + text, hashlib.sha256).hexdigest()


def _texts(value: Any) -> Iterator[str]:
    """Every text in it, at any depth."""
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
    except RuntimeError as error:  # nobody says where this user is at home
        raise OSError(str(error)) from None
    return home / "multiverse" / "key"


def _read_key() -> bytes:
    """OSError if there is none, or one that others could have made or read."""
    path = _key_path()
    key, found = read_plain(path, KEY_BYTES)
    if len(key) != KEY_BYTES:
        raise OSError(f"it has {len(key)} bytes instead of {KEY_BYTES}")
    if hasattr(os, "geteuid") and found.st_uid != os.geteuid():
        raise OSError("it belongs to another user")
    if os.name == "posix" and stat.S_IMODE(found.st_mode) & 0o077:
        raise OSError("others may read it")
    return key


def _made_key() -> bytes:
    """This user's, which is made when it is first needed."""
    path = _key_path()
    try:
        return _read_key()
    except FileNotFoundError:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    aside = path.with_name(f"key-{secrets.token_hex(4)}")
    try:
        write_new(aside, secrets.token_bytes(KEY_BYTES), 0o600)
        os.link(aside, path)  # unlike a rename, never over the key that somebody else has made meanwhile
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
    return f"there is no key to know your own runs by in {where} ({error.strerror or error})"
