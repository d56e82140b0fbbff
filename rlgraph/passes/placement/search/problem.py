"""The problem of a search: the time of a step, or its price, for components in pools with an option each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from math import ceil
from types import MappingProxyType
from typing import Literal

from rlgraph.catalog.clusters.cluster import Cluster, NodeGroup
from rlgraph.passes.cost.cost import Cost
from rlgraph.passes.cost.peak_memory import TIGHT, usable_device_bytes
from rlgraph.passes.cost.predict import cross_node_group_rows_cost, host_work_cost
from rlgraph.passes.cost.task import Task
from rlgraph.passes.cost.timetable import Chains, TaskOrder, makespan, pool_task_chains, step_seconds_lower_bound
from rlgraph.passes.cost.weights import weight_sync_cost
from rlgraph.passes.memo import get_or_compute
from rlgraph.passes.placement.search.colocation import Blocks, Colocation, Copies, NodeGroupTransfer, PartitionBlock
from rlgraph.passes.placement.search.components import Component
from rlgraph.passes.placement.search.fused_pipelines import Pieces, Taken, exact_pipeline_seconds, make_pipeline_sharing
from rlgraph.passes.placement.search.option import Option, SeparateReadingOption
from rlgraph.passes.placement.search.options import Options

Goal = Literal["time", "cost"]

Given = tuple[
    Sequence[Component],
    Cluster,
    Options,
    Goal,
    Mapping[str, tuple[int, int]],
    Sequence[frozenset[str]],
    int,
]


class PlacementProblem:
    """The step's work, its components, and the cluster."""

    def __init__(
        self,
        components: Sequence[Component],
        cluster: Cluster,
        options: Options,
        goal: Goal,
        code: Mapping[str, tuple[int, int]] = MappingProxyType({}),
        pairs: Sequence[frozenset[str]] = (),
        older: int = 0,
    ) -> None:
        """code: for each function of the user's that has a pool of cpus, the number of that pool among them, and how
        many cpus it has. pairs: models whose trainings may share a pipeline. older: the steps that weights which sample
        may be behind, so that one more step than that is in flight."""
        self.components, self.cluster, self.options, self.goal, self.staleness_steps = (
            components,
            cluster,
            options,
            goal,
            older,
        )
        self.tasks, self.constants, self.cpu_pools_of_functions = options.tasks, options.constants, code
        self.fusible_pairs = pairs
        self.fusing = make_pipeline_sharing(components, pairs, [task.op for task in options.tasks], options.constants)
        self._joined: dict[Pieces, TaskOrder] = {}
        self._colocations: dict[Blocks, Colocation] = {}
        self._request_orders: dict[Blocks, tuple[TaskOrder, Chains]] = {}
        self._syncs: dict[tuple[object, ...], float] = {}
        self._known_syncs: dict[tuple[object, ...], float] = {}
        component_numbers = {
            (component.model_name, op): number
            for number, component in enumerate(components)
            for op in component.operations
        }
        self.component_of_operation: Mapping[tuple[str, str], int] = component_numbers
        """The component of each model and operation."""
        self.component_of = [component_numbers[task.model, task.op] if task.model else None for task in self.tasks]
        """The component of each task; None: the host does it."""
        self.components_in_same_processes: Mapping[int, tuple[int, ...]] = {
            number: tuple(at for at, other in enumerate(components) if other.shared == shared and at != number)
            for number, component in enumerate(components)
            if (shared := component.shared)
        }
        """For each component that shares its processes with others these others."""
        trained = {
            component.model_name: number for number, component in enumerate(components) if component.work == "train"
        }
        self.sync_pairs = [
            (trained[component.model_name], number)
            for number, component in enumerate(components)
            if component.receives_weights and component.tasks
        ]
        """Pairs of components: the second one needs the new weights of the first one before it works in a step."""
        self.independent_receivers = {
            number for _, number in self.sync_pairs if not any(self._waits(task) for task in components[number].tasks)
        }
        """Of the second ones, those that need nothing else of a model."""

    def _waits(self, number: int) -> bool:
        """Return whether a task needs what another component made."""
        return any(self.tasks[other].model or self._waits(other) for other in self.tasks[number].waits_for)

    @cached_property
    def twins(self) -> list[Component]:
        """For each component the first one that does the same with a model of the same shape: what is computed of the
        options of that one holds for it, too."""
        first: list[Component] = []
        known: list[tuple[object, Component]] = []
        for component in self.components:
            # Those that share processes, or a pipeline, are told apart by their names.
            fuses, alone = (
                component.model_name in self.options.settings.fuses,
                component.model_name if component.shared else "",
            )
            parts = self.options.parts.get(id(component), (component,))
            key = (fuses, alone, [part.work_on_rows(self.tasks) for part in parts])
            twin = next((other for other_key, other in known if other_key == key), component)
            if twin is component:
                known.append((key, component))
            first.append(twin)
        return first

    @property
    def constructor_arguments(self) -> Given:
        """The arguments that make another problem like this one."""
        return (
            self.components,
            self.cluster,
            self.options,
            self.goal,
            self.cpu_pools_of_functions,
            self.fusible_pairs,
            self.staleness_steps,
        )

    @cached_property
    def job_order(self) -> TaskOrder:
        """The order of the tasks, with each transfer of weights before them as a task of its own: it begins when the
        work that it is for has all else that it needs, but work that needs no model does not wait for the host. Both
        its pools have to be free: what is ready at the same time comes first."""
        count = len(self.sync_pairs)
        brought = {number: job for job, (_, number) in enumerate(self.sync_pairs)}
        needed = {number: self.tasks[self.components[number].tasks[0]].waits_for for number in brought}
        after: list[tuple[int, ...]] = [
            () if number in self.independent_receivers else tuple(waited + count for waited in needed[number])
            for number in brought
        ]
        for task, component in zip(self.tasks, self.component_of, strict=True):
            waits = tuple(number + count for number in task.waits_for)
            after.append((brought[component], *waits) if component in brought else waits)
        return TaskOrder.from_dependencies(
            after, frozenset(brought[number] for number in brought.keys() - self.independent_receivers)
        )

    @cached_property
    def tasks_with_pool_order(self) -> TaskOrder:
        """The order of the tasks, with the order in which the host, and each pool of cpus, does what it has to do."""
        on_host = [component is None for component in self.component_of]
        pools = [(self._place(task, 0),) if by_host else () for task, by_host in zip(self.tasks, on_host, strict=True)]
        takes_time = [
            not by_host or seconds > 0 for by_host, seconds in zip(on_host, self.host_task_seconds, strict=True)
        ]
        count = len(self.sync_pairs)
        return self.job_order.with_pool_order([*[()] * count, *pools], [*[False] * count, *takes_time])

    def request_order(self, blocks: Blocks) -> tuple[TaskOrder, Chains]:
        """Return the order of the jobs with that in which each pool does what it has to do, as far as it does not
        depend on seconds, where no trainings share a pipeline; and its chains."""

        def compute() -> tuple[TaskOrder, Chains]:
            pools, count = self.make_colocation(blocks).pools_of_job, len(self.sync_pairs)
            takes_time = [
                component is not None or seconds > 0
                for component, seconds in zip(self.component_of, self.host_task_seconds, strict=True)
            ]
            order = self.job_order.with_pool_order(pools, [*[False] * count, *takes_time])
            return order, pool_task_chains(order, pools, 1 + max(chain.from_iterable(pools), default=0))

        return get_or_compute(self._request_orders, blocks, compute)

    @cached_property
    def job_stages(self) -> tuple[tuple[int, ...], ...]:
        """The jobs that are not the host's, in stages: all of a stage are done before one of the next begins. For PPO
        the stages are bringing weights, sampling, reading and training."""
        count, above = len(self.sync_pairs), self.tasks_with_pool_order.above
        jobs = [
            job
            for job in self.tasks_with_pool_order.sequence
            if job < count or self.component_of[job - count] is not None
        ]
        cuts = [
            index for index in range(1, len(jobs)) if all({*jobs[:index]}.issubset(above[job]) for job in jobs[index:])
        ]
        return tuple(tuple(jobs[low:high]) for low, high in zip([0, *cuts], [*cuts, len(jobs)], strict=True))

    @cached_property
    def host_seconds_between_stages(self) -> float:
        """The seconds of the host between the stages, while nothing else is done."""
        count, above, total = len(self.sync_pairs), self.tasks_with_pool_order.above, 0.0
        for before, after in zip(self.job_stages, self.job_stages[1:], strict=False):
            total += sum(
                seconds
                for task, seconds in enumerate(self.host_task_seconds)
                if seconds
                and not self.tasks[task].code
                and {*before}.issubset(above[task + count])
                and all(task + count in above[job] for job in after)
            )
        return total

    @cached_property
    def host_task_seconds(self) -> list[float]:
        """The seconds of each task that the host does, or that runs the user's code elsewhere."""
        return [0.0 if task.model else task.repetitions * self._hosted(task) for task in self.tasks]

    @cached_property
    def host_seconds_at_start(self) -> float:
        """The seconds of all that the host does before anything else is done: until then what needs no model may
        wait."""
        return sum(seconds for number, seconds in enumerate(self.host_task_seconds) if not self._waits(number))

    def _hosted(self, task: Task) -> float:
        # The rows are sharded over all cpus of a pool, or over all processes that the program asks for.
        _, processes = self.cpu_pools_of_functions.get(task.code, (0, task.workers))
        return host_work_cost(task.op, task.rows / processes, self.constants).seconds

    def make_colocation(self, blocks: Blocks) -> Colocation:
        """Return how jobs run on some pools; the host comes after them, and then the pools of cpus. Components that
        have no pool yet wait for none."""
        if blocks not in self._colocations:
            home = {component: number for number, block in enumerate(blocks) for component in block.components}
            pools = [
                tuple(sorted({home[component] for component in ends if component in home})) for ends in self.sync_pairs
            ]
            for task, component in zip(self.tasks, self.component_of, strict=True):
                pool = self._place(task, len(blocks)) if component is None else home.get(component)
                pools.append(() if pool is None else (pool,))
            count = 1 + max((pool for job_pools in pools for pool in job_pools), default=0)
            trips = tuple(
                self._trips({component: self.pool_node_group(blocks[block]) for component, block in home.items()})
            )
            busy = tuple(
                tuple(job for job, job_pools in enumerate(pools) if pool in job_pools) for pool in range(count)
            )
            self._colocations[blocks] = Colocation(
                home, pools, pool_task_chains(self.tasks_with_pool_order, pools, count), busy, trips
            )
        return self._colocations[blocks]

    def _trips(self, islands: Mapping[int, NodeGroup]) -> Iterator[NodeGroupTransfer]:
        """Yield what travels between node groups. islands: those of the components that have one. The host is next to
        the first devices."""
        first, sent = self.cluster.islands[0], set[tuple[int | None, str]]()
        for number, (task, component) in enumerate(zip(self.tasks, self.component_of, strict=True)):
            if component is not None and component not in islands:
                continue
            island = first if component is None else islands[component]
            if link := self.cluster.link_between(first, island):
                _, latency = link
                yield NodeGroupTransfer(number, (None, component), 2 * latency * task.repetitions)
            for read in task.reads:
                source = None if read.maker is None else self.component_of_operation[read.maker]
                if source == component or (component, read.value) in sent or source not in {None, *islands}:
                    continue
                sent.add((component, read.value))
                link = self.cluster.link_between(first if source is None else islands[source], island)
                if link:
                    _, latency = link
                    seconds = cross_node_group_rows_cost(read.tokens, link, self.constants).seconds - latency
                    yield NodeGroupTransfer(number, (source, component), read.orders * latency, seconds)

    def _place(self, task: Task, host: int) -> int:
        """Return the number of the pool that does a task: `host`, or after it that of a pool of cpus."""
        number, _ = self.cpu_pools_of_functions.get(task.code, (-1, 1))
        return host + 1 + number

    def job_seconds(
        self,
        durations: Mapping[int, Sequence[float]],
        syncs: Sequence[float],
        trips: Mapping[int, float] = MappingProxyType({}),
    ) -> list[float]:
        """Return the seconds of each job, from those of each component's tasks. trips: what tasks take in addition."""
        seconds = [*syncs, *self.host_task_seconds]
        for number, task_seconds in durations.items():
            for task, taken in zip(self.components[number].tasks, task_seconds, strict=True):
                seconds[len(syncs) + task] = taken
        for task, taken in trips.items():
            seconds[len(syncs) + task] += taken
        return seconds

    def pair_sync_seconds(self, ends: tuple[int, int], source: Option, target: Option, together: bool) -> float:
        """Return the seconds that the new weights of a component take to another one with the same model."""
        # Options of one split have the same object, which is quicker to look up than what decides.
        known = (ends, id(source.split), id(target.split), together)
        seconds = self._known_syncs.get(known)
        if seconds is None:
            key = (ends, source.split.weights, target.split.weights, together)
            seconds = self._known_syncs[known] = get_or_compute(
                self._syncs, key, lambda: self.weight_transfer_cost(ends[0], source, target, together).seconds
            )
        return seconds

    def sync_seconds(self, home: Mapping[int, int], chosen: Sequence[Option]) -> list[float]:
        """Return the seconds of all transfers of weights with an option of each component. home: their pools."""
        return [self.pair_sync_seconds((a, b), chosen[a], chosen[b], home[a] == home[b]) for a, b in self.sync_pairs]

    def weight_transfer_cost(self, component: int, source: Option, target: Option, together: bool) -> Cost:
        """Return the cost of bringing the new weights of a component to another one with the same model."""
        if together and source.split.shared and source.split == target.split:
            return Cost()
        config, apart = self.components[component].config, self.cluster.link_between(source.island, target.island)
        return weight_sync_cost(config, source.deployment, target.deployment, together, self.constants, apart)

    def row_travel_seconds(self, colocation: Colocation, copies: Copies) -> dict[int, float]:
        """Return the least seconds that requests and rows of tasks travel between node groups."""
        total: dict[int, float] = {}
        longest: dict[tuple[int, int | None], float] = {}
        for trip in colocation.group_transfers:
            lanes = min(1.0 if end is None else self._lanes(end, copies[end]) for end in trip.end_components)
            # What is computed for a row travels with the row.
            key, seconds = (
                (trip.task, trip.end_components[0] if trip.seconds else -1),
                trip.seconds / lanes + trip.latency_s,
            )
            total[trip.task] = total.get(trip.task, 0.0) + max(0.0, seconds - longest.get(key, 0.0))
            longest[key] = max(seconds, longest.get(key, 0.0))
        return total

    def _lanes(self, component: int, copies: int) -> float:
        """Return how many replicas send or receive at most, as long as the one that has most rows."""
        rows = self.options.counts.shardable_unit_counts(self.components[component])[-1]
        return rows / ceil(rows / copies)

    def dollars_per_second(self, blocks: Blocks, devices: Sequence[int]) -> float:
        """Return the dollars a second of the devices of all pools."""
        dollars = 0.0
        for block, count in zip(blocks, devices, strict=True):
            for number in block.other_islands:
                island = self.cluster.islands[number]
                dollars, count = dollars + island.device_count * island.device.price, count - island.device_count
            dollars += count * self.cluster.islands[block.island].device.price
        return dollars / 3600

    def unplaced_components(self, blocks: Blocks) -> list[int]:
        """Return the components that have no pool yet."""
        home = {number for block in blocks for number in block.components}
        return [] if len(home) == len(self.components) else sorted({*range(len(self.components))} - home)

    def pool_node_group(self, block: PartitionBlock) -> NodeGroup:
        """Return the node group that a pool lies on; several are joined into one."""
        return (
            self.cluster.join_node_groups(block.islands) if block.other_islands else self.cluster.islands[block.island]
        )

    def usable_pool_bytes(self, blocks: Blocks) -> list[float]:
        """Return the usable bytes of a device of each pool."""
        return [usable_device_bytes(self.pool_node_group(block), self.constants) for block in blocks]

    def objective_value(self, seconds: float, blocks: Blocks, devices: Sequence[int]) -> float:
        """Return what is minimized."""
        return seconds if self.goal == "time" else seconds * self.dollars_per_second(blocks, devices)

    def least_step_seconds(
        self,
        durations: Mapping[int, Sequence[float]],
        syncs: Sequence[float],
        colocation: Colocation,
        copies: Copies = MappingProxyType({}),
        ordered: tuple[TaskOrder, Chains] | None = None,
    ) -> float:
        """Return seconds that no order of the jobs can beat; ordered: that none can in which pools keep to this one."""
        seconds = self.job_seconds(durations, syncs, self.row_travel_seconds(colocation, copies))
        order, chains = ordered or (self.tasks_with_pool_order, colocation.chains)
        return self.steady_step_seconds(step_seconds_lower_bound(order, seconds, chains), seconds, colocation)

    def step_seconds(
        self,
        durations: Mapping[int, Sequence[float]],
        syncs: Sequence[float],
        colocation: Colocation,
        copies: Copies = MappingProxyType({}),
        pieces: Pieces = (),
    ) -> float:
        """Return the seconds of a step, or of one of many where several are in flight."""
        seconds = self.job_seconds(durations, syncs, self.row_travel_seconds(colocation, copies))
        return self.steady_step_seconds(
            makespan(self.fused_task_order(pieces), seconds, colocation.pools_of_job), seconds, colocation
        )

    def steady_step_seconds(self, alone: float, seconds: Sequence[float], colocation: Colocation) -> float:
        """Return the seconds from the end of a step to the end of the next one, where a step alone takes `alone`: at
        least as long as the busiest pool, and a step begins when the one is done whose weights it samples with, or
        reads with."""
        if not self.staleness_steps:
            return alone
        load = max((sum([seconds[job] for job in jobs]) for jobs in colocation.jobs_of_pool), default=0.0)
        return max(
            load,
            alone / (self.staleness_steps + 1),
            *(self._around(cycle, seconds) for cycle in self.cycles_across_steps),
        )

    @cached_property
    def cycles_across_steps(self) -> list[dict[int, list[int]]]:
        """What cannot overlap where steps do: a model that is read separately from its training is read with the
        weights of the step before, and before the next ones are trained. Each cycle has the jobs that are done in
        between, in order, each with those of them that it waits for."""
        cycles, count, above = [], len(self.sync_pairs), self.job_order.above
        for job, (source, target) in enumerate(self.sync_pairs if self.staleness_steps else ()):
            if self.components[target].work == "generate":
                continue
            trains = [count + task for task in self.components[source].tasks]
            jobs = [
                other
                for other in self.job_order.sequence
                if job in (other, *above[other]) and any(other in (end, *above[end]) for end in trains)
            ]
            cycles.append(
                {member: [other for other in self.job_order.after[member] if other in jobs] for member in jobs}
            )
        return cycles

    def _around(self, cycle: Mapping[int, Sequence[int]], seconds: Sequence[float]) -> float:
        ends: dict[int, float] = {}
        for job, others in cycle.items():
            ends[job] = seconds[job] + max([ends[other] for other in others], default=0.0)
        return max(ends.values(), default=0.0)

    def split_component(self, number: int, option: Option) -> list[tuple[Component, Option]]:
        """Return a component with its option; where it reads separately from its training, each of the two."""
        component = self.components[number]
        if not isinstance(option, SeparateReadingOption):
            return [(component, option)]
        _, trainer, reader = self.options.parts[id(component)]
        return [(trainer, option.trainer), (reader, option.reader)]

    def components_with_options(self, chosen: Sequence[Option]) -> list[tuple[Component, Option]]:
        """Return all components with their options, those that read separately from their training as two."""
        return [part for number, option in enumerate(chosen) for part in self.split_component(number, option)]

    def step_seconds_with_options(
        self, blocks: Blocks, chosen: Sequence[Option], pieces: Pieces = (), taken: Taken = exact_pipeline_seconds
    ) -> float:
        """Return the seconds of a step with an option of each component. taken: what trainings take that share a
        pipeline."""
        colocation = self.make_colocation(blocks)
        home, durations = colocation.pool_of_component, self.fusing.component_task_seconds(chosen, pieces, taken)
        syncs = self.sync_seconds(home, chosen)
        copies = {number: option.copies for number, option in enumerate(chosen)}
        return self.step_seconds(durations, syncs, colocation, copies, pieces)

    def possible_pipeline_sharings(self, blocks: Blocks, chosen: Sequence[Option]) -> list[Pieces]:
        """Return all ways in which trainings can share pipelines, where there is room for that, after the one in which
        none do."""
        result: list[Pieces] = [()]
        ways = self.fusing.possible_pipeline_sharings([block.components for block in blocks])
        rooms = dict[int, float]()
        for block in blocks if ways else ():
            room = usable_device_bytes(self.pool_node_group(block), self.constants) - sum(
                chosen[number].resident for number in block.components
            )
            rooms |= dict.fromkeys(block.components, room)
        fits = self.fusing.can_share_pipeline
        return result + [way for way in ways if all(fits(rooms[piece[0]], piece, chosen) for piece in way)]

    def fused_task_order(self, pieces: Pieces) -> TaskOrder:
        """Return the order of the tasks in which the trainings of a pipeline begin and end together."""
        if not pieces:
            return self.job_order
        if pieces not in self._joined:
            count, after = len(self.sync_pairs), [{*others} for others in self.job_order.after]
            for piece in pieces:
                jobs = {count + self.components[number].tasks[self.fusing.training[number]] for number in piece}
                together = set[int]().union(*(after[job] for job in jobs))
                for waited in after:
                    waited |= jobs if waited & jobs else set()
                for job in jobs:
                    after[job] |= together
            self._joined[pieces] = TaskOrder.from_dependencies([sorted(waited) for waited in after])
        return self._joined[pieces]

    def can_share_pool(self, chosen: Sequence[Option], island: NodeGroup) -> bool:
        """Return whether options can share a pool."""
        offloaded = sum(option.host for option in chosen)
        return device_peak_bytes(chosen) <= usable_device_bytes(
            island, self.constants
        ) and offloaded <= self.options.offload_room(island)

    def is_memory_tight(self, blocks: Blocks, chosen: Sequence[Option]) -> bool:
        """Return whether a pool is fuller than `TIGHT` with these options."""
        return any(
            device_peak_bytes([chosen[number] for number in block.components])
            > TIGHT * usable_device_bytes(self.pool_node_group(block), self.constants)
            for block in blocks
        )


def device_peak_bytes(chosen: Sequence[Option]) -> float:
    """Return the bytes of a device of a pool at the fullest moment."""
    return sum(option.resident for option in chosen) + max(
        (max(option.active, default=0.0) for option in chosen), default=0.0
    )
