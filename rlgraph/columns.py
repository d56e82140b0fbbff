"""What the columns of data hold: read from the data by `rlgraph.data`, and compared with its use by the checker."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

WORDS: Mapping[str, str] = {
    "text": "a text",
    "whole": "a whole number",
    "real": "a real number",
    "truth": "true or false",
    "messages": "a list of messages",
    "nested": "a list or an object",
    "other": "neither text nor number",
    "null": "null",
    "missing": "nothing",
    "odd": "a number that is not finite",
    "large": "a whole number of more than 64 bits",
    "wide": "a number that 32 bits cannot hold",
}
"""What a value of a column can be, and how a message says it."""

EVERY_ROW = (
    "give every row the column, with `null` where there is no value, which a function is given as `None`; or say what "
    'stands for it, in `data`: `defaults=columns(answer="")`'
)
"""The hint where a row lacks a column that others have."""

NUMBERS = ("whole", "real", "truth")
"""One can calculate with these."""
NO_KEYS = ("null", "odd", "messages", "nested", "other")
"""These are no keys of a state: NaN is not equal to itself, so it would never be found again."""
_LARGEST = 2**63
WIDEST = 3.4028235677973366e38
"""From here on numbers become infinite where they are held in 32 bits."""


def kind_of(value: Any) -> str:
    """The word of `WORDS` for a value of a row."""
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
        return "messages" if value and all(map(_message, value)) else "nested"
    if isinstance(value, Mapping):
        return "nested"
    return _foreign(value)


def most_bytes(text: str) -> int:
    """At most so many bytes has a text in UTF-8: told without writing it."""
    return len(text) if text.isascii() else 4 * len(text)


def _message(value: Any) -> bool:
    return isinstance(value, Mapping) and "role" in value and "content" in value


def _real(value: float) -> str:
    if abs(value) < WIDEST:
        return "real"
    return "wide" if math.isfinite(value) else "odd"


def _foreign(value: Any) -> str:
    """Of a table's decimals, and of NumPy's numbers."""
    if isinstance(value, Integral):
        return kind_of(int(value))
    if not isinstance(value, Real | Decimal):
        # NumPy's own, which is called `bool_` before its second version.
        return "truth" if type(value).__name__ in ("bool", "bool_") else "other"
    try:
        return _real(float(value))
    except (OverflowError, ValueError):
        return "odd"


@dataclass(frozen=True, slots=True)
class Column:
    """What a column holds, as far as the data were looked at."""

    first: Mapping[str, str]
    """For each kind of value that is in it, the first row that has one, as a message names it: `a.jsonl:3`. Empty where
    it is known without a look at rows."""
    longest: int | None = None
    """Its longest text has at most so many bytes in UTF-8; None where nobody has counted."""

    def where(self, kind: str) -> str:
        """A kind of value that is in it, and the first row that has one."""
        place = self.first[kind]
        return f"{WORDS[kind]} in {place}" if place else WORDS[kind]


def declared(kind: str) -> Column:
    """A column of which is known what it holds."""
    return Column({kind: ""})


_TOLD = (str, bool, type(None))
"""Types of values that say by themselves of which kind these are."""
_MOST_SHAPES = 4096


@dataclass(slots=True)
class Looked:
    """Collects what columns hold, row by row.

    Most rows are of a shape, the names of their columns and the types of their values, that was seen before: of these
    only numbers and lists are looked at.
    """

    name: Callable[[int], str]
    """What a message calls the row of that number."""
    _first: dict[str, dict[str, int]] = field(default_factory=dict)
    _shapes: dict[Any, tuple[tuple[tuple[str, dict[str, int]], ...], tuple[str, ...]]] = field(default_factory=dict)
    _begin: int | None = None
    _longest: dict[str, int] = field(default_factory=dict)
    """Bytes of the longest text of each column, at most."""

    def add(self, row: Mapping[str, Any], number: int) -> None:
        """The next row."""
        shape = (*row, *map(type, row.values()))
        columns = self._shapes.get(shape)
        if columns is None:
            columns = self._new(shape, row, number)
        looked, texts = columns
        for name, first in looked:
            kind = kind_of(row[name])
            if kind not in first:
                first[kind] = number
        longest = self._longest
        for name in texts:
            if (size := most_bytes(row[name])) > longest[name]:
                longest[name] = size

    def _new(
        self, shape: Any, row: Mapping[str, Any], number: int
    ) -> tuple[tuple[tuple[str, dict[str, int]], ...], tuple[str, ...]]:
        for name, value in row.items():
            first = self._first.setdefault(name, {} if self._begin is None else {"missing": self._begin})
            first.setdefault(kind_of(value), number)
        for name in self._first.keys() - row.keys():
            self._first[name].setdefault("missing", number)
        self._begin = number if self._begin is None else self._begin
        if len(self._shapes) >= _MOST_SHAPES:
            self._shapes.clear()
        looked = tuple((name, self._first[name]) for name, value in row.items() if type(value) not in _TOLD)
        texts = tuple(name for name, value in row.items() if type(value) is str)
        for name in texts:
            self._longest.setdefault(name, 0)
        found = self._shapes[shape] = looked, texts
        return found

    def columns(self) -> dict[str, Column]:
        """By name, in the order in which they came."""
        return {
            name: Column({kind: self.name(number) for kind, number in first.items()}, self._longest.get(name))
            for name, first in self._first.items()
        }
