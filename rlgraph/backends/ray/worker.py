"""One process of a group: it has a rank's shards of the group's models, and does what it is told. An actor on a
cluster."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, cast

import numpy as np
import torch

from rlgraph.backends.engines.base import Admission, Admits, Begun
from rlgraph.backends.engines.offload import Arenas
from rlgraph.backends.engines.process_groups import LOOPBACK, Meeting, listen
from rlgraph.backends.executor import Made
from rlgraph.backends.frame import Frame
from rlgraph.backends.history import Known
from rlgraph.backends.notes import Note
from rlgraph.backends.ray import shards
from rlgraph.backends.ray.activity import At
from rlgraph.backends.ray.arrivals import Came
from rlgraph.backends.ray.failures import doing
from rlgraph.backends.ray.models import Models
from rlgraph.backends.ray.orders import Given, RankOrder, Receipt, RowsOf, Wanted, Whole, order_of, packed
from rlgraph.backends.ray.remote import Key, column_key, recorded_as
from rlgraph.backends.ray.store import (
    Piece,
    Places,
    Store,
    Wire,
    Wish,
    from_wire,
    full,
    inner_axes,
    long,
    size,
    to_wire,
)
from rlgraph.backends.ray.time_sharing import Beside, Seat
from rlgraph.backends.rows import Rows
from rlgraph.backends.step import Step
from rlgraph.backends.worker.nodes import chosen_places, column_of, work
from rlgraph.backends.worker.sampling import generate_parts, inner_rows, longest_answers, sampled_tokens
from rlgraph.backends.worker.session import Session, Settings
from rlgraph.backends.worker.training import TRAINING, train_together
from rlgraph.errors import listed
from rlgraph.ir.graph import Node, Program
from rlgraph.ir.plan import HOST, Group
from rlgraph.ir.plan import Holding as Held
from rlgraph.ir.types import Axis, Handle, Table, Type, axes_of, axis_of, is_model
from rlgraph.ir.types import Tensor as TensorType
from rlgraph.ops.nodes import NODES, model_of

ROWS = "rows"
"""The threads of a process that answer while it computes."""
SAMPLES = "samples"
"""Those that wait for the rows of orders which are sampled together: each for one, here or at the other ranks."""
SAVES = "saves"
"""The thread that writes models to the disk: one after the other, so that there is one bucket at a time."""
ORDERS = "orders"
"""The threads of a process that pass on what the others of its copy have to do, one thing after the other."""
SORTS = 2
"""Of others that are told something by itself: who has the results of a model whose stages lie the other way round, and
all the rest. They work together, so that neither waits until the other one is done; but what was ordered first goes out
first (`Worker.passed`)."""


@dataclass(frozen=True)
class WorkerSpec:
    """What a process needs to know from the start."""

    program: Program
    group: Group
    rank: int
    settings: Settings
    outside: frozenset[str]
    """What it opens of the program's data, functions, environments and buffers."""
    seconds: float
    """Longest wait for another process."""
    alone: bool = True
    """All processes of the run are on one machine."""


class Worker(Models):
    """Holds models and rows; every public method is called by the controller."""

    def __init__(self, spec: WorkerSpec) -> None:
        super().__init__(spec.program, spec.seconds, spec.settings.saves)
        self.spec = spec
        self.types = {phase.name: phase.graph.values() for phase in spec.program.phases}
        self.axes = _axes(self.types)
        self.store = Store()
        self.parts: dict[int, Iterator[Receipt]] = {}
        """By the number of an order what it has not told of."""
        self.begun: dict[int, Sequence[Begun]] = {}
        """By the number of an order what there is of its rows."""
        self.given_up: dict[int, Mapping[int, Sequence[Begun]]] = {}
        """By the number of an order what there is of the parts that it has not done."""
        self.came = Came()
        self.besides: dict[str, Beside] = {}
        """By link those with whom it has a pipeline in common."""
        self.meetings: list[Meeting] = []
        self.arenas = Arenas()
        """What its models have on the device and, while they sleep, on the host."""
        self.others: Mapping[int, Any] = {}
        """Handles of the other ranks of this copy, by rank, where this one speaks for it."""
        self.passed = Came()
        """Which orders to these have gone out."""

    # Opening

    def address(self) -> str:
        """Where this process listens from now on, for a rendezvous, with the secret that lets others in."""
        self.meetings.append(listen(LOOPBACK if self.spec.alone else shards.host()))
        return self.meetings[-1].address

    def lead(self, others: Mapping[int, Any]) -> None:
        """This rank speaks for its copy."""
        self.others = others

    def pass_on(
        self,
        to: Sequence[int],
        method: str,
        args: Sequence[Any],
        named: Mapping[str, Any],
        threads: str | None,
        number: int = 0,
    ) -> list[Any]:
        """Has other ranks of this copy do something: their answers. `threads`: those that do it while they work on
        something else. number: of an order, counted from 1: it goes out after those before it, which other threads may
        not have come to yet."""
        import ray

        if number:
            self.passed.wait(number - 1)
        asked = []
        try:
            for rank in to:
                bound = getattr(self.others[rank], method)
                asked.append((bound.options(concurrency_group=threads) if threads else bound).remote(*args, **named))
        finally:
            self.passed.add(number)
        return list(ray.get(asked))

    def open(self, addresses: Mapping[str, str], holdings: Mapping[str, Held], turned: Collection[str]) -> list[str]:
        """Loads the models of this rank, some of them with their stages the other way round. Names of the things
        without rows that live here, for the controller."""
        spec = self.spec
        torch.set_num_threads(spec.settings.threads)
        opener = shards.Opener(spec.group, spec.rank, holdings, addresses, spec.seconds, self.arenas, turned)
        with self.doing("the opening of its models"):
            self.session = Session(
                spec.program,
                spec.settings,
                open_engine=opener.open,
                outside=spec.outside,
                spread=not spec.group.code,
                who=recorded_as((spec.group.name, spec.rank)),
            )
        if spec.group.name != HOST:
            return []
        models = {model.name for model in spec.program.models}
        held = {name: value for name, value in self.session.first.items() if name not in models}
        for name, value in held.items():
            self.store.put(0, (0, 0, name), Piece(Handle("buffer", name), value))
        return list(held)

    def reach(self, environment: str, workers: Sequence[Any], caller: int) -> None:
        """An environment runs in other processes of the run; `workers` are handles of them. caller: a number of its own
        for each process that has it there."""
        self.session.reach(environment, [partial(shards.ask, each, environment) for each in workers], caller)

    def answer(
        self, environment: str, generation: int, operation: str, arguments: tuple[Any, ...], limit_s: float
    ) -> tuple[int, Any]:
        """What an environment that runs here says, to a process that has reached it."""
        return self.session.answer(environment, generation, operation, arguments, limit_s)

    def close(self) -> None:
        """Ends the processes of the user's files, where it came to opening them."""
        if hasattr(self, "session"):
            self.session.close()

    def pid(self) -> int:
        return os.getpid()

    def at(self) -> At:
        """What this process is doing, and for whom it waits. Answered beside that."""
        group, rank = self.spec.group, self.spec.rank
        ranks: Sequence[int] = range(group.mesh.size)
        if torch.distributed.is_initialized() and torch.distributed.get_world_size() != group.mesh.size:
            # The default group of some engines is that of a copy.
            ranks = group.copies()[group.mesh.at(rank, "dp")]
        return self.doing.at(tuple((group.name, each) for each in ranks), self.links.pending())

    def ready(self, attempt: int | None = None) -> bool:
        """Answered when all is done that it was told before. attempt: steps that were begun before it record nothing
        from now on."""
        if attempt is not None and self.session.recorder:
            self.session.recorder.begin_again(attempt)
        return True

    # Rows

    def pack(self, *parcels: Sequence[Wish]) -> list[Wire] | Wire:
        """What others want of the pieces that are here. Ray hands several answers out one by one, and one as it is."""
        found = [self.parcel(wanted) for wanted in parcels]
        return found if len(found) > 1 else found[0]

    def parcel(self, wanted: Sequence[Wish]) -> Wire:
        found: Wire = []
        for key, places, column in wanted:
            if places is None:
                found.append((key, range(0), to_wire(self.store.get(key))))
            else:
                name = key if column is None else column_key(key, column)
                found.append((name, places, to_wire(self.part(key, places, column))))
        return found

    def retain(self, step: Step, keys: Sequence[Key]) -> None:
        """A step is over: all other rows that it had can be forgotten."""
        self.store.retain(step.number, keys)
        self.session.finish(step)

    def fire(self, order: bytes, *arrived: Wire) -> bytes:
        """Does a node's work, by a packed order; a packed receipt. `arrived`: the rows that were not here yet."""
        told = order_of(order)
        with self.doing(doing(self.nodes[told.node][1])):
            return packed(self.do(told, *arrived))

    def sample(self, model: str, order: bytes, *arrived: Wire) -> bytes:
        """The same for an order whose rows are sampled together with those of others, while `drive` does that."""
        told = order_of(order)
        try:
            with self.doing(f"the rows of {doing(self.nodes[told.node][1])}"):
                self.came.wait(told.after)
                return packed(self.do(told, *arrived))
        except BaseException:
            self.parts.pop(told.number, None)
            raise
        finally:
            self.came.add(told.number)
            self.dismiss(told.number, model)

    def go_on(self, model: str, order: bytes, before: Sequence[int], sources: int, *given: Any) -> bytes:
        """The same for rows that others have begun. before: by part the number that it had there; given: what they have
        left of their parts, by these numbers, and then the rows that were not here yet."""
        told, left = order_of(order), dict[int, Sequence[Begun]]()
        for each in given[:sources]:
            left |= each
        self.begun[told.number] = [row for number in before for row in left[number]]
        return self.sample(model, order, *given[sources:])

    def leave(self, number: int, model: str) -> None:
        """Such an order gives up the rows that have not ended: it tells which parts these are."""
        self.admitting(model).leave(number)

    def limit(self, number: int, model: str, tokens: int) -> None:
        """Such an order gives up the rows that have so many tokens and have not ended: nobody wants them."""
        self.admitting(model).limit(number, tokens)

    def unfinished(self, number: int) -> Mapping[int, Sequence[Begun]]:
        """What there is of the parts that an order has given up, by their numbers."""
        return self.given_up.pop(number)

    def next_sampled(self, number: int, model: str) -> bytes:
        """Goes on with such an order, until its next part is done."""
        try:
            return self.next_part(number)
        finally:
            self.dismiss(number, model)

    def dismiss(self, number: int, model: str) -> None:
        """Nobody samples for such an order any more, if it has told of all."""
        if number not in self.parts:
            self.admitting(model).dismiss(number)

    def drive(self, number: int, model: str, version: int | None) -> None:
        """Has the rows of such an order sampled, and those of others that come in between. version: of the weights that
        there were when it was ordered, where newer ones may come meanwhile."""
        if version is not None:
            self.arrivals[model].begin(version)
        with torch.no_grad(), self.doing(f"the sampling of `{model}`"):
            self.admitting(model).drive(number)

    def admitting(self, model: str) -> Admits:
        return cast(Admits, self.session.models[model].engine)

    def sit(self, link: str, seat: Seat, places: int) -> None:
        """Takes turns on its device, in a pipeline, with those of so many places whom it has met for a link."""
        self.besides[link] = Beside(self.links.mailbox(link), seat, places)

    def fire_together(
        self, orders: Sequence[bytes], sizes: Sequence[int], link: str | None, *arrived: Wire
    ) -> list[bytes]:
        """Does the work of trainings that share a pipeline: a packed receipt of each. sizes: how many of the parcels
        that came are for each order. link: with others, whose models are split unlike."""
        start, wires = time.time(), iter(arrived)
        told = [order_of(each) for each in orders]
        came = [self.arrive(order, [*islice(wires, count)]) for order, count in zip(told, sizes, strict=True)]
        nodes = [self.nodes[order.node][1] for order in told]
        frames = [self.frame(self.nodes[order.node][0], order) for order in told]
        beside = None if link is None else self.besides[link]
        with torch.no_grad(), self.doing(f"the training of {listed([each.name for each in nodes], 'and')}"):
            made = train_together(nodes, frames, self.session, [order.idle for order in told], beside)
        for node, frame in zip(nodes, frames, strict=True):
            self.trained(frame.values[model_of(node)])
        notes = self.session.notes.take(told[0].step.number)
        # What a model is trained on all have noted, and who has its results tells.
        away = {node.region.inputs[0].name for node, order in zip(nodes, told, strict=True) if not order.keeps}
        notes = tuple(note for note in notes if note.node not in away)
        receipts = []
        for order, node, frame, own, sent in zip(told, nodes, frames, made, came, strict=True):
            receipts.append(self.receipt(order.number, order.keeps, node, frame, own, start, sent, notes))
            notes = () if order.keeps else notes
        return [packed(each) for each in receipts]

    def arrive(self, order: RankOrder, arrived: Sequence[Wire]) -> tuple[int, ...]:
        """The rows of an order that were not here yet: how many bytes each sender has sent."""
        came = tuple(sum(size(sent) for _, _, sent in wire) for wire in arrived)
        for wire in arrived:
            for key, places, sent in wire:
                self.store.arrive(order.step.number, key, long(places), from_wire(sent))
        self.came.add(order.number)
        return came

    def do(self, order: RankOrder, *arrived: Wire) -> Receipt:
        start = time.time()
        came = self.arrive(order, arrived)
        phase, node = self.nodes[order.node]
        frame = self.frame(phase, order)
        session = self.session
        with torch.no_grad():
            if NODES[node.op].chooses is not None:
                chosen = chosen_places(node, frame, session)
                return Receipt(start, time.time(), chosen=chosen, came=came, notes=self.noted(order.step, order.keeps))
            if NODES[node.op].weighs:
                numbers = work(node, frame, session).values[node.name]
                return Receipt(start, time.time(), numbers=numbers, came=came)
            if order.parts:
                parts = self.in_parts(order, node, frame, start, came)
                if order.keeps:
                    self.parts[order.number] = parts
                    return next(parts)
                *_, last = parts
                return replace(last, start=start, came=came)
            if node.op in TRAINING:
                made = TRAINING[node.op](node, frame, session, idle=order.idle)
                if NODES[node.op].updates:
                    self.trained(frame.values[model_of(node)])
            else:
                self.refreshing(order, node, frame)
                made = work(node, frame, session)
        return self.receipt(order.number, order.keeps, node, frame, made, start, came)

    def next_part(self, number: int) -> bytes:
        """Goes on with an order that was fired, until its next part is done; a packed receipt."""
        try:
            with torch.no_grad(), self.doing("the next rows of what it samples"):
                return packed(next(self.parts[number]))
        except BaseException:
            del self.parts[number]
            raise

    def in_parts(
        self, order: RankOrder, node: Node, frame: Frame, start: float, came: tuple[int, ...]
    ) -> Iterator[Receipt]:
        sizes = [rows for _, rows in order.parts]
        self.refreshing(order, node, frame)
        for done, (part, rows, made) in enumerate(generate_parts(node, frame, self.session, sizes), start=1):
            if done == len(sizes):
                self.parts.pop(order.number, None)
            asked, number = Frame(frame.types, order.step, admission=frame.admission), order.parts[part][0]
            asked.add_rows(rows)
            receipt = self.receipt(number, order.keeps, node, asked, made, start, came)
            longest = longest_answers(node, made) if order.races else ()
            yield replace(receipt, part=part, longest=longest)
            start, came = time.time(), ()
        if frame.admission is not None and frame.admission.left:
            left = frame.admission.left
            self.parts.pop(order.number, None)
            if order.keeps:
                self.given_up[order.number] = {order.parts[part][0]: rows for part, rows in left.items()}
            yield Receipt(start, time.time(), came=came, left=tuple(left))

    def refreshing(self, order: RankOrder, node: Node, frame: Frame) -> None:
        """Newer weights may come while an order is done, where it says so."""
        if order.refreshes:
            frame.refresh = self.arrivals[frame.values[model_of(node)]]
            if order.joins is None:
                assert order.version is not None
                frame.refresh.begin(order.version)

    def receipt(
        self,
        number: int,
        keeps: bool,
        node: Node,
        frame: Frame,
        made: Made,
        start: float,
        came: tuple[int, ...],
        notes: tuple[Note, ...] | None = None,
    ) -> Receipt:
        """notes: of its rows; None: all that there are of the step."""
        tokens = sampled_tokens(node, made)
        if notes is None:
            notes = self.noted(frame.step, keeps)
        if not keeps:
            return Receipt(start, time.time(), tokens=tokens, came=came)
        rows, named, sizes = self.keep(number, node, frame, made)
        told = Receipt(
            start, time.time(), rows, named, sizes, metrics=made.metrics, tokens=tokens, came=came, notes=notes
        )
        return replace(told, beside=frame.admission.beside) if frame.admission else told

    def noted(self, step: Step, keeps: bool) -> tuple[Note, ...]:
        """What was noted on the way for a step: one of a copy tells of it."""
        notes = self.session.notes.take(step.number)
        return notes if keeps else ()

    def frame(self, phase: str, order: RankOrder) -> Frame:
        """The rows and values that an order names."""
        admission = None
        if order.joins is not None:
            begun = self.begun.pop(order.number, None)
            admission = Admission(order.number, order.joins, leaves=bool(order.parts), begun=begun)
        frame = Frame(self.types[phase], order.step, version=order.version, admission=admission)
        number = order.step.number
        for told in order.rows:
            parent = None if told.counts is None else np.repeat(np.arange(told.counts.shape[0]), told.counts)
            ids = None if told.ids is None else self.wanted(told.ids, number).value
            frame.add_rows(Rows(self.axes[told.axis], told.size, parent, ids))
        for name, source in order.inputs.items():
            if isinstance(source, Given):
                frame.values[name] = full(source.value)
                continue
            piece = self.store.get(source.key, number) if isinstance(source, Whole) else self.wanted(source, number)
            frame.values[name] = piece.value
            for axis, counts in inner_axes(frame.types[name], piece.counts):
                if axis.key not in frame.rows:
                    frame.add_rows(inner_rows(axis, counts))
        return frame

    def wanted(self, wanted: Wanted, step: int) -> Piece:
        piece = Piece.join([self.part(*part, step) for part in wanted.parts])
        return piece if wanted.order is None else piece.take(wanted.order)

    def part(self, key: Key, places: Places, column: int | None, step: int | None = None) -> Piece:
        """Rows of a piece that was made here, or that came for a step; or a column of them."""
        piece = self.store.take(key, long(places), step)
        if column is None:
            return piece
        _, node = self.nodes[column]
        assert isinstance(piece.kind, Table)
        value = column_of(node, piece.value, self.session)
        known = piece.kind.columns().get(node.attr("name"))
        own = known.axis if known and known.axis else piece.kind.axis
        counts = next(
            found for axis, found in zip(axes_of(piece.kind), piece.counts, strict=True) if axis.key == own.key
        )
        return Piece(TensorType("any", own), value, (counts,))

    def keep(
        self, number: int, node: Node, frame: Frame, made: Made
    ) -> tuple[tuple[RowsOf, ...], tuple[str, ...], dict[str, int | None]]:
        """Puts what was made into the store, and counts it."""
        told, named = [], []
        for rows in made.rows:
            frame.add_rows(rows)
            if rows.axis.inner:
                continue
            counts = None
            if rows.parent is not None and rows.axis.parent is not None:
                counts = np.bincount(rows.parent, minlength=frame.size(rows.axis.parent.key))
            told.append(RowsOf(rows.axis.key, rows.size, counts, None))
            if rows.ids is not None:
                named.append(rows.axis.key)
                ids = Piece(TensorType("any", rows.axis), rows.ids, (None,))
                self.store.put(frame.step.number, (number, self.spec.rank, f"ids:{rows.axis.key}"), ids)
        sizes: dict[str, int | None] = {}
        for value in node.outputs:
            made_value = made.values[value.name]
            if is_model(value.type):
                continue
            piece = Piece(value.type, made_value, tuple(_counts(axis, frame) for axis in axes_of(value.type)))
            self.store.put(frame.step.number, (number, self.spec.rank, value.name), piece)
            sizes[value.name] = None if axis_of(value.type) is None else piece.rows
        return tuple(told), tuple(named), sizes

    # Values that live across steps

    def rows(self) -> dict[str, int | None]:
        """Of each data source how many rows it has, where that is known."""
        return {name: reader.source.length for name, reader in self.session.readers.items()}

    def judged(self) -> list[str]:
        """What was done with rows that are too long, in sentences."""
        return self.session.judged

    def lengths(self) -> Known:
        """How long the answers to prompts were."""
        return self.session.history.kept()

    def remember(self, known: Known) -> None:
        """How long they were in the steps before those that come."""
        self.session.history.known = known

    def put(self, pieces: Wire) -> None:
        """Values as they were before the steps that come."""
        for key, _, sent in pieces:
            self.store.put(0, key, from_wire(sent))


def _axes(types: Mapping[str, Mapping[str, Type]]) -> dict[str, Axis]:
    return {
        axis.key: axis
        for kinds in types.values()
        for kind in kinds.values()
        for own in axes_of(kind)
        for axis in own.path()
    }


def _counts(axis: Axis, frame: Frame) -> np.ndarray | None:
    """Entries of an inner axis in each row; None for an axis of rows."""
    if not axis.inner:
        return None
    assert axis.parent is not None
    return np.bincount(frame.index(axis.key, axis.parent.key), minlength=frame.size(axis.parent.key))
