"""Warns about losses: ratios of policies that are not bounded, terms that train nothing.

Everything is derived bottom up, value by value, so that a program of any length takes one walk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rlgraph.errors import Diagnostic, Span
from rlgraph.ir.graph import Apply, Const, Expr, Graph, Node, Phase, Ref
from rlgraph.ir.step_edges import staleness_bound
from rlgraph.ir.types import StateHandle, Type
from rlgraph.ops import NODES, TENSOR


def loss_warnings(phase: Phase) -> list[Diagnostic]:
    """Return warnings about what the models of a phase are trained on."""
    return _Losses(phase).warnings


@dataclass(frozen=True, slots=True)
class _Ratio:
    """The ratio `exp(model.logprobs(table) - table.logprobs)`: an importance weight against the policy that sampled."""

    table: str
    live: bool
    """Whether a gradient flows through it."""
    span: Span = field(compare=False)
    above: bool = False
    """Whether it is bounded from above."""
    below: bool = False
    """Whether it is bounded from below, by more than 0."""


@dataclass(frozen=True, slots=True)
class _Slope:
    """How a value depends on the log-probabilities that the trained model gives its own samples."""

    kind: str
    """`none`, `constant` (linear, every token with the same factor) or `varies`."""
    constant: tuple[Span, ...] = ()
    """Terms of the value whose slope is constant."""


_NONE, _VARIES = _Slope("none"), _Slope("varies")
_THROUGH = ("mean", "sum", "clip", "detach", "float")
"""The operations through which a log-probability may go inside a ratio."""


class _Losses:
    """Walks a phase and tracks what is known of each value."""

    def __init__(self, phase: Phase) -> None:
        self.types: Mapping[str, Type] = phase.graph.value_types()
        self.model = ""
        """The model that is being trained."""
        self.generated: dict[str, Node] = {}
        """The node of each table that comes straight from a model, with no row dropped."""
        self.sampler: dict[str, str] = {}
        """The table of each value that is a column `logprobs`."""
        self.forward: dict[str, tuple[str, str]] = {}
        """The model and the table of each value that is log-probabilities."""
        self.leaves: dict[str, tuple[str, bool]] = {}
        """The log-probability in each value that is one, reduced or clipped, and whether it is detached."""
        self.differences: dict[str, tuple[str, str, bool]] = {}
        """The two log-probabilities in each value that is their difference, and whether the first is detached."""
        self.ratios: dict[str, frozenset[_Ratio]] = {}
        self.live: set[str] = set()
        self.slopes: dict[str, _Slope] = {}
        self.exponential: set[str] = set()
        """Values with an exponential of the trained model's log-probabilities that is no ratio of two policies."""
        self.warnings: list[Diagnostic] = []
        self.walk_graph(phase.graph)

    def walk_graph(self, graph: Graph) -> None:
        for node in graph.nodes:
            if node.body:
                for let in node.body:
                    self.track_let(let.name, let.expr)
            elif NODES[node.op].trains:
                self.check_train_node(node)
            else:
                self.note_plain_node(node)
                for region in node.regions:
                    self.walk_graph(region)

    def note_plain_node(self, node: Node) -> None:
        output = node.outputs[0].name if node.outputs else ""
        if NODES[node.op].generates:
            self.generated[output] = node
        elif NODES[node.op].nests and node.inputs[0] in self.generated:
            self.generated[output] = self.generated[node.inputs[0]]
        elif node.op == "column" and node.attr("name") == "logprobs":
            self.sampler[output] = node.inputs[0]
            self.leaves[output] = (output, False)
        elif node.op == "logprobs":
            self.forward[output] = (self.model_name(node), node.inputs[1])
            self.leaves[output] = (output, False)

    def model_name(self, node: Node) -> str:
        kind = self.types[node.inputs[0]]
        return kind.name if isinstance(kind, StateHandle) else ""

    def check_train_node(self, node: Node) -> None:
        self.model, self.live, self.slopes = self.model_name(node), set(), {}
        region = node.region
        for inner in region.nodes:
            if inner.body:
                for let in inner.body:
                    self.track_let(let.name, let.expr)
                continue
            self.note_plain_node(inner)
            if isinstance(self.types.get(inner.inputs[0]), StateHandle) and self.model_name(inner) == self.model:
                self.live.update(value.name for value in inner.outputs)
        self.warn_clipped_ratios(self.ratios.get(region.outputs[0], frozenset()))
        for span in self.slopes.get(region.outputs[0], _NONE).constant:
            self.warnings.append(
                Diagnostic(
                    "W0501",
                    "this term trains nothing: it is linear in the log-probabilities of the model's own samples, so "
                    "its gradient is 0 on average",
                    span,
                    "in a loss use `k2` or `k3`; `k1` belongs into the reward",
                )
            )
        self.model = ""

    # One value

    def track_let(self, name: str, expr: Expr) -> None:
        leaf = self.logprob_in(expr)
        if leaf:
            self.leaves[name] = leaf
        difference = self.logprob_difference(expr)
        if difference:
            self.differences[name] = difference
        self.ratios[name] = self.ratios_in(expr)
        if self.model:
            if self.has_gradient(expr):
                self.live.add(name)
            self.slopes[name] = self.slope_of(expr)
            if self.has_exponential(expr):
                self.exponential.add(name)

    def has_gradient(self, expr: Expr) -> bool:
        if isinstance(expr, Ref):
            return expr.name in self.live
        return isinstance(expr, Apply) and TENSOR[expr.op].gradient and any(map(self.has_gradient, expr.args))

    def has_exponential(self, expr: Expr) -> bool:
        if isinstance(expr, Ref):
            return expr.name in self.exponential
        if not isinstance(expr, Apply) or not self.has_gradient(expr):
            return False
        if expr.op in ("exp", "expm1"):
            first, second, _ = self.logprob_difference(expr.args[0]) or ("", "", False)
            return not first or self.policy_of_value(first) != self.policy_of_value(second)
        return any(map(self.has_exponential, expr.args))

    def policy_of_value(self, leaf: str) -> str:
        """Return the model whose log-probabilities a value holds."""
        table = self.sampler.get(leaf)
        if table in self.generated:
            return self.model_name(self.generated[table])
        return self.forward.get(leaf, ("",))[0]

    def logprob_in(self, expr: Expr) -> tuple[str, bool] | None:
        """Return the one log-probability in a value, and whether it is detached."""
        if isinstance(expr, Ref):
            return self.leaves.get(expr.name)
        if isinstance(expr, Apply) and expr.op in _THROUGH:
            leaf = self.logprob_in(expr.args[0])
            return (leaf[0], leaf[1] or expr.op == "detach") if leaf else None
        return None

    def logprob_difference(self, expr: Expr) -> tuple[str, str, bool] | None:
        """Return the two log-probabilities whose difference a value is, and whether the first is detached."""
        if isinstance(expr, Ref):
            return self.differences.get(expr.name)
        if not isinstance(expr, Apply):
            return None
        if expr.op == "sub":
            first, second = self.logprob_in(expr.args[0]), self.logprob_in(expr.args[1])
            return (first[0], second[0], first[1]) if first and second else None
        if expr.op in _THROUGH:
            inner = self.logprob_difference(expr.args[0])
            return (*inner[:2], inner[2] or expr.op == "detach") if inner else None
        return None

    def ratios_in(self, expr: Expr) -> frozenset[_Ratio]:
        """Return the importance weights in a value."""
        if isinstance(expr, Ref):
            return self.ratios.get(expr.name, frozenset())
        if not isinstance(expr, Apply) or expr.type.dtype == "bool":
            # A mask selects entries, and weights nothing.
            return frozenset()
        ratio = self.importance_ratio(expr)
        if ratio:
            return frozenset({ratio})
        inner = [self.ratios_in(arg) for arg in expr.args[TENSOR[expr.op].conditions :]]
        ratios = frozenset().union(*inner)
        if expr.op == "detach":
            return frozenset(replace(r, live=False) for r in ratios)
        if self.model and expr.op == "mul":
            self.warn_weighted_twice(expr, *inner)
        above, below = _bounds(expr)
        return frozenset(replace(r, above=r.above or above, below=r.below or below) for r in ratios)

    def importance_ratio(self, expr: Apply) -> _Ratio | None:
        difference = self.logprob_difference(expr.args[0]) if expr.op == "exp" else None
        if difference is None:
            return None
        first, second, detached = difference
        model, table = self.forward.get(first, ("", ""))
        if self.sampler.get(second) != table or not self.has_sampled(model, table):
            return None
        return _Ratio(table, first in self.live and not detached, expr.span)

    def has_sampled(self, model: str, table: str) -> bool:
        return table in self.generated and self.model_name(self.generated[table]) == model

    def warn_weighted_twice(self, expr: Apply, left: frozenset[_Ratio], right: frozenset[_Ratio]) -> None:
        """Warn of a product whose factors are both weighted against the policy that sampled."""
        for first in left:
            for second in right:
                if first.table == second.table and (first.live or second.live):
                    self.warnings.append(
                        Diagnostic(
                            "W0503",
                            f"both factors are weighted against the policy that sampled `{first.table}`: the "
                            "correction is applied twice",
                            expr.span,
                            f"take the ratio against the policy before this update, `actor.logprobs({first.table})` "
                            "above `train`, or leave the weight out",
                        )
                    )
                    return

    def warn_clipped_ratios(self, ratios: frozenset[_Ratio]) -> None:
        """Warn of the ratios in a loss that are kept in a band, as PPO does to stay near the policy of the step.

        A weight without a gradient, or one that is only truncated from above, is importance sampling: that is right
        against the policy that sampled.
        """
        for ratio in sorted(ratios, key=lambda r: (r.span.line, r.span.column)):
            if ratio.live and ratio.above and ratio.below and staleness_bound(self.generated[ratio.table]):
                self.warnings.append(
                    Diagnostic(
                        "W0502",
                        f"`{ratio.table}` may be sampled by an older policy, and this ratio is clipped as if it were "
                        "the last one",
                        ratio.span,
                        f"clip against `prox = {self.model}.logprobs({ratio.table})` from above `train`, and weight by "
                        f"`exp(prox - {ratio.table}.logprobs)`",
                    )
                )

    def slope_of(self, expr: Expr) -> _Slope:
        """Return how a value depends on the trained model."""
        if not self.has_gradient(expr):
            return _NONE
        if isinstance(expr, Ref):
            if expr.name not in self.forward:
                return self.slopes.get(expr.name, _VARIES)
            model, table = self.forward[expr.name]
            of_own_samples = self.has_sampled(model, table) and self.generated[table].attr("temperature") != 0
            return _Slope("constant", (expr.span,)) if of_own_samples else _VARIES
        assert isinstance(expr, Apply)
        op = TENSOR[expr.op]
        if op.linear is None:
            return _VARIES
        if op.linear != "all":
            return self.product_slope(expr)
        return (
            self.sum_slope(expr.args, expr.span)
            if op.args > 1
            else self.scaled_slope(self.slope_of(expr.args[0]), expr.span)
        )

    def product_slope(self, expr: Apply) -> _Slope:
        first, second = expr.args
        if TENSOR[expr.op].linear == "each" and self.has_gradient(second):
            first, second = second, first
        if self.has_gradient(second) or second.type.axis is not None:
            return _VARIES
        return self.scaled_slope(self.slope_of(first), expr.span)

    def scaled_slope(self, slope: _Slope, span: Span) -> _Slope:
        return _Slope("constant", (span,)) if slope.kind == "constant" else slope

    def sum_slope(self, args: Sequence[Expr], span: Span) -> _Slope:
        slopes = [self.slope_of(arg) for arg in args]
        if all(slope.kind != "varies" for slope in slopes):
            return _Slope("constant", (span,))
        # The linear part of an estimator such as k3 is there for its value.
        if any(self.has_exponential(arg) for arg in args):
            return _VARIES
        terms = dict.fromkeys(term for slope in slopes for term in slope.constant)
        return _Slope("varies", tuple(terms)[:8])


def _bounds(expr: Apply) -> tuple[bool, bool]:
    """Return whether an operation bounds a value from above, and from below by more than 0.

    Against a number `minimum` and `maximum` bound one side. Against a value with rows, as an objective is, they bound
    each row on the side that its advantage says.
    """
    if expr.op == "clip":
        return True, _may_be_positive(expr.args[1])
    if expr.op in ("minimum", "maximum"):
        if all(arg.type.axis is not None for arg in expr.args):
            return True, True
        return expr.op == "minimum", expr.op == "maximum" and all(map(_may_be_positive, expr.args))
    return False, False


def _may_be_positive(expr: Expr) -> bool:
    return not isinstance(expr, Const) or isinstance(expr.value, str) or expr.value > 0
