"""Sends the work of nodes to the processes of a group, and puts their results together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from rlgraph.backends.device_queues import DeviceQueues
from rlgraph.backends.distributed.sharding import RequestNeeds, request_needs, shard_rows
from rlgraph.backends.distributed.transport import NodeRequest
from rlgraph.backends.frame import Frame, NodeOutput
from rlgraph.backends.ray.batching import BatchPlace, SharedBatches
from rlgraph.backends.ray.calls import Calls, Copy, replicas_of
from rlgraph.backends.ray.failures import work_phrase
from rlgraph.backends.ray.lost_replicas import LostReplicas
from rlgraph.backends.ray.offload import OffloadCoordinator
from rlgraph.backends.ray.processes import Losing, Processes, Reference
from rlgraph.backends.ray.requests import ControllerValue, RankRequest, Receipt, pickle_message, unpickle_receipt
from rlgraph.backends.ray.row_ledger import Delivery, RowLedger
from rlgraph.backends.ray.row_refs import Address, PieceRef, RowRefs, ValueRef
from rlgraph.backends.ray.worker import Worker
from rlgraph.backends.rows import Rows
from rlgraph.backends.step import Step
from rlgraph.backends.steps import Observer
from rlgraph.backends.trace_notes import TraceNotes
from rlgraph.backends.worker.first_failures import FirstFailures
from rlgraph.ir.graph import Node, Program, program_axes
from rlgraph.ir.mesh import Mesh
from rlgraph.ir.plan import Group, Plan
from rlgraph.ir.types import StateHandle, is_model
from rlgraph.ops.nodes import NODES, model_of

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class RankMessage:
    """Rows that go to one rank, or to some ranks, of a replica."""

    copy: Copy
    ranks: tuple[Address, ...]
    """The ranks that get them."""
    returns_results: bool
    """Whether they are for the rank that returns the results."""
    delivery: Delivery


@dataclass(frozen=True)
class AbandonedParts:
    """Parts of a request that other replicas have begun and given up."""

    old_part_numbers: tuple[int, ...]
    """The number that each part had there."""
    partial_rows: tuple[Reference[Any], ...]
    """What each of these replicas has made of its parts."""


class Dispatcher:
    """Sends requests to processes and reads their receipts."""

    def __init__(
        self,
        program: Program,
        plan: Plan,
        processes: Processes,
        queues: DeviceQueues,
        observer: Observer,
        notes: TraceNotes,
        sleeping: OffloadCoordinator,
        losses: LostReplicas,
    ) -> None:
        self.losses = losses
        self.plan, self.sleeping = plan, sleeping
        self.processes, self.queues, self.observer, self.notes = processes, queues, observer, notes
        self.failures = FirstFailures(prints=True)
        self.ledger = RowLedger(processes)
        self.axes = program_axes(program)
        self.together = SharedBatches(processes)
        self.links: dict[tuple[str, ...], dict[tuple[str, int], str]] = {}
        """For groups that share a pipeline: by group and replica, the link over which its processes take turns."""
        self._number, self._counting = 0, threading.Lock()
        self._copies: dict[tuple[str, Mesh], tuple[Copy, ...]] = {}
        self._alike: dict[tuple[str, Mesh], tuple[list[tuple[Address, ...]], ...]] = {}
        self.works: dict[int, dict[tuple[Address, int], int]] = {}
        """For each step in flight, by process and request number, the observer's id of the work."""

    def run_request(self, order: NodeRequest) -> NodeOutput:
        """Run a node: each data-parallel replica of the group does its shard of the rows, or one replica does all; with
        user code, a rank that is free does."""
        node, group, copy = order.node, order.group, order.copy
        if group.code:
            with self.queues.acquire_cpu(group.pool, order.step.number) as free:
                number, receipts = self._sent(order, {free: order.frame})
            return self.as_references(node, number, receipts[free], (group.name, free))
        if copy is not None:
            number, receipts = self.send_and_wait(order, {copy: order.frame})
            return self.as_references(node, number, receipts[copy], self.result_rank(order, copy))
        shared = shard_rows(order, self.axes, self.losses.living_replicas(group))
        number, receipts = self.send_and_wait(order, shared.frames)
        made = dict[int, NodeOutput]()
        for index, frame in sorted(shared.frames.items()):
            if index in receipts:
                made[index] = self.as_references(node, number, receipts[index], self.result_rank(order, index))
            elif frame is not None:
                # The replica was lost: the others do its rows.
                made[index] = self.run_request(replace(order, frame=frame))
                self.losses.note_retried(order.step)
        return shared.merge_outputs(made)

    def forget_step(self, step: Step) -> None:
        """Forget a step that has ended."""
        self.ledger.forget_step(step)
        self.works.pop(step.number, None)

    def choose_rows(self, order: NodeRequest) -> np.ndarray:
        _, receipts = self.send_and_wait(order, {0: order.frame})
        chosen = receipts[0].chosen_rows
        assert chosen is not None
        return chosen

    def row_loads(self, order: NodeRequest) -> Sequence[float]:
        if order.group.code:
            with self.queues.acquire_cpu(order.group.pool, order.step.number) as free:
                _, receipts = self._sent(order, {free: order.frame})
        else:
            free = 0
            _, receipts = self.send_and_wait(order, {0: order.frame})
        numbers = receipts[free].row_loads
        assert numbers is not None
        return numbers

    def send_and_wait(self, order: NodeRequest, frames: Mapping[int, Frame | None]) -> tuple[int, dict[int, Receipt]]:
        """Send replicas of a group their rows and wait. Return the number of the request, and the receipt of each
        replica.

        A replica without a frame takes part in an update without adding anything to it.
        """
        with self.queues.acquire_devices(order.devices, rank=order.step.number, key=order.weights_key):
            return self._sent(order, frames)

    def _sent(self, order: NodeRequest, frames: Mapping[int, Frame | None]) -> tuple[int, dict[int, Receipt]]:
        """Do the same where the turn of the pool, or a place in it, is already taken."""
        node, group = order.node, order.group
        copies, wanted = self.living_replicas(group), self.needs_of_request(order)
        self.sleeping.switch_models(order.offload_change, node, order.step)
        calls = Calls[bytes](self.processes)
        with self.together.queue_request(order, [copies[copy] for copy in frames]) as place:
            with place.call_lock:
                [number] = self.new_request_numbers(1)
                sent = [
                    (copy, frame is None, message)
                    for copy, frame in frames.items()
                    for message in self.messages_for_replica(order, copy, frame, wanted)
                ]
                self.ledger.pack_missing_rows([message.delivery for *_, message in sent])
                self.observer.node_started(node, group.pool)
                began = time.perf_counter()
                for copy, idle, message in sent:
                    keeps = message.returns_results and not idle
                    after = place.joined_request_number(copies[copy])
                    request = self.make_rank_request(order, copy, number, message.delivery, keeps, after, idle=idle)
                    self.send_request(calls, order, message, request)
                for copy in frames:
                    calls.beside += self.start_sampling(order, copy, number, place)
            self.mark_sent(order)
            began += wait_for_weights(order)
            asked = calls.asked
            answers = self.wait_for_receipts(calls, node, self.lost_process_handler(order))
        seconds = time.perf_counter() - began
        if len(calls.asked) < len(asked):
            sent = [message for message, who in zip(sent, asked, strict=True) if who in calls.asked]
        receipts = {
            copy: rank_receipts[0]
            for (copy, idle, message), rank_receipts in zip(sent, answers, strict=True)
            if message.returns_results and not idle
        }
        self.trace_request(order, number, calls, [message.delivery for *_, message in sent], answers)
        tokens = sum(receipt.tokens for receipt in receipts.values())
        self.observer.node_done(node, seconds, tokens, group.pool)
        return number, receipts

    def call_ranks(
        self,
        calls: Calls[T],
        sent: RankMessage,
        method: Callable[Concatenate[Worker, P], T],
        *args: P.args,
        **named: P.kwargs,
    ) -> None:
        leader = sent.copy[0]
        if sent.ranks == (leader,):
            calls.call_one(leader, method, *args, **named)
        else:
            calls.call_other_ranks((leader, sent.ranks), method, *args, **named)

    def send_request(
        self,
        calls: Calls[bytes],
        order: NodeRequest,
        sent: RankMessage,
        told: RankRequest,
        begun: AbandonedParts | None = None,
    ) -> None:
        """Send ranks a request; for rows that others have begun, with what these have made of them."""
        if begun is not None:
            begun_rows = (
                begun.old_part_numbers,
                len(begun.partial_rows),
                *begun.partial_rows,
                *sent.delivery.packed_rows,
            )
            self.call_ranks(calls, sent, Worker.continue_rows, sampling_model(order), pickle_message(told), *begun_rows)
        elif order.weights_key is None:
            self.call_ranks(calls, sent, Worker.run_packed_request, pickle_message(told), *sent.delivery.packed_rows)
        else:
            self.call_ranks(
                calls, sent, Worker.sample_rows, sampling_model(order), pickle_message(told), *sent.delivery.packed_rows
            )

    def start_sampling(self, order: NodeRequest, copy: int, number: int, place: BatchPlace) -> list[Reference[Any]]:
        """Start the sampling of a replica's request, if it is sampled together with others."""
        if order.weights_key is None:
            return []
        calls, ranks = Calls[None](self.processes), self.living_replicas(order.group)[copy]
        version = _version(order, copy) if order.refresh_state is not None else None
        calls.call_replica(ranks, Worker.sample_shared_batch, number, sampling_model(order), version)
        place.note_sent(ranks, number)
        return calls.answers

    def lost_process_handler(self, order: NodeRequest) -> Losing | None:
        """Return what to do with processes that end during a request, or None if the run cannot go on without them."""
        if order.group.mesh.axis_size("dp") == 1:
            return None
        return self.losses.lost_process_handler(
            order, lambda: [who for works in [*self.works.values()] for who, _ in [*works]]
        )

    def wait_for_receipts(self, calls: Calls[bytes], node: Node, losing: Losing | None = None) -> list[list[Receipt]]:
        receipts = [
            [unpickle_receipt(sent) for sent in answers] for answers in calls.get(work_phrase(node), node, losing)
        ]
        self.record_notes(receipts)
        return receipts

    def record_notes(self, answers: Sequence[Sequence[Receipt]]) -> None:
        """Record what processes report about rows, and say what failed first."""
        self.failures.add(failure for receipts in answers for receipt in receipts for failure in receipt.failures)
        self.notes.add_notes(note for receipts in answers for receipt in receipts for note in receipt.notes)

    def mark_sent(self, order: NodeRequest) -> None:
        """Mark a request as sent: from now on newer weights may arrive."""
        if order.refresh_state is not None and not order.refresh_state.sent.done():
            order.refresh_state.sent.set_result(None)

    def living_replicas(self, group: Group) -> tuple[Copy, ...]:
        key = group.name, group.mesh
        if key not in self._copies:
            self._copies[key] = replicas_of(group)
        return self._copies[key]

    def result_rank(self, order: NodeRequest, copy: int) -> Address:
        """Return the rank of a replica that has a request's results: the leader, unless the model's stages are
        reversed."""
        group = order.group
        kind = order.frame.types[model_of(order.node)] if NODES[order.node.op].uses_model else None
        turned = isinstance(kind, StateHandle) and self.plan.has_reversed_stages(kind.name, group.name)
        return group.name, group.result_rank(copy, turned)

    def ranks_by_missing_rows(self, group: Group, copy: int) -> list[tuple[Address, ...]]:
        """Split a replica into ranks that always lack the same rows: each that returns results of some model by itself,
        and all others. The leader comes first."""
        key = group.name, group.mesh
        if key not in self._alike:
            orientations = {False, *(self.plan.has_reversed_stages(model, group.name) for model in group.models)}
            splits = []
            for index, (leader, others) in enumerate(self.living_replicas(group)):
                speakers = dict.fromkeys(
                    [leader, *((group.name, group.result_rank(index, turned)) for turned in sorted(orientations))]
                )
                rest = tuple(who for who in others if who not in speakers)
                splits.append([*((who,) for who in speakers), *([rest] if rest else [])])
            self._alike[key] = tuple(splits)
        return self._alike[key][copy]

    def make_rank_request(
        self,
        order: NodeRequest,
        copy: int,
        number: int,
        delivery: Delivery,
        keeps: bool,
        after: int | None,
        *,
        idle: bool = False,
        parts: tuple[tuple[int, int], ...] = (),
    ) -> RankRequest:
        """Return a request for ranks of a replica."""
        assert order.node.id is not None
        return RankRequest(
            number,
            order.node.id,
            order.step,
            delivery.inputs,
            delivery.rows,
            idle,
            keeps,
            _version(order, copy),
            order.refresh_state is not None,
            None if after is None else after > 0,
            after or 0,
            parts,
            order.wanted_row_count is not None,
            order.other_versions,
        )

    def needs_of_request(self, order: NodeRequest) -> RequestNeeds:
        """Return what a request needs, whichever replica does it."""
        return request_needs(order.node, order.frame, self.axes, notes=self.notes.wanted)

    def new_request_numbers(self, count: int) -> list[int]:
        """Return numbers for `count` new requests."""
        with self._counting:
            self._number += count
            return list(range(self._number - count + 1, self._number + 1))

    def trace_request(
        self,
        order: NodeRequest,
        number: int,
        calls: Calls[bytes],
        deliveries: Sequence[Delivery],
        answers: Sequence[Sequence[Receipt]],
    ) -> None:
        """Tell the observer which process worked when, and where its rows came from."""
        node, group, works = order.node, order.group, self.works.setdefault(order.step.number, {})
        draws, peaks, received_bytes = self.observer.draws_timeline, dict[str, int](), 0
        for who, delivery, receipts in zip(calls.asked, deliveries, answers, strict=True):
            senders, rows = delivery.senders() if draws else (), 0
            if draws:
                made = [axis_rows for receipt in receipts for axis_rows in receipt.rows]
                rows = max((axis_rows.row_count for axis_rows in (*delivery.rows, *made)), default=0)
            for address, answer in zip(who, receipts, strict=True):
                process = f"{group.name} {address[1]}"
                peaks[process] = answer.peak_bytes
                received_bytes += sum(answer.received_bytes)
                works[address, number] = 0
                if not draws:
                    continue
                beside = {"beside": answer.other_rows} if answer.other_rows else {}
                work = self.observer.add_span(
                    group.pool,
                    process,
                    node.name,
                    node.op,
                    answer.start,
                    answer.end,
                    rows=rows,
                    tokens=answer.tokens,
                    **beside,
                )
                works[address, number] = work
                for source, size_bytes in zip(senders, answer.received_bytes, strict=True):
                    if source in works:
                        self.observer.add_flow(works[source], work, "rows", size_bytes)
        self.observer.processes_worked(node, group.pool, received_bytes, peaks)

    def messages_for_replica(
        self, order: NodeRequest, copy: int, frame: Frame | None, wanted: RequestNeeds
    ) -> Iterator[RankMessage]:
        """Yield the rows for each part of a replica: a rank with results has its own already, all the others lack the
        same."""
        node, alike = order.node, self.ranks_by_missing_rows(order.group, copy)
        if frame is None:
            # An idle replica only needs to know the model.
            deliveries = [Delivery({node.inputs[0]: ControllerValue(_trained_model(node))}, ())] * len(alike)
        else:
            deliveries = self.ledger.plan_deliveries([first for first, *_ in alike], frame, wanted)
        speaker, ranks = self.result_rank(order, copy), self.living_replicas(order.group)[copy]
        for to, delivery in zip(alike, deliveries, strict=True):
            yield RankMessage(ranks, to, to == (speaker,), delivery)

    def as_references(self, node: Node, number: int, receipt: Receipt, holder: Address) -> NodeOutput:
        """Return what a process made, as references."""
        rows = []
        for axis_rows in receipt.rows:
            ids = None
            if axis_rows.axis in receipt.axes_with_ids:
                ids = RowRefs.from_whole_piece(
                    PieceRef((number, holder[1], f"ids:{axis_rows.axis}"), holder, axis_rows.row_count)
                )
            parent = (
                None
                if axis_rows.rows_per_parent is None
                else np.repeat(np.arange(len(axis_rows.rows_per_parent)), axis_rows.rows_per_parent)
            )
            rows.append(Rows(self.axes[axis_rows.axis], axis_rows.row_count, parent, ids))
        values: dict[str, Any] = {}
        for value in node.outputs:
            if is_model(value.type):
                values[value.name] = value.type.name
                continue
            size = receipt.row_counts[value.name]
            tokens = receipt.token_counts.get(value.name)
            ref = PieceRef((number, holder[1], value.name), holder, size or 0, tokens)
            values[value.name] = ValueRef(ref) if size is None else RowRefs.from_whole_piece(ref)
        return NodeOutput(values, rows, receipt.metrics, receipt.mismatches)


def _version(order: NodeRequest, copy: int) -> int | None:
    """Return the version of the weights that a replica samples with."""
    return order.version if order.refresh_state is None else order.refresh_state.versions.get(copy, order.version)


def _trained_model(node: Node) -> str:
    """Return the name of the model that a node trains."""
    kind = node.region.inputs[0].type
    assert isinstance(kind, StateHandle)
    return kind.name


def wait_for_weights(order: NodeRequest) -> float:
    """Wait for the weights that were sent before a request, and return the seconds that this took."""
    began = time.perf_counter()
    order.wait_for_arrival()
    return time.perf_counter() - began


def sampling_model(order: NodeRequest) -> str:
    """Return the name of the model that samples."""
    name: str = order.frame.values[model_of(order.node)]
    return name
