"""Files with one JSON object a line: of one file, of several, compressed or not.

The files stay on disk; only the positions at which their lines begin are in memory. Compressed ones are unpacked for
the run.
"""

from __future__ import annotations

import io
import json
import os
import re
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from rlgraph.columns import Column
from rlgraph.data.base import DataSource, Row, Rows, make_source
from rlgraph.data.compressed import UNPACKING, decompress_to_temporary, open_decompressed
from rlgraph.data.concatenated import FileInspector, concatenate_rows
from rlgraph.data.listing import ListedFile, names_of
from rlgraph.errors import Diagnostic, ProgramError, RlgraphError, RunError, Span
from rlgraph.user_code.spec import UNREADABLE, CallSpec, int_option

NOT_TEXT = "E0705"
BAD_LINE = "E0706"
CHANGED = "E0712"
BOM = b"\xef\xbb\xbf"
_PEEK_BYTES = 1 << 22
"""The part of a file that the checker looks at, in a tenth of a second; the run looks at all of it."""
DEEPEST = 100
"""The deepest nesting of a row. Rows are serialized from process to process, and serialization fails at a depth of a
few hundred."""
_HALF = re.compile(r"[\ud800-\udfff]")
"""What is left in Python's texts of a pair that is not whole."""
_ARRAY = "the file seems to be one JSON array: use `files(...)`, and let its name end in .json"


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
    held: object = field(default=None, repr=False)
    """What is there as long as an unpacked file is."""

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> Row:
        with self._opened() as handle:
            handle.seek(self.starts[index])
            return self._parsed(index, handle.readline())

    def iterate_rows(self) -> Iterator[Row]:
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
        return parse_line(line, f"row {index} of '{self.path}'", self.span)


def open_json_lines(spec: CallSpec, listed: Sequence[ListedFile]) -> DataSource:
    """Find the rows of the files, and check that every line is one."""
    limit, collected = int_option(spec, "limit", None), FileInspector()
    parts: list[Rows] = []
    count = 0
    for place in listed:
        collected.begin_file(place.shown)
        rows = _found(spec, place, collected, None if limit is None else max(0, limit - count))
        count += len(rows)
        parts.append(rows)
    return make_source(spec, concatenate_rows(parts), names_of(listed), collected.columns())


def _found(spec: CallSpec, listed: ListedFile, collected: FileInspector, limit: int | None) -> JsonLines:
    """Find the rows of one file, and look at what the first of them hold, up to a limit."""
    path, file, held = listed.shown, listed.file, None
    if listed.compression:
        file, held = decompress_to_temporary(listed, spec.argument_span(0))
    starts = array("Q")
    offset = 0
    try:
        with file.open("rb") as handle:
            stamp = _stamp(handle)
            for number, line in enumerate(handle, 1):
                start = offset
                offset += len(line)
                if number == 1 and line.startswith(BOM):
                    start, line = len(BOM), line[len(BOM) :]
                if line.strip():
                    row = parse_line(line, f"{path}:{number}", spec.argument_span(0))
                    if limit is None or len(starts) < limit:
                        collected.add_row(row, number)
                    starts.append(start)
    except OSError as error:
        message = f"'{path}' cannot be read: {error.strerror}"
        raise ProgramError(Diagnostic(UNREADABLE, message, spec.argument_span(0))) from None
    return JsonLines(path, file, spec.argument_span(0), starts, stamp, held)


def json_lines_columns(spec: CallSpec, listed: ListedFile) -> dict[str, Column] | None:
    """Return what the first 4 MiB of a file's rows hold; None where there are none to look at."""
    limit, collected, count = int_option(spec, "limit", None), FileInspector(), 0
    collected.begin_file(listed.shown)
    with suppress(*UNPACKING, RlgraphError):
        with open_decompressed(listed) as handle:
            head = handle.read(_PEEK_BYTES).removeprefix(BOM)
        # The last line may be cut off and then does not parse, like a line that the run will report as wrong.
        for number, line in enumerate(io.BytesIO(head), 1):
            if line.strip():
                collected.add_row(parse_line(line, "", spec.span), number)
                count += 1
            if count == limit:
                break
    return collected.columns() if count else None


def parse_line(line: bytes, where: str, span: Span) -> Row:
    """Return the row that a line holds; `where` names the line in the error."""
    try:
        value = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise ProgramError(_not_text(line, where, error, span)) from None
    except (ValueError, RecursionError) as error:
        raise ProgramError(_not_json(line, where, error, span)) from None
    if isinstance(value, dict):
        if line.count(b"[") + line.count(b"{") > DEEPEST and (deep := too_deep_error(value, where, span)):
            raise deep
        if (b"\\ud" in line or b"\\uD" in line) and (half := half_character_error(value, where, span)):
            raise half
        return value
    hint = _ARRAY if isinstance(value, list) else 'write {"prompt": ...} on each line'
    message = f"{where}: this line is {_JSON_TYPES[type(value)]}, not a row"
    raise ProgramError(Diagnostic(BAD_LINE, message, span, hint))


def too_deep_error(row: Row, where: str, span: Span) -> ProgramError | None:
    """Return the error for a row that is nested too deeply."""
    if _depth(row) <= DEEPEST:
        return None
    message = f"{where}: lists and objects are nested more than {DEEPEST} deep"
    return ProgramError(Diagnostic(BAD_LINE, message, span, _DEEP))


def half_character_error(row: Row, where: str, span: Span) -> ProgramError | None:
    """Return the error for a row with half of a character, which no tokenizer takes: a text that was cut within one."""
    half = _HALF.search(json.dumps(row, ensure_ascii=False))
    if half is None:
        return None
    message = f"{where}: {half[0]!r} is half of a surrogate pair, which is no character"
    return ProgramError(Diagnostic(NOT_TEXT, message, span, "an emoji or the like was cut in two: write it whole"))


def _depth(value: object) -> int:
    """Return how deeply lists and objects are nested in a value."""
    level, depth = [value], -1
    while level:
        children = [
            item.values() if isinstance(item, dict) else item for item in level if isinstance(item, (dict, list))
        ]
        level, depth = [item for values in children for item in values], depth + 1
    return depth


_DEEP = "write what is deeper as a text that holds JSON"
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
        hint = "the file is compressed: let its name end in .gz, .zst, .bz2 or .xz, or unpack it"
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
        message, hint = f"{where}: broken JSON: {error.msg.removesuffix(' at')} at {place}", ""
        if line.lstrip().startswith(b"["):
            hint = _ARRAY
        elif line.strip() == b"{":
            hint = "write each row on one line of its own, without line breaks in it"
        elif line.startswith(b"version https://git-lfs"):
            hint = "this is the pointer of a file in git LFS: run `git lfs pull`"
        elif line.lstrip().startswith(b"{'"):
            hint = "JSON takes double quotes"
        elif error.msg.startswith("Invalid control character"):
            hint = "a line break in a text is written `\\n`, and a tab `\\t`"
        elif error.msg.startswith("Unterminated string"):
            hint = "the file ends within a row: was it cut off?"
        elif error.msg == "Extra data":
            behind = line.decode()[error.pos :].strip()
            hint = "take the comma behind the row away" if behind == "," else "write each row on a line of its own"
        elif line.startswith(b"\0"):
            hint = "the line has bytes of 0, as a disk leaves them where writing was broken off: take it out"
        return Diagnostic(BAD_LINE, message, span, hint or 'a row is an object of JSON, {"prompt": ...}, on a line')
    message, hint = unread_json(error)
    return Diagnostic(BAD_LINE, f"{where}: {message}", span, hint)


def unread_json(error: Exception) -> tuple[str, str]:
    """Return why JSON cannot be read whose signs are right, and what to write."""
    if isinstance(error, RecursionError):
        return "broken JSON: nested too deeply", _DEEP
    return "broken JSON: a number is too long", "write a number of so many digits as a text, in quotes"


def _stamp(handle: BinaryIO) -> tuple[int, int]:
    status = os.fstat(handle.fileno())
    return status.st_size, status.st_mtime_ns
