"""Kinds of values that data columns hold: `rlgraph.data` collects them, and the checker compares them with their
use."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

WORDS: Mapping[str, str] = {
    "text": "a text",
    "whole": "a whole number",
    "real": "a real number",
    "truth": "true or false",
    "messages": "a list of messages",
    "nested": "a list",
    "object": "an object",
    "other": "neither text nor number",
    "null": "null",
    "missing": "nothing",
    "odd": "a number that is not finite",
    "large": "a whole number of more than 64 bits",
    "wide": "a number that 32 bits cannot hold",
}
"""The kinds of values that a column can have, with the words for each in a message."""

EVERY_ROW = (
    "give every row the column, with `null` where there is no value, which a function is given as `None`; or say what "
    'stands for it, in `data`: `defaults=columns(answer="")`'
)
"""The hint for a row that lacks a column that other rows have."""

NOT_IN_A_TEXT: Mapping[str, str] = {
    "": "name a column of texts or numbers, or write one in every row",
    "messages": 'these are messages already: ask with them as they are, or name them in a text, `user("{...}")`',
}
"""The hints for what cannot stand in a text; and for messages, which a message of a user cannot hold."""

TEXT_COLUMNS = frozenset(
    (
        *("messages", "conversations", "prompt", "completion", "response", "chosen", "rejected", "text"),
        *("instruction", "input", "system", "output"),
    )
)
"""Columns that `encode` reads as tokens by their name: what they hold is text, also where it looks like a number."""
ABSENT = frozenset({"null", "missing"})
"""Kinds of no value."""
NUMBERS = ("whole", "real", "truth")
"""Kinds that a program can calculate with."""
NO_KEYS = ("null", "odd", "messages", "nested", "object", "other")
"""Kinds that cannot be keys of a state: NaN is not equal to itself, so a lookup would never find it again."""
_LARGEST = 2**63
WIDEST = 3.4028235677973366e38
"""The smallest magnitude that becomes infinite in 32-bit floats."""


def value_kind(value: Any) -> str:
    """Return the key of `WORDS` for a value of a row."""
    if isinstance(value, str):
        return "text"
    if isinstance(value, bool):
        return "truth"
    if isinstance(value, int):
        return "whole" if -_LARGEST <= value < _LARGEST else "large"
    if isinstance(value, float):
        return _real(value)
    if value is None:
        return "null"
    if isinstance(value, list | tuple):
        return "messages" if value and all(map(is_message, value)) else "nested"
    if isinstance(value, Mapping):
        return "object"
    return _foreign(value)


def utf8_bytes_bound(text: str) -> int:
    """Return an upper bound on the bytes of a text in UTF-8, without encoding it."""
    return len(text) if text.isascii() else 4 * len(text)


def is_message(value: Any) -> bool:
    """Return whether a value is a chat message: `{"role": ..., "content": ...}`, what calls tools in place of the
    content, or as ShareGPT has it, `{"from": ..., "value": ...}`."""
    if not isinstance(value, Mapping):
        return False
    return "role" in value and ("content" in value or "tool_calls" in value) or "from" in value and "value" in value


def _real(value: float) -> str:
    if abs(value) < WIDEST:
        return "real"
    return "wide" if math.isfinite(value) else "odd"


def _foreign(value: Any) -> str:
    """Return the kind of a value of another library: a table's decimals, or NumPy's numbers."""
    if isinstance(value, Integral):
        return value_kind(int(value))
    if not isinstance(value, Real | Decimal):
        # NumPy's own type, which is called `bool_` before NumPy 2.
        return "truth" if type(value).__name__ in ("bool", "bool_") else "other"
    try:
        return _real(float(value))
    except (OverflowError, ValueError):
        return "odd"


def is_silent(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the last of some chat messages says nothing, and calls no tool either."""
    last = messages[-1]
    return not (last.get("content") or last.get("value") or last.get("tool_calls"))


@dataclass(frozen=True, slots=True)
class EmptyValues:
    """The values of a kind that say nothing: empty texts, or conversations whose last message is empty."""

    count: int
    first: str
    """The first row that has one, as a message names it."""


@dataclass(frozen=True, slots=True)
class Column:
    """The kinds of values in a column, as far as the data was read."""

    first: Mapping[str, str]
    """For each kind of value in the column, the first row that has one, as a message names it: `a.jsonl:3`. The name is
    empty where the kind is known without reading rows."""
    longest: int | None = None
    """An upper bound on the bytes of its longest text in UTF-8; None where nobody has counted."""
    fields: Mapping[str, Column] | None = None
    """What the objects in the column hold, by name; None where that is not known, so that any name may exist."""
    empty: Mapping[str, EmptyValues] = field(default_factory=dict)
    """For each kind of value those that say nothing, where the rows were read."""

    def kind_with_row(self, kind: str) -> str:
        """Return the words for a kind of value in the column, and the first row that has one."""
        place = self.first[kind]
        return f"{WORDS[kind]} in {place}" if place else WORDS[kind]


def column_of_value(value: Any) -> Column:
    """Return a column of the kind of this value, which is known without reading rows."""
    fields = {name: column_of_value(inner) for name, inner in value.items()} if isinstance(value, Mapping) else None
    return Column({value_kind(value): ""}, fields=fields)


def column_at(columns: Mapping[str, Column], name: str) -> Column | None:
    """Return what is known of a column, or of what its objects hold under a name (`extra_info.answer`); None where
    nothing is. Where an object is missing or null, so is what it would hold."""
    if name in columns:
        return columns[name]
    outer, _, inner = name.partition(".")
    column = columns.get(outer)
    if column is None or not inner or "object" not in column.first:
        return column if inner and column is not None and column.first.keys() <= ABSENT else None
    held = None if column.fields is None else column_at(column.fields, inner)
    if held is None:
        return None
    absent = {kind: place for kind, place in column.first.items() if kind in ABSENT}
    return replace(held, first={**absent, **held.first})


def value_at(row: Mapping[str, Any], name: str) -> Any:
    """Return what a row has in a column, or what the object in it has under a name (`extra_info.answer`); None where
    the object is null. Raises KeyError where it is missing, and TypeError with the name of what is no object."""
    if name in row:
        return row[name]
    value: Any = row
    parts = name.split(".")
    for place, part in enumerate(parts):
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise TypeError(".".join(parts[:place]))
        if part not in value:
            raise KeyError(name)
        value = value[part]
    return value


def value_or_none(row: Mapping[str, Any], name: str) -> Any:
    """Return what `value_at` finds; None where it finds nothing."""
    try:
        return value_at(row, name)
    except (KeyError, TypeError):
        return None


def with_value_at(row: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    """Return the row with another value where `value_at` finds one."""
    outer, _, inner = name.partition(".")
    if name in row or not inner:
        return {**row, name: value}
    return {**row, outer: with_value_at(row[outer], inner, value)}


_TOLD = (str, bool, type(None))
"""Types whose values all have the same kind, so that they need not be looked at."""
_MOST_SIGNATURES = 4096
_MOST_FIELDS = 256
"""Objects with more names than this are taken for tables with keys of their own: their names are not remembered."""
_DEEPEST_FIELDS = 8
"""Objects in objects are looked into so deep."""


@dataclass(slots=True)
class ColumnInspector:
    """Collects the kinds of values in columns, row by row.

    Most rows have a signature, the names of their columns and the types of their values, that was seen before: in
    these only numbers and lists are looked at.
    """

    name: Callable[[int], str]
    """Returns what a message calls the row with this number."""
    _first: dict[str, dict[str, int]] = field(default_factory=dict)
    _signatures: dict[Any, tuple[tuple[tuple[str, dict[str, int]], ...], tuple[str, ...]]] = field(default_factory=dict)
    _first_number: int | None = None
    _longest: dict[str, int] = field(default_factory=dict)
    """For each column an upper bound on the bytes of its longest text."""
    _empty: dict[str, dict[str, tuple[int, int]]] = field(default_factory=dict)
    """For each column and kind how many values say nothing, and the number of the first row that has one."""
    _objects: dict[str, ColumnInspector] = field(default_factory=dict)
    """What the objects in each column hold."""
    _depth: int = 0
    _open: bool = False
    """Whether these are objects of so many names that nobody remembers them."""

    def add_row(self, row: Mapping[str, Any], number: int) -> None:
        """Take in the next row, which has this number."""
        signature = (*row, *map(type, row.values()))
        columns = self._signatures.get(signature)
        if columns is None:
            columns = self._add_signature(signature, row, number)
        inspected, texts = columns
        for name, first in inspected:
            kind = value_kind(row[name])
            if kind not in first:
                first[kind] = number
            if kind == "object":
                self._add_object(name, row[name], number)
            elif kind == "messages" and is_silent(row[name]):
                self._add_empty(name, kind, number)
        longest = self._longest
        for name in texts:
            if (size := utf8_bytes_bound(row[name])) > longest[name]:
                longest[name] = size
            elif not size:
                self._add_empty(name, "text", number)

    def _add_empty(self, name: str, kind: str, number: int) -> None:
        empty = self._empty.setdefault(name, {})
        count, first = empty.get(kind, (0, number))
        empty[kind] = count + 1, first

    def _add_object(self, name: str, value: Mapping[Any, Any], number: int) -> None:
        inside = self._objects.get(name)
        if inside is None:
            inside = self._objects[name] = ColumnInspector(self.name, _depth=self._depth + 1)
        if inside._open:
            return
        if (
            len(value) <= _MOST_FIELDS
            and inside._depth <= _DEEPEST_FIELDS
            and all(isinstance(key, str) for key in value)
        ):
            inside.add_row(value, number)
        else:
            inside._open = True
        inside._open |= len(inside._first) > _MOST_FIELDS

    def _add_signature(
        self, signature: Any, row: Mapping[str, Any], number: int
    ) -> tuple[tuple[tuple[str, dict[str, int]], ...], tuple[str, ...]]:
        for name, value in row.items():
            first = self._first.setdefault(name, {} if self._first_number is None else {"missing": self._first_number})
            first.setdefault(value_kind(value), number)
        for name in self._first.keys() - row.keys():
            self._first[name].setdefault("missing", number)
        self._first_number = number if self._first_number is None else self._first_number
        if len(self._signatures) >= _MOST_SIGNATURES:
            self._signatures.clear()
        inspected = tuple((name, self._first[name]) for name, value in row.items() if type(value) not in _TOLD)
        texts = tuple(name for name, value in row.items() if type(value) is str)
        for name in texts:
            self._longest.setdefault(name, 0)
        columns = self._signatures[signature] = inspected, texts
        return columns

    def columns(self) -> dict[str, Column]:
        """Return the columns by name, in the order in which they first appeared."""
        return {
            name: Column(
                {kind: self.name(number) for kind, number in first.items()},
                self._longest.get(name),
                self._fields(name),
                {kind: EmptyValues(count, self.name(at)) for kind, (count, at) in self._empty.get(name, {}).items()},
            )
            for name, first in self._first.items()
        }

    def _fields(self, name: str) -> dict[str, Column] | None:
        inside = self._objects.get(name)
        return None if inside is None or inside._open else inside.columns()
