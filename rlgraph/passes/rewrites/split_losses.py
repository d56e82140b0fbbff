"""Splits losses into micro-batches without changing them. Class: exact.

The gradient of a loss is that of the whole mini-batch, whatever the micro-batches. This pass rewrites the body of each
`train` so that its results on parts of the rows add up to the loss:

  - expressions that do not depend on the trained model are moved out, above `train`, and computed once, over all rows;
  - `mean(x)` becomes `sum(x) / n`, with n counted outside, over all rows;
  - what is left must be a sum over rows (or over groups, where a group statistic depends on the model). Otherwise the
    unit of the step is the whole batch, and the node says why.

It writes the unit into the attributes of `train`: `micro` (the key of an axis, or null) and `why`.
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
    program_axes,
    tensor_node,
    used_names,
    with_region,
)
from rlgraph.ir.types import Axis, Table, Tensor, Type, axes_of, axis_of
from rlgraph.ops import NODES, TENSOR, infer_type, table_of
from rlgraph.passes.rewrites.splittable_units import innermost_common_axis, reductions, uses_any


class _NotASum(Exception):
    """Raised for a loss that cannot be split; the message says why."""


def split(program: Program) -> Program:
    """Return the program with every loss that is a sum over rows split."""
    axes_by_key = program_axes(program)
    graphs = {}
    for phase in program.phases:
        types = phase.graph.value_types()
        taken = {*types, *(let.name for node in phase.graph.walk() for let in node.body)}
        graphs[phase.name] = _graph(phase.graph, types, axes_by_key, taken)
    return program.with_graphs(graphs)


def _graph(graph: Graph, types: Mapping[str, Type], axes_by_key: Mapping[str, Axis], taken: set[str]) -> Graph:
    nodes: list[Node] = []
    for node in graph.nodes:
        if NODES[node.op].trains:
            nodes += _Splitter(node, dict(types), axes_by_key, taken).run()
            continue
        for region in node.regions:
            node = with_region(node, _graph(region, types, axes_by_key, taken))
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


@dataclass
class _Splitter:
    """The rewrite of one `train`."""

    node: Node
    types: dict[str, Type]
    axes_by_key: Mapping[str, Axis]
    taken: set[str]
    """The names that the phase uses."""
    moved: list[Node] = field(default_factory=list)
    """The nodes that are moved above `train`."""
    sizes: dict[str, str] = field(default_factory=dict)
    tied: set[str] = field(default_factory=set)
    """Values that depend on the trained model, with a gradient or without."""
    parts: dict[str, Expr | str] = field(default_factory=dict)
    """For each single number that depends on the model: the number as a sum over rows, or why it is not one."""
    crossing: dict[str, str] = field(default_factory=dict)
    """For each value whose rows use a number about the whole batch that depends on the model: which number that is."""
    summands: list[Let] = field(default_factory=list)
    span: Span = NO_SPAN
    """The place of the loss."""

    def run(self) -> list[Node]:
        """Return the nodes that replace the `train`."""
        region = self.node.region
        self.tied = {region.inputs[0].name}
        self.span = next((node.span for node in region.nodes if node.name == region.outputs[0]), self.node.span)
        inside: list[Node] = []
        for node in region.nodes:
            if not any(name in self.tied for name in node.inputs):
                self.moved.append(node)
                continue
            self.tied.update(value.name for value in node.outputs)
            inside.append(self.move_out_constants(node) if node.body else node)
        micro, why = self.separable_axis(inside)
        loss = region.outputs[0]
        if micro is not None:
            before = len(self.moved)
            self.find_scalar_sums(inside)
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
        return [*self.moved, with_region(replace(self.node, attrs=attrs), body)]

    def move_out_constants(self, node: Node) -> Node:
        """Return the node with reductions moved out that do not depend on the model, such as a mean over the batch."""
        body = tuple(replace(let, expr=self.move_out_reductions(let.expr, let.name)) for let in node.body)
        return tensor_node(body, tuple(value.name for value in node.outputs), node.span)

    def move_out_reductions(self, expr: Expr, name: str) -> Expr:
        """Return an expression with those reductions moved out."""
        if not isinstance(expr, Apply):
            return expr
        if not uses_any(expr, self.tied) and any(reductions(expr)):
            return self.add_value_before_train(expr, name)
        return replace(expr, args=tuple(self.move_out_reductions(arg, name) for arg in expr.args))

    def add_value_before_train(self, expr: Expr, hint: str) -> Expr:
        """Add a value above `train` for an expression, and return a reference to it."""
        name = self.reserve_name(f"{hint}.{len(self.moved)}")
        self.moved.append(tensor_node((Let(name, expr),), (name,), expr.span))
        self.types[name] = expr.type
        return Ref(name, expr.type, expr.span)

    def reserve_name(self, hint: str) -> str:
        """Return an unused name, and reserve it."""
        name, count = hint, 1
        while name in self.taken:
            count += 1
            name = f"{hint}.{count}"
        self.taken.add(name)
        return name

    def separable_axis(self, inside: list[Node]) -> tuple[Axis | None, str]:
        """Return the axis whose rows, with all that lies in them, can be computed separately; or None, and why."""
        rows = [axis.row_axis for node in inside for value in node.outputs if (axis := axis_of(value.type)) is not None]
        scored = (self.types[table_of(node)] for node in inside if NODES[node.op].scores)
        rows += [kind.axis for kind in scored if isinstance(kind, Table)]
        rows += [
            self.axes_by_key[reduction.axis].row_axis
            for node in inside
            for let in node.body
            for reduction in reductions(let.expr)
            if reduction.axis is not None
        ]
        axis = innermost_common_axis(rows)
        return axis, "" if axis else "the loss uses rows of tables that lie in no common one"

    def find_scalar_sums(self, inside: list[Node]) -> None:
        """Find every single number of the body as a sum over rows, in the order in which they use each other."""
        for let in (let for node in inside for let in node.body):
            if not uses_any(let.expr, self.tied):
                self.parts[let.name] = "the loss does not depend on the model"
                continue
            if let.expr.type.axis is not None:
                crossing = self.why_rows_depend(let.expr)
                if crossing:
                    self.crossing[let.name] = crossing
                continue
            try:
                summed = self.as_row_sum(let.expr, inside)
            except _NotASum as error:
                self.parts[let.name] = str(error)
                continue
            name = self.reserve_name(f"{let.name}.part")
            self.summands.append(Let(name, summed))
            self.parts[let.name] = Ref(name, summed.type)

    def as_row_sum(self, expr: Expr, inside: list[Node]) -> Expr:
        """Return an expression as a sum over rows; raises _NotASum if it is none."""
        if not uses_any(expr, self.tied):
            return expr
        if isinstance(expr, Ref):
            part = self.parts[expr.name]
            if isinstance(part, str):
                raise _NotASum(part)
            return part
        assert isinstance(expr, Apply)
        if expr.op in _SUMS:
            return self.sum_as_row_sum(expr, inside)
        linear, args = TENSOR[expr.op].linear, expr.args
        if linear == "all":
            return replace(expr, args=tuple(self.as_row_sum(arg, inside) for arg in args))
        if linear == "each":
            tied = [uses_any(arg, self.tied) for arg in args]
            if sum(tied) > 1:
                raise _NotASum("the loss multiplies two numbers about the whole batch that depend on the model")
            return replace(
                expr,
                args=tuple(
                    self.as_row_sum(arg, inside) if depending else arg
                    for arg, depending in zip(args, tied, strict=True)
                ),
            )
        if linear == "first" and not any(uses_any(arg, self.tied) for arg in args[1:]):
            return replace(expr, args=(self.as_row_sum(args[0], inside), *args[1:]))
        reason = f"`{expr.op}` over the whole batch of what the model computes is not a sum over rows"
        raise _NotASum(_WHY_NOT.get(expr.op, reason))

    def sum_as_row_sum(self, expr: Apply, inside: list[Node]) -> Expr:
        """Return a sum or mean as a sum over rows."""
        crossing = self.why_rows_depend(expr.args[0])
        if crossing:
            raise _NotASum(crossing)
        return _SUMS[expr.op](self, expr, inside)

    def mean_as_row_sum(self, expr: Apply, inside: list[Node]) -> Expr:
        """Return a mean as a sum divided by a count of all rows."""
        rows = expr.args[0]
        assert rows.type.axis
        total = Apply("sum", (rows,), infer_type("sum", [rows.type]), None, expr.span)
        # The mean of no rows is 0.
        count = Apply(
            "maximum",
            (self.full_row_count(rows.type.axis, inside), Const(1, Tensor("int"))),
            Tensor("int"),
            None,
            expr.span,
        )
        return Apply("div", (total, count), expr.type, None, expr.span)

    def why_rows_depend(self, expr: Expr) -> str:
        """Return why the rows of an expression depend on each other: by a number about the whole batch that depends on
        the model. Empty if they do not."""
        if isinstance(expr, Ref):
            if expr.name in self.parts and expr.name in self.tied:
                return f"each row uses `{expr.name}`, a number about the whole batch that depends on the model"
            return self.crossing.get(expr.name, "")
        if not isinstance(expr, Apply):
            return ""
        whole = expr.type.axis is None or (TENSOR[expr.op].is_grouped and expr.axis is None)
        if whole and uses_any(expr, self.tied):
            return f"each row uses `{expr.op}` over the whole batch of what the model computes"
        return next(filter(None, map(self.why_rows_depend, expr.args)), "")

    def full_row_count(self, axis: Axis, inside: list[Node]) -> Expr:
        """Return a reference to the number of rows of an axis in the whole mini-batch, counted above `train`."""
        if axis.key not in self.sizes:
            tables = [name for node in inside for name in node.inputs if name not in self.tied]
            # A table with the axis itself comes first: answers do not tell of prompts without answers.
            exact = (name for name in tables if axis in axes_of(self.types[name]))
            source = next(exact, None) or next(name for name in tables if _counts(self.types[name], axis))
            value = Value(self.reserve_name(f"{self.node.region.outputs[0]}.{axis.key}.size"), Tensor("int"))
            self.moved.append(Node("size", (source,), (value,), (("axis", axis.key),), span=self.span))
            self.sizes[axis.key] = value.name
        return Ref(self.sizes[axis.key], Tensor("int"))


_SUMS: Mapping[str, Callable[[_Splitter, Apply, list[Node]], Expr]] = {
    "sum": lambda splitter, expr, inside: expr,
    "mean": _Splitter.mean_as_row_sum,
}
"""The reductions that are sums over rows, and functions that write them as such."""

_WHY_NOT = {
    "div": "the loss divides by a number about the whole batch that depends on the model",
    "detach": "`detach` of a number about the whole batch",
}


def _needed(lets: list[Let], name: str) -> tuple[Let, ...]:
    """Return the let of this name and those that it needs."""
    needed, selected = {name}, []
    for let in reversed(lets):
        if let.name in needed:
            needed.update(used_names(let.expr))
            selected.append(let)
    return tuple(reversed(selected))


def _counts(kind: Type, axis: Axis) -> bool:
    """Return whether the rows of a value tell how many rows an axis has."""
    own_axes = (kind.token, kind.turn, kind.axis) if isinstance(kind, Table) else (axis_of(kind),)
    return any(inner is not None and inner.is_within(axis) for inner in own_axes)
