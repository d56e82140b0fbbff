"""The ways to take a step's work apart into what is placed as one, and a bound for all of them at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from rlgraph.passes.placement.search.bounds import Bounds, Candidates, Choices, least
from rlgraph.passes.placement.search.incumbent import Incumbent
from rlgraph.passes.placement.search.problem import Blocks, Problem


@dataclass(frozen=True)
class Ways:
    """One problem for each set of models that are read apart from their training."""

    problems: Sequence[Problem]
    """That of no model first, that of all of them last."""

    @property
    def parted(self) -> Problem:
        """All of them are read apart."""
        return self.problems[-1]

    @property
    def readers(self) -> list[int]:
        """Components of the parted problem that are parts of others in some ways."""
        return [number for number, each in enumerate(self.parted.components) if each.apart == "chosen" and each.brought]

    def translated(self, way: int, blocks: Blocks) -> Blocks:
        """A partition of the parted problem without its readers, as one of another way."""
        other, parted = self.problems[way], self.parted.components
        numbers = [other.own[each.model, each.operations[-1]] for each in parted]
        return tuple(
            replace(block, components=tuple(sorted(numbers[each] for each in block.components))) for block in blocks
        )


class _Open(Problem):
    """A parted problem whose readers may as well train: then they wait for no weights, however steps overlap."""

    @cached_property
    def cycles(self) -> list[dict[int, list[int]]]:
        return []


class Undecided(Bounds):
    """Bounds of partitions of the parted problem without its readers, that hold for all ways: these read beside all
    else, with weights that are there, as fast as they could anywhere, apart from training or with it."""

    def __init__(self, ways: Ways, incumbent: Incumbent) -> None:
        super().__init__(_Open(*ways.parted.given), incumbent, -1)
        self._whole = ways.problems[0]
        self._joined: dict[Candidates, Sequence[float]] = {}

    def soonest(
        self, source: int, target: int, choices: Choices, home: Mapping[int, int]
    ) -> tuple[float, Sequence[float]]:
        if target in home:
            return super().soonest(source, target, choices, home)
        # Apart it has to wait for weights; with the training it need not.
        sync, apart = super().soonest(source, target, choices, home)
        joined = self.joined(target, choices[target])
        return 0.0, [
            min(own + sync * (at == 0), other) for at, (own, other) in enumerate(zip(apart, joined, strict=True))
        ]

    def joined(self, number: int, anywhere: Candidates) -> Sequence[float]:
        """The least seconds of a reader's tasks with its training, on as many devices."""
        if anywhere not in self._joined:
            reader, joined, whole = self.problem.components[number], self.problem.cluster.joined, self._whole
            together = whole.components[whole.own[reader.model, reader.operations[0]]]
            places = [together.tasks.index(task) for task in reader.tasks]
            found = [
                [option.seconds[at] for at in places]
                for at, devices in anywhere.devices
                for option in whole.options.of(together, joined(at), devices)
            ]
            self._joined[anywhere] = least(found) if found else [math.inf] * len(places)
        return self._joined[anywhere]

    def waits(self, number: int, home: Mapping[int, int]) -> bool:
        return number in home
