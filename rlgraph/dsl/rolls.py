"""Checks what goes from row to row: `roll(rows.completion)`."""

from __future__ import annotations

from rlgraph.dsl import tree
from rlgraph.dsl.context import Context
from rlgraph.dsl.nodes import emit_node, materialize, unique_name
from rlgraph.dsl.scope import OptionalValue, describe_meaning
from rlgraph.dsl.values import missing_value_error
from rlgraph.ir.graph import Apply, Node, Ref, Value
from rlgraph.ir.types import Tensor

_FORM = "`roll(rows.completion)`"


def emit_roll(context: Context, expr: tree.Call, hint: str) -> Ref:
    """Emit `roll(x)`: for each row what the row before it has; the first one has that of the last."""
    if len(expr.args) != 1 or expr.options:
        raise context.statement_error("E0405", "`roll` takes one value of each row", expr.span, _FORM)
    context.refuse_in_train("roll", expr.span)
    [syntax] = expr.args
    value = context.evaluate(syntax)
    if isinstance(value, OptionalValue):
        raise missing_value_error(context, syntax, value)
    axis = value.type.axis if isinstance(value, Ref | Apply) else None
    if not isinstance(value, Ref | Apply) or axis is None or axis.inner or value.type.dtype in ("row", "key"):
        inner = axis is not None and axis.inner
        advice = f"reduce it first: `roll(sum(x, {axis.name}))`" if inner and axis else _FORM
        message = f"`roll` takes a value of each row, and this is {describe_meaning(value)}"
        raise context.statement_error("E0302", message, syntax.span, advice)
    name = materialize(context, value, "rolled")
    kind = Tensor(value.type.dtype, axis)
    label = unique_name(context, hint or "rolled")
    emit_node(context, Node("roll", (name,), (Value(label, kind),), span=expr.span))
    return Ref(label, kind, expr.span)
