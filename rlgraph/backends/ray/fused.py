"""Trainings that share the stages of a pipeline: one piece of work, and one call to each process."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlgraph.backends.distributed.sharding import shares
from rlgraph.backends.distributed.transport import Order
from rlgraph.backends.executor import Made
from rlgraph.backends.ray.calls import Calls
from rlgraph.backends.ray.failures import Request
from rlgraph.backends.ray.orders import Receipt, packed, receipt_of
from rlgraph.backends.ray.time_sharing import seated
from rlgraph.backends.ray.transfers import meet
from rlgraph.backends.ray.worker import Worker
from rlgraph.errors import listed
from rlgraph.ir.plan import Group
from rlgraph.ops.nodes import model_of

if TYPE_CHECKING:
    from rlgraph.backends.ray.dispatch import Dispatch, Sent


@dataclass(frozen=True, slots=True)
class _Parcel:
    """What goes to some of a copy."""

    group: Group
    copy: int
    at: tuple[int, ...]
    """Of which orders: those of the group."""
    parts: tuple[Sent, ...]
    """Of each of these its part."""


def fire_together(dispatch: Dispatch, orders: Sequence[Order]) -> list[Made]:
    """Has orders done as one, of one group or of several whose processes take turns: what each of them made."""
    first = orders[0]
    step = first.step
    with dispatch.queues.turn(first.seats, rank=step.number):
        for order in orders:
            dispatch.sleeping.shift(order.shifting, order.node, step)
        links = _links(dispatch, orders)
        split = [shares(order, dispatch.axes) for order in orders]
        numbers = dispatch.numbers(len(orders))
        parcels: list[_Parcel] = []
        for group, at in _by_group(orders):
            for copy in range(group.mesh.length("dp")):
                addressed = [
                    dispatch.addressed(orders[own], copy, split[own].frames[copy], dispatch.needs(orders[own]))
                    for own in at
                ]
                parcels += [_Parcel(group, copy, at, parts) for parts in zip(*addressed, strict=True)]
        dispatch.ledger.send([each.delivery for parcel in parcels for each in parcel.parts])
        for order in orders:
            dispatch.observer.firing(order.node, order.group.pool)
        began, calls = time.perf_counter(), Calls[list[bytes]](dispatch.processes)
        for parcel in parcels:
            told = []
            for own, each in zip(parcel.at, parcel.parts, strict=True):
                idle = split[own].frames[parcel.copy] is None
                keeps = each.speaks and not idle
                what = orders[own], parcel.copy, numbers[own], each.delivery
                told.append(packed(dispatch.told(*what, keeps, None, idle=idle)))
            sizes = [len(each.delivery.arriving) for each in parcel.parts]
            arriving = [wire for each in parcel.parts for wire in each.delivery.arriving]
            link = links.get((parcel.group.name, parcel.copy))
            dispatch.tell(calls, parcel.parts[0], Worker.fire_together, told, sizes, link, *arriving)
        for order in orders:
            order.arrived()
        names = [order.frame.values[model_of(order.node)] for order in orders]
        found = calls.get(f"the training of {listed(names, 'and')}", first.node)
        seconds = time.perf_counter() - began
    answers = [[[receipt_of(each) for each in own] for own in receipts] for receipts in found]
    _trace(dispatch, orders, numbers, calls, parcels, answers)
    made: list[dict[int, Made]] = [{} for _ in orders]
    for parcel, receipts in zip(parcels, answers, strict=True):
        for number, (own, each) in enumerate(zip(parcel.at, parcel.parts, strict=True)):
            if each.speaks and split[own].frames[parcel.copy] is not None:
                speaker = dispatch.speaker(orders[own], parcel.copy)
                made[own][parcel.copy] = dispatch.made(orders[own].node, numbers[own], receipts[0][number], speaker)
    for order in orders:
        dispatch.observer.fired(order.node, seconds, 0, order.group.pool)
    return [own.together(each) for own, each in zip(split, made, strict=True)]


def _by_group(orders: Sequence[Order]) -> Iterator[tuple[Group, tuple[int, ...]]]:
    """The groups of orders, and the numbers of those that each has."""
    groups = {order.group.name: order.group for order in orders}
    for name, group in groups.items():
        yield group, tuple(number for number, order in enumerate(orders) if order.group.name == name)


def _links(dispatch: Dispatch, orders: Sequence[Order]) -> dict[tuple[str, int], str]:
    """Of each copy of groups that are split unlike, that by which its processes take turns with others. Who they are is
    told them once."""
    groups = [group for group, _ in _by_group(orders)]
    if len(groups) == 1:
        return {}
    key = tuple(order.group.name for order in orders)
    if key not in dispatch.links:
        dispatch.links[key] = _joined(dispatch, orders, groups)
    return dispatch.links[key]


def _joined(dispatch: Dispatch, orders: Sequence[Order], groups: Sequence[Group]) -> dict[tuple[str, int], str]:
    """Has the processes of each block meet, and tells each of them where it is."""
    [number] = dispatch.numbers(1)
    splits = {group.name: group.mesh for group in groups}
    found: dict[tuple[str, int], str] = {}
    for block, seats in enumerate(seated(groups, [order.group.name for order in orders])):
        link = f"pipeline {number}.{block} of {' and '.join(splits)}"
        request = Request(tuple(seats), f"the meeting for {link}", orders[0].node)
        meet(dispatch.processes, link, request)
        sitting = [dispatch.processes.call(who, Worker.sit, link, seat, len(seats)) for who, seat in seats.items()]
        dispatch.processes.get(sitting, request)
        found |= {(name, splits[name].at(rank, "dp")): link for name, rank in seats}
    return found


def _trace(
    dispatch: Dispatch,
    orders: Sequence[Order],
    numbers: Sequence[int],
    calls: Calls[list[bytes]],
    parcels: Sequence[_Parcel],
    answers: Sequence[Sequence[Sequence[Receipt]]],
) -> None:
    """Tells the observer of one piece of work of each process, and from where its rows came."""
    step, op = orders[0].step.number, orders[0].node.op
    title = f"{op} {', '.join(order.frame.values[model_of(order.node)] for order in orders)}"
    works = dispatch.works.setdefault(step, {})
    for who, parcel, receipts in zip(calls.asked, parcels, answers, strict=True):
        dispatch.note(receipts)
        for address, own in zip(who, receipts, strict=True):
            made = [told.size for receipt in own for told in receipt.rows]
            rows = max([*(told.size for each in parcel.parts for told in each.delivery.rows), *made], default=0)
            start, end = own[0].start, max(receipt.end for receipt in own)
            work = dispatch.observer.span(
                parcel.group.pool, f"{parcel.group.name} {address[1]}", title, op, start, end, rows=rows, tokens=0
            )
            for at, each, receipt in zip(parcel.at, parcel.parts, own, strict=True):
                works[address, numbers[at]] = work
                for source, came in zip(each.delivery.senders(), receipt.came, strict=True):
                    if source in works:
                        dispatch.observer.flow(works[source], work, "rows", came)
