"""Tables that the package `datasets` reads: csv, parquet, arrow, text. It keeps what it has read in its cache, from
where rows are taken without reading the rest."""

from __future__ import annotations

import ast
import csv
import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlgraph.columns import TEXT_COLUMNS, Column, is_message
from rlgraph.data.base import DataSource, Row, Stream, columns_of_schema, columns_of_table, make_source, no_rows_error
from rlgraph.data.compressed import UNPACKING, open_decompressed
from rlgraph.data.listing import ListedFile, names_of
from rlgraph.errors import Diagnostic, ProgramError, RunError, Span
from rlgraph.user_code.spec import CallSpec, require_package

NOT_LOADED = "E0710"
NO_VALUE = "E0715"
CELLS = "E0765"
BUILDERS = {"csv": "csv", "tsv": "csv", "parquet": "parquet", "arrow": "arrow", "text": "text"}
"""The builder of `datasets` for each format."""
_WHOLE = r"^-?(0|[1-9][0-9]{0,17})$"
_REAL = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?$"
_TRUTH = r"^(true|false|True|False|TRUE|FALSE)$"
"""As JSON, pandas and spreadsheets write them."""


@dataclass(frozen=True, slots=True)
class TableRows:
    """The rows of a pyarrow table."""

    path: str
    """What messages call it."""
    span: Span
    table: Any = field(repr=False)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __getitem__(self, index: int) -> Row:
        names = self.table.column_names
        return {name: self._value(name, self.table.column(place), index) for place, name in enumerate(names)}

    def _value(self, name: str, column: Any, index: int) -> Any:
        try:
            return column[index].as_py()
        except (ValueError, OverflowError) as error:  # a date before the year 1, a text that is not in UTF-8
            message = f"`{name}` of row {index} of {self.path} ({column.type}) is nothing that Python has: {error}"
            hint = "leave the column out of the file, or write it as a text or as whole numbers"
            raise RunError(Diagnostic(NO_VALUE, message, self.span, hint)) from None


@dataclass(slots=True)
class StreamedRows:
    """The rows of a data set that `datasets` streams: they come in one order, and again in the same one."""

    dataset: Any = field(repr=False)
    path: str
    span: Span
    position: int = 0
    """Rows that were read."""
    _rows: Iterator[Any] | None = field(default=None, repr=False)

    def read_rows(self, start: int, count: int) -> list[Row]:
        """Return `count` rows from `start` on, or fewer where the stream ends. Raises RunError."""
        try:
            if self._rows is None or start != self.position:
                self._rows, self.position = iter(self.dataset.skip(start)), start
            rows = [dict(row) for _, row in zip(range(count), self._rows, strict=False)]
        except Exception as error:  # network, formats: `datasets` documents no common class
            message = f"{self.path} cannot be read on from row {self.position}: {root_cause_text(error)}"
            raise RunError(Diagnostic(NOT_LOADED, message, self.span)) from None
        self.position += len(rows)
        return rows


def root_cause_text(error: BaseException) -> str:
    """Return what was at the root of an error of `datasets`, in a line."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return " ".join(f"{error}".split())[:300] or type(error).__name__


@contextmanager
def quiet_datasets() -> Iterator[None]:
    """Keep `datasets` from drawing progress bars over those of the run, and from logging what is going to be said."""
    import datasets

    shown, verbosity = not datasets.are_progress_bars_disabled(), datasets.logging.get_verbosity()
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        yield
    finally:
        datasets.logging.set_verbosity(verbosity)
        if shown:
            datasets.enable_progress_bars()


def open_tables(spec: CallSpec, listed: Sequence[ListedFile], kind: str, streaming: bool = False) -> DataSource:
    """Read the files. kind: one of `BUILDERS`. Raises ProgramError."""
    require_package("datasets", spec.span)
    if any(file.compression == ".zst" for file in listed):
        require_package("zstandard", spec.span)
    name = names_of(listed)
    if kind in ("csv", "tsv", "text", "parquet") and not any(_has_rows(file, kind) for file in listed):
        raise ProgramError(no_rows_error(spec, name))
    with _problems(spec, listed, kind):
        dataset = _load(spec, listed, kind, streaming)
    if streaming:
        rows: Stream = StreamedRows(dataset, name, spec.argument_span(0))
        return make_source(spec, rows, name)
    table = dataset.data.table
    if BUILDERS[kind] == "csv":
        table = _typed(table)
    return make_source(spec, TableRows(name, spec.argument_span(0), table), name, columns_of_table(spec, table, name))


def _load(spec: CallSpec, listed: Sequence[ListedFile], kind: str, streaming: bool) -> Any:
    import datasets

    options: dict[str, Any] = {}
    if BUILDERS[kind] == "csv":
        # As texts: `datasets` would take "None" for no value, "007" for 7, and 4 for 4.0 where a row has no number.
        texts = {name: datasets.Value("string") for name in _headers(spec, listed, kind)}
        options = {"features": datasets.Features(texts), "na_filter": False}
        options |= {"sep": _separator(listed[0], kind)}
    paths = [str(file.file.absolute()) for file in listed]
    with quiet_datasets():
        return datasets.load_dataset(BUILDERS[kind], data_files=paths, split="train", streaming=streaming, **options)


@contextmanager
def _problems(spec: CallSpec, listed: Sequence[ListedFile], kind: str) -> Iterator[None]:
    try:
        yield
    except ProgramError:
        raise
    except Exception as error:  # formats, disks: `datasets` documents no common class
        name, why = names_of(listed), root_cause_text(error).rstrip(".")
        verb = "is" if len(listed) == 1 else "are"
        what = {"text": "text in UTF-8", "csv": "csv table", "tsv": "table"}.get(kind, f"{kind} table")
        hint = "use `files(...)` for it" if listed[0].format not in ("", kind) else ""
        hint = "save the file as UTF-8" if "codec can't decode" in why else hint
        hint = hint or ("a cell with a comma in it stands in quotes" if "Expected" in why and kind == "csv" else "")
        hint = hint or ("write its columns as texts, numbers, lists or objects" if "Arrow type" in why else "")
        hint = hint or "was it copied whole? write it again"
        message = f"{name} {verb} not a {what}: {why}" if verb == "is" else f"{name} cannot be read as {kind}: {why}"
        raise ProgramError(Diagnostic(NOT_LOADED, message, spec.argument_span(0), hint)) from None


def _headers(spec: CallSpec, listed: Sequence[ListedFile], kind: str) -> list[str]:
    """Return the names in the first line of csv files, which have to be the same in all. Raises ProgramError."""
    beginnings = [_first_rows(file, kind) for file in listed]
    headers = [header for header, _ in beginnings]
    other = next((file for file in listed if _separator(file, kind) != _separator(listed[0], kind)), None)
    if other is not None:
        message = f"cells of '{other.shown}' are separated by another sign than those of '{listed[0].shown}'"
        raise ProgramError(Diagnostic(CELLS, message, spec.argument_span(0), "write all files with `,`"))
    for file, (header, row) in zip(listed, beginnings, strict=True):
        where = f"the first line of '{file.shown}'"
        twice = next((name for name in header if header.count(name) > 1), None)
        if not header:
            raise ProgramError(Diagnostic(CELLS, f"{where} is empty, and names the columns", spec.argument_span(0)))
        if twice is not None:
            raise ProgramError(Diagnostic(CELLS, f"{where} names the column '{twice}' twice", spec.argument_span(0)))
        if len(row) > len(header):
            # `datasets` would take the first cell of each row for its name, and all others for one column to the left.
            message = f"{file.shown}:2 has {len(row)} cells, and the first line names {len(header)} columns"
            raise ProgramError(Diagnostic(CELLS, message, spec.argument_span(0), "put cells with commas in quotes"))
        if sorted(header) != sorted(headers[0]):
            odd = min({*header} ^ {*headers[0]})
            has, lacks = (file, listed[0]) if odd in header else (listed[0], file)
            message = f"'{has.shown}' has a column '{odd}', and '{lacks.shown}' has none"
            raise ProgramError(Diagnostic(CELLS, message, spec.argument_span(0), "give all files the same columns"))
    return headers[0]


def _first_rows(listed: ListedFile, kind: str) -> tuple[list[str], list[str]]:
    """Return the names in the first line of a csv file, and the cells of the first row behind it. A column without a
    name, as pandas writes its index, has that which pandas gives it: `Unnamed: 0`."""
    with open_decompressed(listed) as handle:
        text = io.TextIOWrapper(handle, "utf-8-sig", newline="")
        rows = csv.reader(text, delimiter=_separator(listed, kind))
        header, row = next(rows, []), next(rows, [])
    return [name or f"Unnamed: {place}" for place, name in enumerate(header)], row


def _separator(listed: ListedFile, kind: str) -> str:
    """Return what stands between two cells: of a csv file `;` or a tab where its first line has no comma, as
    spreadsheets write it where numbers have the comma."""
    if kind == "tsv":
        return "\t"
    with open_decompressed(listed) as handle:
        first = io.TextIOWrapper(handle, "utf-8-sig", newline="").readline()
    return next((sign for sign in ",;\t" if sign in first), ",")


def _has_rows(listed: ListedFile, kind: str) -> bool:
    """Whether a file has rows, of lines any behind those that name columns. What is wrong with it is said later."""
    if kind == "parquet":
        return parquet_has_rows(listed.file)
    with suppress(*UNPACKING, ValueError, csv.Error), open_decompressed(listed) as handle:
        if kind == "text":
            return bool(handle.read(1))
        lines = filter(bytes.strip, handle)
        return next(lines, None) is None or next(lines, None) is not None
    return True


def parquet_has_rows(path: Path) -> bool:
    """Return whether a Parquet file has rows, or cannot be read."""
    with suppress(Exception):  # formats, disks: `pyarrow` documents no common class
        import pyarrow.parquet as pq

        return bool(pq.read_metadata(path).num_rows)
    return True


def _typed(table: Any) -> Any:
    """Return a csv table whose columns are numbers or truths where all their cells are written as such, and their
    names do not say that they hold text, or conversations where all are JSON of messages, or messages as Python shows
    them; an empty cell is null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        cells = pc.if_else(pc.equal(column, ""), pa.scalar(None, column.type), column)
        present = cells.drop_null()
        forms = {_WHOLE: pa.int64(), _REAL: pa.float64(), _TRUTH: pa.bool_()}
        fits = (form for pattern, form in forms.items() if pc.all(pc.match_substring_regex(present, pattern)).as_py())
        plain = name in TEXT_COLUMNS or not len(present)
        lists = _conversations(cells) if len(present) else None
        form = column.type if plain else next(fits, column.type)
        columns.append(cells.cast(form) if lists is None else lists)
    return pa.table(columns, names=table.column_names)


def _conversations(cells: Any) -> Any:
    """Return a column of texts as lists of messages; None where a cell is no such list."""
    import pyarrow as pa

    if not cells.drop_null()[0].as_py().lstrip().startswith("["):
        return None
    with suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError, pa.ArrowException):
        lists = [None if text is None else _messages(text) for text in cells.to_pylist()]
        if all(made is None or made and all(map(is_message, made)) for made in lists):
            return pa.chunked_array([pa.array(lists)])
    return None


def _messages(text: str) -> list[Any]:
    """Return the list that a text is. Raises ValueError, SyntaxError, TypeError, RecursionError, MemoryError."""
    try:
        made = json.loads(text)
    except ValueError:
        made = ast.literal_eval(text.strip())
    return list(made) if isinstance(made, list) else []


def table_columns(listed: ListedFile, kind: str) -> dict[str, Column] | None:
    """Return what a table's own description says of its columns; None where that has to be read first."""
    with suppress(*UNPACKING, ValueError):
        if kind == "text":
            return {"text": Column({"text": ""})}
        if BUILDERS[kind] == "csv":
            return {name: Column({}) for name in _first_rows(listed, kind)[0]} or None
        import pyarrow as pa
        import pyarrow.parquet as pq

        if listed.compression:
            return None
        with listed.file.open("rb") as handle:
            return columns_of_schema(pq.read_schema(handle) if kind == "parquet" else pa.ipc.open_stream(handle).schema)
    return None
