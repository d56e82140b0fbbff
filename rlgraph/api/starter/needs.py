"""What a program needs from outside to run, as its graph says it: columns of the data, functions, environments, and
models that have to be trained already."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from rlgraph.ir.graph import Node, Program, Ref, operations_in
from rlgraph.ir.types import Table, Type
from rlgraph.ops import NODES, TENSOR, attribute_value
from rlgraph.ops.nodes import prompt_column_of
from rlgraph.ops.shared_base_models import has_changing_weights


@dataclass
class DataNeeds:
    """What the rows of a data source need."""

    prompts: list[str] = field(default_factory=list)
    """Columns that a model answers, or that stand before an answer."""
    answers: list[str] = field(default_factory=list)
    """Columns of whole answers, in the order in which the program takes them."""
    numbers: list[str] = field(default_factory=list)
    """Columns that are calculated with."""
    truths: list[str] = field(default_factory=list)
    """Columns that say yes or no of a row, of its answer where it has one."""
    texts: list[str] = field(default_factory=list)
    """Other columns."""
    graded: bool = False
    """Whether a function or an environment judges answers, which needs the right one."""


@dataclass
class Needs:
    """What a program needs."""

    data: dict[str, DataNeeds]
    """The needs of each data source, by its name."""
    functions: dict[str, tuple[str, ...]]
    """The columns that the program itself computes for each function."""
    environments: dict[str, tuple[str, ...]]
    """The players of each environment, by its name; none where one model acts."""
    judges: list[str]
    """Value and reward models that nothing trains, so that they have to come with a head."""


def needs_of(program: Program) -> Needs:
    """Return what a program needs."""
    data = {thing.name: DataNeeds() for thing in program.outside if thing.kind == "data"}
    environments: dict[str, tuple[str, ...]] = {thing.name: () for thing in program.outside if thing.kind == "env"}
    functions: dict[str, tuple[str, ...]] = {thing.name: () for thing in program.outside if thing.kind == "func"}
    judges = [
        model.name
        for model in program.models
        if not model.copy_of and model.kind != "causal_lm" and not has_changing_weights(program, model)
    ]
    for phase in program.phases:
        types = phase.graph.value_types()
        columns: dict[str, tuple[str, str]] = {}
        for node in phase.graph.walk():
            _look(node, types, columns, data, functions)
            if environment := node.attr("env", ""):
                environments[str(environment)] = tuple(attribute_value(node, "players"))
    return Needs(data, functions, environments, judges)


def _look(
    node: Node,
    types: Mapping[str, Type],
    columns: dict[str, tuple[str, str]],
    data: dict[str, DataNeeds],
    functions: dict[str, tuple[str, ...]],
) -> None:
    """Note what one node takes from the data. columns: the values that are columns, and whose."""
    if node.op == "column":
        source, kind, name = _source(node.inputs[0], types, data), types[node.inputs[0]], str(node.attr("name"))
        if source and name not in replace(cast(Table, kind), data=()).column_types():
            columns[node.outputs[0].name] = source, name
            _add(data[source].texts, name)
    elif node.op == "encode":
        if source := _source(node.inputs[0], types, data):
            _add(data[source].prompts, "prompt")
            _add(data[source].answers, str(attribute_value(node, "answer") or "completion"))
        for value, role in zip(reversed(node.inputs), ("answers", "prompts"), strict=False):
            _turn_into(role, value, columns, data)
    elif node.op == "tensor":
        for let in node.body:
            for part in operations_in(let.expr):
                for place, argument in enumerate(part.args):
                    if isinstance(argument, Ref) and not TENSOR[part.op].texts:
                        role = "truths" if part.op == "where" and place == 0 else "numbers"
                        _turn_into(role, argument.name, columns, data)
    elif node.op == "call":
        functions[str(node.attr("func"))] = tuple(node.attr("names", ()))
        if source := _source(node.inputs[0], types, data):
            data[source].graded = True
    elif NODES[node.op].generates:
        for value in node.inputs[1:]:
            _turn_into("prompts", value, columns, data)
            if source := _source(value, types, data):
                prompt = prompt_column_of(node) or "prompt"
                if prompt in data[source].texts:
                    data[source].texts.remove(prompt)
                if prompt not in replace(cast(Table, types[value]), data=()).column_types():
                    _add(data[source].prompts, prompt)
                data[source].graded |= bool(NODES[node.op].foreign)


def _source(value: str, types: Mapping[str, Type], data: Mapping[str, DataNeeds]) -> str:
    """Return the data source from which the rows of a table are; empty where it is no table of such rows."""
    kind = types.get(value)
    name = kind.axis.root_axis.name if isinstance(kind, Table) else ""
    return name if name in data else ""


def _turn_into(role: str, value: str, columns: Mapping[str, tuple[str, str]], data: Mapping[str, DataNeeds]) -> None:
    """Note that a column is more than some text."""
    if value in columns:
        source, name = columns[value]
        needs = data[source]
        if name in needs.texts:
            needs.texts.remove(name)
        _add(getattr(needs, role), name)


def _add(names: list[str], name: str) -> None:
    if name not in names:
        names.append(name)
