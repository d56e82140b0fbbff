"""One way to do a component's work on some devices: how it is split, what it takes, and what it needs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from copy import copy
from itertools import chain, groupby, pairwise
from math import inf
from operator import attrgetter, le, lt
from typing import NamedTuple

from rlgraph.catalog.clusters.cluster import Island
from rlgraph.ir.mesh import Mesh
from rlgraph.passes.cost.deployment import Deployment
from rlgraph.passes.cost.memory import MemoryModel
from rlgraph.passes.cost.predict import TaskModel
from rlgraph.passes.placement.search.caches import Caches

Key = tuple[float, ...]

Ranks = tuple[str, int, Mesh, int]
"""An engine, an island, and how many copies of which mesh."""


class Split(NamedTuple):
    """How a component is split; options of one split have the same object."""

    engine: str
    island: int
    mesh: Mesh
    """Of a copy."""
    copies: int
    shared: bool
    """Another component of the same model that is split so in the same pool has the same weights."""
    weights: tuple[object, ...]
    """What a transfer of its weights depends on."""

    @property
    def ranks(self) -> Ranks:
        """What those have in common that share a pipeline."""
        return self[:4]


class Option:
    """A component's work done on some devices. Its bytes are counted when somebody asks: most options are dropped
    before.

    Of a generating engine it stands for a range of caches: it needs what it does with the smallest of them, and is as
    fast as with the largest."""

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
    """More bytes, during each of its tasks."""
    peak: float
    key: Key
    """Of options of one kind the one that is the lesser in each number is at least as good."""
    order: tuple[float, bool, float, tuple[float, ...]]
    """Fastest first."""

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
        """often: how many times each of the component's tasks is done in a step. moved: of each the seconds of a step
        in which an off-loaded model comes for it, and goes. kind, sent: what decides how fast weights and rows come
        from here, or to here. high: with the largest cache, where `strategy` has the smallest.
        hosted: bytes of the memory of a node's host, the fullest one's; nothing where no model may sleep."""
        self.strategy, self.copies, self.offload, self.often, self.moved = strategy, copies, offload, often, moved
        self.high = high or strategy
        self.alone: Option | None = None
        """The same, where this one shares its pipeline."""
        self.seconds = self._taken(self.high)
        """Of each of the component's tasks, as often as it is done in a step."""
        self.total = sum(self.seconds)
        self.slowest = self.seconds if self.high is strategy else self._taken(strategy)
        self.split = split
        self.kind, self.sent = kind, sent
        self.hosted, self.host = hosted, sum(hosted)
        resident, active = self._bytes(*strategy.floor(copies))
        # What is as fast with its smallest cache and with its largest one is as fast in between, of one split.
        self.floor: Key = (resident, *active, *hosted, *self.seconds, *(self.slowest if strategy.caches else ()), *sent)
        """No number of the key is less than these, which are known earlier."""
        self.beaten: Option | None = None
        """By this one, wherever it is there."""
        self.counted = False
        """Whether its bytes are."""
        self._deployment: Deployment | None = None
        self._filled: tuple[tuple[float, ...], ...] = ()
        self._ranges: dict[tuple[int, int], Option] = {}

    def _taken(self, strategy: Strategy) -> tuple[float, ...]:
        once = strategy.seconds(self.copies)
        return tuple([each * often + moved for each, often, moved in zip(once, self.often, self.moved, strict=True)])

    # In a pipeline with others

    @property
    def fuses(self) -> bool:
        """Whether others can work while its stages wait for each other."""
        return self.strategy.fuses and not self.offload

    def lasting(self, seconds: Sequence[float]) -> Option:
        """The same in a pipeline in which its tasks take so long."""
        found = copy(self)
        found.alone, found.seconds, found.total = self, tuple(seconds), sum(seconds)
        found.order = (found.total, *self.order[1:])
        return found

    @property
    def filled(self) -> tuple[tuple[float, ...], ...]:
        """The least seconds of each task in a pipeline in which others work while its stages wait for each other, and
        of a training all else of which more is no better: seconds by which its longest micro-batch takes longer than
        others, of a forward and of a backward of one."""
        if not self._filled:
            taken = zip(self.strategy.tasks, self.seconds, self.often, strict=True)
            self._filled = tuple(
                [
                    tuple([often * each for each in task.filled(self.copies)]) if task.update else (own,)
                    for task, own, often in taken
                ]
            )
        return self._filled

    def __getattr__(self, name: str) -> object:
        # Of a slot that is still empty.
        if name not in Option.__annotations__:
            raise AttributeError(name)
        self.resident, self.active = self._bytes(*self.strategy.needs(self.copies))
        self.peak = self.resident + max(self.active, default=0.0)
        self.key = (self.resident, *self.active, *self.floor[1 + len(self.active) :])
        self.order = (self.total, self.offload, self.resident, self.active)
        self.counted = True
        return object.__getattribute__(self, name)

    def _bytes(self, held: float, active: tuple[float, ...]) -> tuple[float, tuple[float, ...]]:
        """What stays and what comes beside it, where a model needs so much. A process is there all the time."""
        process = self.strategy.held(self.copies)
        return (float(process), tuple(held + each for each in active)) if self.offload else (held + process, active)

    # The range of its caches

    @property
    def settled(self) -> bool:
        """Whether it has one cache, or none."""
        return self.high is self.strategy

    @property
    def range_s(self) -> float:
        """By how many seconds it is faster with the largest cache than with the smallest."""
        return sum(self.slowest) - self.total

    @property
    def largest(self) -> Option:
        """With the largest cache."""
        return self.between(self.high.cache, self.high.cache)

    @property
    def halves(self) -> tuple[Option, Option]:
        """The upper and the lower half."""
        low, high = self.strategy.cache, self.high.cache
        middle = (low + high) // 2
        return self.between(middle + 1, high), self.between(low, middle)

    def within(self, left: float, active: float = 0.0, host: float = inf) -> Option | None:
        """With the caches with which it needs so many bytes at most. active: what others need at least while they work,
        beside what stays. host: of the memory of a node's host. None: not even the smallest."""
        if self.host > host or self.resident + max(active, *self.active) > left:
            return None
        if self.settled:
            return self
        assert self.strategy.caches
        caches, low = self.strategy.caches, self.strategy.cache
        # What an off-loaded model has is there while nothing else works.
        beside = max(self.active) if self.offload else max(active, *self.active)
        high = min(self.high.cache, caches.below(caches.size(low) + left - self.resident - beside))
        if not self._fits(high, left, active):
            # It needs more than its cache for more rows: the largest that fits is between these.
            fit = low
            while high - fit > 1:
                middle = (fit + high) // 2
                fit, high = (middle, high) if self._fits(middle, left, active) else (fit, middle)
            high = fit
        return self if high == self.high.cache else self.between(low, high)

    def with_cache(self, size: int) -> Option:
        """With a cache of so many bytes."""
        assert self.strategy.caches
        made = self.strategy.caches.made(self.strategy.cache, size)
        return self._like(made, None)

    def _fits(self, cache: int, left: float, active: float) -> bool:
        assert self.strategy.caches
        resident, more = self._bytes(*self.strategy.caches.strategy(cache).needs(self.copies))
        return resident + max(active, *more) <= left

    def between(self, low: int, high: int) -> Option:
        """From one cache to another."""
        if (low, high) not in self._ranges:
            assert self.strategy.caches or low == high
            one, other = (
                self.strategy.caches.strategy(number) if self.strategy.caches else self.strategy
                for number in (low, high)
            )
            made = self._like(one, other)
            made._ranges = self._ranges
            self._ranges[low, high] = made
        return self._ranges[low, high]

    def _like(self, strategy: Strategy, high: Strategy | None) -> Option:
        """The same with other caches, which no host keeps."""
        split, sent = self.split, self.sent
        return Option(
            strategy, self.copies, split, self.offload, self.often, self.moved, self.kind, sent, high, self.hosted
        )

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
        return self.island.span(self.strategy.deployment.tp, self.strategy.size, self.copies)


class Apart(Option):
    """A model is trained by some processes of a pool, and read by others, which are brought its weights before."""

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
        """What is searched shares pipelines only where one split does all."""
        return False

    def between(self, low: int, high: int) -> Option:
        """It has no caches."""
        return self

    @property
    def devices(self) -> int:
        return max(self.trainer.devices, self.reader.devices)


class Strategy:
    """A split and its settings, for any number of copies; `deployment` is of one."""

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
        """process: bytes of a device that it takes beside tensors, with one copy and with several. alike: of the same
        split with other settings. fuses: it trains on stages which another training may share. fewest: copies that it
        has at least."""
        self.fuses = fuses
        self.deployment, self.process = deployment, process
        self.size = deployment.size
        """Devices of a copy."""
        self.tasks, self.memory = tuple(tasks), tuple(memory)
        """What each of the component's tasks takes, and what it needs."""
        self.idle = tuple(idle)
        """Of what the component does outside of the step, for which it is there all the same."""
        inner = deployment.island.inner
        self.beyond = max(fewest - 1, inner.copies(deployment.tp, self.size, inner.devices) if inner else 0)
        """There are more copies than this; on several islands the last one would have none of so many."""
        self.near = 0 if inner else self.room(deployment.island.per_node)
        """Copies that one node has room for, where all may lie on one."""
        self._seconds: dict[int, tuple[float, ...]] = {}
        """By the copies."""
        self.made: dict[int, tuple[Option, ...]] = {}
        """The options that were worked out, by their copies."""
        self.paying: dict[int, list[int]] = {}
        """Numbers of copies that are worth it, by the most that there may be."""
        self._floors: dict[tuple[int, bool, int], tuple[float, tuple[float, ...]]] = alike._floors if alike else {}
        """By the copies, and the settings that matter."""
        self.sent: dict[int, tuple[Split, object, Key]] = (
            alike.sent if alike and alike.deployment.mesh == deployment.mesh else {}
        )
        """What decides how fast its weights travel, by the copies."""
        self.caches: Caches | None = None
        """That it can have, of a generating engine, and the number of the one that it has."""
        self.cache = 0
        self.fewer: list[int] | None = None
        """`lighter` of all numbers that there may be, once it is known."""

    def room(self, devices: int) -> int:
        """How many copies so many devices in a row have room for."""
        return self.deployment.island.copies(self.deployment.tp, self.size, devices)

    def needs(self, copies: int) -> tuple[float, tuple[float, ...]]:
        """Bytes that stay on each device of so many copies unless the model is off-loaded, and more of them during each
        of the component's tasks."""
        return _together([each.totals(copies) for each in self.memory], [each.totals(copies) for each in self.idle])

    def kept(self, copies: int) -> float:
        """Bytes that the hosts of so many copies keep while the model sleeps, on the fullest node."""
        tp = self.deployment.tp
        parts = self.deployment.island.parts or (self.deployment.island,)
        most = max(part.per_node if tp > part.per_node else part.per_node // tp * tp for part in parts)
        kept = max((each.kept(copies) for each in (*self.memory, *self.idle)), default=0.0)
        return kept * min(most, copies * self.size)

    def seconds(self, copies: int) -> tuple[float, ...]:
        """Of each of the component's tasks, once."""
        if copies not in self._seconds:
            self._seconds[copies] = tuple([task.seconds(copies) for task in self.tasks])
        return self._seconds[copies]

    def floor(self, copies: int) -> tuple[float, tuple[float, ...]]:
        """What they need at least, which takes less to know."""
        key = (copies, self.deployment.recompute, self.deployment.kv_bytes)
        if key not in self._floors:
            self._floors[key] = _together(
                [each.floor(copies) for each in self.memory], [each.floor(copies) for each in self.idle]
            )
        return self._floors[key]

    def least(self, copies: int) -> float:
        """Bytes of a device that at most so many copies need at least."""
        return self.process[0] + max((sum(each.floor(copies)) for each in self.memory), default=0.0)

    def held(self, copies: int) -> int:
        """Bytes that a process of so many copies has beside tensors. Two components that are split alike share their
        processes; the search does not count on that."""
        return self.process[copies > 1]

    def at(self, copies: int) -> Strategy:
        """Of so many copies."""
        return self

    def lighter(self, numbers: Sequence[int]) -> list[int]:
        """Of numbers of copies, most first, those that may need less memory than the number before: the rows that each
        copy has may be cut into smaller micro-batches, or one copy has nobody to exchange with."""
        loads = [[*chain.from_iterable(each.load(copies) for each in self.memory)] for copies in numbers]
        return [
            fewer
            for (more, fewer), (heavy, light) in zip(pairwise(numbers), pairwise(loads), strict=True)
            if self.held(fewer) < self.held(more) or any(map(lt, light, heavy))
        ]


def _together(
    memory: Sequence[tuple[float, float]], idle: Sequence[tuple[float, float]]
) -> tuple[float, tuple[float, ...]]:
    """What stays of all that is done with a model, and what comes beside it during each of its tasks."""
    held = 0.0
    for stays, _ in (*memory, *idle):
        if stays > held:
            held = stays
    return held, tuple([more for _, more in memory])


def undominated(found: Iterable[Option], fit: float, host: float = inf) -> list[Option]:
    """Of those with so many bytes at most the ones that no other one beats in every task's time and memory, in how fast
    the model's weights come if they are brought from here or to here, and in how many links rows have to other islands;
    fastest first. host: most bytes of a node's host."""
    left: dict[Option, None] = {}
    kinds: dict[object, list[tuple[Key, Option]]] = defaultdict(list)
    for option in sorted(found, key=attrgetter("total")):
        best = option.beaten
        while best and best not in left:
            best = best.beaten
        if best or option.host > host:
            continue
        others = kinds[option.kind]
        # What a faster one beats whatever it needs is not asked for its bytes.
        if not option.counted and _beaten(option, option.floor, others):
            continue
        if option.peak > fit or _beaten(option, option.key, others):
            continue
        left[option] = None
        others.append((option.key, option))
    kept: list[Option] = []
    # One that takes as long as another may beat it though it came later.
    for _, alike in groupby(left, attrgetter("total")):
        kept += _first(list(alike))
    return kept


def _first(alike: list[Option]) -> list[Option]:
    """Of options that take as long as each other those that no other one beats, in their order."""
    if len(alike) == 1:
        return alike
    kept: dict[object, list[tuple[Key, Option]]] = defaultdict(list)
    found = []
    for option in sorted(alike, key=attrgetter("order")):
        others = kept[option.kind]
        if not _beaten(option, option.key, others):
            others.append((option.key, option))
            found.append(option)
    return found


def unbeaten(found: Iterable[Option]) -> list[Option]:
    """Of options of one split, which may share a pipeline, those that no other one beats there."""
    kept: list[tuple[Key, Option]] = []
    for option in sorted(found, key=attrgetter("order")):
        key = (*option.key, *chain.from_iterable(option.filled))
        if not any(all(map(le, other, key)) for other, _ in kept):
            kept.append((key, option))
    return [option for _, option in kept]


def _beaten(option: Option, key: Key, others: list[tuple[Key, Option]]) -> bool:
    """Whether one of the others is at least as good as an option with this key."""
    held = key[0]
    for at, (own, other) in enumerate(others):
        # Most of them are told apart by what stays, which takes less to see.
        if own[0] <= held and all(map(le, own, key)):
            # What beats one option often beats the next.
            others.insert(0, others.pop(at))
            option.beaten = other
            return True
    return False
