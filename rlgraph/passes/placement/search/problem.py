"""What is minimized: the time of a step, or its price, for components in pools with an option each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from types import MappingProxyType
from typing import Literal

from rlgraph.catalog.clusters.cluster import Cluster, Island
from rlgraph.passes.cost import time
from rlgraph.passes.cost.peak import usable
from rlgraph.passes.cost.predict import host, sent_apart
from rlgraph.passes.cost.tasks import Task
from rlgraph.passes.cost.time import Cost
from rlgraph.passes.cost.timetable import Chains, Order, Pools, bound, chains, makespan
from rlgraph.passes.placement.search.components import Component
from rlgraph.passes.placement.search.fusing import Pieces, Taken, exactly, fusing
from rlgraph.passes.placement.search.option import Apart, Option
from rlgraph.passes.placement.search.options import Options

Goal = Literal["time", "cost"]


@dataclass(frozen=True, slots=True)
class Block:
    """Components that share a pool."""

    components: tuple[int, ...]
    island: int
    name: str = ""
    """Of a pool that the schedule declares."""
    devices: int = 0
    """Of such a pool; 0: free."""
    others: tuple[int, ...] = ()
    """Of a pool that lies over several islands all but `island`, which it has whole; of that one it has those devices
    that are next to them."""

    @property
    def islands(self) -> tuple[int, ...]:
        """In the order in which copies fill them."""
        return (*self.others, self.island)


Blocks = tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Colocation:
    """What a partition says of the jobs."""

    home: Mapping[int, int]
    """For each component its block."""
    pools: Pools
    """For each job."""
    chained: Chains
    busy: tuple[tuple[int, ...], ...]
    """For each pool its jobs."""
    trips: tuple[Trip, ...]
    """What travels between islands."""


@dataclass(frozen=True, slots=True)
class Trip:
    """Orders of a task, or rows of a value that it reads, which go over the link between two islands, in a step."""

    task: int
    ends: tuple[int | None, int | None]
    """Components that send and receive; None: the host, which is one process."""
    latency: float
    """Of the messages."""
    seconds: float = 0.0
    """Of the bytes, if one copy sends them to one."""


Copies = Mapping[int, int]
"""For each component how many it has at most; needed where there are `Colocation.trips`."""


Given = tuple[
    Sequence[Component],
    Cluster,
    Options,
    Goal,
    Mapping[str, tuple[int, int]],
    Sequence[frozenset[str]],
    int,
]


class Problem:
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
        many cpus it has. pairs: models whose trainings may share a pipeline. older: steps that weights which sample may
        be behind, so that one more are under way."""
        self.components, self.cluster, self.options, self.goal, self.older = components, cluster, options, goal, older
        self.tasks, self.constants, self.code = options.tasks, options.constants, code
        self.pairs = pairs
        self.fusing = fusing(components, pairs, [task.op for task in options.tasks], options.constants)
        self._joined: dict[Pieces, Order] = {}
        self._colocations: dict[Blocks, Colocation] = {}
        self._syncs: dict[tuple[object, ...], float] = {}
        own = {(each.model, op): number for number, each in enumerate(components) for op in each.operations}
        self.own: Mapping[tuple[str, str], int] = own
        """By model and operation."""
        self.component_of = [own[task.model, task.op] if task.model else None for task in self.tasks]
        """For each task its component; None: the host does it."""
        trained = {each.model: number for number, each in enumerate(components) if each.work == "train"}
        self.syncs = [
            (trained[each.model], number) for number, each in enumerate(components) if each.brought and each.tasks
        ]
        """Components whose new weights other ones need before they work in a step."""
        self.leading = {
            number for _, number in self.syncs if not any(self._waits(task) for task in components[number].tasks)
        }
        """Of these, the components that need nothing else of a model."""

    def _waits(self, number: int) -> bool:
        """Whether a task needs what another component made."""
        return any(self.tasks[other].model or self._waits(other) for other in self.tasks[number].after)

    def behind(self, older: int) -> Problem:
        """The same where weights which sample may be so many steps behind."""
        return Problem(*self.given[:-1], older)

    @property
    def given(self) -> Given:
        """What another one like it is made of."""
        return self.components, self.cluster, self.options, self.goal, self.code, self.pairs, self.older

    @cached_property
    def order(self) -> Order:
        """Of the tasks, each transfer of weights before them as a task of its own: it begins when what it is for has
        all else that it needs, but what needs no model does not wait for the host. Both its pools have to be free: what
        is ready at the same time comes first."""
        count = len(self.syncs)
        brought = {number: at for at, (_, number) in enumerate(self.syncs)}
        first = {number: self.tasks[self.components[number].tasks[0]].after for number in brought}
        after: list[tuple[int, ...]] = [
            () if number in self.leading else tuple(each + count for each in first[number]) for number in brought
        ]
        for task, component in zip(self.tasks, self.component_of, strict=True):
            waits = tuple(number + count for number in task.after)
            after.append((brought[component], *waits) if component in brought else waits)
        return Order.of(after, frozenset(brought[number] for number in brought.keys() - self.leading))

    @cached_property
    def served(self) -> Order:
        """The same, with the order in which the host, and each pool of cpus, does what it has to do."""
        hosted = [each is None for each in self.component_of]
        places = [(self._place(task, 0),) if alone else () for task, alone in zip(self.tasks, hosted, strict=True)]
        lasting = [not alone or seconds > 0 for alone, seconds in zip(hosted, self.host, strict=True)]
        count = len(self.syncs)
        return self.order.served([*[()] * count, *places], [*[False] * count, *lasting])

    @cached_property
    def stages(self) -> tuple[tuple[int, ...], ...]:
        """The jobs that are not the host's, so that all of a stage are done before one of the next begins: of PPO the
        weights are brought, then it samples, reads, trains."""
        count, above = len(self.syncs), self.served.above
        own = [job for job in self.served.sequence if job < count or self.component_of[job - count] is not None]
        cuts = [at for at in range(1, len(own)) if all({*own[:at]}.issubset(above[job]) for job in own[at:])]
        return tuple(tuple(own[low:high]) for low, high in zip([0, *cuts], [*cuts, len(own)], strict=True))

    @cached_property
    def between(self) -> float:
        """Seconds of the host between the stages, while nothing else is done."""
        count, above, found = len(self.syncs), self.served.above, 0.0
        for before, after in zip(self.stages, self.stages[1:], strict=False):
            found += sum(
                seconds
                for task, seconds in enumerate(self.host)
                if seconds
                and not self.tasks[task].code
                and {*before}.issubset(above[task + count])
                and all(task + count in above[job] for job in after)
            )
        return found

    @cached_property
    def host(self) -> list[float]:
        """Seconds of each task that the host does, or that runs the user's code elsewhere."""
        return [0.0 if task.model else task.times * self._hosted(task) for task in self.tasks]

    @cached_property
    def opening(self) -> float:
        """Seconds of all that the host does before anything else is done: until then what needs no model may wait."""
        return sum(seconds for number, seconds in enumerate(self.host) if not self._waits(number))

    @cached_property
    def answered(self) -> dict[int, float]:
        """Seconds in which a pool of cpus answers the rows of a task with a model, which waits meanwhile."""
        found = {}
        for number, task in enumerate(self.tasks):
            if task.turns and task.code in self.code:
                rows = sum(batch.rows for batch in task.batches)
                _, cpus = self.code[task.code]
                found[number] = task.times * host(task.op, task.turns * ceil(rows / cpus), self.constants).seconds
        return found

    def _hosted(self, task: Task) -> float:
        # The rows are dealt to all cpus of a pool, or to all processes that the program asks for.
        _, processes = self.code.get(task.code, (0, task.workers))
        return host(task.op, task.rows / processes, self.constants).seconds

    def colocation(self, blocks: Blocks) -> Colocation:
        """How jobs run on some pools; the host comes after them, and then the pools of cpus. Components that have no
        pool yet wait for none."""
        if blocks not in self._colocations:
            home = {component: number for number, block in enumerate(blocks) for component in block.components}
            pools = [tuple(sorted({home[each] for each in ends if each in home})) for ends in self.syncs]
            for task, component in zip(self.tasks, self.component_of, strict=True):
                place = self._place(task, len(blocks)) if component is None else home.get(component)
                pools.append(() if place is None else (place,))
            count = 1 + max((pool for own in pools for pool in own), default=0)
            trips = tuple(self._trips({at: self.island(blocks[block]) for at, block in home.items()}))
            busy = tuple(tuple(job for job, own in enumerate(pools) if pool in own) for pool in range(count))
            self._colocations[blocks] = Colocation(home, pools, chains(self.served, pools, count), busy, trips)
        return self._colocations[blocks]

    def _trips(self, islands: Mapping[int, Island]) -> Iterator[Trip]:
        """islands: of the components that have one. The host is beside the first devices."""
        first, came = self.cluster.islands[0], set[tuple[int | None, str]]()
        for number, (task, component) in enumerate(zip(self.tasks, self.component_of, strict=True)):
            if component is not None and component not in islands:
                continue
            here = first if component is None else islands[component]
            if link := self.cluster.apart(first, here):
                _, latency = link
                yield Trip(number, (None, component), 2 * latency * task.times)
            for read in task.reads:
                source = None if read.maker is None else self.own[read.maker]
                if source == component or (component, read.value) in came or source not in {None, *islands}:
                    continue
                came.add((component, read.value))
                link = self.cluster.apart(first if source is None else islands[source], here)
                if link:
                    _, latency = link
                    whole = sent_apart(read.tokens, link, self.constants).seconds - latency
                    yield Trip(number, (source, component), read.orders * latency, whole)

    def _place(self, task: Task, host: int) -> int:
        number, _ = self.code.get(task.code, (-1, 1))
        return host + 1 + number

    def seconds(
        self,
        durations: Mapping[int, Sequence[float]],
        syncs: Sequence[float],
        trips: Mapping[int, float] = MappingProxyType({}),
    ) -> list[float]:
        """Of each job, from those of each component's tasks. trips: what tasks take beside."""
        found = [*syncs, *self.host]
        for number, own in durations.items():
            for task, length in zip(self.components[number].tasks, own, strict=True):
                found[len(syncs) + task] = length
        for task, length in self.answered.items():
            found[len(syncs) + task] += length
        for task, length in trips.items():
            found[len(syncs) + task] += length
        return found

    def sync(self, ends: tuple[int, int], source: Option, target: Option, together: bool) -> float:
        """Seconds that the new weights of a component take to another one, where its model is worked with."""
        key = (ends, source.split.weights, target.split.weights, together)
        if key not in self._syncs:
            self._syncs[key] = self.transfer(ends[0], source, target, together).seconds
        return self._syncs[key]

    def transfer(self, component: int, source: Option, target: Option, together: bool) -> Cost:
        """What the new weights of a component take to where else its model is worked with."""
        if together and source.split.shared and source.split == target.split:
            return Cost()
        config, apart = self.components[component].config, self.cluster.apart(source.island, target.island)
        return time.sync(config, source.deployment, target.deployment, together, self.constants, apart)

    def trips(self, colocation: Colocation, copies: Copies) -> dict[int, float]:
        """Seconds that orders and rows of tasks are on their way between islands, at least."""
        found: dict[int, float] = {}
        most: dict[tuple[int, int | None], float] = {}
        for trip in colocation.trips:
            lanes = min(1.0 if end is None else self._lanes(end, copies[end]) for end in trip.ends)
            # What is computed for a row travels with it.
            key, seconds = (trip.task, trip.ends[0] if trip.seconds else -1), trip.seconds / lanes + trip.latency
            found[trip.task] = found.get(trip.task, 0.0) + max(0.0, seconds - most.get(key, 0.0))
            most[key] = max(seconds, most.get(key, 0.0))
        return found

    def _lanes(self, component: int, copies: int) -> float:
        """How many copies send or receive at most, as long as the one that has most rows."""
        rows = self.options.units(self.components[component])[-1]
        return rows / ceil(rows / copies)

    def price(self, blocks: Blocks, devices: Sequence[int]) -> float:
        """Dollars a second of the devices of all pools."""
        found = 0.0
        for block, count in zip(blocks, devices, strict=True):
            for number in block.others:
                whole = self.cluster.islands[number]
                found, count = found + whole.devices * whole.device.price, count - whole.devices
            found += count * self.cluster.islands[block.island].device.price
        return found / 3600

    def unplaced(self, blocks: Blocks) -> list[int]:
        """Components that have no pool yet."""
        home = {number for block in blocks for number in block.components}
        return [] if len(home) == len(self.components) else sorted({*range(len(self.components))} - home)

    def island(self, block: Block) -> Island:
        return self.cluster.joined(block.islands) if block.others else self.cluster.islands[block.island]

    def value(self, seconds: float, blocks: Blocks, devices: Sequence[int]) -> float:
        """What is minimized."""
        return seconds if self.goal == "time" else seconds * self.price(blocks, devices)

    def least(
        self,
        durations: Mapping[int, Sequence[float]],
        syncs: Sequence[float],
        colocation: Colocation,
        copies: Copies = MappingProxyType({}),
    ) -> float:
        """Seconds that no order of the jobs can beat."""
        seconds = self.seconds(durations, syncs, self.trips(colocation, copies))
        return self.steady(bound(self.served, seconds, colocation.chained), seconds, colocation)

    def step(
        self,
        durations: Mapping[int, Sequence[float]],
        syncs: Sequence[float],
        colocation: Colocation,
        copies: Copies = MappingProxyType({}),
        pieces: Pieces = (),
    ) -> float:
        """Seconds of a step; of one of many, where several are under way."""
        seconds = self.seconds(durations, syncs, self.trips(colocation, copies))
        return self.steady(makespan(self.joined(pieces), seconds, colocation.pools), seconds, colocation)

    def steady(self, alone: float, seconds: Sequence[float], colocation: Colocation) -> float:
        """Seconds from the end of a step to the end of the next one, where a step alone takes `alone`: as long as the
        pool that has most to do, and a step begins when the one is done whose weights it samples with, or reads
        with."""
        if not self.older:
            return alone
        load = max((sum([seconds[job] for job in own]) for own in colocation.busy), default=0.0)
        return max(load, alone / (self.older + 1), *(self._around(cycle, seconds) for cycle in self.cycles))

    @cached_property
    def cycles(self) -> list[dict[int, list[int]]]:
        """Where steps overlap, what cannot: who reads apart from training reads with the weights of the step before,
        and before the next ones are trained. For each job that is done in between, in their order, those of them that
        it waits for."""
        found, count, above = [], len(self.syncs), self.order.above
        for job, (source, target) in enumerate(self.syncs if self.older else ()):
            if self.components[target].work == "generate":
                continue
            trains = [count + task for task in self.components[source].tasks]
            jobs = [
                other
                for other in self.order.sequence
                if job in (other, *above[other]) and any(other in (end, *above[end]) for end in trains)
            ]
            found.append({each: [other for other in self.order.after[each] if other in jobs] for each in jobs})
        return found

    def _around(self, cycle: Mapping[int, Sequence[int]], seconds: Sequence[float]) -> float:
        ends: dict[int, float] = {}
        for job, others in cycle.items():
            ends[job] = seconds[job] + max([ends[other] for other in others], default=0.0)
        return max(ends.values(), default=0.0)

    def parts(self, number: int, option: Option) -> list[tuple[Component, Option]]:
        """A component with its option; where it reads apart from its training, each of the two."""
        component = self.components[number]
        if not isinstance(option, Apart):
            return [(component, option)]
        _, trainer, reader = self.options.parts[id(component)]
        return [(trainer, option.trainer), (reader, option.reader)]

    def every_part(self, chosen: Sequence[Option]) -> list[tuple[Component, Option]]:
        """All components with their options, those that read apart from their training as two."""
        return [part for number, option in enumerate(chosen) for part in self.parts(number, option)]

    def whole(self, blocks: Blocks, chosen: Sequence[Option], pieces: Pieces = (), taken: Taken = exactly) -> float:
        """Seconds of a step with an option of each component. taken: what trainings take that share a pipeline."""
        colocation = self.colocation(blocks)
        home, durations = colocation.home, self.fusing.durations(chosen, pieces, taken)
        syncs = [self.sync((a, b), chosen[a], chosen[b], home[a] == home[b]) for a, b in self.syncs]
        copies = {number: option.copies for number, option in enumerate(chosen)}
        return self.step(durations, syncs, colocation, copies, pieces)

    def sharings(self, blocks: Blocks, chosen: Sequence[Option]) -> list[Pieces]:
        """All ways in which trainings can share pipelines, where there is room for that; first that none do."""
        found: list[Pieces] = [()]
        ways = self.fusing.sharings([block.components for block in blocks])
        rooms = dict[int, float]()
        for block in blocks if ways else ():
            room = usable(self.island(block), self.constants) - sum(chosen[each].resident for each in block.components)
            rooms |= dict.fromkeys(block.components, room)
        fits = self.fusing.fits
        return found + [way for way in ways if all(fits(rooms[piece[0]], piece, chosen) for piece in way)]

    def joined(self, pieces: Pieces) -> Order:
        """The order in which those of a pipeline begin and end together."""
        if not pieces:
            return self.order
        if pieces not in self._joined:
            count, after = len(self.syncs), [{*others} for others in self.order.after]
            for piece in pieces:
                jobs = {count + self.components[number].tasks[self.fusing.training[number]] for number in piece}
                waits = set[int]().union(*(after[job] for job in jobs))
                for own in after:
                    own |= jobs if own & jobs else set()
                for job in jobs:
                    after[job] |= waits
            self._joined[pieces] = Order.of([sorted(own) for own in after])
        return self._joined[pieces]

    def fits(self, chosen: Sequence[Option], island: Island) -> bool:
        """Whether options can share a pool."""
        asleep = sum(option.host for option in chosen)
        return peak(chosen) <= usable(island, self.constants) and asleep <= self.options.lodges(island)


def peak(chosen: Sequence[Option]) -> float:
    """Bytes of a device of a pool at the fullest moment."""
    return sum(option.resident for option in chosen) + max((max(o.active, default=0.0) for o in chosen), default=0.0)
