"""Evaluates expressions that have to be numbers or tables."""

from __future__ import annotations

from collections.abc import Sequence

from rlgraph.dsl import tree
from rlgraph.dsl.context import Context
from rlgraph.dsl.scope import (
    KeyValue,
    Meaning,
    NamedValues,
    OptionalValue,
    StatementError,
    TableValue,
    VocabularyValue,
    describe_meaning,
)
from rlgraph.errors import Span
from rlgraph.ir.graph import Apply, Const, Expr, Ref


def evaluate_tensor(context: Context, expr: tree.Expr) -> Expr:
    """Return the value of an expression that has to be a number, or numbers along an axis."""
    return _tensor(context, expr, context.evaluate(expr))


def _tensor(context: Context, expr: tree.Expr, meaning: Meaning) -> Expr:
    value = _value(context, expr, meaning)
    if isinstance(value, OptionalValue):
        raise missing_value_error(context, expr, value)
    return value


def missing_value_error(context: Context, expr: tree.Expr, value: OptionalValue) -> StatementError:
    """Report that a value which some rows lack stands where each row needs one."""
    message = f"each row needs a value here, and this is {describe_meaning(value)}"
    if value.type.dtype == "bool":
        text = "x" if context.call_site else expr.span.covered_text
        hint = f"say what the others are: `otherwise({text}, false)`"
    else:
        hint = missing_value_hint(context, value.given)
    return context.statement_error("E0780", message, expr.span, hint)


def missing_value_hint(context: Context, given: Sequence[Ref]) -> str:
    """Return what to write about rows that lack values; given: what says which rows these are."""
    names = {ref.name for ref in given}
    scope = context.outside if context.active else context.block.scope
    words = [word for word, meaning in scope.items() if any(ref.name in names for ref in _given(meaning))]
    text = next(iter(words), "score")
    rows = given[-1].type.axis
    keep = f"keep {rows.name if rows else 'rollout'} where valid({text})"
    return f"say what the others have: `otherwise({text}, 0.0)`, or leave them out above: `{keep}`"


def _given(meaning: Meaning) -> Sequence[Ref]:
    value = meaning.first if isinstance(meaning, NamedValues) else meaning
    return value.given if isinstance(value, OptionalValue) else ()


def _value(context: Context, expr: tree.Expr, meaning: Meaning) -> Expr | OptionalValue:
    """Return a meaning that has to be numbers, which rows may lack."""
    if isinstance(meaning, NamedValues):
        return meaning.first
    if isinstance(meaning, VocabularyValue):
        return meaning.expr
    if isinstance(meaning, (Const, Ref, Apply, OptionalValue)):
        return meaning
    column = "length" if isinstance(meaning, TableValue) and meaning.type.token else "column"
    table = "" if context.call_site else expr.span.covered_text
    hint = f"name one of its columns: `{table}.{column}`" if isinstance(meaning, TableValue) else ""
    if isinstance(meaning, KeyValue):
        hint = "a key says what rows are grouped by: `mean(x, by=key(prompts, rollout.level))`"
    raise context.statement_error(
        "E0305", f"numbers are needed here, and this is {describe_meaning(meaning)}", expr.span, hint
    )


def evaluate_number(context: Context, expr: tree.Expr) -> Expr:
    """Return the tensor of an expression that is calculated with."""
    value = evaluate_optional(context, expr)
    if isinstance(value, OptionalValue):
        raise missing_value_error(context, expr, value)
    return value


def evaluate_optional(context: Context, expr: tree.Expr) -> Expr | OptionalValue:
    """Return what is calculated with, which rows may lack."""
    value = _value(context, expr, context.evaluate(expr))
    if value.type.dtype in ("text", "row"):
        message = f"one cannot calculate with {'a text' if value.type.dtype == 'text' else 'a choice of rows'}"
        if any(d.code == "E0304" and d.span.line == expr.span.line for d in context.diagnostics):
            raise StatementError  # One sum of several texts is one mistake.
        hint = 'texts stand behind one another in quotes: `"{prompts.prompt}{rollout.text}"`'
        raise context.statement_error("E0304", message, expr.span, hint if _is_added(expr.span) else "")
    return value


def _is_added(span: Span) -> bool:
    """Return whether a `+` stands beside a piece of a line."""
    line = span.source.line_text(span.line) if span.line else ""
    return line[: span.column - 1].rstrip().endswith("+") or line[span.end_column - 1 :].lstrip().startswith("+")


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


def evaluate_value(context: Context, expr: tree.Expr) -> Expr | OptionalValue:
    """Return the value of an expression that has to be numbers or texts, which rows may lack."""
    return _value(context, expr, context.evaluate(expr))


def evaluate_optionals(context: Context, exprs: Sequence[tree.Expr]) -> tuple[list[Expr], tuple[Ref, ...]]:
    """Return several numbers, and what says which rows have all of them; report all that is wrong with them."""
    values: list[Expr | OptionalValue] = []
    for expr in exprs:
        try:
            values.append(evaluate_optional(context, expr))
        except StatementError:
            continue
    if len(values) < len(exprs):
        raise StatementError
    return split_optional_values(values)


def split_optional_values(values: Sequence[Expr | OptionalValue]) -> tuple[list[Expr], tuple[Ref, ...]]:
    """Return the expressions of values, and what says which rows have all of them."""
    given: dict[str, Ref] = {}
    for value in values:
        if isinstance(value, OptionalValue):
            given.update({ref.name: ref for ref in value.given})
    return [value.expr if isinstance(value, OptionalValue) else value for value in values], tuple(given.values())


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
