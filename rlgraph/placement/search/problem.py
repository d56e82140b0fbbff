"""What is minimized: the time of a step, or its price, for parts in pools with an option each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from rlgraph.clusters.cluster import Cluster, Island
from rlgraph.cost import time
from rlgraph.cost.constants import Constants
from rlgraph.cost.peak import usable
from rlgraph.cost.tasks import Task
from rlgraph.cost.time import Cost
from rlgraph.cost.timetable import Chains, Order, Pools, bound, chains, makespan
from rlgraph.ops.nodes import DRAWING
from rlgraph.placement.search.options import Option, Options
from rlgraph.placement.search.parts import Part

Goal = Literal["time", "cost"]


@dataclass(frozen=True, slots=True)
class Block:
    """Parts that share a pool."""

    parts: tuple[int, ...]
    island: int
    name: str = ""
    """Of a pool that the schedule declares."""
    devices: int = 0
    """Of such a pool; 0: free."""


Blocks = tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Way:
    """What a partition says of the jobs."""

    home: Mapping[int, int]
    """For each part its block."""
    pools: Pools
    """For each job."""
    chained: Chains


class Problem:
    """The step's work, its parts, and the cluster."""

    def __init__(
        self,
        tasks: Sequence[Task],
        parts: Sequence[Part],
        cluster: Cluster,
        constants: Constants,
        options: Options,
        goal: Goal,
    ) -> None:
        self.tasks, self.parts, self.cluster, self.constants = tasks, parts, cluster, constants
        self.options, self.goal = options, goal
        self._ways: dict[Blocks, Way] = {}
        self._syncs: dict[tuple[object, ...], float] = {}
        own = {(part.model, part.work == "draw"): number for number, part in enumerate(parts)}
        self.part_of = [own[task.model, task.op in DRAWING] if task.model else None for task in tasks]
        """For each task its part; None: the host does it."""
        self.syncs = [
            (own[part.model, False], number)
            for number, part in enumerate(parts)
            if part.work == "draw" and part.trained and part.tasks
        ]
        """Parts whose new weights other ones need at the start of a step."""
        self.leading = {
            number for _, number in self.syncs if not any(self._waits(task) for task in parts[number].tasks)
        }
        """Of these, the parts that need nothing else of a model."""

    def _waits(self, number: int) -> bool:
        """Whether a task needs what another part made."""
        return any(self.tasks[other].model or self._waits(other) for other in self.tasks[number].after)

    @cached_property
    def order(self) -> Order:
        """Of the tasks, each transfer of weights before them as a task of its own."""
        count = len(self.syncs)
        drawn = {number: at for at, (_, number) in enumerate(self.syncs)}
        after: list[tuple[int, ...]] = [() for _ in self.syncs]
        for task, part in zip(self.tasks, self.part_of, strict=True):
            waits = tuple(number + count for number in task.after)
            after.append((drawn[part], *waits) if part in drawn else waits)
        return Order.of(after)

    @cached_property
    def host(self) -> list[float]:
        """Seconds of each task that the host does."""
        host = self.constants.host
        return [
            0.0
            if task.model
            else task.times * (host.node + task.rows * (host.function_row if task.op == "call" else host.row))
            for task in self.tasks
        ]

    def way(self, blocks: Blocks) -> Way:
        """How jobs run on some pools; the host is the last one."""
        if blocks not in self._ways:
            home = {part: number for number, block in enumerate(blocks) for part in block.parts}
            pools = [tuple(sorted({home[source], home[target]})) for source, target in self.syncs]
            pools += [(len(blocks) if part is None else home[part],) for part in self.part_of]
            self._ways[blocks] = Way(home, pools, chains(self.order, pools, len(blocks) + 1))
        return self._ways[blocks]

    def seconds(self, durations: Mapping[int, Sequence[float]], syncs: Sequence[float]) -> list[float]:
        """Of each job, from those of each part's tasks."""
        found = [*syncs, *self.host]
        for number, own in durations.items():
            for task, length in zip(self.parts[number].tasks, own, strict=True):
                found[len(syncs) + task] = length
        return found

    def sync(self, part: int, source: Option, target: Option, together: bool) -> float:
        """Seconds that the new weights of a part take to where its model generates."""
        key = (part, id(source.split), id(target.split), together)
        if key not in self._syncs:
            subject = self.parts[part].subject
            same = together and source.split == target.split
            cost = Cost() if same else time.sync(subject, source.spot, target.spot, together, self.constants)
            self._syncs[key] = cost.seconds
        return self._syncs[key]

    def price(self, blocks: Blocks, devices: Sequence[int]) -> float:
        """Dollars a second of the devices of all pools."""
        found = 0.0
        for block, count in zip(blocks, devices, strict=True):
            found += count * self.island(block).device.price
        return found / 3600

    def island(self, block: Block) -> Island:
        return self.cluster.islands[block.island]

    def value(self, seconds: float, blocks: Blocks, devices: Sequence[int]) -> float:
        """What is minimized."""
        return seconds if self.goal == "time" else seconds * self.price(blocks, devices)

    def least(self, durations: Mapping[int, Sequence[float]], syncs: Sequence[float], way: Way) -> float:
        """Seconds that no order of the jobs can beat."""
        return bound(self.order, self.seconds(durations, syncs), way.chained)

    def step(self, durations: Mapping[int, Sequence[float]], syncs: Sequence[float], way: Way) -> float:
        """Seconds of a step."""
        return makespan(self.order, self.seconds(durations, syncs), way.pools)

    def fits(self, chosen: Sequence[Option], island: Island) -> bool:
        """Whether options can share a pool."""
        return peak(chosen) <= usable(island, self.constants)


def peak(chosen: Sequence[Option]) -> float:
    """Bytes of a device of a pool at the fullest moment."""
    return sum(option.resident for option in chosen) + max((max(o.active, default=0.0) for o in chosen), default=0.0)
