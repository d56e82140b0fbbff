"""Chooses what carries messages between two processes, only from where the two have their tensors."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TensorSite:
    """The place of a process's tensors that are sent or received."""

    kind: str
    """The type of its device, as in torch: `cpu`, `cuda`."""
    device: Hashable
    """Identifies the device."""
    machine: Hashable
    """Identifies the machine: processes with equal ones can map each other's memory."""
    process: Hashable


@dataclass(frozen=True, slots=True)
class MessageCarrier:
    """A means of sending messages between two processes."""

    name: str
    about: str
    carries: Callable[[TensorSite, TensorSite], bool]
    """Returns whether it works between two sites."""


def _mappable(a: TensorSite, b: TensorSite) -> bool:
    same_machine = a.machine == b.machine and a.kind == b.kind
    # A process cannot open its own handle of a device's memory, but it can open that of host memory.
    return same_machine and (a.kind == "cpu" or (a.device == b.device and a.process != b.process))


def _different_gpus(a: TensorSite, b: TensorSite) -> bool:
    return a.kind == b.kind == "cuda" and a.device != b.device and a.process != b.process


SHARED = MessageCarrier(
    "shared", "memory that both have mapped: of a machine among CPUs, of a GPU by CUDA IPC", _mappable
)
NCCL = MessageCarrier("nccl", "from GPU to GPU", _different_gpus)
GLOO = MessageCarrier("gloo", "over the network, from and into the memory of the hosts", lambda a, b: True)

CARRIERS = (SHARED, NCCL, GLOO)
"""All carriers in order of preference: the first that works is taken."""


def carrier_between(one: TensorSite, other: TensorSite) -> str:
    """Return the name of the carrier between two sites."""
    return next(way.name for way in CARRIERS if way.carries(one, other))


@dataclass(frozen=True)
class PeerCarriers:
    """What one place has to know about the carriers of its messages."""

    carriers: Mapping[int, str] = field(default_factory=dict)
    """The carrier to and from each peer; for peers not in it, gloo."""
    clubs: tuple[tuple[int, ...], ...] = ()
    """The groups of places that share an NCCL communicator with this one, in an order that is the same on all
    places."""
    what: str = "weights"
    """What is sent, for messages to the user."""
    names: Mapping[int, str] = field(default_factory=dict)
    """Names of this place and its peers, for messages to the user."""

    def place_name(self, place: int) -> str:
        """Return how messages to the user call a place."""
        return self.names.get(place, f"place {place}")


def peer_carriers(
    pairs: Iterable[tuple[int, int]], sites: Mapping[int, TensorSite], what: str, names: Mapping[int, str]
) -> dict[int, PeerCarriers]:
    """Return for each named place the carriers of the messages from and to its peers. sites: those of the places of
    which they are known."""
    carriers: dict[int, dict[int, str]] = {place: {} for place in names}
    for one, other in pairs:
        sites_known = one in sites and other in sites
        name = carrier_between(sites[one], sites[other]) if sites_known else GLOO.name
        carriers[one][other] = carriers[other][one] = name
    clubs = _clubs(carriers, sites)
    return {
        place: PeerCarriers(
            peers,
            tuple(club for club in clubs if place in club),
            what,
            {member: names[member] for member in (place, *peers)},
        )
        for place, peers in carriers.items()
    }


def _clubs(carriers: Mapping[int, Mapping[int, str]], sites: Mapping[int, TensorSite]) -> list[tuple[int, ...]]:
    """Return one communicator for all places that use NCCL, or one for each pair where two of them share a GPU, which
    no communicator takes."""
    pairs = sorted(
        {
            (min(source, destination), max(source, destination))
            for source, peers in carriers.items()
            for destination, name in peers.items()
            if name == NCCL.name
        }
    )
    members = sorted({place for pair in pairs for place in pair})
    one_per_gpu = len({sites[place].device for place in members}) == len(members)
    return [tuple(members)] if members and one_per_gpu else [*pairs]
