"""Clusters: islands of equal nodes, each with equal devices, and what connects them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Literal

DeviceKind = Literal["cpu", "gpu"]


def kind_of(device: str) -> DeviceKind:
    """Of a device by its name."""
    return "cpu" if device == "cpu" else "gpu"


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator, or one machine's CPU."""

    name: str
    """As in a cluster's text: `a100-80gb`."""
    memory: int
    """Bytes."""
    flops: tuple[tuple[str, float], ...]
    """Dense FLOP/s at its peak by dtype: `bfloat16`, `float32`, `float64`."""
    bandwidth: float
    """Bytes a second from and to its own memory."""
    link: float
    """Bytes a second to another device of its node, in each direction."""
    network: float
    """Bytes a second to other nodes, its share of the node's adapters, in each direction."""
    host: float
    """Bytes a second to the memory of its host, in each direction."""
    price: float
    """US dollars an hour."""
    dense: float = 1.0
    """Share of its peak that the largest matrix products reach."""
    stream: float = 1.0
    """Share of its memory's bandwidth that a long copy reaches."""
    host_memory: float = inf
    """Bytes of the memory of its host, its share of that: as many as all devices of the node have between them."""

    @property
    def kind(self) -> DeviceKind:
        return kind_of(self.name)

    def peak(self, dtype: str) -> float:
        """FLOP/s at a dtype; where it has none of its own, that of float32."""
        known = dict(self.flops)
        return known.get(dtype) or known["float32"]

    def products(self, dtype: str) -> float:
        """FLOP/s that the largest matrix products reach at a dtype."""
        return self.peak(dtype) * self.dense

    @property
    def streamed(self) -> float:
        """Bytes a second that a long copy in its memory reaches."""
        return self.bandwidth * self.stream


@dataclass(frozen=True, slots=True)
class Island:
    """Equal nodes behind one network."""

    nodes: int
    per_node: int
    device: Device
    network: float
    """Bytes a second of one device to other nodes of the island, in each direction."""
    link_latency: float
    """Seconds that a message within a node takes beside its bytes."""
    network_latency: float
    """Seconds that a message between two nodes takes beside its bytes."""
    parts: tuple[Island, ...] = ()
    """Of several islands as one (`Cluster.joined`), which has the least of each of their numbers; copies of a model
    fill one after the other."""
    inner: Island | None = None
    """Of several: all but the last one."""
    between: float = inf
    """Of several: bytes a second of one device to a device of another one of them, in each direction."""
    between_latency: float = 0.0
    """Of several: seconds that a message between two of them takes beside its bytes."""

    @property
    def devices(self) -> int:
        return sum(part.devices for part in self.parts) if self.parts else self.nodes * self.per_node

    @property
    def host_memory(self) -> float:
        """Bytes of a node's host."""
        return min([part.host_memory for part in self.parts], default=self.per_node * self.device.host_memory)

    def near(self, reach: int) -> bool:
        """Whether so many devices in a row, one such group behind the other from the start of a node, are always on one
        node."""
        if self.parts:
            return all(part.near(reach) for part in self.parts)
        return reach <= self.per_node and (self.nodes == 1 or self.per_node % reach == 0)

    # Teams: devices next to each other, as tensor-parallel ranks are. One that a node has room for lies on one, and
    # devices that are left over at the end of a node stay idle.

    def teams(self, size: int, devices: int) -> int:
        """How many teams of so many devices there are among `devices` in a row from the start of a node."""
        if size > self.per_node:
            return devices // size
        nodes, rest = divmod(devices, self.per_node)
        return nodes * (self.per_node // size) + rest // size

    def reach(self, size: int, teams: int) -> int:
        """How many devices in a row from the start of a node so many teams lie among, up to the last of the last."""
        return self.member(size, teams * size - 1) + 1 if teams else 0

    def member(self, size: int, number: int) -> int:
        """The device of a member of teams, both counted from 0 from the start of a node."""
        if size > self.per_node:
            return number
        team, place = divmod(number, size)
        nodes, before = divmod(team, self.per_node // size)
        return nodes * self.per_node + before * size + place

    # Copies of a model: so many devices, in teams. Each lies within one island.

    def copies(self, team: int, size: int, devices: int) -> int:
        """How many copies there are among `devices` in a row from the start of a node."""
        if not self.parts:
            return self.teams(team, devices) // (size // team)
        found = 0
        for part in self.parts:
            found += part.copies(team, size, min(devices, part.devices))
            devices -= min(devices, part.devices)
        return found

    def span(self, team: int, size: int, copies: int) -> int:
        """How many devices in a row from the start of a node so many copies lie among, up to the last of the last."""
        before = 0
        for part in self.parts:
            room = part.copies(team, size, part.devices)
            if copies <= room:
                return before + part.span(team, size, copies)
            before, copies = before + part.devices, copies - room
        return before + self.reach(team, copies * (size // team))

    def rank(self, team: int, size: int, number: int) -> int:
        """The device of a rank of copies, both counted from 0 from the start of a node."""
        before = 0
        for part in self.parts:
            room = part.copies(team, size, part.devices) * size
            if number < room:
                return before + part.member(team, number)
            before, number = before + part.devices, number - room
        return before + self.member(team, number)

    def beside(self, size: int, teams: int) -> bool:
        """Whether neighbours among so many teams in a row, one such row behind the other, are on one node: of two that
        make a row, or of all that fill a node."""
        on_a_node = self.per_node // size
        return on_a_node > 1 and (self.nodes == 1 or on_a_node % 2 == 0 or on_a_node % teams == 0)


@dataclass(frozen=True, slots=True)
class Cluster:
    islands: tuple[Island, ...]
    between: float
    """Bytes a second of one device to a device of another island, in each direction."""
    between_latency: float
    """Seconds that a message between two islands takes beside its bytes."""
    text: str
    """As the user would write it: the same cluster has the same text."""
    _joined: dict[tuple[int, ...], Island] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def devices(self) -> int:
        return sum(island.devices for island in self.islands)

    def joined(self, numbers: tuple[int, ...]) -> Island:
        """Some of its islands as one, in this order; of one it is that one."""
        if len(numbers) == 1:
            return self.islands[numbers[0]]
        if numbers not in self._joined:
            parts = tuple(self.islands[number] for number in numbers)
            self._joined[numbers] = Island(
                sum(part.nodes for part in parts),
                min(part.per_node for part in parts),
                _weakest([part.device for part in parts]),
                min(part.network for part in parts),
                max(part.link_latency for part in parts),
                max(part.network_latency for part in parts),
                parts,
                self.joined(numbers[:-1]),
                self.between,
                self.between_latency,
            )
        return self._joined[numbers]

    def over(self, first: int, devices: int) -> Island:
        """The island that so many devices in a row are on, or all of those as one."""
        ends = self.island(first), self.island(first + max(1, devices) - 1)
        return self.joined(tuple(range(ends[0], ends[1] + 1)))

    def apart(self, source: Island, target: Island) -> tuple[float, float] | None:
        """Bytes a second of a device and seconds of a message from one of its islands, or several as one, to another;
        None within one."""
        return None if source is target else (self.between, self.between_latency)

    def island(self, first: int) -> int:
        """The number of the island that a device is in; devices are counted through all islands."""
        for number, island in enumerate(self.islands):
            if first < island.devices:
                return number
            first -= island.devices
        raise IndexError(f"the cluster has {self.devices} devices")

    def home(self, node: int) -> Island:
        """The island that a node is in; nodes are counted through all islands."""
        for island in self.islands:
            if node < island.nodes:
                return island
            node -= island.nodes
        raise IndexError(f"the cluster has {sum(island.nodes for island in self.islands)} nodes")

    def node(self, device: int) -> int:
        """The number of the node that a device is in, counted through all islands."""
        before = 0
        for island in self.islands:
            if device < island.devices:
                return before + device // island.per_node
            device, before = device - island.devices, before + island.nodes
        raise IndexError(f"the cluster has {self.devices} devices")


def _weakest(devices: Sequence[Device]) -> Device:
    """What all of some devices have at least."""
    dtypes = dict.fromkeys(dtype for device in devices for dtype, _ in device.flops)
    return Device(
        " and ".join(dict.fromkeys(device.name for device in devices)),
        min(device.memory for device in devices),
        tuple((dtype, min(device.products(dtype) for device in devices)) for dtype in dtypes),
        min(device.streamed for device in devices),
        min(device.link for device in devices),
        min(device.network for device in devices),
        min(device.host for device in devices),
        max(device.price for device in devices),
        host_memory=min(device.host_memory for device in devices),
    )
