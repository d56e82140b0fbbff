"""Checks `episode.branch`: all lines of an agent's episodes, on an axis inside them."""

from __future__ import annotations

from dataclasses import replace

from rlgraph.dsl import tree
from rlgraph.dsl.context import Context
from rlgraph.dsl.nodes import emit_node, new_axis, table_on_axis, unique_name
from rlgraph.dsl.outside_signatures import ALL_BRANCHES, ENV_COLUMNS
from rlgraph.dsl.scope import TableValue
from rlgraph.errors import Diagnostic, Span
from rlgraph.ir.graph import Node, Program, Value
from rlgraph.ir.types import BRANCH, branches_of
from rlgraph.ops import NODES
from rlgraph.ops.nodes import inputs_read, row_history, sampling_node, user_code_of

_AGENT_COLUMNS = {name for name, _ in ENV_COLUMNS["agent"]}


def is_branch_of(context: Context, table: TableValue, expr: tree.Attribute) -> bool:
    """Return whether `episode.branch` is the table of all lines. Raises StatementError where these are not kept."""
    if expr.name != BRANCH or branches_of(table.type):
        return expr.name == BRANCH
    kind = table.type
    if kind.data is None or BRANCH in kind.column_types() or not {name for name, _ in kind.extra} >= _AGENT_COLUMNS:
        return False
    message = f"`{expr.base.span.covered_text}` has one line of each episode, and this is the table of all"
    hint = f"keep them: `branches={ALL_BRANCHES}` in the declaration of the agent"
    raise context.statement_error("E0753", message, expr.name_span, hint)


def branch_table(context: Context, table: TableValue, span: Span) -> TableValue:
    """Return the table of all lines of episodes: on an axis inside these."""
    tables, columns = context.phase.part_tables, context.phase.columns
    made = tables.get(columns.get((table.name, f"{BRANCH}@"), ""))
    if made is not None:
        return made
    label = unique_name(context, f"{table.name}.{BRANCH}")
    axis = new_axis(context, BRANCH, table.type.axis, key=label)
    kind = table_on_axis(context, replace(table.type, extra=()), label, axis)
    attrs = (("model", branches_of(table.type)),)
    emit_node(context, Node("branch", (table.name,), (Value(label, kind),), attrs, span=span))
    columns[table.name, f"{BRANCH}@"] = label
    tables[label] = TableValue(label, kind)
    return tables[label]


def unread_branches(program: Program) -> list[Diagnostic]:
    """Return errors about agents all of whose lines are kept, and of which the program reads the last one alone."""
    kept: dict[str, Node] = {}
    read = set[str]()
    for phase in program.phases:
        nodes = [*phase.graph.walk()]
        makers = {value.name: (node, at) for node in nodes for at, value in enumerate(node.outputs)}
        for node in nodes:
            sampler = sampling_node(node.name, makers) if NODES[node.op].nests else None
            if sampler is not None:
                kept.setdefault(user_code_of(sampler), sampler)
            for name in inputs_read(node):
                history = [maker for maker, _ in row_history(name, makers)]
                if any(NODES[maker.op].nests for maker in history):
                    read |= {user_code_of(maker) for maker in history}
    hint = "`episode.branch` is the table of all lines, each in its episode; `branches=skip` if the last one is enough"
    return [
        Diagnostic("E0752", f"`{name}` keeps all branches, and nothing here reads them", node.span, hint)
        for name, node in kept.items()
        if name not in read
    ]
