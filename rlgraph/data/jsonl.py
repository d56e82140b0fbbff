"""`jsonl("gsm8k.jsonl", batch=512)`: a file with one JSON object a line, which may be compressed."""

from __future__ import annotations

import os
from pathlib import Path

from rlgraph.columns import Column
from rlgraph.data.base import SHARED_OPTIONS, DataSource
from rlgraph.data.json_lines import json_lines_columns, open_json_lines
from rlgraph.data.listing import ListedFile
from rlgraph.user_code.files import SearchFolders, find_file
from rlgraph.user_code.spec import CallSpec, refuse_unknown_options, single_text_argument


def check_arguments(spec: CallSpec) -> None:
    """Raise an error for wrong arguments."""
    single_text_argument(spec, "the path of a file", 'jsonl("prompts.jsonl", batch=64)')
    refuse_unknown_options(spec, SHARED_OPTIONS)


def open_source(spec: CallSpec, folders: SearchFolders) -> DataSource:
    """Find the rows of the file, and check that every line is one."""
    path = spec.args[0]
    return open_json_lines(spec, [ListedFile(path, find_file(path, folders, spec.argument_span(0), "data file"))])


def columns(spec: CallSpec, folders: SearchFolders) -> dict[str, Column] | None:
    """Return what the first 4 MiB of rows hold; None where there are none to look at."""
    file = folders.find_path(spec.args[0])
    return json_lines_columns(spec, ListedFile(spec.args[0], file)) if os.path.isfile(file) else None


def files(spec: CallSpec, folders: SearchFolders) -> list[Path]:
    """Return the file that is read."""
    return [folders.find_path(spec.args[0])]
