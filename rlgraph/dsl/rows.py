"""Checks calls that make rows or work on them: Python functions, `pick`, `encode`, `sample`."""

from __future__ import annotations

from collections.abc import Mapping

from rlgraph.conversations import format_of_columns
from rlgraph.dsl import constants, tree
from rlgraph.dsl.braced_texts import plain_text_error
from rlgraph.dsl.context import Context
from rlgraph.dsl.misuses import columns_to_encode
from rlgraph.dsl.nodes import emit_node, materialize, new_inner_axis, table_on_axis, unique_name
from rlgraph.dsl.reports import emit_report
from rlgraph.dsl.scope import Meaning, NamedValues, OptionalValue, TableValue, describe_meaning
from rlgraph.dsl.signatures import ENCODE
from rlgraph.dsl.values import evaluate_table, evaluate_tensor
from rlgraph.errors import did_you_mean, quoted_list
from rlgraph.ir.graph import Apply, Const, Constant, External, Node, Ref, Value
from rlgraph.ir.types import Axis, Table, Tensor
from rlgraph.ops import NODES


def emit_function_call(
    context: Context, expr: tree.Call, func: External, hint: str
) -> Ref | OptionalValue | NamedValues:
    """Emit a call of a Python function on the rows of a table; more columns go by name."""
    if context.block.training:
        raise context.statement_error(
            "E0505",
            f"`{func.name}` cannot be called in a `train` body: no gradient goes through it",
            expr.span,
            "move it above `train`",
        )
    if len(expr.args) != 1:
        raise context.statement_error(
            "E0405",
            f"`{func.name}` takes one table by place, not {len(expr.args)} values",
            expr.span,
            "give other columns by name: `f(rollout, length=rollout.length)`",
        )
    table = evaluate_table(context, expr.args[0], f"`{func.name}`")
    names, inputs = [], [table.name]
    for option in expr.options:
        column = evaluate_tensor(context, option.value)
        if error := plain_text_error(context, option.value, column):
            raise error
        if column.type.axis is None or not table.type.axis.is_within(column.type.axis):
            rows = expr.args[0].span.covered_text
            message = f"a column has an entry for each row of `{rows}`, and this is {describe_meaning(column)}"
            raise context.statement_error("E0301", message, option.value.span)
        names.append(option.name)
        inputs.append(materialize(context, column, option.name))
    over = func.record.option("over")
    attrs: tuple[tuple[str, Constant], ...] = (("func", func.name), ("names", tuple(names)))
    if over != NODES["call"].attribute_named("over").default:
        attrs = (*attrs, ("over", over))
    label, axis = unique_name(context, hint or func.name), table.type.axis
    numbers, texts = (option_names(func.record.option(option)) for option in ("returns", "texts"))
    values = [Value(label, Tensor("float", axis))]
    values += [Value(unique_name(context, f"{label}.{name}"), Tensor("float", axis)) for name in numbers[1:]]
    values += [Value(unique_name(context, f"{label}.{name}"), Tensor("text", axis)) for name in texts]
    outcomes = {name: func.record.option(name) for name in ("none", "failed")}
    states: list[Value] = []
    if any(outcome not in (None, "stop") for outcome in outcomes.values()):
        states.append(Value(unique_name(context, f"{label}.state"), Tensor("int", axis)))
    emit_node(context, Node("call", tuple(inputs), (*values, *states), attrs, span=expr.span))
    plain = [Ref(value.name, value.type, expr.span) for value in values]  # type: ignore[arg-type]
    refs: list[Ref | OptionalValue] = [*plain]
    for state in states:
        _report_states(context, expr, Ref(state.name, Tensor("int", axis), expr.span), label, outcomes)
    if "skip" in outcomes.values():
        given = _given(context, expr, states[0].name, axis, label)
        refs = [OptionalValue(ref, (given,)) if ref.type.dtype != "text" else ref for ref in plain]
    return NamedValues(tuple(zip((*numbers, *texts), refs, strict=True))) if numbers else refs[0]


def option_names(option: Constant) -> tuple[str, ...]:
    """Return the names in an option that is a text or a list of texts."""
    given = option if isinstance(option, tuple) else () if option is None else (option,)
    return tuple(str(name) for name in given)


def _given(context: Context, expr: tree.Call, state: str, axis: Axis, label: str) -> Ref:
    """Return the column that says which rows a function has given a number for."""
    bound = Const(0, Tensor("int"), expr.span)
    given = Apply("ge", (Ref(state, Tensor("int", axis)), bound), Tensor("bool", axis), None, expr.span)
    return Ref(materialize(context, given, f"{label}.given"), given.type, expr.span)


def _report_states(context: Context, expr: tree.Call, state: Ref, label: str, outcomes: Mapping[str, Constant]) -> None:
    """Report for how many rows a function abstained, and for how many it failed, as far as the run goes on then."""
    kinds = {"none": ("abstained", 1), "failed": ("failed", 2)}
    items = []
    for name, (fate, number) in kinds.items():
        if outcomes[name] in (None, "stop"):
            continue
        # A word that nobody can write, so that it still means this where a loop reports at its end.
        word = f"{label}.{fate}"
        scopes = (context.block.scope, context.outside) if context.active else (context.block.scope,)
        for scope in scopes:
            scope[word] = state
        magnitude = tree.Call(tree.Name("abs", expr.span), (tree.Name(word, expr.span),), (), expr.span)
        same = tree.Binary("==", magnitude, tree.Number(number, str(number), expr.span), expr.span)
        count = tree.Call(tree.Name("count", expr.span), (same,), (), expr.span)
        items.append(tree.Option(word, count, expr.span, expr.span))
    emit_report(context, tree.Report(tuple(items), expr.span))


def emit_pick(context: Context, expr: tree.Call, hint: str) -> TableValue:
    """Emit `pick(table, argmax(x, by=group))`: from there on the rows are the group's."""
    if len(expr.args) != 2 or expr.options:
        raise context.statement_error(
            "E0405",
            "`pick` takes a table and a choice of rows",
            expr.span,
            "`pick(rollout, argmax(score, by=prompts))`",
        )
    table = evaluate_table(context, expr.args[0], "`pick`")
    choice = evaluate_tensor(context, expr.args[1])
    if choice.type.dtype != "row" or choice.type.axis is None:
        raise context.statement_error(
            "E0308",
            f"a choice of rows is needed here, and this is {describe_meaning(choice)}",
            expr.args[1].span,
            "`argmax(x, by=group)` or `argmin(x, by=group)`",
        )
    index = materialize(context, choice, f"{hint or 'pick'}.row")
    source = context.phase.chosen[index]
    if source.key != table.type.axis.key:
        raise context.statement_error(
            "E0308",
            f"the rows are chosen from `{source.name}`, not from `{expr.args[0].span.covered_text}`",
            expr.args[1].span,
        )
    label = unique_name(context, hint or "pick")
    kind = table_on_axis(context, table.type, label, choice.type.axis)
    emit_node(context, Node("pick", (table.name, index), (Value(label, kind),), span=expr.span))
    return TableValue(label, kind)


_ENCODE = "`encode(rows)`, `encode(rows.messages)`, or `encode(rows.prompt, rows.response)`"


def emit_encode(context: Context, expr: tree.Call, hint: str) -> TableValue:
    """Emit `encode(rows)`, or of one or two of their columns: rows with tokens, of which the answer's carry loss."""
    options = constants.evaluate_options(context, ENCODE, expr.options, expr.span, context.block.scope)
    if len(expr.args) not in (1, 2):
        raise context.statement_error(
            "E0405", "`encode` takes a table, or a column, or the columns of prompts and of answers", expr.span, _ENCODE
        )
    sides = [context.evaluate(arg) for arg in expr.args]
    table = sides[0]
    if isinstance(table, TableValue) and len(sides) == 1:
        if table.type.token:
            raise context.statement_error(
                "E0305", f"`{expr.args[0].span.covered_text}` has tokens already", expr.args[0].span, "use it as it is"
            )
        answer = options["answer"]
        assert answer is None or isinstance(answer, str)
        _check_shape(context, expr, table, answer)
        axis, data = table.type.axis, table.type.data
        inputs: tuple[str, ...] = (table.name,)
    else:
        columns = [_text_column(context, arg, side) for arg, side in zip(expr.args, sides, strict=True)]
        if options["answer"] is not None:
            place = next(option.span for option in expr.options if option.name == "answer")
            raise context.statement_error(
                "E0405", "`answer` names a column of a table, and columns are given", place, "leave it out"
            )
        if len({column.type.axis for column in columns}) > 1:
            raise context.statement_error(
                "E0301", "the prompt and the answer are columns of different tables", expr.span
            )
        axis, data = columns[0].type.axis, None  # type: ignore[assignment]
        inputs = tuple(materialize(context, column, "text") for column in columns)
    assert axis
    label = unique_name(context, hint or "answer")
    kind = Table(axis, new_inner_axis(context, "token", label, axis), data=data)
    attrs = tuple(
        (name, value) for name, value in options.items() if value != NODES["encode"].attribute_named(name).default
    )
    emit_node(context, Node("encode", inputs, (Value(label, kind),), attrs, span=expr.span))
    return TableValue(label, kind)


def _check_shape(context: Context, expr: tree.Call, table: TableValue, answer: str | None) -> None:
    """Report rows that have no columns to encode."""
    data = table.type.data
    if data is None or format_of_columns(data, answer) is not None:
        return
    has = f"it has {quoted_list([*data], 'and')}" if data else "it has no columns"
    rows = expr.args[0].span.covered_text
    if answer is not None:
        place = next(option.span for option in expr.options if option.name == "answer")
        raise context.statement_error(
            "E0771",
            f"the table has no column `{answer}`",
            place,
            did_you_mean(answer, data) or columns_to_encode(rows, data) or has,
        )
    named = columns_to_encode(rows, data) or _ENCODE
    message = f"`{rows}` has no columns that `encode` knows: {has}"
    raise context.statement_error("E0771", message, expr.span, named)


def _text_column(context: Context, arg: tree.Expr, side: Meaning) -> Ref | Apply:
    """Return an argument that has to be a column of texts or messages."""
    if isinstance(side, (Ref, Apply)) and side.type.axis is not None and side.type.dtype in ("text", "any"):
        return side
    if error := plain_text_error(context, arg, side):
        raise error
    hint = f"name its column: `{arg.span.covered_text}.prompt` for example" if isinstance(side, TableValue) else ""
    raise context.statement_error(
        "E0304", f"a column of texts is needed here, and this is {describe_meaning(side)}", arg.span, hint
    )
