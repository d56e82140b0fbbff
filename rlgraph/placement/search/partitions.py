"""Which components can share a pool, and how large pools can be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product

from rlgraph.clusters.cluster import Cluster, Island
from rlgraph.cost.tasks import Task
from rlgraph.placement.search.components import Component
from rlgraph.placement.search.problem import Block, Blocks


def partitions(components: Sequence[Component], cluster: Cluster, fixed: Sequence[tuple[str, int]]) -> Iterator[Blocks]:
    """Every set partition of the components, its pools on every choice of islands. Pools of the schedule are there in
    all of them, and hold what is pinned to them."""
    names = [name for name, _ in fixed]
    held: list[list[int]] = [[] for _ in fixed]
    free = []
    for number, component in enumerate(components):
        if component.pin:
            held[names.index(component.pin.pool)].append(number)
        else:
            free.append(number)
    taken = sum(devices for _, devices in fixed)
    more = cluster.devices > taken
    for shared in _spread(free, [list(own) for own in held], len(fixed), more):
        used = [(at, own) for at, own in enumerate(shared) if own]
        for islands in product(range(len(cluster.islands)), repeat=len(used)):
            blocks = tuple(
                Block(tuple(own), island, *(fixed[at] if at < len(fixed) else ()))
                for (at, own), island in zip(used, islands, strict=True)
            )
            if all(_room(blocks, number, island) for number, island in enumerate(cluster.islands)):
                yield blocks


def distinct(candidates: Iterable[Blocks], tasks: Sequence[Task], components: Sequence[Component]) -> Iterator[Blocks]:
    """One of each kind of partition: components with the same work at the same place in the step can be exchanged."""
    kinds = [repr(_kind(component, tasks)) for component in components]
    seen = set()
    for blocks in candidates:
        held = [sorted(kinds[number] for number in block.components) for block in blocks]
        shape = tuple(sorted((block.island, block.name, *own) for block, own in zip(blocks, held, strict=True)))
        if shape not in seen:
            seen.add(shape)
            yield blocks


def _kind(component: Component, tasks: Sequence[Task]) -> object:
    """What is the same of components that can be exchanged. A component that is tied to another one, or pinned, is like
    no other."""
    if component.pin or component.trained and component.generates:
        return component.name
    own = set(component.tasks)
    done = []
    for number in component.tasks:
        task = tasks[number]
        later = tuple(other for other, each in enumerate(tasks) if number in each.after and other not in own)
        before = tuple(other for other in task.after if other not in own)
        done.append((task.op, task.batches, task.times, before, later))
    return (component.config.shape, component.config.kind, component.config.dtype, component.work, tuple(done))


def _spread(free: Sequence[int], pools: list[list[int]], fixed: int, more: bool) -> Iterator[list[list[int]]]:
    """The free components dealt to the pools that are there, and to new ones: each partition once."""
    if not free:
        yield [list(own) for own in pools]
        return
    first, rest = free[0], free[1:]
    for own in pools:
        own.append(first)
        yield from _spread(rest, pools, fixed, more)
        own.pop()
    if more:
        yield from _spread(rest, [*pools, [first]], fixed, more)


def _room(blocks: Blocks, number: int, island: Island) -> bool:
    return sum(max(1, block.devices) for block in blocks if block.island == number) <= island.devices


def sizes(island: Island) -> tuple[int, ...]:
    """How many devices a pool can have: whole nodes, or a half, a quarter, ... of one; of a single node that has no
    such parts, any number."""
    if island.nodes == 1 and island.per_node & (island.per_node - 1):
        return tuple(range(1, island.per_node + 1))
    fractions = [2**power for power in range(12) if 2**power < island.per_node and island.per_node % 2**power == 0]
    return (*fractions, *(island.per_node * nodes for nodes in range(1, island.nodes + 1)))
