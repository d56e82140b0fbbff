"""Whose weights are where, and how new: before a group works with a model, its owner's weights go there."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from rlgraph.backends.clocks import Clock, Lock
from rlgraph.backends.distributed.offload import Bed, Beds
from rlgraph.backends.distributed.transport import Move, Moved, Sampling, Transport
from rlgraph.backends.step import Step
from rlgraph.backends.steps import Observer
from rlgraph.backends.versions import Versions
from rlgraph.ir.graph import Node, Program
from rlgraph.ir.plan import Group, Plan
from rlgraph.ir.steps import oldest
from rlgraph.ir.types import is_model


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


Place = tuple[str, str, int]
"""Where weights are: a model, a group, and a copy of it."""


@dataclass(eq=False)
class _User:
    """Who works with weights of a group."""

    move: Move
    """Of the weights: which version is said when they go."""
    lock: Lock
    """Of who brings newer ones, and of who says that the group has ended."""
    versions: dict[Place, int] = field(default_factory=dict)
    """What it began with in each place that it has."""

    @property
    def at_work(self) -> bool:
        return self.move.sampling is not None and self.move.sampling.sent.done()


@dataclass(eq=False)
class _Arrival:
    """Of weights that are on their way. Whoever works with them waits for it, not only who had them brought: of these
    one may be behind another, and a transfer that fails would be told by nobody."""

    wait: Callable[[], None]
    lock: Lock
    over: bool = False

    def __call__(self) -> None:
        with self.lock.take():
            if not self.over:
                self.wait()
                self.over = True


_NONE = -1
"""The count of weights that are not there."""
_GONE = -2
"""The count of a version that nobody has any more."""
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
        """For each version that is no more the present one, and that somebody may ask for, the count at its end."""
        self._oldest: dict[str, int] = {}
        """Of each model the first version that somebody may ask for."""
        self._held: dict[Place, int] = {}
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
        self.beds = Beds(plan, self._forgets)
        """Of models that are off-loaded."""
        self.changing = {each.type.name for _, node in program.walk() for each in node.outputs if is_model(each.type)}
        self._lenders = Counter[Place]()
        """How many work with the weights of a place, or are about to."""
        self._users: list[_User] = []
        """Of groups to which newer weights can come now."""
        self._coming: dict[Place, int] = {}
        """Versions that are on their way to these."""
        self._arrivals: dict[Place, _Arrival] = {}
        """Of the weights that were brought to these last."""
        self._new_lock = clock.lock
        self._moved: dict[int, list[Moved]] = {}
        """For each step that is under way what went from group to group for it."""
        self._lock = threading.Lock()

    # Counting

    def trained(self, model: str, step: Step) -> None:
        with self._lock:
            self.updates[model] += 1
            self._change(model, step)

    def restore(self, model: str, updates: int, past: Collection[int]) -> None:
        """The owner of a model has the weights of another run, and these versions before them; nobody else does."""
        with self._lock:
            self.updates[model] = updates
            for count, version in enumerate(sorted(past), start=1):
                self._ends[model, version] = count
            self._changes[model] = len(past) + 1
            self._hold(model, self.plan.owner(model), None, self._changes[model])

    def forget(self) -> None:
        """Who is brought weights may have lost them: they are brought again. No step is under way."""
        with self._lock:
            owners = {model: owner for model, owner in self.plan.owners if model in self.changing}
            self._held |= {place: _NONE for place in self._lent if place[1] != owners.get(place[0], place[1])}
            self._moved.clear()
            self._arrivals.clear()

    def _change(self, model: str, step: Step) -> None:
        self._ends.setdefault((model, self.versions.at(model, step)), self._changes[model])
        self._changes[model] += 1
        self._hold(model, self.plan.owner(model), None, self._changes[model])

    def finish(self, step: Step, over: Step) -> dict[str, float]:
        """What the transfers of a step took. over: behind it nobody asks for weights that this one and
        those before could."""
        with self._lock:
            self._oldest |= {model: self.versions.oldest(model, over.number + 1) for model in self.changing}
            self._ends = {each: count for each, count in self._ends.items() if each[1] >= self._oldest[each[0]]}
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
        is said now, and not before. together: who would be given what others work with there has it with them."""
        owner = self.plan.owner(model)
        if owner.name == group.name:
            version = self.versions.chosen(model, step, node)
            yield Lent(version, key=self._key(together, model, group, version if oldest(node) else None))
            return
        sampling = Sampling() if refreshes else None
        user = _User(Move(model, owner, model, group, node, step, copy=copy, sampling=sampling), self._new_lock())
        places, key = self._places(model, group, copy), refreshes if together else None
        with ExitStack() as lent, self._counted(places):
            lent.callback(self._leave, user)
            for place in places:
                lent.enter_context(self._lent[place].take(step.number, _ALL, key, partial(self._joins, user, place)))
            self._given(user)
            coming = [*dict.fromkeys(self._arrivals[place] for place in places if place in self._arrivals)]
            for place in places:
                # Who would be given what has been brought now need not wait.
                self._lent[place].again()
            shared = self._key(together, model, group, user.move.version, refreshes)
            if sampling is not None:
                sampling.versions.update({place[-1]: version for place, version in user.versions.items()})
                lent.callback(self._leave, user)
            elif not self.versions.kept(model):
                # All that are under way work with the same.
                lent.close()

            def arrived() -> None:
                for each in coming:
                    each()

            yield Lent(min(user.versions.values()), sampling, arrived, shared)
            arrived()

    @contextmanager
    def _counted(self, places: Sequence[Place]) -> Iterator[None]:
        with self._lock:
            self._lenders.update(places)
        try:
            yield
        finally:
            with self._lock:
                self._lenders.subtract(places)

    def _forgets(self, bed: Bed) -> bool:
        """A model that goes to sleep need not keep weights that its owner trains and nobody is about to work with here:
        who comes next is brought the new ones, or the same again."""
        place = bed.model, bed.group.name, bed.copy if self._copies[bed.group.name] > 1 else 0
        with self._lock:
            if self.plan.owner(bed.model).name == bed.group.name or bed.model not in self.changing:
                return False
            if self._lenders[place]:
                return False
            self._held[place] = _NONE
            return True

    def _key(self, together: bool, model: str, group: Group, version: int | None, refreshes: bool = False) -> Hashable:
        """Of the present weights, or of a version of them; of those that newer ones follow."""
        count = self._changes[model] if version is None else self._count(model, version)
        return (model, group.name, None if refreshes else count) if together else None

    def _joins(self, user: _User, place: Place) -> bool:
        """Whether what others work with in a place is what this one would be given there: the newest version that it
        may have; where newer ones come meanwhile any that it may have."""
        move = user.move
        with self._lock:
            granted = self.versions.granted(move.target, move.step, move.node)
            if move.sampling is not None and self._coming.get(place, granted[-1]) not in granted:
                return False
            may = granted[::-1] if move.sampling is not None else [*user.versions.values(), granted[-1]][:1]
            there = self._held.get(place, 0)
            found = next((version for version in may if self._wanted(move, version) == there), None)
            if found is None:
                return False
            user.versions[place] = found
            if move.sampling is not None and user not in self._users:
                self._users.append(user)
            return True

    def _given(self, user: _User) -> None:
        """Brings what is lacking where nobody else works with the weights."""
        move = user.move
        mine = [place for place in self._places(move.target, move.receiver, move.copy) if place not in user.versions]
        if move.sampling is None:
            chosen = self.versions.chosen(move.target, move.step, move.node)
            version = next(iter(user.versions.values()), chosen)
            user.versions |= dict.fromkeys(mine, version)
            user.move = replace(move, version=version if oldest(move.node) else None)
            self._bring(user.move, mine)
            return
        ways = [each.copy for each in self._each(move)]
        if self._copies[move.receiver.name] > 1:
            ways += [copy for *_, copy in self._places(move.target, move.receiver, move.copy)]
        for copy in dict.fromkeys(ways):
            self.transport.connect(replace(move, copy=copy))
        while True:
            with self._lock:
                newest = self.versions.chosen(move.target, move.step, move.node)
                if all(self._held.get(place, 0) == self._wanted(move, newest) for place in mine):
                    # Who tells of the next one finds it here.
                    user.versions |= dict.fromkeys(mine, newest)
                    if user not in self._users:
                        self._users.append(user)
                    return
            self._bring(replace(move, version=newest, sampling=None), mine)

    def _leave(self, user: _User) -> None:
        """Newer weights come to it no more."""
        if user.move.sampling is None:
            return
        if not user.move.sampling.sent.done():
            # It was never sent.
            user.move.sampling.sent.set_result(None)
        with user.lock.take(), self._lock:
            self._users = [each for each in self._users if each is not user]

    def refresh(self, model: str) -> None:
        """There is a new version of a model: it goes to those who sample with it, and can take it."""
        while found := self._behind(model):
            user, move = found
            moved = self.transport.refresh(move, self._going(user, move))
            if moved is not None:
                self._told(move, moved)
                for place in self._places(model, move.receiver, move.copy):
                    self._lent[place].again()

    def _behind(self, model: str) -> tuple[_User, Move] | None:
        """Somebody who samples with weights that there are newer ones of, and where these go."""
        with self._lock:
            # Of those who are not at work yet nobody knows how soon they will be.
            users = sorted(self._users, key=lambda each: not each.at_work)
            behind = (
                (user, move)
                for user in users
                if user.move.target == model
                for move in self._to(user.move, self._stale(user))
                if user.versions.keys() >= {*self._places(model, move.receiver, move.copy)}
            )
            return next(behind, None)

    def _stale(self, user: _User) -> list[int]:
        """The copies that somebody has for which there are newer weights."""
        copies = [place[-1] for place in user.versions]
        moves = [replace(user.move, copy=copy) for copy in copies]
        return [
            copy
            for copy, move in zip(copies, moves, strict=True)
            if self._lacking(move, self._count(move.target, self._newest(move)))
        ]

    @contextmanager
    def _going(self, user: _User, move: Move) -> Iterator[int | None]:
        """What goes now: until it is there, the group's order is not over."""
        places = self._places(move.target, move.receiver, move.copy)
        with user.lock.take():
            with self._lock:
                version = self._newest(move) if user in self._users else None
                wanted = 0 if version is None else self._count(move.target, version)
                if version is None or not self._lacking(move, wanted):
                    version = None
                else:
                    self._coming |= dict.fromkeys(places, version)
            if version is None:
                yield None
                return
            try:
                yield version
            finally:
                with self._lock:
                    for place in places:
                        del self._coming[place]
            self._hold(move.target, move.receiver, move.copy, wanted)

    def _newest(self, move: Move) -> int:
        """What all can take who sample where a move goes."""
        places = {*self._places(move.target, move.receiver, move.copy)}
        return min(
            self.versions.chosen(each.move.target, each.move.step, each.move.node)
            for each in self._users
            if places & each.versions.keys()
        )

    def _bring(self, move: Move, places: Collection[Place]) -> None:
        """To copies that lack the weights, of those in these places: to all of them together, or else to one after the
        other."""
        model, group = move.target, move.receiver
        wanted = self._changes[model] if move.version is None else self._count(model, move.version)
        lacking = [copy for copy in self._lacking(move, wanted) if (model, group.name, copy) in places]
        for each in self._to(move, lacking):
            arrival = _Arrival(self._move(each), self._new_lock())
            self._arrivals |= dict.fromkeys(self._places(model, group, each.copy), arrival)
            self._hold(model, group, each.copy, wanted)

    def _to(self, move: Move, lacking: Sequence[int]) -> list[Move]:
        """To copies that lack the weights: where these are not all, to one after the other."""
        if move.copy is None and len(lacking) == self._copies[move.receiver.name]:
            return self._each(move)
        return [replace(move, copy=copy) for copy in lacking]

    def _each(self, move: Move) -> list[Move]:
        """To all copies together, or one after the other."""
        if move.copy is not None or (move.target, move.receiver.name) not in self._replicas:
            return [move]
        return [replace(move, copy=copy) for copy in range(self._copies[move.receiver.name])]

    def _places(self, model: str, group: Group, copy: int | None) -> list[Place]:
        copies = range(self._copies[group.name]) if copy is None else [copy]
        return [(model, group.name, each) for each in copies]

    def _lacking(self, move: Move, wanted: int) -> list[int]:
        """The copies that do not have the weights of this count."""
        places = self._places(move.target, move.receiver, move.copy)
        return [place[-1] for place in places if self._held.get(place, 0) != wanted]

    def _hold(self, model: str, group: Group, copy: int | None, count: int) -> None:
        self._held |= dict.fromkeys(self._places(model, group, copy), count)

    def _wanted(self, move: Move, version: int) -> int:
        """The count of the weights that a node works with, which are of this version."""
        return self._count(move.target, version) if oldest(move.node) else self._changes[move.target]

    def _count(self, model: str, version: int) -> int:
        """Of the changes at the end of a version."""
        if version < self._oldest.get(model, 0):
            return _GONE
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
        if move.update is None:
            # They are brought to work with them; what an update makes may sleep.
            move = replace(move, shifting=self.beds.shifting(move.target, move.receiver, move.copy))
        coming = self.transport.move(move)
        return lambda: self._told(move, coming())

    def _told(self, move: Move, moved: Moved) -> None:
        with self._lock:
            self._moved.setdefault(move.step.number, []).append(moved)
        self.observer.synced(move.source, move.sender.name, move.receiver.name, moved.seconds, moved.sent, moved.peak)
