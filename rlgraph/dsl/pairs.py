"""Checks pairs of rows: `pairs(rollout, by=prompts)`, and what the other row of a pair has."""

from __future__ import annotations

from rlgraph.dsl import tree
from rlgraph.dsl.context import Context
from rlgraph.dsl.names import axis_named
from rlgraph.dsl.nodes import emit_node, limit_depth, materialize, new_axis, unique_name
from rlgraph.dsl.scope import (
    OptionalValue,
    PairsValue,
    TableValue,
    UnavailableName,
    describe_meaning,
)
from rlgraph.dsl.values import evaluate_value
from rlgraph.errors import Span
from rlgraph.ir.graph import Apply, Expr, Node, Ref, Value
from rlgraph.ir.types import Axis, Tensor
from rlgraph.ops import infer_type

_FORM = "`pairs(rollout, by=prompts)`"


def emit_pairs(context: Context, expr: tree.Call, hint: str) -> PairsValue:
    """Emit `pairs(rollout, by=prompts)`: an axis of ordered pairs of rows, which lie in the first row of the pair."""
    context.refuse_in_train("pairs", expr.span, "move it above `train`, and compare the pairs in it")
    options = {option.name: option for option in expr.options}
    if len(expr.args) != 1 or [*options] != ["by"]:
        message = "`pairs` takes a table, and a table whose rows have the pairs in them"
        raise context.statement_error("E0412", message, expr.span, _FORM)
    table, by = context.evaluate(expr.args[0]), options["by"].value
    if not isinstance(table, TableValue):
        message = f"`pairs` takes a table, and this is {describe_meaning(table)}"
        raise context.statement_error("E0412", message, expr.args[0].span, _FORM)
    rows = table.type.axis
    group = axis_named(context, by) if isinstance(by, tree.Name) else None
    if group is None or group.key == rows.key or not rows.is_within(group):
        message = f"`by=` takes a table that the rows of `{expr.args[0].span.covered_text}` lie in"
        outer = [axis.name for axis in rows.path_to_root()][1:]
        advice = f"`by={outer[0]}`" if outer else "sample more than one row for each prompt: `n=4`"
        raise context.statement_error("E0412", message, by.span, advice)
    label = unique_name(context, hint or "pairs")
    kind = Tensor("int", new_axis(context, label, rows))
    node = Node("pairs", (table.name,), (Value(label, kind),), (("axis", group.key),), span=expr.span)
    emit_node(context, node)
    return PairsValue(Ref(label, kind, expr.span), group)


def other_expr(context: Context, expr: tree.Call, pairs: PairsValue) -> Expr | OptionalValue:
    """Return `p.other(score)`: for each pair what the second row has."""
    assert isinstance(expr.func, tree.Attribute)
    if expr.func.name != "other":
        hint = "a value of the first row is it as it stands: `score > p.other(score)`"
        raise context.statement_error("E0205", f"pairs cannot `{expr.func.name}`", expr.func.name_span, hint)
    if len(expr.args) != 1 or expr.options:
        raise context.statement_error("E0405", "`other` takes one value", expr.span, "`p.other(score)`")
    value = evaluate_value(context, expr.args[0])
    axis = pairs.offset.type.axis
    assert axis is not None and axis.parent is not None
    if value.type.axis is None or not axis.parent.is_within(value.type.axis) or value.type.dtype == "row":
        inner = value.type.axis is not None and value.type.axis.inner
        meaning = OptionalValue(value.expr, value.given) if isinstance(value, OptionalValue) else value
        message = f"these are pairs of [{axis.parent.label}], and this is {describe_meaning(meaning)}"
        hint = f"reduce it first: `sum(x, {value.type.axis.name})`" if inner and value.type.axis else ""
        raise context.statement_error("E0413", message, expr.args[0].span, hint)
    if not isinstance(value, OptionalValue):
        return _of_other(context, value, pairs, expr.span)
    given = [_of_other(context, ref, pairs, expr.span) for ref in value.given]
    names = [Ref(materialize(context, one, "given"), one.type, expr.span) for one in given]
    return OptionalValue(_of_other(context, value.expr, pairs, expr.span), tuple(names))


def _of_other(context: Context, value: Expr, pairs: PairsValue, span: Span) -> Expr:
    """Return a value of rows as one of pairs: that of the second row."""
    if pairs.group.is_within(value.type.axis):
        return value  # Both rows have the same.
    kind = infer_type("other", [value.type, pairs.offset.type], pairs.group)
    result = Apply("other", (value, pairs.offset), kind, pairs.group.key, context.call_site or span)
    return limit_depth(context, result)


def drop_pairs(context: Context, axis: Axis, reason: str, span: Span, *, whole: bool = False) -> None:
    """Take their meaning from names of pairs, where rows of an axis are chosen. whole: rows that lie in one row of it
    stay together, so that pairs of such rows keep theirs, and after the loop all names have theirs again."""
    for word, meaning in list(context.block.scope.items()):
        if not isinstance(meaning, PairsValue):
            continue
        pairs_axis = meaning.offset.type.axis
        assert pairs_axis is not None
        if pairs_axis.is_within(axis) and not (whole and meaning.group.is_within(axis)):
            context.block.scope[word] = dropped = UnavailableName(f"`{word}` {reason}", span)
            if whole:
                context.block.whole_again[word] = dropped
