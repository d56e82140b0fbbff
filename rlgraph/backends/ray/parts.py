"""An order that is done part by part, by all copies of a group; and its last rows, with which few of them go on."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from rlgraph.backends.distributed.admission import blocks
from rlgraph.backends.distributed.race import Race
from rlgraph.backends.distributed.sharding import part, split_axis
from rlgraph.backends.distributed.tails import Ending
from rlgraph.backends.distributed.transport import Order
from rlgraph.backends.executor import Part
from rlgraph.backends.ray.batching import Place
from rlgraph.backends.ray.calls import Calls
from rlgraph.backends.ray.orders import Receipt
from rlgraph.backends.ray.processes import Reference
from rlgraph.backends.ray.rows import Delivery
from rlgraph.backends.ray.worker import Worker
from rlgraph.backends.turns import Turn, seats
from rlgraph.ops.nodes import model_of, rows_each

if TYPE_CHECKING:
    from rlgraph.backends.ray.dispatch import Dispatch

Asked = tuple[Calls[bytes], list[Delivery]]
"""What was asked, and the rows that went with it."""


@dataclass(frozen=True)
class Begun:
    """Parts of an order that others have begun and given up."""

    before: tuple[int, ...]
    """By part the number that it had there."""
    left: tuple[Reference[Any], ...]
    """What each of these others has left."""


@dataclass(eq=False)
class _Share:
    """The parts that one copy does, of which it tells one after the other."""

    copy: int
    number: int
    """Of its order."""
    parts: Sequence[int]
    """By their number in the order."""
    coming: deque[Asked] = field(default_factory=deque)
    """For each part that it has not told of; where it is asked again after each, the others are empty."""
    silent: list[Asked] = field(default_factory=list)
    """What the others of the copy were asked: nobody wants a part of them, and they tell of all at the end, but of a
    failure at once."""


class InParts:
    def __init__(self, dispatch: Dispatch, order: Order, sizes: Sequence[int], turn: Turn, places: ExitStack) -> None:
        self.dispatch, self.order, self.sizes, self.turn, self.places = dispatch, order, sizes, turn, places
        self.copies = dispatch.copies(order.group)
        self.bounds = list(pairwise(accumulate(sizes, initial=0)))
        self.numbers = [0] * len(sizes)
        """Those that the pieces of each part carry."""
        self.going: list[_Share] = []
        self.leaving: list[int] = []
        """Copies that give their rows up, and have not said of which parts."""
        self.dealt = blocks(order.expected, sizes, len(self.copies))
        """Of each copy its parts."""
        rows = [size * rows_each(order.node) for size in sizes]
        self.ending = Ending.of(order, turn, rows, self.dealt) if order.key is not None else None
        self.race = None if order.race is None else Race(order.race)

    def told(self) -> Iterator[Part]:
        """Each part, as soon as it is done."""
        dispatch, node = self.dispatch, self.order.node
        dispatch.observer.firing(node, self.order.group.pool)
        began, tokens = time.perf_counter(), 0
        busy = {copy: mine for copy, mine in enumerate(self.dealt) if mine}
        place = self.places.enter_context(dispatch.together.order(self.order, [self.copies[copy] for copy in busy]))
        with place.sending:
            self.send(busy, place)
        dispatch.begun(self.order)
        began += arrived(self.order)
        while self.going:
            heads = [share.coming[0][0] for share in self.going]
            beside = [each for calls in heads for each in calls.beside]
            share = self.going[dispatch.processes.first([calls.answers[0] for calls in heads], beside)]
            calls, deliveries = share.coming.popleft()
            answers = dispatch.answers(calls, node)
            # Who speaks is asked first.
            receipt = answers[0][0]
            if receipt.left or not share.coming:
                self.end(share)
            if receipt.left:
                self.move(share, receipt)
                continue
            index = share.parts[receipt.part]
            if share.coming and self.order.key is not None:
                self.ask_again(share)
            dispatch.trace(self.order, self.numbers[index], calls, deliveries, answers)
            tokens += receipt.tokens
            if self.race is not None and self.race.ended(receipt.longest):
                self.limit([each for each in self.going if each.coming])
            if self.ending is not None:
                self.ended(index)
            yield index, dispatch.made(node, self.numbers[index], receipt, calls.who[0])
        dispatch.observer.fired(node, time.perf_counter() - began, tokens, self.order.group.pool)

    def send(self, shares: Mapping[int, Sequence[int]], place: Place, begun: Begun | None = None) -> None:
        """Gives copies their parts."""
        dispatch, order = self.dispatch, self.order
        node, frame, wanted, axis = order.node, order.frame, dispatch.needs(order), split_axis(order.node)
        assert axis is not None
        numbers = dispatch.numbers(sum(map(len, shares.values())))
        for index in sorted(index for own in shares.values() for index in own):
            self.numbers[index] = numbers.pop(0)
        for copy, mine in shares.items():
            ranks = self.copies[copy]
            rows = np.concatenate([np.arange(*self.bounds[index]) for index in mine])
            body, _ = part(frame, axis, rows, node.inputs)
            parts = tuple((self.numbers[index], self.sizes[index]) for index in mine)
            sent = list(dispatch.addressed(order, copy, body, wanted))
            dispatch.ledger.send([each.delivery for each in sent])
            share, after = _Share(copy, self.numbers[mine[0]], mine), place.after(ranks)
            share.coming.extend((Calls[bytes](dispatch.processes), list[Delivery]()) for _ in mine)
            for each in sent:
                told = dispatch.told(order, copy, share.number, each.delivery, each.speaks, after, parts=parts)
                calls, deliveries = share.coming[0] if each.speaks else (Calls[bytes](dispatch.processes), [])
                dispatch.give(calls, order, each, told, begun)
                deliveries.append(each.delivery)
                if not each.speaks:
                    share.silent.append((calls, deliveries))
                    continue
                # A process does one thing after the other: it goes on when it has told of the part before. Of those
                # that are sampled together with others no part is asked before: a thread would wait.
                for calls, deliveries in list(share.coming)[1:]:
                    if order.key is None:
                        dispatch.tell(calls, each, Worker.next_part, share.number)
                    deliveries.append(Delivery(each.delivery.inputs, each.delivery.rows))
            watched = dispatch.driven(order, copy, share.number, place)
            watched += [each for calls, _ in share.silent for each in calls.answers]
            for calls, _ in share.coming:
                calls.beside += watched
            self.going.append(share)

    def ask_again(self, share: _Share) -> None:
        """A copy goes on to tell of its next part."""
        calls, who = share.coming[0][0], self.copies[share.copy][0]
        calls.one(who, Worker.next_sampled, share.number, sampled_model(self.order))

    def end(self, share: _Share) -> None:
        """A copy has told of all."""
        self.going.remove(share)
        for calls, deliveries in share.silent:
            answers = self.dispatch.answers(calls, self.order.node)
            self.dispatch.trace(self.order, share.number, calls, deliveries, answers)

    def limit(self, shares: Sequence[_Share]) -> None:
        """Copies need not go on with rows beyond as many tokens as the race says."""
        if self.race is None or self.race.limit is None:
            return
        calls, model = Calls[None](self.dispatch.processes), sampled_model(self.order)
        for share in shares:
            calls.copy(self.copies[share.copy], Worker.limit, share.number, model, self.race.limit)
        calls.get("the rows that are too long", self.order.node)

    # The last rows

    def ended(self, index: int) -> None:
        """A part has, and maybe few enough are left."""
        assert self.ending is not None
        freed = self.ending.after(index)
        if freed and self.dispatch.together.alone(self.copies):
            self.ending.here = [copy for copy in self.ending.here if copy not in freed]
            calls = Calls[None](self.dispatch.processes)
            for share in self.going:
                if share.copy in freed:
                    self.leaving.append(share.copy)
                    calls.copy(self.copies[share.copy], Worker.leave, share.number, sampled_model(self.order))
            calls.get("the last rows", self.order.node)
            for copy in freed:
                if copy not in self.leaving:
                    self.turn.leave(seats(self.order.group, copy))
        self.free()

    def move(self, share: _Share, receipt: Receipt) -> None:
        """Others go on with parts that a copy has given up."""
        assert self.ending is not None
        left: list[Reference[Any]] = [
            self.dispatch.processes.call(self.copies[share.copy][0], Worker.unfinished, share.number)
        ]
        # Ray hands a process its calls in their order, each when all that it needs is there. A copy that were told to
        # go on before this is there would hand nobody its rows until then; and who waits for these may be who holds
        # up the copy that leaves.
        self.dispatch.processes.first(left)
        to = self.ending.dealt([share.parts[each] for each in receipt.left], ())
        shares: dict[int, Sequence[int]] = {
            copy: [index for index, target in to.items() if target == copy] for copy in sorted(set(to.values()))
        }
        self.ending.left |= to
        taking = [self.copies[copy] for copy in shares]
        place = self.places.enter_context(self.dispatch.together.order(self.order, taking))
        for copy, mine in shares.items():
            before = tuple(self.numbers[index] for index in mine)
            with place.sending:
                self.send({copy: mine}, place, Begun(before, tuple(left)))
            self.limit(self.going[-1:])
        self.free()

    def free(self) -> None:
        """The devices of copies that have no rows any more, once some have left."""
        assert self.ending is not None
        if len(self.ending.here) == len(self.copies):
            return
        going = {share.copy for share in self.going}
        for copy in [copy for copy in self.leaving if copy not in going]:
            self.leaving.remove(copy)
            self.turn.leave(seats(self.order.group, copy))
        for copy in [copy for copy in self.ending.here if copy not in going and not self.leaving]:
            if len(self.ending.here) > 1:
                self.ending.here.remove(copy)
                self.turn.leave(seats(self.order.group, copy))


def arrived(order: Order) -> float:
    """Waits for the weights that were sent before an order: for how long."""
    began = time.perf_counter()
    order.arrived()
    return time.perf_counter() - began


def sampled_model(order: Order) -> str:
    """The model that samples."""
    found: str = order.frame.values[model_of(order.node)]
    return found
