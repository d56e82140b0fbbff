"""Says of files without rows what a run would say, before anything is run."""

from __future__ import annotations

from pathlib import Path

from rlgraph.data.base import NO_ROWS
from rlgraph.data.listing import PACKED
from rlgraph.data.sources import RUN_CODE, open_source, source_files
from rlgraph.data.tables import parquet_has_rows
from rlgraph.errors import Diagnostic, ProgramError, RlgraphError
from rlgraph.user_code.files import SearchFolders
from rlgraph.user_code.spec import NOT_INSTALLED, CallSpec

_LARGEST_BYTES = 1 << 16
"""The largest file that is looked into."""
_PACKED_BYTES = 64
"""A compressed file of more bytes than this has something in it."""
_EMPTY_JSON = (b"", b"[]", b"{}")


def no_rows_errors(spec: CallSpec, folders: SearchFolders) -> list[Diagnostic]:
    """Return what a run says of a `data` declaration whose files are here and have no rows; nothing where that is not
    seen at once, or where the user's Python makes the rows."""
    paths = [] if spec.kind in RUN_CODE else source_files(spec, folders)
    try:
        if not paths or not all(_looks_empty(path) for path in paths):
            return []
        nothing = not any(path.stat().st_size for path in paths)
        open_source(spec, folders)
    except ProgramError as error:
        # What is wrong with a file of a few bytes may be another matter; with one of none it is this.
        return [
            found for found in error.diagnostics if found.code == NO_ROWS or nothing and found.code != NOT_INSTALLED
        ]
    except (OSError, RlgraphError):
        return []
    return []


def _looks_empty(path: Path) -> bool:
    """Return whether a file may have no rows. Raises OSError."""
    size = path.stat().st_size
    ending = path.suffix.lower()
    if not size:
        return True
    if ending == ".parquet":
        return not parquet_has_rows(path)
    if ending in PACKED:
        return size <= _PACKED_BYTES
    if size > _LARGEST_BYTES or ending in (".arrow", ".feather", ".txt"):
        return False
    text = path.read_bytes()
    if ending in (".csv", ".tsv"):
        return sum(map(bool, map(bytes.strip, text.splitlines()))) <= 1
    return text.strip() in _EMPTY_JSON
