"""Reads values of a finished step that other processes have: numbers of all rows, and texts of those that are shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlgraph.backends.ray.failures import CallContext
from rlgraph.backends.ray.piece_store import Piece, Wish, as_range, from_wire
from rlgraph.backends.ray.processes import Processes
from rlgraph.backends.ray.row_refs import Address, RowRefs
from rlgraph.backends.ray.worker import Worker
from rlgraph.backends.samples import RowTexts


class ShownRowReader:
    """Asks each process once for all that is read together."""

    def __init__(self, processes: Processes) -> None:
        self.processes = processes

    def fetch_values(self, values: Sequence[Any]) -> list[Any]:
        """Return values with all that other processes have of them. Raises RunError."""
        wishes, wanted = _wishes([value for value in values if isinstance(value, RowRefs)])
        wires = self.processes.get(self._packed(wishes), CallContext(tuple(wishes), "the numbers of samples"))
        return _read_values(values, wishes, wanted, wires)

    def fetch_texts(self, table: RowRefs) -> list[RowTexts]:
        """Return what a person reads of the rows of a table; they are decoded where they are. Raises RunError."""
        wishes, [places] = _wishes([table])
        answers = self.processes.get(self._decoded(wishes), CallContext(tuple(wishes), "the texts of samples"))
        return _read_texts(table, wishes, places, answers)

    def values_and_texts(self, values: Sequence[Any], table: RowRefs) -> tuple[list[Any], list[RowTexts]]:
        """Return both; all processes are asked at once, and waited for once. Raises RunError."""
        wishes, wanted = _wishes([value for value in values if isinstance(value, RowRefs)])
        text_wishes, [places] = _wishes([table])
        asked = [*self._packed(wishes), *self._decoded(text_wishes)]
        answers = self.processes.get(asked, CallContext((*wishes, *text_wishes), "samples"))
        wires, texts = answers[: len(wishes)], answers[len(wishes) :]
        return _read_values(values, wishes, wanted, wires), _read_texts(table, text_wishes, places, texts)

    def _packed(self, wishes: dict[Address, list[Wish]]) -> list[Any]:
        return [self.processes.pack_rows(holder, [asked])[0] for holder, asked in wishes.items()]

    def _decoded(self, wishes: dict[Address, list[Wish]]) -> list[Any]:
        return [self.processes.call(holder, Worker.row_texts, asked) for holder, asked in wishes.items()]


_At = list[tuple[Address, int]]
"""For each piece of a value, who has it, and the number of the wish for it."""


def _wishes(values: Sequence[RowRefs]) -> tuple[dict[Address, list[Wish]], list[_At]]:
    """Return what to ask of each process, and where the pieces of each value are among it."""
    wishes: dict[Address, list[Wish]] = {}
    wanted: list[_At] = []
    for value in values:
        at: _At = []
        for ref, places in value.places_by_piece():
            asked = wishes.setdefault(ref.holder, [])
            at.append((ref.holder, len(asked)))
            asked.append((ref.key, as_range(places), value.column))
        wanted.append(at)
    return wishes, wanted


def _joined(value: RowRefs, at: _At, pieces: dict[Address, list[Piece]]) -> Any:
    piece = Piece.concatenate([pieces[holder][number] for holder, number in at])
    return (piece if value.pieces_are_contiguous else piece.take_rows(_order(value))).value


def _order(value: RowRefs) -> np.ndarray:
    """Return the place of each row of a value among its pieces, one after the other, int64."""
    order = np.empty(value.piece.shape[0], dtype=np.int64)
    order[value.piece.argsort(kind="stable")] = np.arange(order.shape[0])
    return order


def _read_values(
    values: Sequence[Any], wishes: dict[Address, list[Wish]], wanted: list[_At], wires: Sequence[Any]
) -> list[Any]:
    pieces = {holder: [from_wire(sent) for *_, sent in wire] for holder, wire in zip(wishes, wires, strict=True)}
    read = iter(wanted)
    return [_joined(value, next(read), pieces) if isinstance(value, RowRefs) else value for value in values]


def _read_texts(
    table: RowRefs, wishes: dict[Address, list[Wish]], places: _At, answers: Sequence[list[list[RowTexts]]]
) -> list[RowTexts]:
    texts = dict(zip(wishes, answers, strict=True))
    rows = [row for holder, at in places for row in texts[holder][at]]
    return [rows[place] for place in _order(table)]
