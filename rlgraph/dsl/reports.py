"""Checks metrics: at once, or after the loop that they are about."""

from __future__ import annotations

from rlgraph.dsl import tree
from rlgraph.dsl.context import Context
from rlgraph.dsl.names import names_in
from rlgraph.dsl.nodes import emit_node, materialize, refuse_over_vocabulary
from rlgraph.dsl.scope import OptionalValue, StatementError
from rlgraph.dsl.values import evaluate_optional
from rlgraph.errors import Related
from rlgraph.ir.graph import Node


def emit_report(context: Context, statement: tree.Report) -> None:
    """Check `report kl = mean(...)`, at once or after the loop."""
    if context.block.defers:
        context.block.reports.append(statement)
        context.used.update(name.id for name in names_in(statement))
        return
    if context.block.sliced and context.block.conditional:
        raise context.statement_error(
            "E0886",
            "a metric of a loop is about all rows that it sees, and this would be about some of its slices",
            statement.span,
            "keep the number in a state, `last := ...`, and report that after the loop",
        )
    names, inputs, failed = [], [], False
    for item in statement.items:
        try:
            expr = evaluate_optional(context, item.value)
            refuse_over_vocabulary(context, expr)
            if expr.type.axis is not None or isinstance(expr, OptionalValue):
                shown = expr if isinstance(expr, OptionalValue) else expr.type
                raise context.statement_error(
                    "E0304",
                    f"a metric is one number, and `{item.name}` is {shown}",
                    item.value.span,
                    "reduce it: `mean(...)`",
                )
            if item.name in ("step", "seconds"):
                raise context.statement_error(
                    "E0203", f"every run reports `{item.name}` by itself", item.name_span, "choose another name"
                )
            if item.name in context.phase.reported:
                related = tuple(
                    Related(span, "the first one") for name, span in context.phase.reported.items() if name == item.name
                )
                raise context.statement_error(
                    "E0203", f"there is a metric `{item.name}` already", item.name_span, related=related
                )
        except StatementError:
            failed = True
            continue
        if item.name in ("type", "phase"):
            context.report(
                "W0203",
                f"a line of the metrics can have a field `{item.name}` already: there this one is `report.{item.name}`",
                item.name_span,
                "choose another name",
            )
        context.phase.reported[item.name] = item.name_span
        names.append(item.name)
        inputs.append(materialize(context, expr, f"report.{item.name}"))
    emit_node(context, Node("report", tuple(inputs), (), (("names", tuple(names)),), span=statement.span))
    if failed:
        raise StatementError
