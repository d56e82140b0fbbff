"""Checks `interact(env, rows, white=actor, black=rival, ...)`: episodes in which several players speak."""

from __future__ import annotations

from dataclasses import replace

from rlgraph.dsl import constants, tree
from rlgraph.dsl.branches import branch_table
from rlgraph.dsl.context import Context
from rlgraph.dsl.method_calls import sample_rows
from rlgraph.dsl.nodes import emit_node, new_inner_axis, unique_name
from rlgraph.dsl.scope import ExternalName, Meaning, ModelName, TableValue, describe_meaning
from rlgraph.dsl.signatures import METHODS
from rlgraph.errors import quoted_list
from rlgraph.ir.graph import Model, Node, Value
from rlgraph.ir.types import BRANCH, BRANCHES, Axis, Table, Tensor, branches_of, player_column, players_of

EXAMPLE = "`interact(game, rows, white=actor, black=rival, max_turns=8, max_tokens=512)`"
WITH_PLAYERS = ("python", "textarena", "agent")
"""The forms of environments that say whose turn it is, or whom they ask."""
_CALLED = METHODS["causal_lm"]["interact"]


def emit_players(context: Context, expr: tree.Call, hint: str) -> TableValue:
    """Emit `interact(ENV, ROWS, PLAYER=MODEL, ...)`, and return the table of what the first player says and does; those
    of the others are parts of it, by their names."""
    context.refuse_in_train("interact", expr.span)
    known = {option.name for option in _CALLED.signature.options}
    players = [option for option in expr.options if option.name not in known]
    models = [_model(context, option) for option in players]
    if len(expr.args) != 2 or not players:
        what = "an environment and rows by place" if len(expr.args) != 2 else "a model for each player, by name"
        raise context.statement_error("E0834", f"`interact` takes {what}", expr.span, EXAMPLE)
    others = tuple(option for option in expr.options if option.name in known)
    options = constants.evaluate_options(context, _CALLED.signature, others, expr.span, context.block.scope)
    _check_environment(context, expr.args[0])
    distinct = list(dict.fromkeys(model.name for model in models))
    if context.phase.staleness.steps and len(distinct) > 1:
        older = f"this phase lets {quoted_list(distinct, 'and')} be older"
        message = f"episodes of several models are sampled with the present weights, and {older}"
        hint = "leave `lag` and `async` out, or let one model play all"
        raise context.statement_error("E0837", message, expr.span, hint)
    options |= {"players": tuple(option.name for option in players), "models": tuple(model.name for model in models)}
    columns = [player_column(option.name, model.name) for option, model in zip(players, models, strict=True)]
    rows = sample_rows(context, expr, _CALLED, models, options, hint, columns)
    for option in players:
        if option.name in (BRANCH, *replace(rows.type, data=()).column_types()):
            message = f"`{option.name}` is a column of episodes, and cannot be a player"
            raise context.statement_error("E0836", message, option.name_span, "give the player another name")
    return rows


def player_table(context: Context, table: TableValue, expr: tree.Attribute) -> TableValue:
    """Return the part of a player in a table of episodes: the table itself for the first one."""
    players, columns = players_of(table.type), context.phase.columns
    if expr.name == next(iter(players)):
        return table
    made = context.phase.part_tables.get(columns.get((table.name, f"{expr.name}@"), ""))
    if made is not None:
        return made
    label = unique_name(context, f"{table.name}.{expr.name}")
    axis: Axis = table.type.axis
    turn = new_inner_axis(context, "turn", label, axis)
    token = new_inner_axis(context, "token", label, turn)
    lines = ((f"{BRANCHES}{players[expr.name]}", Tensor("any", axis)),) if branches_of(table.type) else ()
    kind: Table = replace(table.type, token=token, turn=turn, extra=lines)
    attrs = (("player", expr.name), ("model", players[expr.name]))
    emit_node(context, Node("player", (table.name,), (Value(label, kind),), attrs, span=expr.span))
    columns[table.name, f"{expr.name}@"] = label
    context.phase.part_tables[label] = TableValue(label, kind)
    if lines:
        branch_table(context, context.phase.part_tables[label], expr.span)
    return context.phase.part_tables[label]


def _model(context: Context, option: tree.Option) -> Model:
    """Return the model that plays a player."""
    meaning: Meaning = context.evaluate(option.value)
    if isinstance(meaning, ModelName) and "interact" in METHODS[meaning.model.kind]:
        return meaning.model
    what = f"a `{meaning.model.kind}`" if isinstance(meaning, ModelName) else describe_meaning(meaning)
    message = f"`{option.name}` is no option, and as a player needs a model that generates: this is {what}"
    raise context.statement_error("E0835", message, option.value.span, f"for example {EXAMPLE}")


def _check_environment(context: Context, expr: tree.Expr) -> None:
    """Report an environment that does not say whose turn it is."""
    env = context.evaluate(expr)
    if not isinstance(env, ExternalName) or env.outside.kind != "env" or env.outside.record.name in WITH_PLAYERS:
        return
    message = f"`{env.outside.name}` is `{env.outside.record.name}(...)`, which does not say whose turn it is"
    hint = 'write a class, `python("game.py:Game")`, or name a game, `textarena("Chess-v0")`'
    raise context.statement_error("E0838", message, expr.span, hint)
