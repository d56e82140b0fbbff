"""Clusters: node groups, each of equal nodes with equal devices, and the links between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal

DeviceKind = Literal["cpu", "gpu"]


def cpu_or_gpu(device: str) -> DeviceKind:
    """Return the kind of the device with this name."""
    return "cpu" if device == "cpu" else "gpu"


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator, or one machine's CPU."""

    name: str
    """Its name as in a cluster's text: `a100-80gb`."""
    memory: int
    """Bytes."""
    flops: tuple[tuple[str, float], ...]
    """Peak dense FLOP/s by dtype: `float8`, `bfloat16`, `float32`, `float64`."""
    bandwidth: float
    """Bytes per second from and to its own memory."""
    link: float
    """Bytes per second to another device of its node, in each direction."""
    network: float
    """Bytes per second to other nodes, its share of the node's network adapters, in each direction."""
    host: float
    """Bytes per second to the memory of its host, in each direction."""
    price: float
    """US dollars per hour."""
    dense: float = 1.0
    """The share of its peak that the largest matrix products reach."""
    stream: float = 1.0
    """The share of its memory's bandwidth that a long copy reaches."""
    host_memory: float = inf
    """Its share of the host's memory in bytes; the node's devices together have all of it."""
    attention: float = 0.5
    """The rate of causal attention, relative to that of the largest matrix products, that the fastest kernels for this
    device reach; what the mask hides is not counted as work. With 0.5 attention takes as long as such products that
    hide nothing."""
    plain_attention: float = 0.5
    """The same for kernels that run on every device (FlashAttention 2)."""
    weight_stream: float = 1.0
    """The share of its memory's bandwidth at which products of a few rows read large matrices."""
    cache_stream: float = 1.0
    """The share at which the attention of a decoding step reads keys and values."""
    product_latency: float = 0.0
    """Seconds that a product of a few rows takes in addition to its bytes."""
    attention_latency: float = 0.0
    """Seconds that the attention of a layer takes in a decoding step in addition to its bytes."""

    @property
    def kind(self) -> DeviceKind:
        """Whether it is a CPU or a GPU."""
        return cpu_or_gpu(self.name)

    def peak_flops(self, dtype: str) -> float:
        """Return the peak FLOP/s at a dtype, or those of the next wider dtype that has a rate of its own."""
        rates = dict(self.flops)
        wider = ("bfloat16", "float32") if dtype == "float8" else ("float32",)
        return next(rates[name] for name in (dtype, *wider) if rates.get(name))

    def matmul_flops(self, dtype: str) -> float:
        """Return the FLOP/s that the largest matrix products reach at a dtype."""
        return self.peak_flops(dtype) * self.dense

    @property
    def stream_bandwidth(self) -> float:
        """The bytes per second that a long copy in its memory reaches."""
        return self.bandwidth * self.stream

    @property
    def weight_bandwidth(self) -> float:
        """The bytes per second at which products of a few rows read large matrices."""
        return self.bandwidth * self.weight_stream

    @property
    def cache_bandwidth(self) -> float:
        """The bytes per second at which the attention of a decoding step reads keys and values."""
        return self.bandwidth * self.cache_stream


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """A group of equal nodes behind one network, or several such groups joined as one (`Cluster.join_node_groups`)."""

    nodes: int
    per_node: int
    device: Device
    network: float
    """Bytes per second of one device to other nodes of the group, in each direction."""
    link_latency: float
    """Seconds that a message within a node takes in addition to its bytes."""
    network_latency: float
    """Seconds that a message between two nodes takes in addition to its bytes."""
    parts: tuple[NodeGroup, ...] = ()
    """The joined groups, of whose numbers the joined one has the worst; replicas of a model fill them one by one."""
    inner: NodeGroup | None = None
    """All of the joined groups but the last one."""
    between: float = inf
    """Bytes per second of one device to a device of another one of the joined groups, in each direction."""
    between_latency: float = 0.0
    """Seconds that a message between two of the joined groups takes in addition to its bytes."""

    @property
    def device_count(self) -> int:
        """The number of devices."""
        return sum(part.device_count for part in self.parts) if self.parts else self.nodes * self.per_node

    def has_like_nodes(self, other: NodeGroup) -> bool:
        """Return whether nodes have as many devices, of the same kind, so that work needs as much memory of them."""
        same_kind = self.device.kind == other.device.kind
        return same_kind and self.per_node == other.per_node and not self.parts and not other.parts

    def takes_as_long_as(self, other: NodeGroup) -> bool:
        """Return whether work that both have room for takes as long on either: they differ in how many nodes there are,
        if there are several, and in what a device holds and costs."""
        one, two = (
            replace(
                group, nodes=min(group.nodes, 2), device=replace(group.device, memory=0, host_memory=0.0, price=0.0)
            )
            for group in (self, other)
        )
        return one == two

    @property
    def host_memory(self) -> float:
        """The bytes of memory of a node's host."""
        return min([part.host_memory for part in self.parts], default=self.per_node * self.device.host_memory)

    def blocks_stay_within_nodes(self, reach: int) -> bool:
        """Return whether blocks of `reach` consecutive devices, laid out one after the other from the start of a node,
        never cross a node boundary."""
        if self.parts:
            return all(part.blocks_stay_within_nodes(reach) for part in self.parts)
        return reach <= self.per_node and (self.nodes == 1 or self.per_node % reach == 0)

    # A team is a number of neighbouring devices, as tensor-parallel ranks use. A team that fits on a node lies on one,
    # and devices that are left over at the end of a node stay idle.

    def count_teams(self, size: int, devices: int) -> int:
        """Return how many teams of `size` devices fit into `devices` consecutive devices from the start of a node."""
        if size > self.per_node:
            return devices // size
        nodes, rest = divmod(devices, self.per_node)
        return nodes * (self.per_node // size) + rest // size

    def devices_for_teams(self, size: int, teams: int) -> int:
        """Return how many consecutive devices from the start of a node so many teams span, idle ones between
        included."""
        return self.team_member_device(size, teams * size - 1) + 1 if teams else 0

    def team_member_device(self, size: int, number: int) -> int:
        """Return the device of the team member with this number; both count from 0 at the start of a node."""
        if size > self.per_node:
            return number
        team, place = divmod(number, size)
        nodes, before = divmod(team, self.per_node // size)
        return nodes * self.per_node + before * size + place

    # A replica of a model has a number of devices, in teams, all within one node group.

    def count_replicas(self, team: int, size: int, devices: int) -> int:
        """Return how many replicas of `size` devices fit into `devices` consecutive devices from the start of a
        node."""
        if not self.parts:
            return self.count_teams(team, devices) // (size // team)
        replicas = 0
        for part in self.parts:
            replicas += part.count_replicas(team, size, min(devices, part.device_count))
            devices -= min(devices, part.device_count)
        return replicas

    def devices_for_replicas(self, team: int, size: int, copies: int) -> int:
        """Return how many consecutive devices from the start of a node so many replicas span."""
        before = 0
        for part in self.parts:
            room = part.count_replicas(team, size, part.device_count)
            if copies <= room:
                return before + part.devices_for_replicas(team, size, copies)
            before, copies = before + part.device_count, copies - room
        return before + self.devices_for_teams(team, copies * (size // team))

    def rank_device(self, team: int, size: int, number: int) -> int:
        """Return the device of the rank with this number, over all replicas; both count from 0 at the start of a
        node."""
        before = 0
        for part in self.parts:
            room = part.count_replicas(team, size, part.device_count) * size
            if number < room:
                return before + part.team_member_device(team, number)
            before, number = before + part.device_count, number - room
        return before + self.team_member_device(team, number)

    def neighbour_teams_share_node(self, size: int, teams: int) -> bool:
        """Return whether neighbours among rows of `teams` consecutive teams share a node: as the two of a row, or since
        rows fill a node."""
        on_a_node = self.per_node // size
        return on_a_node > 1 and (self.nodes == 1 or on_a_node % 2 == 0 or on_a_node % teams == 0)


@dataclass(frozen=True, slots=True)
class Cluster:
    """The node groups of a cluster, and the link between them."""

    islands: tuple[NodeGroup, ...]
    between: float
    """Bytes per second of one device to a device of another node group, in each direction."""
    between_latency: float
    """Seconds that a message between two node groups takes in addition to its bytes."""
    text: str
    """The cluster as the user would write it; equal clusters have equal texts."""
    _joined: dict[tuple[int, ...], NodeGroup] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def device_count(self) -> int:
        """The number of devices in all node groups."""
        return sum(island.device_count for island in self.islands)

    def join_node_groups(self, numbers: tuple[int, ...]) -> NodeGroup:
        """Return the node groups with these numbers joined as one, in this order; a single one is returned as it is."""
        if len(numbers) == 1:
            return self.islands[numbers[0]]
        if numbers not in self._joined:
            parts = tuple(self.islands[number] for number in numbers)
            self._joined[numbers] = NodeGroup(
                sum(part.nodes for part in parts),
                min(part.per_node for part in parts),
                _weakest([part.device for part in parts]),
                min(part.network for part in parts),
                max(part.link_latency for part in parts),
                max(part.network_latency for part in parts),
                parts,
                self.join_node_groups(numbers[:-1]),
                self.between,
                self.between_latency,
            )
        return self._joined[numbers]

    def node_groups_of_devices(self, first: int, devices: int) -> NodeGroup:
        """Return the node group that so many devices from `first` on are in, or all groups that they span, joined."""
        ends = self.node_group_number(first), self.node_group_number(first + max(1, devices) - 1)
        return self.join_node_groups(tuple(range(ends[0], ends[1] + 1)))

    def link_between(self, source: NodeGroup, target: NodeGroup) -> tuple[float, float] | None:
        """Return bytes per second of a device and seconds of a message between two node groups, each of which may be a
        joined one; None if they are the same."""
        return None if source is target else (self.between, self.between_latency)

    def node_group_number(self, first: int) -> int:
        """Return the number of the node group of a device; devices are numbered through all groups."""
        for number, island in enumerate(self.islands):
            if first < island.device_count:
                return number
            first -= island.device_count
        raise IndexError(f"the cluster has {self.device_count} devices")

    def node_group_of_node(self, node: int) -> NodeGroup:
        """Return the node group of a node; nodes are numbered through all groups."""
        for island in self.islands:
            if node < island.nodes:
                return island
            node -= island.nodes
        raise IndexError(f"the cluster has {sum(island.nodes for island in self.islands)} nodes")

    def node_of_device(self, device: int) -> int:
        """Return the number of the node of a device; both are numbered through all groups."""
        before = 0
        for island in self.islands:
            if device < island.device_count:
                return before + device // island.per_node
            device, before = device - island.device_count, before + island.nodes
        raise IndexError(f"the cluster has {self.device_count} devices")


def _weakest(devices: Sequence[Device]) -> Device:
    """Return a device with the worst of each number of some devices, and the highest price."""
    dtypes = dict.fromkeys(dtype for device in devices for dtype, _ in device.flops)
    bandwidth = min(device.stream_bandwidth for device in devices)
    return Device(
        " and ".join(dict.fromkeys(device.name for device in devices)),
        min(device.memory for device in devices),
        tuple((dtype, min(device.matmul_flops(dtype) for device in devices)) for dtype in dtypes),
        bandwidth,
        min(device.link for device in devices),
        min(device.network for device in devices),
        min(device.host for device in devices),
        max(device.price for device in devices),
        host_memory=min(device.host_memory for device in devices),
        attention=min(device.attention for device in devices),
        plain_attention=min(device.plain_attention for device in devices),
        weight_stream=min(device.weight_bandwidth for device in devices) / bandwidth,
        cache_stream=min(device.cache_bandwidth for device in devices) / bandwidth,
        product_latency=max(device.product_latency for device in devices),
        attention_latency=max(device.attention_latency for device in devices),
    )
