"""Turns a program's graph into a scene: which box each node becomes, and the links between boxes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from rlgraph.errors import NO_SPAN, Span
from rlgraph.ir.graph import Graph, Model, Node, Phase, Program, Value, program_axes
from rlgraph.ir.text.program_text import constant_text, expr_text, node_lines
from rlgraph.ir.types import StateHandle, is_model
from rlgraph.ops import NODES, model_of
from rlgraph.viz import captions
from rlgraph.viz.boxes import Body, Box, BoxKind, Line, Port, Role, Scene, Section, ValueLink
from rlgraph.viz.containers import DraftBody, gather_containers

Said = tuple[BoxKind, str, str, tuple[str, ...]]
"""The kind, title, note and lines of a box."""

_ROLES: dict[str, Role] = {"causal_lm": "policy", "value_lm": "critic", "reward_lm": "reward"}
_FROZEN: dict[Role, Role] = {"policy": "policy frozen", "critic": "critic frozen", "reward": "reward frozen"}


def to_scene(program: Program) -> Scene:
    """Return what there is to draw of a program: a section for each phase."""
    maker = _Maker(program)
    return Scene(program.name, tuple(maker.make_section(phase) for phase in program.phases))


def role_of_model(model: Model) -> Role:
    """Return the role of a model, for its colour."""
    role = _ROLES.get(model.kind, "policy")
    return _FROZEN[role] if model.frozen else role


class _Maker:
    """Makes boxes of nodes; numbers them in the order of the graph's text."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.models = {model.name: model for model in program.models}
        self.axes = {key: axis.name for key, axis in program_axes(program).items()}
        self.types = {name: kind for p in program.phases for name, kind in p.graph.value_types().items()}
        self.count = 0

    def next_id(self) -> str:
        self.count += 1
        return f"n{self.count}"

    def make_section(self, phase: Phase) -> Section:
        draft = DraftBody()
        used = {name for node in phase.graph.nodes for name in node.inputs}
        for value in phase.graph.inputs:
            if self.make_port(value.name, "").line == "state" and value.name in used and not _is_cursor(value):
                self.add_box(draft, self.make_state_box(value))
        self.add_nodes(draft, phase.graph, "")
        for first, last in zip(phase.graph.inputs, phase.graph.outputs, strict=False):
            if last in draft.sources and last != first.name and not _is_cursor(first):
                self.add_box(draft, self.make_state_exit_box(first, last))
        gather_containers(draft, self.empty_containers(draft))
        return Section(phase.name, captions.phase_text(phase), _pruned(draft.linked_body()))

    def add_nodes(self, draft: DraftBody, graph: Graph, trained: str) -> None:
        """Add a box for each node; `trained` is the version of the weights that the frame trains."""
        small = report_only_nodes(graph)
        for node in graph.nodes:
            if _is_report(node):
                for metric in self.make_metric_boxes(node, small):
                    self.add_box(draft, metric)
            if _is_report(node) or node.name in small:
                continue
            box = self.make_frame(node) if node.regions else self.make_leaf_box(node)
            if model_of(node) and not node.regions:
                name = self.owner_model(node)
                if name and node.inputs[0] == trained:
                    box = replace(box, role=self.role_named(name), inputs=box.inputs[1:])
                elif name:
                    draft.owners[box.id] = (name, node.inputs[0])
                    box = replace(box, role=self.role_named(name))
            self.add_box(draft, box)

    def add_box(self, draft: DraftBody, box: Box) -> None:
        draft.boxes.append(box)
        draft.sources.update({port.value: box.id for port in box.outputs})

    # Boxes that hold none

    def make_metric_boxes(self, node: Node, minor: dict[str, Node]) -> list[Box]:
        """Return a box for each metric, beside what it is made of: with the mathematics that nothing else uses."""
        names = node.attr("names", ())
        made = []
        for index, value in enumerate(node.inputs):
            name = str(names[index]) if isinstance(names, tuple) and index < len(names) else value
            source = minor.get(value)
            formula = expr_text(source.body[-1].expr) if source else value
            title = captions.shorten_text(
                name if _base(formula) == name else f"{name} = {formula}", captions.METRIC_COLUMNS
            )
            inputs = tuple(self.make_port(used, used) for used in (source.inputs if source else (value,)))
            box = self.make_box(source or node, "report", title, "", inputs=inputs)
            text = "\n".join([*(node_lines(source) if source else ()), *node_lines(node)])
            made.append(replace(box, text=text, waits=""))
        return made

    def make_leaf_box(self, node: Node) -> Box:
        kind, title, note, lines = self.captions_of(node)
        inputs = tuple(self.make_port(name, name) for name in dict.fromkeys(node.inputs))
        outputs = tuple(
            self.make_port(value.name, captions.value_label(value, title))
            for value in node.outputs
            if not _is_cursor(value)
        )
        return self.make_box(node, kind, title, note, lines, inputs=inputs, outputs=outputs)

    def captions_of(self, node: Node) -> Said:
        """Return the kind, title, note and lines of a node without regions."""
        if node.op in _CAPTIONED:
            return _CAPTIONED[node.op](self, node)
        shown = captions.changed_options(node)
        if model_of(node):
            env, input_type = node.attr("env"), self.types[node.inputs[1]]
            source = f"from {input_type.name}" if isinstance(input_type, StateHandle) else ""
            with_env = f"with {env}" if env else ""
            return "op", node.op, ", ".join(part for part in (source, with_env, shown) if part), ()
        axis = node.attr("axis")
        title = f"{node.op} {self.axes.get(str(axis), axis)}" if isinstance(axis, str) else node.op
        return "table", title, shown, ()

    def tensor_node_captions(self, node: Node) -> Said:
        return "tensor", ", ".join(value.name for value in node.outputs), "", captions.formula_lines(node)

    def column_node_captions(self, node: Node) -> Said:
        return "column", f"{node.inputs[0]}.{node.attr('name')}", "", ()

    def read_node_captions(self, node: Node) -> Said:
        return "data", node.name, self.constructor_call_text(_base(node.inputs[0])), ()

    def call_node_captions(self, node: Node) -> Said:
        func = node.attr("func")
        return "call", func, self.constructor_call_text(func), ()

    def constructor_call_text(self, name: str) -> str:
        """Return what a data source or a function is made of."""
        outside = next((candidate for candidate in self.program.outside if candidate.name == name), None)
        return captions.constructor_call_text(outside.record, outside.kind) if outside else ""

    def make_state_box(self, value: Value) -> Box:
        name = value.name.split("@")[0]
        state = next((state for state in self.program.states if state.name == name), None)
        note = f"state, starts at {state.initial:g}" if state else "kept across steps"
        outputs = (self.make_port(value.name, captions.value_label(value, name)),)
        return _of(Box(self.next_id(), "state", name, note, outputs=outputs), state.span if state else NO_SPAN)

    def make_state_exit_box(self, first: Value, last: str) -> Box:
        """Return the box where a model or a state leaves the step."""
        name = first.name.split("@")[0]
        model = self.models.get(name)
        state = next((state for state in self.program.states if state.name == name), None)
        origin = model or state
        text = f"{last} is where the next step starts"
        box = Box(self.next_id(), "next", name, "next step", inputs=(self.make_port(last, last),), text=text)
        return _of(replace(box, role=self.role_named(name) if model else ""), origin.span if origin else NO_SPAN)

    def make_box(
        self,
        node: Node,
        kind: BoxKind,
        title: str,
        note: str,
        lines: tuple[str, ...] = (),
        *,
        inputs: tuple[Port, ...] = (),
        outputs: tuple[Port, ...] = (),
        body: Body | None = None,
        role: Role = "",
    ) -> Box:
        waits = captions.barrier_text(node.unit, self.axes)
        return Box(
            self.next_id(),
            kind,
            title,
            note,
            lines,
            role,
            inputs,
            outputs,
            body,
            waits,
            node.unit.reason if node.unit else "",
            "\n".join(node_lines(node)),
            source_lines(node),
            node.span.source.path,
        )

    # Frames

    def make_frame(self, node: Node) -> Box:
        region, count = node.region, len(node.carried_input_names)
        inputs = [
            self.make_port(outer, _base(inner.name), inner.name)
            for outer, inner in zip(node.inputs, region.inputs, strict=False)
            if not _is_cursor(inner)
        ]
        inputs += [self.make_port(name, _base(name), name) for name in node.captured_values]
        draft = DraftBody(sources={port.inside: "" for port in inputs})
        trained = _base(model_of(node)) if NODES[node.op].trains else ""
        self.add_nodes(draft, region, region.inputs[0].name if trained and count else "")
        outputs = []
        for index, (value, inner) in enumerate(zip(node.outputs, region.outputs, strict=False)):
            if _is_cursor(value) or (index < count and inner == region.inputs[index].name):
                continue
            if index < count and not isinstance(self.types[inner], StateHandle) and isinstance(value.type, StateHandle):
                goal = Box(
                    self.next_id(),
                    "minimize",
                    "minimize",
                    inner,
                    inputs=(Port(inner, inner),),
                    outputs=(self.make_port(value.name, ""),),
                    role=self.role_named(trained),
                    text=f"minimize {inner}",
                )
                maker = next(
                    (candidate for candidate in region.nodes if inner in (v.name for v in candidate.outputs)), node
                )
                self.add_box(draft, replace(goal, rows=source_lines(maker), file=maker.span.source.path))
                inner = value.name
            port = self.make_port(value.name, captions.value_label(value), inner)
            outputs.append(port)
            draft.ends.append(ValueLink(draft.sources.get(inner, ""), inner, "", inner, port.line, port.role))
        gather_containers(draft, self.empty_containers(draft))
        body = draft.linked_body()
        in_ports, out_ports = tuple(inputs), tuple(outputs)
        if trained:
            title, note, role = f"train {trained}", captions.training_text(node, self.axes), self.role_named(trained)
            return self.make_box(node, "train", title, note, inputs=in_ports, outputs=out_ports, body=body, role=role)
        title, note = captions.loop_captions(node, self.axes)
        return self.make_box(node, "loop", title, note, inputs=in_ports, outputs=out_ports, body=body)

    def owner_model(self, node: Node) -> str:
        """Return the model that performs an operation."""
        name = _base(model_of(node))
        return name if name in self.models else ""

    def make_port(self, name: str, label: str, inside: str = "") -> Port:
        """Return a port for a value, drawn by what the value is."""
        kind = self.types[name]
        role: Role = ""
        line: Line = "state" if "@" in name else "data"
        if is_model(kind):
            line, role = "weights", self.role_named(kind.name)
        return Port(name, label, line, inside, role)

    def role_named(self, name: str) -> Role:
        return role_of_model(self.models[name]) if name in self.models else ""

    def empty_containers(self, draft: DraftBody) -> dict[tuple[str, str], Box]:
        """Return an empty container for each model that works in a body."""
        return {owner: self.empty_container(self.models[owner[0]]) for owner in draft.owners.values()}

    def empty_container(self, model: Model) -> Box:
        source = "" if model.copy_of or model.source is None else f" {constant_text(model.source)}"
        text = f"model {model.name}: {captions.model_text(model)}{source}"
        role = self.role_named(model.name)
        return _of(Box("", "model", model.name, captions.model_text(model), role=role, text=text), model.span)


_CAPTIONED: Mapping[str, Callable[[_Maker, Node], Said]] = {
    "tensor": _Maker.tensor_node_captions,
    "column": _Maker.column_node_captions,
    "read": _Maker.read_node_captions,
    "call": _Maker.call_node_captions,
}
"""The operations with captions of their own."""


def _of(box: Box, span: Span) -> Box:
    """Return a box with the place in the program that it was made of."""
    return replace(box, rows=(span.line,), file=span.source.path) if span.line else box


def source_lines(node: Node) -> tuple[int, ...]:
    """Return the lines of text that a node was made of: more than one if nodes were fused."""
    spans = [node.span, *(let.expr.span for let in node.body)]
    return tuple(sorted({span.line for span in spans if span.line and span.source.path == node.span.source.path}))


def _base(version: str) -> str:
    """Return `actor` for `actor@2`."""
    return version.split("@")[0]


def _is_cursor(value: Value) -> bool:
    # The position of a data source in its file is not drawn, nor the surplus that `collect` keeps for later.
    return isinstance(value.type, StateHandle) and (value.type.kind == "cursor" or value.type.name.endswith(".surplus"))


def _pruned(body: Body) -> Body:
    """Return a body without unused ports: first weights, values that nothing uses after a loop."""
    boxes = []
    used = {(link.source, link.out) for link in body.links}
    for box in body.boxes:
        arriving = {link.into for link in body.links if link.target == box.id}
        if box.body:
            missing = {port.inside for port in box.inputs if port.value not in arriving}
            outputs = tuple(port for port in box.outputs if (box.id, port.value) in used or port.line != "data")
            outputs_inside = {port.inside for port in outputs}
            links = tuple(
                link
                for link in box.body.links
                if (link.source or link.out not in missing) and (link.target or link.into in outputs_inside)
            )
            box = replace(box, outputs=outputs, body=_pruned(replace(box.body, links=links)))
        boxes.append(replace(box, inputs=tuple(port for port in box.inputs if port.value in arriving)))
    return replace(body, boxes=tuple(boxes))


def _is_report(node: Node) -> bool:
    return node.op == "report"


def report_only_nodes(graph: Graph) -> dict[str, Node]:
    """Return the tensor nodes that only a report uses, by the value they make."""
    users: dict[str, list[bool]] = {}
    for node in graph.nodes:
        for name in node.inputs:
            users.setdefault(name, []).append(_is_report(node))
    return {
        node.name: node
        for node in graph.nodes
        if len(node.body) == 1 and users.get(node.name) == [True] and node.name not in graph.outputs
    }
