"""Checkpoints of a run on a cluster: ranks write their parts of models, and values that live across steps are
fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rlgraph.backends.collect_batches import CollectBatch, Surplus
from rlgraph.backends.frame import Frame
from rlgraph.backends.length_history import Known
from rlgraph.backends.ray.failures import CallContext, process_name
from rlgraph.backends.ray.piece_store import Piece, Wire, Wish, as_range, from_wire, to_wire
from rlgraph.backends.ray.processes import Processes, Reference
from rlgraph.backends.ray.rank_rows import add_piece
from rlgraph.backends.ray.row_refs import Address, PieceRef, RowRefs, ValueRef
from rlgraph.backends.ray.transfers import ranks_of
from rlgraph.backends.ray.worker import Worker
from rlgraph.backends.rows import Rows
from rlgraph.backends.saved_models import HalfUpdatedModel, NonFiniteWeights, PendingSave, SavedModel
from rlgraph.backends.worker.saving import BoxesToWrite, ModelPart, WrittenFiles, boxes_to_write, check_saved_layout
from rlgraph.ir.plan import HOST, Group, Plan
from rlgraph.ir.types import StateHandle, axes_in_rows, axis_of
from rlgraph.ir.types import Tensor as TensorType

_HOST: Address = (HOST, 0)


class ClusterCheckpoints:
    """Takes the state of a plan's processes into a checkpoint and back."""

    def __init__(self, plan: Plan, processes: Processes) -> None:
        self.plan, self.processes = plan, processes
        self._parts: dict[str, tuple[list[ModelPart], list[BoxesToWrite]]] = {}
        """For each model, what its ranks had when their parts were planned, and these parts."""

    def source_row_counts(self) -> dict[str, int | None]:
        [rows] = self.processes.call_all(CallContext((_HOST,), "saving"), Worker.source_row_counts)
        return rows

    def overlong_notes(self) -> list[str]:
        [sentences] = self.processes.call_all(CallContext((_HOST,), "opening"), Worker.overlong_notes)
        return sentences

    def last_changed_step(self) -> int:
        """Return the last step that changed weights, finished or not. Raises RunError where a process does not
        answer."""
        owners = {owner: self.plan.group(owner) for _, owner in self.plan.owners}
        who = tuple(rank for group in owners.values() for rank in ranks_of(group))
        return (
            max(self.processes.call_all(CallContext(who, "saving"), Worker.last_changed_step), default=0) if who else 0
        )

    # Models

    def hold_weights(self, model: str, owner: Group, number: int, version: int) -> PendingSave | None:
        """Hold what step `number` left of a model, with that version, on each of its ranks; None if it is as it was
        loaded. Raises HalfUpdatedModel, RunError."""
        request = CallContext(ranks_of(owner), f"saving `{model}`")
        stocks = self.processes.call_all(request, Worker.hold_weights, model, number)
        changed = max(stock.changed for stock in stocks)
        held = _Kept(self.processes, model, request, stocks[0], version, self._planned(model, stocks))
        if changed > number:
            # Some ranks have begun to change it, and the others are about to.
            held.allow_changes()
            raise HalfUpdatedModel(model)
        return held if changed else None

    def _planned(self, model: str, stocks: list[ModelPart]) -> list[BoxesToWrite]:
        planned = self._parts.get(model)
        same = planned is not None and all(
            (old.weights, old.moments) == (new.weights, new.moments)
            for old, new in zip(planned[0], stocks, strict=True)
        )
        if planned is None or not same:
            planned = self._parts[model] = stocks, boxes_to_write(stocks)
        return planned[1]

    def restore_model(self, model: str, owner: Group, saved: SavedModel) -> None:
        """Have each rank read its part. Raises EngineError for weights of another model, RunError."""
        request = CallContext(ranks_of(owner), f"going on with `{model}`")
        check_saved_layout(
            [stock.weights for stock in self.processes.call_all(request, Worker.model_part, model)], saved
        )
        self.processes.call_all(request, Worker.restore_model, model, saved)

    # Values that live across steps

    def answer_lengths(self) -> Known:
        """Return how long the answers to prompts were."""
        [lengths] = self.processes.call_all(CallContext((_HOST,), "saving"), Worker.answer_lengths)
        return lengths

    def set_answer_lengths(self, known: Known) -> None:
        self.processes.call_all(CallContext((_HOST,), "going on"), Worker.set_answer_lengths, known)

    def fetch_value(self, value: Any) -> Any:
        """Return a value with all that other processes have of it."""
        if isinstance(value, ValueRef):
            return self._value(value)
        if isinstance(value, RowRefs):
            return self._rows(value).value
        if isinstance(value, Frame):
            return self._frame(value)
        if isinstance(value, Surplus):
            rows = None if value.rows is None else self._frame(value.rows)
            return Surplus(
                rows,
                tuple(CollectBatch.restore(self._frame(batch.needed_inputs)) for batch in value.unfinished_batches),
            )
        return value

    def _frame(self, frame: Frame) -> Frame:
        fetched = Frame(frame.types, frame.step)
        for rows in frame.rows.values():
            if not rows.axis.inner:
                ids = None if rows.ids is None else self.fetch_value(rows.ids)
                fetched.add_rows(Rows(rows.axis, rows.size, rows.parent, ids))
        for name, value in frame.values.items():
            if isinstance(value, RowRefs):
                add_piece(fetched, name, self._rows(value))
            else:
                fetched.values[name] = self.fetch_value(value)
        return fetched

    def _value(self, value: ValueRef) -> Any:
        return self._asked(value.ref.holder, [(value.ref.key, None, None)])[0].value

    def _rows(self, value: RowRefs) -> Piece:
        wanted: dict[Address, list[tuple[int, Wish]]] = {}
        split = value.places_by_piece()
        for number, (ref, places) in enumerate(split):
            wanted.setdefault(ref.holder, []).append((number, (ref.key, as_range(places), value.column)))
        pieces_of: dict[int, Piece] = {}
        for holder, wishes in wanted.items():
            pieces = self._asked(holder, [wish for _, wish in wishes])
            pieces_of.update(zip((number for number, _ in wishes), pieces, strict=True))
        piece = Piece.concatenate([pieces_of[number] for number in range(len(split))])
        if value.pieces_are_contiguous:
            return piece
        # The place of each row among the joined pieces.
        order = np.empty(value.piece.shape[0], dtype=np.int64)
        order[value.piece.argsort(kind="stable")] = np.arange(order.shape[0])
        return piece.take_rows(order)

    def _asked(self, holder: Address, wishes: list[Wish]) -> list[Piece]:
        [wire] = self.processes.get(self.processes.pack_rows(holder, [wishes]), CallContext((holder,), "saving"))
        return [from_wire(sent) for *_, sent in wire]

    def place_value(self, name: str, value: Any, first: Any) -> Any:
        """Give a value that lives across steps to the host, and return its remote form. first: that form before the
        first step."""
        if isinstance(first, ValueRef):
            return self._put(name, Piece(StateHandle("buffer", name), value))
        if isinstance(value, Surplus):
            rows = None if value.rows is None else self._placed_frame(name, value.rows)
            going = [
                self._placed_frame(f"{name}/{index}", batch.inputs)
                for index, batch in enumerate(value.unfinished_batches)
            ]
            return Surplus(rows, tuple(map(CollectBatch.restore, going)))
        return self._placed_frame(name, value) if isinstance(value, Frame) else value

    def _placed_frame(self, name: str, frame: Frame) -> Frame:
        placed = Frame(frame.types, frame.step, values_are_remote=True)
        for rows in frame.rows.values():
            if rows.axis.inner:
                continue
            ids: Any = None
            if rows.ids is not None:
                piece = Piece(TensorType("any", rows.axis), rows.ids, (None,))
                ids = self._put(f"{name}/ids:{rows.axis.key}", piece)
            placed.add_rows(Rows(rows.axis, rows.size, rows.parent, ids))
        for value, content in frame.values.items():
            kind = frame.types[value]
            if isinstance(kind, StateHandle) and kind.name == content:
                placed.values[value] = content  # A model is known by its name.
                continue
            piece = Piece(kind, content, tuple(map(frame.entries_per_row, axes_in_rows(kind))))
            placed.values[value] = self._put(f"{name}/{value}", piece)
        return placed

    def _put(self, name: str, piece: Piece) -> ValueRef | RowRefs:
        """Give a piece to the host, and return its remote form."""
        alone = axis_of(piece.kind) is None
        ref = PieceRef((0, 0, name), _HOST, 0 if alone else piece.row_count, piece.token_counts)
        wire: Wire = [(ref.key, range(0), to_wire(piece))]
        self.processes.call_all(CallContext((_HOST,), "going on"), Worker.store_values, wire)
        return ValueRef(ref) if alone else RowRefs.from_whole_piece(ref)


class _Kept:
    """A model that is held for a checkpoint, of which each rank writes a part."""

    def __init__(
        self,
        processes: Processes,
        model: str,
        request: CallContext,
        stock: ModelPart,
        version: int,
        planned: list[BoxesToWrite],
    ) -> None:
        self.processes, self.model, self.request = processes, model, request
        self.stock, self.version, self.planned = stock, version, planned
        self.place = Path()
        self.calls: list[Reference[WrittenFiles]] = []

    def begin_writing(self, place: Path) -> None:
        self.place = place
        self.calls = [
            self.processes.call(who, Worker.write_checkpoint, self.model, str(place.absolute()), part)
            for who, part in zip(self.request.who, self.planned, strict=True)
        ]

    def wait_written(self) -> SavedModel:
        # A failure that ends the run meanwhile must not lose what it has made so far.
        written = self.processes.get(self.calls, self.request, alone=True)
        for who, part in zip(self.request.who, written, strict=True):
            if part.failure:
                raise OSError(0, f"{part.failure} ({process_name(who)})")
            for name, file in part.files.items():
                if not (self.place / name).is_file() or (self.place / name).stat().st_size != file.bytes:
                    raise OSError(
                        0,
                        f"`{name}`, which {process_name(who)} has written, is not here: all machines need the run's "
                        "folder on a file system that they share",
                    )
            if part.mismatched:
                raise NonFiniteWeights(part.mismatched)
        files = {name: file for part in written for name, file in part.files.items()}
        return SavedModel(self.place, self.stock.updates, self.stock.changed, self.version, self.stock.past, files)

    def allow_changes(self) -> None:
        # Processes that were told to write it free it themselves.
        if not self.calls:
            calls = [self.processes.call(who, Worker.release_held_weights, self.model) for who in self.request.who]
            self.processes.get(calls, self.request, alone=True)
