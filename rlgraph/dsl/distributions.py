"""Checks values over the vocabulary: `actor.distribution(rollout)`, which is never stored, and what it is reduced to,
which is computed where the models' heads are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from rlgraph.dsl import tree
from rlgraph.dsl.context import Context, DistributionSource
from rlgraph.dsl.nodes import emit_node, has_gradient, materialize, unique_name
from rlgraph.dsl.scope import (
    VOCABULARY,
    Meaning,
    TableValue,
    UnavailableName,
    VocabularyValue,
    describe_meaning,
    is_over_vocabulary,
)
from rlgraph.dsl.truncated_sampling import CUTS
from rlgraph.errors import Related, Span
from rlgraph.ir.graph import Apply, Const, Constant, Expr, Model, Node, Ref, Value, substitute, used_names
from rlgraph.ir.text.program_text import expr_text
from rlgraph.ir.types import SUPPORT, Axis, Tensor
from rlgraph.ops import NODES, TENSOR

MOST_OPERATIONS = 200
"""The most operations in a formula, with a part that is used twice counted twice, as it is written."""
_FORM = "`sum(p * log(p / q), vocab)` for example"


def name_distribution(
    context: Context, expr: tree.Call, model: Model, table: TableValue, temperature: Constant
) -> VocabularyValue:
    """Return what stands for a model's distributions of a table's tokens."""
    name = unique_name(context, f"{model.name}.distribution")
    weights = context.block.versions[model.name].name
    context.phase.distributions[name] = DistributionSource(model.name, weights, table.name, temperature, expr.span)
    if context.block.training == model.name:
        context.block.live.add(name)
    return VocabularyValue(Ref(name, _over_vocabulary(table), expr.span))


def _over_vocabulary(table: TableValue) -> Tensor:
    """Return the type of a number for each token that a model knows, in the place of each token of a table."""
    token = table.type.token
    assert token is not None
    # Tables of the same tokens, as `row(...)` makes them, have the same axis.
    return Tensor("float", Axis(f"{token.key}.{VOCABULARY}", VOCABULARY, token, inner=True))


def keep_likeliest(
    context: Context, expr: tree.Call, model: Model, table: TableValue, options: dict[str, Constant], hint: str
) -> VocabularyValue:
    """Emit what keeps the probabilities of a model's likeliest tokens, and return what stands for them."""
    context.refuse_in_train("likeliest", expr.span)
    if all(options[name] == CUTS[name] for name in ("top_k", "top_p", "min_p")):
        message = "`likeliest` needs `top_k`, `top_p` or `min_p`: all tokens would be stored"
        raise context.statement_error("E0402", message, expr.span, "`top_k=64` or `top_p=0.95` for example")
    label = unique_name(context, hint or f"{model.name}.likeliest")
    whole = Value(unique_name(context, f"{label}.sum"), Tensor("float", table.type.token))
    kept = Value(unique_name(context, f"{label}.kept"), Tensor("any", table.type.token))
    weights = context.block.versions[model.name].name
    node = Node("likeliest", (weights, table.name), (whole, kept), tuple(options.items()), span=expr.span)
    emit_node(context, node)
    source = DistributionSource(
        model.name, weights, table.name, options["temperature"], expr.span, kept.name, whole.name
    )
    context.phase.distributions[label] = source
    return VocabularyValue(Ref(label, _over_vocabulary(table), expr.span))


def name_kept(context: Context, table: TableValue, kept: str, whole: str, span: Span) -> VocabularyValue:
    """Return what stands for the probabilities of tokens that a sampler has kept. kept, whole: the values that have
    them, and their sum at each token."""
    temperature = table.type.temperature or 1.0
    context.phase.distributions[kept] = DistributionSource("", "", table.name, temperature, span, kept, whole)
    return VocabularyValue(Ref(kept, _over_vocabulary(table), span))


def kept_share(
    context: Context, expr: tree.Call, model: Model, table: TableValue, within: Meaning | None, temperature: Constant
) -> Expr:
    """Return the probability that a model gives, at each token of a table, to those that `likeliest` or the sampler has
    kept there."""
    place = next(option.value.span for option in expr.options if option.name == "within")
    kept = within.expr if isinstance(within, VocabularyValue) else None
    hint = f"name them above the training: `seen = {model.name}.likeliest({table.name}, top_k=64)`"
    if table.type.sampled and not table.type.turn:
        hint += f"; or keep those that it was sampled from: `support=keep`, `within={table.name}.{SUPPORT}`"
    if SUPPORT in dict(table.type.extra):
        hint = f"those that it was sampled from are `{table.name}.{SUPPORT}`"
    if not isinstance(kept, Ref) or not context.phase.distributions[kept.name].kept:
        shown = "a distribution" if kept is not None or within is None else describe_meaning(within)
        message = f"`within` takes the likeliest tokens of the rows, and this is {shown}"
        raise context.statement_error("E0319", message, place, hint)
    if kept.type != _over_vocabulary(table):
        message = f"these tokens are kept of other rows than `{table.name}`"
        raise context.statement_error("E0319", message, place, hint)
    q = name_distribution(context, expr, model, table, temperature).expr
    zero = Const(0.0, Tensor("float"))
    is_kept = Apply("gt", (kept, zero), Tensor("bool", kept.type.axis), None, expr.span)
    return emit_reduction(context, expr, Apply("where", (is_kept, q, zero), kept.type, None, expr.span))


def refuse_other_operation(context: Context, name: str, args: Sequence[Expr], span: Span) -> None:
    """Report an operation that would run over the vocabulary, and is none of those that do."""
    if any(is_over_vocabulary(arg) for arg in args):
        message = f"`{name}` does not run over the vocabulary: `sum`, `mean`, `max` and `min` do"
        raise context.statement_error("E0218", message, span, _FORM)


def reduce_vocabulary(
    context: Context, expr: tree.Call, name: str, value: Expr, by: tree.Option | None, given: Sequence[Ref]
) -> Expr:
    """Return `sum(x, vocab)` as the value of a node, which is given the models and their rows. given: what says which
    rows have a value that others lack."""
    if name not in ("sum", "mean", "max", "min"):
        refuse_other_operation(context, name, [value], expr.span)
    axis = expr.args[1] if len(expr.args) == 2 else None
    if by is not None or not isinstance(axis, tree.Name) or axis.id != VOCABULARY:
        message = f"this is {value.type}: the vocabulary is reduced first, by itself"
        raise context.statement_error("E0218", message, expr.span, "`sum(x, vocab)`, and then what you like")
    if given:
        message = "some rows lack a number that stands beside these probabilities"
        hint = "say what the others have: `otherwise(x, 0.0) * p`, or leave them out: `keep rollout where valid(x)`"
        raise context.statement_error("E0314", message, expr.span, hint)
    if name == "min":
        # The smallest is the largest of the negated values.
        negated = Apply("neg", (value,), value.type, None, expr.span)
        largest = emit_reduction(context, expr, negated, "max")
        return Apply("neg", (largest,), largest.type, None, expr.span)
    if name == "sum" and isinstance(value, Ref) and (whole := context.phase.distributions[value.name].kept_sum):
        return Ref(whole, Tensor("float", value.type.axis.parent if value.type.axis else None), expr.span)
    return emit_reduction(context, expr, value, name)


def emit_reduction(context: Context, expr: tree.Call, value: Expr, reduce: str = "sum") -> Expr:
    """Emit what reduces a formula over the vocabulary, and return its value."""
    value = _with_named_numbers(context, value)
    sources = _sources(context, value, expr)
    computed = [source for source in sources.values() if not source.kept]
    if not computed:
        message = "this sum is of tokens that were kept before, alone: there is no model that it is computed beside"
        hint = "their sum is `sum(p, vocab)`; anything else is computed beside a model's `distribution` of the rows"
        raise context.statement_error("E0899", message, expr.span, hint)
    places = {key: f"p{place}" for place, key in enumerate(_distinct(computed))}
    kept = {name: f"p{len(places) + at}" for at, name in enumerate(_kept(sources.values()))}
    names: dict[str, Expr] = {
        ref: Ref(kept[source.kept] if source.kept else places[source.weights, source.table], Tensor("float"))
        for ref, source in sources.items()
    }
    numbers = _numbers_beside(context, value, expr)
    names |= {name: Ref(f"x{len(places) + len(kept) + at}", Tensor("float")) for at, name in enumerate(numbers)}
    if _written_size(value) > MOST_OPERATIONS:
        message = f"a formula over the vocabulary has at most {MOST_OPERATIONS} operations, written out"
        hint = "give it as several sums: `sum(a, vocab) + sum(b, vocab)`"
        raise context.statement_error("E0218", message, expr.span, hint)
    formula = expr_text(substitute(value, names))
    vocabulary = value.type.axis
    assert vocabulary is not None and vocabulary.parent is not None
    models = list(dict.fromkeys(source.model for source in computed))
    result = Value(unique_name(context, f"{models[0]}.sum"), Tensor("float", vocabulary.parent))
    inputs = (*(name for pair in places for name in pair), *kept, *numbers)
    attrs: dict[str, Constant] = {"temperature": computed[0].temperature, "formula": formula}
    attrs |= {} if reduce == "sum" else {"reduce": reduce}
    attrs |= {name: len(values) for name, values in (("kept", kept), ("numbers", numbers)) if values}
    emit_node(context, Node("distribution", inputs, (result,), tuple(attrs.items()), span=expr.span))
    if has_gradient(context, value):
        context.block.live.add(result.name)
    return Ref(result.name, result.type, expr.span)  # type: ignore[arg-type]


def _sources(context: Context, value: Expr, expr: tree.Call) -> dict[str, DistributionSource]:
    """Return the distributions in an expression by name, that of the model which is trained first; report what one pass
    over the vocabulary cannot have."""
    known = context.phase.distributions
    sources = {name: known[name] for name in used_names(value) if name in known}
    first = next(iter(sources.values()))
    computed = [source for source in sources.values() if not source.kept]
    first = computed[0] if computed else first
    for source in computed:
        related = (Related(source.span, "this one"), Related(first.span, "and this one"))
        if source.temperature != first.temperature:
            message = (
                f"one sum is of distributions at one temperature, not at {first.temperature} and {source.temperature}"
            )
            raise context.statement_error("E0218", message, expr.span, "say it of both: `temperature=1.0`", related)
        if context.block.versions[source.model].name != source.weights:
            message = f"`{source.model}` may have other weights here than where its distribution was named"
            hint = f"write `{source.model}.distribution(...)` in this block"
            place = Related(source.span, "it is named here")
            raise context.statement_error("E0219", message, expr.span, hint, (place,))
    trained = context.block.training
    of_trained = _distinct(source for source in computed if source.model == trained)
    if len(of_trained) > 1:
        message = f"the gradient of this sum would go to `{trained}` through two tables"
        hint = f"declare another model for one of them: `model teacher = frozen({trained})`"
        raise context.statement_error("E0219", message, expr.span, hint)
    return dict(sorted(sources.items(), key=lambda item: item[1].model != trained))


def _with_named_numbers(context: Context, value: Expr) -> Expr:
    """Return a formula in which what is computed of rows or texts alone has a name; elementwise mathematics of numbers
    stays as it is."""
    named: dict[int, Expr] = {}

    def visit(part: Expr) -> Expr:
        if not isinstance(part, Apply):
            return part
        if id(part) not in named:
            if is_over_vocabulary(part) or _is_elementwise(part):
                named[id(part)] = replace(part, args=tuple(map(visit, part.args)))
            else:
                named[id(part)] = Ref(materialize(context, part, "beside"), part.type, part.span)
        return named[id(part)]

    return visit(value)


def _is_elementwise(part: Expr) -> bool:
    """Return whether an expression is elementwise mathematics of numbers."""
    if isinstance(part, Const):
        return not isinstance(part.value, str)
    if isinstance(part, Ref):
        return part.type.dtype not in ("text", "row", "key")
    return TENSOR[part.op].kind == "elementwise" and all(map(_is_elementwise, part.args))


def _numbers_beside(context: Context, value: Expr, expr: tree.Call) -> list[str]:
    """Return the values in a formula that are numbers of rows or tokens. Report one that a loss computes: the model is
    asked before, and only columns are there."""
    numbers = [name for name in used_names(value) if name not in context.phase.distributions]
    computing = [node for node in context.block.nodes if not NODES[node.op].is_column]
    made = {output.name for node in computing for output in node.outputs}
    late = next((name for name in numbers if context.block.training and name in made), None)
    if late is not None:
        message = f"`{late}` stands beside probabilities, and is computed inside of this `train`, after them"
        hint = "name it above the `train`, or multiply what the sum gives by it: `x * sum(p * q, vocab)`"
        raise context.statement_error("E0314", message, expr.span, hint)
    return numbers


def _distinct(sources: Iterable[DistributionSource]) -> dict[tuple[str, str], None]:
    """Return the weights and rows of distributions, each once."""
    return dict.fromkeys((source.weights, source.table) for source in sources)


def _kept(sources: Iterable[DistributionSource]) -> dict[str, None]:
    """Return the values with kept probabilities, each once."""
    return dict.fromkeys(source.kept for source in sources if source.kept)


def _written_size(value: Expr) -> int:
    """Return how many operations an expression has where its shared parts are written out."""
    sizes: dict[int, int] = {}

    def size(part: Expr) -> int:
        if not isinstance(part, Apply):
            return 0
        if id(part) not in sizes:
            sizes[id(part)] = 1 + sum(map(size, part.args))
        return sizes[id(part)]

    return size(value)


def drop_distributions(context: Context, axis: Axis, operation: str, span: Span) -> None:
    """Take their meaning from names of distributions of rows of an axis that are chosen."""
    for word, meaning in list(context.block.scope.items()):
        if isinstance(meaning, VocabularyValue) and meaning.type.axis is not None and meaning.type.axis.is_within(axis):
            reason = f"`{word}` is of rows of which `{operation}` chooses: name it again below it"
            context.block.scope[word] = UnavailableName(reason, span)
