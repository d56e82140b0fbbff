"""Data sources, and the reader that makes batches of their rows and can resume from a cursor."""

from rlgraph.data.base import DataSource, Row, RowId, Rows, SourceSpec, Stream, column_values
from rlgraph.data.reader import BatchReader, Cursor
from rlgraph.data.sources import SOURCES, check_source, open_source, source_columns

__all__ = [
    "SOURCES",
    "Cursor",
    "DataSource",
    "BatchReader",
    "Row",
    "RowId",
    "Rows",
    "SourceSpec",
    "Stream",
    "check_source",
    "column_values",
    "source_columns",
    "open_source",
]
