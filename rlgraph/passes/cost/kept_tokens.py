"""Counts the bytes of tokens that are kept with their probabilities: likeliest ones, or those that a sampler chose
from. They are stored and travel with the rows that they are of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rlgraph.ir.graph import Graph, Node, Phase
from rlgraph.ir.types import SUPPORT, Table, Type
from rlgraph.ops.nodes import NODES, attribute_value, kept_probabilities, selected_inputs

COUNT_BYTES, SHARE_BYTES, TOKEN_BYTES = 8, 4, 8
"""Bytes in a place of how many tokens are kept and of their share; and of each of these tokens its id and its
logarithm."""
ASSUMED_TOKENS = 64
"""Tokens that are kept in the mean place where nothing bounds them. SmolLM2-135M has 594 with `top_p=0.95` at
temperature 1, and 9 with `min_p=0.05`; larger models are surer of theirs."""


def keeps_tokens(node: Node) -> bool:
    """Return whether a node keeps tokens in each place."""
    op = NODES[node.op]
    return node.op == "likeliest" or (op.generates and node.attr("support") == "keep")


@dataclass(frozen=True)
class KeptBytes:
    """The bytes of kept tokens in a place, their share included."""

    assumed_tokens: float
    """Tokens in a place where nothing bounds them."""
    of_values: dict[str, float] = field(default_factory=dict)
    """Of each value that is kept tokens."""
    of_tables: dict[str, float] = field(default_factory=dict)
    """Of each table that has them as a column."""

    def place_bytes(self, node: Node) -> float:
        """Return the bytes of what a node keeps in the mean place, at most where `top_k` bounds it."""
        tokens = float(attribute_value(node, "top_k") or self.assumed_tokens)
        return COUNT_BYTES + SHARE_BYTES + TOKEN_BYTES * tokens

    def of_table(self, name: str, kind: Type) -> float:
        """Return the bytes in a place of a table; where nobody knows who sampled it, as many as another one has."""
        if not isinstance(kind, Table) or SUPPORT not in kind.column_types():
            return 0.0
        most = COUNT_BYTES + SHARE_BYTES + TOKEN_BYTES * self.assumed_tokens
        return self.of_tables.get(name, max(self.of_tables.values(), default=most))


def kept_bytes(phase: Phase, assumed_tokens: float | None = None) -> KeptBytes:
    """Return the bytes of the kept tokens of a phase. assumed_tokens: None takes `ASSUMED_TOKENS`."""
    found = KeptBytes(ASSUMED_TOKENS if assumed_tokens is None else assumed_tokens)
    _add_kept(phase.graph, found, phase.graph.value_types())
    return found


def _add_kept(graph: Graph, found: KeptBytes, types: Mapping[str, Type]) -> None:
    for node in graph.nodes:
        for region in node.regions:
            _add_kept(region, found, types)
        exported = [(inner, outer.name) for inner, outer in node.exported_values] if NODES[node.op].loop else []
        for inner, outer in (*exported, *zip(selected_inputs(node), (v.name for v in node.outputs), strict=False)):
            for known in (found.of_values, found.of_tables):
                if inner in known:
                    known[outer] = known[inner]
        if node.op == "column" and node.attr("name") == SUPPORT:
            found.of_values[node.outputs[0].name] = found.of_table(node.inputs[0], types[node.inputs[0]])
        elif node.op == "likeliest":
            found.of_values[node.outputs[-1].name] = found.place_bytes(node)
        elif keeps_tokens(node):
            found.of_tables[node.outputs[0].name] = found.place_bytes(node)


def read_bytes_by_table(node: Node, kept: Mapping[str, float]) -> dict[str, float]:
    """Return the bytes in a place of the kept tokens that a node, or the loss of one that trains, reads beside each of
    its tables."""
    names: dict[str, set[str]] = {}
    for reading in (node, *(node.region.nodes if NODES[node.op].trains and node.regions else ())):
        if NODES[reading.op].joint:
            names.setdefault(reading.inputs[1], set()).update(kept_probabilities(reading))
    return {table: sum(kept.get(name, 0.0) for name in of_table) for table, of_table in names.items()}
