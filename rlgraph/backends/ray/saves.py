"""Checkpoints of a run on a cluster: ranks write what they have of models; values that live across steps come here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rlgraph.backends.batches import Batch
from rlgraph.backends.frame import Frame, Surplus
from rlgraph.backends.history import Known
from rlgraph.backends.ray.failures import Request, shown
from rlgraph.backends.ray.processes import Processes, Reference
from rlgraph.backends.ray.remote import Address, PieceRef, Remote, Single
from rlgraph.backends.ray.store import Piece, Wire, Wish, from_wire, inner_axes, short, to_wire
from rlgraph.backends.ray.transfers import ranks
from rlgraph.backends.ray.worker import Worker
from rlgraph.backends.rows import Rows
from rlgraph.backends.saved import Diverged, Kept, SavedModel, Torn
from rlgraph.backends.worker.sampling import inner_rows
from rlgraph.backends.worker.saving import Part, Stock, Written, need_same, parts
from rlgraph.ir.plan import HOST, Group, Plan
from rlgraph.ir.types import Handle, axes_of, axis_of
from rlgraph.ir.types import Tensor as TensorType

_HOST: Address = (HOST, 0)


class Saves:
    """What the processes of a plan have, on its way into a checkpoint and back."""

    def __init__(self, plan: Plan, processes: Processes) -> None:
        self.plan, self.processes = plan, processes
        self._parts: dict[str, tuple[list[Stock], list[Part]]] = {}
        """Of each model what its ranks had when it was planned who writes what, and that plan."""

    def rows(self) -> dict[str, int | None]:
        [found] = self.processes.ask(Request((_HOST,), "saving"), Worker.rows)
        return found

    def judged(self) -> list[str]:
        [found] = self.processes.ask(Request((_HOST,), "opening"), Worker.judged)
        return found

    def changed(self) -> int:
        """The last step that changed weights, finished or not. Raises RunError where a process does not answer."""
        owners = {owner: self.plan.group(owner) for _, owner in self.plan.owners}
        who = tuple(rank for group in owners.values() for rank in ranks(group))
        return max(self.processes.ask(Request(who, "saving"), Worker.last_changed), default=0) if who else 0

    # Models

    def keep(self, model: str, owner: Group, number: int, version: int) -> Kept | None:
        """What step `number` has left of a model, with that version, on each of its ranks; None: it is as it was
        loaded. Raises Torn, RunError."""
        request = Request(ranks(owner), f"saving `{model}`")
        stocks = self.processes.ask(request, Worker.hold, model, number)
        changed = max(each.changed for each in stocks)
        kept = _Kept(self.processes, model, request, stocks[0], version, self._planned(model, stocks))
        if changed > number:
            # Some have been told to change it, and others are about to.
            kept.free()
            raise Torn(model)
        return kept if changed else None

    def _planned(self, model: str, stocks: list[Stock]) -> list[Part]:
        before = self._parts.get(model)
        same = before is not None and all(
            (a.weights, a.moments) == (b.weights, b.moments) for a, b in zip(before[0], stocks, strict=True)
        )
        if before is None or not same:
            before = self._parts[model] = stocks, parts(stocks)
        return before[1]

    def restore(self, model: str, owner: Group, saved: SavedModel) -> None:
        """Each rank reads its part. Raises EngineError for weights of another model, RunError."""
        request = Request(ranks(owner), f"going on with `{model}`")
        need_same([each.weights for each in self.processes.ask(request, Worker.stock, model)], saved)
        self.processes.ask(request, Worker.restore, model, saved)

    # Values that live across steps

    def history(self) -> Known:
        """How long the answers to prompts were."""
        [found] = self.processes.ask(Request((_HOST,), "saving"), Worker.lengths)
        return found

    def remember(self, known: Known) -> None:
        self.processes.ask(Request((_HOST,), "going on"), Worker.remember, known)

    def fetched(self, value: Any) -> Any:
        """A value with all that other processes have of it."""
        if isinstance(value, Single):
            return self._value(value)
        if isinstance(value, Remote):
            return self._rows(value).value
        if isinstance(value, Frame):
            return self._frame(value)
        if isinstance(value, Surplus):
            rows = None if value.rows is None else self._frame(value.rows)
            return Surplus(rows, tuple(Batch.again(self._frame(each.needed)) for each in value.going))
        return value

    def _frame(self, frame: Frame) -> Frame:
        found = Frame(frame.types, frame.step)
        for rows in frame.rows.values():
            if not rows.axis.inner:
                ids = None if rows.ids is None else self.fetched(rows.ids)
                found.add_rows(Rows(rows.axis, rows.size, rows.parent, ids))
        for name, value in frame.values.items():
            if not isinstance(value, Remote):
                found.values[name] = self.fetched(value)
                continue
            piece = self._rows(value)
            found.values[name] = piece.value
            for axis, counts in inner_axes(frame.types[name], piece.counts):
                if axis.key not in found.rows:
                    found.add_rows(inner_rows(axis, counts))
        return found

    def _value(self, value: Single) -> Any:
        return self._asked(value.ref.holder, [(value.ref.key, None, None)])[0].value

    def _rows(self, value: Remote) -> Piece:
        wanted: dict[Address, list[tuple[int, Wish]]] = {}
        split = value.by_piece()
        for number, (ref, places) in enumerate(split):
            wanted.setdefault(ref.holder, []).append((number, (ref.key, short(places), value.column)))
        found: dict[int, Piece] = {}
        for holder, wishes in wanted.items():
            pieces = self._asked(holder, [wish for _, wish in wishes])
            found.update(zip((number for number, _ in wishes), pieces, strict=True))
        piece = Piece.join([found[number] for number in range(len(split))])
        if value.in_turn:
            return piece
        # Where each row came to lie.
        order = np.empty(value.piece.shape[0], dtype=np.int64)
        order[value.piece.argsort(kind="stable")] = np.arange(order.shape[0])
        return piece.take(order)

    def _asked(self, holder: Address, wishes: list[Wish]) -> list[Piece]:
        [wire] = self.processes.get(self.processes.pack(holder, [wishes]), Request((holder,), "saving"))
        return [from_wire(sent) for *_, sent in wire]

    def placed(self, name: str, value: Any, first: Any) -> Any:
        """The stand-in of a value of a thing, which the host has from now on. first: what stood for it before the first
        step."""
        if isinstance(first, Single):
            return self._put([(name, Piece(Handle("buffer", name), value))])[0]
        if isinstance(value, Surplus):
            rows = None if value.rows is None else self._placed_frame(name, value.rows)
            going = [self._placed_frame(f"{name}/{at}", each.given) for at, each in enumerate(value.going)]
            return Surplus(rows, tuple(map(Batch.again, going)))
        return self._placed_frame(name, value) if isinstance(value, Frame) else value

    def _placed_frame(self, name: str, frame: Frame) -> Frame:
        found = Frame(frame.types, frame.step, elsewhere=True)
        for rows in frame.rows.values():
            if rows.axis.inner:
                continue
            ids: Any = None
            if rows.ids is not None:
                piece = Piece(TensorType("any", rows.axis), rows.ids, (None,))
                [ids] = self._put([(f"{name}/ids:{rows.axis.key}", piece)])
            found.add_rows(Rows(rows.axis, rows.size, rows.parent, ids))
        for value, held in frame.values.items():
            kind = frame.types[value]
            if isinstance(kind, Handle) and kind.name == held:
                found.values[value] = held  # A model is known by its name.
                continue
            [found.values[value]] = self._put([(f"{name}/{value}", Piece(kind, held, tuple(_counts(frame, kind))))])
        return found

    def _put(self, pieces: list[tuple[str, Piece]]) -> list[Any]:
        refs = [
            PieceRef((0, 0, name), _HOST, 0 if axis_of(piece.kind) is None else piece.rows) for name, piece in pieces
        ]
        wire: Wire = [(ref.key, range(0), to_wire(piece)) for ref, (_, piece) in zip(refs, pieces, strict=True)]
        self.processes.ask(Request((_HOST,), "going on"), Worker.put, wire)
        return [
            Single(ref) if axis_of(piece.kind) is None else Remote.of(ref)
            for ref, (_, piece) in zip(refs, pieces, strict=True)
        ]


class _Kept:
    """Each rank writes a part of it."""

    def __init__(
        self, processes: Processes, model: str, request: Request, stock: Stock, version: int, planned: list[Part]
    ) -> None:
        self.processes, self.model, self.request = processes, model, request
        self.stock, self.version, self.planned = stock, version, planned
        self.place = Path()
        self.calls: list[Reference[Written]] = []

    def begin(self, place: Path) -> None:
        self.place = place
        self.calls = [
            self.processes.call(who, Worker.checkpoint, self.model, str(place.absolute()), part)
            for who, part in zip(self.request.who, self.planned, strict=True)
        ]

    def end(self) -> SavedModel:
        # What the run is ended by meanwhile is no reason to lose what it has made.
        written = self.processes.get(self.calls, self.request, alone=True)
        for who, each in zip(self.request.who, written, strict=True):
            if each.failure:
                raise OSError(0, f"{each.failure} ({shown(who)})")
            for name, told in each.files.items():
                if not (self.place / name).is_file() or (self.place / name).stat().st_size != told.bytes:
                    raise OSError(
                        0,
                        f"`{name}`, which {shown(who)} has written, is not here: all machines need the run's folder on "
                        "a file system that they share",
                    )
            if each.odd:
                raise Diverged(each.odd)
        files = {name: told for each in written for name, told in each.files.items()}
        return SavedModel(self.place, self.stock.updates, self.stock.changed, self.version, self.stock.past, files)

    def free(self) -> None:
        # Who has been told to write it frees it himself.
        if not self.calls:
            calls = [self.processes.call(who, Worker.free, self.model) for who in self.request.who]
            self.processes.get(calls, self.request, alone=True)


def _counts(frame: Frame, kind: Any) -> Iterator[np.ndarray | None]:
    """For each axis of a value, how many entries each row has; None for an axis of rows."""
    for axis in axes_of(kind):
        if not axis.inner:
            yield None
        else:
            yield np.bincount(frame.index(axis.key, axis.row.key), minlength=frame.size(axis.row.key))
