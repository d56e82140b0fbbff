"""Writes each def out where it is called, with the types of that call."""

from __future__ import annotations

from collections import Counter

from rlgraph.dsl import tree
from rlgraph.dsl.context import Context
from rlgraph.dsl.names import names_in
from rlgraph.dsl.nodes import materialize_meaning
from rlgraph.dsl.scope import DefName, Meaning

MOST_CALLS = 2000
"""The most calls of defs in a program: with more, a def probably doubles at each level."""


def expand_call(context: Context, expr: tree.Call, called: DefName, hint: str) -> Meaning:
    """Write a def out at a call, with the types of its arguments, and return its value."""
    definition = called.definition
    if definition.holds_statements:
        message = f"`{definition.name}` holds statements, which cannot stand inside an expression"
        hint = f"call it on a line of its own, `{definition.name}(...)`, or as all that a name is given"
        raise context.statement_error("E0225", message, expr.span, hint)
    if expr.options:
        raise context.statement_error(
            "E0401", f"`{definition.name}` takes its values by place", expr.options[0].name_span
        )
    if len(expr.args) != len(definition.parameters):
        names = ", ".join(parameter.id for parameter in definition.parameters)
        raise context.statement_error(
            "E0405",
            f"`{definition.name}({names})` takes {len(definition.parameters)} values, not {len(expr.args)}",
            expr.span,
        )
    context.written += 1
    if context.written > MOST_CALLS:
        raise context.statement_error(
            "E0210",
            f"defs are written out where they are called, and these make more than {MOST_CALLS} calls",
            expr.span,
            "a def that calls another twice, level over level, doubles at each",
        )
    if any(definition is outer for outer in context.active):
        raise context.statement_error(
            "E0206", f"`{definition.name}` calls itself", expr.span, "a def cannot be recursive"
        )
    uses = Counter(name.id for name in names_in(definition.body))
    if not context.active:
        context.outside = context.block.scope
    # A declared name means what it does in the step: data are tables there, and `keep` may have replaced them.
    scope = {
        name: context.outside.get(name, declared) if name in context.declared else declared
        for name, declared in called.scope.items()
    }
    for parameter, arg in zip(definition.parameters, expr.args, strict=True):
        meaning = context.evaluate(arg)
        # An argument that is used twice is computed once.
        if uses[parameter.id] > 1:
            meaning = materialize_meaning(context, meaning, f"{hint or definition.name}.{parameter.id}")
        scope[parameter.id] = meaning
    outer_scope, outer_call_site = context.block.scope, context.call_site
    context.block.scope, context.call_site = scope, outer_call_site or expr.span
    context.active.append(definition)
    try:
        return expand_body(context, definition, hint or definition.name)
    finally:
        context.block.scope, context.call_site = outer_scope, outer_call_site
        context.active.pop()


def expand_body(context: Context, definition: tree.Def, hint: str) -> Meaning:
    """Return the value of a def whose parameters are in the block's scope."""
    for statement in definition.body:
        if isinstance(statement, tree.Return):
            return context.evaluate(statement.value, hint)
        assert isinstance(statement, tree.Assign)
        meaning = context.evaluate(statement.value, f"{hint}.{statement.target}")
        context.block.scope[statement.target] = materialize_meaning(context, meaning, f"{hint}.{statement.target}")
    raise AssertionError("a def ends with return: the parser has seen to it")
