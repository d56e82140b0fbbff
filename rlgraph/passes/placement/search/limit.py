"""What a plan that beats the best one allows the options of a component to take."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from rlgraph.passes.placement.search.option import Option


class Limit(NamedTuple):
    """What a plan that is good enough allows an option to take."""

    value: float
    """Of plans, from which on they are not good enough."""
    besides_s: float = 0.0
    """Seconds of a step in which a component does nothing."""
    dollars: float = 0.0
    """Of a device for a second, where the price of a step is minimized."""
    shares: bool = False
    """Whether a component may share its pipeline with others."""

    def seconds_left(self, option: Option) -> float:
        """Return the seconds that a plan may take besides an option, on the devices that this needs at least."""
        own = sum(option.least_seconds) if self.shares else option.total
        return self.seconds_left_of(own, option.device_span if self.dollars else 1)

    def seconds_left_of(self, own_s: float, devices: int) -> float:
        """Return the seconds that a plan may take besides something that takes so long on so many devices."""
        return self.value / (self.dollars * devices if self.dollars else 1.0) - self.besides_s - own_s


NO_LIMIT = Limit(inf)
