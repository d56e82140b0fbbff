"""Trainings that share the pipeline of a pool: which of a plan's can, what they take together, and what none can beat.

A search bounds with what no lists can beat (`rlgraph.passes.cost.fusing.least`), and compares by lists that are made at
once. What those take that ranks make is worked out for the plan that was found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations, product
from math import inf

from rlgraph.ops.nodes import NODES
from rlgraph.passes.cost.constants import Constants
from rlgraph.passes.cost.fusing import Training, fusion
from rlgraph.passes.placement.search.components import Component
from rlgraph.passes.placement.search.option import Option

_ALIKE = 1 / 4 + 2 / 3
"""Of the seconds of a micro-batch the least share that one which is no shorter waits for another one."""

Pieces = tuple[tuple[int, ...], ...]
"""The components of each pipeline."""

Others = tuple[float, float]
"""Of those that one may share a pipeline with the seconds for which they have stages wait, or beyond the least that
they add, at least; and these."""

Taken = Callable[[Sequence[Training]], float]
"""Seconds of trainings in one pipeline."""


def exactly(trainings: Sequence[Training]) -> float:
    """By the lists that ranks make."""
    return fusion(trainings).cost.seconds


@dataclass(frozen=True)
class Fusing:
    """Of one problem."""

    components: Sequence[Component]
    partners: Mapping[int, frozenset[int]]
    """For each component that may share its pipeline, with whose training."""
    training: Mapping[int, int]
    """For each of these the place of its training among its tasks."""
    constants: Constants
    _sharings: dict[tuple[tuple[int, ...], ...], tuple[Pieces, ...]] = field(default_factory=dict)
    _taken: dict[tuple[object, ...], float] = field(default_factory=dict)
    """What was worked out."""

    def sharings(self, pools: Sequence[Sequence[int]]) -> tuple[Pieces, ...]:
        """All ways in which trainings of some pools may share pipelines, without that in which none do."""
        key = tuple(map(tuple, pools))
        if key not in self._sharings:
            ways = [list(self._ways([number for number in own if number in self.partners])) for own in pools]
            self._sharings[key] = tuple(filter(None, (tuple(chain.from_iterable(each)) for each in product(*ways))))
        return self._sharings[key]

    def _ways(self, numbers: Sequence[int]) -> Iterator[Pieces]:
        """Of the trainings of one pool."""
        if not numbers:
            yield ()
            return
        first, *rest = numbers
        for count in range(len(rest) + 1):
            for others in combinations(rest, count):
                piece = (first, *others)
                if all(other in self.partners[one] for one, other in combinations(piece, 2)):
                    for more in self._ways([number for number in rest if number not in others]):
                        yield (piece, *more) if others else more

    def fits(self, room: float, piece: Sequence[int], chosen: Sequence[Option]) -> bool:
        """Whether trainings of a pool can share a pipeline: split alike, with room for micro-batches in flight, those
        of the fullest and half of those of the others, which is about what is there where none has to wait. room: bytes
        beside what stays."""
        first, active = chosen[piece[0]], [chosen[number].active[self.training[number]] for number in piece]
        alike = all(chosen[number].fuses and chosen[number].split.ranks == first.split.ranks for number in piece)
        return alike and (max(active) + sum(active)) / 2 <= room

    def least(self, number: int, option: Option, others: Others | None) -> Sequence[float]:
        """The least seconds of the tasks of an option that shares its pipeline, no more than if it does not. others:
        those that it may share it with, where the seconds are its that all of them wait together."""
        at, found = self.training[number], [least for least, *_ in option.filled]
        if others:
            waits, least = others
            found[at] = max(found[at] + min(waits, self._wait(number, option)), option.seconds[at] - least)
            found[at] = min(found[at], option.seconds[at])
        return found

    def others(self, options: Mapping[int, Sequence[Option]]) -> Others:
        """What components are at least to one that they share a pipeline with. options: of one split."""
        waits, sum_ = inf, 0.0
        for number, own in options.items():
            at = self.training[number]
            least = min(each.filled[at][0] for each in own)
            waits, sum_ = (
                min(waits, *(each.filled[at][0] - least + self._wait(number, each) for each in own)),
                sum_ + least,
            )
        return waits, sum_

    def _wait(self, number: int, option: Option) -> float:
        """Seconds that a stage in the middle waits for the first micro-batch of a pipeline, and those behind it for its
        last one, if there are none that are shorter than an option's. The forward of another one that is as long may be
        a quarter of it, where this one's is a third (`TaskModel.filled`)."""
        _, _, forward, backward = option.filled[self.training[number]]
        deployment = option.strategy.deployment
        return (deployment.pp - 1) // 2 * (forward + backward) / deployment.chunks * _ALIKE

    def durations(self, chosen: Sequence[Option], pieces: Pieces, taken: Taken = exactly) -> dict[int, Sequence[float]]:
        """Seconds of each component's tasks. taken: what trainings take together."""
        found: dict[int, Sequence[float]] = {number: option.seconds for number, option in enumerate(chosen)}
        for piece in pieces:
            found |= self.shared(piece, chosen, taken)
        return found

    def shared(
        self, piece: Sequence[int], chosen: Mapping[int, Option] | Sequence[Option], taken: Taken
    ) -> dict[int, Sequence[float]]:
        """Seconds of the tasks of those that share a pipeline: their trainings come one after the other, each with its
        share of what all take. What they wait together is dealt to them by how long they wait alone: as long as all
        take no longer than one after the other, none does."""
        filled = [chosen[number].filled[self.training[number]][0] for number in piece]
        waits = [
            chosen[number].seconds[self.training[number]] - each for number, each in zip(piece, filled, strict=True)
        ]
        wait, found = max(0.0, self.together(piece, chosen, taken) - sum(filled)), dict[int, Sequence[float]]()
        for number, each, alone in zip(piece, filled, waits, strict=True):
            own = list(chosen[number].seconds)
            own[self.training[number]] = each + wait * alone / sum(waits)
            found[number] = own
        return found

    def together(self, piece: Sequence[int], chosen: Mapping[int, Option] | Sequence[Option], taken: Taken) -> float:
        """Seconds of trainings in one pipeline, as often as they are done."""
        key = (taken, *(chosen[number] for number in piece))
        if key not in self._taken:
            self._taken[key] = self._together(piece, chosen, taken)
        return self._taken[key]

    def _together(self, piece: Sequence[int], chosen: Mapping[int, Option] | Sequence[Option], taken: Taken) -> float:
        trainings, orders, rows, often = [], [], 0.0, 1.0
        for place, number in enumerate(piece):
            option, at = chosen[number], self.training[number]
            task, often = option.strategy.tasks[at], option.often[at]
            trainings.append(task.training(self.components[number].config, option.copies, turned=place % 2 == 1))
            order, sent = task.beside(option.copies)
            orders.append(order)
            rows += sent
        return often * (taken(trainings) + max(orders) + rows)


def fusing(
    components: Sequence[Component], pairs: Sequence[frozenset[str]], tasks: Sequence[str], constants: Constants
) -> Fusing:
    """pairs: models whose trainings may share a pipeline. tasks: the operation of each."""
    trained = {each.model: number for number, each in enumerate(components) if each.work == "train"}
    places = {
        number: [at for at, task in enumerate(components[number].tasks) if NODES[tasks[task]].trains]
        for number in trained.values()
    }
    once = {number: own[0] for number, own in places.items() if len(own) == 1}
    partners: dict[int, set[int]] = {}
    for pair in pairs:
        numbers = {trained[model] for model in pair if model in trained}
        if len(numbers) == 2 and numbers <= once.keys():
            for number in numbers:
                partners.setdefault(number, set()).update(numbers - {number})
    kept = {number: frozenset(own) for number, own in partners.items()}
    return Fusing(components, kept, {number: once[number] for number in kept}, constants)
