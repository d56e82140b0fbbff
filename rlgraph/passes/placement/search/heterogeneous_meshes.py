"""Trainings that share a pipeline with heterogeneous meshes, in the pools of a plan that was found.

The search itself compares plans whose trainings of one pipeline have the same mesh, for which it has bounds. Others
are tried at the end, with all else of the plan as it is, since there are far too many pairs of meshes to search.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import chain, islice, product
from operator import itemgetter

from rlgraph.ir.mesh import Mesh
from rlgraph.ir.shared_pipelines import stage_misfit
from rlgraph.passes.cost.fused_pipelines import estimated_seconds, lower_bound_seconds
from rlgraph.passes.cost.peak_memory import usable_device_bytes
from rlgraph.passes.placement.search.host_memory import hosts_have_room
from rlgraph.passes.placement.search.incumbent import Incumbent, SearchResult
from rlgraph.passes.placement.search.option import Option
from rlgraph.passes.placement.search.problem import PlacementProblem
from rlgraph.passes.placement.search.progress import SearchProgress

OWN = 48
"""The number of options of each training that are looked at, the shortest first."""
MOST = 64
"""The number of combinations of these that are looked at."""


def try_heterogeneous_meshes(
    problem: PlacementProblem, found: SearchResult, watch: SearchProgress, spare: float
) -> SearchResult:
    """Return a better plan in which trainings with heterogeneous meshes share a pipeline, or else the plan `found`.
    spare: as `Incumbent` has it."""
    seconds = problem.step_seconds_with_options(found.blocks, found.options, found.pieces)
    incumbent = Incumbent(0.0, spare)
    incumbent.keep_if_better(
        replace(found, seconds=seconds, value=problem.objective_value(seconds, found.blocks, found.devices))
    )
    for block in found.blocks:
        for pieces in problem.fusing.possible_pipeline_sharings([block.components]):
            for plan in _shared_plans(problem, found, pieces[0], incumbent) if len(pieces) == 1 else ():
                watch.check_time(lambda: (found.value, found.gap))
                incumbent.keep_if_better(plan)
    best = incumbent.best
    return best if best is not None and best.before_fusing is found else found


def _shared_plans(
    problem: PlacementProblem, found: SearchResult, piece: Sequence[int], incumbent: Incumbent
) -> Iterator[SearchResult]:
    """Yield the plans with one pipeline of these components, all else as it is, that beat the best one of
    `incumbent`."""
    [(block, devices)] = [
        pool for pool in zip(found.blocks, found.devices, strict=True) if piece[0] in pool[0].components
    ]
    options_of: list[list[tuple[float, Mesh, Option]]] = []
    for number in piece:
        splits = problem.options.pipeline_sharing_options(
            problem.components[number], problem.pool_node_group(block), devices
        )
        shortest = sorted(
            ((_least(option), option) for option in chain.from_iterable(splits.values())), key=itemgetter(0)
        )
        options_of.append([(seconds, option.deployment.mesh, option) for seconds, option in shortest[:OWN]])
    # Trainings that compute longer than they take now are no better.
    most = sum(sum(found.options[number].seconds) for number in piece)
    others = (other for other in found.pieces if {*other}.isdisjoint(piece))
    pieces = (tuple(piece), *others)
    for combination in islice(_shortest_combinations(options_of, most), MOST):
        chosen = dict(enumerate(found.options)) | dict(zip(piece, combination, strict=True))
        options = tuple(chosen[number] for number in range(len(chosen)))
        if not _fits(problem, found, options, piece):
            continue
        for pipeline_seconds in (lower_bound_seconds, estimated_seconds, None):
            seconds = problem.step_seconds_with_options(
                found.blocks, options, pieces, *([pipeline_seconds] if pipeline_seconds else [])
            )
            value = problem.objective_value(seconds, found.blocks, found.devices)
            if incumbent.best is not None and value >= incumbent.best.value:
                break
        else:
            yield replace(
                found,
                options=options,
                seconds=seconds,
                value=value,
                is_tight=problem.is_memory_tight(found.blocks, options),
                pieces=pieces,
                before_fusing=found,
            )


def _shortest_combinations(
    options_of: Sequence[Sequence[tuple[float, Mesh, Option]]], most: float
) -> Iterator[list[Option]]:
    """Yield combinations of an option of each training that take less than `most` seconds together, whose meshes differ
    and share stages, the shortest first. options_of: their seconds and meshes, the shortest first."""
    by_mesh: list[dict[Mesh, list[tuple[float, int, Option]]]] = []
    for options in options_of:
        by_mesh.append({})
        for place, (seconds, mesh, option) in enumerate(options):
            by_mesh[-1].setdefault(mesh, []).append((seconds, place, option))
    heap: list[tuple[float, list[int], list[int], list[list[tuple[float, int, Option]]]]] = []

    def push(choices: list[list[tuple[float, int, Option]]], at: list[int]) -> None:
        picked = [options[index] for options, index in zip(choices, at, strict=True)]
        seconds = sum(taken for taken, *_ in picked)
        if seconds < most:
            # Of equally long ones that with the shorter first options comes first.
            heappush(heap, (seconds, [place for _, place, _ in picked], at, choices))

    for meshes in product(*by_mesh):
        if _differ(meshes):
            push([options[mesh] for options, mesh in zip(by_mesh, meshes, strict=True)], [0] * len(meshes))
    while heap:
        _, _, at, choices = heappop(heap)
        yield [options[index][2] for options, index in zip(choices, at, strict=True)]
        # Each combination is reached once: only those after the last one that is not the first go on.
        last = max((place for place, index in enumerate(at) if index), default=0)
        for place in range(last, len(at)):
            if at[place] + 1 < len(choices[place]):
                push(choices, [*at[:place], at[place] + 1, *at[place + 1 :]])


def _least(option: Option) -> float:
    """Return the seconds of an option's tasks, where others work while its stages wait."""
    return sum(task_seconds for task_seconds, *_ in option.least_pipeline_seconds)


def _differ(splits: Sequence[Mesh]) -> bool:
    """Return whether models have stages in common with meshes that differ."""
    differ = len(set(splits)) > 1 and len({split.rank_count for split in splits}) == 1
    return differ and not stage_misfit(splits)


def _fits(problem: PlacementProblem, found: SearchResult, options: Sequence[Option], piece: Sequence[int]) -> bool:
    """Return whether a plan has room, also for what each of a pipeline's processes keeps in flight, about as much as
    alone."""
    if not hosts_have_room(problem, found.blocks, found.devices, options):
        return False
    for block in found.blocks:
        chosen, island = [options[number] for number in block.components], problem.pool_node_group(block)
        shared = sum(max(options[number].active) for number in piece if number in block.components)
        resident = sum(option.resident for option in chosen)
        if not problem.can_share_pool(chosen, island) or resident + shared > usable_device_bytes(
            island, problem.constants
        ):
            return False
    return True
