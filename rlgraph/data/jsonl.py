"""`jsonl("gsm8k.jsonl", batch=512)`: a file with one JSON object a line, which may be compressed."""

from __future__ import annotations

import os
from pathlib import Path

from rlgraph.columns import Column
from rlgraph.data.base import SHARED_OPTIONS, DataSource
from rlgraph.data.lines import line_columns, open_lines
from rlgraph.data.listing import Listed
from rlgraph.user_code.files import Folders, find_file
from rlgraph.user_code.spec import CallSpec, refuse_unknown_options, single_text_argument


def check(spec: CallSpec) -> None:
    """Raise an error for wrong arguments."""
    single_text_argument(spec, "the path of a file", 'jsonl("prompts.jsonl", batch=64)')
    refuse_unknown_options(spec, SHARED_OPTIONS)


def open_source(spec: CallSpec, folders: Folders) -> DataSource:
    """Find the rows of the file, and check that every line is one."""
    path = spec.args[0]
    return open_lines(spec, [Listed(path, find_file(path, folders, spec.argument_span(0), "data file"))])


def columns(spec: CallSpec, folders: Folders) -> dict[str, Column] | None:
    """Return what the first 4 MiB of rows hold; None where there are none to look at."""
    file = folders.find_path(spec.args[0])
    return line_columns(spec, Listed(spec.args[0], file)) if os.path.isfile(file) else None


def files(spec: CallSpec, folders: Folders) -> list[Path]:
    """Return the file that is read."""
    return [folders.find_path(spec.args[0])]
