"""Whose weights are where, and how new: before a group works with a model, its owner's weights go there by a planned transfer."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlgraph.backends.ray.dispatch import Queues, doing
from rlgraph.backends.ray.orders import numbered
from rlgraph.backends.ray.processes import Processes, What
from rlgraph.backends.ray.remote import Address
from rlgraph.backends.steps import Observer
from rlgraph.ir.graph import Node, Program
from rlgraph.ir.plan import Group, Plan
from rlgraph.ir.transfer import Topology, Transfer
from rlgraph.passes.reshard import reshard

_BUCKET = 256 << 20
"""Bytes of messages that a process may have at a time, beside the weights themselves."""


class Weights:
    """Counts changes of every model, and brings weights where they are needed."""

    def __init__(
        self, program: Program, plan: Plan, processes: Processes, queues: Queues, observer: Observer
    ) -> None:
        self.plan, self.processes, self.queues, self.observer = plan, processes, queues, observer
        names = [model.name for model in program.models]
        self.versions = dict.fromkeys(names, 0)
        """Steps in which a model's weights changed."""
        self.updates = dict.fromkeys(names, 0)
        """Optimizer steps."""
        self._changes = dict.fromkeys(names, 0)
        """How often the weights changed; a group that has the same count has the same weights."""
        self._published: dict[str, list[int]] = {name: [0] for name in names}
        """For each version, the count at its end."""
        self._held: dict[tuple[str, str], int] = {}
        """For each model and group the count of the weights that are there; all begin with the same."""
        self._touched: set[str] = set()
        self._seconds, self._bytes, self._peak = 0.0, 0, 0
        self.nodes = {id(node): place for place, (_, node) in enumerate(numbered(program))}
        self._transfers: dict[str, Transfer] = {}
        self._lock = threading.Lock()

    # Counting

    def trained(self, model: str) -> None:
        with self._lock:
            self.updates[model] += 1
            self._change(model)

    def _change(self, model: str) -> None:
        self._changes[model] += 1
        self._touched.add(model)
        self._held[model, self.plan.owner(model).name] = self._changes[model]

    def end_step(self) -> dict[str, float]:
        """Publishes the weights that changed in this step. What its transfers took."""
        for model in sorted(self._touched):
            self.versions[model] += 1
            self._published[model].append(self._changes[model])
            group = self.plan.owner(model)
            who = _ranks(group)
            self.processes.get([self.processes.call(each, "publish", model) for each in who], What(who, f"the end of the step for `{model}`"))
        self._touched = set()
        told = {"sync/seconds": self._seconds, "sync/bytes": float(self._bytes), "sync/peak_bytes": float(self._peak)}
        moved = self._seconds > 0
        self._seconds, self._bytes, self._peak = 0.0, 0, 0
        return told if moved else {}

    # Moving

    def bring(self, model: str, group: Group, node: Node) -> None:
        """Sees to it that a group has the weights that a node works with: the newest ones, or of some versions ago."""
        owner = self.plan.owner(model)
        if owner.name == group.name:
            return
        lag = min(node.attr("lag", 0) if node.op in ("generate", "interact") else 0, self.versions[model])
        wanted = self._published[model][self.versions[model] - lag] if lag else self._changes[model]
        if self._held.get((model, group.name), 0) == wanted:
            return
        self._move(model, owner, model, group, node, lag)
        self._held[model, group.name] = wanted

    def update(self, target: str, source: str, node: Node) -> None:
        """The `update` of a program: another model's weights, or a moving average with them."""
        from_, to = self.plan.owner(source), self.plan.owner(target)
        if from_.name == to.name:
            who = _ranks(to)
            with self.queues.turn(to.pool):
                references = [self.processes.call(each, "take_over", self.nodes[id(node)], target, source) for each in who]
                self.processes.get(references, What(who, doing(node), node))
        else:
            self._move(source, from_, target, to, node, 0, node.attr("ema"))
        with self._lock:
            self._change(target)

    def _move(
        self, source: str, from_: Group, target: str, to: Group, node: Node, lag: int, ema: float | None = None
    ) -> None:
        name = f"{source}@{from_.name} > {target}@{to.name}"
        who = tuple(dict.fromkeys((*_ranks(from_), *_ranks(to))))
        what = What(who, f"the transfer of `{source}` from {from_.name} to {to.name}", node)
        with self.queues.turn(from_.pool, to.pool):
            if name not in self._transfers:
                self._transfers[name] = self._connect(name, source, from_, target, to, what)
            began = time.perf_counter()
            references = [
                self.processes.call(each, "exchange", name, source if each[0] == from_.name else None,
                                    target if each[0] == to.name else None, lag, ema)
                for each in who
            ]  # fmt: skip
            moved = self.processes.get(references, what)
            seconds = time.perf_counter() - began
        sent, peak = sum(each.sent for each in moved), max(each.peak for each in moved)
        with self._lock:
            self._seconds, self._bytes, self._peak = self._seconds + seconds, self._bytes + sent, max(self._peak, peak)
        self.observer.synced(source, from_.name, to.name, seconds, sent, peak)

    def _connect(self, name: str, source: str, from_: Group, target: str, to: Group, what: What) -> Transfer:
        """Plans a transfer once, from what the ranks themselves say that they hold."""
        places = {who: place for place, who in enumerate(what.who)}
        sides = []
        for model, group in ((source, from_), (target, to)):
            ranks = _ranks(group)
            layouts = self.processes.get([self.processes.call(each, "layout", model) for each in ranks], What(ranks, what.doing))
            sides.append({places[each]: layout for each, layout in zip(ranks, layouts, strict=True)})
        transfer = reshard(*sides, itemsize=4, topology=Topology.separate(places.values()), bucket=_BUCKET)
        [address] = self.processes.get([self.processes.call(what.who[0], "address")], What(what.who[:1], what.doing))
        references = [self.processes.call(each, "connect", name, transfer, place, len(places), address) for each, place in places.items()]
        self.processes.get(references, what)
        return transfer

    def save(self, model: str, folder: Path) -> None:
        raise NotImplementedError


def _ranks(group: Group) -> tuple[Address, ...]:
    return tuple((group.name, rank) for rank in range(group.mesh.size))
