"""`parquet("train.parquet", batch=512)`: a table in the parquet format, held in memory.

It needs the package `pyarrow`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlgraph.columns import Column
from rlgraph.data.base import SHARED_OPTIONS, DataSource, Row, columns_of_schema, columns_of_table, make_source
from rlgraph.errors import Diagnostic, ProgramError, RunError, Span
from rlgraph.user_code.files import Folders, find_file
from rlgraph.user_code.spec import UNREADABLE, CallSpec, refuse_unknown_options, require_package, single_text_argument

NOT_LOADED = "E0710"
NO_VALUE = "E0715"


@dataclass(frozen=True, slots=True)
class ParquetRows:
    """The rows of a pyarrow table."""

    path: str
    """The path as the program writes it."""
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
            message = f"`{name}` of row {index} of '{self.path}' ({column.type}) is nothing that Python has: {error}"
            hint = "leave the column out of the file, or write it as a text or as whole numbers"
            raise RunError(Diagnostic(NO_VALUE, message, self.span, hint)) from None


def check(spec: CallSpec) -> None:
    """Raise an error for wrong arguments."""
    single_text_argument(spec, "the path of a file", 'parquet("prompts.parquet", batch=64)')
    refuse_unknown_options(spec, SHARED_OPTIONS)


def open_source(spec: CallSpec, folders: Folders) -> DataSource:
    """Read the table of the file."""
    path = spec.args[0]
    file = find_file(path, folders, spec.argument_span(0), "data file")
    require_package("pyarrow", spec.span)
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    try:
        with file.open("rb") as handle:
            table = pq.read_table(handle)
    except OSError as error:  # pyarrow's own too
        why = error.strerror or str(error)
        raise ProgramError(Diagnostic(UNREADABLE, f"'{path}' cannot be read: {why}", spec.argument_span(0))) from None
    except ValueError as error:
        why = str(error).splitlines()[0].rpartition("': ")[2].rstrip(".")
        hint = "use `jsonl(...)` for it" if file.suffix in (".json", ".jsonl") else ""
        message = f"'{path}' is not a parquet table: {why}"
        raise ProgramError(Diagnostic(NOT_LOADED, message, spec.argument_span(0), hint)) from None
    contents = columns_of_table(spec, table, f"'{path}'")
    return make_source(spec, ParquetRows(path, spec.argument_span(0), table), f"'{path}'", contents)


def columns(spec: CallSpec, folders: Folders) -> dict[str, Column] | None:
    """Return what the file's schema says of its columns; None where there is no file to look at."""
    try:
        file = folders.find_path(spec.args[0])
        if not file.is_file():
            return None
        import pyarrow.parquet as pq

        with file.open("rb") as handle:
            return columns_of_schema(pq.read_schema(handle))
    except (OSError, ValueError, ImportError):
        return None


def files(spec: CallSpec, folders: Folders) -> list[Path]:
    """Return the file that is read."""
    return [folders.find_path(spec.args[0])]
