"""Where obstacles stand: anywhere, as long as every free cell can still be reached from every other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def place_obstacles(size: int, count: int, order: Iterable[int], kept_free: int | None) -> set[int]:
    """The first `count` cells of `order` that cut nothing off. A cell is y * size + x; `kept_free` stays free.

    There is always one more as long as two cells are free: a connected grid has two cells at least that hold nothing
    together. A cell that is passed over can become one of them, hence the rounds.
    """
    placed: set[int] = set()
    candidates = [cell for cell in order if cell != kept_free]
    while len(placed) < count:
        for cell in candidates:
            if len(placed) < count and cell not in placed and not _cuts_off(size, placed, cell):
                placed.add(cell)
    return placed


def _cuts_off(size: int, placed: set[int], cell: int) -> bool:
    """Whether an obstacle at `cell`, too, would leave free cells without a way to each other."""
    if not placed.intersection(_around(size, cell)):
        return False  # one can walk around it
    blocked = placed | {cell}
    free = size * size - len(blocked)
    start = next((other for other in range(size * size) if other not in blocked), None)
    return start is not None and len(_reachable(size, blocked, start)) < free


def _reachable(size: int, blocked: set[int], start: int) -> set[int]:
    seen, waiting = {start}, [start]
    while waiting:
        for neighbour in _beside(size, waiting.pop()):
            if neighbour not in seen and neighbour not in blocked:
                seen.add(neighbour)
                waiting.append(neighbour)
    return seen


def _beside(size: int, cell: int) -> Iterator[int]:
    y, x = divmod(cell, size)
    if x > 0:
        yield cell - 1
    if x < size - 1:
        yield cell + 1
    if y > 0:
        yield cell - size
    if y < size - 1:
        yield cell + size


def _around(size: int, cell: int) -> Iterator[int]:
    """The up to eight cells around one."""
    y, x = divmod(cell, size)
    for row in range(max(y - 1, 0), min(y + 2, size)):
        for column in range(max(x - 1, 0), min(x + 2, size)):
            yield row * size + column
