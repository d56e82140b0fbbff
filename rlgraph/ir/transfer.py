"""Transfers: who sends which part of which tensor to whom, for one edge between two layouts.

What many ranks share is said once: a move has the boxes that take the same ways, and the routes that they take. So the
plan of a large model stays small. Nothing here computes a plan: `rlgraph.passes.resharding.reshard` does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlgraph.ir.layout import Box, volume

DEVICES_PER_NODE = 8
"""Assumed where no cluster is given."""

TensorBox = tuple[str, Box]
"""A box of the global tensor of this name."""

Route = tuple[int, int, int]
"""From a place, to a place, and how many places have passed it on before."""


@dataclass(frozen=True, slots=True)
class Topology:
    """Where places (processes) are. Two on one device exchange data without the network."""

    devices: Mapping[int, int]
    """For each place its device."""
    nodes: Mapping[int, int]
    """For each device its node."""
    device_bandwidth: float = 1e12
    """Bytes a second: a copy within a device."""
    node_bandwidth: float = 200e9
    """Of a device, to others of its node, in each direction."""
    network_bandwidth: float = 25e9
    """Of a device, to other nodes, in each direction."""
    latency: float = 1e-4
    """Seconds that a round of messages takes beside its bytes."""

    @classmethod
    def separate(cls, places: Iterable[int], devices_per_node: int = DEVICES_PER_NODE) -> Topology:
        """Each place on a device of its own, nodes filled in the order of the places."""
        devices = {place: index for index, place in enumerate(dict.fromkeys(places))}
        return cls(devices, {device: device // devices_per_node for device in devices.values()})

    def node(self, place: int) -> int:
        return self.nodes[self.devices[place]]


@dataclass(frozen=True, slots=True)
class Move:
    """Boxes that take the same routes. Each destination gets all of them, from one place."""

    parts: tuple[TensorBox, ...]
    """In the order in which they travel, each of them row by row."""
    routes: tuple[Route, ...]
    elements: int


@dataclass(frozen=True, slots=True)
class Transfer:
    """All moves of one edge, run in rounds.

    Every move is cut into `chunks` equal sections. Section k leaves the source in round k and is passed on, by places
    that are h steps away from it, in round k + h. All moves run side by side, so that every link is busy all the time.
    """

    moves: tuple[Move, ...]
    itemsize: int
    """Bytes of an element while it travels."""
    chunks: int
    topology: Topology
    moved: int
    """Bytes that cross a link between two devices."""
    copied: int
    """Bytes between two places on the same device."""
    kept: int
    """Bytes that a place needs and holds already."""
    bound: int
    """What destinations need and have not on their device. No plan moves less, but where two takers are on one device
    and the second copies it from the first."""
    peak: int
    """At most this many bytes of messages, in and out, are on one place at the same time."""
    seconds: float
    """Predicted from the topology."""

    @property
    def rounds(self) -> int:
        return self.chunks + max((hop for move in self.moves for _, _, hop in move.routes), default=0)

    @property
    def forwards(self) -> bool:
        """Whether a place passes on what it got."""
        return any(hop for move in self.moves for _, _, hop in move.routes)

    def parts(self, places: Iterable[int]) -> dict[int, Transfer]:
        """What each place has to know of it: its own routes, and no topology."""
        found: dict[int, list[Move]] = {place: [] for place in places}
        for move in self.moves:
            routes: dict[int, list[Route]] = {}
            for route in move.routes:
                for place in {*route[:2]}:
                    routes.setdefault(place, []).append(route)
            for place, own in routes.items():
                found[place].append(replace(move, routes=tuple(own)))
        return {place: replace(self, moves=tuple(moves), topology=Topology({}, {})) for place, moves in found.items()}

    def section(self, move: Move, chunk: int) -> list[TensorBox]:
        """What of a move travels as one of its chunks; nothing before the first and after the last."""
        if not 0 <= chunk < self.chunks:
            return []
        start, stop = (move.elements * index // self.chunks for index in (chunk, chunk + 1))
        return section(move.parts, start, stop)

    def pairs(self) -> dict[tuple[int, int], int]:
        """Bytes from each place to each other one, copies on a device included."""
        found: Counter[tuple[int, int]] = Counter()
        for move in self.moves:
            for source, destination, _ in move.routes:
                found[source, destination] += move.elements * self.itemsize
        return dict(found)

    def sent(self) -> dict[int, int]:
        """Bytes that leave a place for another device."""
        return self._network(0)

    def received(self) -> dict[int, int]:
        """Bytes that a place gets from other devices."""
        return self._network(1)

    def links(self) -> dict[tuple[int, int], int]:
        """Bytes from each node to each other one."""
        found: Counter[tuple[int, int]] = Counter()
        for (source, destination), size in self.pairs().items():
            ends = self.topology.node(source), self.topology.node(destination)
            if ends[0] != ends[1]:
                found[ends] += size
        return dict(found)

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "moved": self.moved,
            "copied": self.copied,
            "kept": self.kept,
            "bound": self.bound,
            "peak": self.peak,
            "seconds": self.seconds,
            "itemsize": self.itemsize,
            "chunks": self.chunks,
            "moves": [{"parts": move.parts, "routes": move.routes} for move in self.moves],
        }

    def _network(self, end: int) -> dict[int, int]:
        devices = self.topology.devices
        found: Counter[int] = Counter()
        for pair, size in self.pairs().items():
            if devices[pair[0]] != devices[pair[1]]:
                found[pair[end]] += size
        return dict(found)


def section(parts: Sequence[TensorBox], start: int, stop: int) -> list[TensorBox]:
    """The elements from one number to another, counted over all parts, each of them row by row."""
    found: list[TensorBox] = []
    for name, box in parts:
        size = volume(box)
        first, last = max(start, 0), min(stop, size)
        if first < last:
            found += [(name, inner) for inner in _interval(box, first, last)]
        start, stop = start - size, stop - size
    return found


def _interval(box: Box, start: int, stop: int) -> Iterator[Box]:
    """The elements of a box from one number to another, counted row by row, as boxes in the same order."""
    if (start, stop) == (0, volume(box)):
        yield box
        return
    (low, _), rest = box[0], box[1:]
    row = volume(rest)
    first, skipped = divmod(start, row)
    last, more = divmod(stop, row)
    if first == last:
        yield from (((low + first, low + first + 1), *inner) for inner in _interval(rest, skipped, more))
        return
    if skipped:
        yield from (((low + first, low + first + 1), *inner) for inner in _interval(rest, skipped, row))
        first += 1
    if first < last:
        yield ((low + first, low + last), *rest)
    if more:
        yield from (((low + last, low + last + 1), *inner) for inner in _interval(rest, 0, more))
