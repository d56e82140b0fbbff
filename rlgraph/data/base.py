"""The types of a data source, its rows or its stream of rows, and the options that all sources share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple, Protocol, runtime_checkable

from rlgraph.columns import WIDEST, Column, ColumnInspector, EmptyValues, column_of_value, utf8_bytes_bound, value_kind
from rlgraph.data.mixture import Mixture
from rlgraph.errors import Diagnostic, ProgramError, RunError, Span, count_phrase, did_you_mean, quoted_list
from rlgraph.user_code.spec import BAD_ARGUMENT, CallSpec, flag_option, int_option, text_option

SourceSpec = CallSpec
Row = dict[str, Any]
"""A row: its columns by name. `prompt` is a text or a list of messages `{"role": ..., "content": ...}`."""

NO_ROWS = "E0707"
TOO_FEW = "E0708"
NO_COLUMN = "E0711"
SHARED_OPTIONS = ("batch", "shuffle", "limit", "max_prompt", "overlong", "defaults")
OVERLONG = ("error", "drop", "cut")
"""The values of `overlong`: what happens to rows whose prompt is too long."""


@runtime_checkable
class Rows(Protocol):
    """Rows that can be read in any order."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Row:
        """Return the row at `index`, counted from 0. Raises `RunError`."""
        ...


@runtime_checkable
class ScannableRows(Protocol):
    """Rows that are read faster in their order than one by one."""

    def iterate_rows(self) -> Iterator[Row]:
        """Yield all rows. Raises `RunError`."""
        ...


class Stream(Protocol):
    """Rows that come in one order; reading starts again from the beginning for every epoch."""

    def read_rows(self, start: int, count: int) -> list[Row]:
        """Return `count` rows from `start` on, or fewer where the stream ends. Raises `RunError`."""
        ...


class RowId(NamedTuple):
    """The identity of a row in a run: its epoch, and its number in the data."""

    epoch: int
    row: int
    """Its number in the data, counted from 0, whatever the order of reading."""

    def __str__(self) -> str:
        return f"row {self.row} of epoch {self.epoch}"


@dataclass(frozen=True, slots=True)
class TransformedRows:
    """Rows to which a function is applied when they are read."""

    rows: Rows
    change: Callable[[int, Row], Row]
    """Takes the number of a row and the row, and returns the row to use."""

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Row:
        return self.change(index, self.rows[index])


@dataclass(frozen=True, slots=True)
class TransformedStream:
    """A stream to whose rows a function is applied when they are read."""

    rows: Stream
    change: Callable[[int, Row], Row]

    def read_rows(self, start: int, count: int) -> list[Row]:
        """Return `count` changed rows from `start` on, or fewer where the stream ends."""
        return [self.change(number, row) for number, row in enumerate(self.rows.read_rows(start, count), start)]


@dataclass(frozen=True, slots=True)
class DataSource:
    """The opened right side of a `data` declaration."""

    spec: CallSpec
    rows: Rows | Stream
    batch: int | None
    """Rows of a batch; None for all of them."""
    shuffle: bool
    limit: int | None
    """The most rows of an epoch."""
    columns: Mapping[str, Column] | None = None
    """What the rows of an epoch hold, by column; None for a stream, which cannot be inspected before it is read."""
    kept: Sequence[int] | None = None
    """The numbers of the rows that are read, where others are left out because they are too long."""
    max_prompt: int | None = None
    """The most tokens of a prompt; None where the program does not say."""
    overlong: str | None = None
    """What happens to rows whose prompt is longer; None where the program does not say."""
    mixture: Mixture | None = None
    """How the rows of several sources are mixed, where these are."""

    @property
    def row_count(self) -> int | None:
        """The number of rows of an epoch; None for a stream."""
        return None if self.row_numbers is None else len(self.row_numbers)

    @property
    def row_numbers(self) -> Sequence[int] | None:
        """The numbers of the rows of an epoch, in the order of the data; None for a stream."""
        if not isinstance(self.rows, Rows):
            return None
        if self.kept is not None:
            return self.kept
        return range(len(self.rows) if self.limit is None else min(self.limit, len(self.rows)))


def numbered_rows(source: DataSource) -> Iterator[tuple[int, Row]]:
    """Yield all rows of an epoch, each with its number, in the order of the data. A file is read from beginning to
    end."""
    numbers, rows = source.row_numbers, source.rows
    assert numbers is not None and isinstance(rows, Rows)
    if isinstance(rows, ScannableRows) and isinstance(numbers, range):
        return zip(numbers, rows.iterate_rows(), strict=False)
    return ((number, rows[number]) for number in numbers)


def make_source(
    spec: CallSpec, rows: Rows | Stream, name: str, columns: Mapping[str, Column] | None = None
) -> DataSource:
    """Return `rows` as a data source with the options that all sources share; `name` is what messages call the data,
    and `columns` what they hold."""
    batch, limit = int_option(spec, "batch", None), int_option(spec, "limit", None)
    most, shuffle = int_option(spec, "max_prompt", None), flag_option(spec, "shuffle", isinstance(rows, Rows))
    if spec.options.get("defaults"):
        rows, columns = (
            rows_with_defaults(spec, rows),
            None if columns is None else columns_with_defaults(spec, columns),
        )
    source = DataSource(spec, rows, batch, shuffle, limit, columns, None, most, overlong_option(spec))
    if source.row_count is None:
        return _checked_stream(source, name)
    return require_full_batch(source, name)


def require_full_batch(source: DataSource, name: str) -> DataSource:
    """Return the source if it has rows for a batch; raise `ProgramError` otherwise."""
    spec, count, batch = source.spec, source.row_count, source.batch
    assert count is not None
    if count == 0:
        raise ProgramError(no_rows_error(spec, name))
    if source.mixture is not None and not all(source.mixture.rows_by_source(source.row_numbers or ())):
        hint = "leave that source out of the mixture, or more of its rows in it"
        raise ProgramError(Diagnostic(NO_ROWS, f"of {name} no row of one source is left", spec.span, hint))
    if batch is not None and batch > count:
        raise ProgramError(too_few_rows_error(spec, count, batch, name))
    return source


def no_rows_error(spec: CallSpec, name: str) -> Diagnostic:
    """Return the error for data without rows. name: what messages call them."""
    hint = "" if spec.kind == "python" else "write rows into it, or name another: `--data FILE`"
    return Diagnostic(NO_ROWS, f"{name} has no rows", spec.argument_span(0), hint)


def overlong_option(spec: CallSpec) -> str | None:
    """Return the option `overlong`, None where the program does not say. Raises `ProgramError`."""
    value = text_option(spec, "overlong", None)
    if value is not None and value not in OVERLONG:
        message = f"`overlong` is {quoted_list(OVERLONG, 'or')}, not {value!r}"
        raise ProgramError(
            Diagnostic(BAD_ARGUMENT, message, spec.argument_span("overlong"), did_you_mean(value, OVERLONG))
        )
    return value


def rows_with_defaults(spec: CallSpec, rows: Rows | Stream) -> Rows | Stream:
    """Return the rows with the program's default values filled in for columns that a row lacks."""
    defaults = spec.options["defaults"]

    def fill(number: int, row: Row) -> Row:
        del number
        return _filled(row, defaults)

    return TransformedRows(rows, fill) if isinstance(rows, Rows) else TransformedStream(rows, fill)


def _filled(row: Mapping[str, Any], defaults: Mapping[str, Any]) -> Row:
    """Return a row, or an object in one, with default values for what it lacks."""
    result = {**defaults, **row}
    for name, value in defaults.items():
        if isinstance(value, Mapping) and isinstance(row.get(name), Mapping):
            result[name] = _filled(row[name], value)
    return result


def columns_with_defaults(spec: CallSpec, columns: Mapping[str, Column]) -> dict[str, Column]:
    """Return what the columns hold once the program's defaults have replaced missing values."""
    return _with_defaults(columns, spec.options.get("defaults") or {})


def _with_defaults(columns: Mapping[str, Column], defaults: Mapping[str, Any]) -> dict[str, Column]:
    result = dict(columns)
    for name, value in defaults.items():
        old = columns.get(name)
        if old is None:
            result[name] = column_of_value(value)
            continue
        first, longest, fields = dict(old.first), old.longest, old.fields
        place = first.pop("missing", None)
        if fields is not None and isinstance(value, Mapping):
            if place is not None:
                fields = {name: replace(held, first={"missing": place, **held.first}) for name, held in fields.items()}
            fields = _with_defaults(fields, value)
        if place is not None:
            first.setdefault(value_kind(value), "")
            longest = max(longest or 0, utf8_bytes_bound(value)) if isinstance(value, str) else longest
            fields = column_of_value(value).fields if "object" not in old.first else fields
        result[name] = replace(old, first=first, longest=longest, fields=fields)
    return result


def _checked_stream(source: DataSource, name: str) -> DataSource:
    """Return the stream's source; raise `ProgramError` for options that need a list of rows."""
    spec = source.spec
    if source.shuffle:
        message = f"{name} yields its rows one after the other, so they cannot be shuffled"
        raise ProgramError(
            Diagnostic(BAD_ARGUMENT, message, spec.argument_span("shuffle"), "return a list of rows instead")
        )
    option = "max_prompt" if source.max_prompt else "overlong" if source.overlong not in (None, "error") else ""
    if option:
        message = f"{name} yields its rows one after the other, so they cannot be counted before the first step"
        raise ProgramError(
            Diagnostic(BAD_ARGUMENT, message, spec.argument_span(option), "return a list of rows instead")
        )
    if source.batch is None:
        message = f"{name} yields its rows one after the other, so it must be said how many a step takes"
        raise ProgramError(Diagnostic(BAD_ARGUMENT, message, spec.span, "add `batch=64`"))
    return source


def too_few_rows_error(spec: CallSpec, count: int, batch: int, name: str) -> Diagnostic:
    """Return the error for a batch that is larger than the data."""
    rows = count_phrase(count, "row")
    cut = ", of which `limit` keeps no more" if "limit" in spec.options else ""
    message = f"a batch of {count_phrase(batch, 'row')} is more than {name} has: {rows}{cut}"
    return Diagnostic(TOO_FEW, message, spec.argument_span("batch"), f"take `batch={count}` or less")


def inspect_columns(spec: CallSpec, rows: Iterable[Row], name: str) -> dict[str, Column]:
    """Return what the rows of an epoch hold, by column; messages call the rows `row 3 of NAME`."""
    looked = ColumnInspector(lambda number: f"row {number} of {name}")
    for number, row in enumerate(islice(rows, int_option(spec, "limit", None))):
        looked.add_row(row, number)
    return looked.columns()


def columns_of_schema(schema: Any) -> dict[str, Column]:
    """Return what a pyarrow schema says of the columns; it does not say whether values are missing."""
    return {field.name: _schema_column(field.type) for field in schema}


def _schema_column(data_type: Any) -> Column:
    kind = _arrow_kind(data_type)
    fields = [data_type.field(place) for place in range(data_type.num_fields)] if kind == "object" else None
    return Column({kind: ""}, fields=None if fields is None else columns_of_schema(fields))


def columns_of_table(spec: CallSpec, table: Any, name: str) -> dict[str, Column]:
    """Return what the rows of an epoch in a pyarrow table hold, computed column by column."""
    table = table.slice(0, int_option(spec, "limit", None))
    return {field.name: _array_column(column, name) for field, column in zip(table.schema, table.columns, strict=True)}


def _array_column(column: Any, name: str) -> Column:
    """Return what a pyarrow column holds, or what the objects in one hold under a name."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def first_row(mask: Any) -> dict[str, str]:
        place = pc.index(mask, pa.scalar(True)).as_py()
        return {"": f"row {place} of {name}"} if place >= 0 else {}

    kind, empty = _arrow_kind(column.type), first_row(pc.is_null(column)) if column.null_count else {}
    kinds = {"null": empty[""]} if empty else {}
    kinds |= {} if column.null_count == len(column) else {kind: first_row(pc.is_valid(column)).get("", "")}
    if pa.types.is_floating(column.type):
        size = pc.abs(column.cast(pa.float64()))
        not_finite, too_wide = first_row(pc.invert(pc.is_finite(size))), first_row(pc.greater_equal(size, WIDEST))
        kinds |= {"odd": not_finite[""]} if not_finite else {}
        kinds |= {"wide": too_wide[""]} if too_wide and not not_finite else {}
    if pa.types.is_uint64(column.type):
        too_large = first_row(pc.greater(column, pa.scalar(2**63 - 1, pa.uint64())))
        kinds |= {"large": too_large[""]} if too_large else {}
    longest, fields, says_nothing = None, None, None
    if kind == "text" and not pa.types.is_dictionary(column.type) and len(column):
        sizes = pc.binary_length(column)
        longest, says_nothing = pc.max(sizes).as_py() or 0, pc.equal(sizes, 0)
    if kind == "messages" and len(column):
        says_nothing = _silent_conversations(column)
    if kind == "object":
        names = [column.type.field(place).name for place in range(column.type.num_fields)]
        fields = {inner: _array_column(pc.struct_field(column, place), name) for place, inner in enumerate(names)}
    count = (pc.sum(says_nothing).as_py() or 0) if says_nothing is not None else 0
    return Column(kinds, longest, fields, {kind: EmptyValues(count, first_row(says_nothing)[""])} if count else {})


def _silent_conversations(column: Any) -> Any:
    """Return which lists of messages in a pyarrow column are silent, as `is_silent` says; None where they have to be
    read."""
    import pyarrow as pa
    import pyarrow.compute as pc

    message = column.type.value_type
    names = [message.field(place).name for place in range(message.num_fields)]
    said = message.field(names.index("content")).type
    if _arrow_kind(said) != "text" or pa.types.is_dictionary(said):
        return None
    looked_at = {"content", "tool_calls"} & {*names}

    def silent(lists: Any) -> Any:
        counts = pc.fill_null(pc.list_value_length(lists).cast(pa.int64()), 0)
        place = pc.if_else(pc.equal(counts, 0), None, pc.subtract(pc.cumulative_sum(counts), 1))
        last = {name: pc.struct_field(lists.flatten(), names.index(name)).take(place) for name in looked_at}
        empty = pc.equal(pc.binary_length(last["content"]), 0)
        return pc.and_(empty, pc.is_null(last["tool_calls"])) if "tool_calls" in last else empty

    return pa.chunked_array([silent(chunk) for chunk in column.chunks], pa.bool_())


def _arrow_kind(data_type: Any) -> str:
    """Return the word of `rlgraph.columns` for the values of a pyarrow type."""
    import pyarrow as pa

    types = pa.types
    if types.is_struct(data_type):
        return "object"
    if types.is_dictionary(data_type):
        return _arrow_kind(data_type.value_type)
    if types.is_string(data_type) or types.is_large_string(data_type) or types.is_string_view(data_type):
        return "text"
    if types.is_boolean(data_type):
        return "truth"
    if types.is_integer(data_type):
        return "whole"
    if types.is_floating(data_type) or types.is_decimal(data_type):
        return "real"
    if types.is_null(data_type):
        return "null"
    if types.is_list(data_type) or types.is_large_list(data_type):
        inner = data_type.value_type
        names = {inner.field(place).name for place in range(inner.num_fields)} if types.is_struct(inner) else set()
        return "messages" if {"role", "content"} <= names else "nested"
    return "nested" if types.is_nested(data_type) else "other"


def column_values(rows: Sequence[Mapping[str, Any]], ids: Sequence[object], name: str, span: Span) -> list[Any]:
    """Return the column `name` of `rows`.

    `ids` name the rows and `span` is where the program asks for the column. Raises `RunError`.
    """
    for row, row_id in zip(rows, ids, strict=True):
        if name not in row:
            hint = did_you_mean(name, row) or f"it has: {', '.join(row)}"
            raise RunError(Diagnostic(NO_COLUMN, f"{row_id} has no column '{name}'", span, hint))
    return [row[name] for row in rows]
