"""Checks statements that depend on a number about all rows: `if CONDITION:`, and `stop where CONDITION` in a loop."""

from __future__ import annotations

from collections.abc import Sequence

from rlgraph.dsl import tree
from rlgraph.dsl.context import Context
from rlgraph.dsl.loops import names_written, write_region
from rlgraph.dsl.nodes import emit_node, materialize
from rlgraph.dsl.scope import InvalidName, UnavailableName
from rlgraph.dsl.values import evaluate_number
from rlgraph.errors import Span
from rlgraph.ir.graph import Apply, Expr, Node
from rlgraph.ir.types import Tensor


def emit_if(context: Context, statement: tree.If) -> None:
    """Check `if mean(kl) < 0.1:` and write its node."""
    condition = materialize(context, _condition(context, "if", statement.condition), "if")
    reason = "is made or changed where the condition of an `if` holds, and cannot be used after it"
    _write_branch(context, condition, statement.body, statement.span, reason)


def emit_stop(context: Context, statement: tree.Stop, rest: Sequence[tree.Stmt]) -> None:
    """Check `stop where mean(kl) > 0.1`, and write it and the statements after it, which then do not run."""
    block = context.block
    if not block.slices:
        hint = "move it into the body of a `minibatch`, in no other block; `if CONDITION:` holds for a block"
        if block.sliced and block.conditional:
            hint = "a loop has one `stop`: join the conditions, as `stop where a or b`"
        raise context.statement_error(
            "E0885", "`stop` ends a `minibatch`, and belongs to none here", statement.span, hint
        )
    stops = _condition(context, "stop", statement.condition)
    name = materialize(context, stops, "stop")
    block.stops = statement.span
    emit_node(context, Node("stop", (name,), span=statement.span))
    if rest:
        goes_on = materialize(context, Apply("not", (stops,), Tensor("bool"), None, statement.span), "goes_on")
        reason = "is made or changed after the `stop` of a loop, which may end before it has seen all rows"
        _write_branch(context, goes_on, rest, statement.span, reason)


def _write_branch(context: Context, condition: str, body: Sequence[tree.Stmt], span: Span, reason: str) -> None:
    """Write the node of a body that runs where a number with this name is true. reason: why what it makes cannot be
    used after it."""
    outer = dict(context.block.scope)

    def write() -> None:
        emit_node(context, Node("when", (condition,), span=span))
        context.emit_body(body)

    writes = names_written(context, body)
    inner = write_region(context, "if", writes, write, {}, span, export=False, conditional=True)
    for word, meaning in inner.items():
        if outer.get(word) is not meaning and not isinstance(meaning, InvalidName):
            context.block.scope[word] = UnavailableName(f"`{word}` {reason}", span)


def _condition(context: Context, word: str, expr: tree.Expr) -> Expr:
    """Return a condition, which has to be one truth for all rows."""
    value = evaluate_number(context, expr)
    if value.type.axis is None and value.type.dtype == "bool":
        return value
    where = "stop where" if word == "stop" else "if"
    if value.type.axis is None:
        message, hint = f"`{where}` needs true or false, and this is a number", "compare it: `x > 0`"
    else:
        message = f"`{where}` needs one condition for all rows, and this is {value.type}"
        hint = "reduce it: `mean(x) > 0`; `where(condition, a, b)` chooses by row, `keep T where condition` drops rows"
    raise context.statement_error("E0884", message, expr.span, hint)
