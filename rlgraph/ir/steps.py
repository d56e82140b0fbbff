"""Edges between steps: weights that one step leaves behind, and a later one works with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rlgraph.ir.graph import Node, Program
from rlgraph.ir.types import Handle


@dataclass(frozen=True, slots=True)
class StepEdge:
    """From what changes a model's weights in a step to a node of a later one."""

    model: str
    reader: Node
    distance: int
    """In step t the reader has the weights that step t - distance left, or the first ones; where their age is bounded,
    these or newer ones. Only steps that change the model count; the step before is 1 away."""


def step_edges(program: Program) -> Iterator[StepEdge]:
    """Those that are longer than from a step to the next one: what is 1 away is there when a step begins, as all that
    lives across steps."""
    for phase in program.phases:
        types = phase.graph.values()
        for node in phase.graph.walk():
            age = oldest(node)
            if age:
                model = types[node.inputs[0]]
                assert isinstance(model, Handle)
                yield StepEdge(model.name, node, 1 + age)


def bound(node: Node) -> int:
    """How many versions old the rows that a node samples are, or may be, when something is trained on them."""
    return int(node.attr("lag", 0) + node.attr("staleness", 0))


def oldest(node: Node) -> int:
    """How many versions old the weights are, or may be, that a node samples with."""
    return bound(node) - int(node.attr("held", 0))


def ages(program: Program) -> bool:
    """Whether rows of a program may be of older weights than those that are trained."""
    return any(bound(node) for _, node in program.walk())


def distance(node: Node, name: str) -> int:
    """How far back the weights may be from which a node works that reads this handle: of several readers in a loop the
    nearest counts."""
    if not node.regions:
        return 1 + oldest(node)
    if name in node.carried_in:
        return 1
    return min(distance(inner, name) for inner in node.region.nodes if name in inner.inputs)


def reach(program: Program) -> dict[str, int]:
    """The longest of these edges of each model that has one."""
    found: dict[str, int] = {}
    for edge in step_edges(program):
        found[edge.model] = max(edge.distance, found.get(edge.model, 0))
    return found
