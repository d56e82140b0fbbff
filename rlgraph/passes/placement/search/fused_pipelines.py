"""Trainings that share the pipeline of a pool: which of a plan's can, what they take together, and a bound of that.

A search bounds with what no lists can beat (`rlgraph.passes.cost.fused_pipelines.lower_bound_seconds`), and compares by
lists that are quick to make. The seconds of the lists that ranks make are computed for the plan that was found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations, product
from math import inf

from rlgraph.ops.nodes import NODES
from rlgraph.passes.cost.constants import Constants
from rlgraph.passes.cost.fused_pipelines import PipelineTraining, fused_pipeline
from rlgraph.passes.memo import get_or_compute
from rlgraph.passes.placement.search.components import Component
from rlgraph.passes.placement.search.option import Option

_ALIKE = 1 / 4 + 2 / 3
"""The least share of the seconds of a micro-batch that a micro-batch which is no shorter waits for another one."""

Pieces = tuple[tuple[int, ...], ...]
"""The components of each pipeline."""

Others = tuple[float, float]
"""The other components that one may share a pipeline with: the least seconds for which they have stages wait, or which
they take beyond their least; and the sum of their least seconds."""

Taken = Callable[[Sequence[PipelineTraining]], float]
"""Returns the seconds of trainings in one pipeline."""


def exact_pipeline_seconds(trainings: Sequence[PipelineTraining]) -> float:
    """Return the seconds of trainings in one pipeline by the lists that ranks make."""
    return fused_pipeline(trainings).cost.seconds


@dataclass(frozen=True)
class PipelineSharing:
    """The trainings of one problem that may share pipelines."""

    components: Sequence[Component]
    partners: Mapping[int, frozenset[int]]
    """For each component that may share its pipeline, the components whose training it may share it with."""
    training: Mapping[int, int]
    """For each of these the index of its training among its tasks."""
    constants: Constants
    _sharings: dict[tuple[tuple[int, ...], ...], tuple[Pieces, ...]] = field(default_factory=dict)
    _taken: dict[tuple[object, ...], float] = field(default_factory=dict)
    """Cached results of `pipeline_seconds`."""

    def possible_pipeline_sharings(self, pools: Sequence[Sequence[int]]) -> tuple[Pieces, ...]:
        """Return all ways in which trainings of some pools may share pipelines, without the one in which none do."""
        key = tuple(map(tuple, pools))
        if key not in self._sharings:
            ways = [list(self._ways([number for number in numbers if number in self.partners])) for numbers in pools]
            self._sharings[key] = tuple(
                filter(None, (tuple(chain.from_iterable(combination)) for combination in product(*ways)))
            )
        return self._sharings[key]

    def _ways(self, numbers: Sequence[int]) -> Iterator[Pieces]:
        """Yield the ways for the trainings of one pool."""
        if not numbers:
            yield ()
            return
        first, *rest = numbers
        for count in range(len(rest) + 1):
            for others in combinations(rest, count):
                piece = (first, *others)
                if all(other in self.partners[number] for number, other in combinations(piece, 2)):
                    for more in self._ways([number for number in rest if number not in others]):
                        yield (piece, *more) if others else more

    def can_share_pipeline(self, room: float, piece: Sequence[int], chosen: Sequence[Option]) -> bool:
        """Return whether trainings of a pool can share a pipeline: whether they have the same mesh, and there is room
        for micro-batches in flight, those of the fullest and half of those of the others, which is about what is there
        where none has to wait. room: bytes besides what stays."""
        first, active = chosen[piece[0]], [chosen[number].active[self.training[number]] for number in piece]
        same_mesh = all(
            chosen[number].can_share_stages and chosen[number].split.pipeline_key == first.split.pipeline_key
            for number in piece
        )
        return same_mesh and (max(active) + sum(active)) / 2 <= room

    def least_shared_seconds(self, number: int, option: Option, others: Others | None) -> Sequence[float]:
        """Return the least seconds of the tasks of an option that shares its pipeline, no more than if it does not.
        others: those that it may share it with, where the seconds that all of them wait together are counted for this
        one."""
        training, seconds = self.training[number], [least for least, *_ in option.least_pipeline_seconds]
        if others:
            waits, least = others
            seconds[training] = max(
                seconds[training] + min(waits, self._wait(number, option)), option.seconds[training] - least
            )
            seconds[training] = min(seconds[training], option.seconds[training])
        return seconds

    def least_partner_seconds(self, options: Mapping[int, Sequence[Option]]) -> Others:
        """Return the least seconds that components that share a pipeline with one wait alone, and the least sum of
        their seconds. options: those of one mesh."""
        waits, total = inf, 0.0
        for number, candidates in options.items():
            training = self.training[number]
            least = min(option.least_pipeline_seconds[training][0] for option in candidates)
            waits, total = (
                min(
                    waits,
                    *(
                        option.least_pipeline_seconds[training][0] - least + self._wait(number, option)
                        for option in candidates
                    ),
                ),
                total + least,
            )
        return waits, total

    def _wait(self, number: int, option: Option) -> float:
        """Return the seconds that a stage in the middle waits for the first micro-batch of a pipeline, and those behind
        it for its last one, if none is shorter than an option's. The forward of another model whose micro-batch is as
        long may be a quarter of it, where this one's is a third (`TaskModel.least_pipeline_seconds`)."""
        _, _, forward, backward = option.least_pipeline_seconds[self.training[number]]
        deployment = option.strategy.deployment
        return (deployment.pp - 1) // 2 * (forward + backward) / deployment.chunks_per_stage * _ALIKE

    def component_task_seconds(
        self, chosen: Sequence[Option], pieces: Pieces, taken: Taken = exact_pipeline_seconds
    ) -> dict[int, Sequence[float]]:
        """Return the seconds of each component's tasks. taken: what trainings take together."""
        seconds: dict[int, Sequence[float]] = {number: option.seconds for number, option in enumerate(chosen)}
        for piece in pieces:
            seconds |= self.shared_task_seconds(piece, chosen, taken)
        return seconds

    def shared_task_seconds(
        self, piece: Sequence[int], chosen: Mapping[int, Option] | Sequence[Option], taken: Taken
    ) -> dict[int, Sequence[float]]:
        """Return the seconds of the tasks of those that share a pipeline: their trainings count one after the other,
        each with its share of what all take. What they wait together is divided among them in proportion to how long
        they wait alone: as long as all take no longer than one after the other, none takes longer."""
        filled = [chosen[number].least_pipeline_seconds[self.training[number]][0] for number in piece]
        waits = [
            chosen[number].seconds[self.training[number]] - working
            for number, working in zip(piece, filled, strict=True)
        ]
        wait, seconds = (
            max(0.0, self.pipeline_seconds(piece, chosen, taken) - sum(filled)),
            dict[int, Sequence[float]](),
        )
        for number, working, waiting in zip(piece, filled, waits, strict=True):
            task_seconds = list(chosen[number].seconds)
            task_seconds[self.training[number]] = working + wait * waiting / sum(waits)
            seconds[number] = task_seconds
        return seconds

    def pipeline_seconds(
        self, piece: Sequence[int], chosen: Mapping[int, Option] | Sequence[Option], taken: Taken
    ) -> float:
        """Return the seconds of trainings in one pipeline, times how often they are done."""
        key = (taken, *(chosen[number] for number in piece))
        return get_or_compute(self._taken, key, lambda: self._together(piece, chosen, taken))

    def _together(self, piece: Sequence[int], chosen: Mapping[int, Option] | Sequence[Option], taken: Taken) -> float:
        trainings, request_seconds, all_rows_s, times = [], [], 0.0, 1.0
        for place, number in enumerate(piece):
            option, training = chosen[number], self.training[number]
            task, times = option.strategy.tasks[training], option.often[training]
            trainings.append(
                task.pipeline_training(self.components[number].config, option.copies, turned=place % 2 == 1)
            )
            request_s, rows_s = task.request_and_arrival_seconds(option.copies)
            request_seconds.append(request_s)
            all_rows_s += rows_s
        return times * (taken(trainings) + max(request_seconds) + all_rows_s)


def make_pipeline_sharing(
    components: Sequence[Component], pairs: Sequence[frozenset[str]], tasks: Sequence[str], constants: Constants
) -> PipelineSharing:
    """Return the trainings of a problem that may share pipelines. pairs: models whose trainings may. tasks: the
    operation of each task."""
    trained = {component.model_name: number for number, component in enumerate(components) if component.work == "train"}
    places = {
        number: [index for index, task in enumerate(components[number].tasks) if NODES[tasks[task]].trains]
        for number in trained.values()
    }
    once = {number: indexes[0] for number, indexes in places.items() if len(indexes) == 1}
    partners: dict[int, set[int]] = {}
    for pair in pairs:
        numbers = {trained[model] for model in pair if model in trained}
        if len(numbers) == 2 and numbers <= once.keys():
            for number in numbers:
                partners.setdefault(number, set()).update(numbers - {number})
    frozen = {number: frozenset(others) for number, others in partners.items()}
    return PipelineSharing(components, frozen, {number: once[number] for number in frozen}, constants)
