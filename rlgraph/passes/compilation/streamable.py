"""Which tables may stream without a line in the schedule, and what that promises, without the simulator."""

from __future__ import annotations

from dataclasses import replace

from rlgraph.backends.enginespec.registry import engine
from rlgraph.ir.schedule import StreamLine
from rlgraph.ops.nodes import NODES
from rlgraph.passes.cost.tasks import main_phase
from rlgraph.passes.placement.choose import PlacementChoice
from rlgraph.passes.placement.next_best_plans import ideal_streaming_objective_value
from rlgraph.passes.placement.query import PlacementQuery
from rlgraph.passes.placement.tails import sampling_groups

PROMISED = 0.06
"""The share that streams must save, of a problem that is not small, if all streaming work of the plan began with the
first rows: the look takes two seconds, and of plans that promised less none was better by 5%."""


def streamable_tables(choice: PlacementChoice) -> list[str]:
    """Return the sampled tables of a step that the schedule does not stream but their engines could."""
    asked = choice.question
    streamed = {line.table for line in asked.schedule.streams}
    nodes = main_phase(asked.program).graph.walk()
    tables = dict.fromkeys(node.name.split(".")[0] for node in nodes if NODES[node.op].generates)
    return [
        table
        for table in tables
        if table not in streamed
        and all(engine(group.engine).streams for group in sampling_groups(table, choice.plan, asked.program))
    ]


def question_with_streams(choice: PlacementChoice) -> PlacementQuery | None:
    """Return the question of a choice as if its schedule streamed all tables that it can; None where no other can."""
    asked, tables = choice.question, streamable_tables(choice)
    lines = (*asked.schedule.streams, *(StreamLine(table) for table in tables))
    return replace(asked, schedule=replace(asked.schedule, streams=lines), offload=False) if tables else None


def streams_promise(choice: PlacementChoice) -> bool:
    """Return whether the plan of a choice would be better by `PROMISED` if all streaming work began with the first
    rows, whether there is room for that or not. Where rows stream no trainings share a pipeline."""
    question = question_with_streams(choice)
    if question is None:
        return False
    alone = replace(choice, question=question, search_result=replace(choice.search_result, pieces=()))
    return ideal_streaming_objective_value(alone) <= (1 - PROMISED) * choice.search_result.value
