"""An option: one way to do a component's work on some devices, with its split, what it takes, and what it needs."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from math import inf

from rlgraph.catalog.clusters.cluster import NodeGroup
from rlgraph.passes.cost.deployment import Deployment
from rlgraph.passes.placement.search.strategy import Key, Split, Strategy


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
        resident, active = self._bytes(*strategy.needed_bytes_bound(copies))
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
        once = strategy.task_seconds(self.copies)
        return tuple(
            [task_s * times + moving_s for task_s, times, moving_s in zip(once, self.often, self.moved, strict=True)]
        )

    # In a pipeline with others

    @property
    def can_share_stages(self) -> bool:
        """Whether others can work while its stages wait for each other."""
        return self.strategy.fuses and not self.offload

    def with_pipeline_seconds(self, seconds: Sequence[float]) -> Option:
        """Return the option in a pipeline in which its tasks take so long."""
        option = copy(self)
        option.alone, option.seconds, option.total = self, tuple(seconds), sum(seconds)
        option.order = (option.total, *self.order[1:])
        return option

    @property
    def least_pipeline_seconds(self) -> tuple[tuple[float, ...], ...]:
        """The least seconds of each task in a pipeline in which others work while its stages wait for each other. Of a
        training also all else of which more is no better: the seconds by which its longest micro-batch takes longer
        than others, and those of a forward and of a backward of one."""
        if not self._filled:
            tasks = zip(self.strategy.tasks, self.seconds, self.often, strict=True)
            self._filled = tuple(
                [
                    tuple([times * part for part in task.least_pipeline_seconds(self.copies)])
                    if task.update
                    else (seconds,)
                    for task, seconds, times in tasks
                ]
            )
        return self._filled

    @property
    def least_peak(self) -> float:
        """A lower bound of its bytes at the fullest moment, which is known earlier."""
        return self.floor[0] + max(self.floor[1 : 1 + len(self.seconds)], default=0.0)

    @property
    def least_seconds(self) -> tuple[float, ...]:
        """The least seconds of each task, in a pipeline with others or alone."""
        return tuple([first for first, *_ in self.least_pipeline_seconds]) if self.can_share_stages else self.seconds

    def __getattr__(self, name: str) -> object:
        # Reached where a slot is still empty.
        if name not in Option.__annotations__:
            raise AttributeError(name)
        self.resident, self.active = self._bytes(*self.strategy.needed_bytes(self.copies))
        self.peak = self.resident + max(self.active, default=0.0)
        self.key = (self.resident, *self.active, *self.floor[1 + len(self.active) :])
        self.order = (self.total, self.offload, self.resident, self.active)
        self.counted = True
        return object.__getattribute__(self, name)

    def _bytes(self, held: float, active: tuple[float, ...]) -> tuple[float, tuple[float, ...]]:
        """Return what stays and what comes in addition, for a model that needs so much. A process is there all the
        time."""
        process = self.strategy.non_tensor_bytes(self.copies)
        if not self.offload:
            return held + process, active
        stays = self.strategy.never_offloaded_bytes
        return process + stays, tuple(held - stays + extra for extra in active)

    # The range of its caches

    @property
    def has_fixed_cache(self) -> bool:
        """Whether it has one cache, or none."""
        return self.high is self.strategy

    @property
    def cache_gain_s(self) -> float:
        """The seconds by which it is faster with the largest cache than with the smallest."""
        return sum(self.slowest) - self.total

    @property
    def with_largest_cache(self) -> Option:
        """The option with the largest cache."""
        return self.with_cache_range(self.high.cache, self.high.cache)

    @property
    def cache_range_halves(self) -> tuple[Option, Option]:
        """The upper and the lower half of the range."""
        low, high = self.strategy.cache, self.high.cache
        middle = (low + high) // 2
        return self.with_cache_range(middle + 1, high), self.with_cache_range(low, middle)

    def with_fitting_caches(self, left: float, active: float = 0.0, host: float = inf) -> Option | None:
        """Return the option with the caches with which it needs so many bytes at most; None if not even the smallest
        fits. active: what others need at least while they work, besides what stays. host: bytes of the memory of a
        node's host."""
        if self.host > host or self.peak > left or self.resident + active > left:
            return None
        if self.high is self.strategy:
            return self
        assert self.strategy.caches
        caches, low = self.strategy.caches, self.strategy.cache
        # What an offloaded model has is there while nothing else works.
        others_active = max(self.active) if self.offload else max(active, *self.active)
        high = min(
            self.high.cache, caches.largest_number_within(caches.size_bytes(low) + left - self.resident - others_active)
        )
        if not self._fits(high, left, active):
            # With more rows it needs more than its cache: the largest cache that fits is between these.
            fit = low
            while high - fit > 1:
                middle = (fit + high) // 2
                fit, high = (middle, high) if self._fits(middle, left, active) else (fit, middle)
            high = fit
        return self if high == self.high.cache else self.with_cache_range(low, high)

    def with_cache(self, size: int) -> Option:
        """Return the option with a cache of so many bytes."""
        assert self.strategy.caches
        strategy = self.strategy.caches.make_strategy(self.strategy.cache, size)
        return self._like(strategy, None)

    def _fits(self, cache: int, left: float, active: float) -> bool:
        assert self.strategy.caches
        resident, more = self._bytes(*self.strategy.caches.strategy_with_cache(cache).needed_bytes(self.copies))
        return resident + max(active, *more) <= left

    def with_cache_range(self, low: int, high: int) -> Option:
        """Return the option with the range from one cache to another."""
        if (low, high) not in self._ranges:
            assert self.strategy.caches or low == high
            low_strategy, high_strategy = (
                self.strategy.caches.strategy_with_cache(number) if self.strategy.caches else self.strategy
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
            self._deployment = self.strategy.deployment.with_replicas(self.copies)
        return self._deployment

    @property
    def island(self) -> NodeGroup:
        return self.strategy.deployment.island

    @property
    def device_span(self) -> int:
        """The length of the row of devices that it lies among."""
        return self.island.devices_for_replicas(self.strategy.deployment.tp, self.strategy.size, self.copies)


class SeparateReadingOption(Option):
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
    def can_share_stages(self) -> bool:
        """False: the search shares pipelines only where one split does all."""
        return False

    def with_cache_range(self, low: int, high: int) -> Option:
        """Return the option itself: it has no caches."""
        return self

    @property
    def device_span(self) -> int:
        return max(self.trainer.device_span, self.reader.device_span)
