"""The ways to decompose a step's work into what is placed as one, and a bound for all of them at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from rlgraph.passes.placement.search.bounds import Bounds
from rlgraph.passes.placement.search.candidates import Candidates, Choices
from rlgraph.passes.placement.search.colocation import Blocks
from rlgraph.passes.placement.search.components import Component
from rlgraph.passes.placement.search.incumbent import Incumbent
from rlgraph.passes.placement.search.problem import PlacementProblem


@dataclass(frozen=True)
class Decompositions:
    """The problems to be searched together: one for each set of models that are read separately from their training."""

    problems: Sequence[PlacementProblem]
    """The problem in which no model is read separately first, the one in which all of them are last."""

    @property
    def fully_split_problem(self) -> PlacementProblem:
        """The problem in which all of these models are read separately."""
        return self.problems[-1]

    @property
    def reader_components(self) -> list[int]:
        """The components of the parted problem that are parts of others in some ways."""
        return [number for number, component in enumerate(self.fully_split_problem.components) if _is_reader(component)]

    def translate_partition(self, way: int, blocks: Blocks) -> Blocks:
        """Return a partition of the parted problem without its readers as one of another way."""
        target, components = self.problems[way], self.fully_split_problem.components
        numbers = [
            target.component_of_operation[component.model_name, component.operations[-1]] for component in components
        ]
        return tuple(
            replace(block, components=tuple(sorted(numbers[number] for number in block.components))) for block in blocks
        )

    def without_readers(self, way: int, blocks: Blocks) -> Blocks:
        """Return a partition of one way without the components that are parts of others in some ways."""
        components = self.problems[way].components
        parts = [tuple(number for number in block.components if not _is_reader(components[number])) for block in blocks]
        return tuple(replace(block, components=part) for block, part in zip(blocks, parts, strict=True))


def _is_reader(component: Component) -> bool:
    """Return whether a component reads separately from its training since a search tries that."""
    return component.separated_by == "chosen" and component.receives_weights


class _Open(PlacementProblem):
    """A parted problem whose readers may also train: then they wait for no weights, however steps overlap."""

    @cached_property
    def cycles_across_steps(self) -> list[dict[int, list[int]]]:
        return []


class DecompositionBounds(Bounds):
    """Bounds of partitions of the parted problem without its readers that hold for all ways: the readers run at the
    same time as everything else, with weights that are there, as fast as they could anywhere, separate from training or
    with it."""

    counts_memory = False

    def __init__(self, ways: Decompositions, incumbent: Incumbent) -> None:
        super().__init__(_Open(*ways.fully_split_problem.constructor_arguments), incumbent, -1)
        self._undivided = ways.problems[0]
        self._with_training: dict[Candidates, Sequence[float]] = {}

    def fastest_sync_seconds(
        self, source: int, target: int, choices: Choices, home: Mapping[int, int]
    ) -> tuple[float, Sequence[float]]:
        if target in home:
            return super().fastest_sync_seconds(source, target, choices, home)
        # A separate reader has to wait for weights; one with the training need not.
        sync, separate = super().fastest_sync_seconds(source, target, choices, home)
        joined = self.seconds_with_training(target, choices[target])
        return 0.0, [
            min(separate_s + sync * (task == 0), joined_s)
            for task, (separate_s, joined_s) in enumerate(zip(separate, joined, strict=True))
        ]

    def seconds_with_training(self, number: int, anywhere: Candidates) -> Sequence[float]:
        """Return the least seconds of a reader's tasks when it runs with its training, on as many devices."""
        if anywhere not in self._with_training:
            reader, islands_of, undivided = (
                self.problem.components[number],
                self.problem.cluster.join_node_groups,
                self._undivided,
            )
            together = undivided.components[undivided.component_of_operation[reader.model_name, reader.operations[0]]]
            # That others of the same pool read is counted as apart.
            taken = [
                undivided.options.least_task_seconds(together, islands_of(islands), devices)
                for islands, devices in anywhere.devices
            ]
            self._with_training[anywhere] = [
                min([seconds.get(task, math.inf) for seconds in taken]) for task in reader.tasks
            ]
        return self._with_training[anywhere]

    def may_wait_for_weights(self, number: int, home: Mapping[int, int]) -> bool:
        return number in home
