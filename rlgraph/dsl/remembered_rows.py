"""Checks what programs read of buffers: rows that are sampled, and the rows of a key, `past[prompts.id]`."""

from __future__ import annotations

from rlgraph.dsl import constants, tree
from rlgraph.dsl.context import Context
from rlgraph.dsl.nodes import emit_node, materialize, new_axis, table_on_axis, unique_name
from rlgraph.dsl.scope import ExternalName, StatementError, TableValue, meaning_of
from rlgraph.dsl.signatures import STATEMENTS
from rlgraph.errors import Span, quoted_list
from rlgraph.ir.graph import Constant, ConstructorCall, Expr, External, Node, Value
from rlgraph.ir.types import Axis, Table


def check_buffer(context: Context, name: str, record: ConstructorCall) -> None:
    """Report a buffer that keeps the last rows of no key."""
    if record.option("last") is not None and record.option("key") is None:
        message = f"`last` counts the rows of a key, and `{name}` has none"
        hint = 'name the column of the key, as `key="id"`; `capacity` counts all rows'
        context.report("E0414", message, dict(record.spans).get("last", record.span), hint)


def check_pushed_key(context: Context, buffer: External, rows: Table, span: Span) -> None:
    """Raise StatementError for rows that lack the key of the buffer into which they are pushed."""
    key = buffer.record.option("key")
    if key is None:
        return
    columns = rows.column_types()
    kind = columns.get(str(key)) or columns.get(str(key).split(".")[0])
    if kind is None and rows.data is not None:
        message = f"`{buffer.name}` has the key `{key}`, and what is pushed has no such column"
        hint = f"push it by name, `push {buffer.name}(..., {key}=x)`, or name one of {quoted_list([*columns], 'and')}"
        raise context.statement_error("E0415", message, span, hint)
    if kind is not None and kind.axis is not None and kind.axis.inner:
        message = f"the key `{key}` of `{buffer.name}` has an entry for each row, and this is {kind}"
        raise context.statement_error("E0415", message, span, "reduce it, and push it by another name")


def buffer_of_index(context: Context, expr: tree.Index) -> External | None:
    """Return the buffer of `past[prompts.id]`; None where something else has the brackets."""
    meaning = meaning_of(context.block.scope, expr.base.id) if isinstance(expr.base, tree.Name) else None
    if isinstance(meaning, ExternalName) and meaning.outside.kind == "buffer":
        return meaning.outside
    return None


def emit_recall(context: Context, expr: tree.Index, buffer: External, key: Expr, hint: str) -> TableValue:
    """Emit `past[prompts.id]`: for each row of the key those of the buffer that have it, on an axis inside."""
    context.refuse_in_train(f"{buffer.name}[...]", expr.span)
    column = buffer.record.option("key")
    if column is None:
        message = f"`{buffer.name}` has no key by which its rows could be found"
        declared = f'`buffer {buffer.name} = fifo(capacity={buffer.record.option("capacity")}, key="id")`'
        raise context.statement_error("E0414", message, expr.span, f"name the column of the key: {declared}")
    stored = _stored_rows(context, buffer, expr.span)
    name = materialize(context, key, "key")
    table = _copy_of_rows(context, stored, hint or buffer.name, key.type.axis)
    handle = context.block.versions[buffer.name]
    emit_node(context, Node("recall", (handle.name, name), (Value(table.name, table.type),), span=expr.span))
    return table


def emit_buffer_sample(context: Context, expr: tree.Call, buffer: External, hint: str) -> TableValue:
    """Emit the sampling of independent rows from a buffer, on an axis of their own."""
    assert isinstance(expr.func, tree.Attribute)
    if expr.func.name != "sample":
        message = f"a buffer cannot `{expr.func.name}`"
        raise context.statement_error("E0205", message, expr.func.name_span, "it has `sample`")
    args, _ = constants.bind_arguments(
        context, STATEMENTS["sample"], expr.args, expr.options, expr.span, context.block.scope
    )
    stored = _stored_rows(context, buffer, expr.span)
    table = _copy_of_rows(context, stored, hint or buffer.name, None)
    handle = context.block.versions[buffer.name]
    attrs: tuple[tuple[str, Constant], ...] = (("rows", args["rows"]), ("key", table.name))
    emit_node(context, Node("sample", (handle.name,), (Value(table.name, table.type),), attrs, span=expr.span))
    return table


def _stored_rows(context: Context, buffer: External, span: Span) -> Table:
    """Return the type of the rows in a buffer. Raises StatementError where none have been pushed in the text above; of
    those below the phase finds out, and is checked again."""
    context.used.add(buffer.name)
    stored = context.buffers.get(buffer.name)
    if stored is not None:
        return stored
    if buffer.name in context.wrong_pushes:
        raise StatementError
    error = context.statement_error(
        "E0605",
        f"it is not known what `{buffer.name}` holds: nothing is pushed into it that does not depend on what it held",
        span,
        f"`push {buffer.name}(rollout)` in this phase or an earlier one, of rows that are made without it",
    )
    context.buffers_read_early.setdefault(buffer.name, []).append(context.diagnostics[-1])
    raise error


def _copy_of_rows(context: Context, stored: Table, hint: str, parent: Axis | None) -> TableValue:
    """Return the table of some rows of a buffer, on a new axis with new tokens."""
    label = unique_name(context, hint)
    return TableValue(label, table_on_axis(context, stored, label, new_axis(context, label, parent)))
