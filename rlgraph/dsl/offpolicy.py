"""Rows that older weights may have sampled: warnings about losses that do not know it and about weights without a cap,
and losses that take the sampler's log-probabilities for those of some weights.

What is known of each value is worked out bottom up, from what it is computed of.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from rlgraph.errors import Diagnostic, Span
from rlgraph.ir.graph import Apply, Expr, Graph, Node, Phase, Ref
from rlgraph.ir.steps import bound
from rlgraph.ir.types import Type, is_model
from rlgraph.ops import NODES, chosen_from, model_of, table_of

_CAPS = ("clip", "minimum", "sigmoid", "tanh")
"""Operations after which a weight is no larger than something."""


@dataclass(frozen=True, slots=True)
class _Known:
    """Of a value: what it is computed of."""

    sampled: str = ""
    """Of a table: the model that sampled it, with weights that may be older."""
    sampler: bool = False
    """Log-probabilities of the policy that sampled such rows."""
    own: bool = False
    """Log-probabilities of the same model for such rows, with weights as they are now."""
    capped: bool = False
    loose: frozenset[Span] = frozenset()
    """Importance weights without a cap."""
    alone: frozenset[Span] = frozenset()
    """Where log-probabilities of the sampler come from that are in no importance weight."""


_NOTHING = _Known()


def _together(parts: Iterable[_Known]) -> _Known:
    found = list(parts)
    return _Known(
        "",
        any(each.sampler for each in found),
        any(each.own for each in found),
        any(each.capped for each in found),
        frozenset().union(*(each.loose for each in found)),
        frozenset().union(*(each.alone for each in found)),
    )


def off_policy(phase: Phase) -> list[Diagnostic]:
    """Warnings about a phase that samples with older weights."""
    if not phase.staleness.steps:
        return []
    walk = _Walk(phase.graph.values(), phase.staleness.exact)
    walk.graph(phase.graph)
    return [found for found in walk.warnings if found.code != "W0507" or found.span not in walk.masked]


def recomputed(phase: Phase, model: str) -> list[Span]:
    """Where a phase reads log-probabilities of a model that sampled, which a loss uses in another way than to weight
    the trainer's by them: as if they were a function of weights and tokens."""
    walk = _Walk(phase.graph.values(), phase.staleness.exact)
    walk.graph(phase.graph)
    found = {span for name, span in walk.alone if name == model}
    return sorted(found, key=lambda span: (span.line, span.column))


@dataclass
class _Walk:
    types: dict[str, Type]
    exact: bool
    """Their age is known: whoever says `lag` asks for the weights of then."""
    known: dict[str, _Known] = field(default_factory=dict)
    masked: set[Span] = field(default_factory=set)
    """Weights that are compared with something: a mask is a cap, too."""
    alone: list[tuple[str, Span]] = field(default_factory=list)
    """Of losses: the model that sampled, and where its log-probabilities are read that are in no weight."""
    reads: dict[Span, str] = field(default_factory=dict)
    """Where a sampler's log-probabilities are read, and which model's they are."""
    warnings: list[Diagnostic] = field(default_factory=list)

    def graph(self, graph: Graph) -> None:
        for node in graph.nodes:
            self.node(node)

    def node(self, node: Node) -> None:
        op = NODES[node.op]
        inputs = [self.known.get(name, _NOTHING) for name in node.inputs]
        for let in node.body:
            self.known[let.name] = self.expression(let.expr, {})
        for region in node.regions:
            self.graph(region)
        if op.trains:
            self.loss(node)
        if op.generates:
            self.known[node.name] = _Known(self.model(node) if bound(node) else "")
        elif op.chooses is not None and op.unit == "row":
            for source, value in zip(chosen_from(node), node.outputs, strict=True):
                self.known[value.name] = self.known.get(source, _NOTHING)
        elif op.selects and op.chooses is None:
            sampler = bool(inputs[0].sampled) and node.attr("name") == "logprobs"
            if sampler:
                self.reads[node.span] = inputs[0].sampled
            self.known[node.name] = _Known(sampler=sampler, alone=frozenset({node.span} if sampler else ()))
        elif not node.body and not node.regions:
            own = node.op == "logprobs" and self.about(node) == self.model(node)
            for value in node.outputs:
                self.known[value.name] = replace(_together(inputs), own=own or any(each.own for each in inputs))
        for inner, value in node.exported if node.regions else ():
            self.known[value.name] = self.known.get(inner, _NOTHING)

    def model(self, node: Node) -> str:
        kind = self.types[model_of(node)]
        return kind.name if is_model(kind) else ""

    def about(self, node: Node) -> str:
        """The model that sampled the rows which a node reads."""
        return self.known.get(table_of(node), _NOTHING).sampled

    def expression(self, expr: Expr, seen: dict[int, _Known]) -> _Known:
        if isinstance(expr, Ref):
            return self.known.get(expr.name, _NOTHING)
        if not isinstance(expr, Apply):
            return _NOTHING
        if id(expr) not in seen:
            args = [self.expression(arg, seen) for arg in expr.args]
            found = _together(args)
            if expr.op == "sub" and len(args) == 2 and any(a.own and b.sampler for a, b in (args, args[::-1])):
                found = replace(found, alone=frozenset())
            if expr.type.dtype == "bool":
                self.masked |= found.loose
                found = replace(found, loose=frozenset())
            elif expr.op in _CAPS:
                found = replace(found, capped=True, loose=frozenset())
            elif expr.op in ("exp", "expm1") and found.sampler and found.own and not found.capped:
                found = replace(found, loose=frozenset({expr.span}))
            seen[id(expr)] = found
        return seen[id(expr)]

    def loss(self, node: Node) -> None:
        region, model = node.region, self.model(node)
        found = self.known.get(region.outputs[0], _NOTHING)
        self.alone += [(self.reads[span], span) for span in found.alone]
        for span in sorted(found.loose, key=lambda span: (span.line, span.column)):
            self.warnings.append(
                Diagnostic(
                    "W0507",
                    "this importance weight has no cap: a few rows of older weights can outweigh all others",
                    span,
                    "cap it, as in `min(..., 5.0)`",
                )
            )
        if self.exact or found.sampler:
            return
        calls = (inner for inner in region.nodes if inner.op == "logprobs" and self.about(inner) == model)
        for call in calls:
            table = table_of(call).split(".")[0]
            self.warnings.append(
                Diagnostic(
                    "W0506",
                    f"older weights may have sampled `{table}`, and nothing in this loss is weighted against them",
                    call.span,
                    f"weight by `min(exp(prox - {table}.logprobs), 5.0)`, where `prox = {model}.logprobs({table})` "
                    "stands above `train`",
                )
            )
