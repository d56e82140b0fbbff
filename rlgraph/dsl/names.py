"""Resolves names: which a piece of syntax uses, and what each means in its place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import TypeVar

from rlgraph.dsl import tree
from rlgraph.dsl.context import Context
from rlgraph.dsl.scope import (
    VOCABULARY,
    DefName,
    ExternalName,
    InvalidName,
    LiteralConstant,
    Meaning,
    ModelName,
    PairsValue,
    StateName,
    TableValue,
    UnavailableName,
    describe_meaning,
    meaning_of,
)
from rlgraph.errors import Related, Span, did_you_mean
from rlgraph.ir.graph import Const, Expr, Model, Ref, ScalarState
from rlgraph.ir.types import Axis, Tensor
from rlgraph.ops import TENSOR

Part = TypeVar("Part")

AXES = ("token", "turn", VOCABULARY)
"""The axes inside a row: no value has such a name."""

_COUNTED = {
    "token": "`sum(x, token)` reduces it; the ids are `rollout.tokens`",
    "turn": "`sum(x, turn)` and `by=turn` reduce it and group by it; the number of each turn is `episode.turn`",
}
"""What is meant where the name of an axis stands for a value."""

FUNCTIONS = frozenset(op.name for op in TENSOR.values() if op.function)
"""The tensor operations that are functions."""

_MAKING = {
    "pick",
    "encode",
    "row",
    "prefix",
    "interact",
    "uniform",
    "user",
    "join",
    "valid",
    "otherwise",
    "key",
    "pairs",
    "roll",
}

BUILT_IN = FUNCTIONS | _MAKING


def names_in(node: object) -> Iterator[tree.Name]:
    """Yield every name in a piece of syntax."""
    return parts_in(node, tree.Name)


def parts_in(node: object, kind: type[Part]) -> Iterator[Part]:
    """Yield every part of a kind in a piece of syntax."""
    if isinstance(node, kind):
        yield node
    if isinstance(node, tuple):
        for item in node:
            yield from parts_in(item, kind)
    elif is_dataclass(node) and not isinstance(node, Span):
        for field in fields(node):
            if "span" not in field.name:
                yield from parts_in(getattr(node, field.name), kind)


def free_names(definition: tree.Def) -> set[str]:
    """Return the names in a def that are neither parameters nor assigned in it."""
    local = {parameter.id for parameter in definition.parameters} | {
        statement.target for statement in tree.all_statements(definition.body) if isinstance(statement, tree.Assign)
    }
    return {name.id for name in names_in(definition.body)} - local


def names_used(context: Context, body: object) -> set[str]:
    """Return the names that a piece of syntax uses, with those of the defs that it calls."""
    names: set[str] = set()
    pending = {name.id for name in names_in(body)}
    while pending:
        name = pending.pop()
        names.add(name)
        meaning = context.scope.get(name)
        if isinstance(meaning, DefName):
            pending |= free_names(meaning.definition) - names
    return names


def look_up_name(context: Context, expr: tree.Name) -> Meaning:
    """Return the meaning of a name in an expression."""
    meaning = meaning_of(context.block.scope, expr.id)
    if isinstance(meaning, UnavailableName):
        raise context.statement_error(
            "E0209", meaning.reason, expr.span, related=(Related(meaning.span, "it was made here"),)
        )
    if isinstance(meaning, StateName):
        return _state(context, meaning, expr.span)
    if isinstance(meaning, ExternalName) and meaning.outside.kind == "data":
        raise context.statement_error(
            "E0603",
            f"`{meaning.outside.name}` is read inside `collect`, further down",
            expr.span,
            "use it in the body of `collect`, or after it",
        )
    if meaning is not None:
        context.used.add(expr.id)
        if isinstance(meaning, LiteralConstant) and isinstance(meaning.value, str):
            return Const(meaning.value, Tensor("text"), expr.span)
        return meaning
    if expr.id in context.block.later:
        raise context.too_early_error(expr, context.block.later[expr.id], "assigned", "")
    if expr.id in AXES:
        message = f"`{expr.id}` is an axis inside a row, and no value"
        raise context.statement_error("E0215", message, expr.span, _COUNTED[expr.id])
    names = [*context.block.scope, *FUNCTIONS]
    # Said once: further uses are passed over.
    context.block.scope[expr.id] = InvalidName()
    raise context.statement_error("E0201", f"nothing is called `{expr.id}`", expr.span, did_you_mean(expr.id, names))


def _state(context: Context, meaning: StateName, span: Span) -> Expr:
    context.used.add(meaning.state.name)
    if meaning.state.keyed:
        raise context.statement_error(
            "E0305",
            f"`{meaning.state.name}` has a value for each key",
            span,
            f"name the key's column: `{meaning.state.name}[rollout.column]`",
        )
    value = context.block.versions[meaning.state.name]
    assert isinstance(value.type, Tensor)
    return Ref(value.name, value.type)


def keyed_state(context: Context, expr: tree.Index) -> ScalarState:
    """Return the state of `base[rollout.agent]`."""
    meaning = meaning_of(context.block.scope, expr.base.id) if isinstance(expr.base, tree.Name) else None
    if isinstance(meaning, StateName) and not meaning.state.keyed:
        raise context.statement_error(
            "E0601",
            f"`{meaning.state.name}` is one value and takes no `[...]`",
            expr.base.span,
            f"declare it with a key: `state {meaning.state.name}[key] = ...`",
        )
    if not isinstance(meaning, StateName):
        raise context.statement_error(
            "E0601",
            "only a state that was declared with a key has `[...]`",
            expr.base.span,
            "declare `state NAME[key] = 0.0`",
        )
    context.used.add(meaning.state.name)
    return meaning.state


def model_named(context: Context, name: tree.Name) -> Model:
    """Return the model of a statement such as `train actor`."""
    meaning = meaning_of(context.block.scope, name.id)
    if not isinstance(meaning, ModelName):
        models = [word for word, candidate in context.block.scope.items() if isinstance(candidate, ModelName)]
        shown = (
            f"`{name.id}` is {describe_meaning(meaning)}, not a model" if meaning else f"nothing is called `{name.id}`"
        )
        raise context.statement_error("E0201", shown, name.span, did_you_mean(name.id, models))
    context.used.add(name.id)
    return meaning.model


def axis_named(context: Context, expr: tree.Name) -> Axis | None:
    """Return the axis of rows that a name stands for; None for an axis inside a row."""
    if isinstance(value := context.block.scope.get(expr.id), Ref) and (
        groups := context.groups(context, value, expr.span)
    ):
        return groups
    if expr.id in AXES and expr.id not in context.block.scope:
        return None
    meaning = look_up_name(context, expr)
    if isinstance(meaning, TableValue):
        return meaning.type.axis
    if isinstance(meaning, PairsValue):
        return meaning.offset.type.axis
    raise context.statement_error(
        "E0303",
        f"an axis is needed here, and `{expr.id}` is {describe_meaning(meaning)}",
        expr.span,
        "name the table whose rows are meant",
    )
