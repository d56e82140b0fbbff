"""The tails of a schedule: the replicas on which a plan finishes the last rows of a table."""

from __future__ import annotations

from collections.abc import Iterator

from rlgraph.backends.enginespec.registry import engine, engines_by_preference
from rlgraph.errors import quoted_list
from rlgraph.ir.graph import Program
from rlgraph.ir.plan import Group, Plan, TailMove
from rlgraph.ir.schedule import Schedule
from rlgraph.ir.types import is_model
from rlgraph.ops.nodes import NODES, placement_operation

UNDER = 0.2
"""The share of the rows that move where nobody says another one, and there is no cluster to choose by: RLHFuse's (arXiv
2409.13221, section 4)."""

ON = 4
"""One of this many replicas goes on then."""


def tail_moves_in_plan(schedule: Schedule, plan: Plan, program: Program) -> tuple[TailMove, ...]:
    """Return the tails of a schedule with the replicas of a plan, with `UNDER` and `ON` for what it does not say. Where
    it leaves the replicas to the plan and the plan has only one, the table has no tail."""
    tails = []
    for line in schedule.tails:
        copies = sampling_replica_count(line.table, plan, program)
        if copies == 1 and line.on is None:
            continue
        under = UNDER if line.under is None else line.under
        tails.append(TailMove(line.table, under, max(1, copies // ON) if line.on is None else line.on))
    return tuple(tails)


def tail_move_faults(tail: TailMove, plan: Plan, program: Program) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a tail: a message and a hint."""
    for group in dict.fromkeys(sampling_groups(tail.table, plan, program)):
        copies = group.mesh.axis_size("dp")
        if not engine(group.engine).streams:
            able = [spec.name for spec in engines_by_preference("generate") if spec.streams]
            message = f"`{group.engine}` hands the rows of `{tail.table}` on when all have ended: they have no tail"
            yield message, f"sample with the engine {quoted_list(able, 'or')}"
        elif copies <= tail.on:
            have = f"{copies} copies" if copies > 1 else "1 copy"
            message = f"`{group.name}` samples `{tail.table}` with {have}: no device becomes free with `on={tail.on}`"
            yield message, f"at most `on={copies - 1}`" if copies > 1 else "give it more devices, or leave `tail` out"


def sampling_replica_count(table: str, plan: Plan, program: Program) -> int:
    """Return the largest number of data-parallel replicas that sample a table."""
    return max(group.mesh.axis_size("dp") for group in sampling_groups(table, plan, program))


def sampling_groups(table: str, plan: Plan, program: Program) -> Iterator[Group]:
    """Yield the groups that sample a table."""
    for phase in program.phases:
        types = phase.graph.value_types()
        for node in phase.graph.walk():
            if NODES[node.op].generates and node.name.split(".")[0] == table:
                model = types[node.inputs[0]]
                assert is_model(model)
                yield plan.group_of_role(model.name, placement_operation(node.op))
