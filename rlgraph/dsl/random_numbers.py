"""Checks random numbers, which belong to rows."""

from __future__ import annotations

from rlgraph.dsl import tree
from rlgraph.dsl.context import Context
from rlgraph.dsl.nodes import emit_node, unique_name
from rlgraph.dsl.scope import TableValue, describe_meaning
from rlgraph.ir.graph import Node, Ref, Value
from rlgraph.ir.types import Tensor


def emit_uniform(context: Context, expr: tree.Call, hint: str) -> Ref:
    """Emit `uniform(table)`: a random number for each row."""
    if len(expr.args) != 1 or expr.options:
        raise context.statement_error("E0405", "`uniform` takes one table", expr.span, "`uniform(rollout)`")
    context.refuse_in_train("uniform", expr.span)
    [syntax] = expr.args
    table = context.evaluate(syntax)
    if not isinstance(table, TableValue):
        message = f"`uniform` takes a table, for each row of which it draws, and this is {describe_meaning(table)}"
        axis = getattr(getattr(table, "type", None), "axis", None)
        advice = f"`uniform({axis.row_axis.name})`" if axis else "`uniform(rollout)`"
        raise context.statement_error("E0856", message, syntax.span, advice)
    label = unique_name(context, hint or "uniform")
    value = Value(label, Tensor("float", table.type.axis))
    emit_node(context, Node("uniform", (table.name,), (value,), (("key", label),), span=expr.span))
    return Ref(label, Tensor("float", table.type.axis), expr.span)
