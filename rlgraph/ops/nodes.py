"""Operations of nodes: on tables, models and things that live across steps. A record (`records`) declares each of them.

All other code asks the record instead of comparing names. `NODES[node.op]` has the traits, and the functions here
answer questions about a node:

    op = NODES[node.op]
    op.generates         a model makes new rows                                    generate interact
    op.scores            a model computes something for existing rows              logprobs entropy values score ...
    op.trains            an optimizer step of a model                              train
    op.with_model        any of these three: work that a plan gives to a group
    op.updates           the model has other weights afterwards                    train update
    op.selects           its outputs are inputs or parts of them, without a copy   column keep pick resample recent ...
    op.chooses           the index of the input that says which rows stay, or None keep pick resample recent ...
                         of a condition the one row that says yes, or none         when stop
    op.region            it has a graph
    op.loop              what that graph is run for: "slices", "rounds", "steps"   minibatch collect every
                         or where a number says so: "condition"                    if
    op.body              its work is given as expressions                          tensor
    op.pure              the same inputs give the same outputs, without side effects: equal nodes can be merged
    op.counts            it counts rows without reading them                       size
    op.foreign           it runs the user's Python                                 call interact
    op.random, op.effect, op.streams, op.barrier, op.free
    op.attributes        names, types, ranges and defaults of its attributes
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, cast

from rlgraph.ir.attributes import Required
from rlgraph.ir.graph import Node
from rlgraph.ops.node_op import NodeOp, Unit, Work
from rlgraph.ops.records import RECORDS

NODES: Mapping[str, NodeOp] = {op.name: op for op in RECORDS}

MODEL_OPERATIONS = tuple(op.name for op in RECORDS if op.uses_model and not op.part_of)
"""The operations that a plan gives to groups of processes: all that compute with a model's weights."""


def model_work_of(operation: str) -> Work | None:
    """Return what an operation does with a model's weights; None if it needs no model or does not exist."""
    return NODES[operation].work if operation in NODES else None


def attribute_value(node: Node, name: str) -> Any:
    """Return an attribute's value, or the record's default where the node has none."""
    default = NODES[node.op].attribute_named(name).default
    return node.attr(name, None if isinstance(default, Required) else default)


def unit_seen_by_node(node: Node) -> Unit:
    """Return the smallest unit that a node works on: that of its operation, or what its function needs to see."""
    op = NODES[node.op]
    has_over = any(attribute.name == "over" for attribute in op.attributes)
    return cast(Unit, attribute_value(node, "over")) if has_over else op.unit


def placement_operation(operation: str) -> str:
    """Return the operation under which a plan places an operation's work."""
    return NODES[operation].part_of or operation


def model_of(node: Node) -> str:
    """Return the name of the weights that a node uses, those that are trained or replaced first; "" for none."""
    return _input(node, "model")


def models_beside(node: Node) -> tuple[str, ...]:
    """Return the names of the weights of other models that a node, or the loss of one that trains, reads together with
    its own: they have to be in the same processes."""
    nodes = [node, *(node.region.walk() if NODES[node.op].trains and node.regions else ())]
    read = [name for inner in nodes if NODES[inner.op].joint for name in pairs_beside(inner)[::2]]
    return tuple(dict.fromkeys(read))


def pairs_beside(node: Node) -> tuple[str, ...]:
    """Return the other models and tables that a node reads beside its own, in turn."""
    return node.inputs[2 : len(node.inputs) - attribute_value(node, "kept") - attribute_value(node, "numbers")]


def kept_probabilities(node: Node) -> tuple[str, ...]:
    """Return the inputs of a node that are probabilities of likeliest tokens, which somebody has computed before."""
    stop = len(node.inputs) - attribute_value(node, "numbers")
    return node.inputs[stop - attribute_value(node, "kept") : stop]


def numbers_beside(node: Node) -> tuple[str, ...]:
    """Return the inputs of a node that are numbers of rows or tokens, which stand beside probabilities."""
    return node.inputs[len(node.inputs) - attribute_value(node, "numbers") :]


def table_of(node: Node) -> str:
    """Return the name of the table that a node works on; "" for none."""
    return _input(node, "table")


def tables_read(node: Node) -> tuple[str, ...]:
    """Return the names of the tables that an update, or a call of a model, reads."""
    nodes = [inner for region in node.regions for inner in region.nodes] if NODES[node.op].trains else [node]
    return tuple(dict.fromkeys(table_of(call) for call in nodes if NODES[call.op].scores))


def rows_per_input(node: Node) -> int:
    """Return how many rows a node that generates makes for each input row. It may sample more of them."""
    rows: int = node.attr("first") or attribute_value(node, "n")
    return rows


def prompt_column_of(node: Node) -> str:
    """Return the column of its table that a node answers; "" for what the rows were asked before, and `prompt` where
    they come from the data."""
    return str(node.attr("prompt", ""))


def expected_lengths_of(node: Node) -> str:
    """Return the name of the expected lengths of the rows of a node that generates; "" where a plan asks for none."""
    before = 2 + len(mixed_models(node))
    return node.inputs[before] if NODES[node.op].streams and len(node.inputs) > before else ""


def mixed_models(node: Node) -> tuple[str, ...]:
    """Return the names of the weights of other models with which a node samples from a mixture."""
    count = len(attribute_value(node, "models")) if mixture_weights(node) else 0
    return node.inputs[2 : 1 + count] if count else ()


def mixture_weights(node: Node) -> tuple[float, ...]:
    """Return the weights of the models of a mixture from which a node samples; none where it is one model."""
    weights: tuple[float, ...] = node.attr("weights", ())
    return weights


def concurrent_batches(node: Node, missing: float) -> int:
    """Return how many batches a `collect` begins concurrently where so many rows are missing."""
    ahead = attribute_value(node, "ahead")
    return 1 if ahead is None else math.ceil(ahead * missing / node.attr("batch") - 1e-9)


def user_code_of(node: Node) -> str:
    """Return the name of the user's function or environment that a node runs; "" for none."""
    name = NODES[node.op].foreign
    return str(node.attr(name)) if name else ""


def works_on_shares(node: Node) -> bool:
    """Return whether several processes of the host can each do a node's work on some of its rows: it is mathematics by
    row or by group, which needs nothing but its inputs."""
    return NODES[node.op].has_body and node.unit is not None and node.unit.axis is not None


def inputs_read(node: Node) -> tuple[str, ...]:
    """Return the inputs that a node reads; rows that are only chosen from are not read."""
    chooses = NODES[node.op].chooses
    return node.inputs if chooses is None or not node.outputs else (node.inputs[chooses],)


def inputs_chosen_from(node: Node) -> tuple[str, ...]:
    """Return the inputs that a node chooses rows from, one for each output."""
    at = NODES[node.op].chooses
    assert at is not None
    return node.inputs[:at] + node.inputs[at + 1 :]


def selected_inputs(node: Node) -> tuple[str, ...]:
    """Return the inputs of which the outputs of a node are parts, one for each; none where it makes its outputs."""
    op = NODES[node.op]
    return inputs_chosen_from(node) if op.chooses is not None else node.inputs[: op.selects]


def row_history(table: str, makers: Mapping[str, tuple[Node, int]]) -> Iterator[tuple[Node, int]]:
    """Return the nodes through which rows came into a table, the last one first, each with the index of the output.

    makers: for each value of a graph the node that makes it, and the index of the output."""
    while table in makers:
        node, at = makers[table]
        op = NODES[node.op]
        yield node, at
        if op.has_region:
            table = node.region.outputs[at]
        else:
            table = inputs_chosen_from(node)[at] if op.chooses is not None else table_of(node)


def sampling_node(table: str, makers: Mapping[str, tuple[Node, int]]) -> Node | None:
    """Return the node that sampled the rows of a table; None if none did. makers: as in `row_history`."""
    return next((node for node, _ in row_history(table, makers) if NODES[node.op].generates), None)


def _input(node: Node, kind: str) -> str:
    place = NODES[node.op].input_index(kind)
    return "" if place is None or place >= len(node.inputs) else node.inputs[place]


def sliced_axes(loop: Node) -> tuple[str, ...]:
    """Return the keys of the axes that a loop over slices cuts: its own, and those beside it."""
    return (str(loop.attr("axis")), *(loop.attr("beside") or ()))
