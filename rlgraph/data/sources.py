"""Opens the source that a `data` declaration names.

A source is one file of this package, with the source's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType

from rlgraph.columns import Column
from rlgraph.data.base import DataSource, columns_with_defaults, overlong_option
from rlgraph.errors import Diagnostic, ProgramError, did_you_mean
from rlgraph.user_code.files import SearchFolders
from rlgraph.user_code.spec import CallSpec, flag_option, int_option
from rlgraph.user_code.worker import Workers

NO_SOURCE = "E0701"
SOURCES = ("files", "jsonl", "parquet", "hub", "python", "reasoning_gym", "mix")
RUN_CODE = ("python", "mix")
"""Sources that run the user's Python, or have others which do."""


def open_source(spec: CallSpec, folders: SearchFolders, workers: Workers | None = None) -> DataSource:
    """Open the source that `spec` describes; its relative paths begin in `folders`.

    `workers` are the processes of the run for the user's Python. Raises `ProgramError`, and `RunError` where the user's
    Python fails.
    """
    check_source(spec)
    module = _module(spec)
    runs_code = spec.kind in RUN_CODE
    source: DataSource = module.open_source(spec, folders, workers) if runs_code else module.open_source(spec, folders)
    return source


def check_source(spec: CallSpec) -> None:
    """Raise an error for what is wrong with a `data` declaration, as far as that can be seen without any file."""
    if spec.kind not in SOURCES:
        hint = did_you_mean(spec.kind, SOURCES) or f"there are: {', '.join(SOURCES)}"
        raise ProgramError(Diagnostic(NO_SOURCE, f"there is no data source '{spec.kind}'", spec.span, hint))
    _module(spec).check_arguments(spec)
    int_option(spec, "batch", None)
    int_option(spec, "limit", None)
    int_option(spec, "max_prompt", None)
    overlong_option(spec)
    flag_option(spec, "shuffle", False)


def source_columns(spec: CallSpec, folders: SearchFolders) -> Mapping[str, Column] | None:
    """Return the columns that the data will have, and what they hold as far as that is seen at once; None where it is
    not known without much work or the user's code.

    It raises nothing: a file that is missing here may exist where the run will be.
    """
    try:
        check_source(spec)
    except ProgramError:
        return None
    result: Mapping[str, Column] | None = _module(spec).columns(spec, folders)
    return None if result is None else columns_with_defaults(spec, result)


def source_files(spec: CallSpec, folders: SearchFolders) -> list[Path]:
    """Return the user's files that the data are read from or made by. Nothing is run, and the files need not exist."""
    try:
        check_source(spec)
    except ProgramError:
        return []
    paths: list[Path] = _module(spec).files(spec, folders)
    return paths


def _module(spec: CallSpec) -> ModuleType:
    return import_module(f"rlgraph.data.{spec.kind}")
