"""Training on the first rows while the last ones are still to come. Class: exact, to the order of float sums.

A loss that is `sum(x) / n` needs `n` for its last division only: gradients of `sum(x)` are added up row by row, and
divided at the end. Where a plan streams rows to a `train`, this pass makes two nodes of it:

    added <- accumulate(actor@0, rollout, adv)     by row, so that it takes blocks as all that streams does
    actor@1 <- apply(actor@0, 1 / n)               when all of them are in: exchanges, clips, steps

All gradients are of the weights that the step begins with, and there is one update, so that it is as on-policy as
before. A plan asks for this pass, so it is not one of the pipeline: see `accumulated`.
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
    Unit,
    Value,
    axes,
    refs,
    region_node,
    tensor_node,
)
from rlgraph.ir.plan import Plan
from rlgraph.ir.types import Axis, Tensor, axis_of
from rlgraph.ops import NODES, TENSOR, code_of, infer, planned_as
from rlgraph.passes.rewrites.dead import prune

Factor = tuple[tuple[str, Expr], ...]
"""What a sum is multiplied with or divided by, in this order: operations and their second operands."""


@dataclass(frozen=True, slots=True)
class Training:
    """What becomes of a `train` to which rows stream."""

    model: str
    why: str
    """Why it waits for the whole batch; empty where it does not."""


class _Waits(Exception):
    """The message says for what."""


def accumulated(program: Program, plan: Plan) -> Program:
    """The program as it is run by a plan."""
    if not plan.blocks:
        return program
    known = axes(program)
    return program.map_graphs({phase.name: _Streams(phase, plan, known).graph() for phase in program.phases})


def trainings(program: Program, plan: Plan) -> Iterator[Training]:
    """Each `train` to which rows stream."""
    known = axes(program)
    for phase in program.phases:
        streams = _Streams(phase, plan, known)
        streams.graph()
        yield from streams.found


def added_up(program: Program, plan: Plan) -> frozenset[str]:
    """Models whose gradients are kept through a step, while other work is done."""
    return frozenset(each.model for each in trainings(program, plan) if not each.why)


@dataclass
class _Streams:
    """What streams in a phase."""

    phase: Phase
    plan: Plan
    known: Mapping[str, Axis]
    pools: dict[str, frozenset[str]] = field(default_factory=dict)
    """For each value that comes in blocks, where work with a model, or of a function, was done for it."""
    late: dict[str, str] = field(default_factory=dict)
    """For each value that is there when the batch is whole, why."""
    found: list[Training] = field(default_factory=list)

    def graph(self) -> Graph:
        nodes: list[Node] = []
        for node in self.phase.graph.nodes:
            nodes += self.train(node) if NODES[node.op].trains else [node]
            self.follow(node)
        return replace(self.phase.graph, nodes=tuple(nodes))

    def follow(self, node: Node) -> None:
        """Notes which of a node's values come in blocks, and which come late."""
        tables, made = dict(self.plan.blocks), [value.name for value in node.outputs]
        before = [self.pools[name] for name in node.inputs if name in self.pools]
        streams = bool(before) or any(name.split(".")[0] in tables for name in made)
        why = next((self.late[name] for name in node.inputs if name in self.late), "")
        if streams and not why and node.unit and node.unit.axis is None:
            why = f"`{node.name}` waits for all rows, since {node.unit.reason}"
        if why:
            self.late.update(dict.fromkeys(made, why))
        elif streams:
            self.pools.update(dict.fromkeys(made, frozenset().union(self.pool(node), *before)))

    def pool(self, node: Node) -> frozenset[str]:
        """Where a node's work is done, if it may take long."""
        model = node.inputs[0].split("@")[0] if NODES[node.op].with_model else ""
        code = code_of(node)
        return frozenset({self.plan.doer(model, planned_as(node.op), code).pool} if model or code else ())

    def train(self, node: Node) -> list[Node]:
        model = node.inputs[0].split("@")[0]
        group = self.plan.owner(model)
        where = frozenset[str]().union(*(self.pools.get(name, frozenset()) for name in node.inputs))
        if where <= {group.pool}:
            # Nothing is done meanwhile.
            return [node]
        try:
            if not engine(group.engine).accumulates:
                raise _Waits(f"the engine {group.engine} takes a step as a whole")
            made = _parted(node, self.late, self.known)
        except _Waits as waits:
            self.found.append(Training(model, str(waits)))
            return [node]
        self.found.append(Training(model, ""))
        return made


def _parted(node: Node, late: Mapping[str, str], known: Mapping[str, Axis]) -> list[Node]:
    """A `train` as two nodes, with the number that is known at the end."""
    micro = node.attr("micro")
    if node.inputs[0] in late:
        raise _Waits(late[node.inputs[0]])
    if micro is None:
        raise _Waits(node.attr("why"))
    for _, value in node.exported:
        axis = axis_of(value.type)
        if axis is None or not axis.within(known[micro]):
            raise _Waits(f"`{value.name}` is a number about all rows")
    loss = _Loss(node.region, late)
    added = Value(f"{node.name}.added", Tensor("int", known[micro]))
    accumulate = replace(
        node, op="accumulate", outputs=(added, *node.outputs[1:]), attrs=(("axis", micro),), unit=Unit(micro)
    )
    accumulate = region_node(accumulate, loss.region)
    for name in accumulate.captured:
        if name in late:
            raise _Waits(late[name])
    scale = f"{node.name}.scale"
    number = tensor_node((Let(scale, loss.scale),), (scale,), node.span)
    settings = tuple((name, value) for name, value in node.attrs if name not in ("micro", "why"))
    return [
        accumulate,
        replace(number, unit=Unit(None, "it is one number")),
        Node("apply", (node.inputs[0], scale), node.outputs[:1], settings, unit=node.unit, span=node.span),
    ]


class _Loss:
    """A loss as a sum over rows, times what is known of them at the end."""

    def __init__(self, region: Graph, late: Mapping[str, str]) -> None:
        self.late = late
        maker = next(node for node in region.nodes if any(each.name == region.outputs[0] for each in node.outputs))
        self.own = {let.name: let.expr for let in maker.body}
        """What the node says that makes it."""
        self.inside = self.own.keys() | region.values().keys()
        summed, factor = self.parted(self.own[region.outputs[0]])
        name = f"{region.outputs[0]}.sum"
        body = (*maker.body, Let(name, summed))
        outputs = tuple(dict.fromkeys((*(value.name for value in maker.outputs), name)))
        changed = replace(tensor_node(body, outputs, maker.span), unit=maker.unit)
        nodes = tuple(changed if node is maker else node for node in region.nodes)
        self.region = prune(replace(region, nodes=nodes, outputs=(name, *region.outputs[1:])))
        self.scale: Expr = Const(1.0, Tensor("float"))
        for op, other in factor:
            self.scale = _apply(op, (self.scale, other))

    def parted(self, expr: Expr) -> tuple[Expr, Factor]:
        """The sum, and what it is multiplied with or divided by."""
        names = [name for name in refs(expr) if self.comes_late(name)]
        if not names:
            return expr, ()
        if isinstance(expr, Ref) and expr.name in self.own:
            return self.parted(self.own[expr.name])
        linear = TENSOR[expr.op].linear if isinstance(expr, Apply) and TENSOR[expr.op].kind != "reduction" else None
        if not isinstance(expr, Apply) or linear is None:
            raise _Waits(self.late.get(names[0], f"each row uses `{names[0]}`, which is known when all are there"))
        if linear == "all":
            parts = [self.parted(arg) for arg in expr.args]
            if any(factor != parts[0][1] for _, factor in parts):
                raise _Waits("the terms of its loss are divided by different numbers about all rows")
            return _apply(expr.op, [part for part, _ in parts]), parts[0][1]
        at = next((at for at, arg in enumerate(expr.args) if any(name in self.inside for name in refs(arg))), 0)
        other = expr.args[1 - at]
        part, factor = self.parted(expr.args[at])
        if any(self.comes_late(name) for name in refs(other)):
            return part, (*factor, (expr.op, other))
        return _apply(expr.op, (part, other) if at == 0 else (other, part)), factor

    def comes_late(self, name: str) -> bool:
        return name in self.late or (name in self.own and any(map(self.comes_late, refs(self.own[name]))))


def _apply(op: str, args: Sequence[Expr]) -> Apply:
    return Apply(op, tuple(args), infer(op, [arg.type for arg in args]))
