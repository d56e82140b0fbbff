"""Checks statements that choose rows, `keep` and `resample`: from there on every live value on the axis has these."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from rlgraph.dsl import constants, tree
from rlgraph.dsl.context import Context
from rlgraph.dsl.distributions import drop_distributions
from rlgraph.dsl.names import axis_named, look_up_name
from rlgraph.dsl.nodes import copy_column_sources, emit_node, materialize, new_axis, refuse_over_vocabulary, unique_name
from rlgraph.dsl.pairs import drop_pairs
from rlgraph.dsl.scope import (
    KeyValue,
    Meaning,
    NamedValues,
    OptionalValue,
    TableValue,
    UnavailableName,
    describe_meaning,
    map_refs,
    refs_of,
)
from rlgraph.dsl.signatures import STATEMENTS
from rlgraph.dsl.values import evaluate_number
from rlgraph.errors import Span
from rlgraph.ir.graph import Apply, Const, Constant, Expr, Node, Ref, Value
from rlgraph.ir.types import Axis, Table, Tensor, axis_of


def emit_keep(context: Context, statement: tree.Keep) -> None:
    """Check `keep`: every live value on the axis, or on an axis in it, is replaced by its rows that are kept."""
    hint = "name the table whose rows are kept: `keep prompts where ...`"
    axis = _table_named(context, "keep", statement.table, hint).type.axis
    mask = evaluate_number(context, statement.condition)
    refuse_over_vocabulary(context, mask)
    if mask.type.axis is None or not axis.is_within(mask.type.axis):
        table = statement.table.id
        shown, hint = str(mask.type), f"reduce it with `by={table}`"
        if mask.type.axis is None:
            shown = "a single one for all of them"
            hint = f"compare what each row has: one of its columns, or a reduction with `by={table}`"
        raise context.statement_error(
            "E0307",
            f"`keep {table}` needs a condition for each row of `{table}`, and this is {shown}",
            statement.condition.span,
            hint,
        )
    _choose(context, statement.span, "keep", axis, materialize(context, mask, "kept"), {}, _rows_given(mask))


def emit_resample(context: Context, statement: tree.Resample) -> None:
    """Check `resample rollout(256, weight=abs(score), by=prompts)`."""
    table = _table_named(
        context, "resample", statement.table, "name the table whose rows are drawn: `resample rollout(256)`"
    )
    if context.block.collects:
        raise context.statement_error(
            "E0505", "`resample` cannot stand in a `collect`", statement.span, "draw below it, from all rows"
        )
    axis, given = table.type.axis, {option.name: option for option in statement.options}
    plain = [option for option in statement.options if option.name not in ("weight", "by")]
    args, options = constants.bind_arguments(
        context, STATEMENTS["resample"], statement.args, plain, statement.span, context.block.scope
    )
    attrs: dict[str, Constant] = {**args, "replace": options["replace"]}
    if "by" in given:
        attrs["group"] = _group(context, given["by"], axis).key
    weight: Expr = Const(1.0, Tensor("float"))
    if "weight" in given:
        weight = evaluate_number(context, given["weight"].value)
        if weight.type.axis is None or not axis.is_within(weight.type.axis):
            raise context.statement_error(
                "E0307",
                f"`resample {statement.table.id}` needs a weight for each row of `{statement.table.id}`, and this is "
                f"{weight.type if weight.type.axis else 'a single number'}",
                given["weight"].value.span,
                f"reduce it with `by={statement.table.id}`, or leave `weight` out: all rows are then as likely",
            )
        if weight.type.dtype != "float":
            weight = Apply("float", (weight,), Tensor("float", weight.type.axis), None, weight.span)
    else:
        weight = _ones(context, table, statement.span)
    attrs["key"] = unique_name(context, "resample")
    _choose(context, statement.span, "resample", axis, materialize(context, weight, "weight"), attrs, set())


def _table_named(context: Context, word: str, name: tree.Name, hint: str) -> TableValue:
    """Return the table that a statement is about. Raises StatementError for a name of something else."""
    meaning = look_up_name(context, name)
    if not isinstance(meaning, TableValue):
        message = f"`{word}` needs a table, and this is {describe_meaning(meaning)}"
        raise context.statement_error("E0604", message, name.span, hint)
    return meaning


def _group(context: Context, option: tree.Option, axis: Axis) -> Axis:
    """Return the axis of which each row has as many rows drawn."""
    group = axis_named(context, option.value) if isinstance(option.value, tree.Name) else None
    if group is None or group.key == axis.key or not axis.is_within(group):
        raise context.statement_error(
            "E0303",
            f"`by=` takes a table that the rows of `{axis.name}` lie in",
            option.value.span,
            "leave it out: then the rows are drawn from the whole batch",
        )
    return group


def _ones(context: Context, table: TableValue, span: Span) -> Expr:
    """Return 1 for each row of a table."""
    label = unique_name(context, "drawn")
    kind = Tensor("float", table.type.axis)
    emit_node(context, Node("uniform", (table.name,), (Value(label, kind),), (("key", label),), span=span))
    some = Apply("ge", (Ref(label, kind, span), Const(0.0, Tensor("float"))), Tensor("bool", kind.axis), None, span)
    return Apply("float", (some,), kind, None, span)


def _choose(
    context: Context,
    span: Span,
    operation: str,
    axis: Axis,
    by: str,
    attrs: Mapping[str, Constant],
    present: Collection[str],
) -> None:
    """Write the node of a statement that chooses rows of an axis. by: the value that it chooses them by. present:
    columns that are true for all rows that stay."""
    new_axes: dict[str, Axis] = {}
    inputs, outputs = [by], list[Value]()
    before, kept_values = dict(context.block.scope), dict[str, Value]()

    def keep_value(old: str, kind: Tensor | Table) -> Value:
        if old not in kept_values:
            kept_values[old] = Value(unique_name(context, old), _kept_type(context, kind, axis, new_axes))
            inputs.append(old)
            outputs.append(kept_values[old])
        return kept_values[old]

    def keep_ref(ref: Ref) -> Ref:
        if not _lies_on(ref, axis):
            return ref
        kept = keep_value(ref.name, ref.type)
        return Ref(kept.name, kept.type)  # type: ignore[arg-type]

    for word, value in list(context.block.scope.items()):
        if isinstance(value, KeyValue):
            if any(_lies_on(ref, axis) for ref in refs_of(value)) or (value.within and value.within.is_within(axis)):
                within = _kept_axis(context, value.within, axis, new_axes)
                context.block.scope[word] = KeyValue(within, tuple(map(keep_ref, value.values)))
            continue
        if isinstance(value, (OptionalValue, NamedValues)):
            if any(_lies_on(ref, axis) for ref in refs_of(value)):
                context.block.scope[word] = map_refs(_without(value, present), keep_ref)
            continue
        if not isinstance(value, (Ref, TableValue)):
            continue
        chosen = context.phase.chosen.get(value.name)
        if not _lies_on(value, axis) and not (chosen and chosen.is_within(axis)):
            continue
        if isinstance(value, Ref) and value.type.dtype == "row":
            reason = f"`{word}` chooses among rows of which some were dropped by `{operation}`"
            context.block.scope[word] = UnavailableName(reason, span)
            continue
        kept_value = keep_value(value.name, value.type)
        context.block.scope[word] = (
            TableValue(kept_value.name, kept_value.type)
            if isinstance(kept_value.type, Table)
            else Ref(kept_value.name, kept_value.type)  # type: ignore[arg-type]
        )
    for (table, column), name in list(context.phase.columns.items()):
        part = context.phase.part_tables.get(name)
        if part is None or not part.type.axis.is_within(axis):
            continue
        kept_part = keep_value(name, part.type)
        assert isinstance(kept_part.type, Table)
        owner = kept_values[table].name if table in kept_values else table
        context.phase.columns[owner, column] = kept_part.name
        context.phase.part_tables[kept_part.name] = TableValue(kept_part.name, kept_part.type)
    drop_pairs(context, axis, f"pairs rows of which `{operation}` chooses: write `pairs(...)` below it", span)
    drop_distributions(context, axis, operation, span)
    if context.block.sliced:
        context.block.kept.update(new.key for new in new_axes.values())
        changed = {word: new for word, new in context.block.scope.items() if before.get(word) is not new}
        context.block.whole_again |= {word: new for word, new in changed.items() if _is_whole(context, word, before)}
    said: tuple[tuple[str, Constant], ...] = (("axis", axis.key), *attrs.items())
    emit_node(context, Node(operation, tuple(inputs), tuple(outputs), said, span=span))
    copy_column_sources(context, kept_values)


def _is_whole(context: Context, word: str, before: Mapping[str, Meaning]) -> bool:
    """Return whether a name that a `keep` in a slice changes is one of before the loop."""
    block = context.block
    given = block.scope_before.get(word)
    return given is not None and any(before[word] is meaning for meaning in (given, block.whole_again.get(word)))


def _rows_given(condition: Expr) -> set[str]:
    """Return the names of columns that are true for all rows for which a condition is."""
    if isinstance(condition, Ref):
        return {condition.name}
    if isinstance(condition, Apply) and condition.op in ("and", "all"):
        return set[str]().union(*map(_rows_given, condition.args))
    return set()


def _without(value: OptionalValue | NamedValues, present: Collection[str]) -> Ref | OptionalValue | NamedValues:
    """Return a value that is not lacking because of columns that are true for all rows that stay."""
    if isinstance(value, NamedValues):
        values = tuple((n, _without(v, present) if isinstance(v, OptionalValue) else v) for n, v in value.values)
        return NamedValues(values)  # type: ignore[arg-type]
    assert isinstance(value.expr, Ref)
    given = tuple(ref for ref in value.given if ref.name not in present)
    return OptionalValue(value.expr, given) if given else value.expr


def _kept_axis(context: Context, old: Axis | None, axis: Axis, new_axes: dict[str, Axis]) -> Axis | None:
    """Return the axis that `keep` leaves of one."""
    if old is None or not old.is_within(axis):
        return old
    if old.key not in new_axes:
        parent = _kept_axis(context, old.parent, axis, new_axes)
        new_axes[old.key] = new_axis(context, old.name, parent, inner=old.inner, key=old.key)
    return new_axes[old.key]


def _kept_type(context: Context, kind: Tensor | Table, axis: Axis, new_axes: dict[str, Axis]) -> Tensor | Table:
    """Return the type on the axes that `keep` leaves."""

    def move(old: Axis | None) -> Axis | None:
        return _kept_axis(context, old, axis, new_axes)

    def shift(tensor: Tensor) -> Tensor:
        return Tensor(tensor.dtype, move(tensor.axis))

    if isinstance(kind, Tensor):
        return shift(kind)
    rows = move(kind.axis)
    assert rows is not None
    return replace(
        kind,
        axis=rows,
        token=move(kind.token),
        turn=move(kind.turn),
        extra=tuple((name, shift(column)) for name, column in kind.extra),
    )


def _lies_on(value: Ref | TableValue, axis: Axis) -> bool:
    value_axis = axis_of(value.type)
    return value_axis is not None and value_axis.is_within(axis)
