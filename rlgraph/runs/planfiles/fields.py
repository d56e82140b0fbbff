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

    def read(self, node: JsonNode) -> Any:
        """Return the value. A wrong one is recorded, and a harmless one returned."""
        ...

    def schema(self) -> dict[str, Any]:
        """Return the field's JSON Schema."""
        ...


@dataclass(frozen=True)
class Text:
    """Any text."""

    def read(self, node: JsonNode) -> str:
        return node.text()

    def schema(self) -> dict[str, Any]:
        return {"type": "string"}


@dataclass(frozen=True)
class FilePath:
    """A text that can be a path."""

    def read(self, node: JsonNode) -> str:
        if "\0" in node.text():
            node.say("E0953", f"{node.shown} is no path: it has a null character")
        return node.text()

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": r"^[^\u0000]*$"}


@dataclass(frozen=True)
class Flag:
    """True or false."""

    def read(self, node: JsonNode) -> bool:
        return node.flag()

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


@dataclass(frozen=True)
class OneOf:
    """One of some words."""

    words: tuple[str, ...]

    def read(self, node: JsonNode) -> str:
        if node.text() not in self.words:
            node.say("E0953", f"{node.shown} is none of {quoted_list(self.words, 'and')}")
            return self.words[0]
        return node.text()

    def schema(self) -> dict[str, Any]:
        return {"enum": list(self.words)}


@dataclass(frozen=True)
class WholeNumber:
    """A whole number."""

    least: int = 0
    most: int = LARGEST

    def read(self, node: JsonNode) -> int:
        return node.number(self.least, self.most)

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.least, "maximum": self.most}


@dataclass(frozen=True)
class Rows:
    """A number of rows, at least 2, or a share of them between 0 and 1."""

    def read(self, node: JsonNode) -> float:
        value = node.value
        if isinstance(value, float) and 0 < value < 1:
            return value
        return float(node.number(2))

    def schema(self) -> dict[str, Any]:
        share = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
        return {"anyOf": [share, {"type": "integer", "minimum": 2, "maximum": LARGEST}]}


@dataclass(frozen=True)
class Number:
    """Any number."""

    least: float = 0.0
    most: float = sys.float_info.max

    def read(self, node: JsonNode) -> float:
        value = node.value
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not self.least <= value <= self.most:
            node.say("E0953", f"{node.shown} is no number from {self.least:g} to {self.most:g}")
            return self.least
        return float(value)

    def schema(self) -> dict[str, Any]:
        return {"type": "number", "minimum": self.least, "maximum": self.most}


@dataclass(frozen=True)
class Nullable:
    """A value, or null."""

    each: Field

    def read(self, node: JsonNode) -> Any:
        return None if node.value is None else self.each.read(node)

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [self.each.schema(), {"type": "null"}]}


@dataclass(frozen=True)
class Items:
    """A list of values of one kind."""

    each: Field

    def read(self, node: JsonNode) -> tuple[Any, ...]:
        return tuple(self.each.read(item) for item in node.items())

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": self.each.schema()}


@dataclass(frozen=True)
class Entries:
    """An object with free names and values of one kind."""

    each: Field

    def read(self, node: JsonNode) -> dict[str, Any]:
        return {name: self.each.read(value) for name, value in node.entries()}

    def schema(self) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": self.each.schema()}


@dataclass(frozen=True)
class Section:
    """An object that may hold anything, and must hold some texts."""

    needed: Mapping[str, str] = field(default_factory=dict)
    """What each of them is, for messages."""
    known: Mapping[str, Field] = field(default_factory=dict)
    """Other fields that are read again, if they exist."""

    def read(self, node: JsonNode) -> Mapping[str, Any]:
        content = node.mapping()
        for name, meaning in self.needed.items():
            if name in content:
                node.field(name).text()
            elif isinstance(node.value, dict):
                node.say("E0952", f"{node.shown} lacks the field `{name}`, {meaning}")
        for name, known_field in self.known.items():
            if name in content:
                known_field.read(node.field(name))
        return content

    def schema(self) -> dict[str, Any]:
        result: dict[str, Any] = {"type": "object"}
        if self.needed or self.known:
            fields = {**dict.fromkeys(self.needed, Text()), **self.known}
            result["properties"] = {name: kind.schema() for name, kind in fields.items()}
        if self.needed:
            result["required"] = [*self.needed]
        return result


@dataclass(frozen=True)
class Record:
    """An object with these fields and no others."""

    make: Callable[..., Any]
    """Is called with the values by the names of their fields."""
    needed: Mapping[str, Field]
    optional: Mapping[str, Field] = field(default_factory=dict)

    def read(self, node: JsonNode) -> Any:
        """Return the values; None if a field is missing."""
        if not node.fields(*self.needed, optional=self.optional):
            return None
        fields = {**self.needed, **self.optional}
        return self.make(**{name: kind.read(node.field(name)) for name, kind in fields.items() if node.has(name)})

    def schema(self) -> dict[str, Any]:
        fields = {**self.needed, **self.optional}
        return {
            "type": "object",
            "properties": {name: kind.schema() for name, kind in fields.items()},
            "required": [*self.needed],
            "additionalProperties": False,
        }
