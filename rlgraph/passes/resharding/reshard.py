"""Transfers between any two layouts, for weights and for rows of data alike, by intersecting the boxes that places
hold.

    1. Every tensor is cut wherever either side cuts it. Cells with the same holders and the same takers are one stream.
    2. A taker on a holder's device copies from it. Of the others, those that have a holder on their node get it there.
       The rest get it over the network: from any holder, or once for each node, whose first taker passes it on.
    3. Whether takers pass on what they got, and how many times a place sends the same thing, is the same question for
    all
       streams: the plan is made for a few answers, and the one that takes the least time is kept.
    4. Streams are cut into as many sections as it takes for a place's messages to fit into the bucket.

Each element that a place needs and does not hold arrives exactly once. Replicas share the sending evenly.

There are no summands here: an engine adds up its gradients itself, with the collectives it was built for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rlgraph.ir.layout import volume
from rlgraph.ir.transfer import Move, TensorBox, Topology, Transfer, section
from rlgraph.passes.resharding.cells import Layout, cells, distinct
from rlgraph.passes.resharding.routes import Sites, spread

Array = NDArray[np.int64]

SMALLEST = 1 << 16
"""Bytes: smaller streams are not divided between replicas, since a message has a price of its own."""

MOST = 64
"""Into how many parts a stream is divided at most."""

ANSWERS = ((False, None), (True, None), (True, 1), (True, 2), (True, 4))
"""Whether only one taker of a node gets a thing over the network, and how often a place sends it (None: as often as
needed). Simple ones first: of equal ones, the first is kept."""


@dataclass(frozen=True, slots=True)
class _Stream:
    """Parts that the same places have and the same ones need."""

    parts: tuple[TensorBox, ...]
    elements: int
    holders: Array
    """Sites in order: places by their number in `Sites`."""
    takers: Array
    """That do not hold it themselves."""
    kept: int
    """How many places need it and hold it."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """The routes of all streams for one answer."""

    moves: list[tuple[tuple[TensorBox, ...], int, Array, Array, Array]]
    """Parts, elements; for each route source, destination, hop."""
    chunks: int
    peak: int
    seconds: float


def reshard(
    source: Mapping[int, Layout],
    destination: Mapping[int, Layout],
    *,
    itemsize: int,
    topology: Topology,
    bucket: int,
    forward: bool = True,
) -> Transfer:
    """The transfer that gives each place of `destination` what its layout says, from what the places of `source` hold.

    A place is a process, of any number; one that is on both sides holds its part of the source already. `itemsize` is
    an element's size in bytes while it travels, and `bucket` how many bytes of messages, in and out, a place may have
    at a time. With `forward` false, no place passes on what it got.

    Raises ValueError where nobody holds what is needed, and where the bucket is too small for one element from each
    peer.
    """
    places = sorted({*source, *destination})
    sites = Sites(places, topology)
    streams = list(_streams(source, destination, places))
    plans = [_plan(streams, sites, answer, itemsize, bucket) for answer in (ANSWERS if forward else ANSWERS[:1])]
    best = min(plans, key=lambda plan: plan.seconds)
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
        kept=sum(stream.kept * stream.elements for stream in streams) * itemsize,
        bound=sum(_lacking(stream, sites) * stream.elements for stream in streams) * itemsize,
        peak=best.peak,
        seconds=best.seconds,
    )


def _streams(
    source: Mapping[int, Layout], destination: Mapping[int, Layout], places: Sequence[int]
) -> Iterator[_Stream]:
    held, holders = distinct(source)
    needed, takers = distinct(destination)
    found: dict[bytes, list[TensorBox]] = {}
    for tensor in cells([*needed, *held]):
        wanted = np.flatnonzero(tensor.held[: len(needed)].any(axis=0))
        missing = wanted[~tensor.held[len(needed) :, wanted].any(axis=0)]
        if len(missing):
            labels = np.full(tensor.held.shape[1], -1)
            labels[missing] = 0
            shown = ", ".join(f"{low}:{high}" for low, high in tensor.boxes(labels)[0][1])
            raise ValueError(f"the destination needs {tensor.name} [{shown}], which no place of the source holds")
        # Who has a cell and who needs it, a bit each: what is equal here travels together.
        bits = np.packbits(tensor.held[:, wanted], axis=0).T
        keys, inverse = np.unique(bits, axis=0, return_inverse=True)
        labels = np.full(tensor.held.shape[1], -1)
        labels[wanted] = inverse.reshape(-1)
        for label, box in tensor.boxes(labels):
            found.setdefault(keys[label].tobytes(), []).append((tensor.name, box))
    at = {place: index for index, place in enumerate(places)}
    members = [np.array([at[place] for place in group], np.int64) for group in (*takers, *holders)]
    for key, parts in found.items():
        chosen = np.unpackbits(np.frombuffer(key, np.uint8), count=len(members)).nonzero()[0]
        to = np.sort(np.concatenate([members[index] for index in chosen if index < len(needed)]))
        have = np.sort(np.concatenate([members[index] for index in chosen if index >= len(needed)]))
        lacking = to[~np.isin(to, have)]
        elements = sum(volume(box) for _, box in parts)
        yield _Stream(tuple(parts), elements, have, lacking, len(to) - len(lacking))


def _plan(
    streams: Sequence[_Stream], sites: Sites, answer: tuple[bool, int | None], itemsize: int, bucket: int
) -> _Plan:
    gates, fanout = answer
    moves = []
    turn = 0
    for stream in filter(lambda stream: len(stream.takers), streams):
        count = _divided(stream, sites, itemsize)
        cuts = [_row(stream, stream.elements * index // count, count) for index in range(count + 1)]
        for start, stop in pairwise(cuts):
            parts = stream.parts if count == 1 else tuple(section(stream.parts, start, stop))
            routes = spread(sites, stream.holders, stream.takers, turn, gates, fanout)
            moves.append((parts, stop - start, *routes))
            turn += 1
    if not moves:
        return _Plan([], 1, 0, 0.0)
    source, destination, hop = (np.concatenate([move[end] for move in moves]) for end in (2, 3, 4))
    elements = np.concatenate([np.full(len(move[2]), move[1]) for move in moves])
    busiest = sites.busiest(source, destination, elements * itemsize)
    hops = int(hop.max())
    # What is passed on h times arrives h rounds late. Small sections make that short, and many rounds with latencies
    # long.
    filled = min(math.isqrt(int(busiest * hops / sites.topology.latency)), int(elements.max()) * itemsize // SMALLEST)
    chunks, peak = _chunks(
        np.concatenate([source, destination]), np.tile(elements, 2), itemsize, bucket, max(1, filled)
    )
    seconds = busiest * (1 + hops / chunks) + sites.topology.latency * (chunks + hops)
    return _Plan(moves, chunks, peak, seconds)


def _divided(stream: _Stream, sites: Sites, itemsize: int) -> int:
    """Into how many parts a stream goes, so that its holders send the same and the takers of a node take turns in
    getting it over the network."""
    holders, takers = len(stream.holders), len(stream.takers)
    most = int(np.unique(sites.node[stream.takers], return_counts=True)[1].max())
    parts = math.lcm(holders // math.gcd(holders, takers), most)
    return max(1, min(parts, MOST, stream.elements * itemsize // SMALLEST))


def _row(stream: _Stream, cut: int, count: int) -> int:
    """Where the row begins that holds an element, if rows are short for so many equal parts: boxes stay simple."""
    start = 0
    for _, box in stream.parts:
        if cut < start + volume(box):
            row = volume(box[-1:])
            return cut if 16 * row * count > stream.elements else cut - (cut - start) % row
        start += volume(box)
    return cut


def _chunks(ends: Array, elements: Array, itemsize: int, bucket: int, least: int) -> tuple[int, int]:
    """Into how many sections the moves go, and the most bytes that are on one place then."""
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


def _lacking(stream: _Stream, sites: Sites) -> int:
    """How many places have it neither themselves nor on their device."""
    return int((~np.isin(sites.device[stream.takers], sites.device[stream.holders])).sum())


def _totals(plan: _Plan, sites: Sites) -> tuple[int, int]:
    """Elements that go between devices, and those that stay on one."""
    moved = copied = 0
    for _, elements, source, destination, _ in plan.moves:
        same = int((sites.device[source] == sites.device[destination]).sum())
        copied += same * elements
        moved += (len(source) - same) * elements
    return moved, copied
