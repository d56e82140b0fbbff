"""How a part can be split over so many devices, what each way takes, and what it needs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from operator import le, lt
from typing import Literal

from rlgraph.clusters.cluster import Island
from rlgraph.cost.constants import Constants
from rlgraph.cost.peak import usable
from rlgraph.cost.predict import need, order, rows, wake
from rlgraph.cost.spot import Spot
from rlgraph.cost.tasks import Task
from rlgraph.cost.time import Batch, Pace, Update, generate, pace, update
from rlgraph.cost.work import kv_bytes
from rlgraph.enginespec.legal import problems
from rlgraph.ir.mesh import mesh
from rlgraph.models.families import Kind
from rlgraph.models.shape import Shape
from rlgraph.ops.nodes import DRAWING
from rlgraph.placement.search.parts import Part

MICROS = (1, 2, 4, 8)
"""Longest rows that fit into a micro-batch."""

SLOTS_AT_ONCE = (16, 32, 64, 128, 256)
"""Longest rows that a generating engine's cache holds."""

Split = tuple[str, int, int, int, int]
"""Engine, island, tp, pp and copies."""


class Option:
    """One way to do a part's work on some devices."""

    __slots__ = ("active", "copies", "key", "offload", "peak", "resident", "seconds", "split", "way")

    def __init__(
        self,
        way: Way,
        copies: int,
        split: Split,
        offload: bool,
        seconds: tuple[float, ...],
        resident: float,
        active: tuple[float, ...],
    ) -> None:
        self.way, self.copies, self.offload = way, copies, offload
        self.seconds = seconds
        """Of each of the part's tasks, as often as it is done in a step."""
        self.resident = resident
        """Bytes on each device while the pool does other work."""
        self.active = active
        """More bytes, during each of its tasks."""
        self.peak = resident + max(active, default=0.0)
        self.split = split
        """What a transfer of its weights depends on; options of one split have the same object."""
        self.key = (resident, *active, *seconds)

    @property
    def spot(self) -> Spot:
        return replace(self.way.spot, dp=self.copies)

    @property
    def devices(self) -> int:
        """That it uses."""
        return self.way.spot.tp * self.way.spot.pp * self.copies


class Way:
    """A split and its settings, for any number of copies."""

    __slots__ = ("active", "fixed", "known", "paces", "shared", "spot", "update")

    def __init__(
        self,
        spot: Spot,
        paces: Sequence[Pace | None],
        update: Update | None,
        fixed: float,
        shared: float,
        active: Sequence[float],
    ) -> None:
        self.spot, self.update = spot, update
        self.paces = tuple(paces)
        """Of each of the part's tasks; None: it samples."""
        self.fixed, self.shared = fixed, shared
        """Bytes that stay, and more of them that copies share out."""
        self.active = tuple(active)
        self.known: dict[tuple[int, float], float] = {}
        """Seconds of sampling tasks by their place and the rows of a copy."""


class Options:
    """The options of all parts, worked out once for each number of devices."""

    def __init__(
        self, tasks: Sequence[Task], constants: Constants, engines: Sequence[str], *, offload: bool = True
    ) -> None:
        """engines: those that may be chosen where the schedule names none. offload: models may be in the host's memory
        while they are not at work."""
        self.tasks, self.constants, self.engines, self.offload = tasks, constants, engines, offload
        self._ways: dict[tuple[int, int], list[Way]] = {}
        self._made: dict[tuple[int, int], tuple[Option, ...]] = {}
        self._splits: dict[Split, Split] = {}
        self._fronts: dict[tuple[int, ...], tuple[Option, ...]] = {}
        self._found: dict[tuple[int, int, int], tuple[Option, ...]] = {}

    def of(self, number: int, part: Part, island: Island, devices: int) -> tuple[Option, ...]:
        """The options of a part on at most so many devices of an island, none of which another one beats in everything,
        fastest first. More devices have all the options of fewer."""
        key = (number, id(island), devices)
        if key not in self._found:
            found = list(self.all(number, part, island, devices))
            # Neighbouring numbers of devices often have the same options.
            front = (number, *map(id, found))
            if front not in self._fronts:
                fit = usable(island, self.constants)
                self._fronts[front] = tuple(_undominated([option for option in found if option.peak <= fit], part))
            self._found[key] = self._fronts[front]
        return self._found[key]

    def all(self, number: int, part: Part, island: Island, devices: int) -> Iterator[Option]:
        """All options, also those that do not fit beside others."""
        if (number, id(island)) not in self._ways:
            self._ways[number, id(island)] = list(self.ways(part, island))
        units = sorted({batch.rows / batch.samples for batch in self.batches(part)}) or [1.0]
        for way in self._ways[number, id(island)]:
            before: tuple[float, ...] = ()
            for copies in _copies(part, units, devices // (way.spot.tp * way.spot.pp)):
                key = (id(way), copies)
                if key not in self._made:
                    self._made[key] = tuple(self.options(part, way, copies))
                yield from self._made[key]
                seconds = self._made[key][0].seconds
                # Fewer copies have less to exchange. Where that does not pay, still fewer do not pay either.
                if before and not any(map(lt, seconds, before)) and not _alike(part, way.spot):
                    break
                before = seconds

    # What does not depend on the number of devices

    def ways(self, part: Part, island: Island) -> Iterator[Way]:
        """Every engine, every legal tp and pp, every setting."""
        fit = usable(island, self.constants)
        for spot in self.splits(part, island):
            for full in self.knobs(part, spot):
                way = self.way(part, full)
                if way.fixed + max(way.active, default=0.0) <= fit:
                    yield way

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
        changes = update(part.subject, spot, self.constants) if part.work == "train" else None
        fixed = max((each.resident.total for each in needs), default=0.0)
        shared = max((each.shared.total for each in needs), default=0.0)
        return Way(spot, paces, changes, fixed, shared, [each.active.total for each in needs])

    def batches(self, part: Part) -> list[Batch]:
        return [batch for _, each in part.batches(self.tasks) for batch in each]

    # What does

    def options(self, part: Part, way: Way, copies: int) -> Iterator[Option]:
        """With the model staying there, and with the model in the host's memory in between."""
        spot, constants = way.spot, self.constants
        resident = way.fixed + way.shared / copies
        synced = part.work == "draw" and part.trained
        # What is called a CPU's device memory is its host's.
        away = self.offload and spot.island.device.name != "cpu"
        moved = wake(part.kind, resident - spot.kv_bytes, spot, synced).seconds if away else 0.0
        extra = order(spot.tp * spot.pp * copies, constants).seconds
        seconds, again = [], []
        for place, number in enumerate(part.tasks):
            task = self.tasks[number]
            once = (
                extra
                + rows(task.tokens, copies, spot.island, constants).seconds
                + self.working(part, way, place, copies)
            )
            if task.op == "train" and way.update:
                once += way.update.cost(copies).seconds
            seconds.append(once * task.times)
            again.append((once + moved) * task.times)
        split = (spot.engine, id(spot.island), spot.tp, spot.pp, copies)
        split = self._splits.setdefault(split, split)
        yield Option(way, copies, split, False, tuple(seconds), resident, way.active)
        if away:
            yield Option(way, copies, split, True, tuple(again), 0.0, tuple(resident + each for each in way.active))

    def working(self, part: Part, way: Way, place: int, copies: int) -> float:
        """Seconds of one of a part's tasks, without what follows a step."""
        batches, found = self.tasks[part.tasks[place]].batches, way.paces[place]
        mine = sum(batch.share(copies * way.spot.threads) for batch in batches)
        if found is not None:
            return found.seconds(mine)
        key = (place, mine)
        if key not in way.known:
            spot = replace(way.spot, dp=copies)
            way.known[key] = generate(part.subject, spot, self.constants, batches[0]).seconds
        return way.known[key]


@cache
def legal(shape: Shape, engine: str, kind: Kind, per_node: int) -> tuple[tuple[int, int], ...]:
    """The tensor-parallel and pipeline sizes that an engine can split a model by; tensors over two nodes at most."""
    if engine == "transformers":
        return ((1, 1),)
    tensor = [2**power for power in range(12) if 2**power <= 2 * per_node]
    stages = (
        [pp for pp in range(1, min(shape.layers, 64) + 1) if shape.layers % pp == 0] if engine == "megatron" else [1]
    )
    return tuple((tp, pp) for tp in tensor for pp in stages if not problems(shape, engine, mesh(1, pp, tp), kind))


def _copies(part: Part, units: Sequence[float], most: int) -> Iterator[int]:
    """How many data-parallel copies a part can have, most first: what is pinned, or the fewest for each number of rows
    that the fullest copy can have. More copies would wait, and have to be told."""
    if part.pin and part.pin.dp:
        if part.pin.dp <= most:
            yield part.pin.dp
        return
    while most > 0:
        most = max(math.ceil(count / math.ceil(count / most)) for count in units)
        yield most
        most -= 1


def _undominated(found: Sequence[Option], part: Part) -> list[Option]:
    """Those that no other one beats in every task's time and memory, and, if the model's weights are brought from here
    or to here, in how fast they come."""
    kept: list[Option] = []
    keys: dict[object, list[tuple[float, ...]]] = {}
    for option in sorted(found, key=lambda each: (sum(each.seconds), each.offload, each.resident, each.active)):
        group, more = _brought(option, part)
        others = keys.setdefault(group, [])
        key = (*option.key, *more)
        if not any(all(map(le, other, key)) for other in others):
            kept.append(option)
            others.append(key)
    return kept


def _brought(option: Option, part: Part) -> tuple[object, tuple[float, ...]]:
    """What decides how fast weights come from a part, or to it (`cost.time.sync`): of options of the same group, they
    come at least as fast with the one that is the lesser in each number."""
    if not (part.trained and part.draws):
        return None, ()
    spot = option.way.spot
    reach, per_node = spot.tp * spot.pp, spot.island.per_node
    if _alike(part, spot) or per_node & (per_node - 1):
        # Tensors are split by powers of two, which may not divide such a node: only the same split is sure to be as
        # good.
        return option.split, ()
    width = -min(option.devices, per_node)
    if part.work == "draw":
        return spot.tp, (width,)
    return spot.tp, (width, spot.pp, reach > per_node or per_node % reach != 0)


def _alike(part: Part, spot: Spot) -> bool:
    """Whether one engine trains and generates: with the same split in both, weights do not travel at all."""
    return part.trained and part.draws and spot.engine == "transformers"
