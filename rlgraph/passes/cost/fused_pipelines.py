"""Estimates the time of trainings that share the stages of one pipeline, or have one of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, product
from math import inf
from operator import ge
from random import Random

from rlgraph.ir.shared_pipelines import shared_stages
from rlgraph.passes.cost.cost import Cost
from rlgraph.passes.cost.deployment import Deployment, ModelConfig
from rlgraph.passes.cost.latency import LatencyModel
from rlgraph.passes.pipelines.bounds import makespan_lower_bound, serial_seconds
from rlgraph.passes.pipelines.fuse import best_rule_schedule
from rlgraph.passes.pipelines.problem import PipelineModel, PipelineProblem
from rlgraph.passes.pipelines.published_schedules import published_lists
from rlgraph.passes.pipelines.relative_costs import relative_pipeline_model
from rlgraph.passes.pipelines.rule_scheduling import deterministic_rules, extra_deterministic_rules, schedule_by_rule
from rlgraph.passes.pipelines.timetable import Lists, ScheduleEntry, Timetable, compute_timetable


@dataclass(frozen=True, slots=True)
class PipelineTraining:
    """The training of one model on the replica that has most rows."""

    name: str
    config: ModelConfig
    deployment: Deployment
    passes: LatencyModel
    rows: float
    update: Cost
    """The cost of the optimizer's step."""
    turned: bool = False
    """Whether its first stage is the last one of the others."""
    group: str = ""
    """The group that trains it: processes of different groups have separate memory."""

    @property
    def micro_batch_count(self) -> int:
        """Return how many micro-batches its rows make."""
        return round(self.passes.micro_batch_count(self.rows_of_fullest_rank))

    @property
    def rows_of_fullest_rank(self) -> float:
        """Return the rows of the rank that has most of them."""
        return self.passes.rows_of_fullest_rank(self.rows)

    @property
    def stage_cost(self) -> Cost:
        """Return the cost of the work on one stage."""
        return self.passes.row.scaled(self.rows_of_fullest_rank) + self.passes.block.scaled(self.micro_batch_count)

    @property
    def micro_batch_imbalance_seconds(self) -> float:
        """Return by how many seconds the longest micro-batch takes longer than others, on all stages but one: lists
        assume equal micro-batches."""
        turns = self.micro_batch_count
        turn = self.stage_cost.seconds / turns
        return self.passes.bubble_seconds(turns, turn) - self.passes.bubble_in_micro_batches(turns) * turn

    @property
    def relative_pipeline_model(self) -> PipelineModel:
        """Return the model in the units in which ranks count when they make the lists."""
        config, deployment = self.config, self.deployment
        model = relative_pipeline_model(
            config.shape,
            config.kind,
            deployment.pp,
            self.micro_batch_count,
            recompute=deployment.recompute,
            turned=self.turned,
        )
        return replace(model, chunks=deployment.chunks_per_stage)

    @property
    def pipeline_model_in_seconds(self) -> PipelineModel:
        """Return the model in predicted seconds."""
        model, turn = self.relative_pipeline_model, self.stage_cost.seconds / self.micro_batch_count
        forward = turn * model.forward / (model.forward + model.backward)
        return replace(model, name=self.name, forward=forward, backward=turn - forward)


@dataclass(frozen=True, slots=True)
class FusedPipeline:
    """The task lists that the ranks of a pipeline follow, with predicted seconds."""

    problem: PipelineProblem
    lists: Lists
    table: Timetable
    cost: Cost
    """The cost until all trainings have taken their optimizer steps."""
    in_flight: tuple[tuple[tuple[float, float], ...], ...]
    """The in-flight micro-batches of a stage at a moment, for each model: a count for where the stage is not the
    model's last one, and a count for where it is. Moments that need no more of any model than another are left out."""
    bound: float
    """A lower bound in seconds for any lists, without the optimizers' steps."""
    serial_seconds: float
    """Seconds of one training after the other, each by 1F1B, without the optimizers' steps."""


def fused_pipeline(trainings: Sequence[PipelineTraining]) -> FusedPipeline:
    """Return the pipeline of trainings that begin together: one alone runs 1F1B, interleaved if it has chunks; several
    fill each other's bubbles. All have rows."""
    counts = _problem(trainings, [training.relative_pipeline_model for training in trainings])
    lists = best_rule_schedule(counts) if len(trainings) > 1 else published_lists(counts.models[0])
    problem = _predicted(trainings)
    table = compute_timetable(problem, lists)
    return FusedPipeline(
        problem,
        lists,
        table,
        _cost(trainings, table.makespan),
        _in_flight(problem, lists, [training.group for training in trainings]),
        makespan_lower_bound(problem),
        serial_seconds(problem),
    )


def lower_bound_seconds(trainings: Sequence[PipelineTraining]) -> float:
    """Return a lower bound in seconds for any lists, until all trainings have taken their optimizer steps."""
    return _cost(trainings, makespan_lower_bound(_predicted(trainings))).seconds


def estimated_seconds(trainings: Sequence[PipelineTraining]) -> float:
    """Return the seconds of lists that are quick to make; the lists of the ranks are hardly ever longer."""
    lists = _quick_lists(_problem(trainings, [training.relative_pipeline_model for training in trainings]))
    return _cost(trainings, compute_timetable(_predicted(trainings), lists).makespan).seconds


def _predicted(trainings: Sequence[PipelineTraining]) -> PipelineProblem:
    """Return the problem in predicted seconds."""
    return _problem(trainings, [training.pipeline_model_in_seconds for training in trainings])


def _problem(trainings: Sequence[PipelineTraining], models: Sequence[PipelineModel]) -> PipelineProblem:
    """Return the problem of the models, where those with fewer stages than others have several replicas behind each
    other."""
    if len({training.deployment.pp for training in trainings}) == 1:
        return PipelineProblem(tuple(models))
    mesh = shared_stages([training.deployment.mesh for training in trainings])
    behind = [mesh.replicas_along_stages(training.deployment.mesh) for training in trainings]
    return PipelineProblem(tuple(replace(model, copies=copies) for model, copies in zip(models, behind, strict=True)))


@lru_cache(4096)
def _quick_lists(problem: PipelineProblem) -> Lists:
    """Return the lists of the best of a few rules, or of the first rule that reaches the lower bound."""
    shortest, best = makespan_lower_bound(problem) * (1 + 1e-9), None
    for rule in chain(
        (rule for rule in deterministic_rules(problem, inf) if rule.memory == inf), extra_deterministic_rules(problem)
    ):
        candidate = schedule_by_rule(problem, rule, Random(0))
        best = candidate if candidate and (best is None or candidate.makespan < best.makespan) else best
        if best and best.makespan <= shortest:
            break
    assert best, "without a capacity every rule comes to an end"
    return best.lists


def _cost(trainings: Sequence[PipelineTraining], makespan: float) -> Cost:
    """Return the cost of trainings whose micro-batches together take `makespan` seconds."""
    busy = sum((training.stage_cost for training in trainings), Cost())
    waits = max(0.0, makespan - busy.seconds) + max(training.micro_batch_imbalance_seconds for training in trainings)
    rest = sum((training.update + Cost(overhead=training.passes.call) for training in trainings), Cost())
    return busy + Cost(bubble=waits) + rest


def _in_flight(
    problem: PipelineProblem, lists: Lists, groups: Sequence[str]
) -> tuple[tuple[tuple[float, float], ...], ...]:
    """Return `Fusion.in_flight`. groups: the group of each model. A process keeps the memory of its peak, so that the
    peaks of different groups add up wherever they are."""
    lines, owners = problem.replicas, problem.model_of_replica
    peaks = dict[tuple[tuple[float, float], ...], None]()
    for stage, entries in enumerate(lists):
        ends = [False] * len(groups)
        for line, owner in zip(lines, owners, strict=True):
            ends[owner] |= line.stages[-1] == stage
        by_group = [_moments(problem, entries, [group == name for name in groups]) for group in dict.fromkeys(groups)]
        for moments in product(*by_group):
            counts = map(sum, zip(*moments, strict=True))
            peaks[tuple((0, count) if end else (count, 0) for count, end in zip(counts, ends, strict=True))] = None
    return tuple(
        peak for peak in peaks if not any(larger is not peak and all(map(_covers, larger, peak)) for larger in peaks)
    )


def _moments(
    problem: PipelineProblem, entries: Sequence[ScheduleEntry], among: Sequence[bool]
) -> list[tuple[float, ...]]:
    """Return the in-flight micro-batches that a stage has of each model at a moment, counting only models `among`
    these. Moments that need no more of any model than another are left out."""
    owners, held, peaks = problem.model_of_replica, [0.0] * len(among), list[tuple[float, ...]]()
    for line, part, _ in entries:
        owner = owners[line]
        if not among[owner]:
            continue
        held[owner] += (1 if part == "F" else -1) / problem.models[owner].chunks
        now = tuple(held)
        if not any(_covers(peak, now) for peak in peaks):
            peaks = [peak for peak in peaks if not _covers(now, peak)] + [now]
    return peaks or [tuple(held)]


def _covers(larger: Sequence[float], smaller: Sequence[float]) -> bool:
    """Return whether each number of the first is at least the second's."""
    return all(map(ge, larger, smaller))
