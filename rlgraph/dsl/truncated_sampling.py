"""Warns about losses with ratios that take rows from a truncated distribution for samples of the whole one, or from a
distribution at one temperature for samples at another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rlgraph.dsl.facts import FactWalk
from rlgraph.errors import Diagnostic, Related, Span
from rlgraph.ir.graph import Apply, Node, Phase
from rlgraph.ir.types import SUPPORT, SUPPORT_SHARE, StateHandle, Table, Type
from rlgraph.ops import NODES, attribute_value, inputs_chosen_from, model_of, table_of
from rlgraph.ops.nodes import mixture_weights

CUTS: Mapping[str, float] = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "min_tokens": 0}
"""Options of a sampler that leave tokens out, with the value at which they leave out none."""
SHARE = "where(p1 > 0.0, p0, 0.0)"
"""The formula of the probability that a model gives to likeliest tokens, as `logprobs(rollout, within=...)` has it."""


@dataclass(frozen=True, slots=True)
class _Logprobs:
    """Log-probabilities that the model which sampled gives its tokens, or gave them."""

    table: str
    """The table that was sampled."""
    temperature: float
    span: Span
    """Where they are read."""
    within: str = ""
    """The likeliest tokens that they are among; "": they are among all."""


@dataclass(frozen=True, slots=True)
class _Facts:
    """What is known of a value."""

    table: str = ""
    """The sampled table that the rows of a table come from."""
    logprobs: frozenset[_Logprobs] = frozenset()
    gaps: frozenset[_Logprobs] = frozenset()
    """Those of whose tables it has a difference of two."""
    ratios: frozenset[tuple[_Logprobs, Span]] = frozenset()
    share: str = ""
    """The likeliest tokens that it is, or of which it is the probability."""
    log_share: str = ""
    """Those of whose probability it is the logarithm."""


def truncated_sampling_warnings(phase: Phase) -> list[Diagnostic]:
    """Return warnings about a phase that trains on rows from other distributions than its log-probabilities are of."""
    types = phase.graph.value_types()
    if not any(
        (NODES[node.op].generates and truncating_options(node))
        or node.op == "likeliest"
        or _reads_at_another_temperature(node, types)
        for node in phase.graph.walk()
    ):
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


def _cuts_of(node: Node) -> dict[str, float]:
    """Return which of the likeliest tokens a node keeps: one that samples, or one of `likeliest`."""
    return {name: attribute_value(node, name) for name in ("top_k", "top_p", "min_p")}


def _word(kept: str) -> str:
    """Return the name that the program gives to likeliest tokens."""
    return kept.removesuffix(".sum")


def _reads_at_another_temperature(node: Node, types: Mapping[str, Type]) -> bool:
    """Return whether a node reads sampled rows at another temperature than they were sampled at."""
    table = types[table_of(node)] if node.op == "logprobs" else None
    # At temperature 0 nothing is sampled, and log-probabilities are at 1.
    return (
        isinstance(table, Table)
        and table.sampled
        and attribute_value(node, "temperature") != (table.temperature or 1.0)
    )


class _RatioWalk(FactWalk[_Facts]):
    """Walks a phase and tracks what is known of each value."""

    def __init__(self, phase: Phase) -> None:
        super().__init__(phase.graph.value_types(), _Facts())
        self.samplers: dict[str, Node] = {}
        self.kept: dict[str, Node] = {}
        """The nodes that keep likeliest tokens."""
        self.pushed: dict[Type, str] = {}
        """The table whose rows are in each buffer."""

    def note_outputs(self, node: Node) -> None:
        op = NODES[node.op]
        if op.generates:
            self.samplers[node.name] = node
            self.facts[node.name] = _Facts(node.name)
        elif op.chooses is not None and node.outputs:
            for source, value in zip(inputs_chosen_from(node), node.outputs, strict=True):
                self.facts[value.name] = self.known_facts(source)
        elif node.op == "likeliest":
            self.kept[node.name] = node
            for value in node.outputs:
                self.facts[value.name] = _Facts(share=node.name)
        elif node.op == "distribution":
            if node.attr("formula") == SHARE:
                self.facts[node.name] = _Facts(share=self.known_facts(node.inputs[-1]).share)
        elif op.selects and node.attr("name") in (SUPPORT, SUPPORT_SHARE):
            # Every reading of them is of the same tokens.
            table = self.known_facts(table_of(node)).table
            self.facts[node.name] = _Facts(share=f"{table}.{SUPPORT}" if table else "")
        elif op.scores or op.is_column:
            table = self.known_facts(table_of(node)).table
            if table and (
                node.attr("name") == "logprobs" or (node.op == "logprobs" and self.model_sampled_table(node, table))
            ):
                name = table_of(node)
                kind = self.types[name]
                assert isinstance(kind, Table)
                asked = attribute_value(node, "temperature") if node.op == "logprobs" else kind.temperature or 1.0
                self.facts[node.name] = _Facts(logprobs=frozenset({_Logprobs(table, asked, node.span)}))
        elif table_of(node) and any(isinstance(value.type, Table) for value in node.outputs):
            # Pieces of rows are the tokens that they were.
            self.facts[node.name] = _Facts(self.known_facts(table_of(node)).table)
        elif node.op == "push":
            table = self.known_facts(table_of(node)).table
            if table:
                self.pushed[self.types[node.inputs[0]]] = table
        elif node.op in ("sample", "recall"):
            self.facts[node.name] = _Facts(self.pushed.get(self.types[node.inputs[0]], ""))

    def model_sampled_table(self, node: Node, table: str) -> bool:
        model, sampler = (self.types[model_of(reader)] for reader in (node, self.samplers[table]))
        same = isinstance(model, StateHandle) and isinstance(sampler, StateHandle) and model.name == sampler.name
        return same and not mixture_weights(self.samplers[table])

    def facts_of_apply(self, expr: Apply, args: list[_Facts]) -> _Facts:
        if expr.type.dtype == "bool":
            # A mask selects entries, and weights nothing.
            return self.nothing
        if expr.op == "log":
            return _Facts(log_share=args[0].share)
        if expr.op == "sub" and args[0].logprobs and (within := args[1].log_share):
            return replace(args[0], logprobs=frozenset(replace(read, within=within) for read in args[0].logprobs))
        gaps = frozenset().union(*(arg.gaps for arg in args))
        logprobs = frozenset().union(*(arg.logprobs for arg in args))
        ratios = frozenset().union(*(arg.ratios for arg in args))
        if expr.op == "sub":
            left, right = ({read.table for read in arg.logprobs} for arg in args)
            both = {read for read in logprobs if read.table in left & right}
            gaps |= both
            logprobs -= both
        if expr.op in ("exp", "expm1"):
            return _Facts(ratios=ratios | {(read, expr.span) for read in gaps})
        return _Facts("", logprobs, gaps, ratios)

    def check_loss(self, node: Node) -> None:
        ratios = self.known_facts(node.region.outputs[0]).ratios
        in_order = sorted(ratios, key=lambda ratio: (ratio[1].line, ratio[1].column, ratio[0].span.line))
        spans: dict[str, Span] = {}
        others: dict[tuple[str, float], tuple[_Logprobs, Span]] = {}
        kinds: dict[tuple[str, Span], list[_Logprobs]] = {}
        for read, span in in_order:
            kinds.setdefault((read.table, span), []).append(read)
            if read.temperature != self.sampling_temperature(read.table):
                others.setdefault((read.table, read.temperature), (read, span))
        for (table, span), reads in kinds.items():
            if len({read.within for read in reads}) > 1:
                self.warnings.append(self.two_kinds_warning(table, reads, span))
            elif not reads[0].within:
                if truncating_options(self.samplers[table]):
                    spans.setdefault(table, span)
            elif reads[0].within == f"{table}.{SUPPORT}":
                continue
            elif why := self.other_tokens(table, self.kept[reads[0].within]):
                self.warnings.append(self.other_tokens_warning(table, reads[0], span, why))
        self.warnings += [self.truncation_warning(table, span) for table, span in spans.items()]
        self.warnings += [self.temperature_warning(read, span) for read, span in others.values()]

    def sampling_temperature(self, table: str) -> float:
        """Return the temperature of the distribution that a table was sampled from, or would have been at 0."""
        return float(attribute_value(self.samplers[table], "temperature") or 1.0)

    def truncation_warning(self, table: str, ratio: Span) -> Diagnostic:
        """Return the warning about a ratio of rows that were sampled from a part of the distribution."""
        sampler = self.samplers[table]
        options = truncating_options(sampler)
        return Diagnostic(
            "W0510",
            f"`{table}` is sampled from a part of the distribution (`{options}`), and a loss takes ratios of "
            "log-probabilities, which are of all of it",
            sampler.span,
            self.truncation_hint(sampler, options),
            (Related(ratio, "this ratio"),),
        )

    def truncation_hint(self, sampler: Node, options: str) -> str:
        """Return what to write where a ratio of rows that were sampled from a part of the distribution is wanted."""
        model, cuts = self.types[sampler.inputs[0]], _cuts_of(sampler)
        kept = ", ".join(f"{name}={value}" for name, value in cuts.items() if value != CUTS[name])
        if not kept or attribute_value(sampler, "temperature") == 0:
            return f"leave `{options}` out here; rows that are only evaluated may be sampled so"
        both = "take both sides among them: `logprobs(..., within="
        if NODES[sampler.op].streams:
            word = "" if attribute_value(sampler, "support") == "keep" else ", `support=keep`"
            return f"keep the tokens that it chose from{word}, and {both}{sampler.name}.{SUPPORT})`"
        if isinstance(model, StateHandle):
            seen = f"`seen = {model.name}.likeliest({sampler.name}, {kept})` above the training"
            return f"keep the tokens that it chose from, {seen}, and {both}seen)`"
        return f"leave `{options}` out here; rows that are only evaluated may be sampled so"

    def two_kinds_warning(self, table: str, reads: list[_Logprobs], ratio: Span) -> Diagnostic:
        """Return the warning about a ratio of log-probabilities that are not among the same tokens."""
        whole = min(reads, key=lambda read: read.within)
        part = max(reads, key=lambda read: read.within)
        first = "of the whole distribution" if not whole.within else f"among the tokens of `{_word(whole.within)}`"
        word = _word(part.within)
        return Diagnostic(
            "W0514",
            f"this ratio of `{table}` is of two kinds of log-probabilities: one is among the tokens of `{word}`, and "
            f"one {first}",
            ratio,
            f"write `within={word}` on both sides",
            (Related(part.span, "among some tokens"), Related(whole.span, "the other one")),
        )

    def other_tokens(self, table: str, kept: Node) -> str:
        """Return why tokens that were kept are not those from which a table was sampled; "" where they are."""
        sampler = self.samplers[table]
        if attribute_value(sampler, "min_tokens"):
            return "`min_tokens` leaves out the tokens that end an answer, too"
        if attribute_value(sampler, "temperature") == 0:
            return "at temperature 0 nothing is sampled"
        if kept.inputs[0] != sampler.inputs[0] or sampler.attr("lag") or sampler.attr("staleness"):
            return "they are the likeliest ones by other weights than those that sampled"
        if attribute_value(kept, "temperature") != self.sampling_temperature(table):
            return "they are the likeliest ones at another temperature"
        if _cuts_of(kept) != _cuts_of(sampler):
            wanted = ", ".join(f"{name}={value}" for name, value in _cuts_of(sampler).items())
            return f"the rows are sampled with {wanted}"
        return ""

    def other_tokens_warning(self, table: str, read: _Logprobs, ratio: Span, why: str) -> Diagnostic:
        """Return the warning about a ratio among other tokens than those that the sampler kept."""
        kept = self.kept[read.within]
        return Diagnostic(
            "W0514",
            f"the tokens of `{_word(kept.name)}` are not those that `{table}` was sampled from: {why}",
            kept.span,
            self.other_tokens_hint(table),
            (Related(ratio, "this ratio"), Related(self.samplers[table].span, "the rows")),
        )

    def other_tokens_hint(self, table: str) -> str:
        """Return what to write for the tokens from which a table was sampled."""
        sampler = self.samplers[table]
        if NODES[sampler.op].streams and attribute_value(sampler, "temperature") != 0:
            return f"`support=keep` where it is sampled keeps them, whatever the weights are now: `{table}.{SUPPORT}`"
        return "keep them as they were sampled: the same model before it is trained, `top_k`, `top_p` and `min_p`"

    def temperature_warning(self, read: _Logprobs, ratio: Span) -> Diagnostic:
        """Return the warning about a ratio with log-probabilities at another temperature than that of the rows."""
        sampler = self.samplers[read.table]
        return Diagnostic(
            "W0513",
            f"`{read.table}` is sampled at temperature {self.sampling_temperature(read.table):g}, and a loss takes a "
            f"ratio with its log-probabilities at {read.temperature:g}",
            read.span,
            f"leave `temperature={read.temperature:g}` out: they are at that of the rows then",
            (Related(ratio, "this ratio"), Related(sampler.span, "the rows")),
        )
