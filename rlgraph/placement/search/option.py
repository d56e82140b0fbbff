"""One way to do a component's work on some devices: how it is split, what it takes, and what it needs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from operator import attrgetter, le, lt

from rlgraph.clusters.cluster import Island
from rlgraph.cost.deployment import Deployment
from rlgraph.cost.memory import MemoryModel
from rlgraph.cost.predict import TaskModel
from rlgraph.ir.mesh import Mesh

Split = tuple[str, int, Mesh, int]
"""Engine, island, the mesh of a copy, and copies."""


class Option:
    """A component's work done on some devices."""

    __slots__ = (
        *("_deployment", "active", "copies", "key", "kind", "offload", "order", "peak", "resident", "seconds"),
        *("split", "strategy"),
    )

    def __init__(
        self,
        strategy: Strategy,
        copies: int,
        split: Split,
        offload: bool,
        seconds: tuple[float, ...],
        resident: float,
        active: tuple[float, ...],
        kind: object,
        sent: tuple[float, ...],
    ) -> None:
        """kind, sent: what decides how fast weights and rows come from here, or to here."""
        self.strategy, self.copies, self.offload = strategy, copies, offload
        self.seconds = seconds
        """Of each of the component's tasks, as often as it is done in a step."""
        self.resident = resident
        """Bytes on each device while the pool does other work."""
        self.active = active
        """More bytes, during each of its tasks."""
        self.peak = resident + max(active, default=0.0)
        self.split = split
        """What a transfer of its weights depends on; options of one split have the same object."""
        self.kind, self.key = kind, (resident, *active, *seconds, *sent)
        """Of options of one kind the one that is the lesser in each number is at least as good."""
        self.order = (sum(seconds), offload, resident, active)
        """Fastest first."""
        self._deployment: Deployment | None = None

    @property
    def deployment(self) -> Deployment:
        """Of all copies."""
        if self._deployment is None:
            self._deployment = self.strategy.deployment.copied(self.copies)
        return self._deployment

    @property
    def island(self) -> Island:
        return self.strategy.deployment.island

    @property
    def devices(self) -> int:
        """In a row that it lies among."""
        island, tp = self.island, self.strategy.deployment.tp
        return island.reach(tp, self.copies * (self.strategy.size // tp))


class Strategy:
    """A split and its settings, for any number of copies; `deployment` is of one."""

    __slots__ = ("deployment", "idle", "made", "memory", "near", "paying", "process", "size", "tasks")

    def __init__(
        self,
        deployment: Deployment,
        tasks: Sequence[TaskModel],
        memory: Sequence[MemoryModel],
        idle: Sequence[MemoryModel] = (),
        process: tuple[int, int] = (0, 0),
    ) -> None:
        """process: bytes of a device that it takes beside tensors, with one copy and with several."""
        self.deployment, self.process = deployment, process
        self.size = deployment.size
        """Devices of a copy."""
        self.tasks, self.memory = tuple(tasks), tuple(memory)
        """What each of the component's tasks takes, and what it needs."""
        self.idle = tuple(idle)
        """Of what the component does outside of the step, for which it is there all the same."""
        self.near = self.room(deployment.island.per_node)
        """Copies that one node has room for."""
        self.made: dict[int, tuple[Option, ...]] = {}
        """The options that were worked out, by their copies."""
        self.paying: dict[int, list[int]] = {}
        """Numbers of copies that are worth it, by the most that there may be."""

    def room(self, devices: int) -> int:
        """How many copies so many devices in a row have room for."""
        tp = self.deployment.tp
        return self.deployment.island.teams(tp, devices) // (self.size // tp)

    def needs(self, copies: int) -> tuple[float, tuple[float, ...]]:
        """Bytes that stay on each device of so many copies unless the model is off-loaded, and more of them during each
        of the component's tasks."""
        held, active = 0.0, []
        for each in self.memory:
            stays, more = each.totals(copies)
            active.append(more)
            held = max(held, stays)
        for each in self.idle:
            held = max(held, each.totals(copies)[0])
        return held, tuple(active)

    def least(self, copies: int) -> float:
        """Bytes of a device that at most so many copies need at least."""
        return self.process[0] + max((each.least(copies) for each in self.memory), default=0.0)

    def held(self, copies: int) -> int:
        """Bytes that a process of so many copies has beside tensors. Two components that are split alike share their
        processes; the search does not count on that."""
        return self.process[copies > 1]

    def lighter(self, numbers: Sequence[int]) -> list[int]:
        """Of numbers of copies, most first, those that may need less memory than the number before: the rows that each
        copy has may be cut into smaller micro-batches, or one copy has nobody to exchange with."""
        loads = [[*chain.from_iterable(each.load(copies) for each in self.memory)] for copies in numbers]
        return [
            fewer
            for (more, fewer), (heavy, light) in zip(pairwise(numbers), pairwise(loads), strict=True)
            if self.held(fewer) < self.held(more) or any(map(lt, light, heavy))
        ]


def undominated(found: Sequence[Option]) -> list[Option]:
    """Those that no other one beats in every task's time and memory, in how fast the model's weights come if they are
    brought from here or to here, and in how many links rows have to other islands; fastest first."""
    kept: list[Option] = []
    keys: dict[object, list[tuple[float, ...]]] = {}
    for option in sorted(found, key=attrgetter("order")):
        others, key = keys.setdefault(option.kind, []), option.key
        for at, other in enumerate(others):
            if all(map(le, other, key)):
                # What beats one option often beats the next.
                others.insert(0, others.pop(at))
                break
        else:
            kept.append(option)
            others.append(key)
    return kept
