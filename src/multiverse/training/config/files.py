"""Config files: strict YAML, in which every ambiguity is an error with its line.

Numbers are what they look like (`1e-3` is a float, `100_000` an int), only `true` and `false` are booleans (`no` is the
text "no"), and dates are text. Refused are duplicate keys, tags, keys that are not text, several documents, and files
that grow by their aliases. `build` makes typed configs of the result.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from multiverse.core.errors import InvalidConfig
from multiverse.core.plain_files import read_named
from multiverse.core.wording import format_bytes
from multiverse.training.config.build import Located

LARGEST_BYTES = 2**18
MOST_VALUES = 20_000
"""Limit of values after resolving aliases: ten lines of aliases can stand for a billion values."""
DEEPEST = 40

_CORE = "tag:yaml.org,2002:"
_INT = re.compile(r"^[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$")
_FLOAT = re.compile(
    r"^(?:[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
_BOOL = re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$")
_NULL = re.compile(r"^(?:~|null|Null|NULL|)$")
_RESOLVERS = {"bool": _BOOL, "int": _INT, "float": _FLOAT, "null": _NULL}


class _Loader(yaml.SafeLoader):
    """Parses the text into nodes, which `_Reading` converts to values. No constructor of PyYAML is ever called."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012  without PyYAML's own (yes, no, 1:30)


class _Dumper(yaml.SafeDumper):
    """Quotes text that this or another reader of YAML would take for another type."""

    def text(self, value: str) -> yaml.ScalarNode:
        """Escape unusual line breaks, which PyYAML reads as spaces otherwise."""
        return self.represent_scalar(f"{_CORE}str", value, None if value.isprintable() else '"')


for _name, _pattern in _RESOLVERS.items():
    _Loader.add_implicit_resolver(_CORE + _name, _pattern, None)
    _Dumper.add_implicit_resolver(_CORE + _name, _pattern, None)
_Dumper.add_representer(str, _Dumper.text)


def read_config(path: Path | str) -> dict[str, Any]:
    """Return the content of a file as nested dicts that know their lines; errors are `InvalidConfig` with the line."""
    path = Path(path)
    try:
        data = read_named(path, LARGEST_BYTES)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise InvalidConfig(
                str(path), f"is larger than {format_bytes(LARGEST_BYTES)}: expected a config file"
            ) from None
        raise InvalidConfig(str(path), f"cannot be read ({error.strerror or error})") from None
    try:
        return parse_config(data.decode(), str(path))
    except UnicodeDecodeError as error:
        raise InvalidConfig(str(path), f"is not a text file: byte {error.start} is not UTF-8") from None


def parse_config(text: str, source: str = "config") -> dict[str, Any]:
    """Return the content of a text, as `read_config` does for a file."""
    try:
        node = yaml.compose(text, _Loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark or error.context_mark
        raise InvalidConfig(_at(source, line), f"is not valid YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise InvalidConfig(source, f"is not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise InvalidConfig(source, f"is nested deeper than {DEEPEST}, the limit for configs") from None
    if node is None:
        return Located({}, {})
    if not isinstance(node, yaml.MappingNode):
        raise InvalidConfig(_at(source, node.start_mark), "expected lines `name: value`")
    found = _Reading(source).value(node)
    assert isinstance(found, dict)
    return found


def dump_yaml(mapping: Mapping[str, Any]) -> str:
    """Return plain values (see `as_plain`) as a text from which `read_config` reads the same values."""
    return yaml.dump(_thawed(mapping), Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False)


class _Reading:
    """Conversion of the nodes of a file to values, of which there is a limited number."""

    def __init__(self, source: str) -> None:
        self.source, self.values = source, 0

    def value(self, node: yaml.Node, depth: int = 0, path: str = "") -> Any:
        self.values += 1
        if self.values > MOST_VALUES:  # guard: aliases-are-bounded
            raise InvalidConfig(
                _at(self.source, node.start_mark),
                f"more than {MOST_VALUES:,} values (aliases expanded), the limit for configs",
            )
        if depth > DEEPEST:  # also an alias inside what it stands for
            raise InvalidConfig(
                _at(self.source, node.start_mark), f"nested deeper than {DEEPEST}, the limit for configs"
            )
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{_CORE}seq":
            return [self.value(one, depth + 1, f"{path}[{i}]") for i, one in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode) and node.tag == f"{_CORE}map":
            return self._mapping(node, depth, f"{path}." if path else "")
        raise self._refused_tag(node)

    def _mapping(self, node: yaml.MappingNode, depth: int, inside: str) -> Located:
        lines: dict[str, int] = {}
        values: dict[str, Any] = {}
        places: dict[str, str] = {}
        for key_node, value_node in node.value:
            key = self.value(key_node, depth + 1)
            where = _at(self.source, key_node.start_mark)
            if not isinstance(key, str):
                raise InvalidConfig(where, f"the key {key!r} is not text", "Put it in quotes if it is meant as text")
            if key in values:  # guard: no-key-twice
                raise InvalidConfig(where, f"{key} is given twice, first in line {lines[key]}")
            lines[key] = key_node.start_mark.line + 1
            places[key] = f"{where}: {inside}{key}"
            values[key] = self.value(value_node, depth + 1, f"{inside}{key}")
        return Located(values, places)

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        text, kind = str(node.value), node.tag.removeprefix(_CORE)
        if kind == "str":
            return text
        if kind not in _RESOLVERS or not _RESOLVERS[kind].match(text):
            raise self._refused_tag(node)
        if kind == "int":
            return self._int(node, text.replace("_", ""))
        if kind == "float":
            return float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))
        return text.lower() == "true" if kind == "bool" else None

    def _int(self, node: yaml.ScalarNode, digits: str) -> int:
        if len(digits) > 1000:  # slow to convert, or refused by Python
            raise InvalidConfig(
                _at(self.source, node.start_mark), f"a number with {len(digits)} digits: expected at most 1,000"
            )
        return int(digits, 16 if "x" in digits else 10)

    def _refused_tag(self, node: yaml.Node) -> InvalidConfig:
        tag = str(node.tag).replace(_CORE, "!!")
        return InvalidConfig(
            _at(self.source, node.start_mark), f"the tag {tag} is not supported", "Use plain values only"
        )


def _at(source: str, mark: Any) -> str:
    return f"{source}, line {mark.line + 1}" if mark is not None else source


def _thawed(value: Any) -> Any:
    """Return copies of all dicts and lists: shared ones would be written as aliases."""
    if isinstance(value, Mapping):
        return {key: _thawed(one) for key, one in value.items()}
    return [_thawed(one) for one in value] if isinstance(value, (list, tuple)) else value


def flat(settings: Mapping[str, Any], section: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of every setting; those of a section are named `ppo.gamma`."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{section}{name}.")
        else:
            yield f"{section}{name}", value
