"""What carries a message from one process to another: decided from where the two have it, and from nothing else."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Site:
    """Where a process has the tensors that travel."""

    kind: str
    """Of its device, as torch names it: `cpu`, `cuda`."""
    device: Hashable
    """Which one."""
    machine: Hashable
    """Those that say the same can map each other's memory."""
    process: Hashable


@dataclass(frozen=True, slots=True)
class Carrier:
    """A way that messages take between two processes."""

    name: str
    about: str
    carries: Callable[[Site, Site], bool]
    """Whether it can, between these."""


def _map(one: Site, other: Site) -> bool:
    near = one.machine == other.machine and one.kind == other.kind
    # A process cannot open its own handle of a device's memory; of a host's it can.
    return near and (one.kind == "cpu" or (one.device == other.device and one.process != other.process))


def _apart(one: Site, other: Site) -> bool:
    return one.kind == other.kind == "cuda" and one.device != other.device and one.process != other.process


SHARED = Carrier("shared", "memory that both have mapped: of a machine among CPUs, of a GPU by CUDA IPC", _map)
NCCL = Carrier("nccl", "from GPU to GPU", _apart)
GLOO = Carrier("gloo", "over the network, from and into the memory of the hosts", lambda one, other: True)

CARRIERS = (SHARED, NCCL, GLOO)
"""The first one that can carries."""


def carrier(one: Site, other: Site) -> str:
    """Its name."""
    return next(each.name for each in CARRIERS if each.carries(one, other))


@dataclass(frozen=True)
class Ways:
    """What a place has to know of how its messages go."""

    carriers: Mapping[int, str] = field(default_factory=dict)
    """By peer; to and from all others gloo."""
    clubs: tuple[tuple[int, ...], ...] = ()
    """Places that make one communicator of GPUs with this one, in an order that all places have in common."""
    what: str = "weights"
    """What travels, for messages."""
    names: Mapping[int, str] = field(default_factory=dict)
    """Of this place and its peers, for messages."""

    def name(self, place: int) -> str:
        return self.names.get(place, f"place {place}")


def ways(
    pairs: Iterable[tuple[int, int]], sites: Mapping[int, Site], what: str, names: Mapping[int, str]
) -> dict[int, Ways]:
    """For each place that has a name how its messages go, and those of its peers to it. sites: of those of which it is
    known."""
    carriers: dict[int, dict[int, str]] = {place: {} for place in names}
    for one, other in pairs:
        known = one in sites and other in sites
        found = carrier(sites[one], sites[other]) if known else GLOO.name
        carriers[one][other] = carriers[other][one] = found
    clubs = _clubs(carriers, sites)
    return {
        place: Ways(
            peers, tuple(club for club in clubs if place in club), what, {each: names[each] for each in (place, *peers)}
        )
        for place, peers in carriers.items()
    }


def _clubs(carriers: Mapping[int, Mapping[int, str]], sites: Mapping[int, Site]) -> list[tuple[int, ...]]:
    """One for all who exchange something so. No communicator takes two processes of one GPU: then one for each pair."""
    pairs = sorted(
        {
            (min(one, other), max(one, other))
            for one, peers in carriers.items()
            for other, name in peers.items()
            if name == NCCL.name
        }
    )
    members = sorted({place for pair in pairs for place in pair})
    alone = len({sites[place].device for place in members}) == len(members)
    return [tuple(members)] if members and alone else [*pairs]
