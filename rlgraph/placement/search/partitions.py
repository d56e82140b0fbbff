"""Which components can share a pool, and how large pools can be."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate, product

from rlgraph.clusters.cluster import Cluster, Island
from rlgraph.cost.tasks import Task
from rlgraph.placement.search.components import Component
from rlgraph.placement.search.problem import Block, Blocks


def partitions(
    components: Sequence[Component],
    cluster: Cluster,
    fixed: Sequence[tuple[str, int]],
    unplaced: Collection[int] = (),
) -> Iterator[Blocks]:
    """Every set partition of the components, its pools on every choice of islands. Pools of the schedule are there in
    all of them, and hold what is pinned to them. unplaced: components that are left out."""
    names = [name for name, _ in fixed]
    held: list[list[int]] = [[] for _ in fixed]
    free = []
    for number, component in enumerate(components):
        if number in unplaced:
            continue
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


def joining(blocks: Blocks, number: int, other: int) -> Iterator[Blocks]:
    """A partition with one more component, in each of its pools but that of another one."""
    for at, block in enumerate(blocks):
        if other not in block.components:
            with_it = replace(block, components=tuple(sorted((*block.components, number))))
            yield (*blocks[:at], with_it, *blocks[at + 1 :])


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
    if component.pin or component.linked:
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
    """How many devices a pool can have: whole nodes, or a half, a quarter, ... of one; of a node that is no power of
    two, any number."""
    if _even(island):
        parts = [2**power for power in range(island.per_node.bit_length() - 1)]
    else:
        parts = list(range(1, island.per_node))
    return (*parts, *(island.per_node * nodes for nodes in range(1, island.nodes + 1)))


def _even(island: Island) -> bool:
    """Halves of its nodes have halves, down to single devices."""
    return island.per_node & (island.per_node - 1) == 0


def packed(islands: Sequence[Island], blocks: Blocks, devices: Sequence[int]) -> bool:
    """Whether pools of so many devices, no more than there are, have room without one that lies on more nodes than it
    has to. Where a schedule says how large one is, it need not be."""
    for number, island in enumerate(islands):
        own = [at for at, block in enumerate(blocks) if block.island == number]
        if _even(island) or island.nodes == 1 or any(blocks[at].devices for at in own):
            continue
        if _packed(island, tuple(sorted((devices[at] for at in own), reverse=True))) is None:
            return False
    return True


def located(island: Island, devices: Sequence[int]) -> list[int]:
    """Where pools of so many devices begin: whole nodes first, then parts of nodes, so that none lies over more nodes
    than it has to. Where a schedule gives them sizes with which that cannot be, one behind the other."""
    order = sorted(range(len(devices)), key=lambda pool: (-devices[pool], pool))
    largest = tuple(devices[pool] for pool in order)
    firsts = _packed(island, largest) or tuple(accumulate(largest[:-1], initial=0))
    found = dict(zip(order, firsts, strict=False))
    return [found[pool] for pool in range(len(devices))]


@cache
def _packed(island: Island, devices: tuple[int, ...]) -> tuple[int, ...] | None:
    """Where pools begin, the largest first; None: there is no way."""
    nodes, parts = [size // island.per_node for size in devices], [size % island.per_node for size in devices]
    if any(whole and part for whole, part in zip(nodes, parts, strict=True)):
        return None
    wholes, small = list(filter(None, nodes)), tuple(filter(None, parts))
    first = sum(wholes)
    rooms = _rooms(small, (island.per_node,) * min(len(small), island.nodes - first))
    if rooms is None:
        return None
    used = [0] * len(small)
    found = [island.per_node * before for before in accumulate(wholes[:-1], initial=0)] if wholes else []
    for size, node in zip(small, rooms, strict=True):
        found.append(island.per_node * (first + node) + used[node])
        used[node] += size
    return tuple(found)


def _rooms(parts: tuple[int, ...], free: tuple[int, ...]) -> tuple[int, ...] | None:
    """For each part of a node, the largest first, a node that has so many devices free; None: there is no way."""
    if not parts:
        return ()
    # Of nodes with as many free devices one is as good as another.
    for node in {left: node for node, left in reversed(tuple(enumerate(free))) if left >= parts[0]}.values():
        rest = _rooms(parts[1:], (*free[:node], free[node] - parts[0], *free[node + 1 :]))
        if rest is not None:
            return (node, *rest)
    return None
