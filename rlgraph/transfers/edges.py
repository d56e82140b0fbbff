"""The values that travel: made by one group of a plan and used by another. Class: exact; it changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlgraph.ir.graph import Graph, Node, Program
from rlgraph.ir.plan import HOST, Plan
from rlgraph.ir.types import Handle, Type
from rlgraph.ops import NODES, chosen_from, model_of


@dataclass(frozen=True, slots=True)
class Edge:
    value: str
    type: Type
    source: str
    """The group that has it."""
    target: str
    """A group that uses it."""


def edges(program: Program, plan: Plan) -> tuple[Edge, ...]:
    """In the order in which the values are first needed.

    What is left of a table after `keep` or `pick`, and its columns, lie where the table lies. A loss is computed where
    its model trains; everything else that needs no model, on the host.
    """
    found: dict[Edge, None] = {}
    for phase in program.phases:
        walk = _Walk(plan, phase.graph.values(), found)
        walk.graph(phase.graph, HOST)
    return tuple(found)


class _Walk:
    def __init__(self, plan: Plan, types: Mapping[str, Type], found: dict[Edge, None]) -> None:
        self.plan, self.types, self.found = plan, types, found
        self.makers: dict[str, str] = {}
        """The group that has each value; the host has what is not here."""

    def graph(self, graph: Graph, group: str) -> None:
        """`group` is the one that does what needs no model."""
        for node in graph.nodes:
            own = self.group(node, group)
            if node.regions:
                region = node.region
                self.graph(region, own)
                # Handles stand in the same places, and have no maker.
                inner = zip(node.outputs, region.outputs, strict=True)
                self.makers.update({value.name: self.maker(name) for value, name in inner})
            elif NODES[node.op].selects:
                self.view(node, own)
            else:
                for name in () if NODES[node.op].counts else node.inputs:
                    self.use(name, own)
                self.makers.update({value.name: own for value in node.outputs})

    def group(self, node: Node, inherited: str) -> str:
        held = self.types[model_of(node)] if NODES[node.op].with_model else None
        if not isinstance(held, Handle):
            return inherited
        roles = {(role.model, role.operation): role.group for role in self.plan.roles}
        # What the trained model computes for its own loss is no role of its own.
        return roles.get((held.name, node.op), inherited)

    def view(self, node: Node, group: str) -> None:
        """The outputs are parts of inputs, and stay where those are; what chooses the parts is used here."""
        tables = node.inputs if NODES[node.op].chooses is None else chosen_from(node)
        for name in node.inputs:
            if name not in tables:
                self.use(name, group)
        self.makers.update({value.name: self.maker(name) for value, name in zip(node.outputs, tables, strict=True)})

    def maker(self, name: str) -> str:
        return self.makers.get(name, HOST)

    def use(self, name: str, group: str) -> None:
        if not isinstance(self.types[name], Handle) and self.maker(name) != group:
            self.found[Edge(name, self.types[name], self.maker(name), group)] = None
