"""Adds up the seconds of work by what they are spent on."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    """The seconds of some work, by what they are spent on."""

    compute: float = 0.0
    memory: float = 0.0
    """Seconds of waiting for the device's own memory."""
    communication: float = 0.0
    bubble: float = 0.0
    """Seconds in which the stages of a pipeline wait for each other."""
    overhead: float = 0.0
    """Seconds of calls, launches, and work for each row."""
    environment: float = 0.0
    """Seconds in which nothing is done, until environments answer."""

    @property
    def seconds(self) -> float:
        """Return the sum of all parts."""
        return self.compute + self.memory + self.communication + self.bubble + self.overhead + self.environment

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.compute + other.compute,
            self.memory + other.memory,
            self.communication + other.communication,
            self.bubble + other.bubble,
            self.overhead + other.overhead,
            self.environment + other.environment,
        )

    def scaled(self, factor: float) -> Cost:
        """Return the cost multiplied by the factor."""
        return Cost(
            self.compute * factor,
            self.memory * factor,
            self.communication * factor,
            self.bubble * factor,
            self.overhead * factor,
            self.environment * factor,
        )

    @classmethod
    def weighted_sum(cls, parts: Collection[tuple[Cost, float]]) -> Cost:
        """Return the sum of costs, each multiplied by its factor."""
        return cls(
            sum(cost.compute * factor for cost, factor in parts),
            sum(cost.memory * factor for cost, factor in parts),
            sum(cost.communication * factor for cost, factor in parts),
            sum(cost.bubble * factor for cost, factor in parts),
            sum(cost.overhead * factor for cost, factor in parts),
            sum(cost.environment * factor for cost, factor in parts),
        )
