"""Estimates how many bytes a model needs on the fullest rank of a group: what stays, and what each kind of work needs
for a while.

What a rank needs depends on the number of data-parallel replicas: replicas shard the rows, and the optimizer state
where the engine does that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.deployment import Deployment, ModelConfig
from rlgraph.passes.memo import get_or_compute

KEPT = ("weights", "optimizer")
"""What the host keeps of an off-loaded model; of one whose gradients are added up while others work, it keeps these
too."""

EARLIER = "earlier weights"
"""The weights of earlier steps, which may be sampled with: they stay on the device while their model is off-loaded."""

INPUTS = "inputs"
"""What an engine with a reserved cache keeps on the device while its model is off-loaded: its input for the prompt
tokens that it reads at a time, and its notes on rows."""

NEVER_OFFLOADED = (EARLIER, INPUTS)
"""The parts that stay on the device while their model is off-loaded."""

BUCKET = 256 << 20
"""The most bytes of messages that a rank has while weights travel."""


@dataclass(frozen=True, slots=True)
class BytesByUse:
    """The bytes of one rank by what they hold: `weights`, `gradients`, `optimizer`, `activations`, `logits`, `cache`,
    `buffers`, `messages` in which new weights arrive, `EARLIER` and `INPUTS`."""

    parts: tuple[tuple[str, float], ...] = ()

    @property
    def total(self) -> float:
        """Return the sum of all parts."""
        total = 0.0
        for _, size in self.parts:
            total += size
        return total

    def total_of(self, names: Collection[str]) -> float:
        """Return the sum of the parts with these names."""
        return sum(size for name, size in self.parts if name in names)

    def __add__(self, other: BytesByUse) -> BytesByUse:
        if not other.parts:
            return self
        sizes = dict(self.parts)
        for name, size in other.parts:
            sizes[name] = sizes.get(name, 0.0) + size
        return BytesByUse(tuple(sizes.items()))

    def scaled(self, factor: float) -> BytesByUse:
        """Return the bytes with each part multiplied by the factor."""
        return BytesByUse(tuple((name, size * factor) for name, size in self.parts))


@dataclass(frozen=True, slots=True)
class Footprint:
    """The memory of one model on one rank of a group."""

    resident: BytesByUse = field(default=BytesByUse())
    """What the model keeps while the group does other work."""
    active: BytesByUse = field(default=BytesByUse())
    """What it needs in addition while it does this work."""


Load = tuple[float, ...]
"""How much work a replica does at a time, in numbers whose meaning depends on the kind of work. Of two loads, the one
that is smaller in no number needs at least as much memory."""


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """The memory of a replica with some load."""

    stays: BytesByUse
    work: BytesByUse
    shared: BytesByUse = field(default=BytesByUse())
    """More resident bytes, which the replicas shard."""
    update: BytesByUse = field(default=BytesByUse())
    """The bytes of an optimizer's step, which the replicas shard."""

    def replica_footprint(self, copies: int) -> Footprint:
        """Return the footprint of one of so many replicas."""
        return Footprint(
            self.stays + self.shared.scaled(1 / copies), larger_total(self.work, self.update.scaled(1 / copies))
        )

    @property
    def totals_by_use(self) -> tuple[float, float, float, float]:
        """Return the totals of `stays`, `work`, `shared` and `update`."""
        return self.stays.total, self.work.total, self.shared.total, self.update.total


class MemoryModel(ABC):
    """The memory of one kind of work with a model on a split, by the number of replicas. What does not depend on this
    number is computed once."""

    def __init__(self, config: ModelConfig, deployment: Deployment, batches: Sequence[Batch]) -> None:
        self.config, self.deployment, self.batches = config, deployment, batches
        self._load_totals: dict[tuple[bool, Load], tuple[float, float, float, float]] = {}
        """The cached values of `Needs.totals_by_use` by recomputation and load."""

    keeps: Sequence[str] = KEPT
    """What the host keeps of the model while it is off-loaded."""

    @property
    def never_offloaded_bytes(self) -> float:
        """Return the bytes of `NEVER_OFFLOADED`, which are among the resident ones, for any number of replicas."""
        return 0.0

    @property
    @abstractmethod
    def replica_load_cache_key(self) -> object:
        """Return a key of all that loads depend on beside the number of replicas."""

    @abstractmethod
    def replica_load(self, copies: int, chunks: int = 0) -> Load:
        """Return the load of one of so many replicas. chunks: the parts of the layers on each stage; 0: as in the
        deployment."""

    @abstractmethod
    def memory_needs(self, load: Load) -> MemoryNeeds:
        """Return the memory of a replica with this load."""

    def replica_footprint(self, copies: int) -> Footprint:
        """Return the footprint of one of so many replicas."""
        return self.memory_needs(self.replica_load(copies)).replica_footprint(copies)

    def resident_and_work_bytes(self, copies: int) -> tuple[float, float]:
        """Return the resident bytes, and those that the work needs in addition: the totals of `replica_footprint`, to
        rounding. The search asks for nothing else, and often."""
        stays, work, shared, update = self._totals(self.replica_load(copies))
        return stays + shared / copies, max(work, update / copies)

    def lower_bound_bytes(self, copies: int) -> tuple[float, float]:
        """Return a lower bound of `resident_and_work_bytes` for any rows."""
        stays, work, shared, update = self._least
        return stays + shared / copies, max(work, update / copies)

    def offloaded_host_bytes(self, copies: int) -> float:
        """Return the resident bytes that the host keeps while the model is off-loaded, for one of so many replicas.
        They do not depend on rows."""
        stays, shared = self._kept
        return stays + shared / copies

    def optimizer_host_bytes(self, copies: int) -> float:
        """Return the bytes of an optimizer's state that the host has all the time, for one of so many replicas."""
        return 0.0

    @cached_property
    def _kept(self) -> tuple[float, float]:
        needs = self.memory_needs(tuple(min(1.0, number) for number in self.replica_load(1)))
        return needs.stays.total_of(self.keeps), needs.shared.total_of(self.keeps)

    @cached_property
    def _least(self) -> tuple[float, float, float, float]:
        """Return the totals with the smallest load of a replica that has any work."""
        return self._totals(tuple(min(1.0, number) for number in self.replica_load(1)))

    def _totals(self, load: Load) -> tuple[float, float, float, float]:
        """Return `Needs.totals_by_use` of a load, from the cache."""
        key = (self.deployment.recompute, load)
        return get_or_compute(self._load_totals, key, lambda: self.memory_needs(load).totals_by_use)


def larger_total(one: BytesByUse, other: BytesByUse) -> BytesByUse:
    """Return the one with the larger total."""
    return one if one.total >= other.total else other
