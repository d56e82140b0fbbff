"""What changed between the graphs of two programs, node by node and option by option."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from rlgraph.errors import quoted_list
from rlgraph.explain.plan_changes import GRAPH, Change, Section, before_and_after
from rlgraph.ir.graph import Constant, ConstructorCall, Graph, Node, Phase, Program
from rlgraph.ir.text.program_text import constant_text, expr_text

OPERATION, READS = "operation", "reads"
_VERSION = re.compile(r"@\d+")


def graph_changes(before: Program, after: Program) -> list[Section]:
    """Return what changed of the declarations and of the graph; of what only one program has there is the name."""
    old, new = _declarations(before), _declarations(after)
    sections = {"declarations": list(_changes(old, new))}
    phases = [{phase.name: phase for phase in program.phases} for program in (before, after)]
    for name in dict.fromkeys([*phases[0], *phases[1]]):
        if name not in phases[0] or name not in phases[1]:
            sections[f"phase {name}"] = [Change("-" if name in phases[0] else "+", name)]
            continue
        parts = [_phase(program[name]) for program in phases]
        sections[GRAPH if name == "step" else f"{GRAPH} of {name}"] = list(_changes(*parts))
    return [Section(title, tuple(changes)) for title, changes in sections.items() if changes]


def _changes(old: Mapping[str, Mapping[str, str]], new: Mapping[str, Mapping[str, str]]) -> Iterator[Change]:
    """Yield the changes of things whose parts are texts."""
    for name in dict.fromkeys([*old, *new]):
        if name not in old or name not in new:
            yield Change("-" if name in old else "+", name)
            continue
        details = tuple(_details(old[name], new[name]))
        if details:
            yield Change("~", name or "the step", details)


def _details(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    """Yield what changed of one thing."""
    if old.get(OPERATION) != new.get(OPERATION):
        # The options of another operation are others.
        yield from before_and_after(old.get(OPERATION, ""), new.get(OPERATION, ""), OPERATION)
        return
    for part in dict.fromkeys([*old, *new]):
        was, now = old.get(part, ""), new.get(part, "")
        if was == now:
            continue
        if part == READS:
            given = [text.split(", ") for text in (was, now)]
            more, less = ([name for name in side if name not in other] for side, other in (given[::-1], given))
            words = [f"also {quoted_list(more, 'and')}"] * bool(more) + [f"no more {quoted_list(less, 'and')}"] * bool(
                less
            )
            yield f"reads {', '.join(words) or 'the same in another order'}"
        else:
            yield from before_and_after(was, now, part)


def _phase(phase: Phase) -> dict[str, dict[str, str]]:
    options = {"staleness": str(phase.staleness)}
    if phase.steps is not None:
        options["steps"] = str(phase.steps)
    return {"": options, **_nodes(phase.graph)}


def _declarations(program: Program) -> dict[str, dict[str, str]]:
    declared: dict[str, dict[str, str]] = {}
    for model in program.models:
        source = f"copy of {model.copy_of}" if model.copy_of else constant_text(model.source)
        declared[f"model {model.name}"] = {
            "kind": model.kind,
            "source": source,
            "frozen": str(model.frozen).lower(),
            **_options(model.options),
        }
    for outside in program.outside:
        declared[f"{outside.kind} {outside.name}"] = _record(outside.record)
    for state in program.states:
        declared[f"state {state.name}"] = {"initial": repr(state.initial), "keyed": str(state.keyed).lower()}
    return declared


def _record(record: ConstructorCall) -> dict[str, str]:
    arguments = ", ".join(map(constant_text, record.args))
    return {"": f"{record.name}({arguments})", **_options(record.options)}


def _options(options: tuple[tuple[str, Constant], ...]) -> dict[str, str]:
    return {name: constant_text(value) for name, value in options}


def _nodes(graph: Graph) -> dict[str, dict[str, str]]:
    """Return what is said of every node, by its name without the version of a handle."""
    nodes: dict[str, dict[str, str]] = {}
    for node in graph.walk():
        name = f"{node.op} {_plain(node.name)}" if node.regions else _plain(node.name)
        while name in nodes:
            name += "'"
        nodes[name] = _node(node)
    return nodes


def _node(node: Node) -> dict[str, str]:
    # What a formula reads is in it.
    told = {OPERATION: node.op} if node.body else {OPERATION: node.op, READS: _plain(", ".join(node.inputs))}
    told |= {"" if let.name == node.name else f"`{let.name}`": _plain(expr_text(let.expr)) for let in node.body}
    told |= _options(node.attrs)
    if node.unit is not None:
        told["works on"] = "the whole batch" if node.unit.axis is None else f"a row of `{node.unit.axis}`"
    return told


def _plain(text: str) -> str:
    return _VERSION.sub("", text)
