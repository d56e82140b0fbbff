"""Warns about code that is legal and almost surely not meant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from rlgraph.dsl.loss_warnings import loss_warnings
from rlgraph.dsl.offpolicy import off_policy_warnings
from rlgraph.dsl.truncated_sampling import truncated_sampling_warnings
from rlgraph.errors import Diagnostic, Related
from rlgraph.ir.graph import (
    Apply,
    ConstructorCall,
    Expr,
    Graph,
    Node,
    Program,
    Ref,
    operations_in,
    program_axes,
    used_names,
)
from rlgraph.ir.types import Axis, axes_of, axis_of
from rlgraph.ops import NODES, TENSOR
from rlgraph.ops.nodes import inputs_chosen_from, sliced_axes, unit_seen_by_node, user_code_of
from rlgraph.ops.optimizers import optimizer_settings_of
from rlgraph.ops.shared_base_models import changed_models, has_adapters
from rlgraph.ops.tensor import key_of

_COMMENT = re.compile(r"""(?:[^"'#]|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')*#(.*)""")
_ALLOW = re.compile(r"\ballow (W\d{4})\b")


def lint(program: Program) -> list[Diagnostic]:
    """Return warnings about a program that has no errors."""
    axis_by_key = program_axes(program)
    warnings = [*_idle_adapters(program)]
    for phase in program.phases:
        warnings += _still_updates(phase.graph)
        warnings += _overturning_decays(phase.graph)
        warnings += _groups_of_one(phase.graph)
        warnings += _equal_samples(phase.graph)
        warnings += _broken_groups(phase.graph, axis_by_key)
        warnings += _short_groups(phase.graph)
        warnings += _real_keys(phase.graph)
        warnings += loss_warnings(phase)
        warnings += off_policy_warnings(phase)
        warnings += truncated_sampling_warnings(phase)
    return list({(d.code, str(d.span)): d for d in warnings}.values())


def is_allowed(warning: Diagnostic) -> bool:
    """Return whether the line of a warning ends in `# allow CODE`, in the text of its file."""
    comment = _COMMENT.match(warning.span.source.line_text(warning.span.line))
    return comment is not None and warning.code in _ALLOW.findall(comment[1])


def _idle_adapters(program: Program) -> Iterator[Diagnostic]:
    """Warn of models whose adapters begin with no effect, and stay so."""
    updated = {program.original_model(program.model(name)).name for name in changed_models(program)}
    for model in program.models:
        if not model.copy_of and has_adapters(program, model.name) and model.name not in updated:
            message = f"nothing trains the adapters of `{model.name}`: they begin as 0, and it stays its base"
            yield Diagnostic(
                "W0509", message, model.span, f"train it: `train {model.name}(lr=...)`, or leave `lora=` out"
            )


def _still_updates(graph: Graph) -> Iterator[Diagnostic]:
    """Warn of updates that leave all weights as they are, and of answers from which nothing is learned."""
    for node in graph.walk():
        if NODES[node.op].trains and not any(_learning_rates(node)):
            yield Diagnostic("W0516", "at `lr=0` this trains nothing: all weights stay as they are", node.span)
        if node.op == "generate" and node.attr("max_tokens") == 0:
            message = "with `max_tokens=0` all answers are empty, and nothing is learned from them"
            yield Diagnostic("W0516", message, node.span, "say how many tokens an answer has at most: `max_tokens=512`")
        if node.op == "update" and node.attr("ema") == 1:
            message = "with `ema=1` all of the old weights stays, and this updates nothing"
            yield Diagnostic("W0516", message, node.span, "`ema=0.99` takes a hundredth of the new ones each time")


def _overturning_decays(graph: Graph) -> Iterator[Diagnostic]:
    """Warn of updates of which the decay alone takes all of each weight, or more: `w - lr * weight_decay * w`
    (arXiv 1711.05101)."""
    for node in (node for node in graph.walk() if NODES[node.op].trains):
        computed = {inner.attr("name") for inner in node.region.nodes if inner.op == "setting"}
        rate, decay = max(_learning_rates(node)), optimizer_settings_of(node).get("weight_decay", 0.0)
        if not computed & {"lr", "weight_decay"} and rate * decay >= 1:
            kept = 1 - rate * decay
            message = f"at `lr={rate:g}`, `weight_decay={decay:g}` multiplies each weight by {kept:g} in one update"
            hint = "it multiplies by `1 - lr * weight_decay`: write a `weight_decay` with which that is nearly 1"
            yield Diagnostic("W0522", message, node.span, hint)


def _learning_rates(train: Node) -> list[float]:
    """Return the rates between which those of a training's updates are."""
    rate = train.attr("lr")
    if not isinstance(rate, ConstructorCall):
        return [rate]
    (peak, *_), options = rate.plain_arguments()
    return [peak, options.get("final", 0.0)]


# Groups

_STATISTICS = ("mean", "std", "var")


def _groups_of_one(graph: Graph) -> Iterator[Diagnostic]:
    for node in graph.walk():
        for reduction in _reductions(node):
            source = reduction.args[0].type.axis
            if reduction.op in _STATISTICS and source and source.key == reduction.axis:
                result = "the value itself" if reduction.op == "mean" else "0"
                yield Diagnostic(
                    "W0504",
                    f"each group has one row here: this `{reduction.op}` is always {result}",
                    reduction.span,
                    f"sample more rows for each `{source.name}` with `n=`, or group by an outer table",
                )


_LIKELIEST = {"temperature": 0, "top_k": 1, "min_p": 1}
"""Options of a sampler, with the value at which each leaves the likeliest token alone."""


def _equal_samples(graph: Graph) -> Iterator[Diagnostic]:
    for node in graph.walk():
        if node.op != "generate" or node.attr("n") == 1:
            continue
        option = next((name for name, value in _LIKELIEST.items() if node.attr(name) == value), None)
        if option is not None:
            instead = "sample at `temperature=1.0`" if option == "temperature" else f"leave `{option}` out"
            yield Diagnostic(
                "W0504",
                f"at `{option}={_LIKELIEST[option]}` the {node.attr('n')} samples for a prompt are all the same",
                node.span,
                f"{instead}, or one for each: `n=1`",
            )


def _broken_groups(graph: Graph, axis_by_key: Mapping[str, Axis]) -> Iterator[Diagnostic]:
    for node in graph.walk():
        if NODES[node.op].loop != "slices" or node.attr("parts") == 1:
            continue
        for key in sliced_axes(node):
            yield from _cut_groups(node, axis_by_key[key], axis_by_key)
        yield from _whole_tables(node, axis_by_key)


def _cut_groups(loop: Node, sliced: Axis, axis_by_key: Mapping[str, Axis]) -> Iterator[Diagnostic]:
    """Yield a warning for each statistic in a loop over slices of an axis that sees parts of groups."""
    for inner in loop.region.walk():
        yield from _cut_function(inner, sliced)
        for reduction in _reductions(inner):
            source = reduction.args[0].type.axis
            if source is None or not source.is_within(sliced):
                continue
            group = axis_by_key[reduction.axis] if reduction.axis else None
            if _is_by_key(reduction) and not (group and group.is_within(sliced)):
                yield Diagnostic(
                    "W0505",
                    f"`minibatch` cuts along `{sliced.name}`, so this `{reduction.op}` sees parts of the groups of "
                    "equal keys",
                    reduction.span,
                    f"compute it above the loop, or group inside of a row: `by=key({sliced.name}, ...)`",
                )
            elif group and group.key != sliced.key and sliced.is_within(group):
                yield Diagnostic(
                    "W0505",
                    f"`minibatch` cuts along `{sliced.name}`, so this `{reduction.op}` sees parts of the "
                    f"groups of `{group.name}`",
                    reduction.span,
                    f"compute it above the loop, or write `minibatch {group.name}(...)`",
                )


def _whole_tables(loop: Node, axis_by_key: Mapping[str, Axis]) -> Iterator[Diagnostic]:
    """Yield a warning for each table that a loop over slices trains on, and does not slice."""
    keys = {*sliced_axes(loop)}
    sliced = axis_by_key[str(loop.attr("axis"))]
    for train in loop.region.walk():
        for inner in train.region.nodes if NODES[train.op].trains else ():
            axis = axis_of(inner.outputs[0].type) if NODES[inner.op].scores else None
            if axis is None or keys & {above.key for above in axis.path_to_root()}:
                continue
            name = axis.row_axis.name
            hint = f"slice it, too: `minibatch {sliced.name}(beside={name})`"
            if sliced.is_within(axis.row_axis):
                hint = f"write `minibatch {name}(...)`"
            yield Diagnostic(
                "W0512",
                f"`minibatch` cuts along `{sliced.name}`, so each of its slices trains on all rows of `{name}`",
                inner.span,
                hint,
            )


def _is_by_key(reduction: Apply) -> bool:
    return key_of([arg.type for arg in reduction.args]) is not None


def _real_keys(graph: Graph) -> Iterator[Diagnostic]:
    """Warn of keys that are real numbers of which the last digits depend on the plan."""
    nodes = list(graph.walk())
    made_of = {let.name: let.expr for node in nodes for let in node.body}
    of_models = {v.name for node in nodes if NODES[node.op].uses_model for v in node.outputs}
    older = {new: old for node in nodes for old, new in _same_rows(node)}

    def is_computed(expr: Expr) -> bool:
        if isinstance(expr, Ref) and expr.name in older:
            return is_computed(replace(expr, name=older[expr.name]))
        if isinstance(expr, Ref) and expr.name in made_of:
            return is_computed(made_of[expr.name])
        if not isinstance(expr, Apply):
            return isinstance(expr, Ref) and expr.name in of_models
        op = TENSOR[expr.op]
        if expr.type.dtype != "float" or op.whole:
            return False
        return not op.exact or any(map(is_computed, expr.args))

    for part in (part for let_expr in made_of.values() for part in operations_in(let_expr) if part.op == "key"):
        if part.args[0].type.dtype == "float" and is_computed(part.args[0]):
            yield Diagnostic(
                "W0511",
                "rows are grouped by a real number that is computed: its last digits depend on the plan, and so do "
                "the groups",
                part.span,
                "round it: `by=round(100 * x)` for example",
            )


def _cut_function(node: Node, sliced: Axis) -> Iterator[Diagnostic]:
    """Warn of a function of the user's that may look at the rows of a group of which a slice has only a part."""
    axis = axis_of(node.outputs[0].type) if NODES[node.op].foreign and unit_seen_by_node(node) == "group" else None
    if axis and sliced.key != axis.root_axis.key and sliced.is_within(axis.root_axis):
        yield Diagnostic(
            "W0505",
            f"`minibatch` cuts along `{sliced.name}`, so `{user_code_of(node)}` sees parts of the groups of "
            f"`{axis.root_axis.name}`",
            node.span,
            "call it above the loop, or declare it with `over=row` if it looks at no other row",
        )


def _short_groups(graph: Graph) -> Iterator[Diagnostic]:
    """Warn of statistics of groups without their longest rows, where a loss is made of them."""
    types, samplers = graph.value_types(), dict[str, Node]()
    for node in graph.walk():
        if NODES[node.op].generates and node.attr("first"):
            axis = axis_of(node.outputs[0].type)
            samplers[axis.key if axis else ""] = node
        for old, new in _same_rows(node):
            for before, after in zip(axes_of(types[old]), axes_of(types[new]), strict=True):
                if before.key in samplers:
                    samplers[after.key] = samplers[before.key]
    loss_values = _made_of(graph, [node.region.outputs[0] for node in graph.walk() if NODES[node.op].trains])
    for let in (let for node in graph.walk() if samplers for let in node.body if let.name in loss_values):
        for reduction in _reductions_in(let.expr):
            source = reduction.args[0].type.axis
            if reduction.op in _STATISTICS and reduction.axis and source and source.row_axis.key in samplers:
                node = samplers[source.row_axis.key]
                if reduction.axis not in (source.row_axis.key, source.key):
                    yield Diagnostic(
                        "W0508",
                        f"this `{reduction.op}` is over the samples of `{node.name}` that end first: long answers do "
                        "not count, and a loss of it favours short ones",
                        reduction.span,
                        f"watch `{node.name}.dropped.length` beside `{node.name}.kept.length`, and keep more of the "
                        "samples",
                        (Related(node.span, f"of {node.attr('n')} samples {node.attr('first')} are kept here"),),
                    )


def _same_rows(node: Node) -> Iterable[tuple[str, str]]:
    """Return pairs of what each output of a node that keeps rows has been, and the output."""
    if not NODES[node.op].selects or NODES[node.op].chooses != 0:
        return ()
    return zip(inputs_chosen_from(node), (value.name for value in node.outputs), strict=True)


def _made_of(graph: Graph, names: Iterable[str]) -> set[str]:
    """Return these values, and all that they are computed from."""
    sources: dict[str, Iterable[str]] = {}
    for node in graph.walk():
        sources.update({value.name: node.inputs for value in node.outputs})
        sources.update({let.name: used_names(let.expr) for let in node.body})
        sources.update({value.name: [inner] for inner, value in (node.exported_values if node.regions else ())})
        sources.update({new: [old] for old, new in _same_rows(node)})
    reached, pending = set[str](), list(names)
    while pending:
        name = pending.pop()
        if name not in reached:
            reached.add(name)
            pending += sources.get(name, ())
    return reached


def _reductions(node: Node) -> Iterator[Apply]:
    for let in node.body:
        yield from _reductions_in(let.expr)


def _reductions_in(expr: Expr) -> Iterator[Apply]:
    return (part for part in operations_in(expr) if TENSOR[part.op].is_grouped)
