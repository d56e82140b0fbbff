"""Which rows of a table begin first: what a schedule can go by."""

from __future__ import annotations

from rlgraph.dsl import tree
from rlgraph.dsl.scope import Reporter
from rlgraph.dsl.tails import makers
from rlgraph.errors import nearest
from rlgraph.ir.graph import Program
from rlgraph.ir.schedule import Admit
from rlgraph.ir.types import Table
from rlgraph.ops import NODES

LONGEST = "longest"
"""By what the prompts gave before."""


def check_admit(reporter: Reporter, program: Program, line: tree.Admit, table: str, by: str) -> Admit:
    """What a line says of a table of the program."""
    made = list(makers(program, table))
    if not made or not all(NODES[node.op].streams for node, _ in made):
        message = f"`{table}` is no table that a model generates: there is no row of it to begin with"
        raise reporter.stop("E0975", message, line.table.span, "leave the line out")
    said = next((option.value for option in line.options if option.name == "by"), None)
    quoted = isinstance(said, tree.String)
    if said is None or (by == LONGEST and not quoted):
        return Admit(table, span=line.span)
    kinds = {each.name: each.kind for each in program.outside} | {model.name: "model" for model in program.models}
    if kinds.get(by) == "func" and not quoted:
        return Admit(table, "function", by, line.span)
    functions = [name for name, kind in kinds.items() if kind == "func"]
    for phase in program.phases:
        types = phase.graph.values()
        for node in phase.graph.walk():
            if node.op not in {each.op for each, _ in made} or node.name.split(".")[0] != table:
                continue
            asked = types[node.inputs[1]]
            columns = asked.data if isinstance(asked, Table) else ()
            if columns is not None and by not in columns:
                message = f"`{by}` says nothing of how long the rows of `{table}` will be"
                known = [LONGEST, *functions, *columns]
                shown = "a column of their data, a function of the program, or `longest`"
                raise reporter.stop("E0975", message, said.span, nearest(by, known) or shown)
    return Admit(table, "column", by, line.span)
