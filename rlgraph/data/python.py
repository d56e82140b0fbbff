"""`python("tasks.py:make", batch=64, level=3)`: the rows that a function of the user's returns or yields.

Options that are not rlgraph's are the function's arguments. It runs in a process of its own (see
`rlgraph/user_code/worker.py`). A generator is called again for each epoch, and again when a run is restarted;
it must then yield the same rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlgraph.columns import Column
from rlgraph.data.base import NO_COLUMN, SHARED_OPTIONS, DataSource, Row, Stream, look, make_source
from rlgraph.errors import Diagnostic, RunError
from rlgraph.user_code.files import Folders
from rlgraph.user_code.imported import code_files
from rlgraph.user_code.report import Target, check_required, describe, failed_call, own_options, parse_target
from rlgraph.user_code.spec import Spec, one_text, seconds
from rlgraph.user_code.worker import Failure, Worker, Workers

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
class Generated:
    """The rows that a generator yields."""

    target: Target
    arguments: Mapping[str, Any]
    limit_s: float
    worker: Worker = field(repr=False)
    key: int
    """The generator's in its process."""
    generation: int
    """Of the process that holds the generator."""
    position: int = 0
    """Rows that it has yielded."""
    defaults: Collection[str] = ()
    """Columns that a row may lack."""
    known: tuple[int, frozenset[str]] | None = None
    """The first row that was read, and its columns: nobody can look ahead, so that all others have the same."""

    def read(self, start: int, count: int) -> list[Row]:
        """The rows from `start` on, after a new start of the generator where it is already beyond."""
        if start < self.position or self.generation != self.worker.generation:
            call(self.worker, self.target, self.limit_s, "rows", self.key, self.target.name, self.arguments)
            self.position, self.generation = 0, self.worker.generation
        while self.position < start:
            skipped = self._next(min(start - self.position, 1024))
            if not skipped:
                return []
        return self._next(count)

    def _next(self, count: int) -> list[Row]:
        rows = call(self.worker, self.target, self.limit_s, "read", self.key, count)
        checked = [as_row(self.target, row, self.position + place) for place, row in enumerate(rows)]
        for place, row in enumerate(checked, self.position):
            self._check_columns(row, place)
        self.position += len(rows)
        return checked

    def _check_columns(self, row: Row, place: int) -> None:
        self.known = self.known or (place, frozenset(row))
        first, names = self.known
        odd = (names ^ row.keys()) - set(self.defaults)
        if odd:
            name = min(odd)
            lacks, has = (place, first) if name in names else (first, place)
            message = f"row {lacks} that `{self.target.name}` yields has no column '{name}', which row {has} has"
            hint = "yield the same columns in every row, with `None` where there is no value"
            raise RunError(Diagnostic(NO_COLUMN, message, self.target.span, hint))


def check(spec: Spec) -> None:
    """An error for wrong arguments; options may be the function's, which is not looked at."""
    one_text(spec, "a file and a function in it", 'python("tasks.py:make", batch=64)')
    seconds(spec, "timeout", DEFAULT_LIMIT_S)


def open_source(spec: Spec, folders: Folders, workers: Workers | None = None) -> DataSource:
    """Call the function."""
    target = parse_target(spec.args[0], folders, spec.at(0), spec.kind)
    worker = (workers or Workers()).get(target.code)
    signature = describe(target, worker)
    arguments = own_options(spec, OPTIONS, signature, target.name)
    check_required(target, signature, arguments)
    limit_s = seconds(spec, "timeout", DEFAULT_LIMIT_S)
    key = worker.new_key()
    made = call(worker, target, limit_s, "rows", key, target.name, arguments)
    rows: ListRows | Stream
    if made is None:
        defaults = spec.options.get("defaults") or ()
        rows = Generated(target, arguments, limit_s, worker, key, worker.generation, defaults=defaults)
    else:
        rows = ListRows([as_row(target, row, place) for place, row in enumerate(made)])
        return make_source(spec, rows, f"`{target.name}`", look(spec, rows.rows, f"`{target.name}`"))
    return make_source(spec, rows, f"`{target.name}`")


def columns(spec: Spec, folders: Folders) -> dict[str, Column] | None:
    """Not known without running the user's code."""
    del spec, folders
    return None


def call(worker: Worker, target: Target, limit_s: float, operation: str, *arguments: Any) -> Any:
    """What `Child.<operation>` gives; a `RunError` where the user's code fails."""
    try:
        return worker.request(operation, *arguments, limit_s=limit_s)
    except Failure as failure:
        raise failed_call(target, failure, "while it made rows", None) from None


def as_row(target: Target, row: Any, index: int) -> Row:
    """`row`, which must be one."""
    if isinstance(row, dict) and all(isinstance(name, str) for name in row):
        return row
    what = "a dict with names that are not texts" if isinstance(row, dict) else f"a {type(row).__name__}"
    message = f"row {index} that `{target.name}` made is {what}, not a dict of columns"
    raise RunError(Diagnostic(NOT_A_ROW, message, target.span, 'as in {"prompt": "2 + 2 =", "answer": "4"}'))


def files(spec: Spec, folders: Folders) -> list[Path]:
    """The function's, and those beside it that it imports."""
    return code_files(spec.args[0], folders, spec.span)
