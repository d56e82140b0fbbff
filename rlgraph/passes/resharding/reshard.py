"""Plans transfers between any two layouts, of weights or of rows of data, by intersecting the boxes that places hold.

    1. Every tensor is cut wherever either side cuts it. Cells with the same holders and the same takers are one stream.
    2. A taker on a holder's device copies from it. Others with a holder on their node get the stream from there. The
       rest get it over the network: from any holder, or once for each node, whose first taker forwards it.
    3. Whether takers forward, how often a place sends the same data, and into how many parts streams are divided, is
       decided for all streams together: a plan is made for each of a few strategies, and the fastest is chosen. Each
       part of a stream takes time of its own in each round.
    4. Streams are cut into so many sections that a place's messages fit into the bucket.

Each element that a place needs and does not hold arrives exactly once. Holders of the same data share the sending
evenly.

Nothing is summed here: engines reduce their gradients themselves, with their own collectives.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rlgraph.ir.layout import box_elements
from rlgraph.ir.transfer import Move, TensorBox, Topology, Transfer, cut_section
from rlgraph.passes.resharding.cells import Layout, cut_into_cells, distinct_layouts
from rlgraph.passes.resharding.routes import Array, ProcessTopology, compute_routes

SMALLEST = 1 << 16
"""Streams below this many bytes are not divided among holders, since each message has a cost of its own."""

MOST = 64
"""The limit of parts that a stream is divided into."""

ANSWERS = ((False, None), (True, None), (True, 1), (True, 2), (True, 4))
"""The strategies: whether only one taker of a node gets data over the network, and how often a place sends it (None: as
often as needed). Simple ones come first, since the first of equals is chosen."""


@dataclass(frozen=True, slots=True)
class _Stream:
    """Parts of tensors with the same holders and the same takers."""

    parts: tuple[TensorBox, ...]
    elements: int
    holders: Array
    """The places that have it, in order, by their number in `ProcessTopology`."""
    takers: Array
    """The places that need it and do not hold it themselves."""
    takers_with_data: int
    """How many places need it and already hold it."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """The routes of all streams for one strategy."""

    moves: list[tuple[tuple[TensorBox, ...], int, Array, Array, Array]]
    """For each move its parts and elements, and for each of its routes source, destination and hop."""
    chunks: int
    peak: int
    seconds: float


def plan_resharding(
    source: Mapping[int, Layout],
    destination: Mapping[int, Layout],
    *,
    itemsize: int,
    topology: Topology,
    bucket: int,
    forward: bool = True,
) -> Transfer:
    """Return the transfer that gives each place of `destination` its layout, from what the places of `source` hold.

    A place is a process, with any number; one on both sides already holds its part of the source. `itemsize` is an
    element's size in messages in bytes, and `bucket` how many bytes of messages, in and out, a place may have at a
    time. With `forward` false, no place forwards what it received.

    Raises ValueError where no place holds what is needed, and where the bucket is too small for one element from each
    peer.
    """
    places = sorted({*source, *destination})
    sites = ProcessTopology(places, topology)
    streams = list(_streams(source, destination, places))
    answers = ANSWERS if forward else ANSWERS[:1]
    plans = {answer: _plan(streams, sites, answer, itemsize, bucket) for answer in answers}
    answer = min(plans, key=lambda answer: plans[answer].seconds)
    shared = _plan(streams, sites, answer, itemsize, bucket, alone=False)
    best = min(plans[answer], shared, key=lambda plan: plan.seconds)
    moved, copied = _totals(best, sites)
    return Transfer(
        moves=tuple(
            Move(parts, tuple(zip(sites.ids[a].tolist(), sites.ids[b].tolist(), hop.tolist(), strict=True)), elements)
            for parts, elements, a, b, hop in best.moves
        ),
        itemsize=itemsize,
        chunks=best.chunks,
        topology=topology,
        moved=moved * itemsize,
        copied=copied * itemsize,
        kept=sum(stream.takers_with_data * stream.elements for stream in streams) * itemsize,
        bound=sum(_lacking(stream, sites) * stream.elements for stream in streams) * itemsize,
        peak=best.peak,
        seconds=best.seconds,
    )


def _streams(
    source: Mapping[int, Layout], destination: Mapping[int, Layout], places: Sequence[int]
) -> Iterator[_Stream]:
    held, holders = distinct_layouts(source)
    needed, takers = distinct_layouts(destination)
    parts_by_key: dict[bytes, list[TensorBox]] = {}
    for tensor in cut_into_cells([*needed, *held]):
        wanted = np.flatnonzero(tensor.held_by_layout[: len(needed)].any(axis=0))
        missing = wanted[~tensor.held_by_layout[len(needed) :, wanted].any(axis=0)]
        if len(missing):
            labels = np.full(tensor.held_by_layout.shape[1], -1)
            labels[missing] = 0
            shown = ", ".join(f"{low}:{high}" for low, high in tensor.merge_cells_by_label(labels)[0][1])
            raise ValueError(f"the destination needs {tensor.name} [{shown}], which no place of the source holds")
        # One bit for each holder and taker of a cell: cells with equal bits are one stream.
        bits = np.packbits(tensor.held_by_layout[:, wanted], axis=0).T
        keys, inverse = np.unique(bits, axis=0, return_inverse=True)
        labels = np.full(tensor.held_by_layout.shape[1], -1)
        labels[wanted] = inverse.reshape(-1)
        for label, box in tensor.merge_cells_by_label(labels):
            parts_by_key.setdefault(keys[label].tobytes(), []).append((tensor.name, box))
    index_of = {place: index for index, place in enumerate(places)}
    members = [np.array([index_of[place] for place in group], np.int64) for group in (*takers, *holders)]
    for key, parts in parts_by_key.items():
        chosen = np.unpackbits(np.frombuffer(key, np.uint8), count=len(members)).nonzero()[0]
        needing = np.sort(np.concatenate([members[index] for index in chosen if index < len(needed)]))
        having = np.sort(np.concatenate([members[index] for index in chosen if index >= len(needed)]))
        without = needing[~np.isin(needing, having)]
        elements = sum(box_elements(box) for _, box in parts)
        yield _Stream(tuple(parts), elements, having, without, len(needing) - len(without))


def _plan(
    streams: Sequence[_Stream],
    sites: ProcessTopology,
    answer: tuple[bool, int | None],
    itemsize: int,
    bucket: int,
    alone: bool = True,
) -> _Plan:
    """Return the plan of a strategy. alone: each stream is divided so that its own places share the work evenly; else
    streams of the same size with the same takers together."""
    gates, fanout = answer
    moves = []
    turn = 0
    streams = [stream for stream in streams if len(stream.takers)]
    alike = Counter(map(_likeness, streams))
    turns = Counter[tuple[bytes, int]]()
    for stream in streams:
        count, kind = _divided(stream, sites, itemsize), _likeness(stream)
        if not alone:
            count, turn = count // math.gcd(count, alike[kind]), turns[kind]
        cuts = [_row(stream, stream.elements * index // count, count) for index in range(count + 1)]
        for start, stop in pairwise(cuts):
            parts = stream.parts if count == 1 else tuple(cut_section(stream.parts, start, stop))
            routes = compute_routes(sites, stream.holders, stream.takers, turn, gates, fanout)
            moves.append((parts, stop - start, *routes))
            turn += 1
        turns[kind] += count
    if not moves:
        return _Plan([], 1, 0, 0.0)
    source, destination, hop = (np.concatenate([move[end] for move in moves]) for end in (2, 3, 4))
    elements = np.concatenate([np.full(len(move[2]), move[1]) for move in moves])
    busiest = sites.busiest_link_seconds(source, destination, elements * itemsize)
    hops = int(hop.max())
    ends = np.concatenate([source, destination])
    # What a round takes beside its bytes at the place with most routes.
    each = sites.topology.latency + sites.topology.section * int(np.bincount(ends).max())
    # What is forwarded h times arrives h rounds late. Small sections shorten that, but have more rounds with a latency
    # each.
    filled = min(math.isqrt(int(busiest * hops / each)), int(elements.max()) * itemsize // SMALLEST)
    chunks, peak = _chunks(ends, np.tile(elements, 2), itemsize, bucket, max(1, filled))
    seconds = busiest * (1 + hops / chunks) + each * (chunks + hops)
    return _Plan(moves, chunks, peak, seconds)


def _likeness(stream: _Stream) -> tuple[bytes, int]:
    """Return what streams that can share the work have in common."""
    return stream.takers.tobytes(), stream.elements


def _divided(stream: _Stream, sites: ProcessTopology, itemsize: int) -> int:
    """Return into how many parts a stream is divided, so that its holders send equally much, and the takers of a node
    take turns in receiving over the network."""
    holders, takers = len(stream.holders), len(stream.takers)
    most = int(np.unique(sites.node[stream.takers], return_counts=True)[1].max())
    parts = math.lcm(holders // math.gcd(holders, takers), most)
    return max(1, min(parts, MOST, stream.elements * itemsize // SMALLEST))


def _row(stream: _Stream, cut: int, count: int) -> int:
    """Return the start of the row with an element, if rows are short compared to the parts, so that boxes stay
    simple."""
    start = 0
    for _, box in stream.parts:
        if cut < start + box_elements(box):
            row = box_elements(box[-1:])
            return cut if 16 * row * count > stream.elements else cut - (cut - start) % row
        start += box_elements(box)
    return cut


def _chunks(ends: Array, elements: Array, itemsize: int, bucket: int, least: int) -> tuple[int, int]:
    """Return into how many sections moves are cut, and the most bytes of messages that a place then has."""
    chunks = least
    while True:
        peak = int(np.bincount(ends, -(-elements // chunks)).max()) * itemsize
        if peak <= bucket:
            return chunks, peak
        if chunks >= elements.max():
            raise ValueError(
                f"a bucket of {bucket} bytes is too small: a place has messages of {peak} bytes if it exchanges one "
                "element "
                "with each of its peers"
            )
        chunks = max(chunks + 1, chunks * peak // bucket if chunks == least else chunks + chunks // 16)


def _lacking(stream: _Stream, sites: ProcessTopology) -> int:
    """Return how many takers have no holder on their device."""
    return int((~np.isin(sites.device[stream.takers], sites.device[stream.holders])).sum())


def _totals(plan: _Plan, sites: ProcessTopology) -> tuple[int, int]:
    """Return the elements that are sent between devices, and those that are copied on one."""
    moved = copied = 0
    for _, elements, source, destination, _ in plan.moves:
        same = int((sites.device[source] == sites.device[destination]).sum())
        copied += same * elements
        moved += (len(source) - same) * elements
    return moved, copied
