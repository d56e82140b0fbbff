"""Checks the `admit` lines of a schedule: which rows of a table begin first."""

from __future__ import annotations

from rlgraph.dsl import tree
from rlgraph.dsl.scope import Reporter
from rlgraph.dsl.tails import generating_nodes
from rlgraph.errors import did_you_mean
from rlgraph.ir.graph import Program
from rlgraph.ir.schedule import AdmitLine
from rlgraph.ir.types import Table

LONGEST = "longest"
"""Rows go by how long the answers to their prompts were before."""


def check_admit(reporter: Reporter, program: Program, line: tree.Admit, table: str, by: str) -> AdmitLine:
    """Return what a line says of a table of the program."""
    samplers = generating_nodes(reporter, program, line, "E0975", "there is no row of it to begin with")
    rule = next((option.value for option in line.options if option.name == "by"), None)
    quoted = isinstance(rule, tree.String)
    if rule is None or (by == LONGEST and not quoted):
        return AdmitLine(table, span=line.span)
    kinds = {outside.name: outside.kind for outside in program.outside} | {
        model.name: "model" for model in program.models
    }
    if kinds.get(by) == "func" and not quoted:
        return AdmitLine(table, "function", by, line.span)
    functions = [name for name, kind in kinds.items() if kind == "func"]
    for phase in program.phases:
        types = phase.graph.value_types()
        for node in phase.graph.walk():
            if node.op not in {sampler.op for sampler, _ in samplers} or node.name.split(".")[0] != table:
                continue
            prompts = types[node.inputs[1]]
            columns = prompts.data if isinstance(prompts, Table) else ()
            if columns is not None and by not in columns and by.split(".")[0] not in columns:
                message = f"`{by}` says nothing of how long the rows of `{table}` will be"
                choices = [LONGEST, *functions, *columns]
                expected = "a column of their data, a function of the program, or `longest`"
                raise reporter.statement_error("E0975", message, rule.span, did_you_mean(by, choices) or expected)
    return AdmitLine(table, "column", by, line.span)
