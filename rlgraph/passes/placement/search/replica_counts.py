"""Says how many replicas of a strategy are worth trying."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import le, lt

from rlgraph.catalog.clusters.cluster import NodeGroup
from rlgraph.passes.memo import get_or_compute
from rlgraph.passes.placement.search.components import Component
from rlgraph.passes.placement.search.made_options import MadeOptions
from rlgraph.passes.placement.search.strategy import Strategy
from rlgraph.passes.placement.search.virtual_stages import ChunkedStrategy
from rlgraph.passes.placement.search.weight_transfer_keys import needs_no_sync

EACH = 16
"""Replicas of a trained model up to which every number of them is tried."""

LIGHTER = 1 / 16
"""The share of its memory that a larger number of replicas has to save if it is slower: on thousands of devices every
number between the fastest and the most is slower than the next smaller one, and keeps a hundredth less."""


class ReplicaCounts:
    """The numbers of replicas that the strategies of components may have."""

    def __init__(self, made: MadeOptions) -> None:
        """made: the options, whose seconds decide."""
        self.made = made
        self._paying: dict[tuple[Strategy, int], list[int]] = {}
        """Numbers of replicas of each strategy that are worth trying, by the most that there may be."""
        self._units: dict[int, list[float]] = {}
        self._copies: dict[tuple[int, int], list[int]] = {}
        self._lighter: dict[object, list[int]] = {}

    def replica_counts(self, component: Component, strategy: Strategy, most: int) -> list[int]:
        """Return how many replicas a component can have where there is room for `most`, without the numbers that are no
        faster than more replicas and need no less memory, of devices and of hosts."""
        if component.shared:
            return list(self.possible_replica_counts(component, most))
        if isinstance(strategy, ChunkedStrategy):
            all_numbers = self.possible_replica_counts(
                component, strategy.most_replicas(strategy.deployment.island.device_count)
            )
            numbers = list(strategy.undominated_replica_counts(all_numbers, most))
            if self.made.may_offload(strategy.deployment) and not component.receives_weights:
                near = min(most, strategy.near)
                numbers += [
                    number
                    for number in strategy.improving_replica_counts(all_numbers)
                    if number <= near and number not in numbers
                ]
            return numbers
        numbers = list(self.faster_replica_counts(component, strategy, most))
        # What replicas exchange takes a step less of time where all of them are on one node.
        if strategy.near < most:
            for copies in self.faster_replica_counts(component, strategy, strategy.near):
                if copies in numbers:
                    break
                numbers.append(copies)
        numbers += [
            number
            for number in self.lighter_replica_counts(component, strategy)
            if number <= most and number not in numbers
        ]
        numbers += [number for number in self.hosted_replica_counts(component, strategy, most) if number not in numbers]
        return [number for number in numbers if number > strategy.beyond] if strategy.beyond else numbers

    def light_replica_counts(self, component: Component, strategy: Strategy, most: int) -> list[int]:
        """Return the numbers of at most so many replicas that may need less memory than the others, of devices or of
        hosts."""
        if component.shared:
            return list(self.possible_replica_counts(component, most))
        numbers = dict.fromkeys(
            (
                *self.possible_replica_counts(component, most)[:1],
                *(number for number in self.lighter_replica_counts(component, strategy) if number <= most),
                *self.hosted_replica_counts(component, strategy, most),
            )
        )
        return [number for number in numbers if number > strategy.beyond]

    def hosted_replica_counts(self, component: Component, strategy: Strategy, most: int) -> list[int]:
        """Return the numbers of replicas that may need less memory of hosts: fewer on a node offload less to it."""
        if not self.made.may_offload(strategy.deployment) or component.receives_weights:
            return []
        return self.possible_replica_counts(component, min(most, strategy.near))

    def faster_replica_counts(self, component: Component, strategy: Strategy, most: int) -> list[int]:
        """Return, of at most so many replicas, the numbers that are faster than more of them, and the first that is
        not; of more than `EACH` those of `worthwhile_replica_counts`."""

        def find_faster_replica_counts() -> list[int]:
            possible = [number for number in self.possible_replica_counts(component, most) if number > strategy.beyond]
            if needs_no_sync(component, strategy.deployment):
                return possible
            many = [number for number in possible if number > EACH]
            numbers, done = self.worthwhile_replica_counts(component, strategy, many)
            previous = self.seconds_of_replicas(component, strategy, many[-1]) if many else ()
            for copies in () if done else possible[len(many) :]:
                numbers.append(copies)
                seconds = self.seconds_of_replicas(component, strategy, copies)
                # Fewer replicas have less to exchange. Where that does not pay, still fewer do not pay either.
                if previous and not any(map(lt, seconds, previous)):
                    break
                previous = seconds
            return numbers

        return get_or_compute(self._paying, (strategy, most), find_faster_replica_counts)

    def worthwhile_replica_counts(
        self, component: Component, strategy: Strategy, many: Sequence[int]
    ) -> tuple[list[int], bool]:
        """Return those of many numbers of replicas, most first, that are worth trying: the fastest, and more that are
        slower, since they exchange more, but lighter by `LIGHTER`. Also return whether still fewer are no faster."""
        # From one number to the next the seconds go up and down: where they are least is told by halves.
        steps = [*_by_halves(many)]
        seconds = {number: self.seconds_of_replicas(component, strategy, number) for number in steps[:1]}
        last, done = len(steps) - 1, False
        for place, (more, fewer) in enumerate(pairwise(steps), 1):
            seconds[fewer] = self.seconds_of_replicas(component, strategy, fewer)
            if not any(map(lt, seconds[fewer], seconds[more])):
                last, done = place, True
                break
        fewest = steps[last] if done else 0
        near = [number for number in many if fewest <= number <= steps[max(0, last - 2)]] if len(steps) > 1 else many
        seconds |= {number: self.seconds_of_replicas(component, strategy, number) for number in near}
        kept: dict[int, tuple[float, ...]] = {}
        for number in sorted(seconds, key=lambda number: (sum(seconds[number]), -number)):
            held, active = strategy.needed_bytes_bound(number)
            key = (*seconds[number], *((1 + LIGHTER) * size for size in (held, *active)))
            if not any(all(map(le, other, key)) for other in kept.values()):
                kept[number] = (*seconds[number], held, *active)
        return sorted(kept, reverse=True), done

    def seconds_of_replicas(self, component: Component, strategy: Strategy, copies: int) -> tuple[float, ...]:
        """Return seconds of each task by which numbers of replicas of a strategy are compared."""
        if strategy.caches:
            return self.made.options_of_replica_count(component, strategy, copies)[0].seconds
        return strategy.task_seconds(copies)

    def possible_replica_counts(self, component: Component, most: int) -> list[int]:
        """Return the result of `_copies`, computed once."""
        key = (id(component), most)
        return get_or_compute(
            self._copies, key, lambda: list(_copies(component, self.shardable_unit_counts(component), most))
        )

    def lighter_replica_counts(self, component: Component, strategy: Strategy) -> list[int]:
        """Return the numbers of replicas that may need less memory than more replicas do."""
        if strategy.fewer is None:
            island = strategy.deployment.island
            key = (
                id(component),
                id(island),
                strategy.process,
                *(model.replica_load_cache_key for model in strategy.memory),
            )
            numbers = self.possible_replica_counts(component, island.device_count)
            strategy.fewer = get_or_compute(self._lighter, key, lambda: strategy.lighter_replica_counts(numbers))
        return strategy.fewer

    def equivalent_replica_limit(self, component: Component, island: NodeGroup, most: int) -> int:
        """Return the fewest replicas that there can be room for instead of `most` with equal `numbers`."""
        few = max(EACH, island.per_node) + 1
        return (
            most if most <= few else max(few, next(_copies(component, self.shardable_unit_counts(component), most), 0))
        )

    def shardable_unit_counts(self, component: Component) -> list[float]:
        """Return the numbers of rows of its tasks that can be sharded: samples of one prompt stay together."""
        tasks = self.made.tasks
        return get_or_compute(
            self._units,
            id(component),
            lambda: sorted({batch.rows / batch.samples for batch in component.batches_to_try(tasks)}) or [1.0],
        )


def _by_halves(numbers: Sequence[int]) -> Iterator[int]:
    """Yield the first of some numbers, most first, and the first that is no more than each smaller power of two."""
    most = math.inf
    for number in numbers:
        if number <= most:
            yield number
            most = 1 << ((number - 1).bit_length() - 1)


def _copies(component: Component, units: Sequence[float], most: int) -> Iterator[int]:
    """Yield how many data-parallel replicas a component can have, most first: what is pinned, or for each number of
    rows that the fullest replica can have the fewest, since more replicas would wait, and need requests. Of trained
    models, more replicas may need less memory, and take less time to get new weights: all numbers up to `EACH` are
    there."""
    pinned = component.pin.axis_sizes().get("dp") if component.pin else None
    if pinned:
        if pinned <= most:
            yield pinned
        return
    while most > 0:
        fewest = max(math.ceil(count / math.ceil(count / most)) for count in units)
        if component.trained and most <= EACH:
            yield from range(most, fewest, -1)
        yield fewest
        most = fewest - 1
