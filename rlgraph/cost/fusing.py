"""What trainings take that share the stages of one pipeline, or have one of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from math import inf
from operator import ge
from random import Random

from rlgraph.cost.deployment import Deployment, ModelConfig
from rlgraph.cost.time import Cost, LatencyModel
from rlgraph.pipelines.bounds import least_seconds, serial_seconds
from rlgraph.pipelines.counted import counted
from rlgraph.pipelines.dispatch import dispatched, plain, urgent
from rlgraph.pipelines.fuse import drawn
from rlgraph.pipelines.problem import Model, Problem
from rlgraph.pipelines.published import alone
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
        return self.passes.bubble(turn) - self.passes.before * turn

    @property
    def counted(self) -> Model:
        """As ranks count, who make the lists."""
        config, how = self.config, self.deployment
        known = counted(
            config.shape, config.kind, how.pp, self.micro_batches, recompute=how.recompute, turned=self.turned
        )
        return replace(known, chunks=how.chunks)

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
    in_flight: tuple[tuple[tuple[float, float], ...], ...]
    """What a stage has at a time, of each model: micro-batches, if it is not the model's last stage, and if it is.
    Nothing that is no more of each than something else."""
    bound: float
    """Seconds that no lists can beat, without the optimizers' steps."""
    in_turn: float
    """Seconds of one training after the other, each by 1F1B, without the optimizers' steps."""


def fusion(trainings: Sequence[Training]) -> Fusion:
    """Trainings that begin together: one goes by 1F1B, interleaved if it has chunks, several fill each other's bubbles.
    All have rows."""
    counts = [each.counted for each in trainings]
    lists = drawn(Problem(tuple(counts))) if len(counts) > 1 else alone(counts[0])
    problem = Problem(tuple(each.predicted for each in trainings))
    table = timetable(problem, lists)
    return Fusion(
        problem,
        lists,
        table,
        _cost(trainings, table.makespan),
        _in_flight(problem, lists),
        least_seconds(problem),
        serial_seconds(problem),
    )


def least(trainings: Sequence[Training]) -> float:
    """Seconds that no lists can beat, until all have taken their steps."""
    return _cost(trainings, least_seconds(Problem(tuple(each.predicted for each in trainings)))).seconds


def about(trainings: Sequence[Training]) -> float:
    """Seconds of lists that take next to no time to make, of which those of ranks are hardly ever longer."""
    lists = _made(Problem(tuple(each.counted for each in trainings)))
    problem = Problem(tuple(each.predicted for each in trainings))
    return _cost(trainings, timetable(problem, lists).makespan).seconds


@lru_cache(4096)
def _made(problem: Problem) -> Lists:
    """By the best of a few rules, or the first that makes lists which none can beat."""
    shortest, best = least_seconds(problem) * (1 + 1e-9), None
    for rule in chain((rule for rule in plain(problem, inf) if rule.memory == inf), urgent(problem)):
        found = dispatched(problem, rule, Random(0))
        best = found if found and (best is None or found.makespan < best.makespan) else best
        if best and best.makespan <= shortest:
            break
    assert best, "without a capacity every rule comes to an end"
    return best.lists


def _cost(trainings: Sequence[Training], makespan: float) -> Cost:
    """Where the micro-batches of all take so long."""
    busy = sum((each.busy for each in trainings), Cost())
    waits = max(0.0, makespan - busy.seconds) + max(each.late for each in trainings)
    rest = sum((each.update + Cost(overhead=each.passes.call) for each in trainings), Cost())
    return busy + Cost(bubble=waits) + rest


def _in_flight(problem: Problem, lists: Lists) -> tuple[tuple[tuple[float, float], ...], ...]:
    found = dict[tuple[tuple[float, float], ...], None]()
    for stage, own in enumerate(lists):
        last = [line.stages[-1] == stage for line in problem.lines]
        held, most = [0.0] * len(last), list[tuple[float, ...]]()
        for line, part, _ in own:
            held[line] += (1 if part == "F" else -1) / problem.lines[line].model.chunks
            now = tuple(held)
            if not any(_covers(other, now) for other in most):
                most = [other for other in most if not _covers(now, other)] + [now]
        for each in most:
            found[tuple((0, count) if end else (count, 0) for count, end in zip(each, last, strict=True))] = None
    return tuple(
        each for each in found if not any(other is not each and all(map(_covers, other, each)) for other in found)
    )


def _covers(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether it is no less in each number."""
    return all(map(ge, one, other))
