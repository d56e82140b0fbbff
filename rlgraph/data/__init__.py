"""From a data source to batches of rows, and the place from which a run goes on."""

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
