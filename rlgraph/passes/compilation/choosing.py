"""The plan for a cluster: what is asked of the search, and what is told of its answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, cast

from rlgraph.backends.enginespec.registry import engine, engines, installed
from rlgraph.catalog.clusters.units import shown_seconds
from rlgraph.catalog.models.shape import Shape
from rlgraph.errors import Diagnostic, ProgramError
from rlgraph.ir.graph import Phase, Program
from rlgraph.ir.schedule import Schedule
from rlgraph.ir.types import Handle
from rlgraph.ops import work_of
from rlgraph.ops.nodes import NODES, at_once, model_of
from rlgraph.ops.work import operations
from rlgraph.passes.compilation.hosts import crowded, fullest, hosts
from rlgraph.passes.compilation.planning import find_shapes, unneeded
from rlgraph.passes.compilation.target import Target
from rlgraph.passes.cost.fusing import Fusion
from rlgraph.passes.cost.peak import Peak, peaks
from rlgraph.passes.cost.predict import Predictor
from rlgraph.passes.cost.tasks import main_step
from rlgraph.passes.placement.choose import (
    SLEEPERS,
    Choice,
    Question,
    choose,
    choose_asleep,
    choose_unfused,
    choose_until,
    is_small,
    refused,
    with_other_engines,
    with_pieces,
)
from rlgraph.passes.placement.runners_up import beside, streamed, without_open
from rlgraph.passes.placement.search.progress import OutOfTime
from rlgraph.passes.rewrites.accumulate import added_up
from rlgraph.user_code.files import Folders

BESIDE = 2
"""Other ways to share pools that are looked at in a small problem whose rows stream or move."""

NOTED = 0.05
"""Share of a step that the host works before it is told."""


def chosen(program: Program, schedule: Schedule, folders: Folders, target: Target) -> Choice:
    """Where rows stream or move, or steps overlap, the plan that the simulator prefers. Raises ProgramError where a
    model's shape is not known, and where nothing fits."""
    asked = question(program, schedule, folders, target)
    ends = monotonic() + asked.search_seconds
    found = _whole(asked, target, ends)
    if found.problem.older or streamed(schedule):
        # It needs the simulator.
        from rlgraph.passes.compilation.finalists import better

        return better(found, *_others(found, target, ends))
    if target.stream and is_small(found.problem, found.question):
        from rlgraph.passes.compilation.streaming import with_streams

        return with_streams(found, ends)
    return found


def _whole(asked: Question, target: Target, ends: float) -> Choice:
    """By whole batches. Where something fits without off-loading, and more than the best plan of a small problem is
    asked for, without. Raises ProgramError where nothing fits."""
    found = choose(replace(asked, offload=False))
    found = found and _fused(found, ends)
    if found is None and target.offload and (left := ends - monotonic()) > 0:
        found = choose(replace(asked, search_seconds=left))
    elif found is not None and _may_sleep(found, target) and (left := ends - monotonic()) > 0:
        found = choose_asleep(replace(asked, search_seconds=left), found)
    if found is None:
        for other in with_other_engines(replace(asked, offload=target.offload)):
            if (left := ends - monotonic()) <= 0 or (found := choose(replace(other, search_seconds=left))):
                break
    if found is None:
        full = crowded(asked, ends)
        wrong = refused(replace(asked, search_seconds=ends - monotonic()))
        raise ProgramError([full, *wrong.diagnostics]) if full else wrong
    return _fused(found, ends)


def _others(choice: Choice, target: Target, ends: float) -> Iterator[Choice]:
    """Plans beside the best one that may be better than it where work overlaps that the search lays out one after the
    other, and the best one without what the schedule leaves to the plan: its trainings may share pipelines, and its
    models sleep."""
    tables, asked = streamed(choice.question.schedule), list[Question]()
    closed = without_open(choice.question.schedule)
    if closed != choice.question.schedule and (left := ends - monotonic()) > 0:
        asked_whole = replace(choice.question, schedule=closed, apart=(), offload=target.offload, search_seconds=left)
        yield _whole(asked_whole, target, ends)
    if moved := tuple((line.table, line.on or 1) for line in choice.question.schedule.tails):
        # One copy has no tail, with which several may be faster than it.
        asked.append(replace(choice.question, streamed=tables, moved=moved))
    if choice.problem.older:
        asked.append(replace(choice.question, in_turn=True))
    if tables:
        asked.append(replace(choice.question, streamed=tables))
    found = [choice]
    try:
        for each in asked:
            other = choose_until(ends, each)
            if other is not None:
                found.append(_fused(other, ends))
                yield found[-1]
        if tables and is_small(choice.problem, choice.question):
            yield from map(_with_room, beside(found, BESIDE, ends))
    except OutOfTime:
        return


def _may_sleep(choice: Choice, target: Target) -> bool:
    """Whether plans in which models sleep are looked at although something fits without. Where work overlaps, models
    would wake up for each piece of it, which the search does not count."""
    return target.offload and choice.question.cluster.devices <= SLEEPERS and not overlaps(choice)


def _with_room(choice: Choice) -> Choice:
    """Without pipelines for whose micro-batches in flight, of all models together, there is no room, which the search
    counts roughly, and without those of a schedule whose models sleep."""
    plan, options = choice.plan, choice.found.options
    if not plan.fused:
        return choice
    full = {pool for pool, peak in memory(choice).items() if not peak.fits}
    trained = {each.model: number for number, each in enumerate(choice.problem.components) if each.work == "train"}
    kept = tuple(
        each
        for each in plan.fused
        if plan.role(each.models[0], "train").pool not in full
        and all(options[trained[model]].fuses for model in each.models)
    )
    pieces = tuple(tuple(trained[model] for model in each.models) for each in kept)
    if kept == plan.fused and pieces == choice.found.pieces:
        return choice
    return replace(choice, plan=replace(plan, fused=kept), found=with_pieces(choice.problem, choice.found, pieces))


def _fused(choice: Choice, ends: float) -> Choice:
    """A choice whose trainings share pipelines as the search thought; where there is no room for that, the better of it
    without them and of one that is searched for without any."""
    told = _with_room(choice)
    if len(told.found.pieces) >= len(choice.found.pieces) or choice.found.before is None and ends <= monotonic():
        return told
    alone = choose_unfused(choice, ends)
    if alone is None or told.found.pieces and told.found.value <= alone.found.value:
        return told
    found = replace(alone.found, bound=min(told.found.bound, alone.found.bound))
    alone = replace(alone, found=found, question=choice.question)
    return _fused(alone, ends) if found.pieces else alone


def warnings(choice: Choice, schedule: Schedule) -> tuple[Diagnostic, ...]:
    """What of a schedule the plan has no use for that was chosen for it."""
    return tuple(unneeded(choice.question.program, choice.plan, schedule))


def question(program: Program, schedule: Schedule, folders: Folders, target: Target) -> Question:
    """What is searched for."""
    shapes = find_shapes(program, folders)
    work = operations(program)
    wrong = [
        Diagnostic(
            "E0935",
            f"the work of `{model.name}` cannot be planned: {shape}",
            model.span,
            "take a well-known model, or a folder with its `config.json`",
        )
        for model in program.models
        if work[model.name] and not isinstance(shape := shapes.get(model.name, "its configuration is not here"), Shape)
    ]
    if wrong:
        raise ProgramError(wrong)
    there = tuple(
        name for name, spec in engines().items() if spec.preference and (not target.on_cpus or name in installed())
    )
    return Question(
        program,
        schedule,
        shapes,
        target.cluster,
        target.workload,
        target.constants,
        there,
        target.goal,
        target.offload,
        target.search_seconds,
        target.search_gap,
        fuse=target.fuse,
    )


def memory(choice: Choice) -> dict[str, Peak]:
    """The fullest moment of each pool."""
    asked = choice.question
    streamed = added_up(asked.program, choice.plan)
    return peaks(
        choice.plan, choice.problem.tasks, choice.configs, asked.cluster, asked.constants, accumulated=streamed
    )


def tokens(choice: Choice) -> float:
    """Of the rows that a step samples or encodes, with their prompts: the batch whose throughput is told."""
    found = [task.tokens * task.times for task in choice.problem.tasks if work_of(task.op) == "generates"]
    read = [task.tokens * task.times for task in choice.problem.tasks if work_of(task.op) == "trains"]
    return sum(found) or sum(read)


def work_seconds(choice: Choice) -> dict[str, float]:
    """What the pools are busy with in a step: seconds of `generate`, `read`, `train`. Pools work side by side, so that
    they add up to more than the step."""
    found: dict[str, float] = {}
    problem = choice.problem
    for component, option in zip(problem.components, choice.found.options, strict=True):
        for number, seconds in zip(component.tasks, option.seconds, strict=True):
            op = problem.tasks[number].op
            kind = {"generates": "generate", "trains": "train"}.get(work_of(op) or "", "read")
            found[kind] = found.get(kind, 0.0) + seconds
    return found


@dataclass(frozen=True, slots=True)
class Hosted:
    """What one process does for all pools in a step: mathematics between models, and functions that have no pool of
    cpus."""

    seconds: float
    functions: Mapping[str, float]
    """Of these, those of each function of the user's, the most first."""

    def told(self, step: float) -> str:
        """What it works of a step of so many seconds, and what to do about it; empty where it is little."""
        if self.seconds < NOTED * step:
            return ""
        text = f"the host works {shown_seconds(self.seconds)} of a step ({self.seconds / step:.0%})"
        large = [name for name, seconds in self.functions.items() if seconds > self.seconds / 10]
        if not large:
            return text
        shown = [f"{shown_seconds(self.functions[name])} of it in `{name}`" for name in large]
        return f"{text}, {', '.join(shown)}: `place {', '.join(large)} on judges`, a pool of cpus, takes it over"


def hosted(choice: Choice) -> Hosted:
    problem, functions = choice.problem, dict[str, float]()
    total = 0.0
    for task, seconds in zip(problem.tasks, problem.host, strict=True):
        if task.code in problem.code:
            continue
        total += seconds
        if task.code and seconds:
            functions[task.code] = functions.get(task.code, 0.0) + seconds
    return Hosted(total, dict(sorted(functions.items(), key=lambda each: -each[1])))


def overlaps(choice: Choice) -> bool:
    """Whether work is done side by side that the search lays out one after the other."""
    phase = main_step(choice.question.program)
    ahead = any(at_once(node, node.attr("rows")) > 1 for node in phase.graph.walk() if NODES[node.op].loop == "rounds")
    return ahead or bool(choice.plan.blocks) or phase.staleness.steps > 0 or _samples_together(choice, phase)


def _samples_together(choice: Choice, phase: Phase) -> bool:
    """Whether a copy samples rows of several orders with the same weights at a time."""
    types = phase.graph.values()
    asked = Counter((model_of(node), node.op) for node in phase.graph.walk() if NODES[node.op].generates)
    return any(
        engine(choice.plan.role(cast(Handle, types[weights]).name, op).engine).admits
        for (weights, op), orders in asked.items()
        if orders > 1
    )


def fusions(choice: Choice) -> dict[str, Fusion]:
    """What each pipeline takes that trainings share, of the largest mini-batch."""
    asked, found = choice.question, dict[str, Fusion]()
    predictor = Predictor(choice.plan, choice.configs, asked.cluster, asked.constants)
    for each in choice.plan.fused:
        works = []
        for model in each.models:
            own = [task for task in choice.problem.tasks if task.model == model and work_of(task.op) == "trains"]
            works.append((model, max((task.batches for task in own), key=lambda own: sum(batch.rows for batch in own))))
        found[", ".join(each.models)] = predictor.fused(works)
    return found


def predicted(choice: Choice) -> Mapping[str, Any]:
    """What a plan file says of the prediction."""
    seconds = choice.simulated
    if seconds is None and overlaps(choice):
        # It needs the simulator, which takes longer to load than many searches take.
        from rlgraph.passes.compilation.overlap import overlapped

        seconds = overlapped(choice)
    full, before = memory(choice), choice.found.before
    asleep = _asleep(choice, full)
    return {
        "seconds": choice.found.seconds if seconds is None else seconds,
        "in_turn_seconds": None if seconds is None or choice.problem.older else choice.found.seconds,
        "steady_seconds": None if seconds is None or not choice.problem.older else choice.found.seconds,
        "bound_seconds": choice.found.bound if choice.question.goal == "time" else None,
        "unfused_seconds": before.searched.seconds if before and not before.searched.pieces else None,
        "alike_seconds": before.seconds if before and before.pieces else None,
        "gap": choice.found.gap,
        "tokens": tokens(choice),
        "fused": {
            models: {
                "seconds": each.table.makespan,
                "bound_seconds": each.bound,
                "in_turn_seconds": each.in_turn,
                "micro_batches": {model.name: model.micro_batches for model in each.problem.models},
            }
            for models, each in fusions(choice).items()
        }
        or None,
        "memory": {
            pool: {"bytes": round(peak.bytes), "capacity": round(peak.capacity), "moment": peak.moment}
            | dict(asleep.get(pool, {}))
            for pool, peak in full.items()
        },
    }


def _asleep(choice: Choice, full: Mapping[str, Peak]) -> Mapping[str, Mapping[str, object]]:
    """Of each pool in which models sleep."""
    on, pools = hosts(choice), {pool.name: pool for pool in choice.plan.pools}
    found: dict[str, Mapping[str, object]] = {}
    for name, peak in full.items():
        if peak.asleep:
            node = fullest(on, pools[name], choice.question.cluster)
            told = {"node": round(node.bytes), "node_capacity": round(node.capacity)} if node else {}
            found[name] = {"host": round(peak.host), **told, "asleep": dict(peak.asleep)}
    return found


def sections(choice: Choice, target: Target) -> Mapping[str, Mapping[str, Any]]:
    """Those of the plan file."""
    cluster = {"text": target.cluster.text, "devices": target.cluster.devices}
    told = {name: value for name, value in predicted(choice).items() if value is not None}
    return {"cluster": cluster, "assumptions": target.assumptions(), "predicted": told}
