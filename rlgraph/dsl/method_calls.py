"""Checks calls of a model's methods: each call becomes a node of the graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlgraph.dsl import constants, tree
from rlgraph.dsl.braced_texts import plain_text_error
from rlgraph.dsl.branches import branch_table
from rlgraph.dsl.context import Context
from rlgraph.dsl.distributions import keep_likeliest, kept_share, name_distribution
from rlgraph.dsl.misuses import column_to_ask
from rlgraph.dsl.names import FUNCTIONS
from rlgraph.dsl.nodes import emit_node, materialize, new_axis, new_inner_axis, unique_name
from rlgraph.dsl.outside_signatures import ALL_BRANCHES, ENV_COLUMNS
from rlgraph.dsl.pairs import other_expr
from rlgraph.dsl.remembered_rows import emit_buffer_sample
from rlgraph.dsl.reports import emit_report
from rlgraph.dsl.rows import option_names
from rlgraph.dsl.scope import (
    ExternalName,
    Meaning,
    ModelName,
    PairsValue,
    TableValue,
    VocabularyValue,
    describe_meaning,
)
from rlgraph.dsl.signatures import METHODS, Method
from rlgraph.dsl.truncated_sampling import CUTS
from rlgraph.dsl.values import evaluate_table
from rlgraph.errors import did_you_mean
from rlgraph.ir.graph import Apply, Constant, Expr, Model, Node, Ref, Staleness, Value
from rlgraph.ir.types import (
    BRANCH,
    BRANCHES,
    COMPUTED_PROMPTS,
    SUPPORT,
    SUPPORT_SHARE,
    Axis,
    Table,
    Tensor,
    branches_of,
)
from rlgraph.ops import NODES


def evaluate_method_call(context: Context, expr: tree.Call, hint: str) -> Meaning:
    """Return the value of a method call: `actor.logprobs(rollout)`, `replay.sample(64)`."""
    assert isinstance(expr.func, tree.Attribute)
    base = context.evaluate(expr.func.base)
    name = expr.func.name
    if isinstance(base, ExternalName) and base.outside.kind == "buffer":
        return emit_buffer_sample(context, expr, base.outside, hint)
    if isinstance(base, PairsValue):
        return other_expr(context, expr, base)
    if isinstance(base, TableValue) and name in base.type.column_types():
        raise context.statement_error(
            "E0206",
            f"`{name}` is a column, which cannot be called",
            expr.func.name_span,
            f"write `{expr.func.span.covered_text}`",
        )
    if not isinstance(base, ModelName):
        shown = expr.func.base.span.covered_text
        raise context.statement_error(
            "E0206",
            f"`{shown}` is {describe_meaning(base)}, and has no `{name}` to call",
            expr.func.name_span,
            f"`{name}` is a function: `{name}({shown})`" if name in FUNCTIONS else "",
        )
    model = base.model
    methods = METHODS[model.kind]
    if name not in methods:
        owners = [kind for kind, names in METHODS.items() if name in names]
        advice = did_you_mean(name, methods) or f"it has {', '.join(f'`{n}`' for n in methods)}"
        if owners:
            advice = f"`{name}` belongs to a `{owners[0]}`; a `{model.kind}` has {', '.join(f'`{n}`' for n in methods)}"
        raise context.statement_error("E0205", f"`{model.name}` cannot `{name}`", expr.func.name_span, advice)
    called = methods[name]
    given, within = _without_within(expr, called)
    options = constants.evaluate_options(context, called.signature, given, expr.span, context.block.scope)
    if len(expr.args) != 1 + called.environment:
        shown = "1 value" if len(expr.args) == 1 else f"{len(expr.args)} values"
        raise context.statement_error(
            "E0405",
            f"`{name}` takes {called.takes} by place, and this is {shown}",
            expr.span,
            f"`{model.name}.{name}({called.example})`",
        )
    if not NODES[name].generates:
        return _score_call(context, expr, called, model, options, hint, within)
    context.refuse_in_train(name, expr.span)
    return sample_rows(context, expr, called, (model,), options, hint)


def _without_within(expr: tree.Call, called: Method) -> tuple[tuple[tree.Option, ...], tree.Option | None]:
    """Return the options of a call that are constants, and the one that is a value."""
    if called.signature.name != "logprobs":
        return expr.options, None
    within = next((option for option in expr.options if option.name == "within"), None)
    return tuple(option for option in expr.options if option is not within), within


def _score_call(
    context: Context,
    expr: tree.Call,
    called: Method,
    model: Model,
    options: dict[str, Constant],
    hint: str,
    within: tree.Option | None,
) -> Expr | VocabularyValue:
    """Emit what a model computes for existing rows, and return its value. within: the tokens that a log-probability is
    to be among."""
    name = called.signature.name
    table = evaluate_table(context, expr.args[0], f"`{name}`")
    tokens = None if within is None else context.evaluate(within.value)
    if options.get("temperature", 0) is None:
        # At temperature 0 nothing is sampled; the probabilities meant are the model's own.
        options["temperature"] = table.type.temperature or 1.0
    if name == "likeliest":
        return keep_likeliest(context, expr, model, table, options, hint)
    if called.over_vocabulary:
        return name_distribution(context, expr, model, table, options["temperature"])
    axis = table.type.axis if called.by_row else table.type.token
    value = Value(unique_name(context, hint or f"{model.name}.{name}"), Tensor("float", axis))
    handle = context.block.versions[model.name]
    emit_node(context, Node(name, (handle.name, table.name), (value,), tuple(options.items()), span=expr.span))
    if context.block.training == model.name:
        context.block.live.add(value.name)
    result = Ref(value.name, Tensor("float", axis), expr.span)
    if within is None:
        return result
    share = kept_share(context, expr, model, table, tokens, options["temperature"])
    return Apply("sub", (result, Apply("log", (share,), result.type, None, expr.span)), result.type, None, expr.span)


def _kept_samples(context: Context, expr: tree.Call, options: dict[str, Constant], count: int) -> int:
    """Return how many of each row's samples stay; drop the option `first` where it drops none."""
    first = options.get("first")
    if not isinstance(first, int) or first == count > 1:
        options.pop("first", None)
        return count
    place = next(option.value.span for option in expr.options if option.name == "first")
    if count == 1:
        message = "`first` keeps some samples of each row, and there is one"
        raise context.statement_error("E0403", message, place, f"sample more: `n=16, first={first}`")
    if first > count:
        raise context.statement_error(
            "E0403", f"`first` is {first}, and `n` only {count}", place, "keep at most all `n` of them"
        )
    return first


def _report_first(context: Context, expr: tree.Call, table: TableValue, parent: Axis) -> None:
    """Report how many tokens each sample that `first` keeps has, and each that it drops had by then."""
    kind = table.type.column_types()["length"]
    length = Ref(unique_name(context, f"{table.name}.length"), kind, expr.span)
    attrs: tuple[tuple[str, Constant], ...] = (("name", "length"),)
    emit_node(context, Node("column", (table.name,), (Value(length.name, kind),), attrs, span=expr.span))
    context.phase.columns[table.name, "length"] = length.name
    longest = length
    if table.type.axis.key != parent.key:
        group_max = Apply("max", (length,), Tensor("int", parent), parent.key, expr.span)
        longest = Ref(materialize(context, group_max, f"{table.name}.dropped"), group_max.type, expr.span)
    items = []
    for fate, value in (("kept", length), ("dropped", longest)):
        # A word that nobody can write, so that it still means this where a loop reports at its end.
        word = f"{table.name}.{fate}"
        for scope in (context.block.scope, context.outside) if context.active else (context.block.scope,):
            scope[word] = value
        mean = tree.Call(tree.Name("mean", expr.span), (tree.Name(word, expr.span),), (), expr.span)
        items.append(tree.Option(f"{word}.length", mean, expr.span, expr.span))
    emit_report(context, tree.Report(tuple(items), expr.span))


def _environment_columns(context: Context, expr: tree.Call, kind: Table, model: str) -> tuple[tuple[str, Tensor], ...]:
    """Return the columns that episodes of an environment have besides, and the numbers that it returns for each.
    model: that acts in them, the first one of several."""
    env = context.evaluate(expr.args[0])
    assert isinstance(env, ExternalName)
    record = env.outside.record
    if record.name not in ENV_COLUMNS:
        return ()
    columns = tuple((name, Tensor(dtype, kind.axis)) for name, dtype in ENV_COLUMNS[record.name])
    known = {*kind.column_types(), *dict(columns), BRANCH}
    if record.option("branches") == ALL_BRANCHES:
        columns = (*columns, (f"{BRANCHES}{model}", Tensor("any", kind.axis)))
    for name in option_names(record.option("returns"))[1:]:
        if name in known:
            message = f"`{env.outside.name}` returns `{name}`, which episodes have already"
            raise context.statement_error("E0858", message, expr.args[0].span, "give it another name in `returns`")
        columns = (*columns, (name, Tensor("float", kind.axis)))
    return columns


def _with_support(context: Context, expr: tree.Call, kind: Table, options: dict[str, Constant]) -> Table:
    """Return the type of rows that keep the tokens they were sampled from; report those sampled from all tokens, and
    data with a column of that name."""
    place = next(option.span for option in expr.options if option.name == "support")
    cut = [name for name in ("top_k", "top_p", "min_p") if options[name] != CUTS[name]]
    if not cut or options["temperature"] == 0:
        message = "`support=keep` keeps the tokens that each one is sampled from, and these are all"
        hint = "leave it out, or leave tokens out: `top_k=20`, `top_p=0.95` or `min_p=0.05`"
        if cut:
            message, hint = "at temperature 0 nothing is sampled: there is no support to keep", "leave `support` out"
        raise context.statement_error("E0845", message, place, hint)
    if SUPPORT in (kind.data or ()):
        message = f"the data have a column `{SUPPORT}`, and so would these rows"
        raise context.statement_error("E0845", message, place, "give that column another name in the data")
    columns = (SUPPORT, Tensor("any", kind.token)), (SUPPORT_SHARE, Tensor("float", kind.token))
    return replace(kind, extra=(*kind.extra, *columns))


def sample_rows(
    context: Context,
    expr: tree.Call,
    called: Method,
    models: Sequence[Model],
    options: dict[str, Constant],
    hint: str,
    extra: Sequence[str] = (),
) -> TableValue:
    """Emit the node that samples rows from models, and return the table of those of the first one. extra: columns of
    the rows besides, which programs do not name."""
    model = models[0]
    if called.environment:
        env = context.evaluate(expr.args[0])
        if not isinstance(env, ExternalName) or env.outside.kind != "env":
            raise context.statement_error(
                "E0206",
                f"an environment is needed here, and this is {describe_meaning(env)}",
                expr.args[0].span,
                'declare `env NAME = python("file.py:Class")`',
            )
        options["env"] = env.outside.name
    name, answers = called.signature.name, not called.environment
    source = context.evaluate(expr.args[-1])
    if isinstance(source, TableValue):
        source_name, parent, data = source.name, source.type.axis, source.type.data
        if not answers and source.type.start != "text":
            message = f"an episode begins with prompts, and `{source.name}` has tokens to go on from"
            raise context.statement_error("E0312", message, expr.args[-1].span, "give it the table of prompts")
        if source.type.start == "text" and data is not None and "prompt" not in data and answers:
            raise context.statement_error(
                "E0204",
                "the table has no column `prompt`",
                expr.args[-1].span,
                column_to_ask(expr.args[-1].span.covered_text, data),
            )
    elif isinstance(source, Ref) and source.type.dtype in ("text", "any") and source.type.axis and answers:
        source_name, parent = source.name, source.type.axis
        column = context.phase.column_sources.get(source.name)
        data = COMPUTED_PROMPTS
        if column is not None:
            source_name = column.table
            if column.kind.token or column.name != "prompt":
                options["prompt"] = column.name
            data = None if column.kind.data is None else tuple(dict.fromkeys((*column.kind.data, "prompt")))
    else:
        raise plain_text_error(context, expr.args[-1], source) or context.statement_error(
            "E0305", f"`{name}` needs a table of prompts, and this is {describe_meaning(source)}", expr.args[-1].span
        )
    label = unique_name(context, hint or called.makes)
    min_tokens, max_tokens = options.get("min_tokens", 0), options["max_tokens"]
    if isinstance(min_tokens, int) and isinstance(max_tokens, int) and min_tokens > max_tokens:
        place = next(option.value.span for option in expr.options if option.name == "min_tokens")
        raise context.statement_error(
            "E0403", f"`min_tokens` is {min_tokens}, and `max_tokens` only {max_tokens}", place
        )
    count = options["n"]
    assert isinstance(count, int)
    kept_count = _kept_samples(context, expr, options, count)
    row = parent if kept_count == 1 else new_axis(context, label, parent)
    temperature = options["temperature"]
    assert isinstance(temperature, float)
    lowest = NODES["logprobs"].attribute_named("temperature").low
    assert lowest is not None
    if 0 < temperature < lowest:
        # Rows are read at the temperature of their sampling, and divided by it.
        place = next(option.value.span for option in expr.options if option.name == "temperature")
        message = f"`temperature` of `{name}` is 0, or at least {lowest:g}, not `{temperature:g}`"
        raise context.statement_error("E0403", message, place, "0 takes the likeliest token")
    turn = new_inner_axis(context, "turn", label, row) if called.environment else None
    token = new_inner_axis(context, "token", label, turn or row)
    staleness = Staleness() if model.frozen else context.phase.staleness
    kind = Table(row, token, turn, True, staleness.span != "row", temperature, data)
    if isinstance(source, TableValue) and source.type.start != "text":
        kind = replace(kind, start="tokens")
    if called.environment:
        columns = _environment_columns(context, expr, kind, model.name)
        # A number of an agent's that is called as a player is that one's reward.
        players = options.get("players") or ()
        kind = replace(kind, extra=tuple(pair for pair in columns if pair[0] not in players))  # type: ignore[operator]
    kind = replace(kind, extra=(*kind.extra, *((name, Tensor("any", row)) for name in extra)))
    support = options.get("support") == "keep"
    if support:
        kind = _with_support(context, expr, kind, options)
    attrs = {**options, "key": label}
    if not support:
        attrs.pop("support", None)
    if not attrs["min_p"]:
        del attrs["min_p"]
    stops = attrs.get("stop")
    if isinstance(stops, str):
        attrs["stop"] = stops = (stops,)
    if isinstance(stops, tuple) and "" in stops:
        place = next(option.value.span for option in expr.options if option.name == "stop")
        hint = 'write what ends an answer, such as `stop="</answer>"`; without `stop` the model ends it'
        raise context.statement_error("E0403", "a stop text has no character", place, hint)
    if staleness.steps:
        attrs[staleness.option_name] = staleness.steps
    if kind.spans:
        attrs["span"] = staleness.span
    first, *others = dict.fromkeys(context.block.versions[model.name].name for model in models)
    inputs = (first, source_name, *others)
    emit_node(context, Node(name, inputs, (Value(label, kind),), tuple(attrs.items()), span=expr.span))
    rows = TableValue(label, kind)
    if branches_of(kind):
        branch_table(context, rows, expr.span)
    if isinstance(source, Ref) and source.name not in context.phase.column_sources:
        context.phase.answers_to_texts.add(label)
    if "first" in options:
        _report_first(context, expr, rows, parent)
    return rows
