"""A program's graph as DOT text, for Graphviz and whatever else reads it."""

from __future__ import annotations

from collections.abc import Iterator

import pydot

from rlgraph.ir.graph import Program
from rlgraph.viz.boxes import Body, Box, Link, Scene, walk
from rlgraph.viz.measure import has_badge, pill
from rlgraph.viz.scene import to_scene
from rlgraph.viz.theme import BARRIER, KINDS, LINE, MUTED, ROLES

_SHAPES = {"data": "cylinder", "report": "note", "column": "box", "next": "box", "minimize": "box"}


def to_dot(program: Program) -> str:
    """DOT text: clusters for models and loops, edges with the types of their values."""
    return str(graph(to_scene(program)).to_string())


def graph(scene: Scene) -> pydot.Dot:
    """A scene as a pydot graph."""
    found = pydot.Dot(
        "rlgraph", graph_type="digraph", rankdir="TB", compound="true", label=_quoted(scene.title), labelloc="t",
        labeljust="l", fontname=_quoted("Helvetica"), fontsize="18", newrank="true",
    )  # fmt: skip
    found.set_node_defaults(fontname=_quoted("Helvetica"), fontsize="11", shape="box", style=_quoted("rounded,filled"))
    found.set_edge_defaults(fontname=_quoted("Courier"), fontsize="9", color=_quoted(LINE), fontcolor=_quoted(MUTED))
    for at, section in enumerate(scene.sections):
        into: pydot.Graph = found
        if len(scene.sections) > 1:
            label = f"{section.title} {section.note}".strip()
            into = pydot.Cluster(f"phase{at}", label=_quoted(label), color=_quoted("#d0d5dd"))
            found.add_subgraph(into)
        _add(into, section.body)
        for edge in _edges(section.body):
            found.add_edge(edge)
    return found


def _add(into: pydot.Graph, body: Body) -> None:
    for box in body.boxes:
        if box.body is None:
            into.add_node(_node(box))
            continue
        paint = ROLES[box.role] if box.kind != "loop" else KINDS["loop"]
        broken = "dashed," if "frozen" in box.role else ""
        cluster = pydot.Cluster(
            box.id, label=_quoted("\n".join(part for part in (box.title, box.note, box.waits) if part)),
            tooltip=_quoted(box.tip), style=_quoted(f"{broken}rounded,filled"), fillcolor=_quoted(paint.fill),
            color=_quoted(BARRIER if box.waits else paint.edge), fontcolor=_quoted(paint.text), labeljust="l",
            fontsize="12",
        )  # fmt: skip
        if not any(inner.body is None for inner in walk(box.body)):
            cluster.add_node(pydot.Node(f"{box.id}_in", shape="point", style="invis"))
        _add(cluster, box.body)
        into.add_subgraph(cluster)


def _node(box: Box) -> pydot.Node:
    paint = ROLES[box.role] if box.role else KINDS[box.kind]
    fill = paint.chip if box.kind == "op" else paint.edge if box.kind == "minimize" else paint.fill
    lines = [box.title, box.note, *box.lines, box.waits if has_badge(box) else ""]
    label = pill(box) if box.kind in _SHAPES and box.kind != "data" else "\n".join(line for line in lines if line)
    return pydot.Node(
        box.id, label=_quoted(label), tooltip=_quoted(box.tip), shape=_SHAPES.get(box.kind, "box"),
        fillcolor=_quoted(fill), color=_quoted(BARRIER if box.waits else paint.edge),
        fontcolor=_quoted("#ffffff" if box.kind == "minimize" else paint.text), penwidth="2.5" if box.waits else "1",
    )  # fmt: skip


# Edges: from box to box, through the ports of the frames between them


def _edges(body: Body) -> Iterator[pydot.Edge]:
    boxes = {box.id: box for box in body.boxes}
    for link in body.links:
        if link.source and link.target:
            yield _edge(link, boxes[link.source], boxes[link.target])
    for box in body.boxes:
        if box.body:
            yield from _edges(box.body)
        for port in box.inputs:
            yield from _inward(body, box, port.inside, port.value)


def _inward(body: Body, frame: Box, inside: str, value: str) -> Iterator[pydot.Edge]:
    """What the users of a value inside a frame get of it, from the box outside that makes it."""
    if frame.body is None:
        return
    source = _source(body, frame, value)
    inner = {box.id: box for box in frame.body.boxes}
    for link in frame.body.links:
        if source and not link.source and link.out == inside and link.target:
            yield _edge(link, source, inner[link.target], value)


def _source(body: Body, frame: Box, value: str) -> Box | None:
    link = next((link for link in body.links if link.target == frame.id and link.into == value and link.source), None)
    return next((box for box in body.boxes if link and box.id == link.source), None)


def _edge(link: Link, source: Box, target: Box, value: str = "") -> pydot.Edge:
    tail, made = _end(source, value or link.out)
    paint = ROLES[link.role].edge if link.role else LINE
    options = {"label": _quoted(made), "color": _quoted(paint), "tooltip": _quoted(link.out)}
    if link.line != "data":
        options["style"] = "dashed"
    if source.body and not tail[1]:
        options["ltail"] = f"cluster_{source.id}"
    if target.body:
        options["lhead"] = f"cluster_{target.id}"
    return pydot.Edge(tail[0], _anchor(target), **options)


def _end(box: Box, value: str) -> tuple[tuple[str, bool], str]:
    """The leaf that makes a value, whether it truly does, and the value's label."""
    port = next((port for port in box.outputs if port.value == value), None)
    label = port.label if port else ""
    while box.body:
        inside = port.inside if port else value
        link = next((link for link in box.body.links if not link.target and link.into == inside), None)
        inner = next((child for child in box.body.boxes if link and child.id == link.source), None)
        if inner is None or link is None:
            return (_anchor(box), False), label
        box = inner
        port = next((port for port in box.outputs if port.value == link.out), None)
        label = label or (port.label if port else "")
    return (box.id, True), label


def _anchor(box: Box) -> str:
    """A node in a cluster for an edge to end at."""
    if box.body is None:
        return box.id
    return next((inner.id for inner in walk(box.body) if inner.body is None), f"{box.id}_in")


def _quoted(text: str) -> str:
    """As a DOT string; its lines stay left-aligned."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{plain.replace(chr(10), chr(92) + "l")}"' if "\n" not in text else f'"{plain.replace(chr(10), chr(92) + "l")}\\l"'
