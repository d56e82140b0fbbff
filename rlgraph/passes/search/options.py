"""How a part can be split over so many devices, what each way takes, and what it needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import le
from typing import Literal

from rlgraph.cost.cluster import Island
from rlgraph.cost.constants import Constants
from rlgraph.cost.predict import DRAWING, need, order, rows, wake
from rlgraph.cost.spot import Spot
from rlgraph.cost.tasks import Task
from rlgraph.cost.time import Batch, Pace, generate, pace, share, update
from rlgraph.cost.work import kv_bytes
from rlgraph.ir.mesh import mesh
from rlgraph.models.families import Kind
from rlgraph.models.legal import problems
from rlgraph.models.shape import Shape
from rlgraph.passes.search.parts import Part

MICROS = (1, 2, 4, 8)
"""Longest rows that fit into a micro-batch."""

SLOTS_AT_ONCE = (16, 32, 64, 128, 256)
"""Longest rows that a generating engine's cache holds."""


@dataclass(frozen=True, slots=True)
class Option:
    """One way to do a part's work on some devices."""

    spot: Spot
    offload: bool
    seconds: tuple[float, ...]
    """Of each of the part's tasks, as often as it is done in a step."""
    resident: float
    """Bytes on each device while the pool does other work."""
    active: tuple[float, ...]
    """More bytes, during each of its tasks."""

    @property
    def peak(self) -> float:
        return self.resident + max(self.active, default=0.0)


@dataclass(frozen=True, slots=True)
class Way:
    """A split and its knobs, for any number of copies."""

    spot: Spot
    paces: tuple[Pace | None, ...]
    """Of each of the part's tasks; None: it samples."""
    fixed: float
    shared: float
    """Bytes that stay, and those of them that copies share out."""
    active: tuple[float, ...]


class Options:
    """The options of all parts, worked out once for each number of devices."""

    def __init__(self, tasks: Sequence[Task], constants: Constants, engines: Sequence[str]) -> None:
        """engines: those that may be chosen where the schedule names none."""
        self.tasks, self.constants, self.engines = tasks, constants, engines
        self._ways: dict[tuple[int, int], list[Way]] = {}
        self._found: dict[tuple[int, int, int, int], tuple[Option, ...]] = {}

    def of(self, number: int, part: Part, island: Island, devices: int, least: int) -> tuple[Option, ...]:
        """The options of a part on so many devices of an island, none of which another one beats in everything, fastest
        first. With `least` below `devices` they are optimistic: as fast as on all, and as little to exchange as on `least`."""
        key = (number, id(island), devices, least)
        if key not in self._found:
            fit = usable(island, self.constants)
            found = [option for option in self.all(number, part, island, devices, least) if option.peak <= fit]
            self._found[key] = tuple(_undominated(found))
        return self._found[key]

    def all(self, number: int, part: Part, island: Island, devices: int, least: int) -> Iterator[Option]:
        """All options, also those that do not fit."""
        if (number, id(island)) not in self._ways:
            self._ways[number, id(island)] = list(self.ways(part, island))
        most = max(1, int(max((batch.rows for batch in self.batches(part)), default=1.0)))
        for way in self._ways[number, id(island)]:
            one = way.spot.tp * way.spot.pp
            copies = part.pin.dp if part.pin and part.pin.dp else min(devices // one, most)
            if 0 < copies <= devices // one:
                yield from self.options(part, way, replace(way.spot, dp=copies), max(1, min(copies, least // one)))

    # What does not depend on the number of devices

    def ways(self, part: Part, island: Island) -> Iterator[Way]:
        """Every engine, every legal tp and pp, every setting."""
        for spot in self.splits(part, island):
            for full in self.knobs(part, spot):
                yield self.way(part, full)

    def splits(self, part: Part, island: Island) -> Iterator[Spot]:
        pin = part.pin
        for engine in [pin.engine] if pin and pin.engine else self.able(part):
            for tp, pp in legal(part.subject.shape, engine, part.subject.kind, island.per_node):
                wanted = pin is None or (pin.tp in (None, tp) and pin.pp in (None, pp))
                if wanted and tp * pp <= island.devices:
                    yield Spot(engine, island, tp, pp)

    def able(self, part: Part) -> list[str]:
        """The engine that is for a part's work; transformers where it cannot hold the model."""
        special = "vllm" if part.work == "draw" else "megatron"
        if special in self.engines and legal(part.subject.shape, special, part.subject.kind, 1):
            return [special]
        return ["transformers"]

    def knobs(self, part: Part, spot: Spot) -> Iterator[Spot]:
        """Sizes of micro-batches and caches, recomputation."""
        batches = self.batches(part)
        width = int(max((batch.row.longest for batch in batches), default=1.0)) + 1
        if part.work == "draw" and spot.engine == "vllm":
            row = kv_bytes(part.subject.shape, part.subject.item) / min(spot.tp, part.subject.shape.kv_heads) * width
            for rows in SLOTS_AT_ONCE:
                yield replace(spot, kv_bytes=int(row * rows))
        elif spot.engine == "megatron":
            for rows in MICROS:
                yield replace(spot, micro_tokens=rows * width)
                if part.work == "train":
                    yield replace(spot, micro_tokens=rows * width, recompute=True)
        else:
            yield spot

    def way(self, part: Part, spot: Spot) -> Way:
        paces, needs = [], []
        for op, batches in part.batches(self.tasks):
            kind: Literal["forward", "train"] = "train" if op == "train" else "forward"
            paces.append(None if op in DRAWING else pace(kind, part.subject, spot, self.constants, batches))
            needs.append(need(op, part.subject, spot, batches))
        fixed = max((each.resident.total for each in needs), default=0.0)
        shared = max((each.shared.total for each in needs), default=0.0)
        return Way(spot, tuple(paces), fixed, shared, tuple(each.active.total for each in needs))

    def batches(self, part: Part) -> list[Batch]:
        return [batch for _, each in part.batches(self.tasks) for batch in each]

    # What does

    def options(self, part: Part, way: Way, spot: Spot, few: int) -> Iterator[Option]:
        """With the model staying there, and with the model in the host's memory in between."""
        seconds, again = [], []
        resident = way.fixed + way.shared / spot.dp
        moved = wake(part.kind, resident - spot.kv_bytes, spot, part.work == "draw" and part.trained).seconds
        extra = order(replace(spot, dp=few), self.constants).seconds
        for number, own in zip(part.tasks, way.paces, strict=True):
            task = self.tasks[number]
            once = extra + rows(task.tokens, spot, self.constants).seconds
            if own is None:
                once += generate(part.subject, spot, self.constants, task.batches[0]).seconds
            else:
                once += own.seconds(share(task.batches, spot))
            if task.op == "train":
                once += self.updating(part, spot, few)
            seconds.append(once * task.times)
            again.append((once + moved) * task.times)
        yield Option(spot, False, tuple(seconds), resident, way.active)
        if spot.island.device.host:
            yield Option(spot, True, tuple(again), 0.0, tuple(resident + each for each in way.active))

    def updating(self, part: Part, spot: Spot, few: int) -> float:
        """The end of an optimizer step, with no more to exchange than `few` copies have."""
        found = update(part.subject, spot, self.constants)
        if few == spot.dp:
            return found.seconds
        less = update(part.subject, replace(spot, dp=few), self.constants).communication
        return found.seconds - max(0.0, found.communication - less)


def usable(island: Island, constants: Constants) -> float:
    """Bytes of a device that a plan may use."""
    return island.device.memory * (1 - constants.fragmentation) - constants.reserved


@cache
def legal(shape: Shape, engine: str, kind: Kind, per_node: int) -> tuple[tuple[int, int], ...]:
    """The tensor-parallel and pipeline sizes that an engine can split a model by; tensors over two nodes at most."""
    if engine == "transformers":
        return ((1, 1),)
    tensor = [2**power for power in range(12) if 2**power <= 2 * per_node]
    stages = [pp for pp in range(1, min(shape.layers, 64) + 1) if shape.layers % pp == 0] if engine == "megatron" else [1]
    return tuple(
        (tp, pp) for tp in tensor for pp in stages if not problems(shape, engine, mesh(1, pp, tp), kind)
    )


def _undominated(found: Sequence[Option]) -> list[Option]:
    """Those that no other one beats in every task's time and memory."""
    kept: list[Option] = []
    keys: list[tuple[float, ...]] = []
    for option in sorted(found, key=lambda each: (sum(each.seconds), each.resident, each.active)):
        key = (option.resident, *option.active, *option.seconds)
        if not any(all(map(le, other, key)) for other in keys):
            kept.append(option)
            keys.append(key)
    return kept
