"""The rows that one rank has and gives to others, beside its models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rlgraph.backends.frame import Frame, NodeOutput
from rlgraph.backends.ray.piece_store import (
    Piece,
    PieceStore,
    Places,
    Wire,
    Wish,
    as_array,
    from_sendable,
    from_wire,
    inner_axis_counts,
    to_wire,
)
from rlgraph.backends.ray.rank_models import RankModels
from rlgraph.backends.ray.requests import AxisRows, ControllerValue, RankRequest, WantedRows, WholePiece
from rlgraph.backends.ray.row_refs import Key, column_key
from rlgraph.backends.rows import Rows
from rlgraph.backends.samples import RowTexts, row_texts
from rlgraph.backends.worker.sampling import rows_from_counts
from rlgraph.backends.worker.sampling_inputs import table_column
from rlgraph.ir.graph import Node, Program
from rlgraph.ir.types import Axis, Table, Type, axes_in_rows, axes_of, axis_of, is_model
from rlgraph.ir.types import Tensor as TensorType


class RankRows(RankModels):
    """Models and rows of one rank."""

    def __init__(self, program: Program, rank: int, seconds: float, saves: bool) -> None:
        super().__init__(program, seconds, saves)
        self.rank = rank
        self.types = {phase.name: phase.graph.value_types() for phase in program.phases}
        self.axes = _axes(self.types)
        self.store = PieceStore()

    def pack_rows(self, *parcels: Sequence[Wish]) -> list[Wire] | Wire:
        """Return the rows that others want of the pieces here. Ray returns several results one by one, but a single one
        as it is."""
        wires = [self.pack_parcel(wanted) for wanted in parcels]
        return wires if len(wires) > 1 else wires[0]

    def pack_parcel(self, wanted: Sequence[Wish]) -> Wire:
        wire: Wire = []
        for key, places, column in wanted:
            if places is None:
                wire.append((key, range(0), to_wire(self.store.get(key))))
            else:
                name = key if column is None else column_key(key, column)
                wire.append((name, places, to_wire(self.piece_rows(key, places, column))))
        return wire

    def row_texts(self, wanted: Sequence[Wish]) -> list[list[RowTexts]]:
        """Return what a person reads of rows of tables that are here."""
        tables = [
            self.store.get(key) if places is None else self.piece_rows(key, places, None) for key, places, _ in wanted
        ]
        return [row_texts(table.value, self.session.decode_rows) for table in tables]

    def store_values(self, pieces: Wire) -> None:
        """Store values as they were before the next step."""
        for key, _, sent in pieces:
            self.store.put(0, key, from_wire(sent))

    def fill_frame(self, frame: Frame, order: RankRequest) -> Frame:
        """Return the frame with the rows and values that a request names."""
        number = order.step.number
        for axis_rows in order.rows:
            parent = (
                None
                if axis_rows.rows_per_parent is None
                else np.repeat(np.arange(axis_rows.rows_per_parent.shape[0]), axis_rows.rows_per_parent)
            )
            ids = None if axis_rows.ids is None else self.gather_rows(axis_rows.ids, number).value
            frame.add_rows(Rows(self.axes[axis_rows.axis], axis_rows.row_count, parent, ids))
        for name, source in order.inputs.items():
            if isinstance(source, ControllerValue):
                frame.values[name] = from_sendable(source.value)
                continue
            piece = (
                self.store.get(source.key, number)
                if isinstance(source, WholePiece)
                else self.gather_rows(source, number)
            )
            add_piece(frame, name, piece)
        return frame

    def gather_rows(self, wanted: WantedRows, step: int) -> Piece:
        piece = Piece.concatenate([self.piece_rows(*part, step) for part in wanted.parts])
        return piece if wanted.order is None else piece.take_rows(wanted.order)

    def piece_rows(self, key: Key, places: Places, column: int | None, step: int | None = None) -> Piece:
        """Return rows of a piece that was made here or sent for a step, or a column of them."""
        piece = self.store.get_rows(key, as_array(places), step)
        if column is None:
            return piece
        _, node = self.nodes[column]
        assert isinstance(piece.kind, Table)
        value = table_column(str(node.attr("name")), piece.value, self.session, None, node)
        column_type = piece.kind.column_types().get(node.attr("name"))
        column_axis = column_type.axis if column_type and column_type.axis else piece.kind.axis
        kind = TensorType("any", column_axis)
        counts = dict(zip(axes_in_rows(piece.kind), piece.counts, strict=True))
        return Piece(kind, value, tuple(counts[axis] for axis in axes_in_rows(kind)))

    def store_outputs(
        self, number: int, node: Node, frame: Frame, made: NodeOutput
    ) -> tuple[tuple[AxisRows, ...], tuple[str, ...], dict[str, int | None], dict[str, np.ndarray]]:
        """Put what was made into the store, and count it and the tokens of its rows."""
        new_rows, named = [], []
        for rows in made.rows:
            frame.add_rows(rows)
            if rows.axis.inner:
                continue
            counts = None
            if rows.parent is not None and rows.axis.parent is not None:
                counts = np.bincount(rows.parent, minlength=frame.row_count(rows.axis.parent.key))
            new_rows.append(AxisRows(rows.axis.key, rows.size, counts, None))
            if rows.ids is not None:
                named.append(rows.axis.key)
                ids = Piece(TensorType("any", rows.axis), rows.ids, (None,))
                self.store.put(frame.step.number, (number, self.rank, f"ids:{rows.axis.key}"), ids)
        sizes: dict[str, int | None] = {}
        tokens: dict[str, np.ndarray] = {}
        for value in node.outputs:
            made_value = made.values[value.name]
            if is_model(value.type):
                continue
            piece = Piece(value.type, made_value, tuple(map(frame.entries_per_row, axes_in_rows(value.type))))
            self.store.put(frame.step.number, (number, self.rank, value.name), piece)
            sizes[value.name] = None if axis_of(value.type) is None else piece.row_count
            if piece.token_counts is not None:
                tokens[value.name] = piece.token_counts
        return tuple(new_rows), tuple(named), sizes, tokens


def add_piece(frame: Frame, name: str, piece: Piece) -> None:
    """Add a piece to a frame as a value, with the rows of the axes inside it."""
    frame.values[name] = piece.value
    for axis, counts in inner_axis_counts(frame.types[name], piece.counts):
        if axis.key not in frame.rows:
            frame.add_rows(rows_from_counts(axis, counts))


def _axes(types: Mapping[str, Mapping[str, Type]]) -> dict[str, Axis]:
    return {
        axis.key: axis
        for kinds in types.values()
        for kind in kinds.values()
        for innermost in axes_of(kind)
        for axis in innermost.path_to_root()
    }
