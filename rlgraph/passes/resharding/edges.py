"""The values that travel: made by one group of a plan and used by another. Class: exact; it changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rlgraph.ir.graph import Graph, Node, Phase, Program
from rlgraph.ir.plan import HOST, Plan
from rlgraph.ir.types import Handle, Type
from rlgraph.ops import NODES, chosen_from, code_of, model_of


@dataclass(frozen=True, slots=True)
class Edge:
    value: str
    type: Type
    source: str
    """The group that has it."""
    target: str
    """A group that uses it."""
    turned: bool = False
    """A model made it whose stages lie the other way round in the group that has it."""


@dataclass(frozen=True, slots=True)
class Use:
    """A value from the work that makes it to work that needs it; both are numbers of works."""

    edge: Edge
    maker: int | None
    """None for what no work makes."""
    user: int


@dataclass(frozen=True)
class Walked:
    """A phase's work in the order of its text."""

    works: tuple[tuple[Node, str], ...]
    """Nodes, and the group that does each; a `train` with all that is in it is one, and loops are none: their work is
    that of the nodes in them."""
    uses: tuple[Use, ...]
    waits: tuple[tuple[int, int], ...]
    """Work that chooses rows of a table, and work that needs those that were chosen: they come from where the table
    lies."""


def edges(program: Program, plan: Plan) -> tuple[Edge, ...]:
    """In the order in which the values are first needed.

    What is left of a table after `keep` or `pick`, and its columns, lie where the table lies. A loss is computed where
    its model trains; everything else that needs no model, on the host.
    """
    uses = (use for phase in program.phases for use in walked(phase, plan).uses)
    return tuple(dict.fromkeys(use.edge for use in uses if use.edge.source != use.edge.target))


def walked(phase: Phase, plan: Plan) -> Walked:
    """What is done where, and which work needs what of which."""
    walk = _Walk(plan, phase.graph.values())
    walk.graph(phase.graph, HOST, None)
    return Walked(tuple(walk.works), tuple(walk.uses), tuple(walk.waits))


@dataclass(frozen=True, slots=True)
class _Made:
    group: str = HOST
    """Which has it."""
    work: int | None = None
    turned: bool = False
    chosen: frozenset[int] = frozenset()
    """The works that chose its rows."""


class _Walk:
    def __init__(self, plan: Plan, types: Mapping[str, Type]) -> None:
        self.plan, self.types = plan, types
        self.works: list[tuple[Node, str]] = []
        self.uses: dict[Use, None] = {}
        self.waits: dict[tuple[int, int], None] = {}
        self.made: dict[str, _Made] = {}
        """What is not here the host has."""

    def graph(self, graph: Graph, group: str, inside: int | None, turned: bool = False) -> None:
        """`group` is the one that does what needs no model; `inside`: the work that all of this is a part of, by a
        model that is `turned`."""
        for node in graph.nodes:
            own, work, way = self.group(node, group), inside, turned or self.turned(node)
            if work is None and not NODES[node.op].loop:
                work = len(self.works)
                self.works.append((node, own))
            if node.regions:
                region = node.region
                self.graph(region, own, work, way)
                # Handles stand in the same places, and have no maker.
                inner = zip(node.outputs, region.outputs, strict=True)
                self.made.update({value.name: self.maker(name) for value, name in inner})
                continue
            assert work is not None
            if NODES[node.op].selects:
                self.view(node, own, work)
                continue
            for name in () if NODES[node.op].counts else node.inputs:
                self.use(name, own, work)
            self.made.update({value.name: _Made(own, work, way) for value in node.outputs})

    def turned(self, node: Node) -> bool:
        held = self.types[model_of(node)] if NODES[node.op].with_model else None
        return isinstance(held, Handle) and self.plan.turned(held.name, self.group(node, ""))

    def group(self, node: Node, inherited: str) -> str:
        runs = None if NODES[node.op].with_model else self.plan.runs(code_of(node))
        if runs is not None:
            return runs.name
        held = self.types[model_of(node)] if NODES[node.op].with_model else None
        if not isinstance(held, Handle):
            return inherited
        roles = {(role.model, role.operation): role.group for role in self.plan.roles}
        # What the trained model computes for its own loss is no role of its own.
        return roles.get((held.name, node.op), inherited)

    def view(self, node: Node, group: str, work: int) -> None:
        """The outputs are parts of inputs, and stay where those are; what chooses the parts is used here."""
        tables = node.inputs if NODES[node.op].chooses is None else chosen_from(node)
        for name in node.inputs:
            if name not in tables:
                self.use(name, group, work)
        for value, name in zip(node.outputs, tables, strict=True):
            made = self.maker(name)
            chosen = made.chosen if NODES[node.op].free else made.chosen | {work}
            self.made[value.name] = replace(made, chosen=chosen)

    def maker(self, name: str) -> _Made:
        return self.made.get(name, _Made())

    def use(self, name: str, group: str, work: int) -> None:
        if isinstance(self.types[name], Handle):
            return
        made = self.maker(name)
        self.uses[Use(Edge(name, self.types[name], made.group, group, made.turned), made.work, work)] = None
        self.waits.update(dict.fromkeys((chooser, work) for chooser in sorted(made.chosen) if chooser != work))
