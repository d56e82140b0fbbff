"""`python("tasks.py:make", batch=64, level=3)`: the rows that a function of the user's returns or yields.

Options that are not rlgraph's are passed to the function as arguments. It runs in a process of its own (see
`rlgraph/user_code/worker.py`). A generator is called again for each epoch, and again when a run is restarted;
it must then yield the same rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlgraph.columns import Column
from rlgraph.data.base import NO_COLUMN, SHARED_OPTIONS, DataSource, Row, Stream, inspect_columns, make_source
from rlgraph.errors import Diagnostic, RunError
from rlgraph.user_code.code_diagnostics import (
    CodeTarget,
    failed_call_error,
    load_signature,
    parse_target,
    require_arguments,
    user_options,
)
from rlgraph.user_code.files import SearchFolders
from rlgraph.user_code.imported_files import imported_files
from rlgraph.user_code.spec import CallSpec, seconds_option, single_text_argument
from rlgraph.user_code.worker import CodeFailure, Worker, Workers

NOT_A_ROW = "E0714"
OPTIONS = (*SHARED_OPTIONS, "timeout")
DEFAULT_LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class ListRows:
    """The rows of a function that returned a list."""

    rows: Sequence[Row] = field(repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Row:
        return self.rows[index]


@dataclass(slots=True)
class GeneratorRows:
    """The stream of rows that a generator yields."""

    target: CodeTarget
    arguments: Mapping[str, Any]
    limit_s: float
    worker: Worker = field(repr=False)
    key: int
    """The generator's key in its process."""
    generation: int
    """The generation of the process that holds the generator."""
    position: int = 0
    """Rows that it has yielded."""
    defaults: Collection[str] = ()
    """Columns that a row may lack."""
    first_row: tuple[int, frozenset[str]] | None = None
    """The first row that was read: its number and its columns. All other rows must have the same columns, since nobody
    can look ahead."""

    def read_rows(self, start: int, count: int) -> list[Row]:
        """Return the rows from `start` on; the generator is started again where it is already beyond."""
        if start < self.position or self.generation != self.worker.generation:
            call_user_code(
                self.worker, self.target, self.limit_s, "start_rows", self.key, self.target.name, self.arguments
            )
            self.position, self.generation = 0, self.worker.generation
        while self.position < start:
            skipped = self._next(min(start - self.position, 1024))
            if not skipped:
                return []
        return self._next(count)

    def _next(self, count: int) -> list[Row]:
        rows = call_user_code(self.worker, self.target, self.limit_s, "read_rows", self.key, count)
        checked = [checked_row(self.target, row, self.position + index) for index, row in enumerate(rows)]
        for index, row in enumerate(checked, self.position):
            self._check_columns(row, index)
        self.position += len(rows)
        return checked

    def _check_columns(self, row: Row, index: int) -> None:
        self.first_row = self.first_row or (index, frozenset(row))
        first, names = self.first_row
        differing = (names ^ row.keys()) - set(self.defaults)
        if differing:
            name = min(differing)
            lacks, has = (index, first) if name in names else (first, index)
            message = f"row {lacks} that `{self.target.name}` yields has no column '{name}', which row {has} has"
            hint = "yield the same columns in every row, with `None` where there is no value"
            raise RunError(Diagnostic(NO_COLUMN, message, self.target.span, hint))


def check_arguments(spec: CallSpec) -> None:
    """Raise an error for wrong arguments; options that may be the function's own are not looked at."""
    single_text_argument(spec, "a file and a function in it", 'python("tasks.py:make", batch=64)')
    seconds_option(spec, "timeout", DEFAULT_LIMIT_S)


def open_source(spec: CallSpec, folders: SearchFolders, workers: Workers | None = None) -> DataSource:
    """Call the function, and return its rows as a data source."""
    target = parse_target(spec.args[0], folders, spec.argument_span(0), spec.kind)
    worker = (workers or Workers()).worker_for(target.code)
    signature = load_signature(target, worker)
    arguments = user_options(spec, OPTIONS, signature, target.name)
    require_arguments(target, signature, arguments)
    limit_s = seconds_option(spec, "timeout", DEFAULT_LIMIT_S)
    key = worker.new_object_key()
    returned = call_user_code(worker, target, limit_s, "start_rows", key, target.name, arguments)
    rows: ListRows | Stream
    if returned is None:
        defaults = spec.options.get("defaults") or ()
        rows = GeneratorRows(target, arguments, limit_s, worker, key, worker.generation, defaults=defaults)
    else:
        rows = ListRows([checked_row(target, row, index) for index, row in enumerate(returned)])
        return make_source(spec, rows, f"`{target.name}`", inspect_columns(spec, rows.rows, f"`{target.name}`"))
    return make_source(spec, rows, f"`{target.name}`")


def columns(spec: CallSpec, folders: SearchFolders) -> dict[str, Column] | None:
    """Return None: the columns are not known without running the user's code."""
    del spec, folders
    return None


def call_user_code(worker: Worker, target: CodeTarget, limit_s: float, operation: str, *arguments: Any) -> Any:
    """Return what `Child.<operation>` returns; raise a `RunError` where the user's code fails."""
    try:
        return worker.request(operation, *arguments, limit_s=limit_s)
    except CodeFailure as failure:
        raise failed_call_error(target, failure, "while it made rows", None) from None


def checked_row(target: CodeTarget, row: Any, index: int) -> Row:
    """Return `row` if it is a dict of columns; raise a `RunError` otherwise."""
    if isinstance(row, dict) and all(isinstance(name, str) for name in row):
        return row
    what = "a dict with names that are not texts" if isinstance(row, dict) else f"a {type(row).__name__}"
    message = f"row {index} that `{target.name}` made is {what}, not a dict of columns"
    raise RunError(Diagnostic(NOT_A_ROW, message, target.span, 'as in {"prompt": "2 + 2 =", "answer": "4"}'))


def files(spec: CallSpec, folders: SearchFolders) -> list[Path]:
    """Return the function's file and the files beside it that it imports."""
    return imported_files(spec.args[0], folders, spec.span)
