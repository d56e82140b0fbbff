"""Files with one JSON array of objects, or an object that has the array under a name (`field="data"`); held in
memory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from rlgraph.columns import Column, is_message
from rlgraph.data.base import DataSource, Row, Rows, make_source
from rlgraph.data.compressed import UNPACKING, open_decompressed
from rlgraph.data.concatenated import FileInspector, concatenate_rows
from rlgraph.data.json_lines import BOM, half_character_error, too_deep_error, unread_json
from rlgraph.data.listing import ListedFile, names_of
from rlgraph.errors import Diagnostic, ProgramError, RlgraphError, Span, did_you_mean, quoted_list
from rlgraph.user_code.spec import UNREADABLE, CallSpec, int_option

BAD_ARRAY = "E0764"
_MOST_BYTES = 1 << 22
"""The checker looks into files of this size at most."""


def is_json_lines(listed: ListedFile, field: str | None) -> bool:
    """Whether a `.json` file has an object on each line: many are called so. A single object that holds all rows is
    none."""
    if field is not None:
        return False
    with suppress(*UNPACKING, ValueError, RecursionError), open_decompressed(listed) as handle:
        lines = filter(bytes.strip, handle)
        first = json.loads(next(lines, b"").removeprefix(BOM))
        return isinstance(first, dict) and (next(lines, None) is not None or not _holds_rows(first))
    return False


def _holds_rows(value: Mapping[str, Any]) -> bool:
    """Whether the only object of a file holds all rows: as a list under a name, or column by column."""
    return _is_by_columns(value) or any(
        isinstance(inner, list) and inner and all(isinstance(row, dict) and not is_message(row) for row in inner)
        for name, inner in value.items()
        if name != "tools"
    )


def _is_by_columns(value: Mapping[str, Any]) -> bool:
    """Whether an object has a column under each name: a list, or as pandas writes it, an object with the rows'
    numbers."""
    columns = [*value.values()]
    lists = all(isinstance(column, list) and not any(map(is_message, column)) for column in columns)
    numbered = all(isinstance(column, dict) and column and all(map(str.isdigit, column)) for column in columns)
    return bool(columns) and (numbered or lists and len(columns) > 1 and len({len(column) for column in columns}) == 1)


def open_json_arrays(spec: CallSpec, listed: Sequence[ListedFile], field: str | None) -> DataSource:
    """Read the files."""
    limit, collected, count = int_option(spec, "limit", None), FileInspector("row {} of '{}'"), 0
    parts: list[Rows] = []
    for place in listed:
        collected.begin_file(place.shown)
        rows = read_json_array(place, field, spec.argument_span(0))
        for number, row in enumerate(rows):
            if limit is None or count < limit:
                collected.add_row(row, number)
            count += 1
        parts.append(rows)
    return make_source(spec, concatenate_rows(parts), names_of(listed), collected.columns())


def json_array_columns(spec: CallSpec, listed: ListedFile, field: str | None) -> dict[str, Column] | None:
    """Return what the rows of a small file hold."""
    collected = FileInspector("row {} of '{}'")
    collected.begin_file(listed.shown)
    with suppress(OSError, RlgraphError):
        if listed.file.stat().st_size > _MOST_BYTES:
            return None
        for number, row in enumerate(
            read_json_array(listed, field, spec.argument_span(0))[: int_option(spec, "limit", None)]
        ):
            collected.add_row(row, number)
        return collected.columns() or None
    return None


def read_json_array(listed: ListedFile, field: str | None, span: Span) -> list[Row]:
    """Return the rows of a file. Raises ProgramError, with the line and the column of what is no JSON."""
    shown = listed.shown
    try:
        with open_decompressed(listed) as handle:
            text = handle.read().decode("utf-8-sig")
        value: Any = json.loads(text)
    except UnicodeDecodeError as error:
        raise _wrong(
            f"'{shown}' is not a text in UTF-8 (at byte {error.start + 1})", span, "save the file as UTF-8"
        ) from None
    except json.JSONDecodeError as error:
        message = f"{shown}:{error.lineno}: broken JSON: {error.msg.removesuffix(' at')} at column {error.colno}"
        raise _wrong(message, span, "") from None
    except (ValueError, RecursionError) as error:
        message, hint = unread_json(error)
        raise _wrong(f"'{shown}': {message}", span, hint) from None
    except UNPACKING as error:
        raise ProgramError(Diagnostic(UNREADABLE, f"'{shown}' cannot be read: {error}", span)) from None
    if field is not None:
        value = _under(value, field, shown, span)
    if not isinstance(value, list):
        if isinstance(value, dict) and _is_by_columns(value):
            hint = 'write a row on each line: `table.to_json(FILE, orient="records", lines=True)` in pandas'
            raise _wrong(f"'{shown}' holds columns, and no list of rows", span, hint)
        arrays = [name for name, inner in value.items() if isinstance(inner, list)] if isinstance(value, dict) else []
        hint = f'say where they are: `field="{arrays[0]}"`' if arrays else "write a list of objects: [{...}, {...}]"
        raise _wrong(f"'{shown}' holds no list of rows", span, hint)
    escapes = "\\ud" in text or "\\uD" in text
    for number, row in enumerate(value):
        if not isinstance(row, dict):
            raise _wrong(f"row {number} of '{shown}' is no object", span, 'a row is {"prompt": ...}')
        if error_of_row := too_deep_error(row, f"row {number} of '{shown}'", span):
            raise error_of_row
        if escapes and (half := half_character_error(row, f"row {number} of '{shown}'", span)):
            raise half
    return value


def _under(value: Any, field: str, shown: str, span: Span) -> Any:
    """Return what the object of a file has under a name."""
    if isinstance(value, Mapping) and field in value:
        return value[field]
    names = [*value] if isinstance(value, Mapping) else []
    hint = did_you_mean(field, names) or (f"it has {quoted_list(names[:8], 'and')}" if names else "leave `field` out")
    raise _wrong(f"'{shown}' has no field '{field}'", span, hint)


def _wrong(message: str, span: Span, hint: str) -> ProgramError:
    return ProgramError(Diagnostic(BAD_ARRAY, message, span, hint))
