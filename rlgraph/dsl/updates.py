"""`unit=update`: a bound of age in updates of the weights, and what it is in steps.

In a step that updates a model u times, its last update comes after u - 1 others, and a row that was sampled d steps
before has seen d * u fewer still. So a row is at most K updates behind if d * u + u - 1 <= K.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from rlgraph.dsl import tree
from rlgraph.dsl.context import Context
from rlgraph.dsl.scope import Stop
from rlgraph.errors import Related, counted
from rlgraph.ir.graph import Graph, Node, Phase
from rlgraph.ir.types import Type
from rlgraph.ops.nodes import NODES, attr, model_of


def in_steps(context: Context, made: Sequence[Phase], written: Mapping[str, tree.Phase]) -> list[Phase]:
    """The phases, in which each bound that counts updates has become one of steps. written: by name."""
    found = []
    for phase in made:
        try:
            found.append(phase if phase.staleness.updates is None else _bounded(context, phase, made, written))
        except Stop:
            continue
    return found


def _bounded(context: Context, phase: Phase, made: Sequence[Phase], written: Mapping[str, tree.Phase]) -> Phase:
    options = {option.name: option for option in written[phase.name].options}
    allowed, types = phase.staleness.updates, phase.graph.values()
    assert allowed is not None
    sampling = {types[model_of(node)] for node in phase.graph.walk() if NODES[node.op].generates}
    counts: Counter[tuple[str, Type]] = Counter()
    for each in made:
        for node, times in _updates(each.graph, 1):
            model = node.outputs[0].type
            if model in sampling and times is None:
                message = f"how often a step updates `{model_of(node).split('@')[0]}` is not known before it runs"
                hint = "count steps: leave `unit=update` out, or move the update out of the `collect`"
                related = (Related(node.span, "as often as batches are needed"),)
                raise context.stop("E0408", message, options["unit"].value.span, hint, related)
            if model in sampling:
                counts[each.name, model] += times or 0
    # A step without updates makes no version.
    own = max((n for (name, _), n in counts.items() if name == phase.name), default=1)
    most = max(counts.values(), default=1)
    steps = (allowed - (own - 1)) // most
    if steps < 0:
        message = f"a step takes {counted(own, 'update')}, and its own rows are {own - 1} behind at the last of them"
        hint = f"write at least `staleness={own - 1}`; `staleness={own - 1 + most}` lets a step run ahead"
        raise context.stop("E0408", message, options["staleness"].value.span, hint)
    span = phase.staleness.span
    if not steps and span != "row":
        message = f"`staleness={allowed}` lets no step run ahead, and `span={span}` is for rows of several versions"
        hint = f"write at least `staleness={own - 1 + most}`: a step takes {counted(own, 'update')}"
        raise context.stop("E0407", message, options["span"].value.span, hint)
    staleness = replace(phase.staleness, steps=steps, exact=not steps)
    return replace(phase, graph=_graph(phase.graph, steps), staleness=staleness)


def _updates(graph: Graph, times: int | None) -> Iterator[tuple[Node, int | None]]:
    """What updates models, and how often it does in a step, at most; None: nobody knows."""
    for node in graph.nodes:
        op, inside = NODES[node.op], times
        if op.updates:
            yield node, times
        if op.loop == "slices" and times is not None:
            inside = times * attr(node, "parts") * attr(node, "epochs")
        elif op.loop == "rounds":
            inside = None
        for region in node.regions if not op.trains else ():
            yield from _updates(region, inside)


def _graph(graph: Graph, steps: int) -> Graph:
    return replace(graph, nodes=tuple(_node(node, steps) for node in graph.nodes))


def _node(node: Node, steps: int) -> Node:
    attrs = node.attrs
    if node.attr("staleness") is not None:
        attrs = tuple((name, steps if name == "staleness" else value) for name, value in attrs)
        attrs = tuple(each for each in attrs if steps or each[0] != "staleness")
    return replace(node, attrs=attrs, regions=tuple(_graph(region, steps) for region in node.regions))
