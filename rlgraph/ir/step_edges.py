"""Edges between steps: from weights that one step leaves to nodes of later steps that use them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from rlgraph.ir.graph import Node, Program
from rlgraph.ir.types import StateHandle, is_model


@dataclass(frozen=True, slots=True)
class StepEdge:
    """An edge from the change of a model's weights in a step to a node of a later step."""

    model: str
    reader: Node
    distance: int
    """In step t the reader uses the weights that step t - distance left, or the initial ones; where only a bound is
    given, these or newer ones. Only steps that change the model count; the previous one is at distance 1."""


def step_edges(program: Program) -> Iterator[StepEdge]:
    """Return the edges of a distance above 1: weights at distance 1 are there when a step begins, like everything that
    lives across steps."""
    for phase in program.phases:
        types = phase.graph.value_types()
        for node in phase.graph.walk():
            age = oldest_weights_age_versions(node)
            if age:
                model = types[node.inputs[0]]
                assert isinstance(model, StateHandle)
                yield StepEdge(model.name, node, 1 + age)


def staleness_bound(node: Node) -> int:
    """Return how many versions old the rows that a node samples are, or may be, when they are trained on."""
    return int(node.attr("lag", 0) + node.attr("staleness", 0))


def oldest_weights_age_versions(node: Node) -> int:
    """Return how many versions old the weights that a node samples with are, or may be."""
    return staleness_bound(node) - int(node.attr("held", 0))


def trains_on_stale_rows(program: Program) -> bool:
    """Return whether a program may train on rows of older weights than the current ones."""
    return any(staleness_bound(node) for _, node in program.walk())


def weights_age_steps(node: Node, name: str) -> int:
    """Return how many steps back the weights may be that a node reads from this handle; of several readers in a loop,
    the nearest counts."""
    if not node.regions:
        return 1 + oldest_weights_age_versions(node)
    if name in node.carried_input_names:
        return 1
    return min(weights_age_steps(inner, name) for inner in node.region.nodes if name in inner.inputs)


def longest_step_distances(program: Program) -> dict[str, int]:
    """Return the greatest distance of the step edges of each model that has some."""
    distances: dict[str, int] = {}
    for edge in step_edges(program):
        distances[edge.model] = max(edge.distance, distances.get(edge.model, 0))
    return distances


def earlier_versions_kept(program: Program) -> dict[str, int]:
    """Return how many versions before the present one are kept of each model that a later step reads so: as many as its
    longest edge passes, and one more where a step may change the model before it has read them."""
    late = _read_after_changes(program)
    return {
        model: distance if model in late else distance - 1
        for model, distance in longest_step_distances(program).items()
    }


def _read_after_changes(program: Program) -> set[str]:
    """Return the models whose earlier versions a step may read after it has changed them. A node that changes a model
    begins when those before it have read it."""
    late: set[str] = set()
    for phase in program.phases:
        changed: set[str] = set()
        types = phase.graph.value_types()
        for outer in phase.graph.nodes:
            inner = [outer, *(node for region in outer.regions for node in region.walk())]
            read = {
                cast(StateHandle, types[node.inputs[0]]).name for node in inner if oldest_weights_age_versions(node)
            }
            changed |= {value.type.name for node in inner for value in node.outputs if is_model(value.type)}
            late |= read & changed
    return late
