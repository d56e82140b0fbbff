"""What a data source is: rows, or a stream of them, and the options that all sources share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from rlgraph.errors import Diagnostic, ProgramError, RunError, Span, counted, nearest
from rlgraph.foreign.spec import BAD_ARGUMENT, Spec, flag, whole

SourceSpec = Spec
Row = dict[str, Any]
"""One row: its columns by name. `prompt` is a text or a list of messages `{"role": ..., "content": ...}`."""

NO_ROWS = "E0707"
TOO_FEW = "E0708"
NO_COLUMN = "E0711"
SHARED_OPTIONS = ("batch", "shuffle", "limit")


@runtime_checkable
class Rows(Protocol):
    """Rows that can be read in any order."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Row:
        """The row at `index`, counted from 0. Raises `RunError`."""
        ...


class Stream(Protocol):
    """Rows that come in one order; reading starts again from the beginning for every epoch."""

    def read(self, start: int, count: int) -> list[Row]:
        """The rows from `start` on: `count` of them, or fewer where they end. Raises `RunError`."""
        ...


class RowId(NamedTuple):
    """Which row of a data source: its identity in a run."""

    epoch: int
    row: int
    """Where in the data, counted from 0, whatever the order of reading."""

    def __str__(self) -> str:
        return f"row {self.row} of epoch {self.epoch}"


@dataclass(frozen=True, slots=True)
class DataSource:
    """The opened right side of a `data` declaration."""

    spec: Spec
    rows: Rows | Stream
    batch: int | None
    """Rows of a batch; None for all of them."""
    shuffle: bool
    limit: int | None
    """The most rows of an epoch."""

    @property
    def length(self) -> int | None:
        """Rows of an epoch; None for a stream."""
        if not isinstance(self.rows, Rows):
            return None
        return len(self.rows) if self.limit is None else min(self.limit, len(self.rows))


def make_source(spec: Spec, rows: Rows | Stream, name: str) -> DataSource:
    """`rows` with the options that all sources share; `name` is what messages call the data."""
    batch, limit = whole(spec, "batch", None), whole(spec, "limit", None)
    source = DataSource(spec, rows, batch, flag(spec, "shuffle", isinstance(rows, Rows)), limit)
    count = source.length
    if count is None:
        return _checked_stream(source, name)
    if count == 0:
        raise ProgramError(Diagnostic(NO_ROWS, f"{name} has no rows", spec.at(0)))
    if batch is not None and batch > count:
        raise ProgramError(too_few(spec, count, batch, name))
    return source


def _checked_stream(source: DataSource, name: str) -> DataSource:
    spec = source.spec
    if source.shuffle:
        message = f"{name} yields its rows one after the other, so they cannot be shuffled"
        raise ProgramError(Diagnostic(BAD_ARGUMENT, message, spec.at("shuffle"), "return a list of rows instead"))
    if source.batch is None:
        message = f"{name} yields its rows one after the other, so it must be said how many a step takes"
        raise ProgramError(Diagnostic(BAD_ARGUMENT, message, spec.span, "add `batch=64`"))
    return source


def too_few(spec: Spec, count: int, batch: int, name: str) -> Diagnostic:
    """The error for a batch that is larger than the data."""
    rows = counted(count, "row")
    cut = ", of which `limit` keeps no more" if "limit" in spec.options else ""
    message = f"a batch of {counted(batch, 'row')} is more than {name} has: {rows}{cut}"
    return Diagnostic(TOO_FEW, message, spec.at("batch"), f"take `batch={count}` or less")


def column(rows: Sequence[Mapping[str, Any]], ids: Sequence[object], name: str, span: Span) -> list[Any]:
    """The column `name` of `rows`.

    `ids` name the rows and `span` is where the program asks for the column. Raises `RunError`.
    """
    for row, row_id in zip(rows, ids, strict=True):
        if name not in row:
            hint = nearest(name, row) or f"it has: {', '.join(row)}"
            raise RunError(Diagnostic(NO_COLUMN, f"{row_id} has no column '{name}'", span, hint))
    return [row[name] for row in rows]
