"""Warnings about losses: ratios of policies that are not held, terms that train nothing.

Everything is worked out bottom up, value by value, so that a program of any length takes one walk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rlgraph.errors import Diagnostic, Span
from rlgraph.ir.graph import Apply, Const, Expr, Graph, Node, Phase, Ref
from rlgraph.ir.steps import bound
from rlgraph.ir.types import Handle, Type
from rlgraph.ops import NODES, TENSOR


def losses(phase: Phase) -> list[Diagnostic]:
    """Warnings about what the models of a phase are trained on."""
    return _Losses(phase).warnings


@dataclass(frozen=True, slots=True)
class _Ratio:
    """`exp(model.logprobs(table) - table.logprobs)`: an importance weight against the policy that sampled."""

    table: str
    live: bool
    """A gradient goes through it."""
    span: Span = field(compare=False)
    above: bool = False
    """It is held from above."""
    below: bool = False
    """It is held from below, above 0."""


@dataclass(frozen=True, slots=True)
class _Slope:
    """How a value depends on the trained model's log-probabilities of its own samples."""

    kind: str
    """`none`, `constant` (linear, every token with the same factor) or `varies`."""
    constant: tuple[Span, ...] = ()
    """Terms of it whose slope is constant."""


_NONE, _VARIES = _Slope("none"), _Slope("varies")
_THROUGH = ("mean", "sum", "clip", "detach", "float")
"""What a log-probability may go through inside a ratio."""


class _Losses:
    """Walks a phase with what is known of each value so far."""

    def __init__(self, phase: Phase) -> None:
        self.types: Mapping[str, Type] = phase.graph.values()
        self.model = ""
        """That is being trained."""
        self.generated: dict[str, Node] = {}
        """Tables straight from a model, nothing dropped."""
        self.sampler: dict[str, str] = {}
        """Of values that are a table's column `logprobs`: the table."""
        self.forward: dict[str, tuple[str, str]] = {}
        """Of values that are log-probabilities: the model and the table."""
        self.leaf: dict[str, tuple[str, bool]] = {}
        """Of values that are one log-probability, reduced or clipped: which, and whether it is detached."""
        self.minus: dict[str, tuple[str, str, bool]] = {}
        """Of values that are a difference of two such: which, and whether the first is detached."""
        self.ratios: dict[str, frozenset[_Ratio]] = {}
        self.live: set[str] = set()
        self.slopes: dict[str, _Slope] = {}
        self.bent: set[str] = set()
        """Values with an exponential of the trained model's log-probabilities that is no ratio of two policies."""
        self.warnings: list[Diagnostic] = []
        self.graph(phase.graph)

    def graph(self, graph: Graph) -> None:
        for node in graph.nodes:
            if node.body:
                for let in node.body:
                    self.let(let.name, let.expr)
            elif NODES[node.op].trains:
                self.train(node)
            else:
                self.other(node)
                for region in node.regions:
                    self.graph(region)

    def other(self, node: Node) -> None:
        made = node.outputs[0].name if node.outputs else ""
        if NODES[node.op].generates:
            self.generated[made] = node
        elif node.op == "column" and node.attr("name") == "logprobs":
            self.sampler[made] = node.inputs[0]
            self.leaf[made] = (made, False)
        elif node.op == "logprobs":
            self.forward[made] = (self.handle(node), node.inputs[1])
            self.leaf[made] = (made, False)

    def handle(self, node: Node) -> str:
        kind = self.types[node.inputs[0]]
        return kind.name if isinstance(kind, Handle) else ""

    def train(self, node: Node) -> None:
        self.model, self.live, self.slopes = self.handle(node), set(), {}
        region = node.region
        for inner in region.nodes:
            if inner.body:
                for let in inner.body:
                    self.let(let.name, let.expr)
                continue
            self.other(inner)
            if isinstance(self.types.get(inner.inputs[0]), Handle) and self.handle(inner) == self.model:
                self.live.add(inner.outputs[0].name)
        self.stale(self.ratios.get(region.outputs[0], frozenset()))
        for span in self.slopes.get(region.outputs[0], _NONE).constant:
            self.warnings.append(
                Diagnostic(
                    "W0501",
                    "this term trains nothing: it is linear in the log-probabilities of the model's own samples, so "
                    "its "
                    "gradient is 0 on average",
                    span,
                    "in a loss use `k2` or `k3`; `k1` belongs into the reward",
                )
            )
        self.model = ""

    # One value

    def let(self, name: str, expr: Expr) -> None:
        found = self.leaf_of(expr)
        if found:
            self.leaf[name] = found
        difference = self.difference(expr)
        if difference:
            self.minus[name] = difference
        self.ratios[name] = self.ratios_in(expr)
        if self.model:
            if self.is_live(expr):
                self.live.add(name)
            self.slopes[name] = self.slope(expr)
            if self.is_bent(expr):
                self.bent.add(name)

    def is_live(self, expr: Expr) -> bool:
        if isinstance(expr, Ref):
            return expr.name in self.live
        return isinstance(expr, Apply) and TENSOR[expr.op].gradient and any(map(self.is_live, expr.args))

    def is_bent(self, expr: Expr) -> bool:
        if isinstance(expr, Ref):
            return expr.name in self.bent
        if not isinstance(expr, Apply) or not self.is_live(expr):
            return False
        if expr.op in ("exp", "expm1"):
            first, second, _ = self.difference(expr.args[0]) or ("", "", False)
            return not first or self.policy(first) != self.policy(second)
        return any(map(self.is_bent, expr.args))

    def policy(self, leaf: str) -> str:
        """The model whose log-probabilities a value holds."""
        table = self.sampler.get(leaf)
        if table in self.generated:
            return self.handle(self.generated[table])
        return self.forward.get(leaf, ("",))[0]

    def leaf_of(self, expr: Expr) -> tuple[str, bool] | None:
        if isinstance(expr, Ref):
            return self.leaf.get(expr.name)
        if isinstance(expr, Apply) and expr.op in _THROUGH:
            found = self.leaf_of(expr.args[0])
            return (found[0], found[1] or expr.op == "detach") if found else None
        return None

    def difference(self, expr: Expr) -> tuple[str, str, bool] | None:
        if isinstance(expr, Ref):
            return self.minus.get(expr.name)
        if not isinstance(expr, Apply):
            return None
        if expr.op == "sub":
            first, second = self.leaf_of(expr.args[0]), self.leaf_of(expr.args[1])
            return (first[0], second[0], first[1]) if first and second else None
        if expr.op in _THROUGH:
            found = self.difference(expr.args[0])
            return (*found[:2], found[2] or expr.op == "detach") if found else None
        return None

    def ratios_in(self, expr: Expr) -> frozenset[_Ratio]:
        if isinstance(expr, Ref):
            return self.ratios.get(expr.name, frozenset())
        if not isinstance(expr, Apply) or expr.type.dtype == "bool":
            # A mask says where, and weights nothing.
            return frozenset()
        ratio = self.ratio(expr)
        if ratio:
            return frozenset({ratio})
        inner = [self.ratios_in(arg) for arg in expr.args[TENSOR[expr.op].conditions :]]
        found = frozenset().union(*inner)
        if expr.op == "detach":
            return frozenset(replace(r, live=False) for r in found)
        if self.model and expr.op == "mul":
            self.applied_twice(expr, *inner)
        above, below = _held(expr)
        return frozenset(replace(r, above=r.above or above, below=r.below or below) for r in found)

    def ratio(self, expr: Apply) -> _Ratio | None:
        difference = self.difference(expr.args[0]) if expr.op == "exp" else None
        if difference is None:
            return None
        first, second, detached = difference
        model, table = self.forward.get(first, ("", ""))
        if self.sampler.get(second) != table or not self.is_policy(model, table):
            return None
        return _Ratio(table, first in self.live and not detached, expr.span)

    def is_policy(self, model: str, table: str) -> bool:
        return table in self.generated and self.handle(self.generated[table]) == model

    def applied_twice(self, expr: Apply, left: frozenset[_Ratio], right: frozenset[_Ratio]) -> None:
        for one in left:
            for two in right:
                if one.table == two.table and (one.live or two.live):
                    self.warnings.append(
                        Diagnostic(
                            "W0503",
                            f"both factors are weighted against the policy that sampled `{one.table}`: the correction "
                            "is "
                            "applied twice",
                            expr.span,
                            f"take the ratio against the policy before this update, `actor.logprobs({one.table})` "
                            "above `train`, "
                            "or leave the weight out",
                        )
                    )
                    return

    def stale(self, found: frozenset[_Ratio]) -> None:
        """Of the ratios in a loss those that are held in a band, as PPO does to stay near the policy of the step.

        A weight without a gradient, or one that is only truncated from above, is importance sampling: that is right
        against the policy that sampled.
        """
        for ratio in sorted(found, key=lambda r: (r.span.line, r.span.column)):
            if ratio.live and ratio.above and ratio.below and bound(self.generated[ratio.table]):
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

    def slope(self, expr: Expr) -> _Slope:
        if not self.is_live(expr):
            return _NONE
        if isinstance(expr, Ref):
            if expr.name not in self.forward:
                return self.slopes.get(expr.name, _VARIES)
            model, table = self.forward[expr.name]
            own = self.is_policy(model, table) and self.generated[table].attr("temperature") != 0
            return _Slope("constant", (expr.span,)) if own else _VARIES
        assert isinstance(expr, Apply)
        op = TENSOR[expr.op]
        if op.linear is None:
            return _VARIES
        if op.linear != "all":
            return self.product(expr)
        return self.added(expr.args, expr.span) if op.args > 1 else self.scaled(self.slope(expr.args[0]), expr.span)

    def product(self, expr: Apply) -> _Slope:
        first, second = expr.args
        if TENSOR[expr.op].linear == "each" and self.is_live(second):
            first, second = second, first
        if self.is_live(second) or second.type.axis is not None:
            return _VARIES
        return self.scaled(self.slope(first), expr.span)

    def scaled(self, slope: _Slope, span: Span) -> _Slope:
        return _Slope("constant", (span,)) if slope.kind == "constant" else slope

    def added(self, args: Sequence[Expr], span: Span) -> _Slope:
        slopes = [self.slope(arg) for arg in args]
        if all(slope.kind != "varies" for slope in slopes):
            return _Slope("constant", (span,))
        # The linear part of an estimator such as k3 is there for its value.
        if any(self.is_bent(arg) for arg in args):
            return _VARIES
        terms = dict.fromkeys(term for slope in slopes for term in slope.constant)
        return _Slope("varies", tuple(terms)[:8])


def _held(expr: Apply) -> tuple[bool, bool]:
    """Whether a value is held from above, and from below by more than 0, where an operation bounds it.

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
