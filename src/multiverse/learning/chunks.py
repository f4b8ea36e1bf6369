"""Cutting rollouts into chunks, along each of which memory goes on. Learning looks no further back than a chunk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from multiverse.core.views import Array


class Along(NamedTuple):
    """How rows follow one another: the first rows of all chunks, the longest first, then all second rows, …"""

    counts: Sequence[int]  # how many chunks have a first row, a second one, …
    memory: Any  # [chunks, cells, parts, size] before each chunk

    def some(self, chunks: Array) -> tuple[Array, Sequence[int]]:
        """(rows, counts) of some chunks, which are given in their order."""
        counts = np.searchsorted(chunks, self.counts)
        counts = counts[counts > 0]
        firsts = np.cumsum(self.counts) - self.counts
        position = np.repeat(np.arange(len(counts)), counts)
        which = np.arange(len(position)) - (np.cumsum(counts) - counts)[position]
        return firsts[position] + chunks[which], counts.tolist()

    def lengths(self) -> Array:
        """[chunks] rows of each."""
        return np.asarray(np.searchsorted(-np.asarray(self.counts), -np.arange(len(self.memory))))

    def lasts(self) -> Array:
        """[chunks] the last row of each."""
        counts, lengths = np.asarray(self.counts, np.int64), self.lengths()
        return np.asarray((np.cumsum(counts) - counts)[lengths - 1] + np.arange(len(lengths)))


class Chunks(NamedTuple):
    """Pieces of a rollout: rows (t × S + s) chunk after chunk, where each chunk begins there, and how long it is."""

    rows: Array
    firsts: Array  # [chunks]
    lengths: Array  # [chunks]

    def packed(self) -> tuple[Array, Sequence[int]]:
        """(rows as `Along` has them, its counts)."""
        order = np.argsort(-self.lengths, kind="stable")
        firsts, lengths = self.firsts[order], self.lengths[order]
        counts = np.searchsorted(-lengths, -np.arange(lengths[:1].sum()))
        position = np.repeat(np.arange(len(counts)), counts)
        which = np.arange(len(position)) - (np.cumsum(counts) - counts)[position]
        return self.rows[firsts[which] + position], counts.tolist()

    def without(self, valid: Array) -> Chunks:
        """Only the rows that are `valid` [T × S]: others are the last of their chunk, where they are."""
        lengths = self.lengths - ~valid[self.rows[self.firsts + self.lengths - 1]]
        return Chunks(self.rows, self.firsts[lengths > 0], lengths[lengths > 0])


def chunks_of(starts: Array, ended: Array, valid: Array, acting: Array | None, length: int) -> Chunks:
    """Of at most `length` rows each, from [T, S] arrays. Cut where an episode starts, and after a row that ended one or
    was lost; rows in which no action was wanted are left out, for memory stands still in them."""
    acts = np.ones_like(starts) if acting is None else acting
    slots, steps = np.nonzero(acts.T)
    cut = starts[steps, slots].copy()
    cut[:1] = True
    cut[1:] |= (slots[1:] != slots[:-1]) | (ended | ~valid)[steps, slots][:-1]  # guard: chunks-end-where-memory-does
    begun = np.flatnonzero(cut)
    at = np.arange(len(cut)) - np.repeat(begun, np.diff(begun, append=len(cut)))
    firsts = np.flatnonzero(at % length == 0)
    return Chunks(steps * starts.shape[1] + slots, firsts, np.diff(firsts, append=len(cut)))
