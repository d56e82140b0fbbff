"""Options of a component any of which may be chosen, with what bounds ask of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

import numpy as np

from rlgraph.passes.placement.search.dominance import undominated_ends, undominated_in_pipeline
from rlgraph.passes.placement.search.option import Option
from rlgraph.passes.placement.search.strategy import Ranks

Devices = tuple[tuple[tuple[int, ...], int], ...]
"""Node groups, one or several joined into one, with the most devices there."""


class Candidates:
    """Options of one component, any of which may be chosen: fastest first, at least one. What bounds ask of them is
    computed once."""

    def __init__(self, options: Sequence[Option], devices: Devices = ()) -> None:
        """devices: where these are all options that there may be."""
        self.options, self.devices = options, devices
        self.brought: dict[tuple[Candidates, bool], tuple[float, Sequence[float]]] = {}
        """The transfers of weights from these to others, which may share their pool."""
        self.fastest: dict[tuple[object, ...], float] = {}
        """The fastest of these to one split of another component, which may share their pool."""
        self.arrivals: dict[tuple[object, ...], tuple[float, ...]] = {}
        """When weights of one split of another component, which may share their pool, have come to these."""
        self.costs: dict[object, np.ndarray] = {}
        """The seconds of each with what its bytes are worth, by each knapsack."""

    @cached_property
    def least_task_seconds(self) -> Sequence[float]:
        """The least seconds of each task."""
        return (
            self.options[0].seconds
            if len(self.options) == 1
            else column_minima([option.seconds for option in self.options])
        )

    @cached_property
    def most_replicas(self) -> int:
        """The largest number of replicas of an option."""
        return max(option.copies for option in self.options)

    @cached_property
    def least_on_host(self) -> Option:
        """The option that puts the fewest bytes into a host's memory."""
        return min(self.options, key=attrgetter("host"))

    @cached_property
    def needed_bytes(self) -> np.ndarray:
        """What each option needs at its fullest moment, what stays, and what it puts into a host's memory: bytes
        [3, options]."""
        return np.array([[option.peak, option.resident, option.host] for option in self.options]).T

    @cached_property
    def columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of each option the seconds of each task [options, tasks], the bytes that stay, and the most that it needs in
        addition [options]."""
        return (
            np.array([option.seconds for option in self.options]),
            np.array([option.resident for option in self.options]),
            np.array([max(option.active, default=0.0) for option in self.options]),
        )

    @cached_property
    def have_fixed_caches(self) -> bool:
        """Whether each option has one cache, or none."""
        return all(option.has_fixed_cache for option in self.options)

    @cached_property
    def candidates_by_split(self) -> Sequence[Candidates]:
        """The options in groups whose splits are equal for transfers of weights, which do not depend on the rest."""
        groups: dict[tuple[object, ...], list[Option]] = {}
        for option in self.options:
            groups.setdefault(option.split.weights, []).append(option)
        return [self] if len(groups) == 1 else [Candidates(group) for group in groups.values()]

    @cached_property
    def quickest_ends(self) -> Sequence[Option]:
        """One option of each split from which, or to which, weights may come faster than with any other of these."""
        return undominated_ends([split.options[0] for split in self.candidates_by_split])


Choices = Mapping[int, Candidates]
"""The candidates of each component."""


class SharedPipelineOptions:
    """Options of one split of a component that shares its pipeline with others."""

    def __init__(self, options: Sequence[Option], seconds: Sequence[Sequence[float]]) -> None:
        """seconds: the least seconds of the tasks of each option."""
        self.options, self.seconds = options, seconds
        self.least = column_minima(seconds)
        """The least seconds of each task."""

    @cached_property
    def fastest_option(self) -> Option:
        """An option that none of them beats at any task."""
        return self.options[0].with_pipeline_seconds(self.least)

    @cached_property
    def undominated_candidates(self) -> Candidates:
        """The options that no other one dominates, each with its least seconds."""
        seconds_of = dict(zip(self.options, self.seconds, strict=True))
        lasting = [option.with_pipeline_seconds(seconds_of[option]) for option in undominated_in_pipeline(self.options)]
        return Candidates(sorted(lasting, key=attrgetter("order")))


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """The options of the components of one pool."""

    choices: Choices
    unshared: Choices
    """The options where no training shares its pipeline with another one."""
    shared: Mapping[int, Mapping[Ranks, SharedPipelineOptions]]
    """For components that may share their pipeline, the options where they do, by how all of a pipeline are split."""


def column_minima(rows: Sequence[Sequence[float]]) -> list[float]:
    """Return the least value of each column."""
    return [min(column) for column in zip(*rows, strict=True)]
