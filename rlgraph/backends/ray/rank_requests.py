"""The work that one rank does request by request, on the rows and models that it has."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, cast

import torch

from rlgraph.backends.engines.records import Admission, PartialRow
from rlgraph.backends.engines.roles import AdmitsCalls
from rlgraph.backends.frame import Frame, NodeOutput
from rlgraph.backends.hard.process import HardProcess
from rlgraph.backends.ray.arrivals import RequestArrivalTracker
from rlgraph.backends.ray.failures import work_phrase
from rlgraph.backends.ray.piece_store import Wire, as_array, from_wire, wire_bytes
from rlgraph.backends.ray.rank_rows import RankRows
from rlgraph.backends.ray.requests import RankRequest, Receipt, pickle_message, unpickle_request
from rlgraph.backends.ray.time_sharing import PipelineSeat, PipelineTurns
from rlgraph.backends.step import Step
from rlgraph.backends.trace_notes import TraceNote
from rlgraph.backends.worker.memory import peak_memory_bytes
from rlgraph.backends.worker.nodes import run_node
from rlgraph.backends.worker.row_choice import chosen_row_indices
from rlgraph.backends.worker.sampling import longest_answer_lengths, run_generate_in_parts, sampled_token_count
from rlgraph.backends.worker.training import TRAINING, run_fused_trainings
from rlgraph.errors import quoted_list
from rlgraph.ir.graph import Node, Program
from rlgraph.ops.nodes import NODES, model_of


@dataclass(frozen=True)
class NodeProgress:
    """How far a process is with the work of a node."""

    node: int
    counts: tuple[int, int, int]
    """What is done, of how much, and the tokens that were made."""
    unit: str
    """What is counted: "row", "micro-batch"."""


class RankRequests(RankRows):
    """Does the requests of one rank."""

    hard: HardProcess | None
    """What it is on hard devices; None where the run asks for none."""

    def __init__(self, program: Program, rank: int, seconds: float, saves: bool) -> None:
        super().__init__(program, rank, seconds, saves)
        self.parts: dict[int, Iterator[Receipt]] = {}
        """For each request by number, the receipts of parts that it has not reported yet."""
        self.begun: dict[int, Sequence[PartialRow]] = {}
        """For each request by number, what others have made of its rows."""
        self.given_up: dict[int, Mapping[int, Sequence[PartialRow]]] = {}
        """For each request by number, what there is of the parts that it gave up."""
        self.came = RequestArrivalTracker()
        self.besides: dict[str, PipelineTurns] = {}
        """For each link, how this process takes turns with others in a shared pipeline."""
        self._working: int | None = None
        """The node of the last request that was begun."""
        self._done: NodeProgress | None = None

    def node_progress(self) -> NodeProgress | None:
        """Return how much of its present node's work this process has done (rows, micro-batches, tokens); None
        before any. Answered while it works."""
        return self._done

    def _count_work(self, done: int, total: int, unit: str, tokens: int) -> None:
        if self._working is not None:
            self._done = NodeProgress(self._working, (done, total, tokens), unit)

    def run_packed_request(self, order: bytes, *arrived: Wire) -> bytes:
        """Do a node's work, by a packed request, and return a packed receipt. arrived: the rows that were not here
        yet."""
        request = unpickle_request(order)
        with self.doing(work_phrase(self.nodes[request.node][1])):
            return pickle_message(self.do_request(request, *arrived))

    def sample_rows(self, model: str, order: bytes, *arrived: Wire) -> bytes:
        """Do a request whose rows are sampled together with those of other requests, by `sample_shared_batch`, and
        return a packed receipt."""
        request = unpickle_request(order)
        try:
            with self.doing(f"the rows of {work_phrase(self.nodes[request.node][1])}"):
                self.came.wait_until_arrived(request.after_request)
                return pickle_message(self.do_request(request, *arrived))
        except BaseException:
            self.parts.pop(request.number, None)
            raise
        finally:
            self.came.note_arrived(request.number)
            self.dismiss_finished_request(request.number, model)

    def continue_rows(self, model: str, order: bytes, before: Sequence[int], sources: int, *given: Any) -> bytes:
        """Do a request for rows that other processes have begun, sampled together with others, and return a packed
        receipt. before: the number that each part had there; given: what they have made of their parts, by these
        numbers, followed by the rows that were not here yet."""
        request, rows_of_part = unpickle_request(order), dict[int, Sequence[PartialRow]]()
        for rows_of_source in given[:sources]:
            rows_of_part |= rows_of_source
        self.begun[request.number] = [row for number in before for row in rows_of_part[number]]
        return self.sample_rows(model, order, *given[sources:])

    def give_up_rows(self, number: int, model: str) -> None:
        """Have a request that is sampled with others give up its unfinished rows, and report their parts."""
        self.admitting_engine(model).give_up_rows(number)

    def give_up_longer_rows(self, number: int, model: str, tokens: int) -> None:
        """Have a request that is sampled with others give up its unfinished rows of at least so many tokens, which
        nobody wants."""
        self.admitting_engine(model).give_up_longer_rows(number, tokens)

    def abandoned_parts(self, number: int) -> Mapping[int, Sequence[PartialRow]]:
        """Return what there is of the parts that a request has given up, by their numbers."""
        return self.given_up.pop(number)

    def next_sampled_part(self, number: int, model: str) -> bytes:
        """Go on with a request that is sampled with others until its next part is done, and return a packed receipt."""
        try:
            return self.next_part(number)
        finally:
            self.dismiss_finished_request(number, model)

    def dismiss_finished_request(self, number: int, model: str) -> None:
        """Take a request that has reported everything out of the sampling."""
        if number not in self.parts:
            self.admitting_engine(model).dismiss_call(number)

    def sample_shared_batch(self, number: int, model: str, version: int | None) -> None:
        """Sample the rows of a request, and those of others that join, until this request's rows have ended.
        version: of the weights at the time of the request, where newer ones may arrive meanwhile."""
        if version is not None:
            self.arrivals[model].begin_sampling(version)
        with torch.no_grad(), self.doing(f"the sampling of `{model}`"):
            self.admitting_engine(model).sample_until_call_done(number)

    def admitting_engine(self, model: str) -> AdmitsCalls:
        return cast(AdmitsCalls, self.session.models[model].engine)

    def take_pipeline_seat(self, link: str, seat: PipelineSeat, places: int) -> None:
        """Take a seat in a pipeline shared with the processes of a link, of which there are `places`."""
        self.besides[link] = PipelineTurns(self.links.mailbox(link), seat, places)

    def train_fused(
        self, orders: Sequence[bytes], sizes: Sequence[int], link: str | None, *arrived: Wire
    ) -> list[bytes]:
        """Do trainings that share a pipeline, and return a packed receipt for each. sizes: how many of the arrived
        parcels are for each request. link: to processes of heterogeneously split models, if any."""
        start, wires = time.time(), iter(arrived)
        requests = [unpickle_request(order_bytes) for order_bytes in orders]
        came = [
            self.store_arrived(order, [*islice(wires, count)]) for order, count in zip(requests, sizes, strict=True)
        ]
        nodes = [self.nodes[order.node][1] for order in requests]
        frames = [self.request_frame(self.nodes[order.node][0], order) for order in requests]
        beside = None if link is None else self.besides[link]
        with torch.no_grad(), self.doing(f"the training of {quoted_list([node.name for node in nodes], 'and')}"):
            made = run_fused_trainings(nodes, frames, self.session, [order.idle for order in requests], beside)
        for node, frame in zip(nodes, frames, strict=True):
            self.count_optimizer_step(frame.values[model_of(node)])
        notes = self.session.notes.pop_notes(requests[0].step.number)
        # All ranks have noted what a model is trained on, and the one with its results reports it.
        away = {
            node.region.inputs[0].name for node, order in zip(nodes, requests, strict=True) if not order.returns_results
        }
        notes = tuple(note for note in notes if note.node not in away)
        receipts = []
        for order, node, frame, result, sent in zip(requests, nodes, frames, made, came, strict=True):
            receipts.append(
                self.make_receipt(order.number, order.returns_results, node, frame, result, start, sent, notes)
            )
            notes = () if order.returns_results else notes
        return [pickle_message(receipt) for receipt in receipts]

    def store_arrived(self, order: RankRequest, arrived: Sequence[Wire]) -> tuple[int, ...]:
        """Store the rows that were not here yet, and return how many bytes each sender sent."""
        came = tuple(sum(wire_bytes(sent) for _, _, sent in wire) for wire in arrived)
        for wire in arrived:
            for key, places, sent in wire:
                self.store.store_received(order.step.number, key, as_array(places), from_wire(sent))
        self.came.note_arrived(order.number)
        return came

    def do_request(self, order: RankRequest, *arrived: Wire) -> Receipt:
        """Do a request."""
        start = time.time()
        came = self.store_arrived(order, arrived)
        phase, node = self.nodes[order.node]
        self._working, self._done = order.node, None
        frame = self.request_frame(phase, order)
        session = self.session
        with torch.no_grad():
            if NODES[node.op].chooses is not None:
                chosen = chosen_row_indices(node, frame, session)
                return Receipt(
                    start,
                    time.time(),
                    chosen_rows=chosen,
                    received_bytes=came,
                    notes=self.take_step_notes(order.step, order.returns_results),
                )
            if NODES[node.op].weighs:
                numbers = run_node(node, frame, session).values[node.name]
                return Receipt(start, time.time(), row_loads=numbers, received_bytes=came)
            if order.parts:
                parts = self.run_in_parts(order, node, frame, start, came)
                if order.returns_results:
                    self.parts[order.number] = parts
                    return next(parts)
                *_, last = parts
                return replace(last, start=start, received_bytes=came)
            if node.op in TRAINING:
                made = TRAINING[node.op](node, frame, session, idle=order.idle)
                if NODES[node.op].updates:
                    self.count_optimizer_step(frame.values[model_of(node)])
            else:
                self.allow_newer_weights(order, node, frame)
                made = run_node(node, frame, session)
        return self.make_receipt(order.number, order.returns_results, node, frame, made, start, came)

    def next_part(self, number: int) -> bytes:
        """Go on with a request until its next part is done, and return a packed receipt."""
        try:
            with torch.no_grad(), self.doing("the next rows of what it samples"):
                return pickle_message(next(self.parts[number]))
        except BaseException:
            del self.parts[number]
            raise

    def run_in_parts(
        self, order: RankRequest, node: Node, frame: Frame, start: float, came: tuple[int, ...]
    ) -> Iterator[Receipt]:
        """Yield a receipt for each part of a request as it is done, and one for the parts that were given up."""
        sizes = [rows for _, rows in order.parts]
        self.allow_newer_weights(order, node, frame)
        for done, (part, rows, made) in enumerate(run_generate_in_parts(node, frame, self.session, sizes), start=1):
            if done == len(sizes):
                self.parts.pop(order.number, None)
            part_frame, number = Frame(frame.types, order.step, admission=frame.admission), order.parts[part][0]
            part_frame.add_rows(rows)
            receipt = self.make_receipt(number, order.returns_results, node, part_frame, made, start, came)
            longest = longest_answer_lengths(node, made) if order.reports_lengths else ()
            yield replace(receipt, part=part, longest_answers=longest)
            start, came = time.time(), ()
        if frame.admission is not None and frame.admission.rows_given_up:
            left = frame.admission.rows_given_up
            self.parts.pop(order.number, None)
            if order.returns_results:
                self.given_up[order.number] = {order.parts[part][0]: rows for part, rows in left.items()}
            yield Receipt(start, time.time(), received_bytes=came, abandoned_parts=tuple(left))

    def allow_newer_weights(self, order: RankRequest, node: Node, frame: Frame) -> None:
        """Let newer weights arrive while a request is done, if it says so."""
        if order.refreshes:
            frame.refresh = self.arrivals[frame.values[model_of(node)]]
            if order.shares_batch is None:
                assert order.version is not None
                frame.refresh.begin_sampling(order.version)

    def make_receipt(
        self,
        number: int,
        keeps: bool,
        node: Node,
        frame: Frame,
        made: NodeOutput,
        start: float,
        came: tuple[int, ...],
        notes: tuple[TraceNote, ...] | None = None,
    ) -> Receipt:
        """Return a receipt. notes: those on its rows; None takes all of the step."""
        tokens = sampled_token_count(node, made)
        if notes is None:
            notes = self.take_step_notes(frame.step, keeps)
        failures = self.session.failures.pop_new()
        if not keeps:
            peak = self.peak_bytes()
            return Receipt(start, time.time(), tokens=tokens, received_bytes=came, peak_bytes=peak, failures=failures)
        rows, named, sizes, tokens_of_rows = self.store_outputs(number, node, frame, made)
        receipt = Receipt(
            start,
            time.time(),
            rows,
            named,
            sizes,
            tokens_of_rows,
            metrics=made.metrics,
            mismatches=made.mismatches,
            tokens=tokens,
            received_bytes=came,
            notes=notes,
            peak_bytes=self.peak_bytes(),
            failures=failures,
        )
        return replace(receipt, other_rows=frame.admission.concurrent_calls) if frame.admission else receipt

    def peak_bytes(self) -> int:
        """Return the most bytes that this process has had on its device."""
        return peak_memory_bytes() if self.hard is None else self.hard.peak_bytes

    def take_step_notes(self, step: Step, keeps: bool) -> tuple[TraceNote, ...]:
        """Return the notes that were made for a step, on the rank that reports for its replica."""
        notes = self.session.notes.pop_notes(step.number)
        return notes if keeps else ()

    def request_frame(self, phase: str, order: RankRequest) -> Frame:
        """Return a frame with the rows and values that a request names."""
        admission = None
        if order.shares_batch is not None:
            begun = self.begun.pop(order.number, None)
            admission = Admission(
                order.number, order.shares_batch, may_be_given_up=bool(order.parts), partial_rows=begun
            )
        frame = Frame(self.types[phase], order.step, version=order.version, admission=admission)
        frame.other_versions = order.other_versions
        return self.fill_frame(frame, order)
