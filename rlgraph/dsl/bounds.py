"""`staleness=K` of a phase whose graph is known: the bound in steps, and what rows that wait for a step take of it.

With `unit=update`: in a step that updates a model u times, its last update comes after u - 1 others, and a row that was
sampled d steps before has seen d * u fewer still. So a row is at most K updates behind if d * u + u - 1 <= K.

What a `collect` carries over is trained on in a later step, where it is older. So that it is not too old there, it is
sampled with weights that are that much younger than the bound, and carried over once. With `late=drop` or `again` it is
sampled with any weights that the bound grants, carried over as often as need be, and looked at each time: the body of
the `collect` says by which versions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from rlgraph.dsl import tree
from rlgraph.dsl.context import Context
from rlgraph.dsl.scope import Stop
from rlgraph.errors import Related, counted
from rlgraph.ir.graph import Constant, Graph, Node, Phase, Value
from rlgraph.ir.types import OLDEST, Handle, Table, Type
from rlgraph.ops.nodes import NODES, attr, model_of, sampler


def bounded(context: Context, made: Sequence[Phase], written: Mapping[str, tree.Phase]) -> list[Phase]:
    """The phases, in which each node says what the bound means for it. written: by name."""
    found = []
    for phase in made:
        options = {option.name: option for option in written[phase.name].options}
        late = options["late"].value.span.text if "late" in options else "wait"
        order = options["order"].value.span.text if "order" in options else "data"
        try:
            if phase.staleness.updates is not None:
                phase = _in_steps(context, phase, made, options)
            if "staleness" in options:
                makers = {v.name: (node, at) for node in phase.graph.walk() for at, v in enumerate(node.outputs)}
                steps, said, types = phase.staleness.steps, options["staleness"], phase.graph.values()
                bounds = _Bounds(context, steps, said, late, order, makers, types, _changing(made))
                phase = replace(phase, graph=bounds.graph(phase.graph, 0, 1))
                if late != "wait" and not any(node.attr("late") for node in phase.graph.walk()):
                    message = f"nothing waits for a later step here, so that `late={late}` has no rows to be about"
                    hint = "leave `late` out; rows that a `collect` carries over (`rest=carry`) may get too old"
                    raise context.stop("E0409", message, options["late"].value.span, hint)
                if order != "data" and not any(node.attr("order") for node in phase.graph.walk()):
                    message = f"no batches are under way side by side here that `order={order}` could be about"
                    hint = "write `collect DATA(ROWS, ahead=1.5):`, and carry over what is left (`rest=carry`)"
                    raise context.stop("E0409", message, options["order"].value.span, hint)
        except Stop:
            continue
        found.append(phase)
    return found


def _in_steps(context: Context, phase: Phase, made: Sequence[Phase], options: Mapping[str, tree.Option]) -> Phase:
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
    return replace(phase, staleness=replace(phase.staleness, steps=steps, exact=not steps))


def _changing(made: Sequence[Phase]) -> set[Type]:
    """Models that have other weights after some step."""
    return {node.outputs[0].type for each in made for node in each.graph.walk() if NODES[node.op].updates}


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


@dataclass(frozen=True)
class _Bounds:
    """Writes a bound into the nodes that sample, and into those that carry rows over."""

    context: Context
    steps: int
    option: tree.Option
    late: str
    order: str
    makers: Mapping[str, tuple[Node, int]]
    """Of each value of the phase who makes it, and as which output."""
    types: Mapping[str, Type]
    """Of each value of the phase."""
    changing: Collection[Type]
    """Models that the program changes."""

    def graph(self, graph: Graph, held: int, period: int) -> Graph:
        """held: steps that rows which are sampled here may wait. period: steps from one time that it runs to the
        next."""
        return replace(graph, nodes=tuple(self.node(node, held, period) for node in graph.nodes))

    def node(self, node: Node, held: int, period: int) -> Node:
        op, said = NODES[node.op], dict[str, Constant]()
        if op.on_steps:
            period *= attr(node, "steps")
        carries, waits = op.loop == "rounds" and attr(node, "rest") == "carry", held
        if carries:
            waits += period
            said |= {"once": True} if self.late == "wait" else {"late": self.late}
            if self.order != "data" and attr(node, "ahead") is not None:
                self.goes_on(node)
                said |= {"order": self.order}
        if waits > self.steps and op.loop == "rounds":
            message = f"what is left over is {counted(waits, 'step')} older when it is trained on, "
            message += f"and `staleness={self.option.value.span.text}` does not grant that"
            hint = "`rest=later` asks its prompts again, `rest=drop` forgets it"
            raise self.context.stop("E0408", message, node.span, hint, (Related(self.option.span, "here"),))
        attrs = node.attrs
        if node.attr("staleness") is not None:
            attrs = tuple((name, self.steps if name == "staleness" else value) for name, value in attrs)
            attrs = tuple(each for each in attrs if each != ("staleness", 0))
            said = {"held": held} if self.steps and held else {}
        held = waits if self.late == "wait" else held
        regions = tuple(self.graph(region, held, period) for region in node.regions)
        if carries:
            regions = (self.looked_at(node, regions[0], str(said.get("order", "data"))),)
        return replace(node, attrs=(*attrs, *said.items()), regions=regions)

    def goes_on(self, node: Node) -> None:
        """The body of a `collect` may be at work in the next step: so it leaves nothing to the next batch but where the
        data are read on, and computes nothing with weights that another step has changed."""
        hint = "leave `order` out: batches are then taken in the order of the data"
        for value in node.region.inputs:
            what = value.name.split("@")[0]
            if not (isinstance(value.type, Handle) and value.type.kind == "cursor") and not what.endswith(".surplus"):
                message = f"batches end in any order with `order={self.order}`, and each hands `{what}` on to the next"
                raise self.context.stop("E0410", message, node.span, hint)
        for inner in node.region.walk():
            if NODES[inner.op].scores and self.types[model_of(inner)] in self.changing:
                what = model_of(inner).split("@")[0]
                message = f"a batch may go on when `{what}` has other weights, and `{inner.op}` is of those of one step"
                raise self.context.stop("E0410", message, inner.span, "move it behind the `collect`")

    def looked_at(self, node: Node, region: Graph, order: str) -> Graph:
        """The body of a `collect` that tells which rows are too old, or the oldest, of a table that was sampled with
        weights whose age is bounded."""
        made: list[Node] = []
        columns: dict[str, str] = {}
        for table, value in node.exported:
            if not isinstance(value.type, Table) or not value.type.sampled:
                continue
            source = sampler(table, self.makers)
            if source is None or source.attr("staleness") is None:
                continue
            name = next(name for name in _numbered(f"{table}.waited") if name not in self.makers)
            which = OLDEST if value.type.spans else "version"
            column = Value(name, value.type.columns()[which])
            model = model_of(source).split("@")[0]
            columns[name] = model
            made.append(Node("column", (table,), (column,), (("name", which),), span=node.span))
            if self.late != "wait":
                attrs = (("axis", node.attr("axis")), ("model", model), ("oldest", self.steps))
                made.append(Node("recent", (name,), (), attrs, span=node.span))
        if order == "deadline" and columns:
            said = (("axis", node.attr("axis")), ("models", tuple(columns.values())))
            made.append(Node("aged", tuple(columns), (), said, span=node.span))
        elif self.late == "wait":
            return region
        return replace(region, nodes=(*region.nodes, *made))


def _numbered(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}.{number}" for number in count(2))
