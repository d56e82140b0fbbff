"""What every stage of a pipeline does, messages too: the same wherever it is computed."""

from __future__ import annotations

from functools import lru_cache

from rlgraph.passes.pipelines.fuse import best_rule_schedule
from rlgraph.passes.pipelines.messages import Programs, add_transfers, make_stage_programs
from rlgraph.passes.pipelines.problem import PipelineProblem
from rlgraph.passes.pipelines.published_schedules import forward_entries, serial_lists


@lru_cache(maxsize=256)
def training_stage_programs(problem: PipelineProblem) -> Programs:
    """Return what every stage does to train the models: one alone by its published lists, several in one pipeline."""
    lists = best_rule_schedule(problem) if len(problem.models) > 1 else serial_lists(problem)
    return make_stage_programs(problem, lists)


@lru_cache(maxsize=256)
def forward_stage_programs(stages: int, micro_batches: int, chunks: int) -> Programs:
    """Return what every stage of one model does to compute its forwards alone."""
    entries = forward_entries(stages, micro_batches, chunks)
    return add_transfers([entries] * stages, [tuple(range(stages)) * chunks], lambda number, part: 1.0)
