"""Checks texts with names in braces: `"Question: {prompts.prompt}"` is a text of each row."""

from __future__ import annotations

from rlgraph.dsl import tree
from rlgraph.dsl.constants import evaluate_constant
from rlgraph.dsl.context import Context
from rlgraph.dsl.keys import evaluate_groups
from rlgraph.dsl.mathematics import common_axis
from rlgraph.dsl.nodes import emit_node, materialize, unique_name
from rlgraph.dsl.scope import (
    Meaning,
    NamedValues,
    OptionalValue,
    StatementError,
    TableValue,
    describe_meaning,
    meaning_of,
)
from rlgraph.dsl.values import missing_value_error
from rlgraph.errors import did_you_mean
from rlgraph.ir.graph import Apply, Const, Constant, Expr, Node, Ref, Value
from rlgraph.ir.types import DType, Tensor
from rlgraph.ops.texts import format_entry

_TWICE = "a brace of the text itself is written twice: `{{` and `}}`"
_USER = '`user("Question: {prompts.prompt}")`, or with `system="..."`'
_SAMPLES: dict[DType, tuple[object, ...]] = {
    "float": (0.5,),
    "int": (1,),
    "bool": (True,),
    "number": (0.5, 1),
    "text": ("a",),
    "any": (0.5, 1, "a"),
}
"""Entries of each kind, one of which a format has to fit."""


def compose_text(context: Context, expr: tree.String, hint: str) -> Const | Ref:
    """Return a text with names in braces, one for each row of the innermost axis of what is named; a text without any
    name is what it says. Errors are those of names, axes and formats."""
    if not any(isinstance(piece, tree.BracedName) and piece.value for piece in expr.pieces):
        return Const(expr.value, Tensor("text"), expr.span)
    pieces, entries, formats = [""], list[Expr](), list[str]()
    for piece in expr.pieces:
        if isinstance(piece, str):
            pieces[-1] += piece
            continue
        value = _entry(context, piece)
        if isinstance(value, Const):
            pieces[-1] += format_entry(value.value, piece.format)
            continue
        entries.append(value)
        formats.append(piece.format)
        pieces.append("")
    if not entries:
        return Const(pieces[0], Tensor("text"), expr.span)
    axis = common_axis(context, entries, expr.span)
    if axis is None:
        message = "this text names nothing of a row: it would be one text, and not one for each"
        raise context.statement_error("E0873", message, expr.span, "name a column: `{prompts.prompt}` for example")
    text = Value(unique_name(context, hint or "text"), Tensor("text", axis))
    inputs = tuple(materialize(context, entry, "entry") for entry in entries)
    attrs = (("pieces", tuple(pieces)), ("formats", tuple(formats)))
    emit_node(context, Node("compose", inputs, (text,), attrs, span=expr.span))
    return Ref(text.name, Tensor("text", axis), expr.span)


def user_message(context: Context, expr: tree.Call, hint: str) -> Ref:
    """Return `user(TEXT, system="...")`: a text of each row as the message of a user."""
    texts, system = read_user_call(context, expr)
    if error := plain_text_error(context, expr.args[0], texts):
        raise error
    return emit_user_message(context, expr, texts, system, hint)


def read_user_call(context: Context, expr: tree.Call) -> tuple[Meaning, str | None]:
    """Return what `user(TEXT, system="...")` makes a message of, and what the system says before it; None: nothing."""
    if len(expr.args) != 1 or any(option.name != "system" for option in expr.options):
        raise context.statement_error("E0405", "`user` takes a text, and `system=`", expr.span, _USER)
    said: str | None = None
    for option in expr.options:
        system = evaluate_constant(context, option.value, context.block.scope)
        if not isinstance(system, str):
            raise context.statement_error("E0402", "`system` is a text", option.value.span, _USER)
        said = system
    return context.evaluate(expr.args[0]), said


def emit_user_message(context: Context, expr: tree.Call, texts: Meaning, system: str | None, hint: str) -> Ref:
    """Return texts of rows as messages of a user, behind the system's if there is one."""
    if not isinstance(texts, Ref) or texts.type.dtype not in ("text", "any") or texts.type.axis is None:
        message = f"`user` takes a text of each row, and this is {describe_meaning(texts)}"
        raise context.statement_error("E0866", message, expr.args[0].span, _USER)
    attrs: tuple[tuple[str, Constant], ...] = (("pieces", ("", "")), ("formats", ("",)), ("role", "user"))
    attrs = attrs if system is None else (*attrs, ("system", system))
    value = Value(unique_name(context, hint or "asked"), Tensor("any", texts.type.axis))
    emit_node(context, Node("compose", (texts.name,), (value,), attrs, span=expr.span))
    return Ref(value.name, Tensor("any", texts.type.axis), expr.span)


def joined_texts(context: Context, expr: tree.Call, hint: str) -> Ref:
    """Return `join(rollout.text, by=prompts, between="\\n")`: the texts of each group, in the order of its rows."""
    example = '`join(rollout.text, by=prompts, between="\\n")`'
    options = {option.name: option for option in expr.options}
    if len(expr.args) != 1 or "by" not in options or options.keys() - {"by", "between"}:
        raise context.statement_error("E0405", "`join` takes texts, `by=` and `between=`", expr.span, example)
    texts = context.evaluate(expr.args[0])
    if not isinstance(texts, Ref) or texts.type.dtype not in ("text", "any") or texts.type.axis is None:
        message = f"`join` takes a text of each row or turn, and this is {describe_meaning(texts)}"
        raise context.statement_error("E0866", message, expr.args[0].span, example)
    between = "\n"
    if "between" in options:
        given = evaluate_constant(context, options["between"].value, context.block.scope)
        if not isinstance(given, str):
            raise context.statement_error("E0402", "`between` is a text", options["between"].value.span, example)
        between = given
    groups = evaluate_groups(context, options["by"].value, texts.type.axis)
    if groups.within is None or groups.values or groups.within.inner:
        message = "texts are joined for each row of a table, and this is a key"
        raise context.statement_error("E0222", message, options["by"].value.span, example)
    value = Value(unique_name(context, hint or "joined"), Tensor("text", groups.within))
    attrs = (("between", between), ("axis", groups.within.key))
    emit_node(context, Node("joined", (texts.name,), (value,), attrs, span=expr.span))
    return Ref(value.name, Tensor("text", groups.within), expr.span)


def plain_text_error(context: Context, expr: tree.Expr, meaning: Meaning) -> StatementError | None:
    """Return the error for a text in quotes that stands where one of each row is needed; None for anything else."""
    if not isinstance(meaning, Const) or not isinstance(meaning.value, str):
        return None
    if isinstance(expr, tree.String):
        for piece in expr.pieces:
            if isinstance(piece, tree.BracedName) and piece.wrong:
                return _no_name(context, piece)
    return context.statement_error(
        "E0873",
        "a text of each row is needed here, and this is one text for all",
        expr.span,
        'name a column of the rows in it: `"Question: {prompts.prompt}"` for example',
    )


def _no_name(context: Context, slot: tree.BracedName) -> StatementError:
    return context.statement_error("E0869", slot.wrong, slot.span, f"name a value above and write `{{it}}`; {_TWICE}")


def _entry(context: Context, slot: tree.BracedName) -> Expr:
    """Return what a name in braces stands for: a text or a number of each row, or the same of all."""
    if slot.value is None:
        raise _no_name(context, slot)
    _check_known(context, slot.value)
    meaning = context.evaluate(slot.value)
    value = meaning.first if isinstance(meaning, NamedValues) else meaning
    if isinstance(value, OptionalValue):
        raise missing_value_error(context, slot.value, value)
    name = slot.value.span.covered_text
    if not isinstance(value, (Const, Ref, Apply)) or value.type.dtype == "row":
        hint = "name a value of each row"
        if isinstance(value, TableValue):
            column = "text" if value.type.token else next(iter(value.type.data or ("prompt",)))
            hint = f"name one of its columns: `{{{name}.{column}}}`"
        what = describe_meaning(meaning)
        raise context.statement_error("E0870", f"`{name}` cannot stand in a text: it is {what}", slot.span, hint)
    if value.type.axis is not None and value.type.axis.inner:
        message = f"`{name}` cannot stand in a text: it has an entry for each {value.type.axis.name}"
        hint = f"reduce it first: `mean({name}, {value.type.axis.name})`, and name that"
        raise context.statement_error("E0870", message, slot.span, hint)
    _check_format(context, slot, value)
    return value


def _check_known(context: Context, path: tree.Expr) -> None:
    """Report a word in braces that means nothing, and may be meant as it is written."""
    while isinstance(path, tree.Attribute):
        path = path.base
    assert isinstance(path, tree.Name)
    if meaning_of(context.block.scope, path.id) is None and path.id not in context.block.later:
        hint = did_you_mean(path.id, context.block.scope) or _TWICE
        raise context.statement_error("E0201", f"nothing is called `{path.id}`", path.span, hint)


def _check_format(context: Context, slot: tree.BracedName, value: Expr) -> None:
    """Report a format that fits no entry of a value."""
    samples = (value.value,) if isinstance(value, Const) else _SAMPLES[value.type.dtype]
    problem = ""
    for sample in samples:
        try:
            format_entry(sample, slot.format)
            return
        except ValueError as error:
            problem = str(error)
    hint = "a format is written as in Python: `{x:.2f}` has two digits after the point"
    raise context.statement_error("E0871", problem, slot.span, hint)
