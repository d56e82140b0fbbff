"""Walks a phase and derives what is known of each value from what it is computed from, bottom up."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Generic, TypeVar

from rlgraph.errors import Diagnostic
from rlgraph.ir.graph import Apply, Expr, Graph, Node, Ref
from rlgraph.ir.types import Type
from rlgraph.ops import NODES

Facts = TypeVar("Facts")


class FactWalk(ABC, Generic[Facts]):
    """Tracks what is known of each value; warnings come from losses."""

    def __init__(self, types: Mapping[str, Type], nothing: Facts) -> None:
        """nothing: what is known of a value of which nothing is known."""
        self.types, self.nothing = types, nothing
        self.facts: dict[str, Facts] = {}
        self.warnings: list[Diagnostic] = []

    @abstractmethod
    def facts_of_apply(self, expr: Apply, args: list[Facts]) -> Facts:
        """Return what is known of the result of an operation."""

    @abstractmethod
    def note_outputs(self, node: Node) -> None:
        """Note what is known of a node's outputs, where they are no expressions."""

    @abstractmethod
    def check_loss(self, node: Node) -> None:
        """Look at the loss of a node that trains."""

    def known_facts(self, name: str) -> Facts:
        """Return what is known of a value."""
        return self.facts.get(name, self.nothing)

    def walk_graph(self, graph: Graph) -> None:
        """Walk the nodes of a graph in their order."""
        for node in graph.nodes:
            for let in node.body:
                self.facts[let.name] = self.facts_of_expression(let.expr, {})
            for region in node.regions:
                self.walk_graph(region)
            if NODES[node.op].trains:
                self.check_loss(node)
            self.note_outputs(node)
            for inner, value in node.exported_values if node.regions else ():
                self.facts[value.name] = self.known_facts(inner)

    def facts_of_expression(self, expr: Expr, cache: dict[int, Facts]) -> Facts:
        """Return what is known of an expression. cache: what is known of its parts, which are shared."""
        if isinstance(expr, Ref):
            return self.known_facts(expr.name)
        if not isinstance(expr, Apply):
            return self.nothing
        if id(expr) not in cache:
            cache[id(expr)] = self.facts_of_apply(expr, [self.facts_of_expression(arg, cache) for arg in expr.args])
        return cache[id(expr)]
