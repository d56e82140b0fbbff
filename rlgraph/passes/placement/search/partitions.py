"""Which components can share a pool, how large pools can be, and where they lie."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate

from rlgraph.catalog.clusters.cluster import Cluster, NodeGroup
from rlgraph.passes.cost.task import Task
from rlgraph.passes.placement.search.colocation import Blocks, PartitionBlock
from rlgraph.passes.placement.search.components import Component


def component_partitions(
    components: Sequence[Component],
    cluster: Cluster,
    fixed: Sequence[tuple[str, int]],
    unplaced: Collection[int] = (),
    over: bool = False,
) -> Iterator[Blocks]:
    """Yield every set partition of the components, with its pools on every choice of node groups. Pools of the schedule
    are in all of them, and hold what is pinned to them; where they cannot each lie on one node group, they may lie over
    several. unplaced: components that are left out. over: whether any pool may lie over several node groups."""
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
    more = cluster.device_count > taken
    alone = [(number,) for number in range(len(cluster.islands))]
    runs = list(_neighbours(cluster))
    may_span = not fit_in_node_groups(
        sorted([size for _, size in fixed], reverse=True), [island.device_count for island in cluster.islands]
    )
    for shared in _distributed(free, [list(members) for members in held], len(fixed), more):
        pools = [(pool, members) for pool, members in enumerate(shared) if members]
        choices = [alone + runs if over or may_span and pool < len(fixed) else alone for pool, _ in pools]
        sizes = [fixed[pool][1] if pool < len(fixed) else 0 for pool, _ in pools]
        for islands in _island_choices(choices, sizes, cluster, [island.device_count for island in cluster.islands]):
            yield tuple(
                PartitionBlock(tuple(members), last, *(fixed[pool] if pool < len(fixed) else ("", 0)), tuple(others))
                for (pool, members), (*others, last) in zip(pools, islands, strict=True)
            )


def fit_in_node_groups(pools: Sequence[int], rooms: Sequence[int]) -> bool:
    """Return whether pools of so many devices, the largest first, can each lie within one node group; rooms: the
    devices left of these."""
    return not pools or any(
        fit_in_node_groups(pools[1:], sorted([*rooms[:index], room - pools[0], *rooms[index + 1 :]]))
        for index, room in enumerate(rooms)
        if room >= pools[0] and room not in rooms[:index]
    )


def fit_across_node_groups(pools: Sequence[int], cluster: Cluster) -> bool:
    """Return whether the pools have room where each may lie over several node groups."""
    choices = [[(number,) for number in range(len(cluster.islands))] + list(_neighbours(cluster))] * len(pools)
    return any(
        True for _ in _island_choices(choices, pools, cluster, [island.device_count for island in cluster.islands])
    )


def _neighbours(cluster: Cluster) -> Iterator[tuple[int, ...]]:
    """Yield the runs of neighbouring node groups with one kind of device, of which a pool has all but the last one
    whole: that is the one at either end."""
    kinds = [island.device.kind for island in cluster.islands]
    for low in range(len(kinds)):
        for high in range(low + 1, len(kinds)):
            if len({*kinds[low : high + 1]}) == 1:
                yield tuple(range(low, high + 1))
                yield (*range(low + 1, high + 1), low)


def _island_choices(
    choices: Sequence[Sequence[tuple[int, ...]]], sizes: Sequence[int], cluster: Cluster, left: list[int]
) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield every choice of node groups for some pools on which these have room. sizes: those of pools that a schedule
    declares; 0 for others. left: the free devices of each node group."""
    if not choices:
        yield ()
        return
    for chosen in choices[0]:
        *others, last = chosen
        full = [cluster.islands[number].device_count for number in others]
        rest = sizes[0] - sum(full) if sizes[0] else 1
        if rest < 1 or rest > left[last] or any(left[number] < size for number, size in zip(others, full, strict=True)):
            continue
        if last < chosen[0] and rest % cluster.islands[last].per_node and rest > cluster.islands[last].per_node:
            # The devices before those of others would begin within a node, and continue on the next one.
            continue
        remaining = [0 if number in others else count for number, count in enumerate(left)]
        remaining[last] -= rest
        for further in _island_choices(choices[1:], sizes[1:], cluster, remaining):
            yield (chosen, *further)


def partitions_with_component(blocks: Blocks, number: int, other: int) -> Iterator[Blocks]:
    """Yield the partition with one more component, in each of its pools but that of `other`."""
    for index, block in enumerate(blocks):
        if other not in block.components:
            extended = replace(block, components=tuple(sorted((*block.components, number))))
            yield (*blocks[:index], extended, *blocks[index + 1 :])


def distinct_partitions(
    candidates: Iterable[Blocks], tasks: Sequence[Task], components: Sequence[Component]
) -> Iterator[Blocks]:
    """Yield one of each kind of partition: components with the same work at the same place in the step can be
    exchanged."""
    kinds = [repr(_kind(component, tasks)) for component in components]
    seen = set()
    for blocks in candidates:
        kinds_of_blocks = [sorted(kinds[number] for number in block.components) for block in blocks]
        shape = tuple(
            sorted(
                (block.islands, block.name, *block_kinds)
                for block, block_kinds in zip(blocks, kinds_of_blocks, strict=True)
            )
        )
        if shape not in seen:
            seen.add(shape)
            yield blocks


def _kind(component: Component, tasks: Sequence[Task]) -> object:
    """Return what components that can be exchanged have in common. A component that is tied to another one, or pinned,
    is like no other."""
    if component.pin or component.syncs_weights:
        return component.name
    task_numbers = set(component.tasks)
    work = []
    for number in component.tasks:
        task = tasks[number]
        later = tuple(
            other
            for other, other_task in enumerate(tasks)
            if number in other_task.waits_for and other not in task_numbers
        )
        before = tuple(other for other in task.waits_for if other not in task_numbers)
        work.append((task.op, task.batches, task.repetitions, before, later))
    return (component.config.shape, component.config.kind, component.config.dtype, component.work, tuple(work))


def _distributed(free: Sequence[int], pools: list[list[int]], fixed: int, more: bool) -> Iterator[list[list[int]]]:
    """Yield each way to distribute the free components over the pools that are there, and over new ones: each partition
    once."""
    if not free:
        yield [list(pool) for pool in pools]
        return
    first, rest = free[0], free[1:]
    for pool in pools:
        pool.append(first)
        yield from _distributed(rest, pools, fixed, more)
        pool.pop()
    if more:
        yield from _distributed(rest, [*pools, [first]], fixed, more)


def allowed_pool_sizes(island: NodeGroup) -> tuple[int, ...]:
    """Return how many devices a pool can have: whole nodes, or a half, a quarter, ... of one; of a node that is no
    power of two, any number. Of several node groups it has all but the last one, and so many of that."""
    if island.inner:
        return tuple(island.inner.device_count + size for size in allowed_pool_sizes(island.parts[-1]))
    if _halves_evenly(island):
        parts = [2**power for power in range(island.per_node.bit_length() - 1)]
    else:
        parts = list(range(1, island.per_node))
    return (*parts, *(island.per_node * nodes for nodes in range(1, island.nodes + 1)))


def _halves_evenly(island: NodeGroup) -> bool:
    """Return whether halves of a node group's nodes have halves, down to single devices."""
    return island.per_node & (island.per_node - 1) == 0


def can_pack_pools(islands: Sequence[NodeGroup], blocks: Blocks, devices: Sequence[int]) -> bool:
    """Return whether pools of so many devices, no more than there are, have room without one that lies on more nodes
    than it has to. Where a schedule says how large one is, it may."""
    for number, island in enumerate(islands):
        indexes = [index for index, block in enumerate(blocks) if block.islands == (number,)]
        head, tail = _taken(islands, blocks, devices, number)
        full_nodes = head % island.per_node == tail % island.per_node == 0
        if (
            _halves_evenly(island)
            and full_nodes
            or island.nodes == 1
            or any(blocks[index].devices for index in indexes)
        ):
            continue
        if _packed(island, tuple(sorted((devices[index] for index in indexes), reverse=True)), head, tail) is None:
            return False
    return True


def devices_used_per_node_group(islands: Sequence[NodeGroup], blocks: Blocks, devices: Sequence[int]) -> list[int]:
    """Return how many devices of each node group some pools have."""
    counts = [0] * len(islands)
    for block, count in zip(blocks, devices, strict=True):
        for number in block.other_islands:
            counts[number] += islands[number].device_count
            count -= islands[number].device_count
        counts[block.island] += count
    return counts


def pool_locations(
    islands: Sequence[NodeGroup], blocks: Blocks, devices: Sequence[int]
) -> list[list[tuple[int, int, int]]]:
    """Return for each pool the node groups that it lies on, with its first device there, and how many it has."""
    pieces: list[list[tuple[int, int, int]]] = [[] for _ in blocks]
    for number, island in enumerate(islands):
        head, tail = _taken(islands, blocks, devices, number)
        indexes = [index for index, block in enumerate(blocks) if block.islands == (number,)]
        for index, first in zip(
            indexes, first_device_of_pools(island, [devices[index] for index in indexes], head, tail), strict=True
        ):
            pieces[index].append((number, first, devices[index]))
        for index, block in enumerate(blocks):
            if number in block.other_islands:
                pieces[index].append((number, 0, island.device_count))
            elif block.other_islands and number == block.island:
                after = number > block.other_islands[0]
                pieces[index].append((number, 0, head) if after else (number, island.device_count - tail, tail))
    return pieces


def _taken(islands: Sequence[NodeGroup], blocks: Blocks, devices: Sequence[int], number: int) -> tuple[int, int]:
    """Return the first devices and the last ones of a node group that pools over several have."""
    head = tail = 0
    for block, count in zip(blocks, devices, strict=True):
        if block.other_islands and block.island == number:
            rest = count - sum(islands[other].device_count for other in block.other_islands)
            head, tail = (rest, tail) if number > block.other_islands[0] else (head, rest)
    return head, tail


def first_device_of_pools(island: NodeGroup, devices: Sequence[int], head: int = 0, tail: int = 0) -> list[int]:
    """Return where pools of so many devices begin: whole nodes first, then parts of nodes, so that none lies over more
    nodes than it has to. Where a schedule gives them sizes with which that cannot be, they lie one behind the other.
    head, tail: the first devices and the last ones, which others have."""
    order = sorted(range(len(devices)), key=lambda pool: (-devices[pool], pool))
    largest = tuple(devices[pool] for pool in order)
    firsts = _packed(island, largest, head, tail) or tuple(accumulate(largest[:-1], initial=head))
    first_of = dict(zip(order, firsts, strict=False))
    return [first_of[pool] for pool in range(len(devices))]


@cache
def _packed(island: NodeGroup, devices: tuple[int, ...], head: int = 0, tail: int = 0) -> tuple[int, ...] | None:
    """Return where pools begin, the largest first; None if they have no room."""
    nodes, parts = [size // island.per_node for size in devices], [size % island.per_node for size in devices]
    if any(full and part for full, part in zip(nodes, parts, strict=True)):
        return None
    full_nodes, small_parts = list(filter(None, nodes)), tuple(filter(None, parts))
    begin, end = -(-head // island.per_node), island.nodes - -(-tail // island.per_node)
    first = begin + sum(full_nodes)
    if first > max(begin, end):
        return None
    # A node that is partly taken by others has the rest free.
    free = {}
    if head % island.per_node:
        free[head] = island.per_node * begin - head - max(0, tail + island.per_node * begin - island.device_count)
    if tail % island.per_node and island.per_node * end >= head:
        free[island.per_node * end] = island.device_count - tail - island.per_node * end
    free |= {island.per_node * node: island.per_node for node in range(first, min(end, first + len(small_parts)))}
    rooms = _rooms(small_parts, tuple(free.values()))
    if rooms is None:
        return None
    starts, used = list(free), [0] * len(free)
    firsts = (
        [island.per_node * (begin + before) for before in accumulate(full_nodes[:-1], initial=0)] if full_nodes else []
    )
    for size, node in zip(small_parts, rooms, strict=True):
        firsts.append(starts[node] + used[node])
        used[node] += size
    return tuple(firsts)


def _rooms(parts: tuple[int, ...], free: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return for each part of a node, the largest first, a node that has so many devices free; None if there is no
    way."""
    if not parts:
        return ()
    # Nodes with equally many free devices are equally good.
    for node in {left: node for node, left in reversed(tuple(enumerate(free))) if left >= parts[0]}.values():
        rest = _rooms(parts[1:], (*free[:node], free[node] - parts[0], *free[node + 1 :]))
        if rest is not None:
            return (node, *rest)
    return None
