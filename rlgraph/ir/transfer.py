"""Transfers between two layouts: which place sends which part of which tensor to which place.

Boxes that take the same routes are one move, so that the plan of a large model stays small. Plans are computed by
`rlgraph.passes.resharding.reshard`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlgraph.ir.layout import Box, box_elements

DEVICES_PER_NODE = 8
"""The number of devices per node where no cluster is given."""

LATENCY = 1e-4
"""Seconds that a round of messages takes in addition to its bytes, where nobody says another."""

SECTION = 4.8e-5
"""Seconds that a place takes for its part of a stream in a round, beside its bytes: four pieces of 6 us that are cut
out and copied, since it begins and ends within a row and within a layer's matrix, and two or three messages of 9.4 us,
since its larger parts travel alone. Seconds are measured of our own code on a CPU (Intel Xeon), with pieces so small
that their bytes take no time (`python benchmarks/pieces.py`); that a launch on a GPU takes as long is assumed. Numbers
are counted in plans of models of 4 and 30 billion parameters: 1.4 to 5, and 1 to 4."""

TensorBox = tuple[str, Box]
"""The name of a global tensor, and a box of it."""

Route = tuple[int, int, int]
"""A source place, a destination place, and the number of places that have forwarded the data before."""


@dataclass(frozen=True, slots=True)
class Topology:
    """The devices and nodes of places (processes). Two places on one device exchange data without the network."""

    devices: Mapping[int, int]
    """The device of each place."""
    nodes: Mapping[int, int]
    """The node of each device."""
    device_bandwidth: float = 1e12
    """Bytes per second of a copy within a device."""
    node_bandwidth: float = 200e9
    """Bytes per second of a device to others of its node, in each direction."""
    network_bandwidth: float = 25e9
    """Bytes per second of a device to other nodes, in each direction."""
    latency: float = LATENCY
    """Seconds that a round of messages takes in addition to its bytes."""
    section: float = SECTION
    """Seconds that a place takes for its part of a stream in a round, in addition to its bytes."""

    @classmethod
    def one_per_device(cls, places: Iterable[int], devices_per_node: int = DEVICES_PER_NODE) -> Topology:
        """Return a topology with each place on its own device, where nodes are filled in the order of the places."""
        devices = {place: index for index, place in enumerate(dict.fromkeys(places))}
        return cls(devices, {device: device // devices_per_node for device in devices.values()})

    def node_of(self, place: int) -> int:
        """Return the node of a place."""
        return self.nodes[self.devices[place]]


@dataclass(frozen=True, slots=True)
class Move:
    """Boxes that take the same routes. Each destination gets all of them from one place."""

    parts: tuple[TensorBox, ...]
    """The boxes in the order in which they are sent, each of them row by row."""
    routes: tuple[Route, ...]
    elements: int


@dataclass(frozen=True, slots=True)
class Transfer:
    """All moves from one layout to another, run in rounds.

    Every move is cut into `chunks` equal sections. The source sends section k in round k, and places that are h hops
    away from it forward the section in round k + h. All moves run concurrently, so that every link is always busy.
    """

    moves: tuple[Move, ...]
    itemsize: int
    """Bytes of an element in messages."""
    chunks: int
    topology: Topology
    moved: int
    """Bytes that are sent between two devices."""
    copied: int
    """Bytes that are copied between two places on the same device."""
    kept: int
    """Bytes that places need and already hold."""
    bound: int
    """Bytes that destinations need and that are not on their device. It is a lower bound of `moved`, except where two
    destinations are on one device and the second copies from the first."""
    peak: int
    """The most bytes of messages, in and out, that a place has at a time."""
    seconds: float
    """Predicted from the topology."""

    @property
    def round_count(self) -> int:
        """The number of rounds."""
        return self.chunks + max((hop for move in self.moves for _, _, hop in move.routes), default=0)

    @property
    def has_forwarding(self) -> bool:
        """Whether a place forwards what it received."""
        return any(hop for move in self.moves for _, _, hop in move.routes)

    def split_by_place(self, places: Iterable[int]) -> dict[int, Transfer]:
        """Return for each place the part of the transfer that it needs: its own routes, and no topology."""
        moves_of: dict[int, list[Move]] = {place: [] for place in places}
        for move in self.moves:
            routes: dict[int, list[Route]] = {}
            for route in move.routes:
                for place in {*route[:2]}:
                    routes.setdefault(place, []).append(route)
            for place, place_routes in routes.items():
                moves_of[place].append(replace(move, routes=tuple(place_routes)))
        return {
            place: replace(self, moves=tuple(moves), topology=Topology({}, {})) for place, moves in moves_of.items()
        }

    def section_boxes(self, move: Move, chunk: int) -> list[TensorBox]:
        """Return the boxes of one section of a move; none before the first and after the last."""
        if not 0 <= chunk < self.chunks:
            return []
        start, stop = (move.elements * index // self.chunks for index in (chunk, chunk + 1))
        return cut_section(move.parts, start, stop)

    def bytes_by_pair(self) -> dict[tuple[int, int], int]:
        """Return the bytes from each place to each other one, including copies on a device."""
        sizes: Counter[tuple[int, int]] = Counter()
        for move in self.moves:
            for source, destination, _ in move.routes:
                sizes[source, destination] += move.elements * self.itemsize
        return dict(sizes)

    def sent_bytes(self) -> dict[int, int]:
        """Return the bytes that each place sends to other devices."""
        return self._network(0)

    def received_bytes(self) -> dict[int, int]:
        """Return the bytes that each place receives from other devices."""
        return self._network(1)

    def bytes_between_nodes(self) -> dict[tuple[int, int], int]:
        """Return the bytes from each node to each other one."""
        sizes: Counter[tuple[int, int]] = Counter()
        for (source, destination), size in self.bytes_by_pair().items():
            ends = self.topology.node_of(source), self.topology.node_of(destination)
            if ends[0] != ends[1]:
                sizes[ends] += size
        return dict(sizes)

    def to_json(self) -> dict[str, Any]:
        """Return it as data that JSON can hold."""
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
        sizes: Counter[int] = Counter()
        for pair, size in self.bytes_by_pair().items():
            if devices[pair[0]] != devices[pair[1]]:
                sizes[pair[end]] += size
        return dict(sizes)


def cut_section(parts: Sequence[TensorBox], start: int, stop: int) -> list[TensorBox]:
    """Return the boxes of elements `start` to `stop`, counted over all parts, each of them row by row."""
    boxes: list[TensorBox] = []
    for name, box in parts:
        size = box_elements(box)
        first, last = max(start, 0), min(stop, size)
        if first < last:
            boxes += [(name, inner) for inner in _interval(box, first, last)]
        start, stop = start - size, stop - size
    return boxes


def _interval(box: Box, start: int, stop: int) -> Iterator[Box]:
    """Return elements `start` to `stop` of a box, counted row by row, as boxes in the same order."""
    if (start, stop) == (0, box_elements(box)):
        yield box
        return
    (low, _), rest = box[0], box[1:]
    row = box_elements(rest)
    first, skipped = divmod(start, row)
    last, remaining = divmod(stop, row)
    if first == last:
        yield from (((low + first, low + first + 1), *inner) for inner in _interval(rest, skipped, remaining))
        return
    if skipped:
        yield from (((low + first, low + first + 1), *inner) for inner in _interval(rest, skipped, row))
        first += 1
    if first < last:
        yield ((low + first, low + last), *rest)
    if remaining:
        yield from (((low + last, low + last + 1), *inner) for inner in _interval(rest, 0, remaining))
