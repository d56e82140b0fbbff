"""What trainings take that share the stages of one pipeline, or have one of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, product
from math import inf
from operator import ge
from random import Random

from rlgraph.ir.shared_pipelines import common
from rlgraph.passes.cost.deployment import Deployment, ModelConfig
from rlgraph.passes.cost.time import Cost, LatencyModel
from rlgraph.passes.pipelines.bounds import least_seconds, serial_seconds
from rlgraph.passes.pipelines.counted import counted
from rlgraph.passes.pipelines.dispatch import dispatched, plain, urgent
from rlgraph.passes.pipelines.fuse import drawn
from rlgraph.passes.pipelines.problem import Model, Problem
from rlgraph.passes.pipelines.published import alone
from rlgraph.passes.pipelines.timetable import Entry, Lists, Timetable, timetable


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
    group: str = ""
    """Who trains it: a process of each group has memory of its own."""

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
        turns = self.micro_batches
        turn = self.busy.seconds / turns
        return self.passes.bubble(turns, turn) - self.passes.before(turns) * turn

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
    counts = _together(trainings, [each.counted for each in trainings])
    lists = drawn(counts) if len(trainings) > 1 else alone(counts.models[0])
    problem = _predicted(trainings)
    table = timetable(problem, lists)
    return Fusion(
        problem,
        lists,
        table,
        _cost(trainings, table.makespan),
        _in_flight(problem, lists, [each.group for each in trainings]),
        least_seconds(problem),
        serial_seconds(problem),
    )


def least(trainings: Sequence[Training]) -> float:
    """Seconds that no lists can beat, until all have taken their steps."""
    return _cost(trainings, least_seconds(_predicted(trainings))).seconds


def about(trainings: Sequence[Training]) -> float:
    """Seconds of lists that take next to no time to make, of which those of ranks are hardly ever longer."""
    lists = _made(_together(trainings, [each.counted for each in trainings]))
    return _cost(trainings, timetable(_predicted(trainings), lists).makespan).seconds


def _predicted(trainings: Sequence[Training]) -> Problem:
    """In seconds."""
    return _together(trainings, [each.predicted for each in trainings])


def _together(trainings: Sequence[Training], models: Sequence[Model]) -> Problem:
    """Models with fewer stages than others have several copies behind each other."""
    if len({each.deployment.pp for each in trainings}) == 1:
        return Problem(tuple(models))
    whole = common([each.deployment.mesh for each in trainings])
    behind = [whole.behind(each.deployment.mesh) for each in trainings]
    return Problem(tuple(replace(model, copies=copies) for model, copies in zip(models, behind, strict=True)))


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


def _in_flight(problem: Problem, lists: Lists, groups: Sequence[str]) -> tuple[tuple[tuple[float, float], ...], ...]:
    """groups: of each model. What one of them needs at a moment its process keeps, so that others may need the most
    at another moment."""
    lines, owners = problem.lines, problem.owners
    found = dict[tuple[tuple[float, float], ...], None]()
    for stage, own in enumerate(lists):
        ends = [False] * len(groups)
        for line, owner in zip(lines, owners, strict=True):
            ends[owner] |= line.stages[-1] == stage
        each_group = [_moments(problem, own, [group == each for each in groups]) for group in dict.fromkeys(groups)]
        for moments in product(*each_group):
            counts = map(sum, zip(*moments, strict=True))
            found[tuple((0, count) if end else (count, 0) for count, end in zip(counts, ends, strict=True))] = None
    return tuple(
        each for each in found if not any(other is not each and all(map(_covers, other, each)) for other in found)
    )


def _moments(problem: Problem, own: Sequence[Entry], among: Sequence[bool]) -> list[tuple[float, ...]]:
    """What a stage has of each model at a time, where only some count. Nothing that is no more of each than something
    else."""
    owners, held, most = problem.owners, [0.0] * len(among), list[tuple[float, ...]]()
    for line, part, _ in own:
        owner = owners[line]
        if not among[owner]:
            continue
        held[owner] += (1 if part == "F" else -1) / problem.models[owner].chunks
        now = tuple(held)
        if not any(_covers(other, now) for other in most):
            most = [other for other in most if not _covers(now, other)] + [now]
    return most or [tuple(held)]


def _covers(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether it is no less in each number."""
    return all(map(ge, one, other))
