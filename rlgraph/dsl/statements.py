"""Checks statements other than loops: values, states, buffers, weights, losses, rows that are kept."""

from __future__ import annotations

from dataclasses import replace

from rlgraph.dsl import constants, tree
from rlgraph.dsl.context import Context
from rlgraph.dsl.expressions import state_key_column
from rlgraph.dsl.names import AXES, keyed_state, model_named
from rlgraph.dsl.nodes import (
    emit_node,
    has_gradient,
    materialize,
    materialize_meaning,
    next_state_value,
    refuse_over_vocabulary,
)
from rlgraph.dsl.remembered_rows import check_pushed_key
from rlgraph.dsl.scope import (
    ExternalName,
    InvalidName,
    KeyValue,
    MixtureValue,
    ModelName,
    NamedValues,
    OptionalValue,
    PairsValue,
    StateName,
    TableValue,
    VocabularyValue,
    describe_meaning,
    meaning_of,
)
from rlgraph.dsl.signatures import STATEMENTS
from rlgraph.dsl.values import evaluate_number, evaluate_table, evaluate_tensor
from rlgraph.errors import Related, did_you_mean
from rlgraph.ir.graph import Apply, Const, Constant, Let, Model, Node, Ref, tensor_node
from rlgraph.ir.types import Tensor, has_parts


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
    if not isinstance(
        meaning,
        (Const, Ref, OptionalValue, NamedValues, KeyValue, TableValue, PairsValue, VocabularyValue, MixtureValue),
    ):
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
        context.block.scope.setdefault(statement.buffer.id, InvalidName())
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
    names, inputs = [], []
    # What a player did in an episode of several stays with that episode, as its lines do: their own tables may be
    # pushed.
    extra = [(name, kind) for name, kind in table.type.extra if not has_parts(name)]
    for option in statement.options:
        column = evaluate_tensor(context, option.value)
        axis = column.type.axis
        inside = axis is not None and axis in (table.type.turn, table.type.token)
        if column.type.dtype == "row" or not (inside or axis is None or table.type.axis.is_within(axis)):
            rows = statement.args[0].span.covered_text
            units = "row, turn or token" if table.type.turn else "row or token"
            raise context.statement_error(
                "E0301",
                f"a column has an entry for each {units} of `{rows}`, or one for all, and this is "
                f"{describe_meaning(column)}",
                option.value.span,
            )
        # What rows lie in, each of them has.
        axis = axis if inside else table.type.axis
        names.append(option.name)
        inputs.append(materialize(context, column, option.name))
        extra.append((option.name, Tensor(column.type.dtype, axis)))
    schema = replace(table.type, extra=tuple(extra))
    check_pushed_key(context, meaning.outside, schema, statement.span)
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
    refuse_over_vocabulary(context, expr)
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
