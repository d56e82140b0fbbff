"""Checks expressions: names and axes are resolved here, and all but tensor mathematics becomes nodes."""

from __future__ import annotations

from dataclasses import replace

from rlgraph.dsl import tree
from rlgraph.dsl.braced_texts import compose_text, joined_texts, user_message
from rlgraph.dsl.branches import branch_table, is_branch_of
from rlgraph.dsl.context import ColumnSource, Context
from rlgraph.dsl.distributions import name_kept
from rlgraph.dsl.expand_def import expand_call
from rlgraph.dsl.keys import key_expr
from rlgraph.dsl.mathematics import binary_expr, builtin_expr, otherwise_expr, unary_expr, valid_expr
from rlgraph.dsl.method_calls import evaluate_method_call
from rlgraph.dsl.mixtures import call_mixture, mixture_of, names_mixture
from rlgraph.dsl.names import BUILT_IN, FUNCTIONS, keyed_state, look_up_name
from rlgraph.dsl.nodes import emit_node, materialize, unique_name
from rlgraph.dsl.pairs import emit_pairs
from rlgraph.dsl.players import emit_players, player_table
from rlgraph.dsl.random_numbers import emit_uniform
from rlgraph.dsl.remembered_rows import buffer_of_index, emit_recall
from rlgraph.dsl.rolls import emit_roll
from rlgraph.dsl.row_call import emit_prefix, emit_row
from rlgraph.dsl.rows import emit_encode, emit_function_call, emit_pick
from rlgraph.dsl.scope import (
    DefName,
    ExternalName,
    InvalidName,
    Meaning,
    ModelName,
    NamedValues,
    StatementError,
    TableValue,
    VocabularyValue,
    describe_meaning,
)
from rlgraph.dsl.signatures import METHODS, RATES
from rlgraph.dsl.step_numbers import schedule_value
from rlgraph.dsl.texts import text_expr
from rlgraph.dsl.values import evaluate_tensor
from rlgraph.dsl.words import OTHER_NAMES
from rlgraph.errors import Span, did_you_mean
from rlgraph.ir.graph import Const, Expr, Node, Ref, Value
from rlgraph.ir.types import MIXED, OLDEST, SAID, SUPPORT, SUPPORT_SHARE, TURN_TOKENS, Tensor, has_parts, players_of
from rlgraph.ops import TENSOR


def evaluate_expression(context: Context, expr: tree.Expr, hint: str = "") -> Meaning:
    """Return the meaning of an expression; `hint` is the name that its value is going to have."""
    if isinstance(expr, tree.Name):
        return look_up_name(context, expr)
    if isinstance(expr, tree.Number):
        return Const(expr.value, Tensor("float" if isinstance(expr.value, float) else "int"), expr.span)
    if isinstance(expr, tree.Bool):
        return Const(expr.value, Tensor("bool"), expr.span)
    if isinstance(expr, tree.String):
        return compose_text(context, expr, hint)
    if isinstance(expr, tree.List):
        raise context.statement_error("E0305", "a list can stand in an option only", expr.span)
    if isinstance(expr, tree.Unary):
        return unary_expr(context, expr)
    if isinstance(expr, tree.Binary):
        return mixture_of(context, expr) if names_mixture(context, expr) else binary_expr(context, expr)
    if isinstance(expr, tree.Attribute):
        return _attribute(context, expr)
    if isinstance(expr, tree.Index):
        return _lookup(context, expr, hint)
    return _call(context, expr, hint)


def _attribute(context: Context, expr: tree.Attribute) -> Meaning:
    path = _path(expr)
    base = evaluate_expression(context, path[0].base)
    while path:
        if isinstance(base, TableValue) and path[0].name in players_of(base.type):
            base = player_table(context, base, path.pop(0))
            continue
        if isinstance(base, TableValue) and is_branch_of(context, base, path[0]):
            base = branch_table(context, base, path.pop(0).span)
            continue
        count = _nested(base, path) if isinstance(base, TableValue) else 1
        base = _member(context, base, path[:count])
        path = path[count:]
    return base


def _path(expr: tree.Attribute) -> list[tree.Attribute]:
    """Return the steps of `a.b.c`, from the first one on: `a.b`, `a.b.c`."""
    path = [expr]
    while isinstance(path[0].base, tree.Attribute):
        path.insert(0, path[0].base)
    return path


def _nested(table: TableValue, path: list[tree.Attribute]) -> int:
    """Return how many steps name what is in the objects of one column of the data: `.length` counts tokens."""
    built_in = replace(table.type, data=()).column_types()
    return 1 if path[0].name in built_in else max(1, len(path) - (path[-1].name == "length"))


def _member(context: Context, base: Meaning, path: list[tree.Attribute]) -> Meaning:
    """Return what a value has under a name; of a table also what the objects in a column have."""
    expr = path[-1]
    if isinstance(base, TableValue):
        if expr.name == SUPPORT and len(path) == 1 and SUPPORT in dict(base.type.extra):
            return _support(context, base, expr.span)
        return _column(context, base, path)
    if isinstance(base, ModelName):
        methods = METHODS[base.model.kind]
        hint = did_you_mean(expr.name, methods) or f"call one of {', '.join(f'`{name}`' for name in methods)}"
        if expr.name in methods:
            raise context.statement_error(
                "E0206",
                f"`{expr.name}` of a model has to be called",
                expr.name_span,
                f"`{expr.span.covered_text}(...)`",
            )
        raise context.statement_error("E0206", f"a model has no column `{expr.name}`", expr.name_span, hint)
    if isinstance(base, NamedValues):
        values = dict(base.values)
        if expr.name not in values:
            hint = did_you_mean(expr.name, values) or f"it has {', '.join(f'`{name}`' for name in values)}"
            raise context.statement_error(
                "E0782", f"the function returns nothing called `{expr.name}`", expr.name_span, hint
            )
        return values[expr.name]
    if isinstance(base, Ref) and base.type.dtype in ("text", "any") and expr.name == "length":
        return _length(context, base, expr)
    hint = ""
    if isinstance(base, Ref) and base.type.dtype == "any":
        source = context.phase.column_sources.get(base.name)
        if source is not None:
            table = TableValue(source.table, source.kind)
            return _column_value(context, table, f"{source.name}.{expr.name}", base.type, expr.span)
        hint = f"name it where the table is named: `rollout.extra_info.{expr.name}` for example"
    raise context.statement_error("E0206", f"{describe_meaning(base)} has no columns", expr.span, hint)


def _length(context: Context, texts: Ref, expr: tree.Attribute) -> Ref:
    """Return how many tokens each text of a column has."""
    values, column, kind = context.phase.columns, (texts.name, "length"), replace(texts.type, dtype="int")
    if column not in values:
        value = Value(unique_name(context, f"{texts.name}.length"), kind)
        emit_node(context, Node("length", (texts.name,), (value,), span=expr.span))
        values[column] = value.name
    return Ref(values[column], kind, expr.span)


def _column(context: Context, table: TableValue, path: list[tree.Attribute]) -> Ref:
    columns = {name: kind for name, kind in table.type.column_types().items() if not _is_hidden(name)}
    first, name, span = path[0], ".".join(step.name for step in path), path[-1].span
    # A file may have a column of the whole name: tables that were made flat do.
    kind = columns.get(name) or columns.get(first.name)
    if kind is None and table.type.data is None:
        kind = Tensor("any", table.type.axis)
    if kind is None:
        hint = did_you_mean(first.name, columns) or f"it has {', '.join(sorted(columns)) or 'none that is known here'}"
        if first.name == SUPPORT and table.type.sampled:
            message = f"`{table.name}` does not keep the tokens that it was sampled from"
            hint = "write `support=keep` in the `generate` that samples it, beside `top_k`, `top_p` or `min_p`"
            raise context.statement_error("E0844", message, first.name_span, hint)
        if table.name in context.phase.answers_to_texts:
            hint = "its prompts are texts of a function: name it in the table that they are about"
        raise context.statement_error("E0204", f"the table has no column `{first.name}`", first.name_span, hint)
    return _column_value(context, table, name, kind, span)


def _support(context: Context, table: TableValue, span: Span) -> VocabularyValue:
    """Return the probabilities of the tokens that each of a table's was sampled from, which the sampler has kept."""
    kinds = table.type.column_types()
    kept, whole = (_column_value(context, table, name, kinds[name], span).name for name in (SUPPORT, SUPPORT_SHARE))
    return name_kept(context, table, kept, whole, span)


def _is_hidden(name: str) -> bool:
    """Return whether a column is not for programs to name."""
    return name in (MIXED, OLDEST, SAID, SUPPORT_SHARE, TURN_TOKENS) or has_parts(name)


def _column_value(context: Context, table: TableValue, name: str, kind: Tensor, span: Span) -> Ref:
    values, column = context.phase.columns, (table.name, name)
    if column not in values:
        value = Value(unique_name(context, f"{table.name}.{name}"), kind)
        emit_node(context, Node("column", (table.name,), (value,), (("name", name),), span=span))
        values[column] = value.name
        context.phase.column_sources[value.name] = ColumnSource(table.name, table.type, name)
    return Ref(values[column], kind, span)


def state_key_column(context: Context, expr: tree.Index) -> Expr:
    """Return the column by which a keyed state is looked up."""
    key = evaluate_tensor(context, expr.key)
    if key.type.axis is None or key.type.axis.inner or key.type.dtype == "row":
        raise context.statement_error(
            "E0304",
            f"a key is a column with an entry for each row, and this is {describe_meaning(key)}",
            expr.key.span,
            "name a column of a table: `rollout.agent` for example",
        )
    return key


def _lookup(context: Context, expr: tree.Index, hint: str) -> Meaning:
    buffer = buffer_of_index(context, expr)
    if buffer is not None:
        return emit_recall(context, expr, buffer, state_key_column(context, expr), hint)
    state = keyed_state(context, expr)
    key = state_key_column(context, expr)
    handle = context.block.versions[state.name]
    value = Value(unique_name(context, f"{state.name}.value"), Tensor("float", key.type.axis))
    emit_node(context, Node("lookup", (handle.name, materialize(context, key, "key")), (value,), span=expr.span))
    return Ref(value.name, value.type, expr.span)  # type: ignore[arg-type]


def _call(context: Context, expr: tree.Call, hint: str) -> Meaning:
    if isinstance(expr.func, tree.Attribute):
        if names_mixture(context, expr.func.base):
            return call_mixture(context, expr, hint)
        return evaluate_method_call(context, expr, hint)
    if not isinstance(expr.func, tree.Name):
        raise context.statement_error("E0206", "this cannot be called", expr.func.span)
    name = expr.func.id
    meaning = context.block.scope.get(name)
    if isinstance(meaning, DefName):
        context.used.add(name)
        return expand_call(context, expr, meaning, hint)
    if name in RATES:
        return schedule_value(context, expr)
    if isinstance(meaning, ExternalName) and meaning.outside.kind == "func":
        context.used.add(name)
        return emit_function_call(context, expr, meaning.outside, hint)
    # A value may have the name of a built-in function: the call means the function.
    if name in ("pick", "encode"):
        return emit_pick(context, expr, hint) if name == "pick" else emit_encode(context, expr, hint)
    if name == "user":
        return user_message(context, expr, hint)
    if name == "join":
        return joined_texts(context, expr, hint)
    if name == "row":
        return emit_row(context, expr, hint)
    if name == "prefix":
        return emit_prefix(context, expr, hint)
    if name == "uniform":
        return emit_uniform(context, expr, hint)
    if name == "interact":
        return emit_players(context, expr, hint)
    if name == "pairs":
        return emit_pairs(context, expr, hint)
    if name == "roll":
        return emit_roll(context, expr, hint)
    if name == "key":
        return key_expr(context, expr)
    if name in ("valid", "otherwise"):
        return valid_expr(context, expr) if name == "valid" else otherwise_expr(context, expr)
    if name in FUNCTIONS and TENSOR[name].reads_text:
        return text_expr(context, expr, name)
    if name in FUNCTIONS:
        return builtin_expr(context, expr, name)
    if isinstance(meaning, InvalidName):
        raise StatementError
    if meaning is not None:
        shown = describe_meaning(meaning)
        advice = f"call one of its methods: `{name}.generate(...)`" if isinstance(meaning, ModelName) else ""
        raise context.statement_error("E0206", f"`{name}` is {shown}, which cannot be called", expr.func.span, advice)
    functions = [*BUILT_IN]
    functions += [word for word, value in context.block.scope.items() if isinstance(value, (DefName, ExternalName))]
    hint = OTHER_NAMES.get(name.lower()) or did_you_mean(name, functions)
    context.block.scope[name] = InvalidName()
    raise context.statement_error("E0201", f"no function is called `{name}`", expr.func.span, hint)
