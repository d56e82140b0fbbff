"""Which components can share a pool, and how large pools can be."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate

from rlgraph.catalog.clusters.cluster import Cluster, Island
from rlgraph.passes.cost.tasks import Task
from rlgraph.passes.placement.search.components import Component
from rlgraph.passes.placement.search.problem import Block, Blocks


def partitions(
    components: Sequence[Component],
    cluster: Cluster,
    fixed: Sequence[tuple[str, int]],
    unplaced: Collection[int] = (),
    over: bool = False,
) -> Iterator[Blocks]:
    """Every set partition of the components, its pools on every choice of islands. Pools of the schedule are there in
    all of them, and hold what is pinned to them; where they cannot each lie on one island, they may lie over several.
    unplaced: components that are left out. over: any pool may lie over several islands."""
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
    alone = [(number,) for number in range(len(cluster.islands))]
    several = list(_neighbours(cluster))
    astride = not lie(sorted([size for _, size in fixed], reverse=True), [each.devices for each in cluster.islands])
    for shared in _spread(free, [list(own) for own in held], len(fixed), more):
        pools = [(at, own) for at, own in enumerate(shared) if own]
        choices = [alone + several if over or astride and at < len(fixed) else alone for at, _ in pools]
        sizes = [fixed[at][1] if at < len(fixed) else 0 for at, _ in pools]
        for islands in _on(choices, sizes, cluster, [island.devices for island in cluster.islands]):
            yield tuple(
                Block(tuple(own), last, *(fixed[at] if at < len(fixed) else ("", 0)), tuple(others))
                for (at, own), (*others, last) in zip(pools, islands, strict=True)
            )


def lie(pools: Sequence[int], rooms: Sequence[int]) -> bool:
    """Whether pools of so many devices, the largest first, can each lie within one island; rooms: what is left of
    these."""
    return not pools or any(
        lie(pools[1:], sorted([*rooms[:at], room - pools[0], *rooms[at + 1 :]]))
        for at, room in enumerate(rooms)
        if room >= pools[0] and room not in rooms[:at]
    )


def lie_over(pools: Sequence[int], cluster: Cluster) -> bool:
    """Whether they can where each may lie over several."""
    choices = [[(number,) for number in range(len(cluster.islands))] + list(_neighbours(cluster))] * len(pools)
    return any(True for _ in _on(choices, pools, cluster, [island.devices for island in cluster.islands]))


def _neighbours(cluster: Cluster) -> Iterator[tuple[int, ...]]:
    """Islands with devices of a kind that stand beside each other, of which a pool has all but the last one whole: that
    is the one at either end."""
    kinds = [island.device.kind for island in cluster.islands]
    for low in range(len(kinds)):
        for high in range(low + 1, len(kinds)):
            if len({*kinds[low : high + 1]}) == 1:
                yield tuple(range(low, high + 1))
                yield (*range(low + 1, high + 1), low)


def _on(
    choices: Sequence[Sequence[tuple[int, ...]]], sizes: Sequence[int], cluster: Cluster, left: list[int]
) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Every choice of islands for some pools on which these have room. sizes: of those that a schedule declares; 0: of
    others. left: devices of each island."""
    if not choices:
        yield ()
        return
    for own in choices[0]:
        *others, last = own
        wholes = [cluster.islands[number].devices for number in others]
        rest = sizes[0] - sum(wholes) if sizes[0] else 1
        if rest < 1 or rest > left[last] or any(left[n] < whole for n, whole in zip(others, wholes, strict=True)):
            continue
        if last < own[0] and rest % cluster.islands[last].per_node and rest > cluster.islands[last].per_node:
            # The devices before those of others would begin within a node, and go on on the next one.
            continue
        less = [0 if number in others else count for number, count in enumerate(left)]
        less[last] -= rest
        for more in _on(choices[1:], sizes[1:], cluster, less):
            yield (own, *more)


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
        shape = tuple(sorted((block.islands, block.name, *own) for block, own in zip(blocks, held, strict=True)))
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


def sizes(island: Island) -> tuple[int, ...]:
    """How many devices a pool can have: whole nodes, or a half, a quarter, ... of one; of a node that is no power of
    two, any number. Of several islands it has all but the last one, and so many of that."""
    if island.inner:
        return tuple(island.inner.devices + size for size in sizes(island.parts[-1]))
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
        own = [at for at, block in enumerate(blocks) if block.islands == (number,)]
        head, tail = _taken(islands, blocks, devices, number)
        whole = head % island.per_node == tail % island.per_node == 0
        if _even(island) and whole or island.nodes == 1 or any(blocks[at].devices for at in own):
            continue
        if _packed(island, tuple(sorted((devices[at] for at in own), reverse=True)), head, tail) is None:
            return False
    return True


def used(islands: Sequence[Island], blocks: Blocks, devices: Sequence[int]) -> list[int]:
    """How many devices of each island some pools have."""
    found = [0] * len(islands)
    for block, count in zip(blocks, devices, strict=True):
        for number in block.others:
            found[number] += islands[number].devices
            count -= islands[number].devices
        found[block.island] += count
    return found


def laid(islands: Sequence[Island], blocks: Blocks, devices: Sequence[int]) -> list[list[tuple[int, int, int]]]:
    """For each pool the islands that it lies on, with its first device there, and how many it has."""
    found: list[list[tuple[int, int, int]]] = [[] for _ in blocks]
    for number, island in enumerate(islands):
        head, tail = _taken(islands, blocks, devices, number)
        own = [at for at, block in enumerate(blocks) if block.islands == (number,)]
        for at, first in zip(own, located(island, [devices[at] for at in own], head, tail), strict=True):
            found[at].append((number, first, devices[at]))
        for at, block in enumerate(blocks):
            if number in block.others:
                found[at].append((number, 0, island.devices))
            elif block.others and number == block.island:
                after = number > block.others[0]
                found[at].append((number, 0, head) if after else (number, island.devices - tail, tail))
    return found


def _taken(islands: Sequence[Island], blocks: Blocks, devices: Sequence[int], number: int) -> tuple[int, int]:
    """Of an island the first devices and the last ones that pools have which lie over several."""
    head = tail = 0
    for block, count in zip(blocks, devices, strict=True):
        if block.others and block.island == number:
            rest = count - sum(islands[other].devices for other in block.others)
            head, tail = (rest, tail) if number > block.others[0] else (head, rest)
    return head, tail


def located(island: Island, devices: Sequence[int], head: int = 0, tail: int = 0) -> list[int]:
    """Where pools of so many devices begin: whole nodes first, then parts of nodes, so that none lies over more nodes
    than it has to. Where a schedule gives them sizes with which that cannot be, one behind the other. head, tail: the
    first devices and the last ones, which others have."""
    order = sorted(range(len(devices)), key=lambda pool: (-devices[pool], pool))
    largest = tuple(devices[pool] for pool in order)
    firsts = _packed(island, largest, head, tail) or tuple(accumulate(largest[:-1], initial=head))
    found = dict(zip(order, firsts, strict=False))
    return [found[pool] for pool in range(len(devices))]


@cache
def _packed(island: Island, devices: tuple[int, ...], head: int = 0, tail: int = 0) -> tuple[int, ...] | None:
    """Where pools begin, the largest first; None: there is no way."""
    nodes, parts = [size // island.per_node for size in devices], [size % island.per_node for size in devices]
    if any(whole and part for whole, part in zip(nodes, parts, strict=True)):
        return None
    wholes, small = list(filter(None, nodes)), tuple(filter(None, parts))
    begun, last = -(-head // island.per_node), island.nodes - -(-tail // island.per_node)
    first = begun + sum(wholes)
    if first > max(begun, last):
        return None
    # A node of which others have a part has the rest.
    free = {}
    if head % island.per_node:
        free[head] = island.per_node * begun - head - max(0, tail + island.per_node * begun - island.devices)
    if tail % island.per_node and island.per_node * last >= head:
        free[island.per_node * last] = island.devices - tail - island.per_node * last
    free |= {island.per_node * node: island.per_node for node in range(first, min(last, first + len(small)))}
    rooms = _rooms(small, tuple(free.values()))
    if rooms is None:
        return None
    starts, used = list(free), [0] * len(free)
    found = [island.per_node * (begun + before) for before in accumulate(wholes[:-1], initial=0)] if wholes else []
    for size, node in zip(small, rooms, strict=True):
        found.append(starts[node] + used[node])
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
