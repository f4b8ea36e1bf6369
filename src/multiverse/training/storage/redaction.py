"""Secrets stay out of what is written: configs, manifests, provenance, logged command lines.

A field is secret when its name ends in one of `_SECRET`, whatever its case: `api_key`, `WANDB_API_KEY`, `authToken`,
`Authorization`. Names that only begin so are not (`keys_pressed`, `token_count`), and a `monkey` is: hiding one value
too many is the smaller harm. Everything under a secret name goes, whatever it is; None and booleans stay, for they say
only whether there is one. In a text with an address (`://`) its password goes, and what follows a secret name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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


def is_secret(name: str) -> bool:
    """Whether a field of this name is not for others' eyes."""
    return name.lower().endswith(_SECRET)  # guard: secrets-are-redacted


def redacted(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """The same with every secret as `<redacted>`, at any depth. The argument stays as it is."""
    return {key: REDACTED if _hidden(key, value) else _redacted_value(value) for key, value in mapping.items()}


def redacted_fields(mapping: Mapping[str, Any], where: str = "") -> list[str]:
    """The fields, `env_kwargs.api_key`, that were redacted: a resumed run must be given them again."""
    return list(_find_redacted(mapping, where))


def redacted_command(arguments: Sequence[str]) -> list[str]:
    """A command line without its secrets: `--api-key VALUE`, `--api-key=VALUE`, `{"api_key": "VALUE"}`, logins."""
    words, secret_next = [], False
    for argument in arguments:
        words.append(REDACTED if secret_next and not argument.startswith("--") else redacted_text(argument))
        secret_next = argument.startswith("-") and is_secret(argument)
    return words


def redacted_text(text: str) -> str:
    """One line of text without values that follow a secret name, and without passwords in addresses."""
    return _LOGIN.sub(rf"\g<before>{REDACTED}", _ASSIGNED.sub(rf"\g<before>{REDACTED}", text))


def _hidden(key: Any, value: Any) -> bool:
    return isinstance(key, str) and is_secret(key) and value is not None and not isinstance(value, bool)


def _redacted_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return redacted(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_redacted_value(one) for one in value) if type(value) in (list, tuple) else value
    if isinstance(value, str) and ("://" in value or _HEADER.search(value)):
        return redacted_text(value)  # guard: addresses-are-redacted
    return value


def _find_redacted(value: Any, where: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _find_redacted(inner, f"{where}.{key}" if where else str(key))
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            yield from _find_redacted(inner, f"{where}[{index}]")
    elif isinstance(value, str) and REDACTED in value:  # the whole of it, or the password in an address
        yield where
