"""Chooses the plan for a cluster: poses the question to the search, and reports on its answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from rlgraph.backends.enginespec.registry import engines_by_name, installed_engines
from rlgraph.catalog.clusters.units import format_seconds
from rlgraph.catalog.models.shape import Shape
from rlgraph.errors import Diagnostic, ProgramError
from rlgraph.ir.graph import Program
from rlgraph.ir.schedule import Schedule
from rlgraph.ops import model_work_of
from rlgraph.ops.program_work import model_operations
from rlgraph.passes.compilation.assumed_episodes import assumed_episode_warnings
from rlgraph.passes.compilation.assumed_kept_tokens import assumed_kept_token_warnings
from rlgraph.passes.compilation.assumed_shapes import assumed_shape_warnings, assumed_shapes
from rlgraph.passes.compilation.assumed_tails import assumed_tail_warnings
from rlgraph.passes.compilation.default_plan import read_model_shapes, unused_schedule_warnings
from rlgraph.passes.compilation.host_offload import fullest_host, host_memory_diagnostic, plan_offload_by_host
from rlgraph.passes.compilation.host_rows import crowded_host_warnings, fullest_host_rows
from rlgraph.passes.compilation.other_engines import faster_with_other_engine
from rlgraph.passes.compilation.overlapping_work import has_few_rows, has_overlapping_work
from rlgraph.passes.compilation.streamable import streams_promise
from rlgraph.passes.compilation.target import Target
from rlgraph.passes.cost.batch import total_rows
from rlgraph.passes.cost.fused_pipelines import FusedPipeline
from rlgraph.passes.cost.peak_memory import Peak, pool_peaks
from rlgraph.passes.cost.predict import Predictor
from rlgraph.passes.placement.adapter_errors import adapter_warnings
from rlgraph.passes.placement.choose import (
    SLEEPERS,
    PlacementChoice,
    choose_before_deadline,
    choose_placement,
    choose_unfused,
    choose_with_offload,
    no_plan_error,
    with_shared_pipelines,
)
from rlgraph.passes.placement.next_best_plans import (
    choices_with_unlike_pools,
    next_best_choices,
    streamed_tables,
    without_undecided_streams,
)
from rlgraph.passes.placement.query import (
    PlacementQuery,
    can_keep_optimizer_on_host,
    is_small,
    queries_with_other_engines,
)
from rlgraph.passes.placement.search.progress import OutOfTime
from rlgraph.passes.rewrites.accumulate import accumulating_models
from rlgraph.user_code.files import SearchFolders

BESIDE = 2
"""How many other ways to share pools are simulated for a small problem whose rows stream or move."""

NOTED = 0.05
"""The share of a step that the host must work to be reported."""


def choose_plan(program: Program, schedule: Schedule, folders: SearchFolders, target: Target) -> PlacementChoice:
    """Return the best plan for a cluster; where rows stream or move, or steps overlap, it is the one that the simulator
    prefers. Raises ProgramError where a model's shape is unknown, and where nothing fits."""
    asked = make_placement_query(program, schedule, folders, target)
    ends = monotonic() + asked.search_seconds
    choice = _search_whole_batches(asked, target, ends)
    if choice.problem.staleness_steps or streamed_tables(schedule):
        # Only this case loads the simulator.
        from rlgraph.passes.compilation.finalists import choose_by_simulation

        choice = choose_by_simulation(choice, *_alternatives(choice, target, ends))
        may_stream = not streamed_tables(schedule) and has_few_rows(choice)
    elif has_overlapping_work(choice):
        from rlgraph.passes.compilation.fewer_nodes import no_slower_than_on_fewer_nodes

        return no_slower_than_on_fewer_nodes(choice, ends)
    else:
        may_stream = is_small(choice.problem, choice.question) or has_few_rows(choice) and streams_promise(choice)
    if target.stream and may_stream:
        from rlgraph.passes.compilation.streaming import with_best_streamed_tables

        choice = with_best_streamed_tables(choice, ends)
    if choice.problem.staleness_steps and not streamed_tables(schedule):
        from rlgraph.passes.compilation.fewer_nodes import fewer_nodes_in_flight

        choice = fewer_nodes_in_flight(choice, ends, target.stream and may_stream)
    return choice


def _search_whole_batches(asked: PlacementQuery, target: Target, ends: float) -> PlacementChoice:
    """Return the best plan that works by whole batches. If a plan fits without offloading, plans with offloading are
    only searched for small problems, and where the schedule says that models sleep. Raises ProgramError where nothing
    fits."""
    told = any(line.sleep for line in asked.schedule.placements)
    choice = choose_placement(replace(asked, offload=False))
    choice = choice and _without_tight_fusions(choice, ends)
    if choice is None and target.offload and not told and (left := asked.control.remaining_seconds(ends)) > 0:
        choice = choose_placement(replace(asked, search_seconds=left))
    elif (
        choice is not None
        and not told
        and _may_offload(choice, target)
        and (left := asked.control.remaining_seconds(ends)) > 0
    ):
        choice = choose_with_offload(replace(asked, search_seconds=left), choice)
    if choice is None:
        for variant in queries_with_other_engines(replace(asked, offload=target.offload)):
            if (left := asked.control.remaining_seconds(ends)) <= 0 or (
                choice := choose_placement(replace(variant, search_seconds=left))
            ):
                break
    if choice is None and target.offload:
        # What a refusal says is of these plans, too.
        asked = replace(asked, host_optimizer=True)
        choice = _choose_with_host_optimizer(asked, ends)
    if choice is None:
        host_problem = host_memory_diagnostic(asked, ends)
        refusal = no_plan_error(replace(asked, search_seconds=ends - monotonic()))
        raise ProgramError([host_problem, *refusal.diagnostics]) if host_problem else refusal
    choice = _without_tight_fusions(choice, ends)
    if choice.question.engines != asked.engines:
        return choice
    other = faster_with_other_engine(choice, ends)
    return choice if other is choice else _without_tight_fusions(other, ends)


def _choose_with_host_optimizer(asked: PlacementQuery, ends: float) -> PlacementChoice | None:
    """Return the best plan in which optimizers may keep their state in the host's memory; None where no engine does
    that, nothing fits, or the time is over."""
    for variant in (asked, *queries_with_other_engines(asked)):
        left = asked.control.remaining_seconds(ends)
        if left > 0 and can_keep_optimizer_on_host(variant):
            choice = choose_placement(replace(variant, search_seconds=left))
            if choice is not None:
                return choice
    return None


def _alternatives(choice: PlacementChoice, target: Target, ends: float) -> Iterator[PlacementChoice]:
    """Return other plans that may be better than the best one since work overlaps that the search lays out
    sequentially, and the best plan without what the schedule leaves to the plan: there trainings may share pipelines
    and models may be offloaded."""
    tables, questions = streamed_tables(choice.question.schedule), list[PlacementQuery]()
    closed = without_undecided_streams(choice.question.schedule)
    if closed != choice.question.schedule and (left := choice.question.control.remaining_seconds(ends)) > 0:
        closed_question = replace(
            choice.question, schedule=closed, read_separately=(), offload=target.offload, search_seconds=left
        )
        yield _search_whole_batches(closed_question, target, ends)
    if moved := tuple((line.table, line.on or 1) for line in choice.question.schedule.tails):
        # A single replica has no tail, but several with a tail may be faster.
        questions.append(replace(choice.question, streamed_tables=tables, tail_replicas=moved))
    if choice.problem.staleness_steps:
        questions.append(replace(choice.question, sequential_steps=True))
    if tables:
        questions.append(replace(choice.question, streamed_tables=tables))
    choices = [choice]
    try:
        for asked in questions:
            other = choose_before_deadline(ends, asked)
            if other is not None:
                choices.append(_without_tight_fusions(other, ends))
                yield choices[-1]
        if tables and not is_small(choice.problem, choice.question):
            yield from choices_with_unlike_pools(choices, ends)
        elif tables:
            yield from map(_with_room, next_best_choices(choices, BESIDE, ends))
    except OutOfTime:
        return


def _may_offload(choice: PlacementChoice, target: Target) -> bool:
    """Return whether plans with offloading are searched although a plan fits without it. Where work overlaps, models
    would be loaded for each piece of it, which the search does not count."""
    return target.offload and choice.question.cluster.device_count <= SLEEPERS and not has_overlapping_work(choice)


def _with_room(choice: PlacementChoice) -> PlacementChoice:
    """Return a choice without shared pipelines for whose micro-batches of all models there is no memory, which the
    search only estimates, and without those of a schedule whose models are offloaded."""
    plan, options = choice.plan, choice.search_result.options
    if not plan.fused:
        return choice
    full = {pool for pool, peak in peak_memory_by_pool(choice).items() if not peak.fits}
    trained = {
        component.model_name: number
        for number, component in enumerate(choice.problem.components)
        if component.work == "train"
    }
    fitting = tuple(
        fused
        for fused in plan.fused
        if plan.group_of_role(fused.models[0], "train").pool not in full
        and all(options[trained[model]].can_share_stages for model in fused.models)
    )
    pieces = tuple(tuple(trained[model] for model in fused.models) for fused in fitting)
    if fitting == plan.fused and pieces == choice.search_result.pieces:
        return choice
    return replace(
        choice,
        plan=replace(plan, fused=fitting),
        search_result=with_shared_pipelines(choice.problem, choice.search_result, pieces),
    )


def _without_tight_fusions(choice: PlacementChoice, ends: float) -> PlacementChoice:
    """Return a choice whose shared pipelines fit into memory: the choice itself, or, if some do not fit, the better one
    of the choice without them and of a new search without fusion."""
    fitting = _with_room(choice)
    over = choice.question.control.remaining_seconds(ends) <= 0
    if (
        len(fitting.search_result.pieces) >= len(choice.search_result.pieces)
        or choice.search_result.before_fusing is None
        and over
    ):
        return fitting
    unfused = choose_unfused(choice, ends)
    if unfused is None or fitting.search_result.pieces and fitting.search_result.value <= unfused.search_result.value:
        return fitting
    answer = replace(unfused.search_result, bound=min(fitting.search_result.bound, unfused.search_result.bound))
    unfused = replace(unfused, search_result=answer, question=choice.question)
    return _without_tight_fusions(unfused, ends) if answer.pieces else unfused


def plan_warnings(choice: PlacementChoice, schedule: Schedule) -> tuple[Diagnostic, ...]:
    """Return warnings about parts of a schedule that the chosen plan does not use or that round away what is learned,
    about hosts without room for rows, and about what is assumed: shapes, tails of lengths, kept tokens,
    environments."""
    program, assumed = choice.question.program, choice.question.assumed_shapes
    kinds = dict.fromkeys(island.device.kind for island in choice.question.cluster.islands)
    return (
        *assumed_shape_warnings(program, assumed),
        *assumed_tail_warnings(choice.question.workload),
        *assumed_kept_token_warnings(program, choice.question.workload),
        *assumed_episode_warnings(program, choice.question.workload, choice.question.constants),
        *crowded_host_warnings(choice),
        *unused_schedule_warnings(program, choice.plan, schedule),
        *adapter_warnings(program, schedule, choice.question.shapes, kinds),
    )


def make_placement_query(
    program: Program, schedule: Schedule, folders: SearchFolders, target: Target
) -> PlacementQuery:
    """Return the question to the search. Raises ProgramError where a model's shape is unknown."""
    shapes = read_model_shapes(program, folders)
    assumed = assumed_shapes(program, shapes)
    shapes |= {name: shape for name, (shape, _) in assumed.items()}
    work = model_operations(program)
    problems = [
        Diagnostic(
            "E0935",
            f"the work of `{model.name}` cannot be planned: {shape}",
            model.span,
            "take a well-known model, or a folder with its `config.json`",
        )
        for model in program.models
        if work[model.name] and not isinstance(shape := shapes.get(model.name, "its configuration is not here"), Shape)
    ]
    if problems:
        raise ProgramError(problems)
    usable_engines = tuple(
        name
        for name, spec in engines_by_name().items()
        if spec.preference and (not target.on_cpus or name in installed_engines())
    )
    return PlacementQuery(
        program,
        schedule,
        shapes,
        target.cluster,
        target.workload,
        target.constants,
        usable_engines,
        target.goal,
        target.offload,
        target.search_seconds,
        target.search_gap,
        fuse=target.fuse,
        assumed_shapes=tuple((name, other) for name, (_, other) in assumed.items()),
    )


def peak_memory_by_pool(choice: PlacementChoice) -> dict[str, Peak]:
    """Return the moment of the highest memory use of each pool."""
    asked = choice.question
    accumulated = accumulating_models(asked.program, choice.plan)
    return pool_peaks(
        choice.plan, choice.problem.tasks, choice.model_configs, asked.cluster, asked.constants, accumulated=accumulated
    )


def tokens_per_step(choice: PlacementChoice) -> float:
    """Return the tokens of the rows that a step samples or encodes, with their prompts, for the reported throughput."""
    generated = [
        task.tokens * task.repetitions for task in choice.problem.tasks if model_work_of(task.op) == "generates"
    ]
    trained = [task.tokens * task.repetitions for task in choice.problem.tasks if model_work_of(task.op) == "trains"]
    return sum(generated) or sum(trained)


def busy_seconds_by_work(choice: PlacementChoice) -> dict[str, float]:
    """Return the busy seconds of all pools in a step, for `generate`, `read` and `train`. Pools work concurrently, so
    they may add up to more than the step."""
    busy: dict[str, float] = {}
    problem = choice.problem
    for component, option in zip(problem.components, choice.search_result.options, strict=True):
        for number, seconds in zip(component.tasks, option.seconds, strict=True):
            op = problem.tasks[number].op
            kind = {"generates": "generate", "trains": "train"}.get(model_work_of(op) or "", "read")
            busy[kind] = busy.get(kind, 0.0) + seconds
    return busy


@dataclass(frozen=True, slots=True)
class HostWork:
    """The work of the host process in a step: tensor mathematics between models, and functions that have no pool of
    cpus."""

    seconds: float
    function_seconds: Mapping[str, float]
    """The seconds of each of the user's functions among these, the most first."""

    def slow_host_note(self, step: float) -> str:
        """Return a note on its part of a step of so many seconds, and what to do about it; empty where it is small."""
        if self.seconds < NOTED * step:
            return ""
        text = f"the host works {format_seconds(self.seconds)} of a step ({self.seconds / step:.0%})"
        large = [name for name, seconds in self.function_seconds.items() if seconds > self.seconds / 10]
        if not large:
            return text
        shown = [f"{format_seconds(self.function_seconds[name])} of it in `{name}`" for name in large]
        return f"{text}, {', '.join(shown)}: `place {', '.join(large)} on judges`, a pool of cpus, takes it over"


def host_work(choice: PlacementChoice) -> HostWork:
    """Return the work of the host process in a step of a plan."""
    problem, functions = choice.problem, dict[str, float]()
    total = 0.0
    for task, seconds in zip(problem.tasks, problem.host_task_seconds, strict=True):
        if task.code in problem.cpu_pools_of_functions:
            continue
        total += seconds
        if task.code and seconds:
            functions[task.code] = functions.get(task.code, 0.0) + seconds
    return HostWork(total, dict(sorted(functions.items(), key=lambda item: -item[1])))


def fused_pipeline_timetables(choice: PlacementChoice) -> dict[str, FusedPipeline]:
    """Return the timetable of each shared pipeline, for the largest mini-batches."""
    asked, timetables = choice.question, dict[str, FusedPipeline]()
    predictor = Predictor(choice.plan, choice.model_configs, asked.cluster, asked.constants)
    for fused in choice.plan.fused:
        works = []
        for model in fused.models:
            tasks = [
                task for task in choice.problem.tasks if task.model == model and model_work_of(task.op) == "trains"
            ]
            works.append((model, max((task.batches for task in tasks), key=total_rows)))
        timetables[", ".join(fused.models)] = predictor.fused_pipeline(works)
    return timetables


def plan_prediction(choice: PlacementChoice) -> Mapping[str, Any]:
    """Return the prediction as the plan file has it."""
    seconds = choice.simulated_step_s
    if seconds is None and has_overlapping_work(choice):
        # The simulator takes longer to import than many searches take.
        from rlgraph.passes.compilation.overlap_simulation import simulate_step_seconds

        seconds = simulate_step_seconds(choice)
    full, before = peak_memory_by_pool(choice), choice.search_result.before_fusing
    asleep, hosted = _asleep(choice, full), fullest_host_rows(choice)
    return {
        "seconds": choice.search_result.seconds if seconds is None else seconds,
        "in_turn_seconds": None if seconds is None or choice.problem.staleness_steps else choice.search_result.seconds,
        "steady_seconds": None
        if seconds is None or not choice.problem.staleness_steps
        else choice.search_result.seconds,
        "bound_seconds": choice.search_result.bound if choice.question.goal == "time" else None,
        "unfused_seconds": before.result_before_fusing.seconds
        if before and not before.result_before_fusing.pieces
        else None,
        "alike_seconds": before.seconds if before and before.pieces else None,
        "gap": choice.search_result.gap,
        "tokens": tokens_per_step(choice),
        "fused": {
            models: {
                "seconds": fusion.table.makespan,
                "bound_seconds": fusion.bound,
                "in_turn_seconds": fusion.serial_seconds,
                "micro_batches": {model.name: model.micro_batches for model in fusion.problem.models},
            }
            for models, fusion in fused_pipeline_timetables(choice).items()
        }
        or None,
        "memory": {
            pool: {"bytes": round(peak.used_bytes), "capacity": round(peak.capacity), "moment": peak.moment}
            | dict(asleep.get(pool, {}))
            for pool, peak in full.items()
        },
        "rows": hosted and {"node": round(hosted.rows.bytes), "kept": round(hosted.rows.kept)},
    }


def _asleep(choice: PlacementChoice, full: Mapping[str, Peak]) -> Mapping[str, Mapping[str, object]]:
    """Return for each pool with offloaded models what of them is in the hosts' memory."""
    by_node, pools = plan_offload_by_host(choice), {pool.name: pool for pool in choice.plan.pools}
    by_pool: dict[str, Mapping[str, object]] = {}
    for name, peak in full.items():
        if peak.asleep or peak.optimizers:
            node = fullest_host(by_node, pools[name], choice.question.cluster)
            node_memory = {"node": round(node.used_bytes), "node_capacity": round(node.capacity)} if node else {}
            by_pool[name] = {"host": round(peak.host), **node_memory, "asleep": dict(peak.asleep)}
    return by_pool


def plan_file_sections(choice: PlacementChoice, target: Target) -> Mapping[str, Mapping[str, Any]]:
    """Return the sections of the plan file about the search."""
    cluster = {"text": target.cluster.text, "devices": target.cluster.device_count}
    prediction = {name: value for name, value in plan_prediction(choice).items() if value is not None}
    return {"cluster": cluster, "assumptions": target.assumptions(), "predicted": prediction}
