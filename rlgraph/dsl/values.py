"""Evaluates expressions that have to be numbers or tables."""

from __future__ import annotations

from collections.abc import Sequence

from rlgraph.dsl import tree
from rlgraph.dsl.context import Context
from rlgraph.dsl.scope import Meaning, StatementError, TableValue, describe_meaning
from rlgraph.ir.graph import Apply, Const, Expr, Ref


def evaluate_tensor(context: Context, expr: tree.Expr) -> Expr:
    """Return the value of an expression that has to be a number, or numbers along an axis."""
    return _tensor(context, expr, context.evaluate(expr))


def _tensor(context: Context, expr: tree.Expr, meaning: Meaning) -> Expr:
    if isinstance(meaning, (Const, Ref, Apply)):
        return meaning
    column = "length" if isinstance(meaning, TableValue) and meaning.type.token else "column"
    table = "" if context.call_site else expr.span.covered_text
    hint = f"name one of its columns: `{table}.{column}`" if isinstance(meaning, TableValue) else ""
    raise context.statement_error(
        "E0305", f"numbers are needed here, and this is {describe_meaning(meaning)}", expr.span, hint
    )


def evaluate_number(context: Context, expr: tree.Expr) -> Expr:
    """Return the tensor of an expression that is calculated with."""
    value = _tensor(context, expr, context.evaluate(expr))
    if value.type.dtype in ("text", "row"):
        what = "a text" if value.type.dtype == "text" else "a choice of rows"
        raise context.statement_error("E0304", f"one cannot calculate with {what}", expr.span)
    return value


def evaluate_numbers(context: Context, exprs: Sequence[tree.Expr]) -> list[Expr]:
    """Return several numbers; report all that is wrong with them."""
    values: list[Expr] = []
    for expr in exprs:
        try:
            values.append(evaluate_number(context, expr))
        except StatementError:
            continue
    if len(values) < len(exprs):
        raise StatementError
    return values


def evaluate_table(context: Context, expr: tree.Expr, what: str) -> TableValue:
    """Return an argument that has to be a table with tokens."""
    meaning = context.evaluate(expr)
    if not isinstance(meaning, TableValue):
        hint = f"name the whole table: `{expr.base.span.covered_text}`" if isinstance(expr, tree.Attribute) else ""
        raise context.statement_error(
            "E0305", f"{what} needs a table, and this is {describe_meaning(meaning)}", expr.span, hint
        )
    if meaning.type.token is None:
        raise context.statement_error(
            "E0305",
            f"{what} needs rows with tokens, and `{expr.span.covered_text}` is plain data",
            expr.span,
            "generate from it, or make tokens with `encode(prompt, answer)`",
        )
    return meaning
