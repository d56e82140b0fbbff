"""This module keeps track of whose weights are where, and how new: before a group works with a model, its owner's
weights go there."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

from rlgraph.backends.clocks import Clock
from rlgraph.backends.distributed.lent_weights import LentWeights, Place, WeightArrival, WeightBorrower
from rlgraph.backends.distributed.offload import OffloadedModels, OffloadedReplica
from rlgraph.backends.distributed.transport import RefreshState, TransferCost, Transport, WeightTransfer
from rlgraph.backends.step import Step
from rlgraph.backends.steps import Observer
from rlgraph.backends.weight_versions import WeightVersions
from rlgraph.ir.graph import Node, Program
from rlgraph.ir.plan import Group, Plan
from rlgraph.ir.step_edges import oldest_weights_age_versions
from rlgraph.ir.types import is_model

_NONE = -1
"""The count where there are no weights."""
_GONE = -2
"""The count of a version that is kept nowhere any more."""
_ALL = frozenset({0})
"""All places of the lock of weights that are lent: one."""


class WeightLedger:
    """The ledger of weights, which counts the changes of every model, and knows which of them each group has."""

    def __init__(
        self,
        program: Program,
        plan: Plan,
        transport: Transport,
        clock: Clock,
        observer: Observer,
        versions: WeightVersions,
    ) -> None:
        self.plan, self.transport, self.observer, self.versions = plan, transport, observer, versions
        names = [model.name for model in program.models]
        self.updates = dict.fromkeys(names, 0)
        """The optimizer steps of each model."""
        self._changes = dict.fromkeys(names, 0)
        """How often the weights changed; a group that has the same count has the same weights."""
        self._ends: dict[tuple[str, int], int] = {}
        """The count at the end of each version that is no longer the present one, and that may be asked for."""
        self._oldest: dict[str, int] = {}
        """For each model the first version that may be asked for."""
        self._held: dict[Place, int] = {}
        """For each model, group and replica the count of the weights that are there; all begin with the same. Replicas
        that always work together count as one."""
        self._replicas = {(holding.model, holding.group) for holding in plan.holdings if holding.replica}
        """Models and groups whose replicas take new weights one after the other."""
        separate = {group for _, group in self._replicas} | {group.name for group in plan.groups if plan.free}
        self._copies = {
            group.name: group.mesh.axis_size("dp") if group.name in separate else 1 for group in plan.groups
        }
        self._lent = {
            (model, group, copy): clock.new_lock()
            for model in names
            for group, copies in self._copies.items()
            for copy in range(copies)
        }
        self.beds = OffloadedModels(plan, self._forgets)
        """The models that are off-loaded."""
        self.changing = {
            value.type.name for _, node in program.walk() for value in node.outputs if is_model(value.type)
        }
        self._lenders = Counter[Place]()
        """How many work with the weights of a place, or are about to."""
        self._users: list[WeightBorrower] = []
        """Users of groups to which newer weights can come now."""
        self._coming: dict[Place, int] = {}
        """Versions that are on their way to each place."""
        self._arrivals: dict[Place, WeightArrival] = {}
        """The arrival of the weights that were brought to each place last."""
        self._new_lock = clock.new_lock
        self._moved: dict[int, list[TransferCost]] = {}
        """For each step in flight what its transfers cost."""
        self._lock = threading.Lock()

    # Counting

    def note_update(self, model: str, step: Step) -> None:
        """Note that a model took an optimizer step."""
        with self._lock:
            self.updates[model] += 1
            self._change(model, step)

    def note_unchanged(self, model: str, step: Step) -> None:
        """Note that the version which a step makes of a model may be the one before it."""
        with self._lock:
            self._end_version(model, step)

    def note_restored(self, model: str, updates: int, past: Collection[int]) -> None:
        """Note that the owner of a model has the weights of another run, and these earlier versions; other groups do
        not."""
        with self._lock:
            self.updates[model] = updates
            for count, version in enumerate(sorted(past), start=1):
                self._ends[model, version] = count
            self._changes[model] = len(past) + 1
            self._hold(model, self.plan.owner(model), None, self._changes[model])

    def forget_held_weights(self) -> None:
        """Have weights brought again to all who may have lost them, which are all but the owners. No step is in
        flight."""
        with self._lock:
            owners = {model: owner for model, owner in self.plan.owners if model in self.changing}
            self._held |= {place: _NONE for place in self._lent if place[1] != owners.get(place[0], place[1])}
            self._moved.clear()
            self._arrivals.clear()

    def _change(self, model: str, step: Step) -> None:
        self._end_version(model, step)
        self._changes[model] += 1
        self._hold(model, self.plan.owner(model), None, self._changes[model])

    def _end_version(self, model: str, step: Step) -> None:
        """Note the count with which the version ends that a step begins with."""
        self._ends.setdefault((model, self.versions.version_at(model, step)), self._changes[model])

    def pop_step_costs(self, step: Step, over: Step) -> dict[str, float]:
        """Return what the transfers of a step cost. over: after this step no weights are asked for that only it and
        those before could ask for."""
        with self._lock:
            self._oldest |= {model: self.versions.oldest_needed(model, over.number + 1) for model in self.changing}
            self._ends = {end: count for end, count in self._ends.items() if end[1] >= self._oldest[end[0]]}
        moved = self._moved.pop(step.number, [])
        seconds, sent = sum(transfer.seconds for transfer in moved), sum(transfer.sent_bytes for transfer in moved)
        if not seconds:
            return {}
        peak = max(transfer.peak_buffer_bytes for transfer in moved)
        return {"sync/seconds": seconds, "sync/bytes": float(sent), "sync/peak_bytes": float(peak)}

    # Moving

    @contextmanager
    def lend_weights(
        self,
        model: str,
        group: Group,
        node: Node,
        step: Step,
        refreshes: bool = False,
        copy: int | None = None,
        together: bool = False,
    ) -> Iterator[LentWeights]:
        """Lend a group, or one of its replicas, the weights that a node works with, until that is done: the present
        ones, or an earlier version. They may still be on their way: a request that is made now comes after them.
        Meanwhile no other weights come for another step; with `refreshes` newer ones do, while the node samples.
        Which version it is is decided now, and not before. together: a user who would be given what others work with
        there shares it with them."""
        owner = self.plan.owner(model)
        if owner.name == group.name:
            version = self.versions.newest_allowed(model, step, node)
            yield LentWeights(
                version,
                weights_key=self._key(together, model, group, version if oldest_weights_age_versions(node) else None),
            )
            return
        sampling = RefreshState() if refreshes else None
        user = WeightBorrower(
            WeightTransfer(model, owner, model, group, node, step, copy=copy, refresh_state=sampling), self._new_lock()
        )
        places, key = self._places(model, group, copy), refreshes if together else None
        with ExitStack() as stack, self._counted(places):
            stack.callback(self._end_refreshes, user)
            for place in places:
                stack.enter_context(
                    self._lent[place].acquire(step.number, _ALL, key, partial(self._may_join, user, place))
                )
            self._give(user)
            coming = [*dict.fromkeys(self._arrivals[place] for place in places if place in self._arrivals)]
            for place in places:
                # Those that wait and would be given what has been brought now can go on.
                self._lent[place].recheck_sharing()
            shared = self._key(together, model, group, user.transfer.version, refreshes)
            if sampling is not None:
                sampling.versions.update({place[-1]: version for place, version in user.versions.items()})
                stack.callback(self._end_refreshes, user)
            elif not self.versions.reads_past_versions(model):
                # All steps in flight work with the same weights.
                stack.close()

            def arrived() -> None:
                for arrival in coming:
                    arrival()

            yield LentWeights(min(user.versions.values()), sampling, arrived, shared)
            arrived()

    @contextmanager
    def _counted(self, places: Sequence[Place]) -> Iterator[None]:
        """Count a user of these places in the context."""
        with self._lock:
            self._lenders.update(places)
        try:
            yield
        finally:
            with self._lock:
                self._lenders.subtract(places)

    def _forgets(self, bed: OffloadedReplica) -> bool:
        """Whether a model that is off-loaded need not keep its weights: its owner trains them and nobody is about to
        work with them here. Whoever comes next is brought the new ones, or the same again."""
        place = bed.model, bed.group.name, bed.copy if self._copies[bed.group.name] > 1 else 0
        with self._lock:
            if self.plan.owner(bed.model).name == bed.group.name or bed.model not in self.changing:
                return False
            if self._lenders[place]:
                return False
            self._held[place] = _NONE
            return True

    def _key(self, together: bool, model: str, group: Group, version: int | None, refreshes: bool = False) -> Hashable:
        """Return the key of the present weights, or of a version of them, or of those that newer ones follow."""
        return (model, group.name, None if refreshes else self._count(model, version)) if together else None

    def _may_join(self, user: WeightBorrower, place: Place) -> bool:
        """Whether the weights that others work with in a place are those that this user would be given there: the
        newest version that it may have; where newer ones come meanwhile any that it may have."""
        move = user.transfer
        with self._lock:
            granted = self.versions.allowed_versions(move.target, move.step, move.node)
            if move.refresh_state is not None and self._coming.get(place, granted[-1]) not in granted:
                return False
            allowed = granted[::-1] if move.refresh_state is not None else [*user.versions.values(), granted[-1]][:1]
            held = self._held.get(place, 0)
            version = next((candidate for candidate in allowed if self._wanted(move, candidate) == held), None)
            if version is None:
                return False
            user.versions[place] = version
            if move.refresh_state is not None and user not in self._users:
                self._users.append(user)
            return True

    def _give(self, user: WeightBorrower) -> None:
        """Bring the weights that are lacking where nobody else works with them."""
        move = user.transfer
        places = [place for place in self._places(move.target, move.receiver, move.copy) if place not in user.versions]
        if move.refresh_state is None:
            chosen = self.versions.newest_allowed(move.target, move.step, move.node)
            version = next(iter(user.versions.values()), chosen)
            user.versions |= dict.fromkeys(places, version)
            user.transfer = replace(move, version=version if oldest_weights_age_versions(move.node) else None)
            self._bring(user.transfer, places)
            return
        replicas = [way.copy for way in self._transfers_of(move)]
        if self._copies[move.receiver.name] > 1:
            replicas += [copy for *_, copy in self._places(move.target, move.receiver, move.copy)]
        for copy in dict.fromkeys(replicas):
            self.transport.prepare_weight_transfer(replace(move, copy=copy))
        while True:
            with self._lock:
                newest = self.versions.newest_allowed(move.target, move.step, move.node)
                if all(self._held.get(place, 0) == self._wanted(move, newest) for place in places):
                    # Whoever publishes the next version finds the user here.
                    user.versions |= dict.fromkeys(places, newest)
                    if user not in self._users:
                        self._users.append(user)
                    return
            self._bring(replace(move, version=newest, refresh_state=None), places)

    def _end_refreshes(self, user: WeightBorrower) -> None:
        """Let no more newer weights come to a user."""
        if user.transfer.refresh_state is None:
            return
        if not user.transfer.refresh_state.sent.done():
            # It was never sent.
            user.transfer.refresh_state.sent.set_result(None)
        with user.lock.acquire(), self._lock:
            self._users = [other for other in self._users if other is not user]

    def refresh_samplers(self, model: str) -> None:
        """Send a new version of a model to those who sample with it, and can take it."""
        while behind := self._behind(model):
            user, move = behind
            moved = self.transport.refresh_weights(move, self._going(user, move))
            if moved is not None:
                self._report(move, moved)
                for place in self._places(model, move.receiver, move.copy):
                    self._lent[place].recheck_sharing()

    def _behind(self, model: str) -> tuple[WeightBorrower, WeightTransfer] | None:
        """Return a user who samples with weights that there are newer ones of, and where these go."""
        with self._lock:
            # How soon those begin that are not at work yet is unknown: they come last.
            users = sorted(self._users, key=lambda other: not other.can_be_refreshed)
            behind = (
                (user, move)
                for user in users
                if user.transfer.target == model
                for move in self._to(user.transfer, self._stale(user))
                if user.versions.keys() >= {*self._places(model, move.receiver, move.copy)}
            )
            return next(behind, None)

    def _stale(self, user: WeightBorrower) -> list[int]:
        """Return the replicas of a user for which there are newer weights."""
        copies = [place[-1] for place in user.versions]
        moves = [replace(user.transfer, copy=replica) for replica in copies]
        return [
            replica
            for replica, move in zip(copies, moves, strict=True)
            if self._lacking(move, self._count(move.target, self._newest(move)))
        ]

    @contextmanager
    def _going(self, user: WeightBorrower, move: WeightTransfer) -> Iterator[int | None]:
        """Yield the version that goes now: until it has come, the group's request is not over."""
        places = self._places(move.target, move.receiver, move.copy)
        with user.lock.acquire():
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

    def _newest(self, move: WeightTransfer) -> int:
        """Return the newest version that all can take who sample where a transfer goes."""
        places = {*self._places(move.target, move.receiver, move.copy)}
        return min(
            self.versions.newest_allowed(user.transfer.target, user.transfer.step, user.transfer.node)
            for user in self._users
            if places & user.versions.keys()
        )

    def _bring(self, move: WeightTransfer, places: Collection[Place]) -> None:
        """Bring weights to those of the replicas in these places that lack them: to all of them together, or else to
        one after the other."""
        model, group = move.target, move.receiver
        wanted = self._count(model, move.version)
        lacking = [replica for replica in self._lacking(move, wanted) if (model, group.name, replica) in places]
        for part in self._to(move, lacking):
            arrival = WeightArrival(self._move(part), self._new_lock())
            self._arrivals |= dict.fromkeys(self._places(model, group, part.copy), arrival)
            self._hold(model, group, part.copy, wanted)

    def _to(self, move: WeightTransfer, lacking: Sequence[int]) -> list[WeightTransfer]:
        """Return the transfers to replicas that lack the weights: where these are not all, one for each."""
        if move.copy is None and len(lacking) == self._copies[move.receiver.name]:
            return self._transfers_of(move)
        return [replace(move, copy=replica) for replica in lacking]

    def _transfers_of(self, move: WeightTransfer) -> list[WeightTransfer]:
        """Return the transfers to all replicas: one for all together, or one for each."""
        if move.copy is not None or (move.target, move.receiver.name) not in self._replicas:
            return [move]
        return [replace(move, copy=replica) for replica in range(self._copies[move.receiver.name])]

    def _places(self, model: str, group: Group, copy: int | None) -> list[Place]:
        copies = range(self._copies[group.name]) if copy is None else [copy]
        return [(model, group.name, replica) for replica in copies]

    def _lacking(self, move: WeightTransfer, wanted: int) -> list[int]:
        """Return the replicas that do not have the weights of this count."""
        places = self._places(move.target, move.receiver, move.copy)
        return [place[-1] for place in places if self._held.get(place, 0) != wanted]

    def _hold(self, model: str, group: Group, copy: int | None, count: int) -> None:
        self._held |= dict.fromkeys(self._places(model, group, copy), count)

    def _wanted(self, move: WeightTransfer, version: int) -> int:
        """Return the count of the weights that a node works with, which are of this version."""
        return self._count(move.target, version if oldest_weights_age_versions(move.node) else None)

    def _count(self, model: str, version: int | None) -> int:
        """Return the count of changes at the end of a version; None: by now."""
        if version is None:
            return self._changes[model]
        if version < self._oldest.get(model, 0):
            return _GONE
        return self._ends.get((model, version), self._changes[model])

    def update_from_model(self, target: str, source: str, node: Node, step: Step) -> None:
        """Do the `update` of a program: take another model's weights, or a moving average with them."""
        sender, receiver = self.plan.owner(source), self.plan.owner(target)
        move = WeightTransfer(
            source, sender, target, receiver, node, step, ema_decay=node.attr("ema"), update_step=step
        )
        if sender.name == receiver.name:
            self.transport.assign_weights(move)
        else:
            self._move(move)()
        with self._lock:
            self._change(target, step)

    def _move(self, move: WeightTransfer) -> Callable[[], None]:
        """Begin a transfer. Returns a function that waits for it."""
        if move.update_step is None:
            # Weights that are brought are worked with next; what an update makes may stay off-loaded.
            move = replace(move, offload_change=self.beds.offload_change_for(move.target, move.receiver, move.copy))
        coming = self.transport.send_weights(move)
        return lambda: self._report(move, coming())

    def _report(self, move: WeightTransfer, moved: TransferCost) -> None:
        with self._lock:
            self._moved.setdefault(move.step.number, []).append(moved)
        self.observer.weights_sent(
            move.source, move.sender.name, move.receiver.name, moved.seconds, moved.sent_bytes, moved.peak_buffer_bytes
        )
