"""The observations that were last delivered, kept by whoever may have to show them once more."""

from __future__ import annotations

from typing import Any

from multiverse.contracts.layout import FINAL_OBSERVATIONS, OBSERVATIONS, leaves
from multiverse.contracts.views import Array, Views


class LastRows:
    """A copy of some rows of every observation leaf."""

    def __init__(self, views: Views, rows: slice) -> None:
        self._first = rows.start
        self._arrays: list[tuple[Array, Array]] = []
        self._objects: list[tuple[list[Any], list[Any]]] = []
        self._finals: list[tuple[Any, Any]] = []
        self._rows = rows
        for group in views.layout.groups:
            for leaf in leaves(group.observation_space):
                name = (group.name, OBSERVATIONS, *leaf.path)
                saved: Any
                if leaf.numeric:
                    current = views[name][rows]
                    saved = current.copy()
                    self._arrays.append((current, saved))
                else:
                    saved = views.objects[name][rows]
                    self._objects.append((views.objects[name], saved))
                final = (group.name, FINAL_OBSERVATIONS, *leaf.path)
                if views.layout.with_final_observations:
                    self._finals.append(((views.arrays if leaf.numeric else views.objects)[final], saved))

    def remember(self) -> None:
        """All rows are being delivered now."""
        for current, saved in self._arrays:
            saved[...] = current
        for objects, kept in self._objects:
            kept[:] = objects[self._rows]

    def remember_some(self, slots: Array) -> None:
        """Some rows are; the others may just be written."""
        for current, saved in self._arrays:
            saved[slots - self._first] = current[slots - self._first]
        for objects, kept in self._objects:
            for slot in slots:
                kept[slot - self._first] = objects[slot]

    def restore(self, slot: int) -> None:
        """Put a row back as it was last delivered."""
        i = slot - self._first
        for current, saved in self._arrays:
            current[i] = saved[i]
        for objects, kept in self._objects:
            objects[slot] = kept[i]

    def restore_as_final(self, slot: int) -> None:
        """Put a row, as it was last delivered, where final observations are read."""
        for final, saved in self._finals:
            final[slot] = saved[slot - self._first]
