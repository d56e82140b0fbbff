"""The critical path of a step: the chain of works that its time goes to, and what bounds each of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from rlgraph.errors.lookups import ByName
from rlgraph.ops import model_work_of
from rlgraph.passes.cost.predict import task_cost_model
from rlgraph.passes.cost.task import Task
from rlgraph.passes.cost.timetable import Pools, TaskOrder, start_times
from rlgraph.passes.cost.weights import weight_sync_cost
from rlgraph.passes.placement.search.components import Component
from rlgraph.passes.placement.search.incumbent import SearchResult
from rlgraph.passes.placement.search.option import Option, SeparateReadingOption
from rlgraph.passes.placement.search.problem import PlacementProblem

TRANSITIONS = "transitions"
"""The kind of the seconds in which models leave their devices to others, and come back."""

KINDS = ("generation", "reading", "training", "weights", TRANSITIONS, "host")
"""The kinds of works: sampling, forward passes, training, weight synchronization, off-loading, and work that needs no
model."""

BOUNDS = {
    "compute": "compute",
    "memory": "memory bandwidth",
    "communication": "communication",
    "bubble": "pipeline bubbles",
    "overhead": "overhead",
    "environment": "environments",
    "offload": "off-loading",
}
"""The names for a person of what a work's seconds go to."""


@dataclass(frozen=True, slots=True)
class CriticalWork:
    """A work on the critical path: it starts when the one before it ends."""

    name: str
    kind: str
    """One of `KINDS`."""
    start: float
    """Seconds since the step began."""
    seconds: float
    """The seconds of all its repetitions in a step."""
    parts: Mapping[str, float]
    """Its seconds by what they go to; the names are those of `BOUNDS`."""


def critical_path(problem: PlacementProblem, found: SearchResult) -> tuple[CriticalWork, ...]:
    """Return the works that the step is made of, first to last; their seconds add up to those of the step.

    If several steps are in flight: the works of the pool that has most to do; or, where a step that begins with the
    weights of one before takes longer than these steps are apart, those of such a step, as long as them all."""
    colocation = problem.make_colocation(found.blocks)
    home, pools = colocation.pool_of_component, colocation.pools_of_job
    syncs = problem.sync_seconds(home, found.options)
    trips = problem.row_travel_seconds(
        colocation, {number: option.copies for number, option in enumerate(found.options)}
    )
    durations, order = (
        problem.fusing.component_task_seconds(found.options, found.pieces),
        problem.fused_task_order(found.pieces),
    )
    seconds = problem.job_seconds(durations, syncs, trips)
    begun = start_times(order, seconds, pools)
    chain = _chain(order, begun, seconds, pools)
    if problem.staleness_steps:
        fullest = max(colocation.jobs_of_pool, key=lambda jobs: sum(seconds[job] for job in jobs))
        if sum(seconds[job] for job in fullest) * (problem.staleness_steps + 1) >= sum(seconds[job] for job in chain):
            chain = sorted((job for job in fullest if seconds[job]), key=begun.__getitem__)
            for at, job in enumerate(chain):
                begun[job] = sum(seconds[earlier] for earlier in chain[:at])
    return tuple(
        _stretch(problem, found, job, begun[job], seconds[job], trips.get(job - len(syncs), 0.0)) for job in chain
    )


def seconds_by_kind(path: Iterable[CriticalWork]) -> dict[str, float]:
    """Return the seconds by kind, the most first."""
    by_kind: dict[str, float] = {}
    for stretch in path:
        moved = stretch.parts.get("offload", 0.0)
        for kind, seconds in ((stretch.kind, stretch.seconds - moved), (TRANSITIONS, moved)):
            if seconds:
                by_kind[kind] = by_kind.get(kind, 0.0) + seconds
    return ByName(sorted(by_kind.items(), key=lambda item: -item[1]), "the critical path", "kind of work")


def _chain(order: TaskOrder, begun: Sequence[float], seconds: Sequence[float], pools: Pools) -> list[int]:
    """Return the jobs from the one that ends last back to one that waited for nothing: each started when one before it
    ended, which made its input or had its pool."""
    ends = [start + length for start, length in zip(begun, seconds, strict=True)]
    chain = [max(range(len(ends)), key=ends.__getitem__)] if ends else []
    while chain and begun[chain[-1]] > 0:
        job = chain[-1]
        before = {*order.after[job], *(sharer for sharer in range(len(ends)) if set(pools[sharer]) & set(pools[job]))}
        # Work without seconds ends when it starts, so the longest work is taken.
        ended = [earlier for earlier in sorted(before) if ends[earlier] == begun[job] and earlier not in chain]
        chain.append(max(ended, key=seconds.__getitem__))
    return chain[::-1]


def _stretch(
    problem: PlacementProblem, solution: SearchResult, job: int, start: float, seconds: float, trips: float
) -> CriticalWork:
    """Return a job as a stretch of the critical path."""
    count = len(problem.sync_pairs)
    if job < count:
        component = problem.components[problem.sync_pairs[job][1]]
        return CriticalWork(
            f"weights of {component.model_name}", "weights", start, seconds, _sync_parts(problem, solution, job)
        )
    task, number = problem.tasks[job - count], problem.component_of[job - count]
    if number is None:
        host_parts = {"overhead": seconds - trips, "communication": trips}
        return CriticalWork(
            task.name, "host", start, seconds, {name: part for name, part in host_parts.items() if part}
        )
    parts = seconds_by_part(problem, number, solution.options[number], job - count)
    if trips:
        parts["communication"] = parts.get("communication", 0.0) + trips
    if any(number in piece for piece in solution.pieces):
        # Others work while its stages would wait, and all of them share one request.
        over = sum(parts.values()) - seconds
        for name in ("bubble", "overhead"):
            less = min(max(over, 0.0), parts.get(name, 0.0))
            over -= less
            parts = {part: spent - less * (part == name) for part, spent in parts.items()}
        parts = {name: spent for name, spent in parts.items() if spent > 0}
    return CriticalWork(task.name, task_kind(task), start, seconds, parts)


def task_kind(task: Task) -> str:
    """Return the kind of a task with a model."""
    return {"generates": "generation", "trains": "training"}.get(model_work_of(task.op) or "", "reading")


def seconds_by_part(problem: PlacementProblem, number: int, option: Option, at: int) -> dict[str, float]:
    """Return what the seconds of a task go to if its component is run with this option."""
    component, chosen = next(part for part in problem.split_component(number, option) if at in part[0].tasks)
    parts = _parts(problem, component, chosen, at)
    if isinstance(option, SeparateReadingOption) and chosen is option.reader and at == component.tasks[0]:
        # The reader waits for the weights.
        brought = weight_sync_cost(
            component.config, option.trainer.deployment, chosen.deployment, True, problem.constants
        )
        for name, seconds in asdict(brought).items():
            if seconds:
                parts[name] = parts.get(name, 0.0) + seconds
    return parts


def _parts(problem: PlacementProblem, component: Component, option: Option, at: int) -> dict[str, float]:
    """Return what the seconds of a task go to, without the wait for weights."""
    task, deployment = problem.tasks[at], option.deployment
    model = task_cost_model(task.op, component.config, deployment, problem.constants, task.batches)
    cost = asdict(model.request_to_answer_cost(deployment.dp))
    if option.offload:
        cost["offload"] = option.moved[component.tasks.index(at)] / task.repetitions
    return {name: seconds * task.repetitions for name, seconds in cost.items() if seconds}


def _sync_parts(problem: PlacementProblem, solution: SearchResult, sync: int) -> dict[str, float]:
    """Return what the seconds of a weight synchronization go to."""
    source, target = problem.sync_pairs[sync]
    ends = solution.options[source], solution.options[target]
    home = problem.make_colocation(solution.blocks).pool_of_component
    cost = asdict(problem.weight_transfer_cost(source, *ends, home[source] == home[target]))
    return {name: seconds for name, seconds in cost.items() if seconds}
