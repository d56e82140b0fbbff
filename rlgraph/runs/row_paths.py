"""What a program allows to happen to rows: which tables are trained on, and how their rows get there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rlgraph.ir.graph import Graph, Node
from rlgraph.ir.types import Axis, StateHandle, Table
from rlgraph.ops.nodes import NODES, attribute_value, model_of, row_history, sampling_node, sliced_axes, table_of

LATE = "recent"
"""The name that a trace has for the node that drops rows which are too old."""


@dataclass(frozen=True)
class TrainingPath:
    """A pair of weights and a table on whose rows they are trained."""

    key: tuple[str, str]
    """The name of the weights that the training body is given, and the name of the table."""
    model: str
    source: str
    """The key of the node that samples the rows."""
    collect: Node | None
    """The `collect` node that assembles batches on the way; None if there is none."""
    before: frozenset[str]
    """The names of the nodes that may drop rows before `collect`."""
    after: frozenset[str]
    """The names of the nodes that may drop rows after `collect`, or anywhere if there is no `collect`."""
    times: int | None
    """The number of times that a row is trained on; None if that is not known."""
    always: bool
    """Whether training happens in each step of its phase."""
    nested: bool
    """Whether its rows are those that lie in the rows of the table that was sampled."""

    @property
    def takes_batches_as_ended(self) -> bool:
        """Return whether its `collect` takes batches in another order than that of the data."""
        return self.collect is not None and attribute_value(self.collect, "order") != "data"

    @property
    def waiting_row_count(self) -> int:
        """Return how many rows have to wait until its `collect` asks them again; 0 means in the next step."""
        if self.collect is None or attribute_value(self.collect, "rest") != "longest":
            return 0
        return int(self.collect.attr("rows"))


class RowPaths:
    """The ways of a graph's rows from the nodes that sample them to the nodes that train on them."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.types = graph, graph.value_types()
        self.makers: dict[str, tuple[Node, int]] = {}
        for node in graph.walk():
            self.makers |= {value.name: (node, index) for index, value in enumerate(node.outputs)}

    def sampling_nodes(self) -> Iterator[tuple[str, tuple[Node, str]]]:
        """Yield the key of each node that samples, with the node and the name of the model it samples from."""
        for node in self.graph.walk():
            model = self.types.get(model_of(node))
            if NODES[node.op].generates and isinstance(model, StateHandle):
                yield node.attr("key"), (node, model.name)

    def is_repeatable(self, table: str) -> bool:
        """Return whether a table's rows come from a buffer or are drawn, so that a row may come several times."""
        made_by = [NODES[node.op] for node, _ in row_history(table, self.makers)]
        return any(op.input_index("buffer") is not None or (op.random and op.chooses is not None) for op in made_by)

    def collects_with_surplus(self) -> Iterator[tuple[Node, dict[str, Node]]]:
        """Yield each `collect` whose surplus may get too old, with the nodes that check its age by sampler key."""
        for node in self.graph.walk():
            if NODES[node.op].loop == "rounds" and attribute_value(node, "late") != "wait":
                looks = [check for check in node.region.nodes if check.op == LATE]
                sources = [sampling_node(check.inputs[0], self.makers) for check in looks]
                yield node, {source.attr("key"): check for source, check in zip(sources, looks, strict=True) if source}

    def collects_in_end_order(self) -> dict[str, Node]:
        """Return each `collect` that takes batches as they end, by the name of its data."""
        loops = (node for node in self.graph.walk() if NODES[node.op].loop == "rounds")
        return {collected_data(node): node for node in loops if attribute_value(node, "order") != "data"}

    def samplers_deciding_order(self, collect: Node) -> set[str]:
        """Return the keys of the nodes whose samples' age decides the order in which `collect` takes rows."""
        names = (name for node in collect.region.nodes if node.op == "aged" for name in node.inputs)
        return {node.attr("key") for node in (sampling_node(name, self.makers) for name in names) if node}

    def possible_trainings(self) -> Iterator[TrainingPath]:
        yield from self._inside(self.graph, ())

    def _inside(self, graph: Graph, loops: tuple[Node, ...]) -> Iterator[TrainingPath]:
        for node in graph.nodes:
            if not NODES[node.op].trains:
                for region in node.regions:
                    yield from self._inside(region, (*loops, node))
                continue
            always = not any(NODES[loop.op].loop in ("steps", "condition") or _may_stop(loop) for loop in loops)
            for table in dict.fromkeys(table_of(inner) for inner in node.region.nodes if NODES[inner.op].scores):
                kind, way = self.types.get(table), self._way(table)
                if way is not None and isinstance(kind, Table) and not self.is_repeatable(table):
                    weights = node.region.inputs[0]
                    assert isinstance(weights.type, StateHandle)
                    times, nested = _times(kind.axis, loops), self._is_nested(table)
                    yield TrainingPath((weights.name, table), weights.type.name, *way, times, always, nested)

    def _is_nested(self, table: str) -> bool:
        return any(NODES[node.op].nests for node, _ in row_history(table, self.makers))

    def _way(self, table: str) -> tuple[str, Node | None, frozenset[str], frozenset[str]] | None:
        """Return the key of the node that samples a table's rows, the `collect` on the way from there, and the nodes
        that may drop rows before and after it; None for rows that no model samples."""
        collect: Node | None = None
        before, after = set[str](), set[str]()
        for node, _ in row_history(table, self.makers):
            op = NODES[node.op]
            if op.generates:
                return node.attr("key"), collect, frozenset(before), frozenset(after)
            if op.chooses is not None:
                (after if collect is None else before).add(node.name)
            elif not op.has_region and not op.nests:
                return None
            elif op.loop == "rounds":
                collect = node
        return None


def _may_stop(loop: Node) -> bool:
    """Return whether a loop may end before it has seen all rows."""
    return any(node.op == "stop" for node in loop.region.nodes)


def collected_data(collect: Node) -> str:
    """Return the name of the data whose rows a `collect` collects."""
    tables = [value.type for node in collect.region.nodes if node.op == "read" for value in node.outputs]
    return next(kind.axis.name for kind in tables if isinstance(kind, Table))


def _times(axis: Axis, loops: Iterable[Node]) -> int | None:
    """Return how often the loops pass a row of an axis; None if a loop slices an axis that is not above it."""
    times = 1
    for loop in loops:
        if NODES[loop.op].loop == "slices":
            if all(above.key not in sliced_axes(loop) for above in axis.path_to_root()):
                return None
            times *= attribute_value(loop, "epochs")
    return times
