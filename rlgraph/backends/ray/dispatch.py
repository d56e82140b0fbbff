"""How the work of a node reaches the processes of a group, and how what they made comes together."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from rlgraph.backends.clocks import Queues
from rlgraph.backends.executor import Made
from rlgraph.backends.frame import Frame
from rlgraph.backends.placed.shares import needs, part, shares, split_axis
from rlgraph.backends.placed.transport import Order
from rlgraph.backends.ray.failures import Request, doing
from rlgraph.backends.ray.orders import Given, RankOrder, Receipt, packed, receipt_of
from rlgraph.backends.ray.processes import Processes, Reference
from rlgraph.backends.ray.remote import Address, PieceRef, Remote, Single
from rlgraph.backends.ray.rows import Delivery, Ledger
from rlgraph.backends.ray.worker import Worker
from rlgraph.backends.rows import Rows
from rlgraph.backends.step import Step
from rlgraph.backends.steps import Observer
from rlgraph.ir.graph import Node, Program, axes
from rlgraph.ir.types import Handle, is_model


class Dispatch:
    """Sends orders and reads receipts."""

    def __init__(self, program: Program, processes: Processes, queues: Queues, observer: Observer) -> None:
        self.processes, self.queues, self.observer = processes, queues, observer
        self.ledger = Ledger(processes)
        self.axes = axes(program)
        self._number, self._counting = 0, threading.Lock()
        self._work: dict[int, dict[tuple[Address, int], int]] = {}
        """For each step that is under way, by process and work, the observer's number."""

    def fire(self, order: Order) -> Made:
        """Each data-parallel copy of the group does its share of the rows."""
        shared = shares(order, self.axes)
        number, receipts = self.ask(order, shared.frames)
        speakers = order.group.speakers()
        return shared.together(
            {
                copy: self.made(order.node, number, receipts[copy], (order.group.name, speakers[copy]))
                for copy, frame in sorted(shared.frames.items())
                if frame is not None
            }
        )

    def finish(self, step: Step) -> None:
        """A step is over."""
        self.ledger.finish(step)
        self._work.pop(step.number, None)

    def choose(self, order: Order) -> np.ndarray:
        _, receipts = self.ask(order, {0: order.frame})
        chosen = receipts[0].chosen
        assert chosen is not None
        return chosen

    def ask(self, order: Order, frames: Mapping[int, Frame | None]) -> tuple[int, dict[int, Receipt]]:
        """Sends copies of a group their rows and waits: the number of the work, and what each copy's speaker answers.

        A copy without a frame takes part in an update to which it has nothing to add.
        """
        node, group = order.node, order.group
        [number] = self._numbers(1)
        copies, speakers = group.copies(), group.speakers()
        with self.queues.turn(group.pool, rank=order.step.number):
            sent = [
                (address, frame is not None and address[1] == speakers[copy], delivery)
                for copy, frame in frames.items()
                for address, delivery in self.addressed(order, copies[copy], frame)
            ]
            self.ledger.send([delivery for _, _, delivery in sent])
            self.observer.firing(node, group.pool)
            began = time.perf_counter()
            references = []
            for address, keeps, delivery in sent:
                idle = frames[group.mesh.at(address[1], "dp")] is None
                told = packed(self.told(order, number, delivery, keeps, idle=idle))
                references.append(self.processes.call(address, Worker.fire, told, *delivery.arriving))
            request = Request(tuple(address for address, _, _ in sent), doing(node), node)
            answers = [receipt_of(each) for each in self.processes.get(references, request)]
            seconds = time.perf_counter() - began
            receipts = {
                group.mesh.at(rank, "dp"): answer
                for ((_, rank), keeps, _), answer in zip(sent, answers, strict=True)
                if keeps
            }
            self.trace(order, number, [(address, delivery) for address, _, delivery in sent], answers)
            tokens = sum(receipt.tokens for receipt in receipts.values())
            self.observer.fired(node, seconds, tokens, group.pool)
        return number, receipts

    def told(
        self,
        order: Order,
        number: int,
        delivery: Delivery,
        keeps: bool,
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
            order.version,
            parts,
        )

    def parts(self, order: Order, sizes: Sequence[int]) -> Iterator[Made]:
        """Parts are dealt to the group's copies in turn."""
        node, frame, group = order.node, order.frame, order.group
        axis, copies, speakers = split_axis(node), group.copies(), group.speakers()
        assert axis is not None
        numbers = self._numbers(len(sizes))
        bounds = list(pairwise(accumulate(sizes, initial=0)))
        with self.queues.turn(group.pool, rank=order.step.number):
            self.observer.firing(node, group.pool)
            began, tokens = time.perf_counter(), 0
            coming: dict[int, list[tuple[Address, Delivery, Reference[bytes]]]] = {
                index: [] for index in range(len(sizes))
            }
            for copy, ranks in enumerate(copies):
                mine = range(copy, len(sizes), len(copies))
                if not mine:
                    continue
                body, _ = part(frame, axis, np.concatenate([np.arange(*bounds[index]) for index in mine]), node.inputs)
                parts = tuple((numbers[index], sizes[index]) for index in mine)
                addressed = list(self.addressed(order, ranks, body))
                self.ledger.send([delivery for _, delivery in addressed])
                for address, delivery in addressed:
                    keeps = address[1] == speakers[copy]
                    told = packed(self.told(order, numbers[mine[0]], delivery, keeps, parts=parts))
                    answer = self.processes.call(address, Worker.fire, told, *delivery.arriving)
                    coming[mine[0]].append((address, delivery, answer))
                    for index in mine[1:]:
                        # A process does one thing after the other: it goes on when it has told of the part before.
                        rest = Delivery(delivery.inputs, delivery.rows)
                        coming[index].append((address, rest, self.processes.call(address, Worker.next_part)))
            for index, sent in coming.items():
                request = Request(tuple(address for address, _, _ in sent), doing(node), node)
                answers = [receipt_of(each) for each in self.processes.get([each for *_, each in sent], request)]
                self.trace(order, numbers[index], [(address, delivery) for address, delivery, _ in sent], answers)
                holder = (group.name, speakers[index % len(copies)])
                [receipt] = [answer for (address, _, _), answer in zip(sent, answers, strict=True) if address == holder]
                tokens += receipt.tokens
                yield self.made(node, numbers[index], receipt, holder)
            self.observer.fired(node, time.perf_counter() - began, tokens, group.pool)

    def _numbers(self, count: int) -> list[int]:
        """For so many pieces of work."""
        with self._counting:
            self._number += count
            return list(range(self._number - count + 1, self._number + 1))

    def trace(
        self, order: Order, number: int, sent: Sequence[tuple[Address, Delivery]], answers: Sequence[Receipt]
    ) -> None:
        """Tells the observer who worked when, and from where its rows came."""
        node, group, works = order.node, order.group, self._work.setdefault(order.step.number, {})
        for (address, delivery), answer in zip(sent, answers, strict=True):
            rows = max((told.size for told in delivery.rows), default=0)
            work = self.observer.span(
                group.pool,
                f"{group.name} {address[1]}",
                node.name,
                node.op,
                answer.start,
                answer.end,
                rows=rows,
                tokens=answer.tokens,
            )
            works[address, number] = work
            for source, came in zip(delivery.senders(), answer.came, strict=True):
                if source in works:
                    self.observer.flow(works[source], work, "rows", came)

    def addressed(self, order: Order, ranks: Sequence[int], frame: Frame | None) -> Iterator[tuple[Address, Delivery]]:
        """The rows for each rank of a copy."""
        node, who = order.node, [(order.group.name, rank) for rank in ranks]
        if frame is None:
            # All it has to know is which model.
            yield from ((address, Delivery({node.inputs[0]: Given(_model(node))}, ())) for address in who)
            return
        yield from zip(who, self.ledger.deliver(who, frame, needs(node, frame, self.axes)), strict=True)

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


def _model(node: Node) -> str:
    kind = node.outputs[0].type
    assert isinstance(kind, Handle)
    return kind.name
