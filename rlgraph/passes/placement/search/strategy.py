"""A strategy: one way to split a model, with its settings, for any number of replicas."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from itertools import chain, pairwise
from operator import lt
from typing import NamedTuple

from rlgraph.catalog.clusters.cluster import NodeGroup
from rlgraph.ir.mesh import Mesh
from rlgraph.passes.cost.deployment import Deployment
from rlgraph.passes.cost.memory import MemoryModel
from rlgraph.passes.cost.predict import TaskCostModel
from rlgraph.passes.memo import get_or_compute
from rlgraph.passes.placement.search.kv_cache_sizes import KVCacheSizes

Key = tuple[float, ...]
Ranks = tuple[str, int, Mesh, int]
"""An engine, a node group, the mesh of a replica, and the number of replicas."""


class Split(NamedTuple):
    """How a component is split; options of one split have the same object."""

    engine: str
    island: int
    mesh: Mesh
    """The mesh of a replica."""
    copies: int
    shared: bool
    """Whether another component of the same model with the same split in the same pool has the same weights."""
    weights: tuple[object, ...]
    """What a transfer of its weights depends on."""

    @property
    def pipeline_key(self) -> Ranks:
        """What the options that share a pipeline have in common."""
        return self[:4]


class Strategy:
    """A split and its settings, for any number of replicas; `deployment` is that of one."""

    __slots__ = (
        *(
            "_floors",
            "_least",
            "_seconds",
            "beyond",
            "cache",
            "caches",
            "deployment",
            "fewer",
            "fuses",
            "idle",
            "memory",
            "near",
            "process",
        ),
        *("sent", "size", "tasks"),
    )

    def __init__(
        self,
        deployment: Deployment,
        tasks: Sequence[TaskCostModel],
        memory: Sequence[MemoryModel],
        idle: Sequence[MemoryModel] = (),
        process: tuple[int, int] = (0, 0),
        alike: Strategy | None = None,
        fuses: bool = False,
        fewest: int = 1,
    ) -> None:
        """process: bytes of a device that it takes besides tensors, with one replica and with several. alike: a
        strategy of the same split with other settings. fuses: whether it trains on stages which another training may
        share. fewest: the fewest replicas that it has."""
        self.fuses = fuses
        self.deployment, self.process = deployment, process
        self.size = deployment.rank_count
        """Devices of a replica."""
        self.tasks, self.memory = tuple(tasks), tuple(memory)
        """What each of the component's tasks takes, and what it needs."""
        self.idle = tuple(idle)
        """The memory of what the component does outside of the step, for which it is there all the same."""
        inner = deployment.island.inner
        self.beyond = max(
            fewest - 1, inner.count_replicas(deployment.tp, self.size, inner.device_count) if inner else 0
        )
        """There are more replicas than this; of fewer, the last of several node groups would have none."""
        self.near = 0 if inner else self.most_replicas(deployment.island.per_node)
        """Replicas that one node has room for, where all may lie on one."""
        self._seconds: dict[int, tuple[float, ...]] = {}
        """By the number of replicas."""
        self._least: dict[tuple[int, bool], tuple[float, ...]] = {}
        """By the most replicas, and whether stages wait."""
        self._floors: dict[tuple[int, bool, int], tuple[float, tuple[float, ...]]] = alike._floors if alike else {}
        """By the number of replicas, and the settings that matter."""
        self.sent: dict[int, tuple[Split, object, Key]] = (
            alike.sent if alike and alike.deployment.mesh == deployment.mesh else {}
        )
        """What decides how fast its weights travel, by the number of replicas."""
        self.caches: KVCacheSizes[Strategy] | None = None
        """The caches that it can have, of a generating engine; `cache` is the number of the one that it has."""
        self.cache = 0
        self.fewer: list[int] | None = None
        """The result of `lighter_replica_counts` for all numbers that there may be, once it is known."""

    def most_replicas(self, devices: int) -> int:
        """Return how many replicas so many devices in a row have room for."""
        return self.deployment.island.count_replicas(self.deployment.tp, self.size, devices)

    def needed_bytes(self, copies: int) -> tuple[float, tuple[float, ...]]:
        """Return the bytes that stay on each device of so many replicas unless the model is offloaded, and the
        additional ones during each of the component's tasks."""
        return _together(
            [model.resident_and_work_bytes(copies) for model in self.memory],
            [model.resident_and_work_bytes(copies) for model in self.idle],
        )

    @property
    def never_offloaded_bytes(self) -> float:
        """Return the bytes that stay on each device though the model is offloaded."""
        return max((model.never_offloaded_bytes for model in (*self.memory, *self.idle)), default=0.0)

    def offloaded_host_bytes(self, copies: int) -> float:
        """Return the bytes that the hosts of so many replicas keep while the model is offloaded, on the fullest
        node."""
        replica_bytes = max((model.offloaded_host_bytes(copies) for model in (*self.memory, *self.idle)), default=0.0)
        return replica_bytes * self._devices_of_fullest_node(copies)

    def optimizer_host_bytes(self, copies: int) -> float:
        """Return the bytes of an optimizer's state that the hosts of so many replicas have all the time, on the
        fullest node."""
        replica_bytes = max((model.optimizer_host_bytes(copies) for model in (*self.memory, *self.idle)), default=0.0)
        return replica_bytes * self._devices_of_fullest_node(copies)

    def _devices_of_fullest_node(self, copies: int) -> int:
        tp = self.deployment.tp
        parts = self.deployment.island.parts or (self.deployment.island,)
        most = max(part.per_node if tp > part.per_node else part.per_node // tp * tp for part in parts)
        return min(most, copies * self.size)

    def task_seconds(self, copies: int) -> tuple[float, ...]:
        """Return the seconds of each of the component's tasks, once."""
        seconds = self._seconds.get(copies)
        if seconds is None:
            seconds = self._seconds[copies] = tuple([task.seconds(copies) for task in self.tasks])
        return seconds

    def on_like_nodes(self, island: NodeGroup, alike: Strategy | None = None) -> Strategy:
        """Return the strategy on a node group where everything takes as long and needs as much: what is known of that
        is shared. alike: as for the constructor."""
        result = copy(self)
        result.deployment, result.fewer = replace(self.deployment, island=island), None
        result.sent = alike.sent if alike and alike.deployment.mesh == self.deployment.mesh else {}
        return result

    def share_memory(self, kin: Strategy) -> None:
        """Take what is known of the memory of the same strategy on another node group, where everything needs as
        much."""
        self._floors = kin._floors
        if kin.deployment.island.nodes == self.deployment.island.nodes:
            self.fewer = kin.fewer

    def least_task_seconds(self, most: int, shares: bool) -> tuple[float, ...]:
        """Return seconds of each of the component's tasks, once, that no number of replicas up to `most` takes less
        than; quick to compute. shares: whether it may share its pipeline with others."""
        waits = self.stages_wait and not (shares and self.fuses)
        return get_or_compute(
            self._least, (most, waits), lambda: tuple([task.least_seconds(most, waits) for task in self.tasks])
        )

    @property
    def stages_wait(self) -> bool:
        """Whether the stages of its pipeline wait for each other as they do with one part of the layers on each."""
        return True

    def needed_bytes_bound(self, copies: int) -> tuple[float, tuple[float, ...]]:
        """Return a lower bound of `needed_bytes` that is quicker to compute."""
        key = (copies, self.deployment.recompute, self.deployment.kv_bytes)
        return get_or_compute(
            self._floors,
            key,
            lambda: _together(
                [model.lower_bound_bytes(copies) for model in self.memory],
                [model.lower_bound_bytes(copies) for model in self.idle],
            ),
        )

    def least_peak(self, copies: int) -> float:
        """Return a lower bound of the bytes of a device of so many replicas at the fullest moment."""
        held, active = self.needed_bytes_bound(copies)
        return self.non_tensor_bytes(copies) + held + max(active, default=0.0)

    def least_device_bytes(self, copies: int) -> float:
        """Return the least bytes of a device that at most so many replicas need."""
        return self.process[0] + max((sum(model.lower_bound_bytes(copies)) for model in self.memory), default=0.0)

    def non_tensor_bytes(self, copies: int) -> int:
        """Return the bytes that a process of so many replicas has besides tensors. Two components that are split alike
        share their processes; the search does not count on that."""
        return self.process[copies > 1]

    def for_replicas(self, copies: int) -> Strategy:
        """Return the strategy for so many replicas."""
        return self

    def lighter_replica_counts(self, numbers: Sequence[int]) -> list[int]:
        """Return, of numbers of replicas, most first, those that may need less memory than the number before: the rows
        of each replica may be cut into smaller micro-batches, or one replica has no other to exchange with."""
        loads = [[*chain.from_iterable(model.replica_load(copies) for model in self.memory)] for copies in numbers]
        return [
            fewer
            for (more, fewer), (heavy, light) in zip(pairwise(numbers), pairwise(loads), strict=True)
            if self.non_tensor_bytes(fewer) < self.non_tensor_bytes(more) or any(map(lt, light, heavy))
        ]


def _together(
    memory: Sequence[tuple[float, float]], idle: Sequence[tuple[float, float]]
) -> tuple[float, tuple[float, ...]]:
    """Return the memory that stays for all that is done with a model, and the additional memory during each of its
    tasks."""
    held = 0.0
    for stays, _ in (*memory, *idle):
        if stays > held:
            held = stays
    return held, tuple([more for _, more in memory])
