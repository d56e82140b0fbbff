"""How the work of a node reaches the processes of a group, and how what they made comes together."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch

from rlgraph.backends.clocks import Queues
from rlgraph.backends.executor import Made
from rlgraph.backends.frame import Frame, Places
from rlgraph.backends.ray.orders import Given, Order, Receipt, numbered, packed, unpacked
from rlgraph.backends.ray.processes import Processes, What
from rlgraph.backends.ray.remote import Address, PieceRef, Remote, Single
from rlgraph.backends.ray.rows import Delivery, Ledger, row_axes
from rlgraph.backends.ray.split import part, split
from rlgraph.backends.rows import Rows
from rlgraph.backends.steps import Observer
from rlgraph.ir.graph import Node, Program, axes
from rlgraph.ir.plan import Group
from rlgraph.ir.types import Axis, Handle, Table, axis_of
from rlgraph.ops.nodes import MODEL_CALLS


class Dispatch:
    """Sends orders and reads receipts."""

    def __init__(self, program: Program, processes: Processes, queues: Queues, observer: Observer) -> None:
        self.processes, self.queues, self.observer = processes, queues, observer
        self.ledger = Ledger(processes)
        self.nodes = {id(node): place for place, (_, node) in enumerate(numbered(program))}
        self.axes = axes(program)
        self._number, self._counting = 0, threading.Lock()
        self._work: dict[tuple[Address, int], int] = {}
        """For each process and work of this step the observer's number."""

    def fire(self, node: Node, frame: Frame, group: Group) -> Made:
        """Each data-parallel copy of the group does its share of the rows."""
        speakers, axis = group.speakers(), split_axis(node)
        if len(speakers) == 1 or (axis is None and node.op != "train"):
            number, receipts = self.ask(node, group, {0: frame})
            return self.made(node, number, receipts[0], (group.name, speakers[0]))
        if axis is None:
            # A loss that cannot be split is worked out by one copy; the others take the same step.
            number, receipts = self.ask(node, group, {0: frame, **dict.fromkeys(range(1, len(speakers)))})
            return self.made(node, number, receipts[0], (group.name, speakers[0]))
        # In a later block the axes that the node makes are there already, without rows of this block.
        needed = {own.key for own in row_axes(frame, node.inputs, {axis: self.axes[axis]})}
        frame = frame.child()
        frame.rows = {key: rows for key, rows in frame.rows.items() if key in needed}
        parts = split(frame, axis, len(speakers), node.inputs)
        busy = {copy: body for copy, (body, _) in enumerate(parts) if copy == 0 or body.size(axis)}
        idle: dict[int, Frame | None] = dict.fromkeys(range(len(parts))) if node.op == "train" else {}
        number, receipts = self.ask(node, group, idle | busy)
        done: list[tuple[Frame, Places]] = []
        for copy, body in busy.items():
            made = self.made(node, number, receipts[copy], (group.name, speakers[copy]))
            for rows in made.rows:
                body.add_rows(rows)
            body.values.update(made.values)
            done.append((body, parts[copy][1]))
        return _together(node, frame, done, axis)

    def end_step(self) -> None:
        self.ledger.forget()
        self._work = {}

    def choose(self, node: Node, frame: Frame, host: Group) -> torch.Tensor:
        """Which rows `keep` or `pick` takes. The rows themselves stay where they are."""
        _, receipts = self.ask(node, host, {0: frame})
        chosen = receipts[0].chosen
        assert chosen is not None
        return torch.tensor(chosen)

    def ask(self, node: Node, group: Group, frames: Mapping[int, Frame | None]) -> tuple[int, dict[int, Receipt]]:
        """Sends copies of a group their rows and waits: the number of the work, and what each copy's speaker answers.

        A copy without a frame takes part in an update to which it has nothing to add.
        """
        with self._counting:
            self._number += 1
            number = self._number
        copies, speakers = group.copies(), group.speakers()
        step = next(frame.step for frame in frames.values() if frame is not None)
        with self.queues.turn(group.pool):
            sent = [
                (address, frame is not None and address[1] == speakers[copy], delivery)
                for copy, frame in frames.items()
                for address, delivery in self.addressed(node, group, copies[copy], frame)
            ]
            self.ledger.send([delivery for _, _, delivery in sent])
            who = tuple(address for address, _, _ in sent)
            self.observer.firing(node, group.pool)
            began = time.perf_counter()
            references = []
            for address, keeps, delivery in sent:
                order = Order(
                    number,
                    self.nodes[id(node)],
                    step,
                    delivery.inputs,
                    delivery.rows,
                    frames[group.mesh.at(address[1], "dp")] is None,
                    keeps,
                )
                references.append(self.processes.call(address, "fire", packed(order), *delivery.arriving))
            told = self.processes.get(references, What(who, doing(node), node))
            answers: list[Receipt] = [unpacked(each) for each in told]
            seconds = time.perf_counter() - began
            receipts = {
                group.mesh.at(rank, "dp"): answer
                for ((_, rank), keeps, _), answer in zip(sent, answers, strict=True)
                if keeps
            }
            self.trace(node, number, group, [(address, delivery) for address, _, delivery in sent], answers)
            tokens = sum(receipt.tokens for receipt in receipts.values())
            self.observer.fired(node, seconds, tokens, group.pool)
        return number, receipts

    def parts(self, node: Node, frame: Frame, group: Group, sizes: Sequence[int]) -> Iterator[Made]:
        """What the group makes of the first so many rows, of the next ones, and so on. Parts are dealt to its copies in
        turn."""
        axis, copies, speakers = split_axis(node), group.copies(), group.speakers()
        assert axis is not None
        with self._counting:
            numbers = [self._number + 1 + index for index in range(len(sizes))]
            self._number += len(sizes)
        bounds = list(pairwise(accumulate(sizes, initial=0)))
        with self.queues.turn(group.pool):
            self.observer.firing(node, group.pool)
            began, tokens = time.perf_counter(), 0
            coming: dict[int, list[tuple[Address, Delivery, Any]]] = {index: [] for index in range(len(sizes))}
            for copy, ranks in enumerate(copies):
                mine = range(copy, len(sizes), len(copies))
                if not mine:
                    continue
                body, _ = part(frame, axis, torch.cat([torch.arange(*bounds[index]) for index in mine]), node.inputs)
                told = tuple((numbers[index], sizes[index]) for index in mine)
                addressed = list(self.addressed(node, group, ranks, body))
                self.ledger.send([delivery for _, delivery in addressed])
                for address, delivery in addressed:
                    order = Order(
                        numbers[mine[0]],
                        self.nodes[id(node)],
                        frame.step,
                        delivery.inputs,
                        delivery.rows,
                        False,
                        address[1] == speakers[copy],
                        told,
                    )
                    for index in mine:
                        # A process does one thing after the other: it goes on when it has told of the part before.
                        call = ("next_part",) if index != mine[0] else ("fire", packed(order), *delivery.arriving)
                        coming[index].append((address, delivery, self.processes.call(address, *call)))
                        delivery = Delivery(delivery.inputs, delivery.rows)
            for index, sent in coming.items():
                what = What(tuple(address for address, _, _ in sent), doing(node), node)
                answers = [unpacked(each) for each in self.processes.get([each for _, _, each in sent], what)]
                self.trace(node, numbers[index], group, [(address, delivery) for address, delivery, _ in sent], answers)
                holder = (group.name, speakers[index % len(copies)])
                [receipt] = [answer for (address, _, _), answer in zip(sent, answers, strict=True) if address == holder]
                tokens += receipt.tokens
                yield self.made(node, numbers[index], receipt, holder)
            self.observer.fired(node, time.perf_counter() - began, tokens, group.pool)

    def trace(
        self,
        node: Node,
        number: int,
        group: Group,
        sent: Sequence[tuple[Address, Delivery]],
        answers: Sequence[Receipt],
    ) -> None:
        """Tells the observer who worked when, and from where its rows came."""
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
            self._work[address, number] = work
            for source, came in zip(delivery.senders(), answer.came, strict=True):
                if source in self._work:
                    self.observer.flow(self._work[source], work, "rows", came)

    def addressed(
        self, node: Node, group: Group, ranks: Sequence[int], frame: Frame | None
    ) -> Iterator[tuple[Address, Delivery]]:
        """The rows for each rank of a copy."""
        who = [(group.name, rank) for rank in ranks]
        if frame is None:
            # All it has to know is which model.
            yield from ((address, Delivery({node.inputs[0]: Given(_model(node))}, ())) for address in who)
            return
        names, with_ids = _needed(node), node.op not in ("train", *MODEL_CALLS)
        deliveries = self.ledger.deliver(who, frame, names, row_axes(frame, names, self.needs(node, frame)), with_ids)
        yield from zip(who, deliveries, strict=True)

    def needs(self, node: Node, frame: Frame) -> dict[str, Axis]:
        """Axes that the work is about, beside those of the values that it reads."""
        found = {axis: self.axes[axis] for axis in (split_axis(node), node.attr("axis")) if axis}
        if node.op == "pick":
            kind = frame.types[node.inputs[0]]
            assert isinstance(kind, Table)
            found[kind.axis.key] = kind.axis
        return {axis.key: axis for axis in (own.row for own in found.values())}

    def made(self, node: Node, number: int, receipt: Receipt, holder: Address) -> Made:
        """What a process made, as references."""
        rows = []
        for told in receipt.rows:
            ids = None
            if told.axis in receipt.named:
                ids = Remote.of(PieceRef((number, holder[1], f"ids:{told.axis}"), holder, told.size))
            parent = (
                None if told.counts is None else torch.from_numpy(np.repeat(np.arange(len(told.counts)), told.counts))
            )
            rows.append(Rows(self.axes[told.axis], told.size, parent, ids))
        values: dict[str, Any] = {}
        for value in node.outputs:
            if isinstance(value.type, Handle) and value.type.kind == "model":
                values[value.name] = value.type.name
                continue
            size = receipt.sizes[value.name]
            ref = PieceRef((number, holder[1], value.name), holder, size or 0)
            values[value.name] = Single(ref) if size is None else Remote.of(ref)
        return Made(values, rows, receipt.metrics)


def _together(node: Node, frame: Frame, parts: Sequence[tuple[Frame, Places]], axis: str) -> Made:
    """What copies made of their shares, as one."""
    whole = frame.child()
    names = {value.name: value.name for value in node.outputs if axis_of(value.type) is not None}
    single = {value.name: parts[0][0].values[value.name] for value in node.outputs if value.name not in names}
    whole.assemble(parts, axis, names)
    rows = [found for key, found in whole.rows.items() if key not in frame.rows]
    return Made(single | {name: whole.values[name] for name in names}, sorted(rows, key=lambda found: found.axis.depth))


def _needed(node: Node) -> tuple[str, ...]:
    """The values that a process needs to do a node's work: rows that are only chosen from stay where they are."""
    if node.op == "keep":
        return node.inputs[:1]
    if node.op == "pick":
        return node.inputs[1:]
    return node.inputs


def split_axis(node: Node) -> str | None:
    """The axis whose rows can be shared out."""
    if node.op == "train":
        found: str | None = node.attr("micro")
        return found
    return node.unit.axis if node.unit else None


def _model(node: Node) -> str:
    kind = node.outputs[0].type
    assert isinstance(kind, Handle)
    return kind.name


def doing(node: Node) -> str:
    return f"`{node.op}` for `{node.name}`" if node.outputs else f"`{node.op}`"
