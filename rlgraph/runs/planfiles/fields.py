"""The kinds of fields in a document: each reads a value and makes its JSON Schema."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from rlgraph.errors import quoted_list
from rlgraph.ir.plan import LARGEST
from rlgraph.runs.planfiles.document import JsonNode


class Field(Protocol):
    """A kind of value."""

    def read_value(self, node: JsonNode) -> Any:
        """Return the value. A wrong one is recorded, and a harmless one returned."""
        ...

    def json_schema(self) -> dict[str, Any]:
        """Return the field's JSON Schema."""
        ...


@dataclass(frozen=True)
class TextField:
    """Any text."""

    def read_value(self, node: JsonNode) -> str:
        return node.read_text()

    def json_schema(self) -> dict[str, Any]:
        return {"type": "string"}


@dataclass(frozen=True)
class PathField:
    """A text that can be a path."""

    def read_value(self, node: JsonNode) -> str:
        if "\0" in node.read_text():
            node.add_error("E0953", f"{node.path_text} is no path: it has a null character")
        return node.read_text()

    def json_schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": r"^[^\u0000]*$"}


@dataclass(frozen=True)
class FlagField:
    """True or false."""

    def read_value(self, node: JsonNode) -> bool:
        return node.read_flag()

    def json_schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


@dataclass(frozen=True)
class ChoiceField:
    """One of some words."""

    words: tuple[str, ...]

    def read_value(self, node: JsonNode) -> str:
        if node.read_text() not in self.words:
            node.add_error("E0953", f"{node.path_text} is none of {quoted_list(self.words, 'and')}")
            return self.words[0]
        return node.read_text()

    def json_schema(self) -> dict[str, Any]:
        return {"enum": list(self.words)}


@dataclass(frozen=True)
class IntField:
    """A whole number."""

    least: int = 0
    most: int = LARGEST

    def read_value(self, node: JsonNode) -> int:
        return node.read_int(self.least, self.most)

    def json_schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.least, "maximum": self.most}


@dataclass(frozen=True)
class RowsField:
    """A number of rows, at least 2, or a share of them between 0 and 1."""

    def read_value(self, node: JsonNode) -> float:
        value = node.value
        if isinstance(value, float) and 0 < value < 1:
            return value
        return float(node.read_int(2))

    def json_schema(self) -> dict[str, Any]:
        share = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
        return {"anyOf": [share, {"type": "integer", "minimum": 2, "maximum": LARGEST}]}


@dataclass(frozen=True)
class NumberField:
    """Any number."""

    least: float = 0.0
    most: float = sys.float_info.max

    def read_value(self, node: JsonNode) -> float:
        value = node.value
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not self.least <= value <= self.most:
            node.add_error("E0953", f"{node.path_text} is no number from {self.least:g} to {self.most:g}")
            return self.least
        return float(value)

    def json_schema(self) -> dict[str, Any]:
        return {"type": "number", "minimum": self.least, "maximum": self.most}


@dataclass(frozen=True)
class NullableField:
    """A value, or null."""

    each: Field

    def read_value(self, node: JsonNode) -> Any:
        return None if node.value is None else self.each.read_value(node)

    def json_schema(self) -> dict[str, Any]:
        return {"anyOf": [self.each.json_schema(), {"type": "null"}]}


@dataclass(frozen=True)
class ListField:
    """A list of values of one kind."""

    each: Field

    def read_value(self, node: JsonNode) -> tuple[Any, ...]:
        return tuple(self.each.read_value(item) for item in node.list_items())

    def json_schema(self) -> dict[str, Any]:
        return {"type": "array", "items": self.each.json_schema()}


@dataclass(frozen=True)
class MapField:
    """An object with free names and values of one kind."""

    each: Field

    def read_value(self, node: JsonNode) -> dict[str, Any]:
        return {name: self.each.read_value(value) for name, value in node.object_entries()}

    def json_schema(self) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": self.each.json_schema()}


@dataclass(frozen=True)
class SectionField:
    """An object that may hold anything, and must hold some texts."""

    needed: Mapping[str, str] = field(default_factory=dict)
    """What each of them is, for messages."""
    known: Mapping[str, Field] = field(default_factory=dict)
    """Other fields that are read again, if they exist."""

    def read_value(self, node: JsonNode) -> Mapping[str, Any]:
        content = node.as_mapping()
        for name, meaning in self.needed.items():
            if name in content:
                node.field(name).read_text()
            elif isinstance(node.value, dict):
                node.add_error("E0952", f"{node.path_text} lacks the field `{name}`, {meaning}")
        for name, known_field in self.known.items():
            if name in content:
                known_field.read_value(node.field(name))
        return content

    def json_schema(self) -> dict[str, Any]:
        result: dict[str, Any] = {"type": "object"}
        if self.needed or self.known:
            fields = {**dict.fromkeys(self.needed, TextField()), **self.known}
            result["properties"] = {name: kind.json_schema() for name, kind in fields.items()}
        if self.needed:
            result["required"] = [*self.needed]
        return result


@dataclass(frozen=True)
class RecordField:
    """An object with these fields and no others."""

    make: Callable[..., Any]
    """Is called with the values by the names of their fields."""
    needed: Mapping[str, Field]
    optional: Mapping[str, Field] = field(default_factory=dict)

    def read_value(self, node: JsonNode) -> Any:
        """Return the values; None if a field is missing."""
        if not node.check_fields(*self.needed, optional=self.optional):
            return None
        fields = {**self.needed, **self.optional}
        return self.make(
            **{name: kind.read_value(node.field(name)) for name, kind in fields.items() if node.has_field(name)}
        )

    def json_schema(self) -> dict[str, Any]:
        fields = {**self.needed, **self.optional}
        return {
            "type": "object",
            "properties": {name: kind.json_schema() for name, kind in fields.items()},
            "required": [*self.needed],
            "additionalProperties": False,
        }
