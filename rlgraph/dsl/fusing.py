"""Checks `fuse` lines of a schedule: which trainings can share a pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rlgraph.dsl import tree
from rlgraph.dsl.scope import Reporter
from rlgraph.errors import Related
from rlgraph.ir.graph import Graph, Node, Program
from rlgraph.ir.schedule import FuseLine
from rlgraph.ir.types import is_model
from rlgraph.ops import NODES
from rlgraph.ops.nodes import model_of


def check_fuse(
    reporter: Reporter, program: Program, line: tree.Fuse, models: Sequence[str], before: Sequence[FuseLine]
) -> FuseLine:
    """Return what a line says of trainings of the program, one model for each of its works; `before`: other lines."""
    if len(models) < 2:
        message = f"the training of `{models[0]}` fills nobody's bubbles: there is no other one"
        raise reporter.statement_error(
            "E0972", message, line.span, f"`fuse {models[0]}.train, OTHER.train`, or leave the line out"
        )
    for number, (model, work) in enumerate(zip(models, line.work, strict=True)):
        if model in models[:number]:
            first = Related(line.work[models.index(model)].span, "the first time")
            raise reporter.statement_error(
                "E0905", f"`{model}.train` is fused twice", work.span, "keep one of them", (first,)
            )
        for other_line in before:
            if model in other_line.models:
                related = (Related(other_line.span, "the first time"),)
                raise reporter.statement_error(
                    "E0905", f"`{model}.train` is fused twice", work.span, "keep one of them", related
                )
    for number, (model, work) in enumerate(zip(models, line.work, strict=True)):
        for earlier in models[:number]:
            why = fuse_conflict(program, earlier, model)
            if why:
                raise reporter.statement_error("E0972", why, work.span, "leave it out: it is trained by itself")
    return FuseLine(tuple(models), line.span)


def fuse_conflict(program: Program, one: str, other: str) -> str:
    """Return why the trainings of two models cannot be done at the same time; empty where they can."""
    for phase in program.phases:
        for graph in _graphs(phase.graph):
            first, second = ([*_trainings(graph, model)] for model in (one, other))
            if len(first) != len(second):
                return f"`{one}` and `{other}` are not trained in the same steps: each `train` needs one beside it"
            if len(first) > 1:
                return f"`{one}` and `{other}` are trained several times in one block"
            for node, other_node in zip(first, second, strict=True):
                if _waits(graph, other_node, node):
                    return f"the training of `{other}` waits for what that of `{one}` has made"
                if _waits(graph, node, other_node):
                    return f"the training of `{one}` waits for what that of `{other}` has made"
    return ""


def _graphs(graph: Graph) -> Iterator[Graph]:
    """Yield a graph and the regions of its loops."""
    yield graph
    for node in graph.nodes:
        for region in node.regions if not NODES[node.op].trains else ():
            yield from _graphs(region)


def _trainings(graph: Graph, model: str) -> Iterator[Node]:
    types = graph.value_types()
    for node in graph.nodes:
        if NODES[node.op].trains and is_model(kind := types[model_of(node)]) and kind.name == model:
            yield node


def _waits(graph: Graph, node: Node, other: Node) -> bool:
    """Return whether a node can begin only after the other. A node that replaces a model waits for those that still
    read the version before."""
    makers = {value.name: maker for maker in graph.nodes for value in maker.outputs}
    places = {id(placed): at for at, placed in enumerate(graph.nodes)}
    models = {name for name, kind in graph.value_types().items() if is_model(kind)}
    pending, seen = [node], set[int]()
    while pending:
        current = pending.pop()
        if current is other:
            return True
        if id(current) in seen:
            continue
        seen.add(id(current))
        pending += [makers[name] for name in current.inputs if name in makers]
        if any(is_model(value.type) for value in current.outputs):
            replaced = models.intersection(current.inputs)
            pending += [
                reader
                for reader in graph.nodes
                if places[id(reader)] < places[id(current)] and replaced.intersection(reader.inputs)
            ]
    return False
