"""Checks statements other than loops: values, states, buffers, weights, losses, rows that are kept."""

from __future__ import annotations

from dataclasses import replace

from rlgraph.dsl import constants, tree
from rlgraph.dsl.context import Context
from rlgraph.dsl.expressions import state_key_column
from rlgraph.dsl.names import AXES, keyed_state, look_up_name, model_named
from rlgraph.dsl.nodes import (
    copy_column_sources,
    emit_node,
    has_gradient,
    materialize,
    materialize_meaning,
    new_axis,
    next_state_value,
    unique_name,
)
from rlgraph.dsl.scope import (
    ExternalName,
    ModelName,
    NamedValues,
    OptionalValue,
    StateName,
    TableValue,
    UnavailableName,
    describe_meaning,
    map_refs,
    meaning_of,
    refs_of,
)
from rlgraph.dsl.signatures import STATEMENTS
from rlgraph.dsl.values import evaluate_number, evaluate_table
from rlgraph.errors import Related, did_you_mean
from rlgraph.ir.graph import Apply, Const, Constant, Expr, Let, Model, Node, Ref, Value, tensor_node
from rlgraph.ir.types import Axis, Table, Tensor, axes_of, axis_of


def emit_assign(context: Context, statement: tree.Assign) -> None:
    """Check `x = ...`."""
    target = statement.target
    old = context.block.scope.get(target)
    if isinstance(old, StateName):
        raise context.statement_error(
            "E0602",
            f"`{target}` is a state: it lives across steps",
            statement.target_span,
            f"write `{target} := ...`",
        )
    if target in AXES:
        raise context.statement_error(
            "E0208", f"`{target}` is the name of an axis", statement.target_span, "choose another name"
        )
    if target in context.declared:
        place = context.declared[target]
        raise context.statement_error(
            "E0207",
            f"`{target}` is declared above and cannot be assigned",
            statement.target_span,
            related=(Related(place, "it is declared here"),),
        )
    context.phase.assigned.setdefault(target, statement.target_span)
    meaning = context.evaluate(statement.value, target)
    meaning = materialize_meaning(context, meaning, target)
    if not isinstance(meaning, (Const, Ref, OptionalValue, NamedValues, TableValue)):
        raise context.statement_error("E0305", f"{describe_meaning(meaning)} is not a value", statement.value.span)
    context.block.scope[target] = meaning
    context.block.later.pop(target, None)


def emit_store(context: Context, statement: tree.Store) -> None:
    """Check `k := ...`."""
    target = statement.target
    if isinstance(target, tree.Index):
        _store_keyed(context, target, statement)
        return
    assert isinstance(target, tree.Name)
    meaning = meaning_of(context.block.scope, target.id)
    if not isinstance(meaning, StateName):
        states = [name for name, candidate in context.block.scope.items() if isinstance(candidate, StateName)]
        hint = did_you_mean(target.id, states) or f"declare it: `state {target.id} = 0.0`, or assign with `=`"
        raise context.statement_error("E0601", f"`{target.id}` is no state", target.span, hint)
    if meaning.state.keyed:
        raise context.statement_error(
            "E0601",
            f"`{target.id}` has a value for each key",
            target.span,
            f"name the key's column: `{target.id}[rollout.column] := ...`",
        )
    expr = evaluate_number(context, statement.value)
    if expr.type.axis is not None:
        raise context.statement_error(
            "E0304",
            f"a state is one number, and this is {expr.type}",
            statement.value.span,
            "reduce it: `mean(...)`",
        )
    if expr.type.dtype != "float":
        expr = Apply("float", (expr,), Tensor("float"), None, statement.span)
    value = next_state_value(context, target.id, Tensor("float"))
    emit_node(context, tensor_node((Let(value.name, expr),), (value.name,), statement.span))
    context.block.versions[target.id] = value


def _store_keyed(context: Context, target: tree.Index, statement: tree.Store) -> None:
    """Check `base[rollout.agent] := ...`."""
    state = keyed_state(context, target)
    key, value = state_key_column(context, target), evaluate_number(context, statement.value)
    if value.type.axis != key.type.axis:
        raise context.statement_error(
            "E0301",
            f"the value needs an entry for each row of the key, and this is {describe_meaning(value)}",
            statement.value.span,
        )
    new = next_state_value(context, state.name, context.block.versions[state.name].type)
    inputs = (
        context.block.versions[state.name].name,
        materialize(context, key, "key"),
        materialize(context, value, "value"),
    )
    emit_node(context, Node("assign", inputs, (new,), span=statement.span))
    context.block.versions[state.name] = new


def emit_push(context: Context, statement: tree.Push) -> None:
    """Check `push replay(rollout, adv=adv)`."""
    meaning = context.block.scope.get(statement.buffer.id)
    if not isinstance(meaning, ExternalName) or meaning.outside.kind != "buffer":
        raise context.statement_error(
            "E0605",
            f"`{statement.buffer.id}` is no buffer",
            statement.buffer.span,
            f"declare `buffer {statement.buffer.id} = fifo(capacity=4096)`",
        )
    if len(statement.args) != 1:
        raise context.statement_error(
            "E0405",
            "`push` takes one table by place",
            statement.span,
            "more columns go by name: `push replay(rollout, score=score)`",
        )
    table = evaluate_table(context, statement.args[0], "`push`")
    names, inputs, extra = [], [], list(table.type.extra)
    for option in statement.options:
        column = evaluate_number(context, option.value)
        axis = column.type.axis
        if axis is None or not any(axis.key == table_axis.key for table_axis in axes_of(table.type)[:2]):
            rows = statement.args[0].span.covered_text
            raise context.statement_error(
                "E0301",
                f"a column has an entry for each row or token of `{rows}`, and this is {describe_meaning(column)}",
                option.value.span,
            )
        names.append(option.name)
        inputs.append(materialize(context, column, option.name))
        extra.append((option.name, Tensor(column.type.dtype, axis)))
    schema = replace(table.type, extra=tuple(extra))
    first = context.buffers.setdefault(statement.buffer.id, schema)
    differ = sorted(set(first.column_types()) ^ set(schema.column_types()))
    if differ:
        shown = ", ".join(f"`{name}`" for name in differ)
        raise context.statement_error(
            "E0605",
            f"what is pushed into `{statement.buffer.id}` has the same columns each time; here and "
            f"above differ in {shown}",
            statement.span,
        )
    handle = context.block.versions[statement.buffer.id]
    value = next_state_value(context, statement.buffer.id, handle.type)
    attrs: tuple[tuple[str, Constant], ...] = (("names", tuple(names)),)
    emit_node(context, Node("push", (handle.name, table.name, *inputs), (value,), attrs, span=statement.span))
    context.block.versions[statement.buffer.id] = value


def emit_update(context: Context, statement: tree.Update) -> None:
    """Check `update ref from actor(ema=0.9)`."""
    target, source = model_named(context, statement.target), model_named(context, statement.source)
    if target.name == source.name:
        raise context.statement_error(
            "E0607",
            f"`{target.name}` has its own weights already",
            statement.source.span,
            f"name another `{target.kind}`",
        )
    if target.kind != source.kind:
        raise context.statement_error(
            "E0607",
            f"`{target.name}` ({target.kind}) cannot take the weights of `{source.name}` ({source.kind})",
            statement.span,
        )
    if _adapters(context, target) != _adapters(context, source):
        raise context.statement_error(
            "E0607",
            f"`{target.name}` and `{source.name}` do not have the same adapters",
            statement.span,
            f"declare one as a copy of the other: `model {target.name} = {source.name}`",
        )
    options = constants.evaluate_options(
        context, STATEMENTS["update"], statement.options, statement.span, context.block.scope
    )
    old = context.block.versions[target.name]
    value = next_state_value(context, target.name, old.type)
    inputs = (old.name, context.block.versions[source.name].name)
    emit_node(context, Node("update", inputs, (value,), tuple(options.items()), span=statement.span))
    context.block.versions[target.name] = value


def _adapters(context: Context, model: Model) -> Constant:
    while model.copy_of:
        meaning = context.scope[model.copy_of]
        assert isinstance(meaning, ModelName)
        model = meaning.model
    return dict(model.options).get("lora")


def emit_minimize(context: Context, statement: tree.Minimize) -> None:
    """Check `minimize mean(...)`."""
    model = context.block.training
    if not model:
        raise context.statement_error(
            "E0504",
            "`minimize` belongs into a `train` body",
            statement.span,
            "write `train MODEL(lr=...):` above it",
        )
    expr = evaluate_number(context, statement.value)
    if expr.type.axis is not None:
        raise context.statement_error(
            "E0501",
            f"`minimize` needs one number, and this is {expr.type}",
            statement.value.span,
            "reduce it: `mean(...)` is the mean of all tokens, `mean(mean(x, token))` that of rows",
        )
    if not has_gradient(context, expr):
        raise context.statement_error(
            "E0506",
            f"this does not depend on `{model}` in a way that has a gradient",
            statement.value.span,
            f"call `{model}` inside the `train` body: what is computed above it is constant there",
        )
    context.block.minimized.append((expr, statement.span))


def emit_keep(context: Context, statement: tree.Keep) -> None:
    """Check `keep`: every live value on the axis, or on an axis in it, is replaced by its rows that are kept."""
    meaning = look_up_name(context, statement.table)
    if not isinstance(meaning, TableValue):
        raise context.statement_error(
            "E0604",
            f"`keep` needs a table, and this is {describe_meaning(meaning)}",
            statement.table.span,
            "name the table whose rows are kept: `keep prompts where ...`",
        )
    if context.block.sliced:
        raise context.statement_error(
            "E0604",
            "`keep` cannot stand in a `minibatch`: its parts are cut already",
            statement.span,
            "move it above the loop",
        )
    mask = evaluate_number(context, statement.condition)
    axis = meaning.type.axis
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
    name = materialize(context, mask, "kept")
    new_axes: dict[str, Axis] = {}
    inputs, outputs = [name], []
    kept_values: dict[str, Value] = {}
    present = _rows_given(mask)

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
            reason = f"`{word}` chooses among rows of which some were dropped by `keep`"
            context.block.scope[word] = UnavailableName(reason, statement.span)
            continue
        kept_value = keep_value(value.name, value.type)
        context.block.scope[word] = (
            TableValue(kept_value.name, kept_value.type)
            if isinstance(kept_value.type, Table)
            else Ref(kept_value.name, kept_value.type)  # type: ignore[arg-type]
        )
    attrs: tuple[tuple[str, Constant], ...] = (("axis", axis.key),)
    emit_node(context, Node("keep", tuple(inputs), tuple(outputs), attrs, span=statement.span))
    copy_column_sources(context, kept_values)


def _rows_given(condition: Expr) -> set[str]:
    """Return the names of columns that are true for all rows for which a condition is."""
    if isinstance(condition, Ref):
        return {condition.name}
    if isinstance(condition, Apply) and condition.op in ("and", "all"):
        return set[str]().union(*map(_rows_given, condition.args))
    return set()


def _without(value: OptionalValue | NamedValues, present: set[str]) -> Ref | OptionalValue | NamedValues:
    """Return a value that is not lacking because of columns that are true for all rows that stay."""
    if isinstance(value, NamedValues):
        values = tuple((n, _without(v, present) if isinstance(v, OptionalValue) else v) for n, v in value.values)
        return NamedValues(values)  # type: ignore[arg-type]
    assert isinstance(value.expr, Ref)
    given = tuple(ref for ref in value.given if ref.name not in present)
    return OptionalValue(value.expr, given) if given else value.expr


def _kept_type(context: Context, kind: Tensor | Table, axis: Axis, new_axes: dict[str, Axis]) -> Tensor | Table:
    """Return the type on the axes that `keep` leaves."""

    def kept_axis(old: Axis) -> Axis:
        if not old.is_within(axis):
            return old
        if old.key not in new_axes:
            parent = kept_axis(old.parent) if old.parent else None
            new_axes[old.key] = new_axis(context, old.name, parent, inner=old.inner, key=old.key)
        return new_axes[old.key]

    def kept_tensor(tensor: Tensor) -> Tensor:
        return Tensor(tensor.dtype, kept_axis(tensor.axis) if tensor.axis else None)

    if isinstance(kind, Tensor):
        return kept_tensor(kind)
    return replace(
        kind,
        axis=kept_axis(kind.axis),
        token=kept_axis(kind.token) if kind.token else None,
        turn=kept_axis(kind.turn) if kind.turn else None,
        extra=tuple((name, kept_tensor(column)) for name, column in kind.extra),
    )


def _lies_on(value: Ref | TableValue, axis: Axis) -> bool:
    value_axis = axis_of(value.type)
    return value_axis is not None and value_axis.is_within(axis)
