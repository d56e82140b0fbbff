"""Whose weights are where, and how new: before a group works with a model, its owner's weights go there by a planned
transfer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rlgraph.backends.ray.dispatch import Queues, doing
from rlgraph.backends.ray.folder import parts
from rlgraph.backends.ray.links import Holding
from rlgraph.backends.ray.orders import numbered
from rlgraph.backends.ray.processes import Processes, What
from rlgraph.backends.ray.remote import Address
from rlgraph.backends.step import Step
from rlgraph.backends.steps import Observer
from rlgraph.backends.versions import Versions
from rlgraph.enginespec.registry import engine
from rlgraph.exchange.exchange import Moved
from rlgraph.ir.graph import Node, Program
from rlgraph.ir.plan import HOST, Group, Plan
from rlgraph.ir.transfer import Topology
from rlgraph.transfers.reshard import reshard

_BUCKET = 256 << 20
"""Bytes of messages that a process may have at a time, beside the weights themselves."""


class Weights:
    """Counts changes of every model, and brings weights where they are needed."""

    def __init__(self, program: Program, plan: Plan, processes: Processes, queues: Queues, observer: Observer) -> None:
        self.plan, self.processes, self.queues, self.observer = plan, processes, queues, observer
        names = [model.name for model in program.models]
        self.versions = Versions(program)
        self.updates = dict.fromkeys(names, 0)
        """Optimizer steps."""
        self._changes = dict.fromkeys(names, 0)
        """How often the weights changed; a group that has the same count has the same weights."""
        self._ends: dict[tuple[str, int], int] = {}
        """For each version that is no more the present one, the count at its end."""
        self._held: dict[tuple[str, str], int] = {}
        """For each model and group the count of the weights that are there; all begin with the same."""
        self._bringing = {(model, group.name): threading.Lock() for model in names for group in plan.groups}
        self._seconds, self._bytes, self._peak = 0.0, 0, 0
        self.nodes = {id(node): place for place, (_, node) in enumerate(numbered(program))}
        self._planned: dict[str, dict[tuple[int, int], int]] = {}
        """For each transfer the bytes from each process to each other one."""
        self._lock = threading.Lock()

    # Counting

    def trained(self, model: str, step: Step) -> None:
        with self._lock:
            self.updates[model] += 1
            self._change(model, step)

    def _change(self, model: str, step: Step) -> None:
        self._ends.setdefault((model, self.versions.at(model, step)), self._changes[model])
        self._changes[model] += 1
        self._held[model, self.plan.owner(model).name] = self._changes[model]

    def end_step(self) -> dict[str, float]:
        """What its transfers took."""
        told = {"sync/seconds": self._seconds, "sync/bytes": float(self._bytes), "sync/peak_bytes": float(self._peak)}
        moved = self._seconds > 0
        self._seconds, self._bytes, self._peak = 0.0, 0, 0
        return told if moved else {}

    # Moving

    def bring(self, model: str, group: Group, node: Node, step: Step) -> None:
        """Sees to it that a group has the weights that a node works with: the present ones, or a version before."""
        owner = self.plan.owner(model)
        if owner.name == group.name:
            return
        lag = node.attr("lag", 0)
        version = self.versions.at(model, step, 1 + lag) if lag else None
        wanted = self._changes[model] if version is None else self._ends.get((model, version), self._changes[model])
        with self._bringing[model, group.name]:
            # Whoever waited for another node that needs the same finds it done.
            if self._held.get((model, group.name), 0) != wanted:
                self._move(model, owner, model, group, node, version)
                self._held[model, group.name] = wanted

    def update(self, target: str, source: str, node: Node, step: Step) -> None:
        """The `update` of a program: another model's weights, or a moving average with them."""
        from_, to = self.plan.owner(source), self.plan.owner(target)
        if from_.name == to.name:
            with self.queues.turn(to.pool):
                self.ask(
                    What(_ranks(to), doing(node), node),
                    lambda each: ("take_over", step, self.nodes[id(node)], target, source),
                )
        else:
            self._move(source, from_, target, to, node, None, node.attr("ema"), step)
        with self._lock:
            self._change(target, step)

    def _move(
        self,
        source: str,
        from_: Group,
        target: str,
        to: Group,
        node: Node,
        version: int | None,
        ema: float | None = None,
        update: Step | None = None,
    ) -> None:
        name = f"{source}@{from_.name} > {target}@{to.name}" + ("" if ema is None else " (average)")
        who = (*_ranks(from_), *_ranks(to))
        what = What(who, f"the transfer of `{source}` from {from_.name} to {to.name}", node)
        with self.queues.turn(from_.pool, to.pool):
            if name not in self._planned:
                self._plan(name, source, from_, target, to, what, forward=ema is None)
            began = time.time()
            moved: list[Moved] = self.ask(
                what, lambda each: ("exchange", name, *_ends(each, source, from_, target, to), version, ema, update)
            )
            seconds = time.time() - began
            self.trace(f"sync {source}", name, what, began, moved)
        sent, peak = sum(each.sent for each in moved), max(each.peak for each in moved)
        with self._lock:
            self._seconds, self._bytes, self._peak = self._seconds + seconds, self._bytes + sent, max(self._peak, peak)
        self.observer.synced(source, from_.name, to.name, seconds, sent, peak)

    def trace(self, title: str, name: str, what: What, began: float, moved: Sequence[Moved]) -> None:
        """Tells the observer who took part in a transfer, and what went from whom to whom."""
        spans = [
            self.observer.span(
                self.plan.group(group).pool,
                f"{group} {rank}",
                title,
                "sync",
                began,
                began + each.seconds,
                sent=each.sent,
                received=each.received,
                peak=each.peak,
            )
            for (group, rank), each in zip(what.who, moved, strict=True)
        ]
        for (source, destination), size in self._planned[name].items():
            self.observer.flow(spans[source], spans[destination], "weights", size)

    def _plan(self, name: str, source: str, from_: Group, target: str, to: Group, what: What, *, forward: bool) -> None:
        """Plans a transfer once, from what the ranks themselves say that they have."""
        places = {who: place for place, who in enumerate(what.who)}
        held: list[Holding] = self.ask(what, lambda each: ("holding", source if each[0] == from_.name else target))
        sides = ({}, {})  # type: tuple[dict[int, tuple[Local, ...]], dict[int, tuple[Local, ...]]]
        for (group, _), place in places.items():
            sides[group == to.name][place] = held[place].layout
        dtype = min((each.dtype for each in held), key=lambda found: found.itemsize)
        topology = self.topology([self.plan.group(group).devices[rank] for group, rank in what.who], what.who, held)
        transfer = reshard(*sides, itemsize=dtype.itemsize, topology=topology, bucket=_BUCKET, forward=forward)
        self.meet(name, what)
        self.ask(what, lambda each: ("prepare", name, name, transfer, *_ends(each, source, from_, target, to), dtype))
        self._planned[name] = transfer.pairs()

    def topology(self, devices: Sequence[int], who: Sequence[Address], held: Sequence[Holding]) -> Topology:
        """Where the processes are."""
        pools = [self.plan.group(group).pool for group, _ in who]
        numbers: dict[tuple[str, int], int] = {}
        on = {
            place: numbers.setdefault(each, len(numbers)) for place, each in enumerate(zip(pools, devices, strict=True))
        }
        machines = list(dict.fromkeys(each.node for each in held))
        return Topology(on, {on[place]: machines.index(each.node) for place, each in enumerate(held)})

    def meet(self, link: str, what: What) -> None:
        """Joins the processes of a wait, the first of which listens."""
        places = {who: place for place, who in enumerate(what.who)}
        first = What(what.who[:1], what.doing, what.node)
        [address] = self.ask(first, lambda each: ("address",))
        self.ask(what, lambda each: ("meet", link, places[each], len(places), address))

    def ask(self, what: What, call: Callable[[Address], tuple[Any, ...]]) -> list[Any]:
        """Calls each process of a wait, and waits."""
        return self.processes.get([self.processes.call(each, *call(each)) for each in what.who], what)

    # Folders

    def save(self, model: str, folder: Path) -> None:
        """Writes a model as a Hugging Face folder, part by part: no process ever holds all of a model that is split."""
        owner = self.plan.owner(model)
        first = What(_ranks(owner)[:1], f"saving `{model}`")
        with self.queues.turn(owner.pool, HOST):
            if owner.mesh.size == owner.mesh.length("dp") and engine(owner.engine).saves:
                self.ask(first, lambda each: ("save", model, str(folder)))
            else:
                self._save_parts(model, owner, folder)

    def _save_parts(self, model: str, owner: Group, folder: Path) -> None:
        host = (HOST, 0)
        what = What((*_ranks(owner), host), f"saving `{model}`")
        alone = What((host,), what.doing)
        owners = What(_ranks(owner), what.doing)
        held: list[Holding] = self.ask(owners, lambda each: ("holding", model))
        dtype = held[0].dtype
        self.ask(alone, lambda each: ("begin_folder", model, str(folder)))
        link = f"{model} > {folder}"
        self.meet(link, what)
        for number, part in enumerate(parts(held, dtype.itemsize, _BUCKET)):
            source = {place: each.layout for place, each in enumerate(held)}
            topology = Topology.separate(range(len(what.who)))
            transfer = reshard(source, {len(held): part}, itemsize=dtype.itemsize, topology=topology, bucket=_BUCKET)
            name = f"{link} {number}"
            self.ask(
                what,
                lambda each, t=transfer, n=name, p=part: (  # type: ignore[misc]
                    ("prepare", link, n, t, None, p, dtype)
                    if each == host
                    else ("prepare", link, n, t, model, None, dtype)
                ),
            )
            self.ask(
                what,
                lambda each, n=name, p=part: (  # type: ignore[misc]
                    ("write_part", n, p, dtype) if each == host else ("exchange", n, model, None)
                ),
            )
        self.ask(alone, lambda each: ("end_folder",))


def _ends(who: Address, source: str, from_: Group, target: str, to: Group) -> tuple[str | None, str | None]:
    """The model that a process sends, and the one that it receives."""
    return (source if who[0] == from_.name else None, target if who[0] == to.name else None)


def _ranks(group: Group) -> tuple[Address, ...]:
    return tuple((group.name, rank) for rank in range(group.mesh.size))
