"""What a field of a document may hold, said once: it is read by that, and its JSON Schema is made of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from rlgraph.errors import listed
from rlgraph.ir.plan import LARGEST
from rlgraph.runs.planfiles.document import JsonNode


class Field(Protocol):
    """A kind of value."""

    def read(self, node: JsonNode) -> Any:
        """The value. What is wrong is noted, and something harmless taken for it."""
        ...

    def schema(self) -> dict[str, Any]:
        """Return the field's JSON Schema."""
        ...


@dataclass(frozen=True)
class Text:
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
            node.say("E0953", f"{node.shown} is none of {listed(self.words, 'and')}")
            return self.words[0]
        return node.text()

    def schema(self) -> dict[str, Any]:
        return {"enum": list(self.words)}


@dataclass(frozen=True)
class Whole:
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
class Maybe:
    """Something, or null."""

    each: Field

    def read(self, node: JsonNode) -> Any:
        return None if node.value is None else self.each.read(node)

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [self.each.schema(), {"type": "null"}]}


@dataclass(frozen=True)
class Items:
    """A list."""

    each: Field

    def read(self, node: JsonNode) -> tuple[Any, ...]:
        return tuple(self.each.read(item) for item in node.items())

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": self.each.schema()}


@dataclass(frozen=True)
class Entries:
    """An object whose fields anybody names, all of one kind."""

    each: Field

    def read(self, node: JsonNode) -> dict[str, Any]:
        return {name: self.each.read(value) for name, value in node.entries()}

    def schema(self) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": self.each.schema()}


@dataclass(frozen=True)
class Section:
    """An object that may hold anything, and has to hold some texts."""

    needed: Mapping[str, str] = field(default_factory=dict)
    """What each of them is."""
    known: Mapping[str, Field] = field(default_factory=dict)
    """What of the rest is read again, where it is there."""

    def read(self, node: JsonNode) -> Mapping[str, Any]:
        found = node.mapping()
        for name, what in self.needed.items():
            if name in found:
                node.field(name).text()
            elif isinstance(node.value, dict):
                node.say("E0952", f"{node.shown} lacks the field `{name}`, {what}")
        for name, each in self.known.items():
            if name in found:
                each.read(node.field(name))
        return found

    def schema(self) -> dict[str, Any]:
        made: dict[str, Any] = {"type": "object"}
        if self.needed or self.known:
            every = {**dict.fromkeys(self.needed, Text()), **self.known}
            made["properties"] = {name: each.schema() for name, each in every.items()}
        if self.needed:
            made["required"] = [*self.needed]
        return made


@dataclass(frozen=True)
class Record:
    """An object with these fields and no others."""

    make: Callable[..., Any]
    """Takes the values by the names of their fields."""
    needed: Mapping[str, Field]
    optional: Mapping[str, Field] = field(default_factory=dict)

    def read(self, node: JsonNode) -> Any:
        """Return the values; None if a field is missing."""
        if not node.fields(*self.needed, optional=self.optional):
            return None
        every = {**self.needed, **self.optional}
        return self.make(**{name: each.read(node.field(name)) for name, each in every.items() if node.has(name)})

    def schema(self) -> dict[str, Any]:
        every = {**self.needed, **self.optional}
        return {
            "type": "object",
            "properties": {name: each.schema() for name, each in every.items()},
            "required": [*self.needed],
            "additionalProperties": False,
        }
