"""A host's reply to a step, beyond the numbers in the block: flags, and data that is sent by pipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from multiverse.core.errors import RemoteError
from multiverse.core.infos import Infos
from multiverse.core.layout import FieldName
from multiverse.core.wording import short_repr
from multiverse.ipc.info_columns import Announcement

EXTRAS, WROTE_INFOS, FINALS, FAILED = 1, 2, 4, 8
"""Flags of a finished step: extras follow by pipe; info columns are used; final observations exist; an env raised."""


@dataclass(slots=True)
class Extras:
    """Results of a step that the block cannot hold; keys are env ids."""

    columns: list[Announcement] = field(default_factory=list)
    infos: dict[int, Infos] = field(default_factory=dict)
    final_infos: dict[int, Infos] = field(default_factory=dict)
    objects: dict[FieldName, list[Any]] = field(default_factory=dict)  # of this range's rows
    failures: list[RemoteError] = field(default_factory=list)
    restarts: dict[int, RemoteError] = field(default_factory=dict)  # envs that raised and were rebuilt
    truncated: list[int] = field(default_factory=list)  # envs whose episode was truncated for a bad value
    warnings: list[str] = field(default_factory=list)  # for the caller's log
    before: list[Extras] = field(default_factory=list)  # of earlier steps of the same request

    @property
    def empty(self) -> bool:
        """Whether there is nothing to send."""
        return not any(getattr(self, name) for name in self.__slots__)

    def replace_unsendable(self, why_not: Callable[[Any], str], warned: set[str]) -> None:
        """Replace values that cannot be sent by their repr. Each info key is warned about once; `warned` has those."""
        for earlier in self.before:
            earlier.replace_unsendable(why_not, warned)
        self.failures = [failure.in_text() for failure in self.failures]
        self.restarts = {env_id: failure.in_text() for env_id, failure in self.restarts.items()}
        for infos in (self.infos, self.final_infos):
            for env_id, info in infos.items():
                infos[env_id] = {
                    short_repr(key) if why_not(key) else key: self._sendable(env_id, key, info[key], why_not, warned)
                    for key in info
                }

    def _sendable(self, env_id: int, key: str, value: Any, why_not: Callable[[Any], str], warned: set[str]) -> Any:
        reason = why_not(value)
        if not reason:
            return value
        if key not in warned:
            warned.add(key)  # guard: told-once
            self.warnings.append(
                f"env {env_id}: infos[{key!r}] cannot be sent to the caller ({reason}): its repr is sent instead"
            )
        return short_repr(value)
