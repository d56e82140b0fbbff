"""The columns of rows that are made of pieces: what was sampled keeps its log-probabilities and versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlgraph.backends.engines.ragged import ragged_positions
from rlgraph.backends.rows import TableData, concat_entries, pick_entries
from rlgraph.ir.types import OLDEST, Table


@dataclass(frozen=True)
class LearnedPiece:
    """The tokens of a table in rows that are made of pieces."""

    table: TableData
    kind: Table
    places: np.ndarray
    """int64 [rows made]: which row of the table each has."""

    def entries(self, name: str) -> list[Any]:
        """Return for each row that is made the entries of a column, one for each token with loss."""
        assert self.table.sequences is not None
        counts = self.table.sequences.scored_counts()
        value = self.table.columns[name]
        axis = self.kind.column_types()[name].axis
        if axis is None or not axis.inner:
            value = value.repeat_interleave(counts)
        parts = value.split(counts.tolist())
        return [parts[place] for place in self.places.tolist()]

    def oldest_versions(self) -> Tensor:
        """Return the oldest version of each row that is made, int64 [rows made]."""
        versions: Tensor = self.table.columns[OLDEST if self.kind.spans else "version"]
        return versions[torch.from_numpy(self.places)]


def columns_of_pieces(
    kind: Table,
    pieces: Sequence[LearnedPiece],
    main: TableData,
    main_kind: Table,
    main_places: np.ndarray,
    *,
    ends: bool,
) -> dict[str, Any]:
    """Return the columns of rows whose tokens with loss are those of some tables. ends: whether nothing stands behind
    those of the last one, `main`; main_places: its rows, int64 [rows made]."""
    columns: dict[str, Any] = {}
    for name, column in kind.column_types().items():
        if name == OLDEST or name == "version" and not kind.spans:
            columns[name] = torch.stack([piece.oldest_versions() for piece in pieces]).amin(0)
        elif name == "finished":
            columns |= finished_rows(kind, main_places.shape[0])
            if ends:
                columns[name] = pick_entries(main.columns[name], main_places)
        elif column.axis and column.axis.inner and pieces and all(name in piece.table.columns for piece in pieces):
            by_row = zip(*(piece.entries(name) for piece in pieces), strict=True)
            parts = [part for row in by_row for part in row]
            # A row of no table with tokens has no entries; of no row there is nothing to join.
            columns[name] = (
                concat_entries(parts) if parts else pick_entries(main.columns[name], np.zeros(0, dtype=np.int64))
            )
        elif name in dict(main_kind.extra):
            columns[name] = pick_entries(main.columns[name], main_places)
    return columns


def finished_rows(kind: Table, count: int) -> dict[str, Any]:
    """Return the column of rows that end with what no model has sampled: none has ended by itself."""
    return {"finished": torch.zeros(count, dtype=torch.bool)} if kind.sampled else {}


def prefix_columns(kind: Table, old: Table, table: TableData, places: np.ndarray, kept: np.ndarray) -> dict[str, Any]:
    """Return the columns of rows of which the first tokens stay. places: which row of the table each is, int64 [rows
    made]; kept: how many of its tokens with loss stay, int64 [rows made]."""
    assert table.sequences is not None and old.token
    counts = table.sequences.scored_counts().numpy()
    starts = (counts.cumsum() - counts)[places]
    tokens = ragged_positions(starts, kept)
    whole = torch.from_numpy(kept == counts[places])
    columns: dict[str, Any] = {}
    old_columns = old.column_types()
    for name in kind.column_types():
        if name not in table.columns:
            continue
        axis = old_columns[name].axis
        columns[name] = pick_entries(table.columns[name], tokens if axis == old.token else places)
    if "finished" in columns:
        columns["finished"] = columns["finished"] & whole
    return columns
