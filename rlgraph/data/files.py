"""`files("data/*.jsonl", batch=512)`: the rows of files, of a folder or of a list of these, in the format that their
names end in."""

from __future__ import annotations

from pathlib import Path

from rlgraph.columns import Column
from rlgraph.data.base import SHARED_OPTIONS, DataSource
from rlgraph.data.json_arrays import is_json_lines, json_array_columns, open_json_arrays
from rlgraph.data.json_lines import json_lines_columns, open_json_lines
from rlgraph.data.listing import ListedFile, list_files
from rlgraph.data.tables import BUILDERS, open_tables, table_columns
from rlgraph.errors import Diagnostic, ProgramError
from rlgraph.user_code.files import SearchFolders
from rlgraph.user_code.spec import BAD_ARGUMENT, CallSpec, flag_option, refuse_unknown_options, text_option

OPTIONS = (*SHARED_OPTIONS, "split", "field", "streaming")


def check_arguments(spec: CallSpec) -> None:
    """Raise an error for wrong arguments."""
    paths = spec.args[0] if len(spec.args) == 1 else None
    given = paths if isinstance(paths, list) else [paths]
    if not given or not all(isinstance(path, str) and path for path in given):
        message = "`files` takes a path, or a list of paths: of files, of folders, with `*` for many"
        raise ProgramError(Diagnostic(BAD_ARGUMENT, message, spec.span, 'as in `files("data/*.jsonl", batch=64)`'))
    refuse_unknown_options(spec, OPTIONS)
    text_option(spec, "split", None)
    text_option(spec, "field", None)
    flag_option(spec, "streaming", False)


def open_source(spec: CallSpec, folders: SearchFolders) -> DataSource:
    """Read the files, or what is needed to read their rows later."""
    listed = list_files(spec, folders, text_option(spec, "split", None))
    kind, field, streaming = (
        _kind(spec, listed),
        text_option(spec, "field", None),
        flag_option(spec, "streaming", False),
    )
    option = (
        "field" if field is not None and kind != "json" else "streaming" if streaming and kind not in BUILDERS else ""
    )
    if option:
        message = f"`{option}` is nothing for '{listed[0].shown}'"
        hint = "leave it out: lines are read where they are" if option == "streaming" else "it is for JSON objects"
        raise ProgramError(Diagnostic(BAD_ARGUMENT, message, spec.argument_span(option), hint))
    if kind == "jsonl":
        return open_json_lines(spec, listed)
    return open_json_arrays(spec, listed, field) if kind == "json" else open_tables(spec, listed, kind, streaming)


def columns(spec: CallSpec, folders: SearchFolders) -> dict[str, Column] | None:
    """Return what the rows of the first file hold, as far as that is seen at once; None where it is not."""
    try:
        listed = list_files(spec, folders, text_option(spec, "split", None))
    except (ProgramError, OSError):
        return None
    kind, field = _kind(spec, listed), text_option(spec, "field", None)
    if kind == "jsonl":
        return json_lines_columns(spec, listed[0])
    return json_array_columns(spec, listed[0], field) if kind == "json" else table_columns(listed[0], kind)


def files(spec: CallSpec, folders: SearchFolders) -> list[Path]:
    """Return the files that are read."""
    try:
        return [file.file for file in list_files(spec, folders, text_option(spec, "split", None))]
    except (ProgramError, OSError):
        return []


def _kind(spec: CallSpec, listed: list[ListedFile]) -> str:
    """Return the format of the files: one that is called `.json` may have an object on each line."""
    kind = listed[0].format
    return "jsonl" if kind == "json" and is_json_lines(listed[0], text_option(spec, "field", None)) else kind
