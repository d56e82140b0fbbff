"""Finds the values that one group of a plan makes and another one uses. Class: exact; it changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rlgraph.ir.graph import Graph, Node, Phase, Program
from rlgraph.ir.plan import HOST, Plan
from rlgraph.ir.types import StateHandle, Type
from rlgraph.ops import NODES, inputs_chosen_from, model_of, user_code_of


@dataclass(frozen=True, slots=True)
class GroupEdge:
    """A value that one group has and another uses."""

    value: str
    type: Type
    source: str
    """The group that has the value."""
    target: str
    """A group that uses the value."""
    stages_reversed: bool = False
    """Whether it was made by a model whose pipeline stages are in reverse order in the source group."""


@dataclass(frozen=True, slots=True)
class ValueUse:
    """The use of a value: from the work that makes it to work that needs it, both as indices of `Walked.works`."""

    edge: GroupEdge
    maker: int | None
    """None for a value that no work makes."""
    user: int


@dataclass(frozen=True)
class PhaseWork:
    """The work of a phase, in the order of its text."""

    works: tuple[tuple[Node, str], ...]
    """Nodes, with the group that does each. A `train` with its whole region is one; a loop is none, but the nodes in it
    are."""
    uses: tuple[ValueUse, ...]
    row_choice_waits: tuple[tuple[int, int], ...]
    """Pairs of work that chooses rows of a table and work that needs the chosen rows, which come from where the table
    is."""


def group_edges(program: Program, plan: Plan) -> tuple[GroupEdge, ...]:
    """Return the edges between groups, in the order in which the values are first needed.

    The rows that `keep` or `pick` leave of a table, and its columns, are where the table is. A loss is computed where
    its model trains; everything else that needs no model, on the host."""
    uses = (use for phase in program.phases for use in trace_phase_work(phase, plan).uses)
    return tuple(dict.fromkeys(use.edge for use in uses if use.edge.source != use.edge.target))


def trace_phase_work(phase: Phase, plan: Plan) -> PhaseWork:
    """Return a phase's work: which group does what, and which work needs which values of which other work."""
    walk = _Walk(plan, phase.graph.value_types())
    walk.walk_graph(phase.graph, HOST, None)
    return PhaseWork(tuple(walk.works), tuple(walk.uses), tuple(walk.waits))


@dataclass(frozen=True, slots=True)
class _Made:
    """Where a value is, and which work made it."""

    group: str = HOST
    """The group that has it."""
    work: int | None = None
    turned: bool = False
    chosen: frozenset[int] = frozenset()
    """The work that chose its rows."""


class _Walk:
    """A walk through a phase's nodes."""

    def __init__(self, plan: Plan, types: Mapping[str, Type]) -> None:
        self.plan, self.types = plan, types
        self.works: list[tuple[Node, str]] = []
        self.uses: dict[ValueUse, None] = {}
        self.waits: dict[tuple[int, int], None] = {}
        self.made: dict[str, _Made] = {}
        """The host has values that are not in it."""

    def walk_graph(self, graph: Graph, group: str, inside: int | None, turned: bool = False) -> None:
        """Walk through a graph. group: the one that does what needs no model. inside: the work that the whole graph is
        a part of, by a model that is `turned`."""
        for node in graph.nodes:
            doer, work, reversed_stages = (
                self.group_of_node(node, group),
                inside,
                turned or self.has_reversed_stages(node),
            )
            if work is None and not NODES[node.op].loop:
                work = len(self.works)
                self.works.append((node, doer))
            if node.regions:
                region = node.region
                self.walk_graph(region, doer, work, reversed_stages)
                # Handles are at the same positions, and have no maker.
                inner = zip(node.outputs, region.outputs, strict=True)
                self.made.update({value.name: self.origin_of_value(name) for value, name in inner})
                continue
            assert work is not None
            # What a player said lies in the episodes, and is made where they are played.
            part = NODES[node.op].done_where and self.origin_of_value(node.inputs[0]).group == doer
            if NODES[node.op].selects or part:
                self.record_view(node, doer, work)
                continue
            for name in () if NODES[node.op].counts else node.inputs:
                self.record_use(name, doer, work)
            self.made.update({value.name: _Made(doer, work, reversed_stages) for value in node.outputs})

    def has_reversed_stages(self, node: Node) -> bool:
        """Return whether a node's model has its stages in reverse order."""
        weights = self.types[model_of(node)] if NODES[node.op].uses_model else None
        return isinstance(weights, StateHandle) and self.plan.has_reversed_stages(
            weights.name, self.group_of_node(node, "")
        )

    def group_of_node(self, node: Node, inherited: str) -> str:
        """Return the group that does a node's work; `inherited` where it needs no model or code."""
        if operation := NODES[node.op].done_where:
            return self.plan.group_for(str(node.attr("model")), operation, "").name
        code_group = None if NODES[node.op].uses_model else self.plan.group_of_code(user_code_of(node))
        if code_group is not None:
            return code_group.name
        weights = self.types[model_of(node)] if NODES[node.op].uses_model else None
        if not isinstance(weights, StateHandle):
            return inherited
        roles = {(role.model, role.operation): role.group for role in self.plan.roles}
        # What a trained model computes for its own loss is not a separate role.
        return roles.get((weights.name, node.op), inherited)

    def record_view(self, node: Node, group: str, work: int) -> None:
        """Record outputs that are parts of inputs, and stay where those are; only what chooses the parts is used
        here."""
        tables = node.inputs if NODES[node.op].chooses is None else inputs_chosen_from(node)
        for name in node.inputs:
            if name not in tables:
                self.record_use(name, group, work)
        for value, name in zip(node.outputs, tables, strict=True):
            made = self.origin_of_value(name)
            chosen = made.chosen if NODES[node.op].free else made.chosen | {work}
            self.made[value.name] = replace(made, chosen=chosen)

    def origin_of_value(self, name: str) -> _Made:
        """Return where a value is, and which work made it."""
        return self.made.get(name, _Made())

    def record_use(self, name: str, group: str, work: int) -> None:
        """Record the use of a value by work of a group."""
        if isinstance(self.types[name], StateHandle):
            return
        made = self.origin_of_value(name)
        self.uses[ValueUse(GroupEdge(name, self.types[name], made.group, group, made.turned), made.work, work)] = None
        self.waits.update(dict.fromkeys((chooser, work) for chooser in sorted(made.chosen) if chooser != work))
