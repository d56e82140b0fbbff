"""Compiles a `def` by itself into one tensor node: so Python calls the functions of the language."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rlgraph.dsl import tree
from rlgraph.dsl.check import new_context
from rlgraph.dsl.context import Block, Context
from rlgraph.dsl.declarations import declare, report_unknown_changes
from rlgraph.dsl.expand_def import expand_body
from rlgraph.dsl.nodes import unique_name
from rlgraph.dsl.parse import parse
from rlgraph.dsl.scope import (
    DefName,
    ExternalName,
    Meaning,
    ModelName,
    StatementError,
    StateName,
    UnavailableName,
    describe_meaning,
)
from rlgraph.dsl.use import resolve_uses
from rlgraph.errors import ProgramError, Source, Span
from rlgraph.ir.graph import Apply, Const, Let, Node, Ref, tensor_node
from rlgraph.ir.types import Axis, Tensor


@dataclass(frozen=True, slots=True)
class CompiledDef:
    """A def compiled for arguments of certain types."""

    node: Node
    """A `tensor` node whose inputs are the parameters."""
    group: str | None = None
    """The parameter with the group of each row, where the def reduces by one."""


def read_defs(source: Source | None, changes: Mapping[str, tree.Expr] | None = None) -> dict[str, DefName]:
    """Return the defs of a program, or of the prelude for None. Raises ProgramError for wrong declarations."""
    context = new_context()
    names = list(context.scope)
    if source is not None:
        file = resolve_uses(parse(source), source, context)
        names = [item.name for item in file.declarations if isinstance(item, tree.Def) and not item.holds_statements]
        report_unknown_changes(context, file.declarations, changes or {})
        for item in file.declarations:
            try:
                declare(context, item, changes or {})
            except StatementError:
                continue
        _raise(context)
    scope: dict[str, Meaning] = {}
    for name, meaning in context.scope.items():
        if isinstance(meaning, (ModelName, ExternalName, StateName)):
            span = {ModelName: "model", ExternalName: "outside", StateName: "state"}[type(meaning)]
            reason = f"`{name}` is {describe_meaning(meaning)}: it lives in a run, and Python calls this outside of one"
            scope[name] = UnavailableName(reason, getattr(meaning, span).span)
        else:
            scope[name] = DefName(meaning.definition, scope) if isinstance(meaning, DefName) else meaning
    return {name: definition for name in names if isinstance(definition := scope[name], DefName)}


def compile_def(called: DefName, types: Mapping[str, Tensor]) -> CompiledDef:
    """Compile a def for parameters of these types. Raises ProgramError where they do not fit."""
    groups = _Groups(types)
    context = replace(new_context(), groups=groups.group_axis)
    context.phase.taken = dict.fromkeys(types, 1)
    context.block = Block({**called.scope, **{name: Ref(name, kind) for name, kind in types.items()}}, {})
    try:
        node = _node(context, called.definition)
    except StatementError:
        _raise(context)
        raise
    return CompiledDef(node, groups.name)


def _node(context: Context, definition: tree.Def) -> Node:
    name = definition.name
    meaning = expand_body(context, definition, name)
    if not isinstance(meaning, (Const, Ref, Apply)):
        shown = f"`{name}` gives {describe_meaning(meaning)}"
        raise context.statement_error("E0305", f"{shown}: Python can call defs that give numbers", definition.span)
    lets = [let for node in context.block.nodes for let in node.body]
    result = unique_name(context, f"{name}.result")
    return tensor_node((*lets, Let(result, meaning)), (result,), definition.span)


def _raise(context: Context) -> None:
    errors = [d for d in context.diagnostics if d.severity == "error"]
    if errors:
        raise ProgramError(errors)


@dataclass
class _Groups:
    """Groups rows by a parameter that holds the number of each row's group."""

    parameters: Mapping[str, Tensor]
    name: str | None = None
    """The parameter that a `by=` names."""

    def group_axis(self, context: Context, value: Ref, span: Span) -> Axis | None:
        """Return the axis of the groups, if a value is such a parameter."""
        axis = value.type.axis
        if value.name not in self.parameters or value.type.dtype != "int" or not axis or axis.inner or not axis.parent:
            return None
        if self.name not in (None, value.name):
            raise context.statement_error(
                "E0303",
                f"the rows are grouped by `{self.name}` already",
                span,
                "a function called from Python has one kind of groups",
            )
        self.name = value.name
        return axis.parent
