"""`jsonl("gsm8k.jsonl", batch=512)`: a file with one JSON object a line.

The file stays on disk; only the positions at which its lines begin are in memory.
"""

from __future__ import annotations

import io
import json
import os
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from rlgraph.columns import Column, ColumnInspector
from rlgraph.data.base import SHARED_OPTIONS, DataSource, Row, make_source
from rlgraph.errors import Diagnostic, ProgramError, RlgraphError, RunError, Span
from rlgraph.user_code.files import Folders, find_file
from rlgraph.user_code.spec import UNREADABLE, CallSpec, int_option, refuse_unknown_options, single_text_argument

NOT_TEXT = "E0705"
BAD_LINE = "E0706"
CHANGED = "E0712"
_BOM = b"\xef\xbb\xbf"
_PEEK_BYTES = 1 << 22
"""The part of a file that the checker looks at, in a tenth of a second; the run looks at all of it."""
DEEPEST = 100
"""The deepest nesting of a row. Rows are serialized from process to process, and serialization fails at a depth of a
few hundred."""


@dataclass(frozen=True, slots=True)
class JsonLines:
    """The rows of a file; every line has been checked once."""

    path: str
    """The path as the program writes it."""
    file: Path
    span: Span
    starts: array[int] = field(repr=False)
    """The byte at which each row begins."""
    stamp: tuple[int, int]
    """The file's size and time of change when the lines were found."""

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> Row:
        with self._opened() as handle:
            handle.seek(self.starts[index])
            return self._parsed(index, handle.readline())

    def scan_rows(self) -> Iterator[Row]:
        """Yield all rows in one reading of the file."""
        with self._opened() as handle:
            for index, start in enumerate(self.starts):
                handle.seek(start)
                yield self._parsed(index, handle.readline())

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        """Open the file, which must not have changed since its lines were found."""
        try:
            with self.file.open("rb") as handle:
                if _stamp(handle) == self.stamp:
                    yield handle
                    return
        except OSError as error:
            message = f"'{self.path}' cannot be read: {error.strerror}"
            raise RunError(Diagnostic(UNREADABLE, message, self.span)) from None
        message = f"'{self.path}' was changed while the run reads it"
        hint = "start again, and leave the file alone until the run ends"
        raise RunError(Diagnostic(CHANGED, message, self.span, hint))

    def _parsed(self, index: int, line: bytes) -> Row:
        return parse_row(line, f"row {index} of '{self.path}'", self.span)


def check(spec: CallSpec) -> None:
    """Raise an error for wrong arguments."""
    single_text_argument(spec, "the path of a file", 'jsonl("prompts.jsonl", batch=64)')
    refuse_unknown_options(spec, SHARED_OPTIONS)


def open_source(spec: CallSpec, folders: Folders) -> DataSource:
    """Find the rows of the file, and check that every line is one."""
    path = spec.args[0]
    file = find_file(path, folders, spec.argument_span(0), "data file")
    starts, limit = array("Q"), int_option(spec, "limit", None)
    collected = ColumnInspector(lambda number: f"{path}:{number}")
    offset = 0
    try:
        with file.open("rb") as handle:
            stamp = _stamp(handle)
            for number, line in enumerate(handle, 1):
                start = offset
                offset += len(line)
                if number == 1 and line.startswith(_BOM):
                    start, line = len(_BOM), line[len(_BOM) :]
                if line.strip():
                    row = parse_row(line, f"{path}:{number}", spec.argument_span(0))
                    if limit is None or len(starts) < limit:
                        collected.add_row(row, number)
                    starts.append(start)
    except OSError as error:
        message = f"'{path}' cannot be read: {error.strerror}"
        raise ProgramError(Diagnostic(UNREADABLE, message, spec.argument_span(0))) from None
    rows = JsonLines(path, file, spec.argument_span(0), starts, stamp)
    return make_source(spec, rows, f"'{path}'", collected.columns())


def columns(spec: CallSpec, folders: Folders) -> dict[str, Column] | None:
    """Return what the first 4 MiB of rows hold; None where there are none to look at."""
    path, limit = spec.args[0], int_option(spec, "limit", None)
    collected, count = ColumnInspector(lambda number: f"{path}:{number}"), 0
    with suppress(OSError, RlgraphError):
        file = folders.find_path(path)
        if not file.is_file():
            return None
        with file.open("rb") as handle:
            head = handle.read(_PEEK_BYTES).removeprefix(_BOM)
        # The last line may be cut off and then does not parse, like a line that the run will report as wrong.
        for number, line in enumerate(io.BytesIO(head), 1):
            if line.strip():
                collected.add_row(parse_row(line, "", spec.span), number)
                count += 1
            if count == limit:
                break
    return collected.columns() if count else None


def parse_row(line: bytes, where: str, span: Span) -> Row:
    """Return the row that a line holds; `where` names the line in the error."""
    try:
        value = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise ProgramError(_not_text(line, where, error, span)) from None
    except (ValueError, RecursionError) as error:
        raise ProgramError(_not_json(line, where, error, span)) from None
    if isinstance(value, dict):
        if line.count(b"[") + line.count(b"{") > DEEPEST and _depth(value) > DEEPEST:
            message = f"{where}: lists and objects are nested more than {DEEPEST} deep"
            raise ProgramError(Diagnostic(BAD_LINE, message, span))
        return value
    hint = 'write {"prompt": ...} on each line'
    if isinstance(value, list):
        hint = "the file seems to be one JSON array; write each of its objects on a line of its own"
    message = f"{where}: this line is {_JSON_TYPES[type(value)]}, not a row"
    raise ProgramError(Diagnostic(BAD_LINE, message, span, hint))


def _depth(value: object) -> int:
    """Return how deeply lists and objects are nested in a value."""
    level, depth = [value], -1
    while level:
        children = [
            item.values() if isinstance(item, dict) else item for item in level if isinstance(item, (dict, list))
        ]
        level, depth = [item for values in children for item in values], depth + 1
    return depth


_JSON_TYPES: dict[type[Any], str] = {
    list: "a list",
    str: "a text",
    int: "a number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


def _not_text(line: bytes, where: str, error: UnicodeDecodeError, span: Span) -> Diagnostic:
    hint = "save the file as UTF-8"
    if line.startswith((b"\x1f\x8b", b"PK", b"\x28\xb5\x2f\xfd", b"BZh")):
        hint = "the file is compressed; unpack it first"
    elif line.startswith((b"\xff\xfe", b"\xfe\xff")):
        hint = "the file is in UTF-16; save it as UTF-8"
    elif line.startswith(b"PAR1"):
        hint = "the file is in the parquet format: use `parquet(...)`"
    message = f"{where}: not a text in UTF-8 (byte {line[error.start]:#04x} at position {error.start + 1})"
    return Diagnostic(NOT_TEXT, message, span, hint)


def _not_json(line: bytes, where: str, error: Exception, span: Span) -> Diagnostic:
    if isinstance(error, json.JSONDecodeError):
        # The parser counts a line end at the end of a cut row as a line of its own.
        place = f"column {min(error.pos, len(line.decode().rstrip())) + 1}"
        message, hint = f"{where}: broken JSON: {error.msg} at {place}", ""
        if line.strip() in (b"[", b"{"):
            hint = "write each row on one line of its own, without line breaks in it"
        elif line.startswith(b"version https://git-lfs"):
            hint = "this is the pointer of a file in git LFS: run `git lfs pull`"
        elif line.lstrip().startswith(b"{'"):
            hint = "JSON takes double quotes"
        return Diagnostic(BAD_LINE, message, span, hint)
    return Diagnostic(BAD_LINE, f"{where}: broken JSON: nested too deeply or a number too long", span)


def _stamp(handle: BinaryIO) -> tuple[int, int]:
    status = os.fstat(handle.fileno())
    return status.st_size, status.st_mtime_ns


def files(spec: CallSpec, folders: Folders) -> list[Path]:
    """Return the file that is read."""
    return [folders.find_path(spec.args[0])]
