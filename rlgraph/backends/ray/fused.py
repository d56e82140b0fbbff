"""Trainings that share the stages of a group's pipeline: one piece of work, and one call to each process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlgraph.backends.executor import Made
from rlgraph.backends.placed.shares import shares
from rlgraph.backends.placed.transport import Order
from rlgraph.backends.ray.calls import Calls
from rlgraph.backends.ray.orders import Receipt, packed, receipt_of
from rlgraph.backends.ray.worker import Worker
from rlgraph.errors import listed
from rlgraph.ops.nodes import model_of

if TYPE_CHECKING:
    from rlgraph.backends.ray.dispatch import Dispatch, Sent

Parcel = Sequence["Sent"]
"""What goes to some of a copy: of each order its part."""


def fire_together(dispatch: Dispatch, orders: Sequence[Order]) -> list[Made]:
    """Has orders of one group done as one: what each of them made."""
    first = orders[0]
    group, step = first.group, first.step
    with dispatch.queues.turn(first.seats, rank=step.number):
        for order in orders:
            dispatch.sleeping.shift(order.shifting, order.node, step)
        split = [shares(order, dispatch.axes) for order in orders]
        numbers = dispatch.numbers(len(orders))
        parcels: list[tuple[int, Parcel]] = []
        for copy in range(group.mesh.length("dp")):
            addressed = [
                dispatch.addressed(order, copy, own.frames[copy], dispatch.needs(order))
                for order, own in zip(orders, split, strict=True)
            ]
            parcels += [(copy, parts) for parts in zip(*addressed, strict=True)]
        dispatch.ledger.send([each.delivery for _, parts in parcels for each in parts])
        for order in orders:
            dispatch.observer.firing(order.node, group.pool)
        began, calls = time.perf_counter(), Calls[list[bytes]](dispatch.processes)
        for copy, parts in parcels:
            told = []
            for order, own, number, each in zip(orders, split, numbers, parts, strict=True):
                idle = own.frames[copy] is None
                keeps = each.speaks and not idle
                told.append(packed(dispatch.told(order, copy, number, each.delivery, keeps, None, idle=idle)))
            sizes = [len(each.delivery.arriving) for each in parts]
            arriving = [wire for each in parts for wire in each.delivery.arriving]
            dispatch.tell(calls, parts[0], Worker.fire_together, told, sizes, *arriving)
        for order in orders:
            order.arrived()
        names = [order.frame.values[model_of(order.node)] for order in orders]
        found = calls.get(f"the training of {listed(names, 'and')}", first.node)
        seconds = time.perf_counter() - began
    answers = [[[receipt_of(each) for each in own] for own in receipts] for receipts in found]
    _trace(dispatch, orders, numbers, calls, [parts for _, parts in parcels], answers)
    made: list[dict[int, Made]] = [{} for _ in orders]
    for (copy, parts), receipts in zip(parcels, answers, strict=True):
        for at, (order, each) in enumerate(zip(orders, parts, strict=True)):
            if each.speaks and split[at].frames[copy] is not None:
                speaker = dispatch.speaker(order, copy)
                made[at][copy] = dispatch.made(order.node, numbers[at], receipts[0][at], speaker)
    for order in orders:
        dispatch.observer.fired(order.node, seconds, 0, group.pool)
    return [own.together(each) for own, each in zip(split, made, strict=True)]


def _trace(
    dispatch: Dispatch,
    orders: Sequence[Order],
    numbers: Sequence[int],
    calls: Calls[list[bytes]],
    parcels: Sequence[Parcel],
    answers: Sequence[Sequence[Sequence[Receipt]]],
) -> None:
    """Tells the observer of one piece of work of each process, and from where its rows came."""
    group, step, op = orders[0].group, orders[0].step.number, orders[0].node.op
    title = f"{op} {', '.join(order.frame.values[model_of(order.node)] for order in orders)}"
    works = dispatch.works.setdefault(step, {})
    for who, parts, receipts in zip(calls.asked, parcels, answers, strict=True):
        dispatch.note(receipts)
        for address, own in zip(who, receipts, strict=True):
            made = [told.size for receipt in own for told in receipt.rows]
            rows = max([*(told.size for each in parts for told in each.delivery.rows), *made], default=0)
            start, end = own[0].start, max(receipt.end for receipt in own)
            work = dispatch.observer.span(
                group.pool, f"{group.name} {address[1]}", title, op, start, end, rows=rows, tokens=0
            )
            for number, each, receipt in zip(numbers, parts, own, strict=True):
                works[address, number] = work
                for source, came in zip(each.delivery.senders(), receipt.came, strict=True):
                    if source in works:
                        dispatch.observer.flow(works[source], work, "rows", came)
