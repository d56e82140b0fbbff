"""Does a request part by part on all replicas of a group, and moves its last rows to a few of them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from rlgraph.backends.device_queues import HeldDevices, device_set
from rlgraph.backends.distributed.length_limit import LengthLimit
from rlgraph.backends.distributed.row_balancing import blocks_by_replica
from rlgraph.backends.distributed.sharding import sharded_axis, slice_rows
from rlgraph.backends.distributed.tails import TailMoves
from rlgraph.backends.distributed.transport import NodeRequest
from rlgraph.backends.frame import Part
from rlgraph.backends.ray.batching import BatchPlace
from rlgraph.backends.ray.calls import Calls
from rlgraph.backends.ray.dispatch import AbandonedParts, Dispatcher, sampling_model, wait_for_weights
from rlgraph.backends.ray.processes import Reference
from rlgraph.backends.ray.requests import Receipt
from rlgraph.backends.ray.row_ledger import Delivery
from rlgraph.backends.ray.worker import Worker
from rlgraph.ops.nodes import rows_per_input

Asked = tuple[Calls[bytes], list[Delivery]]
"""Calls, and the rows that were sent with them."""


@dataclass(eq=False)
class _Share:
    """The parts that one replica does, and reports one after the other."""

    copy: int
    number: int
    """The number of its request."""
    parts: Sequence[int]
    """Their indices in the request."""
    coming: deque[Asked] = field(default_factory=deque)
    """The calls for each part not yet reported; only the first has any where parts are asked for one at a time."""
    silent: list[Asked] = field(default_factory=list)
    """Calls to the other ranks of the replica, whose results nobody reads: they answer at the end, or at once on
    failure."""


def run_in_parts(dispatch: Dispatcher, order: NodeRequest, sizes: Sequence[int]) -> Iterator[Part]:
    """Run a node part by part, with the parts distributed over the group's replicas."""
    with (
        dispatch.queues.acquire_devices(order.devices, rank=order.step.number, key=order.weights_key) as turn,
        ExitStack() as places,
    ):
        dispatch.sleeping.switch_models(order.offload_change, order.node, order.step)
        yield from PartwiseRequest(dispatch, order, sizes, turn, places).finished_parts()


class PartwiseRequest:
    """A request that is being done part by part."""

    def __init__(
        self, dispatch: Dispatcher, order: NodeRequest, sizes: Sequence[int], turn: HeldDevices, places: ExitStack
    ) -> None:
        self.dispatch, self.order, self.sizes, self.turn, self.places = dispatch, order, sizes, turn, places
        self.copies = dispatch.living_replicas(order.group)
        self.bounds = list(pairwise(accumulate(sizes, initial=0)))
        self.numbers = [0] * len(sizes)
        """The number that the pieces of each part carry."""
        self.going: list[_Share] = []
        self.leaving: list[int] = []
        """Replicas that were told to give up their rows and have not reported which parts."""
        self.dealt = blocks_by_replica(order.expected_lengths, sizes, len(self.copies))
        """The parts of each replica."""
        rows = [size * rows_per_input(order.node) for size in sizes]
        self.ending = TailMoves.for_request(order, turn, rows, self.dealt) if order.weights_key is not None else None
        self.race = None if order.wanted_row_count is None else LengthLimit(order.wanted_row_count)

    def finished_parts(self) -> Iterator[Part]:
        """Yield each part as soon as it is done."""
        dispatch, node = self.dispatch, self.order.node
        dispatch.observer.node_started(node, self.order.group.pool)
        began, tokens, done = time.perf_counter(), 0, 0
        busy = {copy: parts for copy, parts in enumerate(self.dealt) if parts}
        place = self.places.enter_context(
            dispatch.together.queue_request(self.order, [self.copies[copy] for copy in busy])
        )
        with place.call_lock:
            self.send_parts(busy, place)
        dispatch.mark_sent(self.order)
        began += wait_for_weights(self.order)
        while self.going:
            heads = [unfinished.coming[0][0] for unfinished in self.going]
            beside = [answer for calls in heads for answer in calls.beside]
            share = self.going[dispatch.processes.wait_for_first([calls.answers[0] for calls in heads], beside)]
            calls, deliveries = share.coming.popleft()
            answers = dispatch.wait_for_receipts(calls, node)
            # The rank with the results is asked first.
            receipt = answers[0][0]
            if receipt.abandoned_parts or not share.coming:
                self.finish_replica(share)
            if receipt.abandoned_parts:
                self.reassign_parts(share, receipt)
                continue
            index = share.parts[receipt.part]
            if share.coming and self.order.weights_key is not None:
                self.request_next_part(share)
            dispatch.trace_request(self.order, self.numbers[index], calls, deliveries, answers)
            tokens, done = tokens + receipt.tokens, done + self.sizes[index]
            dispatch.observer.node_progress(node, done, sum(self.sizes), "row", tokens, self.order.group.pool)
            if self.race is not None and self.race.note_ended_rows(receipt.longest_answers):
                self.send_token_limit([share for share in self.going if share.coming])
            if self.ending is not None:
                self.note_part_done(index)
            yield index, dispatch.as_references(node, self.numbers[index], receipt, calls.called_processes[0])
        dispatch.observer.node_done(node, time.perf_counter() - began, tokens, self.order.group.pool)

    def send_parts(
        self, shares: Mapping[int, Sequence[int]], place: BatchPlace, begun: AbandonedParts | None = None
    ) -> None:
        """Send replicas their parts."""
        dispatch, order = self.dispatch, self.order
        node, frame, wanted, axis = order.node, order.frame, dispatch.needs_of_request(order), sharded_axis(order.node)
        assert axis is not None
        numbers = dispatch.new_request_numbers(sum(map(len, shares.values())))
        for index in sorted(index for indices in shares.values() for index in indices):
            self.numbers[index] = numbers.pop(0)
        for copy, share_parts in shares.items():
            ranks = self.copies[copy]
            rows = np.concatenate([np.arange(*self.bounds[index]) for index in share_parts])
            body, _ = slice_rows(frame, axis, rows, node.inputs)
            parts = tuple((self.numbers[index], self.sizes[index]) for index in share_parts)
            sent = list(dispatch.messages_for_replica(order, copy, body, wanted))
            dispatch.ledger.pack_missing_rows([message.delivery for message in sent])
            share, after = _Share(copy, self.numbers[share_parts[0]], share_parts), place.joined_request_number(ranks)
            share.coming.extend((Calls[bytes](dispatch.processes), list[Delivery]()) for _ in share_parts)
            for message in sent:
                request = dispatch.make_rank_request(
                    order, copy, share.number, message.delivery, message.returns_results, after, parts=parts
                )
                calls, deliveries = (
                    share.coming[0] if message.returns_results else (Calls[bytes](dispatch.processes), [])
                )
                dispatch.send_request(calls, order, message, request, begun)
                deliveries.append(message.delivery)
                if not message.returns_results:
                    share.silent.append((calls, deliveries))
                    continue
                # A process works sequentially: it goes on after it has reported the part before. Parts that are
                # sampled together with others are not asked for in advance: a thread would wait for each.
                for calls, deliveries in list(share.coming)[1:]:
                    if order.weights_key is None:
                        dispatch.call_ranks(calls, message, Worker.next_part, share.number)
                    deliveries.append(Delivery(message.delivery.inputs, message.delivery.rows))
            watched = dispatch.start_sampling(order, copy, share.number, place)
            watched += [answer for calls, _ in share.silent for answer in calls.answers]
            for calls, _ in share.coming:
                calls.beside += watched
            self.going.append(share)

    def request_next_part(self, share: _Share) -> None:
        """Ask a replica for its next part."""
        calls, who = share.coming[0][0], self.copies[share.copy][0]
        calls.call_one(who, Worker.next_sampled_part, share.number, sampling_model(self.order))

    def finish_replica(self, share: _Share) -> None:
        """Finish a replica that has reported all of its parts."""
        self.going.remove(share)
        for calls, deliveries in share.silent:
            answers = self.dispatch.wait_for_receipts(calls, self.order.node)
            self.dispatch.trace_request(self.order, share.number, calls, deliveries, answers)

    def send_token_limit(self, shares: Sequence[_Share]) -> None:
        """Tell replicas to give up rows that reach the race's limit of tokens."""
        if self.race is None or self.race.token_limit is None:
            return
        calls, model = Calls[None](self.dispatch.processes), sampling_model(self.order)
        for share in shares:
            calls.call_replica(
                self.copies[share.copy], Worker.give_up_longer_rows, share.number, model, self.race.token_limit
            )
        calls.get("the rows that are too long", self.order.node)

    # The last rows

    def note_part_done(self, index: int) -> None:
        """Count a part as done; few enough rows may be left to move them to fewer replicas."""
        assert self.ending is not None
        freed = self.ending.drop_ended_block(index)
        if freed and self.dispatch.together.have_at_most_one_request(self.copies):
            self.ending.here = [copy for copy in self.ending.here if copy not in freed]
            calls = Calls[None](self.dispatch.processes)
            for share in self.going:
                if share.copy in freed:
                    self.leaving.append(share.copy)
                    calls.call_replica(
                        self.copies[share.copy], Worker.give_up_rows, share.number, sampling_model(self.order)
                    )
            calls.get("the last rows", self.order.node)
            for copy in freed:
                if copy not in self.leaving:
                    self.turn.release_some(device_set(self.order.group, copy))
        self.free_devices()

    def reassign_parts(self, share: _Share, receipt: Receipt) -> None:
        """Give parts that a replica has given up to other replicas."""
        assert self.ending is not None
        left: list[Reference[Any]] = [
            self.dispatch.processes.call(self.copies[share.copy][0], Worker.abandoned_parts, share.number)
        ]
        # Ray runs an actor's calls in order, each when its arguments have arrived. A replica that was told to go on
        # before these have arrived would send nobody its rows until then, and the process that waits for those rows
        # may be what holds up the replica that leaves.
        self.dispatch.processes.wait_for_first(left)
        target_of = self.ending.assign_blocks([share.parts[number] for number in receipt.abandoned_parts], ())
        shares: dict[int, Sequence[int]] = {
            copy: [index for index, target in target_of.items() if target == copy]
            for copy in sorted(set(target_of.values()))
        }
        self.ending.left |= target_of
        taking = [self.copies[copy] for copy in shares]
        place = self.places.enter_context(self.dispatch.together.queue_request(self.order, taking))
        for copy, indices in shares.items():
            before = tuple(self.numbers[index] for index in indices)
            with place.call_lock:
                self.send_parts({copy: indices}, place, AbandonedParts(before, tuple(left)))
            self.send_token_limit(self.going[-1:])
        self.free_devices()

    def free_devices(self) -> None:
        """Free the devices of replicas that have no rows left, once some have left."""
        assert self.ending is not None
        if len(self.ending.here) == len(self.copies):
            return
        going = {share.copy for share in self.going}
        for copy in [copy for copy in self.leaving if copy not in going]:
            self.leaving.remove(copy)
            self.turn.release_some(device_set(self.order.group, copy))
        for copy in [copy for copy in self.ending.here if copy not in going and not self.leaving]:
            if len(self.ending.here) > 1:
                self.ending.here.remove(copy)
                self.turn.release_some(device_set(self.order.group, copy))
