"""Checks what reads texts: `contains`, `matches` and `number`."""

from __future__ import annotations

import re

from rlgraph.dsl import tree
from rlgraph.dsl.context import Context
from rlgraph.dsl.mathematics import apply_operation
from rlgraph.dsl.nodes import materialize
from rlgraph.dsl.regex_backtracking import backtracks_exponentially
from rlgraph.dsl.scope import Meaning, OptionalValue, describe_meaning
from rlgraph.errors import count_phrase
from rlgraph.ir.graph import Apply, Const, Expr, Ref
from rlgraph.ir.types import Tensor
from rlgraph.ops import TENSOR

_EXAMPLES = {
    "contains": '`contains(rollout.text, "yes")`',
    "matches": '`matches(rollout.text, "[0-9]+")`',
    "number": "`number(rollout.text)`",
}


def text_expr(context: Context, expr: tree.Call, name: str) -> Expr | OptionalValue:
    """Return an operation that reads texts, called by its name; rows without a number lack the value of `number`."""
    example = _EXAMPLES[name]
    if expr.options:
        option = expr.options[0]
        raise context.statement_error("E0401", f"`{name}` has no option `{option.name}`", option.name_span, example)
    if len(expr.args) != TENSOR[name].args:
        wanted = count_phrase(TENSOR[name].args, "value")
        raise context.statement_error("E0405", f"`{name}` takes {wanted}, not {len(expr.args)}", expr.span, example)
    args = [_read_text(context, expr.args[0], name)]
    if len(expr.args) == 2:
        args.append(_constant(context, expr.args[1], name))
    if name == "number":
        # Both are computed from one value, which passes then keep.
        args = [Ref(materialize(context, args[0], "text"), args[0].type, expr.span)]
    result = apply_operation(context, name, args, expr.span)
    if name != "number":
        return result
    given = apply_operation(context, "has_number", args, expr.span)
    return OptionalValue(result, (Ref(materialize(context, given, "given"), given.type, expr.span),))


def _read_text(context: Context, syntax: tree.Expr, name: str) -> Expr:
    """Return the texts that are read, one for each row."""
    meaning = context.evaluate(syntax)
    if isinstance(meaning, (Ref, Apply)) and meaning.type.axis is not None and meaning.type.dtype in ("text", "any"):
        return meaning
    raise context.statement_error(
        "E0866",
        f"`{name}` reads a text of each row, and this is {describe_meaning(meaning)}",
        syntax.span,
        f"name a column of texts: {_EXAMPLES[name]}",
    )


def _constant(context: Context, syntax: tree.Expr, name: str) -> Const:
    """Return what is looked for: a text in quotes, of `matches` a regular expression."""
    # Braces are signs of a regular expression, and of what is looked for.
    if isinstance(syntax, tree.String):
        meaning: Meaning = Const(syntax.value, Tensor("text"), syntax.span)
    else:
        meaning = context.evaluate(syntax)
    if not isinstance(meaning, Const) or not isinstance(meaning.value, str):
        raise context.statement_error(
            "E0867",
            f"`{name}` looks for a text in quotes, and this is {describe_meaning(meaning)}",
            syntax.span,
            _EXAMPLES[name],
        )
    if name == "matches":
        try:
            re.compile(meaning.value)
        except (re.error, OverflowError, RecursionError) as error:
            raise context.statement_error(
                "E0868",
                f"this is no regular expression: {error}",
                syntax.span,
                "a sign that is meant as it is has a backslash in front, `\\\\(`, or is looked for with `contains`",
            ) from None
        if backtracks_exponentially(meaning.value):
            raise context.statement_error(
                "E0850",
                "this repeats a repetition, which takes longer than any run on a long text that it does not match",
                syntax.span,
                "leave one of the two out: `(a+)+b` finds what `a+b` does; or keep what the inner one took, `(?>a+)+b`",
            )
    return meaning
