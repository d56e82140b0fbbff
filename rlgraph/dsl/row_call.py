"""Checks `row(a, b, ...)`: rows made of pieces behind one another."""

from __future__ import annotations

from rlgraph.dsl import tree
from rlgraph.dsl.braced_texts import plain_text_error
from rlgraph.dsl.context import Context
from rlgraph.dsl.nodes import emit_node, unique_name
from rlgraph.dsl.scope import TableValue, describe_meaning
from rlgraph.ir.graph import Node, Ref, Value

_EXAMPLE = "`row(rollout.hint, rollout)`: a prompt, and the tokens that were sampled"


def emit_row(context: Context, expr: tree.Call, hint: str) -> TableValue:
    """Emit `row(TEXTS..., TABLE)`: the tokens of a table's rows behind another prompt, on the axes of the table."""
    if len(expr.args) < 2 or expr.options:
        raise context.statement_error("E0405", "`row` takes two pieces or more", expr.span, _EXAMPLE)
    *before, last = expr.args
    table = context.evaluate(last)
    if not isinstance(table, TableValue) or table.type.token is None:
        message = f"a row ends with the tokens of a table, and this is {describe_meaning(table)}"
        raise context.statement_error("E0890", message, last.span, _EXAMPLE)
    pieces = tuple(_piece(context, piece, table) for piece in before)
    value = Value(unique_name(context, hint or "row"), table.type)
    emit_node(context, Node("row", (table.name, *pieces), (value,), span=expr.span))
    return TableValue(value.name, table.type)


def _piece(context: Context, syntax: tree.Expr, table: TableValue) -> str:
    """Return the value of a piece that stands before the tokens: texts or messages, one of each row."""
    meaning = context.evaluate(syntax)
    if isinstance(meaning, TableValue) and meaning.type.token is None:
        meaning = context.evaluate(tree.Attribute(syntax, "prompt", syntax.span, syntax.span))
    if error := plain_text_error(context, syntax, meaning):
        raise error
    if not isinstance(meaning, Ref) or meaning.type.axis is None or meaning.type.dtype not in ("text", "any"):
        message = f"before the tokens stand texts or messages, and this is {describe_meaning(meaning)}"
        hint = f"`{syntax.span.covered_text}.text` is its text" if isinstance(meaning, TableValue) else _EXAMPLE
        raise context.statement_error("E0891", message, syntax.span, hint)
    if not table.type.axis.is_within(meaning.type.axis):
        message = (
            f"a piece has a text for each row of [{table.type.axis.label}], and this is {describe_meaning(meaning)}"
        )
        raise context.statement_error("E0301", message, syntax.span, "choose one of them, with `pick`")
    return meaning.name
