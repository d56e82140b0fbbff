"""The placement that uses a cluster best. Class: exact; it makes a plan, not a graph.

What a schedule pins is kept, and the rest is searched for: pools, devices, splits, micro-batches, caches,
recomputation, off-loading. `rlgraph.passes.placement.search` says how; what is minimized is the time of a step, or its
price.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from time import monotonic
from types import MappingProxyType

from rlgraph.errors import ProgramError
from rlgraph.ir.plan import Plan
from rlgraph.ops.program_work import SharedWork
from rlgraph.passes.cost.deployment import ModelConfig
from rlgraph.passes.placement.plan_from_search import plan_from_search
from rlgraph.passes.placement.query import (
    PlacementQuery,
    decomposed_problems,
    is_small,
    make_problem,
    queries_with_other_engines,
    without_device_pools,
)
from rlgraph.passes.placement.search.allocation_boxes import AllocationBoxes, Box
from rlgraph.passes.placement.search.colocation import Blocks
from rlgraph.passes.placement.search.decompositions import Decompositions
from rlgraph.passes.placement.search.enlarge_kv_caches import enlarge_kv_caches
from rlgraph.passes.placement.search.fused_pipelines import Pieces
from rlgraph.passes.placement.search.host_memory import hosts_have_room
from rlgraph.passes.placement.search.incumbent import SearchResult
from rlgraph.passes.placement.search.memory_fit import MemoryFit
from rlgraph.passes.placement.search.no_plan_errors import no_plan_diagnostics
from rlgraph.passes.placement.search.offload import partitions_worth_offloading
from rlgraph.passes.placement.search.partitions import component_partitions, distinct_partitions
from rlgraph.passes.placement.search.problem import PlacementProblem
from rlgraph.passes.placement.search.progress import UNLIMITED, OutOfTime, Work
from rlgraph.passes.placement.search.search import MOST_WORK, PATIENCE, Fuse, Search
from rlgraph.passes.placement.smaller_questions import smaller_questions

SLEEPERS = 128
"""Devices up to which plans that offload models are searched although something fits without: on 1,024 that search
takes as long again as the one without."""
ASLEEP = 0.01
"""The share of a step by which a plan that offloads models has to be faster than one that does not."""

NEAR = 0.01
"""How far from the best plan that of a larger problem than `SMALL` may be, as a share."""

JOINED = 3
"""Components of a `SMALL` problem up to which pools over several node groups are searched: PPO's five take six times as
long with them."""

LESS_WORK = 0.25
"""The work of a search for another plan beside the first one, as a share of that one's."""

FAR = 0.1
"""The gap of a plan above which the work of another one's search is too little: it gets that of the first one."""

SPARE = 0.01
"""The share of its seconds, or price, by which a plan has to be better to be accepted with less memory left than the
estimate may be off."""


@dataclass(frozen=True)
class PlacementChoice:
    """A plan, and what it was chosen from."""

    plan: Plan
    search_result: SearchResult
    problem: PlacementProblem
    question: PlacementQuery
    simulated_step_s: float | None = None
    """The seconds of a step by the simulator, if it was run already."""
    awake: PlacementChoice | None = None
    """The best one in which no models are offloaded, of one in which some are although it would fit without."""

    @property
    def model_configs(self) -> dict[str, ModelConfig]:
        """The models that something is computed with."""
        return {component.model_name: component.config for component in self.problem.components}


def choose_placement(question: PlacementQuery) -> PlacementChoice | None:
    """Return the best plan; None where nothing fits. Raises ProgramError where the time is over before there is a
    plan."""
    return _choose(question, question.search_seconds, Search.run)


def choose_with_offload(question: PlacementQuery, awake: PlacementChoice) -> PlacementChoice:
    """Return the best plan where models may be offloaded: another one than `awake`, in which none are, only if it is
    faster by `ASLEEP`. The bound holds for both. Only those partitions are searched in which bounds leave a chance of
    that."""
    problem, found = awake.problem, awake.search_result
    small, ends = is_small(problem, question), monotonic() + question.search_seconds
    problems = decomposed_problems(replace(question, offload=False))[1] if small else [problem]
    together = Decompositions(problems) if len(problems) > 1 else None
    # A search that has ended with its work leaves none for another one: only the bound is told.
    tired = not small and problem.options.work_done > _most_work(question).near
    try:
        could, bound, sizes = partitions_worth_offloading(
            problems[0],
            candidate_partitions(problems[-1], question, together.reader_components if together else ()),
            found,
            # How far the plan of a small problem is from any other is told as near as bounds do.
            0.0 if small else _asleep(question),
            question.search_seconds,
            fuse_mode(problem, question),
            question.control,
            _most_work(question, LESS_WORK / 2 if tired else LESS_WORK),
            together,
            tired,
        )
    except OutOfTime:
        # Nothing is proven of them.
        could, bound, sizes = {}, 0.0, {}
    only = [blocks for blocks, least in could.items() if least < (1 - _asleep(question)) * found.value]
    bound = min(found.bound, bound, *(least for blocks, least in could.items() if blocks not in only))
    awake = replace(awake, search_result=replace(found, bound=bound))
    seconds = question.control.remaining_seconds(ends)
    if not only or seconds <= 0 or tired:
        return replace(awake, search_result=replace(found, bound=min([bound, *could.values()])))
    # What the first search has left of its work.
    share = max(LESS_WORK, 1 + LESS_WORK - problem.options.work_done / MOST_WORK)
    offloaded = _choose(question, seconds, Search.run, awake, only, share, within=sizes)
    if offloaded is not None and offloaded.search_result.value < (1 - ASLEEP) * awake.search_result.value:
        return replace(offloaded, awake=awake)
    bound = offloaded.search_result.bound if offloaded is not None else awake.search_result.bound
    return replace(awake, search_result=replace(awake.search_result, bound=min(awake.search_result.bound, bound)))


def choose_before_deadline(ends: float, question: PlacementQuery) -> PlacementChoice | None:
    """Return the best plan as one of several searches that end together; raise OutOfTime where that is too early for a
    plan."""
    return _choose(question, ends - monotonic(), Search.run_or_time_out, share=LESS_WORK, far=1.0)


def choose_below(ends: float, question: PlacementQuery, known: PlacementChoice, value: float) -> PlacementChoice | None:
    """Return the best plan if what is minimized is less than `value`, else None, which takes less time than a search
    without it: what cannot be that good is left out. known: the plan that is taken otherwise, of another question.
    Raises OutOfTime where the time is over."""
    rival = replace(known, search_result=replace(known.search_result, value=value))
    found = _choose(question, ends - monotonic(), Search.run_or_time_out, rival, share=LESS_WORK, margin=0.0)
    return None if found is None or found.search_result.options is known.search_result.options else found


def _choose(
    question: PlacementQuery,
    seconds: float,
    how: Callable[[Search], SearchResult | None],
    incumbent: PlacementChoice | None = None,
    only: Sequence[Blocks] | None = None,
    share: float = 1.0,
    far: float = 0.0,
    margin: float | None = None,
    within: Mapping[Blocks, Box] = MappingProxyType({}),
) -> PlacementChoice | None:
    """Return the best plan that `how` finds.

    incumbent: a plan for another question that has to be beaten by `margin`, `_asleep` if that is None; it is returned
    with the bound of both if it is not. only: the partitions to search, if not all. share: of the work that a search
    may do. far: as `_most_work` has it. within: as `Search` has it.
    """
    questions, problems = decomposed_problems(question)
    first, gap, spare = problems[0], _gap(problems[0], question), _spare(question)
    together = Decompositions(problems) if len(problems) > 1 else None
    searched = only or candidate_partitions(problems[-1], question, together.reader_components if together else ())
    to_beat = None if incumbent is None else incumbent.search_result
    fuse, patience = fuse_mode(first, question), _patience(question)
    work, nodes = _most_work(question, share, far), question.most_nodes
    margin = _asleep(question) if margin is None else margin
    control = question.control
    search = Search(
        *(first, searched, gap, seconds, spare, together, fuse, to_beat, margin, patience, control, work, nodes, within)
    )
    result = how(search)
    if result is None:
        return None
    if incumbent is not None and result.options is incumbent.search_result.options:
        return replace(
            incumbent,
            search_result=replace(incumbent.search_result, bound=min(incumbent.search_result.bound, result.bound)),
        )
    problem, chosen = problems[result.problem_index], questions[result.problem_index]
    result = replace(_settled(problem, result), problem_index=0)
    return PlacementChoice(plan_from_search(chosen, problem, result), result, problem, chosen)


def no_plan_error(question: PlacementQuery) -> ProgramError:
    """Return the error that says why nothing fits, and what would, as far as that is found within `search_seconds`.
    The clusters that are proposed need no offloading."""
    without, ends = replace(question, offload=False), monotonic() + question.search_seconds
    plain = replace(without, host_optimizer=False)

    def has_fitting_plan(tried: PlacementQuery) -> bool:
        return any(any_plan_fits(variant, ends) for variant in (tried, *queries_with_other_engines(tried)))

    return ProgramError(
        no_plan_diagnostics(
            make_problem(without),
            question.schedule,
            lambda cluster: has_fitting_plan(replace(plain, cluster=cluster)),
            lambda: has_fitting_plan(replace(plain, schedule=without_device_pools(question.schedule))),
            [(said, partial(has_fitting_plan, changed)) for said, changed in smaller_questions(question)],
            [make_problem(variant) for variant in queries_with_other_engines(without)],
            lambda: has_fitting_plan(replace(question, shares_processes=False)),
        )
    )


def search_before_deadline(
    ends: float, problem: PlacementProblem, question: PlacementQuery, only: Sequence[Blocks]
) -> SearchResult | None:
    """Return the best plan of some partitions, by one of several searches that end together; raise OutOfTime where that
    is too early for a plan."""
    gap, spare, fuse = _gap(problem, question), _spare(question), fuse_mode(problem, question)
    search = Search(
        problem,
        only,
        gap,
        ends - monotonic(),
        spare,
        fuse=fuse,
        patience=_patience(question),
        control=question.control,
        most_work=_most_work(question, LESS_WORK),
        most_nodes=question.most_nodes,
    )
    result = search.run_or_time_out()
    return result and _settled(problem, result)


def _settled(problem: PlacementProblem, result: SearchResult) -> SearchResult:
    """Return the plan with caches that fill the memory left, and with the seconds of the final lists where trainings
    share a pipeline."""
    result = enlarge_kv_caches(problem, result)
    return with_shared_pipelines(problem, result, result.pieces) if result.pieces else result


def with_shared_pipelines(problem: PlacementProblem, found: SearchResult, pieces: Pieces) -> SearchResult:
    """Return the plan with these trainings sharing pipelines."""
    seconds = problem.step_seconds_with_options(found.blocks, found.options, pieces)
    value = problem.objective_value(seconds, found.blocks, found.devices)
    bound = found.bound if found.before_fusing else min(found.bound, value)
    return replace(found, seconds=seconds, value=value, bound=bound, pieces=pieces)


def choose_unfused(choice: PlacementChoice, ends: float) -> PlacementChoice | None:
    """Return the best plan in which no trainings share a pipeline, which may be known; of one whose fused trainings
    have heterogeneous meshes, the one before these were tried."""
    if choice.search_result.before_fusing is None:
        return choose_placement(replace(choice.question, fuse=False, search_seconds=ends - monotonic()))
    result = enlarge_kv_caches(choice.problem, choice.search_result.before_fusing)
    return replace(choice, plan=plan_from_search(choice.question, choice.problem, result), search_result=result)


def _gap(problem: PlacementProblem, question: PlacementQuery) -> float:
    """Return how far from the best plan is near enough, as a share."""
    if question.search_gap is not None:
        return question.search_gap
    return 0.0 if is_small(problem, question) else NEAR


def _patience(question: PlacementQuery) -> float:
    """Return the patience of a search: a user who sets `search_gap` waits for it."""
    return PATIENCE if question.search_gap is None else inf


def _most_work(question: PlacementQuery, share: float = 1.0, far: float = 0.0) -> Work:
    """Return the work of a search, or a share of it: a user who sets `search_gap` or `search_seconds` waits. far: the
    share for a search whose plan has a gap larger than `FAR` after that, if it is more."""
    if question.search_gap is not None or question.search_seconds < inf:
        return UNLIMITED
    return Work(share * MOST_WORK, max(share, far) * MOST_WORK, FAR)


def fuse_mode(problem: PlacementProblem, question: PlacementQuery) -> Fuse:
    """Return in which plans trainings may share pipelines."""
    return "all" if is_small(problem, question) else "last"


def _spare(question: PlacementQuery) -> float:
    """Return the share by which a plan with little memory left has to be better: a user who asks for the very best gets
    it, however full it is."""
    return SPARE if question.search_gap is None else min(SPARE, question.search_gap)


def _asleep(question: PlacementQuery) -> float:
    """Return the share by which a plan that offloads models has to be faster to be searched for: how near the very best
    is to a plan without is told to a user who asks for it."""
    return ASLEEP if question.search_gap is None else min(ASLEEP, question.search_gap)


def candidate_partitions(
    problem: PlacementProblem, question: PlacementQuery, unplaced: Collection[int] = ()
) -> list[Blocks]:
    """Return every partition that the schedule allows. unplaced: components that get no pool yet."""
    fixed = [(pool.name, pool.devices) for pool in question.schedule.pools if pool.devices]
    over = is_small(problem, question) and len(problem.components) <= JOINED
    every = component_partitions(problem.components, question.cluster, fixed, unplaced, over)
    partitions = list(distinct_partitions(every, problem.tasks, problem.components))
    together = [blocks for blocks in partitions if not _are_apart(problem, blocks)]
    # A schedule that keeps them apart is refused where the plan is made.
    return together or partitions


def _are_apart(problem: PlacementProblem, blocks: Blocks) -> bool:
    """Return whether components that share processes have pools of their own."""
    pools: dict[SharedWork | None, set[int]] = {}
    for number, block in enumerate(blocks):
        for component in block.components:
            pools.setdefault(problem.components[component].shared, set()).add(number)
    return any(len(found) > 1 for shared, found in pools.items() if shared)


def any_plan_fits(question: PlacementQuery, ends: float) -> bool:
    """Return whether a plan fits; false where none with models that sleep was seen, of which not all are looked at.
    Raises OutOfTime where that is not asked before a monotonic time."""
    if question.control.remaining_seconds(ends) <= 0:
        raise OutOfTime
    problem = make_problem(question)
    candidates = candidate_partitions(problem, question)
    fitting = MemoryFit(problem, AllocationBoxes(problem.cluster, candidates)).fitting_plan(candidates)
    if fitting is None:
        return False
    blocks, devices, options = fitting
    return hosts_have_room(problem, blocks, devices, [options[number] for number in sorted(options)])
