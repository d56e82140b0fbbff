"""Reads a JSON document that a person may have edited, value by value, and reports each mistake with its place."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rlgraph.errors import Diagnostic, ProgramError, Source, Span, did_you_mean
from rlgraph.ir.plan import LARGEST
from rlgraph.passes.compilation.read_program import file_span

Path = tuple[str | int, ...]
"""The path to a value: names of fields and indices of items."""

MOST = 20
"""The most mistakes that are reported at once."""
DEEPEST = 32
WIDEST = 300
"""The most characters of a line that is shown."""

_BLANK = re.compile(r"[ \t\n\r]*")
_KINDS = {
    dict: "an object",
    list: "a list",
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    type(None): "null",
}


class Document:
    """A JSON text, and the mistakes found so far."""

    def __init__(self, source: Source) -> None:
        """Parse the text. Raise ProgramError if it is no JSON object."""
        self.source = source
        self.wrong: list[Diagnostic] = []
        self.top = JsonNode(self, _object(source), ())

    def add_error(self, path: Path, code: str, message: str, hint: str = "", field: bool = False) -> None:
        """Record a mistake in a value; with `field`, the caret is under its name. Raise ProgramError when there are
        many."""
        self.wrong.append(Diagnostic(code, message, self.value_span(path, field), hint))
        if len(self.wrong) == MOST:
            self.raise_errors()

    def value_span(self, path: Path, field: bool = False) -> Span:
        """Return the place of a value; the whole file for one that does not exist."""
        try:
            name, value = _find(self.source.text, path)
        except (ValueError, IndexError):
            return file_span(self.source.path)
        return _span(self.source, *(name if field else value))

    def raise_errors(self) -> None:
        """Raise ProgramError with all mistakes, in the order in which they stand."""
        if self.wrong:
            raise ProgramError(sorted(self.wrong, key=lambda mistake: (mistake.span.line, mistake.span.column)))


class JsonNode:
    """A value in a document. Reading a wrong one records the mistake, and returns a harmless value of the right
    kind."""

    def __init__(self, document: Document, value: object, path: Path) -> None:
        self.document, self.value, self.path = document, value, path

    def check_fields(self, *needed: str, optional: Iterable[str] = ()) -> bool:
        """Return whether this is an object with all needed fields; unknown fields are reported."""
        if not isinstance(self.value, dict):
            self._report_kind("an object")
            return False
        allowed = (*needed, *optional)
        for name in self.value:
            if name not in allowed:
                hint = did_you_mean(name[:WIDEST], allowed) or f"it has {', '.join(f'`{field}`' for field in allowed)}"
                message = f"{self.path_text} has no field `{name:.60}`"
                self.document.add_error((*self.path, name), "E0952", message, hint, field=True)
        missing = [name for name in needed if name not in self.value]
        for name in missing:
            self.document.add_error(self.path, "E0952", f"{self.path_text} lacks the field `{name}`", field=True)
        return not missing

    def has_field(self, name: str) -> bool:
        return isinstance(self.value, dict) and name in self.value

    def field(self, name: str) -> JsonNode:
        """Return a field that exists."""
        assert isinstance(self.value, dict)
        return JsonNode(self.document, self.value[name], (*self.path, name))

    def list_items(self) -> Iterator[JsonNode]:
        """Yield the items of a list."""
        if not isinstance(self.value, list):
            self._report_kind("a list")
            return
        for index, value in enumerate(self.value):
            yield JsonNode(self.document, value, (*self.path, index))

    def object_entries(self) -> Iterator[tuple[str, JsonNode]]:
        """Yield the fields of an object whose names are free."""
        if not isinstance(self.value, dict):
            self._report_kind("an object")
            return
        for name in self.value:
            yield name, self.field(name)

    def as_mapping(self) -> Mapping[str, Any]:
        """Return an object as it is."""
        return {name: node.value for name, node in self.object_entries()}

    def read_text(self) -> str:
        if isinstance(self.value, str):
            return self.value
        self._report_kind("a text")
        return ""

    def read_texts(self) -> tuple[str, ...]:
        return tuple(item.read_text() for item in self.list_items())

    def read_flag(self) -> bool:
        if isinstance(self.value, bool):
            return self.value
        self._report_kind("true or false")
        return False

    def read_int(self, least: int = 0, most: int = LARGEST) -> int:
        """Return an integer."""
        if not isinstance(self.value, int) or isinstance(self.value, bool):
            self._report_kind("a whole number")
        elif least <= self.value <= most:
            return self.value
        else:
            self.add_error("E0953", f"{self.path_text} is {str(self.value)[:30]}, and has to be {least} to {most}")
        return least

    def add_error(self, code: str, message: str, hint: str = "") -> None:
        self.document.add_error(self.path, code, message, hint)

    @property
    def path_text(self) -> str:
        """Return the path to a piece as text: `plan.groups[1].devices`."""
        path = "".join(f"[{step}]" if isinstance(step, int) else f".{step:.60}" for step in self.path)
        return f"`{path[1:]}`" if path else "the document"

    def _report_kind(self, kind: str) -> None:
        self.add_error("E0953", f"{self.path_text} is {_KINDS[type(self.value)]}, and has to be {kind}")


# Text to values


class _Twice(Exception):
    """The error for an object with two fields of one name."""


def _object(source: Source) -> dict[str, Any]:
    if not source.text.strip():
        raise _broken(source, "it is empty")
    try:
        document = json.loads(source.text, object_pairs_hook=_once, parse_constant=_no_number, parse_float=_finite)
    except json.JSONDecodeError as error:
        message = f"this is no JSON: {error.msg[:1].lower()}{error.msg[1:]} (line {error.lineno}, column {error.colno})"
        raise ProgramError(Diagnostic("E0950", message, _span(source, error.pos, error.pos + 1), _HINT)) from None
    except _Twice as error:
        message = f"an object has two fields `{error}`"
        raise ProgramError(Diagnostic("E0952", message, file_span(source.path), "keep one of them")) from None
    except RecursionError:
        raise _broken(source, "it is nested too deep") from None
    except ValueError as error:
        raise _broken(source, str(error)) from None
    if not isinstance(document, dict):
        raise _broken(source, f"it is {_KINDS[type(document)]}, and has to be an object")
    if _depth(document) > DEEPEST:
        raise _broken(source, "it is nested too deep")
    if "\\u" in source.text and not _is_text(document):
        raise _broken(source, "one of its texts has half of a surrogate pair, which is no character")
    return document


_HINT = "write it anew: `rlgraph compile PROGRAM.rlf --emit plan`"


def _broken(source: Source, message: str) -> ProgramError:
    return ProgramError(Diagnostic("E0950", f"this cannot be read: {message}", file_span(source.path), _HINT))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        raise _Twice(next(name for name in names if names.count(name) > 1)[:60])
    return fields


def _no_number(text: str) -> float:
    raise ValueError(f"JSON has no number {text}")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:60]} is more than a number can be")
    return number


def _is_text(value: object) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _depth(value: object) -> int:
    level, depth = [value], 0
    while level:
        level = [
            inner
            for item in level
            if isinstance(item, (dict, list))
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
        depth += 1
    return depth


# Places


def _find(text: str, path: Path) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the begin and end of the name of a value, and of the value. The name of a list item is its opening
    bracket."""
    read = json.JSONDecoder().raw_decode
    at = _blank(text, 0)
    name = at, at + 1
    for step in path:
        at = _blank(text, at + 1)
        number = 0
        while True:
            key: object = number
            name = at, at + 1
            if isinstance(step, str):
                key, end = read(text, at)
                name = at, end
                at = _blank(text, _blank(text, end) + 1)
            if key == step:
                break
            at = _blank(text, _blank(text, read(text, at)[1]) + 1)
            number += 1
    return name, (at, read(text, at)[1])


def _blank(text: str, at: int) -> int:
    match = _BLANK.match(text, at)
    assert match is not None
    return match.end()


def _span(source: Source, start: int, end: int) -> Span:
    """Return the span between two characters, in the first line only; the whole file if that line is not worth
    showing."""
    before = f"{source.text[:start]}.".splitlines()
    line, column = len(before), len(before[-1])
    text = source.line_text(line)
    if len(text) > WIDEST or not text.replace("\t", " ").isprintable():
        return file_span(source.path)
    until = min(column + end - start, len(text) + 1)
    return Span(source, line, column, line, max(until, column + 1))
