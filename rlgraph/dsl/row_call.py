"""Checks `row(a, b, ...)` and `prefix(table, tokens=k)`: rows made of pieces behind one another, or of their first
tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rlgraph.dsl import constants, tree
from rlgraph.dsl.braced_texts import emit_user_message, plain_text_error, read_user_call
from rlgraph.dsl.context import Context
from rlgraph.dsl.nodes import emit_node, materialize, new_inner_axis, unique_name
from rlgraph.dsl.scope import Meaning, TableValue, describe_meaning
from rlgraph.dsl.signatures import ROW
from rlgraph.dsl.values import evaluate_table, evaluate_tensor
from rlgraph.ir.graph import Const, Constant, Node, Ref, Value
from rlgraph.ir.types import Axis, Table, Tensor, inner_of_two_axes

_EXAMPLE = "`row(rollout.hint, rollout)`: a prompt, and the tokens that were sampled"
_ASKED = '`row(rollout, user("Is that right?"))`: an answer, and what a user says behind it'
_PREFIX = "`prefix(rollout, tokens=8)`: the first 8 tokens of each row, behind its prompt"


@dataclass(frozen=True, slots=True)
class _Piece:
    """A piece of a row: a text or a message for all rows, a value of each, or the tokens of a table."""

    syntax: tree.Expr
    literal: str = ""
    role: str = ""
    """Whose message the text for all rows is; empty: it is a text."""
    value: str = ""
    """The name of the value; empty for a text for all rows."""
    axis: Axis | None = None
    table: TableValue | None = None
    """The table, where the piece is its tokens."""


def emit_row(context: Context, expr: tree.Call, hint: str) -> TableValue:
    """Emit `row(PIECES...)`: tokens of tables, texts and messages behind one another, on the innermost of their axes.

    Which tokens carry loss is what `loss=` says: those of all tables, of the last one, or what no model has sampled.
    """
    options = constants.evaluate_options(context, ROW, expr.options, expr.span, context.block.scope)
    if not expr.args:
        raise context.statement_error("E0405", "`row` takes a piece or more", expr.span, _EXAMPLE)
    pieces = [piece for arg in expr.args for piece in _pieces(context, arg) if piece.literal or piece.value]
    tables = [piece.table for piece in pieces if piece.table]
    if not tables:
        message = "a row has the tokens of a table among its pieces, and these are texts"
        raise context.statement_error("E0890", message, expr.span, _EXAMPLE)
    kind = _type_of_row(context, expr, pieces, tables, str(options["loss"]), hint)
    attrs: list[tuple[str, Constant]] = [("pieces", tuple(piece.literal for piece in pieces))]
    roles = tuple(piece.role for piece in pieces)
    attrs += [("roles", roles)] if any(roles) else []
    attrs += [("loss", options["loss"])] if options["loss"] != "all" else []
    inputs = tuple(piece.value for piece in pieces if piece.value)
    value = Value(unique_name(context, hint or "row"), kind)
    emit_node(context, Node("row", (tables[-1].name, *inputs), (value,), tuple(attrs), span=expr.span))
    return TableValue(value.name, kind)


def _pieces(context: Context, syntax: tree.Expr) -> Sequence[_Piece]:
    """Return what an argument stands for: a piece, or the messages of `user("...", system="...")` for all rows."""
    if not isinstance(syntax, tree.Call) or not isinstance(syntax.func, tree.Name) or syntax.func.id != "user":
        return [_piece(context, syntax)]
    texts, system = read_user_call(context, syntax)
    literal = _literal(context, syntax.args[0], texts)
    if literal is None:
        message = emit_user_message(context, syntax, texts, system, "")
        return [_Piece(syntax, value=message.name, axis=message.type.axis)]
    if not literal:
        raise context.statement_error("E0873", "this message says nothing", syntax.args[0].span, _ASKED)
    said = _Piece(syntax, literal=literal, role="user")
    return [_Piece(syntax, literal=system, role="system"), said] if system else [said]


def _piece(context: Context, syntax: tree.Expr) -> _Piece:
    """Return a piece: of a table without tokens it is the prompts."""
    meaning = context.evaluate(syntax)
    if isinstance(meaning, TableValue) and meaning.type.token is not None:
        return _Piece(syntax, value=meaning.name, axis=meaning.type.axis, table=meaning)
    if isinstance(meaning, TableValue):
        meaning = context.evaluate(tree.Attribute(syntax, "prompt", syntax.span, syntax.span))
    literal = _literal(context, syntax, meaning)
    if literal is not None:
        return _Piece(syntax, literal=literal)
    if not isinstance(meaning, Ref) or meaning.type.axis is None or meaning.type.dtype not in ("text", "any"):
        message = f"a piece of a row is a text, messages or a table, and this is {describe_meaning(meaning)}"
        raise context.statement_error("E0891", message, syntax.span, _EXAMPLE)
    return _Piece(syntax, value=meaning.name, axis=meaning.type.axis)


def _literal(context: Context, syntax: tree.Expr, meaning: Meaning) -> str | None:
    """Return a text that is the same for all rows; None for what is none."""
    if not isinstance(meaning, Const) or not isinstance(meaning.value, str):
        return None
    named = syntax.pieces if isinstance(syntax, tree.String) else ()
    if any(isinstance(part, tree.BracedName) and part.wrong for part in named):
        error = plain_text_error(context, syntax, meaning)
        assert error
        raise error
    return meaning.value


def _type_of_row(
    context: Context, expr: tree.Call, pieces: Sequence[_Piece], tables: Sequence[TableValue], loss: str, hint: str
) -> Table:
    axis: Axis | None = None
    for piece in pieces:
        try:
            axis = inner_of_two_axes(axis, piece.axis)
        except ValueError:
            assert axis and piece.axis
            message = f"a piece is of rows of [{piece.axis.label}], and others are of [{axis.label}]: neither lies in "
            message += "the other"
            hint = "choose one of them, with `pick`"
            raise context.statement_error("E0301", message, piece.syntax.span, hint) from None
    assert axis
    learned = {"all": tables, "last": tables[-1:], "seen": []}[loss]
    last = tables[-1].type
    if len(learned) == 1 and last.axis.key == axis.key:
        # The tokens with loss are those of one table: what a model says of both meets token by token.
        return replace(last, start="row")
    temperatures = dict.fromkeys(table.type.temperature for table in learned if table.type.sampled)
    if len(temperatures) > 1:
        shown = " and ".join(f"{temperature:g}" for temperature in temperatures)
        message = f"the pieces were sampled at temperatures {shown}: their log-probabilities are of different kinds"
        hint = "sample them at the same temperature, or let only the last carry loss: `row(..., loss=last)`"
        raise context.statement_error("E0311", message, expr.span, hint)
    sampled = bool(learned) and all(table.type.sampled for table in learned)
    single = len(learned) == 1
    token = new_inner_axis(context, "token", hint or "row", axis)
    moved = {last.axis.key: axis} | ({last.token.key: token} if single and last.token else {})
    return Table(
        axis,
        token,
        None,
        sampled,
        sampled and any(table.type.spans for table in learned),
        next(iter(temperatures), 1.0),
        last.data,
        _moved_columns(last, moved),
        "row",
    )


def _moved_columns(kind: Table, moved: Mapping[str, Axis]) -> tuple[tuple[str, Tensor], ...]:
    """Return the columns that a program added, on new axes; those of axes that are gone are gone with them."""
    return tuple(
        (name, Tensor(column.dtype, moved[column.axis.key]))
        for name, column in kind.extra
        if column.axis and column.axis.key in moved
    )


def emit_prefix(context: Context, expr: tree.Call, hint: str) -> TableValue:
    """Emit `prefix(TABLE, tokens=k)`: each row up to its k-th token with loss, on the axes of the table and of k."""
    names = [option.name for option in expr.options]
    if len(expr.args) != 1 or names != ["tokens"]:
        raise context.statement_error("E0405", "`prefix` takes a table, and `tokens=`", expr.span, _PREFIX)
    table = evaluate_table(context, expr.args[0], "`prefix`")
    [option] = expr.options
    count = evaluate_tensor(context, option.value)
    constant = isinstance(count, Const)
    wrong = count.type.dtype in ("bool", "text", "row") or count.type.axis is not None and count.type.axis.inner
    if isinstance(count, Const) and not wrong:
        wrong = isinstance(count.value, str) or count.value < 0 or count.value != int(count.value)
    if isinstance(option.value, tree.Unary) and isinstance(option.value.operand, tree.Number):
        wrong = True
    if wrong:
        known = isinstance(count, Const) or isinstance(option.value, tree.Unary)
        what = f"`{option.value.span.covered_text}`" if known else describe_meaning(count)
        message = f"`tokens` is how many tokens of each row stay, a whole number or one of each row, and this is {what}"
        hint = "a whole number, or a number of each row: `prefix(rollout, tokens=floor(rollout.length / 2))`"
        raise context.statement_error("E0309", message, option.value.span, hint)
    try:
        axis = inner_of_two_axes(table.type.axis, count.type.axis)
    except ValueError:
        assert count.type.axis
        message = (
            f"`tokens` is a number of each row of [{table.type.axis.label}], and this is {describe_meaning(count)}"
        )
        raise context.statement_error("E0301", message, option.value.span) from None
    assert axis
    label = unique_name(context, hint or "prefix")
    token = new_inner_axis(context, "token", label, axis)
    assert table.type.token
    columns = _moved_columns(table.type, {table.type.axis.key: axis, table.type.token.key: token})
    kind = replace(table.type, axis=axis, token=token, turn=None, extra=columns, start="row")
    inputs = (table.name,) if constant else (table.name, materialize(context, count, f"{label}.tokens"))
    attrs: tuple[tuple[str, Constant], ...] = (("tokens", int(count.value)),) if isinstance(count, Const) else ()
    emit_node(context, Node("prefix", inputs, (Value(label, kind),), attrs, span=expr.span))
    return TableValue(label, kind)
