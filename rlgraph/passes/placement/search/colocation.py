"""The pools of a partition, and what of a step runs where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlgraph.passes.cost.timetable import Chains, Pools


@dataclass(frozen=True, slots=True)
class PartitionBlock:
    """Components that share a pool."""

    components: tuple[int, ...]
    island: int
    name: str = ""
    """The name of a pool that the schedule declares."""
    devices: int = 0
    """The devices of such a pool; 0: free."""
    other_islands: tuple[int, ...] = ()
    """Of a pool over several node groups, all but `island`. It has these whole, and of `island` the devices that are
    next to them."""

    @property
    def islands(self) -> tuple[int, ...]:
        """The node groups in the order in which replicas fill them."""
        return (*self.other_islands, self.island)


Blocks = tuple[PartitionBlock, ...]


@dataclass(frozen=True, slots=True)
class Colocation:
    """The way in which jobs run with a partition."""

    pool_of_component: Mapping[int, int]
    """For each component its block."""
    pools_of_job: Pools
    """For each job its pools."""
    chains: Chains
    jobs_of_pool: tuple[tuple[int, ...], ...]
    """For each pool its jobs."""
    group_transfers: tuple[NodeGroupTransfer, ...]
    """What travels between node groups."""


@dataclass(frozen=True, slots=True)
class NodeGroupTransfer:
    """Requests of a task, or rows of a value that it reads, that go over the link between two node groups in a step."""

    task: int
    end_components: tuple[int | None, int | None]
    """The components that send and receive; None: the host, which is one process."""
    latency_s: float
    """Seconds of latency of the messages."""
    seconds: float = 0.0
    """Seconds of the bytes, if one replica sends them to one."""


Copies = Mapping[int, int]
"""For each component its largest number of replicas; needed where there are `Colocation.group_transfers`."""
