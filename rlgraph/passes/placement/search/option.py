"""An option: one way to do a component's work on some devices, with its split, what it takes, and what it needs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from copy import copy
from itertools import chain, groupby, pairwise
from math import inf
from operator import attrgetter, le, lt
from typing import NamedTuple

from rlgraph.catalog.clusters.cluster import NodeGroup
from rlgraph.ir.mesh import Mesh
from rlgraph.passes.cost.deployment import Deployment
from rlgraph.passes.cost.memory import MemoryModel
from rlgraph.passes.cost.predict import TaskModel
from rlgraph.passes.placement.search.caches import Caches

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
    def ranks(self) -> Ranks:
        """What the options that share a pipeline have in common."""
        return self[:4]


class Option:
    """A component's work done on some devices. Its bytes are computed when they are asked for: most options are pruned
    before.

    An option of a generating engine stands for a range of caches: it needs what it does with the smallest of them, and
    is as fast as with the largest.
    """

    __slots__ = (
        *(
            "_deployment",
            "_filled",
            "_ranges",
            "active",
            "alone",
            "beaten",
            "copies",
            "counted",
            "floor",
            "high",
            "host",
            "hosted",
            "key",
            "kind",
            "moved",
            "offload",
        ),
        *("often", "order", "peak", "resident", "seconds", "sent", "slowest", "split", "strategy", "total"),
    )

    resident: float
    """Bytes on each device while the pool does other work."""
    active: tuple[float, ...]
    """Additional bytes during each of its tasks."""
    peak: float
    key: Key
    """Of two options of one kind, the one that is no greater in each number is at least as good."""
    order: tuple[float, bool, float, tuple[float, ...]]
    """The sort key of options, fastest first."""

    def __init__(
        self,
        strategy: Strategy,
        copies: int,
        split: Split,
        offload: bool,
        often: tuple[float, ...],
        moved: tuple[float, ...],
        kind: object,
        sent: tuple[float, ...],
        high: Strategy | None = None,
        hosted: Key = (),
    ) -> None:
        """often: how many times each of the component's tasks is done in a step. moved: for each task the seconds of a
        step in which an offloaded model is brought back for it, and offloaded again. kind, sent: what decides how fast
        weights and rows come from here, or to here. high: the strategy with the largest cache, where `strategy` has the
        smallest. hosted: bytes of the memory of a node's host, the fullest one's; empty where no model may be
        offloaded."""
        self.strategy, self.copies, self.offload, self.often, self.moved = strategy, copies, offload, often, moved
        self.high = high or strategy
        self.alone: Option | None = None
        """The same option without a shared pipeline, where this one shares its pipeline."""
        self.seconds = self._task_seconds(self.high)
        """Seconds of each of the component's tasks, as often as it is done in a step."""
        self.total = sum(self.seconds)
        self.slowest = self.seconds if self.high is strategy else self._task_seconds(strategy)
        self.split = split
        self.kind, self.sent = kind, sent
        self.hosted, self.host = hosted, sum(hosted)
        resident, active = self._bytes(*strategy.floor(copies))
        # Options of one split that are as fast with the smallest cache and with the largest one are as fast in between.
        self.floor: Key = (resident, *active, *hosted, *self.seconds, *(self.slowest if strategy.caches else ()), *sent)
        """Lower bounds of the numbers of the key, which are known earlier."""
        self.beaten: Option | None = None
        """The option that dominates this one, wherever it is there."""
        self.counted = False
        """Whether its bytes are computed."""
        self._deployment: Deployment | None = None
        self._filled: tuple[tuple[float, ...], ...] = ()
        self._ranges: dict[tuple[int, int], Option] = {}

    def _task_seconds(self, strategy: Strategy) -> tuple[float, ...]:
        once = strategy.seconds(self.copies)
        return tuple(
            [task_s * times + moving_s for task_s, times, moving_s in zip(once, self.often, self.moved, strict=True)]
        )

    # In a pipeline with others

    @property
    def fuses(self) -> bool:
        """Whether others can work while its stages wait for each other."""
        return self.strategy.fuses and not self.offload

    def lasting(self, seconds: Sequence[float]) -> Option:
        """Return the option in a pipeline in which its tasks take so long."""
        option = copy(self)
        option.alone, option.seconds, option.total = self, tuple(seconds), sum(seconds)
        option.order = (option.total, *self.order[1:])
        return option

    @property
    def filled(self) -> tuple[tuple[float, ...], ...]:
        """The least seconds of each task in a pipeline in which others work while its stages wait for each other. Of a
        training also all else of which more is no better: the seconds by which its longest micro-batch takes longer
        than others, and those of a forward and of a backward of one."""
        if not self._filled:
            tasks = zip(self.strategy.tasks, self.seconds, self.often, strict=True)
            self._filled = tuple(
                [
                    tuple([times * part for part in task.filled(self.copies)]) if task.update else (seconds,)
                    for task, seconds, times in tasks
                ]
            )
        return self._filled

    def __getattr__(self, name: str) -> object:
        # Reached where a slot is still empty.
        if name not in Option.__annotations__:
            raise AttributeError(name)
        self.resident, self.active = self._bytes(*self.strategy.needs(self.copies))
        self.peak = self.resident + max(self.active, default=0.0)
        self.key = (self.resident, *self.active, *self.floor[1 + len(self.active) :])
        self.order = (self.total, self.offload, self.resident, self.active)
        self.counted = True
        return object.__getattribute__(self, name)

    def _bytes(self, held: float, active: tuple[float, ...]) -> tuple[float, tuple[float, ...]]:
        """Return what stays and what comes in addition, for a model that needs so much. A process is there all the
        time."""
        process = self.strategy.held(self.copies)
        return (float(process), tuple(held + extra for extra in active)) if self.offload else (held + process, active)

    # The range of its caches

    @property
    def settled(self) -> bool:
        """Whether it has one cache, or none."""
        return self.high is self.strategy

    @property
    def range_s(self) -> float:
        """The seconds by which it is faster with the largest cache than with the smallest."""
        return sum(self.slowest) - self.total

    @property
    def largest(self) -> Option:
        """The option with the largest cache."""
        return self.between(self.high.cache, self.high.cache)

    @property
    def halves(self) -> tuple[Option, Option]:
        """The upper and the lower half of the range."""
        low, high = self.strategy.cache, self.high.cache
        middle = (low + high) // 2
        return self.between(middle + 1, high), self.between(low, middle)

    def within(self, left: float, active: float = 0.0, host: float = inf) -> Option | None:
        """Return the option with the caches with which it needs so many bytes at most; None if not even the smallest
        fits. active: what others need at least while they work, besides what stays. host: bytes of the memory of a
        node's host."""
        if self.host > host or self.resident + max(active, *self.active) > left:
            return None
        if self.settled:
            return self
        assert self.strategy.caches
        caches, low = self.strategy.caches, self.strategy.cache
        # What an offloaded model has is there while nothing else works.
        others_active = max(self.active) if self.offload else max(active, *self.active)
        high = min(self.high.cache, caches.below(caches.size(low) + left - self.resident - others_active))
        if not self._fits(high, left, active):
            # With more rows it needs more than its cache: the largest cache that fits is between these.
            fit = low
            while high - fit > 1:
                middle = (fit + high) // 2
                fit, high = (middle, high) if self._fits(middle, left, active) else (fit, middle)
            high = fit
        return self if high == self.high.cache else self.between(low, high)

    def with_cache(self, size: int) -> Option:
        """Return the option with a cache of so many bytes."""
        assert self.strategy.caches
        strategy = self.strategy.caches.made(self.strategy.cache, size)
        return self._like(strategy, None)

    def _fits(self, cache: int, left: float, active: float) -> bool:
        assert self.strategy.caches
        resident, more = self._bytes(*self.strategy.caches.strategy(cache).needs(self.copies))
        return resident + max(active, *more) <= left

    def between(self, low: int, high: int) -> Option:
        """Return the option with the range from one cache to another."""
        if (low, high) not in self._ranges:
            assert self.strategy.caches or low == high
            low_strategy, high_strategy = (
                self.strategy.caches.strategy(number) if self.strategy.caches else self.strategy
                for number in (low, high)
            )
            option = self._like(low_strategy, high_strategy)
            option._ranges = self._ranges
            self._ranges[low, high] = option
        return self._ranges[low, high]

    def _like(self, strategy: Strategy, high: Strategy | None) -> Option:
        """Return the option with other caches, which no host keeps."""
        split, sent = self.split, self.sent
        return Option(
            strategy, self.copies, split, self.offload, self.often, self.moved, self.kind, sent, high, self.hosted
        )

    @property
    def deployment(self) -> Deployment:
        """The deployment of all replicas."""
        if self._deployment is None:
            self._deployment = self.strategy.deployment.copied(self.copies)
        return self._deployment

    @property
    def island(self) -> NodeGroup:
        return self.strategy.deployment.island

    @property
    def devices(self) -> int:
        """The length of the row of devices that it lies among."""
        return self.island.span(self.strategy.deployment.tp, self.strategy.size, self.copies)


class SeparateOption(Option):
    """An option in which a model is trained by some processes of a pool, and read by others, to which its weights are
    brought before."""

    __slots__ = ("reader", "trainer")

    def __init__(
        self,
        trainer: Option,
        reader: Option,
        seconds: tuple[float, ...],
        active: tuple[float, ...],
        kind: object,
        sent: tuple[float, ...],
    ) -> None:
        """seconds, active: of each task of both. kind, sent: as of an option that does both."""
        self.trainer, self.reader = trainer, reader
        self.strategy = self.high = trainer.strategy
        self.copies, self.split, self.offload = trainer.copies, trainer.split, trainer.offload
        self.often, self.moved = (), ()
        self.seconds = self.slowest = seconds
        self.total = sum(seconds)
        self.kind, self.sent = kind, sent
        self.resident, self.active = trainer.resident + reader.resident, active
        self.peak = self.resident + max(active, default=0.0)
        self.hosted = tuple(map(sum, zip(trainer.hosted, reader.hosted, strict=True)))
        self.host = sum(self.hosted)
        self.floor = self.key = (self.resident, *active, *self.hosted, *seconds, *sent)
        self.order = (self.total, self.offload, self.resident, active)
        self.beaten = self.alone = None
        self.counted = True
        self._deployment, self._filled, self._ranges = None, (), {}

    @property
    def fuses(self) -> bool:
        """False: the search shares pipelines only where one split does all."""
        return False

    def between(self, low: int, high: int) -> Option:
        """Return the option itself: it has no caches."""
        return self

    @property
    def devices(self) -> int:
        return max(self.trainer.devices, self.reader.devices)


class Strategy:
    """A split and its settings, for any number of replicas; `deployment` is that of one."""

    __slots__ = (
        *(
            "_floors",
            "_seconds",
            "beyond",
            "cache",
            "caches",
            "deployment",
            "fewer",
            "fuses",
            "idle",
            "made",
            "memory",
            "near",
            "paying",
            "process",
        ),
        *("sent", "size", "tasks"),
    )

    def __init__(
        self,
        deployment: Deployment,
        tasks: Sequence[TaskModel],
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
        self.size = deployment.size
        """Devices of a replica."""
        self.tasks, self.memory = tuple(tasks), tuple(memory)
        """What each of the component's tasks takes, and what it needs."""
        self.idle = tuple(idle)
        """The memory of what the component does outside of the step, for which it is there all the same."""
        inner = deployment.island.inner
        self.beyond = max(fewest - 1, inner.copies(deployment.tp, self.size, inner.devices) if inner else 0)
        """There are more replicas than this; of fewer, the last of several node groups would have none."""
        self.near = 0 if inner else self.room(deployment.island.per_node)
        """Replicas that one node has room for, where all may lie on one."""
        self._seconds: dict[int, tuple[float, ...]] = {}
        """By the number of replicas."""
        self.made: dict[int, tuple[Option, ...]] = {}
        """The options that were computed, by their number of replicas."""
        self.paying: dict[int, list[int]] = {}
        """Numbers of replicas that are worth trying, by the most that there may be."""
        self._floors: dict[tuple[int, bool, int], tuple[float, tuple[float, ...]]] = alike._floors if alike else {}
        """By the number of replicas, and the settings that matter."""
        self.sent: dict[int, tuple[Split, object, Key]] = (
            alike.sent if alike and alike.deployment.mesh == deployment.mesh else {}
        )
        """What decides how fast its weights travel, by the number of replicas."""
        self.caches: Caches | None = None
        """The caches that it can have, of a generating engine; `cache` is the number of the one that it has."""
        self.cache = 0
        self.fewer: list[int] | None = None
        """The result of `lighter` for all numbers that there may be, once it is known."""

    def room(self, devices: int) -> int:
        """Return how many replicas so many devices in a row have room for."""
        return self.deployment.island.copies(self.deployment.tp, self.size, devices)

    def needs(self, copies: int) -> tuple[float, tuple[float, ...]]:
        """Return the bytes that stay on each device of so many replicas unless the model is offloaded, and the
        additional ones during each of the component's tasks."""
        return _together([model.totals(copies) for model in self.memory], [model.totals(copies) for model in self.idle])

    def kept(self, copies: int) -> float:
        """Return the bytes that the hosts of so many replicas keep while the model is offloaded, on the fullest
        node."""
        tp = self.deployment.tp
        parts = self.deployment.island.parts or (self.deployment.island,)
        most = max(part.per_node if tp > part.per_node else part.per_node // tp * tp for part in parts)
        replica_bytes = max((model.kept(copies) for model in (*self.memory, *self.idle)), default=0.0)
        return replica_bytes * min(most, copies * self.size)

    def seconds(self, copies: int) -> tuple[float, ...]:
        """Return the seconds of each of the component's tasks, once."""
        if copies not in self._seconds:
            self._seconds[copies] = tuple([task.seconds(copies) for task in self.tasks])
        return self._seconds[copies]

    def floor(self, copies: int) -> tuple[float, tuple[float, ...]]:
        """Return a lower bound of `needs` that is quicker to compute."""
        key = (copies, self.deployment.recompute, self.deployment.kv_bytes)
        if key not in self._floors:
            self._floors[key] = _together(
                [model.floor(copies) for model in self.memory], [model.floor(copies) for model in self.idle]
            )
        return self._floors[key]

    def least(self, copies: int) -> float:
        """Return the least bytes of a device that at most so many replicas need."""
        return self.process[0] + max((sum(model.floor(copies)) for model in self.memory), default=0.0)

    def held(self, copies: int) -> int:
        """Return the bytes that a process of so many replicas has besides tensors. Two components that are split alike
        share their processes; the search does not count on that."""
        return self.process[copies > 1]

    def at(self, copies: int) -> Strategy:
        """Return the strategy for so many replicas."""
        return self

    def lighter(self, numbers: Sequence[int]) -> list[int]:
        """Return, of numbers of replicas, most first, those that may need less memory than the number before: the rows
        of each replica may be cut into smaller micro-batches, or one replica has no other to exchange with."""
        loads = [[*chain.from_iterable(model.load(copies) for model in self.memory)] for copies in numbers]
        return [
            fewer
            for (more, fewer), (heavy, light) in zip(pairwise(numbers), pairwise(loads), strict=True)
            if self.held(fewer) < self.held(more) or any(map(lt, light, heavy))
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


def undominated(found: Iterable[Option], fit: float, host: float = inf) -> list[Option]:
    """Return the options of at most `fit` bytes that no other one dominates in every task's time and memory, in how
    fast the model's weights come if they are brought from here or to here, and in how many links rows have to other
    node groups; fastest first. host: the most bytes of a node's host."""
    remaining: dict[Option, None] = {}
    kinds: dict[object, list[tuple[Key, Option]]] = defaultdict(list)
    for option in sorted(found, key=attrgetter("total")):
        dominator = option.beaten
        while dominator and dominator not in remaining:
            dominator = dominator.beaten
        if dominator or option.host > host:
            continue
        others = kinds[option.kind]
        # The bytes of an option that a faster one dominates in any case are not computed.
        if not option.counted and _dominated(option, option.floor, others):
            continue
        if option.peak > fit or _dominated(option, option.key, others):
            continue
        remaining[option] = None
        others.append((option.key, option))
    result: list[Option] = []
    # An option that takes as long as another may dominate it though it came later.
    for _, equally_fast in groupby(remaining, attrgetter("total")):
        result += _undominated_of_equal(list(equally_fast))
    return result


def _undominated_of_equal(equally_fast: list[Option]) -> list[Option]:
    """Return, of options that take equally long, those that no other one dominates, in their order."""
    if len(equally_fast) == 1:
        return equally_fast
    keys: dict[object, list[tuple[Key, Option]]] = defaultdict(list)
    result = []
    for option in sorted(equally_fast, key=attrgetter("order")):
        others = keys[option.kind]
        if not _dominated(option, option.key, others):
            others.append((option.key, option))
            result.append(option)
    return result


def undominated_in_pipeline(found: Iterable[Option]) -> list[Option]:
    """Return, of options of one split, which may share a pipeline, those that no other one dominates there."""
    result: list[tuple[Key, Option]] = []
    for option in sorted(found, key=attrgetter("order")):
        key = (*option.key, *chain.from_iterable(option.filled))
        if not any(all(map(le, other, key)) for other, _ in result):
            result.append((key, option))
    return [option for _, option in result]


def _dominated(option: Option, key: Key, others: list[tuple[Key, Option]]) -> bool:
    """Return whether one of the others is at least as good as an option with this key."""
    resident = key[0]
    for index, (other_key, other) in enumerate(others):
        # Most of them differ in the bytes that stay, which are quicker to compare.
        if other_key[0] <= resident and all(map(le, other_key, key)):
            # An option that dominates one often dominates the next.
            others.insert(0, others.pop(index))
            option.beaten = other
            return True
    return False
