"""Writes the graph: names of values, axes and nodes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from rlgraph.dsl.context import ColumnSource, Context
from rlgraph.dsl.scope import Meaning, OptionalValue, VocabularyValue, is_over_vocabulary
from rlgraph.ir.graph import Apply, Expr, Let, Node, Ref, Value, tensor_node
from rlgraph.ir.types import Axis, Table, Type, axes_of
from rlgraph.ops import TENSOR

RESERVED = frozenset({"tensor", "per", "yield", "given", "true", "false", "null", "because", "to", "batch"})
"""Words of the graph's printed text: a value of that name gets a number."""

MOST_LEVELS = 64

_NUMBERED = re.compile(r"(\.\d+)+$")


def unique_name(context: Context, hint: str) -> str:
    """Return a name for a value that no other value of this phase has."""
    taken, base = context.phase.taken, _NUMBERED.sub("", hint)
    count = taken.get(base, 1 if base in RESERVED else 0) + 1
    taken[base] = count
    return base if count == 1 else f"{base}.{count}"


def next_state_value(context: Context, name: str, kind: Type) -> Value:
    """Return the next value of something that lives across steps."""
    taken = context.phase.taken
    count = taken.get(f"{name}@", -1) + 1
    taken[f"{name}@"] = count
    return Value(f"{name}@{count}", kind)


def new_axis(context: Context, name: str, parent: Axis | None, *, inner: bool = False, key: str = "") -> Axis:
    """Return a new axis; its key is the name, with a number if the key is taken."""
    wanted = key or name
    axis, count = Axis(wanted, name, parent, inner), 1
    # Phases may share an axis where it is the same one in both.
    while axis.key in context.phase.axis_keys or context.axes.get(axis.key, axis) != axis:
        count += 1
        axis = Axis(f"{wanted}.{count}", name, parent, inner)
    context.phase.axis_keys.add(axis.key)
    context.axes[axis.key] = axis
    return axis


def new_inner_axis(context: Context, name: str, table: str, parent: Axis) -> Axis:
    """Return a new axis of a table inside each of its rows."""
    return new_axis(context, name, parent, inner=True, key=f"{table}.{name}")


def table_on_axis(context: Context, table: Table, label: str, axis: Axis) -> Table:
    """Return the type of some rows of a table on another axis, with turns and tokens of their own; what lies on none of
    the table's axes stays where it is."""
    turn = new_inner_axis(context, "turn", label, axis) if table.turn else None
    token = new_inner_axis(context, "token", label, turn or axis)
    kind = replace(table, axis=axis, token=token, turn=turn)
    # A table without tokens has none to move.
    moved: dict[str, Axis] = {old.key: new for old, new in zip(axes_of(table), axes_of(kind), strict=False)}
    extra = [
        (name, replace(column, axis=moved.get(column.axis.key, column.axis) if column.axis else None))
        for name, column in table.extra
    ]
    return replace(kind, extra=tuple(extra))


def copy_column_sources(context: Context, renamed: Mapping[str, Value]) -> None:
    """Note for values that go on under other names, after a `keep` or a loop, of which tables they are columns."""
    sources = context.phase.column_sources
    for old, new in renamed.items():
        source = sources.get(old)
        table = None if source is None else renamed.get(source.table)
        if source is not None and table is not None and isinstance(table.type, Table):
            sources[new.name] = ColumnSource(table.name, table.type, source.name)


def emit_node(context: Context, node: Node) -> None:
    """Append a node to the block; the span of what a def computes is where the user called it."""
    context.block.nodes.append(replace(node, span=context.call_site) if context.call_site else node)


def materialize(context: Context, expr: Expr, hint: str) -> str:
    """Return the name of a value that holds the expression, which is emitted unless it has a name already."""
    refuse_over_vocabulary(context, expr)
    if isinstance(expr, Ref):
        return expr.name
    name = unique_name(context, hint)
    emit_node(context, tensor_node((Let(name, expr),), (name,), expr.span))
    if isinstance(expr, Apply) and TENSOR[expr.op].dtype == "row":
        source = expr.args[0].type.axis
        assert source
        context.phase.chosen[name] = source
    if has_gradient(context, expr):
        context.block.live.add(name)
    return name


def refuse_over_vocabulary(context: Context, expr: Expr | OptionalValue) -> None:
    """Report a value over the vocabulary that would be stored or read."""
    if isinstance(expr, (Ref, Apply)) and is_over_vocabulary(expr):
        message = f"this is {expr.type}, a number for each token that a model knows: it is not stored"
        raise context.statement_error("E0217", message, expr.span, "reduce it: `sum(x, vocab)`")


def materialize_meaning(context: Context, meaning: Meaning, hint: str) -> Meaning:
    """Return a meaning whose expression, if it is one, has the name of a value."""
    if isinstance(meaning, (Ref, Apply)) and is_over_vocabulary(meaning):
        return VocabularyValue(meaning)
    if isinstance(meaning, Apply):
        return Ref(materialize(context, meaning, hint), meaning.type, meaning.span)
    if isinstance(meaning, OptionalValue) and not isinstance(meaning.expr, Ref):
        name = materialize(context, meaning.expr, hint)
        return replace(meaning, expr=Ref(name, meaning.type, meaning.expr.span))
    return meaning


def limit_depth(context: Context, expr: Apply) -> Apply:
    """Return the expression, with deep parts under names of their own: functions that read it may call themselves."""
    depths = context.phase.levels
    levels = [depths.get(id(arg), (arg, 0))[1] for arg in expr.args]
    if max(levels) >= MOST_LEVELS:
        named = tuple(
            Ref(materialize(context, arg, "part"), arg.type, expr.span) if isinstance(arg, Apply) else arg
            for arg in expr.args
        )
        expr, levels = replace(expr, args=named), [0]
    depths[id(expr)] = (expr, max(levels) + 1)
    return expr


def has_gradient(context: Context, expr: Expr) -> bool:
    """Return whether a gradient flows through an expression to the model being trained."""
    if isinstance(expr, Ref):
        return expr.name in context.block.live
    if not isinstance(expr, Apply) or not TENSOR[expr.op].gradient or expr.type.dtype != "float":
        return False
    return any(has_gradient(context, arg) for arg in expr.args)
