"""Checks what rows are grouped by: the rows of a table, equal values, or several of these together."""

from __future__ import annotations

from rlgraph.dsl import tree
from rlgraph.dsl.context import Context
from rlgraph.dsl.names import AXES, axis_named
from rlgraph.dsl.nodes import materialize
from rlgraph.dsl.scope import (
    KeyValue,
    Meaning,
    NamedValues,
    OptionalValue,
    PairsValue,
    TableValue,
    describe_meaning,
)
from rlgraph.dsl.values import missing_value_error
from rlgraph.errors import did_you_mean
from rlgraph.ir.graph import Apply, Expr, Ref
from rlgraph.ir.types import Axis, Tensor, inner_of_two_axes

_WHAT = "a table, a value with an entry for each row, or several: `key(prompts, rollout.level)`"


def key_expr(context: Context, expr: tree.Call) -> KeyValue:
    """Return `key(prompts, rollout.state)`: rows are a group that lie in one row of each table, with equal values."""
    if not expr.args or expr.options:
        raise context.statement_error("E0405", "`key` takes tables and values", expr.span, f"it takes {_WHAT}")
    keys = [_key(context, arg, context.evaluate(arg)) for arg in expr.args]
    within: Axis | None = None
    inner: Axis | None = None
    for key, syntax in zip(keys, expr.args, strict=True):
        for axis in (key.within, *(value.type.axis for value in key.values)):
            try:
                inner = inner_of_two_axes(inner, axis)
                within = inner_of_two_axes(within, axis) if axis is key.within else within
            except ValueError:
                assert inner and axis
                message = f"[{inner.label}] and [{axis.label}] are no key together: neither lies in the other"
                hint = "a key is of rows that lie in one another: a prompt's samples, a sample's tokens"
                raise context.statement_error("E0211", message, syntax.span, hint) from None
    values = tuple(value for key in keys for value in key.values)
    # Rows of the table alone differ in nothing that lies around them.
    return KeyValue(within, tuple(v for v in values if within is None or not within.is_within(v.type.axis)))


def _key(context: Context, syntax: tree.Expr, meaning: Meaning) -> KeyValue:
    """Return what a table or a value is as a key."""
    if isinstance(meaning, KeyValue):
        return meaning
    if isinstance(meaning, TableValue):
        return KeyValue(meaning.type.axis)
    if isinstance(meaning, PairsValue):
        return KeyValue(meaning.offset.type.axis)
    value = meaning.first if isinstance(meaning, NamedValues) else meaning
    if isinstance(value, OptionalValue):
        raise missing_value_error(context, syntax, value)
    if not isinstance(value, (Ref, Apply)) or value.type.axis is None or value.type.dtype == "row":
        message = f"rows cannot be grouped by this: it is {describe_meaning(meaning)}"
        raise context.statement_error("E0211", message, syntax.span, f"`by=` takes {_WHAT}")
    return KeyValue(None, (Ref(materialize(context, value, "key"), value.type, syntax.span),))


def evaluate_groups(context: Context, syntax: tree.Expr, source: Axis) -> KeyValue:
    """Return what `by=` names, for a value of an axis."""
    key = _named_groups(context, syntax, source)
    inner = key_axis(key)
    if inner is None or source.is_within(inner):
        return key
    if not key.values:
        rows = [axis.name for axis in source.path_to_root() if not axis.inner]
        raise context.statement_error(
            "E0303",
            f"this value has no `{syntax.span.covered_text}` to be grouped by; it is [{source.label}]",
            syntax.span,
            f"its rows lie in {', '.join(f'`{name}`' for name in rows)}",
        )
    message = f"this value is [{source.label}], and the key is of [{inner.label}]: its rows have no such key"
    if inner.is_within(source):
        hint = f"reduce the key to a value for each `{source.name}`: `max(x, by={source.row_axis.name})` for example"
    else:
        hint = f"a key is of rows that the value's rows lie in, such as a column of `{source.row_axis.name}`"
    raise context.statement_error("E0212", message, syntax.span, hint)


def _named_groups(context: Context, syntax: tree.Expr, source: Axis) -> KeyValue:
    """Return what an option means as groups."""
    if not isinstance(syntax, tree.Name):
        return _key(context, syntax, context.evaluate(syntax))
    meaning = context.block.scope.get(syntax.id)
    if isinstance(meaning, Ref) and (groups := context.groups(context, meaning, syntax.span)):
        return KeyValue(groups)
    if isinstance(meaning, (Ref, Apply, OptionalValue, NamedValues, KeyValue)):
        context.used.add(syntax.id)
        return _key(context, syntax, meaning)
    if syntax.id in AXES and syntax.id not in context.block.scope:
        return KeyValue(_axis_around(context, syntax, source))
    if meaning is None and syntax.id not in context.block.later:
        rows = [axis.name for axis in source.path_to_root() if not axis.inner]
        hint = did_you_mean(syntax.id, rows) or f"its rows lie in {', '.join(f'`{name}`' for name in rows)}"
        raise context.statement_error("E0201", f"nothing is called `{syntax.id}`", syntax.span, hint)
    return KeyValue(axis_named(context, syntax))


def _axis_around(context: Context, syntax: tree.Name, source: Axis) -> Axis:
    """Return the axis inside a row that `by=turn` names, in which the entries of `source` lie."""
    around = [axis for axis in source.path_to_root() if axis.inner and axis != source]
    named = next((axis for axis in around if axis.name == syntax.id), None)
    if named is not None:
        return named
    rows = source.row_axis.name
    if syntax.id == "token" or source.name == syntax.id:
        hint = f"`by={rows}` for example"
        raise context.statement_error("E0303", "`by=` takes the name of a table, or a key", syntax.span, hint)
    message = f"this value has no `{syntax.id}` to be grouped by; it is [{source.label}]"
    hint = f"tokens of episodes, which `interact` makes, lie in turns; `by={rows}` is by row"
    raise context.statement_error("E0214", message, syntax.span, hint)


def key_axis(key: KeyValue) -> Axis | None:
    """Return the axis whose rows have a key."""
    axis = key.within
    for value in key.values:
        axis = inner_of_two_axes(axis, value.type.axis)
    return axis


def grouping(key: KeyValue) -> tuple[Axis | None, list[Expr]]:
    """Return the axis by which an operation groups, and what it takes for it as last argument, if anything."""
    joined: Expr | None = None
    for value in key.values:
        one = Apply("key", (value,), Tensor("key", value.type.axis), None, value.span)
        if joined is None:
            joined = one
            continue
        inner = inner_of_two_axes(joined.type.axis, value.type.axis)
        joined = Apply("join", (joined, one), Tensor("key", inner), None, value.span)
    return key.within, [] if joined is None else [joined]
