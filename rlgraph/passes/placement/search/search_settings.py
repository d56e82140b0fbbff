"""What a search may do with every component, beside what the schedule says of one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class SearchSettings:
    """What options a search makes of components."""

    engines: Sequence[str]
    """Those that may be chosen where the schedule names none."""
    offload: bool = True
    """Whether models may be in the host's memory while they are not at work."""
    apart: bool = False
    """Whether rows may travel between node groups, where more replicas have more links."""
    streams: bool = False
    """Whether rows may come to a training while others are made, and gradients are added up meanwhile."""
    fuses: Collection[str] = ()
    """Models whose training may share a pipeline."""
    host_optimizer: bool = False
    """Whether optimizers may keep their state in the host's memory where no line says so."""
    said_host_optimizer: bool = False
    """Whether the schedule has an optimizer keep its state there."""

    @property
    def hosts(self) -> bool:
        """Whether anything may be in the hosts' memory."""
        return self.offload or self.host_optimizer or self.said_host_optimizer

    def has_same_strategies(self, other: SearchSettings) -> bool:
        """Return whether the strategies are those of other settings, whichever of them are offloaded."""
        return self == replace(other, offload=self.offload, said_host_optimizer=self.said_host_optimizer)
