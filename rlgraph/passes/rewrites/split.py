"""Losses that can be split into micro-batches, exactly. Class: exact.

The gradient of a loss is that of the whole mini-batch, whatever the micro-batches. This pass rewrites each `train` body
so that running it on parts of the rows and adding up gives the loss:

  - what does not depend on the trained model is moved out, above `train`: it is computed once, over all rows;
  - `mean(x)` becomes `sum(x) / n` with n counted outside, over all rows;
  - what is left has to be a sum over rows (or over groups, where a group statistic depends on the model). Where it is
  not,
    the unit of the step is the whole batch, and the node says why.

It writes the unit into `train`'s attributes: `micro` (the key of an axis, or null) and `why`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from rlgraph.errors import NO_SPAN, Span
from rlgraph.ir.graph import (
    Apply,
    Const,
    Expr,
    Graph,
    Let,
    Node,
    Program,
    Ref,
    Value,
    axes,
    refs,
    region_node,
    tensor_node,
)
from rlgraph.ir.types import Axis, Table, Tensor, Type, axes_of, axis_of
from rlgraph.ops import NODES, TENSOR, infer, table_of
from rlgraph.passes.rewrites.units import common_axis, depends, reductions


class _NotASum(Exception):
    """The loss cannot be split; the message says why."""


def split(program: Program) -> Program:
    known = axes(program)
    found = {}
    for phase in program.phases:
        types = phase.graph.values()
        taken = {*types, *(let.name for node in phase.graph.walk() for let in node.body)}
        found[phase.name] = _graph(phase.graph, types, known, taken)
    return program.map_graphs(found)


def _graph(graph: Graph, types: Mapping[str, Type], known: Mapping[str, Axis], taken: set[str]) -> Graph:
    nodes: list[Node] = []
    for node in graph.nodes:
        if NODES[node.op].trains:
            nodes += _Splitter(node, dict(types), known, taken).run()
            continue
        for region in node.regions:
            node = region_node(node, _graph(region, types, known, taken))
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


@dataclass
class _Splitter:
    node: Node
    types: dict[str, Type]
    known: Mapping[str, Axis]
    taken: set[str]
    """Names of the phase."""
    moved: list[Node] = field(default_factory=list)
    """Nodes that go above `train`."""
    sizes: dict[str, str] = field(default_factory=dict)
    tied: set[str] = field(default_factory=set)
    """Values that depend on the trained model, with a gradient or without."""
    parts: dict[str, Expr | str] = field(default_factory=dict)
    """For each single number that depends on the model: itself as a sum over rows, or why it is none."""
    crossing: dict[str, str] = field(default_factory=dict)
    """Values with rows that use a number about the whole batch that depends on the model, and which."""
    summands: list[Let] = field(default_factory=list)
    span: Span = NO_SPAN
    """Of what is minimized."""

    def run(self) -> list[Node]:
        region = self.node.region
        self.tied = {region.inputs[0].name}
        self.span = next((node.span for node in region.nodes if node.name == region.outputs[0]), self.node.span)
        inside: list[Node] = []
        for node in region.nodes:
            if not any(name in self.tied for name in node.inputs):
                self.moved.append(node)
                continue
            self.tied.update(value.name for value in node.outputs)
            inside.append(self.without_constants(node) if node.body else node)
        micro, why = self.unit(inside)
        loss = region.outputs[0]
        if micro is not None:
            before = len(self.moved)
            self.find_parts(inside)
            part = self.parts[loss]
            if isinstance(part, Ref):
                inside.append(tensor_node(_needed(self.summands, part.name), (part.name,), self.span))
                loss = part.name
            else:
                assert isinstance(part, str)
                del self.moved[before:]
                micro, why = None, part
        attrs = (*self.node.attrs, ("micro", micro.key if micro else None), ("why", why))
        body = replace(region, nodes=tuple(inside), outputs=(loss, *region.outputs[1:]))
        return [*self.moved, region_node(replace(self.node, attrs=attrs), body)]

    def without_constants(self, node: Node) -> Node:
        """The node with what is about other rows and does not depend on the model moved out: a mean over the batch."""
        body = tuple(replace(let, expr=self.lifted(let.expr, let.name)) for let in node.body)
        return tensor_node(body, tuple(value.name for value in node.outputs), node.span)

    def lifted(self, expr: Expr, name: str) -> Expr:
        if not isinstance(expr, Apply):
            return expr
        if not depends(expr, self.tied) and any(reductions(expr)):
            return self.outside(expr, name)
        return replace(expr, args=tuple(self.lifted(arg, name) for arg in expr.args))

    def outside(self, expr: Expr, hint: str) -> Expr:
        """A value above `train` that holds the expression."""
        name = self.fresh(f"{hint}.{len(self.moved)}")
        self.moved.append(tensor_node((Let(name, expr),), (name,), expr.span))
        self.types[name] = expr.type
        return Ref(name, expr.type, expr.span)

    def fresh(self, hint: str) -> str:
        name, count = hint, 1
        while name in self.taken:
            count += 1
            name = f"{hint}.{count}"
        self.taken.add(name)
        return name

    def unit(self, inside: list[Node]) -> tuple[Axis | None, str]:
        """The axis whose rows, with all that lies in them, can be computed apart from each other."""
        rows = [axis.row for node in inside for value in node.outputs if (axis := axis_of(value.type)) is not None]
        asked = (self.types[table_of(node)] for node in inside if NODES[node.op].scores)
        rows += [kind.axis for kind in asked if isinstance(kind, Table)]
        rows += [
            self.known[found.axis].row
            for node in inside
            for let in node.body
            for found in reductions(let.expr)
            if found.axis is not None
        ]
        axis = common_axis(rows)
        return axis, "" if axis else "the loss uses rows of tables that lie in no common one"

    def find_parts(self, inside: list[Node]) -> None:
        """Every single number of the body as a sum over rows, in the order in which they use each other."""
        for let in (let for node in inside for let in node.body):
            if not depends(let.expr, self.tied):
                self.parts[let.name] = "the loss does not depend on the model"
                continue
            if let.expr.type.axis is not None:
                crossing = self.crosses(let.expr)
                if crossing:
                    self.crossing[let.name] = crossing
                continue
            try:
                summed = self.summed(let.expr, inside)
            except _NotASum as error:
                self.parts[let.name] = str(error)
                continue
            name = self.fresh(f"{let.name}.part")
            self.summands.append(Let(name, summed))
            self.parts[let.name] = Ref(name, summed.type)

    def summed(self, expr: Expr, inside: list[Node]) -> Expr:
        """The loss as a sum over rows; raises where it is none."""
        if not depends(expr, self.tied):
            return expr
        if isinstance(expr, Ref):
            part = self.parts[expr.name]
            if isinstance(part, str):
                raise _NotASum(part)
            return part
        assert isinstance(expr, Apply)
        if expr.op in _SUMS:
            return self.sum(expr, inside)
        linear, args = TENSOR[expr.op].linear, expr.args
        if linear == "all":
            return replace(expr, args=tuple(self.summed(arg, inside) for arg in args))
        if linear == "each":
            tied = [depends(arg, self.tied) for arg in args]
            if sum(tied) > 1:
                raise _NotASum("the loss multiplies two numbers about the whole batch that depend on the model")
            return replace(
                expr, args=tuple(self.summed(a, inside) if t else a for a, t in zip(args, tied, strict=True))
            )
        if linear == "first" and not any(depends(arg, self.tied) for arg in args[1:]):
            return replace(expr, args=(self.summed(args[0], inside), *args[1:]))
        usual = f"`{expr.op}` over the whole batch of what the model computes is not a sum over rows"
        raise _NotASum(_WHY_NOT.get(expr.op, usual))

    def sum(self, expr: Apply, inside: list[Node]) -> Expr:
        crossing = self.crosses(expr.args[0])
        if crossing:
            raise _NotASum(crossing)
        return _SUMS[expr.op](self, expr, inside)

    def mean(self, expr: Apply, inside: list[Node]) -> Expr:
        rows = expr.args[0]
        assert rows.type.axis
        total = Apply("sum", (rows,), infer("sum", [rows.type]), None, expr.span)
        # The mean of none is 0.
        some = Apply(
            "maximum", (self.size(rows.type.axis, inside), Const(1, Tensor("int"))), Tensor("int"), None, expr.span
        )
        return Apply("div", (total, some), expr.type, None, expr.span)

    def crosses(self, expr: Expr) -> str:
        """Why rows of a value depend on each other: a number about the whole batch that depends on the model."""
        if isinstance(expr, Ref):
            if expr.name in self.parts and expr.name in self.tied:
                return f"each row uses `{expr.name}`, a number about the whole batch that depends on the model"
            return self.crossing.get(expr.name, "")
        if not isinstance(expr, Apply):
            return ""
        if expr.type.axis is None and depends(expr, self.tied):
            return f"each row uses `{expr.op}` over the whole batch of what the model computes"
        return next(filter(None, map(self.crosses, expr.args)), "")

    def size(self, axis: Axis, inside: list[Node]) -> Expr:
        """How many rows of an axis the whole mini-batch has, counted above `train`."""
        if axis.key not in self.sizes:
            tables = [name for node in inside for name in node.inputs if name not in self.tied]
            # Rows of the axis itself tell it best: of prompts without answers, the answers know nothing.
            exact = (n for n in tables if axis in axes_of(self.types[n]))
            source = next(exact, None) or next(n for n in tables if _holds(self.types[n], axis))
            value = Value(self.fresh(f"{self.node.region.outputs[0]}.{axis.key}.size"), Tensor("int"))
            self.moved.append(Node("size", (source,), (value,), (("axis", axis.key),), span=self.span))
            self.sizes[axis.key] = value.name
        return Ref(self.sizes[axis.key], Tensor("int"))


_SUMS: Mapping[str, Callable[[_Splitter, Apply, list[Node]], Expr]] = {
    "sum": lambda splitter, expr, inside: expr,
    "mean": _Splitter.mean,
}
"""The reductions that are sums over rows, and how each is written as one."""

_WHY_NOT = {
    "div": "the loss divides by a number about the whole batch that depends on the model",
    "detach": "`detach` of a number about the whole batch",
}


def _needed(lets: list[Let], name: str) -> tuple[Let, ...]:
    """Those of the lets that one of them needs, and itself."""
    needed, found = {name}, []
    for let in reversed(lets):
        if let.name in needed:
            needed.update(refs(let.expr))
            found.append(let)
    return tuple(reversed(found))


def _holds(kind: Type, axis: Axis) -> bool:
    """Whether rows of this value tell how many rows an axis has."""
    found = (kind.token, kind.turn, kind.axis) if isinstance(kind, Table) else (axis_of(kind),)
    return any(own is not None and own.within(axis) for own in found)
