"""Counts the bytes of tokens that are kept with their probabilities: likeliest ones, or those that a sampler chose
from. They travel with the rows that they are of."""

from __future__ import annotations

from collections.abc import Mapping

from rlgraph.ir.graph import Node, Phase
from rlgraph.ir.types import SUPPORT, Table, axis_of
from rlgraph.ops.nodes import NODES, attribute_value, kept_probabilities

PLACE_BYTES, TOKEN_BYTES = 12, 8
"""Bytes of a place: how many tokens it keeps and their share; and of each of these, its id and its logarithm."""
ASSUMED_TOKENS = 64
"""Tokens that are kept in the mean place where nothing bounds them. SmolLM2-135M has 594 with `top_p=0.95` at
temperature 1, and 9 with `min_p=0.05`; larger models are surer of theirs."""


def keeps_tokens(node: Node) -> bool:
    """Return whether a node keeps tokens in each place."""
    op = NODES[node.op]
    return node.op == "likeliest" or (op.generates and node.attr("support") == "keep")


def place_bytes(node: Node) -> float:
    """Return the bytes of what a node keeps in the mean place, at most where `top_k` bounds it."""
    return PLACE_BYTES + TOKEN_BYTES * float(attribute_value(node, "top_k") or ASSUMED_TOKENS)


def kept_bytes(phase: Phase) -> Mapping[str, float]:
    """Return the bytes in a place of each value of a phase that is kept tokens."""
    by_value: dict[str, float] = {}
    by_axis: dict[str, float] = {}
    for node in phase.graph.walk():
        for value in node.outputs:
            kind = value.type
            if node.op == "likeliest" and value is node.outputs[-1]:
                by_value[value.name] = place_bytes(node)
            elif keeps_tokens(node) and isinstance(kind, Table) and kind.token:
                by_axis[kind.token.key] = place_bytes(node)
            elif node.op == "column" and node.attr("name") == SUPPORT:
                axis = axis_of(kind)
                most = max(by_axis.values(), default=float(PLACE_BYTES + TOKEN_BYTES * ASSUMED_TOKENS))
                by_value[value.name] = by_axis.get(axis.key, most) if axis else most
    return by_value


def read_bytes_by_table(node: Node, kept: Mapping[str, float]) -> dict[str, float]:
    """Return the bytes in a place of the kept tokens that a node, or the loss of one that trains, reads beside each of
    its tables."""
    names: dict[str, set[str]] = {}
    for reading in (node, *(node.region.nodes if NODES[node.op].trains and node.regions else ())):
        if NODES[reading.op].joint:
            names.setdefault(reading.inputs[1], set()).update(kept_probabilities(reading))
    return {table: sum(kept.get(name, 0.0) for name in of_table) for table, of_table in names.items()}
