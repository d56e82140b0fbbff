"""The last rows of a table: which of them a schedule can move, and when."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rlgraph.dsl import tree
from rlgraph.dsl.scope import Reporter
from rlgraph.errors import Span
from rlgraph.ir.graph import Constant, Node, Program
from rlgraph.ir.schedule import Tail
from rlgraph.ir.types import is_model
from rlgraph.ops import NODES


def check_tail(
    reporter: Reporter,
    program: Program,
    line: tree.Tail,
    table: str,
    options: Mapping[str, Constant],
    lines: Sequence[tree.Placed],
) -> Tail:
    """What a line says of a table of the program, beside the schedule's other lines."""
    under, on = options["under"], options["on"]
    assert under is None or isinstance(under, float)
    assert on is None or isinstance(on, int)
    if under is not None and not (0 < under < 1 or under >= 2 and under == int(under)):
        where = next(option.value.span for option in line.options if option.name == "under")
        message = "`under` is a number of rows, at least 2, or a share of all between 0 and 1"
        raise reporter.stop("E0971", message, where, "`under=0.2` moves the last fifth")
    made = list(makers(program, table))
    if not made or not all(NODES[node.op].streams for node, _ in made):
        message = f"`{table}` is no table that a model generates: its rows do not end one by one"
        raise reporter.stop("E0971", message, line.table.span, "leave the line out")
    stream = next((each for each in lines if isinstance(each, tree.Stream) and each.table.id == table), None)
    deal = next((each.value for each in stream.options if each.name == "deal"), None) if stream else None
    if not (isinstance(deal, tree.Name) and deal.id == "free"):
        message = f"nothing could begin on the devices that `{table}` leaves: what follows it waits for all copies"
        raise reporter.stop("E0971", message, line.span, f"`stream {table}(block=1, deal=free)`")
    models = {model for _, model in made}
    for each in lines:
        meanwhile = _meanwhile(each) if isinstance(each, tree.Refresh) and each.model.id in models else None
        if meanwhile is not None:
            message = f"rows of `{table}` get new weights while they are sampled, and would get others elsewhere"
            raise reporter.stop("E0971", message, meanwhile, "`by=drain`, or leave `tail` out")
    return Tail(table, under, on, line.span)


def makers(program: Program, table: str) -> Iterator[tuple[Node, str]]:
    """The nodes that sample a table, each with its model."""
    for phase in program.phases:
        types = phase.graph.values()
        for node in phase.graph.walk():
            if NODES[node.op].generates and node.name.split(".")[0] == table:
                held = types[node.inputs[0]]
                yield node, held.name if is_model(held) else ""


def _meanwhile(line: tree.Refresh) -> Span | None:
    """Where a line says that new weights come to rows that have not ended."""
    said = (option.value for option in line.options if option.name == "by")
    return next((value.span for value in said if isinstance(value, tree.Name) and value.id != "drain"), None)
