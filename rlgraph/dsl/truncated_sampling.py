"""Warns about losses with ratios that take rows from a truncated distribution for samples of the whole one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rlgraph.dsl.facts import FactWalk
from rlgraph.errors import Diagnostic, Related, Span
from rlgraph.ir.graph import Apply, Node, Phase
from rlgraph.ir.types import StateHandle, Table, Type
from rlgraph.ops import NODES, attribute_value, inputs_chosen_from, model_of, table_of

CUTS: Mapping[str, float] = {"top_p": 1.0, "top_k": 0, "min_tokens": 0}
"""Options of a sampler that leave tokens out, with the value at which they leave out none."""


@dataclass(frozen=True, slots=True)
class _Facts:
    """What is known of a value, by the name of the table that was sampled from a truncated distribution."""

    table: str = ""
    """The table that the rows of a table come from."""
    logprobs: frozenset[str] = frozenset()
    """Log-probabilities that the model which sampled gives its tokens, or gave them."""
    gaps: frozenset[str] = frozenset()
    """Differences of two such log-probabilities."""
    ratios: frozenset[tuple[str, Span]] = frozenset()


def truncated_sampling_warnings(phase: Phase) -> list[Diagnostic]:
    """Return warnings about a phase that trains on rows from truncated distributions."""
    if not any(NODES[node.op].generates and truncating_options(node) for node in phase.graph.walk()):
        return []
    walk = _RatioWalk(phase)
    # A second walk: rows pushed into a buffer at the end of a step are sampled at the beginning of the next.
    walk.walk_graph(phase.graph)
    walk.warnings.clear()
    walk.walk_graph(phase.graph)
    return walk.warnings


def truncating_options(node: Node) -> str:
    """Return the options by which a node that samples leaves tokens out, as they are written; "" if none does."""
    names = {attribute.name for attribute in NODES[node.op].attributes}
    cuts = [
        f"{name}={attribute_value(node, name)}"
        for name, neutral in CUTS.items()
        if name in names and attribute_value(node, name) != neutral
    ]
    return ", ".join([*cuts, *(["temperature=0"] if attribute_value(node, "temperature") == 0 else [])])


class _RatioWalk(FactWalk[_Facts]):
    """Walks a phase and tracks what is known of each value."""

    def __init__(self, phase: Phase) -> None:
        super().__init__(phase.graph.value_types(), _Facts())
        self.samplers: dict[str, Node] = {}
        self.pushed: dict[Type, str] = {}
        """The table whose rows are in each buffer."""

    def note_outputs(self, node: Node) -> None:
        op = NODES[node.op]
        if op.generates and truncating_options(node):
            self.samplers[node.name] = node
            self.facts[node.name] = _Facts(node.name)
        elif op.chooses is not None and node.outputs:
            for source, value in zip(inputs_chosen_from(node), node.outputs, strict=True):
                self.facts[value.name] = self.known_facts(source)
        elif op.scores or (op.selects and op.chooses is None):
            table = self.known_facts(table_of(node)).table
            if table and (
                node.attr("name") == "logprobs" or (node.op == "logprobs" and self.model_sampled_table(node, table))
            ):
                self.facts[node.name] = _Facts(logprobs=frozenset({table}))
        elif table_of(node) and any(isinstance(value.type, Table) for value in node.outputs):
            # Pieces of rows are the tokens that they were.
            self.facts[node.name] = _Facts(self.known_facts(table_of(node)).table)
        elif node.op == "push":
            table = self.known_facts(table_of(node)).table
            if table:
                self.pushed[self.types[node.inputs[0]]] = table
        elif node.op == "sample":
            self.facts[node.name] = _Facts(self.pushed.get(self.types[node.inputs[0]], ""))

    def model_sampled_table(self, node: Node, table: str) -> bool:
        model, sampler = (self.types[model_of(reader)] for reader in (node, self.samplers[table]))
        return isinstance(model, StateHandle) and isinstance(sampler, StateHandle) and model.name == sampler.name

    def facts_of_apply(self, expr: Apply, args: list[_Facts]) -> _Facts:
        if expr.type.dtype == "bool":
            # A mask selects entries, and weights nothing.
            return self.nothing
        gaps = frozenset().union(*(arg.gaps for arg in args))
        logprobs = frozenset().union(*(arg.logprobs for arg in args))
        ratios = frozenset().union(*(arg.ratios for arg in args))
        if expr.op == "sub":
            gaps |= args[0].logprobs & args[1].logprobs
            logprobs -= gaps
        if expr.op in ("exp", "expm1"):
            return _Facts(ratios=ratios | {(table, expr.span) for table in gaps})
        return _Facts("", logprobs, gaps, ratios)

    def check_loss(self, node: Node) -> None:
        for table, spans in _by_table(self.known_facts(node.region.outputs[0]).ratios):
            sampler = self.samplers[table]
            options = truncating_options(sampler)
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
    """Return the ratios of each table, in the order of the text."""
    spans_by_table: dict[str, list[Span]] = {}
    for table, span in sorted(ratios, key=lambda ratio: (ratio[1].line, ratio[1].column)):
        spans_by_table.setdefault(table, []).append(span)
    return list(spans_by_table.items())
