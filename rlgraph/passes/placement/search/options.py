"""The options of a component: how it can be split over so many devices, what each strategy takes, and what it needs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import lt

from rlgraph.catalog.clusters.cluster import NodeGroup
from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.constants import Constants
from rlgraph.passes.cost.decoding_slots import cache_bytes_per_token, max_decoding_slots
from rlgraph.passes.cost.deployment import Deployment
from rlgraph.passes.cost.peak_memory import usable_device_bytes, usable_host_bytes
from rlgraph.passes.cost.task import Task, device_takeovers
from rlgraph.passes.cost.transitions import offload_round_trip_cost
from rlgraph.passes.cost.weights import weight_sync_cost
from rlgraph.passes.memo import get_or_compute
from rlgraph.passes.placement.search.components import Component
from rlgraph.passes.placement.search.dominance import undominated, undominated_rows
from rlgraph.passes.placement.search.limit import NO_LIMIT, Limit
from rlgraph.passes.placement.search.option import Option, SeparateReadingOption
from rlgraph.passes.placement.search.strategies import Strategies
from rlgraph.passes.placement.search.strategy import Key, Ranks, Split, Strategy
from rlgraph.passes.placement.search.virtual_stages import ChunkedStrategy
from rlgraph.passes.placement.search.weight_transfer_keys import make_split, needs_no_sync, weight_transfer_key

COMPARED, BOUND = 0.1, 0.4
"""How many options can be made in the time in which one is compared with others, and in which a bound is computed, for
each task of a step."""

Sharing = Mapping[Ranks, Sequence[Option]]
"""Options that may share a pipeline, by how they are split."""

EACH = 16
"""Replicas of a trained model up to which every number of them is tried."""

FASTER = 0.9
"""The share of the trainers' own seconds that separate readers may take to be worth weights of their own."""


class Options(Strategies):
    """The options of all components, computed once for each number of devices."""

    def __init__(
        self,
        tasks: Sequence[Task],
        constants: Constants,
        engines: Sequence[str],
        *,
        offload: bool = True,
        apart: bool = False,
        streams: bool = False,
        parts: Sequence[tuple[Component, Component, Component]] = (),
        fuses: Collection[str] = (),
        host_optimizer: bool = False,
        hosts: bool = False,
    ) -> None:
        """offload: whether models may be in the host's memory while they are not at work. apart: whether rows may
        travel between node groups, where more replicas have more links. parts: components that train and read, each
        with its training part and its reading part, which may be split differently in a pool. hosts: whether the
        schedule has an optimizer keep its state in the host's memory."""
        super().__init__(tasks, constants, engines, streams=streams, fuses=fuses, host_optimizer=host_optimizer)
        self.offload, self.apart = offload, apart
        self.hosts = hosts or offload or host_optimizer
        """Whether anything may be in the hosts' memory."""
        self.parts = {id(undivided): (undivided, trainer, reader) for undivided, trainer, reader in parts}
        self.options_made = self.options_compared = 0
        self.bounds_computed = 0.0
        """How many options were made, how many were compared with others, and how many bounds were computed of them."""
        self._synced: dict[tuple[object, ...], float] = {}
        self._together: dict[tuple[object, ...], tuple[float, ...]] = {}
        self._reading: dict[tuple[int, Deployment], Strategy] = {}
        self._apart: dict[tuple[int, int, int], Option] = {}
        self._beside: dict[tuple[int, Split, tuple[Option, ...]], list[tuple[Option, tuple[float, ...]]]] = {}
        self._made: dict[tuple[Strategy, int], tuple[Option, ...]] = {}
        """The options of each strategy by their number of replicas."""
        self._paying: dict[tuple[Strategy, int], list[int]] = {}
        """Numbers of replicas of each strategy that are worth trying, by the most that there may be."""
        self._splits: dict[Split, Split] = {}
        self._units: dict[int, list[float]] = {}
        self._stays: dict[int, tuple[float, ...]] = {}
        self._copies: dict[tuple[int, int], list[int]] = {}
        self._fitting: dict[tuple[int, int], list[Option]] = {}
        self._fronts: dict[tuple[object, ...], tuple[Option, ...]] = {}
        self._found: dict[tuple[int, int, int, Limit], tuple[Option, ...]] = {}
        self._lighter: dict[object, list[int]] = {}
        self._sharing: dict[tuple[object, ...], Sharing] = {}
        self._filled: dict[tuple[int, int], Sharing] = {}

    def is_like(self, other: Options) -> bool:
        """Return whether these are the options of the same work with the same settings, whatever the components."""
        names = ("tasks", "constants", "engines", "streams", "fuses", "host_optimizer", "offload", "apart", "hosts")
        return all(getattr(self, name) == getattr(other, name) for name in names)

    def adopt(self, components: Sequence[Component], other: Options, known: Sequence[Component]) -> Sequence[Component]:
        """Return the components of other options that are like these, so that these are theirs, too: in place of one
        that is equal to one of `known`, and has the same parts, that one."""

        def parts_of(options: Options, component: Component) -> tuple[Component, ...]:
            return options.parts.get(id(component), (component, component, component))

        equal = [next((own for own in known if own == component), component) for component in components]
        adopted = [
            own if parts_of(self, own) == parts_of(other, component) else component
            for own, component in zip(equal, components, strict=True)
        ]
        self.parts |= {key: parts for key, parts in other.parts.items() if any(key == id(one) for one in adopted)}
        return adopted

    @property
    def work_done(self) -> float:
        """The work of the searches for these options, in options made: it depends on the problem alone."""
        return self.options_made + COMPARED * self.options_compared + BOUND * len(self.tasks) * self.bounds_computed

    def undominated_options(
        self, component: Component, island: NodeGroup, devices: int, limit: Limit = NO_LIMIT
    ) -> tuple[Option, ...]:
        """Return the options of a component on at most so many devices of a node group, none of which another one
        dominates, and none of which takes longer than the limit allows, fastest first. More devices have all the
        options of fewer."""
        key = (id(component), id(island), devices, limit)
        return get_or_compute(self._found, key, lambda: self._undominated(component, island, devices, limit))

    def _undominated(self, component: Component, island: NodeGroup, devices: int, limit: Limit) -> tuple[Option, ...]:
        # Neighbouring numbers of devices often have the same options.
        strategies = self.strategies_by_split(component, island)
        rooms = [
            self.equivalent_replica_limit(component, island, same_split[0].most_replicas(devices))
            for same_split in strategies
        ]
        # Who trains beside readers of their own shares no pipeline.
        apart = limit._replace(shares=False)
        part_options = [
            self.undominated_options(part, island, _rounded(devices), apart)
            for part in self.parts.get(id(component), ())[1:]
        ]
        # Of several node groups it may need fewer.
        inner = (
            self.undominated_options(component, island.inner, min(devices, island.inner.device_count), limit)
            if island.inner
            else ()
        )

        def compute_undominated_options() -> tuple[Option, ...]:
            options = [
                option
                for room, same_split in zip(rooms, strategies, strict=True)
                for option in self.options_of_split(component, same_split, room)
                if limit.seconds_left(option) > 0
            ]
            if part_options:
                trainers, readers = part_options
                options += self.separate_reading_options(component, trainers, readers, apart)
            if inner:
                options = [*dict.fromkeys((*inner, *options))]
            self.options_compared += len(options)
            return tuple(undominated(options, usable_device_bytes(island, self.constants), self.offload_room(island)))

        return get_or_compute(
            self._fronts,
            (id(component), id(island), limit, *rooms, *map(id, part_options), id(inner)),
            compute_undominated_options,
        )

    def may_offload(self, deployment: Deployment) -> bool:
        """Return whether a model may be offloaded to the host's memory while it is not at work. What is called a CPU's
        device memory is the host's memory already."""
        return self.offload and deployment.engine_spec.sleeps and deployment.island.device.kind != "cpu"

    def offload_room(self, island: NodeGroup) -> float:
        """Return the bytes of a node's host for offloaded models; infinity where nothing may be there."""
        return usable_host_bytes(island, self.constants) if self.hosts else math.inf

    def pipeline_sharing_options(self, component: Component, island: NodeGroup, devices: int) -> Sharing:
        """Return, by split, the options that may share a pipeline; also some that others dominate that share none."""
        fusible = [same_split for same_split in self.strategies_by_split(component, island) if same_split[0].fuses]
        rooms = [
            self.equivalent_replica_limit(component, island, same_split[0].most_replicas(devices))
            for same_split in fusible
        ]

        def compute_pipeline_sharing_options() -> Sharing:
            result: dict[Ranks, Sequence[Option]] = {}
            for same_split, room in zip(fusible, rooms, strict=True):
                result |= self.pipeline_sharing_options_of_mesh(component, same_split, room)
            if island.inner:
                result |= self.pipeline_sharing_options(
                    component, island.inner, min(devices, island.inner.device_count)
                )
            return result

        return get_or_compute(self._sharing, (id(component), id(island), *rooms), compute_pipeline_sharing_options)

    def pipeline_sharing_options_of_mesh(self, component: Component, own: list[Strategy], most: int) -> Sharing:
        """Return, by split, the options of the strategies of one mesh that may share a pipeline, where there is room
        for so many replicas."""

        def group_options_by_split() -> Sharing:
            splits: dict[Ranks, list[Option]] = {}
            for option in self.options_of_split(component, own, most):
                if option.can_share_stages:
                    splits.setdefault(option.split.pipeline_key, []).append(option)
            return splits

        return get_or_compute(self._filled, (id(own), most), group_options_by_split)

    def equivalent_replica_limit(self, component: Component, island: NodeGroup, most: int) -> int:
        """Return the fewest replicas that there can be room for instead of `most` with equal `numbers`."""
        few = max(EACH, island.per_node) + 1
        return (
            most if most <= few else max(few, next(_copies(component, self.shardable_unit_counts(component), most), 0))
        )

    def options_of_split(self, component: Component, own: list[Strategy], most: int) -> list[Option]:
        """Return the options of the strategies of one split, where there is room for so many replicas."""
        return get_or_compute(
            self._fitting,
            (id(own), most),
            lambda: [
                option
                for strategy in own
                for copies in self.replica_counts(component, strategy, most)
                for option in self.options_of_replica_count(component, strategy, copies)
            ],
        )

    def least_task_seconds(
        self, component: Component, island: NodeGroup, devices: int, shares: bool = False
    ) -> dict[int, float]:
        """Return seconds of each of a component's tasks that no option with one split for all of them takes less than,
        on at most so many devices of a node group; empty where there is none. shares: whether it may share its pipeline
        with others."""
        least = self.least_task_seconds(component, island.inner, devices, shares) if island.inner else {}
        fit = usable_device_bytes(island, self.constants)
        for same_split in self.strategies_by_split(component, island):
            most = self.equivalent_replica_limit(component, island, same_split[0].most_replicas(devices))
            for option in self.options_of_split(component, same_split, most):
                if option.least_peak <= fit:
                    seconds = option.least_seconds if shares else option.seconds
                    for task, task_s in zip(component.tasks, seconds, strict=True):
                        least[task] = min(task_s, least.get(task, task_s))
        return least

    def separate_reading_options(
        self, whole: Component, trainers: Sequence[Option], readers: tuple[Option, ...], limit: Limit
    ) -> Iterator[Option]:
        """Yield the ways to train and read with a split of its own each that are worth it: some of what is read is
        there earlier by a tenth than if who trains it read, and no other reader is better in all."""
        for trainer in trainers:
            yield from self.separate_reading_options_of_trainer(whole, trainer, readers, limit)

    def separate_reading_options_of_trainer(
        self, whole: Component, trainer: Option, readers: Sequence[Option], limit: Limit = NO_LIMIT
    ) -> Iterator[Option]:
        """Yield these ways for one way to train."""
        _, _, read = self.parts[id(whole)]
        together = [FASTER * task_s for task_s in self.reading_seconds_of_trainer(whole, read, trainer)]
        beside = get_or_compute(
            self._beside,
            (id(whole), trainer.split, tuple(readers)),
            lambda: self.undominated_readers(whole, trainer, readers),
        )
        most_s = limit.seconds_left(trainer)
        for reader, seconds in beside:
            if any(map(lt, seconds, together)) and sum(seconds) < most_s:
                key = (id(whole), id(trainer), id(reader))
                yield get_or_compute(self._apart, key, partial(self._separate_option, whole, trainer, reader, seconds))

    def undominated_readers(
        self, whole: Component, trainer: Option, readers: Sequence[Option]
    ) -> list[tuple[Option, tuple[float, ...]]]:
        """Return the readers beside those who train with a split none of which is better in all than another one, each
        with the seconds of what is read, with what its weights take."""
        others = [reader for reader in readers if reader.split != trainer.split]
        waits = [self.sync_seconds(whole, trainer, reader) for reader in others]
        seconds = [
            (first + wait, *rest) for (first, *rest), wait in zip((r.seconds for r in others), waits, strict=True)
        ]
        keys = [(reader.resident, *reader.active, *taken) for reader, taken in zip(others, seconds, strict=True)]
        return [(others[index], seconds[index]) for index in undominated_rows(keys)]

    def _separate_option(
        self, whole: Component, trainer: Option, reader: Option, seconds: Sequence[float]
    ) -> SeparateReadingOption:
        """Return the option of one way to train and one to read. seconds: of what is read, with what its weights
        take."""
        self.options_made += 1
        _, trained, read = self.parts[id(whole)]
        seconds_of = dict(zip(trained.tasks, trainer.seconds, strict=True)) | dict(
            zip(read.tasks, seconds, strict=True)
        )
        bytes_of = dict(zip(trained.tasks, trainer.active, strict=True))
        bytes_of |= zip(read.tasks, reader.active, strict=True)
        kind, sent = weight_transfer_key(whole, trainer.strategy.deployment, trainer.split)
        return SeparateReadingOption(
            trainer,
            reader,
            tuple([seconds_of[task] for task in whole.tasks]),
            tuple([bytes_of[task] for task in whole.tasks]),
            kind,
            (*sent, -trainer.copies) if self.apart else sent,
        )

    def reading_seconds_of_trainer(self, whole: Component, read: Component, trainer: Option) -> tuple[float, ...]:
        """Return the seconds of what is read, by those who train."""
        deployment, copies = trainer.strategy.deployment, trainer.copies

        def compute_reading_seconds() -> tuple[float, ...]:
            strategy = get_or_compute(
                self._reading, (id(whole), deployment), lambda: self.make_strategy(whole, deployment)
            )
            seconds_of = dict(zip(whole.tasks, strategy.task_seconds(copies), strict=True))
            return tuple([seconds_of[task] * self.tasks[task].repetitions for task in read.tasks])

        return get_or_compute(self._together, (id(whole), deployment, copies), compute_reading_seconds)

    def sync_seconds(self, component: Component, source: Option, target: Option) -> float:
        """Return the seconds that weights take from some processes to others in their pool."""
        key = (id(component), source.split.weights, target.split.weights)
        config, constants = component.config, self.constants
        return get_or_compute(
            self._synced,
            key,
            lambda: weight_sync_cost(config, source.deployment, target.deployment, True, constants).seconds,
        )

    def all_options(self, component: Component, island: NodeGroup, devices: int) -> Iterator[Option]:
        """Yield all options that may be worth it, also those that do not fit next to others."""
        if island.inner:
            yield from self.all_options(component, island.inner, min(devices, island.inner.device_count))
        for strategy in chain.from_iterable(self.strategies_by_split(component, island)):
            for copies in self.replica_counts(component, strategy, strategy.most_replicas(devices)):
                yield from self.options_of_replica_count(component, strategy, copies)

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
            if self.may_offload(strategy.deployment) and not component.receives_weights:
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
        if self.may_offload(strategy.deployment) and not component.receives_weights:
            # Fewer on a node offload less to it.
            numbers += [
                number
                for number in self.possible_replica_counts(component, min(most, strategy.near))
                if number not in numbers
            ]
        return [number for number in numbers if number > strategy.beyond] if strategy.beyond else numbers

    def faster_replica_counts(self, component: Component, strategy: Strategy, most: int) -> list[int]:
        """Return, of at most so many replicas, the numbers that are faster than more of them, and the first that is
        not."""

        def find_faster_replica_counts() -> list[int]:
            no_sync, numbers = needs_no_sync(component, strategy.deployment), []
            previous: tuple[float, ...] = ()
            for copies in self.possible_replica_counts(component, most):
                if copies <= strategy.beyond:
                    break
                numbers.append(copies)
                seconds = self.options_of_replica_count(component, strategy, copies)[0].seconds
                # Fewer replicas have less to exchange. Where that does not pay, still fewer do not pay either.
                if previous and not any(map(lt, seconds, previous)) and not no_sync:
                    break
                previous = seconds
            return numbers

        return get_or_compute(self._paying, (strategy, most), find_faster_replica_counts)

    def possible_replica_counts(self, component: Component, most: int) -> list[int]:
        """Return the result of `_copies`, computed once."""
        key = (id(component), most)
        return get_or_compute(
            self._copies, key, lambda: list(_copies(component, self.shardable_unit_counts(component), most))
        )

    def options_of_replica_count(self, component: Component, strategy: Strategy, copies: int) -> tuple[Option, ...]:
        """Return the options of so many replicas, computed once."""
        return get_or_compute(self._made, (strategy, copies), lambda: self.make_options(component, strategy, copies))

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

    def component_batches(self, component: Component) -> list[Batch]:
        """Return the rows of all operations that a component does."""
        return [batch for _, batches in component.operation_batches(self.tasks) for batch in batches]

    def filled_cache_bytes(
        self, component: Component, deployment: Deployment, copies: int, longest: bool = False
    ) -> float:
        """Return the bytes of the cache that its rows fill in the end, with which it is as fast as with more. longest:
        if all of them are the longest."""
        most, rows = max_decoding_slots(deployment), self.component_batches(component)
        tokens = [
            min(most, batch.rows_of_fullest_replica(copies))
            * (batch.mean_row_tokens.longest if longest else batch.prompt.mean + batch.response.mean)
            for batch in rows
        ]
        return cache_bytes_per_token(component.config, deployment) * max(tokens, default=0.0)

    def onloads_per_step(self, component: Component) -> tuple[float, ...]:
        """Return for each of its tasks how often in a step it comes to its devices, if it is offloaded in between."""
        numbers = component.tasks
        return get_or_compute(
            self._stays,
            id(component),
            lambda: tuple([device_takeovers(self.tasks, number, numbers) for number in numbers]),
        )

    def shardable_unit_counts(self, component: Component) -> list[float]:
        """Return the numbers of rows of its tasks that can be sharded: samples of one prompt stay together."""
        return get_or_compute(
            self._units,
            id(component),
            lambda: sorted({batch.rows / batch.samples for batch in component.batches_to_try(self.tasks)}) or [1.0],
        )

    def make_options(self, component: Component, strategy: Strategy, copies: int) -> tuple[Option, ...]:
        """Return the options of so many replicas: with the model staying on its devices and, where it may be, offloaded
        in between."""
        self.options_made += 1
        strategy = strategy.for_replicas(copies)
        deployment = strategy.deployment
        times = tuple([self.tasks[number].repetitions for number in component.tasks])
        split, kind, sent = get_or_compute(strategy.sent, copies, lambda: self._sent(component, deployment, copies))
        high = strategy
        if strategy.caches:
            # With a cache of more than its rows fill it is no faster.
            high = strategy.caches.strategy_with_cache_at_least(self.filled_cache_bytes(component, deployment, copies))
            kind = kind, deployment.mesh, deployment.adapters
        if component.shared:
            # Others have to be split alike: one split is no better than another.
            kind = kind, deployment.engine, deployment.mesh, copies
        still, sleeps = (0.0,) * len(times), self.may_offload(deployment)
        optimizer = self.constants.unpinned_part * strategy.optimizer_host_bytes(copies) if self.hosts else 0.0
        staying = Option(strategy, copies, split, False, times, still, kind, sent, high, (optimizer,) * self.hosts)
        said = component.pin.sleep if component.pin else None
        # Those that share processes are awake at once: their bytes would add up.
        sleeps &= component.shared is None or bool(said)
        if not sleeps or said is False:
            return (staying,)
        moved = self.offload_seconds_per_step(component, strategy, copies)
        hosted = (optimizer + (0.0 if component.receives_weights else strategy.offloaded_host_bytes(copies)),)
        asleep = Option(strategy, copies, split, True, times, moved, kind, sent, high, hosted)
        return (asleep,) if said else (staying, asleep)

    def same_option(self, component: Component, option: Option) -> Option:
        """Return, for a component, the option that does the same as one of a component with the same tasks; its bytes
        may be others. The model stays on its devices."""
        if isinstance(option, SeparateReadingOption):
            _, trained, read = self.parts[id(component)]
            trainer, reader = self.same_option(trained, option.trainer), self.same_option(read, option.reader)
            seconds = [option.seconds[component.tasks.index(task)] for task in read.tasks]
            return self._separate_option(component, trainer, reader, seconds)
        strategy = self.make_strategy(component, option.strategy.deployment)
        return self.make_options(component, strategy, option.copies)[0]

    def _sent(self, component: Component, deployment: Deployment, copies: int) -> tuple[Split, object, Key]:
        """Return the split of so many replicas, and what decides how fast weights and rows come from them, or to
        them."""
        split = make_split(component, deployment, copies)
        split = self._splits.setdefault(split, split)
        kind, sent = weight_transfer_key(component, deployment, split)
        return split, kind, (*sent, -copies) if self.apart else sent

    def offload_seconds_per_step(self, component: Component, strategy: Strategy, copies: int) -> tuple[float, ...]:
        """Return for each of its tasks the seconds of a step in which an offloaded model is brought back for it, and
        offloaded again."""
        deployment, (resident, _) = strategy.deployment, strategy.needed_bytes(copies)
        once = offload_round_trip_cost(
            component.main_operation,
            resident - deployment.kv_bytes - strategy.never_offloaded_bytes,
            deployment,
            component.receives_weights,
            self.constants,
        ).seconds
        return tuple([once * times for times in self.onloads_per_step(component)])


def _rounded(devices: int) -> int:
    """Return the largest number that is no more, and has only zeros after its first three binary digits."""
    more = max(0, devices.bit_length() - 3)
    return devices >> more << more


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
