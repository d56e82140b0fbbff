"""Draws a program's graph as DOT text, for Graphviz and other programs that read it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pydot

from rlgraph.ir.graph import Program
from rlgraph.viz.boxes import Body, Box, Scene, ValueLink, walk_boxes
from rlgraph.viz.measure import has_badge, pill_text
from rlgraph.viz.scene import to_scene
from rlgraph.viz.theme import BARRIER, KINDS, LINE, MUTED, ROLES

_SHAPES = {"data": "cylinder", "report": "note", "column": "box", "next": "box", "minimize": "box"}


def to_dot(program: Program) -> str:
    """Return DOT text: clusters for models and loops, edges with the types of their values."""
    return str(scene_to_pydot(to_scene(program)).to_string())


def scene_to_pydot(scene: Scene) -> pydot.Dot:
    """Return a scene as a pydot graph."""
    drawing = new_graph(scene.title)
    for index, section in enumerate(scene.sections):
        into: pydot.Graph = drawing
        if len(scene.sections) > 1:
            label = f"{section.title} {section.note}".strip()
            into = pydot.Cluster(f"phase{index}", label=quote_dot(label), color=quote_dot("#d0d5dd"))
            drawing.add_subgraph(into)  # type: ignore[arg-type]
        _add(into, section.body)
        for edge in _edges(section.body):
            drawing.add_edge(edge)
    return drawing


def new_graph(title: str) -> pydot.Dot:
    """Return an empty graph with the common style."""
    drawing = pydot.Dot(
        "rlgraph",
        graph_type="digraph",
        rankdir="TB",
        compound="true",
        label=quote_dot(title),
        labelloc="t",
        labeljust="l",
        fontname=quote_dot("Helvetica"),
        fontsize="18",
        newrank="true",
    )
    drawing.set_node_defaults(
        fontname=quote_dot("Helvetica"), fontsize="11", shape="box", style=quote_dot("rounded,filled")
    )
    drawing.set_edge_defaults(
        fontname=quote_dot("Courier"), fontsize="9", color=quote_dot(LINE), fontcolor=quote_dot(MUTED)
    )
    return drawing


def _add(into: pydot.Graph, body: Body) -> None:
    for box in body.boxes:
        if box.body is None:
            into.add_node(_node(box))
            continue
        paint = ROLES[box.role] if box.kind != "loop" else KINDS["loop"]
        broken = "dashed," if "frozen" in box.role else ""
        cluster = pydot.Cluster(
            box.id,
            label=quote_dot("\n".join(part for part in (box.title, box.note, box.waits) if part)),
            tooltip=quote_dot(box.tooltip),
            style=quote_dot(f"{broken}rounded,filled"),
            fillcolor=quote_dot(paint.fill),
            color=quote_dot(BARRIER if box.waits else paint.edge),
            fontcolor=quote_dot(paint.text),
            labeljust="l",
            fontsize="12",
        )
        if not any(inner.body is None for inner in walk_boxes(box.body)):
            cluster.add_node(pydot.Node(f"{box.id}_in", shape="point", style="invis"))
        _add(cluster, box.body)
        into.add_subgraph(cluster)  # type: ignore[arg-type]


def _node(box: Box) -> pydot.Node:
    paint = ROLES[box.role] if box.role else KINDS[box.kind]
    fill = paint.chip if box.kind == "op" else paint.edge if box.kind == "minimize" else paint.fill
    lines = [box.title, box.note, *box.lines, box.waits if has_badge(box) else ""]
    label = pill_text(box) if box.kind in _SHAPES and box.kind != "data" else "\n".join(line for line in lines if line)
    return pydot.Node(
        box.id,
        label=quote_dot(label),
        tooltip=quote_dot(box.tooltip),
        shape=_SHAPES.get(box.kind, "box"),
        fillcolor=quote_dot(fill),
        color=quote_dot(BARRIER if box.waits else paint.edge),
        fontcolor=quote_dot("#ffffff" if box.kind == "minimize" else paint.text),
        penwidth="2.5" if box.waits else "1",
    )


# Edges: from box to box, through the ports of the frames between them


def _edges(body: Body) -> Iterator[pydot.Edge]:
    boxes = {box.id: box for box in body.boxes}
    for link in body.links:
        if link.source and link.target:
            source, label, tail = _maker(boxes[link.source], link.out)
            for target, head in _users(boxes[link.target], link.into):
                yield _edge(link, source, target, label, tail, head)
    for box in body.boxes:
        if box.body:
            yield from _edges(box.body)


def _maker(box: Box, value: str) -> tuple[str, str, str]:
    """Return the box that makes a value, the value's label, and the cluster that stands for the box if there is
    none."""
    port = next((port for port in box.outputs if port.value == value), None)
    label = port.label if port else ""
    if box.body is None:
        return box.id, label, ""
    inside = port.inside if port else value
    link = next((link for link in box.body.links if not link.target and link.into == inside), None)
    inner = next((child for child in box.body.boxes if link and child.id == link.source), None)
    if link is None or inner is None:
        return _anchor(box), label, f"cluster_{box.id}"
    source, inner_label, tail = _maker(inner, link.out)
    return source, label or inner_label, tail


def _users(box: Box, value: str) -> Iterator[tuple[str, str]]:
    """Yield the boxes in a box that use a value, or else one of its boxes with the cluster that stands for it."""
    if box.body is None:
        yield box.id, ""
        return
    inside = next((port.inside for port in box.inputs if port.value == value), value)
    boxes = {child.id: child for child in box.body.boxes}
    links = [link for link in box.body.links if not link.source and link.out == inside and link.target]
    for link in links:
        yield from _users(boxes[link.target], link.into)
    if not links:
        yield _anchor(box), f"cluster_{box.id}"


def _edge(link: ValueLink, source: str, target: str, label: str, tail: str, head: str) -> pydot.Edge:
    options: dict[str, Any] = {"label": quote_dot(label), "tooltip": quote_dot(link.out)}
    options["color"] = quote_dot(ROLES[link.role].edge if link.role else LINE)
    if link.line != "data":
        options["style"] = "dashed"
    if tail:
        options["ltail"] = tail
    if head:
        options["lhead"] = head
    return pydot.Edge(source, target, None, **options)


def _anchor(box: Box) -> str:
    """Return a node in a cluster at which an edge can begin or end."""
    if box.body is None:
        return box.id
    return next((inner.id for inner in walk_boxes(box.body) if inner.body is None), f"{box.id}_in")


def quote_dot(text: str) -> str:
    """Return text as a DOT string; several lines are aligned on the left."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + escaped.replace("\n", "\\l") + ("\\l" if "\n" in text else "") + '"'
