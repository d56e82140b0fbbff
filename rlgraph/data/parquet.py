"""`parquet("train.parquet", batch=512)`: a table in the parquet format.

It needs the package `datasets`.
"""

from __future__ import annotations

import os
from pathlib import Path

from rlgraph.columns import Column
from rlgraph.data.base import SHARED_OPTIONS, DataSource
from rlgraph.data.listing import ListedFile
from rlgraph.data.tables import open_tables, table_columns
from rlgraph.user_code.files import SearchFolders, find_file
from rlgraph.user_code.spec import CallSpec, refuse_unknown_options, single_text_argument


def check_arguments(spec: CallSpec) -> None:
    """Raise an error for wrong arguments."""
    single_text_argument(spec, "the path of a file", 'parquet("prompts.parquet", batch=64)')
    refuse_unknown_options(spec, SHARED_OPTIONS)


def open_source(spec: CallSpec, folders: SearchFolders) -> DataSource:
    """Read the table of the file."""
    path = spec.args[0]
    return open_tables(
        spec, [ListedFile(path, find_file(path, folders, spec.argument_span(0), "data file"))], "parquet"
    )


def columns(spec: CallSpec, folders: SearchFolders) -> dict[str, Column] | None:
    """Return what the file's schema says of its columns; None where there is no file to look at."""
    file = folders.find_path(spec.args[0])
    return table_columns(ListedFile(spec.args[0], file), "parquet") if os.path.isfile(file) else None


def files(spec: CallSpec, folders: SearchFolders) -> list[Path]:
    """Return the file that is read."""
    return [folders.find_path(spec.args[0])]
