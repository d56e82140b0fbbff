"""Data sources, and the reader that makes batches of their rows and can resume from a cursor."""

from rlgraph.data.base import DataSource, Row, RowId, Rows, SourceSpec, Stream, column
from rlgraph.data.reader import Cursor, Reader
from rlgraph.data.sources import SOURCES, check_source, columns, open_source

__all__ = [
    "SOURCES",
    "Cursor",
    "DataSource",
    "Reader",
    "Row",
    "RowId",
    "Rows",
    "SourceSpec",
    "Stream",
    "check_source",
    "column",
    "columns",
    "open_source",
]
