"""Warnings: what is legal and almost surely not meant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from rlgraph.dsl.losses import losses
from rlgraph.dsl.offpolicy import off_policy
from rlgraph.dsl.truncated import truncated
from rlgraph.errors import Diagnostic, Related
from rlgraph.ir.graph import Apply, Expr, Graph, Node, Program, axes, refs
from rlgraph.ir.types import Axis, axes_of, axis_of
from rlgraph.ops import NODES, TENSOR
from rlgraph.ops.bases import changed, has_adapters
from rlgraph.ops.nodes import chosen_from, code_of, unit_word

_ALLOW = re.compile(r"\ballow (W\d{4})\b")


def lint(program: Program) -> list[Diagnostic]:
    """Warnings about a program that is right."""
    known = axes(program)
    found = [*_idle_adapters(program)]
    for phase in program.phases:
        found += _groups_of_one(phase.graph, known)
        found += _broken_groups(phase.graph, known)
        found += _short_groups(phase.graph)
        found += losses(phase)
        found += off_policy(phase)
        found += truncated(phase)
    return list({(d.code, str(d.span)): d for d in found}.values())


def allowed(warnings: Iterable[Diagnostic], comments: Mapping[tuple[str, int], str]) -> list[Diagnostic]:
    """The warnings whose line does not end in `# allow CODE`; `comments` are by path and line."""

    def waved(found: Diagnostic) -> bool:
        comment = comments.get((found.span.source.path, found.span.line), "")
        return found.code in _ALLOW.findall(comment)

    return [found for found in warnings if not waved(found)]


def _idle_adapters(program: Program) -> Iterator[Diagnostic]:
    """Models with adapters that begin with nothing in them, and stay so."""
    busy = {program.original(program.model(name)).name for name in changed(program)}
    for model in program.models:
        if not model.copy_of and has_adapters(program, model.name) and model.name not in busy:
            message = f"nothing trains the adapters of `{model.name}`: they begin as 0, and it stays its base"
            yield Diagnostic(
                "W0509", message, model.span, f"train it: `train {model.name}(lr=...)`, or leave `lora=` out"
            )


# Groups

_STATISTICS = ("mean", "std", "var")


def _groups_of_one(graph: Graph, known: Mapping[str, Axis]) -> Iterator[Diagnostic]:
    for node in graph.walk():
        for found in _reductions(node):
            source = found.args[0].type.axis
            if found.op in _STATISTICS and source and source.key == found.axis:
                always = "the value itself" if found.op == "mean" else "0"
                yield Diagnostic(
                    "W0504",
                    f"each group has one row here: this `{found.op}` is always {always}",
                    found.span,
                    f"sample more rows for each `{source.name}` with `n=`, or group by an outer table",
                )


def _broken_groups(graph: Graph, known: Mapping[str, Axis]) -> Iterator[Diagnostic]:
    for node in graph.walk():
        if NODES[node.op].loop != "slices" or node.attr("parts") == 1:
            continue
        sliced = known[str(node.attr("axis"))]
        for inner in node.region.walk():
            yield from _cut_function(inner, sliced)
            for found in _reductions(inner):
                group = known[found.axis] if found.axis else None
                if group and group.key != sliced.key and sliced.within(group):
                    yield Diagnostic(
                        "W0505",
                        f"`minibatch` cuts along `{sliced.name}`, so this `{found.op}` sees parts of the "
                        f"groups of `{group.name}`",
                        found.span,
                        f"compute it above the loop, or write `minibatch {group.name}(...)`",
                    )


def _cut_function(node: Node, sliced: Axis) -> Iterator[Diagnostic]:
    """A function of the user's that may look at the rows of a group, of which a slice has a part."""
    axis = axis_of(node.outputs[0].type) if NODES[node.op].foreign and unit_word(node) == "group" else None
    if axis and sliced.key != axis.root.key and sliced.within(axis.root):
        yield Diagnostic(
            "W0505",
            f"`minibatch` cuts along `{sliced.name}`, so `{code_of(node)}` sees parts of the groups of "
            f"`{axis.root.name}`",
            node.span,
            "call it above the loop, or declare it with `over=row` if it looks at no other row",
        )


def _short_groups(graph: Graph) -> Iterator[Diagnostic]:
    """Statistics of groups without their longest rows, where a loss is made of them."""
    types, made_by = graph.values(), dict[str, Node]()
    for node in graph.walk():
        if NODES[node.op].generates and node.attr("first"):
            axis = axis_of(node.outputs[0].type)
            made_by[axis.key if axis else ""] = node
        for old, new in _same_rows(node):
            for before, after in zip(axes_of(types[old]), axes_of(types[new]), strict=True):
                if before.key in made_by:
                    made_by[after.key] = made_by[before.key]
    losses = _made_of(graph, [node.region.outputs[0] for node in graph.walk() if NODES[node.op].trains])
    for let in (let for node in graph.walk() if made_by for let in node.body if let.name in losses):
        for found in _reductions_in(let.expr):
            source = found.args[0].type.axis
            if found.op in _STATISTICS and found.axis and source and source.row.key in made_by:
                node = made_by[source.row.key]
                if found.axis not in (source.row.key, source.key):
                    yield Diagnostic(
                        "W0508",
                        f"this `{found.op}` is over the samples of `{node.name}` that end first: long answers do not "
                        "count, and a loss of it favours short ones",
                        found.span,
                        f"watch `{node.name}.dropped.length` beside `{node.name}.kept.length`, and keep more of the "
                        "samples",
                        (Related(node.span, f"of {node.attr('n')} samples {node.attr('first')} are kept here"),),
                    )


def _same_rows(node: Node) -> Iterable[tuple[str, str]]:
    """Of a node that keeps rows: what each of its outputs has been."""
    if not NODES[node.op].selects or NODES[node.op].chooses != 0:
        return ()
    return zip(chosen_from(node), (value.name for value in node.outputs), strict=True)


def _made_of(graph: Graph, names: Iterable[str]) -> set[str]:
    """These values, and all that they are computed from."""
    sources: dict[str, Iterable[str]] = {}
    for node in graph.walk():
        sources.update({value.name: node.inputs for value in node.outputs})
        sources.update({let.name: refs(let.expr) for let in node.body})
        sources.update({value.name: [inner] for inner, value in (node.exported if node.regions else ())})
        sources.update({new: [old] for old, new in _same_rows(node)})
    found, pending = set[str](), list(names)
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += sources.get(name, ())
    return found


def _reductions(node: Node) -> Iterator[Apply]:
    for let in node.body:
        yield from _reductions_in(let.expr)


def _reductions_in(expr: Expr) -> Iterator[Apply]:
    pending = [expr]
    while pending:
        expr = pending.pop()
        if isinstance(expr, Apply):
            pending += expr.args
            if TENSOR[expr.op].kind == "reduction":
                yield expr
