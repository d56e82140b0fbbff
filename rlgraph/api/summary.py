"""A compiled program in a few lines: its models, what it needs from outside, and what waits for what."""

from __future__ import annotations

from collections.abc import Iterator

from rlgraph.ir.graph import Model, Node, Program
from rlgraph.ir.text import show_constant


def summary(program: Program) -> str:
    """For a person, without a line break at its end."""
    nodes = [node for phase in program.phases for node in phase.graph.walk()]
    lines = [f"{program.name}: {_count(nodes, 'node')}, {_count(program.models, 'model')}"]
    lines += _table([(model.name, _model(model, nodes)) for model in program.models])
    waits = [node for node in nodes if node.unit and node.unit.reason and not _always(node)]
    if waits:
        lines += ["", f"{_count(waits, 'barrier')}: a node that waits for its whole group or batch"]
        lines += _table(
            [(_name(node), f"per {node.unit.axis or 'batch'}: {node.unit.reason}") for node in waits if node.unit]
        )
    return "\n".join(lines)


def _always(node: Node) -> bool:
    """A barrier that every program has: nothing to learn from."""
    return node.op in ("read", "report") or node.name.startswith("report.") or ".loss." in node.name


def _count(things: list[Node] | tuple[Model, ...], word: str) -> str:
    return f"{len(things)} {word}{'s' * (len(things) != 1)}"


def _name(node: Node) -> str:
    if node.op in ("train", "minibatch", "collect", "every"):
        return f"{node.op} {node.name.split('@')[0]}" if node.op == "train" else node.op
    return node.name


def _model(model: Model, nodes: list[Node]) -> str:
    made = f"copy of {model.copy_of}" if model.copy_of else f"{model.kind}({_short(show_constant(model.source))})"
    does = dict.fromkeys(
        node.op for node in nodes if node.op in _WORK and node.inputs and node.inputs[0].split("@")[0] == model.name
    )
    return ", ".join([made, *(["frozen"] if model.frozen else []), *does])


_WORK = ("generate", "interact", "logprobs", "entropy", "values", "score", "train")


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def _table(rows: list[tuple[str, str]]) -> Iterator[str]:
    width = max((len(name) for name, _ in rows), default=0)
    for name, text in rows:
        yield f"  {name.ljust(width)}  {text}"
