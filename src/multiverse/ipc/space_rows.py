"""Writes values of a space to rows of the block, and reads them. All preparation happens once per layout."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium import spaces

from multiverse.core.errors import BadValue, InvalidActions
from multiverse.core.layout import ACTIONS, PYTHON_INTS, STATE, Array, FieldName, Leaf, Path, Views, from_leaves, leaves

Write = Callable[[Any], None]


# -- writing one env's observation -----------------------------------------------------------------------------
def row_writer(space: spaces.Space[Any], views: Views, name: FieldName, row: int) -> Write:
    """A function that writes one value of `space` into row `row` of the arrays under `name`."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        items = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        parts: list[tuple[Any, Write]] = [(key, row_writer(child, views, (*name, key), row)) for key, child in items]

        def write_parts(value: Any) -> None:
            for key, write in parts:
                try:
                    part = value[key]
                except (KeyError, IndexError, TypeError) as error:
                    # guard: a-missing-part-is-an-error
                    raise BadValue(f"{leaf_name(name)} has no {key!r}: it is {_kind_of(value)}") from error
                write(part)

        return write_parts
    if not Leaf((), space).numeric:
        objects = views.objects[name]

        def write_object(value: Any) -> None:
            objects[row] = value

        return write_object
    write = _array_writer(views[name][row : row + 1].reshape(space.shape or ()), name)
    if not isinstance(space, spaces.Discrete):
        return write
    return _number_writer(write, views[name], views.arrays.get((name[0], PYTHON_INTS, *name[2:])), row)


def _number_writer(write: Write, numbers: Array, are_ints: Array | None, row: int) -> Write:
    """A writer of whole numbers, which are nearly always Python ints or of the space's own dtype, and fit.

    `are_ints`, if given, records whether the value is a Python int; it is written only when that changes.
    """
    cells, kind = numbers.data, numbers.dtype.type
    noted, cell = (memoryview(bytearray(1)).cast("?"), 0) if are_ints is None else (are_ints.data, row)

    def write_number(value: Any) -> None:
        is_int = type(value) is int
        if is_int is not noted[cell]:
            noted[cell] = is_int
        if is_int or type(value) is kind:
            try:
                cells[row] = value
                return
            except ValueError:  # too large
                pass
        write(value)

    return write_number


def _array_writer(target: Array, name: FieldName) -> Write:
    shape, dtype, copy = target.shape, target.dtype, np.copyto

    def write_array(value: Any) -> None:
        # Nearly always true; numpy never broadcasts or casts silently here.
        if type(value) is np.ndarray and value.dtype is dtype and value.shape == shape:
            target[...] = value
            return
        try:
            array = np.asarray(value)
        except Exception as error:  # such as a list of lists of different lengths
            raise BadValue(
                f"{leaf_name(name)} is not convertible to an array: {type(error).__name__}: {error}"
            ) from error
        if array.shape != shape:  # guard: no-broadcasting
            raise BadValue(f"{leaf_name(name)} has shape {array.shape}, its space says {shape}")
        if array.dtype.kind in "iu" and dtype.kind in "iu" and array.dtype != dtype and array.size:
            if not _fits(array, dtype):
                worst = array.min() if array.min() < np.iinfo(dtype).min else array.max()
                raise BadValue(f"{leaf_name(name)} holds {worst}, which does not fit its space's {dtype}")
            copy(target, array, casting="unsafe")
            return
        try:
            copy(target, array, casting="same_kind")  # guard: no-casts-of-another-kind
        except TypeError as error:
            raise BadValue(f"{leaf_name(name)} is {array.dtype}, which does not fit its space's {dtype}") from error

    return write_array


def _is_one_array(space: spaces.Space[Any]) -> bool:
    return not isinstance(space, spaces.Dict | spaces.Tuple) and Leaf((), space).numeric


def _fits(array: Array, dtype: np.dtype[Any]) -> bool:
    """Whether an integer type can hold all of an array's integers (booleans always fit)."""
    if array.dtype.kind == "b" or not array.size:
        return True
    limits = np.iinfo(dtype)
    return bool(array.min() >= limits.min and array.max() <= limits.max)


def leaf_name(name: FieldName) -> str:
    """A leaf's name in messages: "the observation['camera'][1]"."""
    kind, path = name[0] if name[0] == STATE else str(name[1]).rstrip("s"), name[2:]
    return f"the {kind}" + "".join(f"[{key!r}]" for key in path)


def _kind_of(value: Any) -> str:
    kind = f"a {type(value).__name__}"
    return f"{kind} with {sorted(map(repr, value))}" if isinstance(value, dict) else kind


# -- reading actions -------------------------------------------------------------------------------------------
def actions_reader(space: spaces.Space[Any], views: Views, name: FieldName, rows: slice) -> Callable[[], list[Any]]:
    """A function that returns the actions of a range of envs, each as a separate object that never changes."""
    readers = [(leaf, _leaf_reader(leaf, views, (*name, *leaf.path), rows)) for leaf in leaves(space)]
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return readers[0][1]

    def read_nested() -> list[Any]:
        columns = {leaf.path: read() for leaf, read in readers}
        return [
            from_leaves(space, {path: column[i] for path, column in columns.items()})
            for i in range(rows.stop - rows.start)
        ]

    return read_nested


def env_actions_reader(views: Views, env_ids: range) -> Callable[[], list[Any]]:
    """A function that returns the action of each env of a range or, for several agents, a list of their actions in the
    order of the groups."""
    groups = views.layout.groups
    readers = [actions_reader(g.action_space, views, (g.name, ACTIONS), views.layout.rows(g, env_ids)) for g in groups]
    if len(groups) == 1 and not groups[0].may_be_absent:
        return readers[0]
    sizes, count = [len(group.agents) for group in groups], len(env_ids)
    if max(sizes) == 1:
        return lambda: list(zip(*[read() for read in readers]))
    if len(groups) == 1:
        read_group, size = readers[0], sizes[0]

        def read_one_group() -> list[Any]:
            actions = read_group()
            return [actions[i : i + size] for i in range(0, count * size, size)]

        return read_one_group

    def read_all() -> list[Any]:
        by_group = [read() for read in readers]
        return [
            [action for actions, size in zip(by_group, sizes) for action in actions[i * size : (i + 1) * size]]
            for i in range(count)
        ]

    return read_all


def _leaf_reader(leaf: Leaf, views: Views, name: FieldName, rows: slice) -> Callable[[], list[Any]]:
    if not leaf.numeric:
        objects = views.objects[name]
        return lambda: objects[rows]
    array = views[name][rows]
    if isinstance(leaf.space, spaces.Discrete) and leaf.space.n <= 4096:
        # Scalars are immutable, so the same numpy integers can be returned every time.
        scalars = {int(i): array.dtype.type(i) for i in range(leaf.space.start, leaf.space.start + leaf.space.n)}
        look_up = scalars.__getitem__

        def read_discrete() -> list[Any]:
            try:
                return list(map(look_up, array.tolist()))
            except KeyError:  # out of range: left to the env, which raises the best message
                return list(array.copy())

        return read_discrete
    return lambda: list(array.copy())


# -- writing the caller's actions ------------------------------------------------------------------------------
class ActionWriter:
    """Checks a whole batch of actions, then writes it into the block: an invalid batch leaves no trace."""

    def __init__(self, space: spaces.Space[Any], views: Views, name: FieldName) -> None:
        self._space = space
        self._leaves = list(leaves(space))
        self._views, self._name = views, name
        self._rows = views.layout.num_envs
        # Learners send one array in the space's dtype; everything else takes the slow path.
        self._whole = views[name] if _is_one_array(space) else np.empty(0, np.void)
        self._whole_shape, self._whole_dtype = self._whole.shape, self._whole.dtype
        self._may_be_nan = self._whole_dtype.kind == "f"

    def write_all(self, actions: Any) -> None:
        """One action for every env."""
        fits = type(actions) is np.ndarray and actions.dtype is self._whole_dtype and actions.shape == self._whole_shape
        if fits and not (self._may_be_nan and _holds_nan(actions)):  # guard: nan-actions-go-the-careful-way
            self._whole[...] = actions
        else:
            self.write(actions, slice(None), self._rows)

    def write(self, actions: Any, rows: slice | Array, count: int) -> None:
        """Write the actions for `count` envs into `rows`."""
        self.prepared(actions, rows, count)()

    def prepared(self, actions: Any, rows: slice | Array, count: int, whose: str = "") -> Callable[[], None]:
        """Check the actions now; the returned function writes them. `whose` is for the error message."""
        checked = [self._checked(leaf, self._part(actions, leaf.path), count, whose) for leaf in self._leaves]
        return lambda: self._write(checked, rows)

    def _write(self, checked: list[Any], rows: slice | Array) -> None:
        for leaf, value in zip(self._leaves, checked):
            name = (*self._name, *leaf.path)
            if leaf.numeric:
                self._views[name][rows] = value
            else:
                objects = self._views.objects[name]
                indices = range(*rows.indices(len(objects))) if isinstance(rows, slice) else rows
                for row, item in zip(indices, deepcopy(value)):  # the caller may reuse its objects
                    objects[row] = item

    def _part(self, actions: Any, path: Path) -> Any:
        """One leaf's part of the batch."""
        part = actions
        for key in path:
            try:
                part = part[key]
            except (KeyError, IndexError, TypeError) as error:
                raise InvalidActions(
                    f"the actions have no {key!r} (at {list(path)}); expected a batch of {self._space}, "
                    f"got {type(actions).__name__}"
                ) from error
        return part

    def _checked(self, leaf: Leaf, value: Any, count: int, whose: str) -> Array | Sequence[Any]:
        where = whose + (f" at {list(leaf.path)}" if leaf.path else "")
        if not leaf.numeric:
            try:
                items = list(value)
            except TypeError as error:
                raise InvalidActions(f"actions{where}: expected {count} items, got {type(value).__name__}") from error
            if len(items) != count:
                raise InvalidActions(f"actions{where}: {len(items)} actions for {count} envs")
            return items
        dtype, shape = np.dtype(leaf.space.dtype), (count, *(leaf.space.shape or ()))
        try:
            array = np.asarray(value)
        except (ValueError, TypeError) as error:
            raise InvalidActions(f"actions{where}: cannot convert {type(value).__name__} to array: {error}") from error
        if array.shape != shape:  # guard: all-actions-are-checked-first
            raise InvalidActions(f"actions{where} have shape {array.shape}, expected {shape}: one row per env")
        integers = array.dtype.kind in "iu" and dtype.kind in "iu"  # accepted if they fit
        if array.dtype != dtype and not integers and not np.can_cast(array.dtype, dtype, casting="same_kind"):
            raise InvalidActions(
                f"actions{where} are {array.dtype}, expected {dtype} or a dtype that casts to it safely"
            )
        if array.dtype != dtype and dtype.kind in "iu" and not _fits(array, dtype):
            raise InvalidActions(f"actions{where} hold {array.max()} or {array.min()}, which {dtype} cannot hold")
        if array.dtype.kind == "f" and _holds_nan(array):  # guard: nan-actions-are-refused
            bad = sorted({int(i) for i in np.argwhere(np.isnan(array))[:, 0]})
            raise InvalidActions(f"actions{where} are NaN in rows {bad}")
        return array


def _holds_nan(array: Array) -> bool:
    total = np.vdot(array, array)
    return bool(total != total)


# -- reading batches for the caller ----------------------------------------------------------------------------
class BatchReader:
    """Reads the nested batch of a space, of all rows or some. Leaves without arrays are tuples of one item per row."""

    def __init__(self, space: spaces.Space[Any], views: Views, name: FieldName) -> None:
        self._single = views[name] if _is_one_array(space) else None
        self.rows = _rows_reader(space, views, name)
        """(rows, copy) → the batch of those rows."""

    def all_rows(self, copy: bool) -> Any:
        single = self._single
        if single is not None:
            return single.copy() if copy else single  # guard: results-are-the-callers
        return self.rows(slice(None), copy)


def _rows_reader(space: spaces.Space[Any], views: Views, name: FieldName) -> Callable[[slice | Array, bool], Any]:
    if isinstance(space, spaces.Dict):
        by_key = {key: _rows_reader(child, views, (*name, key)) for key, child in space.spaces.items()}
        return lambda rows, copy: {key: read(rows, copy) for key, read in by_key.items()}
    if isinstance(space, spaces.Tuple):
        parts = [_rows_reader(child, views, (*name, i)) for i, child in enumerate(space.spaces)]
        return lambda rows, copy: tuple([read(rows, copy) for read in parts])
    if not Leaf((), space).numeric:
        return functools.partial(_object_rows, views.objects[name])
    array = views[name]

    def read_array(rows: slice | Array, copy: bool) -> Array:
        part: Array = array[rows]  # indexing with an array copies
        return part.copy() if copy and isinstance(rows, slice) else part

    return read_array


def _object_rows(objects: list[Any], rows: slice | Array, copy: bool) -> tuple[Any, ...]:
    chosen = objects[rows] if isinstance(rows, slice) else [objects[i] for i in rows]
    return tuple(deepcopy(chosen) if copy else chosen)


def row_reader(space: spaces.Space[Any], views: Views, name: FieldName) -> Callable[[int], Any]:
    """A function row → a copy of that row as one value of the space, with Python ints if the env returned those."""
    if isinstance(space, spaces.Dict):
        by_key = {key: row_reader(child, views, (*name, key)) for key, child in space.spaces.items()}
        return lambda row: {key: read(row) for key, read in by_key.items()}
    if isinstance(space, spaces.Tuple):
        parts = [row_reader(child, views, (*name, i)) for i, child in enumerate(space.spaces)]
        return lambda row: tuple([read(row) for read in parts])
    if not Leaf((), space).numeric:
        return views.objects[name].__getitem__
    array = views[name]
    if not isinstance(space, spaces.Discrete):
        return lambda row: np.array(array[row])  # the value of a Box without dimensions stays an array
    are_ints = views.arrays.get((name[0], PYTHON_INTS, *name[2:]))
    if are_ints is None:
        return array.__getitem__
    ints, numbers = are_ints.data, array.data
    return lambda row: numbers[row] if ints[row] else array[row]
