"""Runs trainings that share the stages of a pipeline as one piece of work, with one call to each process."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rlgraph.backends.distributed.sharding import shard_rows
from rlgraph.backends.distributed.transport import NodeRequest
from rlgraph.backends.frame import NodeOutput
from rlgraph.backends.ray.calls import Calls
from rlgraph.backends.ray.dispatch import Dispatcher, RankMessage
from rlgraph.backends.ray.failures import CallContext
from rlgraph.backends.ray.requests import Receipt, pickle_message, unpickle_receipt
from rlgraph.backends.ray.time_sharing import pipeline_seats
from rlgraph.backends.ray.transfers import join_link
from rlgraph.backends.ray.worker import Worker
from rlgraph.errors import quoted_list
from rlgraph.ir.plan import Group
from rlgraph.ops.nodes import model_of


@dataclass(frozen=True, slots=True)
class _Parcel:
    """What is sent to some ranks of a replica."""

    group: Group
    copy: int
    at: tuple[int, ...]
    """The indices of the requests of this group."""
    parts: tuple[RankMessage, ...]
    """The rows for each of these requests."""


def run_fused_trainings(dispatch: Dispatcher, orders: Sequence[NodeRequest]) -> list[NodeOutput]:
    """Do requests as one, for one group or for several whose processes take turns. Return what each request made."""
    first = orders[0]
    step = first.step
    with dispatch.queues.acquire_devices(first.devices, rank=step.number):
        for order in orders:
            dispatch.sleeping.switch_models(order.offload_change, order.node, step)
        links = _links(dispatch, orders)
        split = [shard_rows(order, dispatch.axes) for order in orders]
        numbers = dispatch.new_request_numbers(len(orders))
        parcels: list[_Parcel] = []
        for group, at in _by_group(orders):
            for copy in range(group.mesh.axis_size("dp")):
                addressed = [
                    dispatch.messages_for_replica(
                        orders[index], copy, split[index].frames[copy], dispatch.needs_of_request(orders[index])
                    )
                    for index in at
                ]
                parcels += [_Parcel(group, copy, at, parts) for parts in zip(*addressed, strict=True)]
        dispatch.ledger.pack_missing_rows([sent.delivery for parcel in parcels for sent in parcel.parts])
        for order in orders:
            dispatch.observer.node_started(order.node, order.group.pool)
        began, calls = time.perf_counter(), Calls[list[bytes]](dispatch.processes)
        for parcel in parcels:
            requests = []
            for index, sent in zip(parcel.at, parcel.parts, strict=True):
                idle = split[index].frames[parcel.copy] is None
                keeps = sent.returns_results and not idle
                to_rank = orders[index], parcel.copy, numbers[index], sent.delivery
                requests.append(pickle_message(dispatch.make_rank_request(*to_rank, keeps, None, idle=idle)))
            sizes = [len(sent.delivery.packed_rows) for sent in parcel.parts]
            arriving = [wire for sent in parcel.parts for wire in sent.delivery.packed_rows]
            link = links.get((parcel.group.name, parcel.copy))
            dispatch.call_ranks(calls, parcel.parts[0], Worker.train_fused, requests, sizes, link, *arriving)
        for order in orders:
            order.wait_for_arrival()
        names = [order.frame.values[model_of(order.node)] for order in orders]
        replies = calls.get(f"the training of {quoted_list(names, 'and')}", first.node)
        seconds = time.perf_counter() - began
    answers = [[[unpickle_receipt(sent) for sent in rank_reply] for rank_reply in reply] for reply in replies]
    _trace(dispatch, orders, numbers, calls, parcels, answers)
    made: list[dict[int, NodeOutput]] = [{} for _ in orders]
    for parcel, receipts in zip(parcels, answers, strict=True):
        for position, (index, sent) in enumerate(zip(parcel.at, parcel.parts, strict=True)):
            if sent.returns_results and split[index].frames[parcel.copy] is not None:
                speaker = dispatch.result_rank(orders[index], parcel.copy)
                made[index][parcel.copy] = dispatch.as_references(
                    orders[index].node, numbers[index], receipts[0][position], speaker
                )
    for order in orders:
        dispatch.observer.node_done(order.node, seconds, 0, order.group.pool)
    return [shared.merge_outputs(by_copy) for shared, by_copy in zip(split, made, strict=True)]


def _by_group(orders: Sequence[NodeRequest]) -> Iterator[tuple[Group, tuple[int, ...]]]:
    """Yield each group of the requests, with the indices of its requests."""
    groups = {order.group.name: order.group for order in orders}
    for name, group in groups.items():
        yield group, tuple(index for index, order in enumerate(orders) if order.group.name == name)


def _links(dispatch: Dispatcher, orders: Sequence[NodeRequest]) -> dict[tuple[str, int], str]:
    """Return, for each replica of heterogeneously split groups, the link over which its processes take turns with
    others. The processes are told their peers once."""
    groups = [group for group, _ in _by_group(orders)]
    if len(groups) == 1:
        return {}
    key = tuple(order.group.name for order in orders)
    if key not in dispatch.links:
        dispatch.links[key] = _joined(dispatch, orders, groups)
    return dispatch.links[key]


def _joined(dispatch: Dispatcher, orders: Sequence[NodeRequest], groups: Sequence[Group]) -> dict[tuple[str, int], str]:
    """Have the processes of each block of stages meet, and tell each its place."""
    [number] = dispatch.new_request_numbers(1)
    splits = {group.name: group.mesh for group in groups}
    links: dict[tuple[str, int], str] = {}
    for block, seats in enumerate(pipeline_seats(groups, [order.group.name for order in orders])):
        link = f"pipeline {number}.{block} of {' and '.join(splits)}"
        request = CallContext(tuple(seats), f"the meeting for {link}", orders[0].node)
        join_link(dispatch.processes, link, request)
        sitting = [
            dispatch.processes.call(who, Worker.take_pipeline_seat, link, seat, len(seats))
            for who, seat in seats.items()
        ]
        dispatch.processes.get(sitting, request)
        links |= {(name, splits[name].axis_position(rank, "dp")): link for name, rank in seats}
    return links


def _trace(
    dispatch: Dispatcher,
    orders: Sequence[NodeRequest],
    numbers: Sequence[int],
    calls: Calls[list[bytes]],
    parcels: Sequence[_Parcel],
    answers: Sequence[Sequence[Sequence[Receipt]]],
) -> None:
    """Tell the observer of one piece of work of each process, and where its rows came from."""
    step, op = orders[0].step.number, orders[0].node.op
    title = f"{op} {', '.join(order.frame.values[model_of(order.node)] for order in orders)}"
    works = dispatch.works.setdefault(step, {})
    for who, parcel, receipts in zip(calls.asked, parcels, answers, strict=True):
        dispatch.record_notes(receipts)
        for address, rank_receipts in zip(who, receipts, strict=True):
            made = [axis_rows.row_count for receipt in rank_receipts for axis_rows in receipt.rows]
            rows = max(
                [*(axis_rows.row_count for sent in parcel.parts for axis_rows in sent.delivery.rows), *made], default=0
            )
            start, end = rank_receipts[0].start, max(receipt.end for receipt in rank_receipts)
            process = f"{parcel.group.name} {address[1]}"
            work = dispatch.observer.add_span(parcel.group.pool, process, title, op, start, end, rows=rows, tokens=0)
            for index, receipt in zip(parcel.at, rank_receipts, strict=True):
                dispatch.observer.processes_worked(
                    orders[index].node, parcel.group.pool, sum(receipt.received_bytes), {process: receipt.peak_bytes}
                )
            for index, sent, receipt in zip(parcel.at, parcel.parts, rank_receipts, strict=True):
                works[address, numbers[index]] = work
                for source, size_bytes in zip(sent.delivery.senders(), receipt.received_bytes, strict=True):
                    if source in works:
                        dispatch.observer.add_flow(works[source], work, "rows", size_bytes)
