"""Applies `staleness=K` to a phase whose graph is known: the bound in steps, and how much of it rows that wait use up.

With `unit=update`: in a step that updates a model u times, its last update comes after u - 1 others, and a row that was
sampled d steps before has seen d * u fewer still. So a row is at most K updates behind if d * u + u - 1 <= K.

Rows that a `collect` carries over are older when they are trained on. So they are sampled with weights that are that
much younger than the bound, and carried over once. With `late=drop` or `again` they are sampled with any weights that
the bound grants, carried over as often as necessary, and checked each time: the body of the `collect` says by which
versions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from rlgraph.dsl import tree
from rlgraph.dsl.context import Context
from rlgraph.dsl.scope import StatementError
from rlgraph.errors import Related, count_phrase
from rlgraph.ir.graph import Constant, Graph, Node, Phase, Value
from rlgraph.ir.types import OLDEST, StateHandle, Table, Type
from rlgraph.ops.nodes import NODES, attribute_value, model_of, models_beside, sampling_node


def apply_staleness_bounds(context: Context, made: Sequence[Phase], written: Mapping[str, tree.Phase]) -> list[Phase]:
    """Return the phases with the bound in each node that it concerns; `written`: their syntax by name."""
    bounded_phases = []
    for phase in made:
        options = {option.name: option for option in written[phase.name].options}
        late = options["late"].value.span.covered_text if "late" in options else "wait"
        order = options["order"].value.span.covered_text if "order" in options else "data"
        try:
            if phase.staleness.updates is not None:
                phase = _in_steps(context, phase, made, options)
            if "staleness" in options:
                makers = {
                    value.name: (node, index) for node in phase.graph.walk() for index, value in enumerate(node.outputs)
                }
                steps, option, types = phase.staleness.steps, options["staleness"], phase.graph.value_types()
                bounds = _Bounds(context, steps, option, late, order, makers, types, _changing(made))
                phase = replace(phase, graph=bounds.graph_with_bounds(phase.graph, 0, 1))
                if late != "wait" and not any(node.attr("late") for node in phase.graph.walk()):
                    message = f"nothing waits for a later step here, so that `late={late}` has no rows to be about"
                    hint = "leave `late` out; rows that a `collect` carries over (`rest=carry`) may get too old"
                    raise context.statement_error("E0409", message, options["late"].value.span, hint)
                if order != "data" and not any(node.attr("order") for node in phase.graph.walk()):
                    message = f"no batches are under way side by side here that `order={order}` could be about"
                    hint = "write `collect DATA(ROWS, ahead=1.5):`, and carry over what is left (`rest=carry`)"
                    raise context.statement_error("E0409", message, options["order"].value.span, hint)
        except StatementError:
            continue
        bounded_phases.append(phase)
    return bounded_phases


def _in_steps(context: Context, phase: Phase, phases: Sequence[Phase], options: Mapping[str, tree.Option]) -> Phase:
    """Return the phase with its bound in updates translated into steps."""
    allowed, types = phase.staleness.updates, phase.graph.value_types()
    assert allowed is not None
    sampling = {types[model_of(node)] for node in phase.graph.walk() if NODES[node.op].generates}
    counts: Counter[tuple[str, Type]] = Counter()
    for other in phases:
        for node, times in _updates(other.graph, 1):
            model = node.outputs[0].type
            if model in sampling and times is None:
                message = f"how often a step updates `{model_of(node).split('@')[0]}` is not known before it runs"
                hint = "count steps: leave `unit=update` out, or move the update out of the `collect`"
                related = (Related(node.span, "as often as batches are needed"),)
                raise context.statement_error("E0408", message, options["unit"].value.span, hint, related)
            if model in sampling:
                counts[other.name, model] += times or 0
    # A step without updates makes no version.
    in_step = max((updates for (name, _), updates in counts.items() if name == phase.name), default=1)
    most = max(counts.values(), default=1)
    steps = (allowed - (in_step - 1)) // most
    if steps < 0:
        updates = count_phrase(in_step, "update")
        message = f"a step takes {updates}, and its own rows are {in_step - 1} behind at the last of them"
        hint = f"write at least `staleness={in_step - 1}`; `staleness={in_step - 1 + most}` lets a step run ahead"
        raise context.statement_error("E0408", message, options["staleness"].value.span, hint)
    span = phase.staleness.span
    if not steps and span != "row":
        message = f"`staleness={allowed}` lets no step run ahead, and `span={span}` is for rows of several versions"
        hint = f"write at least `staleness={in_step - 1 + most}`: a step takes {count_phrase(in_step, 'update')}"
        raise context.statement_error("E0407", message, options["span"].value.span, hint)
    return replace(phase, staleness=replace(phase.staleness, steps=steps, exact=not steps))


def _changing(phases: Sequence[Phase]) -> set[Type]:
    """Return the models that some step updates."""
    return {node.outputs[0].type for phase in phases for node in phase.graph.walk() if NODES[node.op].updates}


def _updates(graph: Graph, times: int | None) -> Iterator[tuple[Node, int | None]]:
    """Yield the nodes that update models, with how often they do in a step at most; None if unknown."""
    for node in graph.nodes:
        op, inner_times = NODES[node.op], times
        if op.updates:
            yield node, times
        if op.loop == "slices" and times is not None:
            inner_times = times * attribute_value(node, "parts") * attribute_value(node, "epochs")
        elif op.loop == "rounds":
            inner_times = None
        for region in node.regions if not op.trains else ():
            yield from _updates(region, inner_times)


@dataclass(frozen=True)
class _Bounds:
    """Writes a bound into the nodes that sample, and into those that carry rows over."""

    context: Context
    steps: int
    option: tree.Option
    late: str
    order: str
    makers: Mapping[str, tuple[Node, int]]
    """The node that makes each value of the phase, and as which of its outputs."""
    types: Mapping[str, Type]
    """The type of each value of the phase."""
    changing: Collection[Type]
    """The models that the program changes."""

    def graph_with_bounds(self, graph: Graph, held: int, period: int) -> Graph:
        """Return the graph with bounds. `held`: steps that rows which are sampled here may wait. `period`: steps from
        one run of the graph to the next."""
        return replace(graph, nodes=tuple(self.node_with_bounds(node, held, period) for node in graph.nodes))

    def node_with_bounds(self, node: Node, held: int, period: int) -> Node:
        """Return the node with what the bound means for it."""
        op, added = NODES[node.op], dict[str, Constant]()
        if op.on_steps:
            period *= attribute_value(node, "steps")
        carries, waits = op.loop == "rounds" and attribute_value(node, "rest") == "carry", held
        if carries:
            waits += period
            added |= {"once": True} if self.late == "wait" else {"late": self.late}
            if self.order != "data" and attribute_value(node, "ahead") is not None:
                self.check_may_overlap(node)
                added |= {"order": self.order}
        if waits > self.steps and op.loop == "rounds":
            message = f"what is left over is {count_phrase(waits, 'step')} older when it is trained on, "
            message += f"and `staleness={self.option.value.span.covered_text}` does not grant that"
            hint = "`rest=later` asks its prompts again, `rest=drop` forgets it"
            raise self.context.statement_error("E0408", message, node.span, hint, (Related(self.option.span, "here"),))
        attrs = node.attrs
        if node.attr("staleness") is not None:
            attrs = tuple((name, self.steps if name == "staleness" else value) for name, value in attrs)
            attrs = tuple(pair for pair in attrs if pair != ("staleness", 0))
            added = {"held": held} if self.steps and held else {}
        held = waits if self.late == "wait" else held
        regions = tuple(self.graph_with_bounds(region, held, period) for region in node.regions)
        if carries:
            regions = (self.with_age_checks(node, regions[0], str(added.get("order", "data"))),)
        return replace(node, attrs=(*attrs, *added.items()), regions=regions)

    def check_may_overlap(self, node: Node) -> None:
        """Check that the body of a `collect` may run on into the next step: it hands the next batch only the position
        in the data, and computes nothing with weights that another step changes."""
        hint = "leave `order` out: batches are then taken in the order of the data"
        for value in node.region.inputs:
            name = value.name.split("@")[0]
            if not (isinstance(value.type, StateHandle) and value.type.kind == "cursor") and not name.endswith(
                ".surplus"
            ):
                message = f"batches end in any order with `order={self.order}`, and each hands `{name}` on to the next"
                raise self.context.statement_error("E0410", message, node.span, hint)
        for inner in node.region.walk():
            read = (model_of(inner), *models_beside(inner)) if NODES[inner.op].scores else ()
            for name in (value.split("@")[0] for value in read if self.types[value] in self.changing):
                message = f"a batch may go on when `{name}` has other weights, and `{inner.op}` is of those of one step"
                raise self.context.statement_error("E0410", message, inner.span, "move it behind the `collect`")

    def with_age_checks(self, node: Node, region: Graph, order: str) -> Graph:
        """Return the body of a `collect` with nodes that tell which rows are too old, or the oldest, in tables that
        were sampled under the bound."""
        added: list[Node] = []
        columns: dict[str, str] = {}
        for table, value in node.exported_values:
            if not isinstance(value.type, Table) or not value.type.sampled:
                continue
            source = sampling_node(table, self.makers)
            if source is None or source.attr("staleness") is None:
                continue
            name = next(name for name in _numbered(f"{table}.waited") if name not in self.makers)
            version_column = OLDEST if value.type.spans else "version"
            column = Value(name, value.type.column_types()[version_column])
            model = model_of(source).split("@")[0]
            columns[name] = model
            added.append(Node("column", (table,), (column,), (("name", version_column),), span=node.span))
            if self.late != "wait":
                attrs = (("axis", node.attr("axis")), ("model", model), ("oldest", self.steps))
                added.append(Node("recent", (name,), (), attrs, span=node.span))
        if order == "deadline" and columns:
            aged_attrs = (("axis", node.attr("axis")), ("models", tuple(columns.values())))
            added.append(Node("aged", tuple(columns), (), aged_attrs, span=node.span))
        elif self.late == "wait":
            return region
        return replace(region, nodes=(*region.nodes, *added))


def _numbered(name: str) -> Iterator[str]:
    """Yield the name, then the name with 2, 3, ... added."""
    yield name
    yield from (f"{name}.{number}" for number in count(2))
