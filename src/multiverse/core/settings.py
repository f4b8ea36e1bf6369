"""Settings as dataclass fields: each is declared with its default, its help text and its bounds."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from multiverse.core.errors import InvalidRequest


@dataclass(frozen=True)
class Bounds:
    """Range of the values of a setting. For a list: of each of its items."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None

    def __contains__(self, value: float) -> bool:
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
        )

    def __str__(self) -> str:
        if self.at_least is not None and self.at_most is not None:
            return f"a number from {self.at_least:g} to {self.at_most:g}"
        lower = f"at least {self.at_least:g}" if self.above is None else f"more than {self.above:g}"
        return lower if self.at_most is None else f"{lower} and at most {self.at_most:g}"


def setting(
    default: Any,
    help: str,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
) -> Any:
    """Declare a field of a `Config` with its default, its help text and its bounds.

    A field of a subclass keeps the help and the bounds of the field that it overrides, unless it has its own.
    """
    metadata: dict[str, Any] = {"help": help}
    if (bounds := Bounds(at_least, above, at_most)) != Bounds():
        metadata["bounds"] = bounds
    if isinstance(default, dict):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def metadata_of(config: type, name: str) -> dict[str, Any]:
    """Return the metadata of a field of this dataclass and of the fields that it overrides."""
    found: dict[str, Any] = {}
    for kind in reversed(config.__mro__):
        declared = vars(kind).get("__dataclass_fields__", {})
        found |= declared[name].metadata if name in declared else {}
    return found


def check_bounds(config: Any) -> None:
    """Refuse values that are outside the bounds of their setting. None and text are not checked."""
    for field in dataclasses.fields(config):
        value, bounds = getattr(config, field.name), metadata_of(type(config), field.name).get("bounds")
        several = isinstance(value, tuple)
        numbers = [number for number in (value if several else (value,)) if isinstance(number, int | float)]
        if bounds is not None and any(number not in bounds for number in numbers):
            raise InvalidRequest(f"{field.name}={value}: expected {bounds}{' each' if several else ''}")
