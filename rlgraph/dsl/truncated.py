"""Warnings about losses whose ratios take rows for samples of the whole distribution that are those of a part of it.

What is known of each value is worked out bottom up, from what it is computed of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rlgraph.errors import Diagnostic, Related, Span
from rlgraph.ir.graph import Apply, Expr, Graph, Node, Phase, Ref
from rlgraph.ir.types import Handle, Type
from rlgraph.ops import NODES, attr, chosen_from, model_of, table_of

CUTS: Mapping[str, float] = {"top_p": 1.0, "top_k": 0, "min_tokens": 0}
"""Options of a sampler that leave tokens out, and with which value they leave out none."""


@dataclass(frozen=True, slots=True)
class _Known:
    """Of a value: by the name of the table that was sampled so."""

    table: str = ""
    """Of a table: the rows are of it."""
    logprobs: frozenset[str] = frozenset()
    """Log-probabilities that the model which sampled gives its tokens, or gave them."""
    gaps: frozenset[str] = frozenset()
    """Differences of two such."""
    ratios: frozenset[tuple[str, Span]] = frozenset()


_NOTHING = _Known()


def truncated(phase: Phase) -> list[Diagnostic]:
    """Warnings about a phase that trains on rows from truncated distributions."""
    if not any(NODES[node.op].generates and cut(node) for node in phase.graph.walk()):
        return []
    walk = _Walk(phase.graph.values())
    # What is pushed into a buffer at the end of a step is sampled from it at the beginning of the next.
    walk.graph(phase.graph)
    walk.warnings.clear()
    walk.graph(phase.graph)
    return walk.warnings


def cut(node: Node) -> str:
    """How a node that samples leaves tokens out: the options, as they are written; "" where it does not."""
    known = {attribute.name for attribute in NODES[node.op].attributes}
    found = [
        f"{name}={attr(node, name)}" for name, whole in CUTS.items() if name in known and attr(node, name) != whole
    ]
    return ", ".join([*found, *(["temperature=0"] if attr(node, "temperature") == 0 else [])])


@dataclass
class _Walk:
    types: Mapping[str, Type]
    samplers: dict[str, Node] = field(default_factory=dict)
    known: dict[str, _Known] = field(default_factory=dict)
    pushed: dict[Type, str] = field(default_factory=dict)
    """Into buffers."""
    warnings: list[Diagnostic] = field(default_factory=list)

    def graph(self, graph: Graph) -> None:
        for node in graph.nodes:
            self.node(node)

    def node(self, node: Node) -> None:
        op = NODES[node.op]
        for let in node.body:
            self.known[let.name] = self.expression(let.expr, {})
        for region in node.regions:
            self.graph(region)
        if op.trains:
            self.loss(node)
        if op.generates and cut(node):
            self.samplers[node.name] = node
            self.known[node.name] = _Known(node.name)
        elif op.chooses is not None and node.outputs:
            for source, value in zip(chosen_from(node), node.outputs, strict=True):
                self.known[value.name] = self.known.get(source, _NOTHING)
        elif op.scores or (op.selects and op.chooses is None):
            table = self.known.get(table_of(node), _NOTHING).table
            if table and (node.attr("name") == "logprobs" or (node.op == "logprobs" and self.sampled_by(node, table))):
                self.known[node.name] = _Known(logprobs=frozenset({table}))
        elif node.op == "push":
            table = self.known.get(table_of(node), _NOTHING).table
            if table:
                self.pushed[self.types[node.inputs[0]]] = table
        elif node.op == "sample":
            self.known[node.name] = _Known(self.pushed.get(self.types[node.inputs[0]], ""))
        for inner, value in node.exported if node.regions else ():
            self.known[value.name] = self.known.get(inner, _NOTHING)

    def sampled_by(self, node: Node, table: str) -> bool:
        own, sampler = (self.types[model_of(each)] for each in (node, self.samplers[table]))
        return isinstance(own, Handle) and isinstance(sampler, Handle) and own.name == sampler.name

    def expression(self, expr: Expr, seen: dict[int, _Known]) -> _Known:
        if isinstance(expr, Ref):
            return self.known.get(expr.name, _NOTHING)
        if not isinstance(expr, Apply) or expr.type.dtype == "bool":
            # A mask says where, and weights nothing.
            return _NOTHING
        if id(expr) not in seen:
            seen[id(expr)] = self.applied(expr, [self.expression(arg, seen) for arg in expr.args])
        return seen[id(expr)]

    def applied(self, expr: Apply, args: list[_Known]) -> _Known:
        gaps = frozenset().union(*(each.gaps for each in args))
        logprobs = frozenset().union(*(each.logprobs for each in args))
        ratios = frozenset().union(*(each.ratios for each in args))
        if expr.op == "sub":
            gaps |= args[0].logprobs & args[1].logprobs
            logprobs -= gaps
        if expr.op in ("exp", "expm1"):
            return _Known(ratios=ratios | {(table, expr.span) for table in gaps})
        return _Known("", logprobs, gaps, ratios)

    def loss(self, node: Node) -> None:
        for table, spans in _by_table(self.known.get(node.region.outputs[0], _NOTHING).ratios):
            sampler = self.samplers[table]
            options = cut(sampler)
            self.warnings.append(
                Diagnostic(
                    "W0510",
                    f"`{table}` is sampled from a part of the distribution (`{options}`), and a loss takes ratios of "
                    "log-probabilities, which are of all of it",
                    sampler.span,
                    f"leave `{options}` out here; rows that are only evaluated may be sampled so",
                    tuple(Related(span, "this ratio") for span in spans[:1]),
                )
            )


def _by_table(ratios: Iterable[tuple[str, Span]]) -> list[tuple[str, list[Span]]]:
    """Of each table its ratios, in the order of the text."""
    found: dict[str, list[Span]] = {}
    for table, span in sorted(ratios, key=lambda ratio: (ratio[1].line, ratio[1].column)):
        found.setdefault(table, []).append(span)
    return list(found.items())
