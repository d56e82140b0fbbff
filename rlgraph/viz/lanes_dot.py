"""Draws lanes as DOT text: a cluster for each lane, and edges with what travels."""

from __future__ import annotations

import pydot

from rlgraph.viz.dot import new_graph, quote_dot
from rlgraph.viz.lanes import LaneEdge, LanePhase, Lanes, LaneWork, PoolLane
from rlgraph.viz.theme import KINDS, LINE, ROLES


def to_dot(picture: Lanes) -> str:
    """Return DOT text."""
    drawing = new_graph("\n".join((picture.title, *picture.notes)))
    for index, lane in enumerate(picture.lanes):
        cluster = pydot.Cluster(
            f"lane{index}",
            label=quote_dot("\n".join(_head(lane))),
            style=quote_dot("rounded,filled"),
            fillcolor=quote_dot("#fbfbfd"),
            color=quote_dot("#d0d5dd"),
            labeljust="l",
            fontsize="11",
        )
        cluster.add_node(pydot.Node(f"lane{index}_in", shape="point", style="invis"))
        for work in picture.all_works():
            if work.lane == index:
                cluster.add_node(_node(work))
        drawing.add_subgraph(cluster)  # type: ignore[arg-type]
    for stage in picture.stages:
        for way in stage.ways:
            drawing.add_edge(_edge(way, stage))
    return str(drawing.to_string())


def _head(lane: PoolLane) -> list[str]:
    lines = [f"{lane.name}: {lane.note}", *lane.memory]
    return [*lines, *(", ".join(filter(None, (model.title, *model.how, model.seconds))) for model in lane.deployed)]


def _node(work: LaneWork) -> pydot.Node:
    paint = ROLES[work.role] if work.role else KINDS[work.kind]
    label = "\n".join(filter(None, (work.title, work.note, work.seconds)))
    style = "rounded,dashed" if work.kind == "next" else "rounded,filled"
    return pydot.Node(
        work.id,
        label=quote_dot(label),
        tooltip=quote_dot(work.text or work.title),
        style=quote_dot(style),
        fillcolor=quote_dot(paint.fill),
        color=quote_dot(paint.edge),
        fontcolor=quote_dot(paint.text),
    )


def _edge(way: LaneEdge, stage: LanePhase) -> pydot.Edge:
    lanes = {work.id: work.lane for work in stage.works}
    crosses = way.lane != lanes[way.target]
    label = "\n".join((", ".join(way.names), *way.sizes)) if way.names and crosses else ""
    options = {"label": quote_dot(label), "color": quote_dot(ROLES[way.role].edge if way.role else LINE)}
    if way.line != "data":
        options["style"] = "dashed"
    if not way.source:
        options["ltail"] = f"cluster_lane{way.lane}"
    return pydot.Edge(way.source or f"lane{way.lane}_in", way.target, None, **options)
