"""The order in which rows begin to be generated, as a schedule says it, and which engines of a plan can follow it."""

from __future__ import annotations

from collections.abc import Iterator

from rlgraph.backends.enginespec.registry import engine, engines_by_preference
from rlgraph.errors import did_you_mean, quoted_list
from rlgraph.ir.graph import Program
from rlgraph.ir.plan import AdmissionOrder, Plan
from rlgraph.ir.schedule import Schedule
from rlgraph.ops.nodes import NODES
from rlgraph.passes.placement.tails import sampling_groups


def admission_orders(schedule: Schedule) -> tuple[AdmissionOrder, ...]:
    """Return the orders of admission of a schedule."""
    return tuple(AdmissionOrder(line.table, line.by, line.name) for line in schedule.admits)


def length_predictors(schedule: Schedule) -> tuple[str, ...]:
    """Return the functions of the program that predict the lengths of rows."""
    return tuple(line.name for line in schedule.admits if line.by == "function")


def admission_faults(admit: AdmissionOrder, plan: Plan, program: Program) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with an order of admission: a message and a hint."""
    for group in dict.fromkeys(sampling_groups(admit.table, plan, program)):
        if not engine(group.engine).longest_first:
            able = [spec.name for spec in engines_by_preference("generate") if spec.longest_first]
            message = f"`{group.engine}` begins with the rows of `{admit.table}` in an order of its own"
            yield message, f"sample with the engine {quoted_list(able, 'or')}"


def unknown_admission_names(admit: AdmissionOrder, program: Program) -> Iterator[tuple[str, str, str]]:
    """Yield the fields that name nothing in a plan that comes from elsewhere, each with a message and a hint."""
    generated = {
        node.name.split(".")[0]
        for phase in program.phases
        for node in phase.graph.walk()
        if NODES[node.op].generates and NODES[node.op].streams
    }
    if admit.table not in generated:
        yield (
            "table",
            f"no table that is generated is called `{admit.table:.60}`",
            did_you_mean(admit.table[:60], generated),
        )
    functions = [declared.name for declared in program.outside if declared.kind == "func"]
    if admit.by == "function" and admit.name not in functions:
        yield "name", f"no function is called `{admit.name:.60}`", did_you_mean(admit.name[:60], functions)
    if admit.by == "column" and not admit.name:
        yield "name", "a column has a name", "as it is in the data"
