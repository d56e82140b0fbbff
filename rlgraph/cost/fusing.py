"""What trainings take that share the stages of one pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlgraph.cost.deployment import Deployment, ModelConfig
from rlgraph.cost.time import Cost, LatencyModel
from rlgraph.pipelines.bounds import least_seconds, serial_seconds
from rlgraph.pipelines.counted import counted
from rlgraph.pipelines.fuse import drawn
from rlgraph.pipelines.problem import Model, Problem
from rlgraph.pipelines.timetable import Lists, Timetable, timetable


@dataclass(frozen=True, slots=True)
class Training:
    """Of one model, on the copy that has most rows."""

    name: str
    config: ModelConfig
    deployment: Deployment
    passes: LatencyModel
    rows: float
    update: Cost
    """The optimizer's step."""
    turned: bool = False
    """Its first stage is the last one of the others."""

    @property
    def micro_batches(self) -> int:
        return round(self.passes.turns(self.own))

    @property
    def own(self) -> float:
        return self.passes.own(self.rows)

    @property
    def busy(self) -> Cost:
        """What a stage works."""
        return self.passes.row.times(self.own) + self.passes.block.times(self.micro_batches)

    @property
    def late(self) -> float:
        """Seconds that the longest micro-batch takes longer than others, on all stages but one: the lists have
        micro-batches that are alike."""
        turn = self.busy.seconds / self.micro_batches
        return self.passes.bubble(turn) - (self.deployment.pp - 1) * turn

    @property
    def counted(self) -> Model:
        """As ranks count, who make the lists."""
        config, how = self.config, self.deployment
        known = counted(
            config.shape, config.kind, how.pp, self.micro_batches, recompute=how.recompute, turned=self.turned
        )
        return known

    @property
    def predicted(self) -> Model:
        known, turn = self.counted, self.busy.seconds / self.micro_batches
        forward = turn * known.forward / (known.forward + known.backward)
        return replace(known, name=self.name, forward=forward, backward=turn - forward)


@dataclass(frozen=True, slots=True)
class Fusion:
    """The lists that ranks follow, in the seconds that are predicted."""

    problem: Problem
    lists: Lists
    table: Timetable
    cost: Cost
    """Until all have taken their steps."""
    in_flight: tuple[tuple[int, int], ...]
    """Of each model the most micro-batches on any of its stages but the last, and on the last."""
    bound: float
    """Seconds that no lists can beat, without the optimizers' steps."""
    in_turn: float
    """Seconds of one training after the other, each by 1F1B, without the optimizers' steps."""


def fusion(trainings: Sequence[Training]) -> Fusion:
    """Trainings that begin together. All have rows."""
    lists = drawn(Problem(tuple(each.counted for each in trainings)))
    problem = Problem(tuple(each.predicted for each in trainings))
    table, busy = timetable(problem, lists), sum((each.busy for each in trainings), Cost())
    waits = max(0.0, table.makespan - busy.seconds) + max(each.late for each in trainings)
    rest = sum((each.update + Cost(overhead=each.passes.call) for each in trainings), Cost())
    return Fusion(
        problem,
        lists,
        table,
        busy + Cost(bubble=waits) + rest,
        tuple(_in_flight(problem, lists, number) for number in range(len(trainings))),
        least_seconds(problem),
        serial_seconds(problem),
    )


def _in_flight(problem: Problem, lists: Lists, number: int) -> tuple[int, int]:
    """Of a line of a problem."""
    stages, most = problem.lines[number].stages, []
    for stage in stages:
        held = peak = 0
        for line, backward in lists[stage]:
            held += 0 if line != number else -1 if backward else 1
            peak = max(peak, held)
        most.append(peak)
    return max(most[:-1], default=most[-1]), most[-1]
