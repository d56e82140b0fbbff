"""Warns about rows that older weights may have sampled: losses that do not correct for it, weights without a cap, and
losses that take the sampler's log-probabilities for those of some weights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rlgraph.dsl.facts import FactWalk
from rlgraph.errors import Diagnostic, Span
from rlgraph.ir.graph import Apply, Node, Phase
from rlgraph.ir.step_edges import staleness_bound
from rlgraph.ir.types import is_model
from rlgraph.ops import NODES, inputs_chosen_from, model_of, table_of

_CAPS = ("clip", "minimum", "sigmoid", "tanh")
"""The operations that bound a weight."""


@dataclass(frozen=True, slots=True)
class _Facts:
    """What is known of a value."""

    sampled: str = ""
    """The model that sampled a table, with weights that may be older."""
    sampler: bool = False
    """Whether it is computed from log-probabilities of the policy that sampled such rows."""
    current: bool = False
    """Whether it is computed from log-probabilities of the same model for such rows, with the present weights."""
    capped: bool = False
    uncapped: frozenset[Span] = frozenset()
    """Importance weights without a cap."""
    unweighted: frozenset[Span] = frozenset()
    """The places of the sampler's log-probabilities that are in no importance weight."""


def _merged(parts: Iterable[_Facts]) -> _Facts:
    """Return what is known of a value that is computed from all of these."""
    facts = list(parts)
    return _Facts(
        "",
        any(part.sampler for part in facts),
        any(part.current for part in facts),
        any(part.capped for part in facts),
        frozenset().union(*(part.uncapped for part in facts)),
        frozenset().union(*(part.unweighted for part in facts)),
    )


def off_policy_warnings(phase: Phase) -> list[Diagnostic]:
    """Return warnings about a phase that samples with older weights."""
    if not phase.staleness.steps:
        return []
    walk = _LossWalk(phase)
    return [warning for warning in walk.warnings if warning.code != "W0507" or warning.span not in walk.masked]


def unweighted_logprob_reads(phase: Phase, model: str) -> list[Span]:
    """Return where a phase reads log-probabilities of a model that sampled and a loss does more with them than weight
    the trainer's: it takes them for a function of weights and tokens."""
    walk = _LossWalk(phase)
    spans = {span for sampling_model, span in walk.unweighted if sampling_model == model}
    return sorted(spans, key=lambda span: (span.line, span.column))


class _LossWalk(FactWalk[_Facts]):
    """Walks a phase and tracks what is known of each value."""

    def __init__(self, phase: Phase) -> None:
        super().__init__(phase.graph.value_types(), _Facts())
        self.exact = phase.staleness.exact
        """Whether the age of the weights is exact: `lag` asks for the weights of then."""
        self.masked: set[Span] = set()
        """Weights that are compared with something: a mask is a cap, too."""
        self.unweighted: list[tuple[str, Span]] = []
        """The model that sampled and the place where its log-probabilities are read that a loss uses in no weight."""
        self.reads: dict[Span, str] = {}
        """The model whose log-probabilities are read at each place."""
        self.walk_graph(phase.graph)

    def note_outputs(self, node: Node) -> None:
        op, inputs = NODES[node.op], [self.known_facts(name) for name in node.inputs]
        if op.generates:
            self.facts[node.name] = _Facts(self.model_name(node) if staleness_bound(node) else "")
        elif op.nests:
            self.facts[node.name] = inputs[0]
        elif op.chooses is not None and op.unit == "row":
            for source, value in zip(inputs_chosen_from(node), node.outputs, strict=True):
                self.facts[value.name] = self.known_facts(source)
        elif op.is_column:
            sampler = bool(inputs[0].sampled) and node.attr("name") == "logprobs"
            if sampler:
                self.reads[node.span] = inputs[0].sampled
            self.facts[node.name] = _Facts(sampler=sampler, unweighted=frozenset({node.span} if sampler else ()))
        elif not node.body and not node.regions:
            current = node.op == "logprobs" and self.sampling_model(node) == self.model_name(node)
            for value in node.outputs:
                self.facts[value.name] = replace(
                    _merged(inputs), current=current or any(fact.current for fact in inputs)
                )

    def model_name(self, node: Node) -> str:
        kind = self.types[model_of(node)]
        return kind.name if is_model(kind) else ""

    def sampling_model(self, node: Node) -> str:
        """Return the model that sampled the rows which a node reads."""
        return self.known_facts(table_of(node)).sampled

    def facts_of_apply(self, expr: Apply, args: list[_Facts]) -> _Facts:
        facts = _merged(args)
        if expr.op == "sub" and len(args) == 2 and any(a.current and b.sampler for a, b in (args, args[::-1])):
            facts = replace(facts, unweighted=frozenset())
        if expr.type.dtype == "bool":
            self.masked |= facts.uncapped
            return replace(facts, uncapped=frozenset())
        if expr.op in _CAPS:
            return replace(facts, capped=True, uncapped=frozenset())
        if expr.op in ("exp", "expm1") and facts.sampler and facts.current and not facts.capped:
            return replace(facts, uncapped=frozenset({expr.span}))
        return facts

    def check_loss(self, node: Node) -> None:
        region, model = node.region, self.model_name(node)
        facts = self.known_facts(region.outputs[0])
        self.unweighted += [(self.reads[span], span) for span in facts.unweighted]
        for span in sorted(facts.uncapped, key=lambda span: (span.line, span.column)):
            self.warnings.append(
                Diagnostic(
                    "W0507",
                    "this importance weight has no cap: a few rows of older weights can outweigh all others",
                    span,
                    "cap it, as in `min(..., 5.0)`",
                )
            )
        if self.exact or facts.sampler:
            return
        calls = (inner for inner in region.nodes if inner.op == "logprobs" and self.sampling_model(inner) == model)
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
