"""How the work of a node reaches the processes of a group, and how what they made comes together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from rlgraph.backends.distributed.sharding import Needs, needs, shares
from rlgraph.backends.distributed.transport import Order
from rlgraph.backends.executor import Made, Part
from rlgraph.backends.frame import Frame
from rlgraph.backends.notes import Notes
from rlgraph.backends.ray.batching import Place, Together
from rlgraph.backends.ray.calls import Calls, Copy, copies
from rlgraph.backends.ray.failures import doing
from rlgraph.backends.ray.losses import Losses
from rlgraph.backends.ray.offload import Sleeping
from rlgraph.backends.ray.orders import Given, RankOrder, Receipt, packed, receipt_of
from rlgraph.backends.ray.parts import Begun, InParts, arrived, sampled_model
from rlgraph.backends.ray.processes import Losing, Processes, Reference
from rlgraph.backends.ray.remote import Address, PieceRef, Remote, Single
from rlgraph.backends.ray.rows import Delivery, Ledger
from rlgraph.backends.ray.worker import Worker
from rlgraph.backends.rows import Rows
from rlgraph.backends.step import Step
from rlgraph.backends.steps import Observer
from rlgraph.backends.turns import Queues
from rlgraph.ir.graph import Node, Program, axes
from rlgraph.ir.mesh import Mesh
from rlgraph.ir.plan import Group, Plan
from rlgraph.ir.types import Handle, is_model
from rlgraph.ops.nodes import NODES, model_of

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Sent:
    """What goes to some of a copy."""

    copy: Copy
    to: tuple[Address, ...]
    """Who they are."""
    speaks: bool
    """It is for the one that has the results."""
    delivery: Delivery


class Dispatch:
    """Sends orders and reads receipts."""

    def __init__(
        self,
        program: Program,
        plan: Plan,
        processes: Processes,
        queues: Queues,
        observer: Observer,
        notes: Notes,
        sleeping: Sleeping,
        losses: Losses,
    ) -> None:
        self.losses = losses
        self.plan, self.sleeping = plan, sleeping
        self.processes, self.queues, self.observer, self.notes = processes, queues, observer, notes
        self.ledger = Ledger(processes)
        self.axes = axes(program)
        self.together = Together(processes)
        self.links: dict[tuple[str, ...], dict[tuple[str, int], str]] = {}
        """Of groups that have a pipeline in common, by group and copy that by which its processes take turns."""
        self._number, self._counting = 0, threading.Lock()
        self._copies: dict[tuple[str, Mesh], tuple[Copy, ...]] = {}
        self._alike: dict[tuple[str, Mesh], tuple[list[tuple[Address, ...]], ...]] = {}
        self.works: dict[int, dict[tuple[Address, int], int]] = {}
        """For each step that is under way, by process and work, the observer's number."""

    def fire(self, order: Order) -> Made:
        """Each data-parallel copy of the group does its share of the rows, or one of them does all; of ranks that run
        the user's code, one that is free does."""
        node, group, copy = order.node, order.group, order.copy
        if group.code:
            with self.queues.place(group.pool, order.step.number) as free:
                number, receipts = self._sent(order, {free: order.frame})
            return self.made(node, number, receipts[free], (group.name, free))
        if copy is not None:
            number, receipts = self.ask(order, {copy: order.frame})
            return self.made(node, number, receipts[copy], self.speaker(order, copy))
        shared = shares(order, self.axes, self.losses.living(group))
        number, receipts = self.ask(order, shared.frames)
        made = dict[int, Made]()
        for each, frame in sorted(shared.frames.items()):
            if each in receipts:
                made[each] = self.made(node, number, receipts[each], self.speaker(order, each))
            elif frame is not None:
                # It was lost: the others do its rows.
                made[each] = self.fire(replace(order, frame=frame))
                self.losses.redone(order.step)
        return shared.together(made)

    def finish(self, step: Step) -> None:
        """A step is over."""
        self.ledger.finish(step)
        self.works.pop(step.number, None)

    def choose(self, order: Order) -> np.ndarray:
        _, receipts = self.ask(order, {0: order.frame})
        chosen = receipts[0].chosen
        assert chosen is not None
        return chosen

    def weigh(self, order: Order) -> Sequence[float]:
        if order.group.code:
            with self.queues.place(order.group.pool, order.step.number) as free:
                _, receipts = self._sent(order, {free: order.frame})
        else:
            free = 0
            _, receipts = self.ask(order, {0: order.frame})
        numbers = receipts[free].numbers
        assert numbers is not None
        return numbers

    def ask(self, order: Order, frames: Mapping[int, Frame | None]) -> tuple[int, dict[int, Receipt]]:
        """Sends copies of a group their rows and waits: the number of the work, and what each copy's speaker answers.

        A copy without a frame takes part in an update to which it has nothing to add.
        """
        with self.queues.turn(order.seats, rank=order.step.number, key=order.key):
            return self._sent(order, frames)

    def _sent(self, order: Order, frames: Mapping[int, Frame | None]) -> tuple[int, dict[int, Receipt]]:
        """The same, by who has the pool, or a place of it."""
        node, group = order.node, order.group
        copies, wanted = self.copies(group), self.needs(order)
        self.sleeping.shift(order.shifting, node, order.step)
        calls = Calls[bytes](self.processes)
        with self.together.order(order, [copies[copy] for copy in frames]) as place:
            with place.sending:
                [number] = self.numbers(1)
                sent = [
                    (copy, frame is None, each)
                    for copy, frame in frames.items()
                    for each in self.addressed(order, copy, frame, wanted)
                ]
                self.ledger.send([each.delivery for *_, each in sent])
                self.observer.firing(node, group.pool)
                began = time.perf_counter()
                for copy, idle, each in sent:
                    keeps = each.speaks and not idle
                    after = place.after(copies[copy])
                    told = self.told(order, copy, number, each.delivery, keeps, after, idle=idle)
                    self.give(calls, order, each, told)
                for copy in frames:
                    calls.beside += self.driven(order, copy, number, place)
            self.begun(order)
            began += arrived(order)
            asked = calls.asked
            answers = self.answers(calls, node, self.losing(order))
        seconds = time.perf_counter() - began
        if len(calls.asked) < len(asked):
            sent = [each for each, who in zip(sent, asked, strict=True) if who in calls.asked]
        receipts = {
            copy: found[0] for (copy, idle, each), found in zip(sent, answers, strict=True) if each.speaks and not idle
        }
        self.trace(order, number, calls, [each.delivery for *_, each in sent], answers)
        tokens = sum(receipt.tokens for receipt in receipts.values())
        self.observer.fired(node, seconds, tokens, group.pool)
        return number, receipts

    def tell(
        self,
        calls: Calls[T],
        sent: Sent,
        method: Callable[Concatenate[Worker, P], T],
        *args: P.args,
        **named: P.kwargs,
    ) -> None:
        leader = sent.copy[0]
        if sent.to == (leader,):
            calls.one(leader, method, *args, **named)
        else:
            calls.others((leader, sent.to), method, *args, **named)

    def give(self, calls: Calls[bytes], order: Order, sent: Sent, told: RankOrder, begun: Begun | None = None) -> None:
        """Gives a copy an order, or a part of the copy; of rows that others have begun, with what there is of them."""
        if begun is not None:
            given = begun.before, len(begun.left), *begun.left, *sent.delivery.arriving
            self.tell(calls, sent, Worker.go_on, sampled_model(order), packed(told), *given)
        elif order.key is None:
            self.tell(calls, sent, Worker.fire, packed(told), *sent.delivery.arriving)
        else:
            self.tell(calls, sent, Worker.sample, sampled_model(order), packed(told), *sent.delivery.arriving)

    def driven(self, order: Order, copy: int, number: int, place: Place) -> list[Reference[Any]]:
        """Has a copy sample the rows of an order that it was given, if they are sampled together with others."""
        if order.key is None:
            return []
        calls, ranks = Calls[None](self.processes), self.copies(order.group)[copy]
        version = _version(order, copy) if order.sampling is not None else None
        calls.copy(ranks, Worker.drive, number, sampled_model(order), version)
        place.given(ranks, number)
        return calls.answers

    def losing(self, order: Order) -> Losing | None:
        """What is to become of processes that end while they do an order, if the run can go on without them."""
        if order.group.mesh.length("dp") == 1:
            return None
        return self.losses.losing(order, lambda: [who for works in [*self.works.values()] for who, _ in [*works]])

    def answers(self, calls: Calls[bytes], node: Node, losing: Losing | None = None) -> list[list[Receipt]]:
        receipts = [[receipt_of(each) for each in found] for found in calls.get(doing(node), node, losing)]
        self.note(receipts)
        return receipts

    def note(self, answers: Sequence[Sequence[Receipt]]) -> None:
        """What processes tell of rows."""
        self.notes.extend(note for receipts in answers for receipt in receipts for note in receipt.notes)

    def begun(self, order: Order) -> None:
        """It has been sent: newer weights may come."""
        if order.sampling is not None and not order.sampling.sent.done():
            order.sampling.sent.set_result(None)

    def copies(self, group: Group) -> tuple[Copy, ...]:
        known = group.name, group.mesh
        if known not in self._copies:
            self._copies[known] = copies(group)
        return self._copies[known]

    def speaker(self, order: Order, copy: int) -> Address:
        """Who has the results of an order's copy: where the model's stages lie the other way round its first rank."""
        group = order.group
        held = order.frame.types[model_of(order.node)] if NODES[order.node.op].with_model else None
        turned = isinstance(held, Handle) and self.plan.turned(held.name, group.name)
        return group.name, group.speaker(copy, turned)

    def alike(self, group: Group, copy: int) -> list[tuple[Address, ...]]:
        """Those of a copy who always lack the same: each that has results of some model by itself, and all the
        others. Who leads is first."""
        known = group.name, group.mesh
        if known not in self._alike:
            ways = {False, *(self.plan.turned(model, group.name) for model in group.models)}
            found = []
            for number, (leader, others) in enumerate(self.copies(group)):
                speak = dict.fromkeys([leader, *((group.name, group.speaker(number, way)) for way in sorted(ways))])
                rest = tuple(who for who in others if who not in speak)
                found.append([*((who,) for who in speak), *([rest] if rest else [])])
            self._alike[known] = tuple(found)
        return self._alike[known][copy]

    def told(
        self,
        order: Order,
        copy: int,
        number: int,
        delivery: Delivery,
        keeps: bool,
        after: int | None,
        *,
        idle: bool = False,
        parts: tuple[tuple[int, int], ...] = (),
    ) -> RankOrder:
        assert order.node.id is not None
        return RankOrder(
            number,
            order.node.id,
            order.step,
            delivery.inputs,
            delivery.rows,
            idle,
            keeps,
            _version(order, copy),
            order.sampling is not None,
            None if after is None else after > 0,
            after or 0,
            parts,
            order.race is not None,
        )

    def parts(self, order: Order, sizes: Sequence[int]) -> Iterator[Part]:
        """Parts are dealt to the group's copies in turn."""
        with self.queues.turn(order.seats, rank=order.step.number, key=order.key) as turn, ExitStack() as places:
            self.sleeping.shift(order.shifting, order.node, order.step)
            yield from InParts(self, order, sizes, turn, places).told()

    def needs(self, order: Order) -> Needs:
        """Of an order, whoever does it."""
        return needs(order.node, order.frame, self.axes, notes=self.notes.wanted)

    def numbers(self, count: int) -> list[int]:
        """For so many pieces of work."""
        with self._counting:
            self._number += count
            return list(range(self._number - count + 1, self._number + 1))

    def trace(
        self,
        order: Order,
        number: int,
        calls: Calls[bytes],
        deliveries: Sequence[Delivery],
        answers: Sequence[Sequence[Receipt]],
    ) -> None:
        """Tells the observer who worked when, and from where its rows came."""
        node, group, works = order.node, order.group, self.works.setdefault(order.step.number, {})
        for who, delivery, receipts in zip(calls.asked, deliveries, answers, strict=True):
            senders = delivery.senders()
            made = [told for receipt in receipts for told in receipt.rows]
            rows = max((told.size for told in (*delivery.rows, *made)), default=0)
            for address, answer in zip(who, receipts, strict=True):
                work = self.observer.span(
                    group.pool,
                    f"{group.name} {address[1]}",
                    node.name,
                    node.op,
                    answer.start,
                    answer.end,
                    rows=rows,
                    tokens=answer.tokens,
                    **({"beside": answer.beside} if answer.beside else {}),
                )
                works[address, number] = work
                for source, came in zip(senders, answer.came, strict=True):
                    if source in works:
                        self.observer.flow(works[source], work, "rows", came)

    def addressed(self, order: Order, copy: int, frame: Frame | None, wanted: Needs) -> Iterator[Sent]:
        """The rows for those of a copy: who has results has what it made itself, and all the others lack the same."""
        node, alike = order.node, self.alike(order.group, copy)
        if frame is None:
            # All it has to know is which model.
            found = [Delivery({node.inputs[0]: Given(_model(node))}, ())] * len(alike)
        else:
            found = self.ledger.deliver([first for first, *_ in alike], frame, wanted)
        speaker, ranks = self.speaker(order, copy), self.copies(order.group)[copy]
        for to, delivery in zip(alike, found, strict=True):
            yield Sent(ranks, to, to == (speaker,), delivery)

    def made(self, node: Node, number: int, receipt: Receipt, holder: Address) -> Made:
        """What a process made, as references."""
        rows = []
        for told in receipt.rows:
            ids = None
            if told.axis in receipt.named:
                ids = Remote.of(PieceRef((number, holder[1], f"ids:{told.axis}"), holder, told.size))
            parent = None if told.counts is None else np.repeat(np.arange(len(told.counts)), told.counts)
            rows.append(Rows(self.axes[told.axis], told.size, parent, ids))
        values: dict[str, Any] = {}
        for value in node.outputs:
            if is_model(value.type):
                values[value.name] = value.type.name
                continue
            size = receipt.sizes[value.name]
            ref = PieceRef((number, holder[1], value.name), holder, size or 0)
            values[value.name] = Single(ref) if size is None else Remote.of(ref)
        return Made(values, rows, receipt.metrics)


def _version(order: Order, copy: int) -> int | None:
    """Of the weights that a copy samples with."""
    return order.version if order.sampling is None else order.sampling.versions.get(copy, order.version)


def _model(node: Node) -> str:
    """That a node trains."""
    kind = node.region.inputs[0].type
    assert isinstance(kind, Handle)
    return kind.name
