"""Gradient accumulation over streamed rows: training on the first rows before the last ones are there. Class: exact, to
the order of float sums.

A loss that is `sum(x) / n` needs `n` only for the last division: gradients of `sum(x)` can be added up row by row, and
divided at the end. Where a plan streams rows to a `train`, this pass splits the node into two:

    added <- accumulate(actor@0, rollout, adv)     by row, so that it takes blocks
    actor@1 <- apply(actor@0, 1 / n)               once all rows are there: reduces, clips, steps

All gradients are of the weights at the beginning of the step, and there is one update, so it is as on-policy as before.
The plan requests this pass, so it is not in the pipeline: see `with_accumulation`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rlgraph.backends.enginespec.registry import engine
from rlgraph.ir.graph import (
    Apply,
    Const,
    Expr,
    Graph,
    Let,
    Node,
    Phase,
    Program,
    Ref,
    RowUnit,
    Value,
    program_axes,
    tensor_node,
    used_names,
    with_region,
)
from rlgraph.ir.plan import Plan
from rlgraph.ir.types import Axis, Tensor, axis_of
from rlgraph.ops import NODES, TENSOR, infer_type, placement_operation, user_code_of
from rlgraph.passes.rewrites.dead import prune_graph

Factor = tuple[tuple[str, Expr], ...]
"""The operations and second operands that multiply or divide a sum, in this order."""


@dataclass(frozen=True, slots=True)
class StreamedTraining:
    """The result for a `train` to which rows stream."""

    model: str
    why: str
    """Why it waits for the whole batch; empty if it does not."""


class _Waits(Exception):
    """Raised for a `train` that must wait for the whole batch; the message says why."""


def with_accumulation(program: Program, plan: Plan) -> Program:
    """Return the program with accumulation in every `train` to which the plan streams rows, where that is possible."""
    if not plan.blocks:
        return program
    axes_by_key = program_axes(program)
    return program.with_graphs(
        {phase.name: _PhaseRewrite(phase, plan, axes_by_key).rewritten_graph() for phase in program.phases}
    )


def streamed_trainings(program: Program, plan: Plan) -> Iterator[StreamedTraining]:
    """Return the result for each `train` to which rows stream."""
    axes_by_key = program_axes(program)
    for phase in program.phases:
        rewrite = _PhaseRewrite(phase, plan, axes_by_key)
        rewrite.rewritten_graph()
        yield from rewrite.trainings


def accumulating_models(program: Program, plan: Plan) -> frozenset[str]:
    """Return the models whose gradients stay in memory during a step, while other work is done."""
    return frozenset(training.model for training in streamed_trainings(program, plan) if not training.why)


@dataclass
class _PhaseRewrite:
    """The rewrite of one phase, which follows the values that stream."""

    phase: Phase
    plan: Plan
    axes_by_key: Mapping[str, Axis]
    pools: dict[str, frozenset[str]] = field(default_factory=dict)
    """For each value that comes in blocks, the pools where models or functions worked for it."""
    late: dict[str, str] = field(default_factory=dict)
    """For each value that is only there once the batch is complete, the reason."""
    trainings: list[StreamedTraining] = field(default_factory=list)

    def rewritten_graph(self) -> Graph:
        nodes: list[Node] = []
        for node in self.phase.graph.nodes:
            nodes += self.rewrite_train(node) if NODES[node.op].trains else [node]
            self.record_streaming(node)
        return replace(self.phase.graph, nodes=tuple(nodes))

    def record_streaming(self, node: Node) -> None:
        """Record which of a node's outputs come in blocks, and which come late."""
        tables, outputs = dict(self.plan.blocks), [value.name for value in node.outputs]
        before = [self.pools[name] for name in node.inputs if name in self.pools]
        streams = bool(before) or any(name.split(".")[0] in tables for name in outputs)
        why = next((self.late[name] for name in node.inputs if name in self.late), "")
        if streams and not why and node.unit and node.unit.axis is None:
            why = f"`{node.name}` waits for all rows, since {node.unit.reason}"
        if why:
            self.late.update(dict.fromkeys(outputs, why))
        elif streams:
            self.pools.update(dict.fromkeys(outputs, frozenset().union(self.pools_of_node(node), *before)))

    def pools_of_node(self, node: Node) -> frozenset[str]:
        """Return the pool where a node's work is done, if it may take long."""
        model = node.inputs[0].split("@")[0] if NODES[node.op].uses_model else ""
        code = user_code_of(node)
        return frozenset({self.plan.group_for(model, placement_operation(node.op), code).pool} if model or code else ())

    def rewrite_train(self, node: Node) -> list[Node]:
        model = node.inputs[0].split("@")[0]
        group = self.plan.owner(model)
        pools = frozenset[str]().union(*(self.pools.get(name, frozenset()) for name in node.inputs))
        if pools <= {group.pool}:
            # All work for its inputs was done on the same pool, so nothing would overlap.
            return [node]
        try:
            if not engine(group.engine).accumulates:
                raise _Waits(f"the engine {group.engine} takes a step as a whole")
            nodes = _split(node, self.late, self.axes_by_key)
        except _Waits as waits:
            self.trainings.append(StreamedTraining(model, str(waits)))
            return [node]
        self.trainings.append(StreamedTraining(model, ""))
        return nodes


def _split(node: Node, late: Mapping[str, str], axes_by_key: Mapping[str, Axis]) -> list[Node]:
    """Return a `train` as two nodes, with one between that computes the scale at the end."""
    micro = node.attr("micro")
    if node.inputs[0] in late:
        raise _Waits(late[node.inputs[0]])
    if micro is None:
        raise _Waits(node.attr("why"))
    if any(inner.op == "setting" for inner in node.region.nodes):
        raise _Waits("an option of its optimizer is computed")
    for _, value in node.exported_values:
        axis = axis_of(value.type)
        if axis is None or not axis.is_within(axes_by_key[micro]):
            raise _Waits(f"`{value.name}` is a number about all rows")
    loss = _Loss(node.region, late)
    added = Value(f"{node.name}.added", Tensor("int", axes_by_key[micro]))
    accumulate = replace(
        node, op="accumulate", outputs=(added, *node.outputs[1:]), attrs=(("axis", micro),), unit=RowUnit(micro)
    )
    accumulate = with_region(accumulate, loss.region)
    for name in accumulate.captured_values:
        if name in late:
            raise _Waits(late[name])
    scale = f"{node.name}.scale"
    number = tensor_node((Let(scale, loss.scale),), (scale,), node.span)
    settings = tuple((name, value) for name, value in node.attrs if name not in ("micro", "why"))
    return [
        accumulate,
        replace(number, unit=RowUnit(None, "it is one number")),
        Node("apply", (node.inputs[0], scale), node.outputs[:1], settings, unit=node.unit, span=node.span),
    ]


class _Loss:
    """A loss, split into a sum over rows and a scale that is known at the end."""

    def __init__(self, region: Graph, late: Mapping[str, str]) -> None:
        self.late = late
        maker = next(node for node in region.nodes if any(value.name == region.outputs[0] for value in node.outputs))
        self.defined = {let.name: let.expr for let in maker.body}
        """The expressions of the node that computes the loss."""
        self.inside = self.defined.keys() | region.value_types().keys()
        summed, factor = self.split_sum_and_factor(self.defined[region.outputs[0]])
        name = f"{region.outputs[0]}.sum"
        body = (*maker.body, Let(name, summed))
        outputs = tuple(dict.fromkeys((*(value.name for value in maker.outputs), name)))
        changed = replace(tensor_node(body, outputs, maker.span), unit=maker.unit)
        nodes = tuple(changed if node is maker else node for node in region.nodes)
        self.region = prune_graph(replace(region, nodes=nodes, outputs=(name, *region.outputs[1:])))
        self.scale: Expr = Const(1.0, Tensor("float"))
        for op, other in factor:
            self.scale = _apply(op, (self.scale, other))

    def split_sum_and_factor(self, expr: Expr) -> tuple[Expr, Factor]:
        """Return the sum in an expression, and the factor that it is multiplied with."""
        names = [name for name in used_names(expr) if self.needs_whole_batch(name)]
        if not names:
            return expr, ()
        if isinstance(expr, Ref) and expr.name in self.defined:
            return self.split_sum_and_factor(self.defined[expr.name])
        linear = TENSOR[expr.op].linear if isinstance(expr, Apply) and not TENSOR[expr.op].is_grouped else None
        if not isinstance(expr, Apply) or linear is None:
            raise _Waits(self.late.get(names[0], f"each row uses `{names[0]}`, which is known when all are there"))
        if linear == "all":
            parts = [self.split_sum_and_factor(arg) for arg in expr.args]
            if any(factor != parts[0][1] for _, factor in parts):
                raise _Waits("the terms of its loss are divided by different numbers about all rows")
            return _apply(expr.op, [part for part, _ in parts]), parts[0][1]
        summand = next(
            (at for at, arg in enumerate(expr.args) if any(name in self.inside for name in used_names(arg))), 0
        )
        other = expr.args[1 - summand]
        part, factor = self.split_sum_and_factor(expr.args[summand])
        if any(self.needs_whole_batch(name) for name in used_names(other)):
            return part, (*factor, (expr.op, other))
        return _apply(expr.op, (part, other) if summand == 0 else (other, part)), factor

    def needs_whole_batch(self, name: str) -> bool:
        """Return whether a value needs the complete batch."""
        return name in self.late or (
            name in self.defined and any(map(self.needs_whole_batch, used_names(self.defined[name])))
        )


def _apply(op: str, args: Sequence[Expr]) -> Apply:
    return Apply(op, tuple(args), infer_type(op, [arg.type for arg in args]))
