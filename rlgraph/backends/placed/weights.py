"""Whose weights are where, and how new: before a group works with a model, its owner's weights go there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import count

from rlgraph.backends.clocks import Clock, Lock
from rlgraph.backends.placed.transport import Move, Moved, Sampling, Transport
from rlgraph.backends.step import Step
from rlgraph.backends.steps import Observer
from rlgraph.backends.versions import Versions
from rlgraph.ir.graph import Node, Program
from rlgraph.ir.plan import Group, Plan
from rlgraph.ir.steps import oldest


@dataclass(frozen=True)
class Lent:
    """The weights that somebody works with."""

    version: int
    sampling: Sampling | None = None
    """Newer ones may come meanwhile."""
    arrived: Callable[[], None] = lambda: None
    """Waits until they are there: what is ordered before that is done after it."""
    key: Hashable = None
    """The same for all who sample with the same weights in the same place, where they may do so together."""


@dataclass(frozen=True, eq=False)
class _Sampling:
    """A group that samples, and takes newer weights meanwhile."""

    move: Move
    """Of the weights: which version is said when they go."""
    lock: Lock
    """Of who brings them, and of who says that the group has ended."""


_ALL = frozenset({0})
"""What there is to have of weights that are lent."""


class Weights:
    """The ledger: counts changes of every model, and which of them each group has."""

    def __init__(
        self, program: Program, plan: Plan, transport: Transport, clock: Clock, observer: Observer, versions: Versions
    ) -> None:
        self.plan, self.transport, self.observer, self.versions = plan, transport, observer, versions
        names = [model.name for model in program.models]
        self.updates = dict.fromkeys(names, 0)
        """Optimizer steps."""
        self._changes = dict.fromkeys(names, 0)
        """How often the weights changed; a group that has the same count has the same weights."""
        self._ends: dict[tuple[str, int], int] = {}
        """For each version that is no more the present one, the count at its end."""
        self._held: dict[tuple[str, str, int], int] = {}
        """For each model, group and copy the count of the weights that are there; all begin with the same. Copies that
        always work together count as one."""
        self._replicas = {(each.model, each.group) for each in plan.holdings if each.replica}
        """Models and groups whose copies take new weights one after the other."""
        apart = {group for _, group in self._replicas} | {group.name for group in plan.groups if plan.free}
        self._copies = {group.name: group.mesh.length("dp") if group.name in apart else 1 for group in plan.groups}
        self._lent = {
            (model, group, copy): clock.lock()
            for model in names
            for group, copies in self._copies.items()
            for copy in range(copies)
        }
        self._bringing = {place: clock.lock() for place in self._lent}
        """Of those who have the same weights together the first one brings them."""
        self._samplings = count()
        self._sampling: list[_Sampling] = []
        """Groups to which newer weights can come now."""
        self._new_lock = clock.lock
        self._moved: dict[int, list[Moved]] = {}
        """For each step that is under way what went from group to group for it."""
        self._lock = threading.Lock()

    # Counting

    def trained(self, model: str, step: Step) -> None:
        with self._lock:
            self.updates[model] += 1
            self._change(model, step)

    def _change(self, model: str, step: Step) -> None:
        self._ends.setdefault((model, self.versions.at(model, step)), self._changes[model])
        self._changes[model] += 1
        self._hold(model, self.plan.owner(model), None, self._changes[model])

    def finish(self, step: Step) -> dict[str, float]:
        """What the transfers of a step took."""
        moved = self._moved.pop(step.number, [])
        seconds, sent = sum(each.seconds for each in moved), sum(each.sent for each in moved)
        if not seconds:
            return {}
        peak = max(each.peak for each in moved)
        return {"sync/seconds": seconds, "sync/bytes": float(sent), "sync/peak_bytes": float(peak)}

    # Moving

    @contextmanager
    def lent(
        self,
        model: str,
        group: Group,
        node: Node,
        step: Step,
        refreshes: bool = False,
        copy: int | None = None,
        together: bool = False,
    ) -> Iterator[Lent]:
        """A group, or one of its copies, has the weights that a node works with, until that is done: the present ones,
        or a version before. They may still be on their way: an order that is given now comes after them. Meanwhile
        nobody brings others, for another step; with `refreshes` newer ones, while the node samples. Which version it is
        is said now, and not before. together: those who work with the same version have it at the same time; where the
        version is still to be chosen, one after the other."""
        owner = self.plan.owner(model)
        version = self.versions.chosen(model, step, node)
        if owner.name == group.name:
            yield Lent(version, key=self._key(together, model, group, version if oldest(node) else None))
            return
        with ExitStack() as lent:
            shared = None if not together or node.attr("staleness", 0) else version
            for place in self._places(model, group, copy):
                lent.enter_context(self._lent[place].take(step.number, _ALL, shared))
            version = self.versions.chosen(model, step, node)
            move = Move(model, owner, model, group, node, step, version if oldest(node) else None, copy=copy)
            with ExitStack() as bringing:
                for place in self._places(model, group, copy) if shared is not None else ():
                    bringing.enter_context(self._bringing[place].take(step.number))
                coming = self._bring(move)
                key = self._key(together, model, group, move.version)
            if not self.versions.kept(model):
                # All that are under way work with the same.
                lent.close()
            sampling = None
            if refreshes:
                version, sampling = lent.enter_context(self._refreshed(replace(move, version=None), version, coming))

            def arrived() -> None:
                while coming:
                    coming.pop()()

            yield Lent(version, sampling, arrived, key)
            arrived()

    def _key(self, together: bool, model: str, group: Group, version: int | None) -> Hashable:
        """Of the present weights, or of a version of them."""
        count = self._changes[model] if version is None else self._count(model, version)
        return (model, group.name, count) if together else None

    @contextmanager
    def _refreshed(self, move: Move, version: int, coming: list[Callable[[], None]]) -> Iterator[tuple[int, Sampling]]:
        """A group samples meanwhile, and newer versions come to it."""
        for each in self._each(move):
            self.transport.connect(each)
        move = replace(move, sampling=Sampling(next(self._samplings)))
        sampling = _Sampling(move, self._new_lock())
        while True:
            with self._lock:
                newest = self._newest(move)
                if newest == version:
                    # Who tells of the next one finds it here.
                    self._sampling.append(sampling)
                    break
            coming += self._bring(replace(move, version=newest))
            version = newest
        assert move.sampling is not None
        try:
            yield version, move.sampling
        finally:
            if not move.sampling.copies.done():
                # It was never sent.
                move.sampling.copies.set_result(frozenset())
            with sampling.lock.take(), self._lock:
                self._sampling.remove(sampling)

    def refresh(self, model: str) -> None:
        """There is a new version of a model: it goes to those who sample with it, and can take it."""
        with self._lock:
            found = [each for each in self._sampling if each.move.target == model]
        for sampling in found:
            for move in self._each(sampling.move):
                moved = self.transport.refresh(move, self._going(sampling, move))
                if moved is not None:
                    self._told(move, moved)

    @contextmanager
    def _going(self, sampling: _Sampling, move: Move) -> Iterator[int | None]:
        """What goes now: until it is there, the group's order is not over."""
        with sampling.lock.take():
            version = self._newest(move)
            wanted = self._count(move.target, version)
            if sampling not in self._sampling or not self._lacking(move, wanted):
                yield None
                return
            yield version
            self._hold(move.target, move.receiver, move.copy, wanted)

    def _newest(self, move: Move) -> int:
        return self.versions.chosen(move.target, move.step, move.node)

    def _bring(self, move: Move) -> list[Callable[[], None]]:
        """To copies that lack the weights: to all of them together, or else to one after the other. What waits for
        them."""
        model, group = move.target, move.receiver
        wanted = self._changes[model] if move.version is None else self._count(model, move.version)
        lacking = self._lacking(move, wanted)
        together = self._each(move) if len(lacking) == self._copies[group.name] else []
        coming = []
        for each in together or [replace(move, copy=copy) for copy in lacking]:
            coming.append(self._move(each))
            self._hold(model, group, each.copy, wanted)
        return coming

    def _each(self, move: Move) -> list[Move]:
        """To all copies together, or one after the other."""
        if move.copy is not None or (move.target, move.receiver.name) not in self._replicas:
            return [move]
        return [replace(move, copy=copy) for copy in range(self._copies[move.receiver.name])]

    def _places(self, model: str, group: Group, copy: int | None) -> list[tuple[str, str, int]]:
        copies = range(self._copies[group.name]) if copy is None else [copy]
        return [(model, group.name, each) for each in copies]

    def _lacking(self, move: Move, wanted: int) -> list[int]:
        """The copies that do not have the weights of this count."""
        places = self._places(move.target, move.receiver, move.copy)
        return [place[-1] for place in places if self._held.get(place, 0) != wanted]

    def _hold(self, model: str, group: Group, copy: int | None, count: int) -> None:
        self._held |= dict.fromkeys(self._places(model, group, copy), count)

    def _count(self, model: str, version: int) -> int:
        """Of the changes at the end of a version."""
        return self._ends.get((model, version), self._changes[model])

    def update(self, target: str, source: str, node: Node, step: Step) -> None:
        """The `update` of a program: another model's weights, or a moving average with them."""
        sender, receiver = self.plan.owner(source), self.plan.owner(target)
        move = Move(source, sender, target, receiver, node, step, average=node.attr("ema"), update=step)
        if sender.name == receiver.name:
            self.transport.adopt(move)
        else:
            self._move(move)()
        with self._lock:
            self._change(target, step)

    def _move(self, move: Move) -> Callable[[], None]:
        coming = self.transport.move(move)
        return lambda: self._told(move, coming())

    def _told(self, move: Move, moved: Moved) -> None:
        with self._lock:
            self._moved.setdefault(move.step.number, []).append(moved)
        self.observer.synced(move.source, move.sender.name, move.receiver.name, moved.seconds, moved.sent, moved.peak)
