"""Checks mixtures of models, `actor**0.5 * ref**0.5`: the scaled product of their distributions raised to numbers.

Rows are sampled from the softmax of the weighted sum of the models' logits. Its log-probabilities are a weighted sum of
theirs, less the logarithm of a sum over the vocabulary: so they are made of what models give anyway.
"""

from __future__ import annotations

from rlgraph.dsl import constants, tree
from rlgraph.dsl.context import Context
from rlgraph.dsl.distributions import emit_reduction, name_distribution
from rlgraph.dsl.method_calls import sample_rows
from rlgraph.dsl.nodes import emit_node, unique_name
from rlgraph.dsl.scope import Meaning, MixtureValue, ModelName, TableValue, VocabularyValue, describe_meaning
from rlgraph.dsl.signatures import METHODS
from rlgraph.dsl.values import evaluate_table
from rlgraph.errors import Span
from rlgraph.ir.graph import Apply, Const, Constant, Expr, Model, Node, Ref, Value
from rlgraph.ir.types import MIXED, Tensor

_METHODS = ("generate", "logprobs", "distribution")
_FORM = "`rival = actor**(1 - b) * ref**b`, with a number or a `param`"


def names_mixture(context: Context, expr: tree.Expr) -> bool:
    """Return whether an expression is a mixture of models, or a model by itself raised to a number: it begins with
    one."""
    is_product = isinstance(expr, tree.Binary)
    while isinstance(expr, tree.Binary) and expr.op in ("*", "/", "**"):
        expr = expr.left
    if not isinstance(expr, tree.Name):
        return False
    meaning = context.block.scope.get(expr.id)
    return isinstance(meaning, MixtureValue) or (is_product and isinstance(meaning, ModelName))


def mixture_of(context: Context, expr: tree.Expr) -> MixtureValue:
    """Return the mixture that an expression is; report what is none."""
    weights = {model: weight for model, weight in _weights(context, expr).items() if weight}
    if not weights:
        raise context.statement_error("E0315", "the weights of this mixture are all 0", expr.span, _FORM)
    odd = next((model for model in weights if model.kind != "causal_lm"), None)
    if odd is not None:
        message = f"a mixture is of models of kind `causal_lm`, and `{odd.name}` is a `{odd.kind}`"
        raise context.statement_error("E0315", message, expr.span, _FORM)
    return MixtureValue(tuple(weights.items()))


def _weights(context: Context, expr: tree.Expr) -> dict[Model, float]:
    """Return the weight of each model in a product of models raised to numbers."""
    if isinstance(expr, tree.Binary) and expr.op == "**":
        number = constants.evaluate_constant(context, expr.right, context.block.scope)
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise context.statement_error("E0315", "a model is raised to a number", expr.right.span, _FORM)
        return {model: weight * number for model, weight in _weights(context, expr.left).items()}
    if isinstance(expr, tree.Binary) and expr.op in ("*", "/"):
        weights, sign = _weights(context, expr.left), 1.0 if expr.op == "*" else -1.0
        for model, weight in _weights(context, expr.right).items():
            weights[model] = weights.get(model, 0.0) + sign * weight
        return weights
    meaning = context.evaluate(expr)
    if isinstance(meaning, MixtureValue):
        return dict(meaning.weights)
    if not isinstance(meaning, ModelName):
        message = f"a mixture is a product of models raised to numbers, and this is {describe_meaning(meaning)}"
        raise context.statement_error("E0315", message, expr.span, _FORM)
    return {meaning.model: 1.0}


def call_mixture(context: Context, expr: tree.Call, hint: str) -> Meaning:
    """Return the value of a mixture's method: `rival.generate(prompts, max_tokens=512)`."""
    assert isinstance(expr.func, tree.Attribute)
    mixture, name = mixture_of(context, expr.func.base), expr.func.name
    if name not in _METHODS:
        has = ", ".join(f"`{method}`" for method in _METHODS)
        raise context.statement_error(
            "E0316", f"a mixture of models cannot `{name}`", expr.func.name_span, f"it has {has}"
        )
    called = METHODS["causal_lm"][name]
    options = constants.evaluate_options(context, called.signature, expr.options, expr.span, context.block.scope)
    if len(expr.args) != 1:
        message = f"`{name}` takes {called.takes} by place, and this is {len(expr.args)} values"
        raise context.statement_error("E0405", message, expr.span, f"`rival.{name}({called.example})`")
    if name == "generate":
        return _sample(context, expr, mixture, options, hint)
    table = evaluate_table(context, expr.args[0], f"`{name}`")
    if options["temperature"] is None:
        options["temperature"] = table.type.temperature or 1.0
    if name == "distribution":
        return _distribution(context, expr, mixture, table, options["temperature"])
    return _logprobs(context, expr, mixture, table, options)


def _sample(
    context: Context, expr: tree.Call, mixture: MixtureValue, options: dict[str, Constant], hint: str
) -> TableValue:
    """Emit what samples rows from a mixture, and return their table."""
    context.refuse_in_train("generate", expr.span)
    models = [model for model, _ in mixture.weights]
    if context.phase.staleness.steps and not all(model.frozen for model in models):
        message = "a mixture is sampled with the present weights, and this phase lets them be older"
        raise context.statement_error("E0316", message, expr.span, "leave `lag` and `async` out, or mix frozen models")
    if options["routing"] == "replay":
        message = "the routers of several models choose experts for these rows: there are no routes to replay"
        raise context.statement_error("E0316", message, expr.span, "leave `routing` out")
    options |= {"models": tuple(model.name for model in models), "weights": tuple(of for _, of in mixture.weights)}
    return sample_rows(context, expr, METHODS["causal_lm"]["generate"], models, options, hint, (MIXED,))


def _log_product(
    context: Context, expr: tree.Call, mixture: MixtureValue, table: TableValue, temperature: Constant
) -> tuple[Expr, Expr]:
    """Return the logarithm of the product of the models' distributions, for each token of the vocabulary, and that of
    its sum."""
    logs = []
    for model, weight in mixture.weights:
        p = name_distribution(context, expr, model, table, temperature).expr
        logs.append(_times(Apply("log", (p,), p.type, None, expr.span), weight, expr.span))
    total = _added(logs, expr.span)
    return total, emit_reduction(context, expr, total, "logsumexp")


def _distribution(
    context: Context, expr: tree.Call, mixture: MixtureValue, table: TableValue, temperature: Constant
) -> VocabularyValue:
    """Return what stands for the distribution of a mixture."""
    if context.block.training:
        message = "the distribution of a mixture is divided by its sum, which is computed before what stands beside it"
        hint = "name it above the `train`; its `logprobs(rollout)` have a gradient"
        raise context.statement_error("E0316", message, expr.span, hint)
    logs, whole = _log_product(context, expr, mixture, table, temperature)
    scaled = Apply("sub", (logs, whole), logs.type, None, expr.span)
    return VocabularyValue(Apply("exp", (scaled,), logs.type, None, expr.span))


def _logprobs(
    context: Context, expr: tree.Call, mixture: MixtureValue, table: TableValue, options: dict[str, Constant]
) -> Expr:
    """Return the log-probabilities that a mixture gives to the tokens of a table."""
    kind, said = Tensor("float", table.type.token), list[Expr]()
    for model, weight in mixture.weights:
        value = Value(unique_name(context, f"{model.name}.logprobs"), kind)
        weights = context.block.versions[model.name].name
        emit_node(context, Node("logprobs", (weights, table.name), (value,), tuple(options.items()), span=expr.span))
        if context.block.training == model.name:
            context.block.live.add(value.name)
        said.append(_times(Ref(value.name, kind, expr.span), weight, expr.span))
    _, whole = _log_product(context, expr, mixture, table, options["temperature"])
    return Apply("sub", (_added(said, expr.span), whole), kind, None, expr.span)


def _times(value: Expr, weight: float, span: Span) -> Expr:
    if weight == 1:
        return value
    return Apply("mul", (Const(float(weight), Tensor("float")), value), value.type, None, span)


def _added(values: list[Expr], span: Span) -> Expr:
    total = values[0]
    for value in values[1:]:
        total = Apply("add", (total, value), value.type, None, span)
    return total
