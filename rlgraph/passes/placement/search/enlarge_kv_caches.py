"""Enlarges the caches of a plan that was found to what their rows can fill, where memory is left."""

from __future__ import annotations

from dataclasses import replace

from rlgraph.passes.cost.peak_memory import TIGHT, usable_device_bytes
from rlgraph.passes.placement.search.incumbent import SearchResult
from rlgraph.passes.placement.search.option import Option
from rlgraph.passes.placement.search.problem import PlacementProblem

NEAR = 1 << 20
"""The bytes that may be left."""


def enlarge_kv_caches(problem: PlacementProblem, found: SearchResult) -> SearchResult:
    """Return the plan with larger caches. The search uses the mean of lengths: with more room no row waits on a replica
    that has longer ones. No device gets tight by it."""
    options = list(found.options)
    for block in found.blocks:
        room = TIGHT * usable_device_bytes(problem.pool_node_group(block), problem.constants)
        for number in block.components:
            if options[number].strategy.caches:
                others = [options[other] for other in block.components if other != number]
                left = room - sum(other.resident for other in others)
                active = max((max(other.active, default=0.0) for other in others), default=0.0)
                options[number] = _enlarged(problem, number, options[number], left, active)
    if options == list(found.options):
        return found
    seconds = problem.step_seconds_with_options(found.blocks, options, found.pieces)
    value = problem.objective_value(seconds, found.blocks, found.devices)
    bound = found.bound if found.before_fusing else min(found.bound, value)
    return replace(found, options=tuple(options), seconds=seconds, value=value, bound=bound)


def _enlarged(problem: PlacementProblem, number: int, option: Option, left: float, active: float) -> Option:
    """Return the option with the largest useful cache that fits into the bytes `left`, together with what others need
    while they work."""
    component, low = problem.components[number], option.deployment.kv_bytes
    high = int(problem.options.filled_cache_bytes(component, option.strategy.deployment, option.copies, longest=True))
    while high - low > NEAR:
        middle = (low + high) // 2
        larger = option.with_cache(middle)
        if larger.resident + max(active, *larger.active) <= left:
            option, low = larger, middle
        else:
            high = middle
    return option
