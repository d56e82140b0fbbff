"""Checks `tail` lines of a schedule: which last rows of a table can be moved, and when."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rlgraph.dsl import tree
from rlgraph.dsl.scope import Reporter
from rlgraph.errors import Span
from rlgraph.ir.graph import Constant, Node, Program
from rlgraph.ir.schedule import TailLine
from rlgraph.ir.types import is_model
from rlgraph.ops import NODES


def check_tail(
    reporter: Reporter,
    program: Program,
    line: tree.Tail,
    table: str,
    options: Mapping[str, Constant],
    lines: Sequence[tree.ScheduleLine],
) -> TailLine:
    """Return what a line says of a table of the program; it has to fit the schedule's other lines."""
    under, on = options["under"], options["on"]
    assert under is None or isinstance(under, float)
    assert on is None or isinstance(on, int)
    if under is not None and not (0 < under < 1 or under >= 2 and under == int(under)):
        where = next(option.value.span for option in line.options if option.name == "under")
        message = "`under` is a number of rows, at least 2, or a share of all between 0 and 1"
        raise reporter.statement_error("E0971", message, where, "`under=0.2` moves the last fifth")
    samplers = generating_nodes(reporter, program, line, "E0971", "its rows do not end one by one")
    stream = next((other for other in lines if isinstance(other, tree.Stream) and other.table.id == table), None)
    deal = next((option.value for option in stream.options if option.name == "deal"), None) if stream else None
    if not (isinstance(deal, tree.Name) and deal.id == "free"):
        message = f"nothing could begin on the devices that `{table}` leaves: what follows it waits for all copies"
        raise reporter.statement_error("E0971", message, line.span, f"`stream {table}(block=1, deal=free)`")
    models = {model for _, model in samplers}
    for other in lines:
        early = _early_refresh(other) if isinstance(other, tree.Refresh) and other.model.id in models else None
        if early is not None:
            message = f"rows of `{table}` get new weights while they are sampled, and would get others elsewhere"
            raise reporter.statement_error("E0971", message, early, "`by=drain`, or leave `tail` out")
    return TailLine(table, under, on, line.span)


def generating_nodes(
    reporter: Reporter, program: Program, line: tree.TableLine, code: str, why: str
) -> list[tuple[Node, str]]:
    """Return the nodes that sample the table of a line, each with its model; an error with this code and reason says
    if not all of them generate row by row."""
    table = line.table.id
    samplers = list(_sampling_nodes(program, table))
    if not samplers or not all(NODES[node.op].streams for node, _ in samplers):
        message = f"`{table}` is no table that a model generates: {why}"
        raise reporter.statement_error(code, message, line.table.span, "leave the line out")
    return samplers


def _sampling_nodes(program: Program, table: str) -> Iterator[tuple[Node, str]]:
    for phase in program.phases:
        types = phase.graph.value_types()
        for node in phase.graph.walk():
            if NODES[node.op].generates and node.name.split(".")[0] == table:
                kind = types[node.inputs[0]]
                yield node, kind.name if is_model(kind) else ""


def _early_refresh(line: tree.Refresh) -> Span | None:
    """Return where a line says that unfinished rows get new weights; None if it does not."""
    values = (option.value for option in line.options if option.name == "by")
    return next((value.span for value in values if isinstance(value, tree.Name) and value.id != "drain"), None)
