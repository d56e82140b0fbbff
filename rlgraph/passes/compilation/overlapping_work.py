"""Whether the work of a plan overlaps that the search lays out in sequence."""

from __future__ import annotations

from collections import Counter
from typing import cast

from rlgraph.backends.enginespec.registry import engine
from rlgraph.ir.graph import Phase
from rlgraph.ir.types import StateHandle
from rlgraph.ops.nodes import NODES, concurrent_batches, model_of
from rlgraph.passes.cost.batch import total_rows
from rlgraph.passes.cost.tasks import main_phase
from rlgraph.passes.placement.choose import PlacementChoice

FEW_ROWS = 2048
"""Sampled rows of a step up to which tables may stream that no line names, where steps overlap."""


def has_overlapping_work(choice: PlacementChoice) -> bool:
    """Return whether work is done concurrently that the search lays out sequentially."""
    phase = main_phase(choice.question.program)
    ahead = any(
        concurrent_batches(node, node.attr("rows")) > 1
        for node in phase.graph.walk()
        if NODES[node.op].loop == "rounds"
    )
    return ahead or bool(choice.plan.blocks) or choice.problem.staleness_steps > 0 or _samples_together(choice, phase)


def has_few_rows(choice: PlacementChoice) -> bool:
    """Return whether so few rows are sampled in a step that to simulate several ways to stream them takes seconds."""
    sampled = (task for task in choice.problem.tasks if NODES[task.op].generates)
    return sum(total_rows(task.batches) * task.repetitions for task in sampled) <= FEW_ROWS


def _samples_together(choice: PlacementChoice, phase: Phase) -> bool:
    """Return whether a replica samples rows of several requests with the same weights concurrently."""
    types = phase.graph.value_types()
    requests = Counter((model_of(node), node.op) for node in phase.graph.walk() if NODES[node.op].generates)
    return any(
        engine(choice.plan.group_of_role(cast(StateHandle, types[weights]).name, op).engine).admits
        for (weights, op), count in requests.items()
        if count > 1
    )
